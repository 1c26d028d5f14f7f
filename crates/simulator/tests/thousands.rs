//! Random networks by the thousand: built at both levels on many machines, proven, simulated to the bit and to the cycle.
//!
//! ```text
//! NETWORKS_FIRST=0 NETWORKS_COUNT=10000 NETWORKS_STEPS=200 cargo test --release -p tpuflow-simulator --test main thousands -- --nocapture
//! ```
//! Every seed is a network of all operators with branches and odd shapes, a third of them in floats, on one machine of many
//! (next to no cache, or a preset, in turn). Counted are programs the checker refuses, fallbacks, bits that differ from the
//! graph's, runs shorter than a lower bound, programs that took longer than the limit to make, and networks for which level 5
//! takes more cycles than level 1. Plans are chosen by simulated cycles, as they are for users. A layer whose smallest piece exceeds a tiny cache is no fault.

#![allow(clippy::print_stdout, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::common::wild::{wild, wild_floats};
use crate::common::{random, tiny};
use crate::trial::{STEPS, inputs};
use tpuflow_ir::{Graph, Machine, Program};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, schedule_by};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

/// Seconds a program of so small a network may take to be made.
const LIMIT: f64 = 60.0;

/// Seconds a network takes that are worth a line.
const LONG: f64 = 10.0;

/// What is counted and no fault; seconds depend on what else the computer does.
const SOUND: [&str; 5] = ["networks", "not run", "programs", "too large", "too long"];

#[test]
fn random_networks_by_the_thousand() {
    let (first, count) = (number("NETWORKS_FIRST", 0), number("NETWORKS_COUNT", 42));
    let mut machines = vec![tiny(8), tiny(16), tiny(32), tiny(64)];
    machines.extend(Machine::presets().iter().map(|name| Machine::preset(name).unwrap()));
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut faults = Vec::new();
    let start = Instant::now();
    for seed in first..first + count {
        let machine = &machines[(seed / 3) as usize % machines.len()];
        let begun = Instant::now();
        let outcome = std::panic::catch_unwind(|| attempt(seed, machine));
        let found = outcome.unwrap_or_else(|_| vec![("panics", "a panic".to_owned())]);
        for (what, detail) in found {
            *counts.entry(what).or_default() += 1;
            if !SOUND.contains(&what) {
                faults.push(format!("seed {seed} on {}: {what}: {detail}", machine.name));
            }
        }
        if begun.elapsed().as_secs_f64() > LONG {
            println!("seed {seed} on {}: {:.0} s", machine.name, begun.elapsed().as_secs_f64());
        }
        if (seed + 1 - first).is_multiple_of(100) {
            println!("seeds {first} to {seed}, {:.0} s: {counts:?}", start.elapsed().as_secs_f64());
            faults.iter().for_each(|fault| println!("  {fault}"));
        }
    }
    println!("seeds {first} to {}, {:.0} s: {counts:?}", first + count - 1, start.elapsed().as_secs_f64());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A number of the environment.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

fn network(seed: u64) -> Graph {
    match seed % 3 {
        0 => random(seed, 9),
        1 => wild(seed, 7, 3000),
        _ => wild_floats(seed, 7, 3000),
    }
}

/// What there is to count of a network on a machine.
fn attempt(seed: u64, machine: &Machine) -> Vec<(&'static str, String)> {
    let graph = network(seed);
    let Ok(interpreter) = Interpreter::new(Arc::new(graph.clone())) else { return vec![("not run", String::new())] };
    let given = inputs(&graph, seed);
    let expected = interpreter.run(given.clone(), Keep::Outputs).unwrap();
    let expected: Vec<Vec<u8>> = graph.outputs.iter().map(|id| expected.get(*id).unwrap().to_le_bytes()).collect();
    let given: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    let mut found = vec![("networks", String::new())];
    let mut cycles = Vec::new();
    for level in [1, 5] {
        let start = Instant::now();
        let options =
            ScheduleOptions { level, budget_steps: number("NETWORKS_STEPS", STEPS), ..ScheduleOptions::default() };
        let program = match schedule_by(&graph, machine, &options, &timing) {
            Ok(program) => program,
            Err(error) if error.to_string().contains("smallest piece") && machine.name.starts_with("tiny") => {
                found.push(("too large", String::new()));
                continue;
            }
            Err(error) => {
                found.push(("not scheduled", format!("O{level}: {error}")));
                continue;
            }
        };
        if start.elapsed().as_secs_f64() > LIMIT {
            found.push(("too long", format!("O{level}: {:.0} s", start.elapsed().as_secs_f64())));
        }
        found.push(("programs", String::new()));
        match run(&program, &given, &expected, &mut cycles) {
            Ok(()) => {}
            Err((what, detail)) => found.push((what, format!("O{level}: {detail}"))),
        }
    }
    if let [one, five] = cycles[..]
        && five > one
    {
        found.push(("slower at level 5", format!("{five} cycles, {one} at level 1")));
    }
    found
}

/// Cycles of a plan, as users' programs are chosen by.
fn timing(program: &Program) -> Option<u64> {
    let untraced = Options { values: false, ..Options::default() };
    Some(simulate(program, &[], &untraced).ok()?.cycles)
}

fn run(
    program: &Program,
    given: &[Vec<u8>],
    expected: &[Vec<u8>],
    cycles: &mut Vec<u64>,
) -> Result<(), (&'static str, String)> {
    if let Some(reason) = &program.fallback {
        let what = if reason.contains("rules") { "refused by the checker" } else { "fallbacks" };
        return Err((what, reason.clone()));
    }
    let run = simulate(program, given, &Options::default()).map_err(|error| ("hazards", error.to_string()))?;
    cycles.push(run.cycles);
    if run.outputs != expected {
        return Err(("bits differ", "an output is not the graph's".to_owned()));
    }
    let (binding, bound) = program.bounds.binding();
    if run.cycles < bound {
        return Err(("bounds beaten", format!("{} cycles, {bound} by {binding}", run.cycles)));
    }
    Ok(())
}
