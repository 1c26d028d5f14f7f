//! Evaluates a [`Function`]: its steps one after the other, each over a block of arguments at a time.
//!
//! Source: docs/arithmetic.md, section 16.

use tpuflow_ir::Function;
use tpuflow_ir::function::{Step, Value};

use super::primitive;
use crate::Isa;
use crate::isa::Lanes;

/// Arguments evaluated together: a function of a dozen steps then stays in the first-level cache.
const BLOCK: usize = 128;

/// A function and room for the values of a block.
#[derive(Clone, Debug)]
pub struct Evaluator<'a> {
    isa: Isa,
    function: &'a Function,
    /// Value by value, a block each.
    values: Vec<[f64; BLOCK]>,
}

impl<'a> Evaluator<'a> {
    /// Ready to evaluate.
    #[must_use]
    pub fn new(isa: Isa, function: &'a Function) -> Self {
        Self { isa, function, values: vec![[0.0; BLOCK]; function.steps.len() + 1] }
    }

    /// Replaces every argument by the function's value there.
    pub fn apply(&mut self, arguments: &mut [f64]) {
        for block in arguments.chunks_mut(BLOCK) {
            self.values[0][..block.len()].copy_from_slice(block);
            match self.isa.lanes() {
                Lanes::One => self.steps(),
                #[cfg(target_arch = "x86_64")]
                Lanes::Avx2(isa) => x86_64::steps_256(isa, self),
                #[cfg(target_arch = "x86_64")]
                Lanes::Avx512(isa) => x86_64::steps_512(isa, self),
            }
            block.copy_from_slice(&self.values[self.function.steps.len()][..block.len()]);
        }
    }

    /// Every step over the whole block, whatever of it is in use.
    #[inline(always)]
    fn steps(&mut self) {
        for (i, step) in self.function.steps.iter().enumerate() {
            let (earlier, later) = self.values.split_at_mut(i + 1);
            evaluate(step, earlier, &mut later[0]);
        }
    }
}

#[inline(always)]
fn evaluate(step: &Step, values: &[[f64; BLOCK]], out: &mut [f64; BLOCK]) {
    let get = |value: Value| &values[usize::from(value)];
    match *step {
        Step::Constant(constant) => out.fill(constant.get()),
        Step::Neg(a) => map(out, get(a), |a| -a),
        Step::Abs(a) => map(out, get(a), f64::abs),
        Step::Sqrt(a) => map(out, get(a), f64::sqrt),
        Step::Floor(a) => map(out, get(a), f64::floor),
        Step::Ceil(a) => map(out, get(a), f64::ceil),
        Step::Round(a) => map(out, get(a), f64::round_ties_even),
        Step::Exp(a) => map(out, get(a), primitive::exp),
        Step::ExpM1(a) => map(out, get(a), primitive::exp_m1),
        Step::Log(a) => map(out, get(a), primitive::log),
        Step::Log1P(a) => map(out, get(a), primitive::log_1p),
        Step::Sin(a) => map(out, get(a), primitive::sin),
        Step::Cos(a) => map(out, get(a), primitive::cos),
        Step::Atan(a) => map(out, get(a), primitive::atan),
        Step::Erf(a) => primitive::erf_block(get(a), out),
        Step::Add(a, b) => zip(out, get(a), get(b), |a, b| a + b),
        Step::Sub(a, b) => zip(out, get(a), get(b), |a, b| a - b),
        Step::Mul(a, b) => zip(out, get(a), get(b), |a, b| a * b),
        Step::Div(a, b) => zip(out, get(a), get(b), |a, b| a / b),
        Step::Max(a, b) => zip(out, get(a), get(b), primitive::maximum),
        Step::Min(a, b) => zip(out, get(a), get(b), primitive::minimum),
        Step::Choose(c, a, b) => {
            let (c, a, b) = (get(c), get(a), get(b));
            for (i, out) in out.iter_mut().enumerate() {
                let value = if c[i] < 0.0 { a[i] } else { b[i] };
                *out = if c[i].is_nan() { c[i] } else { value };
            }
        }
    }
}

#[inline(always)]
fn map(out: &mut [f64; BLOCK], a: &[f64; BLOCK], f: impl Fn(f64) -> f64) {
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(*a);
    }
}

#[inline(always)]
fn zip(out: &mut [f64; BLOCK], a: &[f64; BLOCK], b: &[f64; BLOCK], f: impl Fn(f64, f64) -> f64) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = f(*a, *b);
    }
}

/// The same steps, compiled for vectors; multiplications and additions stay apart, since neither allows contraction.
#[cfg(target_arch = "x86_64")]
mod x86_64 {
    #![allow(unsafe_code, reason = "calls that a token has proved possible")]

    use super::Evaluator;
    use crate::isa::{Avx2, Avx512Vnni};

    pub(super) fn steps_512(_: Avx512Vnni, evaluator: &mut Evaluator<'_>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn vector(evaluator: &mut Evaluator<'_>) {
            evaluator.steps();
        }
        // SAFETY: the token proves the features.
        unsafe { vector(evaluator) }
    }

    pub(super) fn steps_256(_: Avx2, evaluator: &mut Evaluator<'_>) {
        #[target_feature(enable = "avx2")]
        fn vector(evaluator: &mut Evaluator<'_>) {
            evaluator.steps();
        }
        // SAFETY: the token proves the features.
        unsafe { vector(evaluator) }
    }
}
