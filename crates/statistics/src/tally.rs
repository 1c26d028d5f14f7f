//! Extrema and counts of values in one pass, a few at a time while they are in the nearest cache.
//!
//! Calibration sees far more values than any cache holds, and reading them is what takes time: each chunk is
//! looked at twice, for its extrema and for its counts, but read from memory once.
//!
//! Neighbouring values often fall into one bin, and an increment must wait for the one before it to be stored: each
//! of [`WAYS`] neighbours has a counter of its own, next to each other in one cache line.

use tpuflow_kernels::isa::Lanes;

use crate::Extrema;
use crate::extrema::chunk_extrema;
use crate::histogram::{halve, width_exponent};

/// Values looked at together: 16 KiB.
const CHUNK: usize = 1 << 12;
const WAYS: usize = 4;
/// Values whose slots are computed apart from counting, which vectorises.
const SLOTS: usize = 256;

/// Values one [`Tally`] can hold: its counts are u32.
pub(crate) const MOST: usize = u32::MAX as usize;

/// What was counted: by magnitude, up to the last bin in use, in bins of `2^exponent`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Tally {
    /// Smallest and largest value; `None` without any.
    pub extrema: Option<Extrema>,
    /// log2 of the bin width; `None` without values other than zero.
    pub exponent: Option<i32>,
    pub zeros: u64,
    pub negative: Vec<u32>,
    pub positive: Vec<u32>,
}

/// Counters to be used again and again; all zero between two tallies.
#[derive(Debug)]
pub(crate) struct Counters {
    lanes: Lanes,
    /// Largest magnitude that is counted.
    largest: f32,
    /// Least number of bins up to the largest magnitude; 0 to look for extrema only.
    bins: usize,
    /// `[positive by magnitude | negative by magnitude | zeros]`, with `2 * bins` magnitudes.
    ways: Vec<[u32; WAYS]>,
    extrema: Option<Extrema>,
    exponent: Option<i32>,
}

impl Counters {
    /// Counters of at least `bins` bins, a power of two, or 0 for extrema alone, of values up to a magnitude.
    pub fn new(bins: usize, largest: f32, lanes: Lanes) -> Self {
        let slots = if bins == 0 { 0 } else { 4 * bins + 1 };
        Self { lanes, largest, bins, ways: vec![[0; WAYS]; slots], extrema: None, exponent: None }
    }

    /// Begins a tally with bins of `2^exponent`, which widen as they must.
    pub fn begin(&mut self, exponent: Option<i32>) {
        self.exponent = exponent;
    }

    /// Adds values; false, and all that was counted is void, if one is NaN or larger than what is counted.
    ///
    /// A tally holds at most [`MOST`] values.
    #[must_use]
    pub fn add(&mut self, values: &[f32]) -> bool {
        for chunk in values.chunks(CHUNK) {
            let found = self.lanes.run(|| chunk_extrema(chunk));
            let Some(found) = found.filter(|found| -self.largest <= found.min && found.max <= self.largest) else {
                self.ways.fill([0; WAYS]);
                (self.extrema, self.exponent) = (None, None);
                return false;
            };
            let seen = self.extrema.map_or(found, |seen| seen.union(found));
            if self.bins > 0 {
                self.widen_to(seen);
                self.count(chunk);
            }
            self.extrema = Some(seen);
        }
        true
    }

    /// What was counted since `begin`.
    pub fn take(&mut self) -> Tally {
        let (extrema, exponent) = (self.extrema.take(), self.exponent.take());
        let Some(seen) = extrema.filter(|_| self.bins > 0) else { return Tally { extrema, ..Tally::default() } };
        let zero = self.ways.len() - 1;
        let zeros = taken(&mut self.ways[zero..]).iter().map(|&count| u64::from(count)).sum();
        let (above, below) =
            exponent.map_or((0, 0), |exponent| (slots_up_to(seen.max, exponent), slots_up_to(-seen.min, exponent)));
        let positive = taken(&mut self.ways[..above]);
        let negative = taken(&mut self.ways[2 * self.bins..][..below]);
        Tally { extrema, exponent, zeros, negative, positive }
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

    fn count(&mut self, chunk: &[f32]) {
        let (ways, below, zero) = (&mut self.ways, 2 * self.bins as u32, 4 * self.bins as u32);
        let Some(exponent) = self.exponent else {
            ways[zero as usize][0] += chunk.len() as u32;
            return;
        };
        // A power of two: the product is the exact quotient by the bin width.
        let per_width = 2.0f32.powi(-exponent);
        let mut slots = [0u32; SLOTS];
        self.lanes.run(
            #[inline(always)]
            || {
                for block in chunk.chunks(SLOTS) {
                    for (slot, &value) in slots.iter_mut().zip(block) {
                        let sign = (value.to_bits() as i32 >> 31) as u32;
                        let signed = floor(value.abs() * per_width) + (sign & below);
                        // Both zeros are zero.
                        *slot = if value == 0.0 { zero } else { signed };
                    }
                    let mut groups = slots[..block.len()].chunks_exact(WAYS);
                    for group in &mut groups {
                        for way in 0..WAYS {
                            ways[group[way] as usize][way] += 1;
                        }
                    }
                    for &slot in groups.remainder() {
                        ways[slot as usize][0] += 1;
                    }
                }
            },
        );
    }
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
mod tests {
    use proptest::prelude::*;

    use super::*;

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
