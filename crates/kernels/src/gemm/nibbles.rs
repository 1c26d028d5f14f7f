//! Products of few int8 rows with weights of 4 bits in blocks, read as codes: such a product takes as long as reading its weights.
//!
//! The sixteen elements that the codes of a block's column may stand for are a line of a table, one for every scale and zero
//! point. Codes are looked up there, those of four columns at once:
//!
//! ```text
//! 32 rows, 4 columns      column 0    column 1    column 2    column 3
//! codes, 64 bytes        |16 bytes   |16 bytes   |16 bytes   |16 bytes   |   low bits: rows 0 to 15, high: 16 to 31
//! 4 lines of the table   |elements   |elements   |elements   |elements   |
//! sums, 16 of 32 bits    |4 sums     |4 sums     |4 sums     |4 sums     |   of rows 0 to 3 of every 16, 4 to 7, ..
//! ```

use std::ops::Range;

use tpuflow_ir::Packed;
use tpuflow_ir::packed::{SYMMETRIC, element};

use super::panels::Line;
use super::tiles::WIDTH;
use crate::pages::{self, Addresses};
use crate::{Isa, parallel};

/// Columns of a line of codes.
const COLUMNS: usize = 4;
/// Rows of a line of codes, which divide a block's.
const ROWS: usize = 32;
/// Lines of a block of columns side by side.
const LINES: usize = WIDTH / COLUMNS;
/// Scales a cell may have.
const SCALES: usize = 256;

/// A right operand `[k, n]` of codes of 4 bits.
#[derive(Clone, Debug)]
pub struct Nibbles {
    isa: Isa,
    shape: [usize; 2],
    /// Block of columns after block of columns; in each, every 32 rows have [`LINES`].
    codes: Vec<Line>,
    /// Of every column of a line of codes, its line of the table.
    cells: Vec<[u16; COLUMNS]>,
    /// The elements of all codes by zero point and scale.
    table: Vec<[i8; 16]>,
    /// Per column.
    column_sums: Vec<i32>,
}

/// What a block of columns reads: every 32 rows one below the other.
#[derive(Clone, Copy)]
struct Block<'a> {
    codes: &'a [[Line; LINES]],
    cells: &'a [[[u16; COLUMNS]; LINES]],
    table: &'a [[i8; 16]],
}

/// Sums of a row and a block of columns.
type Sums = [i32; WIDTH];

impl Nibbles {
    /// Whether an instruction set multiplies them faster than int8 weights, and blocks have whole lines of codes.
    #[must_use]
    pub fn has_kernel(isa: Isa, packed: &Packed) -> bool {
        let is_whole = (packed.block as usize).is_multiple_of(ROWS);
        #[cfg(target_arch = "x86_64")]
        return is_whole && matches!(isa, Isa::Avx512Vnni(_) | Isa::Amx(_));
        #[cfg(not(target_arch = "x86_64"))]
        return is_whole && false;
    }

