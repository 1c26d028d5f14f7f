//! Tables of 16-bit codes in registers: what [`super::codes512`] looks up in memory, without touching any.
//!
//! Most functions change slowly: among 64 neighbouring 16-bit codes the result stays, or makes one or two steps of the same
//! size, and over all 1024 such blocks only a few ways of doing so occur (interpolation between two knots makes them alike). So
//! a table is a result per block, one of sixteen forms per block, and per form a size and two places:
//! ```text
//! code   ..  64 b + f  ..            f          0 .. 16  17 .. 47  48 .. 63
//! result     bases[b] + steps        form 3     0        +1        +2          after 16, after 47, by 1
//! ```
//! Both tables of blocks are looked up by permuting bytes: seven bits of the block's number in a pair of registers, the other
//! three choose among the pairs.

#![allow(unsafe_code, reason = "vector loads")]

use std::arch::x86_64::*;

use tpuflow_ir::Requant;

use super::codes512::{ROUNDER, ordered};
use crate::gemm::panels::Line;
use crate::isa::Avx512Vbmi;

/// Codes of a block.
const BLOCK: usize = 64;
/// Most forms.
const FORMS: usize = 16;
/// Where a step that is never made would be: no code is further in its block.
const NEVER: u8 = BLOCK as u8 - 1;

/// A table of 16-bit codes whose blocks have few forms.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// Proof that the vectors are there.
    isa: Avx512Vbmi,
    /// Result of the first code of every block.
    bases: [Line; 16],
    /// Forms of blocks `b` and `b + 512`, in the low and the high four bits of byte `b`.
    forms: [Line; 8],
    /// Per form, four times: the last code before the first step, before the second, and their size.
    places: [Line; 2],
    size: Line,
}

impl Steps {
    /// The table of `codes`, the results of all 16-bit codes from the least on; nothing if it cannot be had this way.
    ///
    /// # Panics
    /// When there are fewer.
    pub(super) fn new(isa: Avx512Vbmi, codes: &[i8]) -> Option<Self> {
        let mut steps = Self {
            isa,
            bases: [Line::default(); 16],
            forms: [Line::default(); 8],
            places: [Line([NEVER; 64]); 2],
            size: Line::default(),
        };
        let mut known: Vec<([u8; 2], i8)> = Vec::new();
        for (block, codes) in codes[..1 << 16].as_chunks::<BLOCK>().0.iter().enumerate() {
            let (mut places, mut size, mut count) = ([NEVER; 2], 0, 0);
            for (last, (code, next)) in codes.iter().zip(&codes[1..]).enumerate() {
                let step = next.wrapping_sub(*code);
                if step == 0 {
                    continue;
                }
                if count == 2 || (count == 1 && step != size) {
                    return None;
                }
                (places[count], size) = (last as u8, step);
                count += 1;
            }
            let form = known.iter().position(|&form| form == (places, size)).unwrap_or_else(|| {
                known.push((places, size));
                known.len() - 1
            });
            if form == FORMS {
                return None;
            }
            steps.bases[block / 64].0[block % 64] = codes[0].cast_unsigned();
            steps.forms[block % 512 / 64].0[block % 64] |= (form << (block / 512 * 4)) as u8;
        }
        for lane in 0..4 {
            for (form, &(places, size)) in known.iter().enumerate() {
                for (own, place) in steps.places.iter_mut().zip(places) {
                    own.0[lane * FORMS + form] = place;
                }
                steps.size.0[lane * FORMS + form] = size.cast_unsigned();
            }
        }
        Some(steps)
    }

    /// Proof that [`Self::code_maker`] may be called.
    pub(crate) fn isa(&self) -> Avx512Vbmi {
        self.isa
    }

    /// The constants of all sums. The zero point of `requant` must be even, its bounds codes of 16 bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    pub(crate) fn code_maker<const NATURAL: bool>(&self, requant: &Requant) -> Stepper<'_, NATURAL> {
        // Sums and roundings are exact: all of it is whole numbers below 2^24.
        let at = |code: i32| _mm512_set1_ps(ROUNDER + (code + 32768) as f32);
        Stepper { steps: self, origin: at(requant.zero_point), least: at(requant.lo), most: at(requant.hi) }
    }
}

/// [`Steps`] behind a requantisation.
pub(crate) struct Stepper<'a, const NATURAL: bool> {
    steps: &'a Steps,
    /// The addend of a product with which its code's index stands in the low bits.
    origin: __m512,
    least: __m512,
    most: __m512,
}

impl<const NATURAL: bool> Stepper<'_, NATURAL> {
    /// Codes of 64 sums, as [`super::codes512::is_direct_between`] says.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    pub(crate) fn codes(&self, sums: &[__m512i; 4], factors: &[__m512; 4]) -> __m512i {
        let mut index = [_mm512_setzero_si512(); 4];
        for v in 0..4 {
            let result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[v]), factors[v], self.origin);
            index[v] = _mm512_castps_si512(_mm512_min_ps(_mm512_max_ps(result, self.least), self.most));
        }
        // The low bytes of 32 indices, then their high bytes.
        let apart = load(&APART);
        let [former, latter] = [0, 2].map(|v| _mm512_permutex2var_epi8(index[v], apart, index[v + 1]));
        let low = _mm512_shuffle_i64x2::<0b01_00_01_00>(former, latter);
        let high = _mm512_shuffle_i64x2::<0b11_10_11_10>(former, latter);
        let found = self.steps.at(low, high);
        if NATURAL { found } else { ordered::<true>(found) }
    }
}

