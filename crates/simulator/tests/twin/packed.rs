//! Packed weights on a line.

use tpuflow_ir::isa::{Expand, PackedForm};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Machine, Work};

use super::Step;

/// Cycles of what is read of a block before its first row is complete.
pub fn lead(work: &Work, machine: &Machine) -> u64 {
    let (row_bytes, codes, block) = match work {
        Work::Expand(e) => (e.row_bytes, e.codes, e.block),
        Work::PackedLookup(l) if l.columns.is_none() => (l.row_bytes, PackedForm::by_row(l.codes), l.block),
        _ => return 0,
    };
    let columns = u64::from(row_bytes);
    machine.ddr_cycles(match codes {
        PackedForm::ByColumn(kind) => columns * record(kind, block.into()),
        PackedForm::ZeroPoints => columns + columns.div_ceil(2),
        PackedForm::Symmetric | PackedForm::Floats => columns,
    })
}

/// Bytes of a record of so many codes.
pub fn record(kind: CodeKind, rows: u64) -> u64 {
    rows.div_ceil(2) + if kind == CodeKind::ZeroPoints { 2 } else { 1 }
}

/// Byte by byte: up to which byte of the rows all are complete once a byte of the packed weights has been read.
fn ends(e: &Expand) -> Vec<u64> {
    let columns = u64::from(e.row_bytes);
    let mut ends = Vec::new();
    if let PackedForm::ByColumn(kind) = e.codes {
        for first in (0..e.rows).step_by(e.block as usize) {
            let rows = (e.rows - first).min(e.block);
            ends.extend(vec![0; (columns * record(kind, rows.into())) as usize - 1]);
            ends.push(u64::from(first + rows) * columns);
        }
        return ends;
    }
    let line = columns.div_ceil(2);
    for row in 0..e.rows {
        if row % e.block == 0 {
            ends.extend(vec![0; (columns + if e.codes == PackedForm::ZeroPoints { line } else { 0 }) as usize]);
        }
        ends.extend(vec![0; line as usize - 1]);
        ends.push(u64::from(row + 1) * columns);
    }
    ends
}

/// Which rows a page run of packed weights completes, and with them how many words.
pub fn expanded(e: &Expand, machine: &Machine) -> Vec<Step> {
    let ends = ends(e);
    completed(e.ddr_space, e.ddr_address, e.local_address, &ends, true, machine)
}

/// Page runs that read bytes from DDR address `start` on, each with the cache words it completes from `local` on. `ends`: by byte read,
/// how many bytes are complete then; `last`: a last word that is only partly filled is written as well.
pub fn completed(space: u8, start: u64, local: u64, ends: &[u64], last: bool, machine: &Machine) -> Vec<Step> {
    let word = machine.word() as u64;
    // Results may begin inside a word.
    let begin = local % word;
    let (page, mut steps, mut written, mut at) = (machine.page_bytes(), Vec::new(), 0, 0);
    while at < ends.len() as u64 {
        let address = start + at;
        let end = (at + page - address % page).min(ends.len() as u64);
        let bytes = ends[..end as usize].iter().max().copied().unwrap_or(0);
        let bytes = if bytes > 0 { begin + bytes } else { 0 };
        let words = if last && end == ends.len() as u64 { bytes.div_ceil(word) } else { bytes / word };
        let n = words - written;
        let cycles = machine.ddr_cycles(end - at).max(n);
        let first = local / word + written;
        let list = (0..n).map(|i| (((i + 1) * cycles).div_ceil(n) - 1, first + i)).collect();
        steps.push(Step::Run(machine.channel(usize::from(space), address), address / page, cycles, list));
        (written, at) = (words, end);
    }
    steps
}
