//! Cycles in which the row feeder must wait for words that lie in one bank.
//!
//! A row vector of several taps takes a word of every line under the window that the pixel before did not need, and a bank serves
//! one word a cycle. Lines begin on words, so lines of a K block whose last taps are at the same place come to their next word at
//! the same pixel:
//!
//! ```text
//!  line 0  |..word..|..word..|        at pixel x lines 0, 1 and 2 take a word each:
//!  line 1  |..word..|..word..|        two cycles lost if all lie in one bank,
//!  line 2  |..word..|..word..|        one if a bank ends between two of them
//!                   x
//! ```
//!
//! Where lines lie is up to the program, but an instruction reads one view, whose rows are one stretch of memory, and a stretch no
//! longer than a bank has at most one *end* of a bank in it. Window after window, that end comes between every two of their lines
//! at most once. So an instruction saves at most `saved` cycles for every end, however tensors are copied and placed. (Windows
//! longer than a bank are left out.) Shorter
//! instructions have more of them, but each holds the array for `R` slots a K block, stalls included, so that `n` of them cost
//! at least `max(M B + stalls - n saved, n R B)` for `M` pixels and `B` blocks. The least of that over all `n` is what no program
//! avoids.

use std::collections::BTreeMap;

use tpuflow_ir::{Machine, View, Window, timing::Block};

/// Lines of a window at most, a bit each.
const MOST_LINES: u32 = 32;

/// Cycles lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stalls {
    /// With all lines in one bank.
    all: u64,
    /// With an end of a bank wherever it saves most, for every pixel anew.
    least: u64,
}

/// The least cost of a convolution of `input` on the array in one column tile with K blocks `blocks`, beyond its slots.
pub(super) fn stalls(input: &View, window: &Window, blocks: &[Block], machine: &Machine) -> u64 {
    let word = machine.word();
    let lines = window.kernel[0];
    let Some([height, width]) = window.output(input.height as usize, input.width as usize) else { return 0 };
    if !(2..=MOST_LINES).contains(&lines) || input.pixel_bytes as usize >= word || height * width == 0 {
        return 0;
    }
    let row = Row { input, window, blocks, width: width as i64, word };
    let mut known: BTreeMap<u32, Stalls> = BTreeMap::new();
    let mut total = Stalls::default();
    for y in 0..height as i64 {
        let top = y * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        let inside = |line: &u32| (0..i64::from(input.height)).contains(&(top + i64::from(line * window.dilation[0])));
        let there = (0..lines).filter(inside).fold(0, |there, line| there | 1 << line);
        let lost = known.entry(there).or_insert_with(|| row.stalls(there));
        total.all += lost.all;
        total.least += lost.least;
    }
    let images = u64::from(input.rows / input.height.max(1));
    let pixels = (height * width) as u64 * images;
    let Some(ends) = ends(input, window, [height, width], blocks, machine) else { return 0 };
    let saved = ends * row.saved_by_bank_end();
    let count = blocks.len() as u64;
    let slots = pixels * count;
    let held = u64::from(machine.array.rows) * count;
    let streamed = |n: u64| slots + (images * total.all).saturating_sub(n * saved).max(images * total.least);
    // The one falls with the number of instructions, the other grows.
    let mut n = slots / held.max(1);
    while n * held < streamed(n) {
        n += 1;
    }
    (n * held).min(streamed(n.saturating_sub(1))).saturating_sub(slots.max(held))
}

/// Ends of banks that the lines an instruction reads have among them at most, also where pixels are larger and all taps still fit a
/// word; `None` if a window may have several.
fn ends(
    input: &View,
    window: &Window,
    [height, width]: [usize; 2],
    blocks: &[Block],
    machine: &Machine,
) -> Option<u64> {
    let larger = match blocks {
        [block] => u64::from(machine.cache.word_bytes / input.pixel_bytes / block.taps),
        _ => 1,
    };
    let line = input.row_bytes(machine.word()) * larger;
    let bank = u64::from(machine.cache.words) * u64::from(machine.cache.word_bytes);
    let span = u64::from((window.kernel[0] - 1) * window.dilation[0] + 1);
    let rows = machine.matrix_rows(false) / width + 2;
    let lines = if input.rows > input.height {
        (rows / height + 2) as u64 * u64::from(input.height)
    } else {
        rows as u64 * u64::from(window.stride[0]) + span
    };
    (span * line <= bank).then(|| 1 + lines * line / bank)
}

