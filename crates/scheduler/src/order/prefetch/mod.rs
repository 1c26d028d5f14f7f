//! Loads ahead of time: every load moves to the earliest place at which its buffer finds room.
//!
//! Positions of the base order are the clock. Buffers that are computed have fixed lifetimes and get addresses first. Then the
//! loads are taken in the order of their use; each is put before the earliest position `s` from which on there is a hole for
//! its buffer until its last use. A hole over a longer time is a hole over a shorter one, so the search goes back in time
//! from the use, and takes from the gaps what ends there, until none is left.
//!
//! ```text
//!  address |      +---------- w3 ---------+        w2 fits from the start; w3 only where w1 has ended; both are loaded
//!          |  +-- w2 -----+---------------+        while earlier layers compute
//!          |  +w1-+---------- w4 -------------+
//!          |  activations ...
//!          +-----------------------------------> position
//! ```
//!
//! Loads of constants keep their order, that of use unless another is tried ([`search`]): one that is needed late does not
//! overtake one that is needed early. What a position
//! later in the list waits for lies before it, so a load moved ahead can delay others but never deadlock. Rows that are looked up,
//! such as the matrices of experts, are loads that must not come before their indices.

mod model;
mod search;

use std::collections::BTreeMap;

use tpuflow_ir::{Descriptor, InstructionId, Machine, Space, Unit, Work};

use crate::alloc::placed::Placed;
use crate::alloc::{Item, Problem, place_apart};
use crate::budget::SearchBudget;
use crate::virtual_program::addresses::{Addresses, Lifetime, lifetimes};
use crate::virtual_program::{BufferId, Content, Memory, VirtualAddress, VirtualProgram};

/// All loads into one buffer.
#[derive(Clone, Debug)]
struct Load {
    buffer: BufferId,
    /// Its transfers.
    instructions: Vec<InstructionId>,
    /// By transfer, the position before which it is too early: its source is not yet written.
    releases: Vec<u32>,
    /// Where its order is kept: constants and inputs among each other, and rows that are looked up.
    queue: Option<Queue>,
    last: InstructionId,
    /// The instructions that use the buffer.
    users: Vec<InstructionId>,
}

/// Loads that begin in the order of their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Given,
    LookedUp,
}

/// A new order of the virtual instructions, and an address for every buffer in a cache.
pub(crate) struct LoadSchedule {
    pub code: VirtualProgram,
    pub addresses: Addresses,
}

/// Words placed so far, by time.
struct Room {
    placed: Placed,
    /// By position, the stretches that are free again after it.
    ending: Vec<Vec<(u64, u64)>>,
    capacity: u64,
    /// Where the next search starts: buffers follow each other like in a ring, if they are to.
    cursor: u64,
    ring: bool,
}

/// How far loads may move ahead.
pub(crate) struct PrefetchDistance {
    /// Over so many layers.
    pub layers: u32,
    /// Over so many positions.
    pub positions: u32,
    /// Whether loads follow each other round the shared cache, and the parameter cache.
    pub ring: [bool; 2],
}

/// Constants that have words of their own from the start to the end, and what they leave to everything else.
pub(crate) struct Residents {
    /// First word, by buffer.
    pub words: BTreeMap<BufferId, u64>,
    /// Words from the start of the shared cache, and of the parameter cache, that all others share.
    pub capacity: [u64; 2],
}

impl Residents {
    /// None, and both caches whole.
    pub fn none(machine: &Machine) -> Self {
        Self { words: BTreeMap::new(), capacity: [Memory::Cache, Memory::Ewp].map(|memory| capacity(memory, machine)) }
    }

    fn capacity(&self, memory: Memory) -> u64 {
        self.capacity[usize::from(memory == Memory::Ewp)]
    }
}

impl Room {
    fn add(&mut self, item: Item, address: u64) {
        self.placed.add(item, address);
        self.ending[item.last as usize].push((address, address + item.size));
    }

