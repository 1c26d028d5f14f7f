//! Buffers a thread keeps from one call to the next, so that kernels allocate nothing once they are warm.

use std::cell::Cell;

use crate::gemm::Rows;
use crate::gemm::panels::Line;

/// Buffers of matrix products that a worker keeps between blocks.
#[derive(Clone, Debug, Default)]
pub struct Products {
    pub(crate) rows: Rows,
    pub(crate) products32: Vec<i32>,
    pub(crate) products64: Vec<i64>,
}

/// The buffers of a thread; what they hold is what the last call left there.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Of matrix products.
    pub linear: Products,
    /// Lines of an image with their padding.
    pub image: Vec<i8>,
    /// Gathered rows.
    pub rows: Vec<i8>,
    /// Where the codes of a row go.
    pub places: Vec<Option<usize>>,
    /// Interleaved lines.
    pub lines: Vec<Line>,
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
