//! Tiles of up to six rows by one panel, four 128-bit registers each: each step broadcasts four codes of a row against the line
//! of the panel. The dot product is written as assembly: the language has no stable name for it.
//!
//! Source: Arm Architecture Reference Manual for A-profile, SDOT (vector).
#![allow(unsafe_code, reason = "vector loads, stores, and instructions that a token has proved possible")]

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::{COLUMNS, ROWS, RowLayout, Sums, Tiles, WIDTH};
use crate::isa::Neon;

/// Vectors of a line.
const VECTORS: usize = 4;

/// As [`Tiles::multiply`], which has checked that every row lies within the codes.
pub(super) fn multiply(
    _: Neon,
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
#[target_feature(enable = "neon,dotprod")]
unsafe fn tile<const R: usize>(
    tiles: &Tiles,
    walk: &RowLayout<'_>,
    row: usize,
    panel: usize,
    sums: &mut [i32; ROWS * WIDTH],
) {
    let mut registers = [[vdupq_n_s32(0); VECTORS]; R];
    let mut line = tiles.panel(panel).as_ptr();
    for &run in walk.runs {
        // SAFETY: the caller's promise; the panel has as many lines as all runs together.
        unsafe {
            let rows: [*const i8; R] = std::array::from_fn(|r| walk.codes.as_ptr().add(walk.row(row + r) + run));
            for step in 0..tiles.steps {
                let part = line.cast::<i8>();
                let mut weights = [vdupq_n_s8(0); VECTORS];
                for v in 0..VECTORS {
                    weights[v] = vld1q_s8(part.add(16 * v));
                }
                line = line.add(1);
                for r in 0..R {
                    let four = rows[r].add(4 * step).cast::<i32>().read_unaligned();
                    let codes = vreinterpretq_s8_s32(vdupq_n_s32(four));
                    for v in 0..VECTORS {
                        registers[r][v] = dot(registers[r][v], codes, weights[v]);
                    }
                }
            }
        }
    }
    for (sums, registers) in sums.chunks_exact_mut(WIDTH).zip(&registers) {
        for (sums, register) in sums.chunks_exact_mut(4).zip(registers) {
            // SAFETY: four writable integers.
            unsafe { vst1q_s32(sums.as_mut_ptr(), *register) };
        }
    }
}

/// Every lane of `sums` plus the sum of four products.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(mut sums: int32x4_t, codes: int8x16_t, weights: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction touches nothing but its registers, and the feature is there.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {codes:v}.16b, {weights:v}.16b",
            sums = inout(vreg) sums,
            codes = in(vreg) codes,
            weights = in(vreg) weights,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