    /// Where `item` finds room if it lives from its first position on, or from an earlier one, as early as there is any but
    /// not before `earliest`: that position, and the gaps.
    fn back(&mut self, item: Item, earliest: u32) -> Option<(u32, FreeGaps)> {
        let mut gaps = FreeGaps { free: vec![(0, self.capacity)], size: item.size };
        self.placed.meeting(item).iter().for_each(|other| gaps.take(other.offset, other.end()));
        if gaps.free.is_empty() || item.size > self.capacity {
            return None;
        }
        let mut first = item.first;
        let mut before = gaps.clone();
        while first > earliest {
            let ending = &self.ending[first as usize - 1];
            if !ending.is_empty() {
                before.free.clone_from(&gaps.free);
                ending.iter().for_each(|&(from, to)| gaps.take(from, to));
                if gaps.free.is_empty() {
                    return Some((first, before));
                }
            }
            first -= 1;
        }
        Some((first, gaps))
    }
}

/// Stretches that are free and long enough, in the order of their addresses.
#[derive(Clone)]
struct FreeGaps {
    free: Vec<(u64, u64)>,
    size: u64,
}

impl FreeGaps {
    fn take(&mut self, from: u64, to: u64) {
        let first = self.free.partition_point(|gap| gap.1 <= from);
        let past = first + self.free[first..].partition_point(|gap| gap.0 < to);
        if first < past {
            let rest = [(self.free[first].0, from), (to, self.free[past - 1].1)];
            let long = rest.into_iter().filter(|&(start, end)| start + self.size <= end);
            self.free.splice(first..past, long);
        }
    }

    /// The first address at or above `cursor`, else the first of all.
    fn address(&self, cursor: u64, choice: Choice) -> Option<u64> {
        match choice {
            Choice::Next => {}
            Choice::Tight { end } => {
                let gap = self.free.iter().min_by_key(|gap| (gap.1 - gap.0, gap.0))?;
                return Some(if end { gap.1 - self.size } else { gap.0 });
            }
            Choice::Last => return self.free.last().map(|gap| gap.1 - self.size),
        }
        let above = self.free.iter().map(|&(start, end)| (start.max(cursor), end));
        let found = above.filter(|&(start, end)| start + self.size <= end).map(|(start, _)| start).next();
        found.or(self.free.first().map(|gap| gap.0))
    }
}

/// Which of the gaps a buffer takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Choice {
    /// The first at or above the cursor.
    #[default]
    Next,
    /// The smallest, at its start or its end.
    Tight { end: bool },
    /// The highest, at its end.
    Last,
}

/// Deviations from the usual placement of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadPreference {
    /// It is placed as if it were needed so many positions earlier.
    lead: u32,
    choice: Choice,
}

/// Where and when loads are: by load.
pub(super) struct Placement {
    /// The position before which it begins.
    slots: Vec<u32>,
    /// In words.
    words: Vec<u64>,
}

/// The loads of a virtual program and the room they share with what is computed.
pub(crate) struct Prefetcher<'a> {
    code: &'a VirtualProgram,
    machine: &'a Machine,
    reaches: &'a PrefetchDistance,
    residents: &'a Residents,
    live_ranges: Vec<Option<Lifetime>>,
    loads: Vec<Load>,
    is_load: Vec<bool>,
    firsts: Vec<u32>,
    /// Addresses of computed buffers.
    addresses: Addresses,
    /// Of the shared cache and the parameter cache, what is computed there.
    computed: [Vec<(Item, u64)>; 2],
}

impl<'a> Prefetcher<'a> {
    /// # Errors
    /// The memory in which what is computed finds no room.
    pub fn new(
        code: &'a VirtualProgram,
        machine: &'a Machine,
        reaches: &'a PrefetchDistance,
        residents: &'a Residents,
    ) -> Result<Self, Memory> {
        let word = machine.word() as u64;
        let live_ranges = lifetimes(code);
        let loads = loads(code, &live_ranges);
        let mut is_load = vec![false; code.buffers.len()];
        loads.iter().for_each(|load| is_load[load.buffer.index()] = true);
        let mut addresses: Addresses = vec![(Space::Ddr(0), 0); code.buffers.len()];
        let mut computed = [Vec::new(), Vec::new()];
        for (memory, placed) in [Memory::Cache, Memory::Ewp].into_iter().zip(&mut computed) {
            let owners: Vec<usize> = (0..code.buffers.len())
                .filter(|&i| code.buffers[i].memory == memory && !is_load[i] && live_ranges[i].is_some())
                .collect();
            let size = |index: usize| code.buffers[index].bytes.div_ceil(word);
            let item =
                |&i: &usize| live_ranges[i].map(|(first, last)| Item { first: first.0, last: last.0, size: size(i) });
            let problem =
                Problem { items: owners.iter().filter_map(item).collect(), capacity: residents.capacity(memory) };
            let solution = place_apart(&problem, &apart(code, &owners, machine), u64::from(machine.cache.words));
            if solution.height > problem.capacity {
                return Err(memory);
            }
            for (&owner, &offset) in owners.iter().zip(&solution.offsets) {
                addresses[owner] = (space(memory), offset * word);
            }
            *placed = problem.items.into_iter().zip(solution.offsets).collect();
        }
        let firsts = firsts(code);
        Ok(Self { code, machine, reaches, residents, live_ranges, loads, is_load, firsts, addresses, computed })
    }

