//! Operators that take an element of each operand to one of the result.

use super::{Output, broadcast, kind, product, requant, single, single_or_finish, table};
use crate::error::ShapeError;
use crate::op::{BinaryKind, FloatSlopes, Slopes};
use crate::{Arithmetic, DType, Finish, Requant, Table, Tensor};

/// Two operands element by element, whose extents of one serve all.
pub(super) fn binary(
    kind: BinaryKind,
    [a, b]: [&Tensor; 2],
    factors: [i32; 2],
    arithmetic: &Arithmetic<Requant>,
) -> Result<(usize, Output), ShapeError> {
    let output = super::kind(arithmetic, &[a, b])?;
    single_or_finish(arithmetic)?;
    let plain = arithmetic.float().is_some() || matches!(kind, BinaryKind::Mul | BinaryKind::Div);
    if arithmetic.float().is_some_and(|finish| kind.compares() && *finish != Finish::default()) {
        return Err(ShapeError::FinishedComparison);
    }
    if plain && factors != [1, 1] || factors.iter().any(|factor| !(0..=32767).contains(factor)) {
        return Err(ShapeError::OperandMultipliers { ka: factors[0], kb: factors[1] });
    }
    let apart = || ShapeError::Broadcast { a: a.shape.clone(), b: b.shape.clone() };
    let shape = broadcast(&a.shape, &b.shape).ok_or_else(apart)?;
    let condition = kind.compares() && output == Output::Floats;
    Ok((product(&shape), if condition { Output::Exactly(DType::I8) } else { output }))
}

/// A function of every element: a table of codes, or of floats.
pub(super) fn unary(
    tensors: &[Tensor],
    x: &Tensor,
    function: &Arithmetic<Table>,
) -> Result<(usize, Output), ShapeError> {
    let output = kind(function, &[x])?;
    match function {
        Arithmetic::Fixed(t) => table(t, tensors, x.dtype.bits())?,
        Arithmetic::Float(Finish { function: None, .. }) => return Err(ShapeError::NoFunction),
        Arithmetic::Float(finish) => finish.check()?,
    }
    Ok((x.elements(), output))
}

/// Slopes of negative elements, one for all or one a channel.
pub(super) fn p_relu(x: &Tensor, slopes: &Arithmetic<Slopes, FloatSlopes>) -> Result<(usize, Output), ShapeError> {
    let output = kind(slopes, &[x])?;
    let count = match slopes {
        Arithmetic::Fixed(s) => {
            requant(&s.positive, 1)?;
            if s.negative_multiplier.len() != s.negative_shift.len() {
                return Err(ShapeError::SlopeShifts(s.negative_shift.len()));
            }
            if s.negative_multiplier.iter().any(|m| m.abs() > crate::quant::MULTIPLIER_MAX) {
                return Err(ShapeError::SlopeMultiplier);
            }
            s.negative_multiplier.len()
        }
        Arithmetic::Float(s) => {
            s.finish.check()?;
            s.negative.iter().try_for_each(|&slope| single(slope, "slope").map(drop))?;
            s.negative.len()
        }
    };
    let channels = x.shape.last().copied().unwrap_or(1);
    if count != 1 && count != channels {
        return Err(ShapeError::Slopes { slopes: count, channels });
    }
    Ok((x.elements(), output))
}

/// Elements of one operand or of another.
pub(super) fn select([condition, a, b]: [&Tensor; 3]) -> Result<(usize, Output), ShapeError> {
    if condition.dtype != DType::I8 || a.dtype != b.dtype {
        return Err(ShapeError::SelectionTypes);
    }
    let shape = broadcast(&a.shape, &b.shape).and_then(|s| broadcast(&s, &condition.shape));
    Ok((product(&shape.ok_or(ShapeError::SelectionShapes)?), Output::Exactly(a.dtype)))
}
