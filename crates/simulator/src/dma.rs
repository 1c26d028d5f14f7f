//! The two DMA lines and the DDR channels they share.
//!
//! ```text
//! tokens there   start + latency     wait   open page   data, word by word               next run: wait, ...
//! |              |--- issue ---------|-ddr--|--ddr-----|-busy----------------|            ... last run: finished
//! ```
//! A transfer is a list of page runs. A run owns its channel from the cycle it is granted to its last data cycle. Its data take
//! `D = max(ddr cycles, words)` cycles of the run's own clock, which stands still while a bank refuses a word: a load writes
//! word `i` of `n` in data cycle `ceil((i + 1) D / n) - 1`, when its last byte is there; a store reads it in `floor(i D / n)`.
//! Packed weights are a load whose page run writes the words it completes, all of them later by the cycles of a block's header, which
//! count as start-up; so is every entry of a packed table that an index names. Rows of a state from the run's position on are not moved: the line writes zero points, a word a cycle, without
//! a channel. Channel arbitration: who has waited longer, then DTL0. Traffic of the EWP cache takes no bank.

use std::ops::Range;

use tpuflow_ir::isa::{Direction, Expand, Indices, Lookup, PackedLookup, Transfer};
use tpuflow_ir::timing::{
    PageRun, data_cycles, entry_runs, expand_lead, expanded_words, lookup_lead, page_runs, transfer_lead,
};
use tpuflow_ir::{Machine, PositionedTransfer, Program, Space, Unit, View, Work};

use crate::context::{Activity, Context};
use crate::counters::{Client, Stall};
use crate::error::SimError;
use crate::queue::Queue;
use crate::run::Phase;
use crate::timeline::access_rate::AccessRate;

/// One step of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Reads a word of indices, or writes one of zero points: one cycle at a bank.
    Word { word: u64, write: bool },
    /// Moves data on a channel.
    Run(Run),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) channel: usize,
    pub(crate) page: u64,
    load: bool,
    /// Data cycles.
    pub(crate) cycles: u64,
    /// Words moved, and the first of them in the shared cache; the EWP cache takes no bank.
    pub(crate) words: u64,
    pub(crate) first_word: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// Start-up until this cycle.
    Starting {
        until: u64,
    },
    /// Wants the channel of its next run.
    Waiting {
        since: u64,
    },
    /// Reads or writes a word on its own.
    Word {
        word: u64,
        write: bool,
    },
    /// Data cycle 0 is `first`, moved on by every refusal; `done` words have been moved.
    Moving {
        run: Run,
        first: u64,
        done: u64,
    },
}

#[derive(Clone, Debug)]
struct Line {
    unit: Unit,
    client: Client,
    queue: Queue,
    state: State,
    instruction: usize,
    began: u64,
    steps: std::vec::IntoIter<Step>,
    next: Option<Step>,
}

/// Both lines.
#[derive(Clone, Debug)]
pub(crate) struct Dma {
    lines: [Line; 2],
    /// Open page and line being served.
    channels: Vec<(Option<u64>, Option<usize>)>,
    page_miss: u64,
}

impl Run {
    /// Data cycle in which word `i` takes its bank.
    pub(crate) fn bank_cycle(&self, i: u64) -> u64 {
        if self.load { ((i + 1) * self.cycles).div_ceil(self.words) - 1 } else { i * self.cycles / self.words }
    }

    /// The same from word `i` on.
    pub(crate) fn pace(&self, i: u64) -> AccessRate {
        AccessRate::new(self.cycles, self.words, if self.load { self.cycles - 1 } else { 0 }, i)
    }
}

impl Dma {
    pub(crate) fn new(program: &tpuflow_ir::Program) -> Self {
        let machine = &program.machine;
        let line = |unit| Line {
            unit,
            client: Client::Unit(unit),
            queue: Queue::new(program, unit),
            state: State::Idle,
            instruction: 0,
            began: 0,
            steps: Vec::new().into_iter(),
            next: None,
        };
        Self {
            lines: [Unit::Dtl0, Unit::Dtl1].map(line),
            channels: vec![(None, None); machine.channels()],
            page_miss: machine.page_miss(),
        }
    }