/// Words that the pixels of an output row read.
struct Row<'a> {
    input: &'a View,
    window: &'a Window,
    blocks: &'a [Block],
    width: i64,
    word: usize,
}

impl Row<'_> {
    /// Cycles lost in a row under whose windows the lines `there` are inside the image.
    fn stalls(&self, there: u32) -> Stalls {
        let mut lost = Stalls::default();
        for x in 0..self.width {
            let taken = self.lines_read(x, there);
            let all: u64 = taken.iter().map(|lines| u64::from(lines.count_ones().saturating_sub(1))).sum();
            let most = (1..self.window.kernel[0]).map(|cut| saved(&taken, cut)).max().unwrap_or(0);
            lost.all += all;
            lost.least += all - most;
        }
        lost
    }

    /// Cycles saved at most by an end of a bank that all windows pass: it stands before every line of some window, or before
    /// every so many with a stride, and as long as lines are apart.
    fn saved_by_bank_end(&self) -> u64 {
        let (lines, stride) = (self.window.kernel[0], self.window.stride[0]);
        let full = u32::MAX >> (32 - lines);
        let pixel = |x: i64| -> u64 {
            let taken = self.lines_read(x, full);
            let cuts = |phase: u32| (1..lines).filter(move |cut| self.window.dilation[0] > 1 || cut % stride == phase);
            let sum = |phase: u32| cuts(phase).map(|cut| saved(&taken, cut)).sum::<u64>();
            (0..stride).map(sum).max().unwrap_or(0) * u64::from(self.window.dilation[0])
        };
        (0..self.width).map(pixel).sum()
    }

    /// By K block, the lines that output pixel `x` takes a new word of.
    fn lines_read(&self, x: i64, there: u32) -> Vec<u32> {
        let is_new = |block: &Block, line: u32| {
            let (now, before) = (self.tap_words(x, block, line), self.tap_words(x - 1, block, line));
            now.is_some_and(|(first, last)| match before {
                Some((from, to)) if x > 0 => first < from || last > to,
                _ => true,
            })
        };
        let lines = |block: &Block| {
            let new = (0..self.window.kernel[0]).filter(|&line| there & 1 << line != 0 && is_new(block, line));
            new.fold(0, |lines, line| lines | 1 << line)
        };
        self.blocks.iter().map(lines).collect()
    }

    /// The first and the last word of a line that the taps of a block on it take for output pixel `x`, if any lies inside.
    fn tap_words(&self, x: i64, block: &Block, line: u32) -> Option<(u64, u64)> {
        let (input, window) = (self.input, self.window);
        let across = window.kernel[1];
        let first = (line * across).max(block.first_tap);
        let end = ((line + 1) * across).min(block.first_tap + block.taps);
        let left = x * i64::from(window.stride[1]) - i64::from(window.pads[1]);
        let pixels = (first..end).map(|tap| left + i64::from(tap % across * window.dilation[1]));
        let inside = pixels.filter(|x| (0..i64::from(input.width)).contains(x));
        let mut words = inside.map(|x| x as u64 * u64::from(input.pixel_bytes) / self.word as u64);
        let low = words.next()?;
        Some((low, words.next_back().unwrap_or(low)))
    }
}

