//! The Python extension module `tpuflow._core`: one file per room, no logic.
#![forbid(unsafe_code)]

mod arrays;
mod check;
mod error;
mod graph;
mod kernels;
mod runtime;
mod scheduler;
mod simulator;
mod statistics;

use pyo3::prelude::*;

/// The module table: each room registers what it offers.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    check::register(module)?;
    graph::register(module)?;
    kernels::register(module)?;
    runtime::register(module)?;
    scheduler::register(module)?;
    simulator::register(module)?;
    statistics::register(module)?;
    Ok(())
}
