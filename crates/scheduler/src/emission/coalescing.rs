//! Coalescing of loads: those of constants that follow each other on a line become one, with one start-up.
//!
//! Groups are made before anything has a place, and what is in one is freed together. Here everything has its place and its
//! order: what lies side by side in external memory, as constants do that are loaded one after the other, is brought by one
//! transfer of several runs, wherever it goes. Nobody can use the first run before the last has come, so only the timing
//! knows whether the start-ups that are saved are worth it: the stretches of the order are gone through one by one, and
//! each gets the length of transfers that is best for it.

use std::collections::BTreeMap;

use tpuflow_ir::access::Accesses;
use tpuflow_ir::isa::Transfer;
use tpuflow_ir::{Instruction, InstructionId, Space, Work};

use crate::addresses::external::CoalescingLimits;
use crate::virtual_program::{VirtualAddress, VirtualInstruction};

/// Runs of a transfer at most, so that they are told apart (`ir::access`).
const RUNS: u32 = 16;

/// A transfer that still takes loads.
struct OpenTransfer {
    /// Position of the last load in it, and all others.
    last: InstructionId,
    first: Vec<InstructionId>,
    transfer: Transfer,
}

/// By virtual instruction, the transfer that it becomes; `None` for virtual instructions that are part of a later one. `resolved` and `touched` are all
/// virtual instructions with addresses and what they touch.
pub(crate) fn coalesce(
    instructions: &[VirtualInstruction],
    resolved: &mut [Instruction],
    touched: &[Accesses],
    is_constant: impl Fn(&VirtualInstruction) -> bool,
    coalescing: &CoalescingLimits,
) -> Vec<Option<InstructionId>> {
    // Where each virtual instruction goes.
    let mut place: Vec<Option<InstructionId>> = vec![None; instructions.len()];
    let mut open: BTreeMap<(u8, Space), OpenTransfer> = BTreeMap::new();
    let mut done: Vec<OpenTransfer> = Vec::new();
    for (position, virtual_instruction) in instructions.iter().enumerate() {
        let (Some(virtual_transfer), Work::Transfer(transfer)) =
            (virtual_instruction.transfer(), &resolved[position].work)
        else {
            continue;
        };
        if !is_constant(virtual_instruction) {
            continue;
        }
        let key = (transfer.ddr_space, transfer.local_space);
        let limit =
            coalescing.get(&VirtualAddress::of_field(virtual_transfer.local_address)).map_or(0, |limit| limit.bytes);
        if let Some(group) = open.get_mut(&key)
            && let Some(longer) = extended(&group.transfer, transfer)
            && longer.total_bytes() <= limit
            && touched[group.last.index() + 1..position].iter().all(|other| is_apart(other, &group.transfer))
        {
            let last = std::mem::replace(&mut group.last, InstructionId::new(position));
            group.first.push(last);
            group.transfer = longer;
            continue;
        }
        let group = OpenTransfer { last: InstructionId::new(position), first: Vec::new(), transfer: *transfer };
        done.extend(open.insert(key, group));
    }
    done.extend(open.into_values());
    for group in done.into_iter().filter(|group| !group.first.is_empty()) {
        for first in group.first {
            place[first.index()] = Some(group.last);
        }
        resolved[group.last.index()].work = Work::Transfer(group.transfer);
    }
    place
}

/// Both loads as one.
fn extended(group: &Transfer, next: &Transfer) -> Option<Transfer> {
    let single = |t: &Transfer| t.counts == [1, 1];
    let bytes = u64::from(group.bytes);
    let runs = u64::from(group.counts[0]);
    if !single(next) || group.counts[1] != 1 {
        return None;
    }
    let ends = [group.ddr_address + bytes, group.local_address + bytes];
    if single(group) && ends == [next.ddr_address, next.local_address] {
        return Some(Transfer { bytes: group.bytes.checked_add(next.bytes)?, ..*group });
    }
    let [ddr, local] = if single(group) {
        [next.ddr_address.checked_sub(group.ddr_address)?, next.local_address.checked_sub(group.local_address)?]
    } else {
        [group.ddr_strides[0], group.local_strides[0]]
    };
    let follows =
        [next.ddr_address, next.local_address] == [group.ddr_address + runs * ddr, group.local_address + runs * local];
    if group.bytes != next.bytes || ddr.min(local) < bytes || !follows || group.counts[0] >= RUNS {
        return None;
    }
    let counts = [group.counts[0] + 1, 1];
    Some(Transfer { counts, ddr_strides: [ddr, 0], local_strides: [local, 0], ..*group })
}

