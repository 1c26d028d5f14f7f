//! Compiling graphs, and the machines there are.

use pyo3::prelude::*;
use tpuflow_ir::Machine;
use tpuflow_scheduler::{Options, checker};

use crate::error::Failure;
use crate::graph::Graph;
use crate::simulator::Program;

/// Registers the functions of this room.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(schedule, module)?)?;
    module.add_function(wrap_pyfunction!(check, module)?)?;
    module.add_function(wrap_pyfunction!(machine_text, module)?)?;
    module.add_function(wrap_pyfunction!(machine_presets, module)?)
}

/// Compiles a graph for the machine of a TOML text; `origin` names that text in errors.
#[pyfunction]
#[pyo3(signature = (graph, machine_toml, level, *, seed=0, time_limit=None, origin="machine"))]
fn schedule(
    py: Python<'_>,
    graph: &Graph,
    machine_toml: &str,
    level: u8,
    seed: u64,
    time_limit: Option<f64>,
    origin: &str,
) -> PyResult<Program> {
    let machine = Machine::parse(origin, machine_toml).map_err(Failure::from)?;
    let options = Options { level, seed, time_limit, ..Options::default() };
    let program = py.detach(|| tpuflow_scheduler::schedule(&graph.graph, &machine, &options));
    Ok(Program::new(program.map_err(Failure::from)?))
}

/// What is wrong with a program: with the rules of the machine and, given its graph, with the values it computes.
#[pyfunction]
fn check(py: Python<'_>, graph: Option<&Graph>, program: &Program) -> Vec<String> {
    let checked = py.detach(|| match graph {
        Some(graph) => checker::check(&graph.graph, &program.program),
        None => checker::check_rules(&program.program),
    });
    checked.err().into_iter().flatten().map(|violation| violation.to_string()).collect()
}

/// The TOML text of a preset.
#[pyfunction]
fn machine_text(name: &str) -> PyResult<&'static str> {
    let known = Machine::preset(name).map_err(Failure::from)?;
    Ok(Machine::preset_text(&known.name).unwrap_or_default())
}

/// Names of the presets, the default first.
#[pyfunction]
fn machine_presets() -> Vec<String> {
    Machine::presets()
}
