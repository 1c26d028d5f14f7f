//! Lookup tables: any function of one variable, sampled when the graph was built.
//!
//! `2^k + 1` entries belong to the codes `-2^(b-1) + (i << ib)` with `ib = b - k`; between them the value is
//! `T[i] + RNE((T[i+1] - T[i]) * f * 2^-ib)`, clamped last. Entries are not clamped, so that the slope of the last step is
//! right. With `k = b` every code has its own entry.
//!
//! Source: docs/arithmetic.md, "Tables".

use crate::Element;
use crate::elementwise::PIECE;
use crate::parallel;

/// A table for codes of `bits` bits.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    entries: &'a [i32],
    /// `2^(bits-1)`: code to index.
    bias: i32,
    /// Bits of the code below the index.
    fraction_bits: u32,
    lo: i32,
    hi: i32,
}

impl<'a> Lookup<'a> {
    /// A table of `2^k + 1` entries for codes of `bits` bits, `k <= bits <= 16`.
    ///
    /// # Panics
    /// When the number of entries is not `2^k + 1` with `1 <= k <= bits`.
    #[must_use]
    pub fn new(entries: &'a [i32], bits: u32, lo: i32, hi: i32) -> Self {
        let steps = entries.len().saturating_sub(1);
        assert!(
            steps.is_power_of_two() && steps >= 2 && steps <= 1 << bits,
            "a table has 2^k + 1 entries, k <= {bits}"
        );
        Self { entries, bias: 1 << (bits - 1), fraction_bits: bits - steps.trailing_zeros(), lo, hi }
    }

    /// The value at `code`.
    #[inline]
    #[must_use]
    pub fn at(&self, code: i32) -> i32 {
        let index = (code + self.bias) as usize;
        let i = index >> self.fraction_bits;
        let first = i64::from(self.entries[i]);
        let fraction = (index - (i << self.fraction_bits)) as i64;
        let value = if fraction == 0 {
            first
        } else {
            let rise = (i64::from(self.entries[i + 1]) - first) * fraction;
            first + crate::requant::round_shift(rise, self.fraction_bits)
        };
        value.clamp(i64::from(self.lo), i64::from(self.hi)) as i32
    }
}

/// `y[i] = table(x[i])`.
///
/// # Panics
/// When `x` and `y` differ in length.
pub fn lookup<X: Element, Y: Element>(table: &Lookup<'_>, x: &[X], y: &mut [Y]) {
    assert_eq!(x.len(), y.len(), "one result per operand");
    if X::BITS == 8 && x.len() > 256 {
        // Every code's value, once.
        let values: Vec<Y> = (-128..=127).map(|code| Y::narrow(table.at(code))).collect();
        let at = |code: X| values[(code.widen() + 128) as u8 as usize];
        parallel::chunks(y, PIECE, |index, y| {
            y.iter_mut().zip(&x[index * PIECE..]).for_each(|(y, x)| *y = at(*x));
        });
        return;
    }
    parallel::chunks(y, PIECE, |index, y| {
        y.iter_mut().zip(&x[index * PIECE..]).for_each(|(y, x)| *y = Y::narrow(table.at(x.widen())));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knots_and_ties() {
        // Two steps over 8-bit codes: 128 codes between knots.
        let table = Lookup::new(&[0, 64, 0], 8, -100, 60);
        for (code, expected) in
            [(-128, 0), (-127, 0), (-125, 2), (-126, 1), (-1, 60), (0, 60), (1, 60), (127, 0), (125, 2)]
        {
            // Half a unit per code; 0.5 rounds to 0, 1.5 to 2 and 63.5 to 64, which is then clamped.
            assert_eq!(table.at(code), expected, "code {code}");
        }
    }

    #[test]
    fn full_table_is_a_plain_lookup() {
        let entries: Vec<i32> = (0..=256).map(|i| (i * i) % 251 - 125).collect();
        let table = Lookup::new(&entries, 8, -128, 127);
        let codes: Vec<i8> = (-128..=127).collect();
        let mut values = vec![0i8; 256];
        lookup(&table, &codes, &mut values);
        assert!(values.iter().zip(&entries).all(|(v, e)| i32::from(*v) == *e));
    }
}