/// Cycles saved where a bank ends before line `cut`: of every block those lines come together that are fewer.
fn saved(taken: &[u32], cut: u32) -> u64 {
    let above = (1 << cut) - 1;
    let fewer = |lines: &u32| (lines & above).count_ones().min((lines & !above).count_ones());
    taken.iter().map(|lines| u64::from(fewer(lines))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tpuflow_ir::{DType, Space};

    /// Xorshift.
    fn draw(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Cycles the array is held by output pixels `pixels` of all blocks, by the law of the feeder, with the input from word
    /// `address` on.
    fn held(
        input: &View,
        window: &Window,
        blocks: &[Block],
        machine: &Machine,
        pixels: std::ops::Range<usize>,
        address: u64,
    ) -> u64 {
        let word = machine.word() as i64;
        let [height, width] = window.output(input.height as usize, input.width as usize).expect("it fits");
        let line_words = input.row_bytes(machine.word()) / word as u64;
        let vector = |pixel: usize, block: &Block| -> BTreeSet<u64> {
            let (row, x) = (pixel / width, pixel % width);
            let (image, y) = (row / height, row % height);
            let tap = |tap: u32| {
                let [kh, kw] = [tap / window.kernel[1], tap % window.kernel[1]].map(i64::from);
                let at = |out: usize, k: i64, axis: usize| {
                    out as i64 * i64::from(window.stride[axis]) + k * i64::from(window.dilation[axis])
                        - i64::from(window.pads[axis])
                };
                let (line, column) = (at(y, kh, 0), at(x, kw, 1));
                let inside =
                    (0..i64::from(input.height)).contains(&line) && (0..i64::from(input.width)).contains(&column);
                let line = (image as i64 * i64::from(input.height) + line) as u64;
                inside.then(|| address + line * line_words + (column * i64::from(input.pixel_bytes) / word) as u64)
            };
            (block.first_tap..block.first_tap + block.taps).filter_map(tap).collect()
        };
        let tile = |block: &Block| {
            let mut cycles = 0;
            let mut kept = BTreeSet::new();
            for pixel in pixels.clone() {
                if pixel % width == 0 {
                    kept.clear();
                }
                let words = vector(pixel, block);
                let mut banks: BTreeMap<u64, u64> = BTreeMap::new();
                words
                    .difference(&kept)
                    .for_each(|at| *banks.entry(at / u64::from(machine.cache.words)).or_default() += 1);
                cycles += banks.values().copied().max().unwrap_or(1);
                kept = words;
            }
            cycles.max(machine.array.rows.into())
        };
        blocks.iter().map(tile).sum()
    }

    #[test]
    fn no_placement_and_no_cut_stalls_less() {
        let mut machine = Machine::preset("32x32_fpga").expect("known");
        machine.array.rows = 8;
        machine.array.accumulators = 64;
        let mut random = 9;
        let mut below = |n: u64| draw(&mut random) % n;
        let (mut met, mut bounded) = (0, 0);
        for _ in 0..400 {
            machine.cache.words = [16, 48, 96][below(3) as usize];
            let kernel = [2 + below(4) as u32, 1 + below(4) as u32];
            let window = Window {
                kernel,
                stride: [1 + below(2) as u32, 1 + below(2) as u32],
                dilation: [1 + u32::from(below(5) == 0), 1 + u32::from(below(5) == 0)],
                pads: [below(u64::from(kernel[0])) as u32, below(u64::from(kernel[1])) as u32, 0, 0],
            };
            let (images, height, width) = (1 + below(2) as usize, 8 + below(8) as usize, 8 + below(20) as usize);
            let pixel_bytes = 1 << below(5);
            let shape = [images, height, width, pixel_bytes];
            let input = View::whole(&shape, DType::I8, machine.word(), Space::Cache, 0);
            let Some([rows, columns]) = window.output(height, width) else { continue };
            let per_block = (machine.word() / pixel_bytes) as u32;
            let taps = kernel[0] * kernel[1];
            let block = |first_tap: u32| Block {
                first_tap,
                taps: per_block.min(taps - first_tap),
                first_channel: 0,
                channels: pixel_bytes as u32,
                word: 0,
            };
            let blocks: Vec<Block> = (0..taps).step_by(per_block as usize).map(block).collect();
            let pixels = images * rows * columns;
            let least = (pixels as u64).max(machine.array.rows.into()) * blocks.len() as u64
                + stalls(&input, &window, &blocks, &machine);
            bounded += u32::from(least > (pixels * blocks.len()) as u64);
            for _ in 0..3 {
                // Pieces of one length, each of a copy that lies where it costs least.
                let piece = (1 + below(32) as usize).max(if below(2) == 0 { 8 } else { 1 });
                let pieces = (0..pixels).step_by(piece).map(|first| first..(first + piece).min(pixels));
                let places = || (0..u64::from(machine.cache.words)).step_by(3);
                let placed = |p: std::ops::Range<usize>| {
                    places().map(|at| held(&input, &window, &blocks, &machine, p.clone(), at)).min().unwrap_or(0)
                };
                let cost: u64 = pieces.map(placed).sum();
                assert!(cost >= least, "{cost} < {least}: {window:?} {input:?} in pieces of {piece}");
                met += u32::from(cost == least);
            }
        }
        assert!(bounded > 100 && met > 30, "{bounded} {met}");
    }
}
