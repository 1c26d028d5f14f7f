//! A stream of the row feeder: the words its pixels miss, fetched as early as the banks allow.

use smallvec::SmallVec;

use super::access_rate::every_nth_bit;
use super::banks::{Banks, ones};
use crate::counters::Client;
use crate::feeder::{Geometry, Words};

/// Cycles in which pixels entered: runs of pixels one behind the other.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    /// Cycles of a slot.
    phases: u64,
    /// First pixel, its cycle, number of pixels.
    runs: Vec<(u32, u64, u64)>,
    /// Run last asked for.
    at: usize,
}

impl Entries {
    pub(super) fn new(phases: u64) -> Self {
        Self { phases, runs: Vec::new(), at: 0 }
    }

    /// `count` pixels enter, the first in `cycle`.
    fn push(&mut self, pixel: u32, cycle: u64, count: u64) {
        // The PE that a pixel meets first has its products in the slot's last cycle.
        let cycle = cycle + self.phases - 1;
        match self.runs.last_mut() {
            Some((_, first, length)) if *first + *length * self.phases == cycle => *length += count,
            _ => self.runs.push((pixel, cycle, count)),
        }
    }

    /// The cycle of a pixel, and how many from it on entered in consecutive cycles. Later calls ask for later pixels.
    pub(super) fn find(&mut self, pixel: u32) -> Option<(u64, u64)> {
        while let Some(&(first, cycle, count)) = self.runs.get(self.at) {
            let within = u64::from(pixel - first);
            if within < count {
                let together = if self.phases == 1 { count - within } else { 1 };
                return Some((cycle + within * self.phases, together));
            }
            if self.at + 1 == self.runs.len() {
                break;
            }
            self.at += 1;
        }
        None
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.runs.last().map(|&(_, cycle, count)| cycle + (count - 1) * self.phases)
    }

    /// Whether all of `pixels` have entered.
    pub(super) fn complete(&self, pixels: u32) -> bool {
        self.runs.last().is_some_and(|&(first, _, count)| u64::from(first) + count == u64::from(pixels))
    }
}

/// The taps of a block in one row of the window, of pixels smaller than a word.
#[derive(Clone, Debug)]
struct Taps {
    line: u32,
    first: u32,
    last: u32,
    /// Byte address of the image row under them, if there is one.
    row: Option<u64>,
    /// Words before this one have been there for the last pixel; behind the other the row has none.
    next: u64,
    words: u64,
    /// Pixels before this column of the output row miss nothing, nor do those from the other on.
    due: u32,
    end: u32,
    /// In the block of cycles being looked at, in which it asks for words of which bank.
    wanted: (usize, u64),
}

impl Taps {
    /// The next `count` words are there, each `step` columns after the one before.
    fn pass(&mut self, count: u64, step: u32) {
        self.next += count;
        self.due += count as u32 * step;
        if self.next >= self.words || self.due >= self.end {
            self.due = u32::MAX;
        }
    }
}

/// Few words of a few image rows, moving on to the right.
#[derive(Debug)]
struct Rows {
    taps: Vec<Taps>,
    /// Column of the next pixel, if it is not the first one.
    column: Option<u32>,
    /// Columns from one missing word to the next, if always as many.
    step: Option<u32>,
}

impl Rows {
    /// How many pixels from `pixel` on miss nothing, up to the end of the output row; if none, `missing` is what the first misses.
    fn next(&mut self, geometry: &Geometry, pixel: u32, missing: &mut Words) -> u32 {
        let (column, left) = match self.rest_of_row(geometry, pixel) {
            Some(place) => place,
            None => return self.begin(geometry, pixel, missing),
        };
        let free = self.taps.iter().map(|taps| taps.due.saturating_sub(column)).min().unwrap_or(left).min(left);
        self.column = Some(column + free.max(1));
        if free > 0 {
            return free;
        }
        for taps in self.taps.iter_mut().filter(|taps| taps.due <= column) {
            match self.step {
                Some(step) => {
                    missing.push(taps.next);
                    taps.pass(1, step);
                }
                None => taps.add_missing_words(geometry, column, missing),
            }
        }
        0
    }

