//! Growing buffers, aligned ones, and how much of a row or an image is worked on at a time.

use crate::parallel;

/// Elements of an elementwise kernel that a thread takes at a time.
pub(crate) const PIECE: usize = 1 << 14;

/// Bytes of gathered rows per block: they and their accumulators stay in the second-level cache.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

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

/// Rows per block, each of so many bytes with its sums: as many as the cache holds, and as many blocks for every thread.
pub(crate) fn block_rows(row_bytes: usize, rows: usize) -> usize {
    parallel::even(rows, BLOCK_BYTES / row_bytes.max(1))
}
