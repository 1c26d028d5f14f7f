//! Layer and RMS normalisation of rows in integers: exact mean with eight fraction bits, exact sum of squares, integer square
//! root, one rounding to the 24-bit intermediate `t`, then `gamma * t + beta` per channel.
//!
//! ```text
//! m = RNE(2^8 * sum x / n)                D_i = (x_i << 8) - m              (no mean: D_i = (x_i - Z) << 8)
//! V = sum D_i^2 + epsilon                 k even, 2^60 <= V * 2^k < 2^62
//! h = floor(sqrt(V * 2^k))                g = floor(2^61 / h)               1/sqrt(V) = g * 2^(k/2 - 61)
//! t_i = clamp24(RNE(D_i * g * M * 2^-(N + 61 - k/2)))
//! ```
//! Source: docs/arithmetic.md, "Layer normalisation".

use tpuflow_ir::Requant;

use crate::Element;
use crate::parallel;
use crate::requant::reference::{round_divide, round_shift};
use crate::requant::requantize;

/// Fraction bits of the mean.
const FRACTION_BITS: u32 = 8;

/// Most of the normalised intermediate `t`.
const NORMALIZED_MAX: i128 = (1 << 23) - 1;

/// Parameters of a normalisation over rows of `gamma.len()` elements.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Subtract the mean.
    pub center: bool,
    /// Zero point of the input; only read without a mean.
    pub input_zero_point: i32,
    /// Added to the sum of squares, at least 1.
    pub epsilon: u64,
    /// M of `sqrt(n) / S_t`.
    pub multiplier: i32,
    /// N of it.
    pub shift: i8,
    /// Codes of gamma, symmetric.
    pub gamma: Vec<i32>,
    /// Added to `gamma * t`.
    pub beta: Vec<i64>,
    /// Of `gamma * t + beta`.
    pub requant: Requant,
}

/// `1/sqrt(v) = g * 2^-s`, as `(g, s)`: `g` has 31 bits.
#[must_use]
pub fn reciprocal_square_root(v: u128) -> (i64, i32) {
    let v = v.max(1);
    // The even k with 2^60 <= v * 2^k < 2^62.
    let k = (61 - v.ilog2() as i32).div_euclid(2) * 2;
    let normalized = if k >= 0 { v << k } else { v >> -k };
    let h = normalized.isqrt() as i64;
    ((1i64 << 61) / h, 61 - k / 2)
}

impl LayerNorm {
    /// Normalises rows, spread over threads.
    ///
    /// # Panics
    /// When the slices differ in length or are not whole rows.
    pub fn rows<X: Element, Y: Element>(&self, x: &[X], y: &mut [Y]) {
        let n = self.gamma.len();
        assert!(n > 0 && x.len() == y.len() && x.len().is_multiple_of(n), "whole rows of operands and results");
        parallel::chunks(y, n, |index, y| self.row(&x[index * n..][..n], y));
    }

