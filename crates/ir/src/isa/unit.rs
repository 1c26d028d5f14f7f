//! The functional units, each described once.
//!
//! Everything that enumerates units (queues, counters, reports, charts, the Python package) goes through [`UNITS`]: names,
//! what a unit executes, the laws of its start, who gives way at a bank, and its color. What a machine may lack is said there,
//! too. `docs/adding-a-unit.md` walks through what a further unit takes.

use serde::{Deserialize, Serialize};

use super::{Descriptor, VectorOp, Work};
use crate::{Machine, Op, Space, TableEntry, TensorId};

/// A unit with its own in-order queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// DMA line 0.
    Dtl0,
    /// DMA line 1.
    Dtl1,
    /// Matrix engine.
    Me,
    /// Elementwise unit.
    Ewp,
    /// Pooling and depthwise unit.
    Pdp,
}

/// The kinds of work, without operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// [`Work::Transfer`].
    Transfer,
    /// [`Work::Lookup`].
    Lookup,
    /// [`Work::Expand`].
    Expand,
    /// [`Work::PackedLookup`].
    PackedLookup,
    /// [`Work::Matrix`].
    Matrix,
    /// [`Work::Pool`].
    Pool,
    /// [`Work::Vector`] that computes.
    Vector,
    /// [`Work::Vector`] that puts elements in other places as they are.
    Move,
}

impl WorkKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Transfer,
        Self::Lookup,
        Self::Expand,
        Self::PackedLookup,
        Self::Matrix,
        Self::Pool,
        Self::Vector,
        Self::Move,
    ];

    /// The work of most instructions of an operator; `shape` gives the shapes of its operands.
    #[must_use]
    pub fn of<'a>(op: &Op, shape: impl Fn(TensorId) -> &'a [usize]) -> Self {
        match op {
            Op::Conv { .. } if op.is_depthwise(shape) => Self::Pool,
            Op::Conv { .. } | Op::MatMul { .. } => Self::Matrix,
            Op::MaxPool { .. } | Op::AveragePool { .. } => Self::Pool,
            Op::Embedding { entry: TableEntry::Row, .. } => Self::Lookup,
            Op::Embedding { .. } => Self::PackedLookup,
            Op::Pad { .. } | Op::Rearrange { .. } | Op::Gather { .. } | Op::InsertZeros { .. } => Self::Move,
            Op::Concat { requants, .. } if requants.iter().all(Option::is_none) => Self::Move,
            Op::Concat { .. }
            | Op::Binary { .. }
            | Op::Unary { .. }
            | Op::Rescale { .. }
            | Op::Quantize { .. }
            | Op::Dequantize { .. }
            | Op::PRelu { .. }
            | Op::Softmax { .. }
            | Op::SoftmaxStatistics { .. }
            | Op::LayerNorm { .. }
            | Op::Reduce { .. }
            | Op::ArgMax { .. }
            | Op::ResizeLinear { .. }
            | Op::Select { .. } => Self::Vector,
        }
    }
}

impl Work {
    /// The address space of the external memory it reads or writes, if it is one.
    #[must_use]
    pub fn ddr_space(&self) -> Option<u8> {
        match self {
            Self::Transfer(transfer) => Some(transfer.ddr_space),
            Self::Expand(expand) => Some(expand.ddr_space),
            Self::Lookup(lookup) => match lookup.table.space {
                Space::Ddr(space) => Some(space),
                Space::Cache | Space::EwpCache => None,
            },
            Self::PackedLookup(lookup) => (lookup.spaces == 1).then_some(lookup.ddr_space),
            Self::Matrix(_) | Self::Pool(_) | Self::Vector(_) => None,
        }
    }

