//! Random networks of any form: every operator on tensors of any rank, degenerate extents, long rows, broadcasts over
//! separate axes, inputs and constants as outputs.

use tpuflow_ir::op::PadMode;
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{BinaryKind, DType, Graph, Op, ReduceKind, TableEntry, TensorId, Window};

use super::{Net, window};

/// A random network of `length` layers whose tensors hold at most `most` elements.
pub fn wild(seed: u64, length: usize, most: usize) -> Graph {
    of_type(seed, length, most, None)
}

/// The same on floats.
pub fn wild_floats(seed: u64, length: usize, most: usize) -> Graph {
    let dtype = [DType::F16, DType::BF16, DType::F32][seed as usize % 3];
    of_type(seed, length, most, Some(dtype))
}

fn of_type(seed: u64, length: usize, most: usize, float: Option<DType>) -> Graph {
    let mut net = Net::new(seed);
    net.wide = net.random.chance(30);
    net.float = float;
    net.mix(seed);
    let mut open = Vec::new();
    for _ in 0..1 + net.random.below(2) {
        let shape = any_shape(&mut net, most);
        open.push(net.input(&shape));
    }
    let mut outputs = Vec::new();
    for _ in 0..length {
        let x = open[net.random.below(open.len())];
        net.draw_type();
        if let Some(y) = layer(&mut net, x, &open, &mut outputs, most) {
            open.push(y);
        }
    }
    outputs.push(open[open.len() - 1]);
    if net.random.chance(30) {
        outputs.push(open[net.random.below(open.len())]);
    }
    if net.random.chance(5) {
        let dtype = net.activation();
        outputs.push(net.constant(&[3, 5], dtype, -100, 100));
    }
    net.finish(&outputs)
}

/// The graph with other shapes of as many elements for some results, as where a reshape became part of the layer before it.
pub fn reshaped(mut graph: Graph, seed: u64) -> Graph {
    let mut net = Net::new(seed);
    let outputs: Vec<TensorId> = graph.layers.iter().map(|layer| layer.output).collect();
    for output in outputs {
        let shape = graph.tensor(output).shape.clone();
        let other = match net.random.below(4) {
            0 => [&[1], &shape[..]].concat(),
            1 if shape.first() == Some(&1) => shape[1..].to_vec(),
            2 => factors(&mut net, product(&shape)),
            _ => continue,
        };
        graph.tensors[output.index()].shape = other;
        // The operator, or layers that read the result, may depend on its shape.
        if !graph.verify().is_empty() {
            graph.tensors[output.index()].shape = shape;
        }
    }
    graph
}

