//! Vector variants: register tiles of up to six rows by a block of panels, all of `k` in one go.
//!
//! A tile holds its sums in registers; each step broadcasts one word of a row (four bytes of `k`) against the lines of the
//! block. `vpmaddubsw` is not used anywhere: it saturates.
#![allow(unsafe_code, reason = "vector loads, stores, and calls that a token has proved possible")]

use std::arch::x86_64::*;

use super::panels::{COLUMNS, Line, Panels};
use crate::isa::{Avx2, Avx512Vnni};

/// Most rows of a tile.
const ROWS: usize = 6;

/// Calls `$tile::<R, ..>` for the rows that are left, six at a time and then the rest.
macro_rules! row_blocks {
    ($m:expr, $row:ident, $tile:ident $(, $v:literal)? ; $($argument:expr),*) => {{
        let mut $row = 0;
        while $row < $m {
            let rows = ($m - $row).min(ROWS);
            match rows {
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

impl Avx512Vnni {
    /// `words`: rows of pairs; `run` sums of two products fit 32 bits.
    pub(super) fn gemm_i16i16i64(self, words: &[u32], b: &Panels, run: usize, m: usize, c: &mut [i64]) {
        // SAFETY: the token proves the features.
        unsafe { vnni_i16(words, b, run, m, c) }
    }
}

impl Avx2 {
    /// `words`: rows of pairs.
    pub(super) fn gemm_i8i8i32(self, words: &[u32], b: &Panels, m: usize, c: &mut [i32]) {
        // SAFETY: the token proves the features.
        unsafe { avx2_i8(words, b, m, c) }
    }

    /// `words`: rows of pairs; `run` sums of two products fit 32 bits.
    pub(super) fn gemm_i16i16i64(self, words: &[u32], b: &Panels, run: usize, m: usize, c: &mut [i64]) {
        // SAFETY: the token proves the features.
        unsafe { avx2_i16(words, b, run, m, c) }
    }
}

/// The rows of a tile, each `steps` words.
fn tile_rows<const R: usize>(words: &[u32], steps: usize, row: usize) -> [&[u32]; R] {
    std::array::from_fn(|r| &words[(row + r) * steps..][..steps])
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512i {
    // SAFETY: a line is 64 readable bytes, aligned to 64.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_halves(line: &Line) -> [__m256i; 2] {
    let (low, high) = line.0.split_at(32);
    // SAFETY: each half of a line is 32 readable bytes, aligned to 32.
    unsafe { [_mm256_load_si256(low.as_ptr().cast()), _mm256_load_si256(high.as_ptr().cast())] }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn vnni_i16(words: &[u32], b: &Panels, run: usize, m: usize, c: &mut [i64]) {
    for block in 0..b.blocks() {
        let (steps, n, columns) = (b.steps(), b.n(), b.columns(block));
        match b.panels(block) {
            2 => row_blocks!(m, row, vnni_i16_tile, 2; words, steps, row, b.block(block), run, n, columns.clone(), c),
            _ => row_blocks!(m, row, vnni_i16_tile, 1; words, steps, row, b.block(block), run, n, columns.clone(), c),
        }
    }
}

/// Sums of at most `run` steps in 32 bits, started at -1, then widened and added; the -1 of every run is given back at the end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[expect(clippy::too_many_arguments, reason = "the coordinates of a tile")]
fn vnni_i16_tile<const R: usize, const V: usize>(
    words: &[u32],
    steps: usize,
    row: usize,
    lines: &[Line],
    run: usize,
    n: usize,
    columns: std::ops::Range<usize>,
    c: &mut [i64],
) {
    let rows: [&[u32]; R] = tile_rows(words, steps, row);
    let lines = &lines.as_chunks::<V>().0[..steps];
    let mut wide = [[[_mm512_setzero_si512(); 2]; V]; R];
    let mut begin = 0;
    let mut runs = 0;
    while begin < steps {
        let end = begin.saturating_add(run).min(steps);
        let mut sums = [[_mm512_set1_epi32(-1); V]; R];
        for step in begin..end {
            let mut b = [_mm512_setzero_si512(); V];
            for v in 0..V {
                b[v] = load(&lines[step][v]);
            }
            for r in 0..R {
                let a = _mm512_set1_epi32(rows[r][step].cast_signed());
                for v in 0..V {
                    sums[r][v] = _mm512_dpwssd_epi32(sums[r][v], a, b[v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                let halves = [_mm512_castsi512_si256(sums[r][v]), _mm512_extracti64x4_epi64::<1>(sums[r][v])];
                for h in 0..2 {
                    wide[r][v][h] = _mm512_add_epi64(wide[r][v][h], _mm512_cvtepi32_epi64(halves[h]));
                }
            }
        }
        begin = end;
        runs += 1;
    }
    let runs = _mm512_set1_epi64(runs);
    for (r, wide) in wide.iter().enumerate() {
        let target = &mut c[(row + r) * n..][columns.clone()];
        for (half, sums) in wide.iter().flatten().enumerate() {
            let Some(target) = target.get_mut(half * 8..) else { break };
            let mask = (1u32 << target.len().min(8)).wrapping_sub(1) as u8;
            // SAFETY: the mask keeps the store within the target.
            unsafe { _mm512_mask_storeu_epi64(target.as_mut_ptr(), mask, _mm512_add_epi64(*sums, runs)) };
        }
    }
}

#[target_feature(enable = "avx2")]
fn avx2_i8(words: &[u32], b: &Panels, m: usize, c: &mut [i32]) {
    for block in 0..b.blocks() {
        let (steps, n, columns) = (b.steps(), b.n(), b.columns(block));
        row_blocks!(m, row, avx2_i8_tile; words, steps, row, b.block(block), n, columns.clone(), c);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn avx2_i8_tile<const R: usize>(
    words: &[u32],
    steps: usize,
    row: usize,
    lines: &[Line],
    n: usize,
    columns: std::ops::Range<usize>,
    c: &mut [i32],
) {
    let rows: [&[u32]; R] = tile_rows(words, steps, row);
    let mut sums = [[_mm256_setzero_si256(); 2]; R];
    for (step, line) in lines.iter().enumerate().take(steps) {
        let b = load_halves(line);
        for r in 0..R {
            let a = _mm256_set1_epi32(rows[r][step].cast_signed());
            for h in 0..2 {
                sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(a, b[h]));
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let mut spilled = [0; COLUMNS];
        for (spilled, sums) in spilled.chunks_exact_mut(8).zip(sums) {
            // SAFETY: eight writable sums.
            unsafe { _mm256_storeu_si256(spilled.as_mut_ptr().cast(), *sums) };
        }
        c[(row + r) * n..][columns.clone()].copy_from_slice(&spilled[..columns.len()]);
    }
}

#[target_feature(enable = "avx2")]
fn avx2_i16(words: &[u32], b: &Panels, run: usize, m: usize, c: &mut [i64]) {
    for block in 0..b.blocks() {
        let (steps, n, columns) = (b.steps(), b.n(), b.columns(block));
        let mut row = 0;
        // Two rows: their wide sums fill half of the registers.
        while row < m {
            if m - row >= 2 {
                avx2_i16_tile::<2>(words, steps, row, b.block(block), run, n, columns.clone(), c);
            } else {
                avx2_i16_tile::<1>(words, steps, row, b.block(block), run, n, columns.clone(), c);
            }
            row += 2;
        }
    }
}

/// As [`vnni_i16_tile`].
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::too_many_arguments, reason = "the coordinates of a tile")]
fn avx2_i16_tile<const R: usize>(
    words: &[u32],
    steps: usize,
    row: usize,
    lines: &[Line],
    run: usize,
    n: usize,
    columns: std::ops::Range<usize>,
    c: &mut [i64],
) {
    let rows: [&[u32]; R] = tile_rows(words, steps, row);
    let lines = &lines[..steps];
    let mut wide = [[[_mm256_setzero_si256(); 2]; 2]; R];
    let mut begin = 0;
    let mut runs = 0;
    while begin < steps {
        let end = begin.saturating_add(run).min(steps);
        let mut sums = [[_mm256_set1_epi32(-1); 2]; R];
        for step in begin..end {
            let b = load_halves(&lines[step]);
            for r in 0..R {
                let a = _mm256_set1_epi32(rows[r][step].cast_signed());
                for h in 0..2 {
                    sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(a, b[h]));
                }
            }
        }
        for r in 0..R {
            for h in 0..2 {
                let quarters = [_mm256_castsi256_si128(sums[r][h]), _mm256_extracti128_si256::<1>(sums[r][h])];
                for q in 0..2 {
                    wide[r][h][q] = _mm256_add_epi64(wide[r][h][q], _mm256_cvtepi32_epi64(quarters[q]));
                }
            }
        }
        begin = end;
        runs += 1;
    }
    for (r, wide) in wide.iter().enumerate() {
        let mut spilled = [0i64; COLUMNS];
        for (spilled, sums) in spilled.chunks_exact_mut(4).zip(wide.iter().flatten()) {
            // SAFETY: four writable sums.
            unsafe { _mm256_storeu_si256(spilled.as_mut_ptr().cast(), *sums) };
        }
        let target = &mut c[(row + r) * n..][columns.clone()];
        for (target, sum) in target.iter_mut().zip(spilled) {
            *target = sum + runs;
        }
    }
}
