//! Reductions: the whole operand at once where it fits, else stretches of it, one after the other, with running results.
//!
//! A stretch is a box that is contiguous row-major: single indices of the leading axes, a range of one, all of the rest.
//!
//! ```text
//!  [4, 6, 100] over axes 0 and 2, of which [1, 3, 100] fits:     kept 0..3:  (0, 0..3) (1, 0..3) (2, 0..3) (3, 0..3)
//!                                                                kept 3..6:  (0, 3..6) ...
//! ```
//! Those of the same kept elements follow each other, so that every sum is made in row-major order and one buffer of running
//! results is enough.

use std::ops::Range;

use smallvec::SmallVec;
use tpuflow_ir::Arithmetic;
use tpuflow_ir::isa::{FloatFunction, Vector, VectorOp};
use tpuflow_ir::op::FloatReduction;
use tpuflow_ir::{DType, Descriptor, ReduceKind, Requant, Space, TensorId, View, Work};

use super::movement::Part;
use super::pool::channels_of;
use super::vector::float;
use super::{Lowering, Shortage, refine, scaling, staged, staged_bytes};
use crate::options::granularity::TileGranularity;
use crate::virtual_program::{Content, Memory};

/// A contiguous box of the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    /// First element.
    start: usize,
    /// Axis it has a range of; it has all of the following ones.
    axis: usize,
    /// Extent of the range.
    extent: usize,
    /// First kept element and how many.
    kept: [usize; 2],
    /// Terms of each kept element before this stretch.
    before: usize,
}

impl Stretch {
    fn elements(&self, shape: &[usize]) -> usize {
        self.extent * shape[self.axis + 1..].iter().product::<usize>()
    }
}

/// Operand and kind of a reduction.
struct ReductionOf<'a> {
    shape: &'a [usize],
    axes: &'a [u32],
    kind: ReduceKind,
    input_zero: i32,
    requant: &'a Arithmetic<Requant, FloatReduction>,
}

impl ReductionOf<'_> {
    /// The operator for `extent` of an axis and all of those behind it; `partial`: it leaves running results.
    fn of(&self, axis: usize, extent: usize, partial: bool) -> VectorOp {
        let mut shape: Vec<u32> = self.shape[axis..].iter().map(|&n| n as u32).collect();
        shape[0] = extent as u32;
        let axes = self.axes.iter().filter_map(|a| a.checked_sub(axis as u32)).collect();
        let (kind, input_zero) = (self.kind, self.input_zero);
        match self.requant {
            Arithmetic::Fixed(requant) => {
                VectorOp::Reduce { kind, shape, axes, input_zero, scaling: scaling(requant), partial }
            }
            Arithmetic::Float(r) => {
                float(FloatFunction::Reduce { kind, shape, axes, divisor: r.divisor, partial }, &r.finish)
            }
        }
    }
}

/// `shape` cut into stretches of at most `most` elements, ordered by kept element.
fn stretches(shape: &[usize], axes: &[u32], most: usize) -> Option<Vec<Stretch>> {
    let inner = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    let axis = (0..shape.len()).find(|&axis| inner(axis) <= most)?;
    let step = (most / inner(axis).max(1)).clamp(1, shape[axis]);
    let among = |reduced: bool, from: usize| -> usize {
        (from..shape.len()).filter(|&a| axes.contains(&(a as u32)) == reduced).map(|a| shape[a]).product()
    };
    let mut found = Vec::new();
    for lead in 0..shape[..axis].iter().product::<usize>() {
        for first in (0..shape[axis]).step_by(step) {
            let extent = step.min(shape[axis] - first);
            // Row-major number of the first element among kept and among reduced indices.
            let (mut kept, mut before, mut rest) = (0, 0, lead);
            for a in (0..=axis).rev() {
                let index = if a == axis {
                    first
                } else {
                    let index = rest % shape[a];
                    rest /= shape[a];
                    index
                };
                if axes.contains(&(a as u32)) {
                    before += index * among(true, a + 1);
                } else {
                    kept += index * among(false, a + 1);
                }
            }
            let own = if axes.contains(&(axis as u32)) { 1 } else { extent };
            found.push(Stretch {
                start: (lead * shape[axis] + first) * inner(axis),
                axis,
                extent,
                kept: [kept, own * among(false, axis + 1)],
                before,
            });
        }
    }
    found.sort_by_key(|s| (s.kept[0], s.before));
    Some(found)
}

