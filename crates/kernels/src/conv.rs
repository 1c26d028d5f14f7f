//! Convolution as rows of gathered taps times packed weights.
//!
//! ```text
//! output pixel (oh, ow) -> row of K = kh*kw*c taps, in the order (kh, kw, c), that of the weights [o, kh, kw, c]
//! ```
//! Taps outside the image hold the input's zero point, which is real zero. Output pixels are numbered over the whole batch;
//! any range of them can be computed on its own.

use std::ops::Range;

use rayon::prelude::*;
use tpuflow_ir::Window;

use crate::Element;
use crate::linear::{Linear, Scratch};

/// Sizes of a windowed operator: input `[n,h,w,c]`, output `[n,oh,ow,..]`.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Batch, height, width, channels of the input.
    pub input: [usize; 4],
    /// Height and width of the output.
    pub output: [usize; 2],
    /// The window.
    pub window: Window,
}

impl Geometry {
    /// The sizes for an input shape, or `None` when the window does not fit.
    #[must_use]
    pub fn new(input: [usize; 4], window: Window) -> Option<Self> {
        Some(Self { input, output: window.output(input[1], input[2])?, window })
    }

    /// Output pixels of the whole batch.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.input[0] * self.output[0] * self.output[1]
    }

    /// Taps of a window.
    #[must_use]
    pub fn taps(&self) -> usize {
        (self.window.kernel[0] * self.window.kernel[1]) as usize
    }

    /// Batch index and top left input cell (possibly negative) of output pixel `pixel`.
    #[must_use]
    pub fn origin(&self, pixel: usize) -> (usize, [isize; 2]) {
        let [oh, ow] = self.output;
        let along = |position: usize, axis: usize| {
            (position * self.window.stride[axis] as usize) as isize - self.window.pads[axis] as isize
        };
        (pixel / (oh * ow), [along(pixel / ow % oh, 0), along(pixel % ow, 1)])
    }

    /// Whether a window is one pixel and output pixels are input pixels.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.window.kernel == [1, 1] && self.window.stride == [1, 1] && self.window.pads == [0; 4]
    }
}

/// Gathers the taps of output pixels `pixels`, channels `channels`, into rows `[pixels, kh * kw * channels]`.
///
/// `x`: the whole batch. Taps outside the image get `zero_point`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn gather<X: Copy>(
    geometry: &Geometry,
    x: &[X],
    pixels: Range<usize>,
    channels: Range<usize>,
    zero_point: X,
    rows: &mut [X],
) {
    let [_, h, w, c] = geometry.input;
    let [kh, kw] = geometry.window.kernel.map(|k| k as usize);
    let [dh, dw] = geometry.window.dilation.map(|d| d as isize);
    let width = channels.len();
    assert_eq!(rows.len(), pixels.len() * kh * kw * width, "rows hold every tap");
    for (pixel, row) in pixels.zip(rows.chunks_exact_mut((kh * kw * width).max(1))) {
        let (image, [top, left]) = geometry.origin(pixel);
        for (tap, cells) in row.chunks_exact_mut(width).enumerate() {
            let (ih, iw) = (top + (tap / kw) as isize * dh, left + (tap % kw) as isize * dw);
            if (0..h as isize).contains(&ih) && (0..w as isize).contains(&iw) {
                let start = ((image * h + ih as usize) * w + iw as usize) * c;
                cells.copy_from_slice(&x[start..][channels.clone()]);
            } else {
                cells.fill(zero_point);
            }
        }
    }
}

/// Bytes of gathered rows per block: they and their accumulators stay in the second-level cache.
const BLOCK_BYTES: usize = 256 << 10;

/// Convolution of the whole batch. `groups`: one prepared operand `[kh * kw * c / groups, o / groups]` per group.
/// `y`: `[n,oh,ow,o]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn conv<X: Element, Y: Element>(geometry: &Geometry, x: &[X], groups: &[Linear], zero_point: X, y: &mut [Y]) {
    let channels = geometry.input[3] / groups.len();
    let k = geometry.taps() * channels;
    let columns = groups[0].n();
    let o = columns * groups.len();
    assert_eq!(y.len(), geometry.pixels() * o, "y holds every output");
    let block = block_rows(k * size_of::<X>(), columns, geometry.pixels());
    y.par_chunks_mut((block * o).max(1)).enumerate().for_each_init(
        || (Vec::new(), Scratch::default()),
        |(rows, scratch), (index, y)| {
            let pixels = index * block..index * block + y.len() / o;
            for (group, linear) in groups.iter().enumerate() {
                let y = &mut y[group * columns..];
                if groups.len() == 1 && geometry.is_pointwise() {
                    linear.rows(&x[pixels.start * k..pixels.end * k], y, o, scratch);
                    continue;
                }
                rows.resize(pixels.len() * k, zero_point);
                let taken = group * channels..(group + 1) * channels;
                gather(geometry, x, pixels.clone(), taken, zero_point, rows);
                linear.rows(rows, y, o, scratch);
            }
        },
    );
}

/// Rows per block: as many as the cache holds, but enough blocks for every thread.
pub(crate) fn block_rows(row_bytes: usize, columns: usize, rows: usize) -> usize {
    let fitting = BLOCK_BYTES / (row_bytes + 4 * columns).max(1);
    let shared = rows.div_ceil(rayon::current_num_threads());
    fitting.min(shared).clamp(1, rows.max(1))
}
