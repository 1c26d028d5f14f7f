//! Products of int8 codes tile by tile, for instruction sets that sum products of bytes.
//!
//! ```text
//! left rows                    packed right operand            sums of a tile
//! row i: run 0 | run 1 | ..    panel: sixteen columns          up to 32 rows by 64 columns,
//! each somewhere in memory     line: four codes of each        handed on while still in the first-level cache
//! ```
//! Left rows are not gathered: a [`RowLayout`] says where they lie. Row `i` is a row of runs, and run `r` of row `i` begins at
//! `i * stride + runs[r]`, plus a distance for every line of rows before; the windows of a convolution along a line of an image are such rows. Whoever takes the sums turns
//! them into codes, so no matrix of sums is ever written to memory.
//!
//! A run is read in steps of four bytes ([`Tiles::reach`]); what lies behind its end meets weights of zero.
//!
//! | variant | a tile | codes |
//! |---|---|---|
//! | `avxvnni` | 6 rows by 16 columns | plus 128 ([`Tiles::flip`]); sums start at `-128 * column sum` |
//! | `avx512vnni` | 6 by 64 | the same |
//! | `amx` | 32 by 64, in quarters | as they are |
//! | `neon` | 6 by 16 | as they are |

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod vnni256;
#[cfg(target_arch = "x86_64")]
mod vnni512;

use std::ops::Range;

use super::panels::{COLUMNS, Line};
use crate::Isa;
use crate::buffers::LINE;
#[cfg(target_arch = "aarch64")]
use crate::isa::Neon;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Amx, Avx512Vnni, AvxVnni};
use crate::pages::{self, Addresses};

/// Most columns of a tile, and the distance between its rows.
pub const WIDTH: usize = 64;
/// Most rows of a tile.
pub const HEIGHT: usize = 32;
/// Rows of a tile of the vector variants.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const ROWS: usize = 6;

/// The instruction sets there are tiles for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// 256-bit dot products.
    #[cfg(target_arch = "x86_64")]
    Vnni256(AvxVnni),
    /// 512-bit dot products.
    #[cfg(target_arch = "x86_64")]
    Vnni512(Avx512Vnni),
    /// Tile products.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// 128-bit dot products.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// The differences between variants beside their instructions.
struct Form {
    /// Lines a run is filled up to a multiple of.
    lines: usize,
    /// Panels an operand is filled up to a multiple of.
    panels: usize,
    /// The mask by which the bits of left codes are flipped.
    flip: i8,
}

impl Variant {
    /// The variant of an instruction set, if it has one.
    #[must_use]
    pub fn of(isa: Isa) -> Option<Self> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni(isa) => Some(Self::Vnni256(isa)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(isa) => Some(Self::Vnni512(isa)),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx(isa) => Some(Self::Amx(isa)),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(isa) => Some(Self::Neon(isa)),
            _ => None,
        }
    }

    fn form(self) -> Form {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni256(_) | Self::Vnni512(_) => Form { lines: 1, panels: 1, flip: i8::MIN },
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => Form { lines: amx::STEPS, panels: 2, flip: 0 },
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => Form { lines: 1, panels: 1, flip: 0 },
        }
    }
}

/// Where the rows of a left operand lie.
#[derive(Clone, Copy, Debug)]
pub struct RowLayout<'a> {
    /// Codes, flipped as [`Tiles::flip`] says.
    pub codes: &'a [i8],
    /// From one row to the next.
    pub stride: usize,
    /// Rows of a line, and how much further than `stride` the first row of the next one is. [`Tiles::skips`] says whether it
    /// may be any.
    pub line: [usize; 2],
    /// Where the runs of row 0 begin.
    pub runs: &'a [usize],
}

impl RowLayout<'_> {
    /// [`Self::line`] of rows that are all one line.
    pub const EVEN: [usize; 2] = [1, 0];

    /// Where run 0 of row `row` would begin if that of row 0 began at 0.
    fn row(&self, row: usize) -> usize {
        // Divisions take as long as a few steps of a tile.
        row * self.stride + if self.line[1] == 0 { 0 } else { row / self.line[0] * self.line[1] }
    }
}

