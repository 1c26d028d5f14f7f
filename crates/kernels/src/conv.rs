//! Convolution as rows of taps times packed weights.
//!
//! ```text
//! output pixel (oh, ow) -> row of K = kh*kw*c taps, in the order (kh, kw, c), that of the weights [o, kh, kw, c]
//! ```
//! Taps outside the image hold the input's zero point, which is real zero. Output pixels are numbered over the whole batch;
//! any range of them can be computed on its own.
//!
//! [`conv`] gathers the rows of blocks of pixels. [`Conv`] spares most of that where products are taken in tiles
//! ([`crate::gemm::tiles`]): some lines of the image are copied with their padding, and with steps of one the windows of
//! neighbouring pixels are rows at a distance of one cell, line after line of the window a run each:
//! ```text
//! lines with padding, w' cells each    row 0: run 0 [. . .]          row 1: run 0   [. . .]
//! . . . . . . . .                             run 1 [. . .]                 run 1   [. . .]
//! . . . . . . . .
//! ```
//! The rows between the last pixel of a line and the first of the next are left out, or, where rows have to lie at even
//! distances ([`Tiles::skips`]), computed, too, and dropped.
//!
//! [`Tiles::skips`]: crate::gemm::tiles::Tiles::skips

use std::ops::Range;

use tpuflow_ir::Window;

use crate::Element;
use crate::buffers::{BLOCK_BYTES, aligned, block_rows, buffer};
use crate::gemm::tiles::RowLayout;
pub use crate::linear::After;
use crate::linear::{self, Linear, by_columns};
use crate::pages::Addresses;
use crate::parallel;
use crate::scratch;

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

/// A prepared convolution.
#[derive(Clone, Debug)]
pub struct Conv {
    geometry: Geometry,
    /// One operand `[kh * kw * c / groups, o / groups]` per group.
    groups: Vec<Linear>,
    zero_point: i32,
    path: Path,
}

/// Where rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// They are gathered from the input, block by block, or are the input.
    Gather,
    /// They are gathered from lines with padding.
    Lines,
    /// They lie in the lines with padding, in so many runs.
    Runs(usize),
}

