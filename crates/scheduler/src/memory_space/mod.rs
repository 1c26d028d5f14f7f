//! Which tensors live in the cache and which in DDR.
//!
//! Everything starts in the cache. Steps are lowered one by one with what the tensors alive leave free; where a step does not
//! fit, the tensor that can be missed best moves to DDR for its whole life: one the step does not touch before one it does,
//! the furthest next use first, the largest of those. Lowering then goes back to where that tensor is touched first.

pub(crate) mod constant_groups;
pub(crate) mod kept_constants;
pub(crate) mod port_parts;
pub(crate) mod split;

use std::collections::BTreeMap;

use tpuflow_ir::{Graph, InstructionId, Machine, State, TensorId, View, Work};

use crate::context::PlanningContext;
use crate::error::ScheduleError;
use crate::lowering::{Checkpoint, Lowering, Shortage, TensorSpace};
use crate::network::Network;
use crate::network::placement::Placement;
use crate::options::PlanOptions;
use crate::virtual_program::{BufferId, Memory, VirtualAddress, VirtualProgram};

/// Life of a root tensor in steps, both ends inclusive.
#[derive(Clone, Debug)]
struct LiveRange {
    root: TensorId,
    first: usize,
    last: usize,
    uses: Vec<usize>,
    bytes: u64,
}

/// The network lowered, and where its ports lie.
#[derive(Clone)]
pub(crate) struct LoweredNetwork {
    pub code: VirtualProgram,
    pub inputs: Vec<PortPlace>,
    pub outputs: Vec<PortPlace>,
}

/// Where a port lies.
#[derive(Clone, Debug)]
pub(crate) struct PortPlace {
    /// All of it, or with `parts` the layout of it, from where its first part lies.
    pub view: View,
    /// The first pixel of every later part, and the buffer at whose start that lies.
    pub parts: Vec<(u32, BufferId)>,
}

impl PortPlace {
    fn whole(view: View) -> Self {
        Self { view, parts: Vec::new() }
    }

    /// The buffers it lies in.
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> + '_ {
        let first = VirtualAddress::of_field(self.view.address).buffer;
        [first].into_iter().chain(self.parts.iter().map(|&(_, buffer)| buffer))
    }
}

/// The buffers of a state, the past and the output that lies right behind it, each with the bytes its rows take.
pub(crate) type StateBuffers = [(BufferId, u64); 2];

impl LoweredNetwork {
    /// The same instructions in another order.
    pub fn reordered(&self, order: &[InstructionId]) -> Self {
        self.with_code(self.code.reordered(order))
    }

    /// The same network as other virtual instructions on the same buffers.
    pub fn with_code(&self, code: VirtualProgram) -> Self {
        Self { code, inputs: self.inputs.clone(), outputs: self.outputs.clone() }
    }

    /// Notes which inputs are parts of exchanges, and lie where the output does.
    fn join_peers(&mut self, graph: &Graph) {
        for exchange in &graph.exchanges {
            let buffer = |place: &PortPlace| VirtualAddress::of_field(place.view.address).buffer;
            let own = buffer(&self.outputs[exchange.output as usize]);
            for (rank, &input) in exchange.inputs.iter().enumerate() {
                let input = buffer(&self.inputs[input as usize]);
                self.code.buffers_mut()[input.index()].peer = Some((own, rank as u8));
            }
        }
    }

    /// Where the states of a graph lie.
    pub fn states(&self, graph: &Graph, word: usize) -> Vec<StateBuffers> {
        let of = |state: &State| {
            let (input, output) = (state.input as usize, state.output as usize);
            let ends = [(graph.inputs[input], &self.inputs[input]), (graph.outputs[output], &self.outputs[output])];
            ends.map(|(tensor, port)| {
                let view = &port.view;
                let shape = &graph.tensor(tensor).shape;
                let rows = shape[state.axis as usize] as u64;
                let bytes = state.stride(shape, view, word).map_or_else(|| view.bytes(word), |stride| stride * rows);
                (VirtualAddress::of_field(view.address).buffer, bytes)
            })
        };
        graph.states.iter().map(of).collect()
    }