    /// One cycle.
    pub(crate) fn step(&mut self, context: &mut Context<'_>) -> Result<(), SimError> {
        for line in &mut self.lines {
            line.prepare(context)?;
        }
        self.grant(context);
        for index in 0..self.lines.len() {
            let activity = self.advance(index, context);
            context.account(self.lines[index].unit, activity, 1);
        }
        Ok(())
    }

    /// Gives free channels to waiting lines.
    fn grant(&mut self, context: &mut Context<'_>) {
        for (number, (open, user)) in self.channels.iter_mut().enumerate() {
            if user.is_some() {
                continue;
            }
            let waiting = self.lines.iter().enumerate().filter_map(|(index, line)| match (line.state, line.next) {
                (State::Waiting { since }, Some(Step::Run(run))) if run.channel == number => Some((since, index, run)),
                _ => None,
            });
            let Some((_, index, run)) = waiting.min_by_key(|(since, index, _)| (*since, *index)) else { continue };
            let missed = *open != Some(run.page);
            if missed {
                context.miss_page(self.lines[index].instruction);
            }
            (*open, *user) = (Some(run.page), Some(index));
            context.set_channel_user(context.cycle, number, Some((self.lines[index].unit, run.page)));
            let first = context.cycle + if missed { self.page_miss } else { 0 };
            self.lines[index].state = State::Moving { run, first, done: 0 };
        }
    }

    /// The line's part of the cycle: at most one word.
    fn advance(&mut self, index: usize, context: &mut Context<'_>) -> Activity {
        let line = &mut self.lines[index];
        let cycle = context.cycle;
        match &mut line.state {
            State::Word { word, write } => {
                if !context.request(line.client, line.instruction, *word, *write) {
                    return Activity::Stalled(Stall::BankConflict);
                }
                let activity = Activity::Busy(context.layer(line.instruction));
                line.finish_step(context);
                activity
            }
            State::Moving { run, first, done } if cycle >= *first => {
                let now = cycle - *first;
                if *done < run.words && run.bank_cycle(*done) <= now {
                    if let Some(first_word) = run.first_word
                        && !context.request(line.client, line.instruction, first_word + *done, run.load)
                    {
                        *first += 1;
                        return Activity::Stalled(Stall::BankConflict);
                    }
                    *done += 1;
                }
                let activity = Activity::Busy(context.layer(line.instruction));
                if now + 1 == run.cycles {
                    self.channels[run.channel].1 = None;
                    context.set_channel_user(cycle + 1, run.channel, None);
                    line.finish_step(context);
                }
                activity
            }
            _ => line.waits(context),
        }
    }

    pub(crate) fn waiting_instruction(&self) -> Option<usize> {
        self.lines.iter().filter(|line| matches!(line.state, State::Idle)).find_map(|line| line.queue.head())
    }

    /// Nothing is under way, and nothing can begin.
    pub(crate) fn idle(&self, context: &Context<'_>) -> bool {
        let idle = |line: &Line| {
            matches!(line.state, State::Idle) && line.queue.ready(context.program, &context.tokens).is_none()
        };
        self.lines.iter().all(idle)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.lines.iter().all(|line| matches!(line.state, State::Idle) && line.queue.head().is_none())
    }
}

impl Line {
    /// Starts the next instruction, ends start-up.
    fn prepare(&mut self, context: &mut Context<'_>) -> Result<(), SimError> {
        if let State::Idle = self.state
            && let Some(head) = self.queue.ready(context.program, &context.tokens)
        {
            context.begin(head)?;
            self.queue.pop();
            self.instruction = head;
            self.began = context.cycle;
            let looked_up = context.program.instructions[head].work.indices();
            let indices =
                looked_up.and_then(|indices| context.executor.as_ref().map(|executor| executor.indices(&indices)));
            self.steps = steps(context.program, head, indices.as_deref()).into_iter();
            self.next = self.steps.next();
            self.state = State::Starting { until: context.cycle + start(context.program, head) };
        }
        if let State::Starting { until } = self.state
            && until <= context.cycle
        {
            self.state = state_of(self.next, context.cycle);
        }
        Ok(())
    }

