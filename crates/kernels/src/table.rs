//! Lookup tables: any function of one variable, sampled when the graph was built.
//!
//! Between two entries the value is `T[i] + RNE((T[i+1] - T[i]) * f * 2^-r)`, clamped last. Entries are not clamped, so that
//! the slope of the last step is right. Steps are equal over all codes, or equal within each of some segments of the
//! positions to which an affine map, modulo one period, takes the codes; entries of the second form have fraction bits, which
//! a second rounding takes away.
//!
//! Source: docs/arithmetic.md, "Tables".

use tpuflow_ir::error::TableError;
use tpuflow_ir::table::{Form, PHASE_BITS, POSITION_BITS, Segmented};

use crate::Element;
use crate::buffers::PIECE;
use crate::parallel;
use crate::requant::round_shift;

/// Elements from which on the value of each 16-bit code is computed once, before any is looked up.
const MANY: usize = 1 << 17;

/// A table for codes of `bits` bits.
#[derive(Clone, Debug)]
pub struct Lookup {
    words: Vec<i32>,
    form: Form,
    /// `2^(bits-1)`: code to index.
    bias: i32,
    lo: i32,
    hi: i32,
}

/// Why words and a clamp are no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// A clamp that holds nothing.
    #[error("clamp {lo}..={hi} of a table is empty")]
    EmptyClamp {
        /// Its lower end.
        lo: i32,
        /// Its upper end.
        hi: i32,
    },
    /// The words are of no form.
    #[error(transparent)]
    Form(#[from] TableError),
}

impl Lookup {
    /// A table of these words for codes of `bits` bits, at most 16.
    ///
    /// # Errors
    /// Why they are no table ([`Form::new`]), or an empty clamp.
    pub fn new(words: Vec<i32>, bits: u32, lo: i32, hi: i32) -> Result<Self, LookupError> {
        if lo > hi {
            return Err(LookupError::EmptyClamp { lo, hi });
        }
        let form = Form::new(&words, bits)?;
        Ok(Self { words, form, bias: 1 << (bits - 1), lo, hi })
    }

    /// Whether all values are int8 codes.
    #[must_use]
    pub fn is_narrow(&self) -> bool {
        self.lo >= -128 && self.hi <= 127
    }

    /// The value at `code`.
    #[inline]
    #[must_use]
    pub fn at(&self, code: i32) -> i32 {
        let value = match &self.form {
            Form::Equal { step_bits } => {
                let index = (code + self.bias) as usize;
                self.interpolate(index >> step_bits, index as i64 & ((1 << step_bits) - 1), *step_bits)
            }
            Form::Segmented(segmented) => self.segmented_lookup(segmented, code),
        };
        value.clamp(i64::from(self.lo), i64::from(self.hi)) as i32
    }

    #[inline]
    fn segmented_lookup(&self, form: &Segmented, code: i32) -> i64 {
        // 17 bits of a code at most and 40 of the multiplier fit; a negative sum modulo 2^40 is its low bits.
        let phase = i64::from(code) * form.multiplier as i64 + form.offset as i64;
        let position = (phase & ((1 << PHASE_BITS) - 1)) >> (PHASE_BITS - POSITION_BITS);
        let extent = POSITION_BITS - form.segment_bits;
        let segment = form.segments[(position >> extent) as usize];
        let rest = position & ((1 << extent) - 1);
        let index = segment.first as usize + (rest >> segment.step_bits) as usize;
        let value = self.interpolate(index, rest & ((1 << segment.step_bits) - 1), segment.step_bits);
        if form.fraction_bits == 0 { value } else { round_shift(value, form.fraction_bits) }
    }

    /// The value `fraction * 2^-step_bits` of the way from entry `index` to the next.
    #[inline]
    fn interpolate(&self, index: usize, fraction: i64, step_bits: u32) -> i64 {
        let first = i64::from(self.words[index]);
        if fraction == 0 {
            return first;
        }
        first + round_shift((i64::from(self.words[index + 1]) - first) * fraction, step_bits)
    }
}

