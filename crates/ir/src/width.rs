//! The proof that every value of a graph fits its width: accumulators, clamps, zero points.
//!
//! Accumulators are exact: 32 bits where both operands of a linear layer are int8, 48 bits elsewhere. Whether a sum fits is
//! decided from the actual constants, by the worst input the element types allow:
//! ```text
//! |sum (x - Zx)(w - Zw) + b|  <=  max|x - Zx| * sum |w - Zw| + |b|
//! ```
//! Products of two activations take the largest magnitude of both types. A layer that may overflow is refused; the
//! interpreter and every program then compute without checks.
//!
//! Floats overflow to infinity and need no proof, but weights of convolutions must be finite: padding then adds nothing.
//!
//! Source: docs/arithmetic.md, "Widths".

use crate::error::WidthError;
use crate::op::Norm;
use crate::shape::product;
use crate::{Arithmetic, DType, Epilogue, Graph, Layer, Op, ReduceKind, Requant, Table, Tensor, TensorId};

/// Largest magnitude of a 32-bit accumulator.
const NARROW: i128 = i32::MAX as i128;
/// Largest magnitude of a 48-bit accumulator.
const WIDE: i128 = (1 << 47) - 1;

/// Checks every layer.
///
/// # Errors
/// The first layer with a value that may not fit, and which.
pub fn prove(graph: &Graph) -> Result<(), (String, WidthError)> {
    graph.layers.iter().try_for_each(|layer| fits(graph, layer).map_err(|reason| (layer.name.clone(), reason)))
}

fn fits(graph: &Graph, layer: &Layer) -> Result<(), WidthError> {
    let tensor = |id: TensorId| graph.tensor(id);
    let output = tensor(layer.output);
    for id in layer.op.operands() {
        let operand = tensor(id);
        let (lo, hi) = operand.dtype.range();
        if !(lo..=hi).contains(&i64::from(operand.zero_point())) {
            let (zero_point, dtype) = (operand.zero_point(), operand.dtype.name());
            return Err(WidthError::ZeroPoint { zero_point, tensor: operand.name.clone(), dtype });
        }
    }
    let leaves = |requant: &Requant| check_clamp(output, requant.lo, requant.hi);
    match &layer.op {
        Op::Conv { weights, epilogue: Arithmetic::Float(_), .. } => finite(tensor(*weights)),
        Op::Conv { input, weights, bias, epilogue: Arithmetic::Fixed(epilogue), .. } => {
            convolution(tensor(*input), tensor(*weights), tensor(*bias), epilogue, output)
        }
        // Sums as they are.
        Op::MatMul { a, b, epilogue: Arithmetic::Fixed(_), partial: true, .. } => {
            let [a, b] = [tensor(*a), tensor(*b)];
            dynamic_product(a, b, a.shape.last().copied().unwrap_or(1), &[], limit(a, b))
        }
        Op::MatMul { a, b, bias, epilogue: Arithmetic::Fixed(epilogue), .. } => {
            matrices([tensor(*a), tensor(*b)], bias.map(tensor), epilogue, output)
        }
        Op::AveragePool { input, window, average: Arithmetic::Fixed(average), .. } => {
            let cells = i128::from(window.kernel[0]) * i128::from(window.kernel[1]);
            sum_fits(cells * magnitude(tensor(*input)), WIDE)?;
            check_clamp(output, average.lo, average.hi)
        }
        Op::Binary { requant: Arithmetic::Fixed(requant), .. }
        | Op::Rescale { requant: Arithmetic::Fixed(requant), .. } => leaves(requant),
        Op::Quantize { lo, hi, zero_point, .. } => {
            check_clamp_in_type(output, *zero_point, *zero_point)?;
            check_clamp_in_type(output, *lo, *hi)
        }
        Op::Unary { function: Arithmetic::Fixed(table), .. } => table_fits(table, output),
        Op::PRelu { slopes: Arithmetic::Fixed(slopes), .. } => leaves(&slopes.positive),
        Op::Softmax { exponentials: Arithmetic::Fixed(e), .. } => {
            if e.multiplier < 0 {
                return Err(WidthError::NegativeMultiplier(e.multiplier));
            }
            check_clamp(output, e.lo, e.hi)
        }
        Op::LayerNorm { gamma, beta, norm: Arithmetic::Float(_), .. } => {
            constant(tensor(*gamma))?;
            constant(tensor(*beta))
        }
        Op::LayerNorm { input, gamma, beta, norm: Arithmetic::Fixed(norm), .. } => {
            normalization([tensor(*input), tensor(*gamma), tensor(*beta)], norm, output)
        }
        Op::Reduce { input, kind, axes, requant: Arithmetic::Fixed(requant) } => {
            reduction(tensor(*input), *kind, axes, requant, output)
        }
        Op::Concat { inputs, requants, .. } => {
            concatenation(&inputs.iter().map(|&id| tensor(id)).collect::<Vec<_>>(), requants, output)
        }
        Op::Pad { mode: crate::PadMode::Constant(code), .. } => check_clamp_in_type(output, *code, *code),
        // What only moves or compares, and floats.
        Op::MatMul { .. }
        | Op::AveragePool { .. }
        | Op::Binary { .. }
        | Op::Rescale { .. }
        | Op::Dequantize { .. }
        | Op::Unary { .. }
        | Op::PRelu { .. }
        | Op::Softmax { .. }
        | Op::SoftmaxStatistics { .. }
        | Op::Reduce { .. }
        | Op::MaxPool { .. }
        | Op::ArgMax { .. }
        | Op::Pad { .. }
        | Op::Rearrange { .. }
        | Op::Gather { .. }
        | Op::Embedding { .. }
        | Op::ResizeLinear { .. }
        | Op::InsertZeros { .. }
        | Op::Select { .. } => Ok(()),
    }
}

