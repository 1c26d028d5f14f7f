//! Whole networks from a seed.

use tpuflow_ir::op::PadMode;
use tpuflow_ir::{BinaryKind, DType, Graph, ReduceKind, TensorId};

use super::{Net, window};

/// One residual network: convolution, pool, depthwise, add, global pool, fully connected.
pub fn residual(seed: u64) -> Graph {
    let mut net = Net::new(seed);
    let x = net.input(&[1, 20, 20, 3]);
    let a = net.conv(x, 24, window(3, 2, 1), 1);
    let b = net.conv(a, 24, window(3, 1, 1), 24);
    let c = net.conv(b, 24, window(1, 1, 0), 1);
    let d = net.binary(BinaryKind::Add, a, c);
    let e = net.max_pool(d, window(2, 2, 0));
    let f = net.reduce(e, ReduceKind::Sum, &[1, 2], false);
    let g = net.matmul(f, 10);
    net.finish(&[g])
}

/// A random network of about `length` layers over all operators.
pub fn random(seed: u64, length: usize) -> Graph {
    let mut net = Net::new(seed);
    net.wide = net.random.chance(30);
    net.mix(seed);
    let channels = [1, 2, 3, 5, 8, 16, 20, 33];
    let pick = |net: &mut Net| channels[net.random.below(channels.len())];
    let (h, w, c) = (3 + net.random.below(10), 3 + net.random.below(10), pick(&mut net));
    let batch = 1 + net.random.below(2);
    let mut open = vec![net.input(&[batch, h, w, c])];
    let mut sinks = Vec::new();
    for _ in 0..length {
        let x = open[net.random.below(open.len())];
        net.draw_type();
        if let Some(y) = random_layer(&mut net, x, &open, &mut sinks) {
            open.push(y);
        }
    }
    let last = *open.last().unwrap();
    let mut outputs = vec![last];
    if open.len() > 2 && net.random.chance(40) {
        outputs.push(open[open.len() / 2]);
    }
    outputs.extend(sinks);
    outputs.dedup();
    net.finish(&outputs)
}

fn random_layer(net: &mut Net, x: TensorId, open: &[TensorId], sinks: &mut Vec<TensorId>) -> Option<TensorId> {
    let s = net.shape(x);
    let elements: usize = s.iter().product();
    let channels = [1, 2, 4, 7, 8, 12, 16, 24, 40];
    let pick = channels[net.random.below(channels.len())];
    let square = s.len() == 4;
    let (kernel, stride) = (1 + net.random.below(3) as u32, 1 + net.random.below(2) as u32);
    let pad = net.random.below(kernel as usize) as u32;
    let wide_enough =
        square && s[1] + 2 * pad as usize >= kernel as usize && s[2] + 2 * pad as usize >= kernel as usize;
    let partner = |net: &mut Net| {
        let same: Vec<TensorId> = open.iter().copied().filter(|&t| net.shape(t) == s).collect();
        same[net.random.below(same.len())]
    };
    Some(match net.random.below(24) {
        0..=3 if wide_enough => net.conv(x, pick, window(kernel, stride, pad), 1),
        4 if wide_enough && s[3].is_multiple_of(2) => net.conv(x, 2 * pick, window(kernel, stride, pad), 2),
        5 if wide_enough => net.conv(x, s[3], window(kernel, stride, pad), s[3]),
        6 if wide_enough => net.max_pool(x, window(kernel, stride, pad)),
        7 if wide_enough => {
            let include = net.random.chance(50);
            net.average_pool(x, window(kernel, stride, pad), include)
        }
        8 => net.matmul(x, pick),
        9 => {
            let kinds = [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Max, BinaryKind::Min];
            let (kind, y) = (kinds[net.random.below(5)], partner(net));
            net.binary(kind, x, y)
        }
        10 => {
            let mut narrow = s.clone();
            for extent in &mut narrow {
                *extent = if net.random.chance(50) { 1 } else { *extent };
            }
            let dtype = if net.wide { DType::I16 } else { DType::I8 };
            let y = net.constant(&narrow, dtype, -100, 100);
            net.binary(BinaryKind::Add, x, y)
        }
        11 => net.unary(x),
        12 => net.rescale(x),
        13 => net.prelu(x),
        14 => {
            let masked = net.random.chance(50);
            net.softmax(x, masked)
        }
        15 => {
            let center = net.random.chance(50);
            net.layer_norm(x, center)
        }
        16 => {
            let kinds = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::SumAbs];
            let (kind, axis) = (kinds[net.random.below(4)], net.random.below(s.len()) as u32);
            if net.random.chance(30) {
                let y = net.arg_max(x, false);
                sinks.push(y);
                return None;
            }
            net.reduce(x, kind, &[axis], true)
        }
        17 if elements < 4000 => {
            let (axis, y) = (net.random.below(s.len()), partner(net));
            let rescaled = net.random.below(4);
            net.concat(&[x, y], axis, rescaled)
        }
        18 => {
            let before: Vec<u32> = s.iter().map(|&n| net.random.below(2.min(n)) as u32).collect();
            let after: Vec<u32> = s.iter().map(|&n| net.random.below(2.min(n)) as u32).collect();
            let modes = [PadMode::Constant(5), PadMode::Reflect, PadMode::Edge];
            let mode = modes[net.random.below(3)];
            net.pad(x, &before, &after, mode)
        }
        19 => {
            let mut order: Vec<usize> = (0..s.len()).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, net.random.below(i + 1));
            }
            net.transpose(x, &order)
        }
        20 => {
            let axis = net.random.below(s.len());
            let count = 1 + net.random.below(s[axis]);
            let start = net.random.below(s[axis] - count + 1);
            net.slice(x, axis, start, count)
        }
        21 => {
            let axis = net.random.below(s.len());
            let count = 1 + net.random.below(2 * s[axis]).min(20);
            let indices: Vec<u32> = (0..count).map(|_| net.random.below(s[axis]) as u32).collect();
            net.gather(x, axis, &indices)
        }
        22 if square && s[1] < 12 && s[2] < 12 => {
            if net.random.chance(50) {
                net.resize(x, s[1] * 2, s[2] + 1)
            } else {
                net.insert_zeros(x, [2, 1])
            }
        }
        23 if square => {
            // An attention-like product of the tensor with its transpose.
            let y = net.transpose(x, &[0, 1, 3, 2]);
            net.product(x, y)
        }
        _ => {
            let y = partner(net);
            net.select(x, y)
        }
    })
}
