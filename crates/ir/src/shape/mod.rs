//! The shape and type rule of every operator: what it produces from its operands, or why it cannot.

mod linear;
mod movement;
mod pointwise;
mod result;
mod rows;

use crate::error::ShapeError;
use crate::op::Average;
use crate::table::Form;
use crate::{Arithmetic, DType, Op, Real, Requant, Table, Tensor, TensorId, Window};
pub(crate) use result::contradicting_shape;
pub use result::result_shape;

/// Element types an operator's output may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// This one.
    Exactly(DType),
    /// Codes of activations.
    Codes,
    /// Floats.
    Floats,
    /// Any integer.
    Integers,
}

impl Output {
    /// Whether `dtype` is among them.
    #[must_use]
    pub fn admits(self, dtype: DType) -> bool {
        match self {
            Self::Exactly(only) => only == dtype,
            Self::Codes => dtype.is_code(),
            Self::Floats => dtype.is_float(),
            Self::Integers => !dtype.is_float() && dtype != DType::I64,
        }
    }

    /// Their name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exactly(only) => only.name(),
            Self::Codes => "int8 or int16",
            Self::Floats => "float16, bfloat16 or float32",
            Self::Integers => "int8, int16 or int32",
        }
    }

    fn check(self, tensor: &Tensor) -> Result<(), ShapeError> {
        if self.admits(tensor.dtype) {
            return Ok(());
        }
        let (tensor, found) = (tensor.name.clone(), tensor.dtype.name());
        Err(ShapeError::ElementType { tensor, found, expected: self.name() })
    }
}

