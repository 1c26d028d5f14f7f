//! Convolutions and matrix products from gathered rows to codes: product, zero points, bias, requantisation, table.
//!
//! With operand codes `x`, `w` and zero points `Zx`, `Zw` the accumulator is
//! ```text
//! sum (x - Zx)(w - Zw) + bias  =  sum x w  -  Zw * sum x  +  [ bias - Zx * sum w + K * Zx * Zw ]
//!                                 product     per row        per column, known in advance
//! ```
//! Narrow products (int8 by int8) accumulate in 32 bits, all others in 64 bits of which 48 are used; that the sums fit is
//! checked when a graph is prepared. Terms that wrap at 32 bits are exact as long as the whole sum fits.
//!
//! Source: docs/arithmetic.md, section 6.

use std::ops::Range;

use crate::buffers::{block_rows, buffer};
pub use crate::epilogue::Epilogue;
use crate::epilogue::{Columns, Offsets, Order};
use crate::gemm::nibbles::Nibbles;
use crate::gemm::tiles::{RowLayout, Tiles, WIDTH};
use crate::gemm::{PackedI8, PackedI16};
use crate::pages::Addresses;
use crate::parallel;
use crate::scratch;
pub use crate::scratch::Products as Scratch;
use crate::{Element, Values};

/// A function of the codes from an element of the result on, part by part.
pub type After<'a, Y> = &'a (dyn Fn(usize, &mut [Y]) + Sync);

/// A prepared right operand with everything that is known about it in advance.
#[derive(Clone, Debug)]
pub struct Linear {
    product: Product,
    zero_w: i32,
    epilogue: Epilogue,
}

/// Packed codes and, per column, `bias - Zx * sum w + K * Zx * Zw`.
#[derive(Clone, Debug)]
enum Product {
    Narrow(PackedI8, Vec<i32>),
    /// The same of weights of 4 bits.
    Nibbles(Nibbles, Vec<i32>),
    /// Sums become codes tile by tile.
    Tiled(PackedI8, Columns),
    Wide(PackedI16, Vec<i64>),
}

