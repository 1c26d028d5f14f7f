//! When results can be there at the earliest: along chains of layers, and what the units still have to do after that.
//!
//! Results of an instruction are there when it has finished, and an instruction starts when all it reads is there. Of every
//! tensor three moments are followed ([`Times`]): its first element, the first pixel with all of its channels, all elements.
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
//! before the next can begin, as before a pixel that the whole image is averaged to, these sums follow each other. If all of
//! the array's work lies either before such a pixel or after it, the array has drained there, and its next instruction has to
//! set it up again.

use std::ops::Range;

use tpuflow_ir::{Graph, Machine, Op, Unit, timing};

use super::gates::{Dependencies, Gate, Set, gates, lost_slots};
use super::{Every, covers, split};
use crate::constants::Constants;
use crate::issue::Occupancy;
use crate::linear::{is_permutation, unit_of};
use crate::live::Elements;
use crate::work::Work;

/// Earlier moments that the end of a layer is counted from, times layers, and how many of them at least, the nearest first: what
/// is to be looked at grows with the third power.
const MOST_SUMS: usize = 60_000;
const LEAST_SUMS: usize = 32;

/// Moments of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Some element is there.
    first: u64,
    /// Some pixel is there with all of its channels.
    pixel: u64,
    /// All elements are there.
    pub all: u64,
}

impl Times {
    fn later(self, cycles: u64) -> Self {
        Self { first: self.first + cycles, pixel: self.pixel + cycles, all: self.all + cycles }
    }
}

/// Sets of layers, by layer.
pub(super) type Sets = Vec<Vec<bool>>;

/// Moments of all layers, and who waits for whom.
pub(super) struct Chains<'a> {
    works: &'a [Work],
    machine: &'a Machine,
    constants: &'a Constants,
    /// By layer, which of its results are needed.
    needed: Vec<&'a Elements>,
    /// Layers whose result is a single pixel.
    singles: Vec<usize>,
    idle: Idle,
    gates: Vec<Gate>,
    /// Before which nothing of a layer begins.
    begins: Vec<u64>,
    /// Before which all weights of a layer on the array are still to be used, if a pixel needs all of them.
    waits: Vec<Option<u64>>,
    /// Moments of each layer's result.
    pub times: Vec<Times>,
    /// Those of which a pixel needs all channels of some pixel.
    pub channels: Sets,
    /// Those of which any element needs all channels of some pixel.
    strong: Sets,
    /// Those that are done when the layer is.
    pub whole: Sets,
}

/// Where no instruction of the array can be under way.
#[derive(Clone, Debug)]
struct Idle {
    /// By layer, when its result is there.
    after: Vec<bool>,
    /// By layer, when its first instruction begins.
    before: Vec<bool>,
}

/// Moments and needs of a layer, derived from those of its operands.
#[derive(Clone, Debug, Default)]
struct Need {
    /// Before which nothing of it begins.
    begin: u64,
    /// Before which some pixel of its operand is not there, and with it no result that takes all of its weights.
    waits: Option<u64>,
    times: Times,
    channels: Vec<bool>,
    strong: Vec<bool>,
    whole: Vec<bool>,
}

fn merge_flags(mine: &mut [bool], theirs: &[bool]) {
    for (a, b) in mine.iter_mut().zip(theirs) {
        *a |= b;
    }
}

/// An operand: moments, and the sets of it and what it needs.
#[derive(Clone)]
struct Operand {
    times: Times,
    channels: Vec<bool>,
    strong: Vec<bool>,
    whole: Vec<bool>,
}

impl<'a> Chains<'a> {
    pub fn new(every: &'a Every) -> Self {
        let (graph, works) = (every.graph, every.works);
        let none = Idle { after: vec![false; works.len()], before: vec![false; works.len()] };
        let sets = Self::with(every, (none, vec![]));
        let needs = Dependencies { channels: &sets.channels, strong: &sets.strong, whole: &sets.whole };
        let gates = gates(graph, works, &needs, every.producer, every.machine);
        let stops = (sets.idle(), gates);
        Self::with(every, stops)
    }

    /// A single pixel that ends all of the array's work but what cannot begin before it leaves the array idle; of what follows
    /// a layer that all the rest needs a pixel of comes first.
    fn idle(&self) -> Idle {
        let on_array: Vec<usize> = (0..self.works.len()).filter(|&i| self.works[i].array > 0).collect();
        let ended = |single: usize, i: usize| i == single || self.whole[single][i];
        let after = |single: &usize| on_array.iter().all(|&i| ended(*single, i) || self.strong[i][*single]);
        let ends: Vec<usize> = self.singles.iter().copied().filter(after).collect();
        let first = |layer: usize, single: usize| {
            let later = |i: usize| i == layer || ended(single, i) || self.strong[i][layer];
            self.strong[layer][single] && on_array.iter().all(|&i| later(i))
        };
        let layers = 0..self.works.len();
        Idle {
            after: layers.clone().map(|layer| ends.contains(&layer)).collect(),
            before: layers.map(|layer| ends.iter().any(|&single| first(layer, single))).collect(),
        }
    }