fn product(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn any_shape(net: &mut Net, most: usize) -> Vec<usize> {
    let rank = [0, 1, 2, 3, 4, 4, 4, 4, 5, 6][net.random.below(10)];
    let mut shape = vec![1; rank];
    let mut left = 1 + net.random.below(most);
    for _ in 0..rank {
        let axis = net.random.below(rank);
        if shape[axis] == 1 {
            let extent = if net.random.chance(20) { left } else { left.min(30) };
            shape[axis] = 1 + net.random.below(extent);
            left /= shape[axis];
        }
    }
    shape
}

/// Extents whose product is `n`.
fn factors(net: &mut Net, n: usize) -> Vec<usize> {
    let rank = 1 + net.random.below(6);
    let mut shape = vec![1; rank];
    let mut rest = n;
    for prime in 2..=n {
        while rest.is_multiple_of(prime) {
            rest /= prime;
            let axis = net.random.below(rank);
            shape[axis] *= prime;
        }
        if rest == 1 {
            break;
        }
    }
    shape
}

fn some_axes(net: &mut Net, rank: usize) -> Vec<u32> {
    let mut axes: Vec<u32> = (0..rank as u32).filter(|_| net.random.chance(50)).collect();
    if axes.is_empty() {
        axes.push(net.random.below(rank) as u32);
    }
    axes
}

fn any_window(net: &mut Net, s: &[usize]) -> Option<Window> {
    let mut draw = |from: u32, to: u32| net.random.range(i64::from(from), i64::from(to)) as u32;
    let kernel = [draw(1, 4), draw(1, 4)];
    let window = Window {
        kernel,
        stride: [draw(1, 3), draw(1, 3)],
        dilation: [draw(1, 2), draw(1, 2)],
        pads: [draw(0, kernel[0] - 1), draw(0, kernel[1] - 1), draw(0, kernel[0] - 1), draw(0, kernel[1] - 1)],
    };
    window.output(s[1], s[2]).map(|_| window)
}

/// A shape that broadcasts against `s`: some extents one, some leading axes missing.
fn narrow(net: &mut Net, s: &[usize]) -> Vec<usize> {
    let start = if s.is_empty() { 0 } else { net.random.below(s.len() + 1) };
    s[start..].iter().map(|&n| if net.random.chance(50) { 1 } else { n }).collect()
}

fn layer(net: &mut Net, x: TensorId, open: &[TensorId], sinks: &mut Vec<TensorId>, most: usize) -> Option<TensorId> {
    let s = net.shape(x);
    let rank = s.len();
    let elements = product(&s);
    let widths = [1, 2, 3, 5, 8, 9, 16, 17, 31, 40, 65];
    let width = widths[net.random.below(widths.len())];
    let room = |shape: &[usize]| product(shape) <= 2 * most;
    let dtype = net.activation();
    Some(match net.random.below(27) {
        0..=2 if rank == 4 => {
            let window = any_window(net, &s)?;
            let [h, w] = window.output(s[1], s[2])?;
            let divisors: Vec<usize> = (1..=s[3]).filter(|&g| s[3].is_multiple_of(g)).collect();
            let groups = if net.random.chance(60) { 1 } else { divisors[net.random.below(divisors.len())] };
            let out = if net.random.chance(50) && groups > 1 { s[3] } else { groups * width.min(1 + 64 / groups) };
            room(&[s[0], h, w, out]).then(|| net.conv(x, out, window, groups))?
        }
        3 if rank == 4 => {
            let window = any_window(net, &s)?;
            net.max_pool(x, window)
        }
        4 if rank == 4 => {
            let (window, include) = (any_window(net, &s)?, net.random.chance(50));
            net.average_pool(x, window, include)
        }
        5 | 6 if rank >= 2 => {
            let rows = elements / s[rank - 1];
            room(&[rows, width]).then(|| net.matmul(x, width))?
        }
        7 | 8 if rank >= 2 => {
            // Attention-like: with its own transpose, leading axes and all.
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank - 1, rank - 2);
            let mut out = s.clone();
            out[rank - 1] = s[rank - 2];
            if !room(&out) {
                return None;
            }
            let y = net.transpose(x, &order);
            let product = net.product(x, y);
            if net.random.chance(50) {
                let attention = net.softmax(product, true);
                net.product(attention, x)
            } else {
                product
            }
        }
        9 => {
            let kinds = [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Max, BinaryKind::Div];
            let same: Vec<TensorId> = open
                .iter()
                .copied()
                .filter(|&t| tpuflow_ir::shape::broadcast(&net.shape(t), &s).is_some_and(|s| room(&s)))
                .collect();
            if same.is_empty() {
                return None;
            }
            let (kind, y) = (kinds[net.random.below(5)], same[net.random.below(same.len())]);
            if net.random.chance(50) { net.binary(kind, x, y) } else { net.binary(kind, y, x) }
        }
        10 | 11 => {
            let shape = narrow(net, &s);
            let y = net.constant(&shape, dtype, -100, 100);
            if net.random.chance(50) { net.binary(BinaryKind::Add, x, y) } else { net.binary(BinaryKind::Sub, y, x) }
        }
        12 => {
            // A reduction put back by broadcasting: a run-time operand narrow along separate axes.
            if rank == 0 {
                return None;
            }
            let axes = some_axes(net, rank);
            let y = net.reduce(x, ReduceKind::Sum, &axes, true);
            net.binary(BinaryKind::Mul, x, y)
        }
        13 if net.float.is_some() && net.random.chance(60) => {
            // Codes and conditions on the way.
            if net.random.chance(50) {
                let to = [DType::I8, DType::I16, DType::I32][net.random.below(3)];
                let codes = net.quantize(x, to);
                net.dequantize(codes, dtype)
            } else {
                let kinds = [BinaryKind::Less, BinaryKind::LessOrEqual, BinaryKind::Equal, BinaryKind::NotEqual];
                let shape = narrow(net, &s);
                let other = net.constant_like(x, &shape);
                let kind = kinds[net.random.below(4)];
                let condition = net.binary(kind, x, other);
                net.choose_by(condition, x, other)
            }
        }
        13 => match net.random.below(3) {
            0 => net.unary(x),
            1 => net.rescale(x),
            _ if rank > 0 => net.prelu(x),
            _ => return None,
        },
        14 if rank > 0 => {
            let masked = net.random.chance(50);
            net.softmax(x, masked)
        }
        15 if rank > 0 => {
            let center = net.random.chance(50);
            net.layer_norm(x, center)
        }
        16 | 17 if rank > 0 => {
            use ReduceKind::{Max, Min, Norm, Sum, SumAbs, SumSquare};
            let (axes, keep) = (some_axes(net, rank), net.random.chance(50));
            let kind = [Sum, Max, Min, Norm, SumAbs, SumSquare][net.random.below(6)];
            net.reduce(x, kind, &axes, keep)
        }
        18 if rank > 0 => {
            let keep = net.random.chance(50);
            sinks.push(net.arg_max(x, keep));
            return None;
        }
        19 if rank > 0 => {
            let axis = net.random.below(rank);
            let fits = |t: &&TensorId| {
                let other = net.shape(**t);
                other.len() == rank && (0..rank).all(|i| i == axis || other[i] == s[i])
            };
            let same: Vec<TensorId> = open.iter().filter(fits).copied().collect();
            let operands: Vec<TensorId> =
                (0..1 + net.random.below(3)).map(|_| same[net.random.below(same.len())]).collect();
            if net.random.chance(30) {
                return pieces(net, x, axis, most);
            }
            let rescaled = net.random.below(6);
            let total: usize = operands.iter().map(|&t| product(&net.shape(t))).sum();
            (total <= 2 * most).then(|| net.concat(&operands, axis, rescaled))?
        }
        20 if rank > 0 => {
            let mode = [PadMode::Constant(5), PadMode::Reflect, PadMode::Edge][net.random.below(3)];
            let mut draw = |n: usize| {
                let limit = if mode == PadMode::Reflect { n } else { 4 };
                if net.random.chance(50) { 0 } else { net.random.below(limit.min(4)) as u32 }
            };
            let before: Vec<u32> = s.iter().map(|&n| draw(n)).collect();
            let after: Vec<u32> = s.iter().map(|&n| draw(n)).collect();
            let out: Vec<usize> = (0..rank).map(|i| s[i] + (before[i] + after[i]) as usize).collect();
            room(&out).then(|| net.pad(x, &before, &after, mode))?
        }
        21 => {
            let mut order: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                order.swap(i, net.random.below(i + 1));
            }
            net.transpose(x, &order)
        }
        22 => {
            let shape = factors(net, elements);
            net.reshape(x, &shape)
        }
        23 if rank > 0 => {
            let axis = net.random.below(rank);
            let count = 1 + net.random.below(s[axis]);
            let start = net.random.below(s[axis] - count + 1);
            net.slice(x, axis, start, count)
        }
        24 if rank > 0 => {
            let axis = net.random.below(rank);
            let count = 1 + net.random.below(2 * s[axis]).min(20);
            let indices: Vec<u32> = (0..count).map(|_| net.random.below(s[axis]) as u32).collect();
            if elements / s[axis] * count > 2 * most {
                return None;
            }
            net.gather(x, axis, &indices)
        }
        25 => match net.random.below(4) {
            0 if rank == 4 && elements * 4 < most => {
                let (h, w) = (1 + net.random.below(2 * s[1]), 1 + net.random.below(2 * s[2]));
                net.resize(x, h, w)
            }
            1 if rank == 4 && elements * 4 < most => net.insert_zeros(x, [2, 2]),
            2 if rank <= 4 => {
                let shape = any_shape(net, 30);
                let shape = &shape[..shape.len().min(4)];
                let is_packed = !net.wide && net.float.is_none() && net.random.chance(40);
                if is_packed { picked(net, width, shape) } else { net.embedding(7, width, shape) }
            }
            _ => windows(net, x)?,
        },
        _ => {
            let shape = narrow(net, &s);
            let (a, b) = (net.constant_like(x, &shape), x);
            let condition = narrow(net, &s);
            if net.random.chance(50) { net.choose(&condition, a, b) } else { net.choose(&condition, b, a) }
        }
    })
}

