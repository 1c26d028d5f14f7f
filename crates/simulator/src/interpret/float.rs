//! Layers that compute in floats: operands widened to float32, one kernel, elements of the output's type.

use std::sync::Arc;

use tpuflow_ir::{Arithmetic, DType, Graph, Layer, Op, Real, Tensor, TensorId, Window};
use tpuflow_kernels::conv::Geometry;
use tpuflow_kernels::elementwise::Broadcast;
use tpuflow_kernels::float::elementwise::Quantize;
use tpuflow_kernels::float::linear::{Linear, Matrix};
use tpuflow_kernels::float::rows::LayerNorm;
use tpuflow_kernels::float::{Finisher, depthwise::Depthwise, elementwise, linear, reduce, rows, singles, window};
use tpuflow_kernels::reduce::Reduction;
use tpuflow_kernels::{Float, Values};

use super::prepare::{Mask, broadcast, image, values};

/// A float layer's constants in the form its kernel takes.
#[derive(Clone, Debug)]
pub(super) enum Constants {
    /// One packed operand per group.
    Conv { geometry: Geometry, groups: Vec<Linear> },
    /// One filter per channel.
    Depthwise { geometry: Geometry, filters: Depthwise },
    /// A product with a constant right operand.
    Product(Linear),
    /// A product of two activations: the bias and what follows.
    Dynamic { bias: Vec<f32>, finisher: Finisher },
    /// A pooling window; an average's way out.
    Pool { geometry: Geometry, finisher: Finisher },
    /// A function of two elements.
    Binary { broadcast: Broadcast, finisher: Finisher },
    /// A function of one element.
    Unary(Finisher),
    /// Slopes of negative numbers.
    Slopes { negative: Vec<f32>, finisher: Finisher },
    /// A softmax and what it leaves out.
    Softmax { mask: Mask, finisher: Finisher },
    /// A normalisation.
    Norm(LayerNorm),
    /// A reduction.
    Reduce { reduction: Reduction, divisor: f32, finisher: Finisher },
    /// Codes of floats.
    Quantize(Quantize),
    /// Floats of codes.
    Dequantize { scale: f32, finisher: Finisher },
    /// Nothing.
    Plain,
}

/// Float constants, exactly.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    singles(&values(tensor)).into_owned()
}

fn single(value: Real) -> f32 {
    value.single().expect("the shape rule admits only float32 numbers")
}

