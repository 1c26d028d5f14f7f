//! Entries of a table of packed weights by run-time index, on their way from DDR to the shared cache.
//!
//! ```text
//! space 0   [entry 0] [entry 2] [entry 4] ...       each as `Expand` reads it, `stride` bytes from one to the next
//! space 1   [entry 1] [entry 3] ...
//! ```
//! Entries may lie in the address spaces in turn, so that reading all of them, as a product by the same weights does, keeps every
//! channel busy; or all in one. Entries of which single columns are looked up lie by column, so that a column is a record of every block.

use serde::{Deserialize, Serialize};

use super::{Expand, PackedForm};
use crate::View;
use crate::packed::CodeKind;

/// Writes what packed entries stand for whose numbers stand in `indices[first .. first + count]` (row-major) to the same pixels
/// of `output`: an entry's elements, row by row, or those of one of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PackedLookup {
    /// DDR address space of the first entry.
    pub ddr_space: u8,
    /// DDR byte address of the first entry of each address space.
    pub ddr_address: u64,
    /// Address spaces that entries lie in in turn, from that of the first on.
    pub spaces: u8,
    /// What an index is below.
    pub size: u32,
    /// Columns of an entry, if indices are the numbers of columns; else they are those of entries.
    pub columns: Option<u32>,
    /// Rows of an entry.
    pub rows: u32,
    /// Elements of a row.
    pub row_bytes: u32,
    /// Rows of a block, the last may have fewer.
    pub block: u32,
    /// What the codes are.
    pub codes: CodeKind,
    /// Indices, int32, in the cache, as the index tensor's own shape lies.
    pub indices: View,
    /// Destination in the cache: pixel `i` (row-major) takes what index `i` names.
    pub output: View,
    /// First index.
    pub first: u32,
    /// Number of indices.
    pub count: u32,
}

impl PackedLookup {
    /// Entries of the table.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.size.div_ceil(self.columns.unwrap_or(1).max(1))
    }

    /// Bytes from one entry to the next in its address space, whole words.
    #[must_use]
    pub fn stride(&self, word: usize) -> u64 {
        self.form().packed_bytes().next_multiple_of(word as u64)
    }

    /// How an entry is read, without addresses.
    #[must_use]
    pub fn form(&self) -> Expand {
        Expand {
            ddr_space: 0,
            ddr_address: 0,
            local_address: 0,
            rows: self.rows,
            row_bytes: self.row_bytes,
            block: self.block,
            codes: match self.columns {
                Some(_) => PackedForm::ByColumn(self.codes),
                None => PackedForm::by_row(self.codes),
            },
        }
    }

    /// How an entry is read.
    #[must_use]
    pub fn entry(&self, number: u32, word: usize) -> Expand {
        let spaces = u32::from(self.spaces.max(1));
        Expand {
            ddr_space: self.ddr_space.saturating_add((number % spaces) as u8),
            ddr_address: self.ddr_address + u64::from(number / spaces) * self.stride(word),
            ..self.form()
        }
    }

    /// The entry an index names, and the column of it, if it names one.
    #[must_use]
    pub fn place(&self, index: u32) -> (u32, Option<u32>) {
        match self.columns.map(|columns| columns.max(1)) {
            Some(columns) => (index / columns, Some(index % columns)),
            None => (index, None),
        }
    }

    /// Elements an index names.
    #[must_use]
    pub fn elements(&self) -> u64 {
        u64::from(self.rows) * u64::from(if self.columns.is_some() { 1 } else { self.row_bytes })
    }

    /// Bytes read for an index.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let form = self.form();
        if self.columns.is_none() {
            return form.packed_bytes();
        }
        let (rows, block) = (u64::from(self.rows), u64::from(self.block.max(1)));
        let rest = rows % block;
        rows / block * form.record_bytes(block) + if rest > 0 { form.record_bytes(rest) } else { 0 }
    }

    /// By address space, where the entries begin and end.
    pub fn stretches(&self, word: usize) -> impl Iterator<Item = (u8, u64, u64)> + use<> {
        let (first, start) = (self.ddr_space, self.ddr_address);
        let (spaces, entries) = (u32::from(self.spaces.max(1)), self.entries());
        let (stride, bytes) = (self.stride(word), self.form().packed_bytes());
        (0..spaces.min(entries)).map(move |space| {
            let others = u64::from((entries - 1 - space) / spaces);
            (first.saturating_add(space as u8), start, start + others * stride + bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::entry_runs;
    use crate::{DType, Machine, Space};

    fn lookup(columns: Option<u32>, size: u32) -> PackedLookup {
        let view = View::whole(&[1, 1, 64], DType::I8, 128, Space::Cache, 0);
        PackedLookup {
            ddr_space: 0,
            ddr_address: 1024,
            spaces: 2,
            size,
            columns,
            rows: 64,
            row_bytes: 16,
            block: 32,
            codes: CodeKind::Symmetric,
            indices: view,
            output: view,
            first: 0,
            count: 1,
        }
    }

    #[test]
    fn entries_lie_in_the_address_spaces_in_turn() {
        let picks = lookup(Some(16), 70);
        assert_eq!((picks.entries(), picks.stride(128), picks.elements()), (5, 640, 64));
        assert_eq!((picks.form().packed_bytes(), picks.place(69)), (2 * 16 * 17, (4, Some(5))));
        let places: Vec<_> =
            (0..5).map(|entry| picks.entry(entry, 128)).map(|e| (e.ddr_space, e.ddr_address)).collect();
        assert_eq!(places, [(0, 1024), (1, 1024), (0, 1664), (1, 1664), (0, 2304)]);
        let stretches: Vec<_> = picks.stretches(128).collect();
        assert_eq!(stretches, [(0, 1024, 2304 + 544), (1, 1024, 1664 + 544)]);
        let whole = lookup(None, 1);
        assert_eq!((whole.entries(), whole.place(0), whole.elements()), (1, (0, None), 1024));
        assert_eq!(whole.stretches(128).count(), 1);
    }

    #[test]
    fn a_column_is_a_record_of_every_block() {
        let machine = Machine::preset("128x128_asic").expect("known");
        let picks = PackedLookup { rows: 70, ..lookup(Some(16), 70) };
        assert_eq!(picks.index_bytes(), 17 + 17 + 4);
        let runs = entry_runs(&picks, 18, 256, &machine);
        let found: Vec<_> = runs.iter().map(|(run, words)| (run.channel, run.bytes, words.clone())).collect();
        assert_eq!(found, [(1, 17, 2..2), (1, 17, 2..2), (1, 4, 2..3)]);
        assert_eq!(lookup(None, 1).index_bytes(), 2 * 16 + 64 * 8);
    }
}
