//! The vocabulary both sides of the compiler share: the quantised [`Graph`], the [`Machine`] with its timing formulas, the
//! instruction set, and the [`Program`]. Construction, verification, file form; no algorithms.
//!
//! Read in this order: [`op`] (what a network may compute), [`graph`], [`machine`] and [`timing`] (what executes it),
//! [`layout`] (how tensors lie in words), [`isa`] and [`program`] (what is executed).

pub mod dtype;
pub mod error;
pub mod graph;
pub mod index;
pub mod op;
pub mod quant;
pub mod shape;

pub use dtype::DType;
pub use error::Error;
pub use graph::{Graph, GraphBuilder, Layer, Source, Tensor};
pub use index::{DescriptorId, LayerId, TensorId};
pub use op::{BinaryKind, Divisor, Epilogue, LinearTap, Op, PadMode, ReduceKind, Table, Window};
pub use quant::{Quant, Requant};
