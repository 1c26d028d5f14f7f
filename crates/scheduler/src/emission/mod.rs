//! The last step: from virtual instructions with an order and addresses to instructions with tokens, and from these to a program.

mod allocations;
mod coalescing;
mod constants;
mod cost_model;
mod pack;
mod tokens;

use std::collections::BTreeSet;

use tpuflow_ir::access::{Accesses, accesses};
use tpuflow_ir::program::Port;
use tpuflow_ir::{
    Bounds, Descriptor, Graph, Instruction, InstructionId, Machine, Program, Space, TensorId, Unit, View, Wait, Work,
};

use crate::addresses::external::{CoalescingLimits, ConstantSplit, External, Ports, external};
use crate::budget::Timing;
use crate::context::PlanningContext;
use crate::error::ScheduleError;
use crate::memory_space::LoweredNetwork;
use crate::network::stages::STAGES;
use crate::network::summary;
use crate::options::PipelineMode;
use crate::parameters::Balancing;
use crate::virtual_program::addresses::{Addresses, Lifetime, resolve, resolve_view};
use crate::virtual_program::{Content, Memory, VirtualInstruction, VirtualProgram};
use allocations::allocations;
use coalescing::coalesce;
use cost_model::CostModel;
use tokens::TokenTracker;

/// Which line takes a transfer that none is set apart for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinePolicy {
    /// The one that is free first by the cost model.
    Free,
    /// The one of its address space; where there is only one, that with less to move so far: both end together, whatever they
    /// had to wait for.
    Even,
}

/// How what lies in external memory is brought in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TransferOptions {
    pub lines: LinePolicy,
    /// Constants are shared out from the last one on, so that channels end together.
    pub backward: bool,
    /// Which loads travel together.
    pub coalescing: CoalescingLimits,
}

impl TransferOptions {
    pub fn new(lines: LinePolicy) -> Self {
        Self { lines, backward: false, coalescing: CoalescingLimits::new() }
    }
}

/// A program all but for its constants, bounds and allocations.
pub(crate) struct Plan {
    lowered: LoweredNetwork,
    addresses: Addresses,
    memory: External,
    mode: PipelineMode,
    transfer_options: TransferOptions,
    /// Instruction of every virtual instruction.
    places: Vec<InstructionId>,
    /// By stage, when the cost model has it and those before it end.
    ends: Vec<u64>,
    /// What can be timed; its prediction is the cost model's until it is.
    pub program: Program,
}