    /// The memory without any loads.
    fn room(&self, memory: Memory) -> Room {
        let all: Vec<Item> = self
            .live_ranges
            .iter()
            .flatten()
            .map(|&(first, last)| Item { first: first.0, last: last.0, size: 0 })
            .collect();
        let index = usize::from(memory == Memory::Ewp);
        let (ring, computed) = (self.reaches.ring[index], &self.computed[index]);
        let height = computed.iter().map(|(item, offset)| offset + item.size).max().unwrap_or(0);
        let mut room = Room {
            placed: Placed::new(&all),
            ending: vec![Vec::new(); self.code.instructions.len()],
            capacity: self.residents.capacity(memory),
            cursor: if ring { height } else { 0 },
            ring,
        };
        computed.iter().for_each(|&(item, offset)| room.add(item, offset));
        room
    }

    fn memory(&self, load: &Load) -> Memory {
        self.code.buffers[load.buffer.index()].memory
    }

    fn size(&self, load: &Load) -> u64 {
        self.code.buffers[load.buffer.index()].bytes.div_ceil(self.machine.word() as u64)
    }

    /// Gives every load a place and a time.
    ///
    /// # Errors
    /// The memory in which no room is found for some buffer.
    fn placement(&self, preferences: &[LoadPreference]) -> Result<Placement, Memory> {
        let mut free = [self.room(Memory::Cache), self.room(Memory::Ewp)];
        let mut addresses = self.addresses.clone();
        let word = self.machine.word() as u64;
        let mut found = Placement { slots: vec![0; self.loads.len()], words: vec![0; self.loads.len()] };
        let mut bars = [0; 2];
        let mut order: Vec<usize> = (0..self.loads.len()).collect();
        order.sort_by_key(|&i| self.loads[i].instructions[0].0.saturating_sub(preferences[i].lead));
        for index in order {
            let load = &self.loads[index];
            let memory = self.memory(load);
            let room = &mut free[usize::from(memory == Memory::Ewp)];
            let deadline = load.instructions[0].0;
            let layer = self.code.instructions[load.instructions[0].index()].layer.0;
            let near = match self.reaches.layers {
                0 => deadline,
                layers => {
                    let first = self.firsts[layer.saturating_sub(layers) as usize];
                    first.max(deadline.saturating_sub(self.reaches.positions))
                }
            };
            let release = load.releases.iter().copied().max().unwrap_or(0);
            let mut unordered = 0;
            let bar = load.queue.map_or(&mut unordered, |queue| &mut bars[queue as usize]);
            let earliest = release.max(*bar).max(near);
            if let Some(&address) = self.residents.words.get(&load.buffer) {
                *bar = earliest.max(*bar);
                addresses[load.buffer.index()] = (space(memory), address * word);
                (found.slots[index], found.words[index]) = (earliest, address);
                continue;
            }
            let size = self.size(load);
            let item = |first: u32| Item { first, last: load.last.0, size };
            let (good, gaps) = room.back(item(deadline), earliest).ok_or(memory)?;
            let choice = preferences[index].choice;
            let mut address = gaps.address(room.cursor, choice).ok_or(memory)?;
            *bar = good.max(*bar);
            if memory == Memory::Cache {
                let mut quiet = gaps;
                let busy = busy(self.code, load, &self.is_load, &addresses, self.machine);
                busy.into_iter().for_each(|(from, to)| quiet.take(from, to));
                address = quiet.address(room.cursor, choice).unwrap_or(address);
            }
            room.add(item(good), address);
            if room.ring {
                room.cursor = (address + size) % room.capacity.max(1);
            }
            addresses[load.buffer.index()] = (space(memory), address * word);
            (found.slots[index], found.words[index]) = (good, address);
        }
        Ok(found)
    }

