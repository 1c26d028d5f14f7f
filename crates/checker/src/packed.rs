//! Weights of 4 bits: what an instruction that loads them leaves in the cache, element by element, from `docs/machine.md`.

use tpuflow_ir::isa::{Expand, PackedForm};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Packed, TensorId};

/// Where packed weights lie among the constants, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackedImage {
    /// DDR address space.
    pub(crate) space: u8,
    kind: CodeKind,
    /// Whether every column of a block has a record.
    pub(crate) is_by_column: bool,
    /// Rows.
    rows: u32,
    /// Rows of a block.
    pub(crate) block: u32,
    /// Elements of a row.
    pub(crate) columns: u32,
    /// The first byte.
    start: u64,
}

/// A packed table that has been compared with a constant: the constant, what lies first, entries, what each holds, and address spaces.
pub(crate) type ComparedTable = (TensorId, PackedImage, u32, Option<u32>, u8);

/// Half of a byte.
#[derive(Clone, Copy)]
pub(crate) struct Half {
    pub(crate) byte: u64,
    pub(crate) is_high: bool,
}

impl Half {
    pub(crate) fn of(self, constants: &[u8]) -> Option<u8> {
        let byte = constants.get(usize::try_from(self.byte).ok()?)?;
        Some(if self.is_high { byte / 16 } else { byte % 16 })
    }
}

/// Addresses of an element's scale, zero point and code.
pub(crate) struct Parts {
    pub(crate) scale: u64,
    pub(crate) zero_point: Half,
    pub(crate) code: Half,
}

impl PackedImage {
    /// The weights an instruction loads.
    pub(crate) fn new(e: &Expand) -> Self {
        let kind = match e.codes {
            PackedForm::Symmetric | PackedForm::ByColumn(CodeKind::Symmetric) => CodeKind::Symmetric,
            PackedForm::ZeroPoints | PackedForm::ByColumn(CodeKind::ZeroPoints) => CodeKind::ZeroPoints,
            PackedForm::Floats | PackedForm::ByColumn(CodeKind::Floats) => CodeKind::Floats,
        };
        Self {
            space: e.ddr_space,
            kind,
            is_by_column: matches!(e.codes, PackedForm::ByColumn(_)),
            rows: e.rows,
            block: e.block,
            columns: e.row_bytes,
            start: e.ddr_address,
        }
    }

    /// The same weights at another place.
    pub(crate) fn at(self, space: u8, start: u64) -> Self {
        Self { space, start, ..self }
    }

    /// Bytes of a column's record in a block of so many rows.
    fn record(&self, rows: u64) -> u64 {
        1 + u64::from(self.has_zero_points()) + rows.div_ceil(2)
    }

    /// Bytes of a block of so many rows.
    fn of_block(&self, rows: u64) -> u64 {
        let columns = u64::from(self.columns);
        let line = columns.div_ceil(2);
        if self.is_by_column {
            columns * self.record(rows)
        } else {
            columns + if self.has_zero_points() { line } else { 0 } + rows * line
        }
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        let (rows, block) = (u64::from(self.rows), u64::from(self.block));
        let rest = rows % block;
        rows / block * self.of_block(block) + if rest > 0 { self.of_block(rest) } else { 0 }
    }

    /// First byte and number of bytes of the block of a row.
    pub(crate) fn block_of(&self, row: u64) -> (u64, u64) {
        let (rows, block) = (u64::from(self.rows), u64::from(self.block));
        let number = row / block;
        let own = rows.saturating_sub(number * block).min(block);
        (self.start + number * self.of_block(block), self.of_block(own))
    }

    /// The first byte.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Where the parts of an element are.
    pub(crate) fn parts(&self, row: u64, column: u64) -> Parts {
        let (columns, block) = (u64::from(self.columns), u64::from(self.block));
        let (start, inside) = (self.block_of(row).0, row % block);
        if self.is_by_column {
            let own = u64::from(self.rows).saturating_sub(row - inside).min(block);
            let record = start + column * self.record(own);
            let codes = record + 1 + u64::from(self.has_zero_points());
            return Parts {
                scale: record,
                zero_point: Half { byte: record + 1, is_high: false },
                code: Half { byte: codes + inside / 2, is_high: inside % 2 == 1 },
            };
        }
        let line = columns.div_ceil(2);
        let codes = start + columns + if self.has_zero_points() { line } else { 0 } + inside * line;
        let half = |first: u64| Half { byte: first + column / 2, is_high: column % 2 == 1 };
        Parts { scale: start + column, zero_point: half(start + columns), code: half(codes) }
    }

    pub(crate) fn has_zero_points(&self) -> bool {
        self.kind == CodeKind::ZeroPoints
    }

    /// The element that stands at `byte` of the rows: of the code `q`, the block's zero point `z` and its scale `s` the integer
    /// next to `(q - z) s / 16`; of a float `f` that next to `2 f s / 16`.
    pub(crate) fn element(&self, constants: &[u8], byte: u64) -> Option<i8> {
        let parts = self.parts(byte / u64::from(self.columns), byte % u64::from(self.columns));
        let scale = i32::from(*constants.get(usize::try_from(parts.scale).ok()?)?);
        let zero = if self.has_zero_points() { parts.zero_point.of(constants)? } else { 8 };
        let code = parts.code.of(constants)?;
        let number = if self.kind == CodeKind::Floats { twice(code) } else { i32::from(code) - i32::from(zero) };
        let product = number * scale;
        let nearest = (product + 8).div_euclid(16);
        let is_tie = (product + 8).rem_euclid(16) == 0;
        Some((nearest - i32::from(is_tie && nearest % 2 != 0)).clamp(-128, 127) as i8)
    }

    /// Whether elements from `byte` on, a row of the first columns, are row `row` of a constant in this form: blocks of the one are
    /// blocks of the other, so that whoever brings in the rows brings in all of their scales.
    pub(crate) fn is_row_of(&self, packed: &Packed, byte: u64, row: u64) -> bool {
        let own = byte / u64::from(self.columns);
        let kind = match (packed.is_float, packed.has_zero_points) {
            (true, _) => CodeKind::Floats,
            (false, true) => CodeKind::ZeroPoints,
            (false, false) => CodeKind::Symmetric,
        };
        let same = (packed.block, kind) == (self.block, self.kind);
        same && byte.is_multiple_of(self.columns.into()) && own % u64::from(self.block) == row % u64::from(self.block)
    }
}

/// Twice the float of 4 bits: a sign, two bits of exponent (bias 1) and one of mantissa; exponent 0 is that of subnormal numbers.
fn twice(code: u8) -> i32 {
    let (exponent, mantissa) = (code / 2 % 4, i32::from(code % 2));
    let magnitude = if exponent == 0 { mantissa } else { (2 + mantissa) << (exponent - 1) };
    if code < 8 { magnitude } else { -magnitude }
}
