//! Weights of 4 bits in blocks: what a graph stores in place of an int8 constant, and the int8 elements it stands for.
//!
//! A constant of K rows and N columns is cut into blocks of rows. Every column of a block has a scale of 8 bits and, if the
//! constant has any, a zero point of 4; an element is `clamp(RNE((code - zero) * scale / 16), -128, 127)` (`docs/arithmetic.md`,
//! section 2). Codes may also be floats of 4 bits, in halves. Scales of columns, floats, are those of the int8 constant.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::Image;
use crate::error::PackedError;

/// Rows a block may have.
pub const BLOCKS: [u32; 4] = [16, 32, 64, 128];
/// The zero point of constants without any: codes 0 to 15 stand for -8 to 7.
pub const SYMMETRIC: u8 = 8;
/// Fraction bits of a block's scale.
const FRACTION: u32 = 4;
/// What floats of 4 bits (E2M1: a sign, two bits of exponent, one of mantissa) stand for, in halves.
const HALVES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// What codes of 4 bits are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CodeKind {
    /// Integers, less 8.
    #[default]
    Symmetric,
    /// Integers, less the zero point of their column's block.
    ZeroPoints,
    /// Floats E2M1, in halves.
    Floats,
}

/// An int8 constant of two axes as codes of 4 bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packed {
    /// Rows of a block, the last may have fewer.
    pub block: u32,
    /// Whether columns of blocks have zero points.
    pub has_zero_points: bool,
    /// Whether codes are floats, which have no zero points.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_float: bool,
    /// Row-major codes of 0 to 15, two a byte, the first in the low bits.
    #[serde(skip, default = "nothing")]
    pub codes: Image,
    /// By block and column.
    #[serde(skip, default = "nothing")]
    pub scales: Image,
    /// By block and column, 0 to 15; empty without zero points.
    #[serde(skip, default = "nothing")]
    pub zero_points: Image,
}

fn nothing() -> Image {
    Vec::new().into()
}

/// The int8 element a code stands for; `zero_point` is that of integers.
#[must_use]
pub fn element(kind: CodeKind, code: u8, zero_point: u8, scale: u8) -> i8 {
    let exact = match kind {
        CodeKind::Floats => i32::from(HALVES[usize::from(code % 16)]),
        CodeKind::Symmetric | CodeKind::ZeroPoints => i32::from(code) - i32::from(zero_point),
    } * i32::from(scale);
    let (floor, rest) = (exact >> FRACTION, exact & ((1 << FRACTION) - 1));
    let half = 1 << (FRACTION - 1);
    let rounded = floor + i32::from(rest > half || (rest == half && floor & 1 == 1));
    rounded.clamp(-128, 127) as i8
}

/// Codes of 4 bits, two a byte, the first in the low bits; of the last byte as many as are wanted.
pub fn unpack(bytes: &[u8], codes: &mut [u8]) {
    let (pairs, rest) = codes.as_chunks_mut::<2>();
    for (pair, &byte) in pairs.iter_mut().zip(bytes) {
        *pair = [byte & 15, byte >> 4];
    }
    if let ([last], Some(byte)) = (rest, bytes.get(pairs.len())) {
        *last = byte & 15;
    }
}

/// The int8 elements of a row of codes, which start at a byte, with the zero point (of integers) and the scale of every column.
pub fn expand_row(kind: CodeKind, codes: &[u8], zero_points: &[u8], scales: &[u8], elements: &mut [u8]) {
    unpack(codes, elements);
    scale_row(kind, zero_points, scales, elements);
}

/// Turns codes, one a byte, into elements.
fn scale_row(kind: CodeKind, zero_points: &[u8], scales: &[u8], elements: &mut [u8]) {
    if kind == CodeKind::Floats {
        for (element, &scale) in elements.iter_mut().zip(scales) {
            *element = rounded(HALVES[usize::from(*element % 16)].into(), scale).cast_unsigned();
        }
        return;
    }
    // Side by side, so that many are computed at once.
    for ((element, &zero_point), &scale) in elements.iter_mut().zip(zero_points).zip(scales) {
        *element = rounded(i16::from(*element) - i16::from(zero_point), scale).cast_unsigned();
    }
}

impl Packed {
    /// What its codes are.
    #[must_use]
    pub fn kind(&self) -> CodeKind {
        match (self.is_float, self.has_zero_points) {
            (true, _) => CodeKind::Floats,
            (false, true) => CodeKind::ZeroPoints,
            (false, false) => CodeKind::Symmetric,
        }
    }

