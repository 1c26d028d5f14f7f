//! Strided views in part, and slices.

use tpuflow_ir::{Op, TensorId};

use super::part::{Part, reshaped};
use super::region::{Region, steps};
use crate::error::TilingError;

/// A loop of a strided view that stays within an axis of the result.
pub(crate) struct Loop {
    pub axis: usize,
    pub extent: usize,
    pub stride: i64,
}

/// A part of a strided view: where its loops can be told apart by axes of the result, the loops of the part. Axes made of
/// several loops (pixels doubled, say) are cut where the outermost of them steps.
pub(super) fn rearranged(
    input: TensorId,
    shape: &[usize],
    (dims, strides, offset): (&[u32], &[i64], i64),
    result: &[usize],
    wanted: &Region,
) -> Result<Part, TilingError> {
    let loops = by_axis(dims, strides, result)?;
    let mut region = wanted.clone();
    let (mut extents, mut steps_taken, mut offset) = (Vec::new(), Vec::new(), offset);
    for axis in 0..result.len() {
        let own: Vec<&Loop> = loops.iter().filter(|l| l.axis == axis).collect();
        let Some((outer, inner)) = own.split_first() else { continue };
        let unit: usize = inner.iter().map(|l| l.extent).product();
        let (from, to) = (wanted.0[axis].0 / unit, wanted.0[axis].1.div_ceil(unit));
        region.0[axis] = (from * unit, to * unit);
        offset += from as i64 * outer.stride;
        extents.push(to - from);
        steps_taken.push(outer.stride);
        for l in inner {
            extents.push(l.extent);
            steps_taken.push(l.stride);
        }
    }
    if extents.is_empty() {
        (extents, steps_taken) = (vec![1], vec![1]);
    }
    let operand = reach(shape, &extents, &steps_taken, &mut offset);
    let dims = extents.iter().map(|&extent| extent as u32).collect();
    Ok(Part { op: Op::Rearrange { input, dims, strides: steps_taken, offset }, region, operands: vec![operand] })
}

/// The part of a tensor that the loops read: a range of its first axis that has one, all of the others; `offset` then counts from there.
fn reach(shape: &[usize], extents: &[usize], strides: &[i64], offset: &mut i64) -> Region {
    let whole = Region::whole(shape);
    let Some(axis) = shape.iter().position(|&extent| extent > 1) else { return whole };
    let far = |sign: i64| -> i64 {
        extents.iter().zip(strides).map(|(&n, &s)| (n as i64 - 1) * (s * sign).max(0) * sign).sum()
    };
    let (low, high) = (*offset + far(-1), *offset + far(1));
    let row = steps(shape)[axis];
    let (from, to) = (low / row, high / row + 1);
    *offset -= from * row;
    whole.with(axis, (from as usize, to as usize))
}

/// Loops cut, where need be, so that each belongs to one axis of the result; outermost first.
pub(crate) fn by_axis(dims: &[u32], strides: &[i64], result: &[usize]) -> Result<Vec<Loop>, TilingError> {
    let mut loops = Vec::new();
    let mut axes = result.iter().enumerate().rev().filter(|(_, extent)| **extent > 1);
    let (mut axis, mut left) = (0, 1);
    for (&extent, &stride) in dims.iter().zip(strides).rev() {
        let (mut rest, mut stride) = (extent as usize, stride);
        while rest > 1 {
            if left == 1 {
                let (next, &size) = axes.next().ok_or_else(|| reshaped(result))?;
                (axis, left) = (next, size);
            }
            let extent = rest.min(left);
            if !rest.is_multiple_of(extent) || !left.is_multiple_of(extent) {
                return Err(TilingError::Across);
            }
            loops.push(Loop { axis, extent, stride });
            (rest, left) = (rest / extent, left / extent);
            stride *= extent as i64;
        }
    }
    loops.reverse();
    Ok(loops)
}

/// A box of a dense tensor as an operator.
pub(crate) fn slice(input: TensorId, shape: &[usize], region: &Region) -> Op {
    let strides = steps(shape);
    let offset = region.0.iter().zip(&strides).map(|(range, step)| range.0 as i64 * step).sum();
    let mut dims: Vec<u32> = region.shape().iter().map(|&extent| extent as u32).collect();
    let mut strides = strides;
    if dims.is_empty() {
        (dims, strides) = (vec![1], vec![1]);
    }
    Op::Rearrange { input, dims, strides, offset }
}

/// The bytes of a box of a constant, a run of its last axis at a time.
pub(crate) fn slice_bytes(bytes: &[u8], size: usize, shape: &[usize], region: &Region) -> Vec<u8> {
    let (extents, strides) = (region.shape(), steps(shape));
    let run = extents.last().copied().unwrap_or(1);
    let mut out = Vec::with_capacity(region.elements() * size);
    for first in (0..region.elements()).step_by(run.max(1)) {
        let (mut index, mut element) = (first, 0);
        for ((&extent, &step), range) in extents.iter().zip(&strides).zip(&region.0).rev() {
            element += (range.0 + index % extent) * step as usize;
            index /= extent;
        }
        out.extend_from_slice(&bytes[element * size..][..run * size]);
    }
    out
}
