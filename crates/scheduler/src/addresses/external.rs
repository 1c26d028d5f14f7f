//! Addresses in external memory: constants, inputs, outputs and spilled tensors shared out to its address spaces.

use std::collections::{BTreeMap, BTreeSet};

use tpuflow_ir::{Machine, Space, Work, timing};

use crate::alloc::{Item, Problem, solve};
use crate::error::ScheduleError;
use crate::memory_space::{PortPlace, StateBuffers};
use crate::parameters::IoMemory;
use crate::virtual_program::addresses::{Addresses, lifetimes};
use crate::virtual_program::dependence::place_peers;
use crate::virtual_program::{
    BufferId, Content, Memory, PackedPart, PackedTable, Packing, VirtualAddress, VirtualInstruction, VirtualProgram,
};

/// External memory: in every address space constants in order of first use from address 0, then states, inputs, outputs and
/// spilled tensors.
pub(crate) struct External {
    /// Constants: address space, address and buffer, ascending in each space.
    pub recipes: Vec<(usize, u64, BufferId)>,
    /// Bytes used of every address space.
    pub bytes: Vec<u64>,
}

/// Which address spaces constants, ports and spilled tensors go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelSplit {
    /// All to the first.
    No,
    /// Each to the one with the least traffic before it.
    Forward,
    /// Each to the one with the least traffic behind it: all channels end together.
    Backward,
}

/// Places of inputs, outputs and states, and whether others may share the memory of ports.
pub(crate) struct Ports<'a> {
    pub inputs: &'a [PortPlace],
    pub outputs: &'a [PortPlace],
    pub states: &'a [StateBuffers],
    pub memory: IoMemory,
}

/// Packed tables in several address spaces, of whose entries others may read one as well.
#[derive(Default)]
struct Tables {
    starts: BTreeMap<PackedTable, u64>,
    /// Address space and address.
    parts: BTreeMap<PackedPart, (usize, u64)>,
}

impl Tables {
    /// Where a buffer lies that is an entry of a table.
    fn place(&self, content: &Content) -> Option<(usize, u64)> {
        let Content::Constant(Packing::Expand(part)) = content else { return None };
        self.parts.get(part).copied()
    }
}

/// Bytes a virtual instruction moves to or from external memory.
fn traffic(instruction: &VirtualInstruction) -> u64 {
    match &instruction.work {
        Work::Transfer(t) => t.total_bytes(),
        Work::Expand(e) => e.packed_bytes(),
        Work::Lookup(l) => u64::from(l.count) * l.table.payload() as u64,
        Work::PackedLookup(l) => u64::from(l.count) * l.index_bytes(),
        _ => 0,
    }
}

/// Cycles it holds its channel, and the start of its line.
fn cycles(instruction: &VirtualInstruction, machine: &Machine) -> u64 {
    let start = machine.dma.start + machine.dma.latency;
    match &instruction.work {
        Work::Transfer(t) => start + timing::transfer_cycles(t, machine),
        Work::Expand(e) => start + timing::expand_lead(e, machine) + timing::transfer_cycles(&e.run(), machine),
        Work::Lookup(l) => start + timing::lookup_cycles(l, machine),
        Work::PackedLookup(l) => start + timing::lookup_lead(l, machine) + timing::packed_lookup_cycles(l, machine),
        _ => 0,
    }
}

/// How a load travels with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoalescingLimit {
    /// Bytes that the transfer may have with it.
    pub bytes: u64,
    /// With the one before it, whatever space that is in, and not just with that of its own space.
    pub next: bool,
}

/// By load: where it goes to in the cache.
pub(crate) type CoalescingLimits = BTreeMap<VirtualAddress, CoalescingLimit>;

/// Constants (by buffer) that lie together, by the first of each: those that are loaded one after the other to one stretch of
/// a cache, as far as their loads are to be coalesced.
fn together(code: &VirtualProgram, addresses: &Addresses, coalescing: &CoalescingLimits) -> Vec<BufferId> {
    let mut first: Vec<BufferId> = (0..code.buffers.len()).map(BufferId::new).collect();
    let mut seen = vec![false; code.buffers.len()];
    // By memory: where the last load ended, the first of its group, and the bytes of that.
    let mut last: BTreeMap<Space, (u64, BufferId, u64)> = BTreeMap::new();
    for instruction in &code.instructions {
        let (Some((to, from)), Some(t)) = (instruction.load(), instruction.transfer()) else { continue };
        let is_constant = matches!(code.buffers[from.index()].content, Content::Constant(_));
        if !is_constant || std::mem::replace(&mut seen[from.index()], true) {
            continue;
        }
        let (space, address) = addresses[to.index()];
        let target = VirtualAddress::of_field(t.local_address);
        let start = address + target.offset;
        let bytes = t.total_bytes();
        let limit = coalescing.get(&target).filter(|join| join.next).map_or(0, |join| join.bytes);
        let mut group = (start, from, 0);
        if let Some(&(end, root, so_far)) = last.get(&space)
            && end == start
            && so_far + bytes <= limit
        {
            group = (start, root, so_far);
        }
        first[from.index()] = group.1;
        last.insert(space, (start + bytes, group.1, group.2 + bytes));
    }
    first
}

