//! Matrix products `a[m,k] · b[k,n] -> c[m,n]` of codes, exact.
//!
//! The right operand is packed once ([`PackedI8`], [`PackedI16`]) and multiplied many times. Zero points are not known here:
//! [`crate::linear`] adds what they contribute from sums of rows and columns.
//!
//! - `gemm_i8i8i32`: sums wrap at 32 bits, which is exact whenever the true sum fits (the graph is checked for that before
//!   it runs), and lets every variant reorder and bias its terms freely.
//! - `gemm_i16i16i64`: sums of 16-bit products in 64 bits. Mixed widths widen the 8-bit operand.
//!
//! Vector variants consume `k` in steps of four bytes per column, [`panels`] says how they lie in memory:
//!
//! | variant | `i8i8i32` | `i16i16i64` |
//! |---|---|---|
//! | `avx2` | both operands widened to 16 bits, pairs multiplied and added exactly | pairs to 32 bits, widened before they could overflow |
//! | `avxvnni`, `avx512vnni`, `amx` | [`tiles`] | as `avx2`, or the same with dot products of 512 bits |
//! | `neon` | [`tiles`] | the reference |

pub mod nibbles;
pub mod panels;
pub mod reference;
pub mod tiles;
pub mod unpacked;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::ops::Range;

use crate::buffers::aligned;
use crate::isa::Lanes;
use crate::pages::Addresses;
use crate::{Element, Isa};
use panels::Panels;
use tiles::{RowLayout, Tiles, Variant};

/// Right operand `[k, n]` of int8 products.
#[derive(Clone, Debug)]
pub struct PackedI8 {
    column_sums: Vec<i32>,
    column_magnitudes: Vec<u32>,
    shape: [usize; 2],
    packed: Packed,
}

/// The form a variant reads.
#[derive(Clone, Debug)]
enum Packed {
    Reference(Panels),
    #[cfg(target_arch = "x86_64")]
    Pairs(crate::isa::Avx2, Panels),
    Tiles(Tiles),
}

/// Right operand `[k, n]` of products where either side has 16 bits.
#[derive(Clone, Debug)]
pub struct PackedI16 {
    isa: Isa,
    column_sums: Vec<i64>,
    /// Largest magnitude.
    largest: i32,
    panels: Panels,
}

/// Left rows in the form a variant reads.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Two codes of a row in each word.
    words: Vec<u32>,
    /// Codes, flipped as tiles want them.
    bytes: Vec<i8>,
}

impl PackedI8 {
    /// Where the packed codes lie.
    #[must_use]
    pub fn memory(&self) -> Addresses {
        match &self.packed {
            Packed::Reference(panels) => panels.memory(),
            #[cfg(target_arch = "x86_64")]
            Packed::Pairs(_, panels) => panels.memory(),
            Packed::Tiles(tiles) => tiles.memory(),
        }
    }

    /// Packs `b`, whose element (row `p`, column `j`) lies at `p * strides[0] + j * strides[1]`.
    #[must_use]
    pub fn new(isa: Isa, b: &[i8], k: usize, n: usize, strides: [usize; 2]) -> Self {
        Self::in_runs(isa, b, [1, k], n, strides)
    }

    /// As [`Self::new`] for left rows of `runs` of a length; see [`tiles`].
    #[must_use]
    pub fn in_runs(isa: Isa, b: &[i8], [runs, length]: [usize; 2], n: usize, strides: [usize; 2]) -> Self {
        let k = runs * length;
        let at = |p: usize, j: usize| b[p * strides[0] + j * strides[1]];
        let (mut column_sums, mut column_magnitudes) = (vec![0; n], vec![0; n]);
        for p in 0..k {
            for (j, (sum, magnitude)) in column_sums.iter_mut().zip(&mut column_magnitudes).enumerate() {
                *sum += i32::from(at(p, j));
                *magnitude += u32::from(at(p, j).unsigned_abs());
            }
        }
        let packed = match isa {
            Isa::Reference => Packed::Reference(Panels::bytes(k, n, 1, at)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(isa) => Packed::Pairs(isa, Panels::pairs(k, n, 1, |p, j| i16::from(at(p, j)))),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            _ => {
                let variant = Variant::of(isa).expect("every other instruction set has tiles");
                Packed::Tiles(Tiles::new(variant, [runs, length], n, at))
            }
        };
        Self { column_sums, column_magnitudes, shape: [k, n], packed }
    }

    /// Rows of the operand, the length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        self.shape[0]
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.shape[1]
    }

    /// Sum of each column's codes.
    #[must_use]
    pub fn column_sums(&self) -> &[i32] {
        &self.column_sums
    }

    /// Sum of the sizes of each column's codes.
    #[must_use]
    pub fn column_magnitudes(&self) -> &[u32] {
        &self.column_magnitudes
    }

    /// The operand in tiles, where the instruction set has them.
    #[must_use]
    pub fn tiles(&self) -> Option<&Tiles> {
        if let Packed::Tiles(tiles) = &self.packed { Some(tiles) } else { None }
    }

