//! When results can be there at the earliest: along chains of layers, and what the units still have to do after that.
//!
//! Results of an instruction are there when it has finished, and an instruction starts when all it reads is there. Of every
//! tensor moments are followed ([`Times`]), among them its first element, the first pixel with all of its channels, all elements.
//!
//! ```text
//!  expand 1x1      [----- all column tiles -----]+depth            a pixel with all its channels
//!  depthwise                                           [start 1 word latency]
//!  project 1x1                                                              [----- all column tiles -----]+depth
//! ```
//!
//! A convolution needs all channels of a pixel for any of its results, so nothing of it starts before the middle moment of its
//! operand; and a tile of one pixel holds the array as long as one of [`rows`](tpuflow_ir::machine::Array). Whatever cannot
//! start before such a moment adds up on its unit from there ([`Chains::makespan`]); and where all of a layer must be done
//! before the next can begin, as before a pixel that the whole image is averaged to, these sums follow each other.

use std::ops::Range;

use tpuflow_ir::{Graph, Machine, Unit, timing};

use super::earlier::Earlier;
use super::gates::{Dependencies, Gate, Set, gates, lost_slots};
use super::{Every, split};
use crate::constants::Constants;
use crate::issue::Occupancy;
use crate::linear::unit_of;
use crate::live::Elements;
use crate::moments::{Operand, Operator, Times, first_load_cycles, first_read_cycle, lead};
use crate::work::Work;

/// Earlier moments that the end of a layer is counted from, times layers, and how many of them at least, the nearest first: what
/// is to be looked at grows with the third power.
const MOST_SUMS: usize = 60_000;
const LEAST_SUMS: usize = 32;

/// Moments of all layers, and who waits for whom.
pub(super) struct Chains<'a> {
    works: &'a [Work],
    machine: &'a Machine,
    constants: &'a Constants,
    /// By layer, which of its results are needed.
    needed: Vec<&'a Elements>,
    /// By layer, whether its result is a single pixel.
    singles: Vec<bool>,
    idle: Idle,
    gates: Vec<Gate>,
    /// Before which nothing of a layer begins.
    begins: Vec<u64>,
    /// Before which all weights of a layer on the array are still to be used, if a pixel needs all of them.
    waits: Vec<Option<u64>>,
    /// Moments of each layer's result.
    pub times: Vec<Times>,
    /// Those of which a pixel needs all channels of some pixel.
    pub channels: Earlier,
    /// Those of which any element needs all channels of some pixel.
    strong: Earlier,
    /// Those that are done when the layer is.
    pub whole: Earlier,
}

/// Where no instruction of the array can be under way.
#[derive(Clone, Debug)]
struct Idle {
    /// By layer of another unit, when a pixel of its result is there.
    after: Vec<bool>,
    /// By layer of the array, when its first instruction begins.
    before: Vec<bool>,
}

impl<'a> Chains<'a> {
    pub fn new(every: &'a Every) -> Self {
        let (graph, works) = (every.graph, every.works);
        let none = Idle { after: vec![false; works.len()], before: vec![false; works.len()] };
        let sets = Self::with(every, (none, vec![]));
        let needs = Dependencies { channels: &sets.channels, strong: &sets.strong, whole: &sets.whole };
        let gates = gates(graph, works, &needs, every.producer, every.machine);
        let stops = (sets.idle(graph), gates);
        Self::with(every, stops)
    }

    /// Nothing can keep the array at work before what every layer on it needs. Anything else may be computed there, be it once more
    /// or though nobody needs it, so that the instruction behind it finds the array set up.
    fn idle(&self, graph: &Graph) -> Idle {
        let on_array = |i: usize| unit_of(graph, &graph.layers[i].op, self.machine) == Unit::Me;
        let flags: Vec<bool> = (0..self.works.len()).map(on_array).collect();
        let on_array: Vec<usize> = (0..flags.len()).filter(|&i| flags[i]).collect();
        let first = |layer: usize| on_array.iter().all(|&i| i == layer || self.strong.has(i, layer));
        let of = |kind: bool| (0..flags.len()).map(|layer| flags[layer] == kind && first(layer)).collect();
        Idle { after: of(false), before: of(true) }
    }

