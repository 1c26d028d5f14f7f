//! Sums, differences and products of int8 codes in 512-bit vectors.
#![allow(unsafe_code, reason = "vector loads, stores, and calls that a token has proved possible")]

use std::arch::x86_64::*;

use tpuflow_ir::{BinaryKind, Requant};

use super::Binary;
use crate::epilogue::codes512::{self, BOUNDED, Bounds, DIRECT, DIRECT_BOUNDED, PLAIN};
use crate::isa::Avx512Vnni;
use crate::linear::largest_difference;

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

    /// `y[i] = f(a[i], b[i])`; an operand that is not given is `y` itself.
    pub(super) fn apply(&self, a: Option<&[i8]>, b: Option<&[i8]>, y: &mut [i8]) {
        let _ = self.isa;
        // SAFETY: the token proves the features.
        unsafe {
            let requant = self.function.requant;
            let widest = requant.lo <= -128 && requant.hi >= 127;
            match (self.function.kind == BinaryKind::Mul, self.is_direct(), widest) {
                (true, true, true) => apply::<true, DIRECT>(self.function, a, b, y),
                (true, true, false) => apply::<true, DIRECT_BOUNDED>(self.function, a, b, y),
                (true, false, true) if factor(requant).abs() < 1.0 => apply::<true, PLAIN>(self.function, a, b, y),
                (true, false, _) => apply::<true, BOUNDED>(self.function, a, b, y),
                (false, true, true) => apply::<false, DIRECT>(self.function, a, b, y),
                (false, true, false) => apply::<false, DIRECT_BOUNDED>(self.function, a, b, y),
                (false, false, true) if factor(requant).abs() < 1.0 => apply::<false, PLAIN>(self.function, a, b, y),
                (false, false, _) => apply::<false, BOUNDED>(self.function, a, b, y),
            }
        }
    }

    /// See [`codes512::is_direct`].
    fn is_direct(&self) -> bool {
        let [ka, kb] = self.function.multipliers.map(|k| u64::from(k.unsigned_abs()));
        let [a, b] = self.function.zero_points.map(largest_difference);
        let largest = if self.function.kind == BinaryKind::Mul { a * b * ka * kb } else { a * ka + b * kb };
        let requant = self.function.requant;
        codes512::is_direct(largest, factor(requant).into(), requant.zero_point)
    }
}

/// `M * 2^-N`, exact.
fn factor(requant: &Requant) -> f32 {
    let (multiplier, shift) = requant.of(0);
    multiplier as f32 * 2f32.powi(-i32::from(shift))
}

/// Values become codes as [`codes512::codes`] says; `KIND` is its.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn apply<const PRODUCT: bool, const KIND: u8>(function: &Binary<'_>, a: Option<&[i8]>, b: Option<&[i8]>, y: &mut [i8]) {
    let bounds = Bounds::new(function.requant);
    let factors = [_mm512_set1_ps(factor(function.requant)); 4];
    let [ka, kb] = function.multipliers;
    let kb = if function.kind == BinaryKind::Sub { -kb } else { kb };
    let [za, zb] = function.zero_points;
    let zeros = [za, zb].map(|zero| _mm512_set1_epi16(zero as i16));
    let pair = _mm512_set1_epi32(if PRODUCT { ka.wrapping_mul(kb) } else { (ka & 0xFFFF) | (kb << 16) });
    // Codes are multiplied as themselves plus 128, but in products.
    let start = _mm512_set1_epi32(if PRODUCT { 0 } else { -ka * (za + 128) - kb * (zb + 128) });
    let mut at = 0;
    while at < y.len() {
        let left = (y.len() - at).min(LANES);
        let mask = u64::MAX >> (LANES - left);
        let (a, b) = (&a.unwrap_or(y)[at..at + left], &b.unwrap_or(y)[at..at + left]);
        // SAFETY: the mask keeps the loads within the operands.
        let (a, b) = unsafe { (_mm512_maskz_loadu_epi8(mask, a.as_ptr()), _mm512_maskz_loadu_epi8(mask, b.as_ptr())) };
        let values = if PRODUCT { products(a, b, &zeros, pair) } else { sums(a, b, start, pair) };
        let result = codes512::codes::<false, KIND>(&values, &factors, &bounds);
        // SAFETY: the mask keeps the store within the result.
        unsafe { _mm512_mask_storeu_epi8(y[at..at + left].as_mut_ptr(), mask, result) };
        at += left;
    }
}

/// `start` plus each two codes, both plus 128, times a pair of 16-bit multipliers. Interleaving bytes leaves the order that
/// narrowing undoes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn sums(a: __m512i, b: __m512i, start: __m512i, pair: __m512i) -> [__m512i; 4] {
    let (flip, zero) = (_mm512_set1_epi8(i8::MIN), _mm512_setzero_si512());
    let (a, b) = (_mm512_xor_si512(a, flip), _mm512_xor_si512(b, flip));
    let (low, high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
    [
        _mm512_dpwssd_epi32(start, _mm512_unpacklo_epi8(low, zero), pair),
        _mm512_dpwssd_epi32(start, _mm512_unpackhi_epi8(low, zero), pair),
        _mm512_dpwssd_epi32(start, _mm512_unpacklo_epi8(high, zero), pair),
        _mm512_dpwssd_epi32(start, _mm512_unpackhi_epi8(high, zero), pair),
    ]
}

/// Each two codes without their zero points, multiplied with each other and with a factor, in the order of [`sums`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn products(a: __m512i, b: __m512i, zeros: &[__m512i; 2], factor: __m512i) -> [__m512i; 4] {
    let mut values = [_mm512_setzero_si512(); 4];
    for half in 0..2 {
        let widened = |codes: __m512i, zero: __m512i| {
            let sign = _mm512_movm_epi8(_mm512_movepi8_mask(codes));
            let words = if half == 0 { _mm512_unpacklo_epi8(codes, sign) } else { _mm512_unpackhi_epi8(codes, sign) };
            _mm512_sub_epi16(words, zero)
        };
        let (a, b) = (widened(a, zeros[0]), widened(b, zeros[1]));
        let both = [_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)];
        for (q, both) in both.into_iter().enumerate() {
            let (a, b) = (_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(both)), _mm512_srai_epi32::<16>(both));
            values[2 * half + q] = _mm512_mullo_epi32(_mm512_mullo_epi32(a, b), factor);
        }
    }
    values
}
