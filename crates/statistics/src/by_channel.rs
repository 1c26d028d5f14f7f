//! Reach and power of every channel of activations, in one pass over values that are still in a cache.
//!
//! Which axes tell channels apart is stated by tensor; all others are gone through. Neighbouring axes of one kind are
//! one axis, so that what follows the last one that differs lies together: a plane of one channel, or a row of many.
//!
//! ```text
//!   [1, 64, 7, 7]    kept [no, yes, no, no]     64 planes of 49
//!   [1, 65, 4, 16]   kept [no, no, yes, yes]    65 rows of 64 channels
//! ```
//!
//! Squares are rounded to f32, as NumPy does, and summed in f64, a plane in [`LANES`] sums: the order is the same in
//! every instruction set.

use rayon::prelude::*;
use tpuflow_kernels::isa::{Isa, Lanes, Work};

use crate::StatisticsError;

/// Sums of a plane.
const LANES: usize = 16;

/// Values of all tensors that one thread is done with before others are awake.
const FEW: usize = 1 << 17;

/// A dense row-major tensor, and its axes that tell channels apart.
#[derive(Debug, Clone)]
pub struct Activation<'a> {
    values: &'a [f32],
    /// Lengths of merged axes and whether they are kept, by turns; the last one is at least 1 long.
    axes: Vec<(usize, bool)>,
}

impl<'a> Activation<'a> {
    /// Views `values` as of `shape`, of which the axes `kept` tell channels apart.
    ///
    /// # Errors
    /// `Shape` if the lengths do not fit.
    pub fn new(values: &'a [f32], shape: &[usize], kept: &[bool]) -> Result<Self, StatisticsError> {
        let wanted = shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length));
        if wanted != Some(values.len()) || shape.len() != kept.len() {
            let inner = shape.iter().fold(1usize, |product, &length| product.saturating_mul(length));
            return Err(StatisticsError::Shape { values: values.len(), outer: 1, channels: 1, inner });
        }
        let mut axes: Vec<(usize, bool)> = Vec::new();
        for (&length, &kept) in shape.iter().zip(kept).filter(|(length, _)| **length != 1) {
            match axes.last_mut() {
                Some((merged, kind)) if *kind == kept => *merged *= length,
                _ => axes.push((length, kept)),
            }
        }
        if axes.is_empty() {
            axes.push((1, false));
        }
        Ok(Self { values, axes })
    }

    /// Number of channels.
    fn channels(&self) -> usize {
        self.axes.iter().filter(|(_, kept)| *kept).map(|(length, _)| length).product()
    }
}

/// Statistics of the channels of a tensor, row-major over the axes that are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct ByChannel {
    /// Smallest values; NaN where there is one.
    pub low: Vec<f32>,
    /// Largest values; NaN where there is one.
    pub high: Vec<f32>,
    /// Means of squares.
    pub square: Vec<f64>,
}

/// The statistics of every tensor; infinite extrema and NaN of one without values.
pub fn by_channel(tensors: &[Activation<'_>]) -> Vec<ByChannel> {
    let lanes = Isa::selected().lanes();
    if tensors.iter().map(|tensor| tensor.values.len()).sum::<usize>() <= FEW {
        return tensors.iter().map(|tensor| seen(tensor, lanes)).collect();
    }
    tensors.par_iter().map(|tensor| seen(tensor, lanes)).collect()
}

fn seen(tensor: &Activation<'_>, lanes: Lanes) -> ByChannel {
    let channels = tensor.channels();
    let mut found = ByChannel {
        low: vec![f32::INFINITY; channels],
        high: vec![f32::NEG_INFINITY; channels],
        square: vec![0.0; channels],
    };
    lanes.run(Pass { tensor, found: &mut found });
    let count = tensor.values.len() as f64 / channels as f64;
    for ((low, high), square) in found.low.iter_mut().zip(&mut found.high).zip(&mut found.square) {
        *square /= count;
        if square.is_nan() && count > 0.0 {
            (*low, *high) = (f32::NAN, f32::NAN);
        }
    }
    found
}

/// Adds all values of a tensor to what was found.
struct Pass<'a> {
    tensor: &'a Activation<'a>,
    found: &'a mut ByChannel,
}

impl Work for Pass<'_> {
    type Result = ();

    #[inline(always)]
    fn done(self) {
        let Self { tensor, found } = self;
        let Some((&(inner, is_row), outer)) = tensor.axes.split_last() else { return };
        if inner == 0 {
            return;
        }
        let mut first = First::new(outer, if is_row { inner } else { 1 });
        for chunk in tensor.values.chunks_exact(inner) {
            let at = first.next();
            if is_row {
                let to = at..at + inner;
                add_row(chunk, &mut found.low[to.clone()], &mut found.high[to.clone()], &mut found.square[to]);
            } else {
                let (low, high, square) = plane(chunk);
                found.low[at] = found.low[at].min(low);
                found.high[at] = found.high[at].max(high);
                found.square[at] += square;
            }
        }
    }
}

/// The first channel of one row or plane after the other.
struct First {
    /// By outer axis its length, what one step on it adds to the channel, and where it is.
    axes: Vec<(usize, usize, usize)>,
    channel: usize,
}

