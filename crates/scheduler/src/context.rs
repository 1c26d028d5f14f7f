//! Data that all plans of a graph for a machine share.

use std::sync::OnceLock;

use tpuflow_bounds::GraphBounds;
use tpuflow_ir::{Graph, Machine};

use crate::budget::SearchBudget;
use crate::error::ScheduleError;
use crate::network::placement::Placement;
use crate::network::stages::stages;
use crate::network::{Network, prepare};
use crate::options::PipelineMode;
use crate::parameters::Parameters;

/// Parts of the bound; a plan within one of them is close to it.
const CLOSE: u64 = 50;

/// Data that all plans of a graph for a machine share.
pub(crate) struct PlanningContext<'a> {
    pub graph: &'a Graph,
    pub machine: &'a Machine,
    pub network: Network,
    pub parameters: &'a Parameters,
    pub placement: Placement,
    stages: Vec<u8>,
    /// Lower bounds of every program, once someone asked.
    bounds: OnceLock<GraphBounds>,
    pub budget: SearchBudget,
}

impl<'a> PlanningContext<'a> {
    pub fn new(
        graph: &'a Graph,
        machine: &'a Machine,
        budget: SearchBudget,
        parameters: &'a Parameters,
    ) -> Result<Self, ScheduleError> {
        let network = prepare(graph, machine)?;
        let placement = Placement::new(&network, graph, machine);
        let mut by_layer = vec![0; graph.layers.len()];
        for (step, stage) in network.steps.iter().zip(stages(&network)) {
            by_layer[step.layer.index()] = stage;
        }
        Ok(Self { graph, machine, network, parameters, placement, stages: by_layer, bounds: OnceLock::new(), budget })
    }

    /// By layer, the stage of its steps.
    pub fn stages(&self) -> &[u8] {
        &self.stages
    }

    /// Whether little can be gained on so many cycles.
    pub fn is_close(&self, cycles: u64) -> bool {
        let bound = self.bounds().whole.binding().1;
        cycles <= bound + bound / CLOSE
    }

    /// Lower bounds of every program, and of each layer.
    pub fn bounds(&self) -> &GraphBounds {
        self.bounds.get_or_init(|| tpuflow_bounds::bounds(self.graph, self.machine))
    }

    /// Share of the free cache a piece may take; a piece alone may take what two would at a time.
    pub fn utilization(&self, mode: PipelineMode) -> f64 {
        let share = self.parameters.slicer.max_cache_utilization;
        if mode.paired() || !self.parameters.parallel() { share } else { (2.0 * share).min(1.0) }
    }
}