/// Which bytes of two vectors of words are the lowest, and which the second lowest.
static APART: Line = {
    let mut places = [0; 64];
    let mut word = 0;
    while word < 32 {
        places[word] = 4 * word as u8;
        places[word + 32] = 4 * word as u8 + 1;
        word += 1;
    }
    Line(places)
};

#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512i {
    // SAFETY: a line is 64 readable bytes, aligned to 64.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

impl Steps {
    /// Results at 64 indices, given as low and high bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    fn at(&self, low: __m512i, high: __m512i) -> __m512i {
        // Bits 6 to 12 of the index; the eighth bit is not looked at.
        let two = _mm512_set1_epi8(3);
        let block = _mm512_ternarylogic_epi32::<0xCA>(two, _mm512_srli_epi16::<6>(low), _mm512_slli_epi16::<2>(high));
        let bit = |bit: i8| _mm512_test_epi8_mask(high, _mm512_set1_epi8(bit));
        let [first, second, third] = [bit(0x20), bit(0x40), bit(i8::MIN)];
        let pair =
            |tables: &[Line], p: usize| _mm512_permutex2var_epi8(load(&tables[2 * p]), block, load(&tables[2 * p + 1]));
        let four = |tables: &[Line], p: usize| {
            let lower = _mm512_mask_blend_epi8(first, pair(tables, p), pair(tables, p + 1));
            let upper = _mm512_mask_blend_epi8(first, pair(tables, p + 2), pair(tables, p + 3));
            _mm512_mask_blend_epi8(second, lower, upper)
        };
        let base = _mm512_mask_blend_epi8(third, four(&self.bases, 0), four(&self.bases, 4));
        let forms = four(&self.forms, 0);
        let forms = _mm512_mask_blend_epi8(third, forms, _mm512_srli_epi16::<4>(forms));
        let form = _mm512_and_si512(forms, _mm512_set1_epi8(15));
        let within = _mm512_and_si512(low, _mm512_set1_epi8(63));
        let size = _mm512_shuffle_epi8(load(&self.size), form);
        let after = |place: &Line| _mm512_cmpgt_epu8_mask(within, _mm512_shuffle_epi8(load(place), form));
        let [once, twice] = [after(&self.places[0]), after(&self.places[1])];
        let found = _mm512_mask_add_epi8(base, once, base, size);
        _mm512_mask_add_epi8(found, twice, found, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The results of all codes, looked up.
    fn all(steps: &Steps) -> Vec<i8> {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
        fn vector(steps: &Steps, high: u8, first: u8) -> [i8; 64] {
            let low: [u8; 64] = std::array::from_fn(|lane| first + lane as u8);
            let found = steps.at(load(&Line(low)), _mm512_set1_epi8(high.cast_signed()));
            let mut line = Line::default();
            // SAFETY: a line is 64 writable bytes, aligned to 64.
            unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), found) };
            line.0.map(u8::cast_signed)
        }
        let parts = (0..=255).flat_map(|high| [0, 64, 128, 192].map(|first| (high, first)));
        // SAFETY: the token proves the features.
        parts.flat_map(|(high, first)| unsafe { vector(steps, high, first) }).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Blocks of any base in some forms, more than there may be among them, are all looked up or refused.
        #[test]
        fn every_code_is_found(
            forms in prop::collection::vec(([0u8..=63, 0u8..=63], prop_oneof![-2i8..=2, any::<i8>()]), 1..=17),
            seed in any::<u32>(),
        ) {
            let Some(isa) = Avx512Vbmi::detect() else { return Ok(()) };
            let codes: Vec<i8> = (0..1 << 16).map(|code: usize| {
                let (block, within) = ((code / 64) as u32, (code % 64) as u8);
                let any = block.wrapping_mul(2_654_435_761).wrapping_add(seed);
                let (places, size) = forms[(any >> 20) as usize % forms.len()];
                let count = places.iter().filter(|&&place| within > place).count();
                ((any >> 8) as i8).wrapping_add(size.wrapping_mul(count as i8))
            }).collect();
            // Two steps at one place are one of twice the size, which is its own form.
            match Steps::new(isa, &codes) {
                Some(steps) => prop_assert!(all(&steps) == codes),
                None => prop_assert!(forms.len() > FORMS),
            }
        }
    }

    #[test]
    fn blocks_of_three_steps_are_refused() {
        let Some(isa) = Avx512Vbmi::detect() else { return };
        let with = |steps: usize| -> Vec<i8> {
            (0..1 << 16)
                .map(|code: usize| if code / 64 == 700 { (code % 64 / 10).min(steps) as i8 } else { 0 })
                .collect()
        };
        assert!(Steps::new(isa, &with(2)).is_some_and(|steps| all(&steps) == with(2)));
        assert!(Steps::new(isa, &with(3)).is_none());
    }
}
