//! Functions of one variable over floating-point numbers, as straight-line programs of few primitives.
//!
//! What a table is for integers, a [`Function`] is for floats: any function of one variable, fixed when the graph is built.
//! Value 0 is the operand; step `i` makes value `i + 1` from earlier ones; the last value is the result. All of it is
//! evaluated in float64, each primitive by a fixed sequence of IEEE operations (`docs/arithmetic.md`, section 16).
//!
//! ```text
//! x * sigmoid(x):   [{"neg": 0}, {"exp": 1}, {"constant": 1.0}, {"add": [3, 2]}, {"div": [0, 4]}]
//! ```

use serde::{Deserialize, Serialize};

use crate::Real;

/// Number of an earlier value.
pub type Value = u16;

/// One primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A constant.
    Constant(Real),
    /// `-a`
    Neg(Value),
    /// `|a|`
    Abs(Value),
    /// Square root.
    Sqrt(Value),
    /// Largest integer not above.
    Floor(Value),
    /// Smallest integer not below.
    Ceil(Value),
    /// Nearest integer, half to even.
    Round(Value),
    /// `e^a`
    Exp(Value),
    /// `e^a - 1`
    #[serde(rename = "expm1")]
    ExpM1(Value),
    /// Natural logarithm.
    Log(Value),
    /// `log(1 + a)`
    #[serde(rename = "log1p")]
    Log1P(Value),
    /// Sine of radians.
    Sin(Value),
    /// Cosine of radians.
    Cos(Value),
    /// Arc tangent.
    Atan(Value),
    /// Error function.
    Erf(Value),
    /// `a + b`
    Add(Value, Value),
    /// `a - b`
    Sub(Value, Value),
    /// `a * b`
    Mul(Value, Value),
    /// `a / b`
    Div(Value, Value),
    /// The larger; NaN if either is, -0 below +0.
    Max(Value, Value),
    /// The smaller; NaN if either is, -0 below +0.
    Min(Value, Value),
    /// The second where the first is negative, else the third; NaN where the first is NaN.
    Choose(Value, Value, Value),
}

impl Step {
    /// The values it reads.
    #[must_use]
    pub fn reads(&self) -> Vec<Value> {
        match *self {
            Self::Constant(_) => vec![],
            Self::Neg(a)
            | Self::Abs(a)
            | Self::Sqrt(a)
            | Self::Floor(a)
            | Self::Ceil(a)
            | Self::Round(a)
            | Self::Exp(a)
            | Self::ExpM1(a)
            | Self::Log(a)
            | Self::Log1P(a)
            | Self::Sin(a)
            | Self::Cos(a)
            | Self::Atan(a)
            | Self::Erf(a) => vec![a],
            Self::Add(a, b)
            | Self::Sub(a, b)
            | Self::Mul(a, b)
            | Self::Div(a, b)
            | Self::Max(a, b)
            | Self::Min(a, b) => vec![a, b],
            Self::Choose(a, b, c) => vec![a, b, c],
        }
    }
}

/// A function of one variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Function {
    /// At least one.
    pub steps: Vec<Step>,
}

impl Step {
    /// Whether it is evaluated as a series, not as a single operation of IEEE arithmetic.
    #[must_use]
    pub fn is_transcendental(&self) -> bool {
        matches!(
            self,
            Self::Exp(_)
                | Self::ExpM1(_)
                | Self::Log(_)
                | Self::Log1P(_)
                | Self::Sin(_)
                | Self::Cos(_)
                | Self::Atan(_)
                | Self::Erf(_)
        )
    }
}

/// Why a function or what follows it cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum FunctionError {
    /// None or too many steps.
    #[error("a function of {steps} steps, expected 1 to {}", Function::LIMIT)]
    Steps { steps: usize },
    /// A step that reads what comes later.
    #[error("step {step} of a function reads value {value}, which is not made yet")]
    Early { step: usize, value: u16 },
    /// A clamp that no float32 holds.
    #[error("clamp {0:?} is no float32")]
    Clamp(Real),
    /// A clamp that holds nothing.
    #[error("clamp {lo:?}..={hi:?} is empty")]
    EmptyClamp { lo: Real, hi: Real },
}

impl Function {
    /// Most steps of a function.
    pub const LIMIT: usize = 256;

    /// Checks the function.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<(), FunctionError> {
        let count = self.steps.len();
        if count == 0 || count > Self::LIMIT {
            return Err(FunctionError::Steps { steps: count });
        }
        for (i, step) in self.steps.iter().enumerate() {
            if let Some(late) = step.reads().into_iter().find(|&value| usize::from(value) > i) {
                return Err(FunctionError::Early { step: i, value: late });
            }
        }
        Ok(())
    }
}

/// The conversion of the result of a float operator: `function`, then a clamp, then one rounding to the
/// output's type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// A function of the float32 result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Lower clamp, a float32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lo: Option<Real>,
    /// Upper clamp, a float32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hi: Option<Real>,
}

impl Finish {
    /// Checks the conversion.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<(), FunctionError> {
        if let Some(function) = &self.function {
            function.check()?;
        }
        for bound in self.lo.into_iter().chain(self.hi) {
            if bound.single().is_none_or(f32::is_nan) {
                return Err(FunctionError::Clamp(bound));
            }
        }
        match (self.lo, self.hi) {
            (Some(lo), Some(hi)) if lo.get() > hi.get() => Err(FunctionError::EmptyClamp { lo, hi }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_module_reads_back() {
        let text = r#"[{"neg":0},{"exp":1},{"constant":1.0},{"add":[3,2]},{"div":[0,4]}]"#;
        let function: Function = serde_json::from_str(text).expect("read");
        assert_eq!(function.check(), Ok(()));
        assert_eq!(serde_json::to_string(&function).expect("written"), text);
    }

    #[test]
    fn broken_functions_are_refused() {
        let early = Function { steps: vec![Step::Add(0, 1)] };
        assert_eq!(early.check(), Err(FunctionError::Early { step: 0, value: 1 }));
        assert!(Function { steps: vec![] }.check().is_err());
        let clamp = |lo, hi| Finish { function: None, lo: Some(Real::new(lo)), hi: Some(Real::new(hi)) }.check();
        assert_eq!(clamp(0.0, 6.0), Ok(()));
        let message = |lo, hi| clamp(lo, hi).expect_err("refused").to_string();
        assert_eq!(message(1.0, 0.0), "clamp 1.0..=0.0 is empty");
        assert_eq!(message(0.1, 6.0), "clamp 0.1 is no float32");
    }
}
