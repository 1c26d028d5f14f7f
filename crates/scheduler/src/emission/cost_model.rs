//! How long a program takes, instruction by instruction: the timing laws of the units, tokens, channels and page misses, and
//! the banks at which instructions meet themselves and each other ([`crate::banks`]).

use std::collections::VecDeque;

use tpuflow_ir::access::{Accesses, Stretch};
use tpuflow_ir::isa::{StartUp, Work};
use tpuflow_ir::timing::{self, Streams};
use tpuflow_ir::{Descriptor, Instruction, Machine, Space, Unit};

use crate::virtual_program::bank_traffic::{Traffic, waits};

/// Instructions of a unit that are remembered.
const RECENT: usize = 16;

/// The state of all units after the instructions so far.
#[derive(Clone, Debug)]
pub(crate) struct CostModel<'a> {
    machine: &'a Machine,
    /// Per unit, when each instruction finishes.
    finished: [Vec<u64>; Unit::COUNT],
    /// When the issue stage of each unit is free.
    issue: [u64; Unit::COUNT],
    /// When each unit's data path is free.
    free: [u64; Unit::COUNT],
    /// Per line, cycles of its transfers, whatever they wait for.
    moved: [u64; Unit::COUNT],
    /// The last instructions of each unit that may still meet others at banks: first and last cycle, traffic.
    recent: [VecDeque<(u64, u64, Traffic)>; Unit::COUNT],
    channels: Vec<Channel>,
}

/// A DDR channel and the transfer that used it last.
#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    /// When it is free.
    free: u64,
    /// Its open page.
    open: Option<u64>,
    /// Line of the last transfer.
    line: usize,
    /// When that began, and how many of its page runs found their page open.
    begin: u64,
    hits: u64,
}

