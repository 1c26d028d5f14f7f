//! Graph and program agree in every bit, at every level and on every machine, and no run is shorter than a lower bound.

use std::sync::Arc;

use crate::common::{Random, random, residual};
use crate::trial::STEPS;
use tpuflow_ir::{Graph, Machine, Program};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, ScheduleError, schedule};
use tpuflow_simulator::{Interpreter, Keep, Options, Run, simulate};

/// Random codes for every input; indices stay inside every table of the test networks.
fn inputs(graph: &Graph, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random(seed);
    let codes = |id: &tpuflow_ir::TensorId| {
        let tensor = graph.tensor(*id);
        let (low, high) = if tensor.quant.is_some() { tensor.dtype.range() } else { (0, 7) };
        let element = |_| random.range(low, high).to_le_bytes()[..tensor.dtype.bytes()].to_vec();
        (0..tensor.elements()).flat_map(element).collect()
    };
    graph.inputs.iter().map(codes).collect()
}

fn interpreted(graph: &Graph, inputs: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    // A random graph whose sums may exceed their width is no graph to test with.
    let interpreter = Interpreter::new(Arc::new(graph.clone())).ok()?;
    let values =
        graph.inputs.iter().zip(inputs).map(|(&id, bytes)| Values::from_le_bytes(graph.tensor(id).dtype, bytes));
    let tensors = interpreter.run(values.collect(), Keep::Outputs).unwrap();
    let of = |id: &tpuflow_ir::TensorId| tensors.iter().find(|(t, _)| t == id).unwrap().1.to_le_bytes();
    Some(graph.outputs.iter().map(of).collect())
}

fn compile(graph: &Graph, machine: &Machine, level: u8) -> Result<Program, ScheduleError> {
    schedule(graph, machine, &ScheduleOptions { level, budget_steps: STEPS, ..ScheduleOptions::default() })
}

/// Runs a program; its outputs must be `expected` and its cycles no fewer than any bound.
fn agree(program: &Program, inputs: &[Vec<u8>], expected: &[Vec<u8>], what: &str) -> Run {
    let run = simulate(program, inputs, &Options::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (index, (found, expected)) in run.outputs.iter().zip(expected).enumerate() {
        let name = &program.outputs[index].name;
        if let Some(at) = (0..expected.len()).find(|&i| found.get(i) != expected.get(i)) {
            panic!("{what}: output \"{name}\" differs from byte {at} on");
        }
        assert_eq!(found.len(), expected.len(), "{what}: output \"{name}\"");
    }
    for (name, bound) in program.bounds.by_name() {
        assert!(run.cycles >= bound, "{what}: {} cycles beat the bound {name} of {bound}", run.cycles);
    }
    run
}

/// Words of 8 bytes and a cache of `kilobytes`.
fn tiny(kilobytes: u32) -> Machine {
    let mut machine = Machine::preset("32x32_fpga").unwrap();
    machine.name = format!("tiny{kilobytes}");
    (machine.array.rows, machine.array.columns, machine.array.accumulators) = (8, 8, 32);
    (machine.cache.word_bytes, machine.cache.banks, machine.cache.words) = (8, 2 * kilobytes, 64);
    (machine.pdp.lanes, machine.ewp.lanes) = (8, 4);
    machine.ewp_cache.words = 512;
    machine
}

#[test]
fn residual_network_on_every_preset() {
    let graph = residual(11);
    let inputs = inputs(&graph, 5);
    let expected = interpreted(&graph, &inputs).unwrap();
    for name in Machine::presets() {
        let machine = Machine::preset(&name).unwrap();
        let cycles = [1, 5].map(|level| {
            let program = compile(&graph, &machine, level).unwrap();
            assert_eq!(program.fallback, None);
            agree(&program, &inputs, &expected, &format!("{name} level {level}")).cycles
        });
        assert!(cycles[1] < cycles[0], "{name}: level 5 takes {} cycles, level 1 {}", cycles[1], cycles[0]);
    }
}

#[test]
fn random_networks_agree_in_every_bit() {
    let machines = [
        Machine::preset("128x128_asic").unwrap(),
        Machine::preset("32x32_fpga").unwrap(),
        Machine::preset("64x64_edge").unwrap(),
        tiny(8),
        tiny(32),
    ];
    let (mut runs, mut graphs) = (0, 0);
    for seed in 0..80 {
        let graph = random(1000 + seed, 8);
        let inputs = inputs(&graph, seed);
        let Some(expected) = interpreted(&graph, &inputs) else { continue };
        graphs += 1;
        // Every graph on two machines: each machine with each of the others in turn.
        for machine in [0, 1 + seed / 5 % 4].map(|step| &machines[((seed + step) % 5) as usize]) {
            for level in [1, 5] {
                let what = format!("seed {seed}, {}, level {level}", machine.name);
                // A tenth of the search: it is bits that are compared, not cycles.
                let options = ScheduleOptions { level, budget_steps: 20, ..ScheduleOptions::default() };
                match schedule(&graph, machine, &options) {
                    Ok(program) => {
                        assert_eq!(program.fallback, None, "{what}");
                        agree(&program, &inputs, &expected, &what);
                        runs += 1;
                    }
                    Err(ScheduleError::Capacity { .. }) if machine.name.starts_with("tiny") => {}
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
    assert!(graphs > 55 && runs > 170, "{graphs} graphs, {runs} runs");
}

#[test]
fn predictions_are_close() {
    let graph = residual(3);
    let machine = Machine::preset("128x128_asic").unwrap();
    for level in [1, 5] {
        let program = compile(&graph, &machine, level).unwrap();
        let run = simulate(&program, &inputs(&graph, 1), &Options { values: false, ..Options::default() }).unwrap();
        let ratio = program.predicted_cycles as f64 / run.cycles as f64;
        assert!((0.85..1.1).contains(&ratio), "level {level}: {} predicted, {}", program.predicted_cycles, run.cycles);
    }
}
