//! The state that the units of a timeline share beside the banks: when instructions began and finished, and the counters.

use std::collections::HashMap;

use tpuflow_ir::{Program, Unit};

use crate::context::{LayerTimes, TransferCounts};
use crate::counters::{Counters, Stall};
use crate::error::SimError;
use crate::run::{Interval, Phase};
use crate::values::Executor;

/// When the tokens of an instruction are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tokens {
    /// In this cycle.
    At(u64),
    /// Not before this cycle.
    NotBefore(u64),
}

#[derive(Debug)]
pub(super) struct Accounting<'p> {
    pub(super) program: &'p Program,
    pub(super) counters: Counters,
    pub(super) layers: Vec<[LayerTimes; Unit::COUNT]>,
    pub(super) trace: Option<Vec<Interval>>,
    pub(super) executor: Option<Executor<&'p Program>>,
    /// First instruction that has not been executed.
    pub(super) executed: usize,
    /// Indices of lookups that have been executed and not begun: what came behind them in the list may lie in their place.
    indices: HashMap<usize, Vec<u32>>,
    /// Per unit, the cycles in which its instructions finished.
    finished: [Vec<u64>; Unit::COUNT],
    /// Per unit, a cycle before which it finishes no further instruction.
    pub(super) earliest: [u64; Unit::COUNT],
    /// Cycle in which each instruction began.
    pub(super) began: Vec<u64>,
    start: u64,
}

impl<'p> Accounting<'p> {
    pub(super) fn new(program: &'p Program, executor: Option<Executor<&'p Program>>, trace: bool) -> Self {
        let start = program.machine.control.start;
        Self {
            program,
            counters: Counters::default(),
            layers: vec![Default::default(); program.layers.len()],
            trace: trace.then(Vec::new),
            executor,
            executed: 0,
            indices: HashMap::new(),
            finished: Default::default(),
            earliest: [start; Unit::COUNT],
            began: vec![0; program.instructions.len()],
            start,
        }
    }

    /// Cycle in which instruction `number` (from 1) of a unit finished, if that is known.
    pub(super) fn finish_of(&self, unit: Unit, number: u32) -> Option<u64> {
        self.finished[unit.index()].get(number as usize - 1).copied()
    }

    /// When the tokens are there that the instruction at `position` waits for.
    pub(super) fn tokens(&self, position: usize) -> Tokens {
        let (mut at, mut known) = (self.start, true);
        for wait in self.program.instructions[position].waits.iter().filter(|wait| wait.count > 0) {
            let finish = self.finish_of(wait.unit, wait.count);
            known &= finish.is_some();
            at = at.max(finish.unwrap_or(self.earliest[wait.unit.index()]) + 1);
        }
        if known { Tokens::At(at) } else { Tokens::NotBefore(at) }
    }

    /// Whether an instruction began before something it depends on had finished.
    pub(super) fn is_early(&self, position: usize, needs: &[u32; Unit::COUNT]) -> bool {
        let late = |unit: Unit| {
            let need = needs[unit.index()];
            need > 0 && self.finish_of(unit, need).is_none_or(|finish| finish >= self.began[position])
        };
        Unit::ALL.into_iter().any(late)
    }

    pub(super) fn begin(&mut self, position: usize, cycle: u64) {
        let instruction = &self.program.instructions[position];
        self.began[position] = cycle;
        let moved = TransferCounts::by(self.program, &instruction.work);
        self.counters.ddr_read_bytes += moved.ddr_read_bytes;
        self.counters.ddr_write_bytes += moved.ddr_write_bytes;
        let unit = &mut self.counters.units[instruction.unit.index()];
        if unit.instructions == 0 {
            unit.start = cycle;
        }
        unit.instructions += 1;
        let layer = &mut self.layers[instruction.layer.index()][instruction.unit.index()];
        if layer.end == 0 {
            layer.start = cycle;
        }
        layer.end = layer.end.max(cycle + 1);
        layer.moved = layer.moved.plus(moved);
    }

    /// A run of the instruction at `position` opens its page.
    pub(super) fn miss_page(&mut self, position: usize) {
        let instruction = &self.program.instructions[position];
        self.counters.page_misses += 1;
        self.layers[instruction.layer.index()][instruction.unit.index()].moved.page_misses += 1;
    }

    /// The instruction at `position` does its last work in `cycle`.
    pub(super) fn finish(&mut self, position: usize, cycle: u64) {
        let instruction = &self.program.instructions[position];
        self.finished[instruction.unit.index()].push(cycle);
        self.counters.units[instruction.unit.index()].end = cycle + 1;
        self.layers[instruction.layer.index()][instruction.unit.index()].end = cycle + 1;
    }

    pub(super) fn busy(&mut self, position: usize, cycles: u64) {
        let instruction = &self.program.instructions[position];
        self.counters.units[instruction.unit.index()].busy += cycles;
        self.layers[instruction.layer.index()][instruction.unit.index()].busy += cycles;
    }

    /// Takes cycles back that were booked as busy beyond a unit's end.
    pub(super) fn not_busy(&mut self, position: usize, cycles: u64) {
        let instruction = &self.program.instructions[position];
        self.counters.units[instruction.unit.index()].busy -= cycles;
        self.layers[instruction.layer.index()][instruction.unit.index()].busy -= cycles;
    }

    pub(super) fn stall(&mut self, unit: Unit, cause: Stall, cycles: u64) {
        self.counters.units[unit.index()].stalls.add(cause, cycles);
    }

    /// Whether a unit has begun an instruction.
    pub(super) fn has_begun(&self, unit: Unit) -> bool {
        self.counters.units[unit.index()].instructions > 0
    }

    /// Records `start .. end` of an instruction, if a trace is wanted.
    pub(super) fn record(&mut self, position: usize, phase: Phase, start: u64, end: u64) {
        if let Some(trace) = &mut self.trace
            && start < end
        {
            let instruction = &self.program.instructions[position];
            let (unit, layer) = (instruction.unit, instruction.layer);
            trace.push(Interval { unit, instruction: position as u32, layer, start, end, phase });
        }
    }

    /// Executes everything up to the instruction at `position`, in the order of the list.
    pub(super) fn execute(&mut self, position: usize) -> Result<(), SimError> {
        if let Some(executor) = &mut self.executor {
            while self.executed <= position {
                executor.execute(self.executed)?;
                if let Some(indices) = self.program.instructions[self.executed].work.indices() {
                    self.indices.insert(self.executed, executor.indices(&indices));
                }
                self.executed += 1;
            }
        }
        Ok(())
    }

    /// The indices of the lookup at `position`, if values are computed.
    pub(super) fn indices(&mut self, position: usize) -> Result<Option<Vec<u32>>, SimError> {
        self.execute(position)?;
        Ok(self.indices.remove(&position))
    }
}