/// The layer's preparation, `None` where it does not compute in floats.
pub(super) fn prepare(graph: &Graph, layer: &Layer) -> Option<Constants> {
    let tensor = |id: TensorId| graph.tensor(id);
    let geometry = |id: TensorId, window: Window| {
        Geometry::new(image(tensor(id)), window).expect("the shape rule admits only windows that fit")
    };
    Some(match &layer.op {
        Op::Conv { input, weights, bias, window, groups, epilogue: Arithmetic::Float(finish) } => {
            let (w, bias, finisher) = (tensor(*weights), tensor(*bias).f32s(), Finisher::new(finish));
            let [o, kh, kw, channels] = image(w);
            let (geometry, elements, groups) = (geometry(*input, *window), numbers(w), *groups as usize);
            if channels == 1 && o == groups {
                return Some(Constants::Depthwise { geometry, filters: Depthwise::new(&elements, bias, finisher) });
            }
            let (k, columns) = (kh * kw * channels, o / groups);
            let group = |g: usize| {
                let matrix = Matrix { elements: &elements[g * columns * k..], shape: [k, columns], strides: [1, k] };
                Linear::new(&matrix, &bias[g * columns..][..columns], finisher.clone())
            };
            Constants::Conv { geometry, groups: (0..groups).map(group).collect() }
        }
        Op::MatMul { b, bias, epilogue: Arithmetic::Float(finish), .. } => {
            let b = tensor(*b);
            let [.., k, n] = b.shape[..] else { unreachable!("the shape rule admits only matrices") };
            let (bias, finisher) = (bias.map_or_else(Vec::new, |id| tensor(id).f32s()), Finisher::new(finish));
            if b.constant.is_some() && b.shape.len() == 2 {
                let elements = numbers(b);
                let matrix = Matrix { elements: &elements, shape: [k, n], strides: [n, 1] };
                Constants::Product(Linear::new(&matrix, &bias, finisher))
            } else {
                Constants::Dynamic { bias, finisher }
            }
        }
        Op::AveragePool { input, window, average: Arithmetic::Float(finish), .. } => {
            Constants::Pool { geometry: geometry(*input, *window), finisher: Finisher::new(finish) }
        }
        Op::Binary { a, b, requant: Arithmetic::Float(finish), .. } => {
            let broadcast = broadcast(&tensor(*a).shape, &tensor(*b).shape);
            Constants::Binary { broadcast, finisher: Finisher::new(finish) }
        }
        Op::Unary { function: Arithmetic::Float(finish), .. }
        | Op::Rescale { requant: Arithmetic::Float(finish), .. } => Constants::Unary(Finisher::new(finish)),
        Op::PRelu { slopes: Arithmetic::Float(slopes), .. } => {
            let negative = slopes.negative.iter().map(|&slope| single(slope)).collect();
            Constants::Slopes { negative, finisher: Finisher::new(&slopes.finish) }
        }
        Op::Softmax { input, exponentials: Arithmetic::Float(finish), mask, .. } => {
            let mask = Mask::new(graph, *input, *mask);
            Constants::Softmax { mask, finisher: Finisher::new(finish) }
        }
        Op::LayerNorm { gamma, beta, center, norm: Arithmetic::Float(norm), .. } => Constants::Norm(LayerNorm {
            center: *center,
            epsilon: single(norm.epsilon),
            gamma: tensor(*gamma).f32s(),
            beta: tensor(*beta).f32s(),
            finisher: Finisher::new(&norm.finish),
        }),
        Op::Reduce { input, axes, requant: Arithmetic::Float(float), .. } => Constants::Reduce {
            reduction: Reduction::new(&tensor(*input).shape, axes),
            divisor: single(float.divisor),
            finisher: Finisher::new(&float.finish),
        },
        Op::Quantize { scale, zero_point, lo, hi, .. } => {
            Constants::Quantize(Quantize { scale: single(*scale), zero_point: *zero_point, lo: *lo, hi: *hi })
        }
        Op::Dequantize { scale, finish, .. } => {
            Constants::Dequantize { scale: single(*scale), finisher: Finisher::new(finish) }
        }
        Op::MaxPool { input, window } if tensor(*input).dtype.is_float() => {
            let finisher = Finisher::new(&tpuflow_ir::Finish::default());
            Constants::Pool { geometry: geometry(*input, *window), finisher }
        }
        Op::ResizeLinear { input, .. } | Op::ArgMax { input, .. } if tensor(*input).dtype.is_float() => {
            Constants::Plain
        }
        _ => return None,
    })
}

/// Computes a layer from the tensors it reads.
pub(super) fn execute(graph: &Graph, layer: &Layer, prepared: &Constants, tensors: &[Option<Arc<Values>>]) -> Values {
    let value = |id: TensorId| -> &Values { tensors[id.index()].as_deref().expect("operands precede their readers") };
    let output = graph.tensor(layer.output);
    let mut y = Values::zeros(output.dtype, output.elements());
    match (&layer.op, prepared, &mut y) {
        (Op::Binary { kind, a, b, .. }, Constants::Binary { broadcast, .. }, Values::I8(y)) => {
            elementwise::compare(*kind, broadcast, &singles(value(*a)), &singles(value(*b)), y);
        }
        (Op::ArgMax { input, largest, select_last }, _, Values::I32(y)) => {
            let n = graph.tensor(*input).shape.last().copied().unwrap_or(1);
            elementwise::arg_max(n, *largest, *select_last, &singles(value(*input)), y);
        }
        (Op::Quantize { input, .. }, Constants::Quantize(to), y) => {
            let x = singles(value(*input));
            let codes = x.iter().map(|&x| to.at(x));
            *y = match output.dtype {
                DType::I8 => Values::I8(codes.map(|code| code as i8).collect()),
                DType::I16 => Values::I16(codes.map(|code| code as i16).collect()),
                _ => Values::I32(codes.collect()),
            };
        }
        (op, prepared, Values::F16(y)) => compute(graph, op, prepared, &value, y),
        (op, prepared, Values::BF16(y)) => compute(graph, op, prepared, &value, y),
        (op, prepared, Values::F32(y)) => compute(graph, op, prepared, &value, y),
        (op, _, y) => unreachable!("the shape rule does not let {} give {}", op.name(), y.dtype().name()),
    }
    y
}