impl Plan {
    /// Lays out external memory, chooses lines and sets tokens.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn new(
        context: &PlanningContext,
        lowered: LoweredNetwork,
        mut addresses: Addresses,
        mode: PipelineMode,
        transfer_options: TransferOptions,
    ) -> Result<Self, ScheduleError> {
        let (machine, code) = (context.machine, &lowered.code);
        let parallel = mode != PipelineMode::Sequential;
        let split = constant_split(context, parallel, transfer_options.backward);
        let limits = &transfer_options.coalescing;
        let states = lowered.states(context.graph, machine.word());
        let ports = Ports {
            inputs: &lowered.inputs,
            outputs: &lowered.outputs,
            states: &states,
            memory: context.parameters.io_memory,
        };
        let memory = external(code, machine, split, limits, &ports, &mut addresses)?;
        let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
        let lines = parallel.then_some(transfer_options.lines);
        let resolved = Resolved::new(code, &addresses, &descriptors, machine, limits);
        let Issued { instructions, places, ends, cycles } =
            resolved.issue(context, code, &addresses, &descriptors, lines);
        let graph = context.graph;
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
            spill_bytes: 0,
            cache_peak_bytes: 0,
            inputs: ports(&graph.inputs, &lowered.inputs),
            outputs: ports(&graph.outputs, &lowered.outputs),
            instructions,
            states: graph.states.clone(),
            position: None,
            tilings: vec![],
            layers: summary::layers(graph, &context.network, machine),
            bounds: Bounds::default(),
            predicted_cycles: cycles,
            allocations: Vec::new(),
        };
        Ok(Self { lowered, addresses, memory, mode, transfer_options, places, ends, program })
    }

    /// What it is made of.
    pub fn parts(&self) -> (&VirtualProgram, &Addresses) {
        (&self.lowered.code, &self.addresses)
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
    pub fn reordered(&self, context: &PlanningContext, order: &[InstructionId]) -> Result<Self, ScheduleError> {
        let lowered = LoweredNetwork { code: self.lowered.code.reordered(order), ..self.lowered.clone() };
        Self::new(context, lowered, self.addresses.clone(), self.mode, self.transfer_options.clone())
    }

    /// The same instructions, with what lies in external memory brought in otherwise.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn by(&self, context: &PlanningContext, transfer_options: TransferOptions) -> Result<Self, ScheduleError> {
        Self::new(context, self.lowered.clone(), self.addresses.clone(), self.mode, transfer_options)
    }

    /// How what lies in external memory is brought in.
    pub fn transfer_options(&self) -> &TransferOptions {
        &self.transfer_options
    }

    /// The same with its cycles by `timing`, where that can tell.
    pub fn timed(mut self, timing: Timing) -> Self {
        self.program.predicted_cycles = timing(&self.program).unwrap_or(self.program.predicted_cycles);
        self
    }

    /// Whether bringing in what lies in external memory takes more than half of the time.
    pub fn loading(&self, machine: &Machine) -> bool {
        let bytes: u64 = self.memory.bytes.iter().sum();
        2 * machine.ddr_cycles(bytes) / machine.channels() as u64 > self.program.predicted_cycles
    }

    /// Tensors of the graph that live in external memory though they are neither constants nor ports.
    pub fn spilled_tensors(&self, graph: &Graph) -> BTreeSet<TensorId> {
        let buffers = self.lowered.code.buffers.iter();
        let names: BTreeSet<&str> = buffers
            .filter(|buffer| buffer.memory == Memory::Ddr && buffer.content == Content::Computed)
            .map(|buffer| buffer.name.as_str())
            .collect();
        let tensors = graph.tensors.iter().enumerate();
        tensors.filter(|(_, tensor)| names.contains(tensor.name.as_str())).map(|(id, _)| TensorId::new(id)).collect()
    }

    /// The whole program.
    pub fn program(self, context: &PlanningContext) -> Program {
        let (machine, code) = (context.machine, &self.lowered.code);
        let mut live_ranges = vec![None; code.buffers.len()];
        // Of loads that travel together the first may be part of a later one than the second.
        for (virtual_instruction, &place) in code.instructions.iter().zip(&self.places) {
            for buffer in virtual_instruction.touches() {
                let life: &mut Option<Lifetime> = &mut live_ranges[buffer.index()];
                *life = Some(life.map_or((place, place), |(first, last)| (first.min(place), last.max(place))));
            }
        }
        let mut program = self.program;
        program.constants = self.memory.constants(code, &context.network, machine.word());
        program.spill_bytes = spilled(&program, machine.word());
        program.allocations = allocations(code, &live_ranges, &self.addresses);
        program.cache_peak_bytes = program.allocations.iter().map(|a| a.address + a.bytes).max().unwrap_or(0);
        let found = context.bounds();
        for (layer, own) in program.layers.iter_mut().zip(&found.layers) {
            (layer.binding, layer.bound) = (own.binding.to_owned(), own.cycles);
        }
        program.bounds = found.whole.clone();
        program
    }
}

/// The plan of the fewest cycles, the first of equals; without any, the first reason why.
pub(crate) fn fastest(plans: impl IntoIterator<Item = Result<Plan, ScheduleError>>) -> Result<Plan, ScheduleError> {
    let cycles = |plan: &Plan| plan.program.predicted_cycles;
    let faster = |best, found| match (best, found) {
        (Ok(best), Ok(found)) => Ok(if cycles(&found) < cycles(&best) { found } else { best }),
        (Ok(plan), Err(_)) | (Err(_), Ok(plan)) => Ok(plan),
        (Err(first), Err(_)) => Err(first),
    };
    plans.into_iter().reduce(faster).unwrap_or(Err(ScheduleError::Level(5)))
}

/// Bytes moved to and from external memory outside constants and ports: those of tensors the cache has no room for.
fn spilled(program: &Program, word: usize) -> u64 {
    let views: Vec<View> = program.inputs.iter().chain(&program.outputs).map(|port| port.view).collect();
    let constants: Vec<u64> = program.constants.iter().map(|image| image.len() as u64).collect();
    let is_spilled = |space: u8, address: u64| {
        let in_port = |view: &View| {
            view.space == Space::Ddr(space) && view.address <= address && address < view.address + view.bytes(word)
        };
        constants.get(usize::from(space)).is_none_or(|&end| end <= address) && !views.iter().any(in_port)
    };
    let mut bytes = 0;
    for instruction in &program.instructions {
        if let Work::Transfer(transfer) = &instruction.work
            && is_spilled(transfer.ddr_space, transfer.ddr_address)
        {
            bytes += transfer.total_bytes();
        }
    }
    bytes
}

/// Which constants lie in which address space: shared out over all where these balance each other, else all in the first.
fn constant_split(context: &PlanningContext, parallel: bool, backward: bool) -> ConstantSplit {
    let balanced = context.parameters.ram_io_balancing == Balancing::Mirror;
    match (balanced && (parallel || !context.parameters.parallel()), backward) {
        (false, _) => ConstantSplit::No,
        (true, false) => ConstantSplit::Forward,
        (true, true) => ConstantSplit::Backward,
    }
}

