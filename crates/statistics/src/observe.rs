//! One batch of many tensors at once, so that small ones share the threads.

use rayon::prelude::*;

use crate::{Extrema, Histogram, StatisticsError, extrema};

/// Extrema of every tensor, and its values counted in the histogram of the same index.
///
/// `histograms` has one entry per tensor, or none at all. A tensor without values, or with values that
/// are not finite, yields `None` and is not counted.
///
/// # Errors
/// `Pairs` if there are histograms, but not one per tensor.
pub fn observe(tensors: &[&[f32]], histograms: &mut [&mut Histogram]) -> Result<Vec<Option<Extrema>>, StatisticsError> {
    if histograms.is_empty() {
        return Ok(tensors.par_iter().map(|values| extrema(values).ok().flatten()).collect());
    }
    if histograms.len() != tensors.len() {
        return Err(StatisticsError::Pairs { tensors: tensors.len(), histograms: histograms.len() });
    }
    tensors
        .par_iter()
        .zip(histograms.par_iter_mut())
        .map(|(values, histogram)| {
            let found = extrema(values).ok().flatten();
            found.map_or(Ok(()), |extrema| histogram.observe(values, extrema)).map(|()| found)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tensor_meets_its_histogram() {
        let mut histograms = [Histogram::new(4).unwrap(), Histogram::new(4).unwrap(), Histogram::new(4).unwrap()];
        let tensors: [&[f32]; 3] = [&[1.0, 2.0], &[f32::NAN, 0.5], &[]];
        let found = observe(&tensors, &mut histograms.each_mut()).unwrap();
        assert_eq!(found, [Some(Extrema { min: 1.0, max: 2.0 }), None, None]);
        assert_eq!(histograms.each_ref().map(Histogram::count), [2, 0, 0]);
        assert_eq!(observe(&tensors, &mut []).unwrap(), found);
        let wrong = observe(&tensors, &mut histograms.each_mut()[..2]);
        assert_eq!(wrong, Err(StatisticsError::Pairs { tensors: 3, histograms: 2 }));
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
