//! Random tables, of equal steps and with segments.

use tpuflow_ir::{DType, Table};

use super::Net;

impl Net {
    /// A table for codes of `bits` bits with results of an element type.
    pub(super) fn table(&mut self, bits: u32, dtype: DType) -> Table {
        let (lo, hi) = dtype.range();
        let k = self.random.range(1, i64::from(bits.min(9))) as u32;
        let name = self.name("constant");
        let mut tensor = self.tensor(&name, &[], DType::I32);
        tensor.quant = None;
        let entries: Vec<i32> = (0..=1 << k).map(|_| self.random.range(lo, hi) as i32).collect();
        // Every other table has two segments: of all codes in their order, or of a period of a thousand of them.
        let map = if self.count.is_multiple_of(4) { (1 << (40 - bits), 1 << 39) } else { ((1 << 40) / 1000, 12345) };
        let words = if self.count.is_multiple_of(2) { segmented(map, k, &entries) } else { entries };
        tensor.shape = vec![words.len()];
        tensor.constant = Some(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>().into());
        Table { entries: self.builder.constant(tensor).unwrap(), lo: lo as i32, hi: hi as i32 }
    }
}

/// Words of a table of two segments whose steps are the same, of quarters of codes.
fn segmented((multiplier, offset): (u64, u64), k: u32, entries: &[i32]) -> Vec<i32> {
    let mut words = vec![1 | 2 << 8];
    words.extend([multiplier, offset].iter().flat_map(|&value| [value as i32, (value >> 32) as i32]));
    words.extend([24 - k as i32; 2]);
    words.extend(entries.iter().map(|entry| entry * 4));
    words.resize(words.len().next_multiple_of(2), 0);
    words
}
