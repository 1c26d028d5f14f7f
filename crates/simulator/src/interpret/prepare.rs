//! What is computed once per layer: packed weights, pooling geometry, reduction order, decoded parameters.

use tpuflow_ir::{DType, Epilogue, Graph, Layer, Op, Tensor, TensorId, Window};
use tpuflow_kernels::Values;
use tpuflow_kernels::conv::Geometry;
use tpuflow_kernels::elementwise::Broadcast;
use tpuflow_kernels::linear::{self, Linear, Matrix};
use tpuflow_kernels::normalize::LayerNorm;
use tpuflow_kernels::pool::{self, Average};
use tpuflow_kernels::reduce::Reduction;

use crate::SimError;

/// A layer's constants in the form its kernel takes.
#[derive(Clone, Debug)]
pub(super) enum Prepared {
    /// One packed operand per group.
    Conv { geometry: Geometry, groups: Vec<Linear> },
    /// A product with a constant right operand.
    Product(Linear),
    /// A product of two activations: the bias and what follows.
    Dynamic { bias: Vec<i64>, epilogue: linear::Epilogue },
    /// A pooling window.
    Pool(Geometry),
    /// A binary operator.
    Binary(Broadcast),
    /// A selection: how its operands broadcast to the output, condition first.
    Select([Broadcast; 3]),
    /// Entries of a table.
    Table(Vec<i32>),
    /// A mask, one entry per element of the operand, or empty.
    Mask(Vec<i8>),
    /// A normalisation.
    Norm(LayerNorm),
    /// A reduction.
    Reduce(Reduction),
    /// Nothing.
    Plain,
}

/// Constants the kernel reads as ordinary operands, beside activations.
pub(super) fn reads(layer: &Layer, prepared: &Prepared) -> Vec<TensorId> {
    match (&layer.op, prepared) {
        (
            Op::Conv { input, .. } | Op::Unary { input, .. } | Op::LayerNorm { input, .. } | Op::Softmax { input, .. },
            _,
        ) => {
            vec![*input]
        }
        (Op::MatMul { a, .. }, Prepared::Product(_)) => vec![*a],
        (Op::MatMul { a, b, .. }, _) => vec![*a, *b],
        (op, _) => op.operands(),
    }
}

pub(super) fn values(tensor: &Tensor) -> Values {
    Values::from_le_bytes(tensor.dtype, tensor.constant.as_deref().unwrap_or_default())
}

pub(super) fn image(tensor: &Tensor) -> [usize; 4] {
    let [n, h, w, c] = tensor.shape[..] else { unreachable!("the shape rule admits only rank 4 here") };
    [n, h, w, c]
}

fn epilogue(graph: &Graph, epilogue: &Epilogue) -> linear::Epilogue {
    let table = epilogue.table.as_ref().map(|t| (graph.tensor(t.entries).i32s(), t.lo, t.hi));
    linear::Epilogue::new(epilogue.requant.clone(), table)
}

pub(super) fn prepare(graph: &Graph, layer: &Layer) -> Result<Prepared, SimError> {
    let tensor = |id: TensorId| graph.tensor(id);
    let geometry = |id: TensorId, window: Window| {
        Geometry::new(image(tensor(id)), window).expect("the shape rule admits only windows that fit")
    };
    Ok(match &layer.op {
        Op::Conv { input, weights, bias, window, groups, epilogue: out } => {
            let (x, w) = (tensor(*input), tensor(*weights));
            let groups = *groups as usize;
            let [o, kh, kw, channels] = image(w);
            let (k, columns) = (kh * kw * channels, o / groups);
            let (codes, bias, out) = (values(w), tensor(*bias).integers(), epilogue(graph, out));
            let group = |g: usize| {
                let taken = g * columns..(g + 1) * columns;
                let matrix = Matrix {
                    codes: &codes,
                    start: taken.start * k,
                    shape: [k, columns],
                    strides: [1, k],
                    zero_point: w.zero_point(),
                };
                Linear::new(&matrix, x.dtype == DType::I16, x.zero_point(), &bias[taken.clone()], out.columns(taken))
            };
            Prepared::Conv { geometry: geometry(*input, *window), groups: (0..groups).map(group).collect() }
        }
        Op::MatMul { a, b, bias, epilogue: out } => {
            let (a, b) = (tensor(*a), tensor(*b));
            let bias = bias.map_or_else(Vec::new, |id| tensor(id).integers());
            let out = epilogue(graph, out);
            if b.constant.is_some() && b.shape.len() == 2 {
                let [k, n] = [b.shape[0], b.shape[1]];
                let matrix =
                    Matrix { codes: &values(b), start: 0, shape: [k, n], strides: [n, 1], zero_point: b.zero_point() };
                Prepared::Product(Linear::new(&matrix, a.dtype == DType::I16, a.zero_point(), &bias, out))
            } else {
                Prepared::Dynamic { bias, epilogue: out }
            }
        }
        Op::MaxPool { input, window } => Prepared::Pool(geometry(*input, *window)),
        Op::AveragePool { input, window, count_include_pad, beyond, divisors, .. } => {
            let geometry = geometry(*input, *window);
            let average = Average {
                count_include_pad: *count_include_pad,
                beyond: *beyond,
                divisors,
                input_zero_point: 0,
                zero_point: 0,
                lo: 0,
                hi: 0,
            };
            if let Some((pixel, area)) = pool::missing_divisor(&geometry, &average) {
                let reason = format!("no divisor for the {area} cells of output {pixel}");
                return Err(SimError::Layer { layer: layer.name.clone(), reason });
            }
            Prepared::Pool(geometry)
        }
        Op::Binary { a, b, .. } => Prepared::Binary(broadcast(&tensor(*a).shape, &tensor(*b).shape)),
        Op::Select { condition, a, b } => {
            let shapes = [*condition, *a, *b].map(|id| &tensor(id).shape);
            let result = shapes.into_iter().fold(Vec::new(), |all, shape| {
                tpuflow_ir::shape::broadcast(&all, shape).expect("the shape rule admits only shapes that broadcast")
            });
            Prepared::Select(shapes.map(|shape| broadcast(shape, &result)))
        }
        Op::Unary { table, .. } => Prepared::Table(tensor(table.entries).i32s()),
        Op::Softmax { input, mask, .. } => {
            let mask = mask.map_or_else(Vec::new, |id| {
                let (mask, shape) = (tensor(id), &tensor(*input).shape);
                let mut full = vec![0i8; tensor(*input).elements()];
                let codes = mask.i8s();
                broadcast(&mask.shape, shape).apply(&codes, &vec![(); full.len()], &mut full, |m, ()| m);
                full
            });
            Prepared::Mask(mask)
        }
        Op::LayerNorm { input, gamma, beta, center, epsilon, multiplier, shift, requant } => {
            Prepared::Norm(LayerNorm {
                center: *center,
                input_zero_point: tensor(*input).zero_point(),
                epsilon: *epsilon,
                multiplier: *multiplier,
                shift: *shift,
                gamma: tensor(*gamma).integers().into_iter().map(|g| g as i32).collect(),
                beta: tensor(*beta).integers(),
                requant: requant.clone(),
            })
        }
        Op::Reduce { input, axes, .. } => Prepared::Reduce(Reduction::new(&tensor(*input).shape, axes)),
        _ => Prepared::Plain,
    })
}

fn broadcast(a: &[usize], b: &[usize]) -> Broadcast {
    Broadcast::new(a, b).expect("the shape rule admits only shapes that broadcast")
}
