//! Functions of one or two float elements, and the way between floats and codes.
//!
//! Source: docs/arithmetic.md, section 16.

use tpuflow_ir::BinaryKind;

use super::finish::{maximum, minimum};
use super::{Finisher, Float};
use crate::buffers::PIECE;
use crate::elementwise::Broadcast;
use crate::parallel;

/// The float32 result for one pair.
///
/// # Panics
/// For a comparison, which has no float32 result.
#[inline(always)]
#[must_use]
pub fn combine(kind: BinaryKind, a: f32, b: f32) -> f32 {
    match kind {
        BinaryKind::Add => a + b,
        BinaryKind::Sub => a - b,
        BinaryKind::Mul => a * b,
        BinaryKind::Div => a / b,
        BinaryKind::Max => maximum(a, b),
        BinaryKind::Min => minimum(a, b),
        _ => panic!("a comparison gives a condition"),
    }
}

/// Whether a comparison holds for one pair; with NaN only `!=` does.
///
/// # Panics
/// For anything but a comparison.
#[inline(always)]
#[must_use]
#[expect(clippy::float_cmp, reason = "this is what is asked for")]
pub fn holds(kind: BinaryKind, a: f32, b: f32) -> bool {
    match kind {
        BinaryKind::Less => a < b,
        BinaryKind::LessOrEqual => a <= b,
        BinaryKind::Equal => a == b,
        BinaryKind::NotEqual => a != b,
        _ => panic!("not a comparison"),
    }
}

/// `y = finish(f(a, b))` with broadcasting.
///
/// # Panics
/// When the slices do not have the broadcast sizes, and for comparisons.
pub fn binary<Y: Float>(
    kind: BinaryKind,
    finisher: &Finisher,
    broadcast: &Broadcast,
    a: &[f32],
    b: &[f32],
    y: &mut [Y],
) {
    let mut results = vec![0f32; y.len()];
    // One loop per function, so that none is chosen per element.
    match kind {
        BinaryKind::Add => broadcast.apply(a, b, &mut results, |a, b| combine(BinaryKind::Add, a, b)),
        BinaryKind::Sub => broadcast.apply(a, b, &mut results, |a, b| combine(BinaryKind::Sub, a, b)),
        BinaryKind::Mul => broadcast.apply(a, b, &mut results, |a, b| combine(BinaryKind::Mul, a, b)),
        other => broadcast.apply(a, b, &mut results, |a, b| combine(other, a, b)),
    }
    finisher.apply_all(&results, y);
}

/// `y = 1` where the comparison holds, else 0, with broadcasting.
///
/// # Panics
/// When the slices do not have the broadcast sizes, and for anything but comparisons.
pub fn compare(kind: BinaryKind, broadcast: &Broadcast, a: &[f32], b: &[f32], y: &mut [i8]) {
    broadcast.apply(a, b, y, |a, b| i8::from(holds(kind, a, b)));
}

/// `x` where `x >= 0`, else `x * slope`; slopes are one or one per channel, which runs fastest.
///
/// # Panics
/// When `x` and `y` differ in length.
pub fn p_relu<Y: Float>(slopes: &[f32], finisher: &Finisher, x: &[f32], y: &mut [Y]) {
    assert_eq!(x.len(), y.len(), "one element per result");
    parallel::chunks_with(y, PIECE, Vec::new, |results, index, y| {
        let first = index * PIECE;
        let sloped = |(i, &x): (usize, &f32)| if x >= 0.0 { x } else { x * slopes[(first + i) % slopes.len()] };
        results.clear();
        results.extend(x[first..][..y.len()].iter().enumerate().map(sloped));
        finisher.apply(results, y);
    });
}

/// Codes of floats.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    /// S.
    pub scale: f32,
    /// Z.
    pub zero_point: i32,
    /// Lower clamp.
    pub lo: i32,
    /// Upper clamp.
    pub hi: i32,
}

impl Quantize {
    /// `clamp(RNE(x / S) + Z)`; NaN gives `clamp(Z)`.
    #[inline]
    #[must_use]
    pub fn at(&self, x: f32) -> i32 {
        let steps = (f64::from(x) / f64::from(self.scale)).round_ties_even();
        // The conversion saturates and takes NaN to 0; what it saturates at is beyond every code.
        let code = (steps as i64).saturating_add(self.zero_point.into());
        code.clamp(self.lo.into(), self.hi.into()) as i32
    }
}

/// `S * (x - Z)`: the difference becomes a float32, the product is rounded to one.
#[inline]
#[must_use]
pub fn dequantize(scale: f32, zero_point: i32, x: i32) -> f32 {
    scale * (i64::from(x) - i64::from(zero_point)) as f32
}

/// Index of the largest (smallest) element of each row of `n`; NaN beats every number, ties go to the first, or the last.
///
/// # Panics
/// When `y` does not have one element per row.
pub fn arg_max(n: usize, largest: bool, select_last: bool, x: &[f32], y: &mut [i32]) {
    assert_eq!(x.len(), y.len() * n, "one result per row");
    for (row, y) in x.chunks_exact(n.max(1)).zip(y) {
        let mut best = 0;
        for (i, &value) in row.iter().enumerate().skip(1) {
            let most = row[best];
            let (better, equal) = match (value.is_nan(), most.is_nan()) {
                (true, true) => (false, true),
                (nan, false) if nan => (true, false),
                (_, true) => (false, false),
                _ => (if largest { value > most } else { value < most }, value == most),
            };
            if better || (select_last && equal) {
                best = i;
            }
        }
        *y = best as i32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantize_rounds_half_to_even_and_saturates() {
        let to = Quantize { scale: 0.5, zero_point: -3, lo: -128, hi: 127 };
        for (x, code) in [(0.0, -3), (0.25, -3), (0.75, -1), (-0.25, -3), (1e9, 127), (f32::NEG_INFINITY, -128)] {
            assert_eq!(to.at(x), code, "{x}");
        }
        assert_eq!(to.at(f32::NAN), -3);
        assert_eq!(dequantize(0.5, -3, -128), -62.5);
        assert_eq!(dequantize(1.0, 0, i32::MAX), 2_147_483_648.0);
    }

    #[test]
    fn nan_is_the_extreme_element() {
        let (nan, mut y) = (f32::NAN, [0]);
        for (row, largest, last, expected) in [
            ([1.0, 3.0, 3.0, -0.0], true, false, 1),
            ([1.0, 3.0, 3.0, -0.0], true, true, 2),
            ([0.0, -0.0, 3.0, 1.0], false, true, 1),
            ([1.0, nan, 3.0, nan], true, false, 1),
            ([1.0, nan, 3.0, nan], false, true, 3),
        ] {
            arg_max(4, largest, last, &row, &mut y);
            assert_eq!(y, [expected], "{row:?}");
        }
    }
}
