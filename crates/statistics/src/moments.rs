//! Count, mean and sum of squared deviations.
//!
//! Partial results are joined by the formula of Chan, Golub and LeVeque ("Updating formulae and a
//! pairwise algorithm for computing sample variances", 1979), which does not cancel when the mean is
//! far larger than the deviation. Chunks have a fixed length and are joined from left to right, so the
//! result does not depend on the number of threads.

use rayon::prelude::*;

use crate::CHUNK;

/// Count, mean and sum of squared deviations from the mean, in f64.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean; 0 without values.
    pub mean: f64,
    /// Sum of squared deviations from the mean.
    pub squares: f64,
}

impl Moments {
    /// The moments of both sets together. Rounds, so the order of joins shows in the last bits.
    pub fn union(self, other: Self) -> Self {
        if self.count == 0 {
            return other;
        }
        if other.count == 0 {
            return self;
        }
        let count = self.count + other.count;
        let share = other.count as f64 / count as f64;
        let delta = other.mean - self.mean;
        Self {
            count,
            mean: self.mean + delta * share,
            squares: self.squares + other.squares + delta * delta * share * self.count as f64,
        }
    }

    /// Unbiased standard deviation (divisor n - 1); 0 for fewer than two values.
    pub fn deviation(self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }
}

/// Moments of `values`. NaN or an infinity among them shows in the result.
pub fn moments(values: &[f32]) -> Moments {
    let parts: Vec<Moments> = values.par_chunks(CHUNK).map(chunk_moments).collect();
    parts.into_iter().fold(Moments::default(), Moments::union)
}

const LANES: usize = 8;

fn chunk_moments(values: &[f32]) -> Moments {
    let count = values.len() as u64;
    let mean = lane_sum(values, |value| value) / count as f64;
    let squares = lane_sum(values, |value| (value - mean) * (value - mean));
    Moments { count, mean, squares }
}

/// Sum of `term` over the values in a fixed order of additions that vectorises.
fn lane_sum(values: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0f64; LANES];
    let mut blocks = values.chunks_exact(LANES);
    for block in &mut blocks {
        for lane in 0..LANES {
            sums[lane] += term(f64::from(block[lane]));
        }
    }
    let rest: f64 = blocks.remainder().iter().map(|&value| term(f64::from(value))).sum();
    sums.into_iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, in two passes over all values.
    fn reference(values: &[f32]) -> Moments {
        let count = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        let squares = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
        Moments { count: values.len() as u64, mean, squares }
    }

    fn assert_close(found: Moments, expected: Moments) {
        assert_eq!(found.count, expected.count);
        let size = expected.mean.abs() + expected.deviation() + 1e-300;
        assert!((found.mean - expected.mean).abs() <= 1e-13 * size, "{found:?} {expected:?}");
        assert!((found.deviation() - expected.deviation()).abs() <= 1e-12 * size, "{found:?} {expected:?}");
    }

    proptest! {
        #[test]
        fn equals_two_passes(values in prop::collection::vec(-1e3f32..1e3, 1..300), offset in prop::sample::select(vec![0.0f32, 1e4, -1e7])) {
            let values: Vec<f32> = values.into_iter().map(|v| v + offset).collect();
            assert_close(moments(&values), reference(&values));
        }

        #[test]
        fn union_of_parts_is_the_whole(values in prop::collection::vec(-1e3f32..1e3, 2..300), cut in any::<prop::sample::Index>()) {
            let (left, right) = values.split_at(cut.index(values.len()));
            assert_close(moments(left).union(moments(right)), reference(&values));
        }
    }

    #[test]
    fn several_chunks() {
        let values: Vec<f32> = (0..2 * CHUNK + 11).map(|i| (i % 97) as f32 + 1000.0).collect();
        assert_close(moments(&values), reference(&values));
    }

    #[test]
    fn deviation_is_unbiased() {
        assert_eq!(moments(&[1.0, 3.0]).deviation(), 2.0f64.sqrt());
        assert_eq!(moments(&[5.0]).deviation(), 0.0);
        assert_eq!(moments(&[]), Moments::default());
    }
}
