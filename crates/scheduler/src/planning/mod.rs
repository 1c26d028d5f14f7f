//! Puts the parts together: one plan, one program.

pub(crate) mod fallback;
mod local_search;
pub(crate) mod portfolio;
mod stage_search;
mod transfer_length;

use crate::addresses::caches::addresses;
use crate::context::Site;
use crate::emission::{Lines, Planned, Ways, fastest};
use crate::memory_space::constant_groups::bundle;
use crate::memory_space::split::{has_room, stripes};
use crate::memory_space::{Housed, Request, house};
use crate::options::{Manner, Mode};
use crate::order::list_schedule::Loom;
use crate::order::prefetch::{Reaches, prefetch};
use crate::virtual_program::addresses::Addresses;
use crate::virtual_program::dependence::Depend;
use crate::virtual_program::{Memory, Sketch};
use crate::{ScheduleError, Timing};

/// Shares of the cache to plan with, in per cent: the first that also survives packing is taken.
const SHARES: [u64; 8] = [100, 95, 90, 80, 70, 60, 45, 30];

/// Shares of the base order a load may move ahead by, tried in turn.
const REACHES: [u32; 4] = [1, 4, 16, 64];

/// Shares of the cache that interleaved layers may fill, in per cent, tried in turn.
const ROOMS: [u64; 4] = [80, 60, 40, 20];

/// Cycles of a plan's orders that are timed for every step of the budget.
const TRIAL: u64 = 10_000;

/// Ways to give transfers to lines, all tried.
const LINES: [Lines; 2] = [Lines::Free, Lines::Even];

impl Site<'_> {
    /// Lowers the network and gives everything a place and a time: of several orders the fastest by `timing`.
    pub fn plan(&self, mode: Mode, manner: Manner, timing: Timing) -> Result<Planned, ScheduleError> {
        let machine = self.machine;
        let mut failure = None;
        for share in SHARES {
            let request = Request {
                network: &self.network,
                placement: &self.placement,
                machine,
                inputs: &self.graph.inputs,
                outputs: &self.graph.outputs,
                grains: mode.grains(),
                parallel: mode.paired(),
                pieces: self.parameters.pieces(),
                utilization: self.utilization(mode),
                narrow: manner.narrow,
                prompt: manner.prompt,
                passing: manner.passing,
                outside: !self.parameters.action_graph_data_transfer_optimization,
                capacity: machine.cache_bytes() / 100 * share,
            };
            let mut housed = match house(&request) {
                Ok(housed) => housed,
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            if let (true, Some(layers)) = (mode != Mode::Sequential, self.parameters.grouped()) {
                bundle(&mut housed.sketch, machine, layers, manner.bundles);
            }
            let found = match mode {
                Mode::Sequential => addresses(&housed.sketch, machine).map(|found| (found, Vec::new())),
                Mode::Layers { .. } => self.ahead(&mut housed.sketch, manner.searched).map(|found| {
                    let orders = self.taken_up(&housed.sketch, &found);
                    (found, orders)
                }),
                Mode::Woven { .. } => self.interleaved(&mut housed.sketch, manner.searched),
            };
            let (found, orders) = match found {
                Ok(found) => found,
                Err(error) => {
                    failure = failure.or(Some(error));
                    continue;
                }
            };
            let plan = |housed: &Housed| {
                let planned = |ways| Planned::new(self, housed.clone(), found.clone(), mode, ways);
                fastest(self.ways(mode, manner).into_iter().map(|ways| Ok(planned(ways)?.timed(timing))))
            };
            if orders.is_empty() {
                return plan(&housed);
            }
            let ordered = |order| Housed { sketch: housed.sketch.reordered(order), ..housed.clone() };
            return fastest(orders.iter().map(|order: &Vec<u32>| plan(&ordered(order))));
        }
        Err(failure.unwrap_or(ScheduleError::Level(1)))
    }

    /// Ways to bring in what lies in external memory, all tried.
    fn ways(&self, mode: Mode, manner: Manner) -> Vec<Ways> {
        let lines: &[Lines] = if mode == Mode::Sequential { &LINES[..1] } else { &LINES };
        let splits: &[bool] = if manner == Manner::default() { &[false] } else { &[false, true] };
        let all = splits.iter().flat_map(|&backward| lines.iter().map(move |&lines| (backward, lines)));
        all.map(|(backward, lines)| Ways { backward, ..Ways::new(lines) }).collect()
    }

    /// Moves loads ahead as far as room is found, and less far where that leaves none for what must be.
    fn ahead(&self, sketch: &mut Sketch, searched: bool) -> Result<Addresses, ScheduleError> {
        let parameters = self.parameters;
        let effort = searched.then_some(&self.effort);
        let caches = [&parameters.shared_cache_schedule_optimizations, &parameters.ewp_cache_schedule_optimizations];
        for share in REACHES {
            let reaches = Reaches {
                layers: parameters.ahead(),
                positions: sketch.drafts.len() as u32 / share,
                ring: caches.map(|passes| passes.round_robin),
            };
            match prefetch(sketch, self.machine, &reaches, effort) {
                Ok(found) => {
                    *sketch = found.sketch;
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
        addresses(sketch, self.machine)
    }

    /// Interleaves layers, with buffers in stripes where that leaves room enough, and gives orders beside the addresses, if any
    /// could be made.
    fn interleaved(&self, sketch: &mut Sketch, searched: bool) -> Result<(Addresses, Vec<Vec<u32>>), ScheduleError> {
        if has_room(sketch, self.machine) {
            let mut striped = sketch.clone();
            stripes(&mut striped, self.machine);
            if let Some(found) = self.woven(&mut striped, &ROOMS[..1], searched) {
                *sketch = striped;
                return Ok(found);
            }
        }
        if let Some(found) = self.woven(sketch, &ROOMS, searched) {
            return Ok(found);
        }
        Ok((self.ahead(sketch, searched)?, Vec::new()))
    }

    /// Interleaves layers with as much memory as leaves room for loads, moves these ahead, and once everything has its place
    /// lets all units take up their work as soon as they can.
    fn woven(&self, sketch: &mut Sketch, rooms: &[u64], searched: bool) -> Option<(Addresses, Vec<Vec<u32>>)> {
        let (machine, window) = (self.machine, self.parameters.window());
        let depend = Depend::new(sketch, machine, None);
        let loom = Loom::new(sketch, &depend, machine, window, None);
        for share in rooms {
            let order = loom.order(machine.cache_bytes() / 100 * share, &self.effort);
            let mut woven = sketch.reordered(&loom.late_loads(&order));
            if let Ok(found) = self.ahead(&mut woven, searched) {
                let orders = self.orders(&woven, &found);
                *sketch = woven;
                return Some((found, orders));
            }
        }
        None
    }

    /// Orders in which all units take up their work as soon as they can, now that everything has its place.
    fn orders(&self, sketch: &Sketch, addresses: &Addresses) -> Vec<Vec<u32>> {
        let depend = Depend::new(sketch, self.machine, Some(addresses));
        let loom = Loom::new(sketch, &depend, self.machine, self.parameters.window(), Some(addresses));
        loom.orders(u64::MAX, &self.effort, self.effort.steps.saturating_mul(TRIAL))
    }

    /// The order of layers, and those in which nothing that could begin stands behind loads that have time.
    fn taken_up(&self, sketch: &Sketch, addresses: &Addresses) -> Vec<Vec<u32>> {
        let mut orders = vec![(0..sketch.drafts.len() as u32).collect()];
        if self.parameters.layer_fusion != 0 {
            orders.extend(self.orders(sketch, addresses));
        }
        orders
    }
}
