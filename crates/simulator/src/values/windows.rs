//! Rows of taps, gathered from the windows of an operand.
//!
//! Instructions that follow each other often take the same windows, for one tile of columns after the other. Their rows are
//! gathered once, as long as nobody writes to the operand.

use std::ops::Range;

use smallvec::SmallVec;
use tpuflow_ir::isa::{Matrix, MatrixDescriptor};
use tpuflow_ir::{Space, View, Window};

use super::tensor::{Code, Load};
use super::{Fault, Memories, is_plain};

/// What rows depend on beside the bytes of the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gathered {
    input: View,
    window: Window,
    /// Of the result.
    size: [u32; 2],
    pixels: Range<u32>,
    channels: Range<u32>,
    zero: i32,
    bits: u32,
}

/// An image row under the window.
struct Line<'a> {
    /// Byte address of its first pixel.
    start: u64,
    /// Pixels from the first on that are wanted, if all of them were written.
    pixels: Option<(usize, &'a [u8])>,
}

impl Memories {
    /// Row vectors `[pixels, taps, channels]`; taps outside the image hold `zero`. They are to be put back, and nothing
    /// may fail before that: they count as gathered from now on.
    pub(super) fn gather<X: Code>(
        &mut self,
        m: &Matrix,
        d: &MatrixDescriptor,
        channels: &Range<u32>,
        zero: X,
    ) -> Result<Vec<X>, Fault> {
        let gathered = Gathered {
            input: m.input,
            window: d.window,
            size: [m.output.height, m.output.width],
            pixels: m.first_pixel..m.first_pixel + m.pixels,
            channels: channels.clone(),
            zero: zero.widen(),
            bits: X::BITS,
        };
        let operand = m.input.address..m.input.address + m.input.bytes(self.word);
        let mut rows = std::mem::take(X::gathered(&mut self.buffers));
        if self.gathered.as_ref() == Some(&gathered) && self.cache.is_untouched(&operand) {
            return Ok(rows);
        }
        self.gathered = None;
        rows.clear();
        self.taps(m, d, channels, zero, &mut rows)?;
        self.gathered = Some(gathered);
        self.cache.watch(operand);
        Ok(rows)
    }

    /// Appends row vectors `[pixels, taps, channels]`; taps outside the image hold `zero`.
    pub(super) fn taps<X: Load>(
        &self,
        m: &Matrix,
        d: &MatrixDescriptor,
        channels: &Range<u32>,
        zero: X,
        rows: &mut Vec<X>,
    ) -> Result<(), Fault> {
        let (input, window) = (&m.input, &d.window);
        let size = input.dtype.bytes();
        let (offset, length) = (u64::from(channels.start) * size as u64, channels.len() * size);
        let pixel_bytes = u64::from(input.pixel_bytes);
        rows.reserve(m.pixels as usize * (window.kernel[0] * window.kernel[1]) as usize * channels.len());
        let whole = length == input.pixel_bytes as usize;
        let plain = is_plain(window);
        // Pixels of the result that lie in one row, and whose operands do.
        let width = if plain { input.width } else { m.output.width };
        let (mut pixel, end) = (m.first_pixel, m.first_pixel + m.pixels);
        while pixel < end {
            let (row, column) = (pixel / width, pixel % width);
            let side_by_side = if plain { self.side_by_side(input, length, pixel, end - pixel) } else { None };
            if let Some(at) = side_by_side {
                return self.codes(input.dtype, at + offset, length * (end - pixel) as usize, rows);
            }
            let count = (width - column).min(end - pixel);
            pixel += count;
            if plain {
                let at = input.pixel_address(row, column, self.word) + offset;
                if whole {
                    self.codes(input.dtype, at, length * count as usize, rows)?;
                } else {
                    let pieces = [length, input.pixel_bytes as usize, count as usize];
                    self.pixels(Space::Cache, input.dtype, at, pieces, rows)?;
                }
                continue;
            }
            let (image, line) = (row / m.output.height, row % m.output.height);
            let left = |column: u32| i64::from(column * window.stride[1]) - i64::from(window.pads[1]);
            let last = left(column + count - 1) + i64::from((window.kernel[1] - 1) * window.dilation[1]);
            let inside = 0..i64::from(input.width);
            // Columns from the first window's to the last one's.
            let (first, beyond) = (left(column).max(0), (last + 1).min(inside.end));
            let lines: SmallVec<[Option<Line<'_>>; 8]> = (0..window.kernel[0])
                .map(|kh| {
                    let y = i64::from(line * window.stride[0] + kh * window.dilation[0]) - i64::from(window.pads[0]);
                    let here = (0..i64::from(input.height)).contains(&y);
                    here.then(|| {
                        let start = input.pixel_address(image * input.height + y as u32, 0, self.word) + offset;
                        let bytes = |count: i64| (count - 1) as usize * pixel_bytes as usize + length;
                        let pixels = (first < beyond).then(|| {
                            let at = start + first as u64 * pixel_bytes;
                            let bytes = self.read(Space::Cache, at, bytes(beyond - first)).ok()?;
                            Some((first as usize, bytes))
                        });
                        Line { start, pixels: pixels.flatten() }
                    })
                })
                .collect();
            for column in column..column + count {
                let left = left(column);
                for line in &lines {
                    let Some(line) = line else {
                        rows.resize(rows.len() + window.kernel[1] as usize * channels.len(), zero);
                        continue;
                    };
                    let mut kw = 0;
                    while kw < window.kernel[1] {
                        let x = left + i64::from(kw * window.dilation[1]);
                        if !inside.contains(&x) {
                            rows.resize(rows.len() + channels.len(), zero);
                            kw += 1;
                            continue;
                        }
                        // Pixels all of whose channels are wanted lie side by side.
                        let side_by_side = whole && window.dilation[1] == 1;
                        let count = if side_by_side { (window.kernel[1] - kw).min(input.width - x as u32) } else { 1 };
                        let length = length * count as usize;
                        match line.pixels {
                            Some((first, bytes)) => {
                                let from = (x as usize - first) * pixel_bytes as usize;
                                X::append(input.dtype, &bytes[from..from + length], rows);
                            }
                            None => self.codes(input.dtype, line.start + x as u64 * pixel_bytes, length, rows)?,
                        }
                        kw += count;
                    }
                }
            }
        }
        Ok(())
    }
}
