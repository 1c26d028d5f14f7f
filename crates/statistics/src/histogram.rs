//! A histogram that widens exactly.
//!
//! With the largest magnitude in `[2^e, 2^(e+1))` and a resolution of B = 2^b bins, every bin is
//! `w = 2^(e-b)` wide, so between B and 2B bins reach from zero to the largest magnitude. Values on
//! both sides of zero are counted by magnitude, `m = floor(|x| / w)`:
//!
//! ```text
//!   negative  ... [ 2 ][ 1 ][ 0 ] 0 [ 0 ][ 1 ][ 2 ] ...  positive      exact zeros are counted apart
//! ```
//!
//! When a larger magnitude arrives, w doubles as often as needed and bins 2m and 2m + 1 merge into m.
//! Since `floor(floor(y) / 2) = floor(y / 2)`, the counts are those of a histogram that had known its
//! range from the start. They are a function of the multiset of values, whatever the order.
//!
//! Exact zeros are apart because they are many (ReLU) and every quantiser represents them exactly.

use rayon::prelude::*;

use crate::extrema::count_not_finite;
use crate::{Extrema, StatisticsError};

/// Counts of values by sign and magnitude.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bins: usize,
    /// log2 of the bin width; `None` until a value other than zero was seen.
    exponent: Option<i32>,
    zeros: u64,
    /// By magnitude, `2 * bins` each.
    negative: Vec<u64>,
    positive: Vec<u64>,
    extrema: Option<Extrema>,
}

/// What a [`Histogram`] consists of, to store it or send it elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramParts {
    /// Least number of bins from zero to the largest magnitude.
    pub bins: usize,
    /// log2 of the bin width.
    pub exponent: Option<i32>,
    /// Count of exact zeros.
    pub zeros: u64,
    /// Counts below zero by magnitude, `2 * bins`.
    pub negative: Vec<u64>,
    /// Counts above zero by magnitude, `2 * bins`.
    pub positive: Vec<u64>,
    /// Smallest and largest value.
    pub extrema: Option<Extrema>,
}

/// Smallest exponent of a bin width: its reciprocal is still a finite f32.
const MIN_EXPONENT: i32 = -126;

impl Histogram {
    /// An empty histogram with at least `bins` bins from zero to the largest magnitude.
    ///
    /// # Errors
    /// `Bins` unless `bins` is a power of two from 2 to 65536.
    pub fn new(bins: usize) -> Result<Self, StatisticsError> {
        if !bins.is_power_of_two() || !(2..=1 << 16).contains(&bins) {
            return Err(StatisticsError::Bins(bins));
        }
        let empty = vec![0; 2 * bins];
        Ok(Self { bins, exponent: None, zeros: 0, negative: empty.clone(), positive: empty, extrema: None })
    }

    /// Rebuilds a histogram from its parts.
    ///
    /// # Errors
    /// `Bins` as in [`new`](Self::new); `Parts` if lengths, width and counts do not fit together.
    pub fn from_parts(parts: HistogramParts) -> Result<Self, StatisticsError> {
        let HistogramParts { bins, exponent, zeros, negative, positive, extrema } = parts;
        Self::new(bins)?;
        if negative.len() != 2 * bins || positive.len() != 2 * bins {
            return Err(StatisticsError::Parts("each side has 2 * bins counts"));
        }
        let magnitude = extrema.map_or(0.0, |e: Extrema| e.max.max(-e.min));
        if !magnitude.is_finite() || exponent != width_exponent(magnitude, bins) {
            return Err(StatisticsError::Parts("the bin width does not follow from the extrema"));
        }
        let counted = zeros > 0 || negative.iter().chain(&positive).any(|&count| count > 0);
        if counted != extrema.is_some() {
            return Err(StatisticsError::Parts("counts and extrema go together"));
        }
        Ok(Self { bins, exponent, zeros, negative, positive, extrema })
    }

    /// The parts [`from_parts`](Self::from_parts) takes.
    pub fn parts(&self) -> HistogramParts {
        HistogramParts {
            bins: self.bins,
            exponent: self.exponent,
            zeros: self.zeros,
            negative: self.negative.clone(),
            positive: self.positive.clone(),
            extrema: self.extrema,
        }
    }

