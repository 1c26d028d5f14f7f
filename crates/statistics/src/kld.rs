//! TensorRT's entropy calibration: the threshold whose quantised distribution diverges least.
//!
//! For every candidate threshold of i bins, with L levels:
//!
//! ```text
//!   counts   c0 c1 c2 ... c(i-1) | c(i) ... c(n-1)
//!   P        c0 c1 c2 ... c(i-1) + tail                the reference, tail = c(i) + ... + c(n-1)
//!   Q        the first i counts in L groups, each group's sum spread evenly over the bins where P > 0
//! ```
//!
//! and the threshold minimises KL(P || Q), both normalised. Q is formed without the tail, so a tail too
//! heavy shows as a divergence at the last bin. Source: S. Migacz, "8-bit Inference with TensorRT", 2017.
//!
//! Exact zeros are left out of both: they are represented exactly at every threshold, and the peak a ReLU
//! makes of them would otherwise decide alone. For the same reason the first bin counts no more than the
//! second, as in NVIDIA's pytorch-quantization.
//!
//! As Q is constant within a group, the sum over a group's bins is one product:
//! `sum P ln(P/Q) = sum P ln P - sum over groups (P of the group) ln(Q of a bin of the group)`. With prefix
//! sums a candidate costs L logarithms instead of i.

use crate::{Histogram, Range, StatisticsError};

/// The seen range, cut at the threshold T of least divergence on magnitudes: `(max(min, -T), min(max, T))`.
///
/// `levels` is the number of codes the magnitudes are spread over: half of all codes where both signs
/// occur, all of them for one-sided values. With no more bins in use than levels nothing is cut.
///
/// # Errors
/// `Levels` if `levels < 2`.
pub fn kld_range(histogram: &Histogram, levels: usize) -> Result<Range, StatisticsError> {
    if levels < 2 {
        return Err(StatisticsError::Levels(levels));
    }
    let mut counts: Vec<f64> = histogram.magnitudes().iter().map(|&count| count as f64).collect();
    if let [first, second, ..] = counts.as_mut_slice() {
        *first = first.min(*second);
    }
    let (low, high) = histogram.range();
    let bins = best_threshold(&counts, levels);
    if bins == counts.len() {
        return Ok((low, high));
    }
    let threshold = bins as f64 * histogram.width();
    Ok((low.max(-threshold), high.min(threshold)))
}

/// The number of bins to keep, from `levels` up to all; of equals the largest.
fn best_threshold(counts: &[f64], levels: usize) -> usize {
    let prefix = Prefix::new(counts);
    let mut best = (counts.len(), f64::INFINITY);
    for bins in (levels..counts.len() + 1).rev() {
        let divergence = prefix.divergence(counts, bins, levels);
        if divergence < best.1 {
            best = (bins, divergence);
        }
    }
    best.0
}

/// Sums over the bins before each index.
struct Prefix {
    mass: Vec<f64>,
    entropy: Vec<f64>,
    occupied: Vec<f64>,
}

impl Prefix {
    fn new(counts: &[f64]) -> Self {
        let sums = |term: fn(f64) -> f64| {
            let mut sum = 0.0;
            std::iter::once(0.0)
                .chain(counts.iter().map(|&count| {
                    sum += term(count);
                    sum
                }))
                .collect()
        };
        Self {
            mass: sums(|count| count),
            entropy: sums(count_entropy),
            occupied: sums(|count| f64::from(u8::from(count > 0.0))),
        }
    }

