//! Extrema and counts of values in one pass, a few at a time while they are in the nearest cache.
//!
//! Calibration sees far more values than any cache holds, and reading them is what takes time: each chunk is
//! looked at twice, for its extrema and for its counts, but read from memory once.
//!
//! Neighbouring values often fall into one bin, and an increment must wait for the one before it to be stored: each
//! of [`WAYS`] neighbours has a counter of its own, next to each other in one cache line.
//!
//! Of very many values a part is enough to know how they are distributed, and counting all would take longer than
//! reading them: of every [`GROUP`] values that follow each other the [`RUN`] from a fixed, scattered place on count
//! for all. What a range is cut at rests on the few largest values, though: those beyond [`LARGE`] times the largest so
//! far, on either side of zero, are counted one by one, unless they are many in a chunk. Which values count, and for
//! how many, follows from the order of a part's values alone. Extrema are always those of all values.

use tpuflow_kernels::isa::{Lanes, Work};

use crate::Extrema;
use crate::extrema::ChunkExtrema;
use crate::histogram::{halve, width_exponent};

/// Values looked at together: 16 KiB.
const CHUNK: usize = 1 << 12;
const WAYS: usize = 4;
/// Values of which one run is counted where a part is enough; a chunk is a multiple.
const GROUP: usize = 64;
/// Neighbours that are counted together: a cache line, a vector of the widest kind.
const RUN: usize = 16;
/// Share of the largest value so far from which on values are large.
const LARGE: f32 = 0.625;
/// Large values of a chunk, on one side of zero, up to which they are counted one by one.
const FEW: usize = CHUNK / 64;
/// Values whose slots are computed apart from counting, which vectorises.
const SLOTS: usize = 256;

/// Values one [`PartialHistogram`] can hold: its counts are u32.
pub(crate) const MOST: usize = u32::MAX as usize;

/// The counts: by magnitude, up to the last bin in use, in bins of `2^exponent`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PartialHistogram {
    /// Smallest and largest value; `None` without any.
    pub extrema: Option<Extrema>,
    /// log2 of the bin width; `None` without values other than zero.
    pub exponent: Option<i32>,
    pub zeros: u64,
    pub negative: Vec<u32>,
    pub positive: Vec<u32>,
}

/// Counters to be used again and again; all zero between two parts.
#[derive(Debug)]
pub(crate) struct Counters {
    lanes: Lanes,
    /// Largest magnitude that is counted.
    largest: f32,
    /// Least number of bins up to the largest magnitude; 0 to look for extrema only.
    bins: usize,
    /// `[positive by magnitude | negative by magnitude | zeros | of no account]`, with `2 * bins` magnitudes.
    ways: Vec<[u32; WAYS]>,
    extrema: Option<Extrema>,
    exponent: Option<i32>,
    /// Where a part is counted: number of groups so far.
    groups: Option<u32>,
}

/// Which values are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    All,
    /// A run of every group, and large values that are few.
    Part,
}

/// Values from some magnitudes on, which are counted one by one.
#[derive(Debug, Clone, Copy)]
struct Tails {
    low: f32,
    high: f32,
}

impl Counters {
    /// Counters of at least `bins` bins, a power of two, or 0 for extrema alone, of values up to a magnitude.
    pub fn new(bins: usize, largest: f32, lanes: Lanes) -> Self {
        let slots = if bins == 0 { 0 } else { 4 * bins + 2 };
        Self { lanes, largest, bins, ways: vec![[0; WAYS]; slots], extrema: None, exponent: None, groups: None }
    }

    /// Begins a histogram with bins of `2^exponent`, which widen as they must.
    pub fn begin(&mut self, exponent: Option<i32>, share: Share) {
        self.exponent = exponent;
        self.groups = (share == Share::Part).then_some(0);
    }

