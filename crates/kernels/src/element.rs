//! The two element types of activations and weights, so that every kernel is written once.

use crate::Values;

/// A stored code: `i8` or `i16`.
pub trait Element: Copy + Default + Ord + Send + Sync + std::fmt::Debug + 'static {
    /// Width in bits.
    const BITS: u32;
    /// Smallest code.
    const MIN: Self;

    /// The code as an integer.
    fn widen(self) -> i32;

    /// The code of an integer that is known to be in range (every caller has just clamped it).
    fn narrow(code: i32) -> Self;

    /// The codes themselves where they are int8.
    fn as_bytes(codes: &[Self]) -> Option<&[i8]>;

    /// The codes themselves where they are int8, to be written.
    fn as_bytes_mut(codes: &mut [Self]) -> Option<&mut [i8]>;

    /// The elements of `values`, if they are of this type.
    fn of(values: &Values) -> Option<&[Self]>;
}

impl Element for i8 {
    const BITS: u32 = 8;
    const MIN: Self = i8::MIN;

    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn narrow(code: i32) -> Self {
        debug_assert!(Self::try_from(code).is_ok(), "{code} is no int8 code");
        code as Self
    }

    fn as_bytes(codes: &[Self]) -> Option<&[i8]> {
        Some(codes)
    }

    fn as_bytes_mut(codes: &mut [Self]) -> Option<&mut [i8]> {
        Some(codes)
    }

    fn of(values: &Values) -> Option<&[Self]> {
        if let Values::I8(codes) = values { Some(codes) } else { None }
    }
}

impl Element for i16 {
    const BITS: u32 = 16;
    const MIN: Self = i16::MIN;

    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn narrow(code: i32) -> Self {
        debug_assert!(Self::try_from(code).is_ok(), "{code} is no int16 code");
        code as Self
    }

    fn as_bytes(_: &[Self]) -> Option<&[i8]> {
        None
    }

    fn as_bytes_mut(_: &mut [Self]) -> Option<&mut [i8]> {
        None
    }

    fn of(values: &Values) -> Option<&[Self]> {
        if let Values::I16(codes) = values { Some(codes) } else { None }
    }
}
