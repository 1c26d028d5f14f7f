//! The range a quantiser loses least with, in the mean of squared errors.
//!
//! The density is taken as constant within a bin. The expected squared error of a bin is then an exact
//! integral (see [`Grid`]), so the result is as right for 16 bits, where a quantisation step is far finer
//! than a bin, as for 4. Exact zeros cost nothing and do not count.
//!
//! Errors of clipped values may be given a weight above 1. Rounding errors are of either sign and largely
//! cancel where a layer sums over many values; clipping always takes away, and from the largest values.
//! With any weight from 1 the plain error is never above that of the whole range, where nothing is clipped.
//!
//! The search tries fractions of the seen range, both ends together first, then one end at a time until
//! neither moves. The whole range is among the candidates.

use crate::histogram::used;
use crate::{Grid, Histogram, Quantizer, Range, StatisticsError};

/// The range within the seen one with the least mean squared quantisation error.
///
/// Complexity: at most about 900 evaluations, each linear in the bins in use.
///
/// # Errors
/// `ClipWeight` unless `clip_weight` is a finite number from 1.
pub fn mse_range(histogram: &Histogram, quantizer: Quantizer, clip_weight: f64) -> Result<Range, StatisticsError> {
    if !(clip_weight.is_finite() && clip_weight >= 1.0) {
        return Err(StatisticsError::ClipWeight(clip_weight));
    }
    let negative = Side::new(histogram.negative(), histogram.width());
    let positive = Side::new(histogram.positive(), histogram.width());
    Ok(best_range(histogram.range(), quantizer, |grid| {
        positive.squared_error(grid, grid.above, clip_weight) + negative.squared_error(grid, grid.below, clip_weight)
    }))
}

/// One sign's density, piecewise constant, prepared for summing an integral over it.
struct Side {
    width: f64,
    /// Fall of the density at the upper edge of each bin.
    falls: Vec<f64>,
}

impl Side {
    fn new(counts: &[u64], width: f64) -> Self {
        let counts = &counts[..used(counts)];
        let next = counts.iter().skip(1).chain(std::iter::once(&0));
        let falls = counts.iter().zip(next).map(|(&count, &next)| (count as f64 - next as f64) / width);
        Self { width, falls: falls.collect() }
    }

    /// Sum of the expected squared errors: with F the integral of the error and d the density,
    /// `sum d(i) * (F(i+1) - F(i)) = sum F(i+1) * (d(i) - d(i+1))`, as F(0) = 0.
    fn squared_error(&self, grid: Grid, steps: f64, clip_weight: f64) -> f64 {
        let integral = |edge: f64| grid.squared_error_integral(edge * self.width, steps, clip_weight);
        let mut sums = [0.0; LANES];
        let mut blocks = self.falls.chunks_exact(LANES);
        let mut edge = [0.0; LANES];
        for (lane, edge) in edge.iter_mut().enumerate() {
            *edge = (lane + 1) as f64;
        }
        for block in &mut blocks {
            for lane in 0..LANES {
                sums[lane] += block[lane] * integral(edge[lane]);
                edge[lane] += LANES as f64;
            }
        }
        for (lane, fall) in blocks.remainder().iter().enumerate() {
            sums[lane] += fall * integral(edge[lane]);
        }
        sums.into_iter().sum()
    }
}

/// Terms summed side by side, so that they vectorise.
const LANES: usize = 8;

/// Fractions tried along one direction, and how finely the best one's surroundings are then divided.
const COARSE: u32 = 64;
const FINE: u32 = 16;
/// Rounds over both ends; the error falls with each, in practice two suffice.
const ROUNDS: usize = 4;

/// The range within `seen` that minimises `error` over the grids of `quantizer`.
pub(crate) fn best_range(seen: Range, quantizer: Quantizer, error: impl Fn(Grid) -> f64) -> Range {
    let (low, high) = seen;
    let error_of = |range: Range| quantizer.grid(range).map_or(f64::INFINITY, &error);
    let scale = best_fraction(|fraction| error_of((low * fraction, high * fraction)));
    let mut best = (low * scale, high * scale);
    if quantizer.symmetric() || low == 0.0 || high == 0.0 {
        // Only the larger end matters.
        return best;
    }
    let better = |old: Range, new: Range| if error_of(new) < error_of(old) { new } else { old };
    for _ in 0..ROUNDS {
        let before = best;
        let fraction = best_fraction(|fraction| error_of((before.0, high * fraction)));
        best = better(best, (best.0, high * fraction));
        let fixed = best.1;
        let fraction = best_fraction(|fraction| error_of((low * fraction, fixed)));
        best = better(best, (low * fraction, best.1));
        if best == before {
            break;
        }
    }
    best
}

