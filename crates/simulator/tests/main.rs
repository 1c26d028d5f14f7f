//! All tests of the crate in one program, which is linked once; `cargo test -p tpuflow-simulator --test main MODULE` runs some.

#![allow(clippy::unwrap_used, reason = "tests")]

mod array;
mod attention;
mod blocks;
mod build;
#[path = "../../scheduler/tests/common/mod.rs"]
mod common;
mod external_memory;
mod generality;
mod grouped_queries;
mod hazards;
mod key_blocks;
mod laws;
mod networks;
mod operators;
mod outputs_without_padding;
mod packed_tables;
mod parallel;
mod parts;
mod ports_in_parts;
mod products;
mod programs;
mod states;
mod streams;
mod tensor_parallel;
mod thousands;
mod trial;
mod twin;
mod wide_pixels;
