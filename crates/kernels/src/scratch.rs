//! Buffers a thread keeps from one call to the next, so that kernels allocate nothing once they are warm.

use std::cell::Cell;

use crate::linear;

/// The buffers of a thread; what they hold is what the last call left there.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Of matrix products.
    pub linear: linear::Scratch,
    /// Lines of an image with their padding.
    pub image: Vec<i8>,
    /// Gathered rows.
    pub rows: Vec<i8>,
    /// Where the codes of a row go.
    pub places: Vec<Option<usize>>,
    /// Interleaved lines.
    pub lines: Vec<crate::gemm::panels::Line>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Runs `work` with this thread's buffers; within another such call with fresh ones.
pub(crate) fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = work(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// As [`buffer`], of codes from the beginning of a cache line on: tiles load rows that lie across two of them twice.
pub(crate) fn aligned(codes: &mut Vec<i8>, count: usize) -> &mut [i8] {
    let all = buffer(codes, count + LINE - 1);
    let first = all.as_ptr().align_offset(LINE);
    &mut all[first..first + count]
}

/// The first `count` elements, whatever they hold.
pub(crate) fn buffer<T: Clone + Default>(buffer: &mut Vec<T>, count: usize) -> &mut [T] {
    if buffer.len() < count {
        buffer.resize(count, T::default());
    }
    &mut buffer[..count]
}