/// Sums of some rows and columns of a product.
#[derive(Debug)]
pub struct Sums<'a> {
    /// Rows of the product.
    pub rows: Range<usize>,
    /// Columns of the product, at most [`WIDTH`].
    pub columns: Range<usize>,
    /// The sum of row `rows.start + i` and column `columns.start + j` is `sums[i * WIDTH + j]`.
    pub sums: &'a mut [i32],
}

/// A right operand `[k, n]`, `k` in runs of equal length.
#[derive(Clone, Debug)]
pub struct Tiles {
    variant: Variant,
    n: usize,
    /// Number of runs and their length.
    runs: usize,
    length: usize,
    /// Lines of a run and panel.
    steps: usize,
    /// Panel after panel, run after run.
    lines: Vec<Line>,
    /// The initial sum of each column; as long as all panels.
    start: Vec<i32>,
}

impl Tiles {
    /// Packs `at(row, column)` of `runs * length` rows and `n` columns.
    #[must_use]
    pub fn new(variant: Variant, [runs, length]: [usize; 2], n: usize, at: impl Fn(usize, usize) -> i8) -> Self {
        let form = variant.form();
        let steps = length.div_ceil(4).next_multiple_of(form.lines);
        let panels = n.div_ceil(COLUMNS).next_multiple_of(form.panels);
        let mut lines = vec![Line([0; 64]); panels * runs * steps];
        let mut start = vec![0i32; panels * COLUMNS];
        for panel in 0..n.div_ceil(COLUMNS) {
            let columns = panel * COLUMNS..n.min((panel + 1) * COLUMNS);
            for run in 0..runs {
                let lines = &mut lines[(panel * runs + run) * steps..][..steps];
                for (step, line) in lines.iter_mut().enumerate() {
                    let rows = step * 4..length.min(step * 4 + 4);
                    for (four, j) in line.0.as_chunks_mut::<4>().0.iter_mut().zip(columns.clone()) {
                        for (byte, p) in four.iter_mut().zip(rows.clone()) {
                            let code = at(run * length + p, j);
                            *byte = code.cast_unsigned();
                            start[j] = start[j].wrapping_add(i32::from(code));
                        }
                    }
                }
            }
        }
        // A flipped code is 128 more than it was.
        for start in &mut start {
            *start = start.wrapping_mul(form.flip.into());
        }
        Self { variant, n, runs, length, steps, lines, start }
    }

    /// Where it lies.
    #[must_use]
    pub fn memory(&self) -> Addresses {
        pages::of(&self.lines)
    }

    /// The mask by which the bits of left codes are flipped before they are multiplied.
    #[must_use]
    pub fn flip(&self) -> i8 {
        self.variant.form().flip
    }

    /// Bytes read of every run, at least its length.
    #[must_use]
    pub fn reach(&self) -> usize {
        self.steps * 4
    }

    /// Whether left rows are read from where they lie as quickly as from a copy: their bits are not flipped, and they do not
    /// lie across cache lines needlessly, which counts once for every block of columns.
    #[must_use]
    pub fn suits(&self, codes: &[i8]) -> bool {
        let across = self.length.is_multiple_of(LINE) && codes.as_ptr().align_offset(LINE) != 0;
        self.flip() == 0 && !(across && self.blocks() > 1)
    }

    /// Whether rows may be at uneven distances, see [`RowLayout::line`].
    #[must_use]
    pub fn skips(&self) -> bool {
        match self.variant {
            // Loads of whole tiles know one distance.
            #[cfg(target_arch = "x86_64")]
            Variant::Amx(_) => false,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            _ => true,
        }
    }

    /// Where the runs of row 0 begin when they follow each other.
    #[must_use]
    pub fn dense(&self) -> Vec<usize> {
        (0..self.runs).map(|run| run * self.length).collect()
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Blocks of [`WIDTH`] columns.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.n.div_ceil(WIDTH)
    }

