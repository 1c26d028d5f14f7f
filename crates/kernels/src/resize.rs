//! Linear resize of `[n,h,w,c]` with 11-bit weights per axis, on codes: the weights of every output cell add up to `2^22`, so
//! a constant image stays what it is and zero points pass through.
//!
//! Source: docs/arithmetic.md, "Resize".

use tpuflow_ir::{LinearTap, Real};

use crate::Element;
use crate::parallel;
use crate::requant::round_shift;

/// A weight in units of 1/2048.
fn steps(weight: Real) -> i64 {
    (weight.get() * 2048.0) as i64
}

/// `y[n,i,j,c] = RNE(sum of four weighted neighbours / 2^22)`. `x`: `[n,h,w,c]`, `y`: `[n,rows,columns,c]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn resize_linear<X: Element>(input: [usize; 4], rows: &[LinearTap], columns: &[LinearTap], x: &[X], y: &mut [X]) {
    let [n, h, w, c] = input;
    assert_eq!(x.len(), n * h * w * c, "x holds the input");
    assert_eq!(y.len(), n * rows.len() * columns.len() * c, "y holds every output");
    parallel::chunks(y, columns.len() * c, |index, y| {
        let (image, row) = (index / rows.len(), rows[index % rows.len()]);
        let line = |i: u32| &x[(image * h + i as usize) * w * c..][..w * c];
        let (top, bottom) = (line(row.first), line(row.second));
        let weight_row = steps(row.weight);
        for (column, y) in columns.iter().zip(y.chunks_exact_mut(c)) {
            let (left, right) = (column.first as usize * c, column.second as usize * c);
            let weight = steps(column.weight);
            for (channel, y) in y.iter_mut().enumerate() {
                let across = |line: &[X]| {
                    (2048 - weight) * i64::from(line[left + channel].widen())
                        + weight * i64::from(line[right + channel].widen())
                };
                let sum = (2048 - weight_row) * across(top) + weight_row * across(bottom);
                *y = X::narrow(round_shift(sum, 22) as i32);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taps(extent: u32) -> impl Strategy<Value = Vec<LinearTap>> {
        let tap = (0..extent, 0..extent, 0u32..=2048);
        let tap = tap.prop_map(|(first, second, weight)| LinearTap {
            first,
            second,
            weight: Real::new(f64::from(weight) / 2048.0),
        });
        prop::collection::vec(tap, 1..5)
    }

    proptest! {
        /// Four pixels each, weighted in whole numbers.
        #[test]
        fn is_the_sum_of_four_pixels(
            (h, w, rows, columns) in (1u32..6, 1u32..6).prop_flat_map(|(h, w)| (Just(h), Just(w), taps(h), taps(w))),
            n in 1usize..3, c in 1usize..8, seed in any::<i16>(),
        ) {
            let (h, w) = (h as usize, w as usize);
            let x: Vec<i16> = (0..n * h * w * c).map(|i| (i as i16).wrapping_mul(12_345).wrapping_add(seed)).collect();
            let mut y = vec![0i16; n * rows.len() * columns.len() * c];
            resize_linear([n, h, w, c], &rows, &columns, &x, &mut y);
            let at = |image: usize, row: u32, column: u32, channel: usize| {
                i128::from(x[((image * h + row as usize) * w + column as usize) * c + channel])
            };
            for (number, &found) in y.iter().enumerate() {
                let (channel, rest) = (number % c, number / c);
                let (column, rest) = (columns[rest % columns.len()], rest / columns.len());
                let (row, image) = (rows[rest % rows.len()], rest / rows.len());
                let [v, u] = [row, column].map(|tap| (tap.weight.get() * 2048.0) as i128);
                let sum = (2048 - v) * (2048 - u) * at(image, row.first, column.first, channel)
                    + (2048 - v) * u * at(image, row.first, column.second, channel)
                    + v * (2048 - u) * at(image, row.second, column.first, channel)
                    + v * u * at(image, row.second, column.second, channel);
                let (low, half) = (sum.div_euclid(1 << 22), 1 << 21);
                let rest = sum.rem_euclid(1 << 22);
                let expected = low + i128::from(rest > half || (rest == half && low % 2 != 0));
                prop_assert_eq!(i128::from(found), expected);
            }
        }
    }
}