/// Largest size of an int8 code without its zero point.
pub(crate) fn largest_difference(zero_point: i32) -> u64 {
    [i8::MIN, i8::MAX].map(|code| u64::from(zero_point.abs_diff(code.into()))).into_iter().max().unwrap_or(0)
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
    /// Where the packed operand lies.
    #[must_use]
    pub fn memory(&self) -> Addresses {
        match &self.product {
            Product::Narrow(packed, _) | Product::Tiled(packed, _) => packed.memory(),
            Product::Nibbles(packed, _) => packed.memory(),
            Product::Wide(packed, _) => packed.memory(),
        }
    }

    /// Packs `w` for left operands with zero point `zero_x`; `wide` when they are int16. `bias` is empty or has one entry
    /// per column.
    ///
    /// # Panics
    /// When `w` holds neither int8 nor int16 codes, or `bias` has another length.
    #[must_use]
    pub fn new(w: &Matrix<'_>, wide: bool, zero_x: i32, bias: &[i64], epilogue: Epilogue) -> Self {
        Self::in_runs(w, 1, wide, zero_x, bias, epilogue)
    }

    /// As [`Self::new`] for left rows in that many runs of equal length; see [`crate::gemm::tiles`].
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn in_runs(w: &Matrix<'_>, runs: usize, wide: bool, zero_x: i32, bias: &[i64], epilogue: Epilogue) -> Self {
        let ([k, n], isa) = (w.shape, epilogue.isa());
        assert!(bias.is_empty() || bias.len() == n, "one bias per column");
        let constant = k as i64 * i64::from(zero_x) * i64::from(w.zero_point);
        let offset = |j: usize, sum: i64| bias.get(j).copied().unwrap_or(0) - i64::from(zero_x) * sum + constant;
        let narrow = |codes: &[i8]| {
            let packed = PackedI8::in_runs(isa, codes, [runs, k / runs], n, w.strides);
            let sums = packed.column_sums().iter().enumerate();
            // Wraps where the terms do; see the module's text.
            let offsets: Vec<i32> = sums.map(|(j, &sum)| offset(j, sum.into()) as i32).collect();
            if packed.tiles().is_some() {
                let zero_w = u64::from(w.zero_point.unsigned_abs()) * k as u64;
                let largest = |j: usize| {
                    let weights = u64::from(packed.column_magnitudes()[j]) + zero_w;
                    weights * largest_difference(zero_x) + bias.get(j).map_or(0, |bias| bias.unsigned_abs())
                };
                let columns = epilogue.columns_of(&offsets, Order::Natural, largest);
                Product::Tiled(packed, columns)
            } else {
                Product::Narrow(packed, offsets)
            }
        };
        let widened = |packed: PackedI16| {
            let offsets = packed.column_sums().iter().enumerate().map(|(j, &sum)| offset(j, sum)).collect();
            Product::Wide(packed, offsets)
        };
        let product = match w.codes {
            Values::I8(codes) if !wide => narrow(&codes[w.start..]),
            Values::I8(codes) => widened(PackedI16::new(isa, &codes[w.start..], k, n, w.strides)),
            Values::I16(codes) => widened(PackedI16::new(isa, &codes[w.start..], k, n, w.strides)),
            other => panic!("{} is no type of codes", other.dtype().name()),
        };
        Self { product, zero_w: w.zero_point, epilogue }
    }

    /// As [`Self::new`], of int8 weights without a zero point that are codes of 4 bits, for products of few rows.
    ///
    /// # Panics
    /// When `bias` has another length.
    #[must_use]
    pub fn of_nibbles(packed: Nibbles, zero_x: i32, bias: &[i64], epilogue: Epilogue) -> Self {
        assert!(bias.is_empty() || bias.len() == packed.n(), "one bias per column");
        let offset = |(j, &sum): (usize, &i32)| {
            // Wraps where the terms do; see the module's text.
            (bias.get(j).copied().unwrap_or(0) - i64::from(zero_x) * i64::from(sum)) as i32
        };
        let offsets = packed.column_sums().iter().enumerate().map(offset).collect();
        Self { product: Product::Nibbles(packed, offsets), zero_w: 0, epilogue }
    }

    /// Columns of the result.
    #[must_use]
    pub fn n(&self) -> usize {
        match &self.product {
            Product::Narrow(packed, _) | Product::Tiled(packed, _) => packed.n(),
            Product::Nibbles(packed, _) => packed.n(),
            Product::Wide(packed, _) => packed.n(),
        }
    }

    /// Length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        match &self.product {
            Product::Narrow(packed, _) | Product::Tiled(packed, _) => packed.k(),
            Product::Nibbles(packed, _) => packed.k(),
            Product::Wide(packed, _) => packed.k(),
        }
    }

    /// The right operand, where its products are taken tile by tile from rows that lie anywhere: [`Self::walk`] works.
    #[must_use]
    pub fn tiles(&self) -> Option<&Tiles> {
        if let (Product::Tiled(packed, _), 0) = (&self.product, self.zero_w) { packed.tiles() } else { None }
    }

    /// Blocks of columns that can be computed on their own.
    #[must_use]
    pub fn blocks(&self) -> usize {
        match &self.product {
            Product::Tiled(packed, _) => packed.tiles().map_or(1, Tiles::blocks),
            Product::Nibbles(packed, _) => packed.blocks(),
            Product::Narrow(..) | Product::Wide(..) => 1,
        }
    }

    /// Bytes that are written for every column of a row: sums, where they are not codes before they leave the nearest cache.
    pub(crate) fn column_bytes(&self) -> usize {
        match &self.product {
            Product::Tiled(..) => size_of::<i8>(),
            Product::Narrow(..) | Product::Nibbles(..) | Product::Wide(..) => size_of::<i32>(),
        }
    }

    /// Whether threads should share the columns rather than the rows of a product whose operand and result have so many
    /// elements together: then each reads its own part of the weights, which are most of what is read.
    pub(crate) fn is_mostly_weights(&self, activations: usize) -> bool {
        /// Weights that are worth waking a thread for.
        const LEAST: usize = if cfg!(test) { 1 << 8 } else { 1 << 17 };
        self.k() * self.n() >= LEAST.max(4 * activations) && self.blocks() > 1 && rayon::current_num_threads() > 1
    }

    /// Columns `blocks` of the first `m` rows of a walk to codes: row `i` of the result belongs to `y[place(i)..][..n]`, or
    /// nowhere.
    ///
    /// # Panics
    /// When a row lies outside its slice, or [`Self::tiles`] gives nothing.
    pub fn walk<Y: Element>(
        &self,
        walk: &RowLayout<'_>,
        m: usize,
        blocks: Range<usize>,
        place: impl Fn(usize) -> Option<usize>,
        y: &mut [Y],
    ) {
        let (Product::Tiled(_, columns), Some(tiles)) = (&self.product, self.tiles()) else {
            panic!("the operand is not in tiles")
        };
        tiles.multiply(walk, m, blocks, &mut |tile| self.epilogue.tile(&tile, columns, &place, y));
    }

    /// Rows `a` `[m, k]` to codes: row `i` of the result lies at `y[i * stride..][..n]`.
    ///
    /// # Panics
    /// When the slices are shorter than that, or int16 rows meet an operand packed for int8 ones.
    pub fn rows<X: Element, Y: Element>(&self, a: &[X], y: &mut [Y], stride: usize, scratch: &mut Scratch) {
        self.columns(0..self.blocks(), a, y, stride, scratch);
    }

    /// As [`Self::rows`], of the columns of some of [`Self::blocks`].
    ///
    /// # Panics
    /// As [`Self::rows`].
    pub fn columns<X: Element, Y: Element>(
        &self,
        blocks: Range<usize>,
        a: &[X],
        y: &mut [Y],
        stride: usize,
        scratch: &mut Scratch,
    ) {
        let (k, n) = (self.k(), self.n());
        let m = a.len().checked_div(k).unwrap_or(y.len().div_ceil(stride));
        let of_row = |i: usize| {
            let sum: i64 =
                if self.zero_w == 0 { 0 } else { a[i * k..][..k].iter().map(|x| i64::from(x.widen())).sum() };
            -i64::from(self.zero_w) * sum
        };
        match &self.product {
            Product::Narrow(packed, columns) => {
                let products = buffer(&mut scratch.products32, m * n);
                packed.multiply(
                    X::as_bytes(a).expect("rows and packed operand have the same width"),
                    products,
                    &mut scratch.rows,
                );
                for (i, (products, y)) in products.chunks_exact(n).zip(y.chunks_mut(stride)).enumerate() {
                    let offsets = Offsets { row: of_row(i) as i32, columns };
                    self.epilogue.narrow(products, offsets, &mut y[..n]);
                }
            }
            Product::Nibbles(packed, offsets) => {
                let a = X::as_bytes(a).expect("rows and packed operand have the same width");
                packed.multiply(a, blocks, |row, block, sums| {
                    let columns = block * WIDTH..block * WIDTH + sums.len();
                    let offsets = Offsets { row: 0, columns: &offsets[columns.clone()] };
                    self.epilogue.part(columns.start, sums, offsets, &mut y[row * stride..][columns]);
                });
            }
            Product::Tiled(packed, columns) => {
                let tiles = packed.tiles().expect("tiles were found when it was packed");
                let a = X::as_bytes(a).expect("rows and packed operand have the same width");
                let row_terms: Vec<i32> =
                    if self.zero_w == 0 { Vec::new() } else { (0..m).map(|i| of_row(i) as i32).collect() };
                scratch.rows.in_tiles(a, m, tiles, |walk, rows| {
                    let first = rows.start;
                    tiles.multiply(walk, rows.len(), blocks.clone(), &mut |tile| {
                        let terms = row_terms.iter().skip(first + tile.rows.start);
                        for (sums, term) in tile.sums.chunks_exact_mut(WIDTH).zip(terms) {
                            sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(*term));
                        }
                        self.epilogue.tile(&tile, columns, |row| Some((first + row) * stride), y);
                    });
                });
            }
            Product::Wide(packed, columns) => {
                let products = buffer(&mut scratch.products64, m * n);
                packed.multiply(a, products, &mut scratch.rows);
                for (i, (products, y)) in products.chunks_exact(n).zip(y.chunks_mut(stride)).enumerate() {
                    self.epilogue.wide(products, Offsets { row: of_row(i), columns }, &mut y[..n]);
                }
            }
        }
    }
}

