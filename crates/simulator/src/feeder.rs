//! Which cache words the matrix engine's ports need: the row feeder per output pixel, the weight port per row of a tile, the
//! output pipe per result.
//!
//! The feeder keeps the words of the last output pixel, so within an output row only words that pixel did not need are fetched.

use smallvec::SmallVec;
use tpuflow_ir::isa::{Matrix, MatrixDescriptor};
use tpuflow_ir::timing::{self, Block};
use tpuflow_ir::{Machine, View};

use crate::values::is_plain;

/// A short list of cache words.
pub(crate) type Words = SmallVec<[u64; 8]>;

/// The weight port's reads for a tile.
pub(crate) struct TileLoad {
    /// Least and greatest word it may read, and how many it reads.
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) words: u64,
    /// Cycles without a read, before them.
    pub(crate) idle: u64,
}

/// A matrix instruction as the ports see it.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    matrix: Matrix,
    descriptor: MatrixDescriptor,
    pub(crate) blocks: Vec<Block>,
    /// Tiles of a K block: the passes of integers.
    passes: u64,
    /// Cycles of a slot: the passes of floats.
    phases: u64,
    input_bytes: u64,
    plain: bool,
    word: usize,
    columns: u32,
    /// Bytes of a row of the input.
    row_bytes: u64,
}

impl Geometry {
    pub(crate) fn new(matrix: &Matrix, descriptor: &MatrixDescriptor, machine: &Machine) -> Self {
        Self {
            matrix: *matrix,
            descriptor: descriptor.clone(),
            blocks: timing::blocks(descriptor, &matrix.input, matrix.first_column, matrix.columns, machine),
            passes: timing::tiles_per_block(matrix.input.dtype, descriptor.weight_dtype),
            phases: timing::phases(matrix.input.dtype, descriptor.weight_dtype),
            input_bytes: matrix.input.dtype.bytes() as u64,
            plain: is_plain(&descriptor.window),
            word: machine.word(),
            columns: matrix.columns,
            row_bytes: matrix.input.row_bytes(machine.word()),
        }
    }

    /// Tiles streamed: K blocks x passes.
    pub(crate) fn tiles(&self) -> usize {
        self.blocks.len() * self.passes as usize
    }

    /// Cycles from a pixel to the next.
    pub(crate) fn phases(&self) -> u64 {
        self.phases
    }

    /// Output pixels, the rows of every tile.
    pub(crate) fn pixels(&self) -> u32 {
        self.matrix.pixels
    }

    /// Accumulator entries of 32 bits it takes.
    pub(crate) fn entries(&self) -> u64 {
        let wide = timing::has_wide_sums(self.matrix.input.dtype, self.descriptor.weight_dtype);
        u64::from(self.matrix.pixels) * if wide { 2 } else { 1 }
    }

    /// Weight rows of tile `tile`; each is that of as many array rows as an element of the data has bytes.
    pub(crate) fn rows(&self, tile: usize) -> u32 {
        let block = &self.blocks[tile / self.passes as usize];
        block.taps * block.channels
    }

    /// Whether pixel `pixel` begins an output row, where the feeder starts afresh.
    pub(crate) fn begins_row(&self, pixel: u32) -> bool {
        (self.matrix.first_pixel + pixel).is_multiple_of(self.matrix.output.width)
    }

    /// Words the row vector of pixel `pixel` (from the instruction's first) is made of, for a tile.
    pub(crate) fn pixel_words(&self, tile: usize, pixel: u32, words: &mut Words) {
        words.clear();
        let block = &self.blocks[tile / self.passes as usize];
        let (input, window) = (&self.matrix.input, &self.descriptor.window);
        let pixel = self.matrix.first_pixel + pixel;
        if self.plain {
            words.push(self.word_of(input, block, pixel / input.width, pixel % input.width));
            return;
        }
        let output = &self.matrix.output;
        let (row, column) = (pixel / output.width, pixel % output.width);
        let (image, line) = (row / output.height, row % output.height);
        let edge = |position: u32, axis: usize| {
            i64::from(position) * i64::from(window.stride[axis]) - i64::from(window.pads[axis])
        };
        let (top, left) = (edge(line, 0), edge(column, 1));
        let (mut kh, mut kw) = (block.first_tap / window.kernel[1], block.first_tap % window.kernel[1]);
        for _ in 0..block.taps {
            let y = top + i64::from(kh * window.dilation[0]);
            let x = left + i64::from(kw * window.dilation[1]);
            if (0..i64::from(input.height)).contains(&y) && (0..i64::from(input.width)).contains(&x) {
                let word = self.word_of(input, block, image * input.height + y as u32, x as u32);
                if !words.contains(&word) {
                    words.push(word);
                }
            }
            kw += 1;
            if kw == window.kernel[1] {
                (kh, kw) = (kh + 1, 0);
            }
        }
    }

