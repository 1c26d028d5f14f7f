//! Cycles for which an instruction holds the array, words included that the row feeder takes one after the other.

use std::collections::BTreeSet;
use std::ops::Range;

use tpuflow_ir::isa::{Matrix, MatrixDescriptor};
use tpuflow_ir::{Machine, Window, timing};

/// Cycles for which a matrix instruction holds the array: its slots, or the words under its windows where these are more. They
/// come one a cycle, since the rows of an image mostly lie in one bank; those the result before needed as well are there.
pub(super) fn matrix_cycles(matrix: &Matrix, descriptor: &MatrixDescriptor, machine: &Machine) -> u64 {
    let (input, window) = (&matrix.input, &descriptor.window);
    let slots = timing::matrix_slots(matrix, descriptor, machine);
    let in_word = machine.cache.word_bytes / input.pixel_bytes.max(1);
    if in_word < 2 || window.kernel == [1, 1] || input.dtype.is_float() {
        return slots;
    }
    let held = |block: &timing::Block| -> u64 {
        let cycles = word_of_results(window, block.first_tap..block.first_tap + block.taps, in_word);
        timing::tile_slots((u64::from(matrix.pixels) * cycles).div_ceil(in_word.into()), machine)
    };
    let blocks = timing::blocks(descriptor, input, matrix.first_column, matrix.columns, machine);
    let passes = timing::passes(input.dtype, descriptor.weight_dtype);
    (passes * blocks.iter().map(held).sum::<u64>()).max(slots)
}

/// Cycles for as many results as a word has pixels, `in_word`, after which windows begin at the same place of a word again, in a K
/// block of the taps `taps`.
fn word_of_results(window: &Window, taps: Range<u32>, in_word: u32) -> u64 {
    let [stride, across, dilation, pad] =
        [window.stride[1], window.kernel[1], window.dilation[1], window.pads[1]].map(i64::from);
    let words = |result: i64| -> BTreeSet<(i64, i64)> {
        let column = |tap: i64| result * stride - pad + tap % across * dilation;
        let word = |tap: u32| (i64::from(tap) / across, column(tap.into()).div_euclid(in_word.into()));
        taps.clone().map(word).collect()
    };
    (0..i64::from(in_word)).map(|result| words(result).difference(&words(result - 1)).count().max(1) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cycles for two results of 3 rows of windows, two pixels in a word.
    fn cycles(across: u32, stride: u32, pad: u32) -> u64 {
        let window = Window { kernel: [3, across], stride: [1, stride], dilation: [1, 1], pads: [1, pad, 1, 1] };
        let taps = 3 * across;
        (0..taps).step_by(2).map(|first| word_of_results(&window, first..taps.min(first + 2), 2)).sum()
    }

    /// Counted by hand; the same windows are simulated in `tests/lowering/test_wide_pixels.py`.
    #[test]
    fn words_of_a_line_come_one_after_the_other() {
        // A pixel on each time: of the 5 blocks of two pixels the one with pixels of two lines takes two words every other time.
        assert_eq!(cycles(3, 1, 1), 11);
        // Windows of 4 results that begin inside a word: 9 blocks of two words each; 12 of one if they begin with it.
        assert_eq!(cycles(6, 4, 1), 2 * 18);
        assert_eq!(cycles(8, 4, 2), 2 * 12);
    }
}
