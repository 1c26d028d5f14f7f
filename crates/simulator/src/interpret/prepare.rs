//! Data computed once per layer: packed weights, pooling geometry, reduction order, decoded parameters.

use std::borrow::Cow;

use tpuflow_ir::{Arithmetic, DType, Epilogue, Graph, Layer, Op, Table, Tensor, TensorId, Window};
use tpuflow_kernels::Values;
use tpuflow_kernels::conv::{Conv, Geometry};
use tpuflow_kernels::depthwise::Depthwise;
use tpuflow_kernels::elementwise::Broadcast;
use tpuflow_kernels::epilogue;
use tpuflow_kernels::gemm::nibbles::Nibbles;
use tpuflow_kernels::gemm::unpacked::FEW;
use tpuflow_kernels::linear::{Linear, Matrix};
use tpuflow_kernels::normalize::LayerNorm;
use tpuflow_kernels::pages::Addresses;
use tpuflow_kernels::pool::{self, Average};
use tpuflow_kernels::reduce::Reduction;
use tpuflow_kernels::table::Lookup;

use super::float;
use super::narrow::{Narrow, narrow};
use super::products::Products;
use crate::SimError;
use crate::error::LayerError;

/// A layer's constants in the form its kernel takes.
#[derive(Clone, Debug)]
pub(super) enum Constants {
    /// A convolution in groups.
    Conv(Conv),
    /// One filter per channel.
    Depthwise { geometry: Geometry, filters: Depthwise },
    /// A product with a constant right operand.
    Product(Linear),
    /// Products of two activations.
    Products(Products),
    /// A pooling window.
    Pool(Geometry),
    /// A binary operator.
    Binary(Broadcast),
    /// A selection: how its operands broadcast to the output, condition first.
    Select([Broadcast; 3]),
    /// A table.
    Table(Lookup),
    /// What a softmax leaves out.
    Mask(Mask),
    /// A normalisation.
    Norm(LayerNorm),
    /// A reduction.
    Reduce(Reduction),
    /// Whatever computes in floats.
    Float(float::Constants),
    /// Nothing.
    Plain,
}

impl Constants {
    /// Where the weights lie that are read once a run.
    pub(super) fn memory(&self) -> Vec<Addresses> {
        match self {
            Self::Conv(conv) => conv.memory().collect(),
            Self::Product(linear) => vec![linear.memory()],
            _ => vec![],
        }
    }
}

