//! Packed weights on their way from DDR to the shared cache.
//!
//! ```text
//! DDR     [scales | zero points | codes of `block` rows] [scales | zero points | codes of `block` rows] ...   contiguous
//! cache   [int8 rows ...........................................................................................]
//! ```
//! A row of `row_bytes` elements takes half as many bytes of codes, the element of an even column in the low bits; a block's scales
//! take a byte for each column, its zero points, if there are any, half a byte.
//!
//! Weights whose columns are looked up as well lie by column: a block is a *record* for each column, its scale, its zero point, if
//! there are any, and the codes of its rows, that of an even row in the low bits.

use serde::{Deserialize, Serialize};

use super::{Direction, Transfer};
use crate::Space;
use crate::packed::CodeKind;

/// What the codes of packed weights are, and in which order they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PackedForm {
    /// Integers, less 8, by row.
    Symmetric,
    /// Integers, less the zero point of their column's block, by row.
    ZeroPoints,
    /// Floats E2M1, in halves, by row.
    Floats,
    /// By column.
    ByColumn(CodeKind),
}

impl PackedForm {
    /// Codes by row.
    #[must_use]
    pub fn by_row(kind: CodeKind) -> Self {
        match kind {
            CodeKind::Symmetric => Self::Symmetric,
            CodeKind::ZeroPoints => Self::ZeroPoints,
            CodeKind::Floats => Self::Floats,
        }
    }

    /// What the codes are.
    #[must_use]
    pub fn kind(self) -> CodeKind {
        match self {
            Self::Symmetric => CodeKind::Symmetric,
            Self::ZeroPoints => CodeKind::ZeroPoints,
            Self::Floats => CodeKind::Floats,
            Self::ByColumn(kind) => kind,
        }
    }

    /// Whether a block has a record for each column.
    #[must_use]
    pub fn is_by_column(self) -> bool {
        matches!(self, Self::ByColumn(_))
    }
}

/// Loads weights of 4 bits and writes the int8 elements they stand for ([`crate::packed`]) to the shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Expand {
    /// DDR address space.
    pub ddr_space: u8,
    /// DDR byte address of the first block.
    pub ddr_address: u64,
    /// Byte address of the first row in the shared cache.
    pub local_address: u64,
    /// Rows.
    pub rows: u32,
    /// Elements of a row; rows are contiguous.
    pub row_bytes: u32,
    /// Rows of a block, the last may have fewer.
    pub block: u32,
    /// What the codes are, and how they lie; only integers may have zero points.
    pub codes: PackedForm,
}

impl Expand {
    /// Bytes of the scale and the zero point in front of a record's codes.
    #[must_use]
    pub fn record_header_bytes(&self) -> u64 {
        1 + u64::from(self.codes.kind() == CodeKind::ZeroPoints)
    }

    /// Bytes of a column's record in a block of so many rows.
    #[must_use]
    pub fn record_bytes(&self, rows: u64) -> u64 {
        self.record_header_bytes() + rows.div_ceil(2)
    }

    /// Bytes in front of a block's codes, of weights by row.
    #[must_use]
    pub fn header_bytes(&self) -> u64 {
        let columns = u64::from(self.row_bytes);
        columns + if self.codes.kind() == CodeKind::ZeroPoints { columns.div_ceil(2) } else { 0 }
    }

    /// Bytes of a row's codes, of weights by row.
    #[must_use]
    pub fn code_bytes(&self) -> u64 {
        u64::from(self.row_bytes).div_ceil(2)
    }

    /// Bytes of a block of so many rows.
    #[must_use]
    pub fn block_bytes(&self, rows: u64) -> u64 {
        match self.codes {
            PackedForm::ByColumn(_) => u64::from(self.row_bytes) * self.record_bytes(rows),
            _ => self.header_bytes() + rows * self.code_bytes(),
        }
    }

    /// Bytes of a block that are read before its first row is complete: those in front of its codes, or all of its records.
    #[must_use]
    pub fn lead_bytes(&self) -> u64 {
        if self.codes.is_by_column() { self.block_bytes(self.block.into()) } else { self.header_bytes() }
    }

    /// Bytes that are read.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        let (rows, block) = (u64::from(self.rows), u64::from(self.block.max(1)));
        let rest = rows % block;
        rows / block * self.block_bytes(block) + if rest > 0 { self.block_bytes(rest) } else { 0 }
    }

    /// Bytes that are written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.row_bytes)
    }

    /// Bytes of the rows that are complete once `packed` bytes have been read.
    #[must_use]
    pub fn complete(&self, packed: u64) -> u64 {
        if packed >= self.packed_bytes() {
            return self.bytes();
        }
        let whole = self.block_bytes(self.block.into()).max(1);
        let (blocks, rest) = (packed / whole, packed % whole);
        let of_block = match self.codes {
            PackedForm::ByColumn(_) => 0,
            _ => rest.saturating_sub(self.header_bytes()).checked_div(self.code_bytes()).unwrap_or(0),
        };
        let rows = blocks * u64::from(self.block) + of_block;
        rows.min(self.rows.into()) * u64::from(self.row_bytes)
    }

    /// The bytes it reads, as one run of a transfer.
    #[must_use]
    pub fn run(&self) -> Transfer {
        Transfer {
            direction: Direction::Load,
            ddr_space: self.ddr_space,
            ddr_address: self.ddr_address,
            local_space: Space::Cache,
            local_address: self.local_address,
            bytes: self.packed_bytes() as u32,
            counts: [1, 1],
            ddr_strides: [0, 0],
            local_strides: [0, 0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of_16(codes: PackedForm) -> Expand {
        Expand { ddr_space: 0, ddr_address: 0, local_address: 0, rows: 70, row_bytes: 16, block: 32, codes }
    }

    #[test]
    fn rows_are_complete_when_their_last_code_is_there() {
        let expand = rows_of_16(PackedForm::ZeroPoints);
        assert_eq!((expand.header_bytes(), expand.code_bytes(), expand.packed_bytes()), (24, 8, 3 * 24 + 70 * 8));
        assert_eq!(expand.complete(24 + 7), 0);
        assert_eq!(expand.complete(24 + 8), 16);
        assert_eq!(expand.complete(24 + 32 * 8), 32 * 16);
        assert_eq!(expand.complete(2 * 24 + 33 * 8 - 1), 32 * 16);
        assert_eq!(expand.complete(2 * 24 + 33 * 8), 33 * 16);
        assert_eq!(expand.complete(expand.packed_bytes()), expand.bytes());
    }

    #[test]
    fn rows_by_column_are_complete_with_their_block() {
        let expand = rows_of_16(PackedForm::ByColumn(CodeKind::ZeroPoints));
        assert_eq!((expand.record_bytes(32), expand.block_bytes(32), expand.record_bytes(6)), (18, 288, 5));
        assert_eq!((expand.packed_bytes(), expand.lead_bytes()), (2 * 288 + 16 * 5, 288));
        assert_eq!([287, 288, 575, 576, 655, 656].map(|packed| expand.complete(packed) / 16), [0, 32, 32, 64, 64, 70]);
    }
}
