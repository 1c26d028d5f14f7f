//! Checking programs: by the checker, and their figures by the bounds and a run of the simulator.

use pyo3::prelude::*;
use tpuflow_bounds::{GraphBounds, bounds};
use tpuflow_ir::{Bounds, Graph as Network, Program as Compiled};

use crate::error::Failure;
use crate::graph::Graph;
use crate::simulator::Program;

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(check, module)?)?;
    module.add_function(wrap_pyfunction!(lower_bounds, module)?)
}

/// Lower bounds of every program of a graph on the machine of a TOML text as JSON: of its cycles by name, and of its counters.
/// `origin` names that text in errors. Programs that compute layers in parts may have others: theirs are in their metadata.
#[pyfunction]
#[pyo3(signature = (graph, machine_toml, *, origin="machine"))]
fn lower_bounds(py: Python<'_>, graph: &Graph, machine_toml: &str, origin: &str) -> PyResult<String> {
    let machine = tpuflow_ir::Machine::parse(origin, machine_toml).map_err(Failure::from)?;
    let graph = &graph.graph;
    let GraphBounds { whole: cycles, interval, counters, .. } = py.detach(|| bounds(graph, &machine));
    let found = serde_json::json!({ "cycles": cycles, "interval": interval, "counters": counters });
    Ok(serde_json::to_string(&found).map_err(|error| Failure::program(error.to_string()))?)
}

/// The violations of a program: of the rules of the machine and, given its graph, with the values it computes; and where it
/// breaks none, with the cycles and bounds it states.
#[pyfunction]
fn check(py: Python<'_>, graph: Option<&Graph>, program: &Program) -> Vec<String> {
    let (graph, program) = (graph.map(|graph| &*graph.graph), &program.program);
    py.detach(|| {
        let checked = match graph {
            Some(graph) => tpuflow_checker::check(graph, program),
            None => tpuflow_checker::check_rules(program),
        };
        match checked {
            Err(violations) => violations.iter().map(ToString::to_string).collect(),
            Ok(()) => {
                let of_graph = graph.into_iter().flat_map(|g| limits(g, program));
                cycles(program).into_iter().chain(interval(program)).chain(of_graph).collect()
            }
        }
    })
}

/// The difference between the cycles of a run and those a program states.
fn cycles(program: &Compiled) -> Option<String> {
    let untraced = tpuflow_simulator::Options { values: false, ..tpuflow_simulator::Options::default() };
    match tpuflow_simulator::simulate(program, &[], &untraced) {
        Err(error) => Some(format!("the simulator refuses it: {error}")),
        Ok(run) => differs("predicted cycles", run.cycles, program.predicted_cycles),
    }
}

/// The difference between the cycles from run to run of a stream and those the program states.
fn interval(program: &Compiled) -> Option<String> {
    let stated = program.stream.as_ref()?.predicted_interval;
    let untraced = tpuflow_simulator::Options { values: false, ..tpuflow_simulator::Options::default() };
    let cycles = |runs| -> Result<u64, Box<dyn std::error::Error>> {
        Ok(tpuflow_simulator::simulate(&program.unrolled(runs)?, &[], &untraced)?.cycles)
    };
    match tpuflow_ir::stream::interval(cycles) {
        Err(error) => Some(format!("the stream of runs: {error}")),
        Ok(interval) => differs("predicted cycles from run to run", interval, stated),
    }
}

/// The differences between the bounds of the graph and those a program states.
fn limits(graph: &Network, program: &Compiled) -> Vec<String> {
    let parts = match tpuflow_checker::in_parts(graph, &program.tilings) {
        Ok(parts) => parts,
        Err(error) => return vec![error.to_string()],
    };
    let found = bounds(&parts, &program.machine);
    let of_parts = |own: &Bounds, of: fn(&GraphBounds) -> &Bounds| {
        if program.tilings.is_empty() { own.clone() } else { own.min(of(&bounds(graph, &program.machine))) }
    };
    let whole = of_parts(&found.whole, |bounds| &bounds.whole);
    let interval = program.stream.as_ref().map(|stream| (of_parts(&found.interval, |b| &b.interval), &stream.bounds));
    let of_runs = interval.iter().flat_map(|(computed, stated)| {
        let named = computed.by_name().into_iter().zip(stated.by_name());
        named.filter_map(|((name, computed), (_, stated))| {
            differs(&format!("bound {name} from run to run"), computed, stated)
        })
    });
    let named = whole.by_name().into_iter().zip(program.bounds.by_name());
    let of_all =
        named.filter_map(|((name, computed), (_, stated))| differs(&format!("bound {name}"), computed, stated));
    let of_layers = found.layers.iter().zip(&program.layers).filter_map(|(own, layer)| {
        let name = format!("bound of layer \"{}\"", layer.name);
        differs(&name, format!("{} ({})", own.cycles, own.binding), format!("{} ({})", layer.bound, layer.binding))
    });
    // Bounds are corrected now and then; nothing a program does depends on them.
    let remedy = |difference: String| {
        format!("{difference}; an earlier version computed it otherwise, or it was edited: build the program again")
    };
    of_all.chain(of_layers).chain(of_runs).map(remedy).collect()
}

fn differs<T: PartialEq + std::fmt::Display>(what: &str, computed: T, stated: T) -> Option<String> {
    (computed != stated).then(|| format!("{what}: expected {computed}, found {stated}"))
}
