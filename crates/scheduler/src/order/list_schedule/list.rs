//! One list schedule: every unit, whenever it is free, takes up the most urgent of the instructions that may begin.
//!
//! What may begin is a matter of three things: its predecessors are done (they wait in the unit's [`Lane`]), its layer is among
//! those that may be in progress ([`Group`]), and there is room for the buffers it opens ([`LiveBuffers`]). Memory is a resource like
//! units: an instruction that opens a buffer for which there is no room waits until others are closed; where everything waits,
//! the first in the given order goes on, so that no order can get stuck. A layer far ahead may take the space that one before it
//! needs to go on; with [`BufferLimit::reserves`] it leaves that much.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use smallvec::SmallVec;
use tpuflow_ir::{InstructionId, LayerId, Unit};

use super::ListScheduler;
use crate::virtual_program::bank_traffic::waits;
use crate::virtual_program::dependence::Edge;
use crate::virtual_program::{BufferId, VirtualProgram};

/// A key and the instruction it is of.
type Entry = (u64, InstructionId);

/// Instructions looked at for the one that meets the fewest others at banks.
const CHOICES: usize = 6;

/// Limit of the buffers of the cache that are open at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLimit {
    /// Their bytes.
    pub bytes: u64,
    /// Whether a layer leaves space for the buffers that an earlier layer in progress is yet to open.
    pub reserves: bool,
}

impl BufferLimit {
    /// No limit.
    pub const NONE: Self = Self { bytes: u64::MAX, reserves: false };
}

/// A list schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListSchedule {
    /// Virtual instructions in the order taken up.
    pub(super) order: Vec<InstructionId>,
    /// By virtual instruction.
    pub(super) starts: Vec<u64>,
    pub(super) makespan: u64,
}

impl ListScheduler<'_> {
    /// The list schedule by `keys`, smallest first; with `reverse`, that of the reversed network.
    pub(super) fn schedule(&self, keys: &[u64], reverse: bool, limit: BufferLimit) -> ListSchedule {
        let mut partial = PartialSchedule::new(self, keys, reverse, limit);
        while partial.order.len() < self.jobs.len() {
            let Some((time, instruction)) = partial.choose() else { break };
            partial.issue_at(time, instruction);
        }
        let PartialSchedule { order, starts, makespan, .. } = partial;
        ListSchedule { order, starts, makespan }
    }

    fn layer(&self, instruction: InstructionId) -> LayerId {
        self.code.instructions[instruction.index()].layer
    }

    /// The lane of an instruction.
    fn unit(&self, instruction: InstructionId) -> usize {
        self.jobs[instruction.index()].unit.index()
    }

    /// By lane, cycles lost at banks between `draft` from `time` on and what the lane is at.
    fn met(&self, lanes: &[Lane; Unit::COUNT], instruction: InstructionId, time: u64) -> [u64; Unit::COUNT] {
        let (own, job) = (&self.traffic[instruction.index()], self.jobs[instruction.index()]);
        std::array::from_fn(|lane| match lanes[lane].last {
            Some(other) if lane != job.unit.index() => {
                own.collisions(&self.traffic[other.index()], job.busy.min(lanes[lane].free.saturating_sub(time)))
            }
            _ => 0,
        })
    }
}

/// A list schedule that is being made.
struct PartialSchedule<'a> {
    scheduler: &'a ListScheduler<'a>,
    keys: &'a [u64],
    reverse: bool,
    /// By virtual instruction, those that wait for it.
    after: &'a [SmallVec<[Edge; 6]>],
    /// By virtual instruction, predecessors not yet taken up.
    left: Vec<u32>,
    /// By virtual instruction, when its predecessors so far are done.
    ready: Vec<u64>,
    lanes: [Lane; Unit::COUNT],
    memory: LiveBuffers,
    group: Group,
    order: Vec<InstructionId>,
    starts: Vec<u64>,
    makespan: u64,
}