impl First {
    fn new(outer: &[(usize, bool)], inner: usize) -> Self {
        let mut stride = inner;
        let mut axes = Vec::new();
        for &(length, kept) in outer.iter().rev() {
            axes.push((length, if kept { stride } else { 0 }, 0));
            stride *= if kept { length } else { 1 };
        }
        Self { axes, channel: 0 }
    }

    fn next(&mut self) -> usize {
        let channel = self.channel;
        for (length, step, at) in &mut self.axes {
            *at += 1;
            self.channel += *step;
            if *at < *length {
                break;
            }
            self.channel -= *step * *length;
            *at = 0;
        }
        channel
    }
}

#[inline(always)]
fn add_row(row: &[f32], low: &mut [f32], high: &mut [f32], square: &mut [f64]) {
    for (((&value, low), high), square) in row.iter().zip(low).zip(high).zip(square) {
        *low = if value < *low { value } else { *low };
        *high = if value > *high { value } else { *high };
        *square += f64::from(value * value);
    }
}

/// Smallest and largest value and sum of squares.
#[inline(always)]
fn plane(values: &[f32]) -> (f32, f32, f64) {
    let (mut low, mut high, mut square) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], [0.0; LANES]);
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        add_row(group, &mut low, &mut high, &mut square);
    }
    add_row(rest, &mut low, &mut high, &mut square);
    let (low, high) =
        (low.into_iter().fold(f32::INFINITY, f32::min), high.into_iter().fold(f32::NEG_INFINITY, f32::max));
    for half in [8, 4, 2, 1] {
        for at in 0..half {
            square[at] += square[at + half];
        }
    }
    (low, high, square[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Value by value, the channel of each by index arithmetic.
    fn reference(values: &[f32], shape: &[usize], kept: &[bool]) -> ByChannel {
        let channels = shape.iter().zip(kept).filter(|(_, kept)| **kept).map(|(length, _)| length).product();
        let mut found = ByChannel {
            low: vec![f32::INFINITY; channels],
            high: vec![f32::NEG_INFINITY; channels],
            square: vec![0.0; channels],
        };
        for (at, &value) in values.iter().enumerate() {
            let (mut rest, mut channel, mut stride) = (at, 0, 1);
            for (&length, &kept) in shape.iter().zip(kept).rev() {
                if kept {
                    channel += rest % length * stride;
                    stride *= length;
                }
                rest /= length;
            }
            found.low[channel] = found.low[channel].min(value);
            found.high[channel] = found.high[channel].max(value);
            found.square[channel] += f64::from(value * value);
        }
        let count = values.len() as f64 / channels as f64;
        found.square.iter_mut().for_each(|square| *square /= count);
        found
    }

    fn shaped() -> impl Strategy<Value = (Vec<f32>, Vec<usize>, Vec<bool>)> {
        prop::collection::vec((1usize..7, any::<bool>()), 0..5).prop_flat_map(|axes| {
            let (mut shape, kept): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
            if let Some(last) = shape.last_mut() {
                *last *= 7; // more than the lanes of a plane
            }
            let count = shape.iter().product::<usize>();
            (prop::collection::vec(-9.0f32..9.0, count), Just(shape), Just(kept))
        })
    }

    proptest! {
        #[test]
        fn equals_the_reference_in_every_instruction_set((values, shape, kept) in shaped()) {
            let tensor = Activation::new(&values, &shape, &kept).unwrap();
            let expected = reference(&values, &shape, &kept);
            let first = by_channel(std::slice::from_ref(&tensor)).remove(0);
            prop_assert_eq!((&first.low, &first.high), (&expected.low, &expected.high));
            for (square, exact) in first.square.iter().zip(&expected.square) {
                prop_assert!((square - exact).abs() <= 1e-12 * exact);
            }
            for isa in Isa::variants() {
                prop_assert_eq!(&seen(&tensor, isa.lanes()), &first, "{}", isa.name());
            }
        }
    }

    #[test]
    fn many_values_on_several_threads() {
        let values: Vec<f32> = (0..FEW + 64).map(|at| (at % 97) as f32 - 30.0).collect();
        let shape = [values.len() / 64, 64];
        let tensors = [[true, false], [false, true]].map(|kept| Activation::new(&values, &shape, &kept).unwrap());
        for (found, kept) in by_channel(&tensors).iter().zip([[true, false], [false, true]]) {
            let expected = reference(&values, &shape, &kept);
            assert_eq!((&found.low, &found.high), (&expected.low, &expected.high));
            assert_eq!(found.square, expected.square, "sums of few whole numbers are exact");
        }
    }

    #[test]
    fn nan_shows_in_its_channel_alone() {
        let values = [1.0, f32::NAN, 2.0, -3.0];
        let found = by_channel(&[Activation::new(&values, &[2, 2], &[true, false]).unwrap()]).remove(0);
        assert!(found.low[0].is_nan() && found.high[0].is_nan() && found.square[0].is_nan());
        assert_eq!((found.low[1], found.high[1], found.square[1]), (-3.0, 2.0, 6.5));
    }

    #[test]
    fn refusals() {
        for (shape, kept) in
            [(&[2, 2][..], &[true, false][..]), (&[3], &[true, true]), (&[usize::MAX, 2], &[true, true])]
        {
            assert!(matches!(Activation::new(&[0.0; 3], shape, kept), Err(StatisticsError::Shape { .. })));
        }
    }
}
