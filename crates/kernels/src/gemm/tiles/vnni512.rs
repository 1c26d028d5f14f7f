//! Tiles of up to six rows by four panels in 512-bit registers: each step broadcasts four codes of a row against the lines of
//! the panels. `vpmaddubsw` is not used: it saturates.
#![allow(unsafe_code, reason = "vector loads, stores, and calls that a token has proved possible")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::{COLUMNS, Line, ROWS, RowLayout, Sums, Tiles, WIDTH};
use crate::isa::Avx512Vnni;

/// As [`Tiles::multiply`], which has checked that every row lies within the codes.
pub(super) fn multiply(
    _: Avx512Vnni,
    tiles: &Tiles,
    walk: &RowLayout<'_>,
    m: usize,
    blocks: Range<usize>,
    sink: &mut dyn FnMut(Sums<'_>),
) {
    let mut sums = [0; ROWS * WIDTH];
    for block in blocks {
        let columns = tiles.columns(block);
        let first = block * WIDTH / COLUMNS;
        // The panels of the next block, one with every tile.
        let next = (first + WIDTH / COLUMNS..tiles.n.div_ceil(COLUMNS)).take(WIDTH / COLUMNS);
        let mut next = next.map(|panel| tiles.panel(panel).as_ptr());
        let mut row = 0;
        while row < m {
            let rows = (m - row).min(ROWS);
            let ahead = next.next().unwrap_or(tiles.panel(first).as_ptr());
            macro_rules! tile {
                ($($rows:literal),*) => {
                    match (rows, columns.len().div_ceil(COLUMNS)) {
                        $(
                            // SAFETY: the token proves the features, the caller that the rows lie within the codes.
                            ($rows, 1) => unsafe { tile::<$rows, 1>(tiles, walk, row, first, ahead, &mut sums) },
                            // SAFETY: as above.
                            ($rows, 2) => unsafe { tile::<$rows, 2>(tiles, walk, row, first, ahead, &mut sums) },
                            // SAFETY: as above.
                            ($rows, 3) => unsafe { tile::<$rows, 3>(tiles, walk, row, first, ahead, &mut sums) },
                            // SAFETY: as above.
                            ($rows, 4) => unsafe { tile::<$rows, 4>(tiles, walk, row, first, ahead, &mut sums) },
                        )*
                        _ => unreachable!("tiles have one to six rows and one to four panels"),
                    }
                };
            }
            tile!(1, 2, 3, 4, 5, 6);
            sink(Sums { rows: row..row + rows, columns: columns.clone(), sums: &mut sums[..rows * WIDTH] });
            row += rows;
        }
    }
}

/// Sums of `R` rows from `row` on and of `V` panels from `first` on. On the way the lines from `ahead` on, as many as a panel has,
/// are asked for, so that they are near when their turn comes: weights are read once a run, from far away.
///
/// # Safety
/// The processor has the features, and [`Tiles::reach`] bytes are readable from every run of every row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile<const R: usize, const V: usize>(
    tiles: &Tiles,
    walk: &RowLayout<'_>,
    row: usize,
    first: usize,
    mut ahead: *const Line,
    sums: &mut [i32; ROWS * WIDTH],
) {
    // Loops instead of the functions of arrays: those would be called, as they are not compiled for the features.
    let mut registers = [[_mm512_setzero_si512(); V]; R];
    let start = &tiles.start[first * COLUMNS..][..V * COLUMNS];
    let mut lines = [tiles.lines.as_ptr(); V];
    for v in 0..V {
        // SAFETY: sixteen readable integers.
        let part = unsafe { _mm512_loadu_si512(start[v * COLUMNS..][..COLUMNS].as_ptr().cast()) };
        for registers in &mut registers {
            registers[v] = part;
        }
        lines[v] = tiles.panel(first + v).as_ptr();
    }
    let mut starts = [walk.codes.as_ptr(); R];
    for (r, start) in starts.iter_mut().enumerate() {
        // Read from where there are steps: else it may lie anywhere.
        *start = start.wrapping_add(walk.row(row + r));
    }
    for &run in walk.runs {
        // SAFETY: the caller's promise; every panel has as many lines as all runs together. Asking for lines reads none.
        unsafe {
            let mut rows = starts;
            for row in &mut rows {
                *row = row.add(run);
            }
            for step in 0..tiles.steps {
                let mut b = [_mm512_setzero_si512(); V];
                for v in 0..V {
                    b[v] = _mm512_load_si512(lines[v].cast());
                    lines[v] = lines[v].add(1);
                }
                _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                ahead = ahead.wrapping_add(1);
                for r in 0..R {
                    let four = rows[r].add(4 * step).cast::<i32>().read_unaligned();
                    let a = _mm512_set1_epi32(four);
                    for v in 0..V {
                        registers[r][v] = _mm512_dpbusd_epi32(registers[r][v], a, b[v]);
                    }
                }
            }
        }
    }
    for (sums, registers) in sums.chunks_exact_mut(WIDTH).zip(&registers) {
        for (sums, register) in sums.chunks_exact_mut(COLUMNS).zip(registers) {
            // SAFETY: sixteen writable integers.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), *register) };
        }
    }
}
