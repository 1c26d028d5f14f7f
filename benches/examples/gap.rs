//! How far programs at level 5 are from their bounds: compiles quantised graphs and counts cycles.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example gap -- [-m MACHINE] [-b BUDGET] [-v] [-l] [-t] [-p] GRAPH.tpuq...
//! ```
//! MACHINE is the name of a preset or a TOML file. `-b` is the budget of the search in steps, `-v` adds bounds, units and
//! conflicts, `-l` the times of all layers, `-t` those of all instructions. `-p` plans streams, and adds the
//! cycles from one run to the next beside their bound. With `-r` every program is made again, twice by one thread and twice by two, and must be the same.

#![expect(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use tpuflow_ir::{Graph, Machine, Program, Unit, Work};
use tpuflow_scheduler::{Options as ScheduleOptions, ScheduleError, schedule_by};
use tpuflow_simulator::counters::Client;
use tpuflow_simulator::{Options, Run, simulate};

/// Bounds below which start-ups decide; such networks are left out of the mean.
const LEAST: u64 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut name = "128x128_asic".to_owned();
    if let Some(at) = args.iter().position(|arg| arg == "-m").filter(|at| at + 1 < args.len()) {
        name = args.remove(at + 1);
        args.remove(at);
    }
    let machine = if name.ends_with(".toml") {
        Machine::parse(&name, &std::fs::read_to_string(&name)?)?
    } else {
        Machine::preset(&name)?
    };
    let mut options = ScheduleOptions { level: 5, ..ScheduleOptions::default() };
    if let Some(at) = args.iter().position(|arg| arg == "-b").filter(|at| at + 1 < args.len()) {
        options.budget_steps = args.remove(at + 1).parse()?;
        args.remove(at);
    }
    options.stream = args.iter().any(|arg| arg == "-p");
    let asked = |flag: &str| args.iter().any(|arg| arg == flag);
    println!(
        "{:24} {:>9} {:>9} {:7} {:>9} {:>6} {:>8} {:>6}",
        "network", "level 1", "bound", "binding", "cycles", "ratio", "predict", "s"
    );
    let mut logarithms = Vec::new();
    for path in args.iter().filter(|arg| !arg.starts_with('-')).map(Path::new) {
        let graph = Graph::load(path)?;
        let start = Instant::now();
        let untraced = Options { values: false, ..Options::default() };
        let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
        let program = schedule_by(&graph, &machine, &options, &timing)?;
        let seconds = start.elapsed().as_secs_f64();
        if asked("-r") && !repeats(&|| schedule_by(&graph, &machine, &options, &timing), &program)? {
            return Err(format!("{}: another program the second time", path.display()).into());
        }
        let simple =
            schedule_by(&graph, &machine, &ScheduleOptions { level: 1, stream: false, ..options.clone() }, &timing)?;
        let run = simulate(&program, &[], &Options { trace: asked("-t"), ..untraced })?;
        let (binding, bound) = program.bounds.binding();
        let ratio = run.cycles as f64 / bound as f64;
        if bound >= LEAST {
            logarithms.push(ratio.ln());
        }
        println!(
            "{:24} {:9} {bound:9} {binding:7} {:9} {ratio:6.3} {:+7.1}% {seconds:6.2} {}",
            path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default(),
            simple.predicted_cycles,
            run.cycles,
            (program.predicted_cycles as f64 / run.cycles as f64 - 1.0) * 100.0,
            program.fallback.as_deref().unwrap_or_default()
        );
        if let Some(stream) = &program.stream {
            let ((binding, bound), interval) = (stream.bounds.binding(), stream.predicted_interval);
            println!(
                "{:34} {bound:9} {binding:7} {interval:9} {:6.3}",
                "  in a stream",
                interval as f64 / bound as f64
            );
        }
        if asked("-v") {
            units(&program, &run);
        }
        if asked("-l") {
            for l in &run.layers {
                println!(
                    "  {:>9} {:>9} busy {:>8} bound {:>8} {:8} {:14} {}",
                    l.start, l.end, l.busy, l.bound, l.binding, l.op, l.name
                );
            }
        }
        timeline(&program, &run);
    }
    let mean = (logarithms.iter().sum::<f64>() / logarithms.len().max(1) as f64).exp();
    println!("geometric mean where the bound is at least {LEAST}: {mean:.4}");
    if let Some(peak) = peak() {
        println!("memory at most: {peak}");
    }
    Ok(())
}

/// The most memory this process has held, where the system tells.
fn peak() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().to_owned())
}

/// Whether one thread and two make the same program, twice.
fn repeats(
    plan: &(dyn Fn() -> Result<Program, ScheduleError> + Sync),
    first: &Program,
) -> Result<bool, Box<dyn Error>> {
    for threads in [1, 2, 1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        if pool.install(plan)? != *first {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Instructions of the computing units by the cycle in which they were issued.
fn timeline(program: &Program, run: &Run) {
    let mut spans = std::collections::BTreeMap::new();
    for interval in run.trace.iter().flatten() {
        let (start, end) = spans.entry(interval.instruction).or_insert((interval.start, interval.end));
        (*start, *end) = ((*start).min(interval.start), (*end).max(interval.end));
    }
    let mut spans: Vec<(u64, u64, u32)> = spans.into_iter().map(|(at, (start, end))| (start, end, at)).collect();
    spans.sort_unstable();
    for (start, end, at) in spans {
        let instruction = &program.instructions[at as usize];
        let part = match &instruction.work {
            Work::Matrix(m) => {
                format!("pixels {}+{} columns {}+{}", m.first_pixel, m.pixels, m.first_column, m.columns)
            }
            Work::Pool(p) => format!("rows {}+{} channels {}", p.first_row, p.rows, p.output.origin[1]),
            Work::Vector(v) => format!("rows {}+{} channels {}", v.first_row, v.rows, v.output.origin[1]),
            Work::Transfer(t) => format!("{:?} {} bytes", t.direction, t.total_bytes()),
            Work::Lookup(l) => format!("{} rows", l.count),
            Work::PackedLookup(l) => format!("{} entries", l.count),
            Work::Expand(e) => format!("expand {} rows of {} bytes", e.rows, e.row_bytes),
        };
        let waits: Vec<String> = instruction.waits.iter().map(|w| format!("{}:{}", w.unit.name(), w.count)).collect();
        println!(
            "  {start:>9} {end:>9} {:5} layer {:3} {part} {}",
            instruction.unit.name(),
            instruction.layer.index(),
            waits.join(" ")
        );
    }
}

fn units(program: &Program, run: &Run) {
    println!("  {:?}", program.bounds);
    for unit in Unit::ALL {
        let c = &run.counters.units[unit.index()];
        println!(
            "  {:5} {:6} busy {:8} from {:8} to {:8} {:?}",
            unit.name(),
            c.instructions,
            c.busy,
            c.start,
            c.end,
            c.stalls
        );
    }
    for (holder, waits) in run.counters.bank_conflicts.iter().enumerate() {
        for (waiter, &count) in waits.iter().enumerate().filter(|(_, count)| **count > 500) {
            println!("  {} makes {} wait {count}", Client::ALL[holder].name(), Client::ALL[waiter].name());
        }
    }
    println!(
        "  {} instructions, {} bytes spilled, {} at most",
        program.instructions.len(),
        program.spill_bytes,
        program.cache_peak_bytes
    );
}
