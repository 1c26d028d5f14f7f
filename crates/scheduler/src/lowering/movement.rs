//! Operators that only move elements: concatenation, padding, transposition, slicing, zero insertion.
//!
//! Each is a list of *parts*, strided copies between row-major positions. When the result is staged, a slice of its rows takes
//! the share of every part that lands in it; when an operand is staged, a part is bisected until the rows it reads fit.

use std::ops::Range;

use smallvec::SmallVec;
use tpuflow_ir::isa::{FloatFunction, FloatOutput, Scaling, Vector, VectorOp};
use tpuflow_ir::{Descriptor, Op, PadMode, Requant, Space, TensorId, View, Work, timing};

use super::pool::channels_of;
use super::vector::narrowed;
use super::{Lowering, Shortage, refine, scaling, slice_rows, slices, staged_bytes};
use crate::network::placement::natural;
use crate::virtual_program::Memory;

/// One loop: extent, step in the input, step in the output.
pub(super) type Loop = (u32, i64, i64);

/// A strided copy: loops outermost first, largest output step first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub input: TensorId,
    pub loops: Vec<Loop>,
    pub from: i64,
    pub to: i64,
    pub rescale: Option<(i32, Scaling)>,
}

impl Part {
    /// First and last element touched, input or output.
    fn reach(&self, output: bool) -> (i64, i64) {
        let mut ends = if output { (self.to, self.to) } else { (self.from, self.from) };
        for &(extent, input, out) in &self.loops {
            let span = i64::from(extent - 1) * if output { out } else { input };
            ends = (ends.0 + span.min(0), ends.1 + span.max(0));
        }
        ends
    }

    /// The part's iterations `range` of loop `index`.
    fn restricted(&self, index: usize, range: Range<u32>) -> Self {
        let mut part = self.clone();
        let (_, input, output) = part.loops[index];
        part.from += i64::from(range.start) * input;
        part.to += i64::from(range.start) * output;
        part.loops[index].0 = range.end - range.start;
        part
    }

    /// The pieces that land in output elements `range`.
    fn within(&self, range: &Range<i64>, found: &mut Vec<Self>) {
        let (low, high) = self.reach(true);
        if high < range.start || low >= range.end {
            return;
        }
        let split = self.loops.iter().position(|l| l.0 > 1);
        let (true, Some(index)) = (low < range.start || high >= range.end, split) else {
            found.push(self.clone());
            return;
        };
        // Iterations wholly inside stay together; the ones across an end are looked into.
        let one = self.restricted(index, 0..1).reach(true);
        let (extent, _, step) = self.loops[index];
        let mut run: Option<Range<u32>> = None;
        for i in 0..extent {
            let shift = i64::from(i) * step;
            let inside = one.0 + shift >= range.start && one.1 + shift < range.end;
            if inside {
                run = Some(run.map_or(i, |r| r.start)..i + 1);
            } else {
                found.extend(run.take().map(|r| self.restricted(index, r)));
                self.restricted(index, i..i + 1).within(range, found);
            }
        }
        found.extend(run.map(|r| self.restricted(index, r)));
    }

    /// Rows of `view` between the extremes read.
    fn input_rows(&self, view: &View) -> Range<u32> {
        let (low, high) = self.reach(false);
        let row = i64::from(view.width) * i64::from(view.channels);
        (low / row) as u32..(high / row) as u32 + 1
    }

    /// Halves along the loop that spans most of the input.
    fn halves(&self) -> Option<[Self; 2]> {
        let widest = (0..self.loops.len())
            .filter(|&i| self.loops[i].0 > 1)
            .max_by_key(|&i| (i64::from(self.loops[i].0 - 1) * self.loops[i].1.abs(), std::cmp::Reverse(i)))?;
        let extent = self.loops[widest].0;
        Some([self.restricted(widest, 0..extent / 2), self.restricted(widest, extent / 2..extent)])
    }
}

