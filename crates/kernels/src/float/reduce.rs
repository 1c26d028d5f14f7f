//! Reductions of floats over axes.
//!
//! Source: docs/arithmetic.md, section 16.

use tpuflow_ir::ReduceKind;

use super::finish::{maximum, minimum};
use super::{Finisher, Float};
use crate::parallel;
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
    let mut results = vec![0.0; y.len()];
    run(reduction, kind, x, &mut results, false);
    finish(kind, divisor, finisher, &mut results, y);
}

/// Running results of a stretch `x` and, if there are `earlier` ones in `results`, of what came before it.
///
/// # Panics
/// When `results` does not have one element per kept position.
pub fn run(reduction: &Reduction, kind: ReduceKind, x: &[f32], results: &mut [f32], earlier: bool) {
    assert_eq!(results.len(), reduction.kept.len(), "one result per kept element");
    if !earlier {
        results.fill(match kind {
            ReduceKind::Max => f32::NEG_INFINITY,
            ReduceKind::Min => f32::INFINITY,
            _ => 0.0,
        });
    }
    let step = |value: f32, x: f32| match kind {
        ReduceKind::Sum => value + x,
        ReduceKind::SumAbs => value + x.abs(),
        ReduceKind::SumSquare | ReduceKind::Norm => value + x * x,
        ReduceKind::Max => maximum(value, x),
        ReduceKind::Min => minimum(value, x),
    };
    parallel::chunks(results, LANES, |index, results| {
        let kept = &reduction.kept[index * LANES..];
        // Side by side: neighbours that are kept usually lie side by side in `x`, too.
        for at in &reduction.reduced {
            for (value, base) in results.iter_mut().zip(kept) {
                *value = step(*value, x[base + at]);
            }
        }
    });
}

/// Elements of finished running results, which are used up.
///
/// # Panics
/// When the slices differ in length.
pub fn finish<Y: Float>(kind: ReduceKind, divisor: f32, finisher: &Finisher, results: &mut [f32], y: &mut [Y]) {
    for value in results.iter_mut() {
        *value = match kind {
            ReduceKind::Max | ReduceKind::Min => *value,
            ReduceKind::Norm => value.sqrt() / divisor,
            _ => *value / divisor,
        };
    }
    finisher.apply_all(results, y);
}
