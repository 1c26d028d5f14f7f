//! How much the exact allocator's work depends on its seed: least, median and largest number of steps over some seeds.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example spread -- [-n SEEDS] [NAME.CAPACITY.csv...]
//! ```
//! Instances have the columns `id,lower,upper,size`, live in `[lower, upper)`; without any, rectangles cut into pieces. A
//! problem that is not solved within the steps of the command `alloc` counts as all of them.

#![expect(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::path::Path;

use tpuflow_benches::instances::cut_rectangle;
use tpuflow_scheduler::alloc::ladder::{Effort, solve_by_effort};
use tpuflow_scheduler::alloc::{Item, Problem};

/// Steps of the command `alloc`.
const STEPS: u64 = 10_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut seeds = 32;
    if let Some(at) = args.iter().position(|arg| arg == "-n").filter(|at| at + 1 < args.len()) {
        seeds = args.remove(at + 1).parse()?;
        args.remove(at);
    }
    let mut problems = Vec::new();
    for path in args.iter().map(Path::new) {
        problems.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), read(path)?));
    }
    if problems.is_empty() {
        for (seed, pieces) in [(1, 150), (2, 200), (3, 300), (4, 400), (5, 150), (6, 200), (7, 300), (8, 400)] {
            problems.push((format!("{pieces} pieces, {seed}"), cut_rectangle(seed, 1024, 1 << 20, pieces)));
        }
    }
    println!(
        "{:20} {:>7} {:>10} {:>10} {:>10} {:>14} {:>8}",
        "instance", "buffers", "least", "median", "most", "most / median", "unsolved"
    );
    for (name, problem) in problems {
        let mut steps = Vec::new();
        let mut unsolved = 0;
        for seed in 0..seeds {
            let effort = Effort { enough: problem.capacity, steps: STEPS, seed };
            let outcome = solve_by_effort(&problem, &[], &effort, &mut |_| true);
            unsolved += usize::from(outcome.solution.height > problem.capacity);
            steps.push(outcome.steps);
        }
        steps.sort_unstable();
        let (median, most) = (steps[steps.len() / 2], steps[steps.len() - 1]);
        let ratio = most as f64 / median.max(1) as f64;
        println!("{name:20} {:7} {:10} {median:10} {most:10} {ratio:14.1} {unsolved:8}", problem.items.len(), steps[0]);
    }
    Ok(())
}

fn read(path: &Path) -> Result<Problem, Box<dyn Error>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let capacity = name.split('.').nth(1).ok_or("a file is called NAME.CAPACITY.csv")?.parse()?;
    let mut items = Vec::new();
    for line in std::fs::read_to_string(path)?.lines().skip(1) {
        let fields: Vec<u64> = line.split(',').map(|field| field.trim().parse()).collect::<Result<_, _>>()?;
        let [_, lower, upper, size] = fields[..] else { return Err(format!("{name}: a line has four columns").into()) };
        items.push(Item { first: u32::try_from(lower)?, last: u32::try_from(upper)? - 1, size });
    }
    Ok(Problem { items, capacity })
}
