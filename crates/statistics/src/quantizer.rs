//! The grid of values a uniform quantiser represents.

use crate::{Range, StatisticsError};

/// The codes of a uniform quantiser and whether its zero point is fixed at 0.
///
/// | kind | `qmin` | `qmax` | `symmetric` |
/// |---|---|---|---|
/// | asymmetric int8 | -128 | 127 | no |
/// | symmetric full range | -128 | 127 | yes |
/// | symmetric restricted | -127 | 127 | yes |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantizer {
    qmin: i32,
    qmax: i32,
    symmetric: bool,
}

/// The values `step * n` from `low` to `high`; zero is one of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// Distance of neighbours, > 0.
    pub step: f64,
    /// Number of steps below zero.
    pub below: f64,
    /// Number of steps above zero.
    pub above: f64,
}

/// Adding and subtracting `1.5 * 2^52` rounds to an integer, ties to even, also where no instruction does.
const ROUND: f64 = 6_755_399_441_055_744.0;

impl Quantizer {
    /// A quantiser with codes `qmin..=qmax`.
    ///
    /// # Errors
    /// `Codes` unless `qmin <= 0 <= qmax` and `qmin < qmax`.
    pub fn new(qmin: i32, qmax: i32, symmetric: bool) -> Result<Self, StatisticsError> {
        if qmin > 0 || qmax < 0 || qmin == qmax {
            return Err(StatisticsError::Codes(qmin, qmax));
        }
        Ok(Self { qmin, qmax, symmetric })
    }

    /// Whether the zero point is fixed at 0.
    pub fn symmetric(self) -> bool {
        self.symmetric
    }

    /// The grid of the scale and zero point derived from a range; `None` for an empty range.
    ///
    /// Symmetric: `S = 2 * max(|low|, |high|) / (qmax - qmin)`, `Z = 0`. Asymmetric:
    /// `S = (high - low) / (qmax - qmin)`, `Z = clamp(RNE(qmin - low / S), qmin, qmax)`.
    pub fn grid(self, (low, high): Range) -> Option<Grid> {
        let (qmin, qmax) = (f64::from(self.qmin), f64::from(self.qmax));
        let span = if self.symmetric { 2.0 * high.max(-low) } else { high - low };
        let step = span / (qmax - qmin);
        if step <= 0.0 {
            return None;
        }
        let zero_point = if self.symmetric { 0.0 } else { (qmin - low / step).round_ties_even().clamp(qmin, qmax) };
        Some(Grid { step, below: zero_point - qmin, above: qmax - zero_point })
    }
}

impl Grid {
    /// `value` minus the nearest value of the grid.
    pub fn error(self, value: f64) -> f64 {
        value - (value / self.step).round_ties_even().clamp(-self.below, self.above) * self.step
    }

    /// Sum of the squared [`error`](Self::error) of `values`, in a fixed order of additions that vectorises.
    #[inline(always)]
    pub(crate) fn squared_error(self, values: &[f64]) -> f64 {
        const LANES: usize = 8;
        let per_step = 1.0 / self.step;
        let term = |value: f64| {
            let code = (value * per_step).max(-self.below).min(self.above) + ROUND - ROUND;
            let error = value - code * self.step;
            error * error
        };
        let mut sums = [0.0; LANES];
        let mut blocks = values.chunks_exact(LANES);
        for block in &mut blocks {
            for lane in 0..LANES {
                sums[lane] += term(block[lane]);
            }
        }
        sums.into_iter().sum::<f64>() + blocks.remainder().iter().map(|&value| term(value)).sum::<f64>()
    }

    /// Squared [`error`](Self::error) of `value`; sides and weight as for the integral.
    pub(crate) fn squared_error_at(self, value: f64, steps: f64, clip_weight: f64) -> f64 {
        let rest = value - (value / self.step + 0.5).floor().min(steps) * self.step;
        rest * rest * if rest > 0.5 * self.step { clip_weight } else { 1.0 }
    }

    /// Integral of the squared [`error`](Self::error) from 0 to `value`, for `value >= 0` on the upper
    /// side (`steps = above`) or mirrored on the lower one (`steps = below`). Squared errors of clipped
    /// values, those more than half a step beyond the last grid point, count `clip_weight` times.
    ///
    /// With n the nearest grid point, every cell left of n's contributes `step^3 / 12`, and the way
    /// `r = value - n * step` into n's cell contributes `r^3 / 3`, also where n is the last point and
    /// the rest is clipped.
    #[inline(always)]
    pub(crate) fn squared_error_integral(self, value: f64, steps: f64, clip_weight: f64) -> f64 {
        let cube = self.step * self.step * self.step;
        // Ties may go either way, both give the same sum. There is neither a division nor a NaN here that a loop would pay for.
        let cells = value * (1.0 / self.step);
        let nearest = (if cells < steps { cells } else { steps }) + ROUND - ROUND;
        let rest = value - nearest * self.step;
        let last = rest * rest * rest * (1.0 / 3.0);
        let beyond = last - cube / 24.0;
        let clipped = if beyond > 0.0 { beyond } else { 0.0 };
        nearest * (cube / 12.0) + last + (clip_weight - 1.0) * clipped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scales_of_the_three_kinds() {
        let step = |qmin, symmetric| Quantizer::new(qmin, 127, symmetric).unwrap().grid((-1.1, 3.3)).unwrap().step;
        assert_eq!(step(-128, false), (3.3 + 1.1) / 255.0);
        assert_eq!(step(-128, true), 6.6 / 255.0);
        assert_eq!(step(-127, true), 6.6 / 254.0);
    }

    #[test]
    fn refused_codes() {
        for (qmin, qmax) in [(1, 5), (-5, -1), (0, 0), (3, -3)] {
            assert_eq!(Quantizer::new(qmin, qmax, false), Err(StatisticsError::Codes(qmin, qmax)));
        }
        assert_eq!(Quantizer::new(-8, 7, true).unwrap().grid((0.0, 0.0)), None);
    }

    proptest! {
        #[test]
        fn integral_equals_a_riemann_sum(low in -4.0f64..0.0, high in 0.1f64..4.0, symmetric: bool, end in 0.1f64..6.0, clip_weight in 1.0f64..9.0) {
            let grid = Quantizer::new(-8, 7, symmetric).unwrap().grid((low, high)).unwrap();
            let slices = 20_000;
            let width = end / f64::from(slices);
            for (sign, steps) in [(1.0, grid.above), (-1.0, grid.below)] {
                let weighted = |value: f64| {
                    let clipped = value > (steps + 0.5) * grid.step;
                    grid.error(sign * value).powi(2) * if clipped { clip_weight } else { 1.0 }
                };
                let sum: f64 = (0..slices).map(|i| weighted((f64::from(i) + 0.5) * width) * width).sum();
                let integral = grid.squared_error_integral(end, steps, clip_weight);
                prop_assert!((sum - integral).abs() <= 1e-3 * (integral + grid.step.powi(3)), "{sum} {integral}");
            }
        }
    }
}
