//! The last step: from drafts with a place and an order to instructions with tokens, and from these to a program.

use std::collections::BTreeSet;

use tpuflow_ir::access::accesses;
use tpuflow_ir::program::Port;
use tpuflow_ir::{Descriptor, Graph, Instruction, Program, Space, TensorId, Unit, View, Wait};

use crate::ScheduleError;
use crate::bounds::bounds;
use crate::cost::Clock;
use crate::emit::{Addresses, External, allocations, external, lifetimes, resolve, resolve_view, unit};
use crate::homes::Housed;
use crate::parameters::Balancing;
use crate::plan::{Mode, Site};
use crate::sketch::{Content, Draft, Memory, Sketch};
use crate::summary;
use crate::tokens::Tracker;

/// A program all but for its constants.
pub(crate) struct Planned {
    mode: Mode,
    housed: Housed,
    addresses: Addresses,
    memory: External,
    instructions: Vec<Instruction>,
    /// Cycles by the cost model.
    pub predicted_cycles: u64,
}

impl Planned {
    /// Lays out external memory, chooses lines and sets tokens.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn new(site: &Site, housed: Housed, mut addresses: Addresses, mode: Mode) -> Result<Self, ScheduleError> {
        let (machine, sketch) = (site.machine, &housed.sketch);
        let parallel = mode != Mode::Sequential;
        let mirrored =
            site.parameters.ram_io_balancing == Balancing::Mirror && (parallel || !site.parameters.parallel());
        let memory = external(sketch, machine, mirrored, &housed.outputs, &mut addresses)?;
        let descriptors: Vec<Descriptor> = sketch.descriptors.iter().cloned().collect();
        let mut instructions: Vec<Instruction> = Vec::with_capacity(sketch.drafts.len());
        let mut counts = [0u32; 5];
        let (mut clock, mut tracker) = (Clock::new(machine), Tracker::default());
        for draft in &sketch.drafts {
            let line = match constant_space(draft, sketch, &addresses) {
                _ if !parallel => Unit::Dtl0,
                // A line for each address space of constants keeps all channels busy.
                Some(space) if machine.ddr_spaces() > 1 => [Unit::Dtl0, Unit::Dtl1][usize::from(space) % 2],
                _ => clock.line(),
            };
            let mut instruction = resolve(draft, unit(&draft.work, line), &addresses);
            let touched = accesses(&instruction, &descriptors, machine);
            if parallel {
                instruction.waits = tracker.add(instruction.unit, &touched);
            } else {
                let last = instructions.last().map(|i| Wait { unit: i.unit, count: counts[i.unit.index()] });
                instruction.waits.extend(last);
            }
            counts[instruction.unit.index()] += 1;
            clock.run(&instruction, &descriptors, &touched);
            instructions.push(instruction);
        }
        let predicted_cycles = clock.makespan();
        Ok(Self { mode, housed, addresses, memory, instructions, predicted_cycles })
    }

    /// Tensors of the graph whose home is external memory though they are neither constants nor ports.
    pub fn far(&self, graph: &Graph) -> BTreeSet<TensorId> {
        let buffers = self.housed.sketch.buffers.iter();
        let names: BTreeSet<&str> = buffers
            .filter(|buffer| buffer.memory == Memory::Ddr && buffer.content == Content::Computed)
            .map(|buffer| buffer.name.as_str())
            .collect();
        let tensors = graph.tensors.iter().enumerate();
        tensors.filter(|(_, tensor)| names.contains(tensor.name.as_str())).map(|(id, _)| TensorId::new(id)).collect()
    }

    /// The program.
    pub fn program(&self, site: &Site) -> Program {
        let (graph, machine, sketch) = (site.graph, site.machine, &self.housed.sketch);
        let lives = lifetimes(sketch);
        let allocations = allocations(sketch, &lives, &self.addresses);
        let cache_peak_bytes = allocations.iter().map(|a| a.address + a.bytes).max().unwrap_or(0);
        let ports = |tensors: &[TensorId], views: &[View]| -> Vec<Port> {
            tensors.iter().zip(views).map(|(&t, view)| port(graph, t, resolve_view(&self.addresses, view))).collect()
        };
        let mut layers = summary::layers(graph, &site.network);
        let bounds = bounds(graph, &site.network, machine, &mut layers);
        Program {
            name: graph.name.clone(),
            machine: machine.clone(),
            batch: summary::batch(graph),
            level: if self.mode == Mode::Sequential { 1 } else { 5 },
            fallback: None,
            descriptors: sketch.descriptors.iter().cloned().collect(),
            constants: self.memory.constants(sketch, &site.network, machine.word()),
            ddr_bytes: self.memory.bytes.clone(),
            spill_bytes: sketch.spill_bytes,
            cache_peak_bytes,
            inputs: ports(&graph.inputs, &self.housed.inputs),
            outputs: ports(&graph.outputs, &self.housed.outputs),
            instructions: self.instructions.clone(),
            tilings: vec![],
            layers,
            bounds,
            predicted_cycles: self.predicted_cycles,
            allocations,
        }
    }
}

/// Address space of the constant a draft loads.
fn constant_space(draft: &Draft, sketch: &Sketch, addresses: &Addresses) -> Option<u8> {
    let (_, from) = draft.load()?;
    let is_constant = matches!(sketch.buffers[from.index()].content, Content::Constant(_));
    match addresses[from.index()].0 {
        Space::Ddr(space) if is_constant => Some(space),
        _ => None,
    }
}

fn port(graph: &Graph, tensor: TensorId, view: View) -> Port {
    let t = graph.tensor(tensor);
    Port {
        name: t.name.clone(),
        shape: t.shape.clone(),
        dtype: t.dtype,
        quant: t.quant.clone(),
        source: t.source.clone(),
        view,
    }
}
