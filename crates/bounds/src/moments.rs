//! When results of an operator can be there at the earliest, given when its operands are.
//!
//! ```text
//!  head 0   scores [tile]           weighted sums      [tile][tile]
//!  head 1               [tile]                                     [tile][tile]
//!  pixel of all heads, joined                                                  +depth
//! ```
//!
//! An instruction multiplies by one matrix of a stack. So a pixel that channels of several matrices make up waits for the tiles
//! of each, of the layers before as well, from the moment at which any of them can begin ([`Tiles`]).

use tpuflow_ir::{Graph, Layer, Machine, Op, PadMode, TableEntry, TensorId, Unit, Window, timing};

use super::{covers, split};
use crate::constants::entry_bytes;
use crate::linear::{is_permutation, unit_of};
use crate::rearranged::{Loop, Loops, hold_lines, matrices};
use crate::work::Work;

/// Most sums of tiles followed for a tensor.
const MOST_TILES: usize = 6;

/// Moments of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Some element is there.
    pub first: u64,
    /// Some pixel is there with all of its channels.
    pub pixel: u64,
    /// By axis, all elements along it are there at some indices of the other axes. An axis without an entry has that of `first`.
    pub lines: Vec<u64>,
    /// Some matrix, its last two axes, is there.
    pub matrix: u64,
    /// All elements are there.
    pub all: u64,
    /// What pixels of several matrices take.
    pub tiles: Vec<Tiles>,
}

impl Times {
    fn later(&mut self, cycles: u64) {
        for moment in [&mut self.first, &mut self.pixel, &mut self.matrix, &mut self.all] {
            *moment += cycles;
        }
        self.lines.iter_mut().for_each(|line| *line += cycles);
        self.tiles.iter_mut().for_each(|tiles| tiles.after += cycles);
    }

    /// Of operands of which both are needed.
    fn join(&mut self, other: &Self) {
        self.first = self.first.max(other.first);
        self.pixel = self.pixel.max(other.pixel);
        self.matrix = self.matrix.max(other.matrix);
        self.all = self.all.max(other.all);
        self.lines.resize(self.lines.len().max(other.lines.len()), 0);
        self.lines.iter_mut().zip(&other.lines).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        self.tiles.extend(&other.tiles);
        self.tiles.truncate(MOST_TILES);
    }

    /// Leaves of lines and matrices what follows from elements and pixels.
    fn clear_matrices(&mut self) {
        self.matrix = self.pixel;
        self.lines.clear();
        self.tiles.clear();
    }

    /// When some line along an axis is there.
    fn line(&self, axis: usize) -> u64 {
        self.lines.get(axis).copied().unwrap_or(0).max(self.first)
    }

    /// When some pixel is there, with all of its channels, of each of so many matrices.
    fn pixels_of(&self, matrices: u64) -> u64 {
        let moment = |tiles: &Tiles| tiles.origin + (matrices * tiles.slots).saturating_sub(tiles.empty) + tiles.after;
        self.tiles.iter().map(moment).max().unwrap_or(0).max(self.pixel)
    }
}

/// What the array has to do for a pixel of each matrix of a stack, and what comes after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    /// When a result of no slots would be there: its first slot's moment and the depth of the array.
    origin: u64,
    /// Slots for every matrix.
    slots: u64,
    /// Empty slots behind the last pixel, for which it does not wait.
    empty: u64,
    /// Cycles from a result of the array to this pixel.
    after: u64,
}

/// Moments and needs of a layer, derived from those of its operands.
#[derive(Clone, Debug, Default)]
pub(super) struct Need {
    /// Before which nothing of it begins.
    pub begin: u64,
    /// Before which some pixel of its operand is not there, and with it no result that takes all of its weights.
    pub waits: Option<u64>,
    pub times: Times,
    pub channels: Vec<bool>,
    pub strong: Vec<bool>,
    pub whole: Vec<bool>,
}

impl Need {
    /// Any element needs whole pixels.
    fn of_pixels(&mut self, rank: usize) {
        self.times.first = self.times.pixel;
        self.times.lines = vec![self.times.pixel; rank];
        if rank > 1 {
            self.times.lines[rank - 2] = self.times.matrix;
        }
        let channels = self.channels.clone();
        merge_flags(&mut self.strong, &channels);
    }

