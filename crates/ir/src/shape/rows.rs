//! Operators over rows, and over some axes.

use super::{Output, broadcast, clamp, factor, kind, positive, requant, single};
use crate::error::ShapeError;
use crate::op::{Exponentials, FloatNorm, FloatReduction, Measure, Norm, ReduceKind};
use crate::{Arithmetic, DType, Requant, TableEntry, Tensor};

/// Shares of exponentials along rows, some of them masked.
pub(super) fn softmax(
    x: &Tensor,
    [mask, statistics]: [Option<&Tensor>; 2],
    exponentials: &Arithmetic<Exponentials>,
) -> Result<(usize, Output), ShapeError> {
    let output = kind(exponentials, &[x])?;
    match exponentials {
        Arithmetic::Float(finish) => finish.check()?,
        Arithmetic::Fixed(fixed) => {
            factor(fixed.multiplier, fixed.shift)?;
            clamp(fixed.lo, fixed.hi)?;
        }
    }
    fitting_mask(mask, x)?;
    if let Some(statistics) = statistics {
        fitting_statistics(statistics, x)?;
        if exponentials.fixed().is_none() {
            return Err(ShapeError::Statistics);
        }
    }
    Ok((x.elements(), output))
}

/// Largest codes and sums of exponentials of parts of rows.
pub(super) fn softmax_statistics(
    x: &Tensor,
    [mask, earlier]: [Option<&Tensor>; 2],
    measure: Measure,
) -> Result<(usize, Output), ShapeError> {
    Output::Codes.check(x)?;
    fitting_mask(mask, x)?;
    match earlier {
        Some(earlier) => fitting_statistics(earlier, x)?,
        None if measure == Measure::Maximum => {}
        None => return Err(ShapeError::Statistics),
    }
    let n = x.shape.last().copied().unwrap_or(0).max(1);
    Ok((x.elements() / n * 2, Output::Exactly(DType::I64)))
}

fn fitting_mask(mask: Option<&Tensor>, x: &Tensor) -> Result<(), ShapeError> {
    match mask {
        Some(mask) if mask.dtype != DType::I8 || broadcast(&mask.shape, &x.shape).as_deref() != Some(&x.shape[..]) => {
            Err(ShapeError::Mask { mask: mask.shape.clone(), input: x.shape.clone() })
        }
        _ => Ok(()),
    }
}

/// Two numbers for every row.
fn fitting_statistics(statistics: &Tensor, x: &Tensor) -> Result<(), ShapeError> {
    let fits = match (&statistics.shape[..], &x.shape[..]) {
        ([rows @ .., 2], [own @ .., _]) => rows == own,
        _ => false,
    };
    if fits && statistics.dtype == DType::I64 { Ok(()) } else { Err(ShapeError::Statistics) }
}

/// Entries of a constant table by index.
pub(super) fn embedding(table: &Tensor, indices: &Tensor, entry: TableEntry) -> Result<(usize, Output), ShapeError> {
    let &[rows, columns] = &table.shape[..] else { return Err(ShapeError::Embedding) };
    if table.constant.is_none() || indices.dtype != DType::I32 {
        return Err(ShapeError::Embedding);
    }
    let possible = match (entry, &table.packed) {
        (TableEntry::Row, None) | (TableEntry::Column, Some(_)) => true,
        (TableEntry::Rows(each), Some(packed)) => {
            each > 0 && each.is_multiple_of(packed.block.max(1)) && rows.is_multiple_of(each as usize)
        }
        _ => false,
    };
    if !possible {
        return Err(ShapeError::Entry { entry, shape: table.shape.clone() });
    }
    Ok((indices.elements() * entry.count([rows, columns])[1], Output::Exactly(table.dtype)))
}

/// Normalised rows by a scale and an offset a channel.
pub(super) fn layer_norm(
    [x, g, b]: [&Tensor; 3],
    norm: &Arithmetic<Norm, FloatNorm>,
) -> Result<(usize, Output), ShapeError> {
    let output = kind(norm, &[x])?;
    let n = x.shape.last().copied().unwrap_or(1);
    let expected = if norm.float().is_some() { DType::F32 } else { DType::I64 };
    if g.elements() != n || b.elements() != n || b.dtype != expected {
        let (gamma, beta, dtype) = (g.shape.clone(), b.shape.clone(), expected.name());
        return Err(ShapeError::Normalization { gamma, beta, dtype, elements: n });
    }
    match norm {
        Arithmetic::Fixed(norm) => {
            Output::Codes.check(g)?;
            factor(norm.multiplier, norm.shift)?;
            requant(&norm.requant, n)?;
        }
        Arithmetic::Float(norm) => {
            Output::Exactly(DType::F32).check(g)?;
            norm.finish.check()?;
            if single(norm.epsilon, "epsilon")? < 0.0 {
                return Err(ShapeError::NegativeEpsilon(norm.epsilon));
            }
        }
    }
    Ok((x.elements(), output))
}

/// One element for all along some axes.
pub(super) fn reduce(
    x: &Tensor,
    kind: ReduceKind,
    axes: &[u32],
    arithmetic: &Arithmetic<Requant, FloatReduction>,
) -> Result<(usize, Output), ShapeError> {
    let is_of_sums = x.dtype == DType::I64 && kind == ReduceKind::Sum && arithmetic.fixed().is_some();
    let output = if is_of_sums { Output::Codes } else { super::kind(arithmetic, &[x])? };
    match arithmetic {
        Arithmetic::Fixed(r) => requant(r, 1)?,
        Arithmetic::Float(r) => {
            r.finish.check()?;
            positive(r.divisor)?;
        }
    }
    if axes.is_empty() || axes.iter().any(|&a| a as usize >= x.shape.len()) || !axes.is_sorted() {
        return Err(ShapeError::Axes { axes: axes.to_vec(), shape: x.shape.clone() });
    }
    let kept = x.shape.iter().enumerate().filter(|(i, _)| !axes.contains(&(*i as u32)));
    let passes = matches!(kind, ReduceKind::Max | ReduceKind::Min);
    Ok((kept.map(|(_, n)| n).product(), if passes { Output::Exactly(x.dtype) } else { output }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quant;

    #[test]
    fn exponentials_with_a_scale_out_of_range_are_refused() {
        let codes = Tensor {
            packed: None,
            name: "x".to_owned(),
            shape: vec![1, 4],
            dtype: DType::I8,
            quant: Some(Quant { scale: vec![0.5], zero_point: 0 }),
            source: None,
            constant: None,
        };
        let sound =
            Exponentials { coefficient: 1 << 32, multiplier: 32767, shift: 7, zero_point: -128, lo: -128, hi: 127 };
        let refused = |fixed: Exponentials| softmax(&codes, [None, None], &Arithmetic::Fixed(fixed)).is_err();
        assert!(!refused(sound.clone()));
        assert!(refused(Exponentials { shift: 98, ..sound.clone() }));
        assert!(refused(Exponentials { shift: -100, ..sound.clone() }));
        assert!(refused(Exponentials { multiplier: -1, ..sound.clone() }));
        assert!(refused(Exponentials { lo: 128, ..sound }));
    }
}
