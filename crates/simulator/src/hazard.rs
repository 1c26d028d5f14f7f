//! Broken rules of the machine.

use tpuflow_ir::{DType, Unit};

/// The rule a program broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Reads what an earlier, unfinished instruction writes.
    ReadBeforeWrite(u32),
    /// Overwrites what an earlier, unfinished instruction of another unit reads.
    WriteBeforeRead(u32),
    /// Overwrites what an earlier, unfinished instruction of another unit writes.
    WriteBeforeWrite(u32),
    /// Reads bytes nobody has written.
    NeverWritten,
    /// Touches bytes outside of the memory.
    OutOfRange,
    /// Touches a row its view does not hold.
    RowNotHeld(u32),
    /// A compute unit's operand lies in a memory it has no port to, or a word starts off a word border.
    Placement(&'static str),
    /// Names a descriptor of another kind, or none.
    Descriptor,
    /// Is queued at a unit that cannot do this kind of work.
    Unit,
    /// Takes a row the table does not have.
    Lookup(i64),
    /// Waits for tokens that earlier instructions do not deposit.
    Wait {
        /// Whose tokens.
        unit: Unit,
        /// How many it waits for.
        count: u32,
        /// How many are deposited before it.
        deposited: u32,
    },
    /// Names a unit twice among its waits.
    WaitsTwice(Unit),
    /// Has a view that stores rows behind its last.
    StoredRows {
        /// One past the last row stored.
        end: u64,
        /// Rows of the view.
        rows: u32,
    },
    /// Takes weights of another type than int16 in planes of bytes.
    Planes(DType),
    /// Moves or gathers an element outside of its view.
    Element {
        /// Row-major number.
        element: i64,
        /// Elements of the view.
        elements: i64,
    },
    /// Writes where constants of the program lie.
    Constants,
    /// Moves bytes of a state other than from its past or to and from its output.
    State,
    /// Moves bytes of a device there is none of, or other than to the cache.
    Rank,
    /// Sizes that contradict each other or the machine.
    Shape(String),
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ReadBeforeWrite(other) => write!(f, "reads what instruction {other} has not finished writing"),
            Self::WriteBeforeRead(other) => write!(f, "overwrites what instruction {other} has not finished reading"),
            Self::WriteBeforeWrite(other) => write!(f, "overwrites what instruction {other} has not finished writing"),
            Self::NeverWritten => write!(f, "reads bytes nobody has written"),
            Self::OutOfRange => write!(f, "leaves the memory"),
            Self::RowNotHeld(row) => write!(f, "touches row {row}, which its view does not hold"),
            Self::Placement(what) => write!(f, "{what}"),
            Self::Descriptor => write!(f, "names a descriptor of the wrong kind"),
            Self::Unit => write!(f, "stands in the queue of a unit that cannot execute it"),
            Self::Lookup(index) => write!(f, "looks up row {index}, which the table does not have"),
            Self::Wait { unit, count, deposited } => {
                write!(f, "waits for {count} tokens of {}, of which {deposited} are deposited before it", unit.name())
            }
            Self::WaitsTwice(unit) => write!(f, "waits twice for {}", unit.name()),
            Self::StoredRows { end, rows } => write!(f, "has a view that stores rows up to {end} of {rows}"),
            Self::Planes(dtype) => write!(f, "takes weights of {} in planes, which only int16 has", dtype.name()),
            Self::Element { element, elements } => write!(f, "touches element {element} of a view of {elements}"),
            Self::Constants => write!(f, "overwrites constants of the program"),
            Self::State => write!(f, "moves bytes of a state other than from its past, or to and from its output"),
            Self::Rank => write!(f, "moves bytes of another device other than to the cache, or of none there is"),
            Self::Shape(what) => write!(f, "{what}"),
        }
    }
}

/// Where a rule was broken, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hazard {
    /// Position in the program.
    pub instruction: u32,
    /// Executing unit.
    pub unit: Unit,
    /// Name of the layer.
    pub layer: String,
    /// Memory and first byte address concerned.
    pub place: String,
    /// The broken rule.
    pub rule: Rule,
}

impl std::fmt::Display for Hazard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { instruction, unit, layer, place, rule } = self;
        write!(f, "instruction {instruction} ({}, layer \"{layer}\") {rule}, at {place}", unit.name())
    }
}
