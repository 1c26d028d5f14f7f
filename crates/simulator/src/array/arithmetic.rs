//! What a PE computes: byte products, and how they become products and sums.
//!
//! **Integers.** An operand is a stored value minus its zero point: 9 bits signed for 8-bit storage,
//! 17 bits for 16-bit storage. A 9-bit operand goes to the multiplier as it is. A 17-bit one is
//! written `v = 256·h + l` with `l = v mod 256` in [0, 255] and `h = floor(v / 256)` in [-256, 255],
//! both 9-bit signed numbers. The identity holds for every integer (`h` is an arithmetic shift), hence
//! `a·w = sum_ij 256^(i+j) a_i w_j` exactly, and so for sums of products: adding each pass's column
//! sums, shifted by `8(i+j)`, gives the exact integer. Within a pass a product is below 2^16 in
//! magnitude, so 2^14 rows fit a 32-bit sum. Accumulators are 32 bits wide for 8-bit operands and 48
//! otherwise; they wrap, so a passing excess between the passes of a tile is harmless, and overflow is
//! judged when the tile's last pass is in.
//!
//! **Floats.** The significand (11, 8 or 24 bits of f16, bf16, f32) is cut into as many unsigned bytes
//! as the format's storage has; the PE gathers their products one per cycle, exactly, then rounds the
//! product once to f32 (half to even, subnormals kept) and adds it to the f32 sum from above, rounding
//! again. Never a fused multiply-add. NaN is always 0x7FC00000. Zeros that pad a tile change no bit
//! where the other operand is finite: they add ±0 to a running sum that begins at +0, and such a sum is
//! never -0.

use std::fmt::Debug;

/// Bits of the quiet NaN that every NaN becomes.
const NAN: u32 = 0x7FC0_0000;

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

/// How the byte products of an operand pair are spread over the weight-stationary arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Integers: the whole tile is streamed so many times, one pair of bytes each.
    Streams(u64),
    /// Floats: the tile is streamed once, every slot lasts so many cycles.
    Phases(u64),
}

impl Passes {
    /// Byte products per product: what the slots of a tile are multiplied by.
    #[must_use]
    pub fn count(self) -> u64 {
        self.streams() * self.phases()
    }

    /// Times a tile is streamed.
    #[must_use]
    pub fn streams(self) -> u64 {
        if let Self::Streams(count) = self { count } else { 1 }
    }

    /// Cycles a slot lasts.
    #[must_use]
    pub fn phases(self) -> u64 {
        if let Self::Phases(count) = self { count } else { 1 }
    }
}

/// The arithmetic inside a PE, as its registers see it. One instance serves all PEs.
pub trait Datapath: Copy {
    /// Content of an activation or weight register.
    type Word: Copy + Default;
    /// Content of the product register.
    type Product: Copy + Default;
    /// Content of the sum register.
    type Sum: Copy + Default;

    /// Cycles one product takes.
    fn phases(self) -> u8;
    /// The product register after the byte product of this `phase` (0 starts afresh).
    fn multiply(self, product: Self::Product, activation: Self::Word, weight: Self::Word, phase: u8) -> Self::Product;
    /// `sum + product`, in the sum's own arithmetic.
    fn add(self, sum: Self::Sum, product: Self::Product) -> Self::Sum;
}

/// Number format of a run: [`Integer`] or [`Float`].
pub trait Precision: Copy + Debug {
    /// Activation or weight as a tile holds it.
    type Operand: Copy + Default + Debug;
    /// Accumulator and result.
    type Sum: Copy + Default + Debug + PartialEq;
    /// PE of the weight-stationary arrays.
    type Streaming: Datapath;
    /// PE of the output-stationary array, whose products are whole.
    type Whole: Datapath<Word = Self::Operand, Sum = Self::Sum>;

    /// Bytes of an activation and of a weight.
    fn bytes(self) -> (usize, usize);
    /// How often bytes meet, and when.
    fn passes(self) -> Passes;
    /// Whether the value is one of an activation of this format (zero point subtracted).
    fn accepts_activation(self, value: Self::Operand) -> bool;
    /// Whether the value is one of a weight of this format (zero point subtracted).
    fn accepts_weight(self, value: Self::Operand) -> bool;
    /// Whether the accumulator can hold the sum.
    fn fits(self, sum: Self::Sum) -> bool;
    /// `sum + activation · weight`, as the accumulator has it in the end.
    fn mac(self, sum: Self::Sum, activation: Self::Operand, weight: Self::Operand) -> Self::Sum;

    /// PE of the weight-stationary arrays.
    fn streaming(self) -> Self::Streaming;
    /// PE of the output-stationary array.
    fn whole(self) -> Self::Whole;
    /// What the activation register holds in a stream.
    fn activation_word(self, value: Self::Operand, stream: usize) -> <Self::Streaming as Datapath>::Word;
    /// What the weight register holds in a stream.
    fn weight_word(self, value: Self::Operand, stream: usize) -> <Self::Streaming as Datapath>::Word;
    /// The sum entering the top of a column, given the accumulator it will end in.
    fn start(self, accumulator: Self::Sum) -> <Self::Streaming as Datapath>::Sum;
    /// The accumulator after a column's sum of one stream has arrived.
    fn collect(self, accumulator: Self::Sum, sum: <Self::Streaming as Datapath>::Sum, stream: usize) -> Self::Sum;
}

/// Which bytes (activation, weight) meet in pass `pass`, activation bytes running faster.
fn byte_pair((activation_bytes, _): (usize, usize), pass: usize) -> (usize, usize) {
    (pass % activation_bytes, pass / activation_bytes)
}

/// Byte `index` of an operand of `bytes` bytes as the 9-bit signed number the multiplier takes:
/// unsigned, but the last one carries the sign.
pub(super) fn slice(value: i32, index: usize, bytes: usize) -> i16 {
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
    fn passes_are_the_products_of_bytes() {
        let integers = [Integer::I8, Integer::I16I8, Integer::I8I16, Integer::I16];
        assert_eq!(integers.map(Precision::passes), [1, 2, 2, 4].map(Passes::Streams));
        assert_eq!([Float::F16, Float::Bf16, Float::F32].map(Precision::passes), [4, 4, 16].map(Passes::Phases));
    }

    #[test]
    fn the_accumulator_is_32_or_48_bits_wide() {
        for (precision, bits) in [(Integer::I8, 32), (Integer::I16I8, 48), (Integer::I16, 48)] {
            let limit = 1i64 << (bits - 1);
            assert!(precision.fits(limit - 1) && precision.fits(-limit));
            assert!(!precision.fits(limit) && !precision.fits(-limit - 1));
        }
    }

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