    /// Not all elements are needed.
    fn clear_all_elements(&mut self) {
        self.times.all = self.times.pixel;
        self.times.clear_matrices();
        self.whole.fill(false);
    }
}

fn merge_flags(mine: &mut [bool], theirs: &[bool]) {
    for (a, b) in mine.iter_mut().zip(theirs) {
        *a |= b;
    }
}

/// An operand: moments, and the sets of it and what it needs.
#[derive(Clone)]
pub(super) struct Operand {
    pub times: Times,
    pub channels: Vec<bool>,
    pub strong: Vec<bool>,
    pub whole: Vec<bool>,
}

/// A layer, with what is known of it alone.
pub(super) struct Operator<'a> {
    pub graph: &'a Graph,
    pub machine: &'a Machine,
    pub layer: &'a Layer,
    pub work: &'a Work,
    /// Whether the array is idle before its first instruction.
    pub drained: bool,
}

impl Operator<'_> {
    fn shape(&self, tensor: TensorId) -> &[usize] {
        &self.graph.tensor(tensor).shape
    }

    /// Its needs, where its operands have these.
    pub fn need(&self, operands: &[Operand]) -> Need {
        let (graph, machine, op, work) = (self.graph, self.machine, &self.layer.op, self.work);
        if work.array > 0 {
            return self.linear(operands);
        }
        let unit = unit_of(graph, op, machine);
        let elementwise = machine.ewp.start + machine.ewp.latency;
        let around = unit.start_up(machine).map_or(elementwise, |start_up| start_up.start + start_up.latency);
        let cycles = if unit == Unit::Pdp { work.pdp } else { work.ewp };
        // Too large for the pooling unit: on either.
        let around = around.min(if cycles > 0 { around } else { elementwise });
        let latency = around + work.least.max(1);
        let mut need = elementwise_need(&self.of_own_shape(operands));
        let rank = self.shape(self.layer.output).len();
        match op {
            Op::Softmax { .. } | Op::LayerNorm { .. } => need.of_pixels(rank),
            Op::ArgMax { .. } => {
                need.of_pixels(rank);
                need.times.clear_matrices();
            }
            Op::Reduce { input, axes, .. } => {
                if axes.contains(&(self.shape(*input).len() as u32 - 1)) {
                    need.of_pixels(rank);
                }
                need.times.clear_matrices();
            }
            Op::Conv { window, input, .. } | Op::MaxPool { window, input } | Op::AveragePool { window, input, .. } => {
                if !is_inside(window) {
                    return Need { times: Times { all: around + cycles, ..Times::default() }, ..Need::default() };
                }
                if !covers(window, self.shape(*input)) {
                    need.clear_all_elements();
                }
                need.times.clear_matrices();
            }
            Op::ResizeLinear { .. } => need.clear_all_elements(),
            Op::Unary { .. }
            | Op::Rescale { .. }
            | Op::Quantize { .. }
            | Op::Dequantize { .. }
            | Op::PRelu { .. }
            | Op::Binary { .. }
            | Op::Select { .. } => {}
            _ => return self.movement(operands, around),
        }
        let begin = need.times.first.max(first_read_cycle(machine));
        need.begin = begin;
        need.times.later(latency);
        need.times.first = begin + latency;
        need.times.all = need.times.all.max(begin + cycles + around);
        need
    }

    /// Operands of which those that are repeated have no matrices, or other ones, than the result.
    fn of_own_shape(&self, operands: &[Operand]) -> Vec<Operand> {
        let mut operands = operands.to_vec();
        for (operand, tensor) in operands.iter_mut().zip(self.layer.op.operands()) {
            if self.shape(tensor) != self.shape(self.layer.output) {
                operand.times.clear_matrices();
            }
        }
        operands
    }

    /// Convolutions and products on the array.
    fn linear(&self, operands: &[Operand]) -> Need {
        let (machine, work, op) = (self.machine, self.work, &self.layer.op);
        let depth = timing::array_depth(machine);
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
            let shape = self.shape(*input);
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
        let around = lead(machine, self.drained) + depth;
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
        let first = begin + around + work.first;
        let last = warm + work.first;
        need.times = Times {
            first,
            pixel: (begin + around + pixel).max(left.times.pixel + warm + pixel).max(right.times.pixel + warm),
            lines: Vec::new(),
            matrix: 0,
            all: (begin + around + work.array - work.tail)
                .max(left.times.all + warm + pixel)
                .max(right.times.all + warm),
            tiles: Vec::new(),
        };
        if let Op::MatMul { b, .. } = op {
            // A pixel has the results of all columns.
            need.times.pixel = need.times.pixel.max(right.times.matrix + last);
            need.times.matrix = need.times.pixel.max(left.times.matrix + last);
            // Every column of a matrix needs all pixels of the left one.
            let rank = self.shape(self.layer.output).len();
            need.times.lines = vec![first; rank];
            need.times.lines[rank - 2] = first.max(left.times.matrix + last);
            let own = (self.shape(*b).len() > 2).then_some(begin + around);
            need.times.tiles = self.tiles(own, warm, &left.times);
        }
        need
    }

    /// Slots for pixels of several matrices. Where each has a right operand of its own, with the `origin` of the first of them: of
    /// this layer alone, and together with those of the stacks it is made of. In any case, one result behind the last of these.
    fn tiles(&self, origin: Option<u64>, warm: u64, left: &Times) -> Vec<Tiles> {
        let (slots, empty) = (self.work.least + self.work.empty, self.work.empty);
        let mut found: Vec<Tiles> = origin.iter().map(|&origin| Tiles { origin, slots, empty, after: 0 }).collect();
        for before in &left.tiles {
            if origin.is_some() {
                found.push(Tiles { slots: before.slots + slots, empty, after: 0, ..*before });
            }
            found.push(Tiles { after: before.after + warm + self.work.least, ..*before });
        }
        found.truncate(MOST_TILES);
        found
    }

    /// Operators that only move elements: they may cost nothing.
    fn movement(&self, operands: &[Operand], around: u64) -> Need {
        let mut operands = operands.to_vec();
        if let Op::Concat { requants, .. } = &self.layer.op {
            // Codes of another scale are computed anew.
            for (operand, _) in operands.iter_mut().zip(requants).filter(|(_, requant)| requant.is_some()) {
                operand.times.later(around);
            }
        }
        let mut need = elementwise_need(&operands);
        match &self.layer.op {
            Op::Concat { inputs, axis, .. } => {
                need.times.first = operands.iter().map(|o| o.times.first).min().unwrap_or(0);
                for (index, strong) in need.strong.iter_mut().enumerate() {
                    *strong = operands.iter().all(|o| o.strong[index]);
                }
                let axis = *axis as usize;
                if inputs.first().is_none_or(|&t| axis + 1 != self.shape(t).len()) {
                    need.times.pixel = operands.iter().map(|o| o.times.pixel).min().unwrap_or(0);
                    for (index, channels) in need.channels.iter_mut().enumerate() {
                        *channels = operands.iter().all(|o| o.channels[index]);
                    }
                }
                need.times.clear_matrices();
                let lines = |along| operands.iter().map(move |o| o.times.line(along));
                let line = |along| if along == axis { lines(along).max() } else { lines(along).min() };
                need.times.lines = (0..self.shape(self.layer.output).len()).filter_map(line).collect();
            }
            Op::Rearrange { input, dims, strides, offset } => {
                let loops = Loops { dims, strides, offset: *offset };
                self.rearrangement(*input, &loops, &mut need);
            }
            Op::Gather { input, axis, .. } => {
                if *axis as usize + 1 == self.shape(*input).len() {
                    need.times.pixel = need.times.first;
                    need.channels.fill(false);
                }
                need.clear_all_elements();
            }
            Op::Embedding { table, indices, entry } => self.lookup(*table, *indices, *entry, &mut need),
            // Every element is one of the operand's, and every pixel has one's channels.
            Op::Pad { mode: PadMode::Edge | PadMode::Reflect, .. } => need.times.clear_matrices(),
            // Some elements come from nowhere.
            Op::Pad { .. } | Op::InsertZeros { .. } => {
                (need.times.first, need.times.pixel) = (0, 0);
                need.times.clear_matrices();
                need.channels.fill(false);
                need.strong.fill(false);
            }
            _ => need = Need::default(),
        }
        need
    }

    /// A row comes after its index, all rows at the rate of the channels; which pages they open depends on the indices.
    fn lookup(&self, table: TensorId, indices: TensorId, entry: TableEntry, need: &mut Need) {
        let machine = self.machine;
        let row = entry_bytes(self.graph.tensor(table), entry);
        let rows = self.graph.tensor(indices).elements() as u64;
        let begin = need.times.first.max(first_read_cycle(machine)) + machine.dma.start + machine.dma.latency;
        need.times.clear_matrices();
        need.times.first = begin + machine.ddr_cycles(1);
        need.times.pixel = begin + machine.ddr_cycles(row);
        need.times.all = need.times.all.max(begin + split(row * rows, machine)).max(need.times.pixel);
        need.channels.clone_from(&need.strong);
    }

    /// A pixel of a rearranged tensor may be one of the operand, or several, or have parts of some.
    fn rearrangement(&self, input: TensorId, loops: &Loops, need: &mut Need) {
        let (operand, result) = (self.shape(input), self.shape(self.layer.output));
        let channels = operand.last().copied().unwrap_or(1);
        let rows = operand.iter().rev().nth(1).copied().unwrap_or(1);
        let from = need.times.clone();
        need.times.clear_matrices();
        let every = is_permutation(loops.dims, loops.strides, loops.offset, operand.iter().product());
        if let Some(steps) = loops.pixels(channels, result.last().copied().unwrap_or(1)) {
            let matrices = if every { matrices(&steps, rows * channels) } else { 1 };
            need.times.pixel = from.pixels_of(matrices);
        } else {
            need.times.pixel = need.times.first;
            need.channels.fill(false);
        }
        if !every {
            need.clear_all_elements();
        }
        need.times.matrix = need.times.pixel;
        let Some(axes) = loops.by_axis(result) else { return };
        // What holds whole lines of the operand waits for one of them.
        let every_loop = axes.concat();
        let held = |inner: &[Loop]| {
            let whole = |&axis: &usize| hold_lines(inner, &every_loop, loops.offset, &operand[axis..]);
            (0..operand.len()).filter(whole).map(|axis| from.line(axis)).max().unwrap_or(0)
        };
        need.times.lines = axes.iter().map(|inner| held(inner)).collect();
        if let [.., rows, columns] = &axes[..] {
            need.times.matrix = need.times.matrix.max(held(&[&rows[..], columns].concat()));
        }
    }
}

