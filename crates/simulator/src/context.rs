//! The state that the units of a running machine share: the cycle, banks, tokens, values and counters.

use tpuflow_ir::isa::Direction;
use tpuflow_ir::{LayerId, Program, Unit, Work};

use crate::bank::Banks;
use crate::check;
use crate::counters::{Client, Counters, Stall};
use crate::error::SimError;
use crate::queue::Tokens;
use crate::run::{Interval, Phase};
use crate::signals::{Recorder, Request};
use crate::values::Executor;

/// The activity of a unit in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Works for a layer.
    Busy(LayerId),
    /// Waits.
    Stalled(Stall),
    /// Has nothing under way: before its first instruction or after its last.
    Off,
}

/// First and last cycle of a layer's instructions on one unit, its cycles of work there, and what they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerTimes {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) busy: u64,
    pub(crate) moved: TransferCounts,
}

/// The bytes that the lines moved for a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransferCounts {
    pub(crate) ddr_read_bytes: u64,
    pub(crate) ddr_write_bytes: u64,
    pub(crate) page_misses: u64,
}

impl TransferCounts {
    /// The transfers of an instruction; pages apart, which depend on those open.
    pub(crate) fn by(program: &Program, work: &Work) -> Self {
        let (ddr_read_bytes, ddr_write_bytes) = match work {
            Work::Transfer(t) if t.direction == Direction::Load => (program.positioned_transfer(t).total_bytes(), 0),
            Work::Transfer(t) => (0, t.total_bytes()),
            Work::Expand(e) => (e.packed_bytes(), 0),
            Work::PackedLookup(l) => (u64::from(l.count) * l.index_bytes(), 0),
            Work::Lookup(l) => (u64::from(l.count) * l.table.payload() as u64, 0),
            _ => (0, 0),
        };
        Self { ddr_read_bytes, ddr_write_bytes, page_misses: 0 }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            ddr_read_bytes: self.ddr_read_bytes + other.ddr_read_bytes,
            ddr_write_bytes: self.ddr_write_bytes + other.ddr_write_bytes,
            page_misses: self.page_misses + other.page_misses,
        }
    }
}

pub(crate) struct Context<'p> {
    pub(crate) program: &'p Program,
    pub(crate) cycle: u64,
    pub(crate) banks: Banks,
    pub(crate) tokens: Tokens,
    pub(crate) counters: Counters,
    pub(crate) layers: Vec<[LayerTimes; Unit::COUNT]>,
    pub(crate) trace: Option<Vec<Interval>>,
    pub(crate) executor: Option<Executor<&'p Program>>,
    pub(crate) recorder: Option<Recorder>,
    /// Per instruction, how many of each unit's must have finished before it starts.
    needs: Vec<[u32; Unit::COUNT]>,
}

impl<'p> Context<'p> {
    /// `needs`: see [`crate::checked_program::CheckedProgram`].
    pub(crate) fn new(
        program: &'p Program,
        executor: Option<Executor<&'p Program>>,
        trace: bool,
        needs: Vec<[u32; Unit::COUNT]>,
    ) -> Self {
        Self {
            program,
            cycle: program.machine.control.start,
            banks: Banks::new(&program.machine),
            tokens: Tokens::default(),
            counters: Counters::default(),
            layers: vec![Default::default(); program.layers.len()],
            trace: trace.then(Vec::new),
            executor,
            recorder: None,
            needs,
        }
    }

    /// Instruction `position` starts its work: everything it depends on must have finished. Its values are computed now.
    pub(crate) fn begin(&mut self, position: usize) -> Result<(), SimError> {
        let late = |unit: &Unit| self.tokens.finished()[unit.index()] < self.needs[position][unit.index()];
        if Unit::ALL.iter().any(late) {
            return Err(check::conflicting_access(self.program, position, self.tokens.finished()));
        }
        let instruction = &self.program.instructions[position];
        let moved = TransferCounts::by(self.program, &instruction.work);
        self.counters.ddr_read_bytes += moved.ddr_read_bytes;
        self.counters.ddr_write_bytes += moved.ddr_write_bytes;
        let unit = &mut self.counters.units[instruction.unit.index()];
        if unit.instructions == 0 {
            unit.start = self.cycle;
        }
        unit.instructions += 1;
        let layer = &mut self.layers[instruction.layer.index()][instruction.unit.index()];
        if layer.end == 0 {
            layer.start = self.cycle;
        }
        layer.end = layer.end.max(self.cycle + 1);
        layer.moved = layer.moved.plus(moved);
        self.executor.as_mut().map_or(Ok(()), |executor| executor.execute(position))
    }

    /// Instruction `position` does its last work in this cycle.
    pub(crate) fn finish(&mut self, position: usize) {
        let instruction = &self.program.instructions[position];
        self.tokens.deposit(instruction.unit);
        self.counters.units[instruction.unit.index()].end = self.cycle + 1;
        self.layers[instruction.layer.index()][instruction.unit.index()].end = self.cycle + 1;
    }

    /// Whether the bank of a cache word serves `port` in this cycle.
    pub(crate) fn request(&mut self, port: Client, position: usize, word: u64, write: bool) -> bool {
        let cycle = self.cycle;
        let granted = self.banks.request(cycle, word, port);
        if let Some(recorder) = &mut self.recorder {
            recorder.request(Request { cycle, port, instruction: position as u32, word, write, granted });
        }
        granted
    }

    /// A channel serves a DMA line, or nobody, from `cycle` on.
    pub(crate) fn set_channel_user(&mut self, cycle: u64, channel: usize, user: Option<(Unit, u64)>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.channel(cycle, channel, user);
        }
    }

    /// A run of the instruction at `position` opens its page.
    pub(crate) fn miss_page(&mut self, position: usize) {
        let instruction = &self.program.instructions[position];
        self.counters.page_misses += 1;
        self.layers[instruction.layer.index()][instruction.unit.index()].moved.page_misses += 1;
    }

    /// Books `cycles` cycles of a unit.
    pub(crate) fn account(&mut self, unit: Unit, activity: Activity, cycles: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.state(self.cycle, unit, activity);
        }
        let counters = &mut self.counters.units[unit.index()];
        match activity {
            Activity::Busy(layer) => {
                counters.busy += cycles;
                self.layers[layer.index()][unit.index()].busy += cycles;
            }
            Activity::Stalled(cause) => counters.stalls.add(cause, cycles),
            Activity::Off => {}
        }
    }

    /// Records `start .. end` of an instruction, if a trace is wanted.
    pub(crate) fn record(&mut self, position: usize, phase: Phase, start: u64, end: u64) {
        if let Some(trace) = &mut self.trace
            && start < end
        {
            let instruction = &self.program.instructions[position];
            trace.push(Interval {
                unit: instruction.unit,
                instruction: position as u32,
                layer: instruction.layer,
                start,
                end,
                phase,
            });
        }
    }

    pub(crate) fn layer(&self, position: usize) -> LayerId {
        self.program.instructions[position].layer
    }
}