    fn with(every: &'a Every, (idle, gates): (Idle, Vec<Gate>)) -> Self {
        let Every { graph, machine, live, producer, constants, works } = *every;
        let count = graph.layers.len();
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
            channels: vec![],
            strong: vec![],
            whole: vec![],
        };
        for (index, layer) in graph.layers.iter().enumerate() {
            let operand = |tensor: tpuflow_ir::TensorId| -> Operand {
                let none = || vec![false; count];
                let Some(from) = producer[tensor.index()] else {
                    let times = Times::default();
                    return Operand { times, channels: none(), strong: none(), whole: none() };
                };
                let mut operand = Operand {
                    times: chains.times[from],
                    channels: chains.channels[from].clone(),
                    strong: chains.strong[from].clone(),
                    whole: chains.whole[from].clone(),
                };
                operand.channels[from] = true;
                operand.whole[from] = true;
                operand
            };
            let operands: Vec<Operand> = layer.op.operands().into_iter().map(operand).collect();
            let mut need = chains.need(graph, layer, &works[index], &operands);
            for set in [&mut need.channels, &mut need.strong, &mut need.whole] {
                set.resize(count, false);
            }
            let output = graph.tensor(layer.output);
            let single = output.shape.last() == Some(&output.elements());
            if single {
                need.channels.clone_from(&need.whole);
            }
            let needed = (0..count).filter(|&i| i == index || need.channels[i]);
            let bytes = constants.bytes(needed, |piece| piece.packed);
            let ready = if bytes > 0 { first_load_cycles(machine) + split(bytes, machine) } else { 0 };
            let least = if works[index].array > 0 { lead(machine, false) + timing::array_depth(machine) } else { 0 };
            let mut times = need.times;
            times.pixel = times.pixel.max(times.first).max(ready + least);
            times.all = times.all.max(times.pixel).max(chains.earliest_completion(index, &need, single));
            if single {
                times.pixel = times.all;
                chains.singles.push(index);
            }
            chains.begins.push(need.begin);
            chains.waits.push(need.waits);
            chains.times.push(times);
            chains.channels.push(need.channels);
            chains.strong.push(need.strong);
            chains.whole.push(need.whole);
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
            let strong = |layer: usize| self.strong[layer][from];
            let own = |layer: usize| layer == from || strong(layer);
            let after = self.sum(self.times[from].pixel, from + 1..count, &strong, self.idle.after[from]);
            after.max(self.sum(self.begins[from], from..count, &own, self.idle.before[from]))
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
        let layers = 0..self.works.len();
        let later = |from: usize| {
            let unused = layers.clone().filter(|&i| i == from || self.strong[i][from]);
            let unused = after(self.begins[from], self.constants.bytes(unused, |piece| piece.bytes));
            let Some(moment) = self.waits[from] else { return unused };
            let used_again = || layers.clone().filter(|&i| i == from || self.whole[i][from] && self.waits[i].is_some());
            // A word of each may have been used for the last time.
            let weights = self.constants.bytes(used_again(), |piece| piece.weights);
            unused.max(after(moment, weights.saturating_sub(used_again().count() as u64 * word)))
        };
        layers.clone().map(later).max().unwrap_or(0)
    }

