//! Strided views by axes of their result.

use super::access::AxisAccess;
use super::{LayerPartsError, Span};

/// A loop that stays within an axis of the result.
#[derive(Clone, Copy, Debug)]
struct Loop {
    axis: usize,
    /// Positions along the axis that a step goes on.
    step: usize,
    extent: usize,
    /// Elements of the operand that a step goes on.
    stride: i64,
}

/// A strided view whose loops, cut where axes of the result begin, belong to one axis each; outermost first.
#[derive(Clone, Debug)]
pub(super) struct View {
    loops: Vec<Loop>,
    offset: i64,
    rank: usize,
}

/// Elements behind each of `extents`, and of all: the numbers at which its loops begin anew.
fn borders(extents: &[usize]) -> Vec<usize> {
    (0..=extents.len()).map(|axis| extents[axis..].iter().product()).collect()
}

impl View {
    pub(super) fn new(dims: &[u32], strides: &[i64], offset: i64, result: &[usize]) -> Result<Self, LayerPartsError> {
        let dims: Vec<usize> = dims.iter().map(|&extent| extent as usize).collect();
        let (of_dims, of_axes) = (borders(&dims), borders(result));
        let mut all: Vec<usize> = of_dims.iter().chain(&of_axes).copied().collect();
        all.sort_unstable();
        all.dedup();
        if of_dims[0] != of_axes[0] || all[0] == 0 {
            return Err(LayerPartsError::ViewSize);
        }
        let mut loops = Vec::new();
        for pair in all.windows(2).rev() {
            let (inner, outer) = (pair[0], pair[1]);
            if !outer.is_multiple_of(inner) {
                return Err(LayerPartsError::ViewAcrossAxes);
            }
            // Which loop of each this stretch of numbers lies in: begins below, ends beyond.
            let within = |borders: &[usize]| borders.windows(2).position(|b| b[1] <= inner && outer <= b[0]);
            let (Some(dim), Some(axis)) = (within(&of_dims), within(&of_axes)) else {
                return Err(LayerPartsError::ViewAcrossAxes);
            };
            loops.push(Loop {
                axis,
                step: inner / of_axes[axis + 1],
                extent: outer / inner,
                stride: strides[dim] * (inner / of_dims[dim + 1]) as i64,
            });
        }
        Ok(Self { loops, offset, rank: result.len() })
    }

    fn of_axis(&self, axis: usize) -> impl Iterator<Item = &Loop> {
        self.loops.iter().filter(move |l| l.axis == axis)
    }

    /// Along an axis, the positions that only go together: those within a step of its outermost loop.
    pub(super) fn block(&self, axis: usize) -> usize {
        self.of_axis(axis).map(|l| l.step).max().unwrap_or(1)
    }

    /// How far into the operand a position along an axis reaches.
    fn at(&self, axis: usize, position: usize) -> i64 {
        self.of_axis(axis).map(|l| (position / l.step % l.extent) as i64 * l.stride).sum()
    }

    /// The first and the last element of the operand that a box takes.
    fn ends(&self, span: &[Span]) -> (i64, i64) {
        let mut ends = (self.offset, self.offset);
        for (axis, &(from, to)) in span.iter().enumerate() {
            let reaches = || (from..to).map(|position| self.at(axis, position));
            ends.0 += reaches().min().unwrap_or(0);
            ends.1 += reaches().max().unwrap_or(0);
        }
        ends
    }

    /// Which axis of the operand is cut, and elements of a step along it: the first with more than one position. Others are
    /// taken whole.
    fn rows(shape: &[usize]) -> Option<(usize, i64)> {
        let axis = shape.iter().position(|&extent| extent > 1)?;
        Some((axis, shape[axis + 1..].iter().product::<usize>() as i64))
    }

    /// The accesses of boxes of the result to an operand of this shape.
    pub(super) fn reads<'a>(self, shape: &[usize]) -> Vec<AxisAccess<'a>> {
        let mut reads: Vec<AxisAccess> = shape.iter().map(|_| AxisAccess::All).collect();
        if let Some((axis, row)) = Self::rows(shape) {
            reads[axis] = AxisAccess::Of(Box::new(move |span| {
                let (low, high) = self.ends(span);
                Some((low / row, high / row))
            }));
        }
        reads
    }

    /// Loops, strides and first element of a box, over the stretch `taken` of an operand of this shape.
    pub(super) fn local(&self, span: &[Span], shape: &[usize], taken: &[Span]) -> (Vec<u32>, Vec<i64>, i64) {
        let (mut dims, mut strides) = (Vec::new(), Vec::new());
        for l in &self.loops {
            let (from, to) = span[l.axis];
            let extent = if l.step == self.block(l.axis) { (to - from) / l.step } else { l.extent };
            dims.push(extent as u32);
            strides.push(l.stride);
        }
        if dims.is_empty() {
            (dims, strides) = (vec![1], vec![1]);
        }
        let first: i64 = (0..self.rank).map(|axis| self.at(axis, span[axis].0)).sum();
        let left_out = Self::rows(shape).map_or(0, |(axis, row)| taken[axis].0 as i64 * row);
        (dims, strides, self.offset + first - left_out)
    }
}
