//! Tiles of 32 rows by 64 columns out of AMX's registers of 16 rows by 16 sums.
//!
//! ```text
//! registers 0 .. 3: sums of two blocks of sixteen rows by two panels    4, 5: left rows    6, 7: panels
//! ```
//! Left rows are loaded from where they lie, sixteen at a fixed distance; sixteen lines of a panel are a register as they lie.
//! Where rows are left over, the last block of rows begins earlier and computes some of them again; products of fewer than
//! sixteen rows use shorter registers. The instructions are written as assembly: the language has no stable names for them,
//! and no compiled code uses their registers.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#![allow(unsafe_code, reason = "instructions that a token has proved possible")]

use std::arch::asm;
use std::cell::RefCell;
use std::ops::Range;

use super::{COLUMNS, HEIGHT, Line, RowLayout, Sums, Tiles, WIDTH};
use crate::isa::Amx;

/// Lines in a register.
pub(super) const STEPS: usize = 16;
/// Rows of a register.
const ROWS: usize = 16;

/// As [`Tiles::multiply`], which has checked that every row lies within the codes.
pub(super) fn multiply(
    _: Amx,
    tiles: &Tiles,
    walk: &RowLayout<'_>,
    m: usize,
    blocks: Range<usize>,
    sink: &mut dyn FnMut(Sums<'_>),
) {
    BUFFER.with_borrow_mut(|sums| in_buffer(tiles, walk, m, blocks, sums, sink));
}

fn in_buffer(
    tiles: &Tiles,
    walk: &RowLayout<'_>,
    m: usize,
    blocks: Range<usize>,
    sums: &mut Buffer,
    sink: &mut dyn FnMut(Sums<'_>),
) {
    // SAFETY: the token proves the features.
    unsafe { configure(m.min(ROWS) as u8) };
    for block in blocks {
        let columns = tiles.columns(block);
        let mut row = 0;
        while row < m {
            let height = if m - row > ROWS && m >= HEIGHT { HEIGHT } else { ROWS };
            let first = row.min(m.saturating_sub(height));
            for half in 0..columns.len().div_ceil(2 * COLUMNS) {
                let target = Target { sums: sums.0[half * 2 * COLUMNS..].as_mut_ptr(), stride: WIDTH };
                // SAFETY: the token proves the features, the caller that rows `first..first + height`, or all of fewer than
                // sixteen, lie within the codes; the target has room for as many rows.
                unsafe { pair(tiles, walk, height, first, block * WIDTH / COLUMNS + 2 * half, target) };
            }
            let end = m.min(first + height);
            let sums = &mut sums.0[(row - first) * WIDTH..(end - first) * WIDTH];
            sink(Sums { rows: row..end, columns: columns.clone(), sums });
            row = end;
        }
    }
    // SAFETY: the token proves the feature.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// As [`Tiles::store`], which has checked that every row lies within the codes and `c` is `[m, n]`.
pub(super) fn store(_: Amx, tiles: &Tiles, walk: &RowLayout<'_>, m: usize, c: &mut [i32]) {
    let mut sums = Buffer([0; HEIGHT * WIDTH]);
    // SAFETY: the token proves the features.
    unsafe { configure(m.min(ROWS) as u8) };
    for panel in (0..tiles.n.div_ceil(COLUMNS)).step_by(2) {
        let column = panel * COLUMNS;
        let width = (tiles.n - column).min(2 * COLUMNS);
        let mut row = 0;
        while row < m {
            let height = if m - row > ROWS && m >= HEIGHT { HEIGHT } else { ROWS };
            let first = row.min(m.saturating_sub(height));
            let whole = width == 2 * COLUMNS;
            let target = if whole {
                Target { sums: c[first * tiles.n + column..].as_mut_ptr(), stride: tiles.n }
            } else {
                Target { sums: sums.0.as_mut_ptr(), stride: WIDTH }
            };
            // SAFETY: the token proves the features, the caller that rows `first..first + height`, or all of fewer than sixteen,
            // lie within the codes and `c`; all 32 columns do, or the target is the buffer.
            unsafe { pair(tiles, walk, height, first, panel, target) };
            let end = m.min(first + height);
            if !whole {
                for (row, sums) in (first..end).zip(sums.0.chunks_exact(WIDTH)) {
                    c[row * tiles.n + column..][..width].copy_from_slice(&sums[..width]);
                }
            }
            row = end;
        }
    }
    // SAFETY: the token proves the feature.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Where sums of two panels go: sixteen or 32 rows, `stride` sums from one to the next.
#[derive(Clone, Copy)]
struct Target {
    sums: *mut i32,
    stride: usize,
}

/// Sums of a tile, on cache lines of their own.
#[repr(C, align(64))]
struct Buffer([i32; HEIGHT * WIDTH]);

thread_local! {
    /// Clearing one for every product would take as long as a few tiles.
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer([0; HEIGHT * WIDTH])) };
}

/// The shapes of all registers: `rows` of sums and left codes, sixteen lines of a panel.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// # Safety
/// The processor has AMX and the system permits it.
unsafe fn configure(rows: u8) {
    let mut shapes = Configuration { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
    shapes.bytes[..8].fill(64);
    shapes.rows[..6].fill(rows);
    shapes.rows[6..8].fill(STEPS as u8);
    // SAFETY: the shapes are 64 readable bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
}

/// Sums of `height` rows (32 or sixteen) from `first` on and of two panels from `panel` on.
///
/// # Safety
/// The registers are configured, the rows' runs readable, the target writable for as many rows.
unsafe fn pair(tiles: &Tiles, walk: &RowLayout<'_>, height: usize, first: usize, panel: usize, target: Target) {
    let panels = [tiles.panel(panel).as_ptr(), tiles.panel(panel + 1).as_ptr()];
    // SAFETY: the caller's promise.
    unsafe {
        if height == HEIGHT {
            two_by_two(tiles, walk, first, panels, target);
        } else {
            one_by_two(tiles, walk, first, panels, target);
        }
    }
}

/// Sums of 32 rows from `first` on and of two panels.
///
/// # Safety
/// As for [`pair`].
unsafe fn two_by_two(tiles: &Tiles, walk: &RowLayout<'_>, first: usize, panels: [*const Line; 2], target: Target) {
    let [mut left, mut right] = panels;
    // SAFETY: the caller's promise; every panel has as many lines as all runs together.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        for &run in walk.runs {
            let upper = walk.codes.as_ptr().add(first * walk.stride + run);
            let lower = upper.add(ROWS * walk.stride);
            asm!(
                "2:",
                "tileloadd tmm4, [{upper} + {stride}]",
                "tileloadd tmm6, [{left} + {line}]",
                "tileloadd tmm7, [{right} + {line}]",
                "tileloadd tmm5, [{lower} + {stride}]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbssd tmm1, tmm4, tmm7",
                "tdpbssd tmm2, tmm5, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                "add {upper}, 64",
                "add {lower}, 64",
                "add {left}, 1024",
                "add {right}, 1024",
                "sub {count}, 1",
                "jnz 2b",
                upper = inout(reg) upper => _,
                lower = inout(reg) lower => _,
                left = inout(reg) left,
                right = inout(reg) right,
                count = inout(reg) tiles.steps / STEPS => _,
                stride = in(reg) walk.stride,
                line = in(reg) size_of::<Line>(),
                options(nostack, readonly),
            );
        }
        asm!(
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 64], tmm1",
            "tilestored [{lower} + {row}], tmm2",
            "tilestored [{lower} + {row} + 64], tmm3",
            sums = in(reg) target.sums,
            lower = in(reg) target.sums.add(ROWS * target.stride),
            row = in(reg) target.stride * size_of::<i32>(),
            options(nostack),
        );
    }
}

