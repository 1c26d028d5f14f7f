//! Rounding and requantisation: `clamp(RNE(x * M * 2^-N) + Z, lo, hi)`, one rounding of the exact product.
//!
//! [`mod@reference`] is the formula over 128-bit integers. [`scale`] computes the same rounded product in 64 bits for every value
//! an accumulator may hold (48 bits and a sign), which is what the kernels call.
//!
//! ```text
//! p = x * M = 13, N = 2:   13/4 = 3.25 -> 3        p = 10: 2.5 -> 2 (even)        p = 14: 3.5 -> 4 (even)
//! ```
//! Source: docs/arithmetic.md, "Requantise".

use tpuflow_ir::Requant;

/// Largest magnitude of an accumulator: 48 bits.
pub const ACCUMULATOR_LIMIT: i64 = 1 << 47;

/// The definition, over wide integers.
pub mod reference {
    /// `RNE(p * 2^-n)`; a negative `n` is an exact left shift. `|p| * 2^-n` must fit 126 bits, `n < 127`.
    #[must_use]
    pub fn round_shift(p: i128, n: i32) -> i128 {
        if n <= 0 {
            return p << -n;
        }
        let quotient = p >> n;
        let remainder = p - (quotient << n);
        let half = 1i128 << (n - 1);
        let up = remainder > half || (remainder == half && quotient % 2 != 0);
        quotient + i128::from(up)
    }

    /// `RNE(numerator / denominator)` for a positive denominator below 2^126.
    #[must_use]
    pub fn round_divide(numerator: i128, denominator: i128) -> i128 {
        let quotient = numerator.div_euclid(denominator);
        let twice = 2 * numerator.rem_euclid(denominator);
        let up = twice > denominator || (twice == denominator && quotient % 2 != 0);
        quotient + i128::from(up)
    }

    /// `clamp(RNE(x * M * 2^-N) + Z, lo, hi)`.
    #[must_use]
    pub fn requantize(x: i64, multiplier: i32, shift: i8, zero_point: i32, lo: i32, hi: i32) -> i32 {
        let rounded = round_shift(i128::from(x) * i128::from(multiplier), i32::from(shift));
        (rounded + i128::from(zero_point)).clamp(i128::from(lo), i128::from(hi)) as i32
    }
}

/// `RNE(x * multiplier * 2^-shift)` for `|x| <= 2^47`, `|multiplier| <= 32767`, shift -15..=62.
///
/// For negative shifts a product of 2^46 or more saturates there: it lies beyond every clamp of 32 bits either way.
#[inline(always)]
#[must_use]
pub fn scale(x: i64, multiplier: i32, shift: i8) -> i64 {
    debug_assert!(x.abs() <= ACCUMULATOR_LIMIT, "accumulator {x} exceeds 48 bits");
    let p = x * i64::from(multiplier);
    if shift <= 0 { p.clamp(-(1 << 46), 1 << 46) << -shift } else { round_shift(p, u32::from(shift.cast_unsigned())) }
}

/// `RNE(p * 2^-n)` for `|p| < 2^62`, `1 <= n <= 62`: adding half less one, plus the quotient's parity, carries exactly when
/// the remainder exceeds half, or equals it and the quotient is odd.
#[inline(always)]
#[must_use]
pub fn round_shift(p: i64, n: u32) -> i64 {
    (p + ((1i64 << (n - 1)) - 1) + ((p >> n) & 1)) >> n
}

/// `clamp(RNE(x * M * 2^-N) + Z, lo, hi)` with multiplier and shift of `channel`, for `|x| <= 2^47`.
#[inline(always)]
#[must_use]
pub fn requantize(x: i64, requant: &Requant, channel: usize) -> i32 {
    let (multiplier, shift) = requant.of(channel);
    finish(scale(x, multiplier, shift), requant)
}

/// Adds the zero point and clamps.
#[inline(always)]
#[must_use]
pub fn finish(rounded: i64, requant: &Requant) -> i32 {
    (rounded + i64::from(requant.zero_point)).clamp(i64::from(requant.lo), i64::from(requant.hi)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_go_to_even() {
        for (x, expected) in [(1, 0), (-1, 0), (3, 2), (-3, -2), (5, 2), (-5, -2), (7, 4), (-7, -4)] {
            assert_eq!(reference::requantize(x, 1, 1, 0, -100, 100), expected, "{x}/2");
            assert_eq!(scale(x, 1, 1), i64::from(expected), "{x}/2");
        }
    }

    #[test]
    fn division_rounds_half_to_even() {
        for (p, q, expected) in [(5, 2, 2), (7, 2, 4), (-5, 2, -2), (-7, 2, -4), (7, 3, 2), (8, 3, 3), (-8, 3, -3)] {
            assert_eq!(reference::round_divide(p, q), expected, "{p}/{q}");
        }
    }

    /// Values around powers of two and the extremes are drawn as often as all others together.
    fn accumulator() -> impl Strategy<Value = i64> {
        prop_oneof![
            -ACCUMULATOR_LIMIT..=ACCUMULATOR_LIMIT,
            (0u32..=47, -2i64..=2, prop::bool::ANY).prop_map(|(bit, step, negative)| {
                let magnitude = ((1i64 << bit) + step).clamp(-ACCUMULATOR_LIMIT, ACCUMULATOR_LIMIT);
                if negative { -magnitude } else { magnitude }
            })
        ]
    }

    proptest! {
        #[test]
        fn scale_is_the_definition(
            x in accumulator(), multiplier in -32767i32..=32767, shift in -15i8..=47,
            zero_point in -32768i32..=32767, lo in -32768i32..=0, hi in 0i32..=32767,
        ) {
            let requant = Requant { multiplier: vec![multiplier], shift: vec![shift], zero_point, lo, hi };
            prop_assert_eq!(
                requantize(x, &requant, 0),
                reference::requantize(x, multiplier, shift, zero_point, lo, hi)
            );
        }
    }
}
