//! One batch of many tensors at once, so that small ones share the threads.
//!
//! Values beyond [`LARGEST`] stand for minus infinity: attention masks add or choose them so that a softmax
//! leaves elements out. They are counted and otherwise left out. Positive infinity and NaN are what an
//! overflow leaves behind, and refused.
//!
//! Tensors are cut into parts, a thread each, and all that is asked of a part is found while it is in a near cache.
//! Parts do not depend on the number of threads; what was counted of them is added up in order.
//!
//! Of a tensor of more than [`MANY`] values a quarter stands for all but large ones, unless all shall be counted (see
//! `partial_histogram`). Which ones follows from the tensor alone, so that neither threads nor shards of the samples show.

use rayon::prelude::*;
use tpuflow_kernels::isa::{Isa, Lanes};

use crate::partial_histogram::{Counters, PartialHistogram, Share};
use crate::sums::{channel_sums, plane_sum, row_sums};
use crate::{Extrema, Histogram, StatisticsError};

/// Magnitude beyond which a value is no quantity but a mask.
pub const LARGEST: f32 = 1e30;

/// Values of a tensor, at a time, up to which all are counted.
pub const MANY: usize = 1 << 16;

/// Values of all tensors that one thread is done with before others are awake.
const FEW: usize = 1 << 17;

/// Values of a part, or one plane if that is longer.
const PART: usize = 1 << 20;
/// Values of a part that are looked at together: they stay in the second cache.
const BLOCK: usize = 1 << 14;
/// Longest plane that is summed while it is in that cache.
const PLANE: usize = 1 << 16;

/// The channels of a row-major tensor: `[outer, channels, inner]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of channels, at least 1.
    pub channels: usize,
    /// Neighbours of the same channel, at least 1.
    pub inner: usize,
}

/// Values of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Row-major.
    pub values: &'a [f32],
    /// Where channels shall be summed.
    pub layout: Option<Layout>,
    /// All values shall be counted, however many there are.
    pub all: bool,
}

/// The statistics of one tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observed {
    /// Smallest and largest of the values counted; `None` without any.
    pub extrema: Option<Extrema>,
    /// Number of values beyond [`LARGEST`], which were not counted.
    pub left_out: u64,
    /// Sum of every channel, those beyond [`LARGEST`] included; none where no sums are asked for.
    pub sums: Vec<f64>,
}