    /// The virtual instructions in the order of a placement: which comes when.
    fn order(&self, placement: &Placement) -> Vec<InstructionId> {
        let mut slots: Vec<u32> = (0..self.code.instructions.len() as u32).collect();
        // The first of several transfers may be needed before the source of the last is written.
        for (load, &slot) in self.loads.iter().zip(&placement.slots) {
            load.instructions
                .iter()
                .zip(&load.releases)
                .for_each(|(instruction, &release)| slots[instruction.index()] = slot.max(release));
        }
        let mut order: Vec<InstructionId> = self.code.ids().collect();
        let slot = |id: InstructionId| slots[id.index()];
        let moved = |id: InstructionId| slot(id) != id.0 || self.code.instructions[id.index()].load().is_some();
        order.sort_by_key(|&id| (slot(id), !moved(id), id));
        order
    }

    fn finish(self, placement: &Placement) -> LoadSchedule {
        let word = self.machine.word() as u64;
        let order = self.order(placement);
        let mut addresses = self.addresses.clone();
        for (load, &at) in self.loads.iter().zip(&placement.words) {
            addresses[load.buffer.index()] = (space(self.memory(load)), at * word);
        }
        LoadSchedule { code: self.code.reordered(&order), addresses }
    }
}

fn space(memory: Memory) -> Space {
    if memory == Memory::Ewp { Space::EwpCache } else { Space::Cache }
}

/// Words of a memory.
fn capacity(memory: Memory, machine: &Machine) -> u64 {
    let bytes = if memory == Memory::Ewp { machine.ewp_cache_bytes() } else { machine.cache_bytes() };
    bytes / machine.word() as u64
}

/// Moves loads ahead. With `effort`, other placements are tried as well.
///
/// # Errors
/// The memory in which no room is found for some buffer.
pub(crate) fn prefetch(
    code: &VirtualProgram,
    machine: &Machine,
    reaches: &PrefetchDistance,
    residents: &Residents,
    budget: Option<&SearchBudget>,
) -> Result<LoadSchedule, Memory> {
    let prefetcher = Prefetcher::new(code, machine, reaches, residents)?;
    let first = prefetcher.placement(&vec![LoadPreference::default(); prefetcher.loads.len()])?;
    let best = match budget {
        Some(budget) => search::improved(&prefetcher, first, budget),
        None => first,
    };
    Ok(prefetcher.finish(&best))
}

/// By layer, the first position at which it or a later one is under way.
fn firsts(code: &VirtualProgram) -> Vec<u32> {
    let count = code.instructions.iter().map(|instruction| instruction.layer.index() + 1).max().unwrap_or(0);
    let mut firsts = vec![u32::MAX; count];
    for (position, instruction) in (0..).zip(&code.instructions) {
        let first = &mut firsts[instruction.layer.index()];
        *first = position.min(*first);
    }
    for layer in (1..count).rev() {
        firsts[layer - 1] = firsts[layer - 1].min(firsts[layer]);
    }
    firsts
}

