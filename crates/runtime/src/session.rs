//! A program ready to run on arrays.

use std::sync::Arc;
use std::time::Instant;

use tpuflow_ir::Program;
use tpuflow_ir::layout::{pack, unpack};
use tpuflow_simulator::run::Event;
use tpuflow_simulator::{Options, Run, Serial, simulate};

use crate::port::{Codec, Error};

/// What a device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Values alone.
    Fast,
    /// Values and cycles, with every rule of the machine checked.
    Exact,
}

/// What a run gave.
#[derive(Debug)]
pub struct RunResult {
    /// By output: the user's arrays, or words.
    pub outputs: Vec<Vec<u8>>,
    /// Cycles, counters, layers; of an exact run.
    pub run: Option<Run>,
    /// What went wrong without stopping the run.
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
        let ports = &self.codec.inputs;
        count(words.len(), ports.len())?;
        for (port, words) in ports.iter().zip(words) {
            port.expect(words.as_ref().len(), port.word_bytes())?;
        }
        let start = Instant::now();
        let (outputs, run, events) = match mode {
            Mode::Fast => {
                let (outputs, events) = self.serial.run_words(words)?;
                (outputs, None, events)
            }
            Mode::Exact => {
                let Program { machine, inputs, outputs, .. } = &*self.program;
                let inputs = inputs.iter().zip(words);
                let dense: Vec<_> = inputs
                    .map(|(port, words)| unpack(words.as_ref(), &port.shape, port.dtype, machine.word()))
                    .collect();
                let mut run = simulate(&self.program, &dense, &Options::default())?;
                let dense = std::mem::take(&mut run.outputs);
                let outputs = outputs.iter().zip(&dense);
                let words = outputs.map(|(port, dense)| pack(dense, &port.shape, port.dtype, machine.word())).collect();
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
