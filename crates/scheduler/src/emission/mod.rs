//! The last step: from virtual instructions with an order and addresses to instructions with tokens, and from these to a program.

mod allocations;
mod coalescing;
mod constants;
mod cost_model;
mod layout;
mod pack;
mod tokens;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tpuflow_ir::program::{Port, PortPart};
use tpuflow_ir::{Bounds, Graph, InstructionId, LayerId, Machine, Program, Space, TensorId, View, Work};

use crate::addresses::external::{CoalescingLimits, External};
use crate::budget::Timing;
use crate::context::PlanningContext;
use crate::error::ScheduleError;
use crate::memory_space::{LoweredNetwork, PortPlace};
use crate::network::stages::STAGES;
use crate::network::summary;
use crate::options::PipelineMode;
use crate::virtual_program::addresses::{Addresses, Lifetime, computed_bytes, lifetimes, resolve_view};
use crate::virtual_program::{BufferId, Content, Memory, VirtualInstruction, VirtualProgram};
use allocations::allocations;
pub(crate) use cost_model::CostModel;
use layout::Issued;
pub(crate) use layout::Layout;
pub(crate) use tokens::TokenTracker;

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
    /// Buffers are shared out to the channels from the last one used on, so that channels end together.
    pub backward: bool,
    /// Which loads are coalesced.
    pub coalescing: CoalescingLimits,
}

impl TransferOptions {
    pub fn new(lines: LinePolicy) -> Self {
        Self { lines, backward: false, coalescing: CoalescingLimits::new() }
    }
}

/// A program all but for its constants, bounds and allocations.
pub(crate) struct Plan {
    lowered: Arc<LoweredNetwork>,
    addresses: Arc<Addresses>,
    memory: Arc<External>,
    mode: PipelineMode,
    transfer_options: TransferOptions,
    /// Instruction of every virtual instruction.
    places: Vec<InstructionId>,
    /// By stage, when the cost model has it and those before it end.
    ends: Vec<u64>,
    /// The program to be timed; its predicted cycles are the cost model's until then.
    pub program: Program,
}

/// Layer, unit, first and number of rows or pixels, first and number of columns or channels of an instruction that computes.
fn cut(instruction: &VirtualInstruction) -> Option<(LayerId, u8, [u32; 2], [u32; 2])> {
    let (unit, rows, columns) = match &instruction.work {
        Work::Matrix(m) => (0, [m.first_pixel, m.pixels], [m.first_column, m.columns]),
        Work::Pool(pool) => (1, [pool.first_row, pool.rows], [pool.output.origin[1], pool.output.channels]),
        Work::Vector(vector) => (2, [vector.first_row, vector.rows], [vector.output.origin[1], vector.output.channels]),
        _ => return None,
    };
    Some((instruction.layer, unit, rows, columns))
}

impl Plan {
    /// Chooses lines and sets tokens.
    pub fn new(
        context: &PlanningContext,
        layout: &Layout,
        mode: PipelineMode,
        transfer_options: TransferOptions,
    ) -> Self {
        let machine = context.machine;
        let Layout { lowered, addresses, memory, descriptors, .. } = layout;
        let parallel = mode != PipelineMode::Sequential;
        let Issued { instructions, places, ends, cycles } =
            layout.issue(context, parallel.then_some(transfer_options.lines));
        let graph = context.graph;
        let ports = |tensors: &[TensorId], places: &[PortPlace]| -> Vec<Port> {
            tensors.iter().zip(places).map(|(&t, place)| port(graph, t, place, addresses)).collect()
        };
        let program = Program {
            name: graph.name.clone(),
            machine: machine.clone(),
            batch: summary::batch(graph),
            level: if parallel { 5 } else { 1 },
            fallback: None,
            descriptors: descriptors.clone(),
            constants: Vec::new(),
            ddr_bytes: memory.bytes.clone(),
            spill_bytes: 0,
            cache_peak_bytes: 0,
            inputs: ports(&graph.inputs, &lowered.inputs),
            outputs: ports(&graph.outputs, &lowered.outputs),
            instructions,
            states: graph.states.clone(),
            exchanges: graph.exchanges.clone(),
            position: None,
            tilings: vec![],
            layers: summary::layers(graph, &context.network, machine),
            bounds: Bounds::default(),
            predicted_cycles: cycles,
            allocations: Vec::new(),
            stream: None,
        };
        let (lowered, addresses, memory) = (Arc::clone(lowered), Arc::clone(addresses), Arc::clone(memory));
        Self { lowered, addresses, memory, mode, transfer_options, places, ends, program }
    }

