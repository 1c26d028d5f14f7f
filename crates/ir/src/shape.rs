//! The shape and type rule of every operator: what it produces from its operands, or why it cannot.

use crate::op::{BinaryKind, ReduceKind};
use crate::{DType, Op, Requant, Table, Tensor, TensorId};

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

fn activation(tensor: &Tensor) -> Result<(), String> {
    if matches!(tensor.dtype, DType::I8 | DType::I16) {
        Ok(())
    } else {
        Err(format!("\"{}\" is {}, expected int8 or int16", tensor.name, tensor.dtype.name()))
    }
}

fn requant(requant: &Requant, channels: usize) -> Result<(), String> {
    let count = requant.multiplier.len();
    if count != requant.shift.len() || (count != 1 && count != channels) {
        return Err(format!("{count} multipliers and {} shifts for {channels} channels", requant.shift.len()));
    }
    for (&m, &n) in requant.multiplier.iter().zip(&requant.shift) {
        if !(0..=crate::quant::MULTIPLIER_MAX).contains(&m) {
            return Err(format!("multiplier {m} is outside 0..=32767"));
        }
        if !(crate::quant::SHIFT_MIN..=crate::quant::SHIFT_MAX).contains(&i32::from(n)) {
            return Err(format!("shift {n} is outside -15..=47"));
        }
    }
    if requant.lo > requant.hi {
        return Err(format!("clamp {}..={} is empty", requant.lo, requant.hi));
    }
    Ok(())
}

fn table(table: &Table, tensors: &[Tensor], bits: u32) -> Result<(), String> {
    let entries = &tensors[table.entries.index()];
    let n = entries.elements().saturating_sub(1);
    if entries.constant.is_none() || entries.dtype != DType::I32 || !n.is_power_of_two() || n > 1 << bits || n < 2 {
        return Err(format!("table \"{}\" must be a constant of 2^k + 1 int32, k <= {bits}", entries.name));
    }
    Ok(())
}