/// Elements `start .. start + count` of a tensor as a tensor of their own: whole rows, pixels of a row, or channels of a
/// pixel.
pub(super) fn cut_out(view: &View, start: usize, count: usize, word: usize) -> Option<View> {
    let (channels, width) = (view.channels as usize, view.width as usize);
    let (pixel, channel) = (start / channels, start % channels);
    let (row, column) = ((pixel / width) as u32, (pixel % width) as u32);
    let origin = [view.origin[0] + pixel as u32, view.origin[1] + channel as u32];
    let whole = channel == 0 && count.is_multiple_of(channels);
    let pixels = count / channels;
    let (rows, width, channels) = if whole && column == 0 && pixels.is_multiple_of(width) {
        ((pixels / width) as u32, view.width, view.channels)
    } else if whole && column as usize + pixels <= width {
        (1, pixels as u32, view.channels)
    } else if channel + count <= channels {
        (1, 1, count as u32)
    } else {
        return None;
    };
    Some(View {
        address: view.row_address(row, word) + u64::from(column) * u64::from(view.pixel_bytes),
        rows,
        height: rows,
        width,
        channels,
        channel_offset: view.channel_offset + channel as u32 * view.dtype.bytes() as u32,
        first_row: 0,
        stored_rows: rows,
        origin,
        ..*view
    })
}