    /// Blocks of a constant of so many rows.
    #[must_use]
    pub fn blocks(&self, rows: usize) -> usize {
        rows.div_ceil(self.block.max(1) as usize)
    }

    /// Code number `index`, row-major.
    #[must_use]
    pub fn code(&self, index: usize) -> u8 {
        self.codes[index / 2] >> (index % 2 * 4) & 15
    }

    /// Zero point of a column of a block, by `block * columns + column`.
    #[must_use]
    pub fn zero_point(&self, index: usize) -> u8 {
        if self.has_zero_points { self.zero_points[index] } else { SYMMETRIC }
    }

    /// Bytes of codes, scales and zero points of a constant of this shape, in the densest form.
    #[must_use]
    pub fn bytes(&self, shape: &[usize]) -> u64 {
        let [rows, columns] = shape else { return 0 };
        let cells = self.blocks(*rows) * columns;
        let zero_points = if self.has_zero_points { cells.div_ceil(2) } else { 0 };
        ((rows * columns).div_ceil(2) + cells + zero_points) as u64
    }

    /// Checks that this is a packed form of a constant of `shape`.
    ///
    /// # Errors
    /// [`PackedError`].
    pub fn check(&self, shape: &[usize]) -> Result<(), PackedError> {
        let &[rows, columns] = shape else {
            return Err(PackedError::Axes(shape.to_vec()));
        };
        if !BLOCKS.contains(&self.block) {
            return Err(PackedError::Block(self.block));
        }
        if self.is_float && self.has_zero_points {
            return Err(PackedError::FloatZeroPoints);
        }
        let cells = self.blocks(rows) * columns;
        let wanted = [
            ("codes", (rows * columns).div_ceil(2), self.codes.len()),
            ("scales", cells, self.scales.len()),
            ("zero points", if self.has_zero_points { cells } else { 0 }, self.zero_points.len()),
        ];
        for (what, wanted, found) in wanted {
            if wanted != found {
                return Err(PackedError::Bytes { shape: shape.to_vec(), what, wanted, found });
            }
        }
        match self.zero_points.iter().find(|&&zero_point| zero_point > 15) {
            Some(&zero_point) => Err(PackedError::ZeroPoint(zero_point)),
            None => Ok(()),
        }
    }

    /// The int8 elements of a constant of `shape`, for which [`Self::check`] has found nothing wrong.
    #[must_use]
    pub fn expand(&self, shape: &[usize]) -> Vec<u8> {
        let [rows, columns] = [0, 1].map(|axis| shape.get(axis).copied().unwrap_or(0));
        let mut out = vec![0; rows * columns];
        let symmetric = vec![SYMMETRIC; if self.has_zero_points { 0 } else { columns }];
        for (row, elements) in out.chunks_exact_mut(columns.max(1)).enumerate() {
            let cells = row / self.block as usize * columns..;
            let scales = &self.scales[cells.clone()][..columns];
            let zero_points = if self.has_zero_points { &self.zero_points[cells][..columns] } else { &symmetric };
            self.unpack(row * columns, elements);
            scale_row(self.kind(), zero_points, scales, elements);
        }
        out
    }

    /// The packed form of some columns of a constant of `shape`.
    #[must_use]
    pub fn columns(&self, shape: &[usize], kept: Range<usize>) -> Self {
        let [rows, columns] = [0, 1].map(|axis| shape.get(axis).copied().unwrap_or(0));
        let mut codes = vec![0; (rows * kept.len()).div_ceil(2)];
        let sources = (0..rows).flat_map(|row| kept.clone().map(move |column| row * columns + column));
        for (index, source) in sources.enumerate() {
            codes[index / 2] |= self.code(source) << (index % 2 * 4);
        }
        let some = |cells: &Image| -> Image {
            let blocks = cells.chunks_exact(columns.max(1));
            blocks.flat_map(|block| block[kept.clone()].iter().copied()).collect::<Vec<u8>>().into()
        };
        Self { codes: codes.into(), scales: some(&self.scales), zero_points: some(&self.zero_points), ..self.clone() }
    }

    /// Codes from number `first` on.
    fn unpack(&self, first: usize, codes: &mut [u8]) {
        if first.is_multiple_of(2) {
            unpack(&self.codes[first / 2..], codes);
        } else {
            codes.iter_mut().zip(first..).for_each(|(code, index)| *code = self.code(index));
        }
    }
}

