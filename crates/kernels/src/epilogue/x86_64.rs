//! The float64 form of [`super::codes`], compiled for vectors.
#![allow(unsafe_code, reason = "calls that a token has proved possible")]

use std::arch::x86_64::*;

use super::codes512::{BOUNDED, DIRECT, DIRECT_BOUNDED, DIRECT_TABLED, Finish, Kind, PLAIN, TABLED};
use super::steps512::Steps;
use super::{Columns, Offsets, Order, Row, codes};
use crate::Element;
use crate::gemm::tiles::{Sums, WIDTH};
use crate::isa::{Avx2, Avx512Vbmi, Avx512Vnni};

impl Avx512Vnni {
    pub(super) fn narrow<Y: Element>(self, products: &[i32], offsets: Offsets<'_, i32>, row: Row<'_>, y: &mut [Y]) {
        // SAFETY: the token proves the features.
        unsafe { narrow_512(products, offsets, row, y) }
    }

    pub(super) fn wide<Y: Element>(self, products: &[i64], offsets: Offsets<'_, i64>, row: Row<'_>, y: &mut [Y]) {
        // SAFETY: the token proves the features.
        unsafe { wide_512(products, offsets, row, y) }
    }

    /// [`super::Epilogue::tile`].
    pub(super) fn tile(
        self,
        finish: &Finish<'_>,
        tile: &Sums<'_>,
        columns: &Columns,
        place: impl Fn(usize) -> Option<usize>,
        y: &mut [i8],
    ) {
        // SAFETY: the token proves the features.
        unsafe {
            match (columns.order(), tile.columns.len()) {
                (Order::Natural, ..=16) => rows::<true, 4>(finish, tile, columns, place, y),
                (Order::Natural, ..=32) => rows::<true, 2>(finish, tile, columns, place, y),
                (Order::Natural, _) => rows::<true, 1>(finish, tile, columns, place, y),
                (Order::Interleaved, _) => rows::<false, 1>(finish, tile, columns, place, y),
            }
        }
    }
}

/// Codes of a tile, so many rows at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rows<const NATURAL: bool, const ROWS: usize>(
    finish: &Finish<'_>,
    tile: &Sums<'_>,
    columns: &Columns,
    place: impl Fn(usize) -> Option<usize>,
    y: &mut [i8],
) {
    macro_rules! by {
        ($kind:ident) => {{
            let maker = finish.code_maker::<NATURAL, $kind>();
            each_row::<ROWS>(tile, columns, place, y, |sums, factors| maker.codes(sums, factors))
        }};
    }
    match finish.kind() {
        Kind::Direct => by!(DIRECT),
        Kind::DirectBounded => by!(DIRECT_BOUNDED),
        Kind::Plain => by!(PLAIN),
        Kind::Bounded => by!(BOUNDED),
        Kind::DirectTable => by!(DIRECT_TABLED),
        Kind::Table => by!(TABLED),
        // SAFETY: the steps have a token that proves the features.
        Kind::Steps(steps) => unsafe {
            stepped_rows::<NATURAL, ROWS>(steps.isa(), steps, finish, tile, columns, place, y);
        },
    }
}

/// [`rows`] through a table in registers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn stepped_rows<const NATURAL: bool, const ROWS: usize>(
    _: Avx512Vbmi,
    steps: &Steps,
    finish: &Finish<'_>,
    tile: &Sums<'_>,
    columns: &Columns,
    place: impl Fn(usize) -> Option<usize>,
    y: &mut [i8],
) {
    let stepper = steps.code_maker::<NATURAL>(finish.requant());
    each_row::<ROWS>(tile, columns, place, y, |sums, factors| stepper.codes(sums, factors));
}

