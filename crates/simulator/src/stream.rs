//! The elementwise and the pooling unit: an issue stage, then streams of words in and out.
//!
//! ```text
//! tokens there    start          cycles               latency
//! |               |--- issue ----|--- reads --------------------|
//!                                            |------- writes ---------|  finished
//!                 next instruction:  |--- issue ----|- reads ...
//! ```
//! The unit has a clock of its own that stands still while a bank refuses it a word. An instruction of `c` unit cycles whose
//! reads begin at unit time `b` makes access `i` of a read stream of `n` at `b + floor(i c / n)` and write `i` of `n` at
//! `b + ceil((i + 1) c / n) - 1 + latency`: a word is written when its share of the work has passed through the unit. The next
//! instruction begins at `b + c` if it has left the issue stage by then. Of the accesses due in one cycle those of the older
//! instruction come first, its writes before reads.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tpuflow_ir::isa::StartUp;
use tpuflow_ir::{Program, Unit};

use crate::access_pattern::{SpreadAccesses, access_patterns};
use crate::context::{Activity, Context};
use crate::counters::{Client, Stall};
use crate::error::SimError;
use crate::queue::Queue;
use crate::run::Phase;

/// An instruction in the issue stage.
#[derive(Clone, Copy, Debug)]
struct Issue {
    instruction: usize,
    began: u64,
    ready: u64,
}

/// An instruction at work.
#[derive(Clone, Debug)]
struct Job {
    instruction: usize,
    /// Cycle, and unit time, of its first read.
    started: u64,
    begin: u64,
    cycles: u64,
    reads: SmallVec<[SpreadAccesses; 3]>,
    writes: SpreadAccesses,
}

/// One of the two units.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    unit: Unit,
    client: Client,
    start: u64,
    latency: u64,
    queue: Queue,
    issue: Option<Issue>,
    /// Unfinished, oldest first; only the youngest may still be reading.
    jobs: VecDeque<Job>,
    /// Cycles the unit's clock has stood still.
    stood: u64,
    /// Unit time from which on the next instruction may begin.
    free: u64,
}

impl Job {
    fn read_due(&self, access: u64, accesses: u64) -> u64 {
        self.begin + proportional_share(access, self.cycles, accesses)
    }

    fn write_due(&self, access: u64, latency: u64) -> u64 {
        let accesses = self.writes.accesses();
        let whole = proportional_share(access + 1, self.cycles, accesses);
        // Rounded up: the next multiple, unless the quotient is exact.
        let exact = u128::from(whole) * u128::from(accesses) == u128::from(access + 1) * u128::from(self.cycles);
        self.begin + whole + u64::from(!exact) + latency - 1
    }

    /// Unit time of its last cycle.
    fn last(&self, latency: u64) -> u64 {
        self.begin + self.cycles + latency - 1
    }
}

/// `floor(access * cycles / accesses)`; wide division only where it must be.
fn proportional_share(access: u64, cycles: u64, accesses: u64) -> u64 {
    match access.checked_mul(cycles) {
        Some(product) => product / accesses,
        None => (u128::from(access) * u128::from(cycles) / u128::from(accesses)) as u64,
    }
}

impl Stream {
    pub(crate) fn new(program: &Program, unit: Unit) -> Self {
        let machine = &program.machine;
        let StartUp { start, latency } = unit.start_up(machine).expect("its work is streams");
        Self {
            unit,
            client: Client::Unit(unit),
            start,
            latency,
            queue: Queue::new(program, unit),
            issue: None,
            jobs: VecDeque::new(),
            stood: 0,
            free: 0,
        }
    }

    /// One cycle.
    pub(crate) fn step(&mut self, context: &mut Context<'_>) -> Result<(), SimError> {
        self.dispatch(context);
        self.begin(context)?;
        self.dispatch(context);
        // Booked as it is before its last word is written in this very cycle.
        let activity = self.activity(context);
        let refused = self.access(context);
        if refused {
            self.stood += 1;
            context.account(self.unit, Activity::Stalled(Stall::BankConflict), 1);
            return Ok(());
        }
        context.account(self.unit, activity, 1);
        let time = context.cycle - self.stood;
        while let Some(job) = self.jobs.front()
            && job.last(self.latency) <= time
        {
            context.finish(job.instruction);
            let (started, drain) = (job.started, context.cycle + 1 - self.latency.min(context.cycle));
            context.record(job.instruction, Phase::Execute, started, drain.max(started));
            context.record(job.instruction, Phase::Drain, drain.max(started), context.cycle + 1);
            self.jobs.pop_front();
        }
        Ok(())
    }

    fn begin(&mut self, context: &mut Context<'_>) -> Result<(), SimError> {
        if self.issue.is_none()
            && let Some(head) = self.queue.ready(context.program, &context.tokens)
        {
            context.begin(head)?;
            self.queue.pop();
            self.issue = Some(Issue { instruction: head, began: context.cycle, ready: context.cycle + self.start });
        }
        Ok(())
    }

    /// Moves the instruction of the issue stage on when it is ready and the streams are free.
    fn dispatch(&mut self, context: &mut Context<'_>) {
        let time = context.cycle - self.stood;
        if let Some(issue) = self.issue
            && issue.ready <= context.cycle
            && self.free <= time
            && let Some((cycles, reads, writes)) =
                access_patterns(context.program, &context.program.instructions[issue.instruction])
        {
            context.record(issue.instruction, Phase::Issue, issue.began, context.cycle);
            self.issue = None;
            self.free = time + cycles;
            self.jobs.push_back(Job {
                instruction: issue.instruction,
                started: context.cycle,
                begin: time,
                cycles,
                reads,
                writes,
            });
        }
    }

    /// Makes the accesses due; whether any was refused.
    fn access(&mut self, context: &mut Context<'_>) -> bool {
        let (time, client, latency) = (context.cycle - self.stood, self.client, self.latency);
        let mut refused = false;
        for job in &mut self.jobs {
            while let Some(i) = job.writes.next()
                && job.write_due(i, latency) <= time
            {
                if !context.request(client, job.instruction, job.writes.word(), true) {
                    refused = true;
                    break;
                }
                job.writes.advance();
            }
            for stream in 0..job.reads.len() {
                while let Some(i) = job.reads[stream].next()
                    && job.read_due(i, job.reads[stream].accesses()) <= time
                {
                    if !context.request(client, job.instruction, job.reads[stream].word(), false) {
                        refused = true;
                        break;
                    }
                    job.reads[stream].advance();
                }
            }
        }
        refused
    }

    /// The activity of a cycle without refusals.
    fn activity(&self, context: &Context<'_>) -> Activity {
        let time = context.cycle - self.stood;
        if let Some(job) = self.jobs.back()
            && time < job.begin + job.cycles
        {
            Activity::Busy(context.layer(job.instruction))
        } else if self.issue.is_some() {
            Activity::Stalled(Stall::Issue)
        } else if context.counters.units[self.unit.index()].instructions == 0 {
            Activity::Off
        } else if self.queue.head().is_some() {
            Activity::Stalled(Stall::Dependency)
        } else if self.jobs.is_empty() {
            Activity::Off
        } else {
            Activity::Stalled(Stall::UnitBusy)
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