/// The fraction in (0, 1] with the least error; of equals the largest.
fn best_fraction(error: impl Fn(f64) -> f64) -> f64 {
    let mut best = (1.0, error(1.0));
    let mut try_fraction = |fraction: f64| {
        let found = error(fraction);
        if found < best.1 {
            best = (fraction, found);
        }
        best.0
    };
    let coarse = f64::from(COARSE);
    let mut centre = 1.0;
    for step in (1..COARSE).rev() {
        centre = try_fraction(f64::from(step) / coarse);
    }
    let fine = f64::from(FINE);
    for step in (1..2 * FINE).rev() {
        let fraction = centre + (f64::from(step) / fine - 1.0) / coarse;
        if fraction < 1.0 && step != FINE {
            try_fraction(fraction);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extrema;

    fn histogram(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::new(2048).unwrap();
        histogram.observe(values, extrema(values).unwrap().unwrap()).unwrap();
        histogram
    }

    fn squared_error(values: &[f32], quantizer: Quantizer, range: Range) -> f64 {
        let Some(grid) = quantizer.grid(range) else { return 0.0 };
        values.iter().map(|&v| grid.error(f64::from(v)).powi(2)).sum()
    }

    /// The model bin by bin, each integrated on its own.
    fn modelled_error(histogram: &Histogram, grid: Grid) -> f64 {
        let width = histogram.width();
        let side = |counts: &[u64], steps| {
            let bins = counts.iter().enumerate().map(|(bin, &count)| {
                let edge = |bin: usize| grid.squared_error_integral(bin as f64 * width, steps, 1.0);
                count as f64 * (edge(bin + 1) - edge(bin)) / width
            });
            bins.sum::<f64>()
        };
        side(histogram.positive(), grid.above) + side(histogram.negative(), grid.below)
    }

    /// Sums of twelve uniform numbers are nearly Gaussian; a few are drawn out.
    fn gaussian(count: u32, outlier: f32) -> Vec<f32> {
        let mut state = 1u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 8) / f64::from(1 << 24)
        };
        let mut values: Vec<f32> = (0..count).map(|_| ((0..12).map(|_| uniform()).sum::<f64>() - 6.0) as f32).collect();
        values[0] = outlier;
        values
    }

    proptest! {
        #[test]
        fn never_worse_than_the_whole_range(
            values in prop::collection::vec(prop_oneof![8 => -1.0f32..2.0, 1 => -20.0f32..20.0, 2 => Just(0.0f32)], 64..400),
            bits in 2u32..9,
            symmetric: bool,
            clip_weight in 1.0f64..9.0,
        ) {
            let half = 1i32 << (bits - 1);
            let quantizer = Quantizer::new(-half, half - 1, symmetric).unwrap();
            let histogram = histogram(&values);
            let best = mse_range(&histogram, quantizer, clip_weight).unwrap();
            let modelled = |range| modelled_error(&histogram, quantizer.grid(range).unwrap());
            if histogram.range() != (0.0, 0.0) {
                prop_assert!(modelled(best) <= modelled(histogram.range()) * (1.0 + 1e-9));
                let (low, high) = histogram.range();
                prop_assert!(low <= best.0 && best.0 <= 0.0 && 0.0 <= best.1 && best.1 <= high);
            }
        }

        #[test]
        fn modelled_error_is_that_of_the_values(values in prop::collection::vec(-1.0f32..2.0, 2000..2001), bits in 3u32..7, cut in 0.3f64..1.0) {
            let half = 1i32 << (bits - 1);
            let quantizer = Quantizer::new(-half, half - 1, false).unwrap();
            let histogram = histogram(&values);
            let range = (histogram.range().0, histogram.range().1 * cut);
            let grid = quantizer.grid(range).unwrap();
            let modelled = modelled_error(&histogram, grid);
            let exact = squared_error(&values, quantizer, range);
            prop_assert!((modelled - exact).abs() <= 0.05 * exact, "{modelled} {exact}");
        }
    }

    #[test]
    fn four_bits_of_a_gaussian() {
        // Optimal uniform quantisers of the normal distribution, Max (1960): 16 levels, step 0.3352.
        let quantizer = Quantizer::new(-8, 7, false).unwrap();
        let (low, high) = mse_range(&histogram(&gaussian(200_000, 9.0)), quantizer, 1.0).unwrap();
        let step = (high - low) / 15.0;
        assert!((step - 0.3352).abs() < 0.015, "{step}");
    }

    #[test]
    fn sixteen_bits_keep_what_they_can_resolve() {
        let quantizer = Quantizer::new(-32768, 32767, true).unwrap();
        let histogram = histogram(&gaussian(10_000, 9.0));
        assert_eq!(mse_range(&histogram, quantizer, 1.0), Ok(histogram.range()));
    }

    #[test]
    fn one_outlier_is_cut_when_bits_are_few() {
        let values = gaussian(50_000, 200.0);
        for symmetric in [false, true] {
            let quantizer = Quantizer::new(-128, 127, symmetric).unwrap();
            let best = mse_range(&histogram(&values), quantizer, 1.0).unwrap();
            assert!(best.1 > 3.0 && best.1 < 200.0, "{best:?}");
            let whole = histogram(&values).range();
            assert!(squared_error(&values, quantizer, best) < squared_error(&values, quantizer, whole));
        }
    }

    #[test]
    fn zeros_only() {
        let quantizer = Quantizer::new(-8, 7, false).unwrap();
        assert_eq!(mse_range(&histogram(&[0.0]), quantizer, 1.0), Ok((0.0, 0.0)));
    }

    #[test]
    fn heavier_clipping_errors_widen_the_range() {
        let quantizer = Quantizer::new(-8, 7, false).unwrap();
        let histogram = histogram(&gaussian(50_000, 9.0));
        let span = |weight| mse_range(&histogram, quantizer, weight).map(|(low, high)| high - low).unwrap();
        assert!(span(1.0) < span(4.0) && span(4.0) < span(1e4));
        // Half a step beyond the last code is rounding, not clipping.
        let (low, high) = histogram.range();
        assert!(span(1e12) > (high - low) * 14.0 / 15.0);
        for weight in [0.9, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(mse_range(&histogram, quantizer, weight), Err(StatisticsError::ClipWeight(_))));
        }
    }
}
