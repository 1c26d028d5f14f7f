//! One layer: picks the kernel's element types and calls it.

use std::sync::Arc;

use tpuflow_ir::op::{Average as FixedAverage, Exponentials};
use tpuflow_ir::{Arithmetic, Graph, Layer, Op, PadMode, Requant, TableEntry, Tensor, TensorId};
use tpuflow_kernels::elementwise::{self, Binary, Broadcast, PRelu};
use tpuflow_kernels::pool::{self, Average};
use tpuflow_kernels::softmax::Softmax;
use tpuflow_kernels::table;
use tpuflow_kernels::{Element, Float, Values, linear, movement, reduce, resize};

use super::prepare::{Constants, image};
use super::tensor_pool::TensorPool;
use super::{blocks, float};
use crate::error::LayerError;

/// Evaluates the body with the slices of two tensors of the same type.
macro_rules! same {
    ($x:expr, $y:expr, ($xs:ident, $ys:ident) => $body:expr) => {
        match ($x, $y) {
            (Values::I8($xs), Values::I8($ys)) => $body,
            (Values::I16($xs), Values::I16($ys)) => $body,
            (Values::I32($xs), Values::I32($ys)) => $body,
            (Values::I64($xs), Values::I64($ys)) => $body,
            (Values::F16($xs), Values::F16($ys)) => $body,
            (Values::BF16($xs), Values::BF16($ys)) => $body,
            (Values::F32($xs), Values::F32($ys)) => $body,
            (x, y) => unreachable!("the shape rule does not admit {} to {}", x.dtype().name(), y.dtype().name()),
        }
    };
}

/// Evaluates the body with the slices of two int8 or two int16 tensors.
macro_rules! same_codes {
    ($x:expr, $y:expr, ($xs:ident, $ys:ident) => $body:expr) => {
        match ($x, $y) {
            (Values::I8($xs), Values::I8($ys)) => $body,
            (Values::I16($xs), Values::I16($ys)) => $body,
            (x, y) => unreachable!("the shape rule does not admit {} to {}", x.dtype().name(), y.dtype().name()),
        }
    };
}

/// Computes a layer from the tensors it reads, into memory of the pool, or that of its successor ([`super::fuse`]), whose
/// output it is then.
///
/// # Errors
/// The reason, when an index lies outside its table.
pub(super) fn execute(
    graph: &Graph,
    layer: &Layer,
    successor: Option<&Layer>,
    prepared: &Constants,
    tensors: &[Option<Arc<Values>>],
    free: &mut TensorPool,
) -> Result<Values, LayerError> {
    let output = graph.tensor(layer.output);
    if let (Constants::Float(prepared), 1..) = (prepared, output.elements()) {
        return Ok(float::execute(graph, layer, prepared, tensors));
    }
    let value = |id: TensorId| -> &Values { tensors[id.index()].as_deref().expect("operands precede their readers") };
    let mut y = free.take(output.dtype, output.elements());
    if y.is_empty() {
        return Ok(y);
    }
    if let Some(Layer { op: Op::Binary { kind, a, b, ka, kb, requant: Arithmetic::Fixed(requant) }, .. }) = successor {
        let zero_points = [*a, *b].map(|id| graph.tensor(id).zero_point());
        let function = Binary { kind: *kind, zero_points, multipliers: [*ka, *kb], requant };
        let first = *a == layer.output;
        compute_fused(layer, prepared, (&function, first, value(if first { *b } else { *a })), value, &mut y);
        return Ok(y);
    }
    if let Constants::Products(products) = prepared {
        products.run(tensors, &mut y);
    } else if blocks::is_of_blocks(graph, layer) {
        blocks::compute(graph, layer, prepared, value, &mut y);
    } else if is_movement(&layer.op) {
        move_elements(graph, layer, prepared, value, &mut y)?;
    } else {
        compute_codes(graph, layer, prepared, value, &mut y);
    }
    Ok(y)
}

/// Whether an operator gives elements of its operands, or of the lines between them, rather than results of arithmetic.
fn is_movement(op: &Op) -> bool {
    matches!(
        op,
        Op::Concat { .. }
            | Op::Pad { .. }
            | Op::Rearrange { .. }
            | Op::Gather { .. }
            | Op::Embedding { .. }
            | Op::ResizeLinear { .. }
            | Op::InsertZeros { .. }
            | Op::Select { .. }
    )
}