impl Conv {
    /// Where the packed operands lie.
    pub fn memory(&self) -> impl Iterator<Item = Addresses> + '_ {
        self.groups.iter().map(Linear::memory)
    }

    /// Prepares a convolution of inputs with that zero point. `linear(group, runs)` packs the operand of a group for rows in
    /// so many runs.
    #[must_use]
    pub fn new(geometry: Geometry, groups: usize, zero_point: i32, linear: impl Fn(usize, usize) -> Linear) -> Self {
        let Window { kernel: [kh, kw], stride, dilation, .. } = geometry.window;
        let runs = if groups == 1 && dilation[1] == 1 { kh } else { kh * kw } as usize;
        let all = |runs: usize| (0..groups).map(|group| linear(group, runs)).collect::<Vec<_>>();
        // Runs are filled up; where that makes rows longer by more than a third, gathering them is cheaper.
        let pays = |first: &Linear| {
            first.tiles().is_some_and(|tiles| 3 * tiles.reach() * runs <= 4 * first.k().next_multiple_of(64))
        };
        if !geometry.is_pointwise() && stride == [1, 1] && pays(&linear(0, runs)) {
            return Self { geometry, groups: all(runs), zero_point, path: Path::Runs(runs) };
        }
        let groups = all(1);
        let in_tiles = groups.iter().all(|linear| linear.tiles().is_some());
        let path = if in_tiles && !geometry.is_pointwise() { Path::Lines } else { Path::Gather };
        Self { geometry, groups, zero_point, path }
    }

    /// Convolution of the whole batch; `y`: `[n,oh,ow,o]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn run<X: Element, Y: Element>(&self, x: &[X], y: &mut [Y]) {
        self.run_then(x, y, &|_, _| {});
    }

    /// As [`Self::run`]; `after(first, codes)` takes every part of `y`, the codes from element `first` on, as soon as it is
    /// complete.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn run_then<X: Element, Y: Element>(&self, x: &[X], y: &mut [Y], after: After<'_, Y>) {
        self.over(&self.geometry, x, y, after);
    }

    /// As [`Self::run`] of images of other heights and widths, with other padding.
    ///
    /// # Panics
    /// When the slices do not have these sizes, or the geometry has other channels or other windows beside their padding.
    pub fn run_over<X: Element, Y: Element>(&self, geometry: &Geometry, x: &[X], y: &mut [Y]) {
        let shape = |g: &Geometry| (g.input[3], Window { pads: [0; 4], ..g.window });
        assert!(shape(geometry) == shape(&self.geometry), "the same windows");
        self.over(geometry, x, y, &|_, _| {});
    }

    fn over<X: Element, Y: Element>(&self, geometry: &Geometry, x: &[X], y: &mut [Y], after: After<'_, Y>) {
        match (self.path, X::as_bytes(x)) {
            (Path::Lines | Path::Runs(_), Some(x)) => self.over_lines(geometry, x, y, after),
            _ => conv_then(geometry, x, &self.groups, X::narrow(self.zero_point), y, after),
        }
    }

    fn over_lines<Y: Element>(&self, geometry: &Geometry, x: &[i8], y: &mut [Y], after: After<'_, Y>) {
        let Geometry { input: [_, h, w, c], output: [oh, ow], window } = *geometry;
        let o = self.groups.len() * self.groups[0].n();
        assert!(x.len() == geometry.input.iter().product::<usize>() && y.len() == geometry.pixels() * o, "whole batch");
        let line = (w + (window.pads[1] + window.pads[3]) as usize) * c;
        let gathered = if self.path == Path::Lines { ow * self.groups[0].k() } else { 0 };
        let fitting = BLOCK_BYTES / (line * window.stride[0] as usize + gathered).max(1);
        // Images are parts, too: only fewer of them than threads are divided for their sake.
        let block = match geometry.input[0] {
            1 => parallel::even(oh, fitting),
            images => fitting.min((images * oh).div_ceil(rayon::current_num_threads())).clamp(1, oh),
        };
        let (taken, given) = (h * w * c, oh * ow * o);
        let images = |image: usize| &x[image * taken..][..taken];
        if let [linear] = &self.groups[..]
            && linear.is_mostly_weights(taken + given)
        {
            for (image, y) in y.chunks_mut(given.max(1)).enumerate() {
                by_columns(linear, y, |blocks, y| {
                    scratch::with(|scratch| self.block(geometry, images(image), 0, blocks, y, scratch));
                });
                after(image * given, y);
            }
            return;
        }
        let (blocks, part) = (self.groups[0].blocks(), block * ow * o);
        parallel::pieces(y, given, part, |image, index, y| {
            scratch::with(|scratch| self.block(geometry, images(image), index * block, 0..blocks, y, scratch));
            after(image * given + index * part, y);
        });
    }

    /// Lines of one image's output from `first` on, in every group the columns of `blocks`.
    fn block<Y: Element>(
        &self,
        geometry: &Geometry,
        x: &[i8],
        first: usize,
        blocks: Range<usize>,
        y: &mut [Y],
        scratch: &mut scratch::Scratch,
    ) {
        let Geometry { input: [_, _, w, c], output: [_, ow], window } = *geometry;
        let [[kh, kw], stride, dilation] =
            [window.kernel, window.stride, window.dilation].map(|v| v.map(|v| v as usize));
        let columns = self.groups[0].n();
        let o = self.groups.len() * columns;
        let lines = y.len() / (ow * o);
        let tiles = self.groups[0].tiles().expect("the path says so");
        let (flip, reach) = (tiles.flip(), tiles.reach());
        let cells = w + (window.pads[1] + window.pads[3]) as usize;
        let taken = (lines - 1) * stride[0] + (kh - 1) * dilation[0] + 1;
        let image = aligned(&mut scratch.image, taken * cells * c + reach.max(SLACK));
        self.lines(geometry, x, first, flip, &mut image[..taken * cells * c]);
        let image = &*image;
        let depth = c / self.groups.len();
        // Start of a window's tap within the lines, for group 0.
        let tap = |i: usize, j: usize| (i * dilation[0] * cells + j * dilation[1]) * c;
        if let Path::Runs(runs) = self.path {
            // Rows from one line to the next, and what a line is longer than that.
            let (pitch, line) = if tiles.skips() { (ow, [ow, (cells - ow) * c]) } else { (cells, RowLayout::EVEN) };
            let places = buffer(&mut scratch.places, (lines - 1) * pitch + ow);
            for (row, place) in places.iter_mut().enumerate() {
                *place = (row % pitch < ow).then(|| (row / pitch * ow + row % pitch) * o);
            }
            for (group, linear) in self.groups.iter().enumerate() {
                let starts: Vec<usize> = (0..runs)
                    .map(|run| group * depth + if runs == kh { tap(run, 0) } else { tap(run / kw, run % kw) })
                    .collect();
                let walk = RowLayout { codes: image, stride: c, line, runs: &starts };
                linear.walk(&walk, places.len(), blocks.clone(), |row| places[row], &mut y[group * columns..]);
            }
            return;
        }
        let k = kh * kw * depth;
        let pixels = lines * ow;
        let rows = aligned(&mut scratch.rows, pixels * k + reach.max(SLACK));
        let whole = self.groups.len() == 1 && dilation[1] == 1;
        let (pieces, length) = if whole { (1, kw * c) } else { (kw, depth) };
        for (group, linear) in self.groups.iter().enumerate() {
            let mut to = 0;
            for line in 0..lines {
                for pixel in 0..ow {
                    let from = (line * stride[0] * cells + pixel * stride[1]) * c + group * depth;
                    for i in 0..kh {
                        for j in 0..pieces {
                            copy(&image[from + tap(i, j)..], &mut rows[to..], length);
                            to += length;
                        }
                    }
                }
            }
            let walk = RowLayout { codes: rows, stride: k, line: RowLayout::EVEN, runs: &[0] };
            linear.walk(&walk, pixels, blocks.clone(), |row| Some(row * o), &mut y[group * columns..]);
        }
    }

    /// Input lines that output lines from `first` on read, with their padding, flipped.
    fn lines(&self, geometry: &Geometry, x: &[i8], first: usize, flip: i8, image: &mut [i8]) {
        let Geometry { input: [_, h, w, c], window, .. } = *geometry;
        let [before, after] = [window.pads[1], window.pads[3]].map(|cells| cells as usize * c);
        let zero = self.zero_point as i8 ^ flip;
        let top = (first * window.stride[0] as usize) as isize - window.pads[0] as isize;
        for (line, cells) in (top..).zip(image.chunks_exact_mut((before + w * c + after).max(1))) {
            let Some(line) = usize::try_from(line).ok().filter(|&line| line < h) else {
                cells.fill(zero);
                continue;
            };
            cells[..before].fill(zero);
            cells[before + w * c..].fill(zero);
            let own = &mut cells[before..before + w * c];
            let line = &x[line * w * c..][..w * c];
            if flip == 0 {
                own.copy_from_slice(line);
            } else {
                own.iter_mut().zip(line).for_each(|(cell, code)| *cell = code ^ flip);
            }
        }
    }
}

