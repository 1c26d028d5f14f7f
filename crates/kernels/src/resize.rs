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
