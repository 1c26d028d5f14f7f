//! Packed weights on a line.

use tpuflow_ir::isa::Expand;
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Machine, Work};

use super::Step;

/// Cycles of the scales and zero points of a block.
pub fn lead(work: &Work, machine: &Machine) -> u64 {
    let Work::Expand(e) = work else { return 0 };
    let columns = u64::from(e.row_bytes);
    machine.ddr_cycles(if e.codes == CodeKind::ZeroPoints { columns + columns.div_ceil(2) } else { columns })
}

/// Byte by byte: which row a byte of the packed weights completes, and with it how many words.
pub fn expanded(e: &Expand, machine: &Machine) -> Vec<Step> {
    let (word, columns) = (machine.word() as u64, u64::from(e.row_bytes));
    let line = columns.div_ceil(2);
    let mut ends = Vec::new();
    for row in 0..e.rows {
        if row % e.block == 0 {
            ends.extend(vec![0; (columns + if e.codes == CodeKind::ZeroPoints { line } else { 0 }) as usize]);
        }
        ends.extend(vec![0; line as usize - 1]);
        ends.push(u64::from(row + 1) * columns);
    }
    let (page, mut steps, mut written, mut at) = (machine.page_bytes(), Vec::new(), 0, 0);
    while at < ends.len() as u64 {
        let address = e.ddr_address + at;
        let end = (at + page - address % page).min(ends.len() as u64);
        let rows = ends[..end as usize].iter().max().copied().unwrap_or(0);
        let words = if end == ends.len() as u64 { rows.div_ceil(word) } else { rows / word };
        let n = words - written;
        let cycles = machine.ddr_cycles(end - at).max(n);
        let first = e.local_address / word + written;
        let list = (0..n).map(|i| (((i + 1) * cycles).div_ceil(n) - 1, first + i)).collect();
        steps.push(Step::Run(machine.channel(usize::from(e.ddr_space), address), address / page, cycles, list));
        (written, at) = (words, end);
    }
    steps
}
