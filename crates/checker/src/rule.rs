//! The rules of programs, one variant each, and their violations.

use std::fmt::Display;

/// A rule every program obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Rule {
    // Each instruction by itself.
    /// The unit can execute it.
    #[error("a unit executes its own kind of instruction")]
    Unit,
    /// The descriptor exists and is of the instruction's kind.
    #[error("the descriptor is one of the instruction's kind")]
    DescriptorKind,
    /// The layer exists.
    #[error("the layer exists")]
    Layer,
    /// It does something.
    #[error("an instruction does something")]
    Empty,
    /// Bytes lie inside their memory.
    #[error("bytes lie inside their memory")]
    Memory,
    /// The unit has a port to the operand's memory.
    #[error("an operand lies in a memory its unit has a port to")]
    MemoryPort,
    /// A view does not contradict itself.
    #[error("a view is made of words, whole images, and pixels that hold their channels")]
    View,
    /// Only rows of the tensor are stored.
    #[error("a view stores rows of its tensor, no others")]
    StoredRows,
    /// Rows that are read or written are stored.
    #[error("a row that is read or written is stored")]
    RowPresent,
    /// Rows, pixels and columns worked on are those of the result.
    #[error("an instruction works on rows, pixels and columns of its result")]
    Extent,
    /// A tile fits the array.
    #[error("a tile fits the array")]
    TileSize,
    /// A window has taps and steps.
    #[error("a window has taps and steps, and fits its memory")]
    Window,
    /// Elements are of types the unit computes with.
    #[error("elements are of types the unit computes with")]
    ElementTypes,
    /// Loops are even, not empty, and stay in their axis.
    #[error("loops are even, not empty, and stay in their axis")]
    Loops,
    /// Fields nothing reads are zero.
    #[error("a field that nothing reads is zero")]
    Unused,
    // Order.
    /// Tokens waited for have been deposited by then.
    #[error("tokens waited for are deposited by earlier instructions")]
    WaitAhead,
    /// One wait per unit.
    #[error("an instruction waits once for a unit")]
    WaitTwice,
    /// Whoever reads knows the writer has finished.
    #[error("what is read was written by instructions known to have finished")]
    ReadOrder,
    /// Whoever overwrites knows readers and writer have finished.
    #[error("what is overwritten is no longer read or written by others")]
    WriteOrder,
    /// Nothing is written over what the same instruction still reads.
    #[error("an instruction writes over its operand element by element, in place, or not at all")]
    InPlace,
    // Values.
    /// Bytes read were written.
    #[error("bytes that are read were written")]
    Undefined,
    /// Bytes read are the elements the layer reads.
    #[error("bytes that are read are the elements the layer reads")]
    Value,
    /// Parameters come from constants.
    #[error("parameters are constants")]
    NotConstant,
    /// Weights are the graph's.
    #[error("weights are the graph's")]
    Weights,
    /// Channel parameters are the graph's.
    #[error("bias, multiplier and shift are the graph's")]
    ChannelParameters,
    /// Tables, slopes and norms are the graph's.
    #[error("tables, slopes, gamma and beta are the graph's")]
    Parameters,
    /// A byte of the constants stands for one element.
    #[error("a byte of the constants stands for one element of one constant")]
    ConstantPlace,
    /// Parts that devices exchange lie alike on all of them, are stored once and loaded once they are there.
    #[error("parts of an exchange lie alike on all devices, and are stored once")]
    Exchange,
    /// States have a place of their own, of which a past is loaded and an output stored.
    #[error("states are the graph's and apart, their past is only loaded, their output behind it")]
    State,
    /// Constants are never overwritten.
    #[error("constants are never overwritten")]
    ConstantsKept,
    // What is computed.
    /// The instruction's kind computes the layer's operator.
    #[error("the instruction's operator is the layer's")]
    Operator,
    /// The descriptor repeats the layer.
    #[error("the descriptor repeats what the layer says")]
    Descriptor,
    /// As many operands as the operator has.
    #[error("an instruction has the operands of its operator")]
    Operands,
    // Which elements of which tensor.
    /// A view shows elements of its tensor in their type.
    #[error("a view shows elements of its tensor, in their type")]
    Tensor,
    /// Pixels are the tensor's pixels.
    #[error("pixels of a view are pixels of its tensor")]
    Pixels,
    /// All channels of a pixel are there.
    #[error("a view shows all channels of its pixels")]
    AllChannels,
    /// Operand and result show the same channels.
    #[error("operand and result show the same channels")]
    Channels,
    /// Operand and result show the same pixels, or what broadcasting makes of them.
    #[error("operand and result show the same pixels, or those that broadcasting asks for")]
    SamePixels,
    /// Images have their true geometry.
    #[error("rows, lines and columns are those of the image")]
    Geometry,
    /// Stretches of lines lie under their window.
    #[error("a stretch of a line lies under its window")]
    Stretch,
    /// A tile is of one matrix of a batch.
    #[error("a tile is of one matrix of a batch")]
    BatchEntry,
    /// A stretch of a reduction is a box of its operand.
    #[error("a stretch of a reduction is a box of its operand")]
    Stretches,
    /// Reductions go on where they stopped, to the last term.
    #[error("a reduction goes on with the terms before, to the last")]
    Terms,
    /// Indices and rows of a lookup belong together.
    #[error("an index is looked up into its own pixel, from the whole table")]
    Lookup,
    // Ports and header.
    /// There are as many ports as inputs and outputs.
    #[error("ports are the graph's inputs and outputs")]
    PortCount,
    /// A port's name is the tensor's.
    #[error("a port has its tensor's name")]
    PortName,
    /// A port's shape is the tensor's.
    #[error("a port has its tensor's shape")]
    PortShape,
    /// A port's type is the tensor's.
    #[error("a port has its tensor's element type")]
    PortType,
    /// A port's scale and zero point are the tensor's.
    #[error("a port has its tensor's scale and zero point")]
    PortQuant,
    /// A port's name, shape and permutation in the model are the tensor's.
    #[error("a port has its tensor's name, shape and axes in the model")]
    PortSource,
    /// A port's view is the whole tensor.
    #[error("a port lies in DDR as its shape says")]
    PortView,
    /// A port's place overlaps no other input or constant.
    #[error("inputs lie beside each other and beside constants")]
    PortOverlap,
    /// A field of the header repeats the graph.
    #[error("the header repeats what the graph says")]
    Header,
    /// A layer in the header repeats the graph's.
    #[error("layers of the header are the graph's")]
    LayerSummary,
    /// Figures of memory follow from the program.
    #[error("figures of memory follow from the program")]
    MemoryFigures,
    /// Numbers are of a size that machines compute with.
    #[error("numbers are of a size that can be computed with")]
    Limits,
    /// The DDR spaces are the machine's.
    #[error("DDR address spaces are the machine's, and large enough for the program")]
    Ddr,
    /// Layers in parts compute the graph.
    #[error("layers in parts compute the graph")]
    Parts,
    /// Runs that overlap repeat themselves.
    #[error("every iteration of a stream repeats the one before")]
    Stream,
}

