//! One plan of a graph, phase by phase, for whoever times phases: layers interleaved in fine tiles, as in most programs of level 5.

use std::sync::Arc;

use tpuflow_ir::{Graph, Machine, Program, Tiling};

use crate::budget::SearchBudget;
use crate::context::PlanningContext;
use crate::emission::{Layout, LinePolicy, Plan, TransferOptions};
use crate::error::ScheduleError;
use crate::memory_space::constant_groups::group_constants;
use crate::memory_space::kept_constants::keep_constants;
use crate::memory_space::{LoweredNetwork, assign_memory_spaces};
use crate::options::granularity::{StageGranularities, TileGranularity};
use crate::options::{PipelineMode, PlanOptions};
use crate::order::list_schedule::{BufferLimit, ListScheduler};
use crate::parameters::Parameters;
use crate::tiling::groups::{Pricing, groups};
use crate::virtual_program::addresses::Addresses;
use crate::virtual_program::dependence::Dependences;

/// Share of the cache that interleaved layers may fill, in per cent.
const OPEN: u64 = 80;

/// Context that the phases of a graph share.
pub struct Phases<'a> {
    context: PlanningContext<'a>,
    mode: PipelineMode,
}

/// Layers in tiles, tensors with a memory: virtual instructions in the order of layers.
#[derive(Clone)]
pub struct Placed(LoweredNetwork);

/// Virtual instructions in the order of a list schedule.
#[derive(Clone)]
pub struct Ordered(LoweredNetwork);

/// Buffers with addresses, loads moved ahead.
#[derive(Clone)]
pub struct Addressed(LoweredNetwork, Addresses);

impl<'a> Phases<'a> {
    /// # Errors
    /// [`ScheduleError`] when the graph cannot be scheduled at all.
    pub fn new(
        graph: &'a Graph,
        machine: &'a Machine,
        parameters: &'a Parameters,
        steps: u64,
    ) -> Result<Self, ScheduleError> {
        let budget = SearchBudget { seed: 0, steps, deadline: None };
        let granularities = StageGranularities::even(TileGranularity::Fine);
        let mode = PipelineMode::Interleaved { granularities };
        Ok(Self { context: PlanningContext::new(graph, machine, budget, parameters)?, mode })
    }

    /// Tiling: the groups of layers that would be computed tile by tile if no tensor between layers had space on the chip.
    #[must_use]
    pub fn tile(&self) -> Vec<Tiling> {
        let PlanningContext { graph, machine, network, parameters, .. } = &self.context;
        let far = graph.layers.iter().map(|layer| layer.output).collect();
        let space = (machine.cache_bytes() as f64 * parameters.slicer.max_cache_utilization) as u64;
        let pricing = Pricing { graph, network, machine, far: &far, space, search: parameters.layer_groups };
        groups(&pricing, parameters.window() as usize).1
    }

    /// Placement: which memory each tensor is in, and the virtual instructions that follow.
    ///
    /// # Errors
    /// [`ScheduleError::Capacity`] naming the layer that does not fit.
    pub fn place(&self) -> Result<Placed, ScheduleError> {
        let machine = self.context.machine;
        let mut lowered = assign_memory_spaces(&self.context, PlanOptions::new(self.mode), machine.cache_bytes())?;
        keep_constants(&mut lowered.code, machine);
        if let Some(layers) = self.context.parameters.grouped() {
            group_constants(&mut lowered.code, machine, layers, 1);
        }
        Ok(Placed(lowered))
    }

    /// Order: a list schedule across layers.
    #[must_use]
    pub fn order(&self, placed: &Placed) -> Ordered {
        let (machine, code) = (self.context.machine, &placed.0.code);
        let dependences = Dependences::new(code, machine, None);
        let scheduler = ListScheduler::new(code, &dependences, machine, self.context.parameters.window(), None);
        let order = scheduler
            .order(BufferLimit { bytes: machine.cache_bytes() / 100 * OPEN, reserves: false }, &self.context.budget);
        Ordered(placed.0.reordered(&scheduler.late_loads(&order)))
    }

    /// Addresses of buffers in both caches, with loads moved ahead.
    ///
    /// # Errors
    /// [`ScheduleError::Allocation`] when buffers do not fit.
    pub fn address(&self, ordered: &Ordered) -> Result<Addressed, ScheduleError> {
        let mut lowered = ordered.0.clone();
        let addresses = self.context.with_prefetches(&mut lowered.code, false)?;
        Ok(Addressed(lowered, addresses))
    }

    /// Emission: instructions with units and tokens, and packed constants.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn emit(&self, addressed: &Addressed) -> Result<Program, ScheduleError> {
        let Addressed(lowered, addresses) = addressed.clone();
        let transfers = TransferOptions::new(LinePolicy::Free);
        let layout = Layout::new(&self.context, Arc::new(lowered), &addresses, true, &transfers)?;
        Ok(Plan::new(&self.context, &layout, self.mode, transfers).program(&self.context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, common};

    #[test]
    fn phases_one_after_the_other_make_a_proven_program() {
        let mut net = common::Net::new(5);
        let x = net.input(&[1, 32, 32, 16]);
        let y = net.conv(x, 32, common::window(3, 1, 1), 1);
        let y = net.max_pool(y, common::window(2, 2, 0));
        let y = net.conv(y, 64, common::window(3, 1, 1), 1);
        let graph = net.finish(&[y]);
        let (machine, parameters) = (Machine::preset("128x128_asic").expect("known"), Parameters::o5());
        let phases = Phases::new(&graph, &machine, &parameters, 10).expect("a sound graph");
        let placed = phases.place().expect("space for all");
        let addressed = phases.address(&phases.order(&placed)).expect("space for all");
        let program = phases.emit(&addressed).expect("space for all");
        assert_eq!(check(&graph, &program), Ok(()));
        assert_eq!(program.level, 5);
        // All of it could be one group, in as many tiles as fit.
        assert!(crate::tiling::tiled(&graph, &phases.tile()).is_ok());
    }
}