    /// Normalises one row.
    ///
    /// # Panics
    /// When the row, gamma and beta differ in length.
    pub fn row<X: Element, Y: Element>(&self, x: &[X], y: &mut [Y]) {
        let n = self.gamma.len();
        assert!(x.len() == n && y.len() == n && self.beta.len() == n, "one gamma and beta per element");
        let origin = if self.center {
            let sum: i128 = x.iter().map(|x| i128::from(x.widen())).sum();
            round_divide(sum << FRACTION_BITS, n as i128) as i64
        } else {
            i64::from(self.input_zero_point) << FRACTION_BITS
        };
        let deviation = |x: X| (i64::from(x.widen()) << FRACTION_BITS) - origin;
        let squares: u128 = x.iter().map(|&x| u128::from((deviation(x) * deviation(x)).cast_unsigned())).sum();
        let (g, s) = reciprocal_square_root(squares + u128::from(self.epsilon));
        for (i, (&x, y)) in x.iter().zip(y).enumerate() {
            let product = i128::from(deviation(x) * g) * i128::from(self.multiplier);
            let t = round_shift(product, i32::from(self.shift) + s).clamp(-NORMALIZED_MAX - 1, NORMALIZED_MAX) as i64;
            *y = Y::narrow(requantize(i64::from(self.gamma[i]) * t + self.beta[i], &self.requant, i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reciprocal_square_root_has_thirty_bits(bits in 0u32..75, low in any::<u128>()) {
            let v = (1u128 << bits) | (low & ((1 << bits) - 1));
            let (g, s) = reciprocal_square_root(v);
            prop_assert!((1 << 30..=1 << 31).contains(&g));
            let product = g as f64 * 2f64.powi(-s) * (v as f64).sqrt();
            prop_assert!((product - 1.0).abs() < 3e-9, "{v}: {product}");
        }
    }

    /// Counted in arithmetic of any length: square root and reciprocal are both floors.
    #[test]
    fn reciprocal_square_roots_by_hand() {
        for (v, expected) in [
            (0, (1 << 31, 31)),
            (1, (1 << 31, 31)),
            (2, (1_518_500_250, 31)),
            (3, (1_239_850_262, 31)),
            (5, (1_920_767_767, 32)),
            (10, (1_358_187_913, 32)),
            (1000, (1_086_550_330, 35)),
            (12345, (1_236_984_599, 37)),
            ((1 << 40) + 1, (1 << 31, 51)),
            (1 << 61, (1_518_500_250, 61)),
            ((1 << 62) - 1, (1 << 30, 61)),
            (1 << 62, (1 << 31, 62)),
            (3u128.pow(40), (1_322_618_633, 62)),
        ] {
            assert_eq!(reciprocal_square_root(v), expected, "{v}");
        }
    }

    fn norm(center: bool, multiplier: i32, shift: i8, requant: [i32; 2]) -> LayerNorm {
        let requant = Requant {
            multiplier: vec![requant[0]],
            shift: vec![requant[1] as i8],
            zero_point: 0,
            lo: -32768,
            hi: 32767,
        };
        let (gamma, beta) = (vec![1, 1, -1, 1], vec![0, 0, 0, 100]);
        LayerNorm { center, input_zero_point: 3, epsilon: 1, multiplier, shift, gamma, beta, requant }
    }

    /// D = -x, x, -x, x over sqrt(4 x^2) is a half; times M * 2^-N.
    #[test]
    fn rows_by_hand() {
        let mut y = [0i16; 4];
        norm(true, 2000, 0, [1, 0]).row(&[-40i8, 60, -40, 60], &mut y);
        assert_eq!(y, [-1000, 1000, 1000, 1100]);
        // Without a mean the zero point 3 is taken away: 5, -5, 5, 5.
        norm(false, 2000, 0, [1, 0]).row(&[8i8, -2, 8, 8], &mut y);
        assert_eq!(y, [1000, -1000, -1000, 1100]);
        // The mean of 1, 2, 2, 2 has fraction bits: D / 2^8 = -3/4, 1/4, 1/4, 1/4, the root of squares sqrt(12) / 4.
        norm(true, 1 << 12, 0, [1, 0]).row(&[1i8, 2, 2, 2], &mut y);
        assert_eq!(y, [-3547, 1182, -1182, 1282]);
    }

    /// The intermediate has 24 bits, whatever is made of it: 2^-9 of 2^23 - 1 and -2^23, where 2^24 would give 32767.
    #[test]
    fn the_intermediate_is_clamped() {
        let mut y = [0i16; 4];
        norm(true, 16384, -11, [1, 9]).row(&[-40i8, 60, -40, 60], &mut y);
        // (2^23 - 1 + 100) / 2^9 is 16384.19; gamma -1 gives 2^23 / 2^9.
        assert_eq!(y, [-16384, 16384, 16384, 16384]);
    }
}
