//! The matrix engine: issue stage, weight port, row feeder, array, accumulators, output pipe.
//!
//! ```text
//! tile            0                 1                          2 (next instruction)
//! weight port     |--- R rows ---|  |--- R rows ---|           |--- R rows ...
//! row feeder                        |--- M pixels --------|    |--- M pixels ...     of tile 1 once its weights are in
//! output pipe                           R + C + 1 later   |--- words of the last tile's rows ---|
//! ```
//! An instruction is one tile per K block and pass. The weight port loads the next tile's rows, last row first, into the second
//! weight register as soon as the stream of the tile before has taken its weights from there: R cycles, one for each row, used
//! or not, in which it reads a word, and one more for each further word: data of b bytes have b array rows with the same
//! weights, whose cycles are for b words of these. A refused access repeats the cycle. The stream of a tile starts when
//! its weights are in and the stream before is over. A pixel enters in the cycle its last missing word is fetched; streams of
//! M < R pixels hold the array for R cycles (its cycles without a pixel count as slots). The results of the last tile's pixel
//! reach the pipe R + C + 1 cycles after the pixel entered, and the pipe writes one word a cycle. Of floats a K block is one
//! tile, whose pixels each stay for as many cycles (phases) as integers have passes. An instruction takes
//! an accumulator entry per pixel (two with 48-bit sums) until it has finished: its first stream waits for so many.

use std::collections::VecDeque;

use tpuflow_ir::{Descriptor, Program, Unit, Work, timing};

use crate::context::{Activity, Context};
use crate::counters::{Client, Stall};
use crate::error::SimError;
use crate::feeder::{Geometry, Words};
use crate::queue::Queue;
use crate::run::Phase;

#[derive(Clone, Copy, Debug)]
struct Issue {
    instruction: usize,
    began: u64,
    ready: u64,
    /// Whether issue proper is over: what remains is setting up the pipes of a drained array.
    issued: bool,
}

/// An instruction in the array.
#[derive(Clone, Debug)]
struct Job {
    instruction: usize,
    /// Instructions of the unit before it.
    number: u64,
    geometry: Geometry,
    started: u64,
    /// Cycles in which the pixels of the last tile entered.
    entries: Vec<u64>,
    /// `(pixel that completes it, word)`, and how many are written.
    outputs: Vec<(u32, u64)>,
    written: usize,
}

/// A tile: job and tile in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    job: u64,
    tile: usize,
}

/// The second weight register.
#[derive(Clone, Copy, Debug)]
enum Register {
    Free,
    /// Rows `0 .. rows` are still to come; `word` words of the next one are in. Rows the tile does not use take no access
    /// and are over at `first`.
    Loading {
        tile: Tile,
        rows: u32,
        word: u64,
        first: u64,
    },
    Full(Tile),
}

/// The tile being streamed.
#[derive(Clone, Debug)]
struct TileFeed {
    tile: Tile,
    layer: tpuflow_ir::LayerId,
    /// First cycle after the R slots it holds at least, and after the last pixel's.
    hold: u64,
    /// First cycle in which the next pixel may enter.
    open: u64,
    /// Cycles of a slot.
    phases: u64,
    /// Next pixel, of how many.
    next: u32,
    pixels: u32,
    is_last: bool,
    /// Words of the previous pixel; words the next one needs (if known) and those of them still missing.
    held: Words,
    needed: Words,
    missing: Words,
    known: bool,
}

/// The unit.
#[derive(Clone, Debug)]
pub(crate) struct MatrixEngine {
    queue: Queue,
    issue: Option<Issue>,
    /// Unfinished, oldest first.
    jobs: VecDeque<Job>,
    /// Jobs that have entered and left the array.
    entered: u64,
    /// Tile to load next; its job may still be in the issue stage.
    load: Tile,
    register: Register,
    feed: Option<TileFeed>,
    rows: u64,
    accumulators: u64,
    depth: u64,
    fetches: usize,
    issue_warm: u64,
    issue_cold: u64,
    setup: u64,
}

impl MatrixEngine {
    pub(crate) fn new(program: &Program) -> Self {
        let machine = &program.machine;
        Self {
            queue: Queue::new(program, Unit::Me),
            issue: None,
            jobs: VecDeque::new(),
            entered: 0,
            load: Tile { job: 0, tile: 0 },
            register: Register::Free,
            feed: None,
            rows: machine.array.rows.into(),
            accumulators: machine.array.accumulators.into(),
            depth: timing::array_depth(machine),
            fetches: machine.feeder.words as usize,
            issue_warm: machine.control.issue,
            issue_cold: machine.control.issue_cold,
            setup: machine.array.setup,
        }
    }

