//! Smallest and largest value.

use rayon::prelude::*;
use tpuflow_kernels::isa::{Isa, Work};

use crate::{CHUNK, StatisticsError};

/// Smallest and largest of a non-empty set of finite values; zeros are `+0`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extrema {
    /// Smallest value.
    pub min: f32,
    /// Largest value.
    pub max: f32,
}

impl Extrema {
    /// The extrema of both sets together.
    pub fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// Extrema of `values`; `None` if there are none.
///
/// # Errors
/// `NotFinite` if any value is NaN or infinite.
pub fn extrema(values: &[f32]) -> Result<Option<Extrema>, StatisticsError> {
    let lanes = Isa::selected().lanes();
    let found =
        values.par_chunks(CHUNK).map(|chunk| lanes.run(ChunkExtrema(chunk))).reduce_with(|a, b| Some(a?.union(b?)));
    match found {
        None => Ok(None),
        Some(Some(extrema)) => Ok(Some(extrema)),
        Some(None) => Err(StatisticsError::NotFinite(count_not_finite(values))),
    }
}

pub(crate) fn count_not_finite(values: &[f32]) -> usize {
    values.iter().filter(|value| !value.is_finite()).count()
}

/// Extrema of a non-empty chunk, `None` if one of its values is not finite.
///
/// Of integers that are ordered as the values are: least and largest of these are one instruction each, whatever the
/// width of vectors, and NaN lies beyond the infinity of its sign.
pub(crate) struct ChunkExtrema<'a>(pub &'a [f32]);

impl Work for ChunkExtrema<'_> {
    type Result = Option<Extrema>;

    #[inline(always)]
    fn done(self) -> Option<Extrema> {
        let (mut min, mut max) = (i32::MAX, i32::MIN);
        for value in self.0 {
            let key = ordered_bits(value.to_bits() as i32);
            (min, max) = (min.min(key), max.max(key));
        }
        let [min, max] = [min, max].map(|key| f32::from_bits(ordered_bits(key) as u32));
        // Adding +0 turns -0 into +0: which zero came first shall not show.
        (min.is_finite() && max.is_finite()).then_some(Extrema { min: min + 0.0, max: max + 0.0 })
    }
}

/// Bits of a float as an integer of the same order, and back: those of magnitudes below zero are turned around.
#[inline(always)]
fn ordered_bits(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_value_of_every_kind() {
        for value in [0.0, -0.0, 1.0, -1.0, f32::MIN, f32::MAX, f32::from_bits(1), -f32::from_bits(1)] {
            assert_eq!(extrema(&[value]), Ok(Some(Extrema { min: value, max: value })));
        }
        for value in [f32::NAN, -f32::NAN, f32::from_bits(0xff80_0001), f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(extrema(&[1.0, value, -1.0]), Err(StatisticsError::NotFinite(1)));
        }
    }

    proptest! {
        #[test]
        fn equals_the_sorted_ends(values in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::SUBNORMAL, 1..200)) {
            let mut sorted = values.clone();
            sorted.sort_by(f32::total_cmp);
            let found = extrema(&values).unwrap().unwrap();
            prop_assert_eq!(found, Extrema { min: sorted[0], max: sorted[sorted.len() - 1] });
        }

        #[test]
        fn any_value_that_is_not_finite_is_counted(
            mut values in prop::collection::vec(-1.0f32..1.0, 1..100),
            bad in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY])), 1..4),
        ) {
            for (at, value) in &bad {
                let at = at.index(values.len());
                values[at] = *value;
            }
            let expected = values.iter().filter(|v| !v.is_finite()).count();
            prop_assert_eq!(extrema(&values), Err(StatisticsError::NotFinite(expected)));
        }
    }

    #[test]
    fn many_chunks_and_no_values() {
        let mut values = vec![0.5f32; 3 * CHUNK + 7];
        values[CHUNK + 3] = -2.0;
        values[3 * CHUNK + 6] = 9.0;
        assert_eq!(extrema(&values).unwrap(), Some(Extrema { min: -2.0, max: 9.0 }));
        assert_eq!(extrema(&[]).unwrap(), None);
    }

    #[test]
    fn zeros_lose_their_sign() {
        let found = extrema(&[-0.0]).unwrap().unwrap();
        assert!(found.min.is_sign_positive() && found.max.is_sign_positive());
    }
}
