//! Reductions over axes, and the position of the largest element.
//!
//! Source: docs/arithmetic.md, "Reduce".

use tpuflow_ir::{ReduceKind, Requant};

use crate::Element;
use crate::requant::requantize;

/// The arrangement of a reduction: the kept elements in order, and for each where its terms lie.
#[derive(Clone, Debug)]
pub struct Reduction {
    pub(crate) kept: Vec<usize>,
    pub(crate) reduced: Vec<usize>,
}

impl Reduction {
    /// Over `axes` of `shape`.
    #[must_use]
    pub fn new(shape: &[usize], axes: &[u32]) -> Self {
        let positions = |is_kept: bool| {
            let mut positions = vec![0];
            let mut stride: usize = shape.iter().product();
            for (axis, &extent) in shape.iter().enumerate() {
                stride /= extent.max(1);
                if axes.contains(&(axis as u32)) != is_kept {
                    positions = positions.iter().flat_map(|p| (0..extent).map(move |i| p + i * stride)).collect();
                }
            }
            positions
        };
        Self { kept: positions(true), reduced: positions(false) }
    }
}

/// `floor(sqrt(value))`.
///
/// # Panics
/// When `value` is negative.
#[must_use]
pub fn isqrt(value: i128) -> i64 {
    value.isqrt() as i64
}

/// Reduces `x` in the given arrangement; `y` has one element per kept position. `max` and `min` keep codes as they are.
///
/// # Panics
/// When `y` has another length.
pub fn reduce<X: Element, Y: Element>(
    reduction: &Reduction,
    kind: ReduceKind,
    zero_point: i32,
    requant: &Requant,
    x: &[X],
    y: &mut [Y],
) {
    let mut results = vec![0; y.len()];
    run(reduction, kind, zero_point, x, &mut results, false);
    for (y, result) in y.iter_mut().zip(results) {
        *y = finish(kind, requant, result);
    }
}

/// Running results of a stretch `x`: sums (or extremes) of its terms and, if there are `earlier` ones in `results`, of those.
///
/// # Panics
/// When `results` does not have one element per kept position.
pub fn run<X: Element>(
    reduction: &Reduction,
    kind: ReduceKind,
    zero_point: i32,
    x: &[X],
    results: &mut [i64],
    earlier: bool,
) {
    assert_eq!(results.len(), reduction.kept.len(), "one result per kept element");
    for (result, base) in results.iter_mut().zip(&reduction.kept) {
        let codes = reduction.reduced.iter().map(|at| x[base + at].widen());
        let terms = codes.clone().map(|code| i64::from(code - zero_point));
        let own = match kind {
            ReduceKind::Max => codes.max().unwrap_or(X::MIN.widen()).into(),
            ReduceKind::Min => codes.min().unwrap_or(X::MIN.widen()).into(),
            ReduceKind::Sum => terms.sum(),
            ReduceKind::SumAbs => terms.map(i64::abs).sum(),
            ReduceKind::SumSquare | ReduceKind::Norm => terms.map(|t| t * t).sum(),
        };
        *result = match kind {
            _ if !earlier => own,
            ReduceKind::Max => own.max(*result),
            ReduceKind::Min => own.min(*result),
            _ => own + *result,
        };
    }
}

/// Sums of sums `x`, and of earlier ones if there are any in `results`.
///
/// # Panics
/// When `results` does not have one element per kept position.
pub fn add(reduction: &Reduction, x: &[i64], results: &mut [i64], earlier: bool) {
    assert_eq!(results.len(), reduction.kept.len(), "one result per kept element");
    for (result, base) in results.iter_mut().zip(&reduction.kept) {
        let own = reduction.reduced.iter().fold(0i64, |sum, at| sum.saturating_add(x[base + at]));
        *result = if earlier { result.saturating_add(own) } else { own };
    }
}

/// The element a running result becomes.
#[must_use]
pub fn finish<Y: Element>(kind: ReduceKind, requant: &Requant, result: i64) -> Y {
    Y::narrow(match kind {
        ReduceKind::Max | ReduceKind::Min => result as i32,
        ReduceKind::Norm => requantize(isqrt(i128::from(result) << 16), requant, 0),
        ReduceKind::Sum | ReduceKind::SumAbs | ReduceKind::SumSquare => requantize(result, requant, 0),
    })
}

/// Index of the largest (smallest) element of each row of `n`; ties go to the first, or the last.
///
/// # Panics
/// When `y` does not have one element per row.
pub fn arg_max<X: Element>(n: usize, largest: bool, select_last: bool, x: &[X], y: &mut [i32]) {
    assert_eq!(x.len(), y.len() * n, "one result per row");
    for (row, y) in x.chunks_exact(n.max(1)).zip(y) {
        let mut best = 0;
        for (i, &code) in row.iter().enumerate() {
            let better = if largest { code > row[best] } else { code < row[best] };
            if better || (select_last && code == row[best]) {
                best = i;
            }
        }
        *y = best as i32;
    }
}