/// Operators of arithmetic on codes.
fn compute_codes<'v>(
    graph: &Graph,
    layer: &Layer,
    prepared: &Constants,
    value: impl Fn(TensorId) -> &'v Values,
    y: &mut Values,
) {
    let tensor = |id: TensorId| graph.tensor(id);
    let zero = |id: TensorId| tensor(id).zero_point();
    match (&layer.op, prepared) {
        (Op::Conv { input, .. }, Constants::Conv(conv)) => {
            codes!(value(*input), x => codes!(y, y => conv.run(x, y)));
        }
        (Op::Conv { input, .. }, Constants::Depthwise { geometry, filters }) => {
            codes!(value(*input), x => codes!(y, y => filters.run(geometry, x, y)));
        }
        (Op::MatMul { a, .. }, Constants::Product(linear)) => {
            codes!(value(*a), a => codes!(y, y => linear::multiply(linear, a, y)));
        }
        (Op::MaxPool { input, .. }, Constants::Pool(geometry)) => {
            same_codes!(value(*input), y, (x, y) => pool::max_pool(geometry, x, y));
        }
        (
            Op::AveragePool { input, count_include_pad, beyond, average: Arithmetic::Fixed(fixed), .. },
            Constants::Pool(geometry),
        ) => {
            let average = average_of(fixed, *count_include_pad, *beyond, zero(*input));
            codes!(value(*input), x => codes!(y, y => pool::average_pool(geometry, &average, x, y)));
        }
        (Op::Binary { kind, a, b, ka, kb, requant: Arithmetic::Fixed(requant) }, Constants::Binary(broadcast)) => {
            let function = Binary { kind: *kind, zero_points: [zero(*a), zero(*b)], multipliers: [*ka, *kb], requant };
            codes!(value(*a), a => codes!(value(*b), b => codes!(y, y => {
                elementwise::binary(&function, broadcast, a, b, y);
            })));
        }
        (Op::Unary { input, function: Arithmetic::Fixed(_) }, Constants::Table(lookup)) => {
            codes!(value(*input), x => codes!(y, y => table::lookup(lookup, x, y)));
        }
        (Op::Rescale { input, requant: Arithmetic::Fixed(requant) }, _) => {
            let zero = zero(*input);
            codes!(value(*input), x => codes!(y, y => elementwise::rescale(zero, requant, x, y)));
        }
        (Op::PRelu { input, slopes: Arithmetic::Fixed(slopes) }, _) => {
            let function = PRelu {
                zero_point: zero(*input),
                positive: &slopes.positive,
                negative_multiplier: &slopes.negative_multiplier,
                negative_shift: &slopes.negative_shift,
            };
            codes!(value(*input), x => codes!(y, y => elementwise::p_relu(&function, x, y)));
        }
        (Op::Softmax { input, exponentials: Arithmetic::Fixed(fixed), .. }, Constants::Mask(mask)) => {
            let function = softmax_of(fixed);
            let (n, mask) = (last(tensor(*input)), mask.full(&value));
            codes!(value(*input), x => codes!(y, y => function.rows(n, x, &mask, y)));
        }
        (Op::LayerNorm { .. }, Constants::Norm(norm)) => {
            let input = layer.op.operands()[0];
            codes!(value(input), x => codes!(y, y => norm.rows(x, y)));
        }
        (Op::Reduce { input, kind, requant: Arithmetic::Fixed(requant), .. }, Constants::Reduce(reduction)) => {
            let zero = zero(*input);
            codes!(value(*input), x => codes!(y, y => {
                reduce::reduce(reduction, *kind, zero, requant, x, y);
            }));
        }
        (Op::ArgMax { input, largest, select_last }, _) => {
            let n = last(tensor(*input));
            if let Values::I32(y) = y {
                codes!(value(*input), x => reduce::arg_max(n, *largest, *select_last, x, y));
            }
        }
        (op, _) => unreachable!("{} was prepared as another operator", op.name()),
    }
}

fn average_of(fixed: &FixedAverage, count_include_pad: bool, beyond: [u32; 2], input_zero_point: i32) -> Average<'_> {
    Average {
        count_include_pad,
        beyond,
        divisors: &fixed.divisors,
        input_zero_point,
        zero_point: fixed.zero_point,
        lo: fixed.lo,
        hi: fixed.hi,
    }
}

