//! From a [`Graph`] and a [`Machine`] to a [`Program`].
//!
//! ```text
//!  graph --> network --> tiling --> memory space --> order --> addresses --> emission --> program
//!            steps,      layers in  cache or DDR,    list      buffers and   tokens, units,
//!            shared      parts      virtual          schedule, constants     constants
//!            storage                instructions     loads
//! ```
//!
//! | module | takes -> gives |
//! |---|---|
//! | `network` | graph -> steps in a machine's geometry, tensors that share storage, stages |
//! | [`tiling`] | graph -> the same with layers computed in parts |
//! | `options`, [`parameters`], `budget`, `context` | what may be done, how long to search, what all plans of a graph share |
//! | `virtual_program` | instructions over numbered buffers, before anything has an address; what follows from them |
//! | `lowering` | steps -> virtual instructions |
//! | `memory_space` | which tensors live in the cache and which in DDR; live ranges split, constants grouped |
//! | `order` | list scheduling across layers; loads moved ahead |
//! | [`alloc`], `addresses` | buffers -> addresses |
//! | `emission` | virtual program and addresses -> instructions with units and tokens, packed constants |
//! | `planning` | many plans -> the best: the portfolio, searches, fallbacks |
//! | [`tensor_parallel`] | graph -> graphs of several devices, which are scheduled as any other |
//! | `stream` | program -> the same with its runs overlapping |
//!
//! Modules import only what stands above them in this table; a test counts cycles.
//!
//! Level 1 runs one instruction at a time. Level 5 lets the units work at the same time: loads move ahead as far as memory
//! allows, constants lie in all channels, and tokens order nothing but true dependencies. `docs/scheduling.md` has the reasons.
#![forbid(unsafe_code)]

mod addresses;
pub mod alloc;
mod budget;
mod context;
mod emission;
mod error;
mod lowering;
mod memory_space;
mod network;
mod options;
mod order;
pub mod parameters;
mod planning;
mod stream;
pub mod tensor_parallel;
pub mod tiling;
mod virtual_program;

pub use error::{ScheduleError, TilingError};

use std::time::{Duration, Instant};

pub use budget::Timing;
use budget::{SearchBudget, TimedPrograms};
use parameters::Parameters;
use planning::fallback;
pub use planning::phases;
use planning::portfolio::{Effort, Request, compiled, interval};
use tpuflow_checker::check;
use tpuflow_ir::{Graph, Machine, Program};

/// Optimisation level, parameters and budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// 1: sequential. 5: parallel.
    pub level: u8,
    /// Parameters in place of those of the level.
    pub parameters: Option<Parameters>,
    /// Seed of searches.
    pub seed: u64,
    /// Budget of every search in steps of a thousand instructions placed.
    pub budget_steps: u64,
    /// Wall-clock limit in seconds, the proof included; what is found by then is used.
    pub time_limit: Option<f64>,
    /// Layers that the user wants computed in parts.
    pub tiling: tiling::request::Request,
    /// Whether runs may follow each other without a pause ([`Program::stream`]).
    pub stream: bool,
}

impl Default for Options {
    fn default() -> Self {
        let tiling = tiling::request::Request::default();
        Self { level: 1, parameters: None, seed: 0, budget_steps: 200, time_limit: None, tiling, stream: false }
    }
}

/// Compiles `graph` for `machine`, choosing among plans by the cost model.
///
/// Where no valid program comes of the settings asked for, lower ones are tried, and [`Program::fallback`] says which and why.
///
/// # Errors
/// [`ScheduleError`] naming the layer that does not fit, or what else is wrong.
pub fn schedule(graph: &Graph, machine: &Machine, options: &Options) -> Result<Program, ScheduleError> {
    schedule_by(graph, machine, options, &|_| None)
}

/// Compiles `graph` for `machine`, choosing among finished plans by `timing`. Whoever can run programs hands a timing in and
/// gets a program whose predicted cycles are those of the run, and none that is slower than the one of level 1.
///
/// # Errors
/// [`ScheduleError`] naming the layer that does not fit, or what else is wrong.
pub fn schedule_by(
    graph: &Graph,
    machine: &Machine,
    options: &Options,
    timing: Timing,
) -> Result<Program, ScheduleError> {
    let deadline = options.time_limit.and_then(|seconds| {
        let limit = Duration::try_from_secs_f64(seconds).ok()?;
        Instant::now().checked_add(limit)
    });
    let preset = match options.level {
        1 => Parameters::o1(),
        5 => Parameters::o5(),
        level => return Err(ScheduleError::Level(level)),
    };
    let wanted = options.parameters.as_ref().unwrap_or(&preset);
    let tilings = options.tiling.tilings(graph)?;
    let timed = TimedPrograms::new(timing);
    let timing: Timing = &|program| timed.cycles(program);
    let (program, fallback) = fallback::first(&fallback::ladder(wanted), |parameters| {
        let request = |effort, deadline| {
            let budget = SearchBudget { seed: options.seed, steps: parameters.steps(options.budget_steps), deadline };
            Request { graph, machine, tilings: &tilings, parameters, budget, stream: options.stream, effort }
        };
        match deadline.filter(|_| parameters.parallel()) {
            Some(deadline) => in_time(deadline, request, timing),
            None => checked(graph, compiled(&request(Effort::Search, None), timing)?),
        }
    })?;
    let fallback = fallback.or_else(|| program.fallback.clone());
    Ok(Program { level: options.level, fallback, ..program })
}

/// A program that is proven by the deadline: first the one that is made quickest, which also shows how long a proof takes, then,
/// if that leaves time for a search, the one that it finds, where that is faster.
fn in_time<'a>(
    deadline: Instant,
    request: impl Fn(Effort, Option<Instant>) -> Request<'a>,
    timing: Timing,
) -> Result<Program, ScheduleError> {
    if Instant::now() >= deadline {
        return Err(ScheduleError::Time);
    }
    let quick = request(Effort::Quick, None);
    let planned = compiled(&quick, timing)?;
    let start = Instant::now();
    let proven = checked(quick.graph, planned)?;
    // A proof follows bytes, and takes up to two thirds longer where these are in more pieces: 1.39 to 1.62 times as long, measured.
    let proof = start.elapsed() * 17 / 10;
    let searched = match deadline.checked_sub(proof) {
        Some(end) if end > Instant::now() => compiled(&request(Effort::Search, Some(end)), timing),
        _ => Err(ScheduleError::Time),
    };
    match searched {
        Ok(found) if interval(&found) < interval(&proven) => checked(quick.graph, found),
        Ok(_) => Ok(proven),
        Err(ScheduleError::Time) => {
            let fallback =
                Some("the plan that is made quickest taken; the time limit left no time for a search".to_owned());
            Ok(Program { fallback, ..proven })
        }
        Err(error) => Err(error),
    }
}

/// Every program is proven before it is handed out.
fn checked(graph: &Graph, program: Program) -> Result<Program, ScheduleError> {
    match check(graph, &program) {
        Ok(()) => Ok(program),
        Err(violations) => Err(ScheduleError::Check {
            count: violations.len(),
            first: violations.first().map(ToString::to_string).unwrap_or_default(),
        }),
    }
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
