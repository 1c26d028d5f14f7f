//! Vector variants: register tiles of a few rows by one or two panels, all of `k` in one go, products and sums apart.
#![allow(unsafe_code, reason = "vector loads, and calls that a token has proved possible")]

use std::arch::x86_64::*;

use super::{COLUMNS, Line, Packed};
use crate::isa::{Avx2, Avx512Vnni};

/// Calls `$tile::<R, ..>` for `$most` rows at a time and then for what is left.
macro_rules! row_blocks {
    ($m:expr, $most:literal, $row:ident, $tile:ident $(, $v:literal)? ; $($argument:expr),*) => {{
        let mut $row = 0;
        while $row < $m {
            let rows = ($m - $row).min($most);
            match rows {
                8 => $tile::<8 $(, $v)?>($($argument),*),
                7 => $tile::<7 $(, $v)?>($($argument),*),
                6 => $tile::<6 $(, $v)?>($($argument),*),
                5 => $tile::<5 $(, $v)?>($($argument),*),
                4 => $tile::<4 $(, $v)?>($($argument),*),
                3 => $tile::<3 $(, $v)?>($($argument),*),
                2 => $tile::<2 $(, $v)?>($($argument),*),
                _ => $tile::<1 $(, $v)?>($($argument),*),
            }
            $row += rows;
        }
    }};
}

pub(super) fn gemm_512(_: Avx512Vnni, b: &Packed, a: &[f32], c: &mut [f32]) {
    // SAFETY: the token proves the features.
    unsafe { product_512(b, a, c) }
}

pub(super) fn gemm_256(_: Avx2, b: &Packed, a: &[f32], c: &mut [f32]) {
    // SAFETY: the token proves the features.
    unsafe { product_256(b, a, c) }
}

#[target_feature(enable = "avx512f")]
fn product_512(b: &Packed, a: &[f32], c: &mut [f32]) {
    let [k, n] = b.shape;
    let (m, panels) = (c.len() / n, n.div_ceil(COLUMNS));
    for first in (0..panels).step_by(2) {
        let lines = &b.lines[first * k..];
        if first + 1 < panels {
            row_blocks!(m, 8, row, tile_512, 2; a, [k, n], row, lines, first, c);
        } else {
            row_blocks!(m, 8, row, tile_512, 1; a, [k, n], row, lines, first, c);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn tile_512<const R: usize, const V: usize>(
    a: &[f32],
    [k, n]: [usize; 2],
    row: usize,
    lines: &[Line],
    panel: usize,
    c: &mut [f32],
) {
    let rows: [&[f32]; R] = std::array::from_fn(|r| &a[(row + r) * k..][..k]);
    let panels: [&[Line]; V] = std::array::from_fn(|v| &lines[v * k..][..k]);
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for p in 0..k {
        // SAFETY: a line is 64 readable bytes, aligned to 64.
        let columns: [__m512; V] = std::array::from_fn(|v| unsafe { _mm512_load_ps(panels[v][p].0.as_ptr()) });
        for r in 0..R {
            let x = _mm512_set1_ps(rows[r][p]);
            for v in 0..V {
                sums[r][v] = _mm512_add_ps(sums[r][v], _mm512_mul_ps(x, columns[v]));
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (v, sums) in sums.iter().enumerate() {
            let mut line = Line([0.0; COLUMNS]);
            // SAFETY: a line is 64 writable bytes, aligned to 64.
            unsafe { _mm512_store_ps(line.0.as_mut_ptr(), *sums) };
            put(&line, (row + r) * n, (panel + v) * COLUMNS, n, c);
        }
    }
}

#[target_feature(enable = "avx2")]
fn product_256(b: &Packed, a: &[f32], c: &mut [f32]) {
    let [k, n] = b.shape;
    let m = c.len() / n;
    for panel in 0..n.div_ceil(COLUMNS) {
        row_blocks!(m, 6, row, tile_256; a, [k, n], row, &b.lines[panel * k..][..k], panel, c);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn tile_256<const R: usize>(a: &[f32], [k, n]: [usize; 2], row: usize, lines: &[Line], panel: usize, c: &mut [f32]) {
    let rows: [&[f32]; R] = std::array::from_fn(|r| &a[(row + r) * k..][..k]);
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    for (p, line) in lines.iter().enumerate() {
        let (low, high) = line.0.split_at(8);
        // SAFETY: each half of a line is 32 readable bytes, aligned to 32.
        let columns = unsafe { [_mm256_load_ps(low.as_ptr()), _mm256_load_ps(high.as_ptr())] };
        for r in 0..R {
            let x = _mm256_set1_ps(rows[r][p]);
            for v in 0..2 {
                sums[r][v] = _mm256_add_ps(sums[r][v], _mm256_mul_ps(x, columns[v]));
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let mut line = Line([0.0; COLUMNS]);
        let (low, high) = line.0.split_at_mut(8);
        // SAFETY: each half of a line is 32 writable bytes, aligned to 32.
        unsafe {
            _mm256_store_ps(low.as_mut_ptr(), sums[0]);
            _mm256_store_ps(high.as_mut_ptr(), sums[1]);
        }
        put(&line, (row + r) * n, panel * COLUMNS, n, c);
    }
}

/// Writes the columns that exist.
#[inline(always)]
fn put(line: &Line, start: usize, column: usize, n: usize, c: &mut [f32]) {
    let count = (n - column).min(COLUMNS);
    c[start + column..][..count].copy_from_slice(&line.0[..count]);
}
