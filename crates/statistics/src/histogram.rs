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
//! Where a part of the values was looked at, each stands for as many as were not: counts are estimates of those of
//! all. Extrema, and hence widths, are always those of all values.
//!
//! Exact zeros are apart because they are many (ReLU) and every quantiser represents them exactly.

use tpuflow_kernels::isa::Isa;

use crate::extrema::count_not_finite;
use crate::partial_histogram::{self, Counters, PartialHistogram, Share};
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

/// The fields of a [`Histogram`], to store it or send it elsewhere.
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

    /// Adds `values` and returns their extrema, if there are any.
    ///
    /// # Errors
    /// `NotFinite`, and nothing is counted, if any is NaN or infinite.
    pub fn observe(&mut self, values: &[f32]) -> Result<Option<Extrema>, StatisticsError> {
        self.observe_share(values, Share::All)
    }

    /// Adds the extrema of `values`, and the counts of all or a part of them.
    pub(crate) fn observe_share(&mut self, values: &[f32], share: Share) -> Result<Option<Extrema>, StatisticsError> {
        let mut counters = Counters::new(self.bins, f32::MAX, Isa::selected().lanes());
        let mut parts = Vec::new();
        for part in values.chunks(partial_histogram::MOST) {
            counters.begin(self.exponent, share);
            if !counters.add(part) {
                return Err(StatisticsError::NotFinite(count_not_finite(values)));
            }
            parts.push(counters.take());
        }
        parts.iter().for_each(|part| self.add(part));
        Ok(parts.iter().filter_map(|part| part.extrema).reduce(Extrema::union))
    }

    /// Adds what was counted of some values.
    pub(crate) fn add(&mut self, part: &PartialHistogram) {
        let Some(extrema) = part.extrema else { return };
        self.widen_to(extrema);
        self.zeros += part.zeros;
        if let (Some(ours), Some(theirs)) = (self.exponent, part.exponent) {
            add_merged(&mut self.negative, &part.negative, ours.abs_diff(theirs));
            add_merged(&mut self.positive, &part.positive, ours.abs_diff(theirs));
        }
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
            add_merged(&mut self.negative, &other.negative, doublings);
            add_merged(&mut self.positive, &other.positive, doublings);
        }
        Ok(())
    }

    fn widen_to(&mut self, extrema: Extrema) {
        let extrema = self.extrema.map_or(extrema, |seen| seen.union(extrema));
        self.extrema = Some(extrema);
        let exponent = width_exponent(extrema.max.max(-extrema.min), self.bins);
        if let (Some(new), Some(old)) = (exponent, self.exponent) {
            halve(&mut self.negative, new.abs_diff(old), |into, count| *into += count);
            halve(&mut self.positive, new.abs_diff(old), |into, count| *into += count);
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

    /// log2 of the bin width.
    pub(crate) fn exponent(&self) -> Option<i32> {
        self.exponent
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
        sums.truncate(used_length(&sums));
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
pub(crate) fn used_length(counts: &[u64]) -> usize {
    counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1)
}

/// log2 of the bin width for values up to `magnitude`; `None` for 0.
pub(crate) fn width_exponent(magnitude: f32, bins: usize) -> Option<i32> {
    // The exponent field; subnormals read as -127 and end at the least width, where they fit easily.
    let exponent = ((magnitude.to_bits() >> 23) & 0xff) as i32 - 127;
    (magnitude > 0.0).then(|| (exponent - bins.trailing_zeros() as i32).max(MIN_EXPONENT))
}

/// Merges neighbouring bins `doublings` times.
pub(crate) fn halve<T: Copy + Default>(counts: &mut [T], doublings: u32, add: impl Fn(&mut T, T)) {
    if doublings == 0 {
        return;
    }
    for from in 0..counts.len() {
        let count = std::mem::take(&mut counts[from]);
        add(&mut counts[merged_bin(from, doublings)], count);
    }
}

/// Adds bins that are each merged `doublings` times with their neighbours.
fn add_merged<T: Copy + Into<u64>>(into: &mut [u64], from: &[T], doublings: u32) {
    for (bin, &count) in from.iter().enumerate() {
        into[merged_bin(bin, doublings)] += count.into();
    }
}

fn merged_bin(bin: usize, doublings: u32) -> usize {
    bin.checked_shr(doublings).unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extrema;

    /// The definition: the range first, then one count after the other.
    pub(crate) fn reference(values: &[f32], bins: usize) -> Histogram {
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
            assert_eq!(histogram.observe(batch).unwrap(), extrema(batch).unwrap());
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
    fn refusals() {
        for bins in [0, 1, 3, 1000, 1 << 17] {
            assert_eq!(Histogram::new(bins), Err(StatisticsError::Bins(bins)));
        }
        let mut histogram = observed(&[&[1.0, -2.0]], 4);
        assert_eq!(histogram.merge(&Histogram::new(8).unwrap()), Err(StatisticsError::MergeBins(4, 8)));
        let before = histogram.clone();
        assert_eq!(histogram.observe(&[0.0, f32::INFINITY]), Err(StatisticsError::NotFinite(1)));
        assert_eq!(histogram, before);
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
