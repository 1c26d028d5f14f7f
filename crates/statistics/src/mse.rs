//! The range a quantiser loses least with, in the mean of squared errors.
//!
//! The density is taken as constant within a bin, and the outermost bin of either sign as reaching no
//! further than the extreme, which one value takes, also where only a part of the values was counted. The expected squared error of a bin is then an exact
//! integral (see [`Grid`]), so the result is as right for 16 bits, where a quantisation step is far finer
//! than a bin, as for 4. Exact zeros cost nothing and do not count.
//!
//! Errors of clipped values may be given a weight above 1. Rounding errors are of either sign and largely
//! cancel where a layer sums over many values; clipping always takes away, and from the largest values.
//!
//! The search tries fractions of the seen range, both ends together first, then one end at a time until
//! neither moves. The whole range is among the candidates. Fractions fall, and with them all but rises what is
//! clipped: where a bound of that alone exceeds the least error so far, no smaller one is tried.
//!
//! Values do not lie where the model spreads them: they may repeat, all on one side of their bin. The range
//! found is therefore taken only if it gains more on the whole range, in plain squared error, than those
//! unknown positions may take back. With `t(b)` the most that the values of bin b can differ from what is
//! expected of them, they take back
//!
//! ```text
//!   at most                   sum t(b)
//!   more than                 3 * sqrt(sum t(b)^2)       with a probability of at most exp(-9/2), 1.1 %,
//! ```
//!
//! the latter if bins are independent of each other (Hoeffding), however their own values hang together.
//! The smaller of both is asked for. Of up to nine bins in use it is the first: there the range found never
//! loses more than the whole range. For activations, which fill thousands of bins, it is a per cent or so.

use tpuflow_kernels::isa::{Isa, Work};

use crate::histogram::used_length;
use crate::{Grid, Histogram, Quantizer, Range, StatisticsError};

/// The range within the seen one with the least mean squared quantisation error, or the seen one where
/// the histogram cannot tell that a smaller one is better.
///
/// Complexity: at most about 900 evaluations, each linear in the bins in use.
///
/// # Errors
/// `ClipWeight` unless `clip_weight` is a finite number from 1.
pub fn mse_range(histogram: &Histogram, quantizer: Quantizer, clip_weight: f64) -> Result<Range, StatisticsError> {
    if !(clip_weight.is_finite() && clip_weight >= 1.0) {
        return Err(StatisticsError::ClipWeight(clip_weight));
    }
    let whole = histogram.range();
    let negative = Side::new(histogram.negative(), histogram.width(), -whole.0);
    let positive = Side::new(histogram.positive(), histogram.width(), whole.1);
    let error = |grid: Grid, clip_weight| {
        positive.squared_error(grid, grid.above, clip_weight) + negative.squared_error(grid, grid.below, clip_weight)
    };
    let least = |(low, high): Range, step: f64| {
        clip_weight * (positive.clipping_error_bound(high + step) + negative.clipping_error_bound(step - low))
    };
    let best = best_range(whole, quantizer, |grid| error(grid, clip_weight), least);
    let (Some(cut), Some(full)) = (quantizer.grid(best), quantizer.grid(whole)) else { return Ok(whole) };
    let above = positive.uncertainty((cut, cut.above), (full, full.above));
    let below = negative.uncertainty((cut, cut.below), (full, full.below));
    let margin = (above.sum + below.sum).min(DEVIATIONS * (above.squares + below.squares).sqrt());
    Ok(if error(full, 1.0) - error(cut, 1.0) > margin { best } else { whole })
}

/// Gain asked for, in root sums of squares of what bins may differ by.
const DEVIATIONS: f64 = 3.0;

/// One sign's density, piecewise constant, prepared for summing an integral over it.
struct Side<'a> {
    width: f64,
    /// Counts of all bins in use but the outermost.
    inner: &'a [u64],
    /// Fall of the density at the upper edge of each inner bin.
    falls: Vec<f64>,
    /// Where the outermost bin starts and ends, at the extreme if that lies in it.
    outer: (f64, f64),
    /// Number of its values other than the extreme.
    spread: f64,
    /// The extreme, which counts even where it is none of the values counted.
    most: f64,
    /// Number of values there: 1, or 0 on a side without any.
    extreme: f64,
    /// Of the values in a bin and above, each where its bin begins: their number, sum and sum of squares, in widths.
    above: Vec<[f64; 3]>,
}

/// Deviations of the values of bins from their expectation: their sum, and that of their squares.
struct Uncertainty {
    sum: f64,
    squares: f64,
}