    /// Adds `values`, whose extrema the caller has at hand.
    ///
    /// # Errors
    /// `NotFinite`, and nothing is counted, if `extrema` is not finite.
    pub fn observe(&mut self, values: &[f32], extrema: Extrema) -> Result<(), StatisticsError> {
        if !extrema.min.is_finite() || !extrema.max.is_finite() {
            return Err(StatisticsError::NotFinite(count_not_finite(values)));
        }
        self.widen_to(extrema);
        let Some(exponent) = self.exponent else {
            self.zeros += values.len() as u64;
            return Ok(());
        };
        // A power of two: the product is the exact quotient by the bin width.
        let per_width = 2.0f32.powi(-exponent);
        let bins = |magnitude: f32| if magnitude > 0.0 { (magnitude * per_width) as usize + 1 } else { 0 };
        let (above, below) = (bins(extrema.max), bins(-extrema.min));
        let counts = values.par_chunks(BLOCK).map(|block| tally(block, per_width, above, below)).reduce_with(
            |mut left, right| {
                add(&mut left, &right);
                left
            },
        );
        if let Some(counts) = counts {
            add(&mut self.positive, &counts[..above]);
            add(&mut self.negative, &counts[above..above + below]);
            self.zeros += counts[above + below];
        }
        Ok(())
    }

    /// Adds the counts of `other`: the result is the histogram of all values of both.
    ///
    /// # Errors
    /// `MergeBins` if the resolutions differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), StatisticsError> {
        if self.bins != other.bins {
            return Err(StatisticsError::MergeBins(self.bins, other.bins));
        }
        let Some(extrema) = other.extrema else { return Ok(()) };
        self.widen_to(extrema);
        self.zeros += other.zeros;
        if let (Some(ours), Some(theirs)) = (self.exponent, other.exponent) {
            let doublings = ours.abs_diff(theirs);
            for (into, from) in [(&mut self.negative, &other.negative), (&mut self.positive, &other.positive)] {
                let mut from = from.clone();
                halve(&mut from, doublings);
                add(into, &from);
            }
        }
        Ok(())
    }

    fn widen_to(&mut self, extrema: Extrema) {
        let extrema = self.extrema.map_or(extrema, |seen| seen.union(extrema));
        self.extrema = Some(extrema);
        let exponent = width_exponent(extrema.max.max(-extrema.min), self.bins);
        if let (Some(new), Some(old)) = (exponent, self.exponent) {
            halve(&mut self.negative, new.abs_diff(old));
            halve(&mut self.positive, new.abs_diff(old));
        }
        self.exponent = exponent;
    }

    /// Least number of bins from zero to the largest magnitude.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// Width of a bin; 0 while only zeros were seen.
    pub fn width(&self) -> f64 {
        self.exponent.map_or(0.0, |exponent| 2.0f64.powi(exponent))
    }

    /// Number of exact zeros.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// Counts of values below zero, by magnitude.
    pub fn negative(&self) -> &[u64] {
        &self.negative
    }

    /// Counts of values above zero, by magnitude.
    pub fn positive(&self) -> &[u64] {
        &self.positive
    }

    /// Counts of all values other than zero, by magnitude, up to the last bin in use.
    pub fn magnitudes(&self) -> Vec<u64> {
        let mut sums: Vec<u64> = self.negative.iter().zip(&self.positive).map(|(n, p)| n + p).collect();
        sums.truncate(used(&sums));
        sums
    }

    /// Number of values, zeros included.
    pub fn count(&self) -> u64 {
        self.zeros + self.negative.iter().chain(&self.positive).sum::<u64>()
    }

    /// Smallest and largest value seen, widened to contain zero; `(0, 0)` without values.
    pub fn range(&self) -> (f64, f64) {
        self.extrema.map_or((0.0, 0.0), |e| (f64::from(e.min.min(0.0)), f64::from(e.max.max(0.0))))
    }

    /// Smallest and largest value seen.
    pub fn extrema(&self) -> Option<Extrema> {
        self.extrema
    }
}

/// Length of `counts` without the zeros at its end.
pub(crate) fn used(counts: &[u64]) -> usize {
    counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1)
}

/// log2 of the bin width for values up to `magnitude`; `None` for 0.
fn width_exponent(magnitude: f32, bins: usize) -> Option<i32> {
    // The exponent field; subnormals read as -127 and end at the least width, where they fit easily.
    let exponent = ((magnitude.to_bits() >> 23) & 0xff) as i32 - 127;
    (magnitude > 0.0).then(|| (exponent - bins.trailing_zeros() as i32).max(MIN_EXPONENT))
}