    /// When all of a layer can be there: sums of what must be done between an earlier moment and it, be this the start, a
    /// single pixel, or, with `every`, any.
    fn earliest_completion(&self, index: usize, need: &Need, every: bool) -> u64 {
        let needed = |layer: usize| layer == index || need.whole[layer];
        let strong = |from: usize, layer: usize| {
            if layer == index { need.strong[from] } else { self.strong[layer][from] }
        };
        let most = (MOST_SUMS / self.works.len()).max(LEAST_SUMS);
        let before = (0..index).rev().filter(|&from| need.whole[from] && (every || self.singles.contains(&from)));
        let sums = before.take(most).map(|from| {
            let follows = |layer: usize| needed(layer) && strong(from, layer);
            self.sum(self.times[from].pixel, from + 1..index + 1, &follows, self.idle.after[from])
        });
        sums.chain([self.sum(first_read_cycle(self.machine), 0..index + 1, &needed, true)]).max().unwrap_or(0)
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

    fn need(&self, graph: &Graph, layer: &tpuflow_ir::Layer, work: &Work, operands: &[Operand]) -> Need {
        let machine = self.machine;
        let op = &layer.op;
        if work.array > 0 {
            return self.linear(graph, op, work, operands);
        }
        let unit = unit_of(graph, op, machine);
        let elementwise = machine.ewp.start + machine.ewp.latency;
        let around = unit.start_up(machine).map_or(elementwise, |start_up| start_up.start + start_up.latency);
        let cycles = if unit == Unit::Pdp { work.pdp } else { work.ewp };
        // Too large for the pooling unit: on either.
        let around = around.min(if cycles > 0 { around } else { elementwise });
        let latency = around + work.least.max(1);
        let mut need = elementwise_need(operands);
        match op {
            Op::Softmax { .. } | Op::LayerNorm { .. } | Op::ArgMax { .. } => need.of_pixels(),
            Op::Reduce { input, axes, .. } => {
                if axes.contains(&(graph.tensor(*input).shape.len() as u32 - 1)) {
                    need.of_pixels();
                }
            }
            Op::Conv { window, input, .. } | Op::MaxPool { window, input } | Op::AveragePool { window, input, .. } => {
                if !is_inside(window) {
                    return Need { times: Times { all: around + cycles, ..Times::default() }, ..Need::default() };
                }
                if !covers(window, &graph.tensor(*input).shape) {
                    need.clear_all_elements();
                }
            }
            Op::ResizeLinear { .. } => need.clear_all_elements(),
            Op::Unary { .. }
            | Op::Rescale { .. }
            | Op::Quantize { .. }
            | Op::Dequantize { .. }
            | Op::PRelu { .. }
            | Op::Binary { .. }
            | Op::Select { .. } => {}
            _ => return movement_need(graph, layer, operands, around),
        }
        let begin = need.times.first.max(first_read_cycle(machine));
        need.begin = begin;
        need.times = Times {
            first: begin + latency,
            pixel: need.times.pixel + latency,
            all: (need.times.all + latency).max(begin + cycles + around),
        };
        need
    }

    /// Convolutions and products on the array.
    fn linear(&self, graph: &Graph, op: &Op, work: &Work, operands: &[Operand]) -> Need {
        let (machine, depth) = (self.machine, timing::array_depth(self.machine));
        let (Some(left), Some(right)) = (operands.first(), operands.get(1)) else { return Need::default() };
        let (mut left, right) = (left.clone(), right.clone());
        let mut whole_pixels = true;
        let mut every_pixel = true;
        if let Op::Conv { window, groups, input, .. } = op {
            if !is_inside(window) {
                let all = lead(machine, true) + work.array - work.tail + depth;
                return Need { times: Times { all, ..Times::default() }, ..Need::default() };
            }
            whole_pixels = *groups == 1;
            let shape = &graph.tensor(*input).shape;
            every_pixel = covers(window, shape);
            if !every_pixel {
                left.times.all = left.times.pixel;
                left.whole.fill(false);
            } else if shape[0] == 1 && window.output(shape[1], shape[2]) == Some([1, 1]) {
                // The window is the image.
                left.times.pixel = left.times.all;
                left.channels.clone_from(&left.whole);
            }
        }
        let around = lead(machine, self.idle.before[self.times.len()]) + depth;
        let warm = lead(machine, false) + depth;
        let pixel = if whole_pixels { work.least } else { 1 };
        let begin = if whole_pixels { left.times.pixel } else { left.times.first };
        let begin = begin.max(right.times.first).max(first_read_cycle(machine));
        let mut need = elementwise_need(&[left.clone(), right.clone()]);
        // Weights of all columns and K blocks, in one matrix.
        need.waits = (every_pixel && work.rounds > 0).then_some(left.times.all);
        if whole_pixels {
            merge_flags(&mut need.strong, &left.channels);
        }
        need.begin = begin;
        need.times = Times {
            first: begin + around + work.first,
            pixel: (begin + around + pixel).max(left.times.pixel + warm + pixel).max(right.times.pixel + warm),
            all: (begin + around + work.array - work.tail)
                .max(left.times.all + warm + pixel)
                .max(right.times.all + warm),
        };
        need
    }
}

impl Need {
    /// Any element needs whole pixels.
    fn of_pixels(&mut self) {
        self.times.first = self.times.pixel;
        let channels = self.channels.clone();
        merge_flags(&mut self.strong, &channels);
    }

