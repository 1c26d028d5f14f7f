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
mod banks;
mod bounds;
mod bundle;
pub mod checker;
mod cost;
mod depend;
mod emit;
mod error;
mod finish;
mod homes;
mod jobs;
mod lower;
mod network;
mod pack;
pub mod parameters;
mod placement;
mod plan;
mod prefetch;
mod sketch;
mod summary;
mod tokens;
mod weave;

pub use error::ScheduleError;
use finish::Planned;
use lower::Grain;
use parameters::Parameters;
use plan::{Mode, Site};
use rayon::prelude::*;
use std::time::{Duration, Instant};
use tpuflow_ir::{Graph, Machine, Program};
use weave::Effort;

/// What to optimise for, and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// 1: sequential. 5: parallel.
    pub level: u8,
    /// What the schedule may do, in place of what the level allows.
    pub parameters: Option<Parameters>,
    /// Seed of searches.
    pub seed: u64,
    /// Budget of every search in steps of a thousand instructions placed.
    pub budget_steps: u64,
    /// Wall-clock limit in seconds; what is found by then is used.
    pub time_limit: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { level: 1, parameters: None, seed: 0, budget_steps: 200, time_limit: None }
    }
}

/// Compiles `graph` for `machine`.
///
/// # Errors
/// [`ScheduleError`] naming the layer that does not fit, or what else is wrong.
pub fn schedule(graph: &Graph, machine: &Machine, options: &Options) -> Result<Program, ScheduleError> {
    let deadline = options.time_limit.and_then(|seconds| {
        let limit = Duration::try_from_secs_f64(seconds).ok()?;
        Instant::now().checked_add(limit)
    });
    let preset = match options.level {
        1 => Parameters::o1(),
        5 => Parameters::o5(),
        level => return Err(ScheduleError::Level(level)),
    };
    let parameters = options.parameters.as_ref().unwrap_or(&preset);
    let effort = Effort { seed: options.seed, steps: parameters.steps(options.budget_steps), deadline };
    let site = Site::new(graph, machine, effort, parameters)?;
    let wanted = if parameters.parallel() { parallel(&site) } else { site.plan(Mode::Sequential) };
    let program = |plan: Planned| checked(graph, Program { level: options.level, ..plan.program(&site) });
    let simplest = Parameters::o1();
    wanted.and_then(program).or_else(|reason| {
        if *parameters == simplest {
            return Err(reason);
        }
        let plain = Site::new(graph, machine, effort, &simplest)?;
        let mut program = checked(graph, plain.plan(Mode::Sequential)?.program(&plain))?;
        (program.level, program.fallback) = (options.level, Some(reason.to_string()));
        Ok(program)
    })
}

/// The fastest of several plans by the cost model: layers interleaved, in pieces of several sizes; layers one after the other in
/// pieces of half the size that overlap with each other, or in whole ones that need fewer of everything; and, where next to
/// nothing can overlap, one instruction at a time, which leaves the pages of the DDR open.
fn parallel(site: &Site) -> Result<Planned, ScheduleError> {
    let grains = [Grain::Fine, Grain::Finest(2), Grain::Finest(3), Grain::Finest(4)];
    let woven = grains.into_iter().filter(|_| site.parameters.layer_fusion != 0).map(|grain| Mode::Woven { grain });
    let layers = [Mode::Layers { paired: true }, Mode::Layers { paired: false }, Mode::Sequential];
    let modes: Vec<Mode> = woven.chain(layers).collect();
    let mut best: Result<Planned, ScheduleError> = Err(ScheduleError::Level(5));
    let plans: Vec<_> = modes.into_par_iter().map(|mode| site.plan(mode)).collect();
    for found in plans {
        best = match (best, found) {
            (Ok(best), Ok(found)) if found.predicted_cycles < best.predicted_cycles => Ok(found),
            (Ok(best), _) => Ok(best),
            (Err(_), Ok(found)) => Ok(found),
            (Err(first), Err(error)) => Err(if first == ScheduleError::Level(5) { error } else { first }),
        };
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
