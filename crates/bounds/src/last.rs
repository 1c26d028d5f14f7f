//! The work left when the last byte has come from DDR.
//!
//! Where every element of a layer and of all it is made of counts, so does every byte of their constants and of the inputs they
//! read: whichever of them comes last, some instruction of the layer begins after it, for its tokens wait for it. That
//! instruction then runs from its first slot to its last result, and what it makes of a network's output is still to be stored.
//!
//! ```text
//!  lines   [ ... constants and inputs of the layer and all before it ... ]                        [store
//!  array                                                                  [lead, K blocks, depth]
//! ```

use tpuflow_ir::{Machine, TensorId, timing};

use super::chain::Chains;
use super::moments::{first_load_cycles, lead};
use super::work::{Work, reads_all};
use super::{Every, moves, split};

/// Cycles before which no layer can be done.
pub(super) fn last(every: &Every, chains: &Chains) -> u64 {
    let (graph, machine, works) = (every.graph, every.machine, every.works);
    // By layer, the network's inputs of which it reads every byte.
    let read: Vec<Vec<TensorId>> = graph
        .layers
        .iter()
        .map(|layer| {
            let all = !moves(&layer.op) && reads_all(graph, &layer.op);
            let operands = if all { layer.op.operands() } else { Vec::new() };
            operands.into_iter().filter(|t| graph.inputs.contains(t)).collect()
        })
        .collect();
    let whole = (0..works.len()).filter(|&layer| every.live.whole(graph.layers[layer].output));
    let ends = whole.map(|layer| {
        let before = || chains.whole.of(layer).chain([layer]);
        let mut inputs: Vec<TensorId> = before().flat_map(|i| &read[i]).copied().collect();
        inputs.sort_unstable();
        inputs.dedup();
        let bytes = every.constants.bytes(before(), |piece| piece.bytes)
            + inputs.iter().map(|&t| graph.tensor(t).bytes() as u64).sum::<u64>();
        let is_output = graph.outputs.contains(&graph.layers[layer].output);
        let store = machine.dma.start + machine.dma.latency + machine.ddr_cycles(1);
        let after = min_latency(&works[layer], machine) + if is_output { store } else { 0 };
        if bytes > 0 { first_load_cycles(machine) + split(bytes, machine) + after } else { 0 }
    });
    ends.max().unwrap_or(0)
}

/// Cycles of any instruction of a layer from its tokens to its last result.
fn min_latency(work: &Work, machine: &Machine) -> u64 {
    if work.array > 0 {
        lead(machine, false) + work.first + timing::array_depth(machine)
    } else if work.ewp > 0 {
        machine.ewp.start + machine.ewp.latency
    } else if work.pdp > 0 {
        machine.pdp.start + machine.pdp.latency
    } else {
        0
    }
}
