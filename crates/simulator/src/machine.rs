//! The machine: all units, stepped together through every cycle.
//!
//! In a cycle the units are stepped in the order of their clients' priority at the banks; a bank serves the first that asks.
//! An instruction that finishes is seen by all units from the next cycle on, so the order of the units decides nothing else.
//!
//! This is the definition of a program's time. [`crate::timeline`] gives the same without visiting every cycle; it leaves
//! programs that break a rule to the machine, which reports the first that is broken.

use std::ops::Range;

use tpuflow_ir::{Program, Space, Unit, View, memory};
use tpuflow_kernels::parallel;

use crate::checked_program::Time;
use crate::context::Context;
use crate::dma::Dma;
use crate::error::{ProgramError, SimError};
use crate::matrix::MatrixEngine;
use crate::run::{ArrayModel, Options, Run, layer_runs};
use crate::signals::{Recorder, Signals};
use crate::stream::Stream;
use crate::timeline;
use crate::values::{Executor, ProgramCache};

struct Units {
    dma: Dma,
    matrix: MatrixEngine,
    /// In falling priority.
    streams: Vec<Stream>,
}

impl Units {
    fn new(program: &Program) -> Self {
        Self {
            dma: Dma::new(program),
            matrix: MatrixEngine::new(program),
            streams: Unit::streaming(&program.machine).map(|unit| Stream::new(program, unit)).collect(),
        }
    }

    fn is_finished(&self) -> bool {
        self.dma.is_finished() && self.matrix.is_finished() && self.streams.iter().all(Stream::is_finished)
    }

    /// The first instruction that waits for others.
    fn first_waiting_instruction(&self) -> u32 {
        let streams = self.streams.iter().map(Stream::waiting_instruction);
        streams.chain([self.dma.waiting_instruction(), self.matrix.waiting_instruction()]).flatten().min().unwrap_or(0)
            as u32
    }

    /// Steps every unit through `context.cycle`; false when none will ever act again.
    fn step(&mut self, context: &mut Context<'_>) -> Result<bool, SimError> {
        if self.dma.idle(context) && self.matrix.idle(context) && self.streams.iter().all(|unit| unit.idle(context)) {
            return Ok(false);
        }
        self.dma.step(context)?;
        self.matrix.step(context)?;
        self.streams.iter_mut().try_for_each(|unit| unit.step(context))?;
        context.tokens.commit();
        context.cycle += 1;
        Ok(true)
    }
}

/// Runs a program. `inputs`: one dense row-major array of codes per input port, little endian; ignored without values.
///
/// # Errors
/// [`SimError`]: inputs that do not fit, a broken rule of the machine, or a program that cannot go on.
pub fn simulate(program: &Program, inputs: &[Vec<u8>], options: &Options) -> Result<Run, SimError> {
    simulate_again(program, inputs, options, &ProgramCache::default())
}

/// As [`simulate`], with what earlier runs have left: how long the program takes, too, where values do not change that. A run
/// without values finds it out anew.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_again(
    program: &Program,
    inputs: &[Vec<u8>],
    options: &Options,
    kept: &ProgramCache,
) -> Result<Run, SimError> {
    check_header(program).map_err(|reason| refused(program, reason))?;
    if options.values {
        check_alone(program)?;
        check_memory(program)?;
    }
    let run = || simulate_timing(program, inputs, options, kept);
    if options.values { parallel::inside(run) } else { run() }
}

fn simulate_timing(
    program: &Program,
    inputs: &[Vec<u8>],
    options: &Options,
    kept: &ProgramCache,
) -> Result<Run, SimError> {
    let executor = || {
        let fed = |mut executor: Executor<_>| executor.write_inputs(inputs).map(|()| executor);
        options.values.then(|| fed(Executor::new(program, options.array, kept))).transpose()
    };
    let sound = kept.checked_program(program)?;
    if !options.stepped {
        let known = sound.time.get().filter(|time| !options.trace && time.layers.len() == program.layers.len());
        let run = match (known, executor()?) {
            (Some(time), Some(executor)) => values(program, executor, time).map(Some),
            (_, executor) => timeline::run(program, executor, options.trace, &sound),
        };
        if let Ok(Some(run)) = run {
            return Ok(run);
        }
    }
    // Whoever asks for steps has time; a rule that is broken is looked for so far and no further.
    let limit = if options.stepped { u64::MAX } else { STEPS };
    let run = step(program, Context::new(program, executor()?, options.trace, sound.needs.clone()), limit);
    debug_assert!(options.stepped || run.is_err(), "a timeline leaves only what breaks a rule");
    run
}

/// The values of a program whose time is known.
fn values(program: &Program, mut executor: Executor<&Program>, time: &Time) -> Result<Run, SimError> {
    (0..program.instructions.len()).try_for_each(|position| executor.execute(position))?;
    executor.check_passes()?;
    let (outputs, events) = (executor.outputs()?, executor.events());
    let layers = layer_runs(program, &time.layers);
    Ok(Run { outputs, cycles: time.cycles, counters: time.counters.clone(), layers, trace: None, events })
}