impl<'a> PartialSchedule<'a> {
    fn new(scheduler: &'a ListScheduler<'a>, keys: &'a [u64], reverse: bool, limit: BufferLimit) -> Self {
        let count = scheduler.jobs.len();
        let (before, after) = if reverse {
            (&scheduler.dependences.after, &scheduler.dependences.before)
        } else {
            (&scheduler.dependences.before, &scheduler.dependences.after)
        };
        let left: Vec<u32> = before.iter().map(|list| list.len() as u32).collect();
        let mut lanes: [Lane; Unit::COUNT] = Default::default();
        for instruction in scheduler.code.ids().filter(|d| left[d.index()] == 0) {
            lanes[scheduler.unit(instruction)].push(0, instruction);
        }
        Self {
            scheduler,
            keys,
            reverse,
            after,
            left,
            ready: vec![0; count],
            lanes,
            memory: LiveBuffers::new(scheduler, limit),
            group: Group::new(scheduler.code, if reverse { u32::MAX } else { scheduler.window }),
            order: Vec::with_capacity(count),
            starts: vec![0; count],
            makespan: 0,
        }
    }

    /// Whether lanes are compared by what they lose at banks.
    fn weighs_bank_conflicts(&self) -> bool {
        !self.scheduler.traffic.is_empty() && !self.reverse
    }

    /// The instruction taken up next, out of its lane, and when it begins; `None` where nothing is left.
    fn choose(&mut self) -> Option<(u64, InstructionId)> {
        // The lane that can decide first.
        while let Some((time, at)) = self.lanes.iter().enumerate().filter_map(|(i, l)| Some((l.decision()?, i))).min() {
            self.lanes[at].open_ready(time, self.keys, &self.memory);
            let is_near = |&(_, instruction): &Entry| {
                let layer = self.scheduler.layer(instruction);
                (self.scheduler.is_early_load[instruction.index()] || self.group.has(layer))
                    && self.memory.leaves_enough(instruction, self.group.first..layer.index())
            };
            let found = if self.weighs_bank_conflicts() {
                let lost = |instruction| self.scheduler.met(&self.lanes, instruction, time).iter().sum::<u64>();
                let choices = self.lanes[at].first(is_near, CHOICES, &self.memory);
                choices.into_iter().min_by_key(|&(key, instruction)| key + lost(instruction))
            } else {
                self.lanes[at].first(is_near, 1, &self.memory).first().copied()
            };
            if let Some(found) = found {
                self.lanes[at].remove(found, &self.memory);
                return Some((time, found.1));
            }
            self.lanes[at].blocked = true;
        }
        // Everybody waits for room.
        let instruction = *self.lanes.iter().filter_map(|lane| lane.numbers.first()).min()?;
        let lane = &mut self.lanes[self.scheduler.unit(instruction)];
        lane.remove((self.keys[instruction.index()], instruction), &self.memory);
        Some((lane.free.max(self.ready[instruction.index()]), instruction))
    }

    /// Books an instruction from `time` on: its unit, its buffers, and what may begin after it.
    fn issue_at(&mut self, time: u64, instruction: InstructionId) {
        let scheduler = self.scheduler;
        let mut job = scheduler.jobs[instruction.index()];
        if self.weighs_bank_conflicts() {
            let met = scheduler.met(&self.lanes, instruction, time);
            for (other, cycles) in Unit::ALL.into_iter().zip(met) {
                if waits(job.unit, other) {
                    job.busy += cycles;
                } else {
                    self.lanes[other.index()].free += cycles;
                }
            }
            self.lanes[job.unit.index()].last = Some(instruction);
        }
        self.starts[instruction.index()] = time;
        self.makespan = self.makespan.max(time + job.busy + job.tail);
        self.lanes[job.unit.index()].free = time + job.busy;
        self.order.push(instruction);
        let changed = |user: InstructionId, needed: [u64; 2]| {
            self.lanes[scheduler.unit(user)].needs(needed, (self.keys[user.index()], user));
        };
        if self.memory.touch(scheduler, instruction, changed) | self.group.placed(scheduler.layer(instruction)) {
            self.lanes.iter_mut().for_each(|lane| lane.blocked = false);
        }
        for edge in &self.after[instruction.index()] {
            let other = edge.instruction.index();
            let tail = match (edge.finish, self.reverse) {
                (false, _) => 0,
                (true, false) => job.tail,
                (true, true) => scheduler.jobs[other].tail,
            };
            self.ready[other] = self.ready[other].max(time + job.busy + tail);
            self.left[other] -= 1;
            if self.left[other] == 0 {
                self.lanes[scheduler.unit(edge.instruction)].push(self.ready[other], edge.instruction);
            }
        }
    }
}