    /// Whether every pixel inside the image takes a word of its own for a tile: pixels of whole words.
    pub(crate) fn is_single(&self, tile: usize) -> bool {
        let block = &self.blocks[tile / self.passes as usize];
        let step = u64::from(self.descriptor.window.stride[1]) * u64::from(self.matrix.input.pixel_bytes);
        block.taps == 1 && u64::from(self.matrix.input.pixel_bytes) >= self.word as u64 && step > 0
    }

    /// From pixel `pixel` on, how many are alike: outside the image, or each with a word so many words after the last one's.
    pub(crate) fn single_words(&self, tile: usize, pixel: u32) -> (u32, Option<(u64, u64)>) {
        let block = &self.blocks[tile / self.passes as usize];
        let (input, output, window) = (&self.matrix.input, &self.matrix.output, &self.descriptor.window);
        let (at, left) = (self.matrix.first_pixel + pixel, self.matrix.pixels - pixel);
        let step = u64::from(input.pixel_bytes) / self.word as u64;
        if self.plain {
            let (row, column) = (at / input.width, at % input.width);
            let slot = row.wrapping_sub(input.first_row) % input.stored_rows.max(1);
            let here = (input.stored_rows - slot) * input.width - column;
            return (here.min(left), Some((self.word_of(input, block, row, column), step)));
        }
        let (line, column) = (at / output.width, at % output.width);
        let rest = left.min(output.width - column);
        let (kh, kw) = (block.first_tap / window.kernel[1], block.first_tap % window.kernel[1]);
        let Some(row) = self.line_under(line, kh) else { return (rest, None) };
        let x = self.first_input_column(column) + i64::from(kw * window.dilation[1]);
        let stride = i64::from(window.stride[1]);
        let until = |x: i64, end: i64| ((end - x + stride - 1) / stride) as u32;
        if x < 0 {
            (rest.min(until(x, 0)), None)
        } else if x >= i64::from(input.width) {
            (rest, None)
        } else {
            let word = self.word_of(input, block, row, x as u32);
            (rest.min(until(x, input.width.into())), Some((word, step * u64::from(window.stride[1]))))
        }
    }

    /// Whether the words of a pixel are one stretch per row of the window that only moves to the right.
    pub(crate) fn has_rows(&self) -> bool {
        let (input, window) = (&self.matrix.input, &self.descriptor.window);
        let output = &self.matrix.output;
        let alike = !self.plain || (input.width, input.height) == (output.width, output.height);
        alike && window.dilation[1] == 1 && u64::from(input.pixel_bytes) < self.word as u64
    }

    /// The rows of the window a tile has taps in: row, first and last column.
    pub(crate) fn tap_rows(&self, tile: usize) -> impl Iterator<Item = (u32, u32, u32)> + use<> {
        let block = self.blocks[tile / self.passes as usize];
        let width = self.descriptor.window.kernel[1];
        let last = block.first_tap + block.taps - 1;
        (block.first_tap / width..=last / width).map(move |line| {
            let first = if line == block.first_tap / width { block.first_tap % width } else { 0 };
            let end = if line == last / width { last % width } else { width - 1 };
            (line, first, end)
        })
    }

    /// Output row (images one below the other) and column of a pixel.
    pub(crate) fn place(&self, pixel: u32) -> (u32, u32) {
        let at = self.matrix.first_pixel + pixel;
        (at / self.matrix.output.width, at % self.matrix.output.width)
    }

    /// Byte address of the image row under row `tap` of the window at output row `line`, if there is one.
    pub(crate) fn row_under(&self, line: u32, tap: u32) -> Option<u64> {
        self.line_under(line, tap).map(|row| self.row_address(row))
    }

    /// First and last word under columns `first ..= last` of the window at output column `column`, where they are inside.
    pub(crate) fn words_under(&self, row: u64, column: u32, first: u32, last: u32) -> Option<(u64, u64)> {
        let left = self.first_input_column(column);
        let end = i64::from(self.matrix.input.width) - 1;
        let (from, to) = ((left + i64::from(first)).max(0), (left + i64::from(last)).min(end));
        let word = |x: i64| (row + x as u64 * u64::from(self.matrix.input.pixel_bytes)) / self.word as u64;
        (from <= to).then(|| (word(from), word(to)))
    }

