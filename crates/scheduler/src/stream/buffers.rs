//! Addresses for runs that overlap: buffers that share no bytes with others.
//!
//! A run may overwrite a buffer only when the run before is done with it, and constants stay in a cache only where nothing else is
//! written. So one variant of a plan gives every buffer bytes of its own, and where that does not fit, another does
//! so for as many constants as fit, the largest first.

use std::collections::BTreeSet;

use tpuflow_ir::{Machine, Space};

use crate::alloc::{Item, Problem, place_apart};
use crate::order::prefetch::apart;
use crate::virtual_program::addresses::{Addresses, lifetimes};
use crate::virtual_program::{BufferId, Content, Memory, VirtualProgram};

/// Shares of the constants that are given bytes of their own, in per cent of a cache, tried in turn.
const SHARES: [u64; 8] = [100, 85, 70, 55, 40, 30, 20, 10];

/// Other addresses for the buffers of a virtual program.
pub(super) struct Variants {
    /// One variant at most.
    pub addresses: Vec<Addresses>,
    /// Whether every constant has bytes of its own there.
    pub constants_fit: bool,
}

/// Addresses at which as many buffers as fit share no bytes with others.
pub(super) fn variants(code: &VirtualProgram, usual: &Addresses, machine: &Machine) -> Variants {
    let all = (0..code.buffers.len()).collect();
    if let Some(found) = placed(code, usual, machine, &all) {
        return Variants { addresses: vec![found], constants_fit: true };
    }
    let constants = constants(code);
    let share = |percent: u64| {
        let mut chosen = BTreeSet::new();
        for (memory, capacity) in [(Memory::Cache, machine.cache_bytes()), (Memory::Ewp, machine.ewp_cache_bytes())] {
            let mut left = capacity / 100 * percent;
            for &index in constants.iter().filter(|&&index| code.buffers[index].memory == memory) {
                let bytes = code.buffers[index].bytes;
                if bytes <= left {
                    left -= bytes;
                    chosen.insert(index);
                }
            }
        }
        placed(code, usual, machine, &chosen).map(|found| (found, chosen.len() == constants.len()))
    };
    match SHARES.into_iter().find_map(share) {
        Some((found, constants_fit)) => Variants { addresses: vec![found], constants_fit },
        None => Variants { addresses: Vec::new(), constants_fit: false },
    }
}

/// Buffers of the caches that hold constants, the largest first.
pub(super) fn constants(code: &VirtualProgram) -> Vec<usize> {
    let loads = code.instructions.iter().filter_map(|instruction| instruction.load());
    let of_constants = loads.filter(|(_, from)| matches!(code.buffers[from.index()].content, Content::Constant(_)));
    let mut found: Vec<BufferId> = of_constants.map(|(to, _)| to).collect();
    found.sort_by_key(|buffer| (std::cmp::Reverse(code.buffers[buffer.index()].bytes), *buffer));
    found.dedup();
    found.into_iter().map(BufferId::index).collect()
}

/// Addresses with bytes of their own for some buffers, if that fits.
fn placed(code: &VirtualProgram, usual: &Addresses, machine: &Machine, alone: &BTreeSet<usize>) -> Option<Addresses> {
    let live_ranges = lifetimes(code);
    let word = machine.word() as u64;
    let end = code.instructions.len() as u32;
    let mut addresses = usual.clone();
    for (memory, space, capacity) in [
        (Memory::Cache, Space::Cache, machine.cache_bytes()),
        (Memory::Ewp, Space::EwpCache, machine.ewp_cache_bytes()),
    ] {
        let (mut items, mut owners) = (Vec::new(), Vec::new());
        for (index, buffer) in code.buffers.iter().enumerate().filter(|(_, buffer)| buffer.memory == memory) {
            let Some((first, last)) = live_ranges[index] else { continue };
            let (first, last) = if alone.contains(&index) { (0, end) } else { (first.0, last.0) };
            items.push(Item { first, last, size: buffer.bytes.div_ceil(word) });
            owners.push(index);
        }
        let problem = Problem { items, capacity: capacity / word };
        if problem.lower_bound() > problem.capacity {
            return None;
        }
        let solution = place_apart(&problem, &apart(code, &owners, machine), u64::from(machine.cache.words));
        if solution.height > problem.capacity {
            return None;
        }
        for (owner, offset) in owners.into_iter().zip(solution.offsets) {
            addresses[owner] = (space, offset * word);
        }
    }
    Some(addresses)
}
