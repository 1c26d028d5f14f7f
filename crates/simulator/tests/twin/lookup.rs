//! Lookups on a line.

use tpuflow_ir::isa::{Direction, Expand, Lookup, PackedForm, PackedLookup, Transfer};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Machine, Space, View};

use super::{Step, packed, steps};

/// Words of indices, each before the entries whose indices it holds; `entry`: the steps of an index, by number.
fn indexed(indices: &View, numbers: std::ops::Range<u32>, word: usize, entry: impl Fn(u64) -> Vec<Step>) -> Vec<Step> {
    let mut list = Vec::new();
    let mut held = None;
    for n in numbers {
        let (pixel, channel) = (n / indices.channels, n % indices.channels);
        let at = indices.pixel_address(pixel / indices.width, pixel % indices.width, word) + 4 * u64::from(channel);
        if held.replace(at / word as u64) != Some(at / word as u64) {
            list.push(Step::Index(at / word as u64));
        }
        list.extend(entry(n.into()));
    }
    list
}

/// The entry that stands for the unknown one of an index.
fn scattered(n: u64, size: u32) -> u64 {
    n * 2_654_435_761 % u64::from(size)
}

/// Where the pixel of an index is.
fn pixel(output: &View, n: u64, word: usize) -> u64 {
    output.pixel_address(n as u32 / output.width, n as u32 % output.width, word)
}

/// The steps of a lookup: words of indices, and a row of the table for each index.
pub fn lookup(l: &Lookup, machine: &Machine) -> Vec<Step> {
    let word = machine.word();
    indexed(&l.indices, l.first..l.first + l.count, word, |n| {
        let row = scattered(n, l.table.width);
        let Space::Ddr(ddr_space) = l.table.space else { unreachable!("tables lie in DDR") };
        steps(
            &Transfer {
                direction: Direction::Load,
                ddr_space,
                ddr_address: l.table.address + row * u64::from(l.table.pixel_bytes),
                local_space: Space::Cache,
                local_address: pixel(&l.output, n, word),
                bytes: l.table.payload() as u32,
                counts: [1, 1],
                ddr_strides: [0, 0],
                local_strides: [0, 0],
            },
            machine,
        )
    })
}

/// The same of packed entries, in the address spaces in turn: all rows of one, or of every block a column's record.
pub fn packed_lookup(l: &PackedLookup, machine: &Machine) -> Vec<Step> {
    let word = machine.word();
    let (columns, rows, block) = (u64::from(l.row_bytes), u64::from(l.rows), u64::from(l.block));
    let line = columns.div_ceil(2);
    let header = columns + if l.codes == CodeKind::ZeroPoints { line } else { 0 };
    let starts = || (0..rows).step_by(l.block as usize);
    let own = |first: u64| (rows - first).min(block);
    let bytes: u64 = match l.columns {
        Some(_) => starts().map(|first| columns * packed::record(l.codes, own(first))).sum(),
        None => rows.div_ceil(block) * header + rows * line,
    };
    let stride = bytes.next_multiple_of(word as u64);
    indexed(&l.indices, l.first..l.first + l.count, word, |n| {
        let index = scattered(n, l.size);
        let entry = index / u64::from(l.columns.unwrap_or(1));
        let (ddr_space, local) = (l.ddr_space + (entry % u64::from(l.spaces)) as u8, pixel(&l.output, n, word));
        let ddr_address = l.ddr_address + entry / u64::from(l.spaces) * stride;
        let Some(of_entry) = l.columns else {
            let codes = PackedForm::by_row(l.codes);
            let (rows, row_bytes, block) = (l.rows, l.row_bytes, l.block);
            let expand = Expand { ddr_space, ddr_address, local_address: local, rows, row_bytes, block, codes };
            return packed::expanded(&expand, machine);
        };
        let (column, mut start, mut steps) = (index % u64::from(of_entry), ddr_address, Vec::new());
        for first in starts() {
            let record = packed::record(l.codes, own(first));
            let mut ends = vec![0; record as usize];
            ends[record as usize - 1] = own(first);
            let last = first + own(first) == rows;
            steps.extend(packed::completed(ddr_space, start + column * record, local + first, &ends, last, machine));
            start += columns * record;
        }
        steps
    })
}