/// Needs of an operator whose every element needs one of each operand, every pixel a pixel, and all of it all.
fn elementwise_need(operands: &[Operand]) -> Need {
    let mut need = Need::default();
    for operand in operands {
        need.times.join(&operand.times);
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

/// Whatever is computed, something was loaded before.
pub(super) fn first_load_cycles(machine: &Machine) -> u64 {
    machine.control.start + machine.dma.start + machine.dma.latency
}

/// When the first instruction begins that reads: something has come, in a page that had to be opened, or has been filled.
pub(super) fn first_read_cycle(machine: &Machine) -> u64 {
    let came = first_load_cycles(machine) + machine.page_miss() + machine.ddr_cycles(1);
    came.min(machine.control.start + machine.ewp.start + machine.ewp.latency)
}

/// Cycles from the tokens of a matrix instruction to its first slot.
pub(super) fn lead(machine: &Machine, drained: bool) -> u64 {
    let (warm, cold) = (machine.control.issue, machine.control.issue_cold + machine.array.setup);
    u64::from(machine.array.rows) + if drained { cold } else { warm.min(cold) }
}

/// A window inside the padding needs nothing at all.
fn is_inside(window: &Window) -> bool {
    (0..4).all(|side| window.pads[side] <= (window.kernel[side % 2] - 1) * window.dilation[side % 2])
}
