//! The two DMA lines, run by run (see [`crate::dma`] for what they do).
//!
//! Line 0 is never refused, so a run of its takes the cycles of its own clock. Line 1 meets only line 0. A channel is granted as
//! soon as it is certain who has waited longest: the other line then waits already, or cannot come earlier.

use tpuflow_ir::Unit;

use super::accounting::{Accounting, Tokens};
use super::banks::Banks;
use crate::counters::{Client, Stall};
use crate::dma::{Run, Step, start, steps};
use crate::error::SimError;
use crate::queue::Queue;
use crate::run::Phase;

#[derive(Clone, Copy, Debug)]
enum State {
    /// From this cycle on.
    Idle(u64),
    /// Wants the channel of a run since a cycle.
    Waiting(u64, Run),
    /// Asks for a word on its own.
    Word { word: u64, at: u64, refused: u64 },
    /// Data cycle 0 is `first`, moved on by every refusal; `done` words have been moved, the next is due in data cycle `due`.
    Moving { run: Run, first: u64, done: u64, refused: u64 },
}

#[derive(Debug)]
struct Line {
    unit: Unit,
    client: Client,
    queue: Queue,
    state: State,
    instruction: usize,
    began: u64,
    steps: std::vec::IntoIter<Step>,
}

#[derive(Debug)]
struct Channel {
    page: Option<u64>,
    /// Whom it serves.
    user: Option<usize>,
    /// From when on it is free, if it serves nobody.
    free: u64,
}

#[derive(Debug)]
pub(super) struct Dma {
    lines: [Line; 2],
    channels: Vec<Channel>,
    page_miss: u64,
}

impl Dma {
    pub(super) fn new(program: &tpuflow_ir::Program) -> Self {
        let machine = &program.machine;
        let line = |unit| Line {
            unit,
            client: Client::Unit(unit),
            queue: Queue::new(program, unit),
            state: State::Idle(machine.control.start),
            instruction: 0,
            began: 0,
            steps: Vec::new().into_iter(),
        };
        let channel = || Channel { page: None, user: None, free: 0 };
        Self {
            lines: [Unit::Dtl0, Unit::Dtl1].map(line),
            channels: std::iter::repeat_with(channel).take(machine.channels()).collect(),
            page_miss: machine.page_miss(),
        }
    }

    /// Goes on as long as what is known allows, with requests before `limit`; returns before which cycle there are no more.
    pub(super) fn advance(
        &mut self,
        books: &mut Accounting<'_>,
        banks: &mut Banks,
        limit: u64,
    ) -> Result<u64, SimError> {
        loop {
            let mut moved = self.step(0, books, banks, limit)?;
            let first = self.quiet_until(0, books);
            moved |= self.step(1, books, banks, limit.min(first))?;
            moved |= self.grant(books);
            if !moved {
                break;
            }
        }
        for index in 0..2 {
            books.earliest[self.lines[index].unit.index()] = self.quiet_until(index, books);
        }
        Ok(self.quiet_until(0, books).min(self.quiet_until(1, books)))
    }

    pub(super) fn is_finished(&self) -> bool {
        self.lines.iter().all(|line| matches!(line.state, State::Idle(_)) && line.queue.head().is_none())
    }

    /// Before which cycle a line neither asks for a bank nor finishes an instruction.
    fn quiet_until(&self, index: usize, books: &Accounting<'_>) -> u64 {
        let line = &self.lines[index];
        match line.state {
            State::Idle(from) => line.queue.head().map_or(u64::MAX, |head| match books.tokens(head) {
                Tokens::At(cycle) | Tokens::NotBefore(cycle) => cycle.max(from) + start(books.program, head),
            }),
            State::Waiting(since, run) => {
                let channel = &self.channels[run.channel];
                since.max(match channel.user {
                    None => channel.free,
                    Some(other) => self.contends(other, books),
                })
            }
            State::Word { at, .. } => at,
            State::Moving { run, first, done, .. } => {
                first + if done < run.words && run.first_word.is_some() { run.bank_cycle(done) } else { run.cycles - 1 }
            }
        }
    }

    /// Before which cycle a line that does not wait for a channel cannot begin to.
    fn contends(&self, index: usize, books: &Accounting<'_>) -> u64 {
        match self.lines[index].state {
            State::Moving { run, first, .. } => first + run.cycles,
            State::Word { at, .. } => at + 1,
            State::Waiting(since, run) => since + run.cycles,
            State::Idle(_) => self.quiet_until(index, books),
        }
    }

    /// Gives free channels to those who have certainly waited longest.
    fn grant(&mut self, books: &mut Accounting<'_>) -> bool {
        let mut granted = false;
        for index in 0..2 {
            let State::Waiting(since, run) = self.lines[index].state else { continue };
            let channel = &self.channels[run.channel];
            if channel.user.is_some() {
                continue;
            }
            let at = since.max(channel.free);
            let other = 1 - index;
            let wins = match self.lines[other].state {
                State::Waiting(theirs, run_of_other) if run_of_other.channel == run.channel => {
                    (at, since, index) < (theirs.max(channel.free), theirs, other)
                }
                _ => (since, index) < (self.contends(other, books), other),
            };
            if !wins {
                continue;
            }
            let channel = &mut self.channels[run.channel];
            let missed = channel.page != Some(run.page);
            (channel.page, channel.user) = (Some(run.page), Some(index));
            let first = at + if missed { self.page_miss } else { 0 };
            let line = &mut self.lines[index];
            if missed {
                books.miss_page(line.instruction);
            }
            books.stall(line.unit, Stall::Ddr, first - since);
            line.state = State::Moving { run, first, done: 0, refused: 0 };
            granted = true;
        }
        granted
    }

