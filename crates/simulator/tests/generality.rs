//! Whatever a graph may hold: random networks of any form, built at both levels on machines with next to no cache, proven,
//! simulated, and compared with the interpreter.

use std::sync::Arc;

use crate::common::tiny;
use crate::common::wild::{lone_pixel, long_lines, wild, wild_floats};
use crate::trial::trial;
use tpuflow_ir::{DType, Graph, Machine};
use tpuflow_simulator::{Interpreter, Options};

/// What goes wrong with wild networks; `too large` is no fault where next to nothing fits.
fn faults(seeds: std::ops::Range<u64>, network: fn(u64, usize, usize) -> Graph) -> Vec<String> {
    let machines = [tiny(8), tiny(16), tiny(64), Machine::preset("32x32_fpga").unwrap()];
    let mut faults = Vec::new();
    let (mut tried, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        let graph = network(seed, 7, 3000);
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        tried += 1;
        let machine = &machines[seed as usize % machines.len()];
        for level in [1, 5] {
            let outcome = std::panic::catch_unwind(|| trial(&graph, machine, level, seed, &Options::default()));
            match outcome.unwrap_or_else(|_| Err("panic".to_owned())) {
                Err(what) if !(what.contains("smallest piece") && ["tiny8", "tiny16"].contains(&&*machine.name)) => {
                    faults.push(format!("seed {seed} {} O{level}: {what}", machine.name));
                }
                _ => {}
            }
        }
    }
    assert!(tried * 10 >= count * 7, "only {tried} networks of {count}");
    faults
}

fn range(first: u64, count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let first = number("WILD_FIRST").unwrap_or(first);
    first..first + number("WILD_COUNT").unwrap_or(count)
}

#[test]
fn wild_networks_everywhere() {
    let faults = faults(range(300, 36), wild);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn wild_networks_of_floats() {
    let faults = faults(range(0, 28), wild_floats);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn lines_longer_than_the_cache() {
    for seed in 0..2 {
        let float = (seed % 2 == 1).then_some(DType::F16);
        let graph = long_lines(seed, float);
        for (machine, level) in [(tiny(8), 1), (tiny(8), 5), (tiny(16), 5), (tiny(64), 1)] {
            trial(&graph, &machine, level, seed, &Options::default())
                .unwrap_or_else(|e| panic!("seed {seed} on {} O{level}: {e}", machine.name));
        }
    }
}

#[test]
fn a_single_pixel() {
    for channels in [1, 3, 7, 129, 300] {
        let graph = lone_pixel(channels, 2 * channels - 1);
        for machine in Machine::presets() {
            for level in [1, 5] {
                let machine = Machine::preset(&machine).unwrap();
                trial(&graph, &machine, level, 1, &Options::default())
                    .unwrap_or_else(|e| panic!("{channels} on {}: {e}", machine.name));
            }
        }
    }
}