/// As [`element`], of what a code stands for, without a branch.
fn rounded(number: i16, scale: u8) -> i8 {
    let exact = number * i16::from(scale);
    let odd = exact >> FRACTION & 1;
    ((exact + (1 << (FRACTION - 1)) - 1 + odd) >> FRACTION).clamp(-128, 127) as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_round_to_even_and_saturate() {
        let of = |code, scale| element(CodeKind::Symmetric, code, SYMMETRIC, scale);
        let about = |code, zero, scale| element(CodeKind::ZeroPoints, code, zero, scale);
        assert_eq!([of(9, 8), of(11, 8), of(7, 8), of(5, 8)], [0, 2, 0, -2]);
        assert_eq!([of(0, 255), of(15, 255), about(15, 0, 255), about(0, 15, 255)], [-128, 112, 127, -128]);
        assert_eq!([of(8, 255), of(15, 0)], [0, 0]);
    }

    #[test]
    fn floats_are_exact_with_large_scales_that_are_powers_of_two() {
        let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for code in 0..16u8 {
            let number = numbers[usize::from(code % 8)] * if code < 8 { 1.0 } else { -1.0 };
            for scale in [16u8, 32, 64, 128] {
                let expected = number * 2.0 * f64::from(scale) / 16.0;
                assert_eq!(f64::from(element(CodeKind::Floats, code, 0, scale)), expected + 0.0);
            }
        }
        assert_eq!([7, 15].map(|code| element(CodeKind::Floats, code, 0, 255)), [127, -128]);
    }

    #[test]
    fn elements_computed_side_by_side_are_the_same() {
        for (code, zero_point) in (0..16u8).flat_map(|code| (0..16u8).map(move |zero| (code, zero))) {
            for (scale, kind) in (0..=255).flat_map(|scale| [(scale, CodeKind::ZeroPoints), (scale, CodeKind::Floats)])
            {
                let mut found = [code];
                scale_row(kind, &[zero_point], &[scale], &mut found);
                assert_eq!(found[0].cast_signed(), element(kind, code, zero_point, scale));
            }
        }
    }

    #[test]
    fn all_elements_are_those_of_their_codes() {
        let mut random = 1u32;
        let mut byte = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        };
        for (rows, columns) in [(1usize, 1usize), (33, 7), (64, 8), (3, 0), (70, 33)] {
            for (has_zero_points, is_float) in [(false, false), (true, false), (false, true)] {
                let cells = rows.div_ceil(32) * columns;
                let packed = Packed {
                    block: 32,
                    has_zero_points,
                    is_float,
                    codes: (0..(rows * columns).div_ceil(2)).map(|_| byte()).collect::<Vec<u8>>().into(),
                    scales: (0..cells).map(|_| byte()).collect::<Vec<u8>>().into(),
                    zero_points: (0..if has_zero_points { cells } else { 0 })
                        .map(|_| byte() & 15)
                        .collect::<Vec<u8>>()
                        .into(),
                };
                assert_eq!(packed.check(&[rows, columns]), Ok(()));
                let one_by_one = (0..rows * columns).map(|at| {
                    let cell = at / columns / 32 * columns + at % columns;
                    let (zero, scale) = (packed.zero_point(cell), packed.scales[cell]);
                    element(packed.kind(), packed.code(at), zero, scale).cast_unsigned()
                });
                assert_eq!(packed.expand(&[rows, columns]), one_by_one.collect::<Vec<u8>>());
            }
        }
    }

    #[test]
    fn a_last_block_may_be_short() {
        let rows = 33;
        let codes: Vec<u8> = (0..rows).map(|row| if row < 32 { 0x9F } else { 0x1F }).collect();
        let scales = vec![16, 32, 48, 64];
        let packed = Packed {
            block: 32,
            has_zero_points: false,
            is_float: false,
            codes: codes.into(),
            scales: scales.into(),
            zero_points: nothing(),
        };
        assert_eq!(packed.check(&[rows, 2]), Ok(()));
        let elements = packed.expand(&[rows, 2]);
        assert_eq!(&elements[..2], &[7, 2]);
        assert_eq!(&elements[64..], &[21, (-28i8).cast_unsigned()]);
        assert_eq!(packed.bytes(&[rows, 2]), 33 + 4);
        let bytes = PackedError::Bytes { shape: vec![32, 2], what: "codes", wanted: 32, found: 33 };
        assert_eq!(packed.check(&[32, 2]), Err(bytes));
    }
}
