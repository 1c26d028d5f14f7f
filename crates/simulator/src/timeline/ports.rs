//! The weight port's and the output pipe's words, as runs in one bank where they are.

use super::banks::Banks;
use crate::counters::Client;
use crate::feeder::{Geometry, TileLoad};

/// The load of a tile under way.
#[derive(Clone, Debug)]
pub(super) struct PortTile {
    /// First cycle that has not been decided.
    pub(super) cursor: u64,
    /// Bank of all words, if it is one, and how many are still to come.
    bank: Option<(usize, u64)>,
    /// Rows still to come; words of the next that are in.
    rows: u32,
    word: u64,
}

impl PortTile {
    pub(super) fn new(geometry: &Geometry, tile: usize, from: u64, banks: &Banks) -> Self {
        let TileLoad { low, high, words, idle } = geometry.load_words(tile);
        let bank = (banks.of(low) == banks.of(high)).then_some((banks.of(low), words));
        Self { cursor: from + idle, bank, rows: geometry.rows(tile), word: 0 }
    }

    /// Makes the requests before `limit`; whether the tile is loaded, `cursor` being the first cycle after its last word.
    pub(super) fn advance(&mut self, geometry: &Geometry, tile: usize, banks: &mut Banks, limit: u64) -> bool {
        if let Some((bank, left)) = &mut self.bank {
            if self.cursor < limit {
                let granted = banks.stretch((self.cursor, limit), *bank, Client::WeightPort, *left, |_, _| {});
                *left -= granted.count;
                self.cursor = granted.next;
            }
            return *left == 0;
        }
        while self.rows > 0 && self.cursor < limit {
            let (from, to) = geometry.weight_words(tile, self.rows - 1);
            if banks.request(self.cursor, banks.of(from + self.word), Client::WeightPort) {
                (self.rows, self.word) =
                    if from + self.word == to { (self.rows - 1, 0) } else { (self.rows, self.word + 1) };
            }
            self.cursor += 1;
        }
        self.rows == 0
    }
}

/// Words of one bank that the output pipe writes one after the other; word `i` once pixel `pixel + i step` is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutputRun {
    pub(super) pixel: u32,
    pub(super) step: u32,
    pub(super) bank: usize,
    pub(super) count: u64,
}

/// The writes of the output pipe, in order.
pub(super) fn output_runs(geometry: &Geometry, banks: &Banks) -> Vec<OutputRun> {
    let mut runs: Vec<OutputRun> = Vec::new();
    let mut push = |pixel: u32, bank: usize, count: u64| {
        if let Some(run) = runs.last_mut()
            && run.bank == bank
        {
            let step = pixel - (run.pixel + (run.count as u32 - 1) * run.step);
            if run.count == 1 && count == 1 {
                (run.step, run.count) = (step, 2);
                return;
            }
            if step == run.step && (count == 1 || step == 1) {
                run.count += count;
                return;
            }
        }
        runs.push(OutputRun { pixel, step: 1, bank, count });
    };
    let mut pixel = 0;
    while let Some((count, word, step)) = geometry.single_outputs(pixel) {
        let bank = banks.of(word);
        let count = u64::from(count).min((banks.end(bank) - 1 - word) / step.max(1) + 1);
        push(pixel, bank, count);
        pixel += count as u32;
    }
    while let Some((count, first, held, each)) = geometry.shared_outputs(pixel) {
        let end = pixel + count;
        let mut complete = pixel + held;
        for word in first.. {
            push(complete.min(end) - 1, banks.of(word), 1);
            if complete >= end {
                break;
            }
            complete += each;
        }
        pixel = end;
    }
    if pixel < geometry.pixels() {
        for (complete, word) in geometry.output_words() {
            push(complete, banks.of(word), 1);
        }
    }
    runs
}