/// Sums of sixteen rows from `first` on (fewer, where the registers are shorter) and of two panels.
///
/// # Safety
/// As for [`two_by_two`].
unsafe fn one_by_two(tiles: &Tiles, walk: &RowLayout<'_>, first: usize, panels: [*const Line; 2], target: Target) {
    let [mut left, mut right] = panels;
    // SAFETY: the caller's promise; every panel has as many lines as all runs together.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
        for &run in walk.runs {
            asm!(
                "2:",
                "tileloadd tmm4, [{rows} + {stride}]",
                "tileloadd tmm6, [{left} + {line}]",
                "tileloadd tmm7, [{right} + {line}]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbssd tmm1, tmm4, tmm7",
                "add {rows}, 64",
                "add {left}, 1024",
                "add {right}, 1024",
                "sub {count}, 1",
                "jnz 2b",
                rows = inout(reg) walk.codes.as_ptr().add(first * walk.stride + run) => _,
                left = inout(reg) left,
                right = inout(reg) right,
                count = inout(reg) tiles.steps / STEPS => _,
                stride = in(reg) walk.stride,
                line = in(reg) size_of::<Line>(),
                options(nostack, readonly),
            );
        }
        asm!(
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 64], tmm1",
            sums = in(reg) target.sums,
            row = in(reg) target.stride * size_of::<i32>(),
            options(nostack),
        );
    }
}