/// The address space of every buffer; buffers that lie together have that of the `first` of them. Each goes to the space that has
/// had the least traffic when it is first used, so that at any time all channels have about the same to do.
fn spaces(
    code: &VirtualProgram,
    machine: &Machine,
    split: ChannelSplit,
    first: &[BufferId],
    in_first_space: &BTreeSet<BufferId>,
    tables: &Tables,
) -> Vec<usize> {
    let count = machine.ddr_spaces();
    let mut found = vec![None; code.buffers.len()];
    for (buffer, found) in code.buffers.iter().zip(&mut found) {
        *found = tables.place(&buffer.content).map(|(space, _)| space);
    }
    // Traffic so far, activations included.
    let mut load = vec![0u64; count];
    let mut visit = |instruction: &VirtualInstruction| {
        for buffer in instruction.touches() {
            let b = &code.buffers[buffer.index()];
            let buffer = b.peer.map_or(buffer, |(own, _)| own);
            if b.memory != Memory::Ddr {
                continue;
            }
            let space = match split {
                ChannelSplit::No => 0,
                _ if in_first_space.contains(&buffer) => 0,
                _ => *found[first[buffer.index()].index()]
                    .get_or_insert_with(|| (0..count).min_by_key(|&s| load[s]).unwrap_or(0)),
            };
            load[space] +=
                if split == ChannelSplit::Backward { cycles(instruction, machine) } else { traffic(instruction) };
        }
    };
    match split {
        ChannelSplit::Backward => code.instructions.iter().rev().for_each(&mut visit),
        _ => code.instructions.iter().for_each(&mut visit),
    }
    found.into_iter().map(|space| space.unwrap_or(0)).collect()
}

/// Lays out external memory, filling in `addresses`. With a `split`, buffers alternate between address spaces so that all
/// channels have the same to do at any time.
///
/// # Errors
/// [`ScheduleError::External`] when an address space overflows.
pub(crate) fn external(
    code: &VirtualProgram,
    machine: &Machine,
    split: ChannelSplit,
    coalescing: &CoalescingLimits,
    ports: &Ports<'_>,
    addresses: &mut Addresses,
) -> Result<External, ScheduleError> {
    let mut placed = vec![false; code.buffers.len()];
    let mut first = together(code, addresses, coalescing);
    for &[(past, _), (new, _)] in ports.states {
        first[new.index()] = past;
    }
    let in_first_space: BTreeSet<BufferId> = match ports.memory {
        IoMemory::Contiguous => ports.inputs.iter().chain(ports.outputs).flat_map(PortPlace::buffers).collect(),
        IoMemory::Separate | IoMemory::Shared => BTreeSet::new(),
    };
    let mut memory = External { recipes: Vec::new(), bytes: vec![0; machine.ddr_spaces()] };
    let tables = memory.place_tables(code, machine, &mut placed, addresses);
    let space_of = self::spaces(code, machine, split, &first, &in_first_space, &tables);
    memory.place_constants(code, machine, (&first, &space_of), &tables, &mut placed, addresses);
    // A constant that is also an output need not be loaded by anyone; it still has a place.
    for buffer in ports.outputs.iter().flat_map(PortPlace::buffers) {
        let is_constant = matches!(code.buffers[buffer.index()].content, Content::Constant(_));
        if is_constant && !std::mem::replace(&mut placed[buffer.index()], true) {
            memory.place(code, machine, buffer, 0, addresses);
        }
    }
    let page = page(machine);
    for &[(past, bytes), (new, _)] in ports.states {
        let space = space_of[past.index()];
        let start = memory.bytes[space].next_multiple_of(page);
        let (border, ddr) = (start + bytes, Space::Ddr(space as u8));
        (addresses[past.index()], addresses[new.index()]) = ((ddr, start), (ddr, border));
        memory.bytes[space] = border + padded(code, new, machine.word());
        (placed[past.index()], placed[new.index()]) = (true, true);
    }
    let tensors = unplaced_tensors(code, &placed);
    for (space, end) in memory.bytes.iter_mut().enumerate() {
        let own: Vec<BufferId> = tensors.iter().copied().filter(|tensor| space_of[tensor.index()] == space).collect();
        if own.is_empty() {
            continue;
        }
        own.iter().for_each(|tensor| addresses[tensor.index()].0 = Space::Ddr(space as u8));
        *end = match ports.memory {
            IoMemory::Separate | IoMemory::Contiguous => one_after_the_other(code, machine, &own, *end, addresses),
            IoMemory::Shared => by_live_ranges(code, machine, &own, *end, ports, addresses),
        };
    }
    place_peers(code, machine, addresses);
    let capacity = machine.ddr_capacity();
    match memory.bytes.iter().find(|&&end| end > capacity) {
        Some(&bytes) => Err(ScheduleError::External { bytes, capacity, machine: machine.name.clone() }),
        None => Ok(memory),
    }
}

