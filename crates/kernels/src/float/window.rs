//! Pools and linear resize of float images `[n,h,w,c]`.
//!
//! Source: docs/arithmetic.md, section 16.

use tpuflow_ir::LinearTap;

use super::finish::maximum;
use super::{Finisher, Float};
use crate::conv::Geometry;
use crate::parallel;
use crate::pool::{area, cells};

/// Largest number of every window, NaN if it holds one; minus infinity where no cell lies in the image. `y`: `[n,oh,ow,c]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn max_pool<Y: Float>(geometry: &Geometry, x: &[f32], y: &mut [Y]) {
    each_pixel(
        geometry,
        y,
        |pixel, results| {
            results.fill(f32::NEG_INFINITY);
            for start in cells(geometry, pixel) {
                for (most, &x) in results.iter_mut().zip(&x[start..]) {
                    *most = maximum(*most, x);
                }
            }
        },
        |results, y| results.iter().zip(y).for_each(|(x, y)| *y = Y::nearest_single(*x)),
    );
}

/// The sum of every window's cells in order, divided by the number of cells that count; +0 where none does.
///
/// # Panics
/// When the slices do not have the geometry's sizes.
pub fn average_pool<Y: Float>(
    geometry: &Geometry,
    count_include_pad: bool,
    beyond: [u32; 2],
    finisher: &Finisher,
    x: &[f32],
    y: &mut [Y],
) {
    each_pixel(
        geometry,
        y,
        |pixel, sums| {
            sums.fill(0.0);
            for start in cells(geometry, pixel) {
                for (sum, x) in sums.iter_mut().zip(&x[start..]) {
                    *sum += x;
                }
            }
            let count = area(geometry, count_include_pad, beyond, pixel).max(1) as f32;
            sums.iter_mut().for_each(|sum| *sum /= count);
        },
        |sums, y| finisher.apply(sums, y),
    );
}

/// Computes every output pixel's channels in float32 and passes them on; lines spread over threads.
fn each_pixel<Y: Float>(
    geometry: &Geometry,
    y: &mut [Y],
    compute: impl Fn(usize, &mut [f32]) + Sync,
    finish: impl Fn(&[f32], &mut [Y]) + Sync,
) {
    let c = geometry.input[3];
    assert_eq!(y.len(), geometry.pixels() * c, "y holds every output");
    let line = geometry.output[1];
    parallel::chunks_with(y, line * c, Vec::new, |results: &mut Vec<f32>, row, y| {
        results.resize(y.len(), 0.0);
        for (column, results) in results.chunks_exact_mut(c.max(1)).enumerate() {
            compute(row * line + column, results);
        }
        finish(results, y);
    });
}

/// `(1 - v) * top + v * bottom` of lines that were mixed the same way along columns. `x`: `[n,h,w,c]`,
/// `y`: `[n,rows,columns,c]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn resize_linear<Y: Float>(input: [usize; 4], rows: &[LinearTap], columns: &[LinearTap], x: &[f32], y: &mut [Y]) {
    let [n, h, w, c] = input;
    assert_eq!(x.len(), n * h * w * c, "x holds the input");
    assert_eq!(y.len(), n * rows.len() * columns.len() * c, "y holds every output");
    parallel::chunks(y, columns.len() * c, |index, y| {
        let (image, row) = (index / rows.len(), rows[index % rows.len()]);
        let line = |i: u32| &x[(image * h + i as usize) * w * c..][..w * c];
        let (top, bottom) = (line(row.first), line(row.second));
        let down = row.weight.get() as f32;
        for (column, y) in columns.iter().zip(y.chunks_exact_mut(c)) {
            let (left, right) = (column.first as usize * c, column.second as usize * c);
            let across = column.weight.get() as f32;
            for (channel, y) in y.iter_mut().enumerate() {
                let mixed = |line: &[f32]| interpolate(line[left + channel], line[right + channel], across);
                *y = Y::nearest_single(interpolate(mixed(top), mixed(bottom), down));
            }
        }
    });
}

#[inline(always)]
fn interpolate(first: f32, second: f32, weight: f32) -> f32 {
    (1.0 - weight) * first + weight * second
}