    /// The line's requests before `limit`, and what follows from them without anybody else; whether there was anything.
    fn step(
        &mut self,
        index: usize,
        books: &mut Accounting<'_>,
        banks: &mut Banks,
        limit: u64,
    ) -> Result<bool, SimError> {
        match self.lines[index].state {
            State::Idle(from) => self.begin(index, from, books),
            State::Waiting(..) => Ok(false),
            State::Word { .. } => Ok(self.lines[index].request_word(books, banks, limit)),
            State::Moving { .. } => Ok(self.transfer(index, books, banks, limit)),
        }
    }

    /// Takes up the line's next instruction, if its tokens are there; `from`: since when the line is idle.
    fn begin(&mut self, index: usize, from: u64, books: &mut Accounting<'_>) -> Result<bool, SimError> {
        let line = &mut self.lines[index];
        let Some(head) = line.queue.head() else { return Ok(false) };
        let start = start(books.program, head);
        let Tokens::At(cycle) = books.tokens(head) else { return Ok(false) };
        let began = cycle.max(from);
        if books.has_begun(line.unit) {
            books.stall(line.unit, Stall::Dependency, began - from);
        }
        books.begin(head, began);
        books.stall(line.unit, Stall::Issue, start);
        line.queue.pop();
        (line.instruction, line.began) = (head, began);
        let indices = match books.program.instructions[head].work.indices() {
            Some(_) => books.indices(head)?,
            None => None,
        };
        line.steps = steps(books.program, head, indices.as_deref()).into_iter();
        line.begin_next_step(began + start, books);
        Ok(true)
    }

    /// Moves words of the run under way, bank by bank; whether anything came of it.
    fn transfer(&mut self, index: usize, books: &mut Accounting<'_>, banks: &mut Banks, limit: u64) -> bool {
        let line = &mut self.lines[index];
        let client = line.client;
        let State::Moving { run, first, done, refused } = &mut line.state else { return false };
        let before = (*done, *refused);
        if let Some(word) = run.first_word {
            let mut pace = run.pace(*done);
            while *done < run.words {
                let cycle = *first + pace.at();
                if cycle >= limit {
                    return (*done, *refused) != before;
                }
                // The words of one bank that fall due in this block of cycles, up to the first that is refused.
                let bank = banks.of(word + *done);
                let words = run.words.min(banks.end(bank) - word);
                let block = cycle / 64 * 64;
                let together = if pace.is_sparse() { words - *done } else { 1 };
                let (mask, count) = pace.mask(*first, (block, limit.min(block + 64)), together);
                let held = banks.busy_mask(cycle, bank) & mask;
                if held == 0 {
                    banks.grant(cycle, bank, client, mask);
                    *done += count;
                    pace.skip(count);
                    continue;
                }
                let clash = held & held.wrapping_neg();
                let free = mask & (clash - 1);
                banks.grant(cycle, bank, client, free);
                banks.refuse(cycle, bank, client, clash);
                *done += u64::from(free.count_ones());
                pace.skip(free.count_ones().into());
                *first += 1;
                *refused += 1;
            }
        }
        let (channel, end) = (run.channel, *first + run.cycles);
        books.stall(line.unit, Stall::BankConflict, *refused);
        books.busy(line.instruction, run.cycles);
        self.channels[channel].user = None;
        self.channels[channel].free = end;
        line.begin_next_step(end, books);
        true
    }
}

impl Line {
    /// Asks for a word until it is granted or `limit`; whether a cycle went by.
    fn request_word(&mut self, books: &mut Accounting<'_>, banks: &mut Banks, limit: u64) -> bool {
        let State::Word { word, at, refused } = &mut self.state else { return false };
        let (bank, before) = (banks.of(*word), *at);
        while *at < limit {
            if banks.request(*at, bank, self.client) {
                let (end, refused) = (*at + 1, *refused);
                books.stall(self.unit, Stall::BankConflict, refused);
                books.busy(self.instruction, 1);
                self.begin_next_step(end, books);
                return true;
            }
            *at += 1;
            *refused += 1;
        }
        *at > before
    }

    /// The next step begins in `cycle`, or the instruction has finished in the cycle before.
    fn begin_next_step(&mut self, cycle: u64, books: &mut Accounting<'_>) {
        self.state = match self.steps.next() {
            Some(Step::Run(run)) => State::Waiting(cycle, run),
            Some(Step::Word { word, .. }) => State::Word { word, at: cycle, refused: 0 },
            None => {
                books.finish(self.instruction, cycle - 1);
                books.record(self.instruction, Phase::Execute, self.began, cycle);
                State::Idle(cycle)
            }
        };
    }
}
