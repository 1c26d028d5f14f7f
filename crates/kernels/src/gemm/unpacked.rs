//! Products of few rows with a right operand as it lies, row-major: packing takes longer than one product does.

use crate::Isa;
use crate::isa::Work;

/// Columns whose sums stay in registers.
const COLUMNS: usize = 64;

/// `sums[i, j] += sum_p a[i, p] (b[p, j] - zero)` modulo 2^32. `a`: `[m, k]`, `b`: `[k, n]`, `sums`: `[m, n]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn add_products(a: &[i32], b: &[i8], [k, n]: [usize; 2], zero: i8, sums: &mut [i32]) {
    if k == 0 || n == 0 {
        return;
    }
    assert!(b.len() == k * n && a.len().is_multiple_of(k) && sums.len() == a.len() / k * n, "[m, k] times [k, n]");
    for (a, sums) in a.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
        Isa::selected().lanes().run(Product { a, b, zero, sums });
    }
}

/// One row of the left operand.
struct Product<'a> {
    a: &'a [i32],
    b: &'a [i8],
    zero: i8,
    sums: &'a mut [i32],
}

impl Work for Product<'_> {
    type Result = ();

    #[inline(always)]
    fn done(self) {
        let Self { a, b, zero, sums } = self;
        let (zero, n) = (i32::from(zero), sums.len());
        let (wide, rest) = sums.as_chunks_mut::<COLUMNS>();
        let narrow = wide.len() * COLUMNS;
        for (block, sums) in wide.iter_mut().enumerate() {
            let mut kept = *sums;
            for (&x, row) in a.iter().zip(b.chunks_exact(n)) {
                let row = &row[block * COLUMNS..][..COLUMNS];
                for (sum, &w) in kept.iter_mut().zip(row) {
                    *sum = sum.wrapping_add(x.wrapping_mul(i32::from(w) - zero));
                }
            }
            *sums = kept;
        }
        for (&x, row) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, &w) in rest.iter_mut().zip(&row[narrow..]) {
                *sum = sum.wrapping_add(x.wrapping_mul(i32::from(w) - zero));
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
        let mut next = |range: i32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) as i32 % range - range / 2
        };
        for [m, k, n] in [[1, 1, 1], [1, 0, 5], [2, 40, 64], [3, 17, 200], [1, 300, 127], [4, 5, 0]] {
            for zero in [0, -128, 5] {
                let a: Vec<i32> = (0..m * k).map(|_| next(512)).collect();
                let b: Vec<i8> = (0..k * n).map(|_| next(256) as i8).collect();
                let before: Vec<i32> = (0..m * n).map(|_| next(1 << 20)).collect();
                let mut sums = before.clone();
                add_products(&a, &b, [k, n], zero, &mut sums);
                for (at, (&sum, &before)) in sums.iter().zip(&before).enumerate() {
                    let (i, j) = (at / n, at % n);
                    let terms = (0..k).map(|p| a[i * k + p] * (i32::from(b[p * n + j]) - i32::from(zero)));
                    assert_eq!(sum, before + terms.sum::<i32>());
                }
            }
        }
    }
}
