//! The matrix engine, stream by stream (see [`crate::matrix`] for what it does).
//!
//! Three ports follow each other: the weight port loads the tile after the one being streamed, the feeder streams a tile once
//! it is loaded, the output pipe writes what the last tile of an instruction left. Each goes on as far as is known of those
//! that come before it at the banks.

use std::collections::VecDeque;

use tpuflow_ir::{Descriptor, Program, Unit, Work, timing};

use super::accounting::{Accounting, Tokens};
use super::banks::Banks;
use super::feed::{Entries, OperandFeed};
use super::ports::{OutputRun, PortTile, output_runs};
use crate::counters::{Client, Stall};
use crate::feeder::Geometry;
use crate::queue::Queue;
use crate::run::Phase;

#[derive(Clone, Copy, Debug)]
struct Issue {
    instruction: usize,
    began: u64,
    /// Whether `ready` includes setting up the pipes of a drained array.
    settled: bool,
    ready: u64,
}

/// An instruction in the array.
#[derive(Debug)]
struct Job {
    instruction: usize,
    number: u64,
    geometry: Geometry,
    started: u64,
    /// Cycles in which the pixels of the last tile entered.
    entries: Entries,
    outputs: Vec<OutputRun>,
    /// Run and word in it to be written next.
    run: usize,
    word: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tile {
    job: u64,
    tile: usize,
    /// When its instruction began and when its load did.
    began: u64,
    load: u64,
}

/// The second weight register.
#[derive(Debug)]
enum Register {
    /// From this cycle on.
    Free(u64),
    Loading(Tile, PortTile),
    /// From this cycle on.
    Full(Tile, u64),
}

#[derive(Debug)]
pub(super) struct Matrix {
    queue: Queue,
    issue: Option<Issue>,
    /// From when on the issue stage is free, if it is.
    stage: u64,
    /// Unfinished, oldest first.
    jobs: VecDeque<Job>,
    entered: u64,
    last_finish: Option<u64>,
    /// Job and tile to load next.
    load: (u64, usize),
    register: Register,
    feed: Option<OperandFeed>,
    /// Without a stream: from when on the array is free.
    free: u64,
    /// Instruction of the last stream.
    streamed: usize,
    /// The loaded tile waits for accumulators.
    blocked: bool,
    /// First cycle whose write has not been decided.
    writer: u64,
    rows: u64,
    accumulators: u64,
    depth: u64,
    fetches: usize,
    issue_warm: u64,
    issue_cold: u64,
    setup: u64,
}

impl Matrix {
    pub(super) fn new(program: &Program) -> Self {
        let machine = &program.machine;
        let start = machine.control.start;
        Self {
            queue: Queue::new(program, Unit::Me),
            issue: None,
            stage: start,
            jobs: VecDeque::new(),
            entered: 0,
            last_finish: None,
            load: (0, 0),
            register: Register::Free(start),
            feed: None,
            free: start,
            streamed: 0,
            blocked: false,
            writer: start,
            rows: machine.array.rows.into(),
            accumulators: machine.array.accumulators.into(),
            depth: timing::array_depth(machine),
            fetches: machine.feeder.words as usize,
            issue_warm: machine.control.issue,
            issue_cold: machine.control.issue_cold,
            setup: machine.array.setup,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.jobs.is_empty() && self.issue.is_none() && self.queue.head().is_none()
    }

    /// Makes the requests of cycles before `limit`; returns before which cycle there are no more.
    pub(super) fn advance(&mut self, books: &mut Accounting<'_>, banks: &mut Banks, limit: u64) -> u64 {
        loop {
            let mut moved = self.begin(books);
            moved |= self.set_up_drained_array();
            moved |= self.start_load(books, banks);
            moved |= self.load(banks, limit);
            moved |= self.start_feed(books);
            moved |= self.stream(books, banks, limit);
            moved |= self.write(books, banks, limit);
            if !moved {
                break;
            }
        }
        let (fed, loaded) = self.quiet_until(books);
        let written = if self.jobs.is_empty() { fed } else { self.writer };
        books.earliest[Unit::Me.index()] = match self.jobs.front() {
            Some(job) if job.entries.complete(job.geometry.pixels()) => self.writer,
            Some(_) => self.writer.max(fed.saturating_add(self.depth)),
            None => fed.saturating_add(self.depth),
        };
        if self.is_finished() { u64::MAX } else { fed.min(loaded).min(written) }
    }

    /// Before which cycles feeder and weight port make no further requests.
    fn quiet_until(&self, books: &Accounting<'_>) -> (u64, u64) {
        // When the next load can begin at the earliest.
        let next_load = |since: u64| match self.issue {
            _ if self.load.0 < self.entered => since,
            Some(issue) => issue.ready.max(issue.began + 1),
            None => self.queue.head().map_or(u64::MAX, |head| match books.tokens(head) {
                Tokens::At(cycle) | Tokens::NotBefore(cycle) => {
                    cycle.max(self.stage) + self.issue_warm.min(self.issue_cold)
                }
            }),
        };
        let fed = match (&self.feed, &self.register) {
            (Some(feed), _) => feed.cursor,
            (None, Register::Free(since)) => next_load(*since),
            (None, Register::Loading(_, port)) => self.free.max(port.cursor + 1),
            (None, Register::Full(_, from)) => self.free.max(*from).max(if self.blocked { self.writer + 1 } else { 0 }),
        };
        let loaded = match &self.register {
            Register::Free(since) => next_load(*since),
            Register::Loading(_, port) => port.cursor,
            Register::Full(..) => fed,
        };
        (fed, loaded)
    }

    /// Whether every instruction that has entered has finished before `cycle`, if that is known.
    fn drained_before(&self, cycle: u64) -> Option<bool> {
        if self.jobs.is_empty() {
            Some(self.last_finish.is_none_or(|finish| finish < cycle))
        } else {
            (self.writer >= cycle).then_some(false)
        }
    }

    /// Begins the next instruction if the issue stage is free; issuing to an idle unit takes longer.
    fn begin(&mut self, books: &mut Accounting<'_>) -> bool {
        if self.issue.is_some() {
            return false;
        }
        let Some(head) = self.queue.head() else { return false };
        let Tokens::At(cycle) = books.tokens(head) else { return false };
        let began = cycle.max(self.stage);
        let Some(idle) = self.drained_before(began) else { return false };
        books.begin(head, began);
        self.queue.pop();
        let ready = began + if idle { self.issue_cold } else { self.issue_warm };
        self.issue = Some(Issue { instruction: head, began, settled: false, ready });
        true
    }

    /// At the end of issue proper, a drained array is set up.
    fn set_up_drained_array(&mut self) -> bool {
        let Some(issue) = self.issue.filter(|issue| !issue.settled) else { return false };
        let at = issue.ready.max(issue.began + 1);
        let Some(idle) = self.drained_before(at) else { return false };
        let ready = at.max(issue.ready + if idle { self.setup } else { 0 });
        self.issue = Some(Issue { settled: true, ready, ..issue });
        true
    }

    /// Takes the next tile in hand, and its instruction from the issue stage.
    fn start_load(&mut self, books: &mut Accounting<'_>, banks: &Banks) -> bool {
        let Register::Free(since) = self.register else { return false };
        let mut at = since;
        if self.load.0 == self.entered {
            let Some(issue) = self.issue.filter(|issue| issue.settled) else { return false };
            let Some(geometry) = geometry(books.program, issue.instruction) else { return false };
            at = at.max(issue.ready);
            books.record(issue.instruction, Phase::Issue, issue.began, at);
            self.jobs.push_back(Job {
                instruction: issue.instruction,
                number: self.entered,
                started: at,
                entries: Entries::new(geometry.phases()),
                outputs: output_runs(&geometry, banks),
                geometry,
                run: 0,
                word: 0,
            });
            self.entered += 1;
            self.issue = None;
            self.stage = at;
        }
        let (number, tile) = self.load;
        let Some(oldest) = self.jobs.front() else { return false };
        let job = &self.jobs[(number - oldest.number) as usize];
        self.load = if tile + 1 < job.geometry.tiles() { (number, tile + 1) } else { (number + 1, 0) };
        let began = books.began[job.instruction];
        let port = PortTile::new(&job.geometry, tile, at, banks);
        self.register = Register::Loading(Tile { job: number, tile, began, load: at }, port);
        true
    }

    /// The weight port's requests, one a cycle, behind the feeder's.
    fn load(&mut self, banks: &mut Banks, limit: u64) -> bool {
        let Register::Loading(tile, port) = &mut self.register else { return false };
        let limit = self.feed.as_ref().map_or(limit, |feed| feed.cursor.min(limit));
        let before = port.cursor;
        let Some(oldest) = self.jobs.front() else { return false };
        let job = &self.jobs[(tile.job - oldest.number) as usize];
        if port.advance(&job.geometry, tile.tile, banks, limit) {
            self.register = Register::Full(*tile, port.cursor);
            return true;
        }
        port.cursor > before
    }

    /// Streams the loaded tile once the array is free and, for the first tile of an instruction, its entries.
    fn start_feed(&mut self, books: &mut Accounting<'_>) -> bool {
        let Register::Full(tile, from) = self.register else { return false };
        if self.feed.is_some() {
            return false;
        }
        if tile.tile == 0 {
            let taken = self.jobs.iter().take_while(|job| job.number <= tile.job).map(|job| job.geometry.entries());
            if taken.sum::<u64>() > self.accumulators {
                let news = !self.blocked;
                self.blocked = true;
                return news;
            }
        }
        let mut at = self.free.max(from);
        if std::mem::take(&mut self.blocked) {
            at = at.max(self.last_finish.map_or(0, |finish| finish + 1));
        }
        let Some(oldest) = self.jobs.front() else { return false };
        let job = &self.jobs[(tile.job - oldest.number) as usize];
        // What the array waited for since the last stream, cycle by cycle.
        let begun = self.free.max(tile.began).min(tile.load.max(self.free));
        let turns = [
            (begun, Stall::Dependency),
            (self.free.max(tile.load), Stall::Issue),
            (self.free.max(from), Stall::WeightLoad),
            (at, Stall::UnitBusy),
        ];
        let mut cycle = if tile.job == 0 && tile.tile == 0 { begun } else { self.free };
        for (end, cause) in turns {
            books.stall(Unit::Me, cause, end - cycle);
            cycle = end;
        }
        self.feed = Some(OperandFeed::new(&job.geometry, tile.job, tile.tile, at, self.rows));
        self.register = Register::Free(at);
        true
    }

    /// Feeds pixels.
    fn stream(&mut self, books: &mut Accounting<'_>, banks: &mut Banks, limit: u64) -> bool {
        let Some(feed) = &mut self.feed else { return false };
        let Some(oldest) = self.jobs.front().map(|job| job.number) else { return false };
        let job = &mut self.jobs[(feed.job - oldest) as usize];
        let before = feed.cursor;
        let end = feed.advance(&job.geometry, &mut job.entries, banks, self.fetches, limit);
        let [conflicts, busy] = std::mem::take(&mut feed.stalls);
        books.stall(Unit::Me, Stall::BankConflict, conflicts);
        books.stall(Unit::Me, Stall::UnitBusy, busy);
        let until = end.unwrap_or(feed.cursor);
        books.busy(job.instruction, until - before - conflicts - busy);
        let moved = feed.cursor > before || end.is_some();
        if let Some(end) = end {
            (self.free, self.streamed) = (end, job.instruction);
            self.feed = None;
        }
        moved
    }

    /// The output pipe's requests, one a cycle, behind those of the others; stops when an instruction has finished.
    fn write(&mut self, books: &mut Accounting<'_>, banks: &mut Banks, limit: u64) -> bool {
        let (fed, loaded) = self.quiet_until(books);
        let limit = if self.blocked && self.feed.is_none() { limit } else { limit.min(fed).min(loaded) };
        let before = self.writer;
        while let Some(job) = self.jobs.front_mut() {
            let Some(run) = job.outputs.get(job.run) else { break };
            let pixel = run.pixel + job.word as u32 * run.step;
            let Some((entered, count)) = job.entries.find(pixel) else {
                self.writer = self.writer.max(limit);
                break;
            };
            let from = self.writer.max(entered + self.depth);
            if from >= limit {
                self.writer = self.writer.max(limit);
                break;
            }
            let left = run.count - job.word;
            let count = if run.step == 1 { left.min(count) } else { 1 };
            let granted = banks.stretch((from, limit), run.bank, Client::MatrixWrite, count, |_, _| {});
            job.word += granted.count;
            self.writer = granted.next;
            if job.word == run.count {
                (job.run, job.word) = (job.run + 1, 0);
            }
            if job.run == job.outputs.len() {
                let (instruction, started, finish) = (job.instruction, job.started, granted.next - 1);
                let entered = job.entries.last().map_or(finish, |entry| entry + 1);
                books.finish(instruction, finish);
                books.record(instruction, Phase::Execute, started, entered);
                books.record(instruction, Phase::Drain, entered, finish + 1);
                self.jobs.pop_front();
                self.last_finish = Some(finish);
                self.end(finish + 1, books);
                return true;
            }
        }
        if self.jobs.is_empty() {
            return false;
        }
        self.writer > before
    }

    /// Books what is left once the last instruction has finished: empty slots behind it do not count.
    fn end(&self, end: u64, books: &mut Accounting<'_>) {
        if !self.is_finished() {
            return;
        }
        if self.free > end {
            books.not_busy(self.streamed, self.free - end);
        } else {
            books.stall(Unit::Me, Stall::UnitBusy, end - self.free);
        }
    }
}

fn geometry(program: &Program, position: usize) -> Option<Geometry> {
    let Work::Matrix(matrix) = &program.instructions[position].work else { return None };
    let Descriptor::Matrix(descriptor) = program.descriptors.get(matrix.descriptor.index())? else { return None };
    Some(Geometry::new(matrix, descriptor, &program.machine))
}
