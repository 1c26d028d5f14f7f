//! Streams: runs of a program that follow each other without a pause, each beginning before the one before has ended.
//!
//! ```text
//!  iteration   0             1              2              3
//!            | run 0, lag 0 | run 0, lag 1 | run 0, lag 2 |
//!            |              | run 1, lag 0 | run 1, lag 1 | run 1, lag 2 |
//! ```
//!
//! The *body* of a stream is an iteration in serial order. An instruction of it that has a *lag* belongs to the run that began so
//! many iterations ago: iteration `i` executes an instruction of lag `l` for run `i - l`, if there is such a run.
//! Instructions of the program that the body leaves out are executed in the first iteration only: what they load stays in the caches.
//! The first iteration is in the order of the program, by its waits.
//!
//! Every run has inputs and outputs of its own in DDR, whole pages apart. Nothing else tells runs apart, so a stream of so many
//! runs is an ordinary program of the graph that stands there as often: [`Program::unrolled`], [`Graph::repeated`].

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::error::{LimitError, StreamError};
use crate::program::{Bounds, LayerSummary};
use crate::relocation::PortRegions;
use crate::{Graph, Instruction, InstructionId, Layer, LayerId, Port, Program, Source, Tensor, TensorId, Unit, Wait};

/// Iterations before its own that a wait may name at most.
pub const REACH: u32 = 2;
/// The largest lag: so many further runs may have begun when a run ends.
pub const LAG: u32 = 7;

/// Instructions, and layers, of the longest stream that is unrolled.
const INSTRUCTIONS: u64 = 1 << 22;
/// Runs of the two streams whose difference is the interval: the first is long enough for iterations to have become alike.
const MEASURED_RUNS: [u32; 2] = [12, 20];

/// Cycles from one run to the next, rounded up, if streams of so many runs take so many `cycles`.
///
/// # Errors
/// That of `cycles`.
pub fn interval<E>(mut cycles: impl FnMut(u32) -> Result<u64, E>) -> Result<u64, E> {
    let [few, many] = MEASURED_RUNS;
    let (first, all) = (cycles(few)?, cycles(many)?);
    Ok(all.saturating_sub(first).div_ceil((many - few).into()))
}

/// How runs of a program follow each other without a pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Instructions of an iteration in serial order.
    pub body: Vec<Repeated>,
    /// Cycles from one run to the next that the scheduler expects.
    pub predicted_interval: u64,
    /// Lower bounds of the cycles from one run to the next; those of start and latency are 0.
    pub bounds: Bounds,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(lag: &u32) -> bool {
    *lag == 0
}

/// An instruction of the body of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeated {
    /// Which of the program.
    pub instruction: InstructionId,
    /// How many iterations after the first of its run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lag: u32,
    /// What it waits for in place of the waits of the program.
    #[serde(default, skip_serializing_if = "SmallVec::is_empty")]
    pub waits: SmallVec<[IterationWait; 4]>,
}

/// Wait until a unit has finished so many instructions of the body in an iteration, and all of those before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IterationWait {
    /// Whose tokens.
    pub unit: Unit,
    /// How many iterations ago: 0 is the same one, at most [`REACH`].
    pub ago: u32,
    /// How many instructions of the unit in that iteration.
    pub count: u32,
}

/// Tokens of every unit.
type Counts = [u32; Unit::COUNT];

/// Instruction of the program, its run and waits.
type Placed = (InstructionId, u32, SmallVec<[Wait; 4]>);

/// The iterations of a stream of so many runs.
struct Iterations<'a> {
    program: &'a Program,
    body: &'a [Repeated],
    runs: u32,
    /// By unit, lags of its instructions in the body.
    lags: [Vec<u32>; Unit::COUNT],
    /// By unit and number of its instructions in the body, tokens of the first iteration.
    first: [Vec<u32>; Unit::COUNT],
    /// Tokens before every iteration, and behind the last.
    before: Vec<Counts>,
}

impl<'a> Iterations<'a> {
    fn new(program: &'a Program, body: &'a [Repeated], runs: u32) -> Self {
        let unit = |repeated: &Repeated| program.instructions[repeated.instruction.index()].unit;
        let mut lags: [Vec<u32>; Unit::COUNT] = Default::default();
        body.iter().for_each(|repeated| lags[unit(repeated).index()].push(repeated.lag));
        let late = late(program, body);
        // By instruction, how many of its unit come before it in the first iteration.
        let mut counts = Counts::default();
        let ahead = program.instructions.iter().zip(&late).map(|(instruction, &late)| {
            let own = &mut counts[instruction.unit.index()];
            std::mem::replace(own, *own + u32::from(!late))
        });
        let ahead: Vec<u32> = ahead.collect();
        let first = Unit::ALL.map(|of| {
            // Loads that are not repeated count with the repeated instruction before them.
            let starts = body.iter().filter(|r| unit(r) == of && r.lag == 0).map(|r| ahead[r.instruction.index()]);
            let starts: Vec<u32> = starts.chain([counts[of.index()]]).collect();
            let mut next = 0;
            let mut tokens = vec![starts[0]];
            for &lag in &lags[of.index()] {
                next += usize::from(lag == 0);
                tokens.push(starts[next]);
            }
            tokens
        });
        let mut iterations = Self { program, body, runs, lags, first, before: vec![Counts::default()] };
        for iteration in 0..iterations.count() {
            let last = iterations.before[iteration as usize];
            let all = Unit::ALL.map(|unit| last[unit.index()] + iterations.within(unit, iteration, u32::MAX));
            iterations.before.push(all);
        }
        iterations
    }

