//! Maximum and average pooling over windows of `[n,h,w,c]`.
//!
//! Source: docs/arithmetic.md, "Pooling".

use std::ops::Range;

use tpuflow_ir::{Divisor, Requant};

use crate::conv::Geometry;
use crate::isa::Work;
use crate::parallel;
use crate::requant::{finish, scale};
use crate::{Element, Isa};

/// In-image cells of the window at `pixel`: start positions of their channels in the input, row by row.
pub(crate) fn cells(geometry: &Geometry, pixel: usize) -> impl Iterator<Item = usize> + '_ {
    taps(geometry, pixel).map(|(_, start)| start)
}

/// As [`cells`], with the number of the window's tap.
pub(crate) fn taps(geometry: &Geometry, pixel: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let [_, h, w, c] = geometry.input;
    let (image, [top, left]) = geometry.origin(pixel);
    let [kh, kw] = geometry.window.kernel.map(|k| k as isize);
    let [dh, dw] = geometry.window.dilation.map(|d| d as isize);
    (0..kh).map(move |i| (i, top + i * dh)).filter(move |(_, ih)| (0..h as isize).contains(ih)).flat_map(
        move |(i, ih)| {
            (0..kw)
                .map(move |j| (j, left + j * dw))
                .filter(move |(_, iw)| (0..w as isize).contains(iw))
                .map(move |(j, iw)| ((i * kw + j) as usize, ((image * h + ih as usize) * w + iw as usize) * c))
        },
    )
}

/// Cells of the window at `pixel` that count towards an average.
#[must_use]
pub fn area(geometry: &Geometry, count_include_pad: bool, beyond: [u32; 2], pixel: usize) -> u32 {
    if !count_include_pad {
        return cells(geometry, pixel).count() as u32;
    }
    let (_, origin) = geometry.origin(pixel);
    let window = geometry.window;
    let along = |axis: usize| {
        let first = -(window.pads[axis] as isize);
        let end = (geometry.input[axis + 1] as u32 + window.pads[axis + 2] - beyond[axis]) as isize;
        let position = |i: u32| origin[axis] + (i * window.dilation[axis]) as isize;
        (0..window.kernel[axis]).filter(|&i| (first..end).contains(&position(i))).count() as u32
    };
    along(0) * along(1)
}

/// Largest code of every window; a window without any cell of the image gives the type's smallest code.
/// `y`: `[n,oh,ow,c]`.
///
/// # Panics
/// When the slices do not have these sizes.
pub fn max_pool<X: Element>(geometry: &Geometry, x: &[X], y: &mut [X]) {
    let c = geometry.input[3];
    assert_eq!(y.len(), geometry.pixels() * c, "y holds every output");
    let row = (geometry.output[1] * c).max(1);
    let lanes = Isa::selected().lanes();
    parallel::chunks(y, row, |index, y| {
        let mut starts = Vec::with_capacity(geometry.taps());
        for (column, y) in y.chunks_exact_mut(c).enumerate() {
            starts.clear();
            starts.extend(cells(geometry, index * geometry.output[1] + column));
            lanes.run(ChannelMaxima { x, starts: &starts, y });
        }
    });
}

/// Largest codes of some cells, of all channels.
struct ChannelMaxima<'a, X> {
    x: &'a [X],
    starts: &'a [usize],
    y: &'a mut [X],
}

impl<X: Element> Work for ChannelMaxima<'_, X> {
    type Result = ();

    #[inline(always)]
    fn done(self) {
        // Channels that fill a vector stay in a register for all cells.
        let (blocks, rest) = self.y.as_chunks_mut::<VECTOR>();
        let left = blocks.len() * VECTOR;
        for (block, y) in blocks.iter_mut().enumerate() {
            let mut most = [X::MIN; VECTOR];
            for start in self.starts {
                let x = self.x[start + block * VECTOR..].first_chunk::<VECTOR>().expect("cells have all channels");
                for (most, x) in most.iter_mut().zip(x) {
                    *most = (*most).max(*x);
                }
            }
            *y = most;
        }
        rest.fill(X::MIN);
        for start in self.starts {
            for (y, x) in rest.iter_mut().zip(&self.x[start + left..]) {
                *y = (*y).max(*x);
            }
        }
    }
}

/// Codes of a vector.
const VECTOR: usize = 64;

