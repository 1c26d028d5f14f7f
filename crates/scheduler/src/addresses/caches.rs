//! Addresses of buffers in both caches.

use tpuflow_ir::{Machine, Space};

use crate::alloc::{Item, Problem, solve};
use crate::error::ScheduleError;
use crate::virtual_program::addresses::{Addresses, lifetimes};
use crate::virtual_program::{Memory, VirtualProgram};

/// Addresses in both caches.
pub(crate) fn addresses(code: &VirtualProgram, machine: &Machine) -> Result<Addresses, ScheduleError> {
    let live_ranges = lifetimes(code);
    let word = machine.word() as u64;
    let mut addresses: Addresses = vec![(Space::Ddr(0), 0); code.buffers.len()];
    for (memory, space, name, capacity) in [
        (Memory::Cache, Space::Cache, "the shared cache", machine.cache_bytes()),
        (Memory::Ewp, Space::EwpCache, "the parameter cache", machine.ewp_cache_bytes()),
    ] {
        let mut items = Vec::new();
        let mut owners = Vec::new();
        for (index, buffer) in code.buffers.iter().enumerate() {
            if let (true, Some((first, last))) = (buffer.memory == memory, live_ranges[index]) {
                items.push(Item { first: first.0, last: last.0, size: buffer.bytes.div_ceil(word) });
                owners.push(index);
            }
        }
        let problem = Problem { items, capacity: capacity / word };
        let solution = solve(&problem, true);
        if solution.height > problem.capacity {
            return Err(ScheduleError::Allocation {
                memory: name,
                machine: machine.name.clone(),
                height: solution.height * word,
                capacity,
            });
        }
        for (owner, offset) in owners.into_iter().zip(solution.offsets) {
            addresses[owner] = (space, offset * word);
        }
    }
    Ok(addresses)
}
