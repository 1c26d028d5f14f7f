//! Sixty-four sums to int8 codes in 512-bit vectors.
//!
//! Sums are multiplied in float32, the zero point is added in the same step, and the result rounded. A sum of 31 bits and the
//! result each lose at most `2^-24` of their size, so a result below `2^9` in size, from a product below `2^10`, is off by less
//! than `2^-13`; whatever is larger is clamped either way. Where a result lies at least `2^-13` from every half, the nearest
//! integer is therefore the right one. Elsewhere, about once in a hundred vectors, and always at an exact half, all sixty-four
//! are computed again in float64, which is exact (see [`super`]).
//!
//! Where it is known beforehand how large sums can be, most often no result need be looked at. Sums up to `2^24` are exact in
//! float32, and multiplying them and adding `1.5 * 2^23`, next to which float32 values are one apart, is a single rounding, to
//! the nearest even integer. Larger sums may do as they like if their results are clamped anyway. What must hold is said by
//! [`is_direct`].
//!
//! Clamping is left to the saturation of narrowing, to 16 bits and then to 8.

use std::arch::x86_64::*;

use tpuflow_ir::Requant;

use super::steps512::Steps;

/// Zero point and clamps, in every lane.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    zero: __m512i,
    zero_ps: __m512,
    /// [`ROUNDER`] plus the zero point, or the even number below it; and its bits without, which give the rest back.
    rounder: __m512,
    origin: __m512i,
    lo: __m512i,
    hi: __m512i,
}

/// `1.5 * 2^23`: the spacing of float32 values near it is one.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// Whether sums of that size at most become codes by a single rounding in float32: those that are not exact there have results
/// of `2^9` or more, and no result is as far from the [`ROUNDER`] as `2^22`, zero points included. Factors are not negative.
pub(crate) fn is_direct(largest: u64, factor: f64, zero_point: i32) -> bool {
    let exact = largest <= 1 << 24 || factor == 0.0 || factor >= 1.0 / 32768.0;
    exact && factor >= 0.0 && largest as f64 * factor < 4_194_000.0 && i8::try_from(zero_point).is_ok()
}

/// As [`is_direct`], of sums that become codes of 16 bits first.
pub(crate) fn is_direct_between(largest: u64, factor: f64, zero_point: i32) -> bool {
    let exact = largest <= 1 << 24 || factor == 0.0 || factor >= 1.0 / 128.0;
    exact && factor >= 0.0 && largest as f64 * factor < 4_100_000.0 && i16::try_from(zero_point).is_ok()
}

/// How sums become codes.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) requant: &'a Requant,
    /// The result of every 16-bit code; empty where there is no table.
    pub(super) table: &'a [i8],
}

/// Ways to compute codes; each is compiled on its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    /// Sums as [`is_direct`] says and the widest bounds.
    Direct,
    /// The same with any bounds.
    DirectBounded,
    /// Factors below one in size and the widest bounds.
    Plain,
    /// Any factors and bounds.
    Bounded,
    /// Sums as [`is_direct_between`] says, 16-bit codes and a table.
    DirectTable,
    /// 16-bit codes and a table.
    Table,
    /// As [`Self::DirectTable`], in registers; the zero point is even, since it stands in what is rounded to even.
    Steps(&'a Steps),
}

/// [`Kind`] as a parameter of functions.
pub(crate) const DIRECT: u8 = 0;
/// As [`DIRECT`].
pub(crate) const DIRECT_BOUNDED: u8 = 1;
/// As [`DIRECT`].
pub(crate) const PLAIN: u8 = 2;
/// As [`DIRECT`].
pub(crate) const BOUNDED: u8 = 3;
/// As [`DIRECT`].
pub(crate) const DIRECT_TABLED: u8 = 4;
/// As [`DIRECT`].
pub(crate) const TABLED: u8 = 5;

impl<'a> Finish<'a> {
    /// The kind, for a match over constants.
    pub(crate) fn kind(&self) -> Kind<'a> {
        self.kind
    }

    /// The requantisation.
    pub(crate) fn requant(&self) -> &'a Requant {
        self.requant
    }

    /// The constants of all sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn code_maker<const NATURAL: bool, const KIND: u8>(&self) -> CodeMaker<'a, NATURAL, KIND> {
        CodeMaker { bounds: Bounds::new(self.requant), finish: *self }
    }
}

