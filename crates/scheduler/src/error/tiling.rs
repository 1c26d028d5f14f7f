//! Why a layer cannot be computed in parts.

/// Reasons why a layer cannot be tiled so, to be read behind its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum TilingError {
    /// Two tilings of one layer.
    #[error("is to be cut twice")]
    Twice,
    /// A name of no layer.
    #[error("is to be sliced but does not exist")]
    Unknown,
    /// An axis that the result does not have.
    #[error("gives {shape:?}, which has no {axis}")]
    NoAxis { shape: Vec<usize>, axis: &'static str },
    /// Boxes for a run with several results.
    #[error("is not the only one whose result is read elsewhere")]
    SeveralResults,
    /// A result without such an axis.
    #[error("has no {what} to cut")]
    Nothing { what: &'static str },
    /// A result that is too small.
    #[error("has {extent} {what}, too few for {parts} parts")]
    TooFew { extent: usize, what: &'static str, parts: usize },
    /// Parts that concatenations cannot join.
    #[error("has parts that no straight cut through all of the tensor tells apart")]
    NoStraightCut,
    /// A part beyond the result.
    #[error("has no part {part:?} in {shape:?}")]
    Outside { part: Vec<(usize, usize)>, shape: Vec<usize> },
    /// Parts that overlap.
    #[error("has elements in two parts, {one:?} and {other:?}")]
    Overlap { one: Vec<(usize, usize)>, other: Vec<(usize, usize)> },
    /// Parts that leave something out.
    #[error("has {0} elements in no part")]
    Missing(usize),
    /// An operand without axes.
    #[error("is a scalar")]
    Scalar,
    /// Padding that depends on all of the operand.
    #[error("mirrors or repeats its edges")]
    Mirrored,
    /// A part of padding.
    #[error("would be nothing but padding in one part")]
    OnlyPadding,
    /// A part of windows over padding.
    #[error("would see nothing but padding in one part")]
    SeesOnlyPadding,
    /// Another operator than a convolution.
    #[error("is no convolution")]
    NoConvolution,
    /// Another operator than a product.
    #[error("is no product")]
    NoProduct,
    /// A product that is no attention, or whose sums are more than scaled.
    #[error("is no product of a softmax that can be computed by blocks of keys")]
    NoAttention,
    /// A part of several matrices by blocks of keys.
    #[error("has several matrices in a part, which blocks of keys do not take together")]
    SeveralMatrices,
    /// An operand of another rank.
    #[error("reads no image")]
    ReadsNoImage,
    /// A result of another rank.
    #[error("gives no image")]
    GivesNoImage,
    /// A window that finds no place.
    #[error("has a window larger than its operand")]
    Window,
    /// A part with some of the channels an operator needs together.
    #[error("needs all channels of a pixel")]
    AllChannels,
    /// A result that is declared in other axes than it is computed in.
    #[error("keeps its result in another shape, {0:?}")]
    Reshaped(Vec<usize>),
    /// A movement that mixes the parts.
    #[error("moves elements across the parts")]
    Across,
}