/// Words of the banks that an instruction uses beside what is loaded for it.
fn busy(
    code: &VirtualProgram,
    load: &Load,
    is_load: &[bool],
    addresses: &Addresses,
    machine: &Machine,
) -> Vec<(u64, u64)> {
    let bank = u64::from(machine.cache.words);
    let word = machine.word() as u64;
    let mut found = Vec::new();
    for user in &load.users {
        for buffer in code.instructions[user.index()].touches() {
            let b = &code.buffers[buffer.index()];
            if b.memory == Memory::Cache && b.content == Content::Computed && !is_load[buffer.index()] {
                let start = addresses[buffer.index()].1 / word;
                let end = start + b.bytes.div_ceil(word);
                found.push((start / bank * bank, end.next_multiple_of(bank)));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Buffers that nothing but loads write, in the order of their first load.
fn loads(code: &VirtualProgram, live_ranges: &[Option<Lifetime>]) -> Vec<Load> {
    let (mut loads, alone): (Vec<Load>, _) = (Vec::new(), code.loaded_alone());
    let mut by_buffer: Vec<Option<usize>> = vec![None; code.buffers.len()];
    // Position after the last store to each DDR buffer, and after the last result in each buffer of a cache.
    let mut written = vec![0u32; code.buffers.len()];
    for (id, instruction) in code.ids().zip(&code.instructions) {
        let source = |from: BufferId| code.buffers[from.index()].peer.map_or(from, |(own, _)| own);
        let filled = instruction.load().map(|(to, from)| (to, from, written[source(from).index()]));
        let looked_up = || {
            let (to, [table, indices]) = instruction.lookup()?;
            Some((to, table, written[table.index()].max(written[indices.index()])))
        };
        if let Some((to, from, release)) = filled.or_else(looked_up) {
            written[to.index()] = id.0 + 1;
            if !alone[to.index()] {
                continue;
            }
            let index = *by_buffer[to.index()].get_or_insert_with(|| {
                let last = live_ranges[to.index()].map_or(id, |l| l.1);
                let (instructions, releases, users) = (vec![], vec![], vec![]);
                loads.push(Load { buffer: to, instructions, releases, queue: None, last, users });
                loads.len() - 1
            });
            let load = &mut loads[index];
            load.instructions.push(id);
            load.releases.push(release);
            let queue = match instruction.lookup() {
                Some(_) => Some(Queue::LookedUp),
                None => code.buffers[from.index()].is_given().then_some(Queue::Given),
            };
            let is_first = load.instructions.len() == 1;
            load.queue = if is_first || load.queue == queue { queue } else { None };
        } else if let Some(t) = instruction.transfer() {
            written[VirtualAddress::of_field(t.ddr_address).buffer.index()] = id.0 + 1;
        } else {
            for index in instruction.touches().iter().filter_map(|b| by_buffer[b.index()]) {
                loads[index].users.push(id);
            }
            instruction.result().into_iter().for_each(|buffer| written[buffer.index()] = id.0 + 1);
        }
    }
    loads
}

/// Weight of two buffers of one instruction beside that of two instructions that may run at the same time.
const TOGETHER: u64 = 4;

/// Instructions of other units after an instruction that may run at the same time.
const BESIDE: usize = 8;

/// Pairs of buffers (positions in `owners`) that are read and written at the same time, and how often.
pub(crate) fn apart(code: &VirtualProgram, owners: &[usize], machine: &Machine) -> Vec<Vec<(usize, u64)>> {
    let mut place = vec![None; code.buffers.len()];
    for (position, &owner) in owners.iter().enumerate() {
        place[owner] = Some(position);
    }
    let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
    let computing = code
        .instructions
        .iter()
        .filter(|d| !matches!(d.work, Work::Transfer(_) | Work::Lookup(_) | Work::Expand(_) | Work::PackedLookup(_)));
    let instructions: Vec<(Unit, Vec<usize>)> = computing
        .map(|instruction| {
            let mut touched: Vec<usize> = instruction.touches().iter().filter_map(|b| place[b.index()]).collect();
            touched.sort_unstable();
            touched.dedup();
            (instruction.unit(&descriptors, machine), touched)
        })
        .collect();
    let mut pairs = vec![BTreeMap::<usize, u64>::new(); owners.len()];
    for (index, (unit, mine)) in instructions.iter().enumerate() {
        let beside =
            instructions[index + 1..].iter().take(BESIDE).filter(|(other, _)| other != unit).map(|d| (&d.1, 1));
        for (theirs, weight) in beside.chain([(mine, TOGETHER)]) {
            for &a in mine {
                for &b in theirs.iter().filter(|&&b| b != a) {
                    *pairs[a].entry(b).or_default() += weight;
                    *pairs[b].entry(a).or_default() += weight;
                }
            }
        }
    }
    pairs.into_iter().map(|list| list.into_iter().collect()).collect()
}

#[cfg(test)]
mod tests;