    /// One cycle, in the order of the ports' priority.
    pub(crate) fn step(&mut self, context: &mut Context<'_>) -> Result<(), SimError> {
        self.end_issue(context.cycle);
        if self.feed.as_ref().is_some_and(|feed| feed.is_streamed(context.cycle)) {
            self.feed = None;
        }
        self.start_feed(context);
        let fed = if self.is_finished() { None } else { self.feed(context) };
        self.start_load(context);
        self.begin(context)?;
        let activity = fed.unwrap_or_else(|| self.activity(context));
        self.load(context);
        self.write(context);
        context.account(Unit::Me, activity, 1);
        Ok(())
    }

    /// Begins the next instruction if the issue stage is free; issuing to an idle unit takes longer.
    fn begin(&mut self, context: &mut Context<'_>) -> Result<(), SimError> {
        if self.issue.is_none()
            && let Some(head) = self.queue.ready(context.program, &context.tokens)
        {
            let cycles = if self.jobs.is_empty() { self.issue_cold } else { self.issue_warm };
            context.begin(head)?;
            self.queue.pop();
            let (began, ready) = (context.cycle, context.cycle + cycles);
            self.issue = Some(Issue { instruction: head, began, ready, issued: false });
        }
        Ok(())
    }

    /// Ends issue proper; a drained array is set up before its first weights.
    fn end_issue(&mut self, cycle: u64) {
        if let Some(issue) = &mut self.issue
            && !issue.issued
            && issue.ready <= cycle
        {
            issue.issued = true;
            if self.jobs.is_empty() {
                issue.ready += self.setup;
            }
        }
    }

    fn job(&self, number: u64) -> Option<&Job> {
        let oldest = self.jobs.front()?.number;
        self.jobs.get(number.checked_sub(oldest)? as usize)
    }

    /// The job of the next tile to load is still to come.
    fn needs_job(&self) -> bool {
        self.load.job == self.entered
    }

    /// Streams the loaded tile once the array is free and, for the first tile of an instruction, its entries of the accumulators.
    fn start_feed(&mut self, context: &Context<'_>) {
        if let Register::Full(tile) = self.register
            && self.feed.is_none()
            && self.has_entries(tile)
            && let Some(job) = self.job(tile.job)
        {
            self.feed = Some(TileFeed {
                tile,
                layer: context.layer(job.instruction),
                hold: context.cycle + self.rows * job.geometry.phases(),
                open: context.cycle,
                phases: job.geometry.phases(),
                next: 0,
                pixels: job.geometry.pixels(),
                is_last: tile.tile + 1 == job.geometry.tiles(),
                held: Words::new(),
                needed: Words::new(),
                missing: Words::new(),
                known: false,
            });
            self.register = Register::Free;
        }
    }

    fn has_entries(&self, tile: Tile) -> bool {
        let taken = self.jobs.iter().take_while(|job| job.number <= tile.job).map(|job| job.geometry.entries());
        tile.tile > 0 || taken.sum::<u64>() <= self.accumulators
    }

    /// Feeds a slot; `None` when there is nothing to feed.
    fn feed(&mut self, context: &mut Context<'_>) -> Option<Activity> {
        let (feed, fetches) = (self.feed.as_mut()?, self.fetches);
        if feed.next == feed.pixels || context.cycle < feed.open {
            return Some(Activity::Busy(feed.layer));
        }
        let oldest = self.jobs.front()?.number;
        let job = self.jobs.get_mut((feed.tile.job - oldest) as usize)?;
        feed.find_missing_words(&job.geometry);
        let mut taken = 0;
        let mut refused = false;
        let instruction = job.instruction;
        feed.missing.retain(|word| {
            if taken == fetches {
                return true;
            }
            let granted = context.request(Client::Feeder, instruction, *word, false);
            taken += usize::from(granted);
            refused |= !granted;
            !granted
        });
        if !feed.missing.is_empty() {
            return Some(Activity::Stalled(if refused { Stall::BankConflict } else { Stall::UnitBusy }));
        }
        if feed.is_last {
            // The PE that the pixel meets first has its products in the slot's last cycle.
            job.entries.push(context.cycle + feed.phases - 1);
        }
        std::mem::swap(&mut feed.held, &mut feed.needed);
        feed.known = false;
        feed.next += 1;
        feed.open = context.cycle + feed.phases;
        feed.hold = feed.hold.max(feed.open);
        Some(Activity::Busy(feed.layer))
    }

