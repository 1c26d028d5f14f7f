//! Every operator alone, on activations of any type.

use tpuflow_ir::op::PadMode;
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{BinaryKind, DType, Graph, Op, ReduceKind, TableEntry, TensorId, Window};

use super::{Net, window};

type Make = fn(&mut Net, TensorId) -> TensorId;

/// Operators of all types: name and what it adds to an input `[2, 5, 6, 10]`.
pub const OPERATORS: &[(&str, Make)] = &[
    ("conv", |net, x| net.conv(x, 12, window(3, 1, 1), 1)),
    ("conv strided", |net, x| net.conv(x, 7, window(3, 2, 1), 1)),
    ("conv dilated", |net, x| {
        let window = Window { kernel: [2, 3], stride: [1, 1], dilation: [2, 2], pads: [0, 2, 1, 0] };
        net.conv(x, 17, window, 1)
    }),
    ("conv grouped", |net, x| net.conv(x, 6, window(3, 1, 1), 2)),
    ("conv pointwise", |net, x| net.conv(x, 40, window(1, 1, 0), 1)),
    ("depthwise", |net, x| net.conv(x, 10, window(3, 1, 1), 10)),
    ("transposed conv", |net, x| {
        let y = net.insert_zeros(x, [2, 2]);
        net.conv(y, 4, window(3, 1, 2), 1)
    }),
    ("matmul", |net, x| net.matmul(x, 9)),
    ("product", |net, x| {
        let y = net.transpose(x, &[0, 1, 3, 2]);
        net.product(x, y)
    }),
    ("attention", |net, x| {
        let y = net.transpose(x, &[0, 1, 3, 2]);
        let scores = net.product(x, y);
        let weights = net.softmax(scores, true);
        net.product(weights, x)
    }),
    ("max_pool", |net, x| net.max_pool(x, window(3, 2, 1))),
    ("average_pool", |net, x| net.average_pool(x, window(3, 2, 1), false)),
    ("average_pool with padding", |net, x| net.average_pool(x, window(2, 1, 1), true)),
    ("add", |net, x| binary(net, x, BinaryKind::Add)),
    ("sub", |net, x| binary(net, x, BinaryKind::Sub)),
    ("mul", |net, x| binary(net, x, BinaryKind::Mul)),
    ("div", |net, x| binary(net, x, BinaryKind::Div)),
    ("max", |net, x| binary(net, x, BinaryKind::Max)),
    ("min", |net, x| binary(net, x, BinaryKind::Min)),
    ("broadcast", |net, x| {
        let y = net.reduce(x, ReduceKind::Sum, &[1, 3], true);
        net.binary(BinaryKind::Add, x, y)
    }),
    ("less", |net, x| chosen(net, x, BinaryKind::Less)),
    ("less_or_equal", |net, x| chosen(net, x, BinaryKind::LessOrEqual)),
    ("equal", |net, x| chosen(net, x, BinaryKind::Equal)),
    ("not_equal", |net, x| chosen(net, x, BinaryKind::NotEqual)),
    ("unary", |net, x| net.unary(x)),
    ("rescale", |net, x| net.rescale(x)),
    ("p_relu", |net, x| net.prelu(x)),
    ("softmax", |net, x| net.softmax(x, false)),
    ("masked softmax", |net, x| net.softmax(x, true)),
    ("layer_norm", |net, x| net.layer_norm(x, true)),
    ("rms_norm", |net, x| net.layer_norm(x, false)),
    ("sum", |net, x| net.reduce(x, ReduceKind::Sum, &[1, 2], true)),
    ("largest", |net, x| net.reduce(x, ReduceKind::Max, &[3], false)),
    ("smallest", |net, x| net.reduce(x, ReduceKind::Min, &[0, 2], false)),
    ("sum_abs", |net, x| net.reduce(x, ReduceKind::SumAbs, &[2, 3], true)),
    ("sum_square", |net, x| net.reduce(x, ReduceKind::SumSquare, &[1], true)),
    ("norm", |net, x| net.reduce(x, ReduceKind::Norm, &[0, 1, 2, 3], false)),
    ("arg_max", |net, x| net.arg_max(x, true)),
    ("concat", |net, x| {
        let y = net.slice(x, 3, 2, 3);
        let z = net.rescale(x);
        net.concat(&[x, y, z], 3, 1)
    }),
    ("concat of rows", |net, x| net.concat(&[x, x], 1, 0)),
    ("concat of rows of two types", |net, x| {
        let rows = net.reshape(x, &[1, 10, 6, 10]);
        net.wide = !net.wide;
        let other = net.rescale(rows);
        net.wide = !net.wide;
        let own = net.rescale(rows);
        net.concat(&[other, own], 1, usize::MAX)
    }),
    ("concat of first rows", |net, x| {
        // Pixels without anything free between them, of which the first rows alone are joined.
        let full = net.reshape(x, &[1, 150, 1, 4]);
        let made = net.rescale(full);
        let first = net.slice(made, 1, 0, 80);
        let next = net.slice(made, 1, 40, 80);
        net.concat(&[first, next], 1, usize::MAX)
    }),
    ("concat of first rows in other pixels", |net, x| {
        let full = net.reshape(x, &[1, 75, 1, 8]);
        let made = net.rescale(full);
        let mut joined = vec![];
        for start in [0, 160] {
            let dims = vec![320];
            let op = Op::Rearrange { input: made, dims, strides: vec![1], offset: start };
            joined.push(net.rearrange(made, op, &[1, 20, 1, 16]));
        }
        net.concat(&joined, 1, usize::MAX)
    }),
    ("pad", |net, x| net.pad(x, &[0, 1, 2, 0], &[0, 0, 1, 3], PadMode::Constant(5))),
    ("reflect", |net, x| net.pad(x, &[0, 2, 1, 0], &[1, 0, 3, 0], PadMode::Reflect)),
    ("edge", |net, x| net.pad(x, &[1, 0, 2, 0], &[0, 3, 0, 1], PadMode::Edge)),
    ("transpose", |net, x| net.transpose(x, &[3, 1, 0, 2])),
    ("reshape", |net, x| net.reshape(x, &[6, 100])),
    ("slice", |net, x| net.slice(x, 2, 1, 4)),
    ("gather", |net, x| net.gather(x, 1, &[4, 0, 0, 3])),
    ("embedding", |net, _| net.embedding(11, 13, &[2, 3])),
    ("resize", |net, x| net.resize(x, 9, 11)),
    ("insert_zeros", |net, x| net.insert_zeros(x, [3, 2])),
    ("select", |net, x| {
        let y = net.constant_like(x, &[5, 1, 10]);
        net.choose(&[6, 10], x, y)
    }),
    ("softmax with a computed mask", |net, x| {
        let mask = truths(net, x, &[5, 6, 1]);
        net.softmax_by(x, Some(mask))
    }),
    ("softmax with a computed mask for all rows", |net, x| {
        let row = net.slice(x, 1, 2, 1);
        let mask = truths(net, row, &[1, 10]);
        net.softmax_by(x, Some(mask))
    }),
    ("embedding of columns", |net, _| {
        let table = net.packed_constant([40, 19], 32, CodeKind::ZeroPoints);
        net.packed_embedding(table, &[2, 3], TableEntry::Column)
    }),
    ("embedding of groups of rows", |net, _| {
        let table = net.packed_constant([160, 9], 16, CodeKind::Symmetric);
        net.packed_embedding(table, &[2, 3], TableEntry::Rows(32))
    }),
];