    /// Adds values, with which groups begin anew; false, and all that was counted is void, if one is NaN or larger than what is counted.
    ///
    /// A partial histogram holds at most [`MOST`] values.
    #[must_use]
    pub fn add(&mut self, values: &[f32]) -> bool {
        for chunk in values.chunks(CHUNK) {
            let found = self.lanes.run(ChunkExtrema(chunk));
            let Some(found) = found.filter(|found| -self.largest <= found.min && found.max <= self.largest) else {
                self.ways.fill([0; WAYS]);
                (self.extrema, self.exponent) = (None, None);
                return false;
            };
            let seen = self.extrema.map_or(found, |seen| seen.union(found));
            if self.bins > 0 {
                self.widen_to(seen);
                match self.groups {
                    None => self.count(chunk, 1, Tails::NONE),
                    Some(groups) => self.count_part(chunk, groups, seen, found),
                }
            }
            self.extrema = Some(seen);
        }
        true
    }

    /// The counts since `begin`.
    pub fn take(&mut self) -> PartialHistogram {
        let (extrema, exponent) = (self.extrema.take(), self.exponent.take());
        let Some(seen) = extrema.filter(|_| self.bins > 0) else {
            return PartialHistogram { extrema, ..PartialHistogram::default() };
        };
        let zero = 4 * self.bins;
        self.ways[zero + 1] = [0; WAYS];
        let zeros = taken(&mut self.ways[zero..=zero]).iter().map(|&count| u64::from(count)).sum();
        let (above, below) =
            exponent.map_or((0, 0), |exponent| (slots_up_to(seen.max, exponent), slots_up_to(-seen.min, exponent)));
        let positive = taken(&mut self.ways[..above]);
        let negative = taken(&mut self.ways[2 * self.bins..][..below]);
        PartialHistogram { extrema, exponent, zeros, negative, positive }
    }

    /// Merges neighbouring bins until all values fit.
    fn widen_to(&mut self, seen: Extrema) {
        let wanted = width_exponent(seen.max.max(-seen.min), self.bins);
        if wanted <= self.exponent {
            return;
        }
        if let (Some(old), Some(new), Some(counted)) = (self.exponent, wanted, self.extrema) {
            let (positive, negative) = self.ways.split_at_mut(2 * self.bins);
            halve(&mut positive[..slots_up_to(counted.max, old)], new.abs_diff(old), add);
            halve(&mut negative[..slots_up_to(-counted.min, old)], new.abs_diff(old), add);
        }
        self.exponent = wanted;
    }

    /// Counts runs of a chunk, and its large values, where there are `groups` before it; `seen` with it.
    fn count_part(&mut self, chunk: &[f32], groups: u32, seen: Extrema, found: Extrema) {
        self.groups = Some(groups + chunk.len().div_ceil(GROUP) as u32);
        let mut tails = Tails::of(seen);
        let mut large = [0.0; 2 * FEW];
        let mut few = 0;
        if tails.has_large_value(found.min) || tails.has_large_value(found.max) {
            (tails, few) = self.lanes.run(CopyLarge { chunk, tails, kept: &mut large });
        }
        let mut kept = [0.0; CHUNK / GROUP * RUN];
        let count = copy_runs(chunk, groups, &mut kept);
        self.count(&kept[..count], (GROUP / RUN) as u32, tails);
        self.count(&large[..few], 1, Tails::NONE);
    }

    /// Counts values outside of `tails`, each so many times.
    fn count(&mut self, chunk: &[f32], times: u32, tails: Tails) {
        let (lanes, bins, ways) = (self.lanes, self.bins as u32, &mut self.ways);
        match self.exponent {
            None => ways[4 * bins as usize][0] += times * chunk.len() as u32,
            // A power of two: the product is the exact quotient by the bin width.
            Some(exponent) => lanes.run(Count { chunk, times, tails, per_width: 2.0f32.powi(-exponent), bins, ways }),
        }
    }
}

/// Counts values outside of `tails`, each so many times.
struct Count<'a> {
    chunk: &'a [f32],
    times: u32,
    tails: Tails,
    per_width: f32,
    bins: u32,
    ways: &'a mut [[u32; WAYS]],
}