/// Extrema and sums of every tensor, and its values, or a part of more than [`MANY`], counted in the histogram of the same index.
///
/// `histograms` has one entry per tensor, or none at all. Of a tensor with NaN or positive infinity, nothing
/// is counted; its result is `NotFinite`.
///
/// # Errors
/// `Pairs` if there are histograms, but not one per tensor; `Shape` if a length is no multiple of its layout's.
pub fn observe(
    tensors: &[Tensor<'_>],
    histograms: &mut [&mut Histogram],
) -> Result<Vec<Result<Observed, StatisticsError>>, StatisticsError> {
    observe_with(tensors, histograms, Isa::selected().lanes(), FEW)
}

fn observe_with(
    tensors: &[Tensor<'_>],
    histograms: &mut [&mut Histogram],
    lanes: Lanes,
    few: usize,
) -> Result<Vec<Result<Observed, StatisticsError>>, StatisticsError> {
    if !histograms.is_empty() && histograms.len() != tensors.len() {
        return Err(StatisticsError::Pairs { tensors: tensors.len(), histograms: histograms.len() });
    }
    tensors.iter().try_for_each(Tensor::check)?;
    let known: Vec<_> = histograms.iter().map(|histogram| (histogram.bins(), histogram.exponent())).collect();
    let parts: Vec<Part<'_>> = tensors.iter().enumerate().flat_map(|(index, tensor)| tensor.parts(index)).collect();
    let alone = tensors.iter().map(|tensor| tensor.values.len()).sum::<usize>() <= few;
    let see = |counters: &mut Vec<(usize, Counters)>, part: &Part<'_>| {
        let (bins, exponent) = known.get(part.index).copied().unwrap_or((0, None));
        part.seen(counters_of(counters, bins, lanes), exponent)
    };
    let seen: Vec<Option<PartStatistics>> = if alone {
        let mut counters = Vec::new();
        parts.iter().map(|part| see(&mut counters, part)).collect()
    } else {
        parts.par_iter().map_init(Vec::new, see).collect()
    };
    let mut by_tensor = vec![Vec::new(); tensors.len()];
    for (part, seen) in parts.iter().zip(&seen) {
        by_tensor[part.index].push(seen.as_ref());
    }
    let mut histograms: Vec<_> = if histograms.is_empty() {
        tensors.iter().map(|_| None).collect()
    } else {
        histograms.iter_mut().map(|histogram| Some(&mut **histogram)).collect()
    };
    let join =
        |((tensor, histogram), seen): ((&Tensor<'_>, &mut Option<&mut Histogram>), Vec<Option<&PartStatistics>>)| {
            match seen.into_iter().collect::<Option<Vec<_>>>() {
                Some(seen) => Ok(tensor.joined(&seen, histogram.as_deref_mut(), lanes)),
                None => tensor.without_masks(histogram.as_deref_mut(), lanes),
            }
        };
    Ok(if alone {
        tensors.iter().zip(&mut histograms).zip(by_tensor).map(join).collect()
    } else {
        tensors.par_iter().zip(&mut histograms).zip(by_tensor).map(join).collect()
    })
}

/// Values of one tensor for one thread.
struct Part<'a> {
    index: usize,
    values: &'a [f32],
    /// Length of planes to be summed; 1 for none.
    plane: usize,
    share: Share,
}

/// The statistics of a part.
struct PartStatistics {
    histogram: PartialHistogram,
    planes: Vec<f32>,
}

/// The counters of so many bins, made where there are none yet.
fn counters_of(made: &mut Vec<(usize, Counters)>, bins: usize, lanes: Lanes) -> &mut Counters {
    let at = made.iter().position(|(each, _)| *each == bins).unwrap_or_else(|| {
        made.push((bins, Counters::new(bins, LARGEST, lanes)));
        made.len() - 1
    });
    &mut made[at].1
}

impl Part<'_> {
    /// The statistics; `None` where there are masks or worse.
    fn seen(&self, counters: &mut Counters, exponent: Option<i32>) -> Option<PartStatistics> {
        let mut planes = Vec::new();
        counters.begin(exponent, self.share);
        for block in self.values.chunks(self.plane * (BLOCK / self.plane).max(1)) {
            if !counters.add(block) {
                return None;
            }
            if self.plane > 1 {
                planes.extend(block.chunks_exact(self.plane).map(plane_sum));
            }
        }
        Some(PartStatistics { histogram: counters.take(), planes })
    }
}

impl<'a> Tensor<'a> {
    fn check(&self) -> Result<(), StatisticsError> {
        let Some(Layout { channels, inner }) = self.layout else { return Ok(()) };
        let plane = channels.checked_mul(inner).filter(|plane| *plane > 0);
        match plane.map(|plane| self.values.len() % plane) {
            Some(0) => Ok(()),
            _ => Err(StatisticsError::Shape { values: self.values.len(), outer: 0, channels, inner }),
        }
    }

    /// Length of planes that are summed by part; 1 where sums are none, or found otherwise.
    fn plane(&self) -> usize {
        self.layout.map_or(1, |layout| if layout.inner <= PLANE { layout.inner } else { 1 })
    }

    fn parts(&self, index: usize) -> impl Iterator<Item = Part<'a>> + use<'a> {
        let plane = self.plane();
        let share = self.share();
        self.values.chunks(plane * (PART / plane)).map(move |values| Part { index, values, plane, share })
    }

    fn share(&self) -> Share {
        if self.all || self.values.len() <= MANY { Share::All } else { Share::Part }
    }

    fn joined(&self, seen: &[&PartStatistics], histogram: Option<&mut Histogram>, lanes: Lanes) -> Observed {
        if let Some(histogram) = histogram {
            seen.iter().for_each(|part| histogram.add(&part.histogram));
        }
        let sums = match self.layout {
            None => Vec::new(),
            Some(layout) if self.plane() > 1 => {
                let planes: Vec<f32> = seen.iter().flat_map(|part| &part.planes).copied().collect();
                row_sums(&planes, layout.channels)
            }
            Some(layout) => channel_sums(self.values, layout, lanes),
        };
        let extrema = seen.iter().filter_map(|part| part.histogram.extrema).reduce(Extrema::union);
        Observed { extrema, left_out: 0, sums }
    }

