//! The last step: from drafts with a place and an order to instructions with tokens, and from these to a program.

mod allocations;
mod coalescing;
mod constants;
mod cost_model;
mod pack;
mod tokens;

use std::collections::BTreeSet;

use tpuflow_ir::access::{Accesses, accesses};
use tpuflow_ir::program::Port;
use tpuflow_ir::{Bounds, Descriptor, Graph, Instruction, Machine, Program, Space, TensorId, Unit, View, Wait};

use crate::addresses::external::{External, Joins, Split, external};
use crate::context::Site;
use crate::lowering::STAGES;
use crate::memory_space::Housed;
use crate::network::summary;
use crate::options::Mode;
use crate::parameters::Balancing;
use crate::virtual_program::addresses::{Addresses, resolve, resolve_view, unit};
use crate::virtual_program::{Content, Draft, Memory, Sketch};
use crate::{ScheduleError, Timing};
use allocations::allocations;
use coalescing::joined;
use cost_model::Clock;
use tokens::Tracker;

/// Which line takes a transfer that none is set apart for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// The one that is free first by the cost model.
    Free,
    /// The one of its address space; where there is only one, that with less to move so far: both end together, whatever they
    /// had to wait for.
    Even,
}

/// How what lies in external memory is brought in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ways {
    pub lines: Lines,
    /// Constants are shared out from the last one on, so that channels end together.
    pub backward: bool,
    /// Which loads travel together.
    pub joins: Joins,
}

impl Ways {
    pub fn new(lines: Lines) -> Self {
        Self { lines, backward: false, joins: Joins::new() }
    }
}

/// A program all but for its constants, bounds and allocations.
pub(crate) struct Planned {
    housed: Housed,
    addresses: Addresses,
    memory: External,
    mode: Mode,
    ways: Ways,
    /// Instruction of every draft.
    places: Vec<u32>,
    /// By stage, when the cost model has it and those before it end.
    ends: Vec<u64>,
    /// What can be timed; its prediction is the cost model's until it is.
    pub program: Program,
}

