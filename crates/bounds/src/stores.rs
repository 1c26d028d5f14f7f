//! The stores of results none of which can be there before some moment.
//!
//! Outputs are computed, then stored, on all channels. Where no element of an output can be there before
//! the whole image has been looked at, as behind an average, all of its bytes are still to be moved then.
//!
//! ```text
//!  units   [----- all that the first element needs -----]
//!  channels                                              [start-up][this output, and all that begin later]
//! ```

use tpuflow_ir::Machine;

use super::chain::Chains;
use super::{Every, split};

/// Cycles before which the stores are not done.
pub(super) fn outputs_end(every: &Every, chains: &Chains) -> u64 {
    let Every { graph, machine, producer, .. } = *every;
    let results = every.computed_outputs();
    let mut outputs: Vec<(u64, u64)> = results
        .iter()
        .filter_map(|&tensor| {
            Some((chains.times[producer[tensor.index()]?].first, graph.tensor(tensor).bytes() as u64))
        })
        .collect();
    // The last to begin first.
    outputs.sort_unstable_by_key(|&(first, _)| std::cmp::Reverse(first));
    let mut bytes = 0;
    let ends = outputs.into_iter().map(|(first, size)| {
        bytes += size;
        first + machine.dma.start + machine.dma.latency + moved(bytes, machine)
    });
    ends.max().unwrap_or(0)
}

/// Cycles in which so many bytes of outputs are moved; a page may be open.
fn moved(bytes: u64, machine: &Machine) -> u64 {
    split(bytes, machine).saturating_sub(machine.page_miss())
}
