//! Which number of a program cannot be computed with.

use std::fmt;

use super::{FunctionError, MachineError};

/// A part of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A layer by its name.
    Layer(String),
    /// An allocation by its name.
    Allocation(String),
    /// A port by its name.
    Port(String),
    /// A descriptor by its number.
    Descriptor(usize),
    /// An instruction by its number.
    Instruction(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(name) => write!(f, "layer {name:?}"),
            Self::Allocation(name) => write!(f, "allocation {name:?}"),
            Self::Port(name) => write!(f, "port {name:?}"),
            Self::Descriptor(number) => write!(f, "descriptor {number}"),
            Self::Instruction(number) => write!(f, "instruction {number}"),
        }
    }
}

/// A field that is too large or leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum LimitError {
    /// Something is wrong in a part of the program.
    #[error("{place}: {source}")]
    At { place: Place, source: Box<LimitError> },
    /// The machine cannot be.
    #[error("its machine: {0}")]
    Machine(MachineError),
    /// A field above its limit.
    #[error("{field} is {value}, at most {limit} is possible")]
    TooLarge { field: String, value: u128, limit: u64 },
    /// A field that must not be 0.
    #[error("{field} is 0, at least 1 is needed")]
    Zero { field: String },
    /// A layer there is not.
    #[error("layer is {layer}, there are {layers}")]
    Layer { layer: usize, layers: usize },
    /// A descriptor there is not.
    #[error("descriptor is {descriptor}, there are {descriptors}")]
    Descriptor { descriptor: usize, descriptors: usize },
    /// A descriptor for other instructions.
    #[error("its descriptor {descriptor} is not one of {kind} instructions")]
    DescriptorKind { descriptor: usize, kind: &'static str },
    /// Rows of weights that overlap.
    #[error("weights.row_bytes is {row_bytes}, less than its {columns} columns")]
    WeightRow { row_bytes: u32, columns: u32 },
    /// Operands that are missing.
    #[error("inputs: {given} given, its operator takes {operands}")]
    Operands { given: usize, operands: usize },
    /// An index beyond its axis.
    #[error("indices: {index} is beyond the extent {extent}")]
    Index { index: u32, extent: u32 },
    /// An axis there is not.
    #[error("axes: {axis} is beyond a shape of {sizes} sizes")]
    Axis { axis: u32, sizes: usize },
    /// Loops without a stride each.
    #[error("{name}_strides: {strides} for {loops} loops")]
    Strides { name: &'static str, strides: usize, loops: usize },
    /// A shift out of range.
    #[error("{field} is {shift}, {least} to {most} are possible")]
    Shift { field: &'static str, shift: i32, least: i32, most: i32 },
    /// A clamp that holds nothing.
    #[error("lo {lo} exceeds hi {hi}")]
    Clamp { lo: i32, hi: i32 },
    /// A stream whose body cannot be repeated.
    #[error("instruction {entry} of the stream's body {reason}")]
    Stream { entry: usize, reason: &'static str },
    /// A state whose ports do not lie as one.
    #[error("state {state}: its output does not lie behind the rows of its input, or these have another length")]
    State { state: usize },
    /// An exchange whose ports are not parts of one form at one place.
    #[error("exchange {exchange}: it does not name an output, and inputs of all devices at the same place")]
    Exchange { exchange: usize },
    /// A function that cannot be computed.
    #[error(transparent)]
    Function(#[from] FunctionError),
}

impl LimitError {
    /// The same, with where it is.
    pub(crate) fn at(self, place: Place) -> Self {
        Self::At { place, source: Box::new(self) }
    }
}
