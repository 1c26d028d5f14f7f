//! Parameters of operators as they lie in the EWP cache.

use crate::Tensor;
use crate::op::Norm;

/// Bytes of gamma and beta of one channel of a float normalisation.
pub const FLOAT_NORM_BYTES: usize = 8;

/// Bias, multiplier and shift of one output channel as they lie in the EWP cache, little endian.
///
/// Layers with 32-bit sums take 8 bytes: bias i32, multiplier i16, shift i8, one byte zero. Layers with 48-bit sums take 16:
/// bias i64, multiplier i16, shift i8, five bytes zero. Float layers have the bits of their float32 bias in place of the i32,
/// and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelParameters {
    /// Added to the sum.
    pub bias: i64,
    /// M.
    pub multiplier: i16,
    /// N.
    pub shift: i8,
}

impl ChannelParameters {
    /// The entry of a float channel.
    #[must_use]
    pub fn float(bias: f32) -> Self {
        Self { bias: i64::from(bias.to_bits().cast_signed()), multiplier: 0, shift: 0 }
    }

    /// The bias of a float channel.
    #[must_use]
    pub fn float_bias(&self) -> f32 {
        f32::from_bits((self.bias as i32).cast_unsigned())
    }

    /// Bytes of one entry.
    #[must_use]
    pub fn bytes(wide: bool) -> usize {
        if wide { 16 } else { 8 }
    }

    /// Appends the entry.
    pub fn encode(&self, wide: bool, out: &mut Vec<u8>) {
        let start = out.len();
        let width = Self::bytes(wide) / 2;
        out.extend_from_slice(&self.bias.to_le_bytes()[..width]);
        out.extend_from_slice(&self.multiplier.to_le_bytes());
        out.extend_from_slice(&self.shift.to_le_bytes());
        out.resize(start + Self::bytes(wide), 0);
    }

    /// Reads an entry of [`Self::bytes`] bytes.
    #[must_use]
    pub fn decode(wide: bool, bytes: &[u8]) -> Self {
        let width = Self::bytes(wide) / 2;
        let bias = if wide { i64::from_le_bytes(array(bytes)) } else { i64::from(i32::from_le_bytes(array(bytes))) };
        Self {
            bias,
            multiplier: i16::from_le_bytes(array(&bytes[width..])),
            shift: i8::from_le_bytes(array(&bytes[width + 2..])),
        }
    }
}

/// Slope of one channel below zero: multiplier i16, shift i8, one byte zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slope {
    /// M, may be negative.
    pub multiplier: i16,
    /// N.
    pub shift: i8,
}

impl Slope {
    /// Bytes of one entry.
    pub const BYTES: usize = 4;

    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.multiplier.to_le_bytes());
        out.extend_from_slice(&[self.shift.cast_unsigned(), 0]);
    }

    /// Reads an entry.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self { multiplier: i16::from_le_bytes(array(bytes)), shift: bytes[2].cast_signed() }
    }
}

/// Parameters of one channel of a normalisation: beta i64, gamma i16, multiplier i16, shift i8, three bytes zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormParameters {
    /// Added to `t * gamma`.
    pub beta: i64,
    /// Factor of the normalised value.
    pub gamma: i16,
    /// M of the result.
    pub multiplier: i16,
    /// N of the result.
    pub shift: i8,
}

impl NormParameters {
    /// Bytes of one entry.
    pub const BYTES: usize = 16;

    /// Those of every channel of an operator, or one where all have the same ([`Norm::is_shared`]).
    #[must_use]
    pub fn of(norm: &Norm, gamma: &Tensor, beta: &Tensor) -> Vec<Self> {
        let entry = |(channel, (gamma, beta)): (usize, (i64, i64))| {
            let (multiplier, shift) = norm.requant.of(channel);
            Self { beta, gamma: gamma as i16, multiplier: multiplier as i16, shift }
        };
        let entries = if norm.is_shared(gamma, beta) { 1 } else { usize::MAX };
        gamma.integers().into_iter().zip(beta.integers()).enumerate().map(entry).take(entries).collect()
    }

    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.beta.to_le_bytes());
        out.extend_from_slice(&self.gamma.to_le_bytes());
        out.extend_from_slice(&self.multiplier.to_le_bytes());
        out.extend_from_slice(&[self.shift.cast_unsigned(), 0, 0, 0]);
    }

    /// Reads an entry.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self {
            beta: i64::from_le_bytes(array(bytes)),
            gamma: i16::from_le_bytes(array(&bytes[8..])),
            multiplier: i16::from_le_bytes(array(&bytes[10..])),
            shift: bytes[12].cast_signed(),
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}
