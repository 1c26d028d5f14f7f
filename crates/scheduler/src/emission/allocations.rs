//! Cache allocations by time, for reports.

use tpuflow_ir::program::Allocation;

use crate::virtual_program::addresses::{Addresses, Lifetime};
use crate::virtual_program::{Memory, VirtualProgram};

/// Cache allocations by time, for reports.
pub(crate) fn allocations(
    code: &VirtualProgram,
    live_ranges: &[Option<Lifetime>],
    addresses: &Addresses,
) -> Vec<Allocation> {
    let mut list: Vec<Allocation> = code
        .buffers
        .iter()
        .enumerate()
        .filter(|(_, b)| b.memory == Memory::Cache)
        .filter_map(|(i, b)| {
            let (first, last) = live_ranges[i]?;
            Some(Allocation {
                name: b.name.clone(),
                address: addresses[i].1,
                bytes: b.bytes,
                first: first.0,
                last: last.0,
            })
        })
        .collect();
    list.sort_by_key(|a| (a.first, a.address));
    list
}
