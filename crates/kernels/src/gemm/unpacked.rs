//! Products of few rows with a right operand where it lies: packing takes longer than one such product does.

use std::ops::Range;

use crate::Isa;
use crate::isa::Work;

/// Columns whose sums stay in registers.
const COLUMNS: usize = 64;

/// Rows up to which an operand that is used once is not packed.
pub const FEW: usize = 4;

/// A right operand `[k, n]` of int8 codes in which either the elements of a row or those of a column follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Unpacked<'a> {
    /// Codes, of which the first is element (0, 0).
    pub codes: &'a [i8],
    /// Rows, columns.
    pub shape: [usize; 2],
    /// Step between rows, between columns; one of them is 1.
    pub strides: [usize; 2],
    /// Zero point.
    pub zero_point: i8,
}

/// `sums[i, j] += sum_p a[i, p] (b[p, j] - zero)`. `a`: `[m, k]`, at most `2^23` in size; `sums`: `[m, n]`.
///
/// # Panics
/// When the slices do not have these sizes, `a` is larger, or neither step is 1.
pub fn add_products(a: &[i32], b: &Unpacked<'_>, sums: &mut [i64]) {
    let [k, n] = b.shape;
    if k == 0 || n == 0 {
        return;
    }
    assert!(a.len().is_multiple_of(k) && sums.len() == a.len() / k * n, "[m, k] times [k, n]");
    assert!(b.strides.contains(&1), "rows or columns lie as they are");
    // So many products of the largest terms fit 32 bits.
    let largest = a.iter().map(|x| x.unsigned_abs()).max().unwrap_or(0).max(1);
    assert!(largest <= 1 << 23, "terms stay below 2^31");
    let terms = (i32::MAX.unsigned_abs() / (largest * 255)) as usize;
    for first in (0..k).step_by(terms) {
        let rows = first..k.min(first.saturating_add(terms));
        let part = Part { a, b, rows, sums: &mut *sums };
        if b.strides[1] == 1 {
            Isa::selected().lanes().run(ByRow(part));
        } else {
            Isa::selected().lanes().run(ByColumn(part));
        }
    }
}

/// The products with some rows of the right operand, whose sums fit 32 bits.
struct Part<'a> {
    a: &'a [i32],
    b: &'a Unpacked<'a>,
    rows: Range<usize>,
    sums: &'a mut [i64],
}

/// Rows have no gaps: sums of many columns grow side by side.
struct ByRow<'a>(Part<'a>);

impl Work for ByRow<'_> {
    type Result = ();

    #[inline(always)]
    fn done(self) {
        let Part { a, b, rows, sums } = self.0;
        let ([k, n], zero) = (b.shape, i32::from(b.zero_point));
        let row = |p: usize| &b.codes[p * b.strides[0]..][..n];
        for (a, sums) in a.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
            let (wide, rest) = sums.as_chunks_mut::<COLUMNS>();
            let narrow = wide.len() * COLUMNS;
            for (block, sums) in wide.iter_mut().enumerate() {
                let mut kept = [0i32; COLUMNS];
                for p in rows.clone() {
                    let (x, row) = (a[p], &row(p)[block * COLUMNS..][..COLUMNS]);
                    for (sum, &w) in kept.iter_mut().zip(row) {
                        *sum = sum.wrapping_add(x.wrapping_mul(i32::from(w) - zero));
                    }
                }
                sums.iter_mut().zip(kept).for_each(|(sum, part)| *sum += i64::from(part));
            }
            if rest.is_empty() {
                continue;
            }
            for p in rows.clone() {
                let (x, row) = (a[p], &row(p)[narrow..]);
                rest.iter_mut().zip(row).for_each(|(sum, &w)| *sum += i64::from(x.wrapping_mul(i32::from(w) - zero)));
            }
        }
    }
}

/// Columns have no gaps: each sum is one of neighbours.
struct ByColumn<'a>(Part<'a>);

impl Work for ByColumn<'_> {
    type Result = ();

    #[inline(always)]
    fn done(self) {
        let Part { a, b, rows, sums } = self.0;
        let ([k, n], zero) = (b.shape, i32::from(b.zero_point));
        for j in 0..n {
            let column = &b.codes[j * b.strides[1]..][..k][rows.clone()];
            for (a, sums) in a.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
                let terms = a[rows.clone()].iter().zip(column);
                let part = terms.fold(0i32, |sum, (&x, &w)| sum.wrapping_add(x.wrapping_mul(i32::from(w) - zero)));
                sums[j] += i64::from(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_definition() {
        let mut random = 7u32;
        let mut next = |range: i64| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            i64::from(random >> 1) % range - range / 2
        };
        // The last has sums beyond 32 bits.
        for ([m, k, n], largest) in [
            ([1, 1, 1], 256),
            ([1, 0, 5], 256),
            ([2, 40, 64], 256),
            ([3, 17, 200], 256),
            ([1, 300, 127], 65_536),
            ([4, 5, 0], 256),
            ([2, 700, 130], 1 << 23),
        ] {
            for (zero, is_transposed) in [(0, false), (-128, true), (5, false), (5, true), (127, false)] {
                let a: Vec<i32> = (0..m * k).map(|_| next(2 * largest) as i32).collect();
                let gap = 3;
                let (lines, length) = if is_transposed { (n, k) } else { (k, n) };
                let codes: Vec<i8> = (0..lines * (length + gap)).map(|_| next(256) as i8).collect();
                let strides = if is_transposed { [1, k + gap] } else { [n + gap, 1] };
                let before: Vec<i64> = (0..m * n).map(|_| next(1 << 20)).collect();
                let mut sums = before.clone();
                add_products(&a, &Unpacked { codes: &codes, shape: [k, n], strides, zero_point: zero }, &mut sums);
                for (at, (&sum, &before)) in sums.iter().zip(&before).enumerate() {
                    let (i, j) = (at / n, at % n);
                    let b = |p: usize| i64::from(codes[p * strides[0] + j * strides[1]]) - i64::from(zero);
                    let terms = (0..k).map(|p| i64::from(a[i * k + p]) * b(p));
                    assert_eq!(sum, before + terms.sum::<i64>());
                }
            }
        }
    }

    /// Terms of one sign, each the largest there is.
    #[test]
    fn the_largest_sums_do_not_wrap() {
        for (x, w) in [(1 << 23, -128i8), (-(1 << 23), -128), (65_535, -128), (255, -128), (1 << 23, 127)] {
            let zero = if w < 0 { 127 } else { -128i8 };
            for strides in [[64, 1], [1, 300]] {
                let operand = Unpacked { codes: &[w; 300 * 64], shape: [300, 64], strides, zero_point: zero };
                let mut sums = [0; 64];
                add_products(&[x; 300], &operand, &mut sums);
                assert_eq!(sums, [300 * i64::from(x) * (i64::from(w) - i64::from(zero)); 64]);
            }
        }
    }
}
