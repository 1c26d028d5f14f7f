//! The caller's memory as Rust sees it. Null is an error; all else is the caller's promise.

use std::ffi::{CStr, c_char};
use std::path::Path;

use crate::status::{Failure, tpuflow_status};

fn null(what: &str) -> Failure {
    Failure(tpuflow_status::Argument, format!("{what} is null"))
}

/// A reference from a pointer.
///
/// # Safety
/// `pointer` is null or leads to a live `T` that nobody changes meanwhile.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise is this function's.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// A mutable reference from a pointer.
///
/// # Safety
/// `pointer` is null or leads to a live `T` that nobody else uses meanwhile.
pub(crate) unsafe fn exclusive<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise is this function's.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// Writes to where a pointer leads.
///
/// # Safety
/// `pointer` is null or leads to memory for a `T`, initialised or not.
pub(crate) unsafe fn give<T>(pointer: *mut T, what: &str, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller promises room for a `T`.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Elements to be read.
///
/// # Safety
/// `pointer` is null or leads to `count` live elements that nobody changes meanwhile.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller promises that many elements.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Copies bytes to where a pointer leads, if there is room for exactly these.
///
/// # Safety
/// `pointer` is null or leads to `room` bytes nobody else uses meanwhile.
pub(crate) unsafe fn fill(pointer: *mut u8, room: usize, bytes: &[u8], what: &str) -> Result<(), Failure> {
    if room != bytes.len() {
        let message = format!("{what}: room for {room} bytes, there are {}", bytes.len());
        return Err(Failure(tpuflow_status::Data, message));
    }
    if pointer.is_null() && room > 0 {
        return Err(null(what));
    }
    // SAFETY: exactly as many bytes as the caller promises room for; they are ours, so they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer, room) };
    Ok(())
}

/// A path.
///
/// # Safety
/// `text` is null or leads to a string that ends with a zero byte and that nobody changes meanwhile.
pub(crate) unsafe fn path<'a>(text: *const c_char) -> Result<&'a Path, Failure> {
    if text.is_null() {
        return Err(null("path"));
    }
    // SAFETY: not null, and the caller promises a zero byte at its end.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    let invalid = |_| Failure(tpuflow_status::Argument, "path is not UTF-8".to_owned());
    text.map(Path::new).map_err(invalid)
}

/// Frees what [`give`] gave as `Box::into_raw`.
///
/// # Safety
/// `pointer` is null or came from `Box::into_raw` and was not freed yet.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller promises that it is a box of ours, freed once.
        drop(unsafe { Box::from_raw(pointer) });
    }
}
