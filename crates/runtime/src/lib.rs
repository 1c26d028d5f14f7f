//! From a user's arrays to cache words and back, and a program ready to run between them.
//!
//! ```text
//! array --convert--> codes --arrange--> words --machine--> words --arrange--> codes --convert--> array
//!       scale, cast        pad, Tensor2Words                     Words2Tensor, unmask     scale, cast
//! ```
//!
//! [`Port`] packs and unpacks one input or output; [`Session`] runs a program on arrays; [`StateMemory`] holds what stays on the
//! device between runs. Everything follows from the
//! program's ports, which know the model's names, shapes, axis orders, types and scales. All arrays are bytes, row-major and
//! little-endian.
//!
//! The arithmetic is `docs/arithmetic.md`'s: `clamp(RNE(x / S) + Z)`, the quotient in float64, NaN as real zero, and back
//! `(q - Z) * S` in float64, rounded once to the model's type.
#![forbid(unsafe_code)]

mod arrange;
mod convert;
mod port;
mod session;
mod state;

pub use port::{Codec, Error, Port};
pub use session::{Mode, RunResult, Session};
pub use state::{StateError, StateMemory};
