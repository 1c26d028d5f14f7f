//! How calls end: a status, and a line of text kept for the thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "names are those of C")]
pub enum tpuflow_status {
    /// Done.
    Ok = 0,
    /// A null pointer, a number out of range, or text that is not UTF-8.
    Argument = 1,
    /// A file that cannot be read, was altered, or is of another version.
    File = 2,
    /// Sizes or values that do not fit the program.
    Data = 3,
    /// A program that breaks a rule of its machine.
    Machine = 4,
    /// A defect of this library.
    Internal = 5,
}

/// Why a call failed.
pub(crate) struct Failure(pub(crate) tpuflow_status, pub(crate) String);

impl From<tpuflow_runtime::Error> for Failure {
    fn from(error: tpuflow_runtime::Error) -> Self {
        use tpuflow_runtime::Error::{Count, Index, Machine, Port, Size, State};
        let status = match error {
            Size { .. } | Index { .. } | Count { .. } | State(_) => tpuflow_status::Data,
            Machine(_) => tpuflow_status::Machine,
            Port { .. } => tpuflow_status::File,
        };
        Self(status, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn keep(message: &str) {
    let text = CString::new(message.replace('\0', "")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
}

/// Runs the body of a function: what it says becomes the thread's last error, a panic becomes a status.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> tpuflow_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => tpuflow_status::Ok,
        Ok(Err(Failure(status, message))) => {
            keep(&message);
            status
        }
        Err(_) => {
            keep("internal error: this is a defect of tpuflow");
            tpuflow_status::Internal
        }
    }
}

/// Version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tpuflow_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Sets the most bytes of memory that a file, a program or a network may ask for, in the whole process; 0: what the computer had
/// free when it was first asked, which holds from the beginning. What asks for more is refused with an error that names the field.
#[unsafe(no_mangle)]
pub extern "C" fn tpuflow_set_memory_limit(bytes: u64) {
    tpuflow_ir::memory::set_limit(bytes);
}

/// The memory limit in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn tpuflow_memory_limit() -> u64 {
    tpuflow_ir::memory::limit()
}

/// Why the last call of this thread that failed did so; empty if none has. Valid until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn tpuflow_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