impl External {
    /// Puts a constant at the end of an address space.
    fn place(
        &mut self,
        code: &VirtualProgram,
        machine: &Machine,
        buffer: BufferId,
        space: usize,
        addresses: &mut Addresses,
    ) {
        addresses[buffer.index()] = (Space::Ddr(space as u8), self.bytes[space]);
        self.recipes.push((space, self.bytes[space], buffer));
        self.bytes[space] += padded(code, buffer, machine.word());
    }

    /// Places packed tables at one address of all the address spaces that they lie in, before other constants.
    fn place_tables(
        &mut self,
        code: &VirtualProgram,
        machine: &Machine,
        placed: &mut [bool],
        addresses: &mut Addresses,
    ) -> Tables {
        let (word, mut tables) = (machine.word(), Tables::default());
        for instruction in &code.instructions {
            let (Work::PackedLookup(lookup), Some((_, [buffer, _]))) = (&instruction.work, instruction.lookup()) else {
                continue;
            };
            let Content::Constant(Packing::Entries(table)) = &code.buffers[buffer.index()].content else { continue };
            // A table of one space is a constant like others.
            if table.spaces == 1 && machine.ddr_spaces() > 1 {
                continue;
            }
            if std::mem::replace(&mut placed[buffer.index()], true) {
                continue;
            }
            let base = match tables.starts.get(table) {
                Some(&base) => base,
                None => {
                    let base = self.bytes.iter().copied().max().unwrap_or(0);
                    self.bytes.fill(base);
                    let own = lookup.entries().min(table.spaces) as usize;
                    for space in 0..own {
                        self.recipes.push((space, base, buffer));
                        self.bytes[space] = base + stored(code, buffer, space, word);
                    }
                    tables.starts.insert(table.clone(), base);
                    base
                }
            };
            addresses[buffer.index()] = (Space::Ddr(0), base);
            for (number, part) in table.entries().enumerate() {
                let (space, before) = (number as u32 % table.spaces, number as u32 / table.spaces);
                tables.parts.insert(part, (space as usize, base + u64::from(before) * lookup.stride(word)));
            }
        }
        tables
    }

    /// Places all constants that some instruction loads in order of first use, those that lie together (by the `first` of them)
    /// one behind the other.
    fn place_constants(
        &mut self,
        code: &VirtualProgram,
        machine: &Machine,
        (first, space_of): (&[BufferId], &[usize]),
        tables: &Tables,
        placed: &mut [bool],
        addresses: &mut Addresses,
    ) {
        let mut members: BTreeMap<BufferId, Vec<BufferId>> = BTreeMap::new();
        let touched = code.instructions.iter().flat_map(VirtualInstruction::touches);
        let constants = touched.filter(|buffer| {
            let b = &code.buffers[buffer.index()];
            let is_constant = b.memory == Memory::Ddr && matches!(b.content, Content::Constant(_));
            is_constant && !std::mem::replace(&mut placed[buffer.index()], true)
        });
        let mut order: Vec<BufferId> = Vec::new();
        for buffer in constants {
            let group = members.entry(first[buffer.index()]).or_default();
            if group.is_empty() {
                order.push(first[buffer.index()]);
            }
            group.push(buffer);
        }
        // Equal constants are stored once; those that travel with others stay beside them.
        let mut known: BTreeMap<&Packing, (Space, u64)> = BTreeMap::new();
        for group in order {
            let space = space_of[group.index()];
            let alone = members[&group].len() == 1;
            for &buffer in &members[&group] {
                if let Some((space, address)) = tables.place(&code.buffers[buffer.index()].content) {
                    addresses[buffer.index()] = (Space::Ddr(space as u8), address);
                    continue;
                }
                if let Content::Constant(packing) = &code.buffers[buffer.index()].content {
                    if let Some(&place) = known.get(packing).filter(|_| alone) {
                        addresses[buffer.index()] = place;
                        continue;
                    }
                    known.entry(packing).or_insert((Space::Ddr(space as u8), self.bytes[space]));
                }
                self.place(code, machine, buffer, space, addresses);
            }
        }
    }
}

