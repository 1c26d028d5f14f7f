//! Executes programs cycle by cycle and graphs bit for bit.

pub mod array;
