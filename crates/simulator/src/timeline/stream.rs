//! The elementwise and the pooling unit, from one access that falls due to the next (see [`crate::stream`] for what they do).

use std::collections::VecDeque;

use smallvec::SmallVec;
use tpuflow_ir::{Program, Unit};

use super::banks::Banks;
use super::books::{Books, Tokens};
use super::pace::Pace;
use crate::counters::{Client, Stall};
use crate::queue::Queue;
use crate::run::Phase;
use crate::walk::{Walk, walks};

/// An instruction in the issue stage.
#[derive(Clone, Copy, Debug)]
struct Issue {
    instruction: usize,
    began: u64,
    ready: u64,
}

/// Accesses in order: when and where the next is due.
#[derive(Debug)]
struct Accesses {
    /// First word and number of words of the pieces that are left, the present one first.
    pieces: SmallVec<[(u64, u64); 4]>,
    piece: usize,
    /// Words in the pieces before the present one.
    before: u64,
    place: Pace,
    /// Unit time, counted from the instruction's first.
    due: Pace,
    left: u64,
}

impl Accesses {
    fn new(walk: Walk, cycles: u64, offset: u64) -> Self {
        let (pieces, words, accesses) = walk.into_parts();
        Self {
            pieces,
            piece: 0,
            before: 0,
            place: Pace::new(words, accesses, 0, 0),
            due: Pace::new(cycles, accesses, offset, 0),
            left: accesses,
        }
    }

    fn due(&self) -> Option<u64> {
        (self.left > 0).then(|| self.due.at())
    }

    /// Asks for everything due by unit time `time` of the instruction; whether anything was refused.
    fn request(&mut self, time: u64, cycle: u64, banks: &mut Banks, client: Client) -> bool {
        while self.left > 0 && self.due.at() <= time {
            let position = self.place.at();
            while position >= self.before + self.pieces[self.piece].1 {
                self.before += self.pieces[self.piece].1;
                self.piece += 1;
            }
            let word = self.pieces[self.piece].0 + position - self.before;
            if !banks.request(cycle, banks.of(word), client) {
                return true;
            }
            self.left -= 1;
            self.place.advance();
            self.due.advance();
        }
        false
    }
}

/// An instruction at work.
#[derive(Debug)]
struct Job {
    instruction: usize,
    /// Cycle, and unit time, of its first read.
    started: u64,
    begin: u64,
    cycles: u64,
    reads: SmallVec<[Accesses; 3]>,
    /// Due so much later than the work they belong to.
    writes: Accesses,
    /// Unit time of its next access; the end of time when there is none.
    next: u64,
}

impl Job {
    fn find_next(&mut self, latency: u64) {
        let reads = self.reads.iter().filter_map(Accesses::due).min();
        let next = reads.into_iter().chain(self.writes.due().map(|due| due + latency)).min();
        self.next = next.map_or(u64::MAX, |due| self.begin + due);
    }

    /// Unit time of its last cycle.
    fn last(&self, latency: u64) -> u64 {
        self.begin + self.cycles + latency - 1
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    unit: Unit,
    client: Client,
    start: u64,
    latency: u64,
    queue: Queue,
    issue: Option<Issue>,
    /// From when on the issue stage is free, if it is.
    stage: u64,
    /// Unfinished, oldest first.
    jobs: VecDeque<Job>,
    /// Cycles the unit's clock has stood still; those since the youngest instruction's reads were over.
    stood: u64,
    idle_refused: Vec<u64>,
    /// Unit time from which on the next instruction may begin.
    free: u64,
}

impl Stream {
    pub(super) fn new(program: &Program, unit: Unit) -> Self {
        let machine = &program.machine;
        let (client, start, latency) = if unit == Unit::Ewp {
            (Client::Ewp, machine.ewp.start, machine.ewp.latency)
        } else {
            (Client::Pdp, machine.pdp.start, machine.pdp.latency)
        };
        Self {
            unit,
            client,
            start,
            latency,
            queue: Queue::new(program, unit),
            issue: None,
            stage: machine.control.start,
            jobs: VecDeque::new(),
            stood: 0,
            idle_refused: Vec::new(),
            free: 0,
        }
    }

    pub(super) fn done(&self) -> bool {
        self.jobs.is_empty() && self.issue.is_none() && self.queue.head().is_none()
    }