impl Lowering<'_> {
    pub(super) fn reduction(
        &mut self,
        input: TensorId,
        kind: ReduceKind,
        axes: &[u32],
        requant: &Arithmetic<Requant, FloatReduction>,
        output: TensorId,
    ) -> Result<(), Shortage> {
        let [from, to] = [self.operand(input), self.operand(output)];
        let whole = self.context.network.tensor(input).shape.clone();
        let images = self.images(&from, &to, axes, &whole);
        if images == 1 {
            return self.reduction_of([from, to], input, kind, axes, requant, output);
        }
        for image in 0..images {
            let views = [from, to].map(|view| {
                let elements = (view.rows * view.width * view.channels) as usize / images;
                cut_out(&view, image * elements, elements, self.context.machine.word())
            });
            let [Some(from), Some(to)] = views else { return Err(Shortage(Memory::Cache)) };
            // Some channels of several results do not lie side by side.
            let one_pixel = to.rows * to.width == 1 && to.channels == from.channels;
            if !one_pixel || axes.contains(&(whole.len() as u32 - 1)) {
                self.reduction_of([from, to], input, kind, axes, requant, output)?;
                continue;
            }
            for part in self.channel_parts(&from) {
                let [from, to] = [from, to].map(|view| channels_of(&view, part.start, part.len() as u32));
                self.reduction_of([from, to], input, kind, axes, requant, output)?;
            }
        }
        Ok(())
    }

    /// The channels of an image of a batch in parts: the array makes several images together, column tile by column tile. A
    /// single one is taken row by row instead.
    fn channel_parts(&self, image: &View) -> Vec<Range<u32>> {
        let ewp = &self.context.machine.ewp;
        let elements = u64::from(image.rows * image.width) * u64::from(image.channels);
        let cycles = elements / u64::from(ewp.lanes) * ewp.reduce;
        let pieces = self.granularity().pieces(cycles, 2 * ewp.start);
        let step = image.channels.div_ceil(pieces as u32).next_multiple_of(self.context.machine.array.columns);
        let part = |first: u32| first..(first + step).min(image.channels);
        (0..image.channels).step_by(step as usize).map(part).collect()
    }

    /// In how many parts to take a batch in the cache whose images keep results of their own: each can begin as soon as its
    /// image is there.
    fn images(&self, from: &View, to: &View, axes: &[u32], shape: &[usize]) -> usize {
        let in_cache = from.space == Space::Cache && to.space == Space::Cache;
        let apart = |view: &View| view.rows.is_multiple_of(shape[0] as u32) && view.stored_rows == view.rows;
        if self.granularity() == TileGranularity::Coarse || axes.contains(&0) || !in_cache || !apart(from) || !apart(to)
        {
            return 1;
        }
        shape[0]
    }

    /// A reduction of a view of `input`, of whole images, and of all or, if they are kept, some channels, to one of `output`.
    pub(super) fn reduction_of(
        &mut self,
        [from, to]: [View; 2],
        input: TensorId,
        kind: ReduceKind,
        axes: &[u32],
        requant: &Arithmetic<Requant, FloatReduction>,
        output: TensorId,
    ) -> Result<(), Shortage> {
        let (network, word) = (&self.context.network, self.context.machine.word());
        let (mut shape, input_zero) = (network.tensor(input).shape.clone(), network.tensor(input).zero_point());
        let whole_pixels = shape.last().is_none_or(|&channels| channels == from.channels as usize);
        if let [images, pixels @ .., channels] = &mut shape[..] {
            *images = (from.rows * from.width) as usize / pixels.iter().product::<usize>();
            *channels = from.channels as usize;
        }
        let whole = staged_bytes(&from, 0..from.rows, word) + staged_bytes(&to, 0..to.rows, word);
        let reduction = ReductionOf { shape: &shape, axes, kind, input_zero, requant };
        let pieces = self.stretches_of_image(&from, &shape, axes);
        if whole <= self.free && pieces <= 1 {
            let (local, result) = (self.stage_in(&from, 0..from.rows), self.stage_out(&to, 0..to.rows));
            self.reduce(reduction.of(0, shape[0], false), SmallVec::from_iter([local]), result);
            self.store(&to, &result, 0..to.rows, whole_pixels && self.alone(output));
            return Ok(());
        }
        if from.space == Space::Cache && pieces <= 1 {
            return Err(Shortage(Memory::Cache));
        }
        let mut fine = [from];
        refine(&mut fine, word);
        let [fine] = fine;
        let list = self.fitting_stretches([&fine, &to], &reduction, pieces)?;
        self.reduce_stretches(&list, [fine, to], &reduction, output)
    }

    /// The stretches of an operand in at least so many pieces that each fits in, with running results beside it.
    fn fitting_stretches(
        &self,
        [fine, to]: [&View; 2],
        reduction: &ReductionOf<'_>,
        pieces: usize,
    ) -> Result<Vec<Stretch>, Shortage> {
        let (shape, word) = (reduction.shape, self.context.machine.word());
        let running = VectorOp::running(reduction.kind, fine.dtype);
        // Operand, running results twice, result, and again what lies about while it is replaced.
        let needs = |stretch: &Stretch| -> Option<u64> {
            let view = cut_out(fine, stretch.start, stretch.elements(shape), word)?;
            let part = cut_out(to, stretch.kept[0], stretch.kept[1], word)?;
            let sums = View::whole(&[stretch.kept[1]], running, word, Space::Cache, 0).bytes(word);
            Some(staged_bytes(&view, 0..view.rows, word) + 2 * sums + staged(&part, 0..part.rows, word).bytes(word))
        };
        let budget = self.piece_space();
        let most = (budget / fine.dtype.bytes() as u64) as usize;
        let mut most = most.min(shape.iter().product::<usize>().div_ceil(pieces));
        loop {
            let list = stretches(shape, reduction.axes, most).ok_or(Shortage(Memory::Cache))?;
            if list.iter().all(|stretch| needs(stretch).is_some_and(|bytes| bytes <= budget)) {
                return Ok(list);
            }
            most = list.iter().map(|s| s.elements(shape)).max().unwrap_or(1).min(most) / 2;
        }
    }

    /// One stretch after the other, each with the running results of those before it.
    fn reduce_stretches(
        &mut self,
        list: &[Stretch],
        [fine, to]: [View; 2],
        reduction: &ReductionOf<'_>,
        output: TensorId,
    ) -> Result<(), Shortage> {
        let ReductionOf { shape, axes, kind, .. } = *reduction;
        let word = self.context.machine.word();
        let results = (to.rows * to.width * to.channels) as usize;
        let running = VectorOp::running(kind, fine.dtype);
        let terms: usize = axes.iter().map(|&axis| shape[axis as usize]).product();
        let mut sums: Option<View> = None;
        for stretch in list {
            let [first, count] = stretch.kept;
            let view = cut_out(&fine, stretch.start, stretch.elements(shape), word).ok_or(Shortage(Memory::Cache))?;
            let local = self.stage_in(&view, 0..view.rows);
            let last = stretch.before + terms_of(stretch, shape, axes) == terms;
            let part = cut_out(&to, first, count, word).ok_or(Shortage(Memory::Cache))?;
            let at_once = count == results && to.space == Space::Cache;
            let result = if last && at_once {
                to
            } else if last {
                self.stage(&View { space: Space::Ddr(0), ..part }, 0..part.rows)
            } else {
                self.running(count, running)
            };
            let inputs = std::iter::once(local).chain(sums.take().filter(|_| stretch.before > 0)).collect();
            self.reduce(reduction.of(stretch.axis, stretch.extent, !last), inputs, result);
            if !last {
                sums = Some(result);
            } else if at_once {
                continue;
            } else if to.space == Space::Cache {
                let loops = vec![(count as u32, 1, 1)];
                let part = Part { input: output, loops, from: 0, to: first as i64, rescale: None };
                self.copy(&part, &View { rows: result.rows, ..result }, &to, u64::MAX)?;
            } else {
                self.store(&part, &result, 0..part.rows, false);
            }
        }
        Ok(())
    }

    /// In how many stretches to take an image in the cache that is reduced to one pixel, so that this can begin with its first
    /// rows.
    fn stretches_of_image(&self, from: &View, shape: &[usize], axes: &[u32]) -> usize {
        let machine = self.context.machine;
        let to_pixel = (0..shape.len()).all(|axis| {
            let last = axis + 1 == shape.len();
            axes.contains(&(axis as u32)) != last || (shape[axis] == 1 && !last)
        });
        if self.granularity() == TileGranularity::Coarse || from.space != Space::Cache || !to_pixel {
            return 1;
        }
        let cycles = shape.iter().product::<usize>() as u64 / u64::from(machine.ewp.lanes) * machine.ewp.reduce;
        // Each waits for the running results of the one before it.
        let most = cycles / (2 * (machine.ewp.start + machine.ewp.latency)).max(1);
        self.granularity().pieces(cycles, 2 * machine.ewp.start).min(most.max(1)).min(self.context.parameters.pieces())
            as usize
    }

    fn running(&mut self, count: usize, dtype: DType) -> View {
        let word = self.context.machine.word();
        let view = View::whole(&[count], dtype, word, Space::Cache, 0);
        let name = self.context.network.layer_name(self.index).to_owned();
        let buffer = self.code.buffer(name, view.bytes(word), Memory::Cache, Content::Computed);
        View { address: buffer.at(0), ..view }
    }

    fn reduce(&mut self, op: VectorOp, inputs: SmallVec<[View; 2]>, output: View) {
        let descriptor = self.descriptor(Descriptor::Vector(op));
        let vector = Vector { descriptor, inputs, output, first_row: 0, rows: output.rows, parameters: 0 };
        self.instruction(Work::Vector(vector), [None; 3]);
    }
}

/// Terms a stretch adds to each of its kept elements.
fn terms_of(stretch: &Stretch, shape: &[usize], axes: &[u32]) -> usize {
    let reduced = |axis: usize| axes.contains(&(axis as u32));
    let first = if reduced(stretch.axis) { stretch.extent } else { 1 };
    first * (stretch.axis + 1..shape.len()).filter(|&a| reduced(a)).map(|a| shape[a]).product::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_of_the_module() {
        let found = stretches(&[4, 6, 100], &[0, 2], 300).expect("fits");
        let seen: Vec<_> = found.iter().take(5).map(|s| (s.start, s.extent, s.kept, s.before)).collect();
        let expected = [
            (0, 3, [0, 3], 0),
            (600, 3, [0, 3], 100),
            (1200, 3, [0, 3], 200),
            (1800, 3, [0, 3], 300),
            (300, 3, [3, 3], 0),
        ];
        assert_eq!(seen, expected);
    }
}
