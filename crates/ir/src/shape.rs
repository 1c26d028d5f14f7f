//! The shape and type rule of every operator: what it produces from its operands, or why it cannot.

use crate::error::ShapeError;
use crate::op::{BinaryKind, Epilogue, ReduceKind};
use crate::table::Form;
use crate::{Arithmetic, DType, Finish, Op, PadMode, Real, Requant, Table, Tensor, TensorId};

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

    /// What they are called.
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

/// What an operator of this arithmetic gives, if its operands are of its kind.
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
    for (&m, &n) in requant.multiplier.iter().zip(&requant.shift) {
        if !(0..=crate::quant::MULTIPLIER_MAX).contains(&m) {
            return Err(ShapeError::Multiplier(m));
        }
        if !(crate::quant::SHIFT_MIN..=crate::quant::SHIFT_MAX).contains(&i32::from(n)) {
            return Err(ShapeError::Shift(n));
        }
    }
    if requant.lo > requant.hi {
        return Err(ShapeError::EmptyClamp { lo: requant.lo, hi: requant.hi });
    }
    Ok(())
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
            let (x, w, b) = (get(*input), get(*weights), get(*bias));
            let output = linear(epilogue, x, w)?;
            let (&[n, h, width, c], &[o, kh, kw, ci]) = (&x.shape[..], &w.shape[..]) else {
                return Err(ShapeError::ConvolutionRank { input: x.shape.clone(), weights: w.shape.clone() });
            };
            let groups = *groups as usize;
            if groups == 0 || ci * groups != c || o % groups != 0 {
                return Err(ShapeError::Groups { weights: w.shape.clone(), groups, input: x.shape.clone() });
            }
            if [kh as u32, kw as u32] != window.kernel || window.stride.contains(&0) || window.dilation.contains(&0) {
                return Err(ShapeError::Kernel { window: *window, weights: w.shape.clone() });
            }
            linear_bias(b, o, x, w)?;
            linear_epilogue(epilogue, tensors, o, &[x, w])?;
            let exceeds = || ShapeError::WindowExceeds { window: *window, input: x.shape.clone() };
            let [oh, ow] = window.output(h, width).ok_or_else(exceeds)?;
            Ok((n * oh * ow * o, output))
        }
        Op::MatMul { a, b, bias, epilogue } => {
            let (a, b) = (get(*a), get(*b));
            let output = linear(epilogue, a, b)?;
            let ([lead_a @ .., m, k], [lead_b @ .., k2, n]) = (&a.shape[..], &b.shape[..]) else {
                return Err(ShapeError::MatrixRank { a: a.shape.clone(), b: b.shape.clone() });
            };
            if k != k2 || (!lead_b.is_empty() && lead_a != lead_b) {
                return Err(ShapeError::Matrices { a: a.shape.clone(), b: b.shape.clone() });
            }
            if let Some(bias) = bias {
                linear_bias(get(*bias), *n, a, b)?;
            }
            linear_epilogue(epilogue, tensors, *n, &[a, b])?;
            Ok((product(lead_a) * m * n, output))
        }
        Op::MaxPool { input, window } => {
            let x = get(*input);
            activation(x)?;
            Ok((pooled(x, window, [0, 0])?, Output::Exactly(x.dtype)))
        }
        Op::AveragePool { input, window, average, beyond, .. } => {
            let x = get(*input);
            let output = kind(average, &[x])?;
            match average {
                Arithmetic::Fixed(a) if a.divisors.is_empty() || !a.divisors.is_sorted_by_key(|d| d.area) => {
                    return Err(ShapeError::Divisors);
                }
                Arithmetic::Fixed(_) => {}
                Arithmetic::Float(finish) => finish.check()?,
            }
            Ok((pooled(x, window, *beyond)?, output))
        }
        Op::Binary { kind, a, b, ka, kb, requant: r } => {
            let (a, b) = (get(*a), get(*b));
            let output = self::kind(r, &[a, b])?;
            single_or_finish(r)?;
            let plain = r.float().is_some() || matches!(kind, BinaryKind::Mul | BinaryKind::Div);
            if r.float().is_some_and(|finish| kind.compares() && *finish != Finish::default()) {
                return Err(ShapeError::FinishedComparison);
            }
            if plain && (*ka, *kb) != (1, 1) || !(0..=32767).contains(ka) || !(0..=32767).contains(kb) {
                return Err(ShapeError::OperandMultipliers { ka: *ka, kb: *kb });
            }
            let apart = || ShapeError::Broadcast { a: a.shape.clone(), b: b.shape.clone() };
            let shape = broadcast(&a.shape, &b.shape).ok_or_else(apart)?;
            let condition = kind.compares() && output == Output::Floats;
            Ok((product(&shape), if condition { Output::Exactly(DType::I8) } else { output }))
        }
        Op::Unary { input, function } => {
            let x = get(*input);
            let output = kind(function, &[x])?;
            match function {
                Arithmetic::Fixed(t) => table(t, tensors, x.dtype.bits())?,
                Arithmetic::Float(Finish { function: None, .. }) => return Err(ShapeError::NoFunction),
                Arithmetic::Float(finish) => finish.check()?,
            }
            Ok((x.elements(), output))
        }
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
        Op::PRelu { input, slopes } => {
            let x = get(*input);
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
        Op::Softmax { input, mask, exponentials } => {
            let x = get(*input);
            let output = kind(exponentials, &[x])?;
            exponentials.float().map_or(Ok(()), Finish::check)?;
            if let Some(mask) = mask.map(get)
                && (mask.constant.is_none()
                    || mask.dtype != DType::I8
                    || broadcast(&mask.shape, &x.shape).as_deref() != Some(&x.shape[..]))
            {
                return Err(ShapeError::Mask { mask: mask.shape.clone(), input: x.shape.clone() });
            }
            Ok((x.elements(), output))
        }
        Op::LayerNorm { input, gamma, beta, norm, .. } => {
            let (x, g, b) = (get(*input), get(*gamma), get(*beta));
            let output = kind(norm, &[x])?;
            let n = x.shape.last().copied().unwrap_or(1);
            let expected = if norm.float().is_some() { DType::F32 } else { DType::I64 };
            if g.elements() != n || b.elements() != n || b.dtype != expected {
                let (gamma, beta, dtype) = (g.shape.clone(), b.shape.clone(), expected.name());
                return Err(ShapeError::Normalization { gamma, beta, dtype, elements: n });
            }
            match norm {
                Arithmetic::Fixed(norm) => {
                    Output::Codes.check(g)?;
                    requant(&norm.requant, n)?;
                }
                Arithmetic::Float(norm) => {
                    Output::Exactly(DType::F32).check(g)?;
                    norm.finish.check()?;
                    if single(norm.epsilon, "epsilon")? < 0.0 {
                        return Err(ShapeError::NegativeEpsilon(norm.epsilon));
                    }
                }
            }
            Ok((x.elements(), output))
        }
        Op::Reduce { input, kind, axes, requant: r } => {
            let x = get(*input);
            let output = self::kind(r, &[x])?;
            match r {
                Arithmetic::Fixed(r) => requant(r, 1)?,
                Arithmetic::Float(r) => {
                    r.finish.check()?;
                    positive(r.divisor)?;
                }
            }
            if axes.is_empty() || axes.iter().any(|&a| a as usize >= x.shape.len()) || !axes.is_sorted() {
                return Err(ShapeError::Axes { axes: axes.clone(), shape: x.shape.clone() });
            }
            let kept = x.shape.iter().enumerate().filter(|(i, _)| !axes.contains(&(*i as u32)));
            let passes = matches!(kind, ReduceKind::Max | ReduceKind::Min);
            Ok((kept.map(|(_, n)| n).product(), if passes { Output::Exactly(x.dtype) } else { output }))
        }
        Op::ArgMax { input, .. } => {
            let x = get(*input);
            activation(x)?;
            let n = x.shape.last().copied().unwrap_or(1).max(1);
            Ok((x.elements() / n, Output::Exactly(DType::I32)))
        }
        Op::Concat { inputs, axis, requants } => {
            let axis = *axis as usize;
            let first = get(*inputs.first().ok_or(ShapeError::NoOperands)?);
            if requants.len() != inputs.len() || axis >= first.shape.len() {
                return Err(ShapeError::ConcatenationAxis { axis, requantizations: requants.len() });
            }
            let mut total = 0;
            let requantized = requants.iter().any(Option::is_some);
            for tensor in inputs.iter().map(|&id| get(id)) {
                let same = tensor.shape.len() == first.shape.len()
                    && (0..first.shape.len()).all(|i| i == axis || tensor.shape[i] == first.shape[i]);
                if !same {
                    let (first, other) = (first.shape.clone(), tensor.shape.clone());
                    return Err(ShapeError::Concatenation { first, other, axis });
                }
                total += tensor.elements();
            }
            for (r, &id) in requants.iter().zip(inputs) {
                match r {
                    Some(r) => {
                        Output::Codes.check(get(id))?;
                        requant(r, 1)?;
                    }
                    None if get(id).dtype == first.dtype || requantized => {}
                    None => {
                        let (one, other) = (first.dtype.name(), get(id).dtype.name());
                        return Err(ShapeError::MixedTypes { one, other });
                    }
                }
            }
            Ok((total, if requantized { Output::Codes } else { Output::Exactly(first.dtype) }))
        }
        Op::Pad { input, before, after, mode } => {
            let x = get(*input);
            if before.len() != x.shape.len() || after.len() != x.shape.len() {
                return Err(ShapeError::Paddings { paddings: before.len(), shape: x.shape.clone() });
            }
            let pads = before.iter().zip(after).map(|(b, a)| (*b as usize, *a as usize));
            if matches!((mode, x.dtype.is_float()), (PadMode::Constant(_), true) | (PadMode::Value(_), false)) {
                return Err(ShapeError::Fill { mode: *mode, dtype: x.dtype.name() });
            }
            if matches!(mode, PadMode::Reflect) && pads.clone().zip(&x.shape).any(|((b, a), &n)| b >= n || a >= n) {
                return Err(ShapeError::Reflection(x.shape.clone()));
            }
            Ok((pads.zip(&x.shape).map(|((b, a), n)| b + n + a).product(), Output::Exactly(x.dtype)))
        }
        Op::Rearrange { input, dims, strides, offset } => {
            let x = get(*input);
            if dims.len() != strides.len() || dims.contains(&0) {
                return Err(ShapeError::Loops { extents: dims.len(), strides: strides.len() });
            }
            let reach = |positive: bool| {
                let steps = dims.iter().zip(strides).filter(|(_, s)| (**s > 0) == positive);
                offset + steps.map(|(d, s)| i64::from(d - 1) * s).sum::<i64>()
            };
            if reach(false) < 0 || reach(true) >= x.elements() as i64 {
                return Err(ShapeError::View { first: reach(false), last: reach(true), shape: x.shape.clone() });
            }
            Ok((dims.iter().map(|&d| d as usize).product(), Output::Exactly(x.dtype)))
        }
        Op::Gather { input, axis, indices } => {
            let x = get(*input);
            let (axis, shape) = (*axis, || x.shape.clone());
            let extent = *x.shape.get(axis as usize).ok_or_else(|| ShapeError::Axis { axis, shape: shape() })?;
            if indices.iter().any(|&i| i as usize >= extent) {
                return Err(ShapeError::Index { axis, shape: shape() });
            }
            Ok((x.elements() / extent.max(1) * indices.len(), Output::Exactly(x.dtype)))
        }
        Op::Embedding { table, indices } => {
            let (t, i) = (get(*table), get(*indices));
            if t.constant.is_none() || t.shape.len() != 2 || i.dtype != DType::I32 {
                return Err(ShapeError::Embedding);
            }
            Ok((i.elements() * t.shape[1], Output::Exactly(t.dtype)))
        }
        Op::ResizeLinear { input, rows, columns } => {
            let x = get(*input);
            activation(x)?;
            let &[n, h, w, c] = &x.shape[..] else {
                return Err(ShapeError::ImageRank(x.shape.clone()));
            };
            let fits = |taps: &[crate::op::LinearTap], extent: usize| {
                taps.iter().all(|t| {
                    let share = t.weight.single().is_some_and(|w| (0.0..=1.0).contains(&w));
                    let steps = x.dtype.is_float() || (t.weight.get() * 2048.0).fract() == 0.0;
                    (t.first.max(t.second) as usize) < extent && share && steps
                })
            };
            if !fits(rows, h) || !fits(columns, w) {
                return Err(ShapeError::Taps(x.shape.clone()));
            }
            Ok((n * rows.len() * columns.len() * c, Output::Exactly(x.dtype)))
        }
        Op::InsertZeros { input, stride } => {
            let x = get(*input);
            let &[n, h, w, c] = &x.shape[..] else {
                return Err(ShapeError::ImageRank(x.shape.clone()));
            };
            if stride.contains(&0) || h == 0 || w == 0 {
                return Err(ShapeError::Stride { stride: *stride, input: x.shape.clone() });
            }
            Ok((
                n * ((h - 1) * stride[0] as usize + 1) * ((w - 1) * stride[1] as usize + 1) * c,
                Output::Exactly(x.dtype),
            ))
        }
        Op::Select { condition, a, b } => {
            let (condition, a, b) = (get(*condition), get(*a), get(*b));
            if condition.dtype != DType::I8 || a.dtype != b.dtype {
                return Err(ShapeError::SelectionTypes);
            }
            let shape = broadcast(&a.shape, &b.shape).and_then(|s| broadcast(&s, &condition.shape));
            Ok((product(&shape.ok_or(ShapeError::SelectionShapes)?), Output::Exactly(a.dtype)))
        }
    }
}