    /// Packs a constant.
    ///
    /// # Panics
    /// When `packed` is no packed form of a constant of this shape, or its blocks have no whole lines of codes.
    #[must_use]
    pub fn new(isa: Isa, packed: &Packed, shape: [usize; 2]) -> Self {
        assert_eq!(packed.check(&shape), Ok(()), "a packed form of this shape");
        assert_eq!(packed.block as usize % ROWS, 0, "a multiple of the rows of a line");
        let ([k, n], scales) = (shape, 0..SCALES as u16);
        let zero_points = if packed.has_zero_points { 0..16 } else { SYMMETRIC..SYMMETRIC + 1 };
        let kind = packed.kind();
        let line = |zero: u8, scale: u16| std::array::from_fn(|code| element(kind, code as u8, zero, scale as u8));
        let table: Vec<[i8; 16]> =
            zero_points.clone().flat_map(|zero| scales.clone().map(move |scale| line(zero, scale))).collect();
        let (blocks, steps) = (n.div_ceil(WIDTH), k.div_ceil(ROWS));
        let mut codes = vec![Line::default(); blocks * steps * LINES];
        let mut cells = vec![[0; COLUMNS]; codes.len()];
        // Where both are columns of a row, two codes are a byte.
        let code = |row: usize, column: usize| packed.code(row * n + column);
        parallel::chunks(&mut codes, LINES, |index, lines| {
            let (block, step) = (index / steps, index % steps);
            for (at, line) in lines.iter_mut().enumerate() {
                for column in 0..COLUMNS.min(n.saturating_sub(block * WIDTH + at * COLUMNS)) {
                    let j = block * WIDTH + at * COLUMNS + column;
                    for (i, byte) in line.0[column * 16..][..16].iter_mut().enumerate() {
                        let of = |row: usize| if row < k { code(row, j) } else { 0 };
                        *byte = of(step * ROWS + i) | of(step * ROWS + 16 + i) << 4;
                    }
                }
            }
        });
        parallel::chunks(&mut cells, LINES, |index, cells| {
            let (block, step) = (index / steps, index % steps);
            let group = step * ROWS / packed.block as usize;
            for (at, cells) in cells.iter_mut().enumerate() {
                for (column, cell) in cells.iter_mut().enumerate() {
                    let j = block * WIDTH + at * COLUMNS + column;
                    if j < n {
                        let zero = packed.zero_point(group * n + j) - zero_points.start;
                        *cell = u16::from(zero) * SCALES as u16 + u16::from(packed.scales[group * n + j]);
                    }
                }
            }
        });
        let mut packed = Self { isa, shape, codes, cells, table, column_sums: vec![0; n] };
        packed.column_sums = packed.sums_of_columns();
        packed
    }

    /// Rows.
    #[must_use]
    pub fn k(&self) -> usize {
        self.shape[0]
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.shape[1]
    }

    /// Sum of every column's elements.
    #[must_use]
    pub fn column_sums(&self) -> &[i32] {
        &self.column_sums
    }

    /// Where the codes lie.
    #[must_use]
    pub fn memory(&self) -> Addresses {
        pages::of(&self.codes)
    }

    /// Blocks of [`WIDTH`] columns.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.n().div_ceil(WIDTH)
    }

    /// `sink(row, block of columns, sums)` for all rows of `a` `[m, k]` and some blocks; sums are taken modulo 2^32.
    ///
    /// # Panics
    /// When `a` is no whole rows.
    pub fn multiply(&self, a: &[i8], blocks: Range<usize>, mut sink: impl FnMut(usize, usize, &[i32])) {
        let [k, n] = self.shape;
        assert!(k > 0 && a.len().is_multiple_of(k), "a is [m, k]");
        // Bytes plus 128, which is how they are multiplied; rows beyond the last count for nothing.
        let padded = k.next_multiple_of(ROWS);
        let mut rows = vec![0u8; a.len() / k * padded];
        for (row, a) in rows.chunks_exact_mut(padded).zip(a.chunks_exact(k)) {
            row.iter_mut().zip(a).for_each(|(byte, code)| *byte = code.cast_unsigned() ^ 0x80);
        }
        for index in blocks {
            let (block, columns) = (self.block(index), index * WIDTH..n.min((index + 1) * WIDTH));
            for (row, bytes) in rows.chunks_exact(padded).enumerate() {
                let mut sums = self.sums(bytes, block);
                for (sum, of_column) in sums.iter_mut().zip(&self.column_sums[columns.clone()]) {
                    *sum = sum.wrapping_sub(of_column.wrapping_mul(128));
                }
                sink(row, index, &sums[..columns.len()]);
            }
        }
    }

    fn block(&self, index: usize) -> Block<'_> {
        let steps = self.shape[0].div_ceil(ROWS);
        let (codes, cells) = (self.codes.as_chunks().0, self.cells.as_chunks().0);
        let range = index * steps..(index + 1) * steps;
        Block { codes: &codes[range.clone()], cells: &cells[range], table: &self.table }
    }

    fn sums(&self, bytes: &[u8], block: Block<'_>) -> Sums {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(isa) => isa.nibbles(bytes, block),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx(isa) => isa.vectors().nibbles(bytes, block),
            _ => reference(bytes, block),
        }
    }

    fn sums_of_columns(&self) -> Vec<i32> {
        // A byte of 1 for every row there is.
        let ones: Vec<u8> = (0..self.k().next_multiple_of(ROWS)).map(|row| u8::from(row < self.k())).collect();
        let mut sums = vec![0; self.n()];
        parallel::chunks(&mut sums, WIDTH, |index, sums| {
            sums.copy_from_slice(&self.sums(&ones, self.block(index))[..sums.len()]);
        });
        sums
    }
}

