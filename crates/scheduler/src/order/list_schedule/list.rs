//! One list schedule: every unit, whenever it is free, takes up the most urgent of the instructions that may begin.
//!
//! What may begin is a matter of three things: its predecessors are done (they wait in the unit's [`Lane`]), its layer is among
//! those that may be under way ([`Group`]), and there is room for the buffers it opens ([`Open`]). Memory is a resource like
//! units: an instruction that opens a buffer for which there is no room waits until others are closed; where everything waits,
//! the first in the given order goes on, so that no order can get stuck.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use smallvec::SmallVec;
use tpuflow_ir::Unit;

use super::ListScheduler;
use crate::virtual_program::VirtualProgram;
use crate::virtual_program::bank_traffic::waits;

pub(super) const LANES: usize = Unit::ALL.len();

/// Instructions looked at for the one that meets the fewest others at banks.
const CHOICES: usize = 6;

/// A list schedule.
#[derive(Clone, Debug)]
pub(super) struct ListSchedule {
    /// Virtual instructions in the order taken up.
    pub(super) order: Vec<u32>,
    /// By virtual instruction.
    pub(super) starts: Vec<u64>,
    pub(super) makespan: u64,
}

impl ListScheduler<'_> {
    /// The list schedule by `keys`, smallest first; with `reverse`, that of the reversed network.
    pub(super) fn schedule(&self, keys: &[u64], reverse: bool, room: u64) -> ListSchedule {
        let count = self.jobs.len();
        let (before, after) = if reverse {
            (&self.dependences.after, &self.dependences.before)
        } else {
            (&self.dependences.before, &self.dependences.after)
        };
        let mut left: Vec<u32> = before.iter().map(|list| list.len() as u32).collect();
        let mut ready = vec![0u64; count];
        let mut starts = vec![0u64; count];
        let mut order = Vec::with_capacity(count);
        let mut lanes: [Lane; LANES] = Default::default();
        let mut memory = Open::new(self, room);
        let mut group = Group::new(self.code, if reverse { u32::MAX } else { self.window });
        let mut makespan = 0;
        for instruction in (0..count).filter(|&d| left[d] == 0) {
            lanes[self.jobs[instruction].lane].push(0, instruction as u32);
        }
        while order.len() < count {
            // The lane that can decide first.
            let next = lanes.iter().enumerate().filter_map(|(i, lane)| Some((lane.decision()?, i))).min();
            let (time, instruction) = if let Some((time, at)) = next {
                lanes[at].wake(time, keys, &memory);
                let is_near = |&(_, instruction): &(u64, u32)| group.has(self.layer(instruction));
                let found = if self.traffic.is_empty() || reverse {
                    lanes[at].first(is_near, 1, &memory).first().copied()
                } else {
                    let choices = lanes[at].first(is_near, CHOICES, &memory);
                    choices
                        .into_iter()
                        .min_by_key(|&(key, instruction)| key + self.met(&lanes, instruction, time).iter().sum::<u64>())
                };
                let Some(found) = found else {
                    lanes[at].blocked = true;
                    continue;
                };
                lanes[at].remove(found, &memory);
                (time, found.1)
            } else {
                // Everybody waits for room.
                let waiting = lanes.iter().filter_map(|lane| lane.numbers.first());
                let Some(&instruction) = waiting.min() else { break };
                let lane = &mut lanes[self.jobs[instruction as usize].lane];
                lane.remove((keys[instruction as usize], instruction), &memory);
                (lane.free.max(ready[instruction as usize]), instruction)
            };
            let mut job = self.jobs[instruction as usize];
            if !self.traffic.is_empty() && !reverse {
                let met = self.met(&lanes, instruction, time);
                for (other, &cycles) in met.iter().enumerate() {
                    if waits(Unit::ALL[job.lane], Unit::ALL[other]) {
                        job.busy += cycles;
                    } else {
                        lanes[other].free += cycles;
                    }
                }
                lanes[job.lane].last = Some(instruction);
            }
            starts[instruction as usize] = time;
            makespan = makespan.max(time + job.busy + job.tail);
            lanes[job.lane].free = time + job.busy;
            order.push(instruction);
            let changed = |user: u32, needed: [u64; 2]| {
                lanes[self.jobs[user as usize].lane].needs(needed, (keys[user as usize], user));
            };
            if memory.touch(self, instruction, changed) | group.placed(self.layer(instruction)) {
                lanes.iter_mut().for_each(|lane| lane.blocked = false);
            }
            for edge in &after[instruction as usize] {
                let other = edge.instruction as usize;
                let tail = match (edge.finish, reverse) {
                    (false, _) => 0,
                    (true, false) => job.tail,
                    (true, true) => self.jobs[other].tail,
                };
                ready[other] = ready[other].max(time + job.busy + tail);
                left[other] -= 1;
                if left[other] == 0 {
                    lanes[self.jobs[other].lane].push(ready[other], edge.instruction);
                }
            }
        }
        ListSchedule { order, starts, makespan }
    }

    fn layer(&self, instruction: u32) -> u32 {
        self.code.instructions[instruction as usize].layer.0
    }

    /// By lane, cycles lost at banks between `draft` from `time` on and what the lane is at.
    fn met(&self, lanes: &[Lane; LANES], instruction: u32, time: u64) -> [u64; LANES] {
        let (own, job) = (&self.traffic[instruction as usize], self.jobs[instruction as usize]);
        std::array::from_fn(|lane| match lanes[lane].last {
            Some(other) if lane != job.lane => {
                own.collisions(&self.traffic[other as usize], job.busy.min(lanes[lane].free.saturating_sub(time)))
            }
            _ => 0,
        })
    }
}