/// Merges neighbouring bins `doublings` times.
fn halve(counts: &mut [u64], doublings: u32) {
    if doublings == 0 {
        return;
    }
    for from in 0..counts.len() {
        let count = std::mem::take(&mut counts[from]);
        counts[from.checked_shr(doublings).unwrap_or(0)] += count;
    }
}

fn add(into: &mut [u64], from: &[u64]) {
    for (into, from) in into.iter_mut().zip(from) {
        *into += from;
    }
}

/// Values counted by one task: enough to be worth a table, few enough for its u32 counts.
const BLOCK: usize = 1 << 20;
/// Below this, adding up interleaved tables costs more than they save.
const INTERLEAVED: usize = 1 << 14;
const WAYS: usize = 4;
const SLOTS: usize = 256;

/// Counts as `[positive by magnitude | negative by magnitude | zeros]`, of so many bins `above` and `below` zero.
///
/// Neighbouring values often fall into one bin, and an increment must wait for the one before it to be
/// stored: each of `WAYS` neighbours has a counter of its own, next to each other in one cache line.
fn tally(values: &[f32], per_width: f32, above: usize, below: usize) -> Vec<u64> {
    let mut counts = vec![0u64; above + below + 1];
    if values.len() < INTERLEAVED {
        for_each_slots(values, per_width, above, below, |slots| {
            for &slot in slots {
                counts[slot as usize] += 1;
            }
        });
        return counts;
    }
    let mut ways = vec![[0u32; WAYS]; counts.len()];
    for_each_slots(values, per_width, above, below, |slots| {
        let mut groups = slots.chunks_exact(WAYS);
        for group in &mut groups {
            for way in 0..WAYS {
                ways[group[way] as usize][way] += 1;
            }
        }
        for &slot in groups.remainder() {
            ways[slot as usize][0] += 1;
        }
    });
    for (count, ways) in counts.iter_mut().zip(&ways) {
        *count = ways.iter().map(|&way| u64::from(way)).sum();
    }
    counts
}

/// Slot of every value, in groups: computing them apart from counting vectorises.
fn for_each_slots(values: &[f32], per_width: f32, above: usize, below: usize, mut count: impl FnMut(&[u32])) {
    let (above, zero) = (above as u32, (above + below) as u32);
    let mut slots = [0u32; SLOTS];
    for block in values.chunks(SLOTS) {
        for (slot, &value) in slots.iter_mut().zip(block) {
            let sign = (value.to_bits() as i32 >> 31) as u32;
            let signed = floor(value.abs() * per_width) + (sign & above);
            // Both zeros are zero.
            *slot = if value == 0.0 { zero } else { signed };
        }
        count(&slots[..block.len()]);
    }
}