/// The sums of a row of bytes and a block of columns, one element after the other.
fn reference(bytes: &[u8], block: Block<'_>) -> Sums {
    let mut sums = [0i32; WIDTH];
    for ((bytes, codes), cells) in bytes.as_chunks::<ROWS>().0.iter().zip(block.codes).zip(block.cells) {
        for (column, sum) in sums.iter_mut().enumerate() {
            let (line, own) = (column / COLUMNS, column % COLUMNS);
            let elements = &block.table[usize::from(cells[line][own])];
            for (i, &pair) in codes[line].0[own * 16..][..16].iter().enumerate() {
                let [low, high] = [pair & 15, pair >> 4].map(|code| i32::from(elements[usize::from(code)]));
                let [x, y] = [bytes[i], bytes[16 + i]].map(i32::from);
                *sum = sum.wrapping_add(x * low + y * high);
            }
        }
    }
    sums
}

#[cfg(target_arch = "x86_64")]
mod vnni512 {
    #![allow(unsafe_code, reason = "vector loads, and calls that a token has proved possible")]

    use std::arch::x86_64::*;

    use super::{Block, COLUMNS, LINES, ROWS, Sums};
    use crate::isa::Avx512Vnni;

    impl Avx512Vnni {
        /// As [`super::reference`].
        pub(super) fn nibbles(self, bytes: &[u8], block: Block<'_>) -> Sums {
            // SAFETY: the token proves the features.
            unsafe { multiply(bytes, block) }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn multiply(bytes: &[u8], block: Block<'_>) -> Sums {
        let mut kept = [_mm512_setzero_si512(); LINES];
        let low_bits = _mm512_set1_epi8(15);
        for ((bytes, codes), cells) in bytes.as_chunks::<ROWS>().0.iter().zip(block.codes).zip(block.cells) {
            let (low, high) = bytes.split_at(16);
            // SAFETY: both halves are 16 readable bytes.
            let [low, high] = [low, high].map(|half| unsafe { _mm_loadu_si128(half.as_ptr().cast()) });
            let [low, high] = [low, high].map(|half| _mm512_broadcast_i32x4(half));
            for ((sums, codes), cells) in kept.iter_mut().zip(codes).zip(cells) {
                // SAFETY: a line is 64 readable bytes, aligned to 64.
                let codes = unsafe { _mm512_load_si512(codes.0.as_ptr().cast()) };
                let elements = lines(block.table, *cells);
                let first = _mm512_shuffle_epi8(elements, _mm512_and_si512(codes, low_bits));
                let second = _mm512_shuffle_epi8(elements, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low_bits));
                *sums = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(*sums, low, first), high, second);
            }
        }
        let mut sums = [0; LINES * COLUMNS];
        for (sums, kept) in sums.chunks_exact_mut(COLUMNS).zip(kept) {
            let mut parts = [0i32; 16];
            // SAFETY: 64 writable bytes.
            unsafe { _mm512_storeu_si512(parts.as_mut_ptr().cast(), kept) };
            for (sum, parts) in sums.iter_mut().zip(parts.chunks_exact(4)) {
                *sum = parts.iter().fold(0i32, |sum, part| sum.wrapping_add(*part));
            }
        }
        sums
    }