    /// First output column whose last tap `last` lies in word `word` of the image row at `row` or in a later one.
    pub(crate) fn column_of(&self, row: u64, word: u64, last: u32) -> u32 {
        let (input, window) = (&self.matrix.input, &self.descriptor.window);
        let x = (word * self.word as u64).saturating_sub(row).div_ceil(input.pixel_bytes.into());
        if x >= u64::from(input.width) {
            return u32::MAX;
        }
        let place = x as i64 + i64::from(window.pads[1]) - i64::from(last);
        (place.max(0) as u64).div_ceil(window.stride[1].into()) as u32
    }

    /// Columns from the first whose last tap lies in a word to the first of the next word, if always as many.
    pub(crate) fn columns_of_word(&self) -> Option<u32> {
        let (pixel, stride) = (self.matrix.input.pixel_bytes, self.descriptor.window.stride[1]);
        let pixels = self.word as u32 / pixel;
        let even = (self.word as u32).is_multiple_of(pixel) && pixels.is_multiple_of(stride);
        even.then_some(pixels / stride)
    }

    /// Output column from which on tap `first` of the window, and those behind it, lie to the right of the image.
    pub(crate) fn first_column_beyond(&self, first: u32) -> u32 {
        let (width, window) = (i64::from(self.matrix.input.width), &self.descriptor.window);
        let places = (width + i64::from(window.pads[1]) - i64::from(first)).max(0) as u64;
        places.div_ceil(window.stride[1].into()) as u32
    }

    /// Words that hold pixels of the image row at byte `row`.
    pub(crate) fn row_words(&self, row: u64) -> std::ops::Range<u64> {
        let (input, word) = (&self.matrix.input, self.word as u64);
        row / word..(row + u64::from(input.width) * u64::from(input.pixel_bytes)).div_ceil(word)
    }

    /// Columns of an output row.
    pub(crate) fn width(&self) -> u32 {
        self.matrix.output.width
    }

    fn first_input_column(&self, column: u32) -> i64 {
        let window = &self.descriptor.window;
        i64::from(column) * i64::from(window.stride[1]) - i64::from(window.pads[1])
    }

    /// Row of the input (images one below the other) under row `tap` of the window at output row `line`.
    fn line_under(&self, line: u32, tap: u32) -> Option<u32> {
        let (input, window, height) = (&self.matrix.input, &self.descriptor.window, self.matrix.output.height);
        let (image, line) = (line / height, line % height);
        let top = i64::from(line) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        let y = top + i64::from(tap * window.dilation[0]);
        (0..i64::from(input.height)).contains(&y).then(|| image * input.height + y as u32)
    }

    /// Byte address of a row of the input.
    fn row_address(&self, row: u32) -> u64 {
        let input = &self.matrix.input;
        let slot = row.wrapping_sub(input.first_row) % input.stored_rows.max(1);
        input.address + u64::from(slot) * self.row_bytes
    }

    fn word_of(&self, input: &View, block: &Block, row: u32, column: u32) -> u64 {
        let pixel = self.row_address(row) + u64::from(column) * u64::from(input.pixel_bytes);
        pixel / self.word as u64 + u64::from(block.word)
    }

    /// First and last word the weight port reads for array row `row` of a tile.
    ///
    /// Row `(tap, channel)` of a tile takes weight row `tap * group_in + channel mod group_in`. Of 16-bit weights in two planes
    /// each pass reads the plane of its byte.
    pub(crate) fn weight_words(&self, tile: usize, row: u32) -> (u64, u64) {
        let block = &self.blocks[tile / self.passes as usize];
        let pass = tile as u64 % self.passes;
        let (tap, channel) = (block.first_tap + row / block.channels, block.first_channel + row % block.channels);
        let group_in = self.descriptor.group_in;
        let weights = &self.matrix.weights;
        let high_plane = pass / self.input_bytes > 0 && weights.plane_bytes > 0;
        let plane = if high_plane { u64::from(weights.plane_bytes) } else { 0 };
        let number = u64::from(tap * group_in + channel % group_in);
        let first = weights.address + number * u64::from(weights.row_bytes) + plane;
        let size = if weights.plane_bytes > 0 { 1 } else { self.descriptor.weight_dtype.bytes() as u64 };
        let last = first + u64::from(self.columns) * size - 1;
        (first / self.word as u64, last / self.word as u64)
    }

