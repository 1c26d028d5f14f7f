//! The Python extension module `tpuflow._core`: one file per crate, no logic.
#![forbid(unsafe_code)]

mod arrays;
mod check;
mod error;
mod graph;
mod kernels;
mod operators;
mod runtime;
mod scheduler;
mod simulator;
mod statistics;
mod units;

use pyo3::prelude::*;

/// The module table: each module registers what it offers.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    check::register(module)?;
    module.add_function(wrap_pyfunction!(memory_limit, module)?)?;
    module.add_function(wrap_pyfunction!(set_memory_limit, module)?)?;
    graph::register(module)?;
    kernels::register(module)?;
    operators::register(module)?;
    runtime::register(module)?;
    scheduler::register(module)?;
    simulator::register(module)?;
    statistics::register(module)?;
    units::register(module)?;
    Ok(())
}

/// Most bytes of memory a file, a program or a network may ask for.
#[pyfunction]
fn memory_limit() -> u64 {
    tpuflow_ir::memory::limit()
}

/// Sets it for the process; 0: what the computer has free.
#[pyfunction]
fn set_memory_limit(size: u64) {
    tpuflow_ir::memory::set_limit(size);
}
