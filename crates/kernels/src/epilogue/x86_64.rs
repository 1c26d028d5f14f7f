//! The float64 form of [`super::codes`], compiled for vectors.
#![allow(unsafe_code, reason = "calls that a token has proved possible")]

use super::{Offsets, Row, codes};
use crate::Element;
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