pub(super) fn softmax_of(fixed: &Exponentials) -> Softmax {
    Softmax {
        coefficient: fixed.coefficient,
        multiplier: fixed.multiplier,
        shift: fixed.shift,
        zero_point: fixed.zero_point,
        lo: fixed.lo,
        hi: fixed.hi,
    }
}

/// Operators that move elements of any type.
fn move_elements<'v>(
    graph: &Graph,
    layer: &Layer,
    prepared: &Constants,
    value: impl Fn(TensorId) -> &'v Values,
    y: &mut Values,
) -> Result<(), LayerError> {
    let tensor = |id: TensorId| graph.tensor(id);
    match (&layer.op, prepared) {
        (Op::Concat { inputs, axis, requants }, _) => {
            concatenate((inputs, *axis as usize, requants), graph, tensor(layer.output), value, y)
        }
        (Op::Pad { input, before, after, mode }, _) => {
            pad(&tensor(*input).shape, [before, after], *mode, value(*input), y)
        }
        (Op::Rearrange { input, dims, strides, offset }, _) => {
            same!(value(*input), y, (x, y) => movement::rearrange(dims, strides, *offset, x, y));
        }
        (Op::Gather { input, axis, indices }, _) => {
            let shape = &tensor(*input).shape[*axis as usize..];
            let (extent, inner) = (shape[0], shape[1..].iter().product());
            same!(value(*input), y, (x, y) => movement::gather(extent, inner, indices, x, y));
        }
        (Op::Embedding { table, indices, entry }, _) => {
            let Values::I32(at) = value(*indices) else { unreachable!("indices are int32") };
            let [rows, d] = entry.count([tensor(*table).shape[0], tensor(*table).shape[1]]);
            let outside = match entry {
                TableEntry::Column => same!(value(*table), y, (t, y) => movement::columns(rows, t, at, y)),
                _ => same!(value(*table), y, (t, y) => movement::embedding(d, t, at, y)),
            };
            if let Some(index) = outside {
                let table = tensor(*table).name.clone();
                return Err(LayerError::Index { index, rows, table });
            }
        }
        (Op::ResizeLinear { input, rows, columns }, _) => {
            let shape = image(tensor(*input));
            same_codes!(value(*input), y, (x, y) => resize::resize_linear(shape, rows, columns, x, y));
        }
        (Op::InsertZeros { input, stride }, _) => insert_zeros(tensor(*input), *stride, value(*input), y),
        (Op::Select { condition, a, b }, Constants::Select([by_condition, by_a, by_b])) => {
            select([by_condition, by_a, by_b], [condition, a, b].map(|&id| value(id)), y)
        }
        (op, _) => unreachable!("{} was prepared as another operator", op.name()),
    }
    Ok(())
}

/// Joins operands along an axis, some of them rescaled.
fn concatenate<'v>(
    (inputs, axis, requants): (&[TensorId], usize, &[Option<Requant>]),
    graph: &Graph,
    output: &Tensor,
    value: impl Fn(TensorId) -> &'v Values,
    y: &mut Values,
) {
    let inner = |t: &Tensor| t.shape[axis..].iter().product::<usize>();
    let total = inner(output);
    let mut start = 0;
    for (&id, requant) in inputs.iter().zip(requants) {
        let width = inner(graph.tensor(id));
        match requant {
            None => same!(value(id), &mut *y, (x, y) => {
                movement::place(width, total, start, x, y, |code| code);
            }),
            Some(requant) => codes!(value(id), x => codes!(&mut *y, y => {
                let zero = i64::from(graph.tensor(id).zero_point());
                movement::place(width, total, start, x, y, |code| {
                    narrow(tpuflow_kernels::requant::requantize(i64::from(code.widen()) - zero, requant, 0))
                });
            })),
        }
        start += width;
    }
}