/// `y[m,n] = linear(a[m,k])`, rows or columns spread over threads.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn multiply<X: Element, Y: Element>(linear: &Linear, a: &[X], y: &mut [Y]) {
    multiply_then(linear, a, y, &|_, _| {});
}

/// As [`multiply`]; `after` as for [`crate::conv::Conv::run_then`].
///
/// # Panics
/// As [`multiply`].
pub fn multiply_then<X: Element, Y: Element>(linear: &Linear, a: &[X], y: &mut [Y], after: After<'_, Y>) {
    let (k, n) = (linear.k(), linear.n());
    assert!(n > 0 && y.len().is_multiple_of(n) && a.len() == y.len() / n * k, "a is [m, k] and y is [m, n]");
    if linear.is_mostly_weights(a.len() + y.len()) {
        by_columns(linear, y, |blocks, y| {
            scratch::with(|scratch| linear.columns(blocks, a, y, n, &mut scratch.linear));
        });
        return after(0, y);
    }
    let block = block_rows(k * size_of::<X>() + n * linear.column_bytes(), y.len() / n);
    parallel::chunks(y, block * n, |index, y| {
        let rows = y.len() / n;
        scratch::with(|scratch| linear.rows(&a[index * block * k..][..rows * k], y, n, &mut scratch.linear));
        after(index * block * n, y);
    });
}

