//! Options and results of a run.

use serde::Serialize;
use tpuflow_ir::program::Bounds;
use tpuflow_ir::{DType, LayerId, Program, Unit};

use crate::context::{LayerTimes, TransferCounts};
use crate::counters::{Counters, Stalls};

/// How the matrix engine computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrayModel {
    /// Matrix products and the closed timing law.
    #[default]
    Closed,
    /// Every register of the array ([`crate::array::registers`]), checked against the closed form on the way. Slow.
    Register,
}

/// The parts of a run that are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Compute values; else only cycles.
    pub values: bool,
    /// Record the interval of every instruction.
    pub trace: bool,
    /// How the matrix engine computes.
    pub array: ArrayModel,
    /// Step through every cycle instead of taking stretches of them at a time. Slow; the result is the same.
    pub stepped: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { values: true, trace: false, array: ArrayModel::Closed, stepped: false }
    }
}

/// Part of an instruction's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// In the issue stage.
    Issue,
    /// At work; a DMA line's start-up included.
    Execute,
    /// Its last results are on their way.
    Drain,
}

/// An entry of the trace: cycles `start .. end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Interval {
    /// Executing unit.
    pub unit: Unit,
    /// Position in the program.
    pub instruction: u32,
    /// For which layer.
    pub layer: LayerId,
    /// First cycle.
    pub start: u64,
    /// One past the last cycle.
    pub end: u64,
    /// The phase.
    pub phase: Phase,
}

/// Something that went wrong without stopping the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Layer concerned.
    pub layer: String,
    /// The event: `accumulator overflow`, `NaN` or `infinity`.
    pub kind: String,
    /// How many elements.
    pub count: u64,
    /// Row (images one below the other), column and channel of the first in the layer's result; of overflows unknown.
    pub first: Option<[u32; 3]>,
}

/// A layer in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerRun {
    /// Name.
    pub name: String,
    /// Operator.
    pub op: String,
    /// Element type of the result.
    pub dtype: DType,
    /// Computing unit.
    pub unit: Unit,
    /// Cycle in which its first computing instruction began.
    pub start: u64,
    /// One past the cycle in which its last one finished.
    pub end: u64,
    /// Cycles of work.
    pub busy: u64,
    /// The same of every unit, the DMA lines among them, in the order of [`Unit::ALL`].
    pub busy_by_unit: [u64; Unit::COUNT],
    /// Bytes its transfers and lookups read from DDR.
    pub ddr_read_bytes: u64,
    /// Bytes its transfers wrote to DDR.
    pub ddr_write_bytes: u64,
    /// Page runs of theirs that had to open their page.
    pub page_misses: u64,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Lower bound, cycles.
    pub bound: u64,
    /// The part that binds.
    pub binding: String,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Codes per output port, dense row-major, little endian; empty without values.
    pub outputs: Vec<Vec<u8>>,
    /// Cycles from the start of the program to the end of its last instruction.
    pub cycles: u64,
    /// Everything counted.
    pub counters: Counters,
    /// By [`LayerId`].
    pub layers: Vec<LayerRun>,
    /// Intervals by start cycle, if asked for.
    pub trace: Option<Vec<Interval>>,
    /// Its message.
    pub events: Vec<Event>,
}

/// Busy cycles over all cycles, per unit, in the order of reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Utilization(pub Vec<(Unit, f64)>);

impl Serialize for Utilization {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(unit, share)| (unit.name(), share)))
    }
}

/// Memory in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Where the allocated bytes of the cache end.
    pub cache_peak_bytes: u64,
    /// Most bytes of the cache allocated at a time.
    pub cache_in_use_bytes: u64,
    /// Cache size.
    pub cache_bytes: u64,
    /// Read from DDR.
    pub ddr_read_bytes: u64,
    /// Written to DDR.
    pub ddr_write_bytes: u64,
    /// Activations that took the way through DDR.
    pub spill_bytes: u64,
}

