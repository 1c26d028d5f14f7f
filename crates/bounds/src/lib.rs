//! Lower bounds of the makespan: cycles no program of a graph on a machine can do with less; and of the counters energy is made of.
//!
//! The work of every program is counted per layer ([`work`]), of the elements somebody needs ([`live`]): slots of the array,
//! cycles of the elementwise and the pooling unit; and so are the constants brought in from DDR, those that are equal once
//! ([`constants`]). The array's is counted in natural layouts, which no storage inside a wider tensor undercuts, that of the
//! other units in bytes, for channels that fill no whole words may lie densely in parts; moves of elements count nothing,
//! since some program may have produced them in place, unless they change the scale. What all of this takes for granted, and
//! the rule that makes it true, is listed in `docs/bounds.md`.
//!
//! * `array`, `ewp`, `pdp`: a unit does one thing at a time. The array stands still where its feeder needs several words of a bank
//!   ([`feed`]).
//! * `ddr`: a channel moves so many bytes a cycle and opens each page it touches at least once; constants, inputs and outputs may be
//!   split over the channels in the best way.
//! * `ports`: weights pass the port word by word; a bank serves one word a cycle.
//! * `flow`: nothing downstream of a layer can start on the array before all constants of that layer, and of everything it needs
//!   all channels of, are there. After that the array still has all of the downstream work to do. And of constants that nobody
//!   uses before some moment, those the caches have no room for come after it.
//! * `segment`: what no unit can begin before some moment adds up after it, with what the array loses at small images ([`gates`]).
//! * `path`: along a chain of layers every one needs at least its latency and what a pixel takes, and all of its time where all
//!   of it must be done before the next begins ([`chain`]), and outputs are stored after their first element ([`stores`]).

#![forbid(unsafe_code)]

mod chain;
#[cfg(test)]
#[path = "../../scheduler/tests/common/mod.rs"]
mod common;
mod constants;
mod earlier;
mod feed;
mod gates;
mod issue;
mod last;
mod linear;
mod live;
mod moments;
mod rearranged;
mod stores;
mod work;
mod zeros;

use chain::{Chains, last_store_end};
use constants::Constants;
use issue::Occupancy;
use last::last;
use linear::is_permutation;
use live::Live;
use moments::first_read_cycle;
use serde::Serialize;
use stores::outputs_end;
use tpuflow_ir::{Bounds, Graph, Machine, Op, TensorId, timing};
use work::{LiveGraph, Work};

/// Lower bounds of a graph on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphBounds {
    /// Of all of it.
    pub whole: Bounds,
    /// Of the cycles from one run to the next of every stream in which an iteration has all work of a run and units take one
    /// iteration after the other. Those of start and latency are 0.
    pub interval: Bounds,
    /// Of each layer alone.
    pub layers: Vec<LayerBound>,
    /// Of the counters of a run.
    pub counters: LeastCounters,
}

/// Lower bound of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBound {
    /// The binding bound: `array`, `ddr`, `ewp`, `pdp` or `ports`.
    pub binding: &'static str,
    /// Cycles.
    pub cycles: u64,
}

/// Bounds of a graph and of its layers.
#[must_use]
pub fn bounds(graph: &Graph, machine: &Machine) -> GraphBounds {
    bounds_within(graph, machine, earlier::reach(graph.layers.len()))
}

/// Bounds that look at so many layers before each.
fn bounds_within(graph: &Graph, machine: &Machine, reach: usize) -> GraphBounds {
    let producer = producers(graph);
    let live = Live::of(graph);
    let constants = Constants::of(graph, &live);
    let needed = LiveGraph { graph, machine, live: &live, producer: &producer };
    let works: Vec<Work> = graph.layers.iter().map(|layer| needed.work(layer)).collect();
    let layers = works.iter().enumerate();
    let every = Every { graph, machine, live: &live, producer: &producer, constants: &constants, works: &works, reach };
    GraphBounds {
        whole: every.bounds(),
        interval: every.interval(),
        layers: layers
            .map(|(index, work)| {
                bound_without_neighbors(work, constants.bytes([index].into_iter(), |piece| piece.bytes), machine)
            })
            .collect(),
        counters: every.counters(),
    }
}

/// Least counters of every program of a graph, as the simulator counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeastCounters {
    /// Of each layer.
    pub layers: Vec<LayerCounters>,
    /// Words read and written in the banks of the shared cache.
    pub bank_accesses: u64,
    /// Bytes of inputs and constants that are read from DDR.
    pub ddr_read_bytes: u64,
    /// Bytes of outputs that are written to it.
    pub ddr_write_bytes: u64,
}

