//! Softmax over rows: base-2 exponentials from one shared table, one exact division per element.
//!
//! With `d = max - x` and `c = RNE(log2(e) * S_x * 2^32)`, `d * c` is the exponent in units of `2^-32`:
//! ```text
//! d * c = k . iiiiiiii ffffffff ................     e = 2^(30 - d c / 2^32)
//!         >=32   8 bits   8 bits   ignored             ~ (T2[i] + RNE((T2[i+1] - T2[i]) * f / 2^8)) / 2^k, rounded once more
//! ```
//! and `y = clamp(RNE(e * K / (S * 2^N)) + Z)` with `S` the sum of the row's `e`.
//!
//! Rows may come in blocks: first the largest code of all, then the sum, each block going on with the [`Statistics`] of those before
//! it, then the quotients. Both are exact, so that no cut of a row changes a result.
//!
//! Source: docs/arithmetic.md, "Softmax".

use crate::Element;
use crate::parallel;
use crate::requant::reference::round_divide;
use crate::requant::round_shift;

/// `T2[i] = RNE(2^(30 - i/256))`, recomputed in the tests.
pub const T2: [i32; 257] = include!("softmax_table.in");

/// Scale of a softmax.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// `RNE(log2(e) * S_in * 2^32)`.
    pub coefficient: u64,
    /// K.
    pub multiplier: i32,
    /// N.
    pub shift: i8,
    /// Zero point of the output.
    pub zero_point: i32,
    /// Lower clamp.
    pub lo: i32,
    /// Upper clamp.
    pub hi: i32,
}

/// The largest code of a row, or of some of its blocks, and the sum of the exponentials of the distances to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// [`Statistics::NONE`] where no element is left.
    pub max: i64,
    /// Units of `2^-30`.
    pub sum: i64,
}

impl Statistics {
    /// The largest code of no elements.
    pub const NONE: i64 = i64::MIN;
    /// Those of no elements.
    pub const EMPTY: Self = Self { max: Self::NONE, sum: 0 };
    /// Largest sum: that of 2^31 elements.
    const LARGEST_SUM: i64 = 1 << 61;

    /// With a further block: its largest code taken on; elements whose `mask` is 0 are left out, none if that is empty.
    #[must_use]
    pub fn with_maximum<X: Element>(self, x: &[X], mask: &[i8]) -> Self {
        let own = kept(x, mask).max().map_or(Self::NONE, i64::from);
        Self { max: self.max.max(own), sum: 0 }
    }

    /// With a further block of rows whose largest code is `max`: its exponentials added.
    #[must_use]
    pub fn with_sum<X: Element>(self, coefficient: u64, x: &[X], mask: &[i8]) -> Self {
        let own: i64 = kept(x, mask).map(|x| exponential(coefficient, self.distance(x))).sum();
        Self { max: self.max, sum: self.sum.clamp(0, Self::LARGEST_SUM) + own }
    }

    /// From the largest code down to a code; 0 above it, where these are not the statistics of its row.
    fn distance(self, x: i32) -> u32 {
        self.max.saturating_sub(x.into()).clamp(0, u32::MAX.into()) as u32
    }
}

/// Codes that are not masked.
fn kept<'a, X: Element>(x: &'a [X], mask: &'a [i8]) -> impl Iterator<Item = i32> + 'a {
    x.iter().enumerate().filter(|(i, _)| mask.get(*i).is_none_or(|&m| m != 0)).map(|(_, x)| x.widen())
}

/// `2^30 * exp(-distance * S_in)`, rounded; `coefficient` is that of [`Softmax`].
#[inline]
#[must_use]
pub fn exponential(coefficient: u64, distance: u32) -> i64 {
    // A product beyond 64 bits saturates: its integer part exceeds 31 either way, which gives 0.
    let u = u64::from(distance).saturating_mul(coefficient);
    let (k, i, f) = (u >> 32, (u >> 24 & 0xFF) as usize, (u >> 16 & 0xFF) as i64);
    if k >= 31 {
        return 0;
    }
    let first = i64::from(T2[i]);
    let value = first + round_shift((i64::from(T2[i + 1]) - first) * f, 8);
    if k == 0 { value } else { round_shift(value, k as u32) }
}

impl Softmax {
    /// `2^30 * exp(-distance * S_in)`, rounded.
    #[inline]
    #[must_use]
    pub fn exponential(&self, distance: u32) -> i64 {
        exponential(self.coefficient, distance)
    }