    /// The pixel begins a row, or the instruction.
    fn begin(&mut self, geometry: &Geometry, pixel: u32, missing: &mut Words) -> u32 {
        let (line, column) = geometry.place(pixel);
        for taps in &mut self.taps {
            (taps.row, taps.due) = (geometry.row_under(line, taps.line), u32::MAX);
            if let Some(row) = taps.row {
                let words = geometry.row_words(row);
                (taps.next, taps.words) = (words.start, words.end);
                taps.add_missing_words(geometry, column, missing);
            }
        }
        self.column = Some(column + 1);
        0
    }

    /// Column of the next pixel, and how many from it on to the end of its row; `None` where a row begins.
    fn rest_of_row(&self, geometry: &Geometry, pixel: u32) -> Option<(u32, u32)> {
        let column = self.column.filter(|&column| column < geometry.width())?;
        Some((column, (geometry.width() - column).min(geometry.pixels() - pixel)))
    }

    /// Notes the requests of pixels from `column` on that enter in cycles `cursor .. end` of one block if nothing is refused, words
    /// coming every `step` columns. Returns the cycle before which that is so.
    fn request_words(
        &mut self,
        column: u32,
        step: u32,
        (cursor, mut end): (u64, u64),
        (banks, fetches): (&Banks, usize),
    ) -> u64 {
        let (block, step, many) = (cursor / 64 * 64, u64::from(step), self.taps.len() > fetches);
        for number in 0..self.taps.len() {
            let (others, rest) = self.taps.split_at_mut(number);
            let taps = &mut rest[0];
            taps.wanted = (0, 0);
            if u64::from(taps.due) >= u64::from(column) + (end - cursor) {
                continue;
            }
            let first = cursor + u64::from(taps.due - column);
            let bank = banks.of(taps.next);
            let all = (taps.words - taps.next).min(u64::from(taps.end - taps.due).div_ceil(step));
            let here = banks.end(bank) - taps.next;
            // Words of the next bank come into question in one of the next calls.
            if here < all {
                end = end.min(first + here * step);
            }
            let mask = (every_nth_bit(step) & ones((here.min(all).min(64) - 1) * step + 1)) << (first - block);
            let others = others.iter().filter(|other| many || other.wanted.0 == bank);
            let refused = mask & others.fold(banks.busy_mask(cursor, bank), |held, other| held | other.wanted.1);
            if refused != 0 {
                end = end.min(block + u64::from(refused.trailing_zeros()));
                if end == cursor {
                    return end;
                }
            }
            taps.wanted = (bank, mask);
        }
        end
    }
}

impl Taps {
    /// Adds what the pixel at `column` misses.
    fn add_missing_words(&mut self, geometry: &Geometry, column: u32, missing: &mut Words) {
        let Some(row) = self.row else { return };
        if let Some((first, last)) = geometry.words_under(row, column, self.first, self.last) {
            for word in first.max(self.next)..=last {
                missing.push(word);
            }
            self.next = self.next.max(last + 1);
        }
        self.due = geometry.column_of(row, self.next, self.last).max(column + 1);
        if self.due >= self.end {
            self.due = u32::MAX;
        }
    }
}

#[derive(Debug)]
enum Fetch {
    /// A word of its own for every pixel inside the image.
    Single,
    /// Few words of a few image rows.
    Rows(Rows),
    /// Any words; those of the last pixel.
    Any(Words),
}

