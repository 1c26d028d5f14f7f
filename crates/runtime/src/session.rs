//! A program ready to run on arrays.

use std::sync::Arc;
use std::time::Instant;

use tpuflow_ir::Program;
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
pub struct Answer {
    /// The user's arrays, by output.
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
    pub fn run(&self, arrays: &[&[u8]], mode: Mode) -> Result<Answer, Error> {
        let ports = &self.codec.inputs;
        if arrays.len() != ports.len() {
            return Err(Error::Count { given: arrays.len(), expected: ports.len() });
        }
        let inputs = ports.iter().zip(arrays).map(|(port, array)| port.encode(array)).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        let (dense, run, events) = match mode {
            Mode::Fast => {
                let (outputs, events) = self.serial.run(&inputs)?;
                (outputs, None, events)
            }
            Mode::Exact => {
                let mut run = simulate(&self.program, &inputs, &Options::default())?;
                let (outputs, events) = (std::mem::take(&mut run.outputs), run.events.clone());
                (outputs, Some(run), events)
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        let decoded = self.codec.outputs.iter().zip(&dense).map(|(port, codes)| port.decode(codes));
        Ok(Answer { outputs: decoded.collect::<Result<_, _>>()?, run, events, seconds })
    }
}