    /// What the weight port reads for a tile.
    pub(crate) fn load_words(&self, tile: usize) -> TileLoad {
        let block = &self.blocks[tile / self.passes as usize];
        let (weights, group_in) = (&self.matrix.weights, self.descriptor.group_in);
        let rows = self.rows(tile);
        let first = block.first_channel % group_in;
        let one_by_one =
            (first == 0 && block.channels == group_in) || (block.taps == 1 && first + block.channels <= group_in);
        // Rows of whole words, or rows that words are made of.
        let (row_bytes, word) = (weights.row_bytes, self.word as u32);
        let aligned = weights.address.is_multiple_of(row_bytes.into()) && weights.plane_bytes.is_multiple_of(row_bytes);
        let inside = self.columns * self.descriptor.weight_dtype.bytes() as u32 <= row_bytes;
        let even = row_bytes.is_multiple_of(word) || (word.is_multiple_of(row_bytes) && aligned && inside);
        // A row's words are read in the cycles of the array rows that take it.
        let shared = |words: u64| words.min(self.input_bytes);
        if !(even && one_by_one) {
            let mut load = TileLoad { low: u64::MAX, high: 0, words: 0, idle: self.word as u64 };
            for row in 0..rows {
                let (first, last) = self.weight_words(tile, row);
                let words = last - first + 1;
                (load.low, load.high) = (load.low.min(first), load.high.max(last));
                (load.words, load.idle) = (load.words + words, load.idle.saturating_sub(shared(words)));
            }
            return load;
        }
        let (low, end) = self.weight_words(tile, 0);
        let high = self.weight_words(tile, rows - 1).1;
        let (rows, words) = (u64::from(rows), end - low + 1);
        TileLoad { low, high, words: rows * words, idle: (self.word as u64).saturating_sub(rows * shared(words)) }
    }

    /// From pixel `pixel` on, how many write one word each, the first word, and how many words each lies after the last one.
    /// `None` after the last pixel, or where pixels share words or take several.
    pub(crate) fn single_outputs(&self, pixel: u32) -> Option<(u32, u64, u64)> {
        let (m, word) = (&self.matrix, self.word as u64);
        let pixel_bytes = u64::from(m.output.pixel_bytes);
        let size = m.output.dtype.bytes() as u64;
        let offset = u64::from(m.output.channel_offset) + u64::from(m.output_channel) * size;
        let one = offset / word == (offset + u64::from(m.columns) * size - 1) / word;
        if pixel >= m.pixels || pixel_bytes < word || !one {
            return None;
        }
        let at = m.first_pixel + pixel;
        let (row, column) = (at / m.output.width, at % m.output.width);
        let slot = row.wrapping_sub(m.output.first_row) % m.output.stored_rows.max(1);
        let here = (m.output.stored_rows - slot) * m.output.width - column;
        let address = m.output.pixel_address(row, column, self.word) + u64::from(m.output_channel) * size;
        Some((here.min(m.pixels - pixel), address / word, pixel_bytes / word))
    }

    /// From pixel `pixel` on, how many lie in one row and share words, the first word, how many of them it holds and how many
    /// each after it. `None` after the last pixel, or where no pixels share words.
    pub(crate) fn shared_outputs(&self, pixel: u32) -> Option<(u32, u64, u32, u32)> {
        let (output, word) = (&self.matrix.output, self.word as u32);
        if pixel >= self.matrix.pixels || output.pixel_bytes >= word || !word.is_multiple_of(output.pixel_bytes) {
            return None;
        }
        let at = self.matrix.first_pixel + pixel;
        let (row, column) = (at / output.width, at % output.width);
        let (each, count) = (word / output.pixel_bytes, (output.width - column).min(self.matrix.pixels - pixel));
        let first = output.row_address(row, self.word) / self.word as u64 + u64::from(column / each);
        Some((count, first, each - column % each, each))
    }

    /// The writes of the output pipe: `(pixel that completes it, word)`, in order. Neighbouring pixels of the tile that share a
    /// word are written together.
    pub(crate) fn output_words(&self) -> Vec<(u32, u64)> {
        let (m, word) = (&self.matrix, self.word as u64);
        let size = m.output.dtype.bytes() as u64;
        let mut list: Vec<(u32, u64)> = Vec::with_capacity(m.pixels as usize);
        for pixel in 0..m.pixels {
            let at = m.first_pixel + pixel;
            let address = m.output.pixel_address(at / m.output.width, at % m.output.width, self.word)
                + u64::from(m.output_channel) * size;
            let last = (address + u64::from(m.columns) * size - 1) / word;
            for taken in address / word..=last {
                match list.last_mut() {
                    Some((complete, same)) if *same == taken => *complete = pixel,
                    _ => list.push((pixel, taken)),
                }
            }
        }
        list
    }
}