/// An average: what counts, by which multiplier it is divided, and the codes it becomes.
#[derive(Clone, Copy, Debug)]
pub struct Average<'a> {
    /// Cells of the padding count.
    pub count_include_pad: bool,
    /// Cells of the bottom and right padding that ceil mode added; they never count.
    pub beyond: [u32; 2],
    /// Multiplier and shift per number of cells.
    pub divisors: &'a [Divisor],
    /// Zero point of the input.
    pub input_zero_point: i32,
    /// Zero point of the output.
    pub zero_point: i32,
    /// Lower clamp.
    pub lo: i32,
    /// Upper clamp.
    pub hi: i32,
}

impl Average<'_> {
    /// The divisor of `area` cells; a window without any has none and gives real zero.
    fn divisor(&self, area: u32) -> (i32, i8) {
        let found = self.divisors.iter().find(|d| d.area == area);
        assert!(area == 0 || found.is_some(), "no divisor for {area} cells");
        found.map_or((0, 0), |d| (d.multiplier, d.shift))
    }
}

/// The first output pixel whose area has no divisor, with that area.
#[must_use]
pub fn missing_divisor(geometry: &Geometry, average: &Average<'_>) -> Option<(usize, u32)> {
    (0..geometry.output[0] * geometry.output[1])
        .map(|pixel| (pixel, area(geometry, average.count_include_pad, average.beyond, pixel)))
        .find(|(_, area)| *area != 0 && !average.divisors.iter().any(|d| d.area == *area))
}

/// Sums of up to [`VECTOR`] channels of some cells.
struct Sum<'a, X> {
    x: &'a [X],
    starts: &'a [usize],
    channels: Range<usize>,
}

impl<X: Element> Work for Sum<'_, X> {
    type Result = [i64; VECTOR];

    #[inline(always)]
    fn done(self) -> [i64; VECTOR] {
        /// Cells whose sum fits 32 bits, whatever their codes.
        const EXACT: usize = 1 << 15;
        let (first, count) = (self.channels.start, self.channels.len());
        let mut sums = [0; VECTOR];
        for starts in self.starts.chunks(EXACT) {
            let mut some = [0i32; VECTOR];
            // Channels that fill vectors stay in registers for all cells.
            if count == VECTOR {
                for start in starts {
                    let x = self.x[start + first..].first_chunk::<VECTOR>().expect("cells have all channels");
                    for (sum, x) in some.iter_mut().zip(x) {
                        *sum += x.widen();
                    }
                }
            } else {
                for start in starts {
                    for (sum, x) in some.iter_mut().zip(&self.x[start + first..][..count]) {
                        *sum += x.widen();
                    }
                }
            }
            for (sum, some) in sums.iter_mut().zip(some) {
                *sum += i64::from(some);
            }
        }
        sums
    }
}