    /// Four lines of the table side by side.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn lines(table: &[[i8; 16]], cells: [u16; COLUMNS]) -> __m512i {
        let line = |cell: u16| {
            let elements = &table[usize::from(cell)];
            // SAFETY: a line of the table is 16 readable bytes.
            unsafe { _mm_loadu_si128(elements.as_ptr().cast()) }
        };
        let lines = _mm512_castsi128_si512(line(cells[0]));
        let lines = _mm512_inserti32x4::<1>(lines, line(cells[1]));
        let lines = _mm512_inserti32x4::<2>(lines, line(cells[2]));
        _mm512_inserti32x4::<3>(lines, line(cells[3]))
    }
}

#[cfg(test)]
mod tests {
    use tpuflow_ir::packed::CodeKind;

    use super::*;

    fn random_packed(shape: [usize; 2], block: u32, kind: CodeKind, random: &mut impl FnMut() -> u8) -> Packed {
        let ([k, n], has_zero_points) = (shape, kind == CodeKind::ZeroPoints);
        let cells = k.div_ceil(block as usize) * n;
        let mut bytes = |count: usize, mask: u8| (0..count).map(|_| random() & mask).collect::<Vec<u8>>();
        Packed {
            block,
            has_zero_points,
            is_float: kind == CodeKind::Floats,
            codes: bytes((k * n).div_ceil(2), 255).into(),
            scales: bytes(cells, 255).into(),
            zero_points: bytes(if has_zero_points { cells } else { 0 }, 15).into(),
        }
    }

    #[test]
    fn sums_are_those_of_the_elements() {
        let mut state = 3u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for (shape, block) in [([1, 1], 32), ([33, 5], 32), ([64, 64], 64), ([200, 131], 128), ([96, 260], 32)] {
            for kind in [CodeKind::Symmetric, CodeKind::ZeroPoints, CodeKind::Floats] {
                let [k, n] = shape;
                let packed = random_packed(shape, block, kind, &mut random);
                let elements = packed.expand(&shape);
                let a: Vec<i8> = (0..3 * k).map(|_| random().cast_signed()).collect();
                for isa in Isa::variants() {
                    let weights = Nibbles::new(isa, &packed, shape);
                    let mut found = vec![0; 3 * n];
                    weights.multiply(&a, 0..weights.blocks(), |row, block, sums| {
                        found[row * n + block * WIDTH..][..sums.len()].copy_from_slice(sums);
                    });
                    let w = |p: usize, j: usize| i32::from(elements[p * n + j].cast_signed());
                    for (at, &sum) in found.iter().enumerate() {
                        let (i, j) = (at / n, at % n);
                        let expected: i32 = (0..k).map(|p| i32::from(a[i * k + p]) * w(p, j)).sum();
                        assert_eq!(sum, expected, "{} at {i}, {j} of {shape:?}", isa.name());
                    }
                    let sums: Vec<i32> = (0..n).map(|j| (0..k).map(|p| w(p, j)).sum()).collect();
                    assert_eq!(weights.column_sums(), sums);
                }
            }
        }
    }

    /// The largest sums there are wrap nowhere on the way that they do not wrap at the end.
    #[test]
    fn the_largest_sums_are_exact() {
        let (k, n) = (4096, 4);
        let packed = Packed {
            block: 32,
            has_zero_points: false,
            is_float: false,
            codes: vec![0; k * n / 2].into(),
            scales: vec![255; k / 32 * n].into(),
            zero_points: Vec::new().into(),
        };
        for isa in Isa::variants() {
            for code in [-128i8, 127] {
                let weights = Nibbles::new(isa, &packed, [k, n]);
                weights.multiply(&vec![code; k], 0..1, |_, _, sums| {
                    assert_eq!(sums, [4096 * i32::from(code) * -128; 4]);
                });
            }
        }
    }
}
