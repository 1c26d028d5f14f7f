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
        let wide = timing::wide(self.matrix.input.dtype, self.descriptor.weight_dtype);
        u64::from(self.matrix.pixels) * if wide { 2 } else { 1 }
    }

    /// Array rows tile `tile` uses.
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

    fn word_of(&self, input: &View, block: &Block, row: u32, column: u32) -> u64 {
        let pixel = input.row_address(row, self.word) + u64::from(column) * u64::from(input.pixel_bytes);
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

    /// What the output pipe writes: `(pixel that completes it, word)`, in order. Neighbouring pixels of the tile that share a
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
