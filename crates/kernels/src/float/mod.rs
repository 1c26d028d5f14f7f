//! Floating-point arithmetic to the bit: every step one IEEE operation, in one order, on every processor.
//!
//! Elements are widened to float32 first ([`singles`]); kernels compute in float32 and round once, at the end, through a
//! [`Finisher`]. Sums run in the order of their index and start at +0, a product is rounded before it is added (there is no
//! fused multiply-add), so vectors only ever lie across results, never along a sum.
//!
//! - [`element`], [`finish`]: types, and the way out of an operator
//! - [`function`], [`primitive`]: functions of one variable, in float64
//! - [`gemm`], [`linear`], [`depthwise`]: products
//! - [`elementwise`], [`rows`], [`window`], [`reduce`]: everything else
//!
//! Source: docs/arithmetic.md, section 16.

pub mod depthwise;
pub mod element;
pub mod elementwise;
pub mod finish;
pub mod function;
pub mod gemm;
pub mod linear;
pub mod primitive;
pub mod reduce;
pub mod rows;
pub mod window;

use std::borrow::Cow;

pub use element::{BF16, F16, Float};
pub use finish::Finisher;

use crate::Values;

/// The elements as float32, exactly; a copy where they are not.
///
/// # Panics
/// When they are integers.
#[must_use]
pub fn singles(values: &Values) -> Cow<'_, [f32]> {
    fn widened<T: Float>(elements: &[T]) -> Cow<'_, [f32]> {
        Cow::Owned(elements.iter().map(|x| x.widen()).collect())
    }
    match values {
        Values::F16(elements) => widened(elements),
        Values::BF16(elements) => widened(elements),
        Values::F32(elements) => Cow::Borrowed(elements),
        other => panic!("{} is no type of floats", other.dtype().name()),
    }
}
