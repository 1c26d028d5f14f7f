//! Convolutions and matrix products from gathered rows to codes: product, zero points, bias, requantisation, table.
//!
//! With operand codes `x`, `w` and zero points `Zx`, `Zw` the accumulator is
//! ```text
//! sum (x - Zx)(w - Zw) + bias  =  sum x w  -  Zw * sum x  +  [ bias - Zx * sum w + K * Zx * Zw ]
//!                                 product     per row        per column, known in advance
//! ```
//! Narrow products (int8 by int8) accumulate in 32 bits, all others in 64 bits of which 48 are used; that the sums fit is
//! checked when a graph is prepared.
//!
//! Source: docs/arithmetic.md, "Linear operators".

use rayon::prelude::*;
use tpuflow_ir::Requant;

use crate::gemm::{PackedI8, PackedI16};
use crate::requant::requantize;
use crate::table::Lookup;
use crate::{Element, Values};

/// What happens to accumulators: requantisation per column, then possibly a table over the 16-bit intermediate.
#[derive(Clone, Debug)]
pub struct Epilogue {
    requant: Requant,
    table: Option<Table>,
}

#[derive(Clone, Debug)]
struct Table {
    entries: Vec<i32>,
    lo: i32,
    hi: i32,
}

impl Epilogue {
    /// Requantisation and, if there is one, the table's entries and clamp.
    #[must_use]
    pub fn new(requant: Requant, table: Option<(Vec<i32>, i32, i32)>) -> Self {
        Self { requant, table: table.map(|(entries, lo, hi)| Table { entries, lo, hi }) }
    }

    /// The epilogue of columns `columns`, for one group of a convolution or one column tile.
    #[must_use]
    pub fn columns(&self, columns: std::ops::Range<usize>) -> Self {
        let mut requant = self.requant.clone();
        if requant.multiplier.len() > 1 {
            requant.multiplier = requant.multiplier[columns.clone()].to_vec();
            requant.shift = requant.shift[columns].to_vec();
        }
        Self { requant, table: self.table.clone() }
    }

    /// Codes of a row of accumulators; column `j` is the epilogue's column `j`.
    ///
    /// # Panics
    /// When the row is longer than the epilogue's columns, or than `y`.
    pub fn apply<Y: Element>(&self, row: impl Iterator<Item = i64>, y: &mut [Y]) {
        let lookup = self.table.as_ref().map(|t| Lookup::new(&t.entries, 16, t.lo, t.hi));
        for (j, (acc, y)) in row.zip(y).enumerate() {
            let code = requantize(acc, &self.requant, j);
            *y = Y::narrow(lookup.as_ref().map_or(code, |table| table.at(code)));
        }
    }
}

/// A prepared right operand with everything that is known about it in advance.
#[derive(Clone, Debug)]
pub struct Linear {
    product: Product,
    /// `bias - Zx * sum w + K * Zx * Zw`, per column.
    offset: Vec<i64>,
    zero_w: i32,
    epilogue: Epilogue,
}

#[derive(Clone, Debug)]
enum Product {
    Narrow(PackedI8),
    Wide(PackedI16),
}

/// Right operand `[k, n]` of a product, before packing.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Codes, int8 or int16.
    pub codes: &'a Values,
    /// Position of element (0, 0).
    pub start: usize,
    /// Rows, columns.
    pub shape: [usize; 2],
    /// Step between rows, between columns.
    pub strides: [usize; 2],
    /// Zero point.
    pub zero_point: i32,
}