    /// Shares of a block of a row whose statistics are given; `mask` is empty or zero where an element is left out.
    ///
    /// # Panics
    /// When the slices differ in length.
    pub fn shares<X: Element, Y: Element>(&self, statistics: Statistics, x: &[X], mask: &[i8], y: &mut [Y]) {
        assert!(x.len() == y.len() && (mask.is_empty() || mask.len() == x.len()), "one result per operand");
        let zero = Y::narrow(self.zero_point.clamp(self.lo, self.hi));
        let sum = statistics.sum.min(Statistics::LARGEST_SUM);
        for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
            let is_taken = sum > 0 && mask.get(i).is_none_or(|&m| m != 0);
            *y = if is_taken {
                Y::narrow(self.code(self.exponential(statistics.distance(x.widen())), sum))
            } else {
                zero
            };
        }
    }

    /// Softmax of rows of `n`, spread over threads.
    ///
    /// # Panics
    /// When the slices differ in length or are not whole rows; `mask` may be empty.
    pub fn rows<X: Element, Y: Element>(&self, n: usize, x: &[X], mask: &[i8], y: &mut [Y]) {
        assert!(n > 0 && x.len() == y.len() && x.len().is_multiple_of(n), "whole rows of operands and results");
        parallel::chunks_with(y, n, Vec::new, |exponentials, index, y| {
            let row = index * n..(index + 1) * n;
            let mask = if mask.is_empty() { mask } else { &mask[row.clone()] };
            self.row_with(&x[row], mask, y, exponentials);
        });
    }

    /// Softmax of one row; `mask` is empty or zero where an element is left out (it gives the zero point).
    ///
    /// # Panics
    /// When the slices differ in length.
    pub fn row<X: Element, Y: Element>(&self, x: &[X], mask: &[i8], y: &mut [Y]) {
        self.row_with(x, mask, y, &mut Vec::new());
    }

    /// [`Self::row`] with a buffer to reuse.
    fn row_with<X: Element, Y: Element>(&self, x: &[X], mask: &[i8], y: &mut [Y], exponentials: &mut Vec<i64>) {
        assert!(x.len() == y.len() && (mask.is_empty() || mask.len() == x.len()), "one result per operand");
        let taken = |i: usize| mask.get(i).is_none_or(|&m| m != 0);
        let zero = Y::narrow(self.zero_point.clamp(self.lo, self.hi));
        let Some(max) = (0..x.len()).filter(|&i| taken(i)).map(|i| x[i].widen()).max() else {
            y.fill(zero);
            return;
        };
        exponentials.clear();
        exponentials.extend(
            (0..x.len()).map(|i| if taken(i) { self.exponential((max - x[i].widen()).cast_unsigned()) } else { 0 }),
        );
        let sum: i64 = exponentials.iter().sum();
        for (i, (y, &e)) in y.iter_mut().zip(&*exponentials).enumerate() {
            *y = if taken(i) { Y::narrow(self.code(e, sum)) } else { zero };
        }
    }

    /// `clamp(RNE(e * K / (sum * 2^N)) + Z, lo, hi)`.
    #[inline]
    fn code(&self, e: i64, sum: i64) -> i32 {
        let numerator = e * i64::from(self.multiplier);
        let rounded = if self.shift == 0 {
            // Both fit 62 bits: e is at most 2^30, and so is each of the terms of a sum over at most 2^31 elements.
            let (quotient, twice) = (numerator / sum, 2 * (numerator % sum));
            i128::from(quotient + i64::from(twice > sum || (twice == sum && quotient % 2 != 0)))
        } else {
            let up = u32::from((-self.shift).max(0).cast_unsigned());
            let down = u32::from(self.shift.max(0).cast_unsigned());
            round_divide(i128::from(numerator) << up, i128::from(sum) << down)
        };
        (rounded + i128::from(self.zero_point)).clamp(i128::from(self.lo), i128::from(self.hi)) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No entry is near a tie, so float64 decides every rounding.
    #[test]
    fn the_table_is_the_rounded_power() {
        for (i, &entry) in T2.iter().enumerate() {
            let exact = 2f64.powf(30.0 - i as f64 / 256.0);
            assert!((f64::from(entry) - exact).abs() < 0.5 - 1e-4, "entry {i}");
        }
        assert_eq!((T2[0], T2[256]), (1 << 30, 1 << 29));
    }

    #[test]
    fn exponentials_halve_and_vanish() {
        // One code is one power of two.
        let function = Softmax { coefficient: 1 << 32, multiplier: 1, shift: 0, zero_point: 0, lo: 0, hi: 1 };
        for distance in 0..40 {
            let expected = if distance <= 30 { (1i64 << 30) >> distance } else { 0 };
            assert_eq!(function.exponential(distance), expected, "distance {distance}");
        }
        let steep = Softmax { coefficient: u64::MAX, ..function };
        assert_eq!((steep.exponential(0), steep.exponential(1), steep.exponential(65535)), (1 << 30, 0, 0));
    }

    /// Nearest, ties to even, of a non-negative fraction, by comparing remainders.
    fn nearest(numerator: i128, denominator: i128) -> i128 {
        let (floor, rest) = (numerator / denominator, 2 * (numerator % denominator));
        floor + i128::from(rest > denominator || (rest == denominator && floor % 2 == 1))
    }

    #[test]
    fn exponentials_are_rounded_twice() {
        let of = |coefficient| Softmax { coefficient, multiplier: 1, shift: 0, zero_point: 0, lo: 0, hi: 1 };
        for coefficient in [0x0123_4567, 0x00FF_FFFF, 0x8765_4321, 0x1_8000_8000] {
            for distance in 0..2000u32 {
                let u = u64::from(distance) * coefficient;
                let (k, i, f) = (u >> 32, (u >> 24) as usize % 256, i128::from(u >> 16) % 256);
                let (first, second) = (i128::from(T2[i]), i128::from(T2[i + 1]));
                // The table falls, so its steps are negative: the distance to the entry is rounded.
                let value = first - nearest((first - second) * f, 256);
                let expected = if k >= 31 { 0 } else { nearest(value, 1 << k) };
                assert_eq!(i128::from(of(coefficient).exponential(distance)), expected, "{distance} x {coefficient}");
            }
        }
    }

    #[test]
    fn quotients_are_rounded_to_even_with_any_shift() {
        let zero_point = -3;
        for shift in [-3i8, -1, 0, 1, 5] {
            for multiplier in [1, 2, 3, 255, 32767] {
                let function = Softmax { coefficient: 0, multiplier, shift, zero_point, lo: -100, hi: 90 };
                for (e, sum) in [(1, 2), (3, 2), (5, 2), (1, 3), (2, 3), (7, 14), (21, 14), (1 << 30, (1 << 30) + 1)] {
                    let numerator = i128::from(e * i64::from(multiplier)) << (-shift).max(0);
                    let exact = nearest(numerator, i128::from(sum) << shift.max(0)) + i128::from(zero_point);
                    assert_eq!(
                        i128::from(function.code(e, sum)),
                        exact.clamp(-100, 90),
                        "{e}/{sum} x {multiplier}, {shift}"
                    );
                }
            }
        }
    }

    /// Blocks of any lengths, in any number, give what the whole row gives.
    #[test]
    fn rows_in_blocks_give_what_whole_rows_give() {
        let (n, mut state) = (97, 1u64);
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        for case in 0..200 {
            let function = Softmax {
                coefficient: random() << (random() % 6),
                multiplier: 32767,
                shift: (case % 3) as i8,
                zero_point: -7,
                lo: -32768,
                hi: 32767,
            };
            let x: Vec<i16> = (0..n).map(|_| random() as i16 >> (case % 8)).collect();
            let mask: Vec<i8> = match case % 4 {
                0 => vec![],
                1 => vec![0; n],
                _ => (0..n).map(|_| i8::from(random() % 3 > 0)).collect(),
            };
            let mut whole = vec![0i16; n];
            function.row(&x, &mask, &mut whole);
            let length = 1 + (random() as usize) % n;
            let of = |block: usize| mask.chunks(length).nth(block).unwrap_or_default();
            let blocks = || x.chunks(length).enumerate();
            let most = blocks().fold(Statistics::EMPTY, |s, (i, x)| s.with_maximum(x, of(i)));
            let all = blocks().fold(most, |s, (i, x)| s.with_sum(function.coefficient, x, of(i)));
            let mut parts = vec![1i16; n];
            parts.chunks_mut(length).zip(blocks()).for_each(|(y, (i, x))| function.shares(all, x, of(i), y));
            assert_eq!(parts, whole, "case {case}, blocks of {length}");
        }
    }

    /// Statistics that are no row's own: whatever a program states, nothing overflows or divides by zero.
    #[test]
    fn any_statistics_give_codes() {
        let function = Softmax { coefficient: 1 << 40, multiplier: 32767, shift: 0, zero_point: 0, lo: -128, hi: 127 };
        for max in [i64::MIN, -1, 0, i64::MAX] {
            for sum in [i64::MIN, -1, 0, 1, i64::MAX] {
                let statistics = Statistics { max, sum };
                let mut y = [0i8; 3];
                function.shares(statistics, &[i16::MIN, 0, i16::MAX], &[], &mut y);
                let summed = statistics.with_sum(1 << 40, &[i16::MIN, 0, i16::MAX], &[]);
                assert!(summed.sum >= 0 && summed.with_maximum(&[5i8], &[]).max >= max);
            }
        }
    }

    #[test]
    fn masked_elements_give_the_zero_point_and_count_nowhere() {
        let function = Softmax { coefficient: 1 << 32, multiplier: 90, shift: 0, zero_point: -5, lo: -128, hi: 127 };
        let mut y = [0i8; 4];
        // The largest is left out; of the others 2^0 + 2^-1: two thirds and one of 90.
        function.row(&[7i8, 3, 100, 2], &[0, 1, 0, 1], &mut y);
        assert_eq!(y, [-5, 55, -5, 25]);
        function.row(&[7i8, 3, 100, 2], &[0; 4], &mut y);
        assert_eq!(y, [-5; 4]);
        Softmax { lo: -2, ..function }.row(&[7i8, 3, 100, 2], &[0, 1, 0, 0], &mut y);
        assert_eq!(y, [-2, 85, -2, -2]);
    }
}