impl Work for Count<'_> {
    type Result = ();

    #[inline(always)]
    fn done(self) {
        let Self { chunk, times, tails, per_width, bins, ways } = self;
        let (below, zero) = (2 * bins, 4 * bins);
        let mut slots = [0u32; SLOTS];
        for block in chunk.chunks(SLOTS) {
            for (slot, &value) in slots.iter_mut().zip(block) {
                let sign = (value.to_bits() as i32 >> 31) as u32;
                let signed = floor(value.abs() * per_width) + (sign & below);
                // Both zeros are zero.
                let slotted = if value == 0.0 { zero } else { signed };
                *slot = if tails.has_large_value(value) { zero + 1 } else { slotted };
            }
            let (groups, rest) = slots[..block.len()].as_chunks::<WAYS>();
            for group in groups {
                for way in 0..WAYS {
                    ways[group[way] as usize][way] += times;
                }
            }
            for &slot in rest {
                ways[slot as usize][0] += times;
            }
        }
    }
}

/// Copies one run of every group, of which the last may lack some or all of it; gives how many values these are.
fn copy_runs(chunk: &[f32], groups: u32, kept: &mut [f32; CHUNK / GROUP * RUN]) -> usize {
    let (whole, rest) = chunk.as_chunks::<GROUP>();
    let (runs, _) = kept.as_chunks_mut::<RUN>();
    for ((group, run), number) in whole.iter().zip(runs).zip(groups..) {
        run.copy_from_slice(&group[first_of_run(number)..][..RUN]);
    }
    let count = whole.len() * RUN;
    let from = first_of_run(groups + whole.len() as u32).min(rest.len());
    let last = &rest[from..rest.len().min(from + RUN)];
    kept[count..][..last.len()].copy_from_slice(last);
    count + last.len()
}

/// Copies the large values, at most [`FEW`] on either side; gives the sides that are copied, and their number.
struct CopyLarge<'a> {
    chunk: &'a [f32],
    tails: Tails,
    kept: &'a mut [f32; 2 * FEW],
}

impl Work for CopyLarge<'_> {
    type Result = (Tails, usize);

    #[inline(always)]
    fn done(self) -> (Tails, usize) {
        let tails = self.tails.with_few(self.chunk);
        let mut places = self.kept.iter_mut();
        for group in self.chunk.chunks(GROUP).filter(|group| tails.has_any_large_value(group)) {
            for run in group.chunks(RUN).filter(|run| tails.has_any_large_value(run)) {
                let large = run.iter().filter(|value| tails.has_large_value(**value));
                large.zip(&mut places).for_each(|(&value, place)| *place = value);
            }
        }
        (tails, 2 * FEW - places.len())
    }
}

impl Tails {
    const NONE: Self = Self { low: f32::NEG_INFINITY, high: f32::INFINITY };

    /// The values beyond [`LARGE`] times the extrema.
    fn of(seen: Extrema) -> Self {
        Self {
            low: if seen.min < 0.0 { LARGE * seen.min } else { f32::NEG_INFINITY },
            high: if seen.max > 0.0 { LARGE * seen.max } else { f32::INFINITY },
        }
    }

    /// The sides on which a chunk has at most [`FEW`] values.
    #[inline(always)]
    fn with_few(self, chunk: &[f32]) -> Self {
        let below: u32 = chunk.iter().map(|&value| u32::from(value <= self.low)).sum();
        let above: u32 = chunk.iter().map(|&value| u32::from(value >= self.high)).sum();
        Self {
            low: if below as usize <= FEW { self.low } else { f32::NEG_INFINITY },
            high: if above as usize <= FEW { self.high } else { f32::INFINITY },
        }
    }

    #[inline(always)]
    fn has_any_large_value(self, values: &[f32]) -> bool {
        values.iter().fold(false, |any, &value| any | self.has_large_value(value))
    }

