//! Damaged files by the thousand, each with limits: a case that panics, aborts, takes more than 5 seconds or more than 1 GB is
//! reported with what repeats it.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example fuzz -- --cases 10000 --seed 1
//! cargo run --release -p tpuflow-benches --example fuzz -- --seconds 600 --seed 2 --first 10000
//! ```
//!
//! Cases run in a process of their own with a limit on its address space; when one ends it, the next begins behind that case.

#![expect(clippy::print_stdout, reason = "what it is for")]

#[path = "../../crates/runtime/tests/fuzz/cases.rs"]
mod cases;
#[path = "../../crates/runtime/tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../crates/runtime/tests/fuzz/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cases::Material;

/// Longest time a case may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most memory a case may take beside what the process has before it.
const MEMORY: u64 = 1 << 30;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (mut seed, mut first, mut count, mut seconds, mut worker) = (1, 0, u64::MAX, u64::MAX, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--worker" {
            worker = true;
            continue;
        }
        let value = words.next().ok_or("every word takes a number")?.parse()?;
        match word.as_str() {
            "--seed" => seed = value,
            "--first" => first = value,
            "--cases" => count = value,
            "--seconds" => seconds = value,
            _ => return Err(format!("{word}: unknown, expected --cases, --seconds, --seed or --first").into()),
        }
    }
    if worker {
        work(seed, first)?;
        return Ok(ExitCode::SUCCESS);
    }
    if (count, seconds) == (u64::MAX, u64::MAX) {
        count = 10_000;
    }
    let until = Instant::now() + Duration::from_secs(seconds.min(1 << 30));
    let mut counts = Counts::default();
    let end = first.saturating_add(count);
    let mut next = first;
    while next < end && Instant::now() < until {
        next = watch(seed, next, end, until, &mut counts)?;
    }
    for ((kind, outcome), count) in &counts.outcomes {
        println!("{kind:8} {outcome:8} {count:8}");
    }
    for line in &counts.broken {
        println!("{line}");
    }
    println!("seed {seed}: {} cases, {} broken; the next is --first {next}", next - first, counts.broken.len());
    Ok(if counts.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Default)]
struct Counts {
    outcomes: BTreeMap<(String, String), u64>,
    broken: Vec<String>,
}

/// Watches a process that runs cases from `first` on; the first case it has not run.
fn watch(seed: u64, first: u64, end: u64, until: Instant, counts: &mut Counts) -> Result<u64, Box<dyn Error>> {
    let words = ["--worker", "--seed", &seed.to_string(), "--first", &first.to_string()].map(str::to_owned);
    let mut child = Command::new(std::env::current_exe()?)
        .args(words)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()?;
    let output = BufReader::new(child.stdout.take().ok_or("no output")?);
    let (send, receive) = channel();
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let mut next = first;
    let mut broken = |next: u64, how: &str| {
        let line = format!("BROKEN {how}: --seed {seed} --first {next} --cases 1");
        println!("{line}");
        counts.broken.push(line);
    };
    // What a process does before its first case is not the case's.
    let mut patience = PATIENCE * 12;
    while next < end && Instant::now() < until {
        match receive.recv_timeout(patience) {
            Ok(line) => {
                let mut words = line.split_whitespace();
                if let (Some(kind), Some(outcome)) = (words.next(), words.next()) {
                    if outcome == "panicked" {
                        broken(next, "panic");
                    }
                    *counts.outcomes.entry((kind.to_owned(), outcome.to_owned())).or_default() += 1;
                    next += u64::from(kind != "begin");
                }
                patience = PATIENCE;
            }
            Err(RecvTimeoutError::Timeout) => {
                broken(next, "no end within 5 s");
                next += 1;
                break;
            }
            Err(RecvTimeoutError::Disconnected) => {
                let how = child.wait()?.to_string();
                broken(next, &how);
                next += 1;
                break;
            }
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    drop(receive);
    let _ = reader.join();
    Ok(next)
}

/// Runs cases until somebody ends it, and says of each how it went.
fn work(seed: u64, first: u64) -> Result<(), Box<dyn Error>> {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/formats/a29a9a2");
    let scratch: PathBuf = std::env::temp_dir().join(format!("tpuflow-fuzz-{seed}"));
    let material = Material::read(&formats, scratch);
    // What threads and libraries hold by now does not count.
    limit_memory()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "begin begin")?;
    for case in first.. {
        // A fifth of them are programs with packed tables.
        let run = || match case % 5 {
            4 => ("tables", material.run_tables(seed, case)),
            _ => material.run(seed, case),
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok((kind, refused)) => writeln!(out, "{kind} {}", if refused { "refused" } else { "ran" })?,
            Err(_) => writeln!(out, "any panicked")?,
        }
        out.flush()?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn limit_memory() -> Result<(), Box<dyn Error>> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")?.split_whitespace().next().unwrap_or("0").parse()?;
    let limit = Some(pages * rustix::param::page_size() as u64 + MEMORY);
    setrlimit(Resource::As, Rlimit { current: limit, maximum: limit })?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn limit_memory() -> Result<(), Box<dyn Error>> {
    let _ = MEMORY;
    Ok(())
}
