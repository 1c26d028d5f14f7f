//! All tests of the crate in one program, which is linked once; `cargo test -p tpuflow-scheduler --test main MODULE` runs some.

#![allow(clippy::unwrap_used, reason = "tests")]

mod alloc;
mod alloc_exact;
mod common;
mod parameters;
mod programs;