/// Inputs, then outputs, then spilled tensors, of which no place is known yet.
fn unplaced_tensors(code: &VirtualProgram, placed: &[bool]) -> Vec<BufferId> {
    let ids = || (0..code.buffers.len()).map(BufferId::new).filter(|id| !placed[id.index()]);
    let of_kind = |kind: Content| {
        ids().filter(move |id| {
            let buffer = &code.buffers[id.index()];
            buffer.memory == Memory::Ddr && buffer.content == kind && buffer.peer.is_none()
        })
    };
    [Content::Input, Content::Output, Content::Computed].into_iter().flat_map(of_kind).collect()
}

/// Puts every tensor on pages of its own from `start` on, and says where the last one ends.
fn one_after_the_other(
    code: &VirtualProgram,
    machine: &Machine,
    tensors: &[BufferId],
    start: u64,
    addresses: &mut Addresses,
) -> u64 {
    tensors.iter().fold(start, |end, tensor| {
        let at = end.next_multiple_of(page(machine));
        addresses[tensor.index()].1 = at;
        at + padded(code, *tensor, machine.word())
    })
}

/// Puts tensors on pages from `start` on, those whose live ranges are disjoint on the same ones where that takes fewer, and says
/// where the last one ends. Inputs live from the beginning, outputs to the end.
fn by_live_ranges(
    code: &VirtualProgram,
    machine: &Machine,
    tensors: &[BufferId],
    start: u64,
    ports: &Ports<'_>,
    addresses: &mut Addresses,
) -> u64 {
    let page = page(machine);
    let base = start.next_multiple_of(page);
    let buffers = |ports: &[PortPlace]| -> BTreeSet<BufferId> { ports.iter().flat_map(PortPlace::buffers).collect() };
    let (inputs, outputs) = (buffers(ports.inputs), buffers(ports.outputs));
    // Nothing else may ever lie where other devices read.
    let exchanged: BTreeSet<BufferId> = code.buffers.iter().filter_map(|b| b.peer).map(|(own, _)| own).collect();
    let live_ranges = lifetimes(code);
    let end = code.instructions.len() as u32;
    let items = tensors.iter().map(|tensor| {
        let range = live_ranges[tensor.index()];
        let whole = inputs.contains(tensor) || exchanged.contains(tensor);
        let first = range.filter(|_| !whole).map_or(0, |range| range.0.0);
        let last = range.filter(|_| !outputs.contains(tensor)).map_or(end, |range| range.1.0);
        Item { first, last, size: code.buffers[tensor.index()].bytes.div_ceil(page) }
    });
    let problem = Problem { items: items.collect(), capacity: u64::MAX / page };
    let solution = solve(&problem, false);
    let mut last = start;
    for (tensor, offset) in tensors.iter().zip(solution.offsets) {
        addresses[tensor.index()].1 = base + offset * page;
        last = last.max(base + offset * page + padded(code, *tensor, machine.word()));
    }
    last
}

/// Alignment of the start of a tensor.
fn page(machine: &Machine) -> u64 {
    machine.page_bytes().max(machine.word() as u64)
}

/// Bytes of a constant in an address space, whole words.
pub(crate) fn stored(code: &VirtualProgram, buffer: BufferId, space: usize, word: usize) -> u64 {
    let all = padded(code, buffer, word);
    let Content::Constant(Packing::Entries(table)) = &code.buffers[buffer.index()].content else { return all };
    let (entries, spaces) = (table.entries().count(), table.spaces as usize);
    let space = if spaces == 1 { 0 } else { space };
    all / entries.div_ceil(spaces) as u64 * entries.saturating_sub(space).div_ceil(spaces) as u64
}

/// Bytes of a buffer in whole words.
pub(crate) fn padded(code: &VirtualProgram, buffer: BufferId, word: usize) -> u64 {
    code.buffers[buffer.index()].bytes.next_multiple_of(word as u64)
}
