//! Operators that move elements, or lie between neighbours.

use super::{Output, activation, requant};
use crate::error::ShapeError;
use crate::op::LinearTap;
use crate::{PadMode, Requant, Tensor};

/// Operands joined along an axis, some of them rescaled.
pub(super) fn concatenation(
    inputs: &[&Tensor],
    axis: usize,
    requants: &[Option<Requant>],
) -> Result<(usize, Output), ShapeError> {
    let first = *inputs.first().ok_or(ShapeError::NoOperands)?;
    if requants.len() != inputs.len() || axis >= first.shape.len() {
        return Err(ShapeError::ConcatenationAxis { axis, requantizations: requants.len() });
    }
    let mut total = 0;
    let requantized = requants.iter().any(Option::is_some);
    for tensor in inputs {
        let same = tensor.shape.len() == first.shape.len()
            && (0..first.shape.len()).all(|i| i == axis || tensor.shape[i] == first.shape[i]);
        if !same {
            let (first, other) = (first.shape.clone(), tensor.shape.clone());
            return Err(ShapeError::Concatenation { first, other, axis });
        }
        total += tensor.elements();
    }
    for (r, tensor) in requants.iter().zip(inputs) {
        match r {
            Some(r) => {
                Output::Codes.check(tensor)?;
                requant(r, 1)?;
            }
            None if tensor.dtype == first.dtype || requantized => {}
            None => {
                let (one, other) = (first.dtype.name(), tensor.dtype.name());
                return Err(ShapeError::MixedTypes { one, other });
            }
        }
    }
    Ok((total, if requantized { Output::Codes } else { Output::Exactly(first.dtype) }))
}

/// Paddings before and after along every axis.
pub(super) fn pad(x: &Tensor, [before, after]: [&[u32]; 2], mode: PadMode) -> Result<(usize, Output), ShapeError> {
    if before.len() != x.shape.len() || after.len() != x.shape.len() {
        return Err(ShapeError::Paddings { paddings: before.len(), shape: x.shape.clone() });
    }
    let pads = before.iter().zip(after).map(|(b, a)| (*b as usize, *a as usize));
    if matches!((mode, x.dtype.is_float()), (PadMode::Constant(_), true) | (PadMode::Value(_), false)) {
        return Err(ShapeError::Fill { mode, dtype: x.dtype.name() });
    }
    if matches!(mode, PadMode::Reflect) && pads.clone().zip(&x.shape).any(|((b, a), &n)| b >= n || a >= n) {
        return Err(ShapeError::Reflection(x.shape.clone()));
    }
    Ok((pads.zip(&x.shape).map(|((b, a), n)| b + n + a).product(), Output::Exactly(x.dtype)))
}

/// A strided view.
pub(super) fn rearrange(x: &Tensor, dims: &[u32], strides: &[i64], offset: i64) -> Result<(usize, Output), ShapeError> {
    if dims.len() != strides.len() || dims.contains(&0) {
        return Err(ShapeError::Loops { extents: dims.len(), strides: strides.len() });
    }
    let reach = |positive: bool| {
        let steps = dims.iter().zip(strides).filter(|(_, s)| (**s > 0) == positive);
        offset + steps.map(|(d, s)| i64::from(d - 1) * s).sum::<i64>()
    };
    if reach(false) < 0 || reach(true) >= x.elements() as i64 {
        return Err(ShapeError::View { first: reach(false), last: reach(true), shape: x.shape.clone() });
    }
    Ok((dims.iter().map(|&d| d as usize).product(), Output::Exactly(x.dtype)))
}

/// Picks along an axis.
pub(super) fn gather(x: &Tensor, axis: u32, indices: &[u32]) -> Result<(usize, Output), ShapeError> {
    let shape = || x.shape.clone();
    let extent = *x.shape.get(axis as usize).ok_or_else(|| ShapeError::Axis { axis, shape: shape() })?;
    if indices.iter().any(|&i| i as usize >= extent) {
        return Err(ShapeError::Index { axis, shape: shape() });
    }
    Ok((x.elements() / extent.max(1) * indices.len(), Output::Exactly(x.dtype)))
}

/// Lines and columns each between two of the operand.
pub(super) fn resize(x: &Tensor, rows: &[LinearTap], columns: &[LinearTap]) -> Result<(usize, Output), ShapeError> {
    activation(x)?;
    let &[n, h, w, c] = &x.shape[..] else {
        return Err(ShapeError::ImageRank(x.shape.clone()));
    };
    let fits = |taps: &[LinearTap], extent: usize| {
        taps.iter().all(|t| {
            let share = t.weight.single().is_some_and(|w| (0.0..=1.0).contains(&w));
            let steps = x.dtype.is_float() || (t.weight.get() * 2048.0).fract() == 0.0;
            (t.first.max(t.second) as usize) < extent && share && steps
        })
    };
    if !fits(rows, h) || !fits(columns, w) {
        return Err(ShapeError::Taps(x.shape.clone()));
    }
    Ok((n * rows.len() * columns.len() * c, Output::Exactly(x.dtype)))
}

/// Zeros between the pixels of an image.
pub(super) fn insert_zeros(x: &Tensor, stride: [u32; 2]) -> Result<(usize, Output), ShapeError> {
    let &[n, h, w, c] = &x.shape[..] else {
        return Err(ShapeError::ImageRank(x.shape.clone()));
    };
    if stride.contains(&0) || h == 0 || w == 0 {
        return Err(ShapeError::Stride { stride, input: x.shape.clone() });
    }
    Ok((n * ((h - 1) * stride[0] as usize + 1) * ((w - 1) * stride[1] as usize + 1) * c, Output::Exactly(x.dtype)))
}
