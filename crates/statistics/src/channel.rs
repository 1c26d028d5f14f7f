//! Ranges per channel of a tensor whose values are at hand: weights.

use rayon::prelude::*;
use tpuflow_kernels::isa::{Isa, Work};

use crate::extrema::count_not_finite;
use crate::mse::best_range;
use crate::{Extrema, Grid, Quantizer, Range, StatisticsError};

/// A dense row-major tensor seen as `[outer, channels, inner]`.
#[derive(Debug, Clone, Copy)]
pub struct Channels<'a> {
    values: &'a [f32],
    outer: usize,
    channels: usize,
    inner: usize,
}

impl<'a> Channels<'a> {
    /// Views `values` as `[outer, channels, inner]`.
    ///
    /// # Errors
    /// `Shape` if the lengths do not fit; `NotFinite` if any value is NaN or infinite.
    pub fn new(values: &'a [f32], outer: usize, channels: usize, inner: usize) -> Result<Self, StatisticsError> {
        let wanted = outer.checked_mul(channels).and_then(|n| n.checked_mul(inner));
        if wanted != Some(values.len()) {
            return Err(StatisticsError::Shape { values: values.len(), outer, channels, inner });
        }
        match count_not_finite(values) {
            0 => Ok(Self { values, outer, channels, inner }),
            bad => Err(StatisticsError::NotFinite(bad)),
        }
    }

    /// Values of one channel, in order.
    fn channel(self, channel: usize) -> impl Iterator<Item = f32> + Clone + 'a {
        (0..self.outer).flat_map(move |outer| {
            let start = (outer * self.channels + channel) * self.inner;
            self.values[start..start + self.inner].iter().copied()
        })
    }

    fn range(self, channel: usize) -> Range {
        let zero = Extrema { min: 0.0, max: 0.0 };
        let found = self.channel(channel).fold(zero, |e, v| e.union(Extrema { min: v, max: v }));
        (f64::from(found.min), f64::from(found.max))
    }
}

/// Smallest and largest value of every channel, widened to contain zero.
pub fn channel_extrema(tensor: Channels<'_>) -> Vec<Range> {
    (0..tensor.channels).into_par_iter().map(|channel| tensor.range(channel)).collect()
}

/// The range of every channel with the least squared quantisation error of its values.
///
/// Complexity: about 100 evaluations of every value for a symmetric quantiser, up to 900 else.
pub fn channel_mse_ranges(tensor: Channels<'_>, quantizer: Quantizer) -> Vec<Range> {
    let lanes = Isa::selected().lanes();
    (0..tensor.channels)
        .into_par_iter()
        .map(|channel| {
            let values: Vec<f64> = tensor.channel(channel).map(f64::from).collect();
            best_range(
                tensor.range(channel),
                quantizer,
                |grid| lanes.run(SquaredError { grid, values: &values }),
                |_, _| 0.0,
            )
        })
        .collect()
}

struct SquaredError<'a> {
    grid: Grid,
    values: &'a [f64],
}

impl Work for SquaredError<'_> {
    type Result = f64;

    #[inline(always)]
    fn done(self) -> f64 {
        self.grid.squared_error(self.values)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shaped() -> impl Strategy<Value = (Vec<f32>, [usize; 3])> {
        prop::array::uniform3(1usize..6).prop_flat_map(|shape| {
            let count = shape.iter().product::<usize>();
            (prop::collection::vec(prop_oneof![5 => -1.0f32..1.0, 1 => -9.0f32..9.0], count), Just(shape))
        })
    }

    /// Values of a channel by index arithmetic.
    fn of_channel(values: &[f32], [_, channels, inner]: [usize; 3], channel: usize) -> Vec<f64> {
        let wanted = |(at, _): &(usize, &f32)| at / inner % channels == channel;
        values.iter().enumerate().filter(wanted).map(|(_, &v)| f64::from(v)).collect()
    }

    proptest! {
        #[test]
        fn extrema_of_each_channel((values, shape) in shaped()) {
            let found = channel_extrema(Channels::new(&values, shape[0], shape[1], shape[2]).unwrap());
            let expected: Vec<Range> = (0..shape[1])
                .map(|c| of_channel(&values, shape, c).iter().fold((0.0f64, 0.0f64), |(low, high), &v| (low.min(v), high.max(v))))
                .collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn error_of_each_channel_is_no_larger_than_with_the_extrema((values, shape) in shaped(), symmetric: bool) {
            let tensor = Channels::new(&values, shape[0], shape[1], shape[2]).unwrap();
            let quantizer = Quantizer::new(-7, 7, symmetric).unwrap();
            let extrema = channel_extrema(tensor);
            for (channel, best) in channel_mse_ranges(tensor, quantizer).into_iter().enumerate() {
                let values = of_channel(&values, shape, channel);
                let error = |range| quantizer.grid(range).map_or(0.0, |grid| values.iter().map(|&v| grid.error(v).powi(2)).sum::<f64>());
                prop_assert!(error(best) <= error(extrema[channel]) * (1.0 + 1e-12));
            }
        }
    }

    #[test]
    fn refusals() {
        assert!(matches!(Channels::new(&[0.0; 5], 1, 2, 3), Err(StatisticsError::Shape { .. })));
        assert!(matches!(Channels::new(&[0.0; 5], usize::MAX, 2, 3), Err(StatisticsError::Shape { .. })));
        assert!(matches!(Channels::new(&[0.0, f32::NAN], 1, 2, 1), Err(StatisticsError::NotFinite(1))));
    }
}