    /// The step that was under way is done in this cycle.
    fn finish_step(&mut self, context: &mut Context<'_>) {
        self.next = self.steps.next();
        self.state = state_of(self.next, context.cycle + 1);
        if self.next.is_none() {
            context.finish(self.instruction);
            context.record(self.instruction, Phase::Execute, self.began, context.cycle + 1);
        }
    }

    /// The activity of a cycle without an event.
    fn waits(&self, context: &Context<'_>) -> Activity {
        match self.state {
            State::Idle => {
                let begun = context.counters.units[self.unit.index()].instructions > 0;
                let more = self.queue.head().is_some();
                if begun && more { Activity::Stalled(Stall::Dependency) } else { Activity::Off }
            }
            State::Starting { .. } => Activity::Stalled(Stall::Issue),
            State::Waiting { .. } => Activity::Stalled(Stall::Ddr),
            State::Moving { first, .. } if context.cycle < first => Activity::Stalled(Stall::Ddr),
            State::Moving { .. } | State::Word { .. } => Activity::Busy(context.layer(self.instruction)),
        }
    }
}

fn state_of(step: Option<Step>, since: u64) -> State {
    match step {
        None => State::Idle,
        Some(Step::Word { word, write }) => State::Word { word, write },
        Some(Step::Run(_)) => State::Waiting { since },
    }
}

/// Cycles of a line from an instruction's tokens to its first step.
pub(crate) fn start(program: &Program, position: usize) -> u64 {
    let machine = &program.machine;
    let lead = match &program.instructions[position].work {
        Work::Transfer(t) => return transfer_lead(t, machine),
        Work::Expand(e) => expand_lead(e, machine),
        Work::PackedLookup(l) => lookup_lead(l, machine),
        _ => 0,
    };
    machine.dma.start + machine.dma.latency + lead
}

/// The steps of an instruction; of a lookup by `indices`, if they are known.
pub(crate) fn steps(program: &Program, position: usize, indices: Option<&[u32]>) -> Vec<Step> {
    let machine = &program.machine;
    match &program.instructions[position].work {
        Work::Transfer(t) => placed_steps(&program.positioned_transfer(t), machine),
        Work::Expand(e) => expand_steps(e, machine),
        work => work.indices().map_or_else(Vec::new, |list| {
            indexed_steps(&list, indices, machine, |index, pixel| match work {
                Work::Lookup(l) => lookup_row(l, index, pixel, machine),
                Work::PackedLookup(l) => packed_entry(l, index, pixel, machine),
                _ => Vec::new(),
            })
        }),
    }
}

/// Of every run what is moved, then words of zero points for the rest.
fn placed_steps(placed: &PositionedTransfer, machine: &Machine) -> Vec<Step> {
    if placed.limit.is_none() {
        return transfer_steps(&placed.transfer, machine);
    }
    let (word, bytes) = (u64::from(machine.cache.word_bytes), u64::from(placed.transfer.bytes));
    let mut steps = Vec::new();
    for (ddr_address, local_address) in placed.transfer.runs() {
        let moved = placed.transferred_bytes(ddr_address);
        if moved > 0 {
            let run = Transfer { ddr_address, local_address, bytes: moved, counts: [1, 1], ..placed.transfer };
            steps.extend(transfer_steps(&run, machine));
        }
        let absent = (local_address + u64::from(moved)) / word..(local_address + bytes).div_ceil(word);
        if u64::from(moved) < bytes {
            steps.extend(absent.map(|word| Step::Word { word, write: true }));
        }
    }
    steps
}