/// The figures of a run that do not depend on the host, in the form reports and tools read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the program.
    pub program: String,
    /// Name of the machine.
    pub machine: String,
    /// Optimisation level.
    pub level: u8,
    /// Clock.
    pub clock_hz: u64,
    /// Cycles of one inference.
    pub cycles: u64,
    /// The same in microseconds.
    pub time_us: f64,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Per unit.
    pub utilization: Utilization,
    /// Lower bounds.
    pub bounds: Bounds,
    /// The largest.
    pub bound: u64,
    /// Its name.
    pub binding: String,
    /// `cycles / bound - 1`.
    pub gap: f64,
    /// Summed over units.
    pub stalls: Stalls,
    /// Time of host segments, outside `cycles`.
    pub host_us: f64,
    /// Memory.
    pub memory: MemoryReport,
    /// Layers.
    pub layers: Vec<LayerRun>,
    /// Everything else that was counted.
    pub counters: Counters,
    /// Its message.
    pub events: Vec<Event>,
}

impl Run {
    /// The figures of the run.
    #[must_use]
    pub fn report(&self, program: &Program) -> Report {
        let (binding, bound) = program.bounds.binding();
        let share = |unit: Unit| {
            if self.cycles == 0 { 0.0 } else { self.counters.units[unit.index()].busy as f64 / self.cycles as f64 }
        };
        Report {
            program: program.name.clone(),
            machine: program.machine.name.clone(),
            level: program.level,
            clock_hz: program.machine.clock_hz,
            cycles: self.cycles,
            time_us: self.cycles as f64 * 1e6 / program.machine.clock_hz as f64,
            macs: program.layers.iter().map(|l| l.macs).sum(),
            utilization: Utilization(Unit::report_order().map(|unit| (unit, share(unit))).collect()),
            bounds: program.bounds.clone(),
            bound,
            binding: binding.to_owned(),
            gap: if bound == 0 { 0.0 } else { self.cycles as f64 / bound as f64 - 1.0 },
            stalls: self.counters.units.iter().fold(Stalls::default(), |sum, unit| sum.plus(&unit.stalls)),
            host_us: 0.0,
            memory: MemoryReport {
                cache_peak_bytes: program.cache_peak_bytes,
                cache_in_use_bytes: program.cache_in_use(),
                cache_bytes: program.machine.cache_bytes(),
                ddr_read_bytes: self.counters.ddr_read_bytes,
                ddr_write_bytes: self.counters.ddr_write_bytes,
                spill_bytes: program.spill_bytes,
            },
            layers: self.layers.clone(),
            counters: self.counters.clone(),
            events: self.events.clone(),
        }
    }
}

/// Layers with their times: those of the computing units, or of the DMA lines where a layer has no other instruction.
pub(crate) fn layer_runs(program: &Program, times: &[[LayerTimes; Unit::COUNT]]) -> Vec<LayerRun> {
    let summary = |(layer, times): (&tpuflow_ir::program::LayerSummary, &[LayerTimes; Unit::COUNT])| {
        let present = |units: &mut dyn Iterator<Item = Unit>| -> Vec<LayerTimes> {
            units.map(|unit| times[unit.index()]).filter(|t| t.end > 0).collect()
        };
        let mut used = present(&mut Unit::computing());
        if used.is_empty() {
            used = present(&mut Unit::lines());
        }
        let moved = times.iter().fold(TransferCounts::default(), |sum, t| sum.plus(t.moved));
        LayerRun {
            name: layer.name.clone(),
            op: layer.op.clone(),
            dtype: layer.dtype,
            unit: layer.unit,
            start: used.iter().map(|t| t.start).min().unwrap_or(0),
            end: used.iter().map(|t| t.end).max().unwrap_or(0),
            busy: used.iter().map(|t| t.busy).sum(),
            busy_by_unit: times.map(|t| t.busy),
            ddr_read_bytes: moved.ddr_read_bytes,
            ddr_write_bytes: moved.ddr_write_bytes,
            page_misses: moved.page_misses,
            macs: layer.macs,
            bound: layer.bound,
            binding: layer.binding.clone(),
        }
    };
    program.layers.iter().zip(times).map(summary).collect()
}
