//! Why a value of a layer may not fit its width.

/// Values that do not fit; the layer's name is said elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum WidthError {
    /// A zero point beyond its type.
    #[error("zero point {zero_point} of \"{tensor}\" is no {dtype} code")]
    ZeroPoint { zero_point: i32, tensor: String, dtype: &'static str },
    /// The zero point of a requantization beyond 16 bits.
    #[error("zero point {0} of a requantisation is no int16 code")]
    RequantizationZeroPoint(i32),
    /// A product of what are no matrices.
    #[error("operands are no matrices")]
    Matrices,
    /// A multiplier below 0.
    #[error("multiplier {0} is negative")]
    NegativeMultiplier(i32),
    /// A normalisation whose parameters are out of range.
    #[error("gamma must be symmetric and epsilon at least 1")]
    Normalization,
    /// An operand of a concatenation that needs a requantization.
    #[error("operand \"{operand}\" cannot become {dtype}")]
    Conversion { operand: String, dtype: &'static str },
    /// An operand that must be known.
    #[error("\"{0}\" must be a constant")]
    Constant(String),
    /// Weights that are infinite or no numbers.
    #[error("\"{0}\" holds numbers that are not finite")]
    NotFinite(String),
    /// A sum that may overflow.
    #[error("the accumulator may reach {bound}, more than {bits} bits hold")]
    Accumulator { bound: i128, bits: u32 },
    /// A bias that is added after a first rounding.
    #[error("bias {0} behind a first shift exceeds 32 bits")]
    Bias(i64),
    /// A clamp before a table beyond 16 bits.
    #[error("clamp {lo}..={hi} before a table exceeds int16")]
    TableClamp { lo: i32, hi: i32 },
    /// A result of another type.
    #[error("output \"{output}\" is {dtype}, expected int8 or int16")]
    Output { output: String, dtype: &'static str },
    /// A clamp beyond the result's type.
    #[error("clamp {lo}..={hi} exceeds {dtype} of \"{output}\"")]
    Clamp { lo: i32, hi: i32, dtype: &'static str, output: String },
}
