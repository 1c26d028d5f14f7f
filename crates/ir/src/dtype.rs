//! Element types of stored tensors.

use serde::{Deserialize, Serialize};

/// Element type of a stored tensor. Unsigned activations are stored as signed codes with a shifted zero point
/// (the same quantiser), so two activation types are enough. In JSON it is called as NumPy does.
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
}

impl DType {
    /// Size of one element in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Size of one element in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }

    /// Smallest and largest code.
    #[must_use]
    pub fn range(self) -> (i64, i64) {
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
        }
    }
}
