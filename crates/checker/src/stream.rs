//! Streams: every number of runs computes what so many runs one after the other would.
//!
//! Streams of 1, 2, 3, .. runs are checked as the programs they are ([`Program::unrolled`]), until two iterations in a row leave
//! the same behind. From there on every iteration repeats the steps of the one before, so what was proven of it holds for any
//! number of runs.
//!
//! What an iteration leaves behind is the value of every byte, told by how many runs ago it was computed; who read and wrote it,
//! and what the instructions knew, as far as that was in the iteration before. Anything earlier does not matter, because every
//! instruction must know that all iterations but its own and the one before have finished.

use std::collections::BTreeMap;
use std::ops::Range;

use tpuflow_ir::{Graph, Instruction, Port, Program, Space, Unit};

use crate::contents::{Actor, Tokens, Value};
use crate::order::Order;
use crate::rule::{Fault, Rule, Violation};
use crate::walk::{Steps, walk_from};

/// Iterations for which repetition is waited beyond those in which some run begins or ends.
const PATIENCE: u32 = 8;

/// Checks the stream of a program, if it has one, for every number of runs. `graph` is the one whose layers are those of the
/// program.
///
/// # Errors
/// The first `most` violations of the shortest stream that has some, by instruction of the program.
pub(crate) fn check(graph: Option<&Graph>, program: &Program, most: usize) -> Result<(), Vec<Violation>> {
    let Some(stream) = &program.stream else { return Ok(()) };
    let lag = stream.body.iter().map(|repeated| repeated.lag).max().unwrap_or(0);
    // What instructions of so many iterations knew can reach others by their waits.
    let reach = stream.body.iter().flat_map(|repeated| &repeated.waits).map(|wait| wait.ago).max().unwrap_or(0);
    let fault = |fault: Fault| vec![fault.at_instruction(None)];
    program
        .check_stream_references()
        .map_err(|reason| fault(Rule::Stream.violation("a body that can be repeated", reason)))?;
    for runs in 1..=lag + PATIENCE {
        let unrolled = program
            .unrolled(runs)
            .map_err(|reason| fault(Rule::Stream.violation(format_args!("{runs} runs"), reason)))?;
        let iterations = Iterations::new(program, &unrolled, runs);
        let repeated = graph.map(|graph| graph.repeated(runs));
        let values = graph.zip(repeated.as_ref()).map(|(graph, repeated)| RunValues::new(graph, repeated, runs));
        let mut left = Vec::new();
        let mut outcome = Ok(());
        walk_from(repeated.as_ref(), &unrolled, most, None, |steps| {
            if let Some(iteration) = iterations.starts.iter().position(|&start| start == steps.position) {
                iterations.forget(steps, values.as_ref(), iteration as u32);
            }
            if steps.position == iterations.boundary(runs - 1) || steps.position == iterations.boundary(runs) {
                left.push(Remains::of(steps, &iterations, values.as_ref(), left.len() as u32 + runs - 1, reach));
            }
            if steps.position == unrolled.instructions.len() {
                outcome = iterations.check_knowledge(&steps.order, &unrolled.instructions);
            }
        })
        .map_err(|violations| iterations.by_program(violations))?;
        outcome.map_err(|(position, fault)| iterations.by_program(vec![fault.at_instruction(Some(position))]))?;
        if runs > lag + reach && left[0] == left[1] {
            return Ok(());
        }
    }
    let found = format_args!("others after each of {}", lag + PATIENCE);
    Err(fault(Rule::Stream.violation("iterations that leave the same values behind", found)))
}

/// Where the iterations of a stream lie in its list of instructions.
struct Iterations {
    /// The largest lag.
    lag: u32,
    /// The instruction of the program at every position.
    numbers: Vec<usize>,
    /// Position of the first instruction of every iteration, and the end of the last.
    starts: Vec<usize>,
    /// Tokens of every unit there.
    tokens: Vec<Tokens>,
    /// By run, the stretches of DDR of its ports.
    ports: Vec<Vec<(Space, Range<u64>)>>,
}

