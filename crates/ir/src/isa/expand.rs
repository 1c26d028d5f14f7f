//! Packed weights on their way from DDR to the shared cache.
//!
//! ```text
//! DDR     [scales | zero points | codes of `block` rows] [scales | zero points | codes of `block` rows] ...   contiguous
//! cache   [int8 rows ...........................................................................................]
//! ```
//! A row of `row_bytes` elements takes half as many bytes of codes, the element of an even column in the low bits; a block's scales
//! take a byte for each column, its zero points, if there are any, half a byte.

use serde::{Deserialize, Serialize};

use super::{Direction, Transfer};
use crate::Space;
use crate::packed::CodeKind;

/// Loads weights of 4 bits and writes the int8 elements they stand for ([`crate::packed`]) to the shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Expand {
    /// DDR address space.
    pub ddr_space: u8,
    /// DDR byte address of the first block's scales.
    pub ddr_address: u64,
    /// Byte address of the first row in the shared cache.
    pub local_address: u64,
    /// Rows.
    pub rows: u32,
    /// Elements of a row; rows are contiguous.
    pub row_bytes: u32,
    /// Rows of a block, the last may have fewer.
    pub block: u32,
    /// What the codes are; only integers may have zero points.
    pub codes: CodeKind,
}

impl Expand {
    /// Bytes in front of a block's codes.
    #[must_use]
    pub fn header_bytes(&self) -> u64 {
        let columns = u64::from(self.row_bytes);
        columns + if self.codes == CodeKind::ZeroPoints { columns.div_ceil(2) } else { 0 }
    }

    /// Bytes of a row's codes.
    #[must_use]
    pub fn code_bytes(&self) -> u64 {
        u64::from(self.row_bytes).div_ceil(2)
    }

    /// Bytes of a whole block.
    fn block_bytes(&self) -> u64 {
        self.header_bytes() + u64::from(self.block) * self.code_bytes()
    }

    /// Bytes that are read.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        let rows = u64::from(self.rows);
        rows.div_ceil(self.block.max(1).into()) * self.header_bytes() + rows * self.code_bytes()
    }

    /// Bytes that are written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.row_bytes)
    }

    /// Bytes of the rows that are complete once `packed` bytes have been read.
    #[must_use]
    pub fn complete(&self, packed: u64) -> u64 {
        let (blocks, rest) = (packed / self.block_bytes().max(1), packed % self.block_bytes().max(1));
        let rows = blocks * u64::from(self.block)
            + rest.saturating_sub(self.header_bytes()).checked_div(self.code_bytes()).unwrap_or(0);
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

    #[test]
    fn rows_are_complete_when_their_last_code_is_there() {
        let expand = Expand {
            ddr_space: 0,
            ddr_address: 0,
            local_address: 0,
            rows: 70,
            row_bytes: 16,
            block: 32,
            codes: CodeKind::ZeroPoints,
        };
        assert_eq!((expand.header_bytes(), expand.code_bytes(), expand.packed_bytes()), (24, 8, 3 * 24 + 70 * 8));
        assert_eq!(expand.complete(24 + 7), 0);
        assert_eq!(expand.complete(24 + 8), 16);
        assert_eq!(expand.complete(24 + 32 * 8), 32 * 16);
        assert_eq!(expand.complete(2 * 24 + 33 * 8 - 1), 32 * 16);
        assert_eq!(expand.complete(2 * 24 + 33 * 8), 33 * 16);
        assert_eq!(expand.complete(expand.packed_bytes()), expand.bytes());
    }
}