    /// `c[i,j] = sum_p a[i,p] * b[p,j]` modulo 2^32. `a`: `[m, k]`, `c`: `[m, n]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn multiply(&self, a: &[i8], c: &mut [i32], rows: &mut Rows) {
        let [k, n] = self.shape;
        assert!(n > 0 && c.len().is_multiple_of(n) && a.len() == c.len() / n * k, "a is [m, k] and c is [m, n]");
        match &self.packed {
            Packed::Reference(panels) => {
                let _ = rows;
                reference::gemm_i8i8i32(a, panels, c);
            }
            #[cfg(target_arch = "x86_64")]
            Packed::Pairs(isa, panels) => {
                rows.pairs(a, k);
                isa.gemm_i8i8i32(&rows.words, panels, c.len() / n, c);
            }
            Packed::Tiles(tiles) => {
                rows.in_tiles(a, c.len() / n, tiles, |walk, rows| {
                    tiles.store(walk, rows.len(), &mut c[rows.start * n..rows.end * n]);
                });
            }
        }
    }
}

impl PackedI16 {
    /// Where the packed codes lie.
    #[must_use]
    pub fn memory(&self) -> Addresses {
        self.panels.memory()
    }

    /// Packs `b`, whose element (row `p`, column `j`) lies at `p * strides[0] + j * strides[1]`.
    #[must_use]
    pub fn new<B: Element>(isa: Isa, b: &[B], k: usize, n: usize, strides: [usize; 2]) -> Self {
        let at = |p: usize, j: usize| b[p * strides[0] + j * strides[1]].widen();
        let (mut column_sums, mut largest) = (vec![0; n], 0);
        for p in 0..k {
            for (j, sum) in column_sums.iter_mut().enumerate() {
                *sum += i64::from(at(p, j));
                largest = largest.max(at(p, j).abs());
            }
        }
        let width = match isa.lanes() {
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx512(_) => 2,
            _ => 1,
        };
        Self { isa, column_sums, largest, panels: Panels::pairs(k, n, width, |p, j| i16::narrow(at(p, j))) }
    }

    /// Rows of the operand, the length of the sums.
    #[must_use]
    pub fn k(&self) -> usize {
        self.panels.k()
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.panels.n()
    }

    /// Sum of each column's codes.
    #[must_use]
    pub fn column_sums(&self) -> &[i64] {
        &self.column_sums
    }

    /// `c[i,j] = sum_p a[i,p] * b[p,j]`. `a`: `[m, k]`, int8 or int16, `c`: `[m, n]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn multiply<A: Element>(&self, a: &[A], c: &mut [i64], rows: &mut Rows) {
        let m = self.panels.check(a.len(), c.len());
        if self.isa.lanes() == Lanes::One {
            let _ = (m, self.largest, rows);
            reference::gemm_i16i16i64(a, &self.panels, c);
            return;
        }
        #[cfg(target_arch = "x86_64")]
        {
            rows.pairs(a, self.k());
            let largest = a.iter().fold(0, |most, x| x.widen().abs().max(most));
            let run = exact_run(largest, self.largest);
            match self.isa.lanes() {
                Lanes::Avx2(isa) => isa.gemm_i16i16i64(&rows.words, &self.panels, run, m, c),
                Lanes::Avx512(isa) => isa.gemm_i16i16i64(&rows.words, &self.panels, run, m, c),
                Lanes::One => unreachable!("returned above"),
            }
        }
    }
}

/// How many sums of two products fit 32 bits when the sum starts at -1.
///
/// `run * 2 * |a| * |b| <= 2^31 - 1` leaves room for the -1 below. A single pair always fits: its largest value, 2^31 from
/// four times -2^15, becomes `2^31 - 1`, and its smallest is `-2^31 + 2^16`.
#[cfg(target_arch = "x86_64")]
fn exact_run(a: i32, b: i32) -> usize {
    let pair = 2 * i64::from(a) * i64::from(b);
    i64::from(i32::MAX).checked_div(pair).map_or(usize::MAX, |run| run.max(1) as usize)
}