/// Least counters of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerCounters {
    /// Slots of the array in which a pixel enters.
    pub array: u64,
    /// Busy cycles of the elementwise unit.
    pub ewp: u64,
}

/// By tensor, the layer that makes it.
fn producers(graph: &Graph) -> Vec<Option<usize>> {
    let mut producers = vec![None; graph.tensors.len()];
    for (index, layer) in graph.layers.iter().enumerate() {
        producers[layer.output.index()] = Some(index);
    }
    producers
}

fn bound_without_neighbors(work: &Work, constants: u64, machine: &Machine) -> LayerBound {
    let parts = [
        ("array", work.array),
        ("ddr", split(constants, machine)),
        ("ewp", work.ewp),
        ("pdp", work.pdp),
        ("ports", work.weights.max(work.words.div_ceil(machine.cache.banks.into()))),
    ];
    let (mut binding, mut cycles) = parts[0];
    for (name, part) in parts {
        if part > cycles {
            (binding, cycles) = (name, part);
        }
    }
    LayerBound { binding, cycles }
}

/// All there is to count of a graph.
struct Every<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    live: &'a Live,
    /// By tensor, the layer that makes it.
    producer: &'a [Option<usize>],
    constants: &'a Constants,
    works: &'a [Work],
    /// How many layers before each are looked at.
    reach: usize,
}

