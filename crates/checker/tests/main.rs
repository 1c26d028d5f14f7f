//! All tests of the crate in one program, which is linked once; `cargo test -p tpuflow-checker --test main MODULE` runs some.

#![allow(clippy::unwrap_used, reason = "tests")]

mod attack;
#[path = "../../scheduler/tests/common/mod.rs"]
mod common;
mod faults;