impl Lowering<'_> {
    pub(super) fn movement(&mut self, op: &Op, output: TensorId) -> Result<(), Shortage> {
        let network = &self.context.network;
        let shape = |t: TensorId| &network.tensor(t).shape;
        // Small pixels of the last channels are dense in rows of the image alone.
        let is_packed = self.tail(output).is_some() && self.is_in_blocks(output);
        let to = if is_packed { self.operand(output) } else { self.fine(output) };
        let alone = self.alone(output);
        let dense = |shape: &[usize]| strides(shape);
        match op {
            Op::Rearrange { input, dims, strides: steps, offset } => {
                let out: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
                let loops = dims.iter().zip(steps).zip(dense(&out)).map(|((&d, &i), o)| (d, i, o)).collect();
                let part = Part { input: *input, loops, from: *offset, to: 0, rescale: None };
                self.parts(&to, alone, None, vec![part])
            }
            Op::Concat { inputs, axis, requants } => {
                self.concatenation((inputs, *axis as usize, requants), output, &to, alone)
            }
            Op::Pad { input, before, after, mode } => {
                let parts = padding(*input, shape(*input), before, after, mode);
                let fill = match mode {
                    PadMode::Constant(code) => Some(VectorOp::Fill { code: *code }),
                    PadMode::Value(value) => {
                        let function = FloatFunction::Constant(*value);
                        Some(VectorOp::Float { function, output: FloatOutput::default() })
                    }
                    PadMode::Edge | PadMode::Reflect => None,
                };
                self.parts(&to, alone, fill.as_ref(), parts)
            }
            Op::InsertZeros { input, stride } => {
                let x = shape(*input);
                let steps = dense(shape(output));
                let from = dense(x);
                let factors = [1, i64::from(stride[0]), i64::from(stride[1]), 1];
                let loops = (0..4).map(|i| (x[i] as u32, from[i], steps[i] * factors[i])).collect();
                let part = Part { input: *input, loops, from: 0, to: 0, rescale: None };
                let fill = VectorOp::Fill { code: network.tensor(output).zero_point() };
                self.parts(&to, alone, Some(&fill), vec![part])
            }
            _ => Ok(()),
        }
    }

    /// Copies the operands of a concatenation that are not made in place to `to`.
    fn concatenation(
        &mut self,
        (inputs, axis, requants): (&[TensorId], usize, &[Option<Requant>]),
        output: TensorId,
        to: &View,
        alone: bool,
    ) -> Result<(), Shortage> {
        let network = &self.context.network;
        let shape = |tensor: TensorId| &network.tensor(tensor).shape;
        let out = shape(output);
        let total: usize = out[axis..].iter().product();
        let by_channels = axis + 1 == out.len();
        let (whole, word) = (self.operand(output), self.context.machine.word());
        let blocks = if by_channels { self.blocks(output, to) } else { None };
        let (mut joint, mut before) = (Vec::new(), 0usize);
        for (&input, requant) in inputs.iter().zip(requants) {
            let chunk: usize = shape(input)[axis..].iter().product();
            let outer: usize = out[..axis].iter().product();
            let start = before;
            before += chunk;
            if self.context.placement.in_place(input, output) || chunk == 0 {
                continue;
            }
            let rescale = requant.as_ref().map(|r| (network.tensor(input).zero_point(), scaling(r)));
            let part = |from: usize, count: usize, step: usize, to: usize| Part {
                input,
                loops: vec![(outer as u32, chunk as i64, step as i64), (count as u32, 1, 1)],
                from: from as i64,
                to: to as i64,
                rescale,
            };
            if by_channels {
                // The operand's channels alone: other channels of the same pixels may be written elsewhere.
                let places: Vec<View> = match &blocks {
                    Some(blocks) => blocks.iter().filter_map(|block| shared(block, start, chunk)).collect(),
                    None => vec![channels_of(to, start as u32, chunk as u32)],
                };
                for place in places {
                    let (first, count) = ((place.origin[1] - to.origin[1]) as usize, place.channels as usize);
                    self.parts(&place, false, None, vec![part(first - start, count, count, 0)])?;
                }
            } else if inputs.iter().any(|&t| self.context.placement.in_place(t, output)) {
                // Its rows alone: the others are written elsewhere.
                let own = natural(network, input, word);
                let first = (start / to.channels as usize) as u32;
                let address = whole.pixel_address(first / whole.width, first % whole.width, word);
                let mut place = [View {
                    space: whole.space,
                    address: address - u64::from(whole.channel_offset),
                    pixel_bytes: whole.pixel_bytes,
                    channel_offset: whole.channel_offset,
                    origin: [whole.origin[0] + first, whole.origin[1]],
                    dtype: whole.dtype,
                    ..own
                }];
                refine(&mut place, word);
                self.parts(&place[0], alone, None, vec![part(0, chunk, chunk, 0)])?;
            } else {
                joint.push(part(0, chunk, total, start));
            }
        }
        if joint.is_empty() { Ok(()) } else { self.parts(to, alone, None, joint) }
    }

    /// A gather whose picks lie too far apart to be present together: one copy per run of neighbouring indices.
    pub(super) fn scattered(
        &mut self,
        input: TensorId,
        [outer, extent, inner]: [usize; 3],
        indices: &[u32],
        to: &View,
        alone: bool,
    ) -> Result<(), Shortage> {
        let mut parts = Vec::new();
        let mut first = 0;
        while first < indices.len() {
            let run = (first + 1..indices.len())
                .take_while(|&i| indices[i] == indices[i - 1] + 1)
                .last()
                .map_or(1, |last| last + 1 - first);
            let steps = [(extent * inner) as i64, (indices.len() * inner) as i64];
            parts.push(Part {
                input,
                loops: vec![(outer as u32, steps[0], steps[1]), ((run * inner) as u32, 1, 1)],
                from: i64::from(indices[first]) * inner as i64,
                to: (first * inner) as i64,
                rescale: None,
            });
            first += run;
        }
        self.parts(to, alone, None, parts)
    }

    /// Copies all parts (after filling) to `to`.
    fn parts(&mut self, to: &View, alone: bool, fill: Option<&VectorOp>, parts: Vec<Part>) -> Result<(), Shortage> {
        let word = self.context.machine.word();
        let views: Vec<View> = parts.iter().map(|p| self.fine(p.input)).collect();
        let row = i64::from(to.width) * i64::from(to.channels);
        let staged_input = views.iter().any(|v| v.space != Space::Cache);
        let budget = self.piece_space();
        // Half for the result, half for operands, where both are staged.
        let share = if staged_input { budget / 2 } else { budget };
        let need = |rows: Range<u32>| staged_bytes(to, rows, word);
        let height = slice_rows(0..to.rows, share, need).ok_or(Shortage(Memory::Cache))?;
        for rows in slices(0..to.rows, height) {
            let output = self.stage_out(to, rows.clone());
            if let Some(op) = fill {
                self.fill(&output, rows.clone(), op);
            }
            let range = i64::from(rows.start) * row..i64::from(rows.end) * row;
            let room = budget - staged_bytes(to, rows.clone(), word).min(budget);
            for (part, view) in parts.iter().zip(&views) {
                let mut pieces = Vec::new();
                part.within(&range, &mut pieces);
                for piece in pieces {
                    self.copy(&piece, view, &output, room)?;
                }
            }
            self.store(to, &output, rows, alone);
        }
        Ok(())
    }

    /// One copy, bisected until the rows it reads fit `room`.
    pub(super) fn copy(&mut self, part: &Part, from: &View, to: &View, room: u64) -> Result<(), Shortage> {
        let (machine, word) = (self.context.machine, self.context.machine.word());
        let rows = part.input_rows(from);
        if staged_bytes(from, rows.clone(), word) > room {
            let halves = part.halves().ok_or(Shortage(Memory::Cache))?;
            return halves.iter().try_for_each(|half| self.copy(half, from, to, room));
        }
        let input = self.stage_in(from, rows);
        let mut loops: Vec<Loop> = Vec::new();
        for &(extent, i, o) in part.loops.iter().filter(|l| l.0 > 1) {
            match loops.last_mut() {
                Some(last) if last.1 == i * i64::from(extent) && last.2 == o * i64::from(extent) => {
                    *last = (last.0 * extent, i, o);
                }
                _ => loops.push((extent, i, o)),
            }
        }
        if loops.len() < 2 {
            // An outer loop to cut by: one long run becomes rows of it.
            let (extent, i, o) = loops.pop().unwrap_or((1, 1, 1));
            let run = to.width * to.channels;
            if extent > run && extent % run == 0 {
                loops.push((extent / run, i * i64::from(run), o * i64::from(run)));
                loops.push((run, i, o));
            } else {
                loops.extend([(1, 1, 1), (extent, i, o)]);
            }
        }
        let op = VectorOp::Move {
            dims: loops.iter().map(|l| l.0).collect(),
            input_strides: loops.iter().map(|l| l.1).collect(),
            input_offset: part.from,
            output_strides: loops.iter().map(|l| l.2).collect(),
            output_offset: part.to,
            rescale: part.rescale,
        };
        let descriptor = self.descriptor(Descriptor::Vector(op.clone()));
        let mut vector = Vector {
            descriptor,
            inputs: SmallVec::from_iter([input]),
            output: *to,
            first_row: 0,
            rows: loops[0].0,
            parameters: 0,
        };
        let cycles = timing::vector(&vector, &op, machine).cycles;
        let piece = self.rows_per_piece(loops[0].0, cycles, machine.ewp.start);
        for range in self.pieces(0..loops[0].0, loops[0].0, piece) {
            (vector.first_row, vector.rows) = (range.start, range.end - range.start);
            self.instruction(Work::Vector(vector.clone()), [None; 3]);
        }
        Ok(())
    }

    fn fill(&mut self, to: &View, rows: Range<u32>, op: &VectorOp) {
        let descriptor = self.descriptor(Descriptor::Vector(op.clone()));
        let vector = Vector {
            descriptor,
            inputs: SmallVec::new(),
            output: narrowed(to, rows.clone(), self.context.machine.word()),
            first_row: rows.start,
            rows: rows.end - rows.start,
            parameters: 0,
        };
        self.instruction(Work::Vector(vector), [None; 3]);
    }
}