    #[inline(always)]
    fn has_large_value(self, value: f32) -> bool {
        (value <= self.low) | (value >= self.high)
    }
}

/// Where the run of a group begins: its number, scattered by multiplications (C. Wellons, "lowbias32").
#[inline(always)]
fn first_of_run(group: u32) -> usize {
    let mut mixed = group;
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x7feb_352d);
    mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
    (mixed ^ (mixed >> 16)) as usize % (GROUP / RUN) * RUN
}

fn add(into: &mut [u32; WAYS], counts: [u32; WAYS]) {
    for (into, count) in into.iter_mut().zip(counts) {
        *into += count;
    }
}

/// Number of bins of `2^exponent` up to that of a magnitude.
fn slots_up_to(magnitude: f32, exponent: i32) -> usize {
    if magnitude > 0.0 { (magnitude * 2.0f32.powi(-exponent)) as usize + 1 } else { 0 }
}

/// Sums of the counters, which are zero after that.
fn taken(ways: &mut [[u32; WAYS]]) -> Vec<u32> {
    ways.iter_mut().map(|ways| std::mem::take(ways).into_iter().sum()).collect()
}

/// `floor(x)` for `0 <= x < 2^22`; unlike a cast, which saturates, it is a few instructions on many lanes.
///
/// Beside 2^23 a float has no fraction: the sum's last bits are x rounded to an integer, which may be one more.
#[inline(always)]
fn floor(x: f32) -> u32 {
    const UNIT: f32 = 8_388_608.0;
    let sum = x + UNIT;
    (sum.to_bits() & 0x007f_ffff) - u32::from(sum - UNIT > x)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The counted values of those added at once, value by value, and how often each; `seen` and `groups` go on.
    pub(crate) fn counted_part(values: &[f32], groups: &mut u32, seen: &mut (f32, f32)) -> Vec<(f32, u64)> {
        let mut counted = Vec::new();
        for chunk in values.chunks(CHUNK) {
            *seen = chunk.iter().fold(*seen, |(min, max), &value| (value.min(min), value.max(max)));
            let below = |value: f32| value < 0.0 && value <= 0.625 * seen.0;
            let above = |value: f32| value > 0.0 && value >= 0.625 * seen.1;
            let few = |large: &dyn Fn(f32) -> bool| chunk.iter().filter(|value| large(**value)).count() <= FEW;
            let (few_below, few_above) = (few(&below), few(&above));
            let is_apart = |value: f32| (few_below && below(value)) || (few_above && above(value));
            for (at, &value) in chunk.iter().enumerate() {
                let run = first_of_run(*groups + (at / GROUP) as u32);
                let in_run = (run..run + RUN).contains(&(at % GROUP));
                match (is_apart(value), in_run) {
                    (true, _) => counted.push((value, 1)),
                    (false, true) => counted.push((value, 4)),
                    (false, false) => {}
                }
            }
            *groups += chunk.len().div_ceil(GROUP) as u32;
        }
        counted
    }

    #[test]
    fn runs_begin_everywhere_equally_often_whatever_the_width_of_images() {
        for width in 1..600 {
            let mut begun = [0u32; GROUP / RUN];
            (0..1000).for_each(|row| begun[first_of_run(row * width) / RUN] += 1);
            // 250 on average, with a standard deviation of 14.
            assert!(begun.iter().all(|count| (180..320).contains(count)), "{width} {begun:?}");
        }
    }

    proptest! {
        #[test]
        fn floors_are_those_of_casts(x in 0.0f32..4_194_304.0, small in 0.0f32..2.0, whole in 0u32..4_194_304) {
            let near = [(whole as f32).next_down().max(0.0), whole as f32, (whole as f32).next_up().min(4_194_303.9)];
            for x in [x, small, near[0], near[1], near[2], f32::from_bits(whole)] {
                prop_assert_eq!(floor(x), x as u32);
            }
        }
    }
}