/// Elements that [`copy`] may read and write beyond the end.
const SLACK: usize = 64;

/// Copies `length` codes, and whatever follows up to the next sixteen: short copies of a known size are far quicker.
#[inline]
fn copy(from: &[i8], to: &mut [i8], length: usize) {
    if length > 256 {
        to[..length].copy_from_slice(&from[..length]);
        return;
    }
    let (from, to) = (&from[..length.next_multiple_of(16)], &mut to[..length.next_multiple_of(16)]);
    for (from, to) in from.as_chunks::<16>().0.iter().zip(to.as_chunks_mut::<16>().0) {
        *to = *from;
    }
}

/// Convolution of the whole batch. `groups`: one prepared operand `[kh * kw * c / groups, o / groups]` per group.
/// `y`: `[n,oh,ow,o]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn conv<X: Element, Y: Element>(geometry: &Geometry, x: &[X], groups: &[Linear], zero_point: X, y: &mut [Y]) {
    conv_then(geometry, x, groups, zero_point, y, &|_, _| {});
}

fn conv_then<X: Element, Y: Element>(
    geometry: &Geometry,
    x: &[X],
    groups: &[Linear],
    zero_point: X,
    y: &mut [Y],
    after: After<'_, Y>,
) {
    let channels = geometry.input[3] / groups.len();
    let k = geometry.taps() * channels;
    let columns = groups[0].n();
    let o = columns * groups.len();
    assert_eq!(y.len(), geometry.pixels() * o, "y holds every output");
    if let [linear] = groups
        && geometry.is_pointwise()
    {
        return linear::multiply_then(linear, x, y, after);
    }
    let block = block_rows(k * size_of::<X>() + columns * groups[0].column_bytes(), geometry.pixels());
    parallel::chunks(y, block * o, |index, y| {
        let mut rows = Vec::new();
        let pixels = index * block..index * block + y.len() / o;
        for (group, linear) in groups.iter().enumerate() {
            let y = &mut y[group * columns..];
            rows.resize(pixels.len() * k, zero_point);
            let taken = group * channels..(group + 1) * channels;
            gather(geometry, x, pixels.clone(), taken, zero_point, &mut rows);
            scratch::with(|scratch| linear.rows(&rows, y, o, &mut scratch.linear));
        }
        after(index * block * o, y);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Epilogue;
    use crate::linear::Matrix;
    use crate::table::Lookup;
    use crate::{Isa, Values};
    use proptest::prelude::*;
    use tpuflow_ir::Requant;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Every variant of a prepared convolution gives what gathering rows and the scalar product give.
        #[test]
        fn every_path_is_the_convolution(
            (groups, depth, columns) in prop_oneof![
                (Just(1usize), 1usize..=5, prop_oneof![1usize..=20, 31usize..=34, 63usize..=66]),
                (Just(1usize), prop_oneof![15usize..=17, 63usize..=65], 1usize..=3),
                (2usize..=3, 1usize..=5, 1usize..=18),
            ],
            size in [1usize..=7, 1usize..=9], kernel in [1u32..=3, 1u32..=3], stride in [1u32..=2, 1u32..=2],
            dilation in [1u32..=2, 1u32..=2], pads in [0u32..=2, 0u32..=2, 0u32..=2, 0u32..=2],
            zeros in (-128i32..=127, prop_oneof![Just(0), -128i32..=127]),
            table in any::<bool>(), seed in any::<u32>(),
        ) {
            let window = Window { kernel, stride, dilation, pads };
            let (c, o) = (groups * depth, groups * columns);
            let Some(geometry) = Geometry::new([2, size[0], size[1], c], window) else { return Ok(()) };
            let k = geometry.taps() * depth;
            let code = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as i8;
            let x: Vec<i8> = (0..2 * size[0] * size[1] * c).map(code).collect();
            let codes = Values::I8((0..o * k).map(|i| code(i + 7919)).collect());
            let bias: Vec<i64> = (0..o as i64).map(|j| j * 1000 - 3000).collect();
            let requant = Requant {
                multiplier: (0..o as i32).map(|j| if j % 5 == 0 { 1 } else { 77 + 31 * j }).collect(),
                shift: (0..o).map(|j| if j % 5 == 0 { 8 } else { 14 }).collect(),
                zero_point: 3, lo: -100, hi: 127,
            };
            let entries: Vec<i32> = (0..=1024).map(|i| (i * i) % 301 - 150).collect();
            let mut expected: Option<Vec<i8>> = None;
            for isa in Isa::variants() {
                let table = table.then(|| Lookup::new(entries.clone(), 16, -120, 101).expect("a table"));
                let requant = if table.is_some() { Requant { lo: -32768, hi: 32767, ..requant.clone() } } else { requant.clone() };
                let epilogue = Epilogue::with(isa, requant, table);
                let linear = |group: usize, runs: usize| {
                    let taken = group * columns..(group + 1) * columns;
                    let matrix = Matrix {
                        codes: &codes, start: taken.start * k, shape: [k, columns], strides: [1, k], zero_point: zeros.1,
                    };
                    Linear::in_runs(&matrix, runs, false, zeros.0, &bias[taken.clone()], epilogue.columns(taken))
                };
                let mut y = vec![0i8; geometry.pixels() * o];
                let conv = Conv::new(geometry, groups, zeros.0, linear);
                conv.run(&x, &mut y);
                let expected = expected.get_or_insert_with(|| y.clone());
                prop_assert_eq!(&y, &*expected, "{}", isa.name());
                // Every code is handed on once, with its place.
                let number = |at: usize, code: i8| code.wrapping_add(at as i8);
                conv.run_then(&x, &mut y, &|first, part| {
                    part.iter_mut().enumerate().for_each(|(i, y)| *y = number(first + i, *y));
                });
                let numbered: Vec<i8> = expected.iter().enumerate().map(|(at, &code)| number(at, code)).collect();
                prop_assert_eq!(&y, &numbered, "{}", isa.name());
                // Another image, with other padding.
                let pads = [pads[1], pads[0], pads[3], pads[2]];
                let Some(other) = Geometry::new([1, size[1], size[0], c], Window { pads, ..window }) else { continue };
                let (x, mut y) = (&x[..size[0] * size[1] * c], vec![0i8; other.pixels() * o]);
                conv.run_over(&other, x, &mut y);
                let mut own = vec![0i8; y.len()];
                Conv::new(other, groups, zeros.0, linear).run(x, &mut own);
                prop_assert_eq!(&y, &own, "{}", isa.name());
            }
        }
    }
}
