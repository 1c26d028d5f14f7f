//! Puts the parts together: one plan, one program.

mod bank_conflicts;
pub(crate) mod fallback;
mod local_search;
pub mod phases;
pub(crate) mod portfolio;
mod stage_search;
mod transfer_length;

use std::sync::Arc;

use tpuflow_ir::InstructionId;

use crate::addresses::caches::addresses;
use crate::budget::Timing;
use crate::context::PlanningContext;
use crate::emission::{Layout, LinePolicy, Plan, TransferOptions, fastest};
use crate::error::ScheduleError;
use crate::memory_space::constant_groups::group_constants;
use crate::memory_space::kept_constants::keep_constants;
use crate::memory_space::port_parts::cut_ports;
use crate::memory_space::split::{split_live_ranges, with_space};
use crate::memory_space::{LoweredNetwork, assign_memory_spaces};
use crate::options::{PipelineMode, PlanOptions};
use crate::order::list_schedule::{BufferLimit, ListScheduler};
use crate::order::prefetch::{PrefetchDistance, Residents, prefetch};
use crate::parameters::IoMemory;
use crate::virtual_program::addresses::Addresses;
use crate::virtual_program::dependence::Dependences;
use crate::virtual_program::{Memory, VirtualProgram};

/// Shares of the cache to plan with, in per cent: the first that also survives packing is taken.
const SHARES: [u64; 8] = [100, 95, 90, 80, 70, 60, 45, 30];

/// Shares of the base order a load may move ahead by, tried in turn.
const REACHES: [u32; 4] = [1, 4, 16, 64];

/// Shares of the cache that interleaved layers may fill, in per cent, tried in turn.
const OPEN_SHARES: [u64; 4] = [80, 60, 40, 20];

/// Cycles of a plan's orders that are timed for every step of the budget.
const TRIAL: u64 = 2500;

/// Ways to give transfers to lines, all tried.
const LINES: [LinePolicy; 2] = [LinePolicy::Free, LinePolicy::Even];

/// Those that are tried in a mode.
fn line_policies(mode: PipelineMode) -> &'static [LinePolicy] {
    if mode == PipelineMode::Sequential { &LINES[..1] } else { &LINES }
}

/// Whether constants are shared out backward, as is tried.
fn splits(options: PlanOptions) -> &'static [bool] {
    if options.is_usual() { &[false] } else { &[false, true] }
}