/// Truth values that are computed of a tensor.
fn truths(net: &mut Net, x: TensorId, shape: &[usize]) -> TensorId {
    let y = net.constant_like(x, shape);
    if net.float.is_some() { net.binary(BinaryKind::Less, x, y) } else { net.compare(BinaryKind::Less, x, y) }
}

fn binary(net: &mut Net, x: TensorId, kind: BinaryKind) -> TensorId {
    let y = net.constant_like(x, &[6, 10]);
    net.binary(kind, x, y)
}

fn chosen(net: &mut Net, x: TensorId, kind: BinaryKind) -> TensorId {
    let y = net.constant_like(x, &[5, 1, 10]);
    let condition = if net.float.is_some() { net.binary(kind, x, y) } else { net.compare(kind, x, y) };
    net.choose_by(condition, x, y)
}

/// Element types of activations.
pub const TYPES: [DType; 5] = [DType::I8, DType::I16, DType::F16, DType::BF16, DType::F32];

/// The operator alone between an input and an output.
pub fn alone(make: Make, dtype: DType, seed: u64) -> Graph {
    let mut net = Net::new(seed);
    net.wide = dtype == DType::I16;
    net.float = dtype.is_float().then_some(dtype);
    let x = net.input(&[2, 5, 6, 10]);
    let y = make(&mut net, x);
    net.finish(&[y])
}

/// From any type to any other and back.
pub fn cast(from: DType, to: DType) -> Graph {
    let mut net = Net::new(7);
    net.float = Some(from);
    let x = net.input(&[3, 4, 5]);
    let codes = net.quantize(x, to);
    let y = net.dequantize(codes, DType::F32);
    net.finish(&[codes, y])
}