/// Number of elements of a shape; 1 for rank 0.
#[must_use]
pub fn product(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// NumPy broadcasting of two shapes.
#[must_use]
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| if i + s.len() >= rank { s[i + s.len() - rank] } else { 1 };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

/// An element that can be compared and averaged: a code or a float.
fn activation(tensor: &Tensor) -> Result<(), ShapeError> {
    if tensor.dtype.is_float() { Ok(()) } else { Output::Codes.check(tensor) }
}

/// The results an operator of this arithmetic may have, if its operands are of its kind.
fn kind<F, R>(arithmetic: &Arithmetic<F, R>, operands: &[&Tensor]) -> Result<Output, ShapeError> {
    let kind = if arithmetic.float().is_some() { Output::Floats } else { Output::Codes };
    operands.iter().try_for_each(|tensor| kind.check(tensor))?;
    Ok(kind)
}

fn single(value: Real, what: &'static str) -> Result<f32, ShapeError> {
    value.single().filter(|v| v.is_finite()).ok_or(ShapeError::NotSingle { what, value })
}

fn requant(requant: &Requant, channels: usize) -> Result<(), ShapeError> {
    let count = requant.multiplier.len();
    if count != requant.shift.len() || (count != 1 && count != channels) {
        return Err(ShapeError::Requantization { multipliers: count, shifts: requant.shift.len(), channels });
    }
    requant.multiplier.iter().zip(&requant.shift).try_for_each(|(&multiplier, &shift)| factor(multiplier, shift))?;
    clamp(requant.lo, requant.hi)
}

/// A multiplier and a shift of the sizes that kernels compute with.
fn factor(multiplier: i32, shift: i8) -> Result<(), ShapeError> {
    if !(0..=crate::quant::MULTIPLIER_MAX).contains(&multiplier) {
        return Err(ShapeError::Multiplier(multiplier));
    }
    if !(crate::quant::SHIFT_MIN..=crate::quant::SHIFT_MAX).contains(&i32::from(shift)) {
        return Err(ShapeError::Shift(shift));
    }
    Ok(())
}

fn clamp(lo: i32, hi: i32) -> Result<(), ShapeError> {
    if lo > hi { Err(ShapeError::EmptyClamp { lo, hi }) } else { Ok(()) }
}

fn table(table: &Table, tensors: &[Tensor], bits: u32) -> Result<(), ShapeError> {
    let entries = &tensors[table.entries.index()];
    if entries.constant.is_none() || entries.dtype != DType::I32 {
        return Err(ShapeError::TableConstant(entries.name.clone()));
    }
    Form::new(&entries.i32s(), bits)
        .map(drop)
        .map_err(|source| ShapeError::Table { name: entries.name.clone(), source })
}

/// Number of output elements and the element types the output may have.
///
/// # Errors
/// The reason why the operands do not fit, without the layer's name.
pub fn output_type(op: &Op, tensors: &[Tensor]) -> Result<(usize, Output), ShapeError> {
    let get = |id: TensorId| &tensors[id.index()];
    match op {
        Op::Conv { input, weights, bias, window, groups, epilogue } => {
            linear::convolution(tensors, [get(*input), get(*weights), get(*bias)], window, *groups, epilogue)
        }
        Op::MatMul { a, b, bias, epilogue, partial } => {
            let (elements, output) = linear::product(tensors, [get(*a), get(*b)], bias.map(get), epilogue)?;
            match partial {
                true if output != Output::Codes || bias.is_some() => Err(ShapeError::PartialProduct),
                true => Ok((elements, Output::Exactly(DType::I64))),
                false => Ok((elements, output)),
            }
        }
        Op::MaxPool { input, window } => {
            let x = get(*input);
            activation(x)?;
            Ok((check_pool_shape(x, window, [0, 0])?, Output::Exactly(x.dtype)))
        }
        Op::AveragePool { input, window, average, beyond, .. } => average_pool(get(*input), window, average, *beyond),
        Op::Binary { kind, a, b, ka, kb, requant: r } => pointwise::binary(*kind, [get(*a), get(*b)], [*ka, *kb], r),
        Op::Unary { input, function } => pointwise::unary(tensors, get(*input), function),
        Op::Rescale { input, requant: r } => {
            let x = get(*input);
            let output = kind(r, &[x])?;
            single_or_finish(r)?;
            Ok((x.elements(), output))
        }
        Op::Quantize { input, scale, .. } => {
            let x = get(*input);
            Output::Floats.check(x)?;
            positive(*scale)?;
            Ok((x.elements(), Output::Integers))
        }
        Op::Dequantize { input, scale, finish } => {
            let x = get(*input);
            Output::Integers.check(x)?;
            positive(*scale)?;
            finish.check()?;
            Ok((x.elements(), Output::Floats))
        }
        Op::PRelu { input, slopes } => pointwise::p_relu(get(*input), slopes),
        Op::Softmax { input, mask, exponentials, statistics } => {
            rows::softmax(get(*input), [mask, statistics].map(|id| id.map(get)), exponentials)
        }
        Op::SoftmaxStatistics { input, mask, earlier, measure } => {
            rows::softmax_statistics(get(*input), [mask, earlier].map(|id| id.map(get)), *measure)
        }
        Op::LayerNorm { input, gamma, beta, norm, .. } => {
            rows::layer_norm([get(*input), get(*gamma), get(*beta)], norm)
        }
        Op::Reduce { input, kind, axes, requant: r } => rows::reduce(get(*input), *kind, axes, r),
        Op::ArgMax { input, .. } => {
            let x = get(*input);
            activation(x)?;
            let n = x.shape.last().copied().unwrap_or(1).max(1);
            Ok((x.elements() / n, Output::Exactly(DType::I32)))
        }
        Op::Concat { inputs, axis, requants } => {
            movement::concatenation(&inputs.iter().map(|&id| get(id)).collect::<Vec<_>>(), *axis as usize, requants)
        }
        Op::Pad { input, before, after, mode } => movement::pad(get(*input), [before, after], *mode),
        Op::Rearrange { input, dims, strides, offset } => movement::rearrange(get(*input), dims, strides, *offset),
        Op::Gather { input, axis, indices } => movement::gather(get(*input), *axis, indices),
        Op::Embedding { table, indices, entry } => rows::embedding(get(*table), get(*indices), *entry),
        Op::ResizeLinear { input, rows, columns } => movement::resize(get(*input), rows, columns),
        Op::InsertZeros { input, stride } => movement::insert_zeros(get(*input), *stride),
        Op::Select { condition, a, b } => pointwise::select([get(*condition), get(*a), get(*b)]),
    }
}

fn check_pool_shape(x: &Tensor, window: &Window, beyond: [u32; 2]) -> Result<usize, ShapeError> {
    let &[n, h, w, c] = &x.shape[..] else { return Err(ShapeError::ImageRank(x.shape.clone())) };
    if window.stride.contains(&0) || window.dilation.contains(&0) || window.kernel.contains(&0) {
        return Err(ShapeError::EmptyWindow(*window));
    }
    if beyond[0] > window.pads[2] || beyond[1] > window.pads[3] {
        return Err(ShapeError::CeilMode);
    }
    let exceeds = || ShapeError::WindowExceeds { window: *window, input: x.shape.clone() };
    let [oh, ow] = window.output(h, w).ok_or_else(exceeds)?;
    Ok(n * oh * ow * c)
}

/// Means under windows.
fn average_pool(
    x: &Tensor,
    window: &Window,
    average: &Arithmetic<Average>,
    beyond: [u32; 2],
) -> Result<(usize, Output), ShapeError> {
    let output = kind(average, &[x])?;
    match average {
        Arithmetic::Fixed(a) if a.divisors.is_empty() || !a.divisors.is_sorted_by_key(|d| d.area) => {
            return Err(ShapeError::Divisors);
        }
        Arithmetic::Fixed(_) => {}
        Arithmetic::Float(finish) => finish.check()?,
    }
    Ok((check_pool_shape(x, window, beyond)?, output))
}

fn single_or_finish(arithmetic: &Arithmetic<Requant>) -> Result<(), ShapeError> {
    match arithmetic {
        Arithmetic::Fixed(single) => requant(single, 1),
        Arithmetic::Float(finish) => Ok(finish.check()?),
    }
}

/// A scale or divisor.
fn positive(value: Real) -> Result<(), ShapeError> {
    if single(value, "scale")? > 0.0 { Ok(()) } else { Err(ShapeError::Scale(value)) }
}