fn compute<'v, Y: Float>(
    graph: &Graph,
    op: &Op,
    prepared: &Constants,
    value: &impl Fn(TensorId) -> &'v Values,
    y: &mut [Y],
) {
    let first = op.operands()[0];
    if let (Op::Dequantize { input, .. }, Constants::Dequantize { scale, finisher }) = (op, prepared) {
        let zero = graph.tensor(*input).zero_point();
        let real = |code: i32| tpuflow_kernels::float::elementwise::dequantize(*scale, zero, code);
        let results: Vec<f32> = match value(*input) {
            Values::I8(codes) => codes.iter().map(|&code| real(code.into())).collect(),
            Values::I16(codes) => codes.iter().map(|&code| real(code.into())).collect(),
            Values::I32(codes) => codes.iter().map(|&code| real(code)).collect(),
            other => unreachable!("the shape rule does not admit {} here", other.dtype().name()),
        };
        return finisher.apply_all(&results, y);
    }
    let x = singles(value(first));
    match (op, prepared) {
        (_, Constants::Conv { geometry, groups }) => linear::conv(geometry, &x, groups, y),
        (_, Constants::Depthwise { geometry, filters }) => filters.run(geometry, &x, y),
        (_, Constants::Product(product)) => linear::multiply(product, &x, y),
        (Op::MatMul { a, b, .. }, Constants::Dynamic { bias, finisher }) => {
            let (a, b, right) = (graph.tensor(*a), graph.tensor(*b), singles(value(*b)));
            let [.., k, n] = b.shape[..] else { unreachable!("the shape rule admits only matrices") };
            let matrices = right.len() / (k * n).max(1);
            let rows = if matrices <= 1 { y.len() / n } else { a.shape[a.shape.len() - 2] };
            for (index, y) in y.chunks_exact_mut(rows * n).enumerate() {
                let matrix = Matrix { elements: &right[index * k * n..], shape: [k, n], strides: [n, 1] };
                let product = Linear::new(&matrix, bias, finisher.clone());
                linear::multiply(&product, &x[index * rows * k..][..rows * k], y);
            }
        }
        (Op::MaxPool { .. }, Constants::Pool { geometry, .. }) => window::max_pool(geometry, &x, y),
        (Op::AveragePool { count_include_pad, beyond, .. }, Constants::Pool { geometry, finisher }) => {
            window::average_pool(geometry, *count_include_pad, *beyond, finisher, &x, y);
        }
        (Op::Binary { kind, b, .. }, Constants::Binary { broadcast, finisher }) => {
            elementwise::binary(*kind, finisher, broadcast, &x, &singles(value(*b)), y);
        }
        (_, Constants::Unary(finisher)) => finisher.apply_all(&x, y),
        (_, Constants::Slopes { negative, finisher }) => elementwise::p_relu(negative, finisher, &x, y),
        (Op::Softmax { input, .. }, Constants::Softmax { mask, finisher }) => {
            let n = graph.tensor(*input).shape.last().copied().unwrap_or(1);
            rows::softmax(n, finisher, &x, &mask.full(value), y);
        }
        (_, Constants::Norm(norm)) => norm.rows(&x, y),
        (Op::Reduce { kind, .. }, Constants::Reduce { reduction, divisor, finisher }) => {
            reduce::reduce(reduction, *kind, *divisor, finisher, &x, y);
        }
        (Op::ResizeLinear { input, rows, columns }, Constants::Plain) => {
            window::resize_linear(image(graph.tensor(*input)), rows, columns, &x, y);
        }
        (op, _) => unreachable!("{} was prepared as another operator", op.name()),
    }
}