    fn with(every: &'a Every, (idle, gates): (Idle, Vec<Gate>)) -> Self {
        let Every { graph, machine, live, producer, constants, works, reach } = *every;
        let sets = || Earlier::new(reach);
        let mut chains = Self {
            works,
            machine,
            constants,
            needed: graph.layers.iter().map(|layer| live.needed(layer.output)).collect(),
            singles: vec![],
            idle,
            gates,
            begins: vec![],
            waits: vec![],
            times: vec![],
            channels: sets(),
            strong: sets(),
            whole: sets(),
        };
        for (index, layer) in graph.layers.iter().enumerate() {
            let operand = |tensor: tpuflow_ir::TensorId| -> Operand {
                let Some(from) = producer[tensor.index()] else {
                    let none = || vec![false; chains.channels.range(index).len()];
                    return Operand { times: Times::default(), channels: none(), strong: none(), whole: none() };
                };
                Operand {
                    times: chains.times[from].clone(),
                    channels: chains.channels.seen_from(index, from, true),
                    strong: chains.strong.seen_from(index, from, false),
                    whole: chains.whole.seen_from(index, from, true),
                }
            };
            let operands: Vec<Operand> = layer.op.operands().into_iter().map(operand).collect();
            let drained = chains.idle.before[index];
            let mut need = Operator { graph, machine, layer, work: &works[index], drained }.need(&operands);
            let output = graph.tensor(layer.output);
            let single = output.shape.last() == Some(&output.elements());
            if single {
                need.channels.clone_from(&need.whole);
            }
            let times = std::mem::take(&mut need.times);
            chains.channels.push(need.channels);
            chains.strong.push(need.strong);
            chains.whole.push(need.whole);
            let needed = chains.channels.of(index).chain([index]);
            let bytes = constants.bytes(needed, |piece| piece.packed);
            let ready = if bytes > 0 { first_load_cycles(machine) + split(bytes, machine) } else { 0 };
            let least = if works[index].array > 0 { lead(machine, false) + timing::array_depth(machine) } else { 0 };
            let mut times = times;
            times.pixel = times.pixel.max(times.first).max(ready + least);
            times.all = times.all.max(times.pixel).max(chains.earliest_completion(index, single));
            if output.shape.iter().rev().take(2).product::<usize>() == output.elements() {
                times.matrix = times.matrix.max(times.all);
            }
            if single {
                times.pixel = times.all;
            }
            chains.singles.push(single);
            chains.begins.push(need.begin);
            chains.waits.push(need.waits);
            chains.times.push(times);
        }
        chains
    }

    /// When all that is needed can be there: of a layer of which not all is, some element.
    pub fn ends(&self) -> u64 {
        let end = |(times, needed): (&Times, &&Elements)| match needed {
            Elements::None => 0,
            Elements::Some(_) => times.first,
            Elements::All => times.all,
        };
        self.times.iter().zip(&self.needed).map(end).max().unwrap_or(0)
    }

    /// No schedule is shorter: for every moment, what the units have left to do after it.
    pub fn makespan(&self) -> u64 {
        let count = self.works.len();
        let after = |from: usize| {
            let strong = |layer: usize| self.strong.has(layer, from);
            let own = |layer: usize| layer == from || strong(layer);
            let later = self.strong.later(from, count);
            let after = self.sum(self.times[from].pixel, later.clone(), &strong, self.idle.after[from]);
            after.max(self.sum(self.begins[from], from..later.end, &own, self.idle.before[from]))
        };
        (0..count).map(after).max().unwrap_or(0)
    }