/// `clamp(RNE(sum(x - Zx) * M * 2^-N) + Zy, lo, hi)` per window. `y`: `[n,oh,ow,c]`.
///
/// # Panics
/// When the slices do not have these sizes, or an area has no divisor.
pub fn average_pool<X: Element, Y: Element>(geometry: &Geometry, average: &Average<'_>, x: &[X], y: &mut [Y]) {
    let c = geometry.input[3];
    assert_eq!(y.len(), geometry.pixels() * c, "y holds every output");
    let out =
        Requant { multiplier: vec![], shift: vec![], zero_point: average.zero_point, lo: average.lo, hi: average.hi };
    let row = (geometry.output[1] * c).max(1);
    // Of a single pixel threads share the channels.
    let part = if geometry.output == [1, 1] { parallel::even(c.div_ceil(VECTOR), usize::MAX) * VECTOR } else { c };
    let lanes = Isa::selected().lanes();
    parallel::chunks(y, row, |index, y| {
        let mut starts = Vec::with_capacity(geometry.taps());
        for (column, y) in y.chunks_exact_mut(c).enumerate() {
            let pixel = index * geometry.output[1] + column;
            starts.clear();
            starts.extend(cells(geometry, pixel));
            let counted = if average.count_include_pad {
                area(geometry, true, average.beyond, pixel)
            } else {
                starts.len() as u32
            };
            let (multiplier, shift) = average.divisor(counted);
            let zero = starts.len() as i64 * i64::from(average.input_zero_point);
            parallel::chunks(y, part, |index, y| {
                for (block, y) in y.chunks_mut(VECTOR).enumerate() {
                    let first = index * part + block * VECTOR;
                    let sums = lanes.run(Sum { x, starts: &starts, channels: first..first + y.len() });
                    for (y, sum) in y.iter_mut().zip(sums) {
                        *y = Y::narrow(finish(scale(sum - zero, multiplier, shift), &out));
                    }
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tpuflow_ir::Window;

    /// Cells of a window that count, one by one.
    fn counted(geometry: &Geometry, average: &Average<'_>, pixel: usize) -> u32 {
        let [height, width] = geometry.output;
        let (line, column) = (pixel / width % height, pixel % width);
        let Window { kernel, stride, dilation, pads } = geometry.window;
        let end =
            |axis: usize| geometry.input[axis + 1] as i64 + i64::from(pads[axis + 2]) - i64::from(average.beyond[axis]);
        let counts = |axis: usize, at: usize, tap: u32| {
            let position =
                at as i64 * i64::from(stride[axis]) + i64::from(tap * dilation[axis]) - i64::from(pads[axis]);
            let is_inside = (0..geometry.input[axis + 1] as i64).contains(&position);
            is_inside || (average.count_include_pad && position < end(axis))
        };
        let cells = (0..kernel[0]).flat_map(|i| (0..kernel[1]).map(move |j| (i, j)));
        cells.filter(|&(i, j)| counts(0, line, i) && counts(1, column, j)).count() as u32
    }

    /// 2 x 2 / 2 over 3 x 3 cells, padded by one at the bottom and the right. What ceil mode padded never counts; the model's own
    /// padding does, if it is to.
    #[test]
    fn areas_at_the_edge() {
        let window = Window { kernel: [2, 2], stride: [2, 2], dilation: [1, 1], pads: [0, 0, 1, 1] };
        let geometry = Geometry::new([1, 3, 3, 1], window).expect("fits");
        let areas = |include, beyond| [0, 1, 2, 3].map(|pixel| area(&geometry, include, beyond, pixel));
        assert_eq!(areas(true, [0, 0]), [4, 4, 4, 4]);
        assert_eq!(areas(true, [1, 0]), [4, 4, 2, 2]);
        assert_eq!(areas(true, [0, 1]), [4, 2, 4, 2]);
        assert_eq!(areas(true, [1, 1]), [4, 2, 2, 1]);
        assert_eq!(areas(false, [0, 0]), [4, 2, 2, 1]);
    }

    proptest! {
        /// Windows as their definitions read, cell by cell.
        #[test]
        fn windows_are_what_they_say(
            c in prop_oneof![1usize..=3, 62usize..=66, 127usize..=130], size in [1usize..=6, 1usize..=6],
            kernel in [1u32..=6, 1u32..=6], stride in [1u32..=3, 1u32..=3], pads in [0u32..=1, 0u32..=1, 0u32..=1, 0u32..=1],
            count_include_pad in any::<bool>(), beyond in [0u32..=1, 0u32..=1], seed in any::<u32>(),
        ) {
            // Only padding can lie beyond the edge.
            let beyond = [beyond[0].min(pads[2]), beyond[1].min(pads[3])];
            let window = Window { kernel, stride, dilation: [1, 1], pads };
            let Some(geometry) = Geometry::new([2, size[0], size[1], c], window) else { return Ok(()) };
            let code = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as i8;
            let x: Vec<i8> = (0..2 * size[0] * size[1] * c).map(code).collect();
            let divisors: Vec<Divisor> =
                (1..=36).map(|area| Divisor { area, multiplier: 16384 + area as i32, shift: 18 }).collect();
            let (zero, zero_point, lo, hi) = (-7, 5, -120, 100);
            let average = Average {
                count_include_pad, beyond, divisors: &divisors, input_zero_point: zero, zero_point, lo, hi,
            };
            let (mut most, mut mean) = (vec![0i8; geometry.pixels() * c], vec![0i8; geometry.pixels() * c]);
            max_pool(&geometry, &x, &mut most);
            average_pool(&geometry, &average, &x, &mut mean);
            for pixel in 0..geometry.pixels() {
                let starts: Vec<usize> = cells(&geometry, pixel).collect();
                let (multiplier, shift) = average.divisor(counted(&geometry, &average, pixel));
                for channel in 0..c {
                    let codes = starts.iter().map(|start| x[start + channel]);
                    prop_assert_eq!(most[pixel * c + channel], codes.clone().max().unwrap_or(i8::MIN));
                    let sum: i64 = codes.map(|code| i64::from(code) - i64::from(zero)).sum();
                    let expected = crate::requant::reference::requantize(sum, multiplier, shift, zero_point, lo, hi);
                    prop_assert_eq!(i32::from(mean[pixel * c + channel]), expected);
                }
            }
        }
    }
}
