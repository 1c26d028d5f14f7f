//! The machine: all units, stepped together.
//!
//! In a cycle the units are stepped in the order of their clients' priority at the banks; a bank serves the first that asks.
//! What a unit finishes is seen by all from the next cycle on, so the order of the units decides nothing else.
//!
//! Before a cycle is stepped, every unit says when it will act next if no other unit acts. The cycles up to the earliest of
//! these are alike: nobody acts in them, so nobody's answer changes. They are booked in bulk. [`Options::stepped`] steps through
//! them instead.

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

impl Units {
    fn step(&mut self, context: &mut Context<'_>) -> Result<(), SimError> {
        self.dma.step(context)?;
        self.matrix.step(context)?;
        self.ewp.step(context)?;
        self.pdp.step(context)
    }

    fn next_event(&self, context: &Context<'_>) -> Option<u64> {
        let events = [
            self.dma.next_event(context),
            self.matrix.next_event(context),
            self.ewp.next_event(context),
            self.pdp.next_event(context),
        ];
        events.into_iter().flatten().min()
    }

    fn skip(&self, context: &mut Context<'_>, cycles: u64) {
        self.dma.skip(context, cycles);
        self.matrix.skip(context, cycles);
        self.ewp.skip(context, cycles);
        self.pdp.skip(context, cycles);
    }

    fn done(&self) -> bool {
        self.dma.done() && self.matrix.done() && self.ewp.done() && self.pdp.done()
    }
}

/// Runs a program. `inputs`: one dense row-major array of codes per input port, little endian; ignored without values.
///
/// # Errors
/// [`SimError`]: inputs that do not fit, a broken rule of the machine, or a program that cannot go on.
pub fn simulate(program: &Program, inputs: &[Vec<u8>], options: &Options) -> Result<Run, SimError> {
    check_program(program)?;
    let executor = if options.values { Some(Executor::new(program, inputs, options.array)?) } else { None };
    let mut context = Context::new(program, executor, options.trace)?;
    let mut units = Units {
        dma: Dma::new(program),
        matrix: MatrixEngine::new(program),
        ewp: Stream::new(program, Unit::Ewp),
        pdp: Stream::new(program, Unit::Pdp),
    };
    while !units.done() {
        let Some(next) = units.next_event(&context) else {
            let waiting = [units.dma.waiting(), units.matrix.waiting(), units.ewp.waiting(), units.pdp.waiting()];
            let instruction = waiting.into_iter().flatten().min().unwrap_or(0) as u32;
            return Err(SimError::Deadlock { cycle: context.cycle, instruction });
        };
        if next > context.cycle && !options.stepped {
            let cycles = next - context.cycle;
            units.skip(&mut context, cycles);
            context.cycle = next;
        }
        units.step(&mut context)?;
        context.tokens.commit();
        context.cycle += 1;
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