/// `work(blocks, y)` for a range of blocks of columns on every thread; it writes those columns of `y` `[m, n]` alone.
pub(crate) fn by_columns<Y: Element>(linear: &Linear, y: &mut [Y], work: impl Fn(Range<usize>, &mut [Y]) + Sync) {
    let (n, blocks) = (linear.n(), linear.blocks());
    let threads = rayon::current_num_threads().min(blocks);
    let share = |thread: usize| thread * blocks / threads..(thread + 1) * blocks / threads;
    // All but the first write elsewhere, since rows of the result are not to be had in parts.
    let mut others = vec![vec![Y::default(); y.len()]; threads - 1];
    let mut own: Vec<&mut [Y]> = std::iter::once(&mut *y).chain(others.iter_mut().map(Vec::as_mut_slice)).collect();
    parallel::chunks(&mut own, 1, |thread, y| work(share(thread), y[0]));
    for (thread, other) in others.iter().enumerate() {
        let columns = share(thread + 1);
        let columns = columns.start * WIDTH..n.min(columns.end * WIDTH);
        for (y, other) in y.chunks_exact_mut(n).zip(other.chunks_exact(n)) {
            y[columns.clone()].copy_from_slice(&other[columns.clone()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::requant::reference::requantize;
    use crate::table::Lookup;
    use tpuflow_ir::{Packed, Requant};

    /// Products by their definition, on pools of 1, 2 and 3 threads; where there are tiles, more than one thread share columns.
    fn check<Y: Element>(n: usize, zero_w: i32, lo: i32, hi: i32) {
        let (m, k, zero_x) = (3, 40, -9);
        let code = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 13) as i8;
        let a: Vec<i8> = (0..m * k).map(code).collect();
        let w: Vec<i8> = (0..k * n).map(|i| code(i + 7919)).collect();
        let bias: Vec<i64> = (0..n as i64).map(|j| j * 1000 - 30_000).collect();
        let multiplier: Vec<i32> = (0..n as i32).map(|j| 77 + 31 * j).collect();
        let requant = Requant { multiplier, shift: vec![13; n], zero_point: 3, lo, hi };
        let expected: Vec<i32> = (0..m * n)
            .map(|at| {
                let (i, j) = (at / n, at % n);
                let term = |p: usize| (i32::from(a[i * k + p]) - zero_x) * (i32::from(w[p * n + j]) - zero_w);
                let sum = (0..k).map(|p| i64::from(term(p))).sum::<i64>() + bias[j];
                requantize(sum, requant.multiplier[j], requant.shift[j], 3, lo, hi)
            })
            .collect();
        assert!(expected.iter().any(|&y| lo < y && y < hi), "some results are no limits");
        let codes = Values::I8(w.clone());
        let matrix = Matrix { codes: &codes, start: 0, shape: [k, n], strides: [n, 1], zero_point: zero_w };
        for isa in Isa::variants() {
            let linear = Linear::new(&matrix, false, zero_x, &bias, Epilogue::with(isa, requant.clone(), None));
            for threads in 1..=3 {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                let (shared, y) = pool.install(|| {
                    let mut y = vec![Y::default(); m * n];
                    multiply(&linear, &a, &mut y);
                    (linear.is_mostly_weights(a.len() + y.len()), y)
                });
                let what = format!("{} on {threads} threads, n = {n}, Zw = {zero_w}", isa.name());
                assert_eq!(shared, threads > 1 && matches!(linear.product, Product::Tiled(..)), "{what}");
                assert_eq!(y.iter().map(|y| y.widen()).collect::<Vec<i32>>(), expected, "{what}");
            }
        }
    }

    /// Columns are shared by any number of threads, also when the last block is a single column or there are fewer blocks.
    #[test]
    fn threads_that_share_columns_change_no_code() {
        for n in [65, 129] {
            for zero_w in [0, -5, 11] {
                check::<i8>(n, zero_w, -128, 127);
                check::<i16>(n, zero_w, -32768, 32767);
            }
        }
    }

    /// Weights of 4 bits give the codes of the int8 weights they stand for, by any number of threads.
    #[test]
    fn nibbles_give_the_codes_of_their_elements() {
        let (m, zero_x) = (4, -9);
        let byte = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 13) as u8;
        for ([k, n], has_zero_points, is_float) in [
            ([40usize, 65usize], false, false),
            ([64, 129], true, false),
            ([100, 3], true, false),
            ([32, 200], false, true),
            ([70, 66], false, true),
        ] {
            let cells = k.div_ceil(32) * n;
            let bytes = |count: usize, mask: u8| (0..count).map(|i| byte(i + count) & mask).collect::<Vec<u8>>().into();
            let packed = Packed {
                block: 32,
                has_zero_points,
                is_float,
                codes: bytes((k * n).div_ceil(2), 255),
                scales: bytes(cells, 255),
                zero_points: bytes(if has_zero_points { cells } else { 0 }, 15),
            };
            let a: Vec<i8> = (0..m * k).map(|i| byte(i).cast_signed()).collect();
            let bias: Vec<i64> = (0..n as i64).map(|j| j * 1000 - 30_000).collect();
            let multiplier: Vec<i32> = (0..n as i32).map(|j| 77 + 31 * j).collect();
            let requant = Requant { multiplier, shift: vec![13; n], zero_point: 3, lo: -128, hi: 127 };
            let elements = Values::I8(packed.expand(&[k, n]).into_iter().map(u8::cast_signed).collect());
            let matrix = Matrix { codes: &elements, start: 0, shape: [k, n], strides: [n, 1], zero_point: 0 };
            let expected = {
                let epilogue = Epilogue::with(Isa::Reference, requant.clone(), None);
                let mut y = vec![0i8; m * n];
                multiply(&Linear::new(&matrix, false, zero_x, &bias, epilogue), &a, &mut y);
                y
            };
            for isa in Isa::variants() {
                let epilogue = Epilogue::with(isa, requant.clone(), None);
                let linear = Linear::of_nibbles(Nibbles::new(isa, &packed, [k, n]), zero_x, &bias, epilogue);
                for threads in 1..=3 {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                    let mut y = vec![0i8; m * n];
                    pool.install(|| multiply(&linear, &a, &mut y));
                    assert_eq!(y, expected, "{} on {threads} threads, {k} by {n}", isa.name());
                }
            }
        }
    }

    /// The bias counts where it is decided whether sums are exact as float32: beside a tie at `2^28` and more they are not.
    #[test]
    fn sums_that_only_the_bias_makes_large_are_rounded_exactly() {
        let (k, n) = (16, 64);
        let weights = Values::I8(vec![0; k * n]);
        let matrix = Matrix { codes: &weights, start: 0, shape: [k, n], strides: [n, 1], zero_point: 0 };
        let entries: Vec<i32> = (0..=1 << 16).map(|i| i % 201 - 100).collect();
        let looked_up = |code: i32| entries[(code + 32768) as usize];
        // As int8 codes, and as 16-bit ones that go through a table.
        for (shift, first, lo, hi) in [(24, 20, -128, 127), (16, 5000, -32768, 32767)] {
            let beside = |j: usize| ((2 * (first + j as i64) + 1) << (shift - 1)) + j as i64 % 3 - 1;
            let bias: Vec<i64> = (0..n).map(beside).collect();
            let codes = bias.iter().map(|&sum| requantize(sum, 1, shift, 0, lo, hi));
            let table = (shift == 16).then(|| Lookup::new(entries.clone(), 16, -128, 127).expect("a table"));
            let expected: Vec<i32> = codes.map(|code| if table.is_some() { looked_up(code) } else { code }).collect();
            let requant = Requant { multiplier: vec![1; n], shift: vec![shift; n], zero_point: 0, lo, hi };
            for isa in Isa::variants() {
                let epilogue = Epilogue::with(isa, requant.clone(), table.clone());
                let mut y = vec![0i8; 3 * n];
                multiply(&Linear::new(&matrix, false, 0, &bias, epilogue), &vec![1i8; 3 * k], &mut y);
                let found: Vec<i32> = y[2 * n..].iter().map(|y| y.widen()).collect();
                assert_eq!(found, expected, "{}, shift {shift}", isa.name());
            }
        }
    }
}