/// Whether an instruction touches nothing of what a load brings.
fn is_apart(other: &Accesses, load: &Transfer) -> bool {
    let touches = |start: u64| {
        let end = start + u64::from(load.bytes);
        let meets = |s: &tpuflow_ir::access::Stretch| s.space == load.local_space && s.start < end && start < s.end;
        other.reads.iter().chain(&other.writes).any(meets)
    };
    !load.runs().any(|(_, local)| touches(local))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;
    use tpuflow_ir::isa::Direction;
    use tpuflow_ir::{LayerId, Machine, Unit};

    use crate::addresses::external::CoalescingLimit;
    use crate::virtual_program::BufferId;

    fn load(ddr_address: u64, local_address: u64, bytes: u32) -> Transfer {
        Transfer {
            direction: Direction::Load,
            ddr_space: 0,
            ddr_address,
            local_space: Space::Cache,
            local_address,
            bytes,
            counts: [1, 1],
            ddr_strides: [0; 2],
            local_strides: [0; 2],
        }
    }

    #[test]
    fn a_longer_transfer_moves_the_same_bytes() {
        let mut random = 5u64;
        let mut next_random = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        let bytes_of = |t: &Transfer| -> Vec<(u64, u64)> {
            t.runs().flat_map(|(ddr, local)| (0..u64::from(t.bytes)).map(move |at| (ddr + at, local + at))).collect()
        };
        let mut longest = 0;
        for _ in 0..2000 {
            let sizes = [128, 128, 256];
            let mut group = load(0, 128 * next_random(4), sizes[next_random(3) as usize] as u32);
            let mut moved = bytes_of(&group);
            for _ in 0..6 {
                let (ddr, local) = moved[moved.len() - 1];
                let gaps = [0, 0, 128, 384];
                let next = load(
                    ddr + 1 + gaps[next_random(3) as usize],
                    local + 1 + gaps[next_random(4) as usize],
                    sizes[next_random(3) as usize] as u32,
                );
                let Some(longer) = extended(&group, &next) else { continue };
                moved.extend(bytes_of(&next));
                assert_eq!(bytes_of(&longer), moved);
                group = longer;
            }
            longest = longest.max(group.counts[0]);
        }
        assert!(longest > 3, "{longest}");
        // Strides have no sign.
        assert_eq!(extended(&load(0, 1024, 128), &load(128, 0, 128)), None);
    }

    #[test]
    fn loads_join_where_nobody_uses_the_first_before_the_last() {
        let machine = Machine::preset("128x128_asic").expect("known");
        let virtual_instruction = |number: u32, work: Transfer| {
            let at = |address| BufferId(number).at(address);
            let (ddr_address, local_address) = (at(0), at(0));
            VirtualInstruction::new(LayerId(0), Work::Transfer(Transfer { ddr_address, local_address, ..work }))
        };
        let instruction =
            |work| Instruction { unit: Unit::Dtl0, layer: LayerId(0), waits: smallvec![], work: Work::Transfer(work) };
        let store = |local_address| Transfer { direction: Direction::Store, ..load(1 << 20, local_address, 128) };
        // Two loads, and between them somebody who reads the first, or what lies beside it.
        for (used, coalescing) in [(0, false), (4096, true)] {
            let works = [load(0, 0, 1024), store(used), load(1024, 8192, 1024)];
            let instructions: Vec<VirtualInstruction> =
                (0..).zip(works).map(|(number, work)| virtual_instruction(number, work)).collect();
            let mut resolved: Vec<Instruction> = works.into_iter().map(instruction).collect();
            let touched: Vec<Accesses> =
                resolved.iter().map(|i| tpuflow_ir::access::accesses(i, &[], &machine)).collect();
            let together = CoalescingLimit { bytes: 2048, next: false };
            let wanted: CoalescingLimits = instructions
                .iter()
                .map(|d| (VirtualAddress::of_field(d.transfer().expect("one").local_address), together))
                .collect();
            let is_constant = |virtual_instruction: &VirtualInstruction| virtual_instruction.load().is_some();
            let places = coalesce(&instructions, &mut resolved, &touched, is_constant, &wanted);
            assert_eq!(places, [coalescing.then_some(InstructionId(2)), None, None]);
            let Work::Transfer(last) = resolved[2].work else { panic!("a transfer") };
            assert_eq!(last.total_bytes(), if coalescing { 2048 } else { 1024 });
        }
    }
}