/// A unit and the virtual instructions whose predecessors are done.
#[derive(Debug, Default)]
struct Lane {
    free: u64,
    /// What it took up last.
    last: Option<u32>,
    /// By the time they may begin.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Those that may begin, by the room they need, then by key.
    open: BTreeMap<u64, BTreeSet<(u64, u32)>>,
    /// The same, by virtual instruction.
    numbers: BTreeSet<u32>,
    /// Nothing open has room.
    blocked: bool,
}

impl Lane {
    fn push(&mut self, ready: u64, instruction: u32) {
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
    fn wake(&mut self, time: u64, keys: &[u64], memory: &Open) {
        while let Some(&Reverse((ready, instruction))) = self.waiting.peek()
            && ready <= time
        {
            self.waiting.pop();
            self.open.entry(memory.needed(instruction)).or_default().insert((keys[instruction as usize], instruction));
            self.numbers.insert(instruction);
        }
        self.blocked = false;
    }

    /// A virtual instruction has come to need less room.
    fn needs(&mut self, [before, now]: [u64; 2], entry: (u64, u32)) {
        if self.take(before, entry) {
            self.open.entry(now).or_default().insert(entry);
        }
    }

    fn remove(&mut self, entry: (u64, u32), memory: &Open) {
        self.take(memory.needed(entry.1), entry);
        self.numbers.remove(&entry.1);
    }

    /// Takes a virtual instruction from those that need so much room; whether it was among them.
    fn take(&mut self, needed: u64, entry: (u64, u32)) -> bool {
        let Some(alike) = self.open.get_mut(&needed) else { return false };
        let was_there = alike.remove(&entry);
        if alike.is_empty() {
            self.open.remove(&needed);
        }
        was_there
    }

    /// The first by key that there is room for, of some: at most `count`.
    fn first(&self, is_one: impl Fn(&(u64, u32)) -> bool, count: usize, memory: &Open) -> Vec<(u64, u32)> {
        let fitting = self.open.range(..=memory.room.saturating_sub(memory.bytes));
        let of_each = |alike: &BTreeSet<(u64, u32)>| -> SmallVec<[(u64, u32); CHOICES]> {
            alike.iter().copied().filter(&is_one).take(count).collect()
        };
        let mut found: Vec<(u64, u32)> = fitting.flat_map(|(_, alike)| of_each(alike)).collect();
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
            vec![0; code.instructions.iter().map(|instruction| instruction.layer.0 as usize + 1).max().unwrap_or(0)];
        for instruction in &code.instructions {
            left[instruction.layer.0 as usize] += 1;
        }
        let mut group = Self { left, first: 0, window: window as usize };
        group.advance();
        group
    }

    fn has(&self, layer: u32) -> bool {
        (layer as usize) < self.first.saturating_add(self.window)
    }

    /// Books a virtual instruction; whether others may now begin.
    fn placed(&mut self, layer: u32) -> bool {
        self.left[layer as usize] -= 1;
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
struct Open {
    /// By buffer, virtual instructions that are still to touch it.
    left: Vec<u32>,
    opened: Vec<bool>,
    /// By virtual instruction, bytes of buffers it would open.
    more: Vec<u64>,
    bytes: u64,
    room: u64,
}

impl Open {
    fn new(scheduler: &ListScheduler, room: u64) -> Self {
        let size = |&buffer: &u32| scheduler.code.buffers[buffer as usize].bytes;
        let more = scheduler.buffers.iter().map(|list| list.iter().map(size).sum()).collect();
        Self { left: scheduler.touches.clone(), opened: vec![false; scheduler.touches.len()], more, bytes: 0, room }
    }

    /// Bytes of buffers that a virtual instruction would open; nothing where there is room for all.
    fn needed(&self, instruction: u32) -> u64 {
        if self.room == u64::MAX { 0 } else { self.more[instruction as usize] }
    }

    /// Books what a virtual instruction opens and closes, and tells who needs less room by it; whether anything was closed.
    fn touch(&mut self, scheduler: &ListScheduler, instruction: u32, mut changed: impl FnMut(u32, [u64; 2])) -> bool {
        let mut closed = false;
        for &buffer in &scheduler.buffers[instruction as usize] {
            let (index, bytes) = (buffer as usize, scheduler.code.buffers[buffer as usize].bytes);
            if !self.opened[index] {
                self.opened[index] = true;
                self.bytes += bytes;
                for &user in &scheduler.users[index] {
                    let before = self.needed(user);
                    self.more[user as usize] -= bytes;
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