    /// The statistics of a tensor with masks, which are few: only here are values copied.
    fn without_masks(&self, histogram: Option<&mut Histogram>, lanes: Lanes) -> Result<Observed, StatisticsError> {
        let refused = self.values.iter().filter(|value| value.is_nan() || **value == f32::INFINITY).count();
        if refused > 0 {
            return Err(StatisticsError::NotFinite(refused));
        }
        let kept: Vec<f32> = self.values.iter().copied().filter(|value| value.abs() <= LARGEST).collect();
        let extrema = match histogram {
            Some(histogram) => histogram.observe_share(&kept, self.share())?,
            None => crate::extrema(&kept)?,
        };
        let sums = self.layout.map_or_else(Vec::new, |layout| channel_sums(self.values, layout, lanes));
        Ok(Observed { extrema, left_out: (self.values.len() - kept.len()) as u64, sums })
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;

    use super::*;
    use crate::histogram::tests::reference;
    use crate::partial_histogram::tests::counted_part;

    fn plain(values: &[f32]) -> Tensor<'_> {
        Tensor { values, layout: None, all: true }
    }

    #[test]
    fn each_tensor_meets_its_histogram() {
        let mut histograms = [Histogram::new(4).unwrap(), Histogram::new(4).unwrap(), Histogram::new(4).unwrap()];
        let tensors = [plain(&[1.0, 2.0]), plain(&[f32::NAN, 0.5, f32::INFINITY]), plain(&[])];
        let found = observe(&tensors, &mut histograms.each_mut()).unwrap();
        let seen = Observed { extrema: Some(Extrema { min: 1.0, max: 2.0 }), ..Observed::default() };
        assert_eq!(found, [Ok(seen), Err(StatisticsError::NotFinite(2)), Ok(Observed::default())]);
        assert_eq!(histograms.each_ref().map(Histogram::count), [2, 0, 0]);
        assert_eq!(observe(&tensors, &mut []).unwrap(), found);
        let wrong = observe(&tensors, &mut histograms.each_mut()[..2]);
        assert_eq!(wrong, Err(StatisticsError::Pairs { tensors: 3, histograms: 2 }));
        for layout in [Layout { channels: 2, inner: 2 }, Layout { channels: 0, inner: 1 }] {
            let wrong = observe(&[Tensor { values: &[1.0; 6], layout: Some(layout), all: true }], &mut []);
            assert!(matches!(wrong, Err(StatisticsError::Shape { values: 6, .. })));
        }
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
            let found = observe(&[plain(&masked)], &mut [&mut ours]).unwrap();
            let left_out = (values.len() - rest.len()) as u64;
            prop_assert_eq!(found, [Ok(Observed { extrema: crate::extrema(&rest).unwrap(), left_out, sums: Vec::new() })]);
            observe(&[plain(&rest)], &mut [&mut theirs]).unwrap()[0].clone().unwrap();
            prop_assert_eq!(ours, theirs);
        }
    }

    /// Values of many sizes whose largest comes late, both zeros among them.
    fn values(count: usize) -> Vec<f32> {
        let value = |at: usize| match at % 11 {
            0 => 0.0,
            1 => -0.0,
            _ => (((at * 7919) % 10_007) as f32 - 3000.0) * (1.0 + (at / 1000) as f32),
        };
        (0..count).map(value).collect()
    }

    #[test]
    fn lengths_around_every_border_in_every_instruction_set() {
        for count in [1, 255, 257, BLOCK - 1, BLOCK + 5, PART + 3, 2 * PART + BLOCK + 1] {
            let values = values(count);
            let expected = reference(&values, 2048);
            for isa in Isa::variants() {
                let mut histogram = Histogram::new(2048).unwrap();
                let found = observe_with(&[plain(&values)], &mut [&mut histogram], isa.lanes(), FEW).unwrap();
                assert_eq!(histogram, expected, "{count} {}", isa.name());
                assert_eq!(found[0].as_ref().unwrap().extrema, expected.extrema());
                let alone = observe_with(&[plain(&values)], &mut [], isa.lanes(), FEW).unwrap();
                assert_eq!(alone, found);
            }
        }
    }

    #[test]
    fn one_thread_gives_what_all_do() {
        let many = [values(3000), values(700), [values(500), vec![f32::MIN]].concat(), vec![f32::NAN; 3], vec![]];
        let layout = Some(Layout { channels: 5, inner: 20 });
        let tensors: Vec<Tensor<'_>> = many.iter().map(|values| plain(values)).collect();
        let tensors = [&[Tensor { layout, ..tensors[0] }], &tensors[1..]].concat();
        let [one, all] = [usize::MAX, 0].map(|few| {
            let mut histograms = [64, 2048, 64, 8, 8].map(|bins| Histogram::new(bins).unwrap());
            let twice = [(); 2]
                .map(|()| observe_with(&tensors, &mut histograms.each_mut(), Isa::selected().lanes(), few).unwrap());
            (twice, histograms)
        });
        assert_eq!(one, all);
    }

    /// The values to count of a tensor of many, block by block, and how often.
    fn counted(values: &[f32], plane: usize) -> Vec<(f32, u64)> {
        let [part, block] = [PART, BLOCK].map(|most| plane * (most / plane).max(1));
        let of_part = |part: &[f32]| {
            let (mut groups, mut seen) = (0, (0.0, 0.0));
            part.chunks(block).flat_map(|block| counted_part(block, &mut groups, &mut seen)).collect::<Vec<_>>()
        };
        values.chunks(part).flat_map(of_part).collect()
    }

    #[test]
    fn a_part_of_many_values_is_counted_as_value_by_value() {
        for (count, plane) in [(MANY, 1), (MANY + 1, 1), (MANY + 5 * 64, 1), (6 * 49 * 3001, 49), (2 * PART + 30, 1)] {
            let values: Vec<f32> =
                values(count).iter().map(|value| value * if count % 2 == 0 { 1.0 } else { 0.0 }).collect();
            let layout = (plane > 1).then_some(Layout { channels: 3, inner: plane });
            for isa in Isa::variants() {
                let mut histograms = [Histogram::new(64).unwrap(), Histogram::new(64).unwrap()];
                let tensors = [false, true].map(|all| Tensor { values: &values, layout, all });
                let found = observe_with(&tensors, &mut histograms.each_mut(), isa.lanes(), FEW).unwrap();
                assert_eq!(found[0], found[1], "extrema and sums are those of all");
                let mut expected = reference(&values, 64).parts();
                if count > MANY {
                    expected.zeros = 0;
                    expected.negative.fill(0);
                    expected.positive.fill(0);
                    for (value, times) in counted(&values, plane) {
                        // The width is that of all values.
                        let bin = (f64::from(value.abs()) / histograms[0].width()) as usize;
                        let counter = match value.partial_cmp(&0.0).unwrap() {
                            Ordering::Less => &mut expected.negative[bin],
                            Ordering::Equal => &mut expected.zeros,
                            Ordering::Greater => &mut expected.positive[bin],
                        };
                        *counter += times;
                    }
                }
                assert!(histograms[0].count().abs_diff(count as u64) < count as u64 / 50);
                assert_eq!(histograms[0].parts(), expected, "{count} {}", isa.name());
                assert_eq!(histograms[1], reference(&values, 64));
            }
        }
    }

    #[test]
    fn sums_of_every_layout_in_every_instruction_set() {
        for (channels, inner, outer) in
            [(3, 1, 50), (5, 7, 3), (4, 49, 2), (3, 3000, 6), (2, PLANE + 5, 2), (70, PLANE, 1)]
        {
            let values: Vec<f32> = values(outer * channels * inner).iter().map(|value| value / 3.0).collect();
            let expected: Vec<f64> = (0..channels)
                .map(|channel| {
                    let of_channel = |(at, _): &(usize, &f32)| at / inner % channels == channel;
                    values.iter().enumerate().filter(of_channel).map(|(_, &value)| f64::from(value)).sum()
                })
                .collect();
            let layout = Some(Layout { channels, inner });
            let largest = values.iter().fold(0.0f64, |most, &value| most.max(f64::from(value).abs()));
            let mut first = None;
            for isa in Isa::variants() {
                let found = observe_with(&[Tensor { values: &values, layout, all: true }], &mut [], isa.lanes(), FEW)
                    .unwrap()
                    .remove(0)
                    .unwrap();
                for (sum, exact) in found.sums.iter().zip(&expected) {
                    assert!((sum - exact).abs() <= 1e-6 * largest * (outer * inner) as f64, "{sum} {exact}");
                }
                assert_eq!(*first.get_or_insert(found.clone()), found, "{}", isa.name());
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same() {
        let values = values(3 * PART + 17);
        let cut = &values[..3 * PART];
        let layout = Some(Layout { channels: 3, inner: 64 });
        let tensors = [plain(&values), plain(&values[..100]), Tensor { values: cut, layout, all: false }];
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