impl PlanningContext<'_> {
    /// Lowers the network and gives everything a place and a time: of several orders the fastest by `timing`.
    pub fn plan(&self, options: PlanOptions, timing: Timing) -> Result<Plan, ScheduleError> {
        let (machine, mode) = (self.machine, options.mode);
        let mut failure = None;
        let mut keeps = mode != PipelineMode::Sequential;
        let shares = SHARES.iter().filter(|&&share| share <= options.cache_share);
        let attempts = shares.flat_map(|share| [(share, true), (share, false)]);
        for (share, is_first) in attempts {
            // A second time with as much of the cache where constants that are kept leave too little.
            if !is_first && !std::mem::replace(&mut keeps, false) {
                continue;
            }
            self.in_time()?;
            let capacity = machine.cache_bytes() / 100 * share;
            let mut lowered = match assign_memory_spaces(self, options, capacity) {
                Ok(lowered) => lowered,
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            lowered.trim_states(self.graph, machine.word());
            if mode != PipelineMode::Sequential && self.parameters.io_memory != IoMemory::Contiguous {
                cut_ports(&mut lowered, self.graph, machine);
            }
            keeps = keeps && keep_constants(&mut lowered.code, machine);
            if let (true, Some(layers)) = (mode != PipelineMode::Sequential, self.parameters.grouped()) {
                let layers = if options.group_by_layer { 1 } else { layers };
                group_constants(&mut lowered.code, machine, layers, options.group_scale);
            }
            let found = match mode {
                PipelineMode::Sequential => addresses(&lowered.code, machine).map(|found| (found, Vec::new())),
                PipelineMode::Layers { .. } => {
                    self.with_prefetches(&mut lowered.code, options.search_load_order).map(|found| {
                        let orders = self.layer_orders(&lowered.code, &found);
                        (found, orders)
                    })
                }
                PipelineMode::Interleaved { .. } => self.interleaved(&mut lowered.code, options),
            };
            let (found, orders) = match found {
                Ok(found) => found,
                Err(error) => {
                    failure = failure.or(Some(error));
                    continue;
                }
            };
            let plan = |lowered: LoweredNetwork| {
                self.in_time()?;
                let lowered = Arc::new(lowered);
                let by_split = splits(options).iter().flat_map(|&backward| {
                    let usual = TransferOptions { backward, ..TransferOptions::new(LinePolicy::Free) };
                    let parallel = mode != PipelineMode::Sequential;
                    let layout = Layout::new(self, Arc::clone(&lowered), &found, parallel, &usual);
                    let plan = move |&lines| {
                        let layout = layout.as_ref().map_err(Clone::clone)?;
                        Ok(Plan::new(self, layout, mode, TransferOptions { lines, ..usual.clone() }).timed(timing))
                    };
                    line_policies(mode).iter().map(plan)
                });
                fastest(by_split)
            };
            if orders.is_empty() {
                return plan(lowered);
            }
            return fastest(orders.iter().map(|order: &Vec<InstructionId>| plan(lowered.reordered(order))));
        }
        Err(failure.unwrap_or(ScheduleError::Level(1)))
    }

    /// # Errors
    /// [`ScheduleError::Time`] when there is no time left.
    fn in_time(&self) -> Result<(), ScheduleError> {
        if self.budget.is_over() { Err(ScheduleError::Time) } else { Ok(()) }
    }

    /// Moves loads ahead as far as room is found, and less far where that leaves none for what must be.
    fn with_prefetches(&self, code: &mut VirtualProgram, search_load_order: bool) -> Result<Addresses, ScheduleError> {
        let parameters = self.parameters;
        let budget = search_load_order.then_some(&self.budget);
        let caches = [&parameters.shared_cache_schedule_optimizations, &parameters.ewp_cache_schedule_optimizations];
        for share in REACHES {
            let reaches = PrefetchDistance {
                layers: parameters.prefetch_depth(),
                positions: code.instructions.len() as u32 / share,
                ring: caches.map(|passes| passes.round_robin),
            };
            match prefetch(code, self.machine, &reaches, &Residents::none(self.machine), budget) {
                Ok(found) => {
                    *code = found.code;
                    return Ok(found.addresses);
                }
                Err(memory) => {
                    let full = usize::from(memory == Memory::Ewp);
                    if !caches[full].fallthrough_patch {
                        break;
                    }
                }
            }
        }
        addresses(code, self.machine)
    }

    /// Interleaves layers, with buffers in pieces where that leaves room enough, and gives orders beside the addresses, if any
    /// could be made.
    fn interleaved(
        &self,
        code: &mut VirtualProgram,
        options: PlanOptions,
    ) -> Result<(Addresses, Vec<Vec<InstructionId>>), ScheduleError> {
        let allowed = with_space(code, self.machine);
        if allowed.contains(&true) {
            let mut striped = code.clone();
            split_live_ranges(&mut striped, self.machine, &allowed);
            if let Some(found) = self.list_scheduled(&mut striped, options) {
                *code = striped;
                return Ok(found);
            }
        }
        if let Some(found) = self.list_scheduled(code, options) {
            return Ok(found);
        }
        self.in_time()?;
        Ok((self.with_prefetches(code, options.search_load_order)?, Vec::new()))
    }

    /// Interleaves layers with as much memory as leaves room for loads, moves these ahead, and once everything has its place
    /// lets all units take up their work as soon as they can.
    fn list_scheduled(
        &self,
        code: &mut VirtualProgram,
        options: PlanOptions,
    ) -> Option<(Addresses, Vec<Vec<InstructionId>>)> {
        let (machine, window) = (self.machine, self.parameters.window());
        let dependences = Dependences::new(code, machine, None);
        let scheduler = ListScheduler::new(code, &dependences, machine, window, None);
        for share in OPEN_SHARES {
            self.in_time().ok()?;
            let limit = BufferLimit { bytes: machine.cache_bytes() / 100 * share, reserves: options.reserves_space };
            let order = scheduler.order(limit, &self.budget);
            let mut scheduled = code.reordered(&scheduler.late_loads(&order));
            if let Ok(found) = self.with_prefetches(&mut scheduled, options.search_load_order) {
                let orders = self.orders(&scheduled, &found);
                *code = scheduled;
                return Some((found, orders));
            }
        }
        None
    }

    /// Orders in which all units take up their work as soon as they can, now that everything has its place.
    fn orders(&self, code: &VirtualProgram, addresses: &Addresses) -> Vec<Vec<InstructionId>> {
        let dependences = Dependences::new(code, self.machine, Some(addresses));
        let scheduler = ListScheduler::new(code, &dependences, self.machine, self.parameters.window(), Some(addresses));
        scheduler.orders(BufferLimit::NONE, &self.budget, self.budget.steps.saturating_mul(TRIAL))
    }

    /// The order of layers, and those in which nothing that could begin stands behind loads that have time.
    fn layer_orders(&self, code: &VirtualProgram, addresses: &Addresses) -> Vec<Vec<InstructionId>> {
        let mut orders = vec![code.ids().collect()];
        if self.parameters.layer_fusion != 0 {
            orders.extend(self.orders(code, addresses));
        }
        orders
    }
}