/// Constants the kernel reads as ordinary operands, beside activations.
pub(super) fn reads(layer: &Layer, prepared: &Constants) -> Vec<TensorId> {
    match (&layer.op, prepared) {
        (
            Op::Conv { input, .. }
            | Op::Unary { input, .. }
            | Op::LayerNorm { input, .. }
            | Op::Softmax { input, .. }
            | Op::SoftmaxStatistics { input, .. },
            _,
        ) => {
            vec![*input]
        }
        (Op::MatMul { a, .. }, Constants::Product(_)) => vec![*a],
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

/// A table for codes of `bits` bits.
fn lookup(graph: &Graph, table: &Table, bits: u32) -> Lookup {
    Lookup::new(graph.tensor(table.entries).i32s(), bits, table.lo, table.hi)
        .expect("the shape rule admits only tables")
}

/// The epilogue of the sums; biases that follow them are taken from `bias`.
fn epilogue(graph: &Graph, epilogue: &Epilogue, bias: &mut [i64]) -> epilogue::Epilogue {
    let table = epilogue.table.as_ref().map(|t| lookup(graph, t, 16));
    epilogue::Epilogue::new(epilogue.requant.clone(), table).with_first_shift(epilogue.first_shift, bias)
}

/// A product of rows `a` and a constant `b`.
fn linear([a, b]: [&Tensor; 2], bias: &[i64], out: epilogue::Epilogue) -> Linear {
    let [k, n] = b.shape[..] else { unreachable!("the caller has looked") };
    let is_few = a.dtype == DType::I8 && b.zero_point() == 0 && (1..=FEW * k).contains(&a.elements());
    if let Some(packed) = b.packed.as_ref().filter(|packed| is_few && Nibbles::has_kernel(out.isa(), packed)) {
        return Linear::of_nibbles(Nibbles::new(out.isa(), packed, [k, n]), a.zero_point(), bias, out);
    }
    let (codes, zero_point) = (&values(b), b.zero_point());
    let matrix = Matrix { codes, start: 0, shape: [k, n], strides: [n, 1], zero_point };
    Linear::new(&matrix, a.dtype == DType::I16, a.zero_point(), bias, out)
}

/// A convolution as its kernel takes it.
struct Convolution<'a> {
    geometry: Geometry,
    x: &'a Tensor,
    w: &'a Tensor,
    groups: usize,
    bias: Vec<i64>,
    epilogue: epilogue::Epilogue,
}

impl Convolution<'_> {
    fn choose_kernel(self) -> Constants {
        let [o, _, _, channels] = image(self.w);
        if channels == 1 && o == self.groups { self.depthwise() } else { self.grouped() }
    }

    fn depthwise(self) -> Constants {
        let wide = self.x.dtype == DType::I16 || self.w.dtype == DType::I16;
        let (zero_w, zero_x) = (self.w.zero_point(), self.x.zero_point());
        let kernel = self.geometry.window.kernel;
        let filters = match values(self.w) {
            Values::I8(codes) => Depthwise::new(&codes, kernel, zero_w, wide, zero_x, self.bias, self.epilogue),
            Values::I16(codes) => Depthwise::new(&codes, kernel, zero_w, wide, zero_x, self.bias, self.epilogue),
            other => unreachable!("the shape rule does not admit {} here", other.dtype().name()),
        };
        Constants::Depthwise { geometry: self.geometry, filters }
    }

    fn grouped(self) -> Constants {
        let [o, kh, kw, channels] = image(self.w);
        let (k, columns) = (kh * kw * channels, o / self.groups);
        let codes = values(self.w);
        let group = |g: usize, runs: usize| {
            let taken = g * columns..(g + 1) * columns;
            let matrix = Matrix {
                codes: &codes,
                start: taken.start * k,
                shape: [k, columns],
                strides: [1, k],
                zero_point: self.w.zero_point(),
            };
            let (wide, bias, out) =
                (self.x.dtype == DType::I16, &self.bias[taken.clone()], self.epilogue.columns(taken));
            Linear::in_runs(&matrix, runs, wide, self.x.zero_point(), bias, out)
        };
        Constants::Conv(Conv::new(self.geometry, self.groups, self.x.zero_point(), group))
    }
}

