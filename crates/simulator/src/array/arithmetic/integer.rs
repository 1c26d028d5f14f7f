//! Integer PEs. An operand is a stored value minus its zero point: 9 bits signed for 8-bit storage,
//! 17 bits for 16-bit storage. A 9-bit operand goes to the multiplier as it is. A 17-bit one is
//! written `v = 256·h + l` with `l = v mod 256` in [0, 255] and `h = floor(v / 256)` in [-256, 255],
//! both 9-bit signed numbers. The identity holds for every integer (`h` is an arithmetic shift), hence
//! `a·w = sum_ij 256^(i+j) a_i w_j` exactly, and so for sums of products: adding each pass's column
//! sums, shifted by `8(i+j)`, gives the exact integer. Within a pass a product is at most 2^16 in
//! magnitude, so 2^14 rows fit a 32-bit sum. Accumulators are 32 bits wide for 8-bit operands and 48
//! otherwise; they wrap, so a passing excess between the passes of a tile is harmless, and overflow is
//! checked when the tile's last pass is in.

use super::{Datapath, Passes, Precision, byte_pair};

/// Integer operands. Named activation first, weight second; storage widths in bits.
///
/// Passes 1, 2, 2, 4. Sums are exact; accumulators have 32 bits for `I8`, else 48.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integer {
    /// 8-bit activations and weights.
    I8,
    /// 16-bit activations, 8-bit weights.
    I16I8,
    /// 8-bit activations, 16-bit weights.
    I8I16,
    /// 16-bit activations and weights.
    I16,
}

/// Byte `index` of an operand of `bytes` bytes as the 9-bit signed number the multiplier takes:
/// unsigned, but the last one carries the sign.
fn slice(value: i32, index: usize, bytes: usize) -> i16 {
    let shifted = value >> (8 * index);
    // Operands have at most 8 * bytes + 1 bits, so both arms fit 9 bits.
    if index + 1 == bytes { shifted as i16 } else { (shifted & 0xFF) as i16 }
}

/// Integer PE of the weight-stationary arrays: one 9 x 9-bit product per cycle, 32-bit sums.
#[derive(Debug, Clone, Copy)]
pub struct ByteMac;

impl Datapath for ByteMac {
    type Word = i16;
    type Product = i32;
    type Sum = i32;

    fn phases(self) -> u8 {
        1
    }

    #[inline(always)]
    fn multiply(self, _: i32, activation: i16, weight: i16, _: u8) -> i32 {
        i32::from(activation) * i32::from(weight)
    }

    #[inline(always)]
    fn add(self, sum: i32, product: i32) -> i32 {
        // Cannot wrap in an array of at most 2^14 rows; a check would only keep the loop from being vectorised.
        sum.wrapping_add(product)
    }
}

/// Integer PE of the output-stationary array: gathers the byte products of a whole product.
#[derive(Debug, Clone, Copy)]
pub struct WholeMac {
    bytes: (usize, usize),
}

impl Datapath for WholeMac {
    type Word = i32;
    type Product = i64;
    type Sum = i64;

    fn phases(self) -> u8 {
        (self.bytes.0 * self.bytes.1) as u8
    }

    #[inline]
    fn multiply(self, product: i64, activation: i32, weight: i32, phase: u8) -> i64 {
        let (i, j) = byte_pair(self.bytes, usize::from(phase));
        let partial = i32::from(slice(activation, i, self.bytes.0)) * i32::from(slice(weight, j, self.bytes.1));
        (if phase == 0 { 0 } else { product }) + (i64::from(partial) << (8 * (i + j)))
    }

    #[inline]
    fn add(self, sum: i64, product: i64) -> i64 {
        sum + product
    }
}

impl Precision for Integer {
    type Operand = i32;
    type Sum = i64;
    type Streaming = ByteMac;
    type Whole = WholeMac;

    fn bytes(self) -> (usize, usize) {
        match self {
            Self::I8 => (1, 1),
            Self::I16I8 => (2, 1),
            Self::I8I16 => (1, 2),
            Self::I16 => (2, 2),
        }
    }

    fn passes(self) -> Passes {
        let (activation, weight) = self.bytes();
        Passes::Streams((activation * weight) as u64)
    }

    fn accepts_activation(self, value: i32) -> bool {
        value.unsigned_abs() < 1 << (8 * self.bytes().0)
    }

    fn accepts_weight(self, value: i32) -> bool {
        value.unsigned_abs() < 1 << (8 * self.bytes().1)
    }

    fn fits(self, sum: i64) -> bool {
        let bits = if self == Self::I8 { 32 } else { 48 };
        (-(1i64 << (bits - 1))..1i64 << (bits - 1)).contains(&sum)
    }

    #[inline]
    fn mac(self, sum: i64, activation: i32, weight: i32) -> i64 {
        sum + i64::from(activation) * i64::from(weight)
    }

    fn streaming(self) -> ByteMac {
        ByteMac
    }

    fn whole(self) -> WholeMac {
        WholeMac { bytes: self.bytes() }
    }

    fn activation_word(self, value: i32, stream: usize) -> i16 {
        slice(value, byte_pair(self.bytes(), stream).0, self.bytes().0)
    }

    fn weight_word(self, value: i32, stream: usize) -> i16 {
        slice(value, byte_pair(self.bytes(), stream).1, self.bytes().1)
    }

    fn start(self, _: i64) -> i32 {
        0
    }

    fn collect(self, accumulator: i64, sum: i32, stream: usize) -> i64 {
        let (i, j) = byte_pair(self.bytes(), stream);
        accumulator + (i64::from(sum) << (8 * (i + j)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_17_bit_operand_is_its_two_slices_and_they_fit_the_multiplier() {
        for value in -65535..=65535 {
            let (low, high) = (slice(value, 0, 2), slice(value, 1, 2));
            assert!((0..256).contains(&low) && (-256..256).contains(&high), "{value}");
            assert_eq!(256 * i32::from(high) + i32::from(low), value);
        }
        for value in -255..=255 {
            assert_eq!(i32::from(slice(value, 0, 1)), value);
        }
    }

    #[test]
    fn the_accumulator_is_32_or_48_bits_wide() {
        for (precision, bits) in [(Integer::I8, 32), (Integer::I16I8, 48), (Integer::I16, 48)] {
            let limit = 1i64 << (bits - 1);
            assert!(precision.fits(limit - 1) && precision.fits(-limit));
            assert!(!precision.fits(limit) && !precision.fits(-limit - 1));
        }
    }
}
