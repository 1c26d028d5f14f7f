//! The magnitude that a given share of the values stays within.

use crate::{Histogram, Range, StatisticsError};

/// The seen range, cut at the magnitude T that `percentile` percent of all values do not exceed:
/// `(max(min, -T), min(max, T))`, with zero included. T is interpolated linearly within its bin, so it
/// is off by less than a bin width; 100 gives the seen range itself.
///
/// # Errors
/// `Percentile` unless `0 < percentile <= 100`.
pub fn percentile_range(histogram: &Histogram, percentile: f64) -> Result<Range, StatisticsError> {
    if !(percentile > 0.0 && percentile <= 100.0) {
        return Err(StatisticsError::Percentile(percentile));
    }
    let (low, high) = histogram.range();
    if percentile == 100.0 {
        return Ok((low, high)); // also where the extremes are none of the values counted
    }
    let threshold = magnitude_quantile(histogram, percentile / 100.0);
    Ok((low.max(-threshold), high.min(threshold)))
}

fn magnitude_quantile(histogram: &Histogram, share: f64) -> f64 {
    let wanted = share * histogram.count() as f64;
    let mut below = histogram.zeros() as f64;
    if wanted <= below {
        return 0.0;
    }
    let magnitudes = histogram.magnitudes();
    for (bin, &count) in magnitudes.iter().enumerate() {
        let count = count as f64;
        if below + count >= wanted {
            return (bin as f64 + (wanted - below) / count) * histogram.width();
        }
        below += count;
    }
    magnitudes.len() as f64 * histogram.width()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::new(2048).unwrap();
        histogram.observe(values).unwrap();
        histogram
    }

    proptest! {
        #[test]
        fn within_a_bin_of_the_sorted_magnitudes(values in prop::collection::vec(prop_oneof![-9.0f32..4.0, Just(0.0f32)], 1..300), percentile in 0.1f64..100.0) {
            let mut sorted: Vec<f64> = values.iter().map(|&v| f64::from(v).abs()).collect();
            sorted.sort_by(f64::total_cmp);
            // The least magnitude that enough values do not exceed.
            let rank = (percentile / 100.0 * values.len() as f64).ceil() as usize;
            let quantile = sorted[rank.clamp(1, values.len()) - 1];
            let histogram = histogram(&values);
            let found = magnitude_quantile(&histogram, percentile / 100.0);
            prop_assert!((found - quantile).abs() <= histogram.width() * 1.000001, "{found} {quantile}");
        }

        #[test]
        fn the_hundredth_is_the_whole_range(values in prop::collection::vec(-9.0f32..4.0, 1..100)) {
            let histogram = histogram(&values);
            prop_assert_eq!(percentile_range(&histogram, 100.0), Ok(histogram.range()));
        }
    }

    #[test]
    fn known_distribution() {
        // Uniform over [0, 1]: the p-th percentile is p / 100.
        let values: Vec<f32> = (0..100_000).map(|i| i as f32 / 100_000.0).collect();
        let (low, high) = percentile_range(&histogram(&values), 90.0).unwrap();
        assert_eq!(low, 0.0);
        assert!((high - 0.9).abs() < 1e-3, "{high}");
        // The short side is left alone.
        let values: Vec<f32> = values.iter().map(|v| v - 0.01).collect();
        let (low, high) = percentile_range(&histogram(&values), 50.0).unwrap();
        assert_eq!(low, f64::from(-0.01f32));
        assert!((high - 0.49).abs() < 1e-3, "{high}");
    }

    #[test]
    fn refusals_and_nothing_seen() {
        let empty = Histogram::new(2).unwrap();
        for percentile in [0.0, -1.0, 100.1, f64::NAN] {
            assert!(matches!(percentile_range(&empty, percentile), Err(StatisticsError::Percentile(_))));
        }
        assert_eq!(percentile_range(&empty, 99.0), Ok((0.0, 0.0)));
        assert_eq!(percentile_range(&histogram(&[0.0, 0.0]), 99.0), Ok((0.0, 0.0)));
    }
}
