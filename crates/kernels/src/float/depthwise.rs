//! Depthwise convolution: one filter per channel, sums over the taps inside the image in the order (kh, kw).
//!
//! Source: docs/arithmetic.md, section 16.

use super::{Finisher, Float};
use crate::conv::Geometry;
use crate::parallel;
use crate::pool::taps;

/// Filters by tap, bias by channel, and what follows.
#[derive(Clone, Debug)]
pub struct Depthwise {
    /// `[tap][channel]`.
    weights: Vec<f32>,
    bias: Vec<f32>,
    finisher: Finisher,
}

impl Depthwise {
    /// `weights`: `[channel][tap]`; `bias`: one per channel.
    ///
    /// # Panics
    /// When `weights` has no whole number of taps per channel.
    #[must_use]
    pub fn new(weights: &[f32], bias: Vec<f32>, finisher: Finisher) -> Self {
        let channels = bias.len();
        assert!(weights.len().is_multiple_of(channels.max(1)), "as many taps for every channel");
        let taps = weights.len() / channels.max(1);
        let turned = (0..taps).flat_map(|t| (0..channels).map(move |c| weights[c * taps + t])).collect();
        Self { weights: turned, bias, finisher }
    }

    /// Output pixels `first ..` as many as `y` holds; `x`: the whole batch, `y`: `[pixels, c]`.
    ///
    /// # Panics
    /// When the slices do not have these sizes.
    pub fn pixels<Y: Float>(&self, geometry: &Geometry, x: &[f32], first: usize, y: &mut [Y], sums: &mut Vec<f32>) {
        let c = self.bias.len();
        sums.clear();
        sums.resize(y.len(), 0.0);
        for (i, sums) in sums.chunks_exact_mut(c).enumerate() {
            for (tap, start) in taps(geometry, first + i) {
                let (x, w) = (&x[start..][..c], &self.weights[tap * c..][..c]);
                for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
                    *sum += x * w;
                }
            }
            sums.iter_mut().zip(&self.bias).for_each(|(sum, bias)| *sum += bias);
        }
        self.finisher.apply(sums, y);
    }

    /// The whole batch, spread over threads.
    ///
    /// # Panics
    /// When the slices do not have the geometry's sizes.
    pub fn run<Y: Float>(&self, geometry: &Geometry, x: &[f32], y: &mut [Y]) {
        let c = self.bias.len();
        assert_eq!(y.len(), geometry.pixels() * c, "y holds every output");
        let line = geometry.output[1];
        parallel::chunks_with(y, line * c, Vec::new, |sums, row, y| {
            self.pixels(geometry, x, row * line, y, sums);
        });
    }
}
