//! The float64 form of [`super::codes`], compiled for vectors.
#![allow(unsafe_code, reason = "calls that a token has proved possible")]

use std::arch::x86_64::*;

use tpuflow_ir::Requant;

use super::codes512::{self, Bounds};
use super::{Columns, Offsets, Order, Row, codes};
use crate::Element;
use crate::gemm::tiles::{Sums, WIDTH};
use crate::isa::{Avx2, Avx512Vnni};

impl Avx512Vnni {
    pub(super) fn narrow<Y: Element>(self, products: &[i32], offsets: Offsets<'_, i32>, row: Row<'_>, y: &mut [Y]) {
        // SAFETY: the token proves the features.
        unsafe { narrow_512(products, offsets, row, y) }
    }

    pub(super) fn wide<Y: Element>(self, products: &[i64], offsets: Offsets<'_, i64>, row: Row<'_>, y: &mut [Y]) {
        // SAFETY: the token proves the features.
        unsafe { wide_512(products, offsets, row, y) }
    }

    /// [`super::Epilogue::tile`], possibly through the results of every 16-bit code.
    pub(super) fn tile(
        self,
        requant: &Requant,
        table: Option<&[i8]>,
        tile: &Sums<'_>,
        columns: &Columns,
        place: impl Fn(usize) -> Option<usize>,
        y: &mut [i8],
    ) {
        // SAFETY: the token proves the features.
        unsafe {
            match columns.order() {
                Order::Natural => rows::<true>(requant, table, tile, columns, place, y),
                Order::Interleaved => rows::<false>(requant, table, tile, columns, place, y),
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rows<const NATURAL: bool>(
    requant: &Requant,
    table: Option<&[i8]>,
    tile: &Sums<'_>,
    columns: &Columns,
    place: impl Fn(usize) -> Option<usize>,
    y: &mut [i8],
) {
    let bounds = Bounds::new(requant);
    match table {
        None if columns.shrink && bounds.are_widest() => {
            each_row(tile, columns, place, y, |sums, factors| codes512::codes::<NATURAL, true>(sums, factors, &bounds))
        }
        None => {
            each_row(tile, columns, place, y, |sums, factors| codes512::codes::<NATURAL, false>(sums, factors, &bounds))
        }
        Some(table) => each_row(tile, columns, place, y, |sums, factors| {
            codes512::codes_through::<NATURAL>(sums, factors, requant, table)
        }),
    }
}

/// Stores what `codes` makes of the sums of every row, offsets added, and of their factors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn each_row(
    tile: &Sums<'_>,
    columns: &Columns,
    place: impl Fn(usize) -> Option<usize>,
    y: &mut [i8],
    codes: impl Fn(&[__m512i; 4], &[__m512; 4]) -> __m512i,
) {
    let first = tile.columns.start;
    assert!(first.is_multiple_of(WIDTH), "a tile begins where a block of columns does");
    let (own_offsets, own_factors) = (&columns.offsets[first..][..WIDTH], &columns.factors[first..][..WIDTH]);
    let mut offsets = [_mm512_setzero_si512(); 4];
    let mut factors = [_mm512_setzero_ps(); 4];
    for v in 0..4 {
        // SAFETY: sixteen readable elements each.
        unsafe {
            offsets[v] = _mm512_loadu_si512(own_offsets[v * 16..][..16].as_ptr().cast());
            factors[v] = _mm512_loadu_ps(own_factors[v * 16..][..16].as_ptr());
        }
    }
    let mask = u64::MAX >> (WIDTH - tile.columns.len());
    for (row, own) in tile.rows.clone().zip(tile.sums.as_chunks::<WIDTH>().0) {
        let Some(at) = place(row) else { continue };
        let y = &mut y[at + first..][..tile.columns.len()];
        let mut sums = [_mm512_setzero_si512(); 4];
        for v in 0..4 {
            // SAFETY: sixteen readable sums.
            let part = unsafe { _mm512_loadu_si512(own[v * 16..][..16].as_ptr().cast()) };
            sums[v] = _mm512_add_epi32(part, offsets[v]);
        }
        // SAFETY: the mask keeps the store within the row's codes.
        unsafe { _mm512_mask_storeu_epi8(y.as_mut_ptr(), mask, codes(&sums, &factors)) };
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
