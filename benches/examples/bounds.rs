//! Does a program beat a bound? Random graphs on random machines, as many as asked for.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example bounds -- [-n COUNT] [-b TIMES] [--state FILE]
//! ```
//! `-b` gives the search so many times its usual budget. Every graph adds a line to FILE (`bounds.tsv`, with the times in its name);
//! started again, it goes on behind the last.

#![expect(clippy::print_stdout, reason = "what it is for")]

#[path = "../../crates/scheduler/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use common::wild::{wild, wild_floats};
use common::{machine, random};
use tpuflow_ir::{Graph, Program};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule_by};
use tpuflow_simulator::{Options, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let of = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let count: u64 = of("-n").map_or(Ok(100), |n| n.parse())?;
    let times: u64 = of("-b").map_or(Ok(1), |n| n.parse())?;
    let state = of("--state").map_or_else(|| PathBuf::from(format!("bounds.{times}.tsv")), PathBuf::from);
    let known = std::fs::read_to_string(&state).unwrap_or_default();
    let first = known.lines().count() as u64;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&state)?;
    for seed in first..count {
        let line = attempt(seed, times);
        writeln!(file, "{seed}\t{line}")?;
        if line.contains("beaten") {
            println!("seed {seed}: {line}");
        }
    }
    drop(file);
    table(&std::fs::read_to_string(&state)?)
}

fn network(seed: u64) -> Graph {
    match seed % 3 {
        0 => random(seed, 9),
        1 => wild(seed, 7, 3000),
        _ => wild_floats(seed, 7, 3000),
    }
}

/// Outcome of a seed, and the binding bound with cycles of both levels over it.
fn attempt(seed: u64, times: u64) -> String {
    let (graph, machine) = (network(seed), machine(seed));
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let mut shortest: Option<(u64, Program)> = None;
    for level in [1, 5] {
        let mut options = ScheduleOptions { level, ..ScheduleOptions::default() };
        options.budget_steps *= times;
        let Ok(program) = schedule_by(&graph, &machine, &options, &timing) else { continue };
        let Some(cycles) = timing(&program) else { continue };
        if shortest.as_ref().is_none_or(|best| cycles < best.0) {
            shortest = Some((cycles, program));
        }
    }
    let Some((cycles, program)) = shortest else { return "none\t\t\t".to_owned() };
    let beaten = program.bounds.by_name().into_iter().find(|bound| cycles < bound.1);
    let (binding, bound) = beaten.unwrap_or_else(|| program.bounds.binding());
    let what = if beaten.is_some() { "beaten" } else { "kept" };
    format!("{what}\t{binding}\t{bound}\t{cycles}")
}

/// By binding bound: programs, the geometric mean and the least of cycles over the bound, and how many were beaten.
fn table(lines: &str) -> Result<(), Box<dyn Error>> {
    let mut kinds: BTreeMap<&str, (u64, f64, f64, u64)> = BTreeMap::new();
    let mut none = 0;
    for line in lines.lines() {
        let [_, what, binding, bound, cycles] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
        if what == "none" {
            none += 1;
            continue;
        }
        let ratio = cycles.parse::<f64>()? / bound.parse::<f64>()?.max(1.0);
        let entry = kinds.entry(binding).or_insert((0, 0.0, f64::INFINITY, 0));
        *entry = (entry.0 + 1, entry.1 + ratio.ln(), entry.2.min(ratio), entry.3 + u64::from(what == "beaten"));
    }
    println!("{:8} {:>9} {:>9} {:>9} {:>9}", "bound", "programs", "mean", "least", "beaten");
    for (kind, (count, logarithms, least, beaten)) in kinds {
        println!("{kind:8} {count:9} {:9.3} {least:9.3} {beaten:9}", (logarithms / count as f64).exp());
    }
    println!("{none} graphs have no program on their machine");
    Ok(())
}
