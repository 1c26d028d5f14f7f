//! Why an operator does not fit its operands.

use super::{FunctionError, TableError};
use crate::{PadMode, Real, TableEntry, Window};

/// Errors of an operator's operands or parameters; the layer's name is said elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum ShapeError {
    /// An operand of another element type.
    #[error("\"{tensor}\" is {found}, expected {expected}")]
    ElementType { tensor: String, found: &'static str, expected: &'static str },
    /// A parameter that no float32 holds.
    #[error("{what} {value:?} is no finite float32")]
    NotSingle { what: &'static str, value: Real },
    /// Lists of a requantization of different lengths.
    #[error("{multipliers} multipliers and {shifts} shifts for {channels} channels")]
    Requantization { multipliers: usize, shifts: usize, channels: usize },
    /// A multiplier out of range.
    #[error("multiplier {0} is outside 0..=32767")]
    Multiplier(i32),
    /// A shift out of range.
    #[error("shift {0} is outside -15..=47")]
    Shift(i8),
    /// A clamp that holds nothing.
    #[error("clamp {lo}..={hi} is empty")]
    EmptyClamp { lo: i32, hi: i32 },
    /// A table that is computed, or of another type.
    #[error("table \"{0}\" must be a constant of int32")]
    TableConstant(String),
    /// Words that are no table.
    #[error("table \"{name}\": {source}")]
    Table { name: String, source: TableError },
    /// Statistics of a softmax of other rows, of none where some are needed, or of floats.
    #[error("statistics of a softmax must be two int64 for every row of codes")]
    Statistics,
    /// Sums as they are of floats, or with a bias.
    #[error("a partial product must be of codes and without bias")]
    PartialProduct,
    /// A convolution of what is no image.
    #[error("input {input:?} and weights {weights:?} must have rank 4")]
    ConvolutionRank { input: Vec<usize>, weights: Vec<usize> },
    /// Channels that groups do not divide.
    #[error("weights {weights:?} in {groups} groups do not fit input {input:?}")]
    Groups { weights: Vec<usize>, groups: usize, input: Vec<usize> },
    /// A window of another size than its weights.
    #[error("window {window:?} does not fit weights {weights:?}")]
    Kernel { window: Window, weights: Vec<usize> },
    /// A window that finds no place.
    #[error("window {window:?} exceeds input {input:?}")]
    WindowExceeds { window: Window, input: Vec<usize> },
    /// A window with a size of 0.
    #[error("window {0:?}")]
    EmptyWindow(Window),
    /// Cells beyond the operand that are not padding.
    #[error("ceil-mode cells exceed the padding")]
    CeilMode,
    /// Products of what are no matrices.
    #[error("operands {a:?} and {b:?} must have rank 2 or more")]
    MatrixRank { a: Vec<usize>, b: Vec<usize> },
    /// Matrices that cannot be multiplied.
    #[error("operands {a:?} and {b:?} do not fit")]
    Matrices { a: Vec<usize>, b: Vec<usize> },
    /// Divisors of an average out of order.
    #[error("divisors must be ascending by area")]
    Divisors,
    /// A comparison with a finish.
    #[error("a comparison of floats has nothing to finish")]
    FinishedComparison,
    /// Factors of operands out of range.
    #[error("operand multipliers {ka} and {kb} are out of range")]
    OperandMultipliers { ka: i32, kb: i32 },
    /// Shapes that do not broadcast.
    #[error("{a:?} and {b:?} do not fit")]
    Broadcast { a: Vec<usize>, b: Vec<usize> },
    /// A function that is not stated.
    #[error("the function is missing")]
    NoFunction,
    /// A function that cannot be computed.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// Lists of slopes of different lengths.
    #[error("{0} shifts for the slopes")]
    SlopeShifts(usize),
    /// A slope out of range.
    #[error("slope multiplier is outside -32767..=32767")]
    SlopeMultiplier,
    /// Slopes that are not one for each channel.
    #[error("{slopes} slopes for {channels} channels")]
    Slopes { slopes: usize, channels: usize },
    /// A mask of another type or shape.
    #[error("mask {mask:?} must be int8 and broadcast to {input:?}")]
    Mask { mask: Vec<usize>, input: Vec<usize> },
    /// Parameters of a normalisation that are not one for each channel.
    #[error("gamma {gamma:?} and beta {beta:?} ({dtype}) must hold {elements} elements")]
    Normalization { gamma: Vec<usize>, beta: Vec<usize>, dtype: &'static str, elements: usize },
    /// An epsilon below 0.
    #[error("epsilon {0:?} is negative")]
    NegativeEpsilon(Real),
    /// Axes of a reduction that the operand does not have.
    #[error("axes {axes:?} do not fit {shape:?}")]
    Axes { axes: Vec<u32>, shape: Vec<usize> },
    /// A concatenation of nothing.
    #[error("no operands")]
    NoOperands,
    /// A concatenation along an axis there is not.
    #[error("axis {axis} or {requantizations} requantisations do not fit")]
    ConcatenationAxis { axis: usize, requantizations: usize },
    /// Operands of a concatenation that differ in another axis.
    #[error("{first:?} and {other:?} do not fit along axis {axis}")]
    Concatenation { first: Vec<usize>, other: Vec<usize>, axis: usize },
    /// Operands of different types.
    #[error("operands are {one} and {other}")]
    MixedTypes { one: &'static str, other: &'static str },
    /// Paddings that are not two for each axis.
    #[error("{paddings} paddings for shape {shape:?}")]
    Paddings { paddings: usize, shape: Vec<usize> },
    /// A fill of another kind than the elements.
    #[error("{mode:?} does not fill {dtype}")]
    Fill { mode: PadMode, dtype: &'static str },
    /// A reflection of more than there is.
    #[error("reflection exceeds shape {0:?}")]
    Reflection(Vec<usize>),
    /// Loops of a view without a stride, or of no steps.
    #[error("{extents} extents and {strides} strides")]
    Loops { extents: usize, strides: usize },
    /// A view that leaves its operand.
    #[error("elements {first}..={last} of {shape:?}")]
    View { first: i64, last: i64, shape: Vec<usize> },
    /// An axis there is not.
    #[error("axis {axis} of {shape:?}")]
    Axis { axis: u32, shape: Vec<usize> },
    /// An index beyond its axis.
    #[error("an index exceeds axis {axis} of {shape:?}")]
    Index { axis: u32, shape: Vec<usize> },
    /// An embedding of other operands.
    #[error("table must be a constant matrix and indices int32")]
    Embedding,
    /// An entry that a table does not have.
    #[error(
        "a table of {shape:?} has no entries of {entry:?}: those of a packed one are columns or rows of whole blocks, of another rows"
    )]
    Entry { entry: TableEntry, shape: Vec<usize> },
    /// The tensor that is no image.
    #[error("input {0:?} must have rank 4")]
    ImageRank(Vec<usize>),
    /// A tap outside its operand, or a share that is none.
    #[error("a tap exceeds input {0:?}")]
    Taps(Vec<usize>),
    /// A stride of 0, or one over nothing.
    #[error("stride {stride:?} of input {input:?}")]
    Stride { stride: [u32; 2], input: Vec<usize> },
    /// A selection among different types.
    #[error("condition must be int8 and both choices of one type")]
    SelectionTypes,
    /// A selection among shapes that do not broadcast.
    #[error("operands do not broadcast")]
    SelectionShapes,
    /// A bias of another size or type.
    #[error("bias {shape:?} {found} must be a constant of {channels} {expected}")]
    Bias { shape: Vec<usize>, found: &'static str, channels: usize, expected: &'static str },
    /// A first shift out of range.
    #[error("first shift {0} exceeds 47")]
    FirstShift(u8),
    /// A first shift of sums that need none.
    #[error("a first shift is for sums of 16-bit operands")]
    NarrowFirstShift,
    /// A scale or divisor that is not positive.
    #[error("scale {0:?} is not positive")]
    Scale(Real),
}