/// Offsets and factors of the 64 columns from `first` on, in the order of the tiles.
///
/// # Panics
/// When no tile begins there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn column_terms(columns: &Columns, first: usize) -> ([__m512i; 4], [__m512; 4]) {
    assert!(first.is_multiple_of(WIDTH), "a tile begins where a block of columns does");
    let (own_offsets, own_factors) = (&columns.offsets[first..][..WIDTH], &columns.factors[first..][..WIDTH]);
    let (mut offsets, mut factors) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_ps(); 4]);
    for v in 0..4 {
        // SAFETY: sixteen readable elements each.
        unsafe {
            offsets[v] = _mm512_loadu_si512(own_offsets[v * 16..][..16].as_ptr().cast());
            factors[v] = _mm512_loadu_ps(own_factors[v * 16..][..16].as_ptr());
        }
    }
    (offsets, factors)
}

/// Codes that `make` makes of the sums of every row, offsets added, and the factors. Of tiles a half or a quarter as wide, two or four `ROWS` fill the vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn each_row<const ROWS: usize>(
    tile: &Sums<'_>,
    columns: &Columns,
    place: impl Fn(usize) -> Option<usize>,
    y: &mut [i8],
    make: impl Fn(&[__m512i; 4], &[__m512; 4]) -> __m512i,
) {
    let (first, width) = (tile.columns.start, tile.columns.len());
    let (vectors, lanes) = (4 / ROWS, WIDTH / ROWS);
    assert!(width <= lanes, "a row has as many vectors");
    let (own_offsets, own_factors) = column_terms(columns, first);
    let (mut offsets, mut factors) = (own_offsets, own_factors);
    for v in vectors..4 {
        (offsets[v], factors[v]) = (own_offsets[v % vectors], own_factors[v % vectors]);
    }
    let mask = u64::MAX >> (WIDTH - width);
    let own = tile.sums.as_chunks::<WIDTH>().0;
    for (row, own) in tile.rows.clone().step_by(ROWS).zip(own.chunks(ROWS)) {
        // Only a single row is worth asking for beforehand.
        if ROWS == 1 && place(row).is_none() {
            continue;
        }
        let mut sums = [_mm512_setzero_si512(); 4];
        for v in 0..4 {
            let part = &own[(v / vectors).min(own.len() - 1)][v % vectors * 16..][..16];
            // SAFETY: sixteen readable sums.
            sums[v] = _mm512_add_epi32(unsafe { _mm512_loadu_si512(part.as_ptr().cast()) }, offsets[v]);
        }
        let codes = make(&sums, &factors);
        for i in 0..own.len() {
            let Some(at) = place(row + i) else { continue };
            // The row's codes begin that many lanes into the vector.
            let target = y[at + first..][..width].as_mut_ptr().wrapping_sub(i * lanes);
            // SAFETY: the mask keeps the store within the row's codes.
            unsafe { _mm512_mask_storeu_epi8(target, mask << (i * lanes), codes) };
        }
    }
}

impl Avx2 {
    pub(super) fn narrow<Y: Element>(self, products: &[i32], offsets: Offsets<'_, i32>, row: Row<'_>, y: &mut [Y]) {
        // SAFETY: the token proves the features.
        unsafe { narrow_256(products, offsets, row, y) }
    }
}

#[inline(always)]
fn narrow<Y: Element>(products: &[i32], offsets: Offsets<'_, i32>, row: Row<'_>, y: &mut [Y]) {
    let sum = |(p, o): (&i32, &i32)| f64::from(p.wrapping_add(*o).wrapping_add(offsets.row));
    codes(products.iter().zip(offsets.columns).map(sum), row, y);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn narrow_512<Y: Element>(products: &[i32], offsets: Offsets<'_, i32>, row: Row<'_>, y: &mut [Y]) {
    narrow(products, offsets, row, y);
}

#[target_feature(enable = "avx2")]
fn narrow_256<Y: Element>(products: &[i32], offsets: Offsets<'_, i32>, row: Row<'_>, y: &mut [Y]) {
    narrow(products, offsets, row, y);
}

/// Every sum is below 2^38, so its float64 is exact.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn wide_512<Y: Element>(products: &[i64], offsets: Offsets<'_, i64>, row: Row<'_>, y: &mut [Y]) {
    codes(products.iter().zip(offsets.columns).map(|(p, o)| (p + o + offsets.row) as f64), row, y);
}