/// Number of output elements and, where the operator determines it, the output's element type.
///
/// # Errors
/// The reason why the operands do not fit, without the layer's name.
pub fn output_type(op: &Op, tensors: &[Tensor]) -> Result<(usize, Option<DType>), String> {
    let get = |id: TensorId| &tensors[id.index()];
    match op {
        Op::Conv { input, weights, bias, window, groups, epilogue } => {
            let (x, w, b) = (get(*input), get(*weights), get(*bias));
            activation(x)?;
            activation(w)?;
            let (&[n, h, width, c], &[o, kh, kw, ci]) = (&x.shape[..], &w.shape[..]) else {
                return Err(format!("input {:?} and weights {:?} must have rank 4", x.shape, w.shape));
            };
            let groups = *groups as usize;
            if groups == 0 || ci * groups != c || o % groups != 0 {
                return Err(format!("weights {:?} in {groups} groups do not fit input {:?}", w.shape, x.shape));
            }
            if [kh as u32, kw as u32] != window.kernel || window.stride.contains(&0) || window.dilation.contains(&0) {
                return Err(format!("window {window:?} does not fit weights {:?}", w.shape));
            }
            linear_bias(b, o, x, w)?;
            linear_epilogue(epilogue, tensors, o)?;
            let [oh, ow] = window.output(h, width).ok_or(format!("window {window:?} exceeds input {:?}", x.shape))?;
            Ok((n * oh * ow * o, None))
        }
        Op::MatMul { a, b, bias, epilogue } => {
            let (a, b) = (get(*a), get(*b));
            activation(a)?;
            activation(b)?;
            let ([lead_a @ .., m, k], [lead_b @ .., k2, n]) = (&a.shape[..], &b.shape[..]) else {
                return Err(format!("operands {:?} and {:?} must have rank 2 or more", a.shape, b.shape));
            };
            if k != k2 || (!lead_b.is_empty() && lead_a != lead_b) {
                return Err(format!("operands {:?} and {:?} do not fit", a.shape, b.shape));
            }
            if let Some(bias) = bias {
                linear_bias(get(*bias), *n, a, b)?;
            }
            linear_epilogue(epilogue, tensors, *n)?;
            Ok((product(lead_a) * m * n, None))
        }
        Op::MaxPool { input, window } => {
            let x = get(*input);
            activation(x)?;
            Ok((pooled(x, window, [0, 0])?, Some(x.dtype)))
        }
        Op::AveragePool { input, window, divisors, beyond, .. } => {
            let x = get(*input);
            activation(x)?;
            if divisors.is_empty() || !divisors.is_sorted_by_key(|d| d.area) {
                return Err("divisors must be ascending by area".to_owned());
            }
            Ok((pooled(x, window, *beyond)?, None))
        }
        Op::Binary { kind, a, b, ka, kb, requant: r } => {
            let (a, b) = (get(*a), get(*b));
            activation(a)?;
            activation(b)?;
            requant(r, 1)?;
            let multiplies = matches!(kind, BinaryKind::Mul | BinaryKind::Div);
            if multiplies && (*ka, *kb) != (1, 1) || !(0..=32767).contains(ka) || !(0..=32767).contains(kb) {
                return Err(format!("operand multipliers {ka} and {kb} are out of range"));
            }
            let shape = broadcast(&a.shape, &b.shape).ok_or(format!("{:?} and {:?} do not fit", a.shape, b.shape))?;
            Ok((product(&shape), None))
        }
        Op::Unary { input, table: t } => {
            let x = get(*input);
            activation(x)?;
            table(t, tensors, x.dtype.bits())?;
            Ok((x.elements(), None))
        }
        Op::Rescale { input, requant: r } => {
            let x = get(*input);
            activation(x)?;
            requant(r, 1)?;
            Ok((x.elements(), None))
        }
        Op::PRelu { input, positive, negative_multiplier, negative_shift } => {
            let x = get(*input);
            activation(x)?;
            requant(positive, 1)?;
            let (count, channels) = (negative_multiplier.len(), x.shape.last().copied().unwrap_or(1));
            if count != negative_shift.len() || (count != 1 && count != channels) {
                return Err(format!("{count} slopes for {channels} channels"));
            }
            if negative_multiplier.iter().any(|m| m.abs() > crate::quant::MULTIPLIER_MAX) {
                return Err("slope multiplier is outside -32767..=32767".to_owned());
            }
            Ok((x.elements(), None))
        }
        Op::Softmax { input, mask, .. } => {
            let x = get(*input);
            activation(x)?;
            if let Some(mask) = mask.map(get)
                && (mask.constant.is_none()
                    || mask.dtype != DType::I8
                    || broadcast(&mask.shape, &x.shape).as_deref() != Some(&x.shape[..]))
            {
                return Err(format!("mask {:?} must be a constant that broadcasts to {:?}", mask.shape, x.shape));
            }
            Ok((x.elements(), None))
        }
        Op::LayerNorm { input, gamma, beta, requant: r, .. } => {
            let (x, g, b) = (get(*input), get(*gamma), get(*beta));
            activation(x)?;
            let n = x.shape.last().copied().unwrap_or(1);
            if g.elements() != n || b.elements() != n || b.dtype != DType::I64 {
                return Err(format!("gamma {:?} and beta {:?} (int64) must hold {n} elements", g.shape, b.shape));
            }
            requant(r, n)?;
            Ok((x.elements(), None))
        }
        Op::Reduce { input, kind, axes, requant: r } => {
            let x = get(*input);
            activation(x)?;
            requant(r, 1)?;
            if axes.is_empty() || axes.iter().any(|&a| a as usize >= x.shape.len()) || !axes.is_sorted() {
                return Err(format!("axes {axes:?} do not fit {:?}", x.shape));
            }
            let kept = x.shape.iter().enumerate().filter(|(i, _)| !axes.contains(&(*i as u32)));
            let passes = matches!(kind, ReduceKind::Max | ReduceKind::Min);
            Ok((kept.map(|(_, n)| n).product(), passes.then_some(x.dtype)))
        }
        Op::ArgMax { input, .. } => {
            let x = get(*input);
            activation(x)?;
            let n = x.shape.last().copied().unwrap_or(1).max(1);
            Ok((x.elements() / n, Some(DType::I32)))
        }
        Op::Concat { inputs, axis, requants } => {
            let axis = *axis as usize;
            let first = get(*inputs.first().ok_or("no operands")?);
            if requants.len() != inputs.len() || axis >= first.shape.len() {
                return Err(format!("axis {axis} or {} requantisations do not fit", requants.len()));
            }
            let mut total = 0;
            for tensor in inputs.iter().map(|&id| get(id)) {
                let same = tensor.shape.len() == first.shape.len()
                    && (0..first.shape.len()).all(|i| i == axis || tensor.shape[i] == first.shape[i]);
                if !same {
                    return Err(format!("{:?} and {:?} do not fit along axis {axis}", first.shape, tensor.shape));
                }
                total += tensor.elements();
            }
            for r in requants.iter().flatten() {
                requant(r, 1)?;
            }
            Ok((total, None))
        }
        Op::Pad { input, before, after, mode } => {
            let x = get(*input);
            if before.len() != x.shape.len() || after.len() != x.shape.len() {
                return Err(format!("{} paddings for shape {:?}", before.len(), x.shape));
            }
            let pads = before.iter().zip(after).map(|(b, a)| (*b as usize, *a as usize));
            if matches!(mode, crate::op::PadMode::Reflect)
                && pads.clone().zip(&x.shape).any(|((b, a), &n)| b >= n || a >= n)
            {
                return Err(format!("reflection exceeds shape {:?}", x.shape));
            }
            Ok((pads.zip(&x.shape).map(|((b, a), n)| b + n + a).product(), Some(x.dtype)))
        }
        Op::Rearrange { input, dims, strides, offset } => {
            let x = get(*input);
            if dims.len() != strides.len() || dims.contains(&0) {
                return Err(format!("{} extents and {} strides", dims.len(), strides.len()));
            }
            let reach = |positive: bool| {
                let steps = dims.iter().zip(strides).filter(|(_, s)| (**s > 0) == positive);
                offset + steps.map(|(d, s)| i64::from(d - 1) * s).sum::<i64>()
            };
            if reach(false) < 0 || reach(true) >= x.elements() as i64 {
                return Err(format!("elements {}..={} of {:?}", reach(false), reach(true), x.shape));
            }
            Ok((dims.iter().map(|&d| d as usize).product(), Some(x.dtype)))
        }
        Op::Gather { input, axis, indices } => {
            let x = get(*input);
            let extent = *x.shape.get(*axis as usize).ok_or(format!("axis {axis} of {:?}", x.shape))?;
            if indices.iter().any(|&i| i as usize >= extent) {
                return Err(format!("an index exceeds axis {axis} of {:?}", x.shape));
            }
            Ok((x.elements() / extent.max(1) * indices.len(), Some(x.dtype)))
        }
        Op::Embedding { table, indices } => {
            let (t, i) = (get(*table), get(*indices));
            if t.constant.is_none() || t.shape.len() != 2 || i.dtype != DType::I32 {
                return Err("table must be a constant matrix and indices int32".to_owned());
            }
            Ok((i.elements() * t.shape[1], Some(t.dtype)))
        }
        Op::ResizeLinear { input, rows, columns } => {
            let x = get(*input);
            activation(x)?;
            let &[n, h, w, c] = &x.shape[..] else {
                return Err(format!("input {:?} must have rank 4", x.shape));
            };
            let fits = |taps: &[crate::op::LinearTap], extent: usize| {
                taps.iter().all(|t| (t.first.max(t.second) as usize) < extent && t.weight <= 2048)
            };
            if !fits(rows, h) || !fits(columns, w) {
                return Err(format!("a tap exceeds input {:?}", x.shape));
            }
            Ok((n * rows.len() * columns.len() * c, Some(x.dtype)))
        }
        Op::InsertZeros { input, stride } => {
            let x = get(*input);
            let &[n, h, w, c] = &x.shape[..] else {
                return Err(format!("input {:?} must have rank 4", x.shape));
            };
            if stride.contains(&0) || h == 0 || w == 0 {
                return Err(format!("stride {stride:?} of input {:?}", x.shape));
            }
            Ok((n * ((h - 1) * stride[0] as usize + 1) * ((w - 1) * stride[1] as usize + 1) * c, Some(x.dtype)))
        }
        Op::Select { condition, a, b } => {
            let (condition, a, b) = (get(*condition), get(*a), get(*b));
            if condition.constant.is_none() || condition.dtype != DType::I8 || a.dtype != b.dtype {
                return Err("condition must be a constant int8 and both choices of one type".to_owned());
            }
            let shape = broadcast(&a.shape, &b.shape).and_then(|s| broadcast(&s, &condition.shape));
            Ok((product(&shape.ok_or("operands do not broadcast")?), Some(a.dtype)))
        }
    }
}