/// `floor(x)` for `0 <= x < 2^22`; unlike a cast, which saturates, it is a few instructions on many lanes.
///
/// Beside 2^23 a float has no fraction: the sum's last bits are x rounded to an integer, which may be one more.
fn floor(x: f32) -> u32 {
    const UNIT: f32 = 8_388_608.0;
    let sum = x + UNIT;
    (sum.to_bits() & 0x007f_ffff) - u32::from(sum - UNIT > x)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extrema;

    proptest! {
        #[test]
        fn floors_are_those_of_casts(x in 0.0f32..4_194_304.0, small in 0.0f32..2.0, whole in 0u32..4_194_304) {
            let near = [(whole as f32).next_down().max(0.0), whole as f32, (whole as f32).next_up().min(4_194_303.9)];
            for x in [x, small, near[0], near[1], near[2], f32::from_bits(whole)] {
                prop_assert_eq!(floor(x), x as u32);
            }
        }
    }

    /// The definition: the range first, then one count after the other.
    fn reference(values: &[f32], bins: usize) -> Histogram {
        let mut histogram = Histogram::new(bins).unwrap();
        histogram.extrema = extrema(values).unwrap();
        let magnitude = values.iter().fold(0.0f64, |m, &v| m.max(f64::from(v).abs()));
        if magnitude > 0.0 {
            let mut exponent = -200;
            while magnitude / 2.0f64.powi(exponent) >= 2.0 * bins as f64 {
                exponent += 1;
            }
            histogram.exponent = Some(exponent.max(MIN_EXPONENT));
        }
        for &value in values {
            let bin = (f64::from(value).abs() / histogram.width()).floor() as usize;
            if value == 0.0 {
                histogram.zeros += 1;
            } else if value > 0.0 {
                histogram.positive[bin] += 1;
            } else {
                histogram.negative[bin] += 1;
            }
        }
        histogram
    }

    fn observed(batches: &[&[f32]], bins: usize) -> Histogram {
        let mut histogram = Histogram::new(bins).unwrap();
        for batch in batches {
            if let Some(extrema) = extrema(batch).unwrap() {
                histogram.observe(batch, extrema).unwrap();
            }
        }
        histogram
    }

    fn values() -> impl Strategy<Value = Vec<f32>> {
        let any_size = (-1.0f32..1.0, -150i32..127).prop_map(|(m, e)| m * 2.0f32.powi(e));
        let same_size = -3.0f32..5.0;
        prop::collection::vec(
            prop_oneof![4 => same_size, 1 => any_size, 1 => Just(0.0), 1 => Just(-0.0), 1 => Just(1.0), 1 => Just(-2.0)],
            0..200,
        )
    }

    proptest! {
        #[test]
        fn counts_equal_those_of_a_known_range(values in values(), bins in prop::sample::select(vec![2usize, 16, 2048])) {
            prop_assert_eq!(observed(&[&values], bins), reference(&values, bins));
        }

        #[test]
        fn batches_in_any_order_and_shards_give_the_same(values in values(), cuts in prop::array::uniform2(any::<prop::sample::Index>())) {
            let [a, b] = cuts.map(|cut| cut.index(values.len() + 1));
            let (a, b) = (a.min(b), a.max(b));
            let parts = [&values[..a], &values[a..b], &values[b..]];
            let expected = reference(&values, 64);
            prop_assert_eq!(&observed(&parts, 64), &expected);
            prop_assert_eq!(&observed(&[parts[2], parts[0], parts[1]], 64), &expected);
            let mut merged = observed(&[parts[1]], 64);
            merged.merge(&observed(&[parts[2], parts[0]], 64)).unwrap();
            prop_assert_eq!(&merged, &expected);
            prop_assert_eq!(&Histogram::from_parts(merged.parts()).unwrap(), &expected);
        }
    }

    #[test]
    fn the_largest_values_fit() {
        let values = [f32::MAX, -f32::MAX, f32::MIN_POSITIVE, 1e-45];
        assert_eq!(observed(&[&values], 2048), reference(&values, 2048));
        assert_eq!(observed(&[&[1e-45]], 2048).count(), 1);
    }

    #[test]
    fn lengths_around_every_branch() {
        // Lengths on both sides of every branch: counted directly, interleaved, in several blocks.
        for count in [INTERLEAVED - 1, INTERLEAVED, INTERLEAVED + 3, BLOCK + 5, 2 * BLOCK + SLOTS + 1] {
            let values: Vec<f32> = (0..count).map(|i| ((i * 7919) % 10007) as f32 - 3000.0).collect();
            assert_eq!(observed(&[&values], 2048), reference(&values, 2048), "{count}");
        }
    }

    #[test]
    fn refusals() {
        for bins in [0, 1, 3, 1000, 1 << 17] {
            assert_eq!(Histogram::new(bins), Err(StatisticsError::Bins(bins)));
        }
        let mut histogram = observed(&[&[1.0, -2.0]], 4);
        assert_eq!(histogram.merge(&Histogram::new(8).unwrap()), Err(StatisticsError::MergeBins(4, 8)));
        let bad = Extrema { min: 0.0, max: f32::INFINITY };
        assert_eq!(histogram.observe(&[0.0, f32::INFINITY], bad), Err(StatisticsError::NotFinite(1)));
        for change in [
            |p: &mut HistogramParts| p.exponent = Some(0),
            |p: &mut HistogramParts| p.negative.truncate(1),
            |p: &mut HistogramParts| (p.extrema, p.exponent) = (None, None),
        ] {
            let mut parts = histogram.parts();
            change(&mut parts);
            assert!(matches!(Histogram::from_parts(parts), Err(StatisticsError::Parts(_))));
        }
    }
}
