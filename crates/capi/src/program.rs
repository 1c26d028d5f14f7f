//! Programs: loaded, checked once, run on cache words.

use std::ffi::c_char;
use std::sync::Arc;

use tpuflow_ir::Program;
use tpuflow_runtime::{Mode, Session, StateMemory};

use crate::codec::tpuflow_codec;
use crate::memory::{fill, free, give, path, shared, slice};
use crate::status::{Failure, guard, tpuflow_status};

/// Results a run gives: the `mode` of tpuflow_program_run.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "names are those of C")]
pub enum tpuflow_mode {
    /// Values alone.
    Fast = 0,
    /// Values and cycles, with every rule of the machine checked.
    Exact = 1,
}

/// Cost of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "names are those of C")]
pub struct tpuflow_figures {
    /// Cycles of an exact run, else 0.
    pub cycles: u64,
    /// The same in microseconds of the machine's clock.
    pub time_us: f64,
    /// Layers in which something went wrong without stopping the run, such as accumulators that overflowed.
    pub events: usize,
    /// Seconds the simulated machine took on this computer.
    pub seconds: f64,
}

/// A program, checked and ready for any number of runs.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "names are those of C")]
pub struct tpuflow_program {
    session: Session,
    codec: tpuflow_codec,
}

/// Loads a program (.tpu), raw or not, and checks it. Free it with tpuflow_program_free.
///
/// # Safety
/// `path` is a string; `program` leads to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_program_load(
    path: *const c_char,
    program: *mut *mut tpuflow_program,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { self::path(path) }?;
        if program.is_null() {
            return Err(Failure(tpuflow_status::Argument, "program is null".to_owned()));
        }
        let loaded = Program::load(path).map_err(|error| Failure(tpuflow_status::File, error.to_string()))?;
        let session = Session::new(Arc::new(loaded))?;
        let codec = tpuflow_codec::new(session.codec().clone());
        let made = Box::new(tpuflow_program { session, codec });
        // SAFETY: the caller's promise.
        unsafe { give(program, "program", Box::into_raw(made)) }
    })
}

/// Frees a program, and its codec with it; null is nothing.
///
/// # Safety
/// `program` came from `tpuflow_program_load`, is freed once, and nobody uses it, its codec or its ports any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_program_free(program: *mut tpuflow_program) {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { free(program) };
        Ok(())
    });
}

/// The codec of a program, which lives as long as the program; of null, null. A raw program's ports are words: their
/// meaning stands in the codec that was written beside it (tpuflow_codec_load).
///
/// # Safety
/// `program` is a program or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_program_codec(program: *const tpuflow_program) -> *const tpuflow_codec {
    // SAFETY: the caller's promise.
    unsafe { program.as_ref() }.map_or(std::ptr::null(), |program| &raw const program.codec)
}

/// Runs a program on the cache words of all its inputs and gives those of all its outputs, in the model's order. Each
/// array of words has the `words_bytes` of its port. `mode` is a tpuflow_mode. What lies in the padding of outputs means nothing. `figures` may be null.
///
/// # Safety
/// `program` is a program; `inputs` leads to `input_count` pointers to the words of the inputs, `outputs` to `output_count`
/// pointers to room for the words of the outputs, which nobody else uses; `figures` is null or leads to room for figures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_program_run(
    program: *const tpuflow_program,
    mode: i32,
    inputs: *const *const u8,
    input_count: usize,
    outputs: *const *mut u8,
    output_count: usize,
    figures: *mut tpuflow_figures,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let program = unsafe { shared(program, "program") }?;
        let ports = Ports { inputs, input_count, outputs, output_count, figures };
        // SAFETY: the caller's promise.
        unsafe { run(program, None, mode, &ports) }
    })
}

/// The last position a step of a program may have: how many rows it reaches before its own. Of a program without states 0.
///
/// # Safety
/// `program` is a program or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_program_last_position(program: *const tpuflow_program) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { program.as_ref() }.and_then(|program| program.session.program().last_position()).unwrap_or(0)
}

impl tpuflow_program {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
}

/// The arrays of a run, as they are given.
pub(crate) struct Ports {
    pub(crate) inputs: *const *const u8,
    pub(crate) input_count: usize,
    pub(crate) outputs: *const *mut u8,
    pub(crate) output_count: usize,
    pub(crate) figures: *mut tpuflow_figures,
}

/// Runs a program, behind the rows of a state if there is one.
///
/// # Safety
/// As tpuflow_program_run.
pub(crate) unsafe fn run(
    program: &tpuflow_program,
    state: Option<(&mut StateMemory, u32)>,
    mode: i32,
    ports: &Ports,
) -> Result<(), Failure> {
    let session = &program.session;
    let codec = session.codec();
    let &Ports { inputs, input_count, outputs, output_count, figures } = ports;
    let counts = [(input_count, codec.inputs.len(), "inputs"), (output_count, codec.outputs.len(), "outputs")];
    for (given, expected, what) in counts {
        if given != expected {
            let message = format!("{given} {what} given, the program has {expected}");
            return Err(Failure(tpuflow_status::Data, message));
        }
    }
    // SAFETY: the caller's promise.
    let (from, to) = unsafe { (slice(inputs, input_count, "inputs")?, slice(outputs, output_count, "outputs")?) };
    let states = if state.is_some() { &session.program().states[..] } else { &[] };
    let kept = |number: usize| states.iter().any(|state| state.output as usize == number);
    if let Some(number) = (0..to.len()).find(|&number| to[number].is_null() && !kept(number)) {
        return Err(Failure(tpuflow_status::Argument, format!("output {number} is null")));
    }
    let words = from.iter().zip(&codec.inputs).enumerate().map(|(number, (&words, port))| {
        if states.iter().any(|state| state.input as usize == number) {
            return Ok(&[][..]);
        }
        // SAFETY: the caller's promise.
        unsafe { slice(words, port.word_bytes(), &format!("words of input \"{}\"", port.name)) }
    });
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let mode = match mode {
        _ if mode == tpuflow_mode::Fast as i32 => Mode::Fast,
        _ if mode == tpuflow_mode::Exact as i32 => Mode::Exact,
        _ => return Err(Failure(tpuflow_status::Argument, format!("mode {mode} does not exist"))),
    };
    let answer = match state {
        Some((memory, position)) => session.step_words(&words, memory, position, mode)?,
        None => session.run_words(&words, mode)?,
    };
    for (number, ((port, words), &to)) in codec.outputs.iter().zip(&answer.outputs).zip(to).enumerate() {
        if !kept(number) {
            // SAFETY: the caller's promise.
            unsafe { fill(to, port.word_bytes(), words, &format!("words of output \"{}\"", port.name)) }?;
        }
    }
    if !figures.is_null() {
        let cycles = answer.run.as_ref().map_or(0, |run| run.cycles);
        let time_us = cycles as f64 * 1e6 / session.program().machine.clock_hz as f64;
        let found = tpuflow_figures { cycles, time_us, events: answer.events.len(), seconds: answer.seconds };
        // SAFETY: the caller's promise.
        unsafe { give(figures, "figures", found) }?;
    }
    Ok(())
}
