//! Softmax and normalisation of rows, every step one float32 operation.
//!
//! Source: docs/arithmetic.md, section 16.

use tpuflow_ir::Function;
use tpuflow_ir::function::Step;

use super::finish::maximum;
use super::function::Evaluator;
use super::{Finisher, Float};
use crate::parallel;

/// `exp(x - max) / sum`; the sum runs in the order of the row. Elements whose mask is 0 are left out and give +0.
///
/// # Panics
/// When the slices differ in length or are not whole rows of `n`; `mask` may be empty.
pub fn softmax<Y: Float>(n: usize, finisher: &Finisher, x: &[f32], mask: &[i8], y: &mut [Y]) {
    assert!(n > 0 && x.len() == y.len() && x.len().is_multiple_of(n), "whole rows of operands and results");
    let exponential = Function { steps: vec![Step::Exp(0)] };
    parallel::chunks_with(
        y,
        n,
        || (Evaluator::new(finisher.isa(), &exponential), Vec::new(), Vec::new()),
        |(exponential, wide, results), index, y| {
            let x = &x[index * n..][..n];
            let mask = if mask.is_empty() { mask } else { &mask[index * n..][..n] };
            let taken = |i: usize| mask.get(i).is_none_or(|&m| m != 0);
            let chosen = || (0..n).filter(|&i| taken(i));
            results.clear();
            results.resize(n, 0f32);
            if let Some(first) = chosen().next() {
                let most = chosen().fold(x[first], |most, i| maximum(most, x[i]));
                wide.clear();
                wide.extend(chosen().map(|i| f64::from(x[i] - most)));
                exponential.apply(wide);
                let mut sum = 0f32;
                for (e, i) in wide.iter().zip(chosen()) {
                    results[i] = *e as f32;
                    sum += results[i];
                }
                chosen().for_each(|i| results[i] /= sum);
            }
            finisher.apply(results, y);
        },
    );
}

/// A normalisation: `d / sqrt(mean(d^2) + epsilon) * gamma + beta` with `d = x - mean`, or `d = x`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Subtract the mean.
    pub center: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// One per element of a row.
    pub gamma: Vec<f32>,
    /// One per element of a row.
    pub beta: Vec<f32>,
    /// The way out.
    pub finisher: Finisher,
}

impl LayerNorm {
    /// Normalises rows, spread over threads.
    ///
    /// # Panics
    /// When the slices differ in length or are not whole rows.
    pub fn rows<Y: Float>(&self, x: &[f32], y: &mut [Y]) {
        let n = self.gamma.len();
        assert!(n > 0 && x.len() == y.len() && x.len().is_multiple_of(n), "whole rows of operands and results");
        parallel::chunks_with(y, n, Vec::new, |row: &mut Vec<f32>, index, y| {
            let x = &x[index * n..][..n];
            let count = n as f32;
            row.clear();
            row.extend_from_slice(x);
            if self.center {
                let mean = sum(row.iter().copied()) / count;
                row.iter_mut().for_each(|d| *d -= mean);
            }
            let deviation = (sum(row.iter().map(|d| d * d)) / count + self.epsilon).sqrt();
            for ((d, gamma), beta) in row.iter_mut().zip(&self.gamma).zip(&self.beta) {
                *d = *d / deviation * gamma + beta;
            }
            self.finisher.apply(row, y);
        });
    }
}

/// In order, from +0 on (the standard library's sum starts at -0).
fn sum(terms: impl Iterator<Item = f32>) -> f32 {
    terms.fold(0.0, |sum, term| sum + term)
}
