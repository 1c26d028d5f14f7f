//! Bit-exact arithmetic on slices: every operator of [`tpuflow_ir::Op`], as `docs/arithmetic.md` defines it.
//!
//! Kernels take dense, row-major, channels-last slices and small parameter structs, write into a slice the caller owns, and
//! know neither graphs nor memory maps nor cycles. The graph interpreter calls them on whole tensors, the machine simulator on
//! tiles: each works on any number of rows, so any slicing of a tensor gives the same integers.
//!
//! - [`requant`], [`table`]: the two ways a value becomes a code
//! - [`gemm`], [`epilogue`], [`linear`], [`conv`], [`depthwise`]: products, their accumulators and what follows them
//! - [`pool`], [`elementwise`], [`reduce`], [`softmax`], [`normalize`], [`resize`]: everything computed per element or row
//! - [`movement`]: what only moves elements
//! - [`float`]: the same in floating point
//! - [`parallel`], [`pages`]: threads, and the memory they meet
//!
//! Slice lengths are the caller's promise: kernels assert them and panic where they are broken. Integer sums are exact and
//! float sums keep their order, so splitting work over threads never changes a bit.

mod buffers;
pub mod conv;
pub mod depthwise;
pub mod element;
pub mod elementwise;
pub mod epilogue;
pub mod float;
pub mod gemm;
pub mod isa;
pub mod linear;
pub mod movement;
pub mod normalize;
pub mod pages;
pub mod parallel;
pub mod pool;
pub mod reduce;
pub mod requant;
pub mod resize;
mod scratch;
pub mod softmax;
pub mod sums;
pub mod table;
pub mod values;

pub use element::Element;
pub use float::{BF16, F16, Float};
pub use isa::Isa;
pub use values::Values;
