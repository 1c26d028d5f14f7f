//! Sums, differences and products of int8 codes in 512-bit vectors.
#![allow(unsafe_code, reason = "vector loads, stores, and calls that a token has proved possible")]

use std::arch::x86_64::*;

use tpuflow_ir::BinaryKind;

use super::Binary;
use crate::epilogue::codes512::{self, Bounds};
use crate::isa::Avx512Vnni;

/// Codes of a vector.
const LANES: usize = 64;

/// A binary operator whose values fit 32 bits, each a sum of two products of 16 bits or one product of three.
#[derive(Clone, Copy)]
pub(super) struct Narrow<'a> {
    isa: Avx512Vnni,
    function: &'a Binary<'a>,
}

impl<'a> Narrow<'a> {
    /// The vector form of an operator, if it has one.
    pub(super) fn new(isa: Avx512Vnni, function: &'a Binary<'a>) -> Option<Self> {
        let [ka, kb] = function.multipliers.map(i64::from);
        let fits = match function.kind {
            // The negative multiplier of a difference has 16 bits, too.
            BinaryKind::Add | BinaryKind::Sub => ka.abs() <= 32767 && kb.abs() <= 32767,
            // Differences of codes have nine bits and a sign.
            BinaryKind::Mul => ka * kb * 256 * 256 <= i64::from(i32::MAX) && ka * kb >= 0,
            _ => false,
        };
        let requant = function.requant;
        let bytes = [requant.lo, requant.hi, requant.zero_point].iter().all(|&v| i8::try_from(v).is_ok());
        (fits && bytes).then_some(Self { isa, function })
    }

    /// `y[i] = f(a[i], b[i])`.
    pub(super) fn apply(&self, a: &[i8], b: &[i8], y: &mut [i8]) {
        let _ = self.isa;
        // SAFETY: the token proves the features.
        unsafe {
            match self.function.kind {
                BinaryKind::Mul => apply::<true>(self.function, a, b, y),
                _ => apply::<false>(self.function, a, b, y),
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn apply<const PRODUCT: bool>(function: &Binary<'_>, a: &[i8], b: &[i8], y: &mut [i8]) {
    let bounds = Bounds::new(function.requant);
    let (multiplier, shift) = function.requant.of(0);
    let factor = multiplier as f32 * 2f32.powi(-i32::from(shift));
    let factors = [_mm512_set1_ps(factor); 4];
    let zeros = function.zero_points.map(|zero| _mm512_set1_epi16(zero as i16));
    let [ka, kb] = function.multipliers;
    let kb = if function.kind == BinaryKind::Sub { -kb } else { kb };
    let pair = if PRODUCT { ka.wrapping_mul(kb) } else { (ka & 0xFFFF) | (kb << 16) };
    let pair = _mm512_set1_epi32(pair);
    let mut at = 0;
    while at < y.len() {
        let left = (y.len() - at).min(LANES);
        let mask = u64::MAX >> (LANES - left);
        let (a, b) = (&a[at..at + left], &b[at..at + left]);
        // SAFETY: the mask keeps the loads within the operands.
        let (a, b) = unsafe { (_mm512_maskz_loadu_epi8(mask, a.as_ptr()), _mm512_maskz_loadu_epi8(mask, b.as_ptr())) };
        // Interleaving, here of bytes with their signs and of words with words, leaves the order that narrowing undoes.
        let mut sums = [_mm512_setzero_si512(); 4];
        for half in 0..2 {
            let widened = |codes: __m512i, zero: __m512i| {
                let sign = _mm512_movm_epi8(_mm512_movepi8_mask(codes));
                let words =
                    if half == 0 { _mm512_unpacklo_epi8(codes, sign) } else { _mm512_unpackhi_epi8(codes, sign) };
                _mm512_sub_epi16(words, zero)
            };
            let (a, b) = (widened(a, zeros[0]), widened(b, zeros[1]));
            let both = [_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)];
            for (q, both) in both.into_iter().enumerate() {
                sums[2 * half + q] = if PRODUCT {
                    let (a, b) =
                        (_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(both)), _mm512_srai_epi32::<16>(both));
                    _mm512_mullo_epi32(_mm512_mullo_epi32(a, b), pair)
                } else {
                    _mm512_madd_epi16(both, pair)
                };
            }
        }
        let result = codes512::codes::<false, false>(&sums, &factors, &bounds);
        // SAFETY: the mask keeps the store within the result.
        unsafe { _mm512_mask_storeu_epi8(y[at..at + left].as_mut_ptr(), mask, result) };
        at += left;
    }
}
