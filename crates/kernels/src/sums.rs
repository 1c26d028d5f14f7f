//! Sums of products as they are: those of a matrix product over some of what it sums over, and their sum.
//!
//! Source: docs/arithmetic.md, "Linear operators" and "Reduction".

use crate::Element;

/// A matrix of codes and their zero point.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a, X> {
    /// Row-major.
    pub codes: &'a [X],
    /// Subtracted from each.
    pub zero_point: i32,
}

/// `sums[i, j] = sum over k of (a[i, k] - Za) * (b[k, j] - Zb)`, exact; shapes are `[m, k]`, `[k, n]` and `[m, n]`.
///
/// # Panics
/// When the slices have other lengths.
pub fn products<X: Element, W: Element>(a: Codes<'_, X>, b: Codes<'_, W>, [k, n]: [usize; 2], sums: &mut [i64]) {
    assert!(k > 0 && n > 0 && b.codes.len() == k * n, "a right operand [{k}, {n}]");
    assert_eq!(a.codes.len() / k, sums.len() / n, "a row of sums for every row");
    // So many products fit 32 bits, in which several are added at a time; none of two int16, nor with a zero point that is no code.
    let most = 31u32.saturating_sub(X::BITS + W::BITS);
    let is_code = |zero_point: i32, least: i32| (least..-least).contains(&zero_point);
    let are_codes = is_code(a.zero_point, X::MIN.widen()) && is_code(b.zero_point, W::MIN.widen());
    let together = if most == 0 || !are_codes { 0 } else { 1usize << most };
    let mut short = vec![0i32; n];
    for (row, sums) in a.codes.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
        sums.fill(0);
        if together == 0 {
            for (x, weights) in row.iter().zip(b.codes.chunks_exact(n)) {
                let x = i64::from(x.widen() - a.zero_point);
                sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * i64::from(w.widen() - b.zero_point));
            }
            continue;
        }
        for (row, weights) in row.chunks(together).zip(b.codes.chunks(together * n)) {
            short.fill(0);
            for (x, weights) in row.iter().zip(weights.chunks_exact(n)) {
                let x = x.widen() - a.zero_point;
                short.iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * (w.widen() - b.zero_point));
            }
            sums.iter_mut().zip(&short).for_each(|(sum, &short)| *sum += i64::from(short));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes at the ends of their types, where sums are largest.
    fn extremes<X: Element>(count: usize, seed: u64) -> Vec<X> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let least = X::MIN.widen();
                X::narrow(if state >> 62 == 0 {
                    (state >> 40) as i32 % -least
                } else {
                    [least, -1 - least][(state >> 61) as usize & 1]
                })
            })
            .collect()
    }

    fn agree<X: Element, W: Element>(zero_points: [i32; 2]) {
        for (m, k, n, seed) in [(1, 1, 1, 1), (3, 700, 5, 2), (2, 130, 64, 3)] {
            let (a, b) = (extremes::<X>(m * k, seed), extremes::<W>(k * n, seed + 9));
            let mut sums = vec![7; m * n];
            let (left, right) =
                (Codes { codes: &a, zero_point: zero_points[0] }, Codes { codes: &b, zero_point: zero_points[1] });
            products(left, right, [k, n], &mut sums);
            for (at, &sum) in sums.iter().enumerate() {
                let term = |i: usize| {
                    let x = i128::from(a[at / n * k + i].widen()) - i128::from(zero_points[0]);
                    x * (i128::from(b[i * n + at % n].widen()) - i128::from(zero_points[1]))
                };
                assert_eq!(i128::from(sum), (0..k).map(term).sum::<i128>(), "{m} x {k} x {n}, {at}");
            }
        }
    }

    #[test]
    fn sums_are_exact_at_the_ends_of_every_type() {
        for [a, b] in [[0, 0], [-128, 127], [127, -128]] {
            agree::<i8, i8>([a, b]);
            agree::<i16, i8>([a * 256, b]);
            agree::<i8, i16>([a, b * 256]);
            agree::<i16, i16>([a * 256, b * 256]);
        }
        // Zero points that a program may state and no code is.
        agree::<i8, i8>([32767, -32768]);
        agree::<i16, i8>([-65535, 32767]);
    }
}
