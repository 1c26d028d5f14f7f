//! All tests of the crate in one program, which is linked once; `cargo test -p tpuflow-bounds --test main MODULE` runs some.

#![allow(clippy::unwrap_used, reason = "tests")]

mod adversaries;
#[path = "../../scheduler/tests/common/mod.rs"]
mod common;
mod counters;
mod exhaustive;
mod hand;
mod hand_counted;
mod heads;
mod recorded;
mod search;
mod tight;
#[path = "../../simulator/tests/trial/mod.rs"]
mod trial;