/// `y[i] = table(x[i])`.
///
/// # Panics
/// When `x` and `y` differ in length.
pub fn lookup<X: Element, Y: Element>(table: &Lookup, x: &[X], y: &mut [Y]) {
    assert_eq!(x.len(), y.len(), "one result per operand");
    if (X::BITS == 8 && x.len() > 256) || (X::BITS == 16 && x.len() >= MANY) {
        // Every code's value, once.
        let least = -(1i32 << (X::BITS - 1));
        let values: Vec<Y> = (least..-least).map(|code| Y::narrow(table.at(code))).collect();
        let at = |code: X| values[(code.widen() - least) as usize];
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

    fn table(words: &[i32], bits: u32, lo: i32, hi: i32) -> Lookup {
        Lookup::new(words.to_vec(), bits, lo, hi).expect("a table")
    }

    #[test]
    fn knots_and_ties() {
        // Two steps over 8-bit codes: 128 codes between knots.
        let table = table(&[0, 64, 0], 8, -100, 60);
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
        let table = table(&entries, 8, -128, 127);
        let codes: Vec<i8> = (-128..=127).collect();
        let mut values = vec![0i8; 256];
        lookup(&table, &codes, &mut values);
        assert!(values.iter().zip(&entries).all(|(v, e)| i32::from(*v) == *e));
    }

    /// Words of a table whose positions are `code * multiplier + offset`, with 24 bits after the phase's.
    fn words(head: [i32; 2], [multiplier, offset]: [u64; 2], steps: &[i32], entries: &[i32]) -> Vec<i32> {
        let mut words = vec![head[0] | head[1] << 8];
        words.extend([multiplier, offset].iter().flat_map(|&v| [v as u32 as i32, (v >> 32) as i32]));
        words.extend(steps.iter().chain(entries));
        words.resize(words.len().next_multiple_of(2), 0);
        words
    }

    #[test]
    fn segments_have_steps_of_their_own() {
        // 16-bit codes: the lower half is one step, the upper two; entries in quarters.
        let table = table(&words([1, 2], [1 << 24, 1 << 39], &[23, 22], &[0, 400, 0, -800]), 16, -150, 90);
        for (code, expected) in [
            (-32768, 0),
            (-32768 + 8192, 25),
            (-16384, 50),
            (-1, 90),
            (0, 90),
            (8192, 50),
            (16384, 0),
            (24576, -100),
            (32767, -150),
            (-32768 + 163, 0),
            (-32768 + 164, 0),
            (-32768 + 246, 1),
        ] {
            // 400 * 163 / 32768 = 1.99 quarters; 164: 2.002, a half that goes to 0; 246: 3.003 quarters.
            assert_eq!(table.at(code), expected, "code {code}");
        }
    }

    #[test]
    fn positions_repeat_with_the_period() {
        // A period of 5 codes; the offset puts code 2 at its start. A ramp up and down.
        let multiplier = (1u64 << 40).div_ceil(5);
        let offset = (1u64 << 40) - 2 * multiplier;
        let table = table(&words([0, 0], [multiplier, offset], &[23], &[0, 1000, 0]), 16, -32768, 32767);
        for period in [-6000, -3, 0, 1, 6000] {
            let found: Vec<i32> = (2..7).map(|code| table.at(code + 5 * period)).collect();
            assert_eq!(found, [0, 400, 800, 800, 400], "period {period}");
        }
    }

    #[test]
    fn many_codes_are_looked_up_as_few() {
        let table =
            table(&words([2, 8], [1 << 24, 1 << 39], &[16, 22, 10, 20], &[77; 64 + 1 + 4096 + 4 + 1]), 16, -9, 9);
        let curved = Lookup {
            words: table
                .words
                .iter()
                .enumerate()
                .map(|(i, &w)| if i < 9 { w } else { (i * i % 4999) as i32 - 2500 })
                .collect(),
            ..table
        };
        let codes: Vec<i16> = (0..MANY).map(|i| (i * 7919) as u16 as i16).collect();
        let (mut many, mut few) = (vec![0i16; MANY], vec![0i16; MANY]);
        lookup(&curved, &codes, &mut many);
        few.chunks_mut(1000).zip(codes.chunks(1000)).for_each(|(y, x)| lookup(&curved, x, y));
        assert_eq!(many, few);
        assert!(few.iter().any(|&y| y != few[0]));
    }
}
