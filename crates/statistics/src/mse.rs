//! The range a quantiser loses least with, in the mean of squared errors.
//!
//! The density is taken as constant within a bin. The expected squared error of a bin is then an exact
//! integral (see [`Grid`]), so the result is as right for 16 bits, where a quantisation step is far finer
//! than a bin, as for 4. Exact zeros cost nothing and do not count.
//!
//! The search tries fractions of the seen range, both ends together first, then one end at a time until
//! neither moves. The whole range is among the candidates: the error is never above that of `extrema`.

use crate::histogram::used;
use crate::{Grid, Histogram, Quantizer, Range};

/// The range within the seen one with the least mean squared quantisation error.
///
/// Complexity: at most about 300 evaluations, each linear in the bins in use.
pub fn mse_range(histogram: &Histogram, quantizer: Quantizer) -> Range {
    let width = histogram.width();
    let negative = &histogram.negative()[..used(histogram.negative())];
    let positive = &histogram.positive()[..used(histogram.positive())];
    best_range(histogram.range(), quantizer, |grid| {
        side_error(positive, width, grid, grid.above) + side_error(negative, width, grid, grid.below)
    })
}

/// Sum of the expected squared errors of one side's bins.
fn side_error(counts: &[u64], width: f64, grid: Grid, steps: f64) -> f64 {
    let mut sum = 0.0;
    let mut below = 0.0;
    for (bin, &count) in counts.iter().enumerate() {
        let above = grid.squared_error_integral((bin + 1) as f64 * width, steps);
        sum += count as f64 * (above - below);
        below = above;
    }
    sum / width
}

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
        ) {
            let half = 1i32 << (bits - 1);
            let quantizer = Quantizer::new(-half, half - 1, symmetric).unwrap();
            let histogram = histogram(&values);
            let best = mse_range(&histogram, quantizer);
            let modelled = |range| {
                let grid = quantizer.grid(range).unwrap();
                side_error(histogram.positive(), histogram.width(), grid, grid.above)
                    + side_error(histogram.negative(), histogram.width(), grid, grid.below)
            };
            if histogram.range() != (0.0, 0.0) {
                prop_assert!(modelled(best) <= modelled(histogram.range()));
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
            let modelled = side_error(histogram.positive(), histogram.width(), grid, grid.above)
                + side_error(histogram.negative(), histogram.width(), grid, grid.below);
            let exact = squared_error(&values, quantizer, range);
            prop_assert!((modelled - exact).abs() <= 0.05 * exact, "{modelled} {exact}");
        }
    }

    #[test]
    fn four_bits_of_a_gaussian() {
        // Optimal uniform quantisers of the normal distribution, Max (1960): 16 levels, step 0.3352.
        let quantizer = Quantizer::new(-8, 7, false).unwrap();
        let (low, high) = mse_range(&histogram(&gaussian(200_000, 9.0)), quantizer);
        let step = (high - low) / 15.0;
        assert!((step - 0.3352).abs() < 0.015, "{step}");
    }

    #[test]
    fn sixteen_bits_keep_what_they_can_resolve() {
        let quantizer = Quantizer::new(-32768, 32767, true).unwrap();
        let histogram = histogram(&gaussian(10_000, 9.0));
        assert_eq!(mse_range(&histogram, quantizer), histogram.range());
    }

    #[test]
    fn one_outlier_is_cut_when_bits_are_few() {
        let values = gaussian(50_000, 200.0);
        for symmetric in [false, true] {
            let quantizer = Quantizer::new(-128, 127, symmetric).unwrap();
            let best = mse_range(&histogram(&values), quantizer);
            assert!(best.1 > 3.0 && best.1 < 200.0, "{best:?}");
            let whole = histogram(&values).range();
            assert!(squared_error(&values, quantizer, best) < squared_error(&values, quantizer, whole));
        }
    }

    #[test]
    fn zeros_only() {
        let quantizer = Quantizer::new(-8, 7, false).unwrap();
        assert_eq!(mse_range(&histogram(&[0.0]), quantizer), (0.0, 0.0));
    }
}
