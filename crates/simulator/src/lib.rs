//! Executes programs cycle by cycle and graphs bit for bit.
//!
//! [`interpret`] is the definition of a network's integers; everything else in this crate must reproduce them.
#![forbid(unsafe_code)]

pub mod array;
pub mod error;
pub mod interpret;

pub use error::SimError;
pub use interpret::{Interpreter, Keep};