/// A [`Finish`] whose kind is known.
pub(crate) struct CodeMaker<'a, const NATURAL: bool, const KIND: u8> {
    bounds: Bounds,
    finish: Finish<'a>,
}

impl<const NATURAL: bool, const KIND: u8> CodeMaker<'_, NATURAL, KIND> {
    /// Codes of 64 sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn codes(&self, sums: &[__m512i; 4], factors: &[__m512; 4]) -> __m512i {
        let (requant, table) = (self.finish.requant, self.finish.table);
        match KIND {
            DIRECT_TABLED => codes_through::<NATURAL, true>(sums, factors, requant, table),
            TABLED => codes_through::<NATURAL, false>(sums, factors, requant, table),
            _ => codes::<NATURAL, KIND>(sums, factors, &self.bounds),
        }
    }
}

/// Codes of 64 sums without a table; `NATURAL` as [`super::Order`] says, `KIND` as [`Kind`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn codes<const NATURAL: bool, const KIND: u8>(
    sums: &[__m512i; 4],
    factors: &[__m512; 4],
    bounds: &Bounds,
) -> __m512i {
    match KIND {
        DIRECT => direct::<NATURAL, true>(sums, factors, bounds),
        DIRECT_BOUNDED => direct::<NATURAL, false>(sums, factors, bounds),
        PLAIN => codes_with_tie_check::<NATURAL, true>(sums, factors, bounds),
        _ => codes_with_tie_check::<NATURAL, false>(sums, factors, bounds),
    }
}

/// The result of every 16-bit code, from the least on, and three bytes more, since vectors read four at a time.
pub(crate) const TABLE: usize = (1 << 16) + 3;

impl Bounds {
    /// The bounds of a requantisation to int8 codes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn new(requant: &Requant) -> Self {
        Self {
            zero: _mm512_set1_epi16(requant.zero_point as i16),
            zero_ps: _mm512_set1_ps(requant.zero_point as f32),
            rounder: _mm512_set1_ps(ROUNDER + (requant.zero_point & !1) as f32),
            origin: _mm512_set1_epi32(ROUNDER.to_bits().cast_signed() - (requant.zero_point & 1)),
            lo: _mm512_set1_epi8(requant.lo as i8),
            hi: _mm512_set1_epi8(requant.hi as i8),
        }
    }
}

/// Codes of sums as [`is_direct`] says. `WIDEST`: no bounds but those of int8.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn direct<const NATURAL: bool, const WIDEST: bool>(
    sums: &[__m512i; 4],
    factors: &[__m512; 4],
    bounds: &Bounds,
) -> __m512i {
    let mut rounded = [_mm512_setzero_si512(); 4];
    for v in 0..4 {
        let result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[v]), factors[v], bounds.rounder);
        rounded[v] = _mm512_sub_epi32(_mm512_castps_si512(result), bounds.origin);
    }
    let low = _mm512_packs_epi32(rounded[0], rounded[1]);
    let high = _mm512_packs_epi32(rounded[2], rounded[3]);
    let codes = ordered::<NATURAL>(_mm512_packs_epi16(low, high));
    if WIDEST { codes } else { _mm512_min_epi8(_mm512_max_epi8(codes, bounds.lo), bounds.hi) }
}

/// Codes of 64 sums, looked at for how near they are to a half. `PLAIN`: factors are below one and bounds the widest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn codes_with_tie_check<const NATURAL: bool, const PLAIN: bool>(
    sums: &[__m512i; 4],
    factors: &[__m512; 4],
    bounds: &Bounds,
) -> __m512i {
    /// Largest distance of a result from the nearest integer at which that is the exact result's too.
    const SAFE: f32 = 0.5 - 1.0 / 8192.0;
    let most = _mm512_set1_ps(32767.0);
    let mut farthest = _mm512_setzero_ps();
    let mut rounded = [_mm512_setzero_si512(); 4];
    for v in 0..4 {
        let result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[v]), factors[v], bounds.zero_ps);
        let apart = _mm512_reduce_ps::<0b1000>(result);
        // The larger magnitude of both.
        farthest = if v == 0 { apart } else { _mm512_range_ps::<0b1011>(farthest, apart) };
        // Beyond 32 bits the conversion would give the least integer; a sum times less than one stays within.
        rounded[v] = _mm512_cvtps_epi32(if PLAIN { result } else { _mm512_min_ps(result, most) });
    }
    if _mm512_cmp_ps_mask::<_CMP_GT_OQ>(farthest, _mm512_set1_ps(SAFE)) != 0 {
        return exact::<NATURAL>(sums, factors, bounds);
    }
    let low = _mm512_packs_epi32(rounded[0], rounded[1]);
    let high = _mm512_packs_epi32(rounded[2], rounded[3]);
    let codes = ordered::<NATURAL>(_mm512_packs_epi16(low, high));
    if PLAIN { codes } else { _mm512_min_epi8(_mm512_max_epi8(codes, bounds.lo), bounds.hi) }
}