impl Rows {
    /// Runs `work(walk, rows)` for codes `[m, k]` in one or two parts: rows are read from where they lie where that suffices,
    /// and the last few, which would be read beyond the end, from a copy.
    pub(crate) fn in_tiles(
        &mut self,
        a: &[i8],
        m: usize,
        tiles: &Tiles,
        mut work: impl FnMut(&RowLayout<'_>, Range<usize>),
    ) {
        let stride = a.len() / m.max(1);
        let runs = &tiles.dense();
        let in_place = match a.len().checked_sub(tiles.reach() + runs.last().unwrap_or(&0)) {
            Some(beyond) if tiles.suits(a) => m.min(beyond / stride.max(1) + 1),
            _ => 0,
        };
        work(&RowLayout { codes: a, stride, line: RowLayout::EVEN, runs }, 0..in_place);
        let (flip, rest) = (tiles.flip(), &a[in_place * stride..]);
        let bytes = aligned(&mut self.bytes, rest.len() + tiles.reach());
        let (codes, beyond) = bytes.split_at_mut(rest.len());
        codes.iter_mut().zip(rest).for_each(|(byte, code)| *byte = code ^ flip);
        beyond.fill(0);
        work(&RowLayout { codes: bytes, stride, line: RowLayout::EVEN, runs }, in_place..m);
    }

    /// Rows of `k` codes, widened to 16 bits, in words of two.
    #[cfg(target_arch = "x86_64")]
    fn pairs<A: Element>(&mut self, a: &[A], k: usize) {
        let word = |low: i32, high: i32| (low.cast_unsigned() & 0xFFFF) | (high.cast_unsigned() << 16);
        self.words.clear();
        for row in a.chunks_exact(k.max(1)) {
            let (twos, rest) = row.as_chunks::<2>();
            self.words.extend(twos.iter().map(|[low, high]| word(low.widen(), high.widen())));
            self.words.extend(rest.iter().map(|last| word(last.widen(), 0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expected(a: &[i32], b: &[i32], k: usize, n: usize) -> Vec<i64> {
        let rows = a.len() / k;
        let sum = |i: usize, j: usize| (0..k).map(|p| i64::from(a[i * k + p]) * i64::from(b[p * n + j])).sum();
        (0..rows).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| sum(i, j)).collect()
    }

    /// Sizes around every border of lanes, steps, panels and row blocks.
    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..=9, 14usize..=18, 30usize..=34, 62usize..=66, 127usize..=130]
    }

    /// Codes of a type, the extremes as often as all others together; a seed keeps failures small to print.
    fn codes(seed: u64, count: usize, low: i32, high: i32) -> Vec<i32> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let edge = [low, low + 1, -1, 0, 1, high - 1, high, low];
        let span = (high - low + 1) as u64;
        (0..count)
            .map(|_| if next() % 2 == 0 { edge[(next() % 8) as usize] } else { low + (next() % span) as i32 })
            .collect()
    }

    fn narrow<E: Element>(codes: &[i32]) -> Vec<E> {
        codes.iter().map(|&c| E::narrow(c)).collect()
    }

    fn check_i16<A: Element, B: Element>(a: &[i32], b: &[i32], k: usize, n: usize, expected: &[i64]) {
        let (a, b): (Vec<A>, Vec<B>) = (narrow(a), narrow(b));
        for isa in Isa::variants() {
            let mut c = vec![77; expected.len()];
            PackedI16::new(isa, &b, k, n, [n, 1]).multiply(&a, &mut c, &mut Rows::default());
            assert!(c == expected, "{} i{}i{}: k {k}, n {n}", isa.name(), A::BITS, B::BITS);
        }
    }

    fn check_i8(a: &[i32], b: &[i32], k: usize, n: usize, expected: &[i64]) {
        let (a, b): (Vec<i8>, Vec<i8>) = (narrow(a), narrow(b));
        for isa in Isa::variants() {
            let mut c = vec![77; expected.len()];
            PackedI8::new(isa, &b, k, n, [n, 1]).multiply(&a, &mut c, &mut Rows::default());
            assert!(c.iter().map(|&c| i64::from(c)).eq(expected.iter().copied()), "{}: k {k}, n {n}", isa.name());
        }
    }

    proptest! {
        #[test]
        fn every_variant_is_the_product(m in 1usize..=14, k in size(), n in size(), seed in any::<u64>()) {
            let bytes = (codes(seed, m * k, -128, 127), codes(!seed, k * n, -128, 127));
            let words = (codes(seed ^ 5, m * k, -32768, 32767), codes(seed ^ 7, k * n, -32768, 32767));
            check_i8(&bytes.0, &bytes.1, k, n, &expected(&bytes.0, &bytes.1, k, n));
            check_i16::<i16, i16>(&words.0, &words.1, k, n, &expected(&words.0, &words.1, k, n));
            check_i16::<i16, i8>(&words.0, &bytes.1, k, n, &expected(&words.0, &bytes.1, k, n));
            check_i16::<i8, i16>(&bytes.0, &words.1, k, n, &expected(&bytes.0, &words.1, k, n));
        }
    }

    #[test]
    fn extremes_in_every_position() {
        for k in [1, 2, 3, 4, 5, 255, 256, 257, 258, 259, 260, 520, 1031] {
            for low in [-32768, 32767, -128, 127] {
                for high in [-32768, 32767, -128, 127] {
                    let (a, b) = (vec![low; 7 * k], vec![high; k * 17]);
                    let expected = vec![i64::from(low) * i64::from(high) * k as i64; 7 * 17];
                    check_i16::<i16, i16>(&a, &b, k, 17, &expected);
                    if low.abs() <= 128 && high.abs() <= 128 {
                        check_i8(&a, &b, k, 17, &expected);
                    }
                }
            }
        }
    }

    #[test]
    fn strides_transpose() {
        let b: Vec<i8> = (0..15).collect();
        for isa in Isa::variants() {
            let mut c = vec![0; 3];
            PackedI8::new(isa, &b, 5, 3, [1, 5]).multiply(&[1, 2, 3, 4, 5], &mut c, &mut Rows::default());
            assert_eq!(c, [40, 115, 190], "{}", isa.name());
        }
    }
}