    /// How many there are.
    fn count(&self) -> u32 {
        self.runs + self.body.iter().map(|repeated| repeated.lag).max().unwrap_or(0)
    }

    /// The run for which an iteration executes an instruction of this lag.
    fn run(&self, iteration: u32, lag: u32) -> Option<u32> {
        iteration.checked_sub(lag).filter(|&run| run < self.runs)
    }

    /// Tokens a unit has in an iteration once so many of its body instructions are finished, as far as they are executed.
    fn within(&self, unit: Unit, iteration: u32, count: u32) -> u32 {
        let lags = &self.lags[unit.index()];
        let count = (count as usize).min(lags.len());
        if iteration == 0 {
            return self.first[unit.index()][count];
        }
        lags[..count].iter().filter(|&&lag| self.run(iteration, lag).is_some()).count() as u32
    }

    /// The instructions of an iteration.
    fn iteration(&self, iteration: u32) -> Vec<Placed> {
        if iteration == 0 {
            return self.first_iteration();
        }
        let placed = self.body.iter().filter_map(|repeated| {
            let run = self.run(iteration, repeated.lag)?;
            let waits = repeated.waits.iter().filter_map(|&IterationWait { unit, ago, count }| {
                let of = iteration.checked_sub(ago)?;
                let count = self.before[of as usize][unit.index()] + self.within(unit, of, count);
                (count > 0).then_some(Wait { unit, count })
            });
            Some((repeated.instruction, run, waits.collect()))
        });
        placed.collect()
    }

    /// The first iteration: the program without what has a lag, by its own waits.
    fn first_iteration(&self) -> Vec<Placed> {
        let late = late(self.program, self.body);
        // By unit and number of its instructions in the program, how many of them have no lag.
        let mut left: [Vec<u32>; Unit::COUNT] = std::array::from_fn(|_| vec![0]);
        for (instruction, &late) in self.program.instructions.iter().zip(&late) {
            let counts = &mut left[instruction.unit.index()];
            counts.push(counts.last().copied().unwrap_or(0) + u32::from(!late));
        }
        let own = self.program.instructions.iter().enumerate().filter(|(number, _)| !late[*number]);
        let placed = own.map(|(number, instruction)| {
            let waits = instruction.waits.iter().filter_map(|wait| {
                let counts = &left[wait.unit.index()];
                let count = counts[(wait.count as usize).min(counts.len() - 1)];
                (count > 0).then_some(Wait { count, ..*wait })
            });
            (InstructionId::new(number), 0, waits.collect())
        });
        placed.collect()
    }
}

/// By instruction of the program, whether it has a lag.
fn late(program: &Program, body: &[Repeated]) -> Vec<bool> {
    let mut late = vec![false; program.instructions.len()];
    for repeated in body {
        late[repeated.instruction.index()] |= repeated.lag > 0;
    }
    late
}

impl Stream {
    /// Lower bounds of so many runs, of each of which `first` are bounds: every further run has all its work. What is loaded for it may
    /// share pages with other loads, so of DDR only the first run counts.
    fn bounds_of(&self, runs: u32, first: &Bounds) -> Bounds {
        let further = u64::from(runs - 1);
        let own = &self.bounds;
        Bounds {
            array: first.array + further * own.array,
            ewp: first.ewp + further * own.ewp,
            pdp: first.pdp + further * own.pdp,
            ports: first.ports + further * own.ports,
            ..first.clone()
        }
    }

    /// The same body with other waits, one list for each instruction of it.
    #[must_use]
    pub fn with_waits(mut self, waits: Vec<SmallVec<[IterationWait; 4]>>) -> Self {
        for (repeated, waits) in self.body.iter_mut().zip(waits) {
            repeated.waits = waits;
        }
        self
    }
}