/// As [`codes_with_tie_check`], in float64. A call would have the sums of every row wait in memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn exact<const NATURAL: bool>(sums: &[__m512i; 4], factors: &[__m512; 4], bounds: &Bounds) -> __m512i {
    let most = _mm512_set1_pd(32767.0);
    let mut rounded = [_mm512_setzero_si512(); 4];
    for v in 0..4 {
        let [low, high] = products(sums[v], factors[v]);
        rounded[v] = _mm512_inserti64x4::<1>(
            _mm512_castsi256_si512(_mm512_cvtpd_epi32(_mm512_min_pd(low, most))),
            _mm512_cvtpd_epi32(_mm512_min_pd(high, most)),
        );
    }
    narrow_rounded::<NATURAL>(&rounded, bounds)
}

/// Products of sixteen sums and factors, exact.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn products(sums: __m512i, factors: __m512) -> [__m512d; 2] {
    let sums = [_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64::<1>(sums)];
    let factors = [_mm512_castps512_ps256(factors), _mm512_extractf32x8_ps::<1>(factors)];
    [
        _mm512_mul_pd(_mm512_cvtepi32_pd(sums[0]), _mm512_cvtps_pd(factors[0])),
        _mm512_mul_pd(_mm512_cvtepi32_pd(sums[1]), _mm512_cvtps_pd(factors[1])),
    ]
}

/// Rounded products, at most 32767, plus the zero point, clamped. Products below the least 32-bit integer have become it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn narrow_rounded<const NATURAL: bool>(rounded: &[__m512i; 4], bounds: &Bounds) -> __m512i {
    let low = _mm512_adds_epi16(_mm512_packs_epi32(rounded[0], rounded[1]), bounds.zero);
    let high = _mm512_adds_epi16(_mm512_packs_epi32(rounded[2], rounded[3]), bounds.zero);
    let codes = ordered::<NATURAL>(_mm512_packs_epi16(low, high));
    _mm512_min_epi8(_mm512_max_epi8(codes, bounds.lo), bounds.hi)
}

/// Undoes the interleaving of two narrowings of natural vectors; interleaved ones it has just put in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn ordered<const NATURAL: bool>(codes: __m512i) -> __m512i {
    if NATURAL {
        let places = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_permutexvar_epi32(places, codes)
    } else {
        codes
    }
}

