//! Why a graph is none.

use std::fmt;

use super::ShapeError;

/// A broken invariant of a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum GraphError {
    /// Tensors of one name.
    #[error("two tensors are named \"{0}\"")]
    TwoTensors(String),
    /// A constant with too many or too few bytes.
    #[error("constant \"{name}\" does not fill its shape {shape:?}")]
    Constant { name: String, shape: Vec<usize> },
    /// Codes of 4 bits that are not those of the constant.
    #[error("constant \"{name}\": {reason}")]
    Packed { name: String, reason: PackedError },
    /// A scale of 0, below, or no number.
    #[error("tensor \"{0}\" has a scale that is not positive")]
    Scale(String),
    /// Floats with a scale.
    #[error("tensor \"{name}\" is {dtype} and quantised")]
    QuantizedFloats { name: String, dtype: &'static str },
    /// An input there is not.
    #[error("input {0} does not exist")]
    Input(u32),
    /// An operand too early.
    #[error("layer \"{layer}\" reads tensor {tensor} before it is produced")]
    Order { layer: String, tensor: u32 },
    /// An operator that does not fit.
    #[error("layer \"{layer}\": {source}")]
    Layer { layer: String, source: LayerError },
    /// A result there is not.
    #[error("layer \"{0}\" writes a tensor that does not exist")]
    NoResult(String),
    /// A tensor of two layers.
    #[error("layer \"{layer}\" writes \"{tensor}\" a second time")]
    Twice { layer: String, tensor: String },
    /// A state whose ports do not belong together.
    #[error("state {0} is no input and output of the same rows on the same grid, as long as the other states")]
    State(usize),
    /// An exchange whose ports are not the parts of all devices.
    #[error("exchange {0} is not a part and the parts of all devices, read once they are computed")]
    Exchange(usize),
    /// An output nobody computes.
    #[error("output {0} is never produced")]
    Output(u32),
}

/// Errors of codes of 4 bits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum PackedError {
    /// No matrix.
    #[error("packed weights have two axes, not {0:?}")]
    Axes(Vec<usize>),
    /// Blocks of a size the machine does not have.
    #[error("a block of packed weights has 16, 32, 64 or 128 rows, not {0}")]
    Block(u32),
    /// Too many or too few parts.
    #[error("packed weights of {shape:?} have {wanted} bytes of {what}, not {found}")]
    Bytes { shape: Vec<usize>, what: &'static str, wanted: usize, found: usize },
    /// A zero point beyond the codes.
    #[error("zero points of packed weights are 0 to 15, not {0}")]
    ZeroPoint(u8),
    /// Zero points of floats.
    #[error("codes that are floats have no zero points")]
    FloatZeroPoints,
    /// Elements that are others.
    #[error("its elements are not those its codes stand for")]
    Elements,
}

/// Errors of a layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum LayerError {
    /// An operand there is not.
    #[error("operand {0} does not exist")]
    Operand(u32),
    /// Operands or parameters do not fit the operator.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The result is declared as another one.
    #[error("output {shape:?} {dtype} does not hold the {elements} elements computed as {computed}")]
    Result { shape: Vec<usize>, dtype: &'static str, elements: usize, computed: &'static str },
    /// More products of the model than the operator has, or none.
    #[error("{terms} products of the model in sums of {products}")]
    Terms { terms: u32, products: usize },
    /// The result is declared with other axes than the operator gives it.
    #[error("output {shape:?} is computed as {computed:?}; a Rearrange after the layer can reshape it")]
    ResultShape { shape: Vec<usize>, computed: Vec<usize> },
}

/// All broken invariants of a graph, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphErrors(pub Vec<GraphError>);

impl From<GraphError> for GraphErrors {
    fn from(error: GraphError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for GraphErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for GraphErrors {}