    /// Its kind; `descriptors` are the program's.
    #[must_use]
    pub fn kind(&self, descriptors: &[Descriptor]) -> WorkKind {
        match self {
            Self::Transfer(_) => WorkKind::Transfer,
            Self::Lookup(_) => WorkKind::Lookup,
            Self::Expand(_) => WorkKind::Expand,
            Self::PackedLookup(_) => WorkKind::PackedLookup,
            Self::Matrix(_) => WorkKind::Matrix,
            Self::Pool(_) => WorkKind::Pool,
            Self::Vector(vector) => match descriptors.get(vector.descriptor.index()) {
                Some(Descriptor::Vector(op)) if op.only_moves() => WorkKind::Move,
                _ => WorkKind::Vector,
            },
        }
    }
}

impl VectorOp {
    /// Whether every element of the result is one of the operand, or all are the same.
    #[must_use]
    pub fn only_moves(&self) -> bool {
        matches!(self, Self::Move { rescale: None, .. } | Self::Gather { .. } | Self::Fill { .. })
    }
}

/// Cycles an instruction takes beside those of its streams ([`crate::timing::Streams`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartUp {
    /// From issue to the first access.
    pub start: u64,
    /// From the last of its work to its result.
    pub latency: u64,
}

/// Which law says how long an instruction takes.
#[derive(Clone, Copy, Debug)]
pub enum Law {
    /// That of a DMA line: page runs on channels ([`crate::timing::page_runs`]).
    Transfer,
    /// That of the array: tiles of K blocks ([`crate::timing::matrix_slots`]).
    Array,
    /// That of streams of words ([`crate::timing::streams`]), with this start-up; `None`: the machine has no such unit.
    Streams(fn(&Machine) -> Option<StartUp>),
}

