//! Float PEs. The significand (11, 8 or 24 bits of f16, bf16, f32) is cut into as many unsigned bytes
//! as the format's storage has; the PE gathers their products one per cycle, exactly, then rounds the
//! product once to f32 (half to even, subnormals kept) and adds it to the f32 sum from above, rounding
//! again. Never a fused multiply-add. NaN is always 0x7FC00000. Zeros that pad a tile change no bit
//! where the other operand is finite: they add ±0 to a running sum that begins at +0, and such a sum is
//! never -0.

use super::{Datapath, Passes, Precision, byte_pair};

/// Bits of the quiet NaN that every NaN becomes.
const NAN: u32 = 0x7FC0_0000;

/// Floating operands, given as f32 values the format can hold. Passes 4, 4, 16; sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
}

/// Float PE: gathers the byte products of two significands, rounds, adds.
#[derive(Debug, Clone, Copy)]
pub struct FloatMac {
    bytes: usize,
    /// Bits of the format's significand, the implied one included.
    significand: u32,
}

/// A product under way: `±magnitude · 2^exponent`, or the special value it will be.
#[derive(Debug, Clone, Copy, Default)]
pub struct FloatProduct {
    magnitude: u64,
    exponent: i32,
    negative: bool,
    special: Option<f32>,
}

impl FloatMac {
    /// `|value| = significand · 2^exponent` for a finite value.
    #[inline]
    fn decode(self, value: f32) -> (u64, i32) {
        let bits = value.to_bits();
        let (exponent, fraction) = ((bits >> 23 & 0xFF) as i32, u64::from(bits & 0x7F_FFFF));
        let (significand, exponent) =
            if exponent == 0 { (fraction, -149) } else { (fraction | 1 << 23, exponent - 150) };
        let spare = 24 - self.significand;
        (significand >> spare, exponent + spare as i32)
    }
}

impl Datapath for FloatMac {
    type Word = f32;
    type Product = FloatProduct;
    type Sum = f32;

    fn phases(self) -> u8 {
        (self.bytes * self.bytes) as u8
    }

    #[inline]
    fn multiply(self, product: FloatProduct, activation: f32, weight: f32, phase: u8) -> FloatProduct {
        let (i, j) = byte_pair((self.bytes, self.bytes), usize::from(phase));
        let ((a, a_exponent), (w, w_exponent)) = (self.decode(activation), self.decode(weight));
        let partial = ((a >> (8 * i) & 0xFF) * (w >> (8 * j) & 0xFF)) << (8 * (i + j));
        let finite = activation.is_finite() && weight.is_finite();
        FloatProduct {
            magnitude: partial + if phase == 0 { 0 } else { product.magnitude },
            exponent: a_exponent + w_exponent,
            negative: activation.is_sign_negative() != weight.is_sign_negative(),
            special: if finite { None } else { Some(activation * weight) },
        }
    }

    #[inline]
    fn add(self, sum: f32, product: FloatProduct) -> f32 {
        let rounded = product.special.unwrap_or_else(|| {
            // 48 bits times a power of two from 2^-298 to 2^238 is exact in f64: the cast rounds once.
            let power = f64::from_bits(((product.exponent + 1023) as u64) << 52);
            let magnitude = (product.magnitude as f64 * power) as f32;
            if product.negative { -magnitude } else { magnitude }
        });
        canonical(sum + rounded)
    }
}

/// The value, or the one NaN.
#[inline]
fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(NAN) } else { value }
}

impl Float {
    fn mac_path(self) -> FloatMac {
        match self {
            Self::F16 => FloatMac { bytes: 2, significand: 11 },
            Self::Bf16 => FloatMac { bytes: 2, significand: 8 },
            Self::F32 => FloatMac { bytes: 4, significand: 24 },
        }
    }