impl Every<'_> {
    fn bounds(&self) -> Bounds {
        let (machine, works) = (self.machine, self.works);
        let sum = |part: fn(&Work) -> u64| works.iter().map(part).sum::<u64>();
        let start = first_read_cycle(machine);
        let after = |cycles: u64, before: u64| if cycles > 0 { start + before + cycles } else { 0 };
        let array = sum(|w| w.array);
        let [ewp, pdp] = self.occupancies().map(Occupancy::once);
        let fill = machine.control.issue_cold + machine.array.setup + u64::from(machine.array.rows);
        let depth = timing::array_depth(machine);
        let chains = Chains::new(self);
        let tail = works.iter().map(|w| w.tail).max().unwrap_or(0);
        Bounds {
            array: last_store_end(after(array, fill + depth).saturating_sub(tail), machine),
            ddr: self.ddr().max(last(self, &chains)),
            ewp: last_store_end(after(ewp, machine.ewp.start + machine.ewp.latency), machine),
            pdp: last_store_end(after(pdp, machine.pdp.start + machine.pdp.latency), machine),
            ports: after(sum(|w| w.weights), 0).max(after(sum(|w| w.words).div_ceil(machine.cache.banks.into()), 0)),
            flow: last_store_end(self.flow(&chains), machine).max(chains.left_to_load()),
            segment: last_store_end(chains.makespan(), machine),
            path: last_store_end(chains.ends(), machine).max(outputs_end(self, &chains)),
        }
    }

    /// How long all layers occupy the elementwise unit and the pooling unit.
    fn occupancies(&self) -> [Occupancy; 2] {
        let (mut ewp, mut pdp) = (Occupancy::new(self.machine.ewp.start), Occupancy::new(self.machine.pdp.start));
        for work in self.works {
            ewp.add(work.ewp);
            pdp.add(work.pdp);
        }
        [ewp, pdp]
    }

    fn interval(&self) -> Bounds {
        let (machine, works) = (self.machine, self.works);
        let sum = |part: fn(&Work) -> u64| works.iter().map(part).sum::<u64>();
        let ports = self.input_bytes() + self.output_bytes();
        let constants = self.least_loads();
        let [ewp, pdp] = self.occupancies().map(Occupancy::repeated);
        Bounds {
            array: sum(|w| w.array),
            ddr: split(constants + ports, machine),
            ewp,
            pdp,
            ports: sum(|w| w.weights).max(sum(|w| w.words).div_ceil(machine.cache.banks.into())),
            ..Bounds::default()
        }
    }

    /// Bytes of constants that every iteration of a stream loads: where a unit begins an iteration the caches hold some of the
    /// constants it will use. Units may begin at different times, so the one with most to load counts.
    fn least_loads(&self) -> u64 {
        let (machine, works) = (self.machine, self.works);
        let resident = machine.cache_bytes() + machine.ewp_cache_bytes();
        let used = |by: fn(&Work) -> u64| {
            self.constants.bytes((0..works.len()).filter(|&layer| by(&works[layer]) > 0), |piece| piece.bytes)
        };
        [used(|w| w.array), used(|w| w.ewp), used(|w| w.pdp)].into_iter().max().unwrap_or(0).saturating_sub(resident)
    }

    fn counters(&self) -> LeastCounters {
        let layer = |work: &Work| LayerCounters { array: work.entries, ewp: work.ewp };
        LeastCounters {
            layers: self.works.iter().map(layer).collect(),
            bank_accesses: self.works.iter().map(|work| work.words).sum(),
            ddr_read_bytes: self.constant_bytes() + self.input_bytes(),
            ddr_write_bytes: self.output_bytes(),
        }
    }

    /// Bytes of constants, those that are equal once.
    fn constant_bytes(&self) -> u64 {
        self.constants.bytes(0..self.graph.layers.len(), |piece| piece.bytes)
    }

    /// Bytes of inputs that some operator computes with.
    fn input_bytes(&self) -> u64 {
        let size = |t: TensorId| self.graph.tensor(t).dtype.bytes() as u64;
        self.graph.inputs.iter().map(|&t| self.live.read(self.graph, t) * size(t)).sum()
    }

    /// Tensors that outputs show and some layer computes, each once.
    fn computed_outputs(&self) -> Vec<TensorId> {
        let mut computed: Vec<TensorId> = self.graph.outputs.iter().filter_map(|&t| self.computed_source(t)).collect();
        computed.sort_unstable();
        computed.dedup();
        computed
    }

    /// Bytes of outputs that are computed; those that several outputs show are stored once.
    fn output_bytes(&self) -> u64 {
        self.computed_outputs().iter().map(|&t| self.graph.tensor(t).bytes() as u64).sum()
    }

    fn ddr(&self) -> u64 {
        let machine = self.machine;
        let ports = self.input_bytes() + self.output_bytes();
        let cycles = split(self.constant_bytes() + ports, machine);
        if cycles > 0 { machine.control.start + machine.dma.start + machine.dma.latency + cycles } else { 0 }
    }

    /// The computed tensor all elements of which an output shows in some order.
    fn computed_source(&self, mut tensor: TensorId) -> Option<TensorId> {
        loop {
            match &self.graph.layers[self.producer[tensor.index()]?].op {
                Op::Rearrange { input, dims, strides, offset }
                    if is_permutation(dims, strides, *offset, self.graph.tensor(*input).elements()) =>
                {
                    tensor = *input;
                }
                op => return (!moves(op)).then_some(tensor),
            }
        }
    }

    fn flow(&self, chains: &Chains) -> u64 {
        let (machine, works) = (self.machine, self.works);
        let begin = machine.control.start + machine.dma.start + machine.dma.latency;
        let mut most = 0;
        for layer in (0..works.len()).filter(|&layer| works[layer].array > 0) {
            let before = chains.channels.of(layer).chain([layer]);
            let needed = self.constants.bytes(before, |piece| piece.packed);
            // A tile of a grouped convolution needs the channels of its groups alone.
            let grouped = |i: usize| matches!(&self.graph.layers[i].op, Op::Conv { groups, .. } if *groups > 1);
            let after = || {
                let later = chains.channels.later(layer, works.len());
                later.filter(|&i| chains.channels.has(i, layer) && !grouped(i))
            };
            let tail = after().map(|i| works[i].tail).max().unwrap_or(0);
            let later = after().map(|i| works[i].array).sum::<u64>().saturating_sub(tail);
            if later > 0 {
                most = most.max(begin + split(needed, machine) + later + timing::array_depth(machine));
            }
        }
        most
    }
}

/// Cycles for `bytes` split over all channels in the best way, every page opened once.
fn split(bytes: u64, machine: &Machine) -> u64 {
    let of_channel = bytes.div_ceil(machine.channels() as u64);
    machine.ddr_cycles(of_channel) + of_channel.div_ceil(machine.page_bytes().max(1)) * machine.page_miss()
}

/// Operators whose result may be where it is without anything being written for it.
fn moves(op: &Op) -> bool {
    matches!(op, Op::Concat { .. } | Op::Pad { .. } | Op::Rearrange { .. } | Op::Gather { .. } | Op::InsertZeros { .. })
}

/// Whether every pixel of an operand `[n, h, w, c]` lies under some window.
fn covers(window: &tpuflow_ir::Window, shape: &[usize]) -> bool {
    let &[_, height, width, _] = shape else { return false };
    let Some(output) = window.output(height, width) else { return false };
    [height, width].into_iter().zip(output).enumerate().all(|(axis, (extent, count))| {
        let last = (count.max(1) - 1) * window.stride[axis] as usize + window.kernel[axis] as usize;
        let dense = window.stride[axis] <= window.kernel[axis] && window.dilation[axis] == 1;
        dense && last >= extent + window.pads[axis] as usize
    })
}
