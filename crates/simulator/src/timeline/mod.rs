//! Programs in time, without visiting every cycle.
//!
//! Units meet in three places only: at the banks of the shared cache, where the first of a fixed order is served; at the DDR
//! channels, which the two DMA lines share; and through tokens. So every unit is taken through time on its own, in falling
//! priority at the banks, as far as is known of those before it:
//!
//! ```text
//! DMA      ####################|           up to a token it waits for, plus its start-up
//! ME       ################|               up to there
//! EWP      ###########|
//! PDP      ########|                       then DMA again, with the tokens that are known now
//! ```
//! In `banks` each leaves which cycles it holds which bank; those who come later find the cycles that are left, 64 at a time.
//! A unit that waits for a token does nothing at the banks until its start-up is over, so the others can go on beyond the cycle
//! in which the token may come.
//!
//! [`crate::machine`] steps through every cycle instead and is the definition; both give the same run. Whatever goes wrong is
//! left to it to report.

pub(crate) mod access_rate;
mod accounting;
mod banks;
mod dma;
mod feed;
mod matrix;
mod ports;
mod stream;

use tpuflow_ir::{Program, Unit};

use crate::checked_program::{CheckedProgram, Time, time_depends_on_values};
use crate::error::SimError;
use crate::run::{Run, layer_runs};
use crate::values::Executor;
use accounting::Accounting;
use banks::Banks;
use dma::Dma;
use matrix::Matrix;
use stream::Stream;

/// Runs a sound program; `None`: it breaks a rule while it runs.
///
/// # Errors
/// [`SimError`]: what executing the instructions in order meets.
pub(crate) fn run(
    program: &Program,
    executor: Option<Executor<&Program>>,
    trace: bool,
    sound: &CheckedProgram,
) -> Result<Option<Run>, SimError> {
    if !sound.ends {
        return Ok(None);
    }
    let mut books = Accounting::new(program, executor, trace);
    let mut banks = Banks::new(&program.machine, program.machine.control.start);
    let mut dma = Dma::new(program);
    let mut matrix = Matrix::new(program);
    let mut streams: Vec<Stream> = Unit::streaming(&program.machine).map(|unit| Stream::new(program, unit)).collect();
    let mut known = [0; Unit::COUNT];
    while !(dma.is_finished() && matrix.is_finished() && streams.iter().all(Stream::is_finished)) {
        let before = known;
        let horizon = banks.horizon();
        known[0] = dma.advance(&mut books, &mut banks, horizon)?;
        known[1] = matrix.advance(&mut books, &mut banks, horizon.min(known[0]));
        let mut least = known[0].min(known[1]);
        for (stream, known) in streams.iter_mut().zip(&mut known[2..]) {
            *known = stream.advance(&mut books, &mut banks, horizon.min(least));
            least = least.min(*known);
        }
        if known == before {
            return Ok(None);
        }
        banks.discard_before(least);
    }
    if (0..program.instructions.len()).any(|position| books.is_early(position, &sound.needs[position])) {
        return Ok(None);
    }
    if let Some(last) = program.instructions.len().checked_sub(1) {
        books.execute(last)?;
    }
    let (outputs, events) = match &mut books.executor {
        Some(executor) => (executor.check_passes().and_then(|()| executor.outputs())?, executor.events()),
        None => (vec![], vec![]),
    };
    let mut counters = books.counters;
    (counters.bank_accesses, counters.bank_conflicts) = banks.into_counts();
    let trace = books.trace.map(|mut trace| {
        trace.sort_by_key(|interval| (interval.start, interval.instruction, interval.phase));
        trace
    });
    let layers = layer_runs(program, &books.layers);
    let cycles = counters.units.iter().map(|unit| unit.end).max().unwrap_or(0);
    if !time_depends_on_values(program) {
        sound.time.get_or_init(|| Time { cycles, counters: counters.clone(), layers: books.layers });
    }
    Ok(Some(Run { outputs, cycles, counters, layers, trace, events }))
}
