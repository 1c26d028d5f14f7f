//! Sums of every channel: what an average error of weights adds to the sums of a layer depends on them.
//!
//! A plane, all values of a channel that lie together, is summed pairwise in f32, as NumPy does it:
//!
//! ```text
//!   up to 7 values      from left to right
//!   up to 128           eight sums of every eighth value, joined in pairs; then the rest from left to right
//!   more                two halves, the first a multiple of eight long
//! ```
//!
//! so that errors grow with the logarithm of the length and the eight sums are one vector. Planes, and values of which
//! every one has another channel than its neighbours, are summed in f64 from left to right.

use rayon::prelude::*;
use tpuflow_kernels::isa::{Lanes, Work};

use crate::Layout;

/// Sums of every channel of a tensor, in f64.
pub(crate) fn channel_sums(values: &[f32], layout: Layout, lanes: Lanes) -> Vec<f64> {
    if layout.inner == 1 {
        return lanes.run(RowSums { values, columns: layout.channels });
    }
    let planes: Vec<f32> = values.par_chunks(layout.inner).map(plane_sum).collect();
    row_sums(&planes, layout.channels)
}

/// Sum of a plane.
pub(crate) fn plane_sum(values: &[f32]) -> f32 {
    if values.len() <= BLOCK {
        return block_sum(values);
    }
    let half = values.len() / 2;
    let (first, second) = values.split_at(half - half % LANES);
    plane_sum(first) + plane_sum(second)
}

struct RowSums<'a> {
    values: &'a [f32],
    columns: usize,
}

impl Work for RowSums<'_> {
    type Result = Vec<f64>;

    #[inline(always)]
    fn done(self) -> Vec<f64> {
        row_sums(self.values, self.columns)
    }
}

/// Sums of every column of rows.
#[inline(always)]
pub(crate) fn row_sums(values: &[f32], columns: usize) -> Vec<f64> {
    let mut sums = vec![0.0; columns];
    for row in values.chunks_exact(columns) {
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum += f64::from(value);
        }
    }
    sums
}

/// Values summed in eight lanes.
const BLOCK: usize = 128;
const LANES: usize = 8;

fn block_sum(values: &[f32]) -> f32 {
    let mut rows = values.chunks_exact(LANES);
    let Some(first) = rows.next() else { return values.iter().fold(0.0, |sum, value| sum + value) };
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(first);
    for row in &mut rows {
        for (lane, value) in lanes.iter_mut().zip(row) {
            *lane += value;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    rows.remainder().iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, value| sum + value)
}