/// A unit and the virtual instructions whose predecessors are done.
#[derive(Debug, Default)]
struct Lane {
    free: u64,
    /// The instruction issued last.
    last: Option<InstructionId>,
    /// By the time they may begin.
    waiting: BinaryHeap<Reverse<Entry>>,
    /// Those that may begin, by the room they need, then by key.
    open: BTreeMap<u64, BTreeSet<Entry>>,
    /// The same, by virtual instruction.
    numbers: BTreeSet<InstructionId>,
    /// Nothing open has room.
    blocked: bool,
}

impl Lane {
    fn push(&mut self, ready: u64, instruction: InstructionId) {
        self.waiting.push(Reverse((ready, instruction)));
    }

    /// When the unit can next choose.
    fn decision(&self) -> Option<u64> {
        if !self.numbers.is_empty() && !self.blocked {
            return Some(self.free);
        }
        self.waiting.peek().map(|Reverse((ready, _))| self.free.max(*ready))
    }

    /// Opens what may begin at `time`.
    fn open_ready(&mut self, time: u64, keys: &[u64], memory: &LiveBuffers) {
        while let Some(&Reverse((ready, instruction))) = self.waiting.peek()
            && ready <= time
        {
            self.waiting.pop();
            self.open.entry(memory.needed(instruction)).or_default().insert((keys[instruction.index()], instruction));
            self.numbers.insert(instruction);
        }
        self.blocked = false;
    }

    /// A virtual instruction has come to need less room.
    fn needs(&mut self, [before, now]: [u64; 2], entry: Entry) {
        if self.take(before, entry) {
            self.open.entry(now).or_default().insert(entry);
        }
    }

    fn remove(&mut self, entry: Entry, memory: &LiveBuffers) {
        self.take(memory.needed(entry.1), entry);
        self.numbers.remove(&entry.1);
    }

    /// Takes a virtual instruction from those that need so much room; whether it was among them.
    fn take(&mut self, needed: u64, entry: Entry) -> bool {
        let Some(alike) = self.open.get_mut(&needed) else { return false };
        let was_there = alike.remove(&entry);
        if alike.is_empty() {
            self.open.remove(&needed);
        }
        was_there
    }

    /// The first by key that there is room for, of some: at most `count`.
    fn first(&self, is_one: impl Fn(&Entry) -> bool, count: usize, memory: &LiveBuffers) -> Vec<Entry> {
        let fitting = self.open.range(..=memory.room.saturating_sub(memory.bytes));
        let of_each = |alike: &BTreeSet<Entry>| -> SmallVec<[Entry; CHOICES]> {
            alike.iter().copied().filter(&is_one).take(count).collect()
        };
        let mut found: Vec<Entry> = fitting.flat_map(|(_, alike)| of_each(alike)).collect();
        found.sort_unstable();
        found.truncate(count);
        found
    }
}

/// Layers under way: from the first that is not done, as many as the window holds.
struct Group {
    /// By layer, virtual instructions not yet placed.
    left: Vec<u32>,
    first: usize,
    window: usize,
}

