//! The machine: all units, stepped together.
//!
//! In a cycle the units are stepped in the order of their clients' priority at the banks; a bank serves the first that asks.
//! What a unit finishes is seen by all from the next cycle on, so the order of the units decides nothing else.
//!
//! After it has been stepped, a unit says when it will act next if no instruction finishes until then. Only finished
//! instructions change that answer: at the banks and channels units meet when they act, and then only. So a unit is stepped in
//! the cycles in which it acts, its cycles between them are alike and are booked in bulk, and cycles in which no unit acts are
//! not visited at all. [`Options::stepped`] steps all units through every cycle instead.

use tpuflow_ir::{Program, Space, Unit, View};

use crate::context::Context;
use crate::dma::Dma;
use crate::error::SimError;
use crate::matrix::MatrixEngine;
use crate::run::{Options, Run, layer_runs};
use crate::stream::Stream;
use crate::values::Executor;

struct Units {
    dma: Dma,
    matrix: MatrixEngine,
    ewp: Stream,
    pdp: Stream,
}

/// Number of units, in the order of their clients' priority.
const UNITS: usize = 4;

/// When each unit acts next, and its first cycle that is not booked yet.
struct Agenda {
    next: [Option<u64>; UNITS],
    since: [u64; UNITS],
}

impl Units {
    fn step(&mut self, unit: usize, context: &mut Context<'_>) -> Result<(), SimError> {
        match unit {
            0 => self.dma.step(context),
            1 => self.matrix.step(context),
            2 => self.ewp.step(context),
            _ => self.pdp.step(context),
        }
    }

    fn next_event(&self, unit: usize, context: &Context<'_>) -> Option<u64> {
        match unit {
            0 => self.dma.next_event(context),
            1 => self.matrix.next_event(context),
            2 => self.ewp.next_event(context),
            _ => self.pdp.next_event(context),
        }
    }

    fn skip(&self, unit: usize, context: &mut Context<'_>, cycles: u64) {
        match unit {
            0 => self.dma.skip(context, cycles),
            1 => self.matrix.skip(context, cycles),
            2 => self.ewp.skip(context, cycles),
            _ => self.pdp.skip(context, cycles),
        }
    }

    fn done(&self) -> bool {
        self.dma.done() && self.matrix.done() && self.ewp.done() && self.pdp.done()
    }

    /// The first instruction that waits for others.
    fn waiting(&self) -> u32 {
        let waiting = [self.dma.waiting(), self.matrix.waiting(), self.ewp.waiting(), self.pdp.waiting()];
        waiting.into_iter().flatten().min().unwrap_or(0) as u32
    }

    /// Steps every unit through `context.cycle`; false when none will ever act again.
    fn step_all(&mut self, context: &mut Context<'_>) -> Result<bool, SimError> {
        if (0..UNITS).all(|unit| self.next_event(unit, context).is_none()) {
            return Ok(false);
        }
        for unit in 0..UNITS {
            self.step(unit, context)?;
        }
        context.tokens.commit();
        context.cycle += 1;
        Ok(true)
    }
}

impl Agenda {
    fn new(units: &Units, context: &Context<'_>) -> Self {
        Self { next: std::array::from_fn(|unit| units.next_event(unit, context)), since: [context.cycle; UNITS] }
    }

    /// Steps the units that act next through the cycle in which they do; false when none will ever act again.
    fn step(&mut self, units: &mut Units, context: &mut Context<'_>) -> Result<bool, SimError> {
        let Some(now) = self.next.iter().flatten().min().copied() else { return Ok(false) };
        let due = self.next.map(|next| next.is_some_and(|next| next <= now));
        for unit in (0..UNITS).filter(|&unit| due[unit]) {
            self.book(unit, now, units, context);
            context.cycle = now;
            units.step(unit, context)?;
            self.since[unit] = now + 1;
        }
        let finished = context.tokens.commit();
        context.cycle = now + 1;
        for unit in (0..UNITS).filter(|&unit| finished || due[unit]) {
            // What a unit that has not acted expected still comes; its answer from here on may leave it out.
            let expected = self.next[unit].filter(|_| !due[unit]);
            self.next[unit] = [expected, units.next_event(unit, context)].into_iter().flatten().min();
        }
        Ok(true)
    }

