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

/// The parameters that rows depend on beside the bytes of the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GatherKey {
    input: View,
    window: Window,
    /// Of the result.
    size: [u32; 2],
    pixels: Range<u32>,
    channels: Range<u32>,
    zero: i32,
    bits: u32,
}

/// The part of an operand that windows take: some channels of every pixel under them.
struct WindowChannels<'a> {
    input: &'a View,
    window: &'a Window,
    result: &'a View,
    /// Bytes from the first channel of a pixel to the first that is wanted.
    offset: u64,
    /// Bytes wanted of a pixel.
    length: usize,
    channels: usize,
}

impl WindowChannels<'_> {
    /// Whether all of a pixel is wanted.
    fn is_whole_pixel(&self) -> bool {
        self.length == self.input.pixel_bytes as usize
    }

    /// First column under the windows of a column of the result; negative in the padding.
    fn first_column(&self, column: u32) -> i64 {
        i64::from(column * self.window.stride[1]) - i64::from(self.window.pads[1])
    }
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
        let gathered = GatherKey {
            input: m.input,
            window: d.window,
            size: [m.output.height, m.output.width],
            pixels: m.first_pixel..m.first_pixel + m.pixels,
            channels: channels.clone(),
            zero: zero.widen(),
            bits: X::BITS,
        };
        let operand = m.input.address..m.input.address + m.input.bytes(self.word);
        let mut rows = std::mem::take(X::gathered_rows(&mut self.buffers));
        if self.gathered.as_ref() == Some(&gathered) && self.cache.is_unchanged(&operand) {
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
        let input = &m.input;
        let size = input.dtype.bytes();
        let wanted = WindowChannels {
            input,
            window: &d.window,
            result: &m.output,
            offset: u64::from(channels.start) * size as u64,
            length: channels.len() * size,
            channels: channels.len(),
        };
        rows.reserve(m.pixels as usize * (d.window.kernel[0] * d.window.kernel[1]) as usize * channels.len());
        let plain = is_plain(&d.window);
        // Pixels of the result that lie in one row, and whose operands do.
        let width = if plain { input.width } else { m.output.width };
        let (mut pixel, end) = (m.first_pixel, m.first_pixel + m.pixels);
        while pixel < end {
            let (row, column) = (pixel / width, pixel % width);
            let side_by_side =
                if plain { self.contiguous_address(input, wanted.length, pixel, end - pixel) } else { None };
            if let Some(at) = side_by_side {
                return self.codes(input.dtype, at + wanted.offset, wanted.length * (end - pixel) as usize, rows);
            }
            let count = (width - column).min(end - pixel);
            pixel += count;
            if plain {
                self.pixels_of_row(&wanted, row, column..column + count, rows)?;
            } else {
                self.windows_of_row(&wanted, row, column..column + count, zero, rows)?;
            }
        }
        Ok(())
    }

    /// Appends pixels of one row of the operand, where every window is a pixel.
    fn pixels_of_row<X: Load>(
        &self,
        wanted: &WindowChannels<'_>,
        row: u32,
        columns: Range<u32>,
        rows: &mut Vec<X>,
    ) -> Result<(), Fault> {
        let (input, length, count) = (wanted.input, wanted.length, columns.len());
        let at = input.pixel_address(row, columns.start, self.word) + wanted.offset;
        if wanted.is_whole_pixel() {
            return self.codes(input.dtype, at, length * count, rows);
        }
        self.pixels(Space::Cache, input.dtype, at, [length, input.pixel_bytes as usize, count], rows)
    }

    /// Appends the windows of some pixels in one row of the result.
    fn windows_of_row<X: Load>(
        &self,
        wanted: &WindowChannels<'_>,
        row: u32,
        columns: Range<u32>,
        zero: X,
        rows: &mut Vec<X>,
    ) -> Result<(), Fault> {
        let window = wanted.window;
        let last = wanted.first_column(columns.end - 1) + i64::from((window.kernel[1] - 1) * window.dilation[1]);
        // Columns from the first window's to the last one's.
        let span = wanted.first_column(columns.start).max(0)..(last + 1).min(i64::from(wanted.input.width));
        let lines: SmallVec<[Option<Line<'_>>; 8]> =
            (0..window.kernel[0]).map(|kh| self.line_at(wanted, row, kh, &span)).collect();
        for column in columns {
            for line in &lines {
                match line {
                    Some(line) => self.taps_of_line(wanted, line, wanted.first_column(column), zero, rows)?,
                    None => rows.resize(rows.len() + window.kernel[1] as usize * wanted.channels, zero),
                }
            }
        }
        Ok(())
    }

    /// The image row under row `kh` of the windows over a row of the result, with its pixels in `span`; `None` outside the image.
    fn line_at(&self, wanted: &WindowChannels<'_>, row: u32, kh: u32, span: &Range<i64>) -> Option<Line<'_>> {
        let WindowChannels { input, window, result, .. } = wanted;
        let (image, line) = (row / result.height, row % result.height);
        let y = i64::from(line * window.stride[0] + kh * window.dilation[0]) - i64::from(window.pads[0]);
        if !(0..i64::from(input.height)).contains(&y) {
            return None;
        }
        let start = input.pixel_address(image * input.height + y as u32, 0, self.word) + wanted.offset;
        let pixels = (span.start < span.end).then(|| {
            let at = start + span.start as u64 * u64::from(input.pixel_bytes);
            let bytes = (span.end - span.start - 1) as usize * input.pixel_bytes as usize + wanted.length;
            Some((span.start as usize, self.read(Space::Cache, at, bytes).ok()?))
        });
        Some(Line { start, pixels: pixels.flatten() })
    }

    /// Appends one row of a window whose first column is `left`.
    fn taps_of_line<X: Load>(
        &self,
        wanted: &WindowChannels<'_>,
        line: &Line<'_>,
        left: i64,
        zero: X,
        rows: &mut Vec<X>,
    ) -> Result<(), Fault> {
        let WindowChannels { input, window, channels, .. } = wanted;
        let pixel_bytes = input.pixel_bytes as usize;
        // Pixels all of whose channels are wanted lie side by side.
        let side_by_side = wanted.is_whole_pixel() && window.dilation[1] == 1;
        let mut kw = 0;
        while kw < window.kernel[1] {
            let x = left + i64::from(kw * window.dilation[1]);
            if !(0..i64::from(input.width)).contains(&x) {
                rows.resize(rows.len() + channels, zero);
                kw += 1;
                continue;
            }
            let count = if side_by_side { (window.kernel[1] - kw).min(input.width - x as u32) } else { 1 };
            let length = wanted.length * count as usize;
            match line.pixels {
                Some((first, bytes)) => {
                    let from = (x as usize - first) * pixel_bytes;
                    X::append(input.dtype, &bytes[from..from + length], rows);
                }
                None => self.codes(input.dtype, line.start + x as u64 * pixel_bytes as u64, length, rows)?,
            }
            kw += count;
        }
        Ok(())
    }
}