/// The signals of units, ports and channels in the cycles of `window`, at most `most` events. `inputs` as for [`simulate`]:
/// they decide which rows of tables are looked up, and so when.
///
/// # Errors
/// As [`simulate`], and when there are more events.
pub fn signals_of(program: &Program, inputs: &[Vec<u8>], window: Range<u64>, most: usize) -> Result<Signals, SimError> {
    check_program(program)?;
    check_alone(program)?;
    check_memory(program)?;
    let kept = ProgramCache::default();
    let mut executor = Executor::new(program, ArrayModel::Closed, &kept);
    executor.write_inputs(inputs)?;
    let mut context = Context::new(program, Some(executor), false, kept.checked_program(program)?.needs.clone());
    context.recorder = Some(Recorder::new(program, window, most));
    let mut units = Units::new(program);
    let going_on = |context: &mut Context<'_>| {
        let cycle = context.cycle;
        context.recorder.as_mut().is_some_and(|recorder| recorder.begin_cycle(cycle))
    };
    parallel::inside(|| {
        while !units.is_finished() && going_on(&mut context) {
            if !units.step(&mut context)? {
                return Err(SimError::Deadlock {
                    cycle: context.cycle,
                    instruction: units.first_waiting_instruction(),
                });
            }
            context.recorder.as_ref().map_or(Ok(()), |recorder| recorder.check(program))?;
        }
        Ok(())
    })?;
    Ok(context.recorder.map_or_else(Signals::default, Recorder::into_signals))
}

/// Cycles that are stepped through in search of a broken rule.
const STEPS: u64 = 1 << 26;

/// Runs a program cycle by cycle.
fn step(program: &Program, mut context: Context<'_>, limit: u64) -> Result<Run, SimError> {
    let mut units = Units::new(program);
    while !units.is_finished() {
        if context.cycle > limit {
            return Err(SimError::Program { name: program.name.clone(), reason: ProgramError::TooLate { limit } });
        }
        if !units.step(&mut context)? {
            return Err(SimError::Deadlock { cycle: context.cycle, instruction: units.first_waiting_instruction() });
        }
    }
    let (outputs, events) = match &mut context.executor {
        Some(executor) => (executor.check_passes().and_then(|()| executor.outputs())?, executor.events()),
        None => (vec![], vec![]),
    };
    let mut counters = context.counters;
    (counters.bank_accesses, counters.bank_conflicts) = context.banks.into_counts();
    let trace = context.trace.map(|mut trace| {
        trace.sort_by_key(|interval| (interval.start, interval.instruction, interval.phase));
        trace
    });
    let layers = layer_runs(program, &context.layers);
    let cycles = if program.instructions.is_empty() { 0 } else { context.cycle };
    Ok(Run { outputs, cycles, counters, layers, trace, events })
}

/// Whether the memories a program asks for may be taken, before they are.
pub(crate) fn check_memory(program: &Program) -> Result<(), SimError> {
    let machine = &program.machine;
    // A bit a byte for what was written, and eight bytes for each 64 of the cache for what it is a copy of.
    let (cache, ewp_cache) = (machine.cache_bytes() / 4 * 5, machine.ewp_cache_bytes() / 8 * 9);
    let ddr = program.ddr_bytes.iter().map(|bytes| bytes / 8 * 9).sum::<u64>();
    let caches = cache + ewp_cache;
    memory::check("cache.banks * cache.words * cache.word_bytes", cache)
        .and_then(|()| memory::check("ewp_cache.banks * ewp_cache.words * cache.word_bytes", ewp_cache))
        .and_then(|()| memory::check(&format!("ddr_bytes {:?}", program.ddr_bytes), ddr))
        .and_then(|()| memory::check("ddr_bytes and the caches together", ddr + caches))
        .map_err(|reason| refused(program, reason))
}

/// Whether a program computes anything without those of other devices.
pub(crate) fn check_alone(program: &Program) -> Result<(), SimError> {
    match program.devices() {
        1 => Ok(()),
        devices => Err(refused(program, ProgramError::Devices { devices, given: 1 })),
    }
}

/// Sizes of memories, ports and layers.
pub(crate) fn check_program(program: &Program) -> Result<(), SimError> {
    let instructions = || program.check_instruction_limits().map_err(ProgramError::from);
    check_header(program).and_then(|()| instructions()).map_err(|reason| refused(program, reason))
}

pub(crate) fn refused(program: &Program, reason: impl Into<ProgramError>) -> SimError {
    SimError::Program { name: program.name.clone(), reason: reason.into() }
}

fn check_header(program: &Program) -> Result<(), ProgramError> {
    program.check_header_limits()?;
    let machine = &program.machine;
    if program.ddr_bytes.len() > machine.ddr_spaces() {
        let (spaces, available) = (program.ddr_bytes.len(), machine.ddr_spaces());
        return Err(ProgramError::Spaces { spaces, available });
    }
    for (space, &bytes) in program.ddr_bytes.iter().enumerate() {
        if bytes > machine.ddr_capacity() {
            return Err(ProgramError::Capacity { bytes, space });
        }
    }
    for (space, constants) in program.constants.iter().enumerate() {
        if program.ddr_bytes.get(space).is_none_or(|&bytes| constants.len() as u64 > bytes) {
            return Err(ProgramError::Constants { space });
        }
    }
    let inputs = program.inputs.iter().enumerate().map(|(n, port)| (port, false, program.is_exchanged(n)));
    for (port, is_output, is_part) in inputs.chain(program.outputs.iter().map(|port| (port, true, false))) {
        let inside = |view: View| {
            let Space::Ddr(space) = view.space else { return false };
            let space = if is_part { machine.own_space(space) } else { space };
            let bytes = program.ddr_bytes.get(usize::from(space)).copied().unwrap_or(0);
            view.address.checked_add(view.bytes(machine.word())).is_some_and(|end| end <= bytes)
        };
        if !port.is_whole(machine.word(), is_output) || !port.views().all(inside) {
            return Err(ProgramError::Port { name: port.name.clone() });
        }
    }
    if let Some(instruction) = program.instructions.iter().position(|i| i.layer.index() >= program.layers.len()) {
        return Err(ProgramError::Layer { instruction });
    }
    Ok(())
}