impl<'a> Side<'a> {
    /// The side whose largest magnitude is `extreme`.
    fn new(counts: &'a [u64], width: f64, extreme: f64) -> Self {
        let (last, inner) = counts[..used_length(counts)].split_last().unwrap_or((&0, &[]));
        let start = inner.len() as f64 * width;
        let next = inner.iter().skip(1).chain(std::iter::once(&0));
        let falls = inner.iter().zip(next).map(|(&count, &next)| (count as f64 - next as f64) / width);
        Self {
            width,
            inner,
            falls: falls.collect(),
            outer: (start, extreme.min(start + width)),
            spread: last.saturating_sub(u64::from(extreme < start + width)) as f64,
            most: extreme,
            extreme: f64::from(u8::from(extreme > 0.0)),
            above: suffix_sums(&counts[..used_length(counts)]),
        }
    }

    /// No more than the sum of the squares of what values exceed a threshold by.
    fn clipping_error_bound(&self, threshold: f64) -> f64 {
        let at = threshold / self.width;
        let bin = at.ceil() as usize;
        let Some([count, sum, squares]) = self.above.get(bin) else { return 0.0 };
        // What cancels may leave a little too much.
        (squares - 2.0 * at * sum + at * at * count - 1e-9 * squares) * self.width * self.width
    }

    /// Sum of the expected squared errors.
    fn squared_error(&self, grid: Grid, steps: f64, clip_weight: f64) -> f64 {
        Isa::selected().lanes().run(SquaredError { side: self, grid, steps, clip_weight })
    }

    /// How far the difference of the squared errors on two grids may be from the expected one, bin by bin.
    fn uncertainty(&self, cut: (Grid, f64), full: (Grid, f64)) -> Uncertainty {
        let inner = self.inner.iter().enumerate().map(|(bin, &count)| {
            let start = bin as f64 * self.width;
            (count as f64, (start, start + self.width))
        });
        let bins = inner.chain(std::iter::once((self.spread, self.outer))).filter(|(count, _)| *count > 0.0);
        bins.fold(Uncertainty { sum: 0.0, squares: 0.0 }, |so_far, (count, bin)| {
            let most = count * largest_deviation(bin, cut, full);
            Uncertainty { sum: so_far.sum + most, squares: so_far.squares + most * most }
        })
    }
}

/// Sum of the expected squared errors of a side: with F the integral of the error and d the density,
/// `sum d(i) * (F(i+1) - F(i)) = sum F(i+1) * (d(i) - d(i+1))`, as F(0) = 0.
struct SquaredError<'a> {
    side: &'a Side<'a>,
    grid: Grid,
    steps: f64,
    clip_weight: f64,
}

impl Work for SquaredError<'_> {
    type Result = f64;

    #[inline(always)]
    fn done(self) -> f64 {
        let Self { side, grid, steps, clip_weight } = self;
        let integral = |edge: f64| grid.squared_error_integral(edge * side.width, steps, clip_weight);
        let mut sums = [0.0; LANES];
        let (blocks, rest) = side.falls.as_chunks::<LANES>();
        let mut edge = [0.0; LANES];
        for (lane, edge) in edge.iter_mut().enumerate() {
            *edge = (lane + 1) as f64;
        }
        for block in blocks {
            for lane in 0..LANES {
                sums[lane] += block[lane] * integral(edge[lane]);
                edge[lane] += LANES as f64;
            }
        }
        for (lane, fall) in rest.iter().enumerate() {
            sums[lane] += fall * integral(edge[lane]);
        }
        sums.into_iter().sum::<f64>()
            + side.spread * mean_squared_error(grid, side.outer, steps, clip_weight)
            + side.extreme * grid.squared_error_at(side.most, steps, clip_weight)
    }
}

/// Sums over every bin and those above it, whose values are taken to lie where their bins begin.
fn suffix_sums(counts: &[u64]) -> Vec<[f64; 3]> {
    let mut sums = [0.0; 3];
    let mut above: Vec<_> = counts
        .iter()
        .enumerate()
        .rev()
        .map(|(bin, &count)| {
            let (count, start) = (count as f64, bin as f64);
            sums = [sums[0] + count, sums[1] + count * start, sums[2] + count * start * start];
            sums
        })
        .collect();
    above.reverse();
    above
}