/// Virtual instructions with their addresses.
struct Resolved {
    instructions: Vec<Instruction>,
    touched: Vec<Accesses>,
    /// By virtual instruction, the later load it travels with.
    later: Vec<Option<InstructionId>>,
}

/// Instructions with lines and tokens, as the cost model has them run.
struct Issued {
    instructions: Vec<Instruction>,
    places: Vec<InstructionId>,
    ends: Vec<u64>,
    cycles: u64,
}

impl Resolved {
    fn new(
        code: &VirtualProgram,
        addresses: &Addresses,
        descriptors: &[Descriptor],
        machine: &Machine,
        limits: &CoalescingLimits,
    ) -> Self {
        let place = |virtual_instruction: &VirtualInstruction| {
            resolve(virtual_instruction, virtual_instruction.unit(descriptors, machine), addresses)
        };
        let mut instructions: Vec<Instruction> = code.instructions.iter().map(place).collect();
        let touch = |instruction: &Instruction| accesses(instruction, descriptors, machine);
        let mut touched: Vec<Accesses> = instructions.iter().map(touch).collect();
        let mut later = vec![None; instructions.len()];
        if !limits.is_empty() {
            let is_constant = |virtual_instruction: &VirtualInstruction| {
                constant_space(virtual_instruction, code, addresses).is_some()
            };
            later = coalesce(&code.instructions, &mut instructions, &touched, is_constant, limits);
            for &last in later.iter().flatten() {
                touched[last.index()] = touch(&instructions[last.index()]);
            }
        }
        Self { instructions, touched, later }
    }

    /// Chooses lines and sets tokens; with no policy of lines every instruction waits for the one before it.
    fn issue(
        self,
        context: &PlanningContext,
        code: &VirtualProgram,
        addresses: &Addresses,
        descriptors: &[Descriptor],
        lines: Option<LinePolicy>,
    ) -> Issued {
        let machine = context.machine;
        let mut instructions: Vec<Instruction> = Vec::with_capacity(code.instructions.len());
        let mut places: Vec<InstructionId> = Vec::with_capacity(code.instructions.len());
        let mut counts = [0u32; Unit::COUNT];
        let (mut cost, mut tracker) = (CostModel::new(machine), TokenTracker::default());
        let stages = context.stages();
        let mut ends = vec![0; STAGES];
        for (index, (virtual_instruction, mut instruction)) in
            code.instructions.iter().zip(self.instructions).enumerate()
        {
            places.push(InstructionId::new(instructions.len()));
            if self.later[index].is_some() {
                continue;
            }
            let line = lines.map_or(Unit::Dtl0, |lines| {
                let constant = constant_space(virtual_instruction, code, addresses);
                line_of(constant, machine, lines, &mut cost)
            });
            instruction.unit = Unit::of(&virtual_instruction.work, descriptors, machine, line);
            if lines.is_some() {
                instruction.waits = tracker.add(instruction.unit, &self.touched[index]);
            } else {
                let last = instructions.last().map(|i| Wait { unit: i.unit, count: counts[i.unit.index()] });
                instruction.waits.extend(last);
            }
            counts[instruction.unit.index()] += 1;
            cost.run(&instruction, descriptors, &self.touched[index]);
            let end: &mut u64 = &mut ends[usize::from(stages[virtual_instruction.layer.index()])];
            *end = cost.last(instruction.unit).max(*end);
            instructions.push(instruction);
        }
        for (index, last) in self.later.iter().enumerate() {
            if let Some(last) = last {
                places[index] = places[last.index()];
            }
        }
        for stage in 1..ends.len() {
            ends[stage] = ends[stage].max(ends[stage - 1]);
        }
        Issued { instructions, places, ends, cycles: cost.makespan() }
    }
}

/// The line of a transfer, from the address space of the constant it brings.
fn line_of(constant: Option<u8>, machine: &Machine, lines: LinePolicy, cost: &mut CostModel) -> Unit {
    match constant {
        // A line for each address space of constants keeps all channels busy.
        Some(space) if machine.ddr_spaces() > 1 => [Unit::Dtl0, Unit::Dtl1][usize::from(space) % 2],
        // The others lie in the first.
        _ if lines == LinePolicy::Even && machine.ddr_spaces() > 1 => Unit::Dtl0,
        _ => cost.line(lines == LinePolicy::Even),
    }
}

/// Address space of the constant a virtual instruction loads.
fn constant_space(
    virtual_instruction: &VirtualInstruction,
    code: &VirtualProgram,
    addresses: &Addresses,
) -> Option<u8> {
    let (_, from) = virtual_instruction.load()?;
    let is_constant = matches!(code.buffers[from.index()].content, Content::Constant(_));
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