    /// KL(P || Q) of the first `bins` bins; infinite where the tail falls into a group without mass.
    fn divergence(&self, counts: &[f64], bins: usize, levels: usize) -> f64 {
        let total = self.mass[counts.len()];
        let kept = self.mass[bins];
        if kept == 0.0 {
            return f64::INFINITY;
        }
        let tail = total - kept;
        let last = counts[bins - 1];
        // sum over bins of p ln p, in counts: the last bin's term is that with the tail.
        let mut sum = self.entropy[bins - 1] + count_entropy(last + tail);
        let tail_opens_bin = last == 0.0 && tail > 0.0;
        for level in 0..levels {
            let (from, to) = (level * bins / levels, (level + 1) * bins / levels);
            let is_last = level + 1 == levels;
            let group = self.mass[to] - self.mass[from];
            let reference = group + if is_last { tail } else { 0.0 };
            let occupied = self.occupied[to] - self.occupied[from] + f64::from(u8::from(is_last && tail_opens_bin));
            if reference > 0.0 {
                // ln of group 0 is -infinity: a reference with mass where Q has none.
                sum -= reference * (group / occupied).ln();
            }
        }
        // P = counts / total, Q = counts / kept.
        sum / total + (kept / total).ln()
    }
}

fn count_entropy(count: f64) -> f64 {
    if count > 0.0 { count * count.ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, bin by bin.
    fn reference_divergence(counts: &[f64], bins: usize, levels: usize) -> f64 {
        let mut p = counts[..bins].to_vec();
        p[bins - 1] += counts[bins..].iter().sum::<f64>();
        let mut q = vec![0.0; bins];
        for level in 0..levels {
            let group = level * bins / levels..(level + 1) * bins / levels;
            let mass: f64 = counts[group.clone()].iter().sum();
            let occupied = p[group.clone()].iter().filter(|&&p| p > 0.0).count() as f64;
            for bin in group {
                q[bin] = if p[bin] > 0.0 { mass / occupied } else { 0.0 };
            }
        }
        let (p_sum, q_sum) = (p.iter().sum::<f64>(), q.iter().sum::<f64>());
        let terms = p.iter().zip(&q).filter(|(p, _)| **p > 0.0);
        terms.map(|(p, q)| p / p_sum * ((p / p_sum) / (q / q_sum)).ln()).sum()
    }

    proptest! {
        #[test]
        fn prefix_sums_equal_the_definition(counts in prop::collection::vec(prop_oneof![2 => Just(0u32), 3 => 0u32..1000], 8..120), levels in 2usize..9) {
            let counts: Vec<f64> = counts.into_iter().map(f64::from).collect();
            prop_assume!(counts[counts.len() - 1] > 0.0);
            let prefix = Prefix::new(&counts);
            for bins in levels..=counts.len() {
                let (found, expected) = (prefix.divergence(&counts, bins, levels), reference_divergence(&counts, bins, levels));
                if counts[..bins].iter().all(|&count| count == 0.0) {
                    prop_assert_eq!(found, f64::INFINITY);
                } else if expected.is_finite() {
                    prop_assert!((found - expected).abs() <= 1e-9, "{bins}: {found} {expected}");
                } else {
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    fn histogram(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::new(2048).unwrap();
        histogram.observe(values).unwrap();
        histogram
    }

    #[test]
    fn a_far_outlier_is_cut_and_a_uniform_density_is_not() {
        let uniform: Vec<f32> = (1..=200_000).map(|i| i as f32 / 200_000.0).collect();
        let (_, high) = kld_range(&histogram(&uniform), 128).unwrap();
        assert!(high > 0.97, "{high}");
        let mut outlier = uniform;
        outlier[7] = 10.0;
        let (low, high) = kld_range(&histogram(&outlier), 128).unwrap();
        assert_eq!(low, 0.0);
        assert!((0.9..1.3).contains(&high), "{high}");
    }

    #[test]
    fn few_bins_no_values_and_refusals() {
        assert_eq!(kld_range(&histogram(&[1.0, 2.0, -3.0]), 65536), Ok((-3.0, 2.0)));
        assert_eq!(kld_range(&histogram(&[0.0]), 128), Ok((0.0, 0.0)));
        assert_eq!(kld_range(&histogram(&[-4.0; 9]), 128), Ok((-4.0, 0.0)));
        assert_eq!(kld_range(&histogram(&[1.0]), 1), Err(StatisticsError::Levels(1)));
    }
}
