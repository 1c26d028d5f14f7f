//! One batch of many tensors at once, so that small ones share the threads.
//!
//! Values beyond [`LARGEST`] stand for minus infinity: attention masks add or choose them so that a softmax
//! leaves elements out. They are counted and otherwise left out. Positive infinity and NaN are what an
//! overflow leaves behind, and refused.

use rayon::prelude::*;

use crate::{Extrema, Histogram, StatisticsError, extrema};

/// Magnitude beyond which a value is no quantity but a mask.
pub const LARGEST: f32 = 1e30;

/// What was seen of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observed {
    /// Smallest and largest of the values counted; `None` without any.
    pub extrema: Option<Extrema>,
    /// Number of values beyond [`LARGEST`], which were not counted.
    pub left_out: u64,
}

/// Extrema of every tensor, and its values counted in the histogram of the same index.
///
/// `histograms` has one entry per tensor, or none at all. Of a tensor with NaN or positive infinity, nothing
/// is counted; its result is `NotFinite`.
///
/// # Errors
/// `Pairs` if there are histograms, but not one per tensor.
pub fn observe(
    tensors: &[&[f32]],
    histograms: &mut [&mut Histogram],
) -> Result<Vec<Result<Observed, StatisticsError>>, StatisticsError> {
    if histograms.is_empty() {
        return Ok(tensors.par_iter().map(|values| observe_one(values, None)).collect());
    }
    if histograms.len() != tensors.len() {
        return Err(StatisticsError::Pairs { tensors: tensors.len(), histograms: histograms.len() });
    }
    let pairs = tensors.par_iter().zip(histograms.par_iter_mut());
    Ok(pairs.map(|(values, histogram)| observe_one(values, Some(histogram))).collect())
}

fn observe_one(values: &[f32], histogram: Option<&mut Histogram>) -> Result<Observed, StatisticsError> {
    let usual = |found: &Extrema| -LARGEST <= found.min && found.max <= LARGEST;
    if let Ok(found) = extrema(values)
        && found.as_ref().is_none_or(usual)
    {
        count(values, found, histogram)?;
        return Ok(Observed { extrema: found, left_out: 0 });
    }
    // Masks are few: only here are values copied.
    let refused = values.iter().filter(|value| value.is_nan() || **value == f32::INFINITY).count();
    if refused > 0 {
        return Err(StatisticsError::NotFinite(refused));
    }
    let kept: Vec<f32> = values.iter().copied().filter(|value| value.abs() <= LARGEST).collect();
    let found = extrema(&kept)?;
    count(&kept, found, histogram)?;
    Ok(Observed { extrema: found, left_out: (values.len() - kept.len()) as u64 })
}

fn count(values: &[f32], extrema: Option<Extrema>, histogram: Option<&mut Histogram>) -> Result<(), StatisticsError> {
    match (histogram, extrema) {
        (Some(histogram), Some(extrema)) => histogram.observe(values, extrema),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_tensor_meets_its_histogram() {
        let mut histograms = [Histogram::new(4).unwrap(), Histogram::new(4).unwrap(), Histogram::new(4).unwrap()];
        let tensors: [&[f32]; 3] = [&[1.0, 2.0], &[f32::NAN, 0.5, f32::INFINITY], &[]];
        let found = observe(&tensors, &mut histograms.each_mut()).unwrap();
        let seen = Observed { extrema: Some(Extrema { min: 1.0, max: 2.0 }), left_out: 0 };
        assert_eq!(found, [Ok(seen), Err(StatisticsError::NotFinite(2)), Ok(Observed::default())]);
        assert_eq!(histograms.each_ref().map(Histogram::count), [2, 0, 0]);
        assert_eq!(observe(&tensors, &mut []).unwrap(), found);
        let wrong = observe(&tensors, &mut histograms.each_mut()[..2]);
        assert_eq!(wrong, Err(StatisticsError::Pairs { tensors: 3, histograms: 2 }));
    }

    proptest! {
        #[test]
        fn masks_leave_the_statistics_of_the_rest(
            values in prop::collection::vec((-9.0f32..9.0, prop::option::weighted(0.2, prop::sample::select(
                vec![f32::NEG_INFINITY, f32::MIN, f32::MAX, -1.1e30],
            ))), 0..100),
        ) {
            let masked: Vec<f32> = values.iter().map(|&(value, mask)| mask.unwrap_or(value)).collect();
            let rest: Vec<f32> = values.iter().filter(|(_, mask)| mask.is_none()).map(|&(value, _)| value).collect();
            let [mut ours, mut theirs] = [Histogram::new(16).unwrap(), Histogram::new(16).unwrap()];
            let found = observe(&[&masked], &mut [&mut ours]).unwrap();
            let left_out = (values.len() - rest.len()) as u64;
            prop_assert_eq!(found, [Ok(Observed { extrema: extrema(&rest).unwrap(), left_out })]);
            observe(&[&rest], &mut [&mut theirs]).unwrap()[0].clone().unwrap();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same() {
        let values: Vec<f32> = (0..300_000u64).map(|i| ((i * 7919) % 10_007) as f32 - 3000.0).collect();
        let tensors: Vec<&[f32]> = vec![&values, &values[..100], &values[77..200_000]];
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut histograms = vec![Histogram::new(2048).unwrap(); 3];
            let found = pool.install(|| observe(&tensors, &mut histograms.iter_mut().collect::<Vec<_>>()));
            (found, histograms, pool.install(|| crate::moments(&values)))
        };
        assert_eq!(run(1), run(2));
        assert_eq!(run(1), run(5));
    }
}
