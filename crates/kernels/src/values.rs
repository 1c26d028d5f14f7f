//! The elements of one tensor, dense and row-major.

use tpuflow_ir::DType;

use crate::pages::{self, Addresses};
use crate::{BF16, F16};

/// Elements of one of the types a tensor may have; equal when all their bits are.
#[derive(Clone, Debug)]
pub enum Values {
    /// Activations, weights, masks.
    I8(Vec<i8>),
    /// Activations, weights.
    I16(Vec<i16>),
    /// Indices, biases, table entries.
    I32(Vec<i32>),
    /// Biases of 16-bit layers.
    I64(Vec<i64>),
    /// Activations, weights.
    F16(Vec<F16>),
    /// Activations, weights.
    BF16(Vec<BF16>),
    /// Activations, weights, biases of float layers.
    F32(Vec<f32>),
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::I8(a), Self::I8(b)) => a == b,
            (Self::I16(a), Self::I16(b)) => a == b,
            (Self::I32(a), Self::I32(b)) => a == b,
            (Self::I64(a), Self::I64(b)) => a == b,
            (Self::F16(a), Self::F16(b)) => a == b,
            (Self::BF16(a), Self::BF16(b)) => a == b,
            (Self::F32(a), Self::F32(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
            }
            _ => false,
        }
    }
}

impl Eq for Values {}

impl Values {
    /// `count` zeros.
    #[must_use]
    pub fn zeros(dtype: DType, count: usize) -> Self {
        match dtype {
            DType::I8 => Self::I8(vec![0; count]),
            DType::I16 => Self::I16(vec![0; count]),
            DType::I32 => Self::I32(vec![0; count]),
            DType::I64 => Self::I64(vec![0; count]),
            DType::F16 => Self::F16(vec![F16::default(); count]),
            DType::BF16 => Self::BF16(vec![BF16::default(); count]),
            DType::F32 => Self::F32(vec![0.0; count]),
        }
    }

    /// Elements of the type that `self` has, as many as asked for, in its memory; they hold anything.
    #[must_use]
    pub fn resized(self, count: usize) -> Self {
        fn resized<T: Clone + Default>(mut elements: Vec<T>, count: usize) -> Vec<T> {
            elements.resize(count, T::default());
            elements
        }
        match self {
            Self::I8(v) => Self::I8(resized(v, count)),
            Self::I16(v) => Self::I16(resized(v, count)),
            Self::I32(v) => Self::I32(resized(v, count)),
            Self::I64(v) => Self::I64(resized(v, count)),
            Self::F16(v) => Self::F16(resized(v, count)),
            Self::BF16(v) => Self::BF16(resized(v, count)),
            Self::F32(v) => Self::F32(resized(v, count)),
        }
    }

    /// The number of elements there is memory for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match self {
            Self::I8(v) => v.capacity(),
            Self::I16(v) => v.capacity(),
            Self::I32(v) => v.capacity(),
            Self::I64(v) => v.capacity(),
            Self::F16(v) => v.capacity(),
            Self::BF16(v) => v.capacity(),
            Self::F32(v) => v.capacity(),
        }
    }

    /// The elements stored in `bytes`, little-endian; a last incomplete element is ignored.
    #[must_use]
    pub fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Self {
        match dtype {
            DType::I8 => Self::I8(bytes.iter().map(|b| b.cast_signed()).collect()),
            DType::I16 => Self::I16(bytes.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b)).collect()),
            DType::I32 => Self::I32(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()),
            DType::I64 => Self::I64(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
            DType::F16 => Self::F16(bytes.as_chunks().0.iter().map(|b| F16(u16::from_le_bytes(*b))).collect()),
            DType::BF16 => Self::BF16(bytes.as_chunks().0.iter().map(|b| BF16(u16::from_le_bytes(*b))).collect()),
            DType::F32 => Self::F32(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        }
    }

    /// The elements as little-endian bytes.
    #[must_use]
    pub fn to_le_bytes(&self) -> Vec<u8> {
        match self {
            Self::I8(v) => v.iter().map(|x| x.cast_unsigned()).collect(),
            Self::I16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::F16(v) => v.iter().flat_map(|x| x.0.to_le_bytes()).collect(),
            Self::BF16(v) => v.iter().flat_map(|x| x.0.to_le_bytes()).collect(),
            Self::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::I8(_) => DType::I8,
            Self::I16(_) => DType::I16,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
            Self::F32(_) => DType::F32,
        }
    }

    /// Where they lie.
    #[must_use]
    pub fn memory(&self) -> Addresses {
        match self {
            Self::I8(v) => pages::of(v),
            Self::I16(v) => pages::of(v),
            Self::I32(v) => pages::of(v),
            Self::I64(v) => pages::of(v),
            Self::F16(v) => pages::of(v),
            Self::BF16(v) => pages::of(v),
            Self::F32(v) => pages::of(v),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::I8(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F16(v) => v.len(),
            Self::BF16(v) => v.len(),
            Self::F32(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        for values in [
            Values::I8(vec![-128, 0, 127]),
            Values::I16(vec![-32768, 1, 32767]),
            Values::I32(vec![i32::MIN, -2, i32::MAX]),
            Values::I64(vec![i64::MIN, -3, i64::MAX]),
            Values::F16(vec![F16(0x8000), F16(1), F16(0x7E00)]),
            Values::BF16(vec![BF16(0x8000), BF16(1), BF16(0x7FC0)]),
            Values::F32(vec![-0.0, f32::MIN_POSITIVE, f32::NAN]),
        ] {
            assert_eq!(Values::from_le_bytes(values.dtype(), &values.to_le_bytes()), values);
        }
    }
}
