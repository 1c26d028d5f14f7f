//! A program ready to run on arrays.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use tpuflow_ir::Program;
use tpuflow_simulator::run::Event;
use tpuflow_simulator::{Options, Run, Serial, simulate};

use crate::port::{Codec, Error};
use crate::state::StateMemory;

/// The kinds of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Values alone.
    Fast,
    /// Values and cycles, with every rule of the machine checked.
    Exact,
}

/// The results of a run.
#[derive(Debug)]
pub struct RunResult {
    /// By output: the user's arrays, or words.
    pub outputs: Vec<Vec<u8>>,
    /// Cycles, counters, layers; of an exact run.
    pub run: Option<Run>,
    /// Errors that did not stop the run.
    pub events: Vec<Event>,
    /// Time the simulated machine took on this computer.
    pub seconds: f64,
}

/// A program with its checks done; runs may go on side by side.
#[derive(Debug)]
pub struct Session {
    program: Arc<Program>,
    serial: Serial,
    codec: Codec,
}

impl Session {
    /// Checks a program once for all its runs.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Machine`].
    pub fn new(program: Arc<Program>) -> Result<Self, Error> {
        let codec = Codec::new(&program)?;
        Ok(Self { serial: Serial::new(Arc::clone(&program))?, program, codec })
    }

    /// Its ports.
    #[must_use]
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the program on one array per input.
    ///
    /// # Errors
    /// [`Error`]: arrays that do not fit, or a broken rule of the machine.
    pub fn run(&self, arrays: &[&[u8]], mode: Mode) -> Result<RunResult, Error> {
        let ports = &self.codec.inputs;
        count(arrays.len(), ports.len())?;
        let words = ports.iter().zip(arrays).map(|(port, array)| port.pack(array)).collect::<Result<Vec<_>, _>>()?;
        let mut answer = self.run_words(&words, mode)?;
        for (port, words) in self.codec.outputs.iter().zip(&mut answer.outputs) {
            *words = port.unpack(words)?;
        }
        Ok(answer)
    }

    /// Runs the program on cache words, as [`crate::Port::pack`] makes them, and gives words.
    ///
    /// # Errors
    /// [`Error`]: words that do not fit, or a broken rule of the machine.
    pub fn run_words<W: AsRef<[u8]>>(&self, words: &[W], mode: Mode) -> Result<RunResult, Error> {
        self.run_at(words, None, mode)
    }

    /// No rows yet of the program's states.
    ///
    /// # Errors
    /// [`Error::State`]: it has none.
    pub fn state(&self) -> Result<StateMemory, Error> {
        StateMemory::new(&self.program)
    }

    /// Runs the program behind the rows of a state before `position`, and writes the new ones there. Of inputs and outputs that are
    /// states nothing is taken and nothing given.
    ///
    /// # Errors
    /// As [`Self::run`], and [`Error::State`]; the rows stay as they were.
    pub fn step(
        &self,
        arrays: &[&[u8]],
        state: &mut StateMemory,
        position: u32,
        mode: Mode,
    ) -> Result<RunResult, Error> {
        let ports = &self.codec.inputs;
        count(arrays.len(), ports.len())?;
        let is_state = |n: usize| self.program.states.iter().any(|state| state.input as usize == n);
        let words = ports.iter().zip(arrays).enumerate();
        let words = words.map(|(n, (port, array))| if is_state(n) { Ok(vec![]) } else { port.pack(array) });
        let mut answer = self.step_words(&words.collect::<Result<Vec<_>, _>>()?, state, position, mode)?;
        for (port, words) in self.codec.outputs.iter().zip(&mut answer.outputs) {
            if !words.is_empty() {
                *words = port.unpack(words)?;
            }
        }
        Ok(answer)
    }

    /// The same on cache words.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn step_words<W: AsRef<[u8]>>(
        &self,
        words: &[W],
        state: &mut StateMemory,
        position: u32,
        mode: Mode,
    ) -> Result<RunResult, Error> {
        count(words.len(), self.codec.inputs.len())?;
        state.check(&self.program, position)?;
        let regions: Vec<_> = self.program.state_regions().flatten().collect();
        let mut taken: Vec<Cow<'_, [u8]>> = words.iter().map(|words| Cow::Borrowed(words.as_ref())).collect();
        for (number, (own, region)) in self.program.states.iter().zip(&regions).enumerate() {
            let mut past = state.past_rows(number, region).to_vec();
            past.resize(self.codec.inputs[own.input as usize].word_bytes(), 0);
            taken[own.input as usize] = Cow::Owned(past);
        }
        let mut answer = self.run_at(&taken, Some(position), mode)?;
        for (number, (own, region)) in self.program.states.iter().zip(&regions).enumerate() {
            let words = std::mem::take(&mut answer.outputs[own.output as usize]);
            state.append(number, position, &words[..(region.end - region.border) as usize]);
        }
        state.count(position + regions.first().map_or(0, |region| region.new));
        Ok(answer)
    }

    fn run_at<W: AsRef<[u8]>>(&self, words: &[W], position: Option<u32>, mode: Mode) -> Result<RunResult, Error> {
        let ports = &self.codec.inputs;
        count(words.len(), ports.len())?;
        for (port, words) in ports.iter().zip(words) {
            port.expect(words.as_ref().len(), port.word_bytes())?;
        }
        let start = Instant::now();
        let (outputs, run, events) = match mode {
            Mode::Fast => {
                let placed = position.map(|position| self.serial.at(position));
                let (outputs, events) = placed.as_ref().unwrap_or(&self.serial).run_words(words)?;
                (outputs, None, events)
            }
            Mode::Exact => {
                let placed = position.map(|position| self.program.at(position));
                let program = placed.as_ref().unwrap_or(&self.program);
                let Program { machine, inputs, outputs, .. } = program;
                let inputs = inputs.iter().zip(words);
                let dense: Vec<_> =
                    inputs.map(|(port, words)| port.view.unpack(words.as_ref(), machine.word())).collect();
                let mut run = simulate(program, &dense, &Options::default())?;
                let dense = std::mem::take(&mut run.outputs);
                let outputs = outputs.iter().zip(&dense);
                let words = outputs.map(|(port, dense)| port.view.pack(dense, machine.word())).collect();
                let events = run.events.clone();
                (words, Some(run), events)
            }
        };
        Ok(RunResult { outputs, run, events, seconds: start.elapsed().as_secs_f64() })
    }
}

fn count(given: usize, expected: usize) -> Result<(), Error> {
    if given == expected { Ok(()) } else { Err(Error::Count { given, expected }) }
}