/// Everything that is said of a unit.
#[derive(Clone, Copy, Debug)]
pub struct UnitSpec {
    /// The unit.
    pub unit: Unit,
    /// Name in files and programs.
    pub name: &'static str,
    /// Short name for people.
    pub short: &'static str,
    /// The unit.
    pub title: &'static str,
    /// The work its queue takes. Where several units of a machine take the same, the last of them in the table gets it.
    pub work: &'static [WorkKind],
    /// How long that takes.
    pub law: Law,
    /// Its color in reports, on light and dark pages.
    pub color: [&'static str; 2],
}

/// What either DMA line does.
const DMA_WORK: &[WorkKind] = &[WorkKind::Transfer, WorkKind::Lookup, WorkKind::Expand, WorkKind::PackedLookup];

/// All units, in the order of [`Unit::index`]; of those that compute, the earlier is served first where two meet at a bank.
pub const UNITS: [UnitSpec; Unit::COUNT] = [
    UnitSpec {
        unit: Unit::Dtl0,
        name: "dtl0",
        short: "DTL0",
        title: "DMA line 0",
        work: DMA_WORK,
        law: Law::Transfer,
        color: ["#8059c9", "#9d7be0"],
    },
    UnitSpec {
        unit: Unit::Dtl1,
        name: "dtl1",
        short: "DTL1",
        title: "DMA line 1",
        work: DMA_WORK,
        law: Law::Transfer,
        color: ["#1a9aa8", "#35b5c3"],
    },
    UnitSpec {
        unit: Unit::Me,
        name: "me",
        short: "ME",
        title: "matrix engine",
        work: &[WorkKind::Matrix],
        law: Law::Array,
        color: ["#2f6fd6", "#5b93ee"],
    },
    UnitSpec {
        unit: Unit::Ewp,
        name: "ewp",
        short: "EWP",
        title: "elementwise unit",
        work: &[WorkKind::Vector, WorkKind::Move],
        law: Law::Streams(|machine| Some(StartUp { start: machine.ewp.start, latency: machine.ewp.latency })),
        color: ["#d9822b", "#e79b4c"],
    },
    UnitSpec {
        unit: Unit::Pdp,
        name: "pdp",
        short: "PDP",
        title: "pooling and depthwise unit",
        work: &[WorkKind::Pool],
        law: Law::Streams(|machine| Some(StartUp { start: machine.pdp.start, latency: machine.pdp.latency })),
        color: ["#2e9e6b", "#48b985"],
    },
];

impl Unit {
    /// Number of units.
    pub const COUNT: usize = 5;
    /// All units, in the order of [`Unit::index`].
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::Dtl0; Self::COUNT];
        let mut index = 0;
        while index < Self::COUNT {
            all[index] = UNITS[index].unit;
            index += 1;
        }
        all
    };

    /// Position in [`Unit::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Everything that is said of it.
    #[must_use]
    pub fn spec(self) -> &'static UnitSpec {
        const ALL: &[UnitSpec; Unit::COUNT] = &UNITS;
        &ALL[self.index()]
    }

    /// Name in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Whether it moves data between external memory and a cache.
    #[must_use]
    pub fn is_dma(self) -> bool {
        matches!(self.spec().law, Law::Transfer)
    }

    /// Whether a machine has it, and its queue takes such work.
    #[must_use]
    pub fn executes(self, kind: WorkKind, machine: &Machine) -> bool {
        let present = !matches!(self.spec().law, Law::Streams(start_up) if start_up(machine).is_none());
        present && self.spec().work.contains(&kind)
    }

    /// The unit of a machine that executes such work; of the DMA lines, which do the same, the first.
    #[must_use]
    pub fn executing(kind: WorkKind, machine: &Machine) -> Self {
        let able = |unit: &Self| unit.executes(kind, machine);
        let computing = Self::ALL.into_iter().rfind(|unit| !unit.is_dma() && able(unit));
        computing.or_else(|| Self::ALL.into_iter().find(able)).unwrap_or(Self::ALL[0])
    }

    /// The unit that executes some work of a program; of the DMA lines, which do the same, `line`.
    #[must_use]
    pub fn of(work: &Work, descriptors: &[Descriptor], machine: &Machine, line: Self) -> Self {
        let unit = Self::executing(work.kind(descriptors), machine);
        if unit.is_dma() { line } else { unit }
    }

    /// The DMA lines.
    pub fn lines() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|unit| unit.is_dma())
    }

    /// The units that compute.
    pub fn computing() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|unit| !unit.is_dma())
    }

    /// The order of reports and charts: the units that compute, then the DMA lines.
    pub fn report_order() -> impl Iterator<Item = Self> {
        Self::computing().chain(Self::lines())
    }

    /// Start-up of an instruction of a unit of the machine whose work is streams of words; `None` for other units.
    #[must_use]
    pub fn start_up(self, machine: &Machine) -> Option<StartUp> {
        match self.spec().law {
            Law::Streams(start_up) => start_up(machine),
            Law::Transfer | Law::Array => None,
        }
    }

    /// The units of a machine whose work is streams of words.
    pub fn streaming(machine: &Machine) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|unit| unit.start_up(machine).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_stands_at_its_place_and_serializes_as_its_name() {
        for (index, spec) in UNITS.iter().enumerate() {
            assert_eq!((spec.unit.index(), Unit::ALL[index], spec.unit.spec().name), (index, spec.unit, spec.name));
            assert_eq!(serde_json::to_value(spec.unit).expect("a word"), spec.name);
        }
    }

    #[test]
    fn every_kind_of_work_has_a_computing_unit_or_all_lines() {
        let machine = Machine::preset("128x128_asic").expect("known");
        for kind in WorkKind::ALL {
            let able: Vec<Unit> = Unit::ALL.into_iter().filter(|unit| unit.executes(kind, &machine)).collect();
            let chosen = Unit::executing(kind, &machine);
            assert!(able.contains(&chosen), "{kind:?}");
            assert!(!able.iter().any(|unit| unit.is_dma()) || able == Unit::lines().collect::<Vec<_>>(), "{kind:?}");
        }
        assert_eq!(Unit::report_order().count(), Unit::COUNT);
    }
}