/// Mean squared error of values spread evenly over a bin.
fn mean_squared_error(grid: Grid, (start, end): (f64, f64), steps: f64, clip_weight: f64) -> f64 {
    if end <= start {
        return grid.squared_error_at(end, steps, clip_weight);
    }
    let integral = |value: f64| grid.squared_error_integral(value, steps, clip_weight);
    (integral(end) - integral(start)) / (end - start)
}

/// The most by which the difference of the squared errors on two grids, at a point of the bin, differs from
/// its mean over the bin.
///
/// Between the borders of the grids' cells both errors are parabolas of the same curvature, so their
/// difference is linear and largest or smallest at such a border or an end of the bin.
fn largest_deviation(bin: (f64, f64), cut: (Grid, f64), full: (Grid, f64)) -> f64 {
    let (start, end) = bin;
    let at = |value: f64, (grid, steps): (Grid, f64)| grid.squared_error_at(value, steps, 1.0);
    if end - start > cut.0.step.min(full.0.step) {
        // Many cells: each error by itself is bounded by that of a whole cell, or of the most clipped value.
        let most = |of: (Grid, f64)| at(end, of).max(of.0.step * of.0.step / 4.0);
        return most(cut) + most(full);
    }
    let mean = |(grid, steps)| mean_squared_error(grid, bin, steps, 1.0);
    let expected = mean(cut) - mean(full);
    let border = |(grid, _): (Grid, f64)| (((start / grid.step + 0.5).floor() + 0.5) * grid.step).min(end);
    [start, end, border(cut), border(full)]
        .into_iter()
        .map(|value| (at(value, cut) - at(value, full) - expected).abs())
        .fold(0.0, f64::max)
}

/// Terms summed side by side, so that they vectorise.
const LANES: usize = 8;

/// Fractions tried along one direction, and how finely the best one's surroundings are then divided.
const COARSE: u32 = 64;
const FINE: u32 = 16;
/// Rounds over both ends; the error falls with each, in practice two suffice.
const ROUNDS: usize = 4;

/// The range within `seen` that minimises `error` over the grids of `quantizer`.
///
/// `least` of a range and a step is at most the error of any range within it whose grid has no larger step and ends at
/// most half a step beyond the range; it need not be near it.
pub(crate) fn best_range(
    seen: Range,
    quantizer: Quantizer,
    error: impl Fn(Grid) -> f64,
    least: impl Fn(Range, f64) -> f64,
) -> Range {
    let (low, high) = seen;
    let error_of = |range: Range| quantizer.grid(range).map_or(f64::INFINITY, &error);
    let least_of = |range: Range| {
        let ends = |grid: Grid| (-grid.below * grid.step, grid.above * grid.step);
        // Where the zero point is rounded, the ends of grids do not fall with those of ranges, but are near them.
        let reach = |grid| if quantizer.symmetric() { ends(grid) } else { range };
        quantizer.grid(range).map_or(f64::INFINITY, |grid| least(reach(grid), grid.step))
    };
    let best_fraction = |range_of: &dyn Fn(f64) -> Range| {
        best_fraction(|fraction| error_of(range_of(fraction)), |fraction| least_of(range_of(fraction)))
    };
    let scale = best_fraction(&|fraction| (low * fraction, high * fraction));
    let mut best = (low * scale, high * scale);
    if quantizer.symmetric() || low == 0.0 || high == 0.0 {
        // Only the larger end matters.
        return best;
    }
    let better = |old: Range, new: Range| if error_of(new) < error_of(old) { new } else { old };
    // What is best for one end follows from the other: it is tried again only where that has moved.
    let (mut tried_beside_low, mut tried_beside_high) = (None, None);
    for _ in 0..ROUNDS {
        let before = best;
        if tried_beside_low.replace(best.0) != Some(best.0) {
            let fraction = best_fraction(&|fraction| (before.0, high * fraction));
            best = better(best, (best.0, high * fraction));
        }
        let fixed = best.1;
        if tried_beside_high.replace(fixed) != Some(fixed) {
            let fraction = best_fraction(&|fraction| (low * fraction, fixed));
            best = better(best, (low * fraction, best.1));
        }
        if best == before {
            break;
        }
    }
    best
}