pub(super) fn prepare(graph: &Graph, layer: &Layer) -> Result<Constants, SimError> {
    let tensor = |id: TensorId| graph.tensor(id);
    if let Some(prepared) = float::prepare(graph, layer) {
        return Ok(Constants::Float(prepared));
    }
    let geometry = |id: TensorId, window: Window| {
        Geometry::new(image(tensor(id)), window).expect("the shape rule admits only windows that fit")
    };
    Ok(match &layer.op {
        Op::Conv { input, weights, bias, window, groups, epilogue: Arithmetic::Fixed(out) } => {
            let mut bias = tensor(*bias).integers();
            let epilogue = epilogue(graph, out, &mut bias);
            let (x, w, groups) = (tensor(*input), tensor(*weights), *groups as usize);
            if let Some(Narrow { weights, window, outputs }) = narrow(graph, layer) {
                bias.truncate(outputs);
                let (geometry, epilogue) = (geometry(*input, window), epilogue.columns(0..outputs));
                return Ok(Convolution { geometry, x, w: &weights, groups, bias, epilogue }.choose_kernel());
            }
            Convolution { geometry: geometry(*input, *window), x, w, groups, bias, epilogue }.choose_kernel()
        }
        Op::MatMul { partial: true, .. } => Constants::Plain,
        Op::MatMul { a, b, bias, epilogue: Arithmetic::Fixed(out), .. } => {
            let ids = [*a, *b];
            let (a, b) = (tensor(*a), tensor(*b));
            let mut bias = bias.map_or_else(Vec::new, |id| tensor(id).integers());
            let out = epilogue(graph, out, &mut bias);
            if b.constant.is_none() || b.shape.len() != 2 {
                return Ok(Constants::Products(Products::new(graph, ids, bias, out)));
            }
            Constants::Product(linear([a, b], &bias, out))
        }
        Op::MaxPool { input, window } => Constants::Pool(geometry(*input, *window)),
        Op::AveragePool { input, window, count_include_pad, beyond, average: Arithmetic::Fixed(fixed) } => {
            let geometry = geometry(*input, *window);
            let average = Average {
                count_include_pad: *count_include_pad,
                beyond: *beyond,
                divisors: &fixed.divisors,
                input_zero_point: 0,
                zero_point: 0,
                lo: 0,
                hi: 0,
            };
            if let Some((pixel, area)) = pool::missing_divisor(&geometry, &average) {
                let reason = LayerError::Divisor { area, pixel };
                return Err(SimError::Layer { layer: layer.name.clone(), reason });
            }
            Constants::Pool(geometry)
        }
        Op::Binary { a, b, .. } => Constants::Binary(broadcast(&tensor(*a).shape, &tensor(*b).shape)),
        Op::Select { condition, a, b } => {
            let shapes = [*condition, *a, *b].map(|id| &tensor(id).shape);
            let result = shapes.into_iter().fold(Vec::new(), |all, shape| {
                tpuflow_ir::shape::broadcast(&all, shape).expect("the shape rule admits only shapes that broadcast")
            });
            Constants::Select(shapes.map(|shape| broadcast(shape, &result)))
        }
        Op::Unary { input, function: Arithmetic::Fixed(table) } => {
            Constants::Table(lookup(graph, table, tensor(*input).dtype.bits()))
        }
        Op::Softmax { input, mask, .. } | Op::SoftmaxStatistics { input, mask, .. } => {
            Constants::Mask(Mask::new(graph, *input, *mask))
        }
        Op::LayerNorm { input, gamma, beta, center, norm: Arithmetic::Fixed(norm) } => Constants::Norm(LayerNorm {
            center: *center,
            input_zero_point: tensor(*input).zero_point(),
            epsilon: norm.epsilon,
            multiplier: norm.multiplier,
            shift: norm.shift,
            gamma: tensor(*gamma).integers().into_iter().map(|g| g as i32).collect(),
            beta: tensor(*beta).integers(),
            requant: norm.requant.clone(),
        }),
        Op::Reduce { input, axes, .. } => Constants::Reduce(Reduction::new(&tensor(*input).shape, axes)),
        _ => Constants::Plain,
    })
}

/// The mask of a softmax.
#[derive(Clone, Debug)]
pub(super) enum Mask {
    /// A constant, with one entry per element of the operand; empty where there is no mask.
    Constant(Vec<i8>),
    /// A tensor that is computed, how it broadcasts to the operand, and the operand's elements.
    Computed(TensorId, Broadcast, usize),
}

impl Mask {
    pub(super) fn new(graph: &Graph, input: TensorId, mask: Option<TensorId>) -> Self {
        let Some(id) = mask else { return Self::Constant(vec![]) };
        let (mask, input) = (graph.tensor(id), graph.tensor(input));
        let (broadcast, count) = (broadcast(&mask.shape, &input.shape), input.elements());
        if mask.constant.is_none() {
            return Self::Computed(id, broadcast, count);
        }
        Self::Constant(spread(&broadcast, &mask.i8s(), count))
    }

    /// One entry per element of the operand, or nothing.
    pub(super) fn full<'v>(&self, value: impl Fn(TensorId) -> &'v Values) -> Cow<'_, [i8]> {
        match self {
            Self::Constant(full) => Cow::Borrowed(full),
            Self::Computed(id, broadcast, count) => match value(*id) {
                Values::I8(codes) => Cow::Owned(spread(broadcast, codes, *count)),
                _ => unreachable!("the shape rule admits only int8"),
            },
        }
    }
}

fn spread(broadcast: &Broadcast, codes: &[i8], count: usize) -> Vec<i8> {
    let mut full = vec![0; count];
    broadcast.apply(codes, &vec![(); count], &mut full, |mask, ()| mask);
    full
}

pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Broadcast {
    Broadcast::new(a, b).expect("the shape rule admits only shapes that broadcast")
}
