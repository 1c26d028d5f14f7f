//! The way out of a float operator: a function, a clamp, one rounding to the output's type.
//!
//! Source: docs/arithmetic.md, section 16.

use tpuflow_ir::Finish;

use super::function::Evaluator;
use super::{Float, primitive};
use crate::Isa;
use crate::buffers::PIECE;
use crate::parallel;

/// A finish ready to be applied.
#[derive(Clone, Debug)]
pub struct Finisher {
    isa: Isa,
    finish: Finish,
    bounds: Option<[f64; 2]>,
}

impl Finisher {
    /// With the selected instruction set.
    #[must_use]
    pub fn new(finish: &Finish) -> Self {
        Self::with(Isa::selected(), finish)
    }

    /// With the instruction set that everything built upon it uses.
    #[must_use]
    pub fn with(isa: Isa, finish: &Finish) -> Self {
        let bounds =
            [finish.lo.map_or(f64::NEG_INFINITY, |lo| lo.get()), finish.hi.map_or(f64::INFINITY, |hi| hi.get())];
        let clamps = finish.lo.is_some() || finish.hi.is_some();
        Self { isa, finish: finish.clone(), bounds: clamps.then_some(bounds) }
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Elements of float32 results.
    ///
    /// # Panics
    /// When the slices differ in length.
    pub fn apply<Y: Float>(&self, x: &[f32], y: &mut [Y]) {
        assert_eq!(x.len(), y.len(), "one element per result");
        let Some(function) = &self.finish.function else {
            match self.bounds {
                None => x.iter().zip(y).for_each(|(x, y)| *y = Y::nearest_single(*x)),
                Some(bounds) => {
                    let [lo, hi] = bounds.map(|bound| bound as f32);
                    x.iter().zip(y).for_each(|(&x, y)| *y = Y::nearest_single(clamp_to(x, lo, hi)));
                }
            }
            return;
        };
        let mut evaluator = Evaluator::new(self.isa, function);
        let mut wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        evaluator.apply(&mut wide);
        for (y, mut value) in y.iter_mut().zip(wide) {
            if let Some([lo, hi]) = self.bounds {
                value = primitive::minimum(primitive::maximum(value, lo), hi);
            }
            *y = Y::nearest(value);
        }
    }

    /// As [`Self::apply`], spread over threads.
    ///
    /// # Panics
    /// When the slices differ in length.
    pub fn apply_all<Y: Float>(&self, x: &[f32], y: &mut [Y]) {
        assert_eq!(x.len(), y.len(), "one element per result");
        parallel::chunks(y, PIECE, |index, y| self.apply(&x[index * PIECE..][..y.len()], y));
    }
}

/// The larger; NaN if either is, -0 below +0.
#[inline(always)]
#[must_use]
pub fn maximum(a: f32, b: f32) -> f32 {
    let value = if a > b { a } else { b };
    let value = if a == b { f32::from_bits(a.to_bits() & b.to_bits()) } else { value };
    if a.is_nan() { a } else { value }
}

/// The smaller; NaN if either is, -0 below +0.
#[inline(always)]
#[must_use]
pub fn minimum(a: f32, b: f32) -> f32 {
    let value = if a < b { a } else { b };
    let value = if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { value };
    if a.is_nan() { a } else { value }
}

#[inline(always)]
fn clamp_to(x: f32, lo: f32, hi: f32) -> f32 {
    minimum(maximum(x, lo), hi)
}