impl Iterations {
    fn new(program: &Program, unrolled: &Program, runs: u32) -> Self {
        let body = program.stream.as_ref().map_or(&[][..], |stream| &stream.body);
        let mut late = vec![false; program.instructions.len()];
        body.iter().filter(|r| r.lag > 0).for_each(|r| late[r.instruction.index()] = true);
        let mut numbers: Vec<usize> = (0..late.len()).filter(|&number| !late[number]).collect();
        let mut starts = vec![0, numbers.len()];
        let lag = body.iter().map(|r| r.lag).max().unwrap_or(0);
        for iteration in 1..runs + lag {
            let own = body.iter().filter(|r| iteration >= r.lag && iteration - r.lag < runs);
            numbers.extend(own.map(|r| r.instruction.index()));
            starts.push(numbers.len());
        }
        let mut tokens = Vec::new();
        let mut counts = Tokens::default();
        for (position, instruction) in unrolled.instructions.iter().enumerate() {
            while starts.get(tokens.len()).is_some_and(|&start| start <= position) {
                tokens.push(counts);
            }
            counts[instruction.unit.index()] += 1;
        }
        tokens.resize(starts.len(), counts);
        let word = program.machine.word();
        let constants = |space: Space| match space {
            Space::Ddr(space) => unrolled.constants.get(usize::from(space)).map_or(0, |image| image.len() as u64),
            _ => 0,
        };
        let of_run = |run: usize| {
            let own = [(&program.inputs, &unrolled.inputs), (&program.outputs, &unrolled.outputs)];
            let views = own.into_iter().flat_map(|(one, all)| &all[run * one.len()..(run + 1) * one.len()]);
            let views = views.flat_map(Port::views).filter(|view| view.address >= constants(view.space));
            views.map(|view| (view.space, view.address..view.address + view.bytes(word))).collect()
        };
        let ports = (0..runs as usize).map(of_run).collect();
        Self { lag, numbers, starts, tokens, ports }
    }

    /// Position of the first instruction of an iteration.
    fn boundary(&self, iteration: u32) -> usize {
        self.starts[iteration as usize]
    }

    /// Which run's port lies at an address, its number in that run, and how far into it that is.
    fn port(&self, space: Space, address: u64) -> Option<(u32, usize, u64)> {
        self.ports.iter().enumerate().find_map(|(run, ports)| {
            let port = ports.iter().position(|(of, bytes)| *of == space && bytes.contains(&address))?;
            Some((run as u32, port, address - ports[port].1.start))
        })
    }

    /// Where an iteration begins, what runs that have ended computed becomes undefined, but for their outputs: nothing may read it,
    /// and what is left of it between later values must not make one iteration look different from the next.
    fn forget(&self, steps: &mut Steps, values: Option<&RunValues>, iteration: u32) {
        let Some(values) = values else { return };
        let ended = |run: u32| run + self.lag < iteration;
        steps.memories_mut().replace(|space, address, value| {
            let (run, _) = values.tensors[value.tensor()? as usize];
            (ended(run?) && self.port(space, address).is_none()).then_some(Value::Undefined)
        });
    }

    /// The same violations by instruction of the program.
    fn by_program(&self, violations: Vec<Violation>) -> Vec<Violation> {
        let number = |violation: Violation| Violation {
            instruction: violation.instruction.and_then(|position| self.numbers.get(position).copied()),
            ..violation
        };
        violations.into_iter().map(number).collect()
    }

    /// Every instruction knows that all iterations before the one before its own have finished.
    fn check_knowledge(&self, order: &Order, instructions: &[Instruction]) -> Result<(), (usize, Fault)> {
        let mut seen = Tokens::default();
        let mut iteration = 0;
        for (position, instruction) in instructions.iter().enumerate() {
            while self.starts[iteration + 1] <= position {
                iteration += 1;
            }
            let unit = instruction.unit;
            let known = order.known(unit)[seen[unit.index()] as usize];
            seen[unit.index()] += 1;
            let Some(before) = iteration.checked_sub(1).map(|before| self.tokens[before]) else { continue };
            for (other, (&needed, &known)) in before.iter().zip(&known).enumerate() {
                let name = Unit::ALL[other].name();
                let expected =
                    format_args!("{needed} instructions of {name} in iterations long ago known to have finished");
                Rule::Stream.require(needed <= known, expected, known).map_err(|fault| (position, fault))?;
            }
        }
        Ok(())
    }
}

/// Tensors of a graph that stands there several times: which run's, and which of the graph's.
struct RunValues {
    /// By tensor of the repeated graph; no run: a constant.
    tensors: Vec<(Option<u32>, u32)>,
}