fn transfer_steps(transfer: &Transfer, machine: &Machine) -> Vec<Step> {
    let word = u64::from(machine.cache.word_bytes);
    page_runs(transfer, machine)
        .into_iter()
        .map(|run| {
            let (first, last) = (run.local / word, (run.local + run.bytes - 1) / word);
            let words = last - first + 1;
            Step::Run(Run {
                channel: run.channel,
                page: run.page,
                load: transfer.direction == Direction::Load,
                cycles: data_cycles(run.bytes, words, machine),
                words,
                first_word: (transfer.local_space == Space::Cache).then_some(first),
            })
        })
        .collect()
}

fn expand_steps(expand: &Expand, machine: &Machine) -> Vec<Step> {
    let runs = page_runs(&expand.run(), machine).into_iter();
    runs.map(|run| completing_step(&run, &expanded_words(expand, &run, machine), machine)).collect()
}

/// A page run of packed weights and the words it writes.
fn completing_step(run: &PageRun, completed: &Range<u64>, machine: &Machine) -> Step {
    let words = completed.end - completed.start;
    Step::Run(Run {
        channel: run.channel,
        page: run.page,
        load: true,
        cycles: data_cycles(run.bytes, words, machine),
        words,
        first_word: (words > 0).then_some(completed.start),
    })
}

/// The steps of every index, which follow the word it lies in if that is another one than before; `entry`: those of an index, by its
/// value and the number of its pixel. Without values, scattered entries stand for the unknown ones.
fn indexed_steps(
    list: &Indices,
    values: Option<&[u32]>,
    machine: &Machine,
    entry: impl Fn(u32, u32) -> Vec<Step>,
) -> Vec<Step> {
    const SCATTER: u64 = 2_654_435_761;
    let word = machine.word();
    let mut steps = Vec::new();
    let mut held = None;
    for n in 0..list.count {
        let pixel = list.first + n;
        let index_word = element_address(&list.view, pixel, word) / word as u64;
        if held.replace(index_word) != Some(index_word) {
            steps.push(Step::Word { word: index_word, write: false });
        }
        let scattered = || (u64::from(pixel) * SCATTER % u64::from(list.size)) as u32;
        steps.extend(entry(values.map_or_else(scattered, |values| values[n as usize]), pixel));
    }
    steps
}

/// Every index is one row of the table.
fn lookup_row(lookup: &Lookup, row: u32, pixel: u32, machine: &Machine) -> Vec<Step> {
    let word = machine.word();
    let (line, column) = (pixel / lookup.output.width, pixel % lookup.output.width);
    let Space::Ddr(space) = lookup.table.space else { return Vec::new() };
    let row = Transfer {
        direction: Direction::Load,
        ddr_space: space,
        ddr_address: lookup.table.pixel_address(0, row, word),
        local_space: Space::Cache,
        local_address: lookup.output.pixel_address(line, column, word),
        bytes: lookup.table.payload() as u32,
        counts: [1, 1],
        ddr_strides: [0, 0],
        local_strides: [0, 0],
    };
    transfer_steps(&row, machine)
}

/// Every index is an entry of the table, or a column of one.
fn packed_entry(lookup: &PackedLookup, index: u32, pixel: u32, machine: &Machine) -> Vec<Step> {
    let (line, column) = (pixel / lookup.output.width, pixel % lookup.output.width);
    let address = lookup.output.pixel_address(line, column, machine.word());
    let runs = entry_runs(lookup, index, address, machine);
    runs.iter().map(|(run, words)| completing_step(run, words, machine)).collect()
}

/// Byte address of element `n`, row-major over the tensor.
pub(crate) fn element_address(view: &View, n: u32, word: usize) -> u64 {
    let (pixel, channel) = (n / view.channels, n % view.channels);
    view.pixel_address(pixel / view.width, pixel % view.width, word) + u64::from(channel) * view.dtype.bytes() as u64
}