    /// The virtual program and addresses of the plan.
    pub fn parts(&self) -> (&VirtualProgram, &Addresses) {
        (&self.lowered.code, &self.addresses)
    }

    /// By stage, when it and those before it end, in cycles of the timing as far as the cost model knows their shares.
    pub fn ends(&self) -> Vec<u64> {
        let whole = self.ends.last().copied().unwrap_or(0).max(1);
        let timed = |end| (u128::from(end) * u128::from(self.program.predicted_cycles) / u128::from(whole)) as u64;
        self.ends.iter().copied().map(timed).collect()
    }

    /// By stage, a hash of the pieces its layers are cut into: the same where another granularity changes nothing.
    pub fn cuts(&self, context: &PlanningContext) -> Vec<u64> {
        let mut hashers = vec![DefaultHasher::new(); STAGES];
        let mut pieces: Vec<_> = self.lowered.code.instructions.iter().filter_map(cut).collect();
        pieces.sort_unstable();
        for piece in pieces {
            piece.hash(&mut hashers[usize::from(context.stages()[piece.0.index()])]);
        }
        hashers.iter().map(Hasher::finish).collect()
    }

    /// The same instructions in another order.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn reordered(&self, context: &PlanningContext, order: &[InstructionId]) -> Result<Self, ScheduleError> {
        let lowered = Arc::new(self.lowered.reordered(order));
        let options = self.transfer_options.clone();
        let parallel = self.mode != PipelineMode::Sequential;
        let layout = Layout::new(context, lowered, &self.addresses, parallel, &options)?;
        Ok(Self::new(context, &layout, self.mode, options))
    }

    /// The same instructions, with what lies in external memory laid out otherwise.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn layout(&self, context: &PlanningContext, options: &TransferOptions) -> Result<Layout, ScheduleError> {
        let parallel = self.mode != PipelineMode::Sequential;
        Layout::new(context, Arc::clone(&self.lowered), &self.addresses, parallel, options)
    }

    /// The same instructions by a layout of them.
    pub fn by(&self, context: &PlanningContext, layout: &Layout, options: TransferOptions) -> Self {
        Self::new(context, layout, self.mode, options)
    }

    /// The same instructions in the same order with buffers at other addresses.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn relocated(&self, context: &PlanningContext, addresses: &Addresses) -> Result<Self, ScheduleError> {
        let options = self.transfer_options.clone();
        let parallel = self.mode != PipelineMode::Sequential;
        let layout = Layout::new(context, Arc::clone(&self.lowered), addresses, parallel, &options)?;
        Ok(Self::new(context, &layout, self.mode, options))
    }

    /// The same network with its loads at other places and buffers at other addresses.
    ///
    /// # Errors
    /// [`ScheduleError::External`] when external memory is too small.
    pub fn rescheduled(
        &self,
        context: &PlanningContext,
        code: VirtualProgram,
        addresses: &Addresses,
    ) -> Result<Self, ScheduleError> {
        let lowered = Arc::new(self.lowered.with_code(code));
        let options = self.transfer_options.clone();
        let layout = Layout::new(context, lowered, addresses, self.mode != PipelineMode::Sequential, &options)?;
        Ok(Self::new(context, &layout, self.mode, options))
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

    /// Most bytes of the cache that hold what is computed at a time.
    pub fn computed_bytes_at_a_time(&self) -> u64 {
        let code = &self.lowered.code;
        computed_bytes(code, &lifetimes(code)).into_iter().max().unwrap_or(0)
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
        // Of coalesced loads the first may be part of a later one than the second.
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
    let views: Vec<View> = program.inputs.iter().chain(&program.outputs).flat_map(Port::views).collect();
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

fn port(graph: &Graph, tensor: TensorId, place: &PortPlace, addresses: &Addresses) -> Port {
    let t = graph.tensor(tensor);
    let part = |&(first_pixel, buffer): &(u32, BufferId)| {
        let (space, address) = addresses[buffer.index()];
        PortPart { first_pixel, space, address }
    };
    Port {
        name: t.name.clone(),
        shape: t.shape.clone(),
        dtype: t.dtype,
        quant: t.quant.clone(),
        source: t.source.clone(),
        view: resolve_view(addresses, &place.view),
        parts: place.parts.iter().map(part).collect(),
    }
}