    /// Lets transfers of states end with their last row: the padding behind it is where another one lies.
    pub fn trim_states(&mut self, graph: &Graph, word: usize) {
        let ends: BTreeMap<BufferId, u64> = self.states(graph, word).into_iter().flatten().collect();
        for instruction in &mut self.code.instructions {
            let Work::Transfer(t) = &mut instruction.work else { continue };
            let VirtualAddress { buffer, offset } = VirtualAddress::of_field(t.ddr_address);
            if let Some(end) = ends.get(&buffer).filter(|_| t.counts == [1, 1]) {
                t.bytes = u64::from(t.bytes).min(end - offset) as u32;
            }
        }
    }
}

/// Results of more than one of so many parts of the cache are in the way of what is to be loaded.
const MUCH: u64 = 8;

/// Lowers every step, moving tensors to DDR until all fit.
///
/// # Errors
/// [`ScheduleError::Capacity`] naming the layer that does not fit even alone.
pub(crate) fn assign_memory_spaces(
    context: &PlanningContext,
    options: PlanOptions,
    capacity: u64,
) -> Result<LoweredNetwork, ScheduleError> {
    let (network, outputs) = (&context.network, &context.graph.outputs);
    let live_ranges = live_ranges(network, &context.placement, outputs);
    let count = network.steps.len();
    let mut tensor_spaces = vec![
        if context.parameters.action_graph_data_transfer_optimization {
            TensorSpace::Cache
        } else {
            TensorSpace::Ddr
        };
        network.tensors.len()
    ];
    if options.write_through {
        for root in write_through(&live_ranges, outputs, context.machine) {
            tensor_spaces[root.index()] = TensorSpace::Ddr;
        }
    }
    // Bytes that live in the cache during every step, and how far lowering had come before it.
    let mut loads = vec![0u64; count];
    for life in live_ranges.iter().filter(|life| tensor_spaces[life.root.index()] == TensorSpace::Cache) {
        loads[life.first..=life.last].iter_mut().for_each(|load| *load += life.bytes);
    }
    let mut marks: Vec<Checkpoint> = Vec::with_capacity(count);
    let mut lowering = Lowering::new(context, options, tensor_spaces);
    while marks.len() < count {
        let index = marks.len();
        marks.push(lowering.mark());
        let outcome = match capacity.checked_sub(loads[index]) {
            Some(free) => lowering.step(index, free),
            None => Err(Shortage(Memory::Cache)),
        };
        let Err(Shortage(memory)) = outcome else { continue };
        let inside = |l: &&LiveRange| {
            l.first <= index && index <= l.last && lowering.tensor_spaces[l.root.index()] == TensorSpace::Cache
        };
        let victim = live_ranges.iter().filter(|l| memory == Memory::Cache && inside(l)).max_by_key(|l| {
            let next = l.uses.iter().copied().find(|&u| u >= index);
            let touched = next == Some(index) || l.first == index;
            (!touched, next.unwrap_or(usize::MAX).min(index + 64), l.bytes)
        });
        let Some(victim) = victim else {
            return Err(shortage(context, index, memory));
        };
        lowering.tensor_spaces[victim.root.index()] = TensorSpace::Ddr;
        loads[victim.first..=victim.last].iter_mut().for_each(|load| *load -= victim.bytes);
        // Nothing before touches it.
        lowering.rewind(marks[victim.first]);
        marks.truncate(victim.first);
    }
    debug_assert!(as_from_the_start(&lowering, capacity, &loads), "lowering went back too little");
    let inputs = context.graph.inputs.iter().map(|&t| PortPlace::whole(lowering.port(t))).collect();
    let outputs = outputs.iter().map(|&t| PortPlace::whole(lowering.port(t))).collect();
    let mut lowered = LoweredNetwork { code: lowering.code, inputs, outputs };
    lowered.join_peers(context.graph);
    Ok(lowered)
}

/// Whether lowering with the memory spaces found, without going back, gives the same.
fn as_from_the_start(found: &Lowering, capacity: u64, loads: &[u64]) -> bool {
    let mut anew = Lowering::new(found.context, found.options, found.tensor_spaces.clone());
    let fits = loads.iter().enumerate().all(|(index, load)| anew.step(index, capacity - load).is_ok());
    let (one, other) = (&found.code, &anew.code);
    fits && (&one.buffers, &one.instructions, &one.descriptors)
        == (&other.buffers, &other.instructions, &other.descriptors)
}

