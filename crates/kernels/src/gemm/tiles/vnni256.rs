//! Tiles of up to six rows by one panel, a pair of 256-bit registers each.
#![allow(unsafe_code, reason = "vector loads, stores, and calls that a token has proved possible")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::{COLUMNS, ROWS, RowLayout, Sums, Tiles, WIDTH};
use crate::isa::AvxVnni;

/// As [`Tiles::multiply`], which has checked that every row lies within the codes.
pub(super) fn multiply(
    _: AvxVnni,
    tiles: &Tiles,
    walk: &RowLayout<'_>,
    m: usize,
    blocks: Range<usize>,
    sink: &mut dyn FnMut(Sums<'_>),
) {
    tiles.by_panels(m, blocks, sink, |rows, row, panel, sums| {
        // SAFETY: the token proves the features, the caller that the rows lie within the codes.
        unsafe {
            match rows {
                6 => tile::<6>(tiles, walk, row, panel, sums),
                5 => tile::<5>(tiles, walk, row, panel, sums),
                4 => tile::<4>(tiles, walk, row, panel, sums),
                3 => tile::<3>(tiles, walk, row, panel, sums),
                2 => tile::<2>(tiles, walk, row, panel, sums),
                _ => tile::<1>(tiles, walk, row, panel, sums),
            }
        }
    });
}

/// Sums of `R` rows from `row` on and of one panel.
///
/// # Safety
/// The processor has the features, and [`Tiles::reach`] bytes are readable from every run of every row.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn tile<const R: usize>(
    tiles: &Tiles,
    walk: &RowLayout<'_>,
    row: usize,
    panel: usize,
    sums: &mut [i32; ROWS * WIDTH],
) {
    let start = &tiles.start[panel * COLUMNS..][..COLUMNS];
    // SAFETY: sixteen readable integers.
    let start = unsafe { [_mm256_loadu_si256(start.as_ptr().cast()), _mm256_loadu_si256(start[8..].as_ptr().cast())] };
    let mut registers = [start; R];
    let mut line = tiles.panel(panel).as_ptr();
    for &run in walk.runs {
        // SAFETY: the caller's promise; the panel has as many lines as all runs together.
        unsafe {
            let rows: [*const i8; R] = std::array::from_fn(|r| walk.codes.as_ptr().add(walk.row(row + r) + run));
            for step in 0..tiles.steps {
                let half = line.cast::<__m256i>();
                let b = [_mm256_load_si256(half), _mm256_load_si256(half.add(1))];
                line = line.add(1);
                for r in 0..R {
                    let a = _mm256_set1_epi32(rows[r].add(4 * step).cast::<i32>().read_unaligned());
                    for h in 0..2 {
                        registers[r][h] = _mm256_dpbusd_avx_epi32(registers[r][h], a, b[h]);
                    }
                }
            }
        }
    }
    for (sums, registers) in sums.chunks_exact_mut(WIDTH).zip(&registers) {
        for (sums, register) in sums.chunks_exact_mut(8).zip(registers) {
            // SAFETY: eight writable integers.
            unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), *register) };
        }
    }
}