    /// Cycles without which weights that the cache has no room for cannot be brought in after the moment before which none of
    /// them is used, or all of them will be used again: until the last pixel of a layer's operand is there, some result of the
    /// layer, and of those that need all of it, has not begun, and every pixel takes all weights.
    pub fn left_to_load(&self) -> u64 {
        let machine = self.machine;
        let room = machine.cache_bytes() + machine.ewp_cache_bytes();
        let word = machine.word() as u64;
        let after = |moment: u64, bytes: u64| {
            // A page may be open.
            let cycles = split(bytes.saturating_sub(room), machine).saturating_sub(machine.page_miss());
            if bytes > room { moment + cycles } else { 0 }
        };
        let count = self.works.len();
        let later = |from: usize| {
            let layers = from..self.strong.later(from, count).end;
            let unused = layers.clone().filter(|&i| i == from || self.strong.has(i, from));
            let unused = after(self.begins[from], self.constants.bytes(unused, |piece| piece.bytes));
            let Some(moment) = self.waits[from] else { return unused };
            let used_again =
                || layers.clone().filter(|&i| i == from || self.whole.has(i, from) && self.waits[i].is_some());
            // A word of each may have been used for the last time.
            let weights = self.constants.bytes(used_again(), |piece| piece.weights);
            unused.max(after(moment, weights.saturating_sub(used_again().count() as u64 * word)))
        };
        (0..count).map(later).max().unwrap_or(0)
    }

    /// When all of a layer can be there: sums of what must be done between an earlier moment and it, be this the start, a
    /// single pixel, or, with `every`, any.
    fn earliest_completion(&self, index: usize, every: bool) -> u64 {
        let needed = |layer: usize| layer == index || self.whole.has(index, layer);
        let most = (MOST_SUMS / self.works.len()).max(LEAST_SUMS);
        let before = self.whole.of(index).rev().filter(|&from| every || self.singles[from]);
        let sums = before.take(most).map(|from| {
            let follows = |layer: usize| needed(layer) && self.strong.has(layer, from);
            self.sum(self.times[from].pixel, from + 1..index + 1, &follows, self.idle.after[from])
        });
        let all = self.whole.range(index).start..index + 1;
        sums.chain([self.sum(first_read_cycle(self.machine), all, &needed, true)]).max().unwrap_or(0)
    }

    /// The end of the work of some of these layers, which begin at `start` at the earliest, with the array drained or not.
    fn sum(&self, start: u64, layers: Range<usize>, counts: &dyn Fn(usize) -> bool, drained: bool) -> u64 {
        let machine = self.machine;
        let (mut array, mut tail) = (0, 0);
        let (mut ewp, mut pdp) = (Occupancy::new(machine.ewp.start), Occupancy::new(machine.pdp.start));
        for layer in layers.clone().filter(|&layer| counts(layer)) {
            let work = &self.works[layer];
            tail = tail.max(work.tail);
            array += work.array;
            ewp.add(work.ewp);
            pdp.add(work.pdp);
        }
        if !self.gates.is_empty() {
            let on_array = layers.filter(|&i| self.works[i].array > 0 && counts(i));
            array += lost_slots(&self.gates, &Set::of(self.works.len(), on_array));
        }
        let after = |cycles: u64, around: u64| if cycles > 0 { start + cycles + around } else { 0 };
        after(array - tail.min(array), lead(machine, drained) + timing::array_depth(machine))
            .max(after(ewp.once(), machine.ewp.start + machine.ewp.latency))
            .max(after(pdp.once(), machine.pdp.start + machine.pdp.latency))
    }
}

/// When a program ends whose units have done what somebody needs by a moment: the last result, or what is made of it, is stored.
pub(super) fn last_store_end(moment: u64, machine: &Machine) -> u64 {
    let store = machine.dma.start + machine.dma.latency + machine.ddr_cycles(1);
    if moment > 0 { moment + store } else { 0 }
}