/// Whether some result of the network need only pass through the cache.
pub(crate) fn can_write_through(context: &PlanningContext) -> bool {
    let outputs = &context.graph.outputs;
    write_through(&live_ranges(&context.network, &context.placement, outputs), outputs, context.machine)
        .next()
        .is_some()
}

/// Results that nobody reads and that take so much of the cache that they are in the way of what is to be loaded.
fn write_through(live_ranges: &[LiveRange], outputs: &[TensorId], machine: &Machine) -> impl Iterator<Item = TensorId> {
    let is_unread = |life: &LiveRange| life.first == life.last && life.uses.is_empty();
    let takes_much = |life: &LiveRange| life.bytes > machine.cache_bytes() / MUCH;
    let found = live_ranges.iter().filter(move |life| is_unread(life) && takes_much(life));
    found.map(|life| life.root).filter(|root| outputs.contains(root))
}

fn shortage(context: &PlanningContext, index: usize, memory: Memory) -> ScheduleError {
    let (memory, capacity) = match memory {
        Memory::Ewp => ("the parameter cache", context.machine.ewp_cache_bytes()),
        Memory::Cache | Memory::Ddr => ("the shared cache", context.machine.cache_bytes()),
    };
    let layer = context.network.layer_name(index).to_owned();
    ScheduleError::Capacity { layer, memory, machine: context.machine.name.clone(), capacity }
}

fn live_ranges(network: &Network, placement: &Placement, outputs: &[TensorId]) -> Vec<LiveRange> {
    let mut live_ranges: Vec<Option<LiveRange>> = vec![None; network.tensors.len()];
    let mut touch = |tensor: TensorId, index: usize, used: bool| {
        let root = placement.of(tensor).root;
        if network.is_constant(root) {
            return;
        }
        let bytes = placement.bytes(network, root);
        let life =
            live_ranges[root.index()].get_or_insert(LiveRange { root, first: index, last: index, uses: vec![], bytes });
        life.last = life.last.max(index);
        if used {
            life.uses.push(index);
        }
    };
    for (index, step) in network.steps.iter().enumerate() {
        let free = placement.is_free(index);
        for operand in network.streams(&step.op) {
            if !free {
                touch(operand, index, true);
            }
        }
        if !free || outputs.contains(&step.output) {
            touch(step.output, index, free);
        }
    }
    live_ranges.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use tpuflow_ir::{Machine, ReduceKind, Space};

    use super::can_write_through;
    use crate::budget::SearchBudget;
    use crate::common::Net;
    use crate::context::PlanningContext;
    use crate::options::{PipelineMode, PlanOptions};
    use crate::parameters::Parameters;
    use crate::virtual_program::Memory;

    #[test]
    fn large_results_that_nobody_reads_pass_through_the_cache() {
        let mut machine = Machine::preset("128x128_asic").expect("known");
        machine.cache.banks = 2;
        let parameters = Parameters::o5();
        let budget = SearchBudget { seed: 0, steps: 10, deadline: None };
        for is_read in [false, true] {
            let mut net = Net::new(3);
            let x = net.input(&[128, 1024]);
            let y = net.matmul(x, 2048);
            let mut outputs = vec![y];
            if is_read {
                outputs.push(net.reduce(y, ReduceKind::Max, &[1], true));
            }
            let graph = net.finish(&outputs);
            let context = PlanningContext::new(&graph, &machine, budget, &parameters).expect("a sound graph");
            assert_eq!(can_write_through(&context), !is_read);
            for write_through in [false, true] {
                let options = PlanOptions { write_through, ..PlanOptions::new(PipelineMode::Layers { paired: true }) };
                let plan = context.plan(options, &|_| None).expect("room for all");
                let buffers = &plan.parts().0.buffers;
                let stays = buffers.iter().any(|b| b.memory == Memory::Cache && b.bytes == 128 * 2048);
                assert_eq!(stays, !write_through || is_read, "{buffers:?}");
                let program = plan.program(&context);
                assert!(matches!(program.outputs[0].view.space, Space::Ddr(_)));
                assert_eq!(tpuflow_checker::check(&graph, &program), Ok(()));
            }
        }
    }
}
