//! Quantisation parameters and the fixed-point multiplier, as `docs/arithmetic.md` defines them.
//!
//! Everything follows ONNX's convention `x = S * (q - Z)`: `S` is stored as float32 and every derived quantity is
//! computed from it in float64.

use serde::{Deserialize, Serialize};

/// Scale and zero point of a tensor: `x = scale * (q - zero_point)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quant {
    /// One scale, or one per index of the channel axis (weights only).
    pub scale: Vec<f32>,
    /// Zero point, common to all channels.
    pub zero_point: i32,
}

/// Requantisation `y = clamp(RNE(x * M * 2^-N) + Z, lo, hi)`: one rounding of the exact product, half to even.
///
/// `multiplier` and `shift` hold one entry, or one per output channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requant {
    /// M, 0..=32767.
    pub multiplier: Vec<i32>,
    /// N, -15..=47.
    pub shift: Vec<i8>,
    /// Z, added after rounding.
    pub zero_point: i32,
    /// Lower clamp, inclusive.
    pub lo: i32,
    /// Upper clamp, inclusive.
    pub hi: i32,
}

impl Requant {
    /// Multiplier and shift of channel `channel`.
    #[must_use]
    pub fn of(&self, channel: usize) -> (i32, i8) {
        if self.multiplier.len() == 1 {
            (self.multiplier[0], self.shift[0])
        } else {
            (self.multiplier[channel], self.shift[channel])
        }
    }
}

/// Largest multiplier the hardware holds.
pub const MULTIPLIER_MAX: i32 = 32767;
/// Smallest shift the hardware holds (a left shift).
pub const SHIFT_MIN: i32 = -15;
/// Largest shift the hardware holds.
pub const SHIFT_MAX: i32 = 47;

/// Approximates a real factor `r > 0` as `M * 2^-N` with `M < 2^bits`.
///
/// N is the largest integer with `r * 2^N <= 2^bits - 1`, capped at `max_shift`; `M = floor(r * 2^N + 0.5)`. An exact power
/// of two collapses to the smallest equal pair. Scaling by powers of two is exact in float64, so no logarithm is taken.
/// Returns `None` where `r` is not a positive finite number or needs a shift below [`SHIFT_MIN`].
///
/// Worked example: `1/9` with 8 bits gives `M = 228`, `N = 11`.
#[must_use]
pub fn approximate(r: f64, bits: u32, max_shift: i32) -> Option<(i32, i8)> {
    if !(r.is_finite() && r > 0.0) {
        return None;
    }
    let top = f64::from((1i32 << bits.min(15)) - 1);
    let mut shift = max_shift.min(SHIFT_MAX);
    while r * 2f64.powi(shift) > top {
        shift -= 1;
        if shift < SHIFT_MIN {
            return None;
        }
    }
    // Adding one half before taking the floor would itself round, just below 1/2.
    let scaled = r * 2f64.powi(shift);
    let mut multiplier = scaled.floor() as i32 + i32::from(scaled.fract() >= 0.5);
    while multiplier > 1 && multiplier % 2 == 0 && multiplier.count_ones() == 1 && shift > 0 {
        multiplier /= 2;
        shift -= 1;
    }
    Some((multiplier, shift as i8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approximate_golden() {
        assert_eq!(approximate(1.0 / 9.0, 8, 31), Some((228, 11)));
        assert_eq!(approximate(0.5, 15, 31), Some((1, 1)));
        assert_eq!(approximate(1.0, 15, 31), Some((1, 0)));
        assert_eq!(approximate(4.0, 15, 31), Some((4, 0)));
        assert_eq!(approximate(1e-12, 15, 31), Some((0, 31)));
        assert_eq!(approximate(0.499_999_999_999_999_94 * 2f64.powi(-31), 15, 31), Some((0, 31)));
        assert_eq!(approximate(f64::NAN, 15, 31), None);
        assert_eq!(approximate(0.0, 15, 31), None);
        assert_eq!(approximate(1e12, 15, 31), None);
    }

    proptest::proptest! {
        #[test]
        fn approximate_is_close(r in 1e-4f64..1e4, bits in 2u32..=15) {
            let (m, n) = approximate(r, bits, 47).expect("in range");
            let value = f64::from(m) * 2f64.powi(-i32::from(n));
            proptest::prop_assert!((value / r - 1.0).abs() <= 1.0 / f64::from((1u32 << bits) - 1));
            proptest::prop_assert!(m < 1 << bits);
        }
    }
}
