//! Waits of the instructions of an iteration.
//!
//! A stream of a few runs is followed with the map of [`TokenTracker`]: whatever an instruction needs finished is told by
//! iteration and number. From some iteration on that repeats itself. Beyond that, the first instruction of every unit and lag waits
//! until all iterations but its own and the one before are over; so no instruction ever meets anything older.

use smallvec::SmallVec;
use tpuflow_ir::access::{Accesses, accesses};
use tpuflow_ir::error::StreamError;
use tpuflow_ir::stream::LAG;
use tpuflow_ir::{IterationWait, Program, Stream, Unit};

use crate::emission::TokenTracker;
use crate::error::ScheduleError;

type Counts = [u32; Unit::COUNT];

/// The stream of a program with its waits. `repeated`: by instruction of the program, whether the body has it.
pub(super) fn with_waits(program: &Program, touched: &[Accesses], repeated: &[bool]) -> Result<Stream, ScheduleError> {
    let Some(stream) = program.stream.clone() else { return Err(StreamError::None.into()) };
    // The iteration whose needs are taken for all: those before it have all instructions as well.
    let steady = stream.body.iter().map(|r| r.lag).max().unwrap_or(0) + 2;
    let unrolled = program.unrolled(steady + 1)?;
    let starts = starts(program, &stream, steady);
    let mut tracker = TokenTracker::default();
    let (mut counts, mut before) = (Counts::default(), Vec::new());
    let mut waits = Vec::with_capacity(stream.body.len());
    let mut begun = [[false; LAG as usize + 1]; Unit::COUNT];
    let body_counts = own_counts(program, &stream);
    for (position, instruction) in unrolled.instructions.iter().enumerate() {
        while starts.get(before.len()).is_some_and(|&start| start <= position) {
            before.push(counts);
        }
        let unit = instruction.unit.index();
        let needs = tracker.needs(instruction.unit, &accesses(instruction, &program.descriptors, &program.machine));
        if before.len() == steady as usize + 1 && waits.len() < stream.body.len() {
            let mut own: [Option<IterationWait>; Unit::COUNT] = Default::default();
            // Of those of its lag, which are there or not together in the first and last iterations.
            let lag = stream.body[waits.len()].lag;
            let is_first = !std::mem::replace(&mut begun[unit][lag as usize], true);
            for other in Unit::ALL {
                let index = other.index();
                let need = needs[index];
                // Iterations before the last two are over anyway.
                let ago = (0..2).find(|&ago| need > before[(steady - ago) as usize][index]);
                own[index] = match ago {
                    Some(ago) => {
                        Some(IterationWait { unit: other, ago, count: need - before[(steady - ago) as usize][index] })
                    }
                    None if is_first => Some(IterationWait { unit: other, ago: 2, count: body_counts[index] }),
                    None => None,
                };
            }
            waits.push(own);
        }
        counts[unit] += 1;
    }
    add_resident(program, &stream, touched, repeated, &mut waits);
    let lists = waits.into_iter().map(|own| own.into_iter().flatten().collect::<SmallVec<[IterationWait; 4]>>());
    Ok(stream.with_waits(lists.collect()))
}

/// Where iterations begin in a stream of more than so many runs.
fn starts(program: &Program, stream: &Stream, last: u32) -> Vec<usize> {
    let with_lag = stream.body.iter().filter(|r| r.lag > 0).count();
    let mut starts = vec![0, program.instructions.len() - with_lag];
    for iteration in 1..last {
        let own = stream.body.iter().filter(|r| r.lag <= iteration).count();
        starts.push(starts[iteration as usize] + own);
    }
    starts
}

/// Instructions of every unit in the body.
fn own_counts(program: &Program, stream: &Stream) -> Counts {
    let mut counts = Counts::default();
    for entry in &stream.body {
        counts[program.instructions[entry.instruction.index()].unit.index()] += 1;
    }
    counts
}

/// Instructions of lag 1 are first executed in the second iteration: what they read of constants that are loaded in the first one alone
/// they wait for then. Those without a lag have done so in the first, others know that it is over.
fn add_resident(
    program: &Program,
    stream: &Stream,
    touched: &[Accesses],
    repeated: &[bool],
    waits: &mut [[Option<IterationWait>; Unit::COUNT]],
) {
    let mut loads: std::collections::BTreeMap<(tpuflow_ir::Space, u64), (u64, usize)> = Default::default();
    for (number, touched) in touched.iter().enumerate().filter(|(number, _)| !repeated[*number]) {
        for stretch in &touched.writes {
            loads.insert((stretch.space, stretch.start), (stretch.end, number));
        }
    }
    for (entry, own) in stream.body.iter().zip(waits).filter(|(entry, _)| entry.lag == 1) {
        for stretch in &touched[entry.instruction.index()].reads {
            let below = loads.range(..(stretch.space, stretch.end)).rev();
            let met = below.take_while(|((space, _), (end, _))| *space == stretch.space && *end > stretch.start);
            for (_, &(_, load)) in met {
                let unit = program.instructions[load].unit;
                let counted = stream.body.iter().filter(|r| {
                    let other = &program.instructions[r.instruction.index()];
                    other.unit == unit
                });
                // Up to the last instruction of the unit that stands before the load, and with it what follows up to the next.
                let count = counted
                    .enumerate()
                    .filter(|(_, r)| r.lag == 0 && r.instruction.index() < load)
                    .map(|(number, _)| number as u32 + 1)
                    .max()
                    .unwrap_or(0);
                let wait = IterationWait { unit, ago: 1, count };
                let slot = &mut own[unit.index()];
                let earlier =
                    slot.is_none_or(|own| own.ago > wait.ago || own.ago == wait.ago && own.count < wait.count);
                if earlier {
                    *slot = Some(wait);
                }
            }
        }
    }
}