    /// Books the cycles of a unit up to `end`, in which it has not acted.
    fn book(&self, unit: usize, end: u64, units: &Units, context: &mut Context<'_>) {
        let begin = self.since[unit];
        if begin < end {
            context.cycle = begin;
            units.skip(unit, context, end - begin);
            context.cycle = end;
        }
    }
}

/// Runs a program. `inputs`: one dense row-major array of codes per input port, little endian; ignored without values.
///
/// # Errors
/// [`SimError`]: inputs that do not fit, a broken rule of the machine, or a program that cannot go on.
pub fn simulate(program: &Program, inputs: &[Vec<u8>], options: &Options) -> Result<Run, SimError> {
    check_program(program)?;
    let mut executor = options.values.then(|| Executor::new(program, options.array));
    if let Some(executor) = &mut executor {
        executor.feed(inputs)?;
    }
    let mut context = Context::new(program, executor, options.trace)?;
    let mut units = Units {
        dma: Dma::new(program),
        matrix: MatrixEngine::new(program),
        ewp: Stream::new(program, Unit::Ewp),
        pdp: Stream::new(program, Unit::Pdp),
    };
    let mut agenda = Agenda::new(&units, &context);
    while !units.done() {
        let acts =
            if options.stepped { units.step_all(&mut context)? } else { agenda.step(&mut units, &mut context)? };
        if !acts {
            return Err(SimError::Deadlock { cycle: context.cycle, instruction: units.waiting() });
        }
    }
    if !options.stepped {
        let end = context.cycle;
        for unit in 0..UNITS {
            agenda.book(unit, end, &units, &mut context);
        }
    }
    let (outputs, events) = match &context.executor {
        Some(executor) => (executor.outputs()?, executor.events()),
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

/// Sizes of memories, ports and layers.
pub(crate) fn check_program(program: &Program) -> Result<(), SimError> {
    let fail = |reason: String| Err(SimError::Program { name: program.name.clone(), reason });
    let machine = &program.machine;
    if program.ddr_bytes.len() > machine.ddr_spaces() {
        return fail(format!("{} DDR address spaces of {}", program.ddr_bytes.len(), machine.ddr_spaces()));
    }
    for (space, &bytes) in program.ddr_bytes.iter().enumerate() {
        if bytes > machine.ddr.capacity_bytes * u64::from(machine.ddr.channels) {
            return fail(format!("{bytes} bytes exceed DDR {space}"));
        }
    }
    for (space, constants) in program.constants.iter().enumerate() {
        if program.ddr_bytes.get(space).is_none_or(|&bytes| constants.len() as u64 > bytes) {
            return fail(format!("the constants exceed DDR {space}"));
        }
    }
    for port in program.inputs.iter().chain(&program.outputs) {
        let view = &port.view;
        let whole = View {
            origin: view.origin,
            ..View::whole(&port.shape, port.dtype, machine.word(), view.space, view.address)
        };
        let end = view.address.checked_add(view.bytes(machine.word()));
        let inside = matches!(view.space, Space::Ddr(n)
            if program.ddr_bytes.get(usize::from(n)).is_some_and(|&bytes| end.is_some_and(|end| end <= bytes)));
        if *view != whole || !inside {
            return fail(format!("port \"{}\" does not lie in DDR as its shape says", port.name));
        }
    }
    if let Some(n) = program.instructions.iter().position(|i| i.layer.index() >= program.layers.len()) {
        return fail(format!("instruction {n} works for a layer that does not exist"));
    }
    Ok(())
}
