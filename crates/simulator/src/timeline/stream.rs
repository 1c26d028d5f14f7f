//! The elementwise and the pooling unit (see [`crate::stream`] for what they do).
//!
//! Accesses that fall due in up to 64 cycles are asked for at once, up to the first refusal; after one, a unit's clock
//! stands still until the bank is free.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tpuflow_ir::isa::StartUp;
use tpuflow_ir::{Program, Unit};

use super::access_rate::AccessRate;
use super::accounting::{Accounting, Tokens};
use super::banks::{Banks, ones};
use crate::access_pattern::{Piece, SpreadAccesses, access_patterns};
use crate::counters::{Client, Stall};
use crate::queue::Queue;
use crate::run::Phase;

/// Cycles with accesses and without refusals after which several are tried at once.
const CALM: u32 = 4;

/// An instruction in the issue stage.
#[derive(Clone, Copy, Debug)]
struct Issue {
    instruction: usize,
    began: u64,
    ready: u64,
}

/// Where a stream of accesses stands: when and where its next is due.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Unit time, counted from `Accesses::begin`.
    due: AccessRate,
    left: u64,
    /// Place in the list of words, and its bank; the places before `until` lie in the same one.
    place: AccessRate,
    until: u64,
    bank: usize,
    /// Piece of the place, and words in the pieces before it.
    piece: usize,
    before: u64,
}

impl Cursor {
    fn advance(&mut self, pieces: &[Piece], banks: &Banks) {
        self.left -= 1;
        self.place.advance();
        self.due.advance();
        if self.place.at() >= self.until && self.left > 0 {
            self.locate(pieces, banks);
        }
    }

    /// Finds piece and bank of the place.
    fn locate(&mut self, pieces: &[Piece], banks: &Banks) {
        let place = self.place.at();
        while place >= self.before + pieces[self.piece].len() {
            self.before += pieces[self.piece].len();
            self.piece += 1;
        }
        let piece = &pieces[self.piece];
        self.bank = banks.of(piece.word(place - self.before));
        self.until = place + piece.before(place - self.before, banks.end(self.bank));
    }

    /// Goes on over the accesses of one bank that fall due in a block's cycles before `end`, at most one in each; those cycles as
    /// bits. Unit time 0 is cycle `origin`.
    fn run(&mut self, origin: u64, block: (u64, u64), pieces: &[Piece], banks: &Banks) -> u64 {
        let together = if self.due.is_sparse() { self.left.min(self.place.count_before(self.until)) } else { 1 };
        let (mask, count) = self.due.mask(origin, block, together);
        self.left -= count;
        self.place.skip(count);
        self.due.skip(count);
        if self.place.at() >= self.until && self.left > 0 {
            self.locate(pieces, banks);
        }
        mask
    }
}

/// Accesses in order.
#[derive(Debug)]
struct Accesses {
    pieces: SmallVec<[Piece; 2]>,
    /// Unit time from which on they fall due.
    begin: u64,
    cursor: Cursor,
}

impl Accesses {
    fn new(walk: SpreadAccesses, begin: u64, (cycles, offset): (u64, u64), banks: &Banks) -> Self {
        let (pieces, words, accesses) = walk.into_parts();
        let (place, due) = (AccessRate::new(words, accesses, 0, 0), AccessRate::new(cycles, accesses, offset, 0));
        let mut cursor = Cursor { due, left: accesses, place, until: 0, bank: 0, piece: 0, before: 0 };
        if accesses > 0 {
            cursor.locate(&pieces, banks);
        }
        Self { pieces, begin, cursor }
    }

    /// Unit time of the next; the end of time when there is none.
    fn next_cycle(&self) -> u64 {
        if self.cursor.left > 0 { self.begin + self.cursor.due.at() } else { u64::MAX }
    }

    fn advance(&mut self, banks: &Banks) {
        self.cursor.advance(&self.pieces, banks);
    }

    /// Its requests in the cycles of a window, if none is refused. The window is cut where it is. `stream`: see [`StreamRequest`].
    fn request_window(&self, stream: (usize, usize), window: &mut Window, banks: &Banks) {
        if self.next_cycle().saturating_add(window.stood) >= window.end {
            return;
        }
        let mut cursor = self.cursor;
        let mut asked: Option<(usize, u64)> = None;
        let end = window.end;
        while let Some((bank, mask)) = self.accesses_in_window(&mut cursor, window, banks) {
            match &mut asked {
                Some((same, own)) if *same == bank => {
                    let twice = *own & mask;
                    if twice != 0 {
                        window.end = window.block() + u64::from(twice.trailing_zeros());
                        break;
                    }
                    *own |= mask;
                }
                _ => {
                    if let Some(asked) = asked.replace((bank, mask)) {
                        window.add_request(asked, banks);
                    }
                }
            }
        }
        if let Some(asked) = asked {
            window.add_request(asked, banks);
        }
        window.asked.push(StreamRequest { stream, cursor, end });
    }