    /// Not all elements are needed.
    fn clear_all_elements(&mut self) {
        self.times.all = self.times.pixel;
        self.whole.fill(false);
    }
}

/// Needs of an operator whose every element needs one of each operand, every pixel a pixel, and all of it all.
fn elementwise_need(operands: &[Operand]) -> Need {
    let mut need = Need::default();
    for operand in operands {
        need.times.first = need.times.first.max(operand.times.first);
        need.times.pixel = need.times.pixel.max(operand.times.pixel);
        need.times.all = need.times.all.max(operand.times.all);
        for (mine, theirs) in [
            (&mut need.channels, &operand.channels),
            (&mut need.strong, &operand.strong),
            (&mut need.whole, &operand.whole),
        ] {
            mine.resize(theirs.len(), false);
            merge_flags(mine, theirs);
        }
    }
    need
}

/// Operators that only move elements: they may cost nothing.
fn movement_need(graph: &Graph, layer: &tpuflow_ir::Layer, operands: &[Operand], around: u64) -> Need {
    let mut operands = operands.to_vec();
    if let Op::Concat { requants, .. } = &layer.op {
        // Codes of another scale are computed anew.
        for (operand, _) in operands.iter_mut().zip(requants).filter(|(_, requant)| requant.is_some()) {
            operand.times = operand.times.later(around);
        }
    }
    let mut need = elementwise_need(&operands);
    let shape = |t: tpuflow_ir::TensorId| &graph.tensor(t).shape;
    match &layer.op {
        Op::Concat { inputs, axis, .. } => {
            need.times.first = operands.iter().map(|o| o.times.first).min().unwrap_or(0);
            for (index, strong) in need.strong.iter_mut().enumerate() {
                *strong = operands.iter().all(|o| o.strong[index]);
            }
            if inputs.first().is_none_or(|&t| *axis as usize + 1 != shape(t).len()) {
                need.times.pixel = operands.iter().map(|o| o.times.pixel).min().unwrap_or(0);
                for (index, channels) in need.channels.iter_mut().enumerate() {
                    *channels = operands.iter().all(|o| o.channels[index]);
                }
            }
        }
        Op::Rearrange { input, dims, strides, offset } => {
            let channels = shape(*input).last().copied().unwrap_or(1);
            let whole = i64::try_from(channels).unwrap_or(1);
            let pixels = dims.last().is_some_and(|&d| d as usize == channels)
                && shape(layer.output).last() == Some(&channels)
                && strides.last() == Some(&1)
                && strides.iter().rev().skip(1).all(|s| s % whole == 0)
                && offset % whole == 0;
            if !pixels {
                need.times.pixel = need.times.first;
                need.channels.fill(false);
            }
            if !is_permutation(dims, strides, *offset, graph.tensor(*input).elements()) {
                need.clear_all_elements();
            }
        }
        Op::Gather { input, axis, .. } => {
            if *axis as usize + 1 == shape(*input).len() {
                need.times.pixel = need.times.first;
                need.channels.fill(false);
            }
            need.clear_all_elements();
        }
        // Some elements come from nowhere.
        Op::Pad { .. } | Op::InsertZeros { .. } => {
            (need.times.first, need.times.pixel) = (0, 0);
            need.channels.fill(false);
            need.strong.fill(false);
        }
        _ => need = Need::default(),
    }
    need
}

/// Whatever is computed, something was loaded before.
pub(super) fn first_load_cycles(machine: &Machine) -> u64 {
    machine.control.start + machine.dma.start + machine.dma.latency
}

/// When the first instruction begins that reads: something has come, in a page that had to be opened, or has been filled.
pub(super) fn first_read_cycle(machine: &Machine) -> u64 {
    let came = first_load_cycles(machine) + machine.page_miss() + machine.ddr_cycles(1);
    came.min(machine.control.start + machine.ewp.start + machine.ewp.latency)
}

/// When a program ends whose units have done what somebody needs by a moment: the last result, or what is made of it, is stored.
pub(super) fn last_store_end(moment: u64, machine: &Machine) -> u64 {
    let store = machine.dma.start + machine.dma.latency + machine.ddr_cycles(1);
    if moment > 0 { moment + store } else { 0 }
}

/// Cycles from the tokens of a matrix instruction to its first slot.
pub(super) fn lead(machine: &Machine, drained: bool) -> u64 {
    let (warm, cold) = (machine.control.issue, machine.control.issue_cold + machine.array.setup);
    u64::from(machine.array.rows) + if drained { cold } else { warm.min(cold) }
}

/// A window inside the padding needs nothing at all.
fn is_inside(window: &tpuflow_ir::Window) -> bool {
    (0..4).all(|side| window.pads[side] <= (window.kernel[side % 2] - 1) * window.dilation[side % 2])
}
