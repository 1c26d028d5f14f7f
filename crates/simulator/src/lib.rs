//! Executes programs cycle by cycle and graphs bit for bit.
//!
//! [`interpret`] is the definition of a network's integers; everything else in this crate must reproduce them.
#![forbid(unsafe_code)]

//!
//! [`simulate`] runs a [`tpuflow_ir::Program`]: instructions start when their tokens are there (`queue`), in the units'
//! pipelines (`dma`; `matrix` with `feeder`; `stream` with `walk`), which meet at the banks (`bank`) and the DDR channels
//! and are stepped by `machine` through every cycle; `timeline` does the same, stretches at a time. `values` executes each instruction on the
//! bytes of the simulated memories (`memory`); `check` and `order` report whatever breaks a rule. [`Serial`] executes the
//! same instructions without time.

mod access_pattern;
pub mod array;
mod bank;
mod check;
mod checked_program;
mod completion;
mod context;
pub mod counters;
mod devices;
mod dma;
pub mod error;
mod feeder;
pub mod hazard;
pub mod interpret;
mod machine;
mod matrix;
mod memory;
mod order;
mod queue;
pub mod run;
mod serial;
pub mod signals;
mod stream;
mod timeline;
mod values;

pub use devices::{DeviceRun, Devices};
pub use error::SimError;
pub use hazard::{Hazard, Rule};
pub use interpret::{Interpreter, Keep, StateRows, Tensors};
pub use machine::{signals_of, simulate, simulate_again};
pub use run::{ArrayModel, Options, Run};
pub use serial::{Serial, Stepper};
pub use signals::Signals;
pub use values::ProgramCache;