    /// The walk, once it is certain that the first `m` rows lie within the codes, of which there are some.
    fn checked<'a>(&self, walk: &RowLayout<'a>, m: usize) -> RowLayout<'a> {
        assert_eq!(walk.runs.len(), self.runs, "as many runs on both sides");
        let walk = RowLayout { runs: if self.steps == 0 { &[] } else { walk.runs }, ..*walk };
        assert!(walk.line[1] == 0 || (self.skips() && walk.line[0] > 0), "rows at distances that the variant can take");
        let last = walk.runs.iter().max().map_or(0, |run| walk.row(m - 1) + run + self.reach());
        assert!(last <= walk.codes.len(), "rows lie within the codes");
        walk
    }

    /// The sums of the first `m` rows to `c` `[m, n]`.
    ///
    /// # Panics
    /// When a row reaches beyond the codes or has another number of runs, or `c` another size.
    pub fn store(&self, walk: &RowLayout<'_>, m: usize, c: &mut [i32]) {
        assert_eq!(c.len(), m * self.n, "a sum per row and column");
        #[cfg(target_arch = "x86_64")]
        if let Variant::Amx(isa) = self.variant
            && m > 0
        {
            return amx::store(isa, self, &self.checked(walk, m), m, c);
        }
        self.multiply(walk, m, 0..self.blocks(), &mut |tile| {
            for (row, sums) in tile.rows.zip(tile.sums.chunks_exact(WIDTH)) {
                c[row * self.n..][tile.columns.clone()].copy_from_slice(&sums[..tile.columns.len()]);
            }
        });
    }

    /// Sums of the first `m` rows and of the columns of `blocks`, exact modulo 2^32. Every sum is handed on once, block of
    /// columns after block of columns.
    ///
    /// # Panics
    /// When a row reaches beyond the codes, or has another number of runs.
    pub fn multiply(&self, walk: &RowLayout<'_>, m: usize, blocks: Range<usize>, sink: &mut dyn FnMut(Sums<'_>)) {
        assert!(blocks.end <= self.blocks(), "blocks of the operand");
        if m == 0 {
            return;
        }
        let walk = &self.checked(walk, m);
        match self.variant {
            #[cfg(target_arch = "x86_64")]
            Variant::Vnni256(isa) => vnni256::multiply(isa, self, walk, m, blocks, sink),
            #[cfg(target_arch = "x86_64")]
            Variant::Vnni512(isa) => vnni512::multiply(isa, self, walk, m, blocks, sink),
            #[cfg(target_arch = "x86_64")]
            Variant::Amx(isa) => amx::multiply(isa, self, walk, m, blocks, sink),
            #[cfg(target_arch = "aarch64")]
            Variant::Neon(isa) => neon::multiply(isa, self, walk, m, blocks, sink),
        }
    }

    /// Lines of a panel, run after run.
    fn panel(&self, panel: usize) -> &[Line] {
        let length = self.runs * self.steps;
        &self.lines[panel * length..][..length]
    }

    /// Columns of a block.
    fn columns(&self, block: usize) -> Range<usize> {
        block * WIDTH..self.n.min((block + 1) * WIDTH)
    }

    /// Takes the columns of `blocks` panel by panel and the first `m` rows a few at a time: `tile(rows, first row, panel, sums)`.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn by_panels(
        &self,
        m: usize,
        blocks: Range<usize>,
        sink: &mut dyn FnMut(Sums<'_>),
        tile: impl Fn(usize, usize, usize, &mut [i32; ROWS * WIDTH]),
    ) {
        let columns = blocks.start * WIDTH..self.n.min(blocks.end * WIDTH);
        let mut sums = [0; ROWS * WIDTH];
        for panel in columns.start / COLUMNS..columns.end.div_ceil(COLUMNS) {
            let columns = panel * COLUMNS..columns.end.min((panel + 1) * COLUMNS);
            for row in (0..m).step_by(ROWS) {
                let rows = (m - row).min(ROWS);
                tile(rows, row, panel, &mut sums);
                sink(Sums { rows: row..row + rows, columns: columns.clone(), sums: &mut sums[..rows * WIDTH] });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variants() -> Vec<Variant> {
        Isa::variants().into_iter().filter_map(Variant::of).collect()
    }

    /// Every tile of every variant is the product, whatever the runs, the distance of rows and the bytes between them; no sum
    /// is missing or handed on twice, and stored they are the same.
    fn check(m: usize, [runs, length]: [usize; 2], n: usize, stride: usize, line: [usize; 2], seed: u64) {
        let mut state = seed | 1;
        let mut code = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if state & 3 == 0 { [-128, 127, -1, 0][(state >> 8) as usize & 3] } else { (state >> 16) as i8 }
        };
        let weights: Vec<i8> = (0..runs * length * n).map(|_| code()).collect();
        let starts: Vec<usize> = (0..runs).map(|r| (r * 37 + 5) % 113).collect();
        let left: Vec<i8> =
            (0..m * stride + m / line[0] * line[1] + 113 + length.next_multiple_of(64) + 64).map(|_| code()).collect();
        for variant in variants() {
            let tiles = Tiles::new(variant, [runs, length], n, |p, j| weights[p * n + j]);
            let codes: Vec<i8> = left.iter().map(|&code| code ^ tiles.flip()).collect();
            let line = if tiles.skips() { line } else { RowLayout::EVEN };
            let walk = RowLayout { codes: &codes, stride, line, runs: &starts };
            let mut found = vec![None; m * n];
            tiles.multiply(&walk, m, 0..tiles.blocks(), &mut |tile| {
                for (i, row) in tile.rows.clone().enumerate() {
                    for (j, column) in tile.columns.clone().enumerate() {
                        let sum = tile.sums[i * WIDTH + j];
                        assert!(found[row * n + column].replace(sum).is_none(), "{variant:?}: handed on twice");
                    }
                }
            });
            for row in 0..m {
                for column in 0..n {
                    let mut sum = 0;
                    for (r, start) in starts.iter().enumerate() {
                        for p in 0..length {
                            let weight = i32::from(weights[(r * length + p) * n + column]);
                            sum += i32::from(left[row * stride + row / line[0] * line[1] + start + p]) * weight;
                        }
                    }
                    assert_eq!(found[row * n + column], Some(sum), "{variant:?}: row {row}, column {column}");
                }
            }
            let mut stored = vec![7; m * n];
            tiles.store(&walk, m, &mut stored);
            assert!(found.into_iter().flatten().eq(stored), "{variant:?}: stored");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_tile_is_the_product(
            m in prop_oneof![1usize..=17, 31usize..=34, 47usize..=50, 63usize..=66],
            runs in 1usize..=4,
            length in prop_oneof![1usize..=9, 60usize..=68, 126usize..=130],
            n in prop_oneof![1usize..=3, 15usize..=17, 31usize..=33, 62usize..=67, 95usize..=98, 127usize..=130],
            stride in prop_oneof![0usize..=5, 60usize..=70],
            (rows, gap) in (1usize..=9, prop_oneof![Just(0), 0usize..=20]),
            seed in any::<u64>(),
        ) {
            check(m, [runs, length], n, stride, [rows, gap], seed);
        }
    }

    #[test]
    fn rows_beyond_the_codes_are_refused() {
        for variant in variants() {
            let tiles = Tiles::new(variant, [1, 4], 16, |_, _| 1);
            let codes = vec![0; tiles.reach() + 3];
            let walk = RowLayout { codes: &codes, stride: 4, line: RowLayout::EVEN, runs: &[0] };
            tiles.multiply(&walk, 1, 0..1, &mut |_| {});
            let beyond = std::panic::catch_unwind(|| tiles.multiply(&walk, 2, 0..1, &mut |_| {}));
            assert!(beyond.is_err(), "{variant:?}");
        }
    }
}