/// The part of a block that holds `count` channels from `start` on.
fn shared(block: &View, start: usize, count: usize) -> Option<View> {
    let origin = block.origin[1];
    let first = origin.max(start as u32);
    let end = (origin + block.channels).min((start + count) as u32);
    (first < end).then(|| channels_of(block, first - origin, end - first))
}

/// Steps of a dense row-major array.
fn strides(shape: &[usize]) -> Vec<i64> {
    let mut steps = vec![1i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        steps[axis - 1] = steps[axis] * shape[axis] as i64;
    }
    steps
}

/// The parts of a padding: along every axis the cells before, inside and after.
fn padding(input: TensorId, shape: &[usize], before: &[u32], after: &[u32], mode: &PadMode) -> Vec<Part> {
    let out: Vec<usize> = (0..shape.len()).map(|i| shape[i] + (before[i] + after[i]) as usize).collect();
    let (from, to) = (strides(shape), strides(&out));
    // Per axis: (extent, first input index, input step, first output index).
    let segments = |axis: usize| -> Vec<(u32, i64, i64, i64)> {
        let (n, b, a) = (shape[axis] as i64, before[axis], after[axis]);
        let inside = (n as u32, 0, 1, i64::from(b));
        let end = i64::from(b) + n;
        let sides = match mode {
            PadMode::Constant(_) | PadMode::Value(_) => vec![inside],
            PadMode::Edge => vec![(b, 0, 0, 0), inside, (a, n - 1, 0, end)],
            PadMode::Reflect => vec![(b, i64::from(b), -1, 0), inside, (a, n - 2, -1, end)],
        };
        sides.into_iter().filter(|s| s.0 > 0).collect()
    };
    let mut parts = vec![Part { input, loops: Vec::new(), from: 0, to: 0, rescale: None }];
    for axis in 0..shape.len() {
        let choices = segments(axis);
        let extended = parts.iter().flat_map(|part| {
            choices.iter().map(|&(extent, first, step, place)| {
                let mut part = part.clone();
                part.from += first * from[axis];
                part.to += place * to[axis];
                part.loops.push((extent, step * from[axis], to[axis]));
                part
            })
        });
        parts = extended.collect();
    }
    parts
}
