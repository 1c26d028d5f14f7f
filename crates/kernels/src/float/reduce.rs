//! Reductions of floats over axes.
//!
//! Source: docs/arithmetic.md, section 16.

use rayon::prelude::*;
use tpuflow_ir::ReduceKind;

use super::finish::{maximum, minimum};
use super::{Finisher, Float};
use crate::reduce::Reduction;

/// Kept elements a thread takes at a time.
const LANES: usize = 64;

/// Reduces `x` in the given arrangement; `y` has one element per kept position. Terms are taken in row-major order; sums start
/// at +0 and are divided by `divisor` at the end, extrema are not.
///
/// # Panics
/// When `y` has another length.
pub fn reduce<Y: Float>(
    reduction: &Reduction,
    kind: ReduceKind,
    divisor: f32,
    finisher: &Finisher,
    x: &[f32],
    y: &mut [Y],
) {
    assert_eq!(y.len(), reduction.kept.len(), "one result per kept element");
    let start = match kind {
        ReduceKind::Max => f32::NEG_INFINITY,
        ReduceKind::Min => f32::INFINITY,
        _ => 0.0,
    };
    let step = |value: f32, x: f32| match kind {
        ReduceKind::Sum => value + x,
        ReduceKind::SumAbs => value + x.abs(),
        ReduceKind::SumSquare | ReduceKind::Norm => value + x * x,
        ReduceKind::Max => maximum(value, x),
        ReduceKind::Min => minimum(value, x),
    };
    let end = |value: f32| match kind {
        ReduceKind::Max | ReduceKind::Min => value,
        ReduceKind::Norm => value.sqrt() / divisor,
        _ => value / divisor,
    };
    y.par_chunks_mut(LANES).zip(reduction.kept.par_chunks(LANES)).for_each(|(y, kept)| {
        // Side by side: neighbours that are kept usually lie side by side in `x`, too.
        let mut values = [start; LANES];
        for at in &reduction.reduced {
            for (value, base) in values.iter_mut().zip(kept) {
                *value = step(*value, x[base + at]);
            }
        }
        values.iter_mut().for_each(|value| *value = end(*value));
        finisher.apply(&values[..y.len()], y);
    });
}
