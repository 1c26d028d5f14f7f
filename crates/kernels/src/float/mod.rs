//! Floating-point arithmetic to the bit: every step one IEEE operation, in one order, on every processor.
//!
//! Source: docs/arithmetic.md, section 16.

pub mod element;

pub use element::{BF16, F16, Float};
