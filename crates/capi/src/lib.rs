//! `libtpuflow`: programs from C. Load, describe, pack, run, unpack, free.
//!
//! ```text
//! tpuflow_program_load -> program --tpuflow_program_codec--> codec
//! array --tpuflow_codec_pack--> words --tpuflow_program_run--> words --tpuflow_codec_unpack--> array
//! programs with states: tpuflow_state_new -> state, then tpuflow_program_step in place of tpuflow_program_run
//! ```
//!
//! The C side is `include/tpuflow.h`, which cbindgen writes from here. This crate only translates: handles are boxes of what
//! `tpuflow-runtime` gives, every function is one call of it.
//!
//! Invariants: no unwinding crosses the border ([`status::guard`]); outputs are written only when a call succeeds; what a
//! caller may get wrong (null, sizes, numbers) is an error, except pointers that lead nowhere, which the contract of each
//! function excludes.
#![allow(unsafe_code, reason = "a C interface takes pointers; every block says what the caller has promised")]

mod codec;
mod memory;
mod program;
mod state;
mod status;

pub use codec::{tpuflow_codec, tpuflow_dtype, tpuflow_port};
pub use program::{tpuflow_figures, tpuflow_mode, tpuflow_program};
pub use state::tpuflow_state;
pub use status::tpuflow_status;