    /// Takes the next tile in hand when the second register is free, and its instruction from the issue stage.
    fn start_load(&mut self, context: &mut Context<'_>) {
        if !matches!(self.register, Register::Free) {
            return;
        }
        if self.needs_job() {
            let Some(issue) = self.issue.filter(|issue| issue.issued && issue.ready <= context.cycle) else { return };
            let Some(geometry) = geometry(context.program, issue.instruction) else { return };
            context.record(issue.instruction, Phase::Issue, issue.began, context.cycle);
            self.jobs.push_back(Job {
                instruction: issue.instruction,
                number: self.entered,
                started: context.cycle,
                entries: Vec::with_capacity(geometry.pixels() as usize),
                outputs: geometry.output_words(),
                geometry,
                written: 0,
            });
            self.entered += 1;
            self.issue = None;
        }
        let tile = self.load;
        if let Some(job) = self.job(tile.job) {
            let (rows, idle) = (job.geometry.rows(tile.tile), job.geometry.load_words(tile.tile).idle);
            self.load = if tile.tile + 1 < job.geometry.tiles() {
                Tile { job: tile.job, tile: tile.tile + 1 }
            } else {
                Tile { job: tile.job + 1, tile: 0 }
            };
            self.register = Register::Loading { tile, rows, word: 0, first: context.cycle + idle };
        }
    }

    /// The weight port's part of the cycle: one word.
    fn load(&mut self, context: &mut Context<'_>) {
        let Register::Loading { tile, rows, word, first } = self.register else { return };
        if context.cycle < first {
            return;
        }
        let Some(job) = self.job(tile.job) else { return };
        let (from, to) = job.geometry.weight_words(tile.tile, rows - 1);
        if !context.request(Client::WeightPort, job.instruction, from + word, false) {
            return;
        }
        let (rows, word) = if from + word == to { (rows - 1, 0) } else { (rows, word + 1) };
        self.register = if rows == 0 { Register::Full(tile) } else { Register::Loading { tile, rows, word, first } };
    }

    /// The output pipe's part of the cycle: one word of the oldest instruction.
    fn write(&mut self, context: &mut Context<'_>) {
        let depth = self.depth;
        let Some(job) = self.jobs.front_mut() else { return };
        let (pixel, word) = job.outputs[job.written];
        let arrived = job.entries.get(pixel as usize).is_some_and(|entry| entry + depth <= context.cycle);
        if !arrived || !context.request(Client::MatrixWrite, job.instruction, word, true) {
            return;
        }
        job.written += 1;
        if job.written == job.outputs.len() {
            let entered = job.entries.last().map_or(context.cycle, |entry| entry + 1);
            context.finish(job.instruction);
            context.record(job.instruction, Phase::Execute, job.started, entered);
            context.record(job.instruction, Phase::Drain, entered, context.cycle + 1);
            self.jobs.pop_front();
        }
    }

    /// The activity of a cycle without a stream.
    fn activity(&self, context: &Context<'_>) -> Activity {
        match (&self.feed, self.register) {
            // Empty slots behind the last result of all.
            _ if self.is_finished() => Activity::Off,
            (Some(feed), _) if !feed.is_streamed(context.cycle) => Activity::Busy(feed.layer),
            (_, Register::Loading { .. }) => Activity::Stalled(Stall::WeightLoad),
            (_, Register::Full(_)) => Activity::Stalled(Stall::UnitBusy),
            _ if self.issue.is_some() => Activity::Stalled(Stall::Issue),
            _ if context.counters.units[Unit::Me.index()].instructions == 0 => Activity::Off,
            _ if self.queue.head().is_some() => Activity::Stalled(Stall::Dependency),
            _ if self.jobs.is_empty() => Activity::Off,
            _ => Activity::Stalled(Stall::UnitBusy),
        }
    }

    pub(crate) fn waiting_instruction(&self) -> Option<usize> {
        if self.issue.is_none() { self.queue.head() } else { None }
    }

    /// Nothing is under way, and nothing can begin.
    pub(crate) fn idle(&self, context: &Context<'_>) -> bool {
        let begins = self.queue.ready(context.program, &context.tokens).is_some();
        self.jobs.is_empty() && self.issue.is_none() && !begins
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.jobs.is_empty() && self.issue.is_none() && self.queue.head().is_none()
    }
}

impl TileFeed {
    /// All pixels have entered and the slots it holds are over.
    fn is_streamed(&self, cycle: u64) -> bool {
        self.next == self.pixels && self.hold <= cycle
    }

    /// Works out which words the next pixel is missing.
    fn find_missing_words(&mut self, geometry: &Geometry) {
        if self.known {
            return;
        }
        if geometry.begins_row(self.next) {
            self.held.clear();
        }
        geometry.pixel_words(self.tile.tile, self.next, &mut self.needed);
        self.missing.clear();
        self.missing.extend(self.needed.iter().copied().filter(|word| !self.held.contains(word)));
        self.known = true;
    }
}

fn geometry(program: &Program, position: usize) -> Option<Geometry> {
    let Work::Matrix(matrix) = &program.instructions[position].work else { return None };
    let Descriptor::Matrix(descriptor) = program.descriptors.get(matrix.descriptor.index())? else { return None };
    Some(Geometry::new(matrix, descriptor, &program.machine))
}