/// Entries of `width` elements of a packed table: columns, or rows of whole blocks.
fn picked(net: &mut Net, width: usize, shape: &[usize]) -> TensorId {
    let kind = [CodeKind::Symmetric, CodeKind::ZeroPoints, CodeKind::Floats][net.random.below(3)];
    let rows = [16, 32][net.random.below(2)];
    let (whole, entry) = if width.is_multiple_of(rows) && net.random.chance(50) {
        ([7 * rows, width / rows], TableEntry::Rows(rows as u32))
    } else {
        ([width, 1 + net.random.below(150)], TableEntry::Column)
    };
    let block = [16, 32][net.random.below(1 + rows / 32)];
    let table = net.packed_constant(whole, block, kind);
    net.packed_embedding(table, shape, entry)
}

/// Stretches of one tensor joined, as the taps of a convolution are: of any length, some in other pixels.
fn pieces(net: &mut Net, x: TensorId, axis: usize, most: usize) -> Option<TensorId> {
    let s = net.shape(x);
    let made = if net.random.chance(70) { net.rescale(x) } else { x };
    let count = 1 + net.random.below(s[axis]);
    let mut joined = Vec::new();
    for _ in 0..1 + net.random.below(3) {
        let start = if net.random.chance(50) { 0 } else { net.random.below(s[axis] - count + 1) };
        joined.push(net.slice(made, axis, start, count));
    }
    if net.random.chance(30) {
        let shape = factors(net, product(&net.shape(joined[0])));
        joined = joined.iter().map(|&piece| net.reshape(piece, &shape)).collect();
    }
    let rank = net.shape(joined[0]).len();
    let along = if net.random.chance(50) { 0 } else { net.random.below(rank) };
    let total: usize = joined.iter().map(|&piece| product(&net.shape(piece))).sum();
    (total <= 2 * most).then(|| net.concat(&joined, along, usize::MAX))
}

