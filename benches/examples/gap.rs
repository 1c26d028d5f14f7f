//! How far programs at level 5 are from their bounds: compiles quantised graphs and counts cycles.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example gap -- [-m MACHINE] [-b BUDGET] [-v] [-l] [-t] [-p] [-c] GRAPH.tpuq...
//! ```
//! MACHINE is the name of a preset or a TOML file. `-b` is the budget of the search in steps, `-v` adds bounds, units and
//! conflicts, `-l` the times of all layers, `-t` those of all instructions. `-p` plans streams, and adds the
//! cycles from one run to the next beside their bound. With `-r` every program is made again, twice by one thread and twice by two, and must be the same.
//! `-c` adds what the cycles above the bound are made of: the same program is timed on machines without bank conflicts, with
//! fast external memory, without start-ups and latencies, one after the other; `work` is what the unit that works longest then does
//! beyond the bound of its own, and `waits` is the rest.

#![expect(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::fmt::{Display, Formatter};
use std::path::Path;
use std::time::Instant;

use tpuflow_ir::{Graph, Machine, Program, Unit, Work};
use tpuflow_scheduler::{Options as ScheduleOptions, ScheduleError, schedule_by};
use tpuflow_simulator::counters::Client;
use tpuflow_simulator::{Options, Run, simulate};

/// Bounds below which start-ups decide; such networks are left out of the mean.
const LEAST: u64 = 20_000;

/// Words of a bank so short that units hardly meet at one.
const SHORT_BANK: u32 = 16;

/// Times as fast is external memory that nobody waits for.
const FAST: u64 = 16;

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
    let (mut logarithms, mut causes) = (Vec::new(), Vec::new());
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
        if asked("-c") {
            let found = Causes::of(&program, &untraced)?;
            println!("  % of the bound: {found}");
            causes.push(found);
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
    if let Some(all) = (!causes.is_empty()).then(|| Causes::mean(&causes)) {
        println!("mean by cause, % of the bound: {all}");
    }
    if let Some(peak) = peak() {
        println!("memory at most: {peak}");
    }
    Ok(())
}

/// Cycles above the bound by cause, in per cent of the bound.
struct Causes {
    conflicts: f64,
    memory: f64,
    start_ups: f64,
    work: f64,
    waits: f64,
}

impl Causes {
    fn of(program: &Program, options: &Options) -> Result<Self, Box<dyn Error>> {
        let mut program = program.clone();
        let bounds = program.bounds.clone();
        let bound = bounds.binding().1;
        // A program that its memory binds is faster than its bound on a machine with faster memory.
        let cycles = |program: &Program| Ok::<u64, Box<dyn Error>>(simulate(program, &[], options)?.cycles.max(bound));
        let actual = cycles(&program)?;
        // As many words in shorter banks: two accesses meet where they are at the same place of a tensor.
        let cache = &mut program.machine.cache;
        let parts = if cache.words.is_multiple_of(SHORT_BANK) { cache.words / SHORT_BANK } else { 1 };
        (cache.banks, cache.words) = (cache.banks * parts, cache.words / parts);
        let without_conflicts = cycles(&program)?;
        program.machine.ddr.clock_hz *= FAST;
        program.machine.ddr.page_miss_ns = 0;
        (program.machine.dma.start, program.machine.dma.latency) = (0, 0);
        let with_fast_memory = cycles(&program)?;
        let machine = &mut program.machine;
        (machine.ewp.start, machine.ewp.latency, machine.pdp.start, machine.pdp.latency) = (0, 1, 0, 1);
        (machine.control.issue, machine.control.issue_cold, machine.array.setup) = (0, 0, 0);
        let run = simulate(&program, &[], options)?;
        let busy = |unit: Unit, bound: u64| (run.counters.units[unit.index()].busy, bound);
        let units = [busy(Unit::Me, bounds.array), busy(Unit::Ewp, bounds.ewp), busy(Unit::Pdp, bounds.pdp)];
        let longest = units.into_iter().max().unwrap_or_default();
        let share = |cycles: u64| cycles as f64 / bound as f64 * 100.0;
        let last = run.cycles.max(bound);
        let left = last - bound;
        let work = longest.0.saturating_sub(longest.1).min(left);
        Ok(Self {
            conflicts: share(actual) - share(without_conflicts),
            memory: share(without_conflicts) - share(with_fast_memory),
            start_ups: share(with_fast_memory) - share(last),
            work: share(work),
            waits: share(last) - 100.0 - share(work),
        })
    }

    fn mean(all: &[Self]) -> Self {
        let of = |part: fn(&Self) -> f64| all.iter().map(part).sum::<f64>() / all.len() as f64;
        Self {
            conflicts: of(|c| c.conflicts),
            memory: of(|c| c.memory),
            start_ups: of(|c| c.start_ups),
            work: of(|c| c.work),
            waits: of(|c| c.waits),
        }
    }
}

impl Display for Causes {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { conflicts, memory, start_ups, work, waits } = self;
        write!(
            f,
            "conflicts {conflicts:.1} memory {memory:.1} start-ups {start_ups:.1} work {work:.1} waits {waits:.1}"
        )
    }
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
