//! Constants that stay in the caches from run to run.

use std::collections::BTreeMap;

use tpuflow_ir::access::Accesses;
use tpuflow_ir::isa::{Direction, Work};
use tpuflow_ir::{Program, Space};

/// By instruction, whether every run repeats it: all but loads of constants to bytes that no other instruction writes.
pub(super) fn repeated(program: &Program, accesses: &[Accesses]) -> Vec<bool> {
    let mut writes: BTreeMap<Space, Vec<(u64, u64, usize)>> = BTreeMap::new();
    for (number, touched) in accesses.iter().enumerate() {
        for stretch in &touched.writes {
            writes.entry(stretch.space).or_default().push((stretch.start, stretch.end, number));
        }
    }
    let mut repeated: Vec<bool> =
        program.instructions.iter().map(|instruction| !loads_constants(program, &instruction.work)).collect();
    for mut list in writes.into_values() {
        list.sort_unstable();
        // The stretch that reaches furthest so far, and who writes it.
        let mut furthest: Option<(u64, usize)> = None;
        for (start, end, number) in list {
            if let Some((reach, writer)) = furthest
                && start < reach
                && writer != number
            {
                (repeated[writer], repeated[number]) = (true, true);
            }
            if furthest.is_none_or(|(reach, _)| end > reach) {
                furthest = Some((end, number));
            }
        }
    }
    repeated
}

fn loads_constants(program: &Program, work: &Work) -> bool {
    match work {
        Work::Transfer(transfer) => {
            let constants = program.ddr_constants_end(transfer.ddr_space);
            transfer.direction == Direction::Load && transfer.ddr_address < constants
        }
        Work::Expand(_) => true,
        Work::Lookup(_) | Work::PackedLookup(_) | Work::Matrix(_) | Work::Pool(_) | Work::Vector(_) => false,
    }
}
