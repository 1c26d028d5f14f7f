//! The three floating-point element types: exact widening to float32, one rounding from float64.
//!
//! Everything is done on bits in integer arithmetic, so no processor's conversion instructions are involved. Rounding is to
//! nearest, half to even; what exceeds the largest number becomes infinity, subnormals are kept, and every NaN becomes the
//! type's canonical one (sign clear, only the highest fraction bit set).
//!
//! Source: docs/arithmetic.md, section 16.

use tpuflow_ir::DType;

use crate::Values;

/// IEEE binary16, by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The upper half of a binary32, by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct BF16(pub u16);

/// A floating-point element.
pub trait Float: Copy + Default + Send + Sync + std::fmt::Debug + 'static {
    /// Its type.
    const DTYPE: DType;

    /// The same number as a float32.
    fn widen(self) -> f32;

    /// The nearest element.
    fn nearest(value: f64) -> Self;

    /// The nearest element.
    #[inline(always)]
    fn nearest_single(value: f32) -> Self {
        Self::nearest(f64::from(value))
    }

    /// The elements of `values`, if they are of this type.
    fn of(values: &Values) -> Option<&[Self]>;
}

/// Rounds a float64 to a format of `1 + exponent + fraction` bits, at most 32; the bits of the result.
#[inline(always)]
fn rounded(value: f64, exponent: u32, fraction: u32) -> u32 {
    let bits = value.to_bits();
    let sign = ((bits >> 63) as u32) << (exponent + fraction);
    let magnitude = bits & !(1 << 63);
    let infinity = ((1 << exponent) - 1) << fraction;
    if magnitude >= 0x7FF << 52 {
        return if magnitude > 0x7FF << 52 { infinity | 1 << (fraction - 1) } else { sign | infinity };
    }
    let bias = (1 << (exponent - 1)) - 1;
    let scale = (magnitude >> 52) as i32 - 1023 + bias;
    // The number as an integer of 53 bits; subnormal float64 are far below half of every format's smallest number.
    let (number, drop) = if scale > 0 {
        // Adding the exponent field to the rounded fraction lets a carry move into it.
        ((magnitude & ((1 << 52) - 1)) | (scale as u64) << 52, 52 - fraction)
    } else if scale >= -(fraction as i32) {
        ((magnitude & ((1 << 52) - 1)) | 1 << 52, 52 - fraction + (1 - scale) as u32)
    } else {
        return sign;
    };
    if scale >= (1 << exponent) - 1 {
        return sign | infinity;
    }
    let quotient = (number >> drop) as u32;
    let (rest, half) = (number & ((1 << drop) - 1), 1u64 << (drop - 1));
    sign | (quotient + u32::from(rest > half || (rest == half && quotient & 1 == 1)))
}

impl Float for F16 {
    const DTYPE: DType = DType::F16;

    #[inline(always)]
    fn widen(self) -> f32 {
        let (sign, magnitude) = (u32::from(self.0 & 0x8000) << 16, u32::from(self.0 & 0x7FFF));
        if magnitude >= 0x7C00 {
            return f32::from_bits(if magnitude > 0x7C00 { 0x7FC0_0000 } else { sign | 0x7F80_0000 });
        }
        // Read with the wrong exponent, then multiplied by 2^112, which is exact and also normalises subnormals.
        f32::from_bits(sign | f32_bits(f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)))
    }

    #[inline(always)]
    fn nearest(value: f64) -> Self {
        Self(rounded(value, 5, 10) as u16)
    }

    /// Without branches, so that it vectorises: normal numbers are rounded on their bits (a carry moves into the exponent),
    /// subnormal ones by adding the number whose last bit is their unit.
    #[inline(always)]
    fn nearest_single(value: f32) -> Self {
        const UNIT: u32 = 0x3F00_0000;
        let (bits, magnitude) = (value.to_bits(), value.to_bits() & 0x7FFF_FFFF);
        let normal = magnitude.wrapping_add(0xC800_0FFF + (magnitude >> 13 & 1)) >> 13;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(UNIT)).to_bits().wrapping_sub(UNIT);
        let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let rounded = if magnitude >= 0x4780_0000 { 0x7C00 } else { finite };
        let signed = rounded | bits >> 16 & 0x8000;
        Self(if magnitude > 0x7F80_0000 { 0x7E00 } else { signed } as u16)
    }

    fn of(values: &Values) -> Option<&[Self]> {
        if let Values::F16(elements) = values { Some(elements) } else { None }
    }
}

#[inline(always)]
fn f32_bits(value: f32) -> u32 {
    value.to_bits()
}

impl Float for BF16 {
    const DTYPE: DType = DType::BF16;

    #[inline(always)]
    fn widen(self) -> f32 {
        canonical(f32::from_bits(u32::from(self.0) << 16))
    }

    #[inline(always)]
    fn nearest(value: f64) -> Self {
        Self(rounded(value, 8, 7) as u16)
    }

