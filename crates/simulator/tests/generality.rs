//! Whatever a graph may hold: random networks without manners, built at both levels on machines with next to no cache, proven,
//! simulated, and compared with the interpreter.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../scheduler/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::Random;
use common::wild::{lone_pixel, wild};
use tpuflow_ir::{DType, Graph, Machine};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

fn inputs(graph: &Graph, seed: u64) -> Vec<Values> {
    let mut random = Random(seed);
    let codes = |id: &tpuflow_ir::TensorId| {
        let tensor = graph.tensor(*id);
        let (lo, hi) = if tensor.dtype == DType::I32 { (0, 3) } else { tensor.dtype.range() };
        let bytes: Vec<u8> = (0..tensor.elements())
            .flat_map(|_| random.range(lo, hi).to_le_bytes().into_iter().take(tensor.dtype.bytes()).collect::<Vec<_>>())
            .collect();
        Values::from_le_bytes(tensor.dtype, &bytes)
    };
    graph.inputs.iter().map(codes).collect()
}

/// Words of 8 bytes, `banks` x 64 words of cache.
fn tiny(banks: u32) -> Machine {
    let mut machine = Machine::preset("32x32_fpga").unwrap();
    machine.name = format!("tiny{banks}");
    (machine.array.rows, machine.array.columns, machine.array.accumulators) = (8, 8, 32);
    (machine.cache.word_bytes, machine.cache.banks, machine.cache.words) = (8, banks, 64);
    (machine.pdp.lanes, machine.ewp.lanes) = (8, 4);
    machine.ewp_cache.words = 512;
    machine
}

/// What goes wrong with a graph on a machine, if anything.
fn trial(graph: &Graph, machine: &Machine, level: u8, seed: u64) -> Result<(), String> {
    let program = schedule(graph, machine, &ScheduleOptions { level, ..ScheduleOptions::default() });
    let program = program.map_err(|e| format!("schedule: {e}"))?;
    if let Some(reason) = &program.fallback {
        return Err(format!("fallback: {reason}"));
    }
    let given = inputs(graph, seed);
    let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    let run = simulate(&program, &bytes, &Options::default()).map_err(|e| format!("simulate: {e}"))?;
    if run.cycles < program.bounds.binding().1 {
        return Err(format!("bounds: {} cycles, bound {:?}", run.cycles, program.bounds.binding()));
    }
    let expected = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given, Keep::Outputs).unwrap();
    for (n, id) in graph.outputs.iter().enumerate() {
        if expected.get(*id).unwrap().to_le_bytes() != run.outputs[n] {
            return Err(format!("output {n} \"{}\" differs", graph.tensor(*id).name));
        }
    }
    Ok(())
}

/// What goes wrong with wild networks; `too large` is no fault where next to nothing fits.
fn faults(seeds: std::ops::Range<u64>) -> Vec<String> {
    let machines = [tiny(8), tiny(16), tiny(64), Machine::preset("32x32_fpga").unwrap()];
    let mut faults = Vec::new();
    for seed in seeds {
        let graph = wild(seed, 7, 3000);
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        let machine = &machines[seed as usize % machines.len()];
        for level in [1, 5] {
            let outcome = std::panic::catch_unwind(|| trial(&graph, machine, level, seed));
            match outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                Err(what) if !(what.contains("smallest piece") && machine.name == "tiny8") => {
                    faults.push(format!("seed {seed} {} O{level}: {what}", machine.name));
                }
                _ => {}
            }
        }
    }
    faults
}

#[test]
fn wild_networks_everywhere() {
    let faults = faults(300..336);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_single_pixel() {
    for channels in [1, 3, 7, 129, 300] {
        let graph = lone_pixel(channels, 2 * channels - 1);
        for machine in Machine::presets() {
            for level in [1, 5] {
                let machine = Machine::preset(&machine).unwrap();
                trial(&graph, &machine, level, 1).unwrap_or_else(|e| panic!("{channels} on {}: {e}", machine.name));
            }
        }
    }
}
