//! States: rows that stay on the device between the steps of a program.

use std::ffi::{CStr, c_char};

use tpuflow_runtime::StateMemory;

use crate::memory::{exclusive, fill, free, give, path, shared, slice};
use crate::program::{Ports, run, tpuflow_figures, tpuflow_program};
use crate::status::{Failure, guard, tpuflow_status};

/// Rows of all states of a program. One step at a time changes them.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "names are those of C")]
pub struct tpuflow_state {
    pub(crate) memory: StateMemory,
}

/// The states of a program without rows. All programs of one network, whatever their contexts, may step with it. Free it with
/// tpuflow_state_free.
///
/// # Safety
/// `program` is a program; `state` leads to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_new(
    program: *const tpuflow_program,
    state: *mut *mut tpuflow_state,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let memory = unsafe { shared(program, "program") }?.session().state()?;
        if state.is_null() {
            return Err(Failure(tpuflow_status::Argument, "state is null".to_owned()));
        }
        // SAFETY: the caller's promise.
        unsafe { give(state, "state", Box::into_raw(Box::new(tpuflow_state { memory }))) }
    })
}

/// Frees a state; null is nothing.
///
/// # Safety
/// `state` came from `tpuflow_state_new`, is freed once, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_free(state: *mut tpuflow_state) {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { free(state) };
        Ok(())
    });
}

/// How many rows count: the last step's position and its new rows. Of null 0.
///
/// # Safety
/// `state` is a state or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_rows(state: *const tpuflow_state) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { state.as_ref() }.map_or(0, |state| state.memory.rows())
}

/// Forgets rows from `rows` on: all of them for 0.
///
/// # Safety
/// `state` is a state nobody else uses meanwhile, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_truncate(state: *mut tpuflow_state, rows: u32) {
    // SAFETY: the caller's promise.
    if let Some(state) = unsafe { state.as_mut() } {
        state.memory.truncate(rows);
    }
}

/// Writes the rows that count to a file.
///
/// # Safety
/// `state` is a state nobody changes meanwhile; `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_save(state: *const tpuflow_state, path: *const c_char) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (state, path) = unsafe { (shared(state, "state")?, self::path(path)?) };
        let file = |error: tpuflow_ir::Error| Failure(tpuflow_status::File, error.to_string());
        tpuflow_ir::atomic::write(path, &state.memory.save()?).map_err(file)
    })
}

/// Takes the rows of a file that tpuflow_state_save wrote of the same states.
///
/// # Safety
/// `state` is a state nobody else uses meanwhile; `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_restore(state: *mut tpuflow_state, path: *const c_char) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (state, path) = unsafe { (exclusive(state, "state")?, self::path(path)?) };
        let file = |error: std::io::Error| Failure(tpuflow_status::File, format!("{}: {error}", path.display()));
        Ok(state.memory.restore(&tpuflow_ir::Image::read(path).map_err(file)?)?)
    })
}

/// Gives the rows that count of the state of this name (of its input), as the model's array, to room for exactly as many bytes.
///
/// # Safety
/// `state` is a state nobody changes meanwhile, `program` a program; `name` is a string; `array` leads to `bytes` bytes nobody else
/// uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_read(
    state: *const tpuflow_state,
    program: *const tpuflow_program,
    name: *const c_char,
    array: *mut u8,
    bytes: usize,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (state, program) = unsafe { (shared(state, "state")?, shared(program, "program")?) };
        if name.is_null() {
            return Err(Failure(tpuflow_status::Argument, "name is null".to_owned()));
        }
        // SAFETY: not null, and the caller promises a zero byte at its end.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let (_, found) = state.memory.read(program.session().program(), &name)?;
        // SAFETY: the caller's promise.
        unsafe { fill(array, bytes, &found, &format!("rows of state \"{name}\"")) }
    })
}

/// Replaces all rows: for every state, in the order of the program's inputs, an array of `rows` rows in the model's form, of
/// `bytes` bytes each.
///
/// # Safety
/// `state` is a state nobody else uses meanwhile, `program` a program; `arrays` leads to `count` pointers to `bytes` bytes each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_state_write(
    state: *mut tpuflow_state,
    program: *const tpuflow_program,
    rows: u32,
    arrays: *const *const u8,
    count: usize,
    bytes: usize,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (state, program) = unsafe { (exclusive(state, "state")?, shared(program, "program")?) };
        // SAFETY: the caller's promise.
        let arrays = unsafe { slice(arrays, count, "arrays") }?.iter();
        // SAFETY: the caller's promise.
        let arrays = arrays.map(|&array| unsafe { slice(array, bytes, "array") }).collect::<Result<Vec<_>, _>>()?;
        Ok(state.memory.write(program.session().program(), rows, &arrays)?)
    })
}

/// Runs a program behind the rows of a state before `position`, at most `tpuflow_program_last_position`, and writes the new ones
/// there; all else as tpuflow_program_run. Of inputs and outputs that are states nothing is read and nothing written: their pointers
/// may be null.
///
/// # Safety
/// As tpuflow_program_run; `state` is a state nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_program_step(
    program: *const tpuflow_program,
    state: *mut tpuflow_state,
    position: u32,
    mode: i32,
    inputs: *const *const u8,
    input_count: usize,
    outputs: *const *mut u8,
    output_count: usize,
    figures: *mut tpuflow_figures,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (program, state) = unsafe { (shared(program, "program")?, exclusive(state, "state")?) };
        let ports = Ports { inputs, input_count, outputs, output_count, figures };
        // SAFETY: the caller's promise.
        unsafe { run(program, Some((&mut state.memory, position)), mode, &ports) }
    })
}