/// Codes of 64 sums through 16-bit codes and a table of their results.
///
/// Sums below `2^24` are exact in float32, and a product that is not rounded to a half lies on the same side of every half as
/// the exact product, since halves in the range of codes are float32 values. Other sums are multiplied in float64. `DIRECT`: sums
/// are as [`is_direct_between`] says.
///
/// # Panics
/// When the intermediate's clamps or its zero point are no 16-bit codes, or the table is not [`TABLE`] long.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[allow(unsafe_code, reason = "indices that were clamped to the table")]
fn codes_through<const NATURAL: bool, const DIRECT: bool>(
    sums: &[__m512i; 4],
    factors: &[__m512; 4],
    requant: &Requant,
    table: &[i8],
) -> __m512i {
    let are_codes = [requant.lo, requant.hi, requant.zero_point].iter().all(|&code| i16::try_from(code).is_ok());
    assert!(are_codes && table.len() == TABLE, "16-bit codes and a table of all of them");
    let least = _mm512_set1_ps((requant.lo - requant.zero_point) as f32);
    let most = _mm512_set1_ps((requant.hi - requant.zero_point) as f32);
    let mut magnitude = _mm512_setzero_si512();
    let mut farthest = _mm512_setzero_ps();
    let mut codes = [_mm512_setzero_si512(); 4];
    let rounder = _mm512_set1_ps(ROUNDER);
    for v in 0..4 {
        if DIRECT {
            let result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[v]), factors[v], rounder);
            let (least, most) = (_mm512_add_ps(least, rounder), _mm512_add_ps(most, rounder));
            let bounded = _mm512_min_ps(_mm512_max_ps(result, least), most);
            codes[v] = _mm512_sub_epi32(_mm512_castps_si512(bounded), _mm512_castps_si512(rounder));
            continue;
        }
        magnitude = _mm512_or_si512(magnitude, _mm512_abs_epi32(sums[v]));
        let product = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[v]), factors[v]);
        farthest = _mm512_range_ps::<0b1011>(farthest, _mm512_reduce_ps::<0b1000>(product));
        codes[v] = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(product, least), most));
    }
    let large = _mm512_test_epi32_mask(magnitude, _mm512_set1_epi32(0xFF00_0000_u32.cast_signed()));
    if !DIRECT && large | _mm512_cmp_ps_mask::<_CMP_GE_OQ>(farthest, _mm512_set1_ps(0.5)) != 0 {
        codes = exact_codes_16(sums, factors, requant);
    }
    // From code to index.
    let origin = _mm512_set1_epi32(requant.zero_point + 32768);
    let (byte, last) = (_mm512_set1_epi32(0xFF), _mm512_set1_epi32(0xFFFF));
    for codes in &mut codes {
        let index = _mm512_min_epu32(_mm512_add_epi32(*codes, origin), last);
        // SAFETY: the index was clamped to 16 bits, and the table has three bytes more.
        let found = unsafe { _mm512_i32gather_epi32::<1>(index, table.as_ptr().cast()) };
        *codes = _mm512_and_si512(found, byte);
    }
    let low = _mm512_packus_epi32(codes[0], codes[1]);
    let high = _mm512_packus_epi32(codes[2], codes[3]);
    ordered::<NATURAL>(_mm512_packus_epi16(low, high))
}

/// Rounded products, clamped so that they are 16-bit codes once the zero point is added, in float64.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn exact_codes_16(sums: &[__m512i; 4], factors: &[__m512; 4], requant: &Requant) -> [__m512i; 4] {
    let least = _mm512_set1_pd(f64::from(requant.lo) - f64::from(requant.zero_point));
    let most = _mm512_set1_pd(f64::from(requant.hi) - f64::from(requant.zero_point));
    let mut codes = [_mm512_setzero_si512(); 4];
    for v in 0..4 {
        let [low, high] = products(sums[v], factors[v]);
        codes[v] = _mm512_inserti64x4::<1>(
            _mm512_castsi256_si512(_mm512_cvtpd_epi32(_mm512_min_pd(_mm512_max_pd(low, least), most))),
            _mm512_cvtpd_epi32(_mm512_min_pd(_mm512_max_pd(high, least), most)),
        );
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One part in `2^50` more or less.
    const NEXT: f64 = 1.0 / (1u64 << 50) as f64;

    #[test]
    fn a_single_rounding_does_for_small_sums_and_for_large_factors() {
        // Sums of more than 24 bits need a factor of which the largest inexact ones become no code.
        type Direct = fn(u64, f64, i32) -> bool;
        for (direct, least, most, zero_points) in [
            (is_direct as Direct, 1.0 / 32768.0, 4_194_000.0, [-128, 127]),
            (is_direct_between as Direct, 1.0 / 128.0, 4_100_000.0, [-32768, 32767]),
        ] {
            let inexact = (1 << 24) + 1;
            for zero_point in zero_points {
                assert!(direct(inexact, least, zero_point) && direct(inexact, 2.0 * least, zero_point));
                assert!(!direct(inexact, least * (1.0 - NEXT), zero_point));
                assert!(direct(inexact - 1, least * (1.0 - NEXT), zero_point) && direct(u64::MAX, 0.0, zero_point));
                assert!(!direct(1, -least, zero_point));
                assert!(!direct(1, most, zero_point) && direct(1, most * (1.0 - NEXT), zero_point));
            }
            assert!(!direct(1, least, zero_points[0] - 1) && !direct(1, least, zero_points[1] + 1));
        }
    }
}