/// Sums of all filters, whose weights are constant.
fn convolution(x: &Tensor, w: &Tensor, bias: &Tensor, epilogue: &Epilogue, output: &Tensor) -> Result<(), WidthError> {
    let columns = w.shape[0];
    let rows = product(&w.shape[1..]);
    let limit = limit(x, w);
    constant(w)?;
    let bias = accumulated_biases(epilogue, bias.integers())?;
    constant_product(x, w, [rows, columns], [1, rows], &bias, limit)?;
    epilogue_fits(epilogue, output)
}

/// Products of matrices, of which the second may be constant.
fn matrices(
    [a, b]: [&Tensor; 2],
    bias: Option<&Tensor>,
    epilogue: &Epilogue,
    output: &Tensor,
) -> Result<(), WidthError> {
    let [.., k, n] = b.shape[..] else { return Err(WidthError::Matrices) };
    let bias = accumulated_biases(epilogue, bias.map_or_else(Vec::new, Tensor::integers))?;
    if b.constant.is_some() && b.shape.len() == 2 {
        constant_product(a, b, [k, n], [n, 1], &bias, limit(a, b))?;
    } else {
        dynamic_product(a, b, k, &bias, limit(a, b))?;
    }
    epilogue_fits(epilogue, output)
}

/// Normalised codes, by a scale and an offset a channel.
fn normalization([x, gamma, beta]: [&Tensor; 3], norm: &Norm, output: &Tensor) -> Result<(), WidthError> {
    let n = x.shape.last().copied().unwrap_or(1);
    constant(gamma)?;
    constant(beta)?;
    if gamma.zero_point() != 0 || norm.epsilon == 0 || n == 0 {
        return Err(WidthError::Normalization);
    }
    for (gamma, beta) in gamma.integers().into_iter().zip(beta.integers()) {
        sum_fits((i128::from(gamma).abs() << 23) + i128::from(beta).abs(), WIDE)?;
    }
    check_clamp(output, norm.requant.lo, norm.requant.hi)
}

/// Sums along axes.
fn reduction(x: &Tensor, kind: ReduceKind, axes: &[u32], requant: &Requant, output: &Tensor) -> Result<(), WidthError> {
    let count: i128 = axes.iter().map(|&axis| x.shape[axis as usize] as i128).product();
    // A sum as it is has 48 bits.
    let term = if x.dtype == DType::I64 { WIDE } else { magnitude(x) };
    match kind {
        ReduceKind::Sum if x.dtype == DType::I64 => sum_fits(count * term, i64::MAX.into())?,
        ReduceKind::Max | ReduceKind::Min => return Ok(()),
        ReduceKind::Sum | ReduceKind::SumAbs => sum_fits(count * term, WIDE)?,
        ReduceKind::SumSquare => sum_fits(count * term * term, WIDE)?,
        ReduceKind::Norm => {}
    }
    check_clamp(output, requant.lo, requant.hi)
}

/// Operands joined, some of them rescaled.
fn concatenation(inputs: &[&Tensor], requants: &[Option<Requant>], output: &Tensor) -> Result<(), WidthError> {
    for (input, requant) in inputs.iter().zip(requants) {
        match requant {
            Some(requant) if matches!(input.dtype, DType::I8 | DType::I16) => {
                check_clamp(output, requant.lo, requant.hi)?
            }
            None if input.dtype == output.dtype => {}
            _ => {
                let operand = input.name.clone();
                return Err(WidthError::Conversion { operand, dtype: output.dtype.name() });
            }
        }
    }
    Ok(())
}

/// Largest `|x - Z|` the element type allows.
fn magnitude(tensor: &Tensor) -> i128 {
    let (lo, hi) = tensor.dtype.range();
    let zero_point = i128::from(tensor.zero_point());
    (i128::from(hi) - zero_point).max(zero_point - i128::from(lo))
}

