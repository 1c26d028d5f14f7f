//! Layer and RMS normalisation of rows in integers: exact mean with eight fraction bits, exact sum of squares, integer square
//! root, one rounding to the 16-bit intermediate `t`, then `gamma * t + beta` per channel.
//!
//! ```text
//! m = RNE(2^8 * sum x / n)                D_i = (x_i << 8) - m              (no mean: D_i = (x_i - Z) << 8)
//! V = sum D_i^2 + epsilon                 k even, 2^60 <= V * 2^k < 2^62
//! h = floor(sqrt(V * 2^k))                g = floor(2^61 / h)               1/sqrt(V) = g * 2^(k/2 - 61)
//! t_i = clamp16(RNE(D_i * g * M * 2^-(N + 61 - k/2)))
//! ```
//! Source: docs/arithmetic.md, "Layer normalisation".

use tpuflow_ir::Requant;

use crate::Element;
use crate::parallel;
use crate::requant::reference::{round_divide, round_shift};
use crate::requant::requantize;

/// Fraction bits of the mean.
const FRACTION_BITS: u32 = 8;

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
    let normalised = if k >= 0 { v << k } else { v >> -k };
    let h = normalised.isqrt() as i64;
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
            let t = round_shift(product, i32::from(self.shift) + s).clamp(-32768, 32767) as i64;
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
}
