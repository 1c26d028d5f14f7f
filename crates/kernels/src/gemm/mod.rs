//! Matrix products `a[m,k] · b[k,n] -> c[m,n]` of codes, exact.
//!
//! The right operand is packed once ([`PackedI8`], [`PackedI16`]) and multiplied many times. Zero points are not known here:
//! [`crate::linear`] adds what they contribute from sums of rows and columns.
//!
//! - `gemm_i8i8i32`: sums wrap at 32 bits, which is exact whenever the true sum fits (the graph is checked for that before
//!   it runs), and lets every variant reorder and bias its terms freely.
//! - `gemm_i16i16i64`: sums of 16-bit products in 64 bits. Mixed widths widen the 8-bit operand.

pub mod reference;

/// Right operand `[k, n]` of int8 products.
#[derive(Clone, Debug)]
pub struct PackedI8 {
    k: usize,
    n: usize,
    column_sums: Vec<i32>,
    /// `[n, k]`.
    codes: Vec<i8>,
}

/// Right operand `[k, n]` of products where either side has 16 bits.
#[derive(Clone, Debug)]
pub struct PackedI16 {
    k: usize,
    n: usize,
    column_sums: Vec<i64>,
    /// `[n, k]`.
    codes: Vec<i16>,
}

impl PackedI8 {
    /// Packs `b`, whose element (row `p`, column `j`) lies at `p * strides[0] + j * strides[1]`.
    #[must_use]
    pub fn new(b: &[i8], k: usize, n: usize, strides: [usize; 2]) -> Self {
        let codes: Vec<i8> = columns(b, k, n, strides).collect();
        let column_sums = (0..n).map(|j| codes[j * k..][..k].iter().map(|&w| i32::from(w)).sum()).collect();
        Self { k, n, column_sums, codes }
    }

    /// Rows of the operand, the length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Sum of each column's codes.
    #[must_use]
    pub fn column_sums(&self) -> &[i32] {
        &self.column_sums
    }

    /// `c[i,j] = sum_p a[i,p] * b[p,j]` modulo 2^32. `a`: `[m, k]`, `c`: `[m, n]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn multiply(&self, a: &[i8], c: &mut [i32]) {
        reference::gemm_i8i8i32(a, &self.codes, self.k, self.n, c);
    }
}

impl PackedI16 {
    /// Packs `b`, whose element (row `p`, column `j`) lies at `p * strides[0] + j * strides[1]`.
    #[must_use]
    pub fn new<B: crate::Element>(b: &[B], k: usize, n: usize, strides: [usize; 2]) -> Self {
        let codes: Vec<i16> = columns(b, k, n, strides).map(|w| i16::narrow(w.widen())).collect();
        let column_sums = (0..n).map(|j| codes[j * k..][..k].iter().map(|&w| i64::from(w)).sum()).collect();
        Self { k, n, column_sums, codes }
    }

    /// Rows of the operand, the length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Sum of each column's codes.
    #[must_use]
    pub fn column_sums(&self) -> &[i64] {
        &self.column_sums
    }

    /// `c[i,j] = sum_p a[i,p] * b[p,j]`. `a`: `[m, k]`, `c`: `[m, n]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn multiply(&self, a: &[i16], c: &mut [i64]) {
        reference::gemm_i16i16i64(a, &self.codes, self.k, self.n, c);
    }
}

use crate::Element as _;

fn columns<B: Copy>(b: &[B], k: usize, n: usize, strides: [usize; 2]) -> impl Iterator<Item = B> {
    (0..n).flat_map(move |j| (0..k).map(move |p| b[p * strides[0] + j * strides[1]]))
}