    /// Makes the requests of cycles before `limit`; returns before which cycle there are no more.
    pub(super) fn advance(&mut self, books: &mut Books<'_>, banks: &mut Banks, limit: u64) -> u64 {
        let end = loop {
            let mut bound = limit;
            if self.issue.is_none()
                && let Some(head) = self.queue.head()
            {
                match books.tokens(head) {
                    Tokens::At(cycle) => {
                        let began = cycle.max(self.stage);
                        books.begin(head, began);
                        self.queue.pop();
                        self.issue = Some(Issue { instruction: head, began, ready: began + self.start });
                    }
                    Tokens::NotBefore(cycle) => bound = bound.min(cycle.max(self.stage) + self.start),
                }
            }
            let dispatch = self.issue.map_or(u64::MAX, |issue| issue.ready.max(self.free + self.stood));
            let next = self.jobs.iter().map(|job| job.next).min().unwrap_or(u64::MAX);
            let access = next.saturating_add(self.stood);
            let finish = self.jobs.front().map_or(u64::MAX, |job| job.last(self.latency) + self.stood);
            let cycle = dispatch.min(access).min(finish);
            if cycle >= bound {
                break cycle.min(if self.issue.is_none() && self.queue.head().is_some() { bound } else { cycle });
            }
            if dispatch == cycle {
                self.dispatch(cycle, books);
            } else if access == cycle {
                self.access(cycle, books, banks);
            } else {
                self.finish(cycle, books);
            }
        };
        books.earliest[self.unit.index()] = match self.jobs.front() {
            Some(job) => job.last(self.latency) + self.stood,
            None => end.saturating_add(self.latency),
        };
        end
    }

    /// Moves the instruction of the issue stage on.
    fn dispatch(&mut self, cycle: u64, books: &mut Books<'_>) {
        let Some(issue) = self.issue.take() else { return };
        let program = books.program;
        let Some((cycles, reads, writes)) = walks(program, &program.instructions[issue.instruction]) else { return };
        self.book_idle(issue.began, cycle, Stall::Issue, books);
        books.record(issue.instruction, Phase::Issue, issue.began, cycle);
        books.busy(issue.instruction, cycles);
        let begin = cycle - self.stood;
        // An instruction that passes through the stage without a stop leaves it free from the next cycle on.
        self.stage = cycle + u64::from(issue.began == cycle);
        self.free = begin + cycles;
        let mut job = Job {
            instruction: issue.instruction,
            started: cycle,
            begin,
            cycles,
            reads: reads.into_iter().map(|walk| Accesses::new(walk, cycles, 0)).collect(),
            writes: Accesses::new(writes, cycles, cycles - 1),
            next: 0,
        };
        job.find_next(self.latency);
        self.jobs.push_back(job);
    }

    /// Books the cycles since the last reads were over: up to `turn` the unit waits for tokens, then for `cause`.
    fn book_idle(&mut self, turn: u64, end: u64, cause: Stall, books: &mut Books<'_>) {
        let from = self.free + self.stood - self.idle_refused.len() as u64;
        let from = if self.free == 0 { turn } else { from };
        let turn = turn.clamp(from, end);
        let refused = |from: u64, to: u64| self.idle_refused.iter().filter(|c| (from..to).contains(*c)).count() as u64;
        let waited = [(from, turn, Stall::Dependency), (turn, end, cause)];
        for (from, to, cause) in waited {
            books.stall(self.unit, cause, to - from - refused(from, to));
        }
        self.idle_refused.clear();
    }

    /// Makes the accesses due in `cycle`.
    fn access(&mut self, cycle: u64, books: &mut Books<'_>, banks: &mut Banks) {
        let (time, client, latency) = (cycle - self.stood, self.client, self.latency);
        let mut refused = false;
        for job in self.jobs.iter_mut().filter(|job| job.next <= time) {
            let own = time - job.begin;
            if own >= latency {
                refused |= job.writes.request(own - latency, cycle, banks, client);
            }
            for read in &mut job.reads {
                refused |= read.request(own, cycle, banks, client);
            }
            job.find_next(latency);
        }
        if refused {
            books.stall(self.unit, Stall::BankConflict, 1);
            if time >= self.free {
                self.idle_refused.push(cycle);
            }
            self.stood += 1;
        }
    }

    /// The oldest instruction does its last work in `cycle`.
    fn finish(&mut self, cycle: u64, books: &mut Books<'_>) {
        let Some(job) = self.jobs.pop_front() else { return };
        books.finish(job.instruction, cycle);
        let drain = (cycle + 1 - self.latency.min(cycle)).max(job.started);
        books.record(job.instruction, Phase::Execute, job.started, drain);
        books.record(job.instruction, Phase::Drain, drain, cycle + 1);
        if self.done() {
            self.book_idle(0, cycle + 1, Stall::UnitBusy, books);
        }
    }
}