    /// The next accesses of one bank in the cycles of a window, a bit each.
    fn accesses_in_window(&self, cursor: &mut Cursor, window: &Window, banks: &Banks) -> Option<(usize, u64)> {
        let (bank, origin) = (cursor.bank, self.begin + window.stood);
        let any = cursor.left > 0 && origin + cursor.due.at() < window.end;
        any.then(|| (bank, cursor.run(origin, (window.block(), window.end), &self.pieces, banks)))
    }
}

/// Cycles of one block of the banks in which nothing is refused.
#[derive(Debug)]
struct Window {
    start: u64,
    end: u64,
    /// Cycles the unit's clock has stood still.
    stood: u64,
    /// Banks and the cycles in which they are wanted.
    wants: SmallVec<[(usize, u64); 8]>,
    /// The streams that want something.
    asked: SmallVec<[StreamRequest; 8]>,
}

/// A stream that wants something in a window.
#[derive(Debug)]
struct StreamRequest {
    /// Its job, and its number there.
    stream: (usize, usize),
    /// Where it stands in cycle `end`, the window's end when it was asked.
    cursor: Cursor,
    end: u64,
}

impl Window {
    /// First cycle of the block.
    fn block(&self) -> u64 {
        self.start / 64 * 64
    }

    fn add_request(&mut self, (bank, mask): (usize, u64), banks: &Banks) {
        let own = self.wants.iter().filter(|want| want.0 == bank).fold(0, |sum, want| sum | want.1);
        let refused = mask & (banks.busy_mask(self.start, bank) | own);
        if refused != 0 {
            self.end = self.end.min(self.block() + u64::from(refused.trailing_zeros()));
        }
        self.wants.push((bank, mask));
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
    /// The writes, then the reads.
    streams: SmallVec<[Accesses; 4]>,
}

impl Job {
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
    /// The last accesses have seen no refusal.
    is_calm: bool,
    /// Unit time from which on the next instruction may begin.
    free: u64,
}

impl Stream {
    pub(super) fn new(program: &Program, unit: Unit) -> Self {
        let machine = &program.machine;
        let StartUp { start, latency } = unit.start_up(machine).expect("its work is streams");
        Self {
            unit,
            client: Client::Unit(unit),
            start,
            latency,
            queue: Queue::new(program, unit),
            issue: None,
            stage: machine.control.start,
            jobs: VecDeque::new(),
            stood: 0,
            idle_refused: Vec::new(),
            is_calm: true,
            free: 0,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.jobs.is_empty() && self.issue.is_none() && self.queue.head().is_none()
    }

    /// Makes the requests of cycles before `limit`; returns before which cycle there are no more.
    pub(super) fn advance(&mut self, books: &mut Accounting<'_>, banks: &mut Banks, limit: u64) -> u64 {
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
            let next = self.jobs.iter().flat_map(|job| &job.streams).map(Accesses::next_cycle).min();
            let access = next.unwrap_or(u64::MAX).saturating_add(self.stood);
            let finish = self.jobs.front().map_or(u64::MAX, |job| job.last(self.latency) + self.stood);
            let cycle = dispatch.min(access).min(finish);
            if cycle >= bound {
                break cycle.min(if self.issue.is_none() && self.queue.head().is_some() { bound } else { cycle });
            }
            if dispatch == cycle {
                self.dispatch(cycle, books, banks);
            } else if access == cycle {
                self.access((cycle, bound.min(dispatch).min(finish.saturating_add(1))), books, banks);
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
    fn dispatch(&mut self, cycle: u64, books: &mut Accounting<'_>, banks: &Banks) {
        let Some(issue) = self.issue.take() else { return };
        let program = books.program;
        let Some((cycles, reads, writes)) = access_patterns(program, &program.instructions[issue.instruction]) else {
            return;
        };
        self.book_idle(issue.began, cycle, Stall::Issue, books);
        books.record(issue.instruction, Phase::Issue, issue.began, cycle);
        books.busy(issue.instruction, cycles);
        let begin = cycle - self.stood;
        // An instruction that passes through the stage without a stop leaves it free from the next cycle on.
        self.stage = cycle + u64::from(issue.began == cycle);
        self.free = begin + cycles;
        let reads = reads.into_iter().map(|walk| Accesses::new(walk, begin, (cycles, 0), banks));
        let writes = Accesses::new(writes, begin + self.latency, (cycles, cycles - 1), banks);
        let streams = std::iter::once(writes).chain(reads).collect();
        self.jobs.push_back(Job { instruction: issue.instruction, started: cycle, begin, cycles, streams });
    }

    /// Books the cycles since the last reads were over: up to `turn` the unit waits for tokens, then for `cause`.
    fn book_idle(&mut self, turn: u64, end: u64, cause: Stall, books: &mut Accounting<'_>) {
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

    /// Makes accesses of the cycles `cycle .. limit`: those before the first refusal; where that comes at once, one by one for
    /// as long as refusals are frequent.
    fn access(&mut self, (cycle, limit): (u64, u64), books: &mut Accounting<'_>, banks: &mut Banks) {
        if self.is_calm && self.access_freely(cycle, limit.min(cycle / 64 * 64 + 64), banks) > cycle {
            return;
        }
        self.is_calm = self.access_one_by_one((cycle, limit), books, banks);
    }

    /// Makes the accesses of `cycle .. end`, cycles of one block, before the first of them that is refused; returns its cycle.
    fn access_freely(&mut self, cycle: u64, end: u64, banks: &mut Banks) -> u64 {
        let mut window =
            Window { start: cycle, end, stood: self.stood, wants: SmallVec::new(), asked: SmallVec::new() };
        for (number, job) in self.jobs.iter().enumerate() {
            for (own, stream) in job.streams.iter().enumerate() {
                stream.request_window((number, own), &mut window, banks);
                if window.end == cycle {
                    return cycle;
                }
            }
        }
        let done = ones(window.end - window.block());
        for &(bank, mask) in &window.wants {
            banks.grant(cycle, bank, self.client, mask & done);
        }
        for asked in &window.asked {
            let stream = &mut self.jobs[asked.stream.0].streams[asked.stream.1];
            if asked.end == window.end {
                stream.cursor = asked.cursor;
                continue;
            }
            let mut cursor = stream.cursor;
            while stream.accesses_in_window(&mut cursor, &window, banks).is_some() {}
            stream.cursor = cursor;
        }
        window.end
    }

    /// Makes the accesses of `cycle .. limit` cycle by cycle until some in a row have seen no refusal; whether they have.
    fn access_one_by_one(
        &mut self,
        (mut cycle, limit): (u64, u64),
        books: &mut Accounting<'_>,
        banks: &mut Banks,
    ) -> bool {
        let mut calm = 0;
        let mut waiting: SmallVec<[usize; 8]> = SmallVec::new();
        let streams = self.jobs.iter_mut().flat_map(|job| &mut job.streams).map(|stream| (stream.next_cycle(), stream));
        let mut streams: SmallVec<[(u64, &mut Accesses); 8]> = streams.filter(|(due, _)| *due < u64::MAX).collect();
        while cycle < limit {
            let (time, mut next) = (cycle - self.stood, u64::MAX);
            waiting.clear();
            for (due, stream) in &mut streams {
                while *due <= time {
                    if !banks.request(cycle, stream.cursor.bank, self.client) {
                        waiting.push(stream.cursor.bank);
                        break;
                    }
                    stream.advance(banks);
                    *due = stream.next_cycle();
                }
                next = next.min(*due);
            }
            if waiting.is_empty() {
                calm += 1;
                if calm == CALM {
                    return true;
                }
                cycle = next.saturating_add(self.stood);
                continue;
            }
            // Nothing changes before a bank is free that somebody waits for.
            let room = limit.min(cycle / 64 * 64 + 64) - cycle - 1;
            let runs = waiting.iter().map(|&bank| (banks.busy_mask(cycle, bank) >> (cycle % 64) >> 1).trailing_ones());
            let held = runs.min().map_or(0, u64::from).min(room);
            if held > 0 {
                for &bank in &waiting {
                    banks.refuse(cycle, bank, self.client, ones(held) << (cycle % 64) << 1);
                }
            }
            books.stall(self.unit, Stall::BankConflict, 1 + held);
            if time >= self.free {
                self.idle_refused.extend(cycle..=cycle + held);
            }
            calm = 0;
            self.stood += 1 + held;
            cycle += 1 + held;
        }
        false
    }

    /// The oldest instruction does its last work in `cycle`.
    fn finish(&mut self, cycle: u64, books: &mut Accounting<'_>) {
        let Some(job) = self.jobs.pop_front() else { return };
        books.finish(job.instruction, cycle);
        let drain = (cycle + 1 - self.latency.min(cycle)).max(job.started);
        books.record(job.instruction, Phase::Execute, job.started, drain);
        books.record(job.instruction, Phase::Drain, drain, cycle + 1);
        if self.is_finished() {
            self.book_idle(0, cycle + 1, Stall::UnitBusy, books);
        }
    }
}