/// Which operand of an instruction, or which port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An input by number.
    Input(usize),
    /// The result.
    Output,
    /// The right operand of a product.
    Weights,
    /// Parameters in the EWP cache.
    Parameters,
    /// A table: fused, or that of a lookup.
    Table,
    /// Indices of a lookup.
    Indices,
    /// A port, by name.
    Port(String),
}

impl Display for Operand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input(number) => write!(f, "input {number}"),
            Self::Output => write!(f, "output"),
            Self::Weights => write!(f, "weights"),
            Self::Parameters => write!(f, "parameters"),
            Self::Table => write!(f, "table"),
            Self::Indices => write!(f, "indices"),
            Self::Port(name) => write!(f, "port \"{name}\""),
        }
    }
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// Position of the instruction in the program; `None` for the program as a whole.
    pub instruction: Option<usize>,
    /// Which of its operands, where it is one.
    pub operand: Option<Operand>,
    /// The rule.
    pub rule: Rule,
    /// The value the rule requires.
    pub expected: String,
    /// The value in the program.
    pub found: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(at) = self.instruction {
            write!(f, "instruction {at}: ")?;
        }
        if let Some(operand) = &self.operand {
            write!(f, "{operand}: ")?;
        }
        write!(f, "{}: expected {}, found {}", self.rule, self.expected, self.found)
    }
}

