//! Streams: a finished program whose runs follow each other without a pause.
//!
//! Order within a run and units are those of the program. What is chosen is the iteration ([`tpuflow_ir::stream`]):
//!
//! | module | decides |
//! |---|---|
//! | [`buffers`] | addresses at which buffers share no bytes, as far as they fit the caches |
//! | [`residents`] | where they do not fit, constants that stay, and loads of all others ahead in what is left |
//! | [`constants`] | which constants stay in the caches, so that only the first iteration loads them |
//! | [`body`] | how far runs overlap: what ends so late that it belongs to the next iteration, and in which order it stands there |
//! | [`waits`] | what an instruction waits for, in its iteration and the two before |
//!
//! Several overlaps are tried, timed as streams, and the one of the shortest interval is taken.

mod body;
mod buffers;
mod constants;
mod residents;
mod waits;

use rayon::prelude::*;
use tpuflow_ir::access::{Accesses, accesses};
use tpuflow_ir::error::StreamError;
use tpuflow_ir::stream::interval;
use tpuflow_ir::{Program, Stream};

use crate::budget::Timing;
use crate::context::PlanningContext;
use crate::emission::{CostModel, Plan};
use crate::error::ScheduleError;

/// Intervals that are tried as targets, in thousandths of the makespan.
const TARGETS: [u64; 20] =
    [1010, 950, 900, 850, 800, 750, 700, 650, 600, 550, 500, 460, 420, 380, 340, 300, 260, 220, 170, 130];
/// Of these every so many are tried for a plan with other loads, of which there are several.
const SPARSE: usize = 3;
/// Those that are tried around the best, as its differences.
const FINER: [i64; 8] = [-25, -15, -9, -4, 4, 9, 15, 25];

/// The program of a plan with a stream of its runs, not yet checked.
///
/// # Errors
/// [`ScheduleError::Stream`] when runs cannot overlap, and those of other addresses of the same plan.
pub(crate) fn with_stream(context: &PlanningContext, plan: Plan, timing: Timing) -> Result<Program, ScheduleError> {
    let (code, addresses) = plan.parts();
    let others = buffers::variants(code, addresses, context.machine);
    let moved = others.addresses.iter().map(|addresses| plan.relocated(context, addresses));
    let mut plans: Vec<Plan> = moved.collect::<Result<_, _>>()?;
    let usual = 1 + plans.len();
    if !others.constants_fit {
        plans.extend(residents::variants(context, &plan));
    }
    let programs: Vec<Program> =
        std::iter::once(plan).chain(plans).map(|plan| plan.timed(timing).program(context)).collect();
    let best = |tried: Vec<(&Program, u64)>| -> Result<(Program, u64, usize), ScheduleError> {
        let found = tried.into_par_iter().enumerate().map(|(number, (program, target))| {
            let with_stream = stream(program, target, timing)?;
            let interval = with_stream.stream.as_ref().map_or(u64::MAX, |stream| stream.predicted_interval);
            Ok((interval, number, with_stream))
        });
        let found: Vec<(u64, usize, Program)> = found.collect::<Result<_, ScheduleError>>()?;
        let best = found.into_iter().min_by_key(|&(interval, number, _)| (interval, number));
        best.map(|(interval, number, program)| (program, interval, number)).ok_or(StreamError::None.into())
    };
    let targets = |number: usize| TARGETS.into_iter().step_by(if number < usual { 1 } else { SPARSE });
    let tried: Vec<_> = programs
        .iter()
        .enumerate()
        .flat_map(|(number, program)| targets(number).map(move |target| (program, target)))
        .collect();
    let (coarse, interval, number) = best(tried.clone())?;
    let (program, target) = tried[number];
    let finer = FINER.into_iter().filter_map(|difference| target.checked_add_signed(difference));
    let (fine, least, _) = best(finer.map(|target| (program, target)).collect())?;
    let mut found = if least < interval { fine } else { coarse };
    if let Some(stream) = &mut found.stream {
        stream.bounds = context.bounds().interval.clone();
    }
    Ok(found)
}

/// The program with a stream whose runs begin every so many thousandths of its makespan, if nothing is in the way.
fn stream(program: &Program, target: u64, timing: Timing) -> Result<Program, ScheduleError> {
    let accesses = all_accesses(program);
    let (ends, makespan) = ends(program, &accesses);
    let repeated = constants::repeated(program, &accesses);
    let body = body::body(&program.instructions, &accesses, &ends, &repeated, makespan * target / 1000);
    let stream = Stream { body, predicted_interval: 0, bounds: tpuflow_ir::Bounds::default() };
    let mut found = Program { stream: Some(stream), ..program.clone() };
    let stream = waits::with_waits(&found, &accesses, &repeated)?;
    found.stream = Some(stream.clone());
    let cycles = |runs| -> Result<u64, ScheduleError> {
        let unrolled = found.unrolled(runs)?;
        Ok(timing(&unrolled).unwrap_or_else(|| by_cost_model(&unrolled)))
    };
    let predicted_interval = interval(cycles)?;
    Ok(Program { stream: Some(Stream { predicted_interval, ..stream }), ..found })
}

fn all_accesses(program: &Program) -> Vec<Accesses> {
    program.instructions.iter().map(|i| accesses(i, &program.descriptors, &program.machine)).collect()
}

/// By the cost model, when every instruction ends, and when the last does.
fn ends(program: &Program, accesses: &[Accesses]) -> (Vec<u64>, u64) {
    let mut model = CostModel::new(&program.machine);
    let ends = program.instructions.iter().zip(accesses).map(|(instruction, touched)| {
        model.run(instruction, &program.descriptors, touched);
        model.last(instruction.unit)
    });
    let ends = ends.collect();
    (ends, model.makespan())
}

fn by_cost_model(program: &Program) -> u64 {
    ends(program, &all_accesses(program)).1
}
