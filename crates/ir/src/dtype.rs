//! Element types of stored tensors.

use serde::{Deserialize, Serialize};

/// Element type of a stored tensor. Unsigned activations are stored as signed codes with a shifted zero point
/// (the same quantiser), so two integer activation types are enough. In JSON it is called as NumPy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DType {
    /// 8-bit activations, weights and masks.
    #[serde(rename = "int8")]
    I8,
    /// 16-bit activations and weights.
    #[serde(rename = "int16")]
    I16,
    /// Biases of 8-bit layers, table entries, indices.
    #[serde(rename = "int32")]
    I32,
    /// Biases of 16-bit layers (48 bits used).
    #[serde(rename = "int64")]
    I64,
    /// IEEE binary16 activations and weights.
    #[serde(rename = "float16")]
    F16,
    /// The upper half of a binary32: activations and weights.
    #[serde(rename = "bfloat16")]
    BF16,
    /// IEEE binary32 activations and weights, and what is added to the sums of all float layers.
    #[serde(rename = "float32")]
    F32,
}

impl DType {
    /// Every type.
    pub const ALL: [Self; 7] = [Self::I8, Self::I16, Self::I32, Self::I64, Self::F16, Self::BF16, Self::F32];

    /// Size of one element in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 => 8,
        }
    }

    /// Size of one element in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }

    /// Whether elements are floating-point numbers, which have neither scale nor zero point.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32)
    }

    /// Whether elements are codes of integer activations.
    #[must_use]
    pub fn is_code(self) -> bool {
        matches!(self, Self::I8 | Self::I16)
    }

    /// Smallest and largest code; `(0, 0)`, the only zero point, for floating-point types.
    #[must_use]
    pub fn range(self) -> (i64, i64) {
        if self.is_float() {
            return (0, 0);
        }
        let half = 1i64 << (self.bits() - 1).min(62);
        if self == Self::I64 { (i64::MIN, i64::MAX) } else { (-half, half - 1) }
    }

    /// The name used in files, reports and NumPy.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
        }
    }
}
