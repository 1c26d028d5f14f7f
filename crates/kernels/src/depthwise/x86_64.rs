//! The sums of [`super::Row`], compiled for vectors.
#![allow(unsafe_code, reason = "calls that a token has proved possible")]

use super::Row;
use crate::Element;
use crate::isa::{Avx2, Avx512Vnni};

/// Sums of one output pixel with 512-bit vectors.
pub(super) fn sums_512<X: Element, T: Copy + Default>(
    _: Avx512Vnni,
    row: &Row<'_, X>,
    pixel: usize,
    sums: &mut [T],
    add: impl Fn(&mut T, i32, i32),
) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn vector<X: Element, T: Copy + Default>(
        row: &Row<'_, X>,
        pixel: usize,
        sums: &mut [T],
        add: impl Fn(&mut T, i32, i32),
    ) {
        row.sums(pixel, sums, add);
    }
    // SAFETY: the token proves the features.
    unsafe { vector(row, pixel, sums, add) }
}

/// Sums of one output pixel with 256-bit vectors.
pub(super) fn sums_256<X: Element, T: Copy + Default>(
    _: Avx2,
    row: &Row<'_, X>,
    pixel: usize,
    sums: &mut [T],
    add: impl Fn(&mut T, i32, i32),
) {
    #[target_feature(enable = "avx2")]
    fn vector<X: Element, T: Copy + Default>(
        row: &Row<'_, X>,
        pixel: usize,
        sums: &mut [T],
        add: impl Fn(&mut T, i32, i32),
    ) {
        row.sums(pixel, sums, add);
    }
    // SAFETY: the token proves the features.
    unsafe { vector(row, pixel, sums, add) }
}
