//! Convolutions and matrix products from gathered rows to elements: product, bias, finish.
//!
//! The bias is added to the finished sum, once. Taps outside the image are gathered as +0; a sum that starts at +0 is never
//! -0, so adding the zero product of a finite weight changes no bit and padding is as good as skipped.
//!
//! Source: docs/arithmetic.md, section 16.

use super::gemm::Packed;
use super::{Finisher, Float};
use crate::buffers::block_rows;
use crate::conv::{Geometry, gather};
use crate::parallel;

/// A prepared right operand and what follows the product.
#[derive(Clone, Debug)]
pub struct Linear {
    packed: Packed,
    bias: Vec<f32>,
    finisher: Finisher,
}

/// Right operand `[k, n]` of a product, before packing.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Element (0, 0) and what follows.
    pub elements: &'a [f32],
    /// Rows, columns.
    pub shape: [usize; 2],
    /// Step between rows, between columns.
    pub strides: [usize; 2],
}

impl Linear {
    /// Packs `w`. `bias` is empty or has one entry per column.
    ///
    /// # Panics
    /// When `bias` has another length.
    #[must_use]
    pub fn new(w: &Matrix<'_>, bias: &[f32], finisher: Finisher) -> Self {
        assert!(bias.is_empty() || bias.len() == w.shape[1], "one bias per column");
        let packed = Packed::new(finisher.isa(), w.elements, w.shape, w.strides);
        Self { packed, bias: bias.to_vec(), finisher }
    }

    /// Columns of the result.
    #[must_use]
    pub fn n(&self) -> usize {
        self.packed.n()
    }

    /// Length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        self.packed.k()
    }

    /// Rows `a` `[m, k]` to elements: row `i` of the result lies at `y[i * stride..][..n]`.
    ///
    /// # Panics
    /// When the slices are shorter than that.
    pub fn rows<Y: Float>(&self, a: &[f32], y: &mut [Y], stride: usize, sums: &mut Vec<f32>) {
        let (k, n) = (self.k(), self.n());
        let m = a.len().checked_div(k).unwrap_or(y.len().div_ceil(stride));
        sums.resize(m * n, 0.0);
        self.packed.multiply(a, sums);
        if !self.bias.is_empty() {
            for row in sums.chunks_exact_mut(n) {
                row.iter_mut().zip(&self.bias).for_each(|(sum, bias)| *sum += bias);
            }
        }
        if stride == n {
            self.finisher.apply(sums, &mut y[..m * n]);
        } else {
            for (sums, y) in sums.chunks_exact(n).zip(y.chunks_mut(stride)) {
                self.finisher.apply(sums, &mut y[..n]);
            }
        }
    }
}

/// `y[m,n] = linear(a[m,k])`, rows spread over threads.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn multiply<Y: Float>(linear: &Linear, a: &[f32], y: &mut [Y]) {
    let (k, n) = (linear.k(), linear.n());
    assert!(n > 0 && y.len().is_multiple_of(n) && a.len() == y.len() / n * k, "a is [m, k] and y is [m, n]");
    let block = block(k, n, y.len() / n);
    parallel::chunks_with(y, block * n, Vec::new, |sums, index, y| {
        let rows = y.len() / n;
        linear.rows(&a[index * block * k..][..rows * k], y, n, sums);
    });
}

/// Rows a thread takes at a time: what its cache holds, but enough that a wide right operand is not read for each of them.
fn block(k: usize, n: usize, rows: usize) -> usize {
    const ENOUGH: usize = 32;
    let shared = rows.div_ceil(rayon::current_num_threads());
    block_rows((k + n) * size_of::<f32>(), rows).max(shared.min(ENOUGH))
}

/// Convolution of the whole batch. `groups`: one prepared operand `[kh * kw * c / groups, o / groups]` per group.
/// `y`: `[n,oh,ow,o]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn conv<Y: Float>(geometry: &Geometry, x: &[f32], groups: &[Linear], y: &mut [Y]) {
    let channels = geometry.input[3] / groups.len();
    let k = geometry.taps() * channels;
    let columns = groups[0].n();
    let o = columns * groups.len();
    assert_eq!(y.len(), geometry.pixels() * o, "y holds every output");
    let block = block(k, columns, geometry.pixels());
    parallel::chunks_with(
        y,
        block * o,
        || (Vec::new(), Vec::new()),
        |(rows, sums), index, y| {
            let pixels = index * block..index * block + y.len() / o;
            for (group, linear) in groups.iter().enumerate() {
                let y = &mut y[group * columns..];
                if groups.len() == 1 && geometry.is_pointwise() {
                    linear.rows(&x[pixels.start * k..pixels.end * k], y, o, sums);
                    continue;
                }
                rows.resize(pixels.len() * k, 0.0);
                let taken = group * channels..(group + 1) * channels;
                gather(geometry, x, pixels.clone(), taken, 0.0, rows);
                linear.rows(rows, y, o, sums);
            }
        },
    );
}