#[derive(Debug)]
pub(super) struct OperandFeed {
    pub(super) job: u64,
    tile: usize,
    /// First cycle that has not been decided.
    pub(super) cursor: u64,
    /// First cycle after the R slots it holds at least.
    hold: u64,
    phases: u64,
    next: u32,
    is_last: bool,
    fetch: Fetch,
    /// Words the next pixel still misses, if they have been looked up.
    missing: Words,
    known: bool,
    /// Cycles refused by banks, and of more words than a cycle takes, since they were last booked.
    pub(super) stalls: [u64; 2],
}

impl OperandFeed {
    pub(super) fn new(geometry: &Geometry, job: u64, tile: usize, at: u64, rows: u64) -> Self {
        let fetch = if geometry.is_single(tile) {
            Fetch::Single
        } else if geometry.has_rows() {
            let taps = geometry.tap_rows(tile).map(|(line, first, last)| Taps {
                line,
                first,
                last,
                row: None,
                next: 0,
                words: 0,
                due: u32::MAX,
                wanted: (0, 0),
                end: geometry.first_column_beyond(first),
            });
            Fetch::Rows(Rows { taps: taps.collect(), column: None, step: geometry.columns_of_word() })
        } else {
            Fetch::Any(Words::new())
        };
        Self {
            job,
            tile,
            cursor: at,
            hold: at + rows * geometry.phases(),
            phases: geometry.phases(),
            next: 0,
            is_last: tile + 1 == geometry.tiles(),
            fetch,
            missing: Words::new(),
            known: false,
            stalls: [0; 2],
        }
    }

    /// Makes the requests of cycles before `limit`; when the stream is complete, the first cycle in which the array is free.
    pub(super) fn advance(
        &mut self,
        geometry: &Geometry,
        entries: &mut Entries,
        banks: &mut Banks,
        fetches: usize,
        limit: u64,
    ) -> Option<u64> {
        let single = matches!(self.fetch, Fetch::Single);
        while self.next < geometry.pixels() {
            if single && self.phases == 1 {
                self.run(geometry, entries, banks, limit)?;
                continue;
            }
            if self.enter_run(geometry, entries, banks, (fetches, limit)) {
                continue;
            }
            let free = self.find_missing_words(geometry);
            if free > 0 {
                self.enter_pixels(free, entries);
                continue;
            }
            while !self.missing.is_empty() && !self.fetch_undisturbed(banks, fetches, limit) {
                if self.cursor >= limit {
                    return None;
                }
                self.cycle(banks, fetches);
            }
            self.enter_pixels(1, entries);
        }
        Some(self.cursor.max(self.hold))
    }

    /// Lets pixels of a row enter, one a cycle, up to the first that is refused a word or the end of a block of cycles; whether
    /// there are any.
    fn enter_run(
        &mut self,
        geometry: &Geometry,
        entries: &mut Entries,
        banks: &mut Banks,
        (fetches, limit): (usize, u64),
    ) -> bool {
        let Fetch::Rows(rows) = &mut self.fetch else { return false };
        if self.known || self.phases != 1 {
            return false;
        }
        let (Some((column, left)), Some(step)) = (rows.rest_of_row(geometry, self.next), rows.step) else {
            return false;
        };
        let block = self.cursor / 64 * 64;
        let end = (block + 64).min(limit).min(self.cursor + u64::from(left));
        if end <= self.cursor {
            return false;
        }
        let end = rows.request_words(column, step, (self.cursor, end), (banks, fetches));
        if end == self.cursor {
            return false;
        }
        for taps in &mut rows.taps {
            let (bank, taken) = (taps.wanted.0, taps.wanted.1 & ones(end - block));
            if taken != 0 {
                banks.grant(self.cursor, bank, Client::Feeder, taken);
                taps.pass(taken.count_ones().into(), step);
            }
        }
        let count = (end - self.cursor) as u32;
        rows.column = Some(column + count);
        self.enter_pixels(count, entries);
        true
    }

    /// `count` pixels without missing words enter.
    fn enter_pixels(&mut self, count: u32, entries: &mut Entries) {
        if self.is_last {
            entries.push(self.next, self.cursor, count.into());
        }
        self.next += count;
        self.cursor += u64::from(count) * self.phases;
        self.known = false;
    }

