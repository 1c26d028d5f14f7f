//! Weights of 4 bits: what an instruction that loads them leaves in the cache, element by element, from `docs/machine.md`.

use tpuflow_ir::Packed;
use tpuflow_ir::isa::Expand;
use tpuflow_ir::packed::CodeKind;

/// Where packed weights lie among the constants, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackedImage {
    /// DDR address space.
    pub(crate) space: u8,
    kind: CodeKind,
    /// Rows of a block.
    pub(crate) block: u32,
    /// Elements of a row.
    pub(crate) columns: u32,
    /// The first byte.
    start: u64,
}

/// Addresses of the first column's scale, zero point and code.
pub(crate) struct Lines {
    pub(crate) scales: u64,
    pub(crate) zero_points: u64,
    pub(crate) codes: u64,
}

impl PackedImage {
    /// The weights an instruction loads.
    pub(crate) fn new(e: &Expand) -> Self {
        Self { space: e.ddr_space, kind: e.codes, block: e.block, columns: e.row_bytes, start: e.ddr_address }
    }

    /// Where the parts of a row begin among the constants.
    pub(crate) fn lines(&self, row: u64) -> Lines {
        let (columns, rows) = (u64::from(self.columns), u64::from(self.block));
        let line = columns.div_ceil(2);
        let header = columns + if self.has_zero_points() { line } else { 0 };
        let scales = self.start + row / rows * (header + rows * line);
        Lines { scales, zero_points: scales + columns, codes: scales + header + row % rows * line }
    }

    pub(crate) fn has_zero_points(&self) -> bool {
        self.kind == CodeKind::ZeroPoints
    }

    /// The element that stands at `byte` of the rows: of the code `q`, the block's zero point `z` and its scale `s` the integer
    /// next to `(q - z) s / 16`; of a float `f` that next to `2 f s / 16`.
    pub(crate) fn element(&self, constants: &[u8], byte: u64) -> Option<i8> {
        let (row, column) = (byte / u64::from(self.columns), byte % u64::from(self.columns));
        let Lines { scales, zero_points, codes } = self.lines(row);
        let byte_at = |at: u64| constants.get(usize::try_from(at).ok()?).copied();
        let half_byte = |at: u64| Some(if column % 2 == 0 { byte_at(at)? % 16 } else { byte_at(at)? / 16 });
        let scale = i32::from(byte_at(scales + column)?);
        let zero = if self.has_zero_points() { half_byte(zero_points + column / 2)? } else { 8 };
        let code = half_byte(codes + column / 2)?;
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
