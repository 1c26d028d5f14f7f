//! Why layers cannot be computed in parts, or why a graph in parts does not compute the original.

use tpuflow_ir::error::GraphError;

use super::Extent;

/// A list of tilings that gives no graph, or a graph that is not proven to compute the original.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum PartsError {
    /// A tiling of layers that the graph does not have.
    #[error("layers {first} to {last} of {layers} do not exist")]
    LayerRange { first: usize, last: usize, layers: usize },
    /// Two tilings of one layer.
    #[error("layer \"{layer}\" is to be cut twice")]
    TwoTilings { layer: String },
    /// Boxes for a run of layers with several results.
    #[error("boxes of several results")]
    SeveralResults,
    /// Boxes times layers.
    #[error("{parts} parts of {layers} layers are more than {limit}")]
    PartCount { parts: usize, layers: usize, limit: usize },
    /// A grid of too many cells.
    #[error("{counts:?} are more than {limit} parts")]
    GridSize { counts: [usize; 3], limit: usize },
    /// Elements that several parts compute, each for itself.
    #[error("parts have more than {factor} times the elements of the graph")]
    ElementCount { factor: usize },
    /// Layers of the graph in parts.
    #[error("more than {limit} layers")]
    LayerCount { limit: usize },
    /// A layer that has no such parts.
    #[error("layer \"{layer}\" {reason}")]
    Layer { layer: String, reason: LayerPartsError },
    /// The graph in parts breaks an invariant of graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The graph in parts does not compute the original.
    #[error(transparent)]
    Proof(#[from] ProofError),
}

/// Why a layer has no such parts; its name is said before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum LayerPartsError {
    /// A part that is empty or lies outside the result.
    #[error("has no part {part:?}")]
    OutsideResult { part: Vec<[u32; 2]> },
    /// A result without such an axis.
    #[error("has no {axis} to cut")]
    AxisMissing { axis: &'static str },
    /// An axis with fewer positions than parts.
    #[error("has {extent} {axis}, too few for {parts} parts")]
    TooFewPositions { extent: usize, axis: &'static str, parts: usize },
    /// Parts that do not cover the result once.
    #[error("has elements in no part, or in two: {expected:?}")]
    Coverage { expected: Extent },
    /// Parts that concatenations cannot join.
    #[error("has parts that no straight cut through all of the tensor tells apart")]
    NoStraightCut,
    /// An operator without operands.
    #[error("has no operand")]
    OperandMissing,
    /// An operand that is a scalar.
    #[error("reads a scalar")]
    ScalarOperand,
    /// An operand of other than four axes.
    #[error("works on no image")]
    ImageExpected,
    /// An operand of a product with too few axes.
    #[error("multiplies no matrices")]
    MatricesExpected,
    /// A window that finds no place in its operand.
    #[error("has a window larger than its operand")]
    WindowSize,
    /// A concatenation along an axis that its operands do not have.
    #[error("joins along no axis")]
    ConcatAxis,
    /// Padding that depends on elements of the operand.
    #[error("mirrors or repeats its edges")]
    PadMode,
    /// Statistics of a softmax, which only tilings make.
    #[error("is a block of rows already")]
    Block,
    /// Blocks of keys of what is no attention.
    #[error("is no product of a softmax that blocks of keys can compute")]
    NoAttention,
    /// Blocks of keys of several matrices at a time.
    #[error("has several matrices in a part by blocks of keys")]
    SeveralMatrices,
    /// A result stored in another shape than the operator gives.
    #[error("keeps its result in another shape, {found:?}")]
    ResultShape { found: Vec<usize> },
    /// Operands that broadcast to another shape than the result's.
    #[error("gives another shape, {found:?}")]
    BroadcastShape { found: Vec<usize> },
    /// A part with some of the channels that an operator needs together.
    #[error("needs all channels of a pixel")]
    AllChannels,
    /// A part whose windows lie in padding alone.
    #[error("would see nothing but padding in one part")]
    OnlyPadding,
    /// A view of more or fewer elements than its result has.
    #[error("moves another number of elements")]
    ViewSize,
    /// A view whose loops belong to no single axis of the result.
    #[error("moves elements across the parts")]
    ViewAcrossAxes,
}

/// Why a graph in parts does not compute the original.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum ProofError {
    /// Claims for another number of tensors, or of tensors that the original does not have.
    #[error("claims of other tensors")]
    Claims,
    /// Inputs or outputs in another order, of another name or quantisation, or not whole.
    #[error("inputs or outputs differ")]
    Ports,
    /// A tensor whose shape or type is not that of the claimed box.
    #[error("\"{tensor}\" is no box of \"{original}\"")]
    Box { tensor: String, original: String },
    /// A constant claimed to be a box of a tensor that is computed.
    #[error("\"{tensor}\" is a constant of none")]
    ComputedOriginal { tensor: String },
    /// A constant with other bytes than the original's.
    #[error("constant \"{tensor}\" differs from \"{original}\"")]
    Constant { tensor: String, original: String },
    /// A layer that does not compute what is claimed of its result.
    #[error("layer \"{layer}\": {reason}")]
    Layer { layer: String, reason: LayerProofError },
}

/// Why a layer of a graph in parts does not compute the claimed box; its name is said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayerProofError {
    /// A slice with several operands.
    #[error("cuts several boxes")]
    SliceOperands,
    /// A slice of other elements than the claimed box.
    #[error("cuts another box")]
    SliceBox,
    /// A concatenation along an axis that the result does not have.
    #[error("joins along no axis")]
    ConcatAxis,
    /// A concatenation of boxes that overlap, leave a gap or differ along other axes.
    #[error("joins boxes that do not meet")]
    ConcatGap,
    /// A concatenation that ends before the claimed box, or that rescales.
    #[error("joins less")]
    ConcatEnd,
    /// An operator other than a slice or a concatenation between boxes of one tensor.
    #[error("computes a tensor from itself")]
    SameTensor,
    /// A box of a tensor that no layer of the original computes.
    #[error("makes what no layer does")]
    NoOriginal,
    /// Operands of other tensors than the original's.
    #[error("has other operands")]
    Operands,
    /// Another operator than the original's.
    #[error("computes something else: its operator differs")]
    Operator,
    /// An attribute that differs from the original's.
    #[error("computes something else: an attribute differs")]
    Attributes,
    /// Parameters by channel that are not the original's for these channels.
    #[error("computes something else: parameters of its channels differ")]
    ChannelParameters,
    /// An operand of which the operator needs another box for the claimed one.
    #[error("takes other elements")]
    Elements,
    /// Statistics or sums of other rows or keys than the layer goes on with.
    #[error("takes or leaves other statistics or sums than its blocks of keys have")]
    Block,
    /// A window of another kernel, stride or dilation.
    #[error("has another window")]
    Window,
    /// A tap over another cell than the original's.
    #[error("sees other cells")]
    Cells,
}