    fn holds(self, value: f32) -> bool {
        match self {
            _ if !value.is_finite() => true,
            // Multiples of 2^-24 with at most 11 significant bits.
            Self::F16 => {
                value.abs() <= 65504.0
                    && value.to_bits() & 0x1FFF == 0
                    && (f64::from(value) * f64::from(1 << 24)).fract() == 0.0
            }
            Self::Bf16 => value.to_bits() & 0xFFFF == 0,
            Self::F32 => true,
        }
    }
}

impl Precision for Float {
    type Operand = f32;
    type Sum = f32;
    type Streaming = FloatMac;
    type Whole = FloatMac;

    fn bytes(self) -> (usize, usize) {
        let bytes = self.mac_path().bytes;
        (bytes, bytes)
    }

    fn passes(self) -> Passes {
        Passes::Phases(u64::from(self.mac_path().phases()))
    }

    fn accepts_activation(self, value: f32) -> bool {
        self.holds(value)
    }

    fn accepts_weight(self, value: f32) -> bool {
        self.holds(value)
    }

    fn fits(self, _: f32) -> bool {
        true
    }

    #[inline]
    fn mac(self, sum: f32, activation: f32, weight: f32) -> f32 {
        let product = activation * weight;
        canonical(sum + product)
    }

    fn streaming(self) -> FloatMac {
        self.mac_path()
    }

    fn whole(self) -> FloatMac {
        self.mac_path()
    }

    fn activation_word(self, value: f32, _: usize) -> f32 {
        value
    }

    fn weight_word(self, value: f32, _: usize) -> f32 {
        value
    }

    fn start(self, accumulator: f32) -> f32 {
        accumulator
    }

    fn collect(self, _: f32, sum: f32, _: usize) -> f32 {
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_holds_subnormals_and_nothing_beyond_its_range() {
        let smallest = 2f32.powi(-24);
        for value in [0.0, -0.0, smallest, 3.0 * smallest, 65504.0, -65504.0, f32::INFINITY, f32::NAN] {
            assert!(Float::F16.holds(value), "{value}");
        }
        for value in [smallest / 2.0, 1.5 * smallest, 65505.0, 65536.0, 1.0 + 2f32.powi(-11), f32::MIN_POSITIVE] {
            assert!(!Float::F16.holds(value), "{value}");
        }
    }

    fn gathered(precision: Float, a: f32, w: f32, sum: f32) -> u32 {
        let path = precision.streaming();
        let product =
            (0..path.phases()).fold(FloatProduct::default(), |product, phase| path.multiply(product, a, w, phase));
        path.add(sum, product).to_bits()
    }

    #[test]
    fn byte_products_of_floats_round_once_at_the_edges_of_the_format() {
        let tiny = f32::from_bits(1);
        for (a, w, sum) in [
            (1.0 + f32::EPSILON, 1.0 - f32::EPSILON / 2.0, 0.0),
            (1.0 + f32::EPSILON, 1.0 + f32::EPSILON, -1.0),
            (f32::MAX, 2.0, 0.0),
            (f32::MAX, f32::MAX, f32::NEG_INFINITY),
            (tiny, 0.5, 0.0),
            (tiny, 0.75, 0.0),
            (tiny, tiny, -0.0),
            (f32::MIN_POSITIVE, 0.3, tiny),
            (f32::MIN_POSITIVE, -1.0 + f32::EPSILON, 0.0),
            (f32::INFINITY, 0.0, 1.0),
            (f32::INFINITY, -3.0, 1.0),
            (f32::from_bits(0xFFC1_2345), 1.0, 1.0),
            (-0.0, 5.0, -0.0),
        ] {
            assert_eq!(gathered(Float::F32, a, w, sum), Float::F32.mac(sum, a, w).to_bits(), "{a:e} {w:e} {sum:e}");
        }
        assert_eq!(gathered(Float::F16, f32::INFINITY, 0.0, 0.0), NAN);
        // A fused multiply-add would keep the low half of the square.
        let x = 1.0 + f32::EPSILON;
        assert_ne!(
            gathered(Float::F32, x, x, -1.0 - 2.0 * f32::EPSILON),
            x.mul_add(x, -1.0 - 2.0 * f32::EPSILON).to_bits()
        );
    }
}