impl Group {
    fn new(code: &VirtualProgram, window: u32) -> Self {
        let mut left =
            vec![0; code.instructions.iter().map(|instruction| instruction.layer.index() + 1).max().unwrap_or(0)];
        for instruction in &code.instructions {
            left[instruction.layer.index()] += 1;
        }
        let mut group = Self { left, first: 0, window: window as usize };
        group.advance();
        group
    }

    fn has(&self, layer: LayerId) -> bool {
        layer.index() < self.first.saturating_add(self.window)
    }

    /// Books a virtual instruction; whether others may now begin.
    fn placed(&mut self, layer: LayerId) -> bool {
        self.left[layer.index()] -= 1;
        self.advance()
    }

    fn advance(&mut self) -> bool {
        let before = self.first;
        while self.left.get(self.first) == Some(&0) {
            self.first += 1;
        }
        self.first > before
    }
}

/// Buffers that hold something.
struct LiveBuffers {
    /// By buffer, virtual instructions that are still to touch it.
    left: Vec<u32>,
    opened: Vec<bool>,
    /// By virtual instruction, bytes of buffers it would open.
    more: Vec<u64>,
    bytes: u64,
    room: u64,
    /// By layer, bytes of the buffers it is the first to touch and has not opened; empty where nothing is reserved for them.
    unopened: Vec<u64>,
}

impl LiveBuffers {
    fn new(scheduler: &ListScheduler, limit: BufferLimit) -> Self {
        let size = |buffer: &BufferId| scheduler.code.buffers[buffer.index()].bytes;
        let more = scheduler.buffers.iter().map(|list| list.iter().map(size).sum()).collect();
        let mut unopened = Vec::new();
        if limit.reserves {
            for (buffer, users) in scheduler.code.buffers.iter().zip(&scheduler.users) {
                if let Some(layer) = users.first().map(|&first| scheduler.layer(first).index()) {
                    unopened.resize(unopened.len().max(layer + 1), 0);
                    unopened[layer] += buffer.bytes;
                }
            }
        }
        let opened = vec![false; scheduler.touches.len()];
        Self { left: scheduler.touches.clone(), opened, more, bytes: 0, room: limit.bytes, unopened }
    }

    /// Whether the buffers an instruction opens leave space for those that any one of some layers is yet to open.
    fn leaves_enough(&self, instruction: InstructionId, layers: Range<usize>) -> bool {
        let needed = self.needed(instruction);
        if self.unopened.is_empty() || needed == 0 {
            return true;
        }
        let within = layers.start..layers.end.min(self.unopened.len());
        let reserved = self.unopened.get(within).and_then(|layers| layers.iter().max()).copied().unwrap_or(0);
        self.bytes + needed + reserved <= self.room
    }

    /// Bytes of buffers that a virtual instruction would open; nothing where there is room for all.
    fn needed(&self, instruction: InstructionId) -> u64 {
        if self.room == u64::MAX { 0 } else { self.more[instruction.index()] }
    }

    /// Books what a virtual instruction opens and closes, and tells who needs less room by it; whether anything was closed.
    fn touch(
        &mut self,
        scheduler: &ListScheduler,
        instruction: InstructionId,
        mut changed: impl FnMut(InstructionId, [u64; 2]),
    ) -> bool {
        let mut closed = false;
        for &buffer in &scheduler.buffers[instruction.index()] {
            let (index, bytes) = (buffer.index(), scheduler.code.buffers[buffer.index()].bytes);
            if !self.opened[index] {
                self.opened[index] = true;
                self.bytes += bytes;
                let first = scheduler.users[index].first().map(|&first| scheduler.layer(first).index());
                if let Some(unopened) = first.and_then(|layer| self.unopened.get_mut(layer)) {
                    *unopened -= bytes;
                }
                for &user in &scheduler.users[index] {
                    let before = self.needed(user);
                    self.more[user.index()] -= bytes;
                    changed(user, [before, self.needed(user)]);
                }
            }
            self.left[index] -= 1;
            if self.left[index] == 0 {
                self.bytes -= bytes;
                closed = true;
            }
        }
        closed
    }
}