/// Overlapping stretches of the last axis, as frames of a signal or slices of a three-dimensional convolution are.
fn windows(net: &mut Net, x: TensorId) -> Option<TensorId> {
    let s = net.shape(x);
    let (rank, last) = (s.len(), *s.last()?);
    if rank > 5 || last < 3 {
        return None;
    }
    let (size, step) = (1 + net.random.below(last.min(5)), 1 + net.random.below(2));
    let count = (last - size) / step + 1;
    let mut shape = s[..rank - 1].to_vec();
    shape.extend([count, size]);
    let mut strides = Net::steps(&s);
    strides[rank - 1] = step as i64;
    strides.push(1);
    let dims = shape.iter().map(|&d| d as u32).collect();
    Some(net.rearrange(x, Op::Rearrange { input: x, dims, strides, offset: 0 }, &shape))
}

/// Convolutions along lines longer than the caches they are tried on, and the average of an image as large.
pub fn long_lines(seed: u64, float: Option<DType>) -> Graph {
    let mut net = Net::new(seed);
    net.float = float;
    let channels = [1, 3, 8, 16][seed as usize % 4];
    let x = net.input(&[2, 1, 260, channels]);
    let along = |size: u32, stride: u32, dilation: u32, pads: [u32; 2]| Window {
        kernel: [1, size],
        stride: [1, stride],
        dilation: [1, dilation],
        pads: [0, pads[0], 0, pads[1]],
    };
    let a = net.conv(x, 24, along(5, 1, 1, [2, 2]), 1);
    let b = net.conv(a, 17, along(3, 2, 2, [3, 1]), 1);
    let c = net.conv(b, 24, along(2, 1, 1, [0, 0]), 1);
    let [_, h, w, _] = net.shape(a)[..] else { unreachable!("an image") };
    let whole = Window { kernel: [h as u32, w as u32], stride: [1, 1], dilation: [1, 1], pads: [0; 4] };
    let d = net.average_pool(a, whole, false);
    net.finish(&[c, d])
}

/// One pixel through every unit.
pub fn lone_pixel(channels: usize, out: usize) -> Graph {
    let mut net = Net::new(channels as u64);
    let x = net.input(&[1, 1, 1, channels]);
    let a = net.conv(x, out, window(1, 1, 0), 1);
    let b = net.conv(a, out, window(3, 1, 1), out);
    let c = net.max_pool(b, window(3, 2, 1));
    let d = net.reduce(c, ReduceKind::Sum, &[1, 2], false);
    net.finish(&[d, a])
}

impl Net {
    /// Element type of activations.
    pub fn activation(&self) -> DType {
        self.float.unwrap_or(if self.wide { DType::I16 } else { DType::I8 })
    }
}
