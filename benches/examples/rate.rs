//! How fast programs are simulated: the least time of some runs, and simulated cycles a second.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example rate -- [-n RUNS] [-v] PROGRAM.tpu|GRAPH.tpuq...
//! ```
//! `-v` computes values, too, of random inputs; what the first run packs serves the others, and so does the time it finds out,
//! where that does not depend on values. Of a graph, the time of its integers alone.

#![expect(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tpuflow_benches::Random;
use tpuflow_ir::{Graph, Program};
use tpuflow_kernels::Values;
use tpuflow_simulator::{Interpreter, Keep, Options, ProgramCache, simulate_again};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut runs = 5;
    if let Some(at) = args.iter().position(|arg| arg == "-n").filter(|at| at + 1 < args.len()) {
        runs = args.remove(at + 1).parse()?;
        args.remove(at);
    }
    let options = Options { values: args.iter().any(|arg| arg == "-v"), ..Options::default() };
    println!("{:24} {:>12} {:>12} {:>10} {:>10}", "program", "instructions", "cycles", "ms", "M cycles/s");
    for path in args.iter().filter(|arg| !arg.starts_with('-')).map(Path::new) {
        let name = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "tpuq") {
            println!("{name:24} {:12} {:12} {:10.2}", "graph", "", graph_seconds(path, runs)? * 1e3);
            continue;
        }
        let program = Program::load(path)?;
        let ports = program.inputs.iter().filter(|_| options.values);
        let inputs: Vec<Vec<u8>> =
            ports.map(|port| Random(2).bytes(port.shape.iter().product::<usize>() * port.dtype.bytes())).collect();
        let kept = ProgramCache::default();
        let (mut seconds, mut cycles) = (f64::INFINITY, 0);
        for _ in 0..runs {
            let start = Instant::now();
            cycles = simulate_again(&program, &inputs, &options, &kept)?.cycles;
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        println!(
            "{name:24} {:12} {cycles:12} {:10.2} {:10.1}",
            program.instructions.len(),
            seconds * 1e3,
            cycles as f64 / seconds / 1e6
        );
    }
    Ok(())
}

/// Least time of a run of the integer graph.
fn graph_seconds(path: &Path, runs: usize) -> Result<f64, Box<dyn Error>> {
    let graph = Arc::new(Graph::load(path)?);
    let codes = |id| {
        let tensor = graph.tensor(id);
        Values::from_le_bytes(tensor.dtype, &Random(2).bytes(tensor.elements() * tensor.dtype.bytes()))
    };
    let inputs: Vec<Values> = graph.inputs.iter().map(|&id| codes(id)).collect();
    let interpreter = Interpreter::new(Arc::clone(&graph))?;
    let mut seconds = f64::INFINITY;
    for _ in 0..runs {
        let inputs = inputs.clone();
        let start = Instant::now();
        interpreter.run(inputs, Keep::Outputs)?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
}