/// The fraction in (0, 1] with the least error; of equals the largest.
///
/// `least` is at most the error of a fraction or any smaller one.
fn best_fraction(error: impl Fn(f64) -> f64, least: impl Fn(f64) -> f64) -> f64 {
    let mut best = (1.0, error(1.0));
    let mut try_falling = |fractions: &mut dyn Iterator<Item = f64>| {
        for fraction in fractions {
            if least(fraction) > best.1 {
                break;
            }
            let found = error(fraction);
            if found < best.1 {
                best = (fraction, found);
            }
        }
        best.0
    };
    let coarse = f64::from(COARSE);
    let center = try_falling(&mut (1..COARSE).rev().map(|step| f64::from(step) / coarse));
    let around = (1..2 * FINE).rev().filter(|step| *step != FINE);
    let fine = around.map(|step| center + (f64::from(step) / f64::from(FINE) - 1.0) / coarse);
    try_falling(&mut fine.filter(|fraction| *fraction < 1.0))
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

    fn squared_error(values: &[f32], quantizer: Quantizer, range: Range) -> f64 {
        let Some(grid) = quantizer.grid(range) else { return 0.0 };
        values.iter().map(|&v| grid.error(f64::from(v)).powi(2)).sum()
    }

    /// The range found by trying every fraction in every round.
    fn exhaustive_range((low, high): Range, quantizer: Quantizer, error: impl Fn(Grid) -> f64) -> Range {
        let error_of = |range: Range| quantizer.grid(range).map_or(f64::INFINITY, &error);
        let best_of = |range_of: &dyn Fn(f64) -> Range| best_fraction(|fraction| error_of(range_of(fraction)), |_| 0.0);
        let scale = best_of(&|fraction| (low * fraction, high * fraction));
        let mut best = (low * scale, high * scale);
        if quantizer.symmetric() || low == 0.0 || high == 0.0 {
            return best;
        }
        let better = |old: Range, new: Range| if error_of(new) < error_of(old) { new } else { old };
        for _ in 0..ROUNDS {
            let (start, stop) = best;
            best = better(best, (start, high * best_of(&|fraction| (start, high * fraction))));
            let end = best.1;
            best = better(best, (low * best_of(&|fraction| (low * fraction, end)), end));
            if best == (start, stop) {
                break;
            }
        }
        best
    }

    #[test]
    fn no_end_is_tried_twice_beside_the_same_other_end() {
        let quantizer = Quantizer::new(-128, 127, false).unwrap();
        let tried = std::cell::Cell::new(0);
        let error = |grid: Grid| {
            tried.set(tried.get() + 1);
            (grid.below * grid.step - 0.6).powi(2) + (grid.above * grid.step - 1.1).powi(2)
        };
        let range = best_range((-2.0, 4.0), quantizer, error, |_, _| 0.0);
        let once = tried.take();
        assert_eq!(exhaustive_range((-2.0, 4.0), quantizer, error), range);
        assert!(once + COARSE + FINE <= tried.get(), "{once} of {}", tried.get());
    }

    /// The model bin by bin, each integrated on its own.
    fn modeled_error(histogram: &Histogram, grid: Grid) -> f64 {
        let width = histogram.width();
        let side = |counts: &[u64], steps, extreme: f64| {
            let last = used_length(counts).saturating_sub(1);
            let bins = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bin, &count)| {
                let integral = |value: f64| grid.squared_error_integral(value, steps, 1.0);
                let start = bin as f64 * width;
                let end = (start + width).min(extreme);
                let at_end = (extreme - (extreme / grid.step).round().min(steps) * grid.step).powi(2);
                let mean = if end > start { (integral(end) - integral(start)) / (end - start) } else { at_end };
                if bin == last { (count - 1) as f64 * mean + at_end } else { count as f64 * mean }
            });
            bins.sum::<f64>()
        };
        let (low, high) = histogram.range();
        side(histogram.positive(), grid.above, high) + side(histogram.negative(), grid.below, -low)
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
            let modeled = |range| modeled_error(&histogram, quantizer.grid(range).unwrap());
            if histogram.range() != (0.0, 0.0) {
                prop_assert!(modeled(best) <= modeled(histogram.range()) * (1.0 + 1e-9));
                let (low, high) = histogram.range();
                prop_assert!(low <= best.0 && best.0 <= 0.0 && 0.0 <= best.1 && best.1 <= high);
            }
        }

        #[test]
        fn what_is_not_tried_is_not_missed(
            values in prop::collection::vec(prop_oneof![8 => -1.0f32..2.0, 2 => -20.0f32..20.0, 1 => Just(0.0f32), 1 => Just(9.0)], 1..400),
            codes in prop::sample::select(vec![(-128, 127), (-8, 7), (0, 255), (-2, 1), (-127, 127), (-1, 40)]),
            symmetric: bool,
            one_sided: bool,
            clip_weight in 1.0f64..20.0,
        ) {
            let values: Vec<f32> = values.into_iter().map(|value| if one_sided { value.abs() } else { value }).collect();
            let histogram = histogram(&values);
            let quantizer = Quantizer::new(codes.0, codes.1, symmetric).unwrap();
            let (low, high) = histogram.range();
            let positive = Side::new(histogram.positive(), histogram.width(), high);
            let negative = Side::new(histogram.negative(), histogram.width(), -low);
            let error = |grid: Grid| {
                positive.squared_error(grid, grid.above, clip_weight) + negative.squared_error(grid, grid.below, clip_weight)
            };
            let least = |(low, high): Range, step: f64| {
                clip_weight * (positive.clipping_error_bound(high + step) + negative.clipping_error_bound(step - low))
            };
            let all = exhaustive_range(histogram.range(), quantizer, error);
            prop_assert_eq!(best_range(histogram.range(), quantizer, error, |_, _| 0.0), all);
            prop_assert_eq!(best_range(histogram.range(), quantizer, error, least), all);
        }

        #[test]
        fn few_distinct_values_never_lose_to_the_whole_range(
            distinct in prop::collection::vec((-20.0f32..20.0, 1usize..300), 1..10),
            bits in 2u32..12,
            symmetric: bool,
            clip_weight in 1.0f64..9.0,
        ) {
            let half = 1i32 << (bits - 1);
            let quantizer = Quantizer::new(-half, half - 1, symmetric).unwrap();
            let values: Vec<f32> = distinct.iter().flat_map(|&(value, count)| vec![value; count]).collect();
            let histogram = histogram(&values);
            let best = mse_range(&histogram, quantizer, clip_weight).unwrap();
            let [found, whole] = [best, histogram.range()].map(|range| squared_error(&values, quantizer, range));
            prop_assert!(found <= whole * (1.0 + 1e-9), "{found} {whole}");
        }

        #[test]
        fn no_position_in_a_bin_deviates_more(
            start in 0.0f64..8.0, width in 0.001f64..0.5, at in 0.0f64..1.0, cut in 2.0f64..6.0, full in 6.0f64..9.0, bits in 2u32..10,
        ) {
            let half = 1i32 << (bits - 1);
            let [cut, full] = [cut, full].map(|high| {
                let grid = Quantizer::new(-half, half - 1, false).unwrap().grid((-1.0, high)).unwrap();
                (grid, grid.above)
            });
            let bin = (start, start + width);
            let difference = |value| cut.0.error(value).powi(2) - full.0.error(value).powi(2);
            let slices = 2000;
            let sum: f64 = (0..slices).map(|i| difference(start + width * (f64::from(i) + 0.5) / f64::from(slices))).sum();
            let deviation = (difference(start + width * at) - sum / f64::from(slices)).abs();
            let scale = cut.0.error(bin.1).powi(2) + full.0.step.powi(2);
            prop_assert!(deviation <= largest_deviation(bin, cut, full) + 1e-3 * scale);
        }

        #[test]
        fn modeled_error_is_that_of_the_values(values in prop::collection::vec(-1.0f32..2.0, 2000..2001), bits in 3u32..7, cut in 0.3f64..1.0) {
            let half = 1i32 << (bits - 1);
            let quantizer = Quantizer::new(-half, half - 1, false).unwrap();
            let histogram = histogram(&values);
            let range = (histogram.range().0, histogram.range().1 * cut);
            let grid = quantizer.grid(range).unwrap();
            let modeled = modeled_error(&histogram, grid);
            let exact = squared_error(&values, quantizer, range);
            prop_assert!((modeled - exact).abs() <= 0.05 * exact, "{modeled} {exact}");
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
        let values = gaussian(400_000, 200.0);
        for symmetric in [false, true] {
            let quantizer = Quantizer::new(-128, 127, symmetric).unwrap();
            let best = mse_range(&histogram(&values), quantizer, 1.0).unwrap();
            assert!(best.1 > 3.0 && best.1 < 200.0, "{best:?}");
            let whole = histogram(&values).range();
            assert!(squared_error(&values, quantizer, best) < squared_error(&values, quantizer, whole));
        }
    }

    #[test]
    fn values_that_repeat_are_not_taken_for_spread() {
        // The extrema hit the value 207 times over with an error of a tenth of the bin.
        let mut values = vec![-20.935_547f32; 208];
        values[0] = 0.25;
        let quantizer = Quantizer::new(-128, 127, false).unwrap();
        let histogram = histogram(&values);
        assert_eq!(mse_range(&histogram, quantizer, 8.0), Ok(histogram.range()));
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
