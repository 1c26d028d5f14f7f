//! Where everything lies in external memory, and the instructions that follow but for lines and tokens.

use std::sync::Arc;

use tpuflow_ir::access::{Accesses, accesses};
use tpuflow_ir::{Descriptor, Instruction, InstructionId, Machine, Space, Unit, Wait, Work};

use super::coalescing::coalesce;
use super::cost_model::CostModel;
use super::tokens::TokenTracker;
use super::{LinePolicy, TransferOptions};
use crate::addresses::external::{ChannelSplit, CoalescingLimits, External, Ports, external};
use crate::context::PlanningContext;
use crate::error::ScheduleError;
use crate::memory_space::LoweredNetwork;
use crate::network::stages::STAGES;
use crate::parameters::Balancing;
use crate::virtual_program::addresses::{Addresses, resolve};
use crate::virtual_program::{Content, VirtualInstruction, VirtualProgram};

/// A lowered network with all addresses, those in external memory included, and with loads coalesced.
pub(crate) struct Layout {
    pub(super) lowered: Arc<LoweredNetwork>,
    pub(super) addresses: Arc<Addresses>,
    pub(super) memory: Arc<External>,
    pub(super) descriptors: Vec<Descriptor>,
    resolved: Resolved,
}

impl Layout {
    /// Lays out external memory as `options` say; lines are of no account yet.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn new(
        context: &PlanningContext,
        lowered: Arc<LoweredNetwork>,
        addresses: &Addresses,
        parallel: bool,
        options: &TransferOptions,
    ) -> Result<Self, ScheduleError> {
        let (machine, code) = (context.machine, &lowered.code);
        let split = channel_split(context, parallel, options.backward);
        let limits = &options.coalescing;
        let states = lowered.states(context.graph, machine.word());
        let ports = Ports {
            inputs: &lowered.inputs,
            outputs: &lowered.outputs,
            states: &states,
            memory: context.parameters.io_memory,
        };
        let mut addresses = addresses.clone();
        let memory = external(code, machine, split, limits, &ports, &mut addresses)?;
        let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
        let resolved = Resolved::new(code, &addresses, &descriptors, machine, limits);
        Ok(Self { lowered, addresses: Arc::new(addresses), memory: Arc::new(memory), descriptors, resolved })
    }

    /// Whether the same program comes of another layout of the same instructions in the same order.
    pub fn is_same(&self, other: &Self) -> bool {
        self.memory.bytes == other.memory.bytes
            && self.resolved.later == other.resolved.later
            && self.resolved.instructions == other.resolved.instructions
    }

    /// Chooses lines and sets tokens; with no policy of lines every instruction waits for the one before it.
    pub(super) fn issue(&self, context: &PlanningContext, lines: Option<LinePolicy>) -> Issued {
        self.resolved.issue(context, &self.lowered.code, &self.addresses, &self.descriptors, lines)
    }
}

/// How buffers are shared out to address spaces: over all where these balance each other, else all go to the first.
fn channel_split(context: &PlanningContext, parallel: bool, backward: bool) -> ChannelSplit {
    let balanced = context.parameters.ram_io_balancing == Balancing::Mirror;
    match (balanced && (parallel || !context.parameters.parallel()), backward) {
        (false, _) => ChannelSplit::No,
        (true, false) => ChannelSplit::Forward,
        (true, true) => ChannelSplit::Backward,
    }
}

/// The line of every address space, by turns.
const LINE_OF_SPACE: [Unit; 2] = [Unit::Dtl0, Unit::Dtl1];

/// Virtual instructions with their addresses.
struct Resolved {
    instructions: Vec<Instruction>,
    touched: Vec<Accesses>,
    /// By virtual instruction, the later load it travels with.
    later: Vec<Option<InstructionId>>,
}

/// Instructions with lines and tokens, as the cost model has them run.
pub(super) struct Issued {
    pub instructions: Vec<Instruction>,
    /// Instruction of every virtual instruction.
    pub places: Vec<InstructionId>,
    /// By stage, when it and those before it end.
    pub ends: Vec<u64>,
    pub cycles: u64,
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

    /// See [`Layout::issue`].
    fn issue(
        &self,
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
        for (index, (virtual_instruction, resolved)) in code.instructions.iter().zip(&self.instructions).enumerate() {
            places.push(InstructionId::new(instructions.len()));
            if self.later[index].is_some() {
                continue;
            }
            let mut instruction = resolved.clone();
            let line = lines.map_or(Unit::Dtl0, |lines| {
                let constant = constant_space(virtual_instruction, code, addresses).is_some();
                let by_pixel = is_pixel_by_pixel(&instruction.work);
                let lines = if by_pixel { LinePolicy::Even } else { lines };
                // Parts of other devices are waited for: they come over both lines.
                let is_part =
                    !by_pixel && instruction.work.ddr_space().is_some_and(|space| machine.rank(space).is_some());
                let by_space = (constant || lines == LinePolicy::Even) && !is_part;
                match instruction.work.ddr_space() {
                    // A line for each address space keeps all channels busy.
                    Some(space) if by_space && machine.ddr_spaces() > 1 => {
                        LINE_OF_SPACE[usize::from(machine.own_space(space)) % 2]
                    }
                    _ => cost.line(lines == LinePolicy::Even),
                }
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

/// Whether a transfer has a run for every pixel, and these lie one behind the other in DDR: two lines that took turns with such
/// runs would open a page for each.
fn is_pixel_by_pixel(work: &Work) -> bool {
    matches!(work, Work::Transfer(t) if t.counts[1] > 1 && t.ddr_strides[1] == u64::from(t.bytes))
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