    /// Fetches what a pixel misses at once, where that is words of one bank which nobody else wants in the cycles it takes; whether
    /// it is. In every cycle one is granted, and those that are asked for, too, are refused.
    fn fetch_undisturbed(&mut self, banks: &mut Banks, fetches: usize, limit: u64) -> bool {
        let (bank, count) = (banks.of(self.missing[0]), self.missing.len() as u64);
        let (within, end) = (self.cursor % 64, self.cursor + count);
        if within + count > 64 || end > limit || self.missing.iter().any(|&word| banks.of(word) != bank) {
            return false;
        }
        let mask = ones(count) << within;
        if banks.busy_mask(self.cursor, bank) & mask != 0 {
            return false;
        }
        banks.grant(self.cursor, bank, Client::Feeder, mask);
        if fetches > 1 {
            banks.count_own_refusals(Client::Feeder, count * (count - 1) / 2);
        }
        self.stalls[usize::from(fetches == 1)] += count - 1;
        self.cursor += count - 1;
        self.missing.clear();
        true
    }

    /// One cycle of fetching for a pixel; it is not over when the pixel can enter in it.
    fn cycle(&mut self, banks: &mut Banks, fetches: usize) {
        let (mut taken, mut kept, mut refused) = (SmallVec::<[usize; 4]>::new(), 0, false);
        let words = &mut self.missing[..];
        for at in 0..words.len() {
            let word = words[at];
            if taken.len() < fetches {
                let bank = banks.of(word);
                if taken.contains(&bank) {
                    banks.count_own_refusals(Client::Feeder, 1);
                } else if banks.request(self.cursor, bank, Client::Feeder) {
                    taken.push(bank);
                    continue;
                }
                refused = true;
            }
            words[kept] = word;
            kept += 1;
        }
        self.missing.truncate(kept);
        if !self.missing.is_empty() {
            self.cursor += 1;
            self.stalls[usize::from(!refused)] += 1;
        }
    }

    /// Pixels of a row that take words of one bank, or none. `None`: not before `limit`.
    fn run(&mut self, geometry: &Geometry, entries: &mut Entries, banks: &mut Banks, limit: u64) -> Option<()> {
        let (count, words) = geometry.single_words(self.tile, self.next);
        let Some((word, step)) = words else {
            self.enter_pixels(count, entries);
            return Some(());
        };
        let bank = banks.of(word);
        let count = u64::from(count).min((banks.end(bank) - 1 - word) / step.max(1) + 1);
        let (mut pixel, is_last) = (self.next, self.is_last);
        let granted = banks.stretch((self.cursor, limit), bank, Client::Feeder, count, |cycle, length| {
            if is_last {
                entries.push(pixel, cycle, length);
            }
            pixel += length as u32;
        });
        self.next += granted.count as u32;
        self.stalls[0] += granted.next - self.cursor - granted.count;
        self.cursor = granted.next;
        (granted.count == count).then_some(())
    }

    /// Works out which words the next pixel misses; or how many pixels are known to miss none.
    fn find_missing_words(&mut self, geometry: &Geometry) -> u32 {
        if std::mem::replace(&mut self.known, true) {
            return 0;
        }
        self.missing.clear();
        let pixel = self.next;
        match &mut self.fetch {
            Fetch::Single => geometry.pixel_words(self.tile, pixel, &mut self.missing),
            Fetch::Any(held) => {
                if geometry.begins_row(pixel) {
                    held.clear();
                }
                let mut needed = Words::new();
                geometry.pixel_words(self.tile, pixel, &mut needed);
                self.missing.extend(needed.iter().copied().filter(|word| !held.contains(word)));
                *held = needed;
            }
            Fetch::Rows(rows) => return rows.next(geometry, pixel, &mut self.missing),
        }
        0
    }
}