impl Program {
    /// Proves that the body of the stream names instructions there are, each once, in the order of their units, and waits of
    /// iterations within [`REACH`].
    ///
    /// # Errors
    /// One line with the number of the instruction in the body.
    pub fn check_stream_references(&self) -> Result<(), LimitError> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let mut seen = vec![false; self.instructions.len()];
        let mut last: [[Option<InstructionId>; LAG as usize + 1]; Unit::COUNT] = Default::default();
        for (entry, repeated) in stream.body.iter().enumerate() {
            let number = repeated.instruction.index();
            let Some(instruction) = self.instructions.get(number) else {
                return Err(LimitError::Stream { entry, reason: "names an instruction that does not exist" });
            };
            if std::mem::replace(&mut seen[number], true) {
                return Err(LimitError::Stream { entry, reason: "names an instruction for the second time" });
            }
            let Some(last) = last[instruction.unit.index()].get_mut(repeated.lag as usize) else {
                return Err(LimitError::Stream { entry, reason: "has too large a lag" });
            };
            if last.replace(repeated.instruction).is_some_and(|before| before > repeated.instruction) {
                return Err(LimitError::Stream { entry, reason: "comes before an earlier instruction of its unit" });
            }
            if repeated.waits.iter().any(|wait| wait.ago > REACH) {
                return Err(LimitError::Stream { entry, reason: "waits for an iteration too long ago" });
            }
        }
        Ok(())
    }

    /// The stream of so many runs as a program of the graph [repeated](Graph::repeated) as often: all instructions of all
    /// iterations in serial order, with ports for every run.
    ///
    /// # Errors
    /// [`StreamError`] when the program has no stream, or so many runs do not fit.
    pub fn unrolled(&self, runs: u32) -> Result<Self, StreamError> {
        let stream = self.stream.as_ref().ok_or(StreamError::None)?;
        if runs == 0 {
            return Err(StreamError::Runs);
        }
        if !self.states.is_empty() {
            return Err(StreamError::State);
        }
        self.check_stream_references()?;
        let regions = PortRegions::of(self)?;
        let ddr_bytes = regions.ddr_bytes(runs)?;
        let layers = self.layers.len();
        let largest = layers.max(self.instructions.len()) as u64;
        if largest.saturating_mul(runs.into()) > INSTRUCTIONS {
            return Err(StreamError::Size { runs, instructions: INSTRUCTIONS });
        }
        let iterations = Iterations::new(self, &stream.body, runs);
        let mut instructions = Vec::new();
        for iteration in 0..iterations.count() {
            for (id, run, waits) in iterations.iteration(iteration) {
                let Instruction { unit, layer, work, .. } = self.instructions[id.index()].clone();
                let layer = LayerId::new(run as usize * layers + layer.index());
                let mut instruction = Instruction { unit, layer, waits, work };
                regions.move_to_run(&mut instruction, id.index(), run)?;
                instructions.push(instruction);
            }
        }
        let ports = |ports: &[Port]| -> Vec<Port> {
            let of_run = |run: u32| ports.iter().map(move |port| (run, port));
            let all = (0..runs).flat_map(of_run);
            all.map(|(run, port)| {
                let mut moved = port.clone();
                moved.for_each_place(|space, address| *address += regions.distance_at(space, *address, run));
                Port { name: name_in_run(&port.name, run), source: source_in_run(port.source.as_ref(), run), ..moved }
            })
            .collect()
        };
        let all_layers = (0..runs).flat_map(|run| self.layers.iter().map(move |layer| (run, layer)));
        Ok(Self {
            instructions,
            inputs: ports(&self.inputs),
            outputs: ports(&self.outputs),
            layers: all_layers
                .map(|(run, layer)| LayerSummary { name: name_in_run(&layer.name, run), ..layer.clone() })
                .collect(),
            ddr_bytes,
            spill_bytes: self.spill_bytes * u64::from(runs),
            bounds: stream.bounds_of(runs, &self.bounds),
            tilings: vec![],
            allocations: vec![],
            stream: None,
            ..self.clone()
        })
    }
}

/// A tensor of the model in a run.
fn source_in_run(source: Option<&Source>, run: u32) -> Option<Source> {
    source.map(|source| Source { name: name_in_run(&source.name, run), ..source.clone() })
}

/// What something is called in a run: the first is as in the program.
fn name_in_run(name: &str, run: u32) -> String {
    if run == 0 { name.to_owned() } else { format!("{name}@{}", run + 1) }
}

impl Graph {
    /// The graph of so many independent runs: inputs, layers and outputs run by run, constants once.
    ///
    /// # Panics
    /// When it has more than `u32::MAX` tensors.
    #[must_use]
    pub fn repeated(&self, runs: u32) -> Self {
        let mut tensors = self.tensors.clone();
        let mut repeated = Self { name: self.name.clone(), states: vec![], ..Self::empty() };
        for run in 0..runs {
            let mut ids = Vec::with_capacity(self.tensors.len());
            for (id, tensor) in self.tensors.iter().enumerate() {
                ids.push(if run == 0 || tensor.constant.is_some() {
                    TensorId::new(id)
                } else {
                    let source = source_in_run(tensor.source.as_ref(), run);
                    tensors.push(Tensor { name: name_in_run(&tensor.name, run), source, ..tensor.clone() });
                    TensorId::new(tensors.len() - 1)
                });
            }
            let of = |list: &[TensorId]| -> Vec<TensorId> { list.iter().map(|id| ids[id.index()]).collect() };
            repeated.inputs.extend(of(&self.inputs));
            repeated.outputs.extend(of(&self.outputs));
            repeated.layers.extend(self.layers.iter().map(|layer| Layer {
                name: name_in_run(&layer.name, run),
                op: layer.op.with_operands(&of(&layer.op.operands())),
                output: ids[layer.output.index()],
                nodes: layer.nodes.clone(),
                terms: layer.terms,
            }));
        }
        Self { tensors, ..repeated }
    }
}
