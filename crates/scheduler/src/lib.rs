//! From a [`Graph`] and a [`Machine`] to a [`Program`].
//!
//! ```text
//!  graph -- network --> placement --> homes + lower --> prefetch --> alloc --> emit --> program
//!           steps       shared        drafts over       (O5) loads   addresses  tokens
//!                       storage       buffers           moved ahead
//! ```
//!
//! Level 1 runs one instruction at a time. Level 5 lets the units work at the same time: loads move ahead as far as memory
//! allows, constants lie in all channels, and tokens order nothing but true dependencies. `docs/scheduling.md` has the reasons.
#![forbid(unsafe_code)]

pub mod alloc;
mod bounds;
mod bundle;
pub mod checker;
mod cost;
mod emit;
mod error;
mod homes;
mod lower;
mod network;
mod pack;
mod placement;
mod plan;
mod prefetch;
mod sketch;
mod summary;
mod tokens;

pub use error::ScheduleError;
use plan::{Mode, plan};
use tpuflow_ir::{Graph, Machine, Program};

/// What to optimise for, and how long. Both levels are constructive: seed, budget and limit are for searches to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// 1: sequential. 5: parallel.
    pub level: u8,
    /// Seed of searches.
    pub seed: u64,
    /// Budget of searches in steps.
    pub budget_steps: u64,
    /// Wall-clock limit in seconds; what is found by then is used.
    pub time_limit: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { level: 1, seed: 0, budget_steps: 10_000, time_limit: None }
    }
}

/// Compiles `graph` for `machine`.
///
/// # Errors
/// [`ScheduleError`] naming the layer that does not fit, or what else is wrong.
pub fn schedule(graph: &Graph, machine: &Machine, options: &Options) -> Result<Program, ScheduleError> {
    let sequential = || checked(graph, plan(graph, machine, Mode::Sequential)?);
    match options.level {
        1 => sequential(),
        5 => parallel(graph, machine).and_then(|program| checked(graph, program)).or_else(|reason| {
            let mut program = sequential()?;
            (program.level, program.fallback) = (5, Some(reason.to_string()));
            Ok(program)
        }),
        level => Err(ScheduleError::Level(level)),
    }
}

/// The fastest of three plans by the cost model: pieces of half the size overlap with each other, whole ones need fewer of
/// everything, and where next to nothing can overlap, one instruction at a time leaves the pages of the DDR open.
fn parallel(graph: &Graph, machine: &Machine) -> Result<Program, ScheduleError> {
    let paired = plan(graph, machine, Mode::Parallel { paired: true });
    let others = [Mode::Parallel { paired: false }, Mode::Sequential].map(|mode| plan(graph, machine, mode));
    let mut best = paired;
    for other in others.into_iter().flatten() {
        if best.as_ref().map_or(u64::MAX, |program| program.predicted_cycles) > other.predicted_cycles {
            best = Ok(Program { level: 5, ..other });
        }
    }
    best
}

/// Every program is proven before it is handed out.
fn checked(graph: &Graph, program: Program) -> Result<Program, ScheduleError> {
    match checker::check(graph, &program) {
        Ok(()) => Ok(program),
        Err(violations) => Err(ScheduleError::Check {
            count: violations.len(),
            first: violations.first().map(ToString::to_string).unwrap_or_default(),
        }),
    }
}
