//! Compiling graphs, and the machines there are.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tpuflow_ir::Machine;
use tpuflow_scheduler::Options;
use tpuflow_scheduler::alloc::check::{aligned, validate};
use tpuflow_scheduler::alloc::ladder::{Effort, solve_by_effort};
use tpuflow_scheduler::alloc::{Item, Problem, Solution};
use tpuflow_scheduler::tensor_parallel::{self, DeviceGraph, Slice};

use crate::error::Failure;
use crate::graph::Graph;
use crate::simulator::Program;

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(schedule, module)?)?;
    module.add_function(wrap_pyfunction!(in_parts, module)?)?;
    module.add_function(wrap_pyfunction!(divide, module)?)?;
    module.add_function(wrap_pyfunction!(allocate, module)?)?;
    module.add_function(wrap_pyfunction!(check_allocation, module)?)?;
    module.add_function(wrap_pyfunction!(machine_text, module)?)?;
    module.add_function(wrap_pyfunction!(machine_json, module)?)?;
    module.add_function(wrap_pyfunction!(machine_presets, module)?)
}

/// Compiles a graph for the machine of a TOML text; `origin` names that text in errors.
#[pyfunction]
#[pyo3(signature = (
    graph, machine_toml, level, *, parameters_json=None, tiling_json=None, seed=0, time_limit=None, origin="machine", stream=false
))]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
fn schedule(
    py: Python<'_>,
    graph: &Graph,
    machine_toml: &str,
    level: u8,
    parameters_json: Option<&str>,
    tiling_json: Option<&str>,
    seed: u64,
    time_limit: Option<f64>,
    origin: &str,
    stream: bool,
) -> PyResult<Program> {
    let parameters = parameters_json.map(serde_json::from_str).transpose();
    let parameters = parameters.map_err(|error| PyValueError::new_err(format!("parameters: {error}")))?;
    let tiling = tiling_json.map(serde_json::from_str).transpose();
    let tiling = tiling.map_err(|error| PyValueError::new_err(format!("tiling: {error}")))?.unwrap_or_default();
    let machine = Machine::parse(origin, machine_toml).map_err(Failure::from)?;
    let options = Options { level, parameters, seed, time_limit, tiling, stream, ..Options::default() };
    let untraced = tpuflow_simulator::Options { values: false, ..tpuflow_simulator::Options::default() };
    let timing = |program: &_| Some(tpuflow_simulator::simulate(program, &[], &untraced).ok()?.cycles);
    let program = py.detach(|| tpuflow_scheduler::schedule_by(&graph.graph, &machine, &options, &timing));
    Ok(Program::new(program.map_err(Failure::from)?))
}

/// By tensor of a graph in parts: which tensor of the original it is a box of, and by axis from where to where.
type Boxes = Vec<(usize, Vec<(usize, usize)>)>;

/// The graph whose layers are those of a program, `graph` itself or with its layers in parts where the program has them so; and
/// by its tensors, the boxes of tensors of `graph` that they hold.
#[pyfunction]
fn in_parts(graph: &Graph, program: &Program) -> PyResult<(Graph, Boxes)> {
    let parts = tpuflow_checker::in_parts_with_boxes(&graph.graph, &program.program.tilings);
    let (parts, boxes) = parts.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((Graph::new(parts), boxes.into_iter().map(|(of, span)| (of.index(), span)).collect()))
}

/// By rank, the graph of a device, with its inputs and outputs as parts of tensors of the network.
type DeviceGraphs = Vec<(Graph, Boxes, Boxes)>;

/// A network divided among devices: by rank the graph, with its inputs and outputs as parts of tensors of `graph`; and all of them as
/// one graph, which computes the network.
#[pyfunction]
fn divide(py: Python<'_>, graph: &Graph, devices: usize) -> PyResult<(DeviceGraphs, Graph)> {
    let division = py.detach(|| tensor_parallel::divide(&graph.graph, devices)).map_err(Failure::from)?;
    let boxes = |found: &mut dyn Iterator<Item = &Slice>| -> Boxes {
        found.map(|slice| (slice.tensor.index(), slice.region.clone())).collect()
    };
    let device = |own: DeviceGraph| {
        let (inputs, outputs) = (boxes(&mut own.inputs()), boxes(&mut own.outputs()));
        (Graph::new(own.graph), inputs, outputs)
    };
    Ok((division.devices.into_iter().map(device).collect(), Graph::new(division.joined)))
}

/// The TOML text of a preset.
#[pyfunction]
fn machine_text(name: &str) -> PyResult<&'static str> {
    let known = Machine::preset(name).map_err(Failure::from)?;
    Ok(Machine::preset_text(&known.name).unwrap_or_default())
}

/// All parameters of the machine of a TOML text as JSON, once they make sense; `origin` names that text in errors.
#[pyfunction]
fn machine_json(origin: &str, toml: &str) -> PyResult<String> {
    let machine = Machine::parse(origin, toml).map_err(Failure::from)?;
    Ok(serde_json::to_string(&machine).map_err(|error| Failure::program(error.to_string()))?)
}

/// Names of the presets, the default first.
#[pyfunction]
fn machine_presets() -> Vec<String> {
    Machine::presets()
}

/// Addresses for buffers `(first, last, size)`, alive at both ends: offsets, lower bound of the height, steps searched.
#[pyfunction]
#[pyo3(signature = (items, alignments, *, enough, steps, seed, go_on))]
fn allocate(
    py: Python<'_>,
    items: Vec<(u32, u32, u64)>,
    alignments: Vec<u64>,
    enough: u64,
    steps: u64,
    seed: u64,
    go_on: Py<PyAny>,
) -> PyResult<(Vec<u64>, u64, u64)> {
    let problem = Problem { items: items.into_iter().map(item).collect(), capacity: enough };
    let mut raised = None;
    let mut watch = |steps: u64| {
        let answer = Python::attach(|py| go_on.call1(py, (steps,))?.extract::<bool>(py));
        answer.unwrap_or_else(|error| {
            raised = Some(error);
            false
        })
    };
    let found = py.detach(|| solve_by_effort(&problem, &alignments, &Effort { enough, steps, seed }, &mut watch));
    raised.map_or(Ok((found.solution.offsets, found.bound, found.steps)), Err)
}

/// The first fault of the addresses of buffers, if there is one.
#[pyfunction]
fn check_allocation(
    py: Python<'_>,
    items: Vec<(u32, u32, u64)>,
    alignments: Vec<u64>,
    offsets: Vec<u64>,
    capacity: u64,
) -> Option<String> {
    let problem = Problem { items: items.into_iter().map(item).collect(), capacity };
    let solution = Solution { offsets, height: capacity };
    let checked = py.detach(|| validate(&problem, &solution).and_then(|()| aligned(&alignments, &solution)));
    checked.err().map(|fault| fault.to_string())
}

fn item((first, last, size): (u32, u32, u64)) -> Item {
    Item { first, last, size }
}