fn pooled(x: &Tensor, window: &crate::op::Window, beyond: [u32; 2]) -> Result<usize, String> {
    let &[n, h, w, c] = &x.shape[..] else { return Err(format!("input {:?} must have rank 4", x.shape)) };
    if window.stride.contains(&0) || window.dilation.contains(&0) || window.kernel.contains(&0) {
        return Err(format!("window {window:?}"));
    }
    if beyond[0] > window.pads[2] || beyond[1] > window.pads[3] {
        return Err("ceil-mode cells exceed the padding".to_owned());
    }
    let [oh, ow] = window.output(h, w).ok_or(format!("window {window:?} exceeds input {:?}", x.shape))?;
    Ok(n * oh * ow * c)
}

fn linear_bias(bias: &Tensor, channels: usize, x: &Tensor, w: &Tensor) -> Result<(), String> {
    let expected = if x.dtype == DType::I8 && w.dtype == DType::I8 { DType::I32 } else { DType::I64 };
    if bias.elements() != channels || bias.dtype != expected || bias.constant.is_none() {
        return Err(format!(
            "bias {:?} {} must be a constant of {channels} {}",
            bias.shape,
            bias.dtype.name(),
            expected.name()
        ));
    }
    Ok(())
}

fn linear_epilogue(epilogue: &crate::op::Epilogue, tensors: &[Tensor], channels: usize) -> Result<(), String> {
    requant(&epilogue.requant, channels)?;
    match &epilogue.table {
        Some(t) => table(t, tensors, 16),
        None => Ok(()),
    }
}