impl Linear {
    /// Packs `w` for left operands with zero point `zero_x`; `wide` when they are int16. `bias` is empty or has one entry
    /// per column.
    ///
    /// # Panics
    /// When `w` holds neither int8 nor int16 codes, or `bias` has another length.
    #[must_use]
    pub fn new(w: &Matrix<'_>, wide: bool, zero_x: i32, bias: &[i64], epilogue: Epilogue) -> Self {
        let [k, n] = w.shape;
        let product = match w.codes {
            Values::I8(codes) if !wide => Product::Narrow(PackedI8::new(&codes[w.start..], k, n, w.strides)),
            Values::I8(codes) => Product::Wide(PackedI16::new(&codes[w.start..], k, n, w.strides)),
            Values::I16(codes) => Product::Wide(PackedI16::new(&codes[w.start..], k, n, w.strides)),
            other => panic!("{} is no type of codes", other.dtype().name()),
        };
        let column_sum = |j: usize| match &product {
            Product::Narrow(packed) => i64::from(packed.column_sums()[j]),
            Product::Wide(packed) => packed.column_sums()[j],
        };
        assert!(bias.is_empty() || bias.len() == n, "one bias per column");
        let constant = k as i64 * i64::from(zero_x) * i64::from(w.zero_point);
        let offset =
            (0..n).map(|j| bias.get(j).copied().unwrap_or(0) - i64::from(zero_x) * column_sum(j) + constant).collect();
        Self { product, offset, zero_w: w.zero_point, epilogue }
    }

    /// Columns of the result.
    #[must_use]
    pub fn n(&self) -> usize {
        self.offset.len()
    }

    /// Length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        match &self.product {
            Product::Narrow(packed) => packed.k(),
            Product::Wide(packed) => packed.k(),
        }
    }

    /// Rows `a` `[m, k]` to codes: row `i` of the result lies at `y[i * stride..][..n]`.
    ///
    /// # Panics
    /// When the slices are shorter than that, or int16 rows meet an operand packed for int8 ones.
    pub fn rows<X: Element, Y: Element>(&self, a: &[X], y: &mut [Y], stride: usize, scratch: &mut Scratch) {
        let (k, n) = (self.k(), self.n());
        let m = a.len().checked_div(k).unwrap_or(y.len().div_ceil(stride));
        let row_offset = |i: usize| {
            let sum: i64 =
                if self.zero_w == 0 { 0 } else { a[i * k..][..k].iter().map(|x| i64::from(x.widen())).sum() };
            -i64::from(self.zero_w) * sum
        };
        match &self.product {
            Product::Narrow(packed) => {
                scratch.rows8.clear();
                scratch.rows8.extend(a.iter().map(|x| i8::narrow(x.widen())));
                scratch.acc32.resize(m * n, 0);
                packed.multiply(&scratch.rows8, &mut scratch.acc32);
                for (i, (acc, y)) in scratch.acc32.chunks_exact(n).zip(y.chunks_mut(stride)).enumerate() {
                    let row = row_offset(i);
                    // The product is exact modulo 2^32 and the whole sum fits 32 bits.
                    let exact = |(acc, offset): (&i32, &i64)| i64::from((i64::from(*acc) + row + offset) as i32);
                    self.epilogue.apply(acc.iter().zip(&self.offset).map(exact), &mut y[..n]);
                }
            }
            Product::Wide(packed) => {
                scratch.rows16.clear();
                scratch.rows16.extend(a.iter().map(|x| i16::narrow(x.widen())));
                scratch.acc64.resize(m * n, 0);
                packed.multiply(&scratch.rows16, &mut scratch.acc64);
                for (i, (acc, y)) in scratch.acc64.chunks_exact(n).zip(y.chunks_mut(stride)).enumerate() {
                    let row = row_offset(i);
                    self.epilogue.apply(acc.iter().zip(&self.offset).map(|(a, o)| a + row + o), &mut y[..n]);
                }
            }
        }
    }
}

/// `y[m,n] = linear(a[m,k])`, rows spread over threads.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn multiply<X: Element, Y: Element>(linear: &Linear, a: &[X], y: &mut [Y]) {
    let (k, n) = (linear.k(), linear.n());
    assert!(n > 0 && y.len().is_multiple_of(n) && a.len() == y.len() / n * k, "a is [m, k] and y is [m, n]");
    let block = crate::conv::block_rows(k * size_of::<X>(), n, y.len() / n);
    y.par_chunks_mut(block * n).enumerate().for_each_init(Scratch::default, |scratch, (index, y)| {
        let rows = y.len() / n;
        linear.rows(&a[index * block * k..][..rows * k], y, n, scratch);
    });
}

/// Buffers a worker keeps between blocks.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    rows8: Vec<i8>,
    rows16: Vec<i16>,
    acc32: Vec<i32>,
    acc64: Vec<i64>,
}