fn pooled(x: &Tensor, window: &crate::op::Window, beyond: [u32; 2]) -> Result<usize, ShapeError> {
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

/// A linear operator's operands fit its arithmetic; floats are of one type.
fn linear(epilogue: &Arithmetic<Epilogue>, x: &Tensor, w: &Tensor) -> Result<Output, ShapeError> {
    let output = kind(epilogue, &[x, w])?;
    if output == Output::Floats && x.dtype != w.dtype {
        return Err(ShapeError::MixedTypes { one: x.dtype.name(), other: w.dtype.name() });
    }
    Ok(output)
}

fn linear_bias(bias: &Tensor, channels: usize, x: &Tensor, w: &Tensor) -> Result<(), ShapeError> {
    let expected = match (x.dtype, w.dtype) {
        (DType::I8, DType::I8) => DType::I32,
        (dtype, _) if dtype.is_float() => DType::F32,
        _ => DType::I64,
    };
    if bias.elements() != channels || bias.dtype != expected || bias.constant.is_none() {
        let (shape, found) = (bias.shape.clone(), bias.dtype.name());
        return Err(ShapeError::Bias { shape, found, channels, expected: expected.name() });
    }
    Ok(())
}

fn linear_epilogue(
    epilogue: &Arithmetic<Epilogue>,
    tensors: &[Tensor],
    channels: usize,
    operands: &[&Tensor],
) -> Result<(), ShapeError> {
    match epilogue {
        Arithmetic::Fixed(epilogue) => {
            requant(&epilogue.requant, channels)?;
            if let Some(shift) = epilogue.first_shift {
                if shift > 47 {
                    return Err(ShapeError::FirstShift(shift));
                }
                if operands.iter().all(|operand| operand.dtype == DType::I8) {
                    return Err(ShapeError::NarrowFirstShift);
                }
            }
            epilogue.table.as_ref().map_or(Ok(()), |t| table(t, tensors, 16))
        }
        Arithmetic::Float(finish) => Ok(finish.check()?),
    }
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