    /// On the bits: a carry moves into the exponent, and out of the largest number into infinity.
    #[inline(always)]
    fn nearest_single(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        Self(if value.is_nan() { 0x7FC0 } else { rounded } as u16)
    }

    fn of(values: &Values) -> Option<&[Self]> {
        if let Values::BF16(elements) = values { Some(elements) } else { None }
    }
}

impl Float for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn nearest(value: f64) -> Self {
        // IEEE conversion, to nearest even on every target.
        canonical(value as Self)
    }

    #[inline(always)]
    fn nearest_single(value: f32) -> Self {
        canonical(value)
    }

    fn of(values: &Values) -> Option<&[Self]> {
        if let Values::F32(elements) = values { Some(elements) } else { None }
    }
}

/// The number itself, or the one NaN there is.
#[inline(always)]
#[must_use]
pub fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7FC0_0000) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every finite number of a 16-bit format, ascending, by the definition of its fields.
    fn numbers(exponent: u32, fraction: u32) -> Vec<(u16, f64)> {
        let bias = (1 << (exponent - 1)) - 1;
        let finite = 0..((1u32 << exponent) - 1) << fraction;
        finite
            .map(|bits| {
                let (e, f) = ((bits >> fraction) as i32, f64::from(bits & ((1 << fraction) - 1)));
                let unit = 2f64.powi(-(fraction as i32));
                let value =
                    if e == 0 { f * unit * 2f64.powi(1 - bias) } else { (1.0 + f * unit) * 2f64.powi(e - bias) };
                (bits as u16, value)
            })
            .collect()
    }

    fn check<T: Float>(bits: impl Fn(T) -> u16, make: impl Fn(u16) -> T, exponent: u32, fraction: u32) {
        let numbers = numbers(exponent, fraction);
        for pair in numbers.windows(2) {
            let ((low, a), (high, b)) = (pair[0], pair[1]);
            assert_eq!(f64::from(make(low).widen()).to_bits(), a.to_bits());
            assert_eq!(f64::from(make(low | 0x8000).widen()).to_bits(), (-a).to_bits());
            // The middle of neighbours is exact in float64; so is the next float64 on either side.
            let middle = f64::midpoint(a, b);
            let even = if low & 1 == 0 { low } else { high };
            for (value, expected) in
                [(a, low), (middle, even), (middle.next_down(), low), (middle.next_up(), high), (b, high)]
            {
                assert_eq!(bits(T::nearest(value)), expected, "{value:e}");
                assert_eq!(bits(T::nearest(-value)), expected | 0x8000, "-{value:e}");
            }
        }
        let (last, most) = numbers[numbers.len() - 1];
        let step = most - numbers[numbers.len() - 2].1;
        assert_eq!(bits(T::nearest((most + step / 2.0).next_down())), last);
        for big in [most + step / 2.0, f64::MAX, f64::INFINITY] {
            assert_eq!(bits(T::nearest(big)), last + 1, "{big:e}");
            assert_eq!(bits(T::nearest(-big)), (last + 1) | 0x8000);
        }
        assert_eq!(f64::from(make(last + 1).widen()), f64::INFINITY);
        assert_eq!(f64::from(make((last + 1) | 0x8000).widen()), f64::NEG_INFINITY);
        for nan in [f64::NAN, -f64::NAN, f64::from_bits(0xFFF0_0000_0000_0001)] {
            assert_eq!(bits(T::nearest(nan)), (last + 1) | 1 << (fraction - 1));
        }
        assert_eq!(make((last + 2) | 0x8000).widen().to_bits(), 0x7FC0_0000);
        assert_eq!((bits(T::nearest(5e-324)), bits(T::nearest(-5e-324))), (0, 0x8000));
    }

    #[test]
    fn every_half_and_every_border_between_two() {
        check::<F16>(|x| x.0, F16, 5, 10);
    }

    #[test]
    fn every_brain_float_and_every_border_between_two() {
        check::<BF16>(|x| x.0, BF16, 8, 7);
    }

    /// Every pattern of the upper bits with what decides about them: the middle, either side of it, and the ends.
    #[test]
    fn the_short_ways_from_single_are_the_general_one() {
        for upper in 0..=0xFFFF_FFFFu32 >> 12 {
            for lower in [0, 1, 0x7FF, 0x800, 0x801, 0xFFF] {
                let value = f32::from_bits(upper << 12 | lower);
                assert_eq!(F16::nearest_single(value), F16::nearest(value.into()), "{value:e}");
                assert_eq!(BF16::nearest_single(value), BF16::nearest(value.into()), "{value:e}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_general_rounding_is_that_of_single(bits in any::<u64>(), near in any::<u32>()) {
            let middle = f64::from(f32::from_bits(near)) + f64::from(f32::from_bits(near & 0x7FFF_FFFF)) * 2f64.powi(-24);
            for value in [f64::from_bits(bits), f64::from(f32::from_bits(near)), middle] {
                prop_assert_eq!(rounded(value, 8, 23), f32::nearest(value).to_bits());
            }
        }
    }
}
