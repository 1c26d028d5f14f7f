//! Smallest and largest value.

use rayon::prelude::*;

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

/// Lanes advanced together, so that the comparisons vectorise.
const LANES: usize = 16;

/// Extrema of `values`; `None` if there are none.
///
/// # Errors
/// `NotFinite` if any value is NaN or infinite.
pub fn extrema(values: &[f32]) -> Result<Option<Extrema>, StatisticsError> {
    let found = values.par_chunks(CHUNK).map(chunk_extrema).reduce_with(|a, b| Some(a?.union(b?)));
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
/// `0 * x` is NaN exactly when x is not finite, and a sum with a NaN stays NaN: the check costs no branch.
#[inline(always)]
pub(crate) fn chunk_extrema(values: &[f32]) -> Option<Extrema> {
    let mut min = [f32::INFINITY; LANES];
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut poison = [0.0f32; LANES];
    let mut blocks = values.chunks_exact(LANES);
    for block in &mut blocks {
        for lane in 0..LANES {
            let value = block[lane];
            min[lane] = if value < min[lane] { value } else { min[lane] };
            max[lane] = if value > max[lane] { value } else { max[lane] };
            poison[lane] += 0.0 * value;
        }
    }
    for &value in blocks.remainder() {
        min[0] = if value < min[0] { value } else { min[0] };
        max[0] = if value > max[0] { value } else { max[0] };
        poison[0] += 0.0 * value;
    }
    // Adding +0 turns -0 into +0: which zero came first shall not show.
    poison.iter().all(|p| *p == 0.0).then(|| Extrema {
        min: min.into_iter().fold(f32::INFINITY, f32::min) + 0.0,
        max: max.into_iter().fold(f32::NEG_INFINITY, f32::max) + 0.0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
