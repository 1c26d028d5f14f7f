//! Attacks the checker with changed programs: does one pass although it computes something else?
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example attack -- [--seed S] [--mutants N] [--per-class K] [--program P]
//!     [--class C] [--only I] [--threads T] [--out FILE] [--list]
//! ```
//! `--mutants` is the number of all programs together (default: all there are), `--per-class` how many a class has in a
//! program that offers as many (default 500). `--program` and `--class` take what has the text in its name. `--only I` shows
//! mutant I of one program. `--out` appends results to a file, one line for every thousand mutants; what stands there already
//! is not run again, so a run that was stopped goes on. `--list` prints the numbers of mutants by program and by class and runs
//! nothing.
//! The exit status is 1 where anything was found.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what it is for")]

#[path = "../../crates/checker/tests/attack/campaign/mod.rs"]
mod campaign;
#[path = "../../crates/scheduler/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use campaign::programs::{SUBJECTS, Subject};
use campaign::{Campaign, Count, Results};
use serde::{Deserialize, Serialize};

/// Mutants of a line of results.
const BLOCK: usize = 1000;

/// What was asked for.
#[derive(Default)]
struct Asked {
    seed: u64,
    mutants: Option<usize>,
    per_class: usize,
    program: Option<String>,
    class: Option<String>,
    only: Option<usize>,
    threads: Option<usize>,
    out: Option<String>,
    list: bool,
}

/// A line of results; a program is known by its digest, so that results of another one are not taken for it.
#[derive(Serialize, Deserialize)]
struct Line {
    program: String,
    digest: u64,
    seed: u64,
    per_class: usize,
    class: Option<String>,
    from: usize,
    to: usize,
    seconds: f64,
    results: Results,
}

fn asked() -> Result<Asked, Box<dyn Error>> {
    let mut asked = Asked { seed: 1, per_class: 500, ..Asked::default() };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--seed" => asked.seed = value()?.parse()?,
            "--mutants" => asked.mutants = Some(value()?.parse()?),
            "--per-class" => asked.per_class = value()?.parse()?,
            "--program" => asked.program = Some(value()?),
            "--class" => asked.class = Some(value()?),
            "--only" => asked.only = Some(value()?.parse()?),
            "--threads" => asked.threads = Some(value()?.parse()?),
            "--out" => asked.out = Some(value()?),
            "--list" => asked.list = true,
            _ => return Err(format!("{flag} is unknown").into()),
        }
    }
    Ok(asked)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let asked = asked()?;
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(threads) = asked.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    }
    let taken = |subject: &&Subject| asked.program.as_deref().is_none_or(|name| subject.name.contains(name));
    let subjects: Vec<&Subject> = SUBJECTS.iter().filter(taken).collect();
    let mut known = known(asked.out.as_deref())?;
    let (mut lines, mut classes, start) = (Vec::new(), BTreeMap::<String, usize>::new(), Instant::now());
    for subject in &subjects {
        let began = Instant::now();
        let campaign = Campaign::new(subject, asked.seed, asked.per_class, asked.class.as_deref())?;
        let most = asked.mutants.map_or(usize::MAX, |all| all.div_ceil(subjects.len())).min(campaign.mutants.len());
        println!(
            "{:16} {:5} instructions, {:6} mutants, drawn in {:.1} s",
            subject.name,
            campaign.program.instructions.len(),
            campaign.mutants.len(),
            began.elapsed().as_secs_f64()
        );
        if let Some(n) = asked.only {
            show(&campaign, n);
        } else if asked.list {
            campaign.mutants.iter().for_each(|mutant| *classes.entry(mutant.class.clone()).or_default() += 1);
        } else {
            run(subject, &campaign, most, &asked, &mut known, &mut lines)?;
        }
    }
    for (class, mutants) in &classes {
        println!("{class:60}{mutants:>10}");
    }
    if lines.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(report(&lines, start.elapsed().as_secs_f64()))
}

/// Lines of a file of results.
fn known(path: Option<&str>) -> Result<Vec<Line>, Box<dyn Error>> {
    let Some(text) = path.and_then(|path| std::fs::read_to_string(path).ok()) else { return Ok(vec![]) };
    // The last line may have been cut short when the run was stopped.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn show(campaign: &Campaign, n: usize) {
    println!("{}", campaign.describe(n));
    match campaign.violation(n) {
        Some(violation) => println!("refused: {violation}"),
        None => println!("accepted"),
    }
    println!("difference: {}", campaign.difference(n).unwrap_or_else(|| "none".to_owned()));
}

fn run(
    subject: &Subject,
    campaign: &Campaign,
    most: usize,
    asked: &Asked,
    known: &mut Vec<Line>,
    lines: &mut Vec<Line>,
) -> Result<(), Box<dyn Error>> {
    let digest = campaign.digest();
    for from in (0..most).step_by(BLOCK) {
        let to = (from + BLOCK).min(most);
        let same = |line: &Line| {
            (line.program.as_str(), line.digest, line.from, line.to) == (subject.name, digest, from, to)
                && (line.seed, line.per_class, &line.class) == (asked.seed, asked.per_class, &asked.class)
        };
        if let Some(at) = known.iter().position(same) {
            lines.push(known.swap_remove(at));
            continue;
        }
        let start = Instant::now();
        let line = Line {
            program: subject.name.to_owned(),
            digest,
            seed: asked.seed,
            per_class: asked.per_class,
            class: asked.class.clone(),
            from,
            to,
            results: campaign.run(from..to),
            seconds: start.elapsed().as_secs_f64(),
        };
        for finding in &line.results.findings {
            println!("  {} {}\n      {}", finding.mutant, finding.change, finding.difference);
        }
        if let Some(path) = &asked.out {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{}", serde_json::to_string(&line)?)?;
        }
        eprintln!("  {to} of {most}, {:.0} mutants/s", (to - from) as f64 / line.seconds);
        lines.push(line);
    }
    Ok(())
}

/// The table of classes, then of programs, then all together.
fn report(lines: &[Line], seconds: f64) -> ExitCode {
    let mut classes: BTreeMap<&str, Count> = BTreeMap::new();
    let mut programs: BTreeMap<&str, (Count, f64)> = BTreeMap::new();
    let mut total = Count::default();
    for line in lines {
        for (class, count) in &line.results.classes {
            classes.entry(class).or_default().join(count);
            let program = programs.entry(&line.program).or_default();
            program.0.join(count);
            total.join(count);
        }
        programs.entry(&line.program).or_default().1 += line.seconds;
    }
    let header = ["mutants", "refused", "equal", "different", "panics", "run", "no need"];
    let row = |name: &str, c: &Count| {
        let own =
            [c.mutants, c.refused, c.accepted_equal, c.accepted_different, c.panics, c.refused_run, c.refused_equal];
        println!("{name:60}{}", own.map(|n| format!("{n:>10}")).concat());
    };
    println!("\n{:60}{}", "class", header.map(|name| format!("{name:>10}")).concat());
    classes.iter().for_each(|(name, count)| row(name, count));
    println!("\n{:60}{}", "program", header.map(|name| format!("{name:>10}")).concat());
    for (name, (count, seconds)) in &programs {
        row(&format!("{name}, {:.0} mutants/s", count.mutants as f64 / seconds), count);
    }
    row("all", &total);
    println!("{seconds:.0} s; run and no need: refused mutants that were run, and those of them that compute the same");
    for line in lines.iter().filter(|line| !line.results.findings.is_empty()) {
        for finding in &line.results.findings {
            println!("{} {}: {}: {}", line.program, finding.mutant, finding.change, finding.difference);
        }
    }
    if total.accepted_different + total.panics > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