fn constant(tensor: &Tensor) -> Result<(), WidthError> {
    if tensor.constant.is_some() { Ok(()) } else { Err(WidthError::Constant(tensor.name.clone())) }
}

fn finite(tensor: &Tensor) -> Result<(), WidthError> {
    constant(tensor)?;
    let bytes = tensor.constant.as_deref().unwrap_or_default();
    let half = |mask: u16| bytes.as_chunks().0.iter().all(|b| u16::from_le_bytes(*b) & mask != mask);
    let finite = match tensor.dtype {
        DType::F16 => half(0x7C00),
        DType::BF16 => half(0x7F80),
        _ => bytes.as_chunks().0.iter().all(|b| f32::from_le_bytes(*b).is_finite()),
    };
    if finite { Ok(()) } else { Err(WidthError::NotFinite(tensor.name.clone())) }
}

fn limit(x: &Tensor, w: &Tensor) -> i128 {
    if x.dtype == DType::I8 && w.dtype == DType::I8 { NARROW } else { WIDE }
}

fn sum_fits(bound: i128, limit: i128) -> Result<(), WidthError> {
    if bound <= limit {
        return Ok(());
    }
    let bits = if limit == NARROW { 32 } else { 48 };
    Err(WidthError::Accumulator { bound, bits })
}

/// The biases that are part of the accumulators: none where they follow a first rounding, which holds them to 32 bits.
fn accumulated_biases(epilogue: &Epilogue, bias: Vec<i64>) -> Result<Vec<i64>, WidthError> {
    if epilogue.first_shift.is_none() {
        return Ok(bias);
    }
    match bias.iter().find(|&&bias| i32::try_from(bias).is_err()) {
        Some(&bias) => Err(WidthError::Bias(bias)),
        None => Ok(Vec::new()),
    }
}

fn constant_product(
    x: &Tensor,
    w: &Tensor,
    [rows, columns]: [usize; 2],
    strides: [usize; 2],
    bias: &[i64],
    limit: i128,
) -> Result<(), WidthError> {
    let zero_point = i64::from(w.zero_point());
    let codes = w.integers();
    let mut sums = vec![0u64; columns];
    // Walks the codes in storage order: either the rows of a column or the columns of a row lie side by side.
    for (at, code) in codes.iter().enumerate() {
        let column = if strides[0] == 1 { at / rows.max(1) } else { at % columns.max(1) };
        sums[column] += (code - zero_point).unsigned_abs();
    }
    let step = magnitude(x);
    for (column, sum) in sums.into_iter().enumerate() {
        let bias = bias.get(column).map_or(0, |b| i128::from(*b).abs());
        sum_fits(step * i128::from(sum) + bias, limit)?;
    }
    Ok(())
}

fn dynamic_product(a: &Tensor, b: &Tensor, k: usize, bias: &[i64], limit: i128) -> Result<(), WidthError> {
    let bias = bias.iter().map(|b| i128::from(*b).abs()).max().unwrap_or(0);
    sum_fits(magnitude(a) * magnitude(b) * k as i128 + bias, limit)
}

fn epilogue_fits(epilogue: &Epilogue, output: &Tensor) -> Result<(), WidthError> {
    let zero_point = epilogue.requant.zero_point;
    if i16::try_from(zero_point).is_err() {
        return Err(WidthError::RequantizationZeroPoint(zero_point));
    }
    match &epilogue.table {
        None => check_clamp(output, epilogue.requant.lo, epilogue.requant.hi),
        Some(table) => {
            let (lo, hi) = (epilogue.requant.lo, epilogue.requant.hi);
            if lo < -32768 || hi > 32767 {
                return Err(WidthError::TableClamp { lo, hi });
            }
            table_fits(table, output)
        }
    }
}

fn table_fits(table: &Table, output: &Tensor) -> Result<(), WidthError> {
    check_clamp(output, table.lo, table.hi)
}

/// The clamp is not empty and the output an activation that holds it.
fn check_clamp(output: &Tensor, lo: i32, hi: i32) -> Result<(), WidthError> {
    if !matches!(output.dtype, DType::I8 | DType::I16) {
        return Err(WidthError::Output { output: output.name.clone(), dtype: output.dtype.name() });
    }
    check_clamp_in_type(output, lo, hi)
}

fn check_clamp_in_type(output: &Tensor, lo: i32, hi: i32) -> Result<(), WidthError> {
    let (least, most) = output.dtype.range();
    if lo > hi || i64::from(lo) < least || i64::from(hi) > most {
        let (output, dtype) = (output.name.clone(), output.dtype.name());
        return Err(WidthError::Clamp { lo, hi, dtype, output });
    }
    Ok(())
}