impl RunValues {
    fn new(graph: &Graph, repeated: &Graph, runs: u32) -> Self {
        let mut tensors: Vec<_> = (0..repeated.tensors.len() as u32).map(|tensor| (None, tensor)).collect();
        let once = graph.layers.len();
        for run in 0..runs {
            let own = run as usize * once..(run as usize + 1) * once;
            let results = repeated.layers[own].iter().zip(&graph.layers).map(|(own, layer)| (own.output, layer.output));
            let own = run as usize * graph.inputs.len()..(run as usize + 1) * graph.inputs.len();
            let inputs = repeated.inputs[own].iter().copied().zip(graph.inputs.iter().copied());
            for (own, of) in results.chain(inputs) {
                tensors[own.index()] = (Some(run), of.0);
            }
        }
        Self { tensors }
    }
}

/// A value, by how many runs ago it was computed where it is one of a run.
type RelativeValue = (Value, Option<u32>);
/// By unit, how many tokens before the boundary the last access of the iteration before was; `None`: there was none.
type Ages = [Option<u32>; Unit::COUNT];
/// What instructions of a unit knew, in tokens since the iteration before began.
type Knowledge = Vec<Tokens>;

/// A place and the bytes from there on, the first value, and by whom they were written and read.
type Stretch = ((Place, u64), u64, RelativeValue, [Ages; 2]);

/// What is left behind where an iteration begins.
#[derive(PartialEq, Eq)]
struct Remains {
    values: Vec<Stretch>,
    accesses: BTreeMap<(Place, u64), (u64, [Ages; 2])>,
    known: [Knowledge; Unit::COUNT],
}

/// A memory, or a port by how many runs ago and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Memory(Space),
    Port(u32, usize),
}

impl Remains {
    fn of(steps: &Steps, iterations: &Iterations, values: Option<&RunValues>, iteration: u32, reach: u32) -> Self {
        let tokens = iterations.tokens[iteration as usize];
        let before = iteration.checked_sub(1).map_or(Tokens::default(), |before| iterations.tokens[before as usize]);
        let age = |unit: usize, number: u32| (number > before[unit]).then(|| tokens[unit] - number);
        let ages = |numbers: &Tokens| -> Ages { std::array::from_fn(|unit| age(unit, numbers[unit])) };
        let of_writer = |writer: Option<Actor>| -> Ages {
            std::array::from_fn(|unit| writer.filter(|w| w.unit == unit).and_then(|w| age(unit, w.number)))
        };
        let place = |space: Space, start: u64| -> Option<(Place, u64)> {
            match iterations.port(space, start) {
                None => Some((Place::Memory(space), start)),
                // Those of runs that have ended are not accessed any more, those of later ones have not been.
                Some((run, port, at)) => {
                    let ago = iteration.checked_sub(run).filter(|ago| (1..=iterations.lag).contains(ago))?;
                    Some((Place::Port(ago, port), at))
                }
            }
        };
        let relative = |value: Value| -> RelativeValue {
            let Some((tensor, values)) = value.tensor().zip(values) else { return (value, None) };
            let (run, of) = values.tensors[tensor as usize];
            (value.with_tensor(of), run.map(|run| iteration.wrapping_sub(run)))
        };
        let mut left: Vec<Stretch> = Vec::new();
        for (space, start, run) in steps.memories().all_runs() {
            let Some(at) = place(space, start) else { continue };
            let (value, accesses) = (relative(run.value), [of_writer(run.writer), ages(&run.readers)]);
            let bytes = run.end - start;
            match left.last_mut() {
                Some((from, length, first, same))
                    if from.0 == at.0
                        && from.1 + *length == at.1
                        && *same == accesses
                        && (first.0.advance(*length), first.1) == value =>
                {
                    *length += bytes;
                }
                _ => left.push((at, bytes, value, accesses)),
            }
        }
        let accesses = steps.stretches().all().filter_map(|(space, start, end, touched)| {
            let accesses = touched.map(|numbers| ages(&numbers));
            (accesses != [Ages::default(); 2]).then_some((place(space, start)?, (end - start, accesses)))
        });
        let first = iteration.saturating_sub(reach);
        let known = Unit::ALL.map(|unit| {
            let from = iterations.tokens[first as usize][unit.index()] as usize;
            let list = steps.order.known(unit).get(from..).unwrap_or_default().iter();
            list.map(|known| std::array::from_fn(|other| known[other].saturating_sub(before[other]))).collect()
        });
        Self { values: left, accesses: accesses.collect(), known }
    }
}