/// Pads an operand of any element type.
fn pad(shape: &[usize], [before, after]: [&[u32]; 2], mode: PadMode, x: &Values, y: &mut Values) {
    let constant = if let PadMode::Constant(code) = mode { code } else { 0 };
    let fill = if let PadMode::Value(value) = mode { value.get() } else { 0.0 };
    match (x, y) {
        (Values::I8(x), Values::I8(y)) => movement::pad(shape, before, after, mode, narrow(constant), x, y),
        (Values::I16(x), Values::I16(y)) => movement::pad(shape, before, after, mode, narrow(constant), x, y),
        (Values::I32(x), Values::I32(y)) => movement::pad(shape, before, after, mode, constant, x, y),
        (Values::I64(x), Values::I64(y)) => movement::pad(shape, before, after, mode, constant.into(), x, y),
        (Values::F16(x), Values::F16(y)) => movement::pad(shape, before, after, mode, number(fill), x, y),
        (Values::BF16(x), Values::BF16(y)) => movement::pad(shape, before, after, mode, number(fill), x, y),
        (Values::F32(x), Values::F32(y)) => movement::pad(shape, before, after, mode, number(fill), x, y),
        (x, y) => unreachable!("{} padded to {}", x.dtype().name(), y.dtype().name()),
    }
}

/// Puts zeros between the pixels of an image of any element type.
fn insert_zeros(input: &Tensor, stride: [u32; 2], x: &Values, y: &mut Values) {
    let (shape, zero) = (image(input), input.zero_point());
    match (x, y) {
        (Values::I8(x), Values::I8(y)) => movement::insert_zeros(shape, stride, narrow(zero), x, y),
        (Values::I16(x), Values::I16(y)) => movement::insert_zeros(shape, stride, narrow(zero), x, y),
        (Values::I32(x), Values::I32(y)) => movement::insert_zeros(shape, stride, zero, x, y),
        (Values::I64(x), Values::I64(y)) => movement::insert_zeros(shape, stride, zero.into(), x, y),
        (Values::F16(x), Values::F16(y)) => movement::insert_zeros(shape, stride, number(0.0), x, y),
        (Values::BF16(x), Values::BF16(y)) => movement::insert_zeros(shape, stride, number(0.0), x, y),
        (Values::F32(x), Values::F32(y)) => movement::insert_zeros(shape, stride, number(0.0), x, y),
        (x, y) => unreachable!("{} spread to {}", x.dtype().name(), y.dtype().name()),
    }
}

/// Elements of `a` where the condition holds, else of `b`.
fn select([by_condition, by_a, by_b]: [&Broadcast; 3], [condition, a, b]: [&Values; 3], y: &mut Values) {
    let Values::I8(condition) = condition else { unreachable!("conditions are int8") };
    let everywhere = vec![(); y.len()];
    let mut taken = vec![0i8; y.len()];
    by_condition.apply(condition, &everywhere, &mut taken, |c, ()| c);
    same!(b, &mut *y, (b, y) => by_b.apply(b, &everywhere, y, |b, ()| b));
    same!(a, y, (a, y) => {
        let other = y.clone();
        let chosen: Vec<_> = taken.iter().zip(other).collect();
        by_a.apply(a, &chosen, y, |a, (&taken, b)| if taken != 0 { a } else { b });
    });
}

/// Computes a linear layer and, block by block while it is at hand, the binary operator that follows: of the result, which is
/// its first operand or its second, and of `other`.
fn compute_fused<'v>(
    layer: &Layer,
    prepared: &Constants,
    (function, first, other): (&Binary, bool, &Values),
    value: impl Fn(TensorId) -> &'v Values,
    y: &mut Values,
) {
    let (Values::I8(other), Values::I8(y)) = (other, y) else { return };
    let after = |from: usize, y: &mut [i8]| {
        elementwise::binary_onto(function, &other[from..][..y.len()], first, y);
    };
    match (&layer.op, prepared) {
        (Op::Conv { input, .. }, Constants::Conv(conv)) => {
            codes!(value(*input), x => conv.run_then(x, y, &after))
        }
        (Op::MatMul { a, .. }, Constants::Product(linear)) => {
            codes!(value(*a), x => linear::multiply_then(linear, x, y, &after));
        }
        (op, _) => unreachable!("{} has no successor", op.name()),
    }
}

/// A code that is known to be in range.
fn narrow<E: Element>(code: i32) -> E {
    E::narrow(code)
}

/// The nearest element.
fn number<Y: Float>(value: f64) -> Y {
    Y::nearest(value)
}

/// Extent of the last axis; rows of nothing have one element.
pub(super) fn last(tensor: &Tensor) -> usize {
    tensor.shape.last().copied().unwrap_or(1)
}