/// A broken rule, before it is known by which instruction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnlocatedViolation {
    pub(crate) rule: Rule,
    operand: Option<Operand>,
    expected: String,
    found: String,
}

/// Boxed: a walk makes millions of results, and next to none of them is an error.
pub(crate) type Fault = Box<UnlocatedViolation>;

impl UnlocatedViolation {
    /// The violation by an instruction, or by the program.
    pub(crate) fn at_instruction(self, instruction: Option<usize>) -> Violation {
        let Self { rule, operand, expected, found } = self;
        Violation { instruction, operand, rule, expected, found }
    }

    /// The same, of an operand unless one is named already.
    pub(crate) fn of_operand(mut self: Box<Self>, operand: Operand) -> Box<Self> {
        self.operand.get_or_insert(operand);
        self
    }
}

impl Rule {
    /// All rules.
    pub const ALL: &[Self] = &[
        Self::Unit,
        Self::DescriptorKind,
        Self::Layer,
        Self::Empty,
        Self::Memory,
        Self::MemoryPort,
        Self::View,
        Self::StoredRows,
        Self::RowPresent,
        Self::Extent,
        Self::TileSize,
        Self::Window,
        Self::ElementTypes,
        Self::Loops,
        Self::Unused,
        Self::WaitAhead,
        Self::WaitTwice,
        Self::ReadOrder,
        Self::WriteOrder,
        Self::InPlace,
        Self::Undefined,
        Self::Value,
        Self::NotConstant,
        Self::Weights,
        Self::ChannelParameters,
        Self::Parameters,
        Self::ConstantPlace,
        Self::Exchange,
        Self::State,
        Self::ConstantsKept,
        Self::Operator,
        Self::Descriptor,
        Self::Operands,
        Self::Tensor,
        Self::Pixels,
        Self::AllChannels,
        Self::Channels,
        Self::SamePixels,
        Self::Geometry,
        Self::Stretch,
        Self::BatchEntry,
        Self::Stretches,
        Self::Terms,
        Self::Lookup,
        Self::PortCount,
        Self::PortName,
        Self::PortShape,
        Self::PortType,
        Self::PortQuant,
        Self::PortSource,
        Self::PortView,
        Self::PortOverlap,
        Self::Header,
        Self::LayerSummary,
        Self::MemoryFigures,
        Self::Limits,
        Self::Ddr,
        Self::Parts,
        Self::Stream,
    ];

    pub(crate) fn violation(self, expected: impl Display, found: impl Display) -> Fault {
        let text = |value: &dyn Display| truncated(value.to_string());
        Box::new(UnlocatedViolation { rule: self, operand: None, expected: text(&expected), found: text(&found) })
    }

    /// Nothing, where two are equal; else the rule, broken.
    pub(crate) fn require_equal<T: PartialEq + std::fmt::Debug>(
        self,
        what: impl Display,
        expected: &T,
        found: &T,
    ) -> Result<(), Fault> {
        let same = expected == found;
        self.require(same, format_args!("{what} {expected:?}"), format_args!("{found:?}"))
    }

    /// Nothing, where something holds; else the rule, broken.
    pub(crate) fn require(self, condition: bool, expected: impl Display, found: impl Display) -> Result<(), Fault> {
        if condition { Ok(()) } else { Err(self.violation(expected, found)) }
    }
}

/// Text, cut where it is long.
fn truncated(text: String) -> String {
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
