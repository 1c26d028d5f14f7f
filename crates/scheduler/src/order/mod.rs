//! The order of instructions: list scheduling across layers, and loads moved ahead.

pub(crate) mod list_schedule;
pub(crate) mod prefetch;