impl<'a> CostModel<'a> {
    pub fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            finished: Default::default(),
            issue: [machine.control.start; Unit::COUNT],
            free: [machine.control.start; Unit::COUNT],
            moved: [0; Unit::COUNT],
            recent: Default::default(),
            channels: vec![Channel::default(); machine.channels()],
        }
    }

    /// The line that is free first; `even`: the one with less to move so far.
    pub fn line(&self, even: bool) -> Unit {
        let of = if even { &self.moved } else { &self.free };
        if of[Unit::Dtl1.index()] < of[Unit::Dtl0.index()] { Unit::Dtl1 } else { Unit::Dtl0 }
    }

    /// When the last instruction so far of a unit finishes.
    pub fn last(&self, unit: Unit) -> u64 {
        self.finished[unit.index()].last().copied().unwrap_or(0)
    }

    /// Cycles so far.
    pub fn makespan(&self) -> u64 {
        self.finished.iter().filter_map(|f| f.last()).copied().max().unwrap_or(0)
    }

    /// Runs the next instruction of the serial order.
    pub fn run(&mut self, instruction: &Instruction, descriptors: &[Descriptor], touched: &Accesses) {
        let unit = instruction.unit.index();
        let token = |wait: &tpuflow_ir::Wait| self.finished[wait.unit.index()].get(wait.count as usize - 1).copied();
        let ready = instruction.waits.iter().filter_map(token).max().unwrap_or(0) + 1;
        let machine = self.machine;
        let done = match &instruction.work {
            Work::Transfer(transfer) => {
                let runs = timing::page_runs(transfer, machine);
                let lead = timing::transfer_lead(transfer, machine);
                self.moved[unit] += lead + timing::transfer_cycles(transfer, machine);
                let start = ready.max(self.free[unit]) + lead;
                self.transfer(unit, start, runs.iter().map(|run| (run.channel, run.page, run.bytes)))
            }
            Work::Expand(expand) => {
                let run = expand.run();
                let runs = timing::page_runs(&run, machine);
                let lead = machine.dma.start + machine.dma.latency + timing::expand_lead(expand, machine);
                self.moved[unit] += lead + timing::transfer_cycles(&run, machine);
                let start = ready.max(self.free[unit]) + lead;
                self.transfer(unit, start, runs.iter().map(|run| (run.channel, run.page, run.bytes)))
            }
            Work::PackedLookup(lookup) => {
                let lead = machine.dma.start + machine.dma.latency + timing::lookup_lead(lookup, machine);
                self.moved[unit] += lead + timing::packed_lookup_cycles(lookup, machine);
                let start = ready.max(self.free[unit]) + lead;
                // Entries are picked at run time: take one after the other.
                let each = lookup.columns.unwrap_or(1);
                let runs = (lookup.first..lookup.first + lookup.count)
                    .map(|n| n % lookup.entries().max(1) * each)
                    .flat_map(|index| timing::entry_runs(lookup, index, 0, machine))
                    .collect::<Vec<_>>();
                self.transfer(unit, start, runs.iter().map(|(run, _)| (run.channel, run.page, run.bytes)))
            }
            Work::Lookup(lookup) => {
                let start = ready.max(self.free[unit]) + machine.dma.start + machine.dma.latency;
                let bytes = lookup.table.payload() as u64;
                // Rows are picked at run time: take a page of its own for each.
                let rows = (0..u64::from(lookup.count)).map(|row| (0, u64::MAX - row, bytes));
                self.transfer(unit, start, rows.collect::<Vec<_>>().into_iter())
            }
            Work::Matrix(matrix) => {
                let Descriptor::Matrix(descriptor) = &descriptors[matrix.descriptor.index()] else { return };
                let depth = timing::array_depth(machine);
                let rows = u64::from(machine.array.rows);
                let slots = timing::matrix_slots(matrix, descriptor, machine);
                let begin = ready.max(self.issue[unit]);
                let drained = self.finished[unit].last().is_none_or(|&last| last <= begin);
                let lead =
                    if drained { machine.control.issue_cold + machine.array.setup } else { machine.control.issue };
                // Weights of the first tile are loaded while the tile before is streamed.
                let stream = (begin + lead + rows).max(self.free[unit]);
                let slots = slots + self.meet(instruction, touched, descriptors, stream, slots);
                self.free[unit] = stream + slots;
                let tile = timing::tile_slots(u64::from(matrix.pixels), machine);
                self.issue[unit] = (begin + lead).max(stream + slots - tile);
                stream + slots + depth
            }
            work => {
                let Some(streams) = timing::streams(work, descriptors, machine) else { return };
                let Some(StartUp { start, latency }) = instruction.unit.start_up(machine) else { return };
                let issued = ready.max(self.issue[unit]) + start;
                let begin = issued.max(self.free[unit]);
                self.issue[unit] = begin;
                let cycles = refused(&streams, touched, machine);
                let cycles = cycles + self.meet(instruction, touched, descriptors, begin, cycles);
                self.free[unit] = begin + cycles;
                begin + cycles + latency
            }
        };
        self.finished[unit].push(done);
    }

    /// Cycles an instruction that takes `cycles` from `begin` on loses at banks to units before its own; those behind it lose
    /// theirs from now on.
    fn meet(
        &mut self,
        instruction: &Instruction,
        touched: &Accesses,
        descriptors: &[Descriptor],
        begin: u64,
        cycles: u64,
    ) -> u64 {
        let unit = instruction.unit;
        let traffic = Traffic::new(instruction, touched, descriptors, self.machine);
        let mut lost = 0;
        for other in Unit::computing().filter(|&other| other != unit) {
            let mut theirs = 0;
            for (from, to, met) in &self.recent[other.index()] {
                let shared = (begin + cycles).min(*to).saturating_sub(begin.max(*from));
                theirs += if shared > 0 { traffic.collisions(met, shared) } else { 0 };
            }
            if waits(unit, other) { lost += theirs } else { self.free[other.index()] += theirs }
        }
        let recent = &mut self.recent[unit.index()];
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back((begin, begin + cycles + lost, traffic));
        lost
    }

    /// Page runs `(channel, page, bytes)` of a line one after the other. Where the other line is still at the channel the two
    /// take turns, so that runs which would have found their page open do not.
    fn transfer(&mut self, unit: usize, start: u64, runs: impl Iterator<Item = (usize, u64, u64)>) -> u64 {
        let mut now = start;
        let mut hits = vec![0; self.channels.len()];
        let before = self.channels.clone();
        for (channel, page, bytes) in runs {
            let Channel { free, open, .. } = self.channels[channel];
            let words = bytes.div_ceil(u64::from(self.machine.cache.word_bytes));
            let hit = open == Some(page);
            hits[channel] += u64::from(hit);
            now = now.max(free) + timing::run_cycles(bytes, words, !hit, self.machine);
            self.channels[channel] =
                Channel { free: now, open: Some(page), line: unit, begin: start, hits: hits[channel] };
        }
        for (channel, (last, &hits)) in before.iter().zip(&hits).enumerate() {
            if self.channels[channel].line == unit && last.line != unit && last.free > start {
                let left = last.hits * (last.free - start) / (last.free - last.begin).max(1);
                now += 2 * left.min(hits) * self.machine.page_miss();
                self.channels[channel].free = now;
            }
        }
        self.free[unit] = now;
        now
    }
}

/// Points of an instruction at which the banks of its streams are looked at.
const SAMPLES: u64 = 4;

/// Cycles of an instruction of the elementwise or pooling unit, a bank serving one word in each.
fn refused(streams: &Streams, touched: &Accesses, machine: &Machine) -> u64 {
    let cached =
        |list: &'_ [Stretch]| -> Vec<Stretch> { list.iter().filter(|s| s.space == Space::Cache).copied().collect() };
    let (reads, writes) = (cached(&touched.reads), cached(&touched.writes));
    let counted = reads.iter().zip(&streams.reads).chain(writes.iter().zip(std::iter::once(&streams.writes)));
    let streams_of: Vec<(&Stretch, u64)> = counted.map(|(stretch, &count)| (stretch, count)).collect();
    let bank_bytes = u64::from(machine.cache.words) * u64::from(machine.cache.word_bytes);
    let at = |sample: u64| {
        let bank = |s: &Stretch| (s.start + (s.end - s.start) * (2 * sample + 1) / (2 * SAMPLES)) / bank_bytes;
        let load = |this: &Stretch| {
            streams_of.iter().filter(|(other, _)| bank(other) == bank(this)).map(|(_, count)| count).sum::<u64>()
        };
        streams_of.iter().map(|(stretch, _)| load(stretch)).fold(streams.cycles, u64::max)
    };
    (0..SAMPLES).map(at).sum::<u64>() / SAMPLES
}
