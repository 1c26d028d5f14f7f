//! The vocabulary both sides of the compiler share: the [`Graph`], the [`Machine`] with its timing formulas, the
//! instruction set, and the [`Program`]. Construction, verification, file form; no algorithms.
//!
//! Read in this order: [`op`] (what a network may compute), [`graph`], [`machine`] and [`timing`] (what executes it),
//! [`layout`] (how tensors lie in words), [`isa`] and [`program`] (what is executed).

pub mod access;
mod allocation;
pub mod arithmetic;
pub mod atomic;
pub mod constants;
mod digest;
pub mod dtype;
pub mod error;
pub mod exchange;
pub mod file;
pub mod function;
pub mod graph;
pub mod image;
pub mod index;
pub mod isa;
pub mod layout;
pub mod limits;
pub mod machine;
mod machine_file;
pub mod memory;
pub mod op;
mod operands;
pub mod packed;
pub mod program;
pub mod program_file;
pub mod quant;
pub mod real;
mod relocation;
pub mod shape;
pub mod state;
pub mod stream;
pub mod table;
pub mod text;
pub mod tiling;
pub mod timing;
pub mod width;
mod window;

pub use arithmetic::Arithmetic;
pub use dtype::DType;
pub use error::Error;
pub use exchange::Exchange;
pub use function::{Finish, Function};
pub use graph::{Graph, GraphBuilder, Layer, Source, Tensor};
pub use image::Image;
pub use index::{BankId, DescriptorId, InstructionId, LayerId, TensorId};
pub use isa::{Descriptor, Instruction, Unit, Wait, Work};
pub use layout::{Space, View};
pub use machine::Machine;
pub use op::{BinaryKind, Divisor, Epilogue, LinearTap, Measure, Op, PadMode, ReduceKind, Table, TableEntry, Window};
pub use packed::Packed;
pub use program::{Bounds, Port, PortPart, Program};
pub use quant::{Quant, Requant};
pub use real::Real;
pub use state::{PositionedTransfer, State, StateRegion};
pub use stream::{IterationWait, Repeated, Stream};
pub use tiling::{Parts, Tiling};