impl Planned {
    /// Lays out external memory, chooses lines and sets tokens.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn new(
        site: &Site,
        housed: Housed,
        mut addresses: Addresses,
        mode: Mode,
        ways: Ways,
    ) -> Result<Self, ScheduleError> {
        let (machine, sketch) = (site.machine, &housed.sketch);
        let parallel = mode != Mode::Sequential;
        let mirrored =
            site.parameters.ram_io_balancing == Balancing::Mirror && (parallel || !site.parameters.parallel());
        let split = match (mirrored, ways.backward) {
            (false, _) => Split::No,
            (true, false) => Split::Forward,
            (true, true) => Split::Backward,
        };
        let lines = ways.lines;
        let memory = external(sketch, machine, split, &ways.joins, &housed.outputs, &mut addresses)?;
        let descriptors: Vec<Descriptor> = sketch.descriptors.iter().cloned().collect();
        let place = |draft: &Draft| resolve(draft, unit(&draft.work, Unit::Dtl0), &addresses);
        let mut resolved: Vec<Instruction> = sketch.drafts.iter().map(place).collect();
        let touch = |instruction: &Instruction| accesses(instruction, &descriptors, machine);
        let mut touched: Vec<Accesses> = resolved.iter().map(touch).collect();
        let mut later = vec![None; resolved.len()];
        if !ways.joins.is_empty() {
            let is_constant = |draft: &Draft| constant_space(draft, sketch, &addresses).is_some();
            later = joined(&sketch.drafts, &mut resolved, &touched, is_constant, &ways.joins);
            for &last in later.iter().flatten() {
                touched[last] = touch(&resolved[last]);
            }
        }
        let mut instructions: Vec<Instruction> = Vec::with_capacity(sketch.drafts.len());
        let mut places: Vec<u32> = Vec::with_capacity(sketch.drafts.len());
        let mut counts = [0u32; 5];
        let (mut clock, mut tracker) = (Clock::new(machine), Tracker::default());
        let stages = site.stages();
        let mut ends = vec![0; STAGES];
        for (index, (draft, mut instruction)) in sketch.drafts.iter().zip(resolved).enumerate() {
            places.push(instructions.len() as u32);
            if later[index].is_some() {
                continue;
            }
            let line = match constant_space(draft, sketch, &addresses) {
                _ if !parallel => Unit::Dtl0,
                // A line for each address space of constants keeps all channels busy.
                Some(space) if machine.ddr_spaces() > 1 => [Unit::Dtl0, Unit::Dtl1][usize::from(space) % 2],
                // The others lie in the first.
                _ if lines == Lines::Even && machine.ddr_spaces() > 1 => Unit::Dtl0,
                _ => clock.line(lines == Lines::Even),
            };
            instruction.unit = unit(&draft.work, line);
            if parallel {
                instruction.waits = tracker.add(instruction.unit, &touched[index]);
            } else {
                let last = instructions.last().map(|i| Wait { unit: i.unit, count: counts[i.unit.index()] });
                instruction.waits.extend(last);
            }
            counts[instruction.unit.index()] += 1;
            clock.run(&instruction, &descriptors, &touched[index]);
            let end: &mut u64 = &mut ends[usize::from(stages[draft.layer.index()])];
            *end = clock.last(instruction.unit).max(*end);
            instructions.push(instruction);
        }
        for (index, last) in later.iter().enumerate() {
            if let Some(last) = last {
                places[index] = places[*last];
            }
        }
        for stage in 1..ends.len() {
            ends[stage] = ends[stage].max(ends[stage - 1]);
        }
        let graph = site.graph;
        let ports = |tensors: &[TensorId], views: &[View]| -> Vec<Port> {
            tensors.iter().zip(views).map(|(&t, view)| port(graph, t, resolve_view(&addresses, view))).collect()
        };
        let program = Program {
            name: graph.name.clone(),
            machine: machine.clone(),
            batch: summary::batch(graph),
            level: if parallel { 5 } else { 1 },
            fallback: None,
            descriptors,
            constants: Vec::new(),
            ddr_bytes: memory.bytes.clone(),
            spill_bytes: sketch.spill_bytes,
            cache_peak_bytes: 0,
            inputs: ports(&graph.inputs, &housed.inputs),
            outputs: ports(&graph.outputs, &housed.outputs),
            instructions,
            tilings: vec![],
            layers: summary::layers(graph, &site.network),
            bounds: Bounds::default(),
            predicted_cycles: clock.makespan(),
            allocations: Vec::new(),
        };
        Ok(Self { housed, addresses, memory, mode, ways, places, ends, program })
    }

    /// What it is made of.
    pub fn draft(&self) -> (&Sketch, &Addresses) {
        (&self.housed.sketch, &self.addresses)
    }

    /// By stage, when it and those before it end, in cycles of the timing as far as the cost model knows their shares.
    pub fn ends(&self) -> Vec<u64> {
        let whole = self.ends.last().copied().unwrap_or(0).max(1);
        let timed = |end| (u128::from(end) * u128::from(self.program.predicted_cycles) / u128::from(whole)) as u64;
        self.ends.iter().copied().map(timed).collect()
    }

    /// The same instructions in another order.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn reordered(&self, site: &Site, order: &[u32]) -> Result<Self, ScheduleError> {
        let housed = Housed { sketch: self.housed.sketch.reordered(order), ..self.housed.clone() };
        Self::new(site, housed, self.addresses.clone(), self.mode, self.ways.clone())
    }

    /// The same instructions, with what lies in external memory brought in otherwise.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn by(&self, site: &Site, ways: Ways) -> Result<Self, ScheduleError> {
        Self::new(site, self.housed.clone(), self.addresses.clone(), self.mode, ways)
    }

    /// How what lies in external memory is brought in.
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// The same with its cycles by `timing`, where that can tell.
    pub fn timed(mut self, timing: Timing) -> Self {
        self.program.predicted_cycles = timing(&self.program).unwrap_or(self.program.predicted_cycles);
        self
    }

    /// Whether bringing in what lies in external memory takes more than half of the time.
    pub fn loading(&self, machine: &Machine) -> bool {
        let bytes: u64 = self.memory.bytes.iter().sum();
        2 * machine.ddr_cycles(bytes) / u64::from(machine.ddr.channels.max(1)) > self.program.predicted_cycles
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

    /// The whole program.
    pub fn program(self, site: &Site) -> Program {
        let (machine, sketch) = (site.machine, &self.housed.sketch);
        let mut lives = vec![None; sketch.buffers.len()];
        // Of loads that travel together the first may be part of a later one than the second.
        for (draft, &place) in sketch.drafts.iter().zip(&self.places) {
            for buffer in draft.touches() {
                let life: &mut Option<(u32, u32)> = &mut lives[buffer.index()];
                *life = Some(life.map_or((place, place), |(first, last)| (first.min(place), last.max(place))));
            }
        }
        let mut program = self.program;
        program.constants = self.memory.constants(sketch, &site.network, machine.word());
        program.allocations = allocations(sketch, &lives, &self.addresses);
        program.cache_peak_bytes = program.allocations.iter().map(|a| a.address + a.bytes).max().unwrap_or(0);
        let found = tpuflow_bounds::bounds(site.graph, machine);
        for (layer, own) in program.layers.iter_mut().zip(found.layers) {
            (layer.binding, layer.bound) = (own.binding.to_owned(), own.cycles);
        }
        program.bounds = found.whole;
        program
    }
}

/// The plan of the fewest cycles, the first of equals; without any, the first reason why.
pub(crate) fn fastest(
    plans: impl IntoIterator<Item = Result<Planned, ScheduleError>>,
) -> Result<Planned, ScheduleError> {
    let cycles = |plan: &Planned| plan.program.predicted_cycles;
    let faster = |best, found| match (best, found) {
        (Ok(best), Ok(found)) => Ok(if cycles(&found) < cycles(&best) { found } else { best }),
        (Ok(plan), Err(_)) | (Err(_), Ok(plan)) => Ok(plan),
        (Err(first), Err(_)) => Err(first),
    };
    plans.into_iter().reduce(faster).unwrap_or(Err(ScheduleError::Level(5)))
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
