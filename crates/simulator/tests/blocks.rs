//! Results in blocks of channels and in stripes of rows: inverted residuals, squeeze and excitation and dense blocks whose last
//! column tile is narrow, at level 5 on machines of several widths; proven, simulated, and compared with the interpreter.

use crate::common::{Net, window};
use crate::trial::trial;
use tpuflow_ir::{BinaryKind, Graph, Machine, TensorId};
use tpuflow_simulator::Options;

/// Expansion, depthwise convolution, projection; often with the channels scaled by what a small network makes of their means.
fn inverted_residual(net: &mut Net, x: TensorId, columns: usize) -> TensorId {
    let shape = net.shape(x);
    let wide = columns * (1 + net.random.below(2)) + columns / [2, 4, 8][net.random.below(3)];
    let expanded = net.conv(x, wide, window(1, 1, 0), 1);
    let (kernel, stride) = ([3, 5][net.random.below(2)], 1 + net.random.below(2) as u32);
    let mut y = net.conv(expanded, wide, window(kernel, stride, kernel / 2), wide);
    if net.random.chance(60) {
        let height = net.shape(y)[1] as u32;
        let mean = net.average_pool(y, window(height, 1, 0), false);
        let squeezed = net.conv(mean, 8, window(1, 1, 0), 1);
        let scales = net.conv(squeezed, wide, window(1, 1, 0), 1);
        y = net.binary(BinaryKind::Mul, y, scales);
    }
    let narrow = net.conv(y, shape[3], window(1, 1, 0), 1);
    if net.shape(narrow) == shape { net.binary(BinaryKind::Add, x, narrow) } else { narrow }
}

/// A concatenation that can take no operand in place (one changes its scale, one is the network's input), scaled channel by
/// channel, and a convolution of it.
fn dense(net: &mut Net, x: TensorId, input: TensorId, columns: usize) -> TensorId {
    let wide = net.conv(x, columns + columns / 4, window(1, 1, 0), 1);
    let joined = net.concat(&[wide, input], 3, 0);
    let channels = net.shape(joined)[3];
    let kernel = [1, 3][net.random.below(2)];
    let scaled = net.conv(joined, channels, window(kernel, 1, kernel / 2), channels);
    net.conv(scaled, columns / 4, window(3, 1, 1), 1)
}

fn network(seed: u64, columns: usize) -> Graph {
    let mut net = Net::new(seed);
    net.wide = net.random.chance(10);
    let side = [12, 14, 20, 23][net.random.below(4)];
    let batch = if net.random.chance(20) { 2 } else { 1 };
    let input = net.input(&[batch, side, side, 8]);
    let mut x = net.conv(input, columns / 4, window(3, 1, 1), 1);
    if net.random.chance(50) {
        x = dense(&mut net, x, input, columns);
    }
    for _ in 0..2 {
        x = inverted_residual(&mut net, x, columns);
    }
    net.finish(&[x])
}

#[test]
fn narrow_tiles_and_stripes_keep_every_bit() {
    let machines = ["32x32_fpga", "64x64_edge", "128x128_asic"].map(|name| Machine::preset(name).unwrap());
    for seed in 0..18 {
        let machine = &machines[seed as usize % machines.len()];
        let graph = network(seed, machine.array.columns as usize);
        if let Err(what) = trial(&graph, machine, 5, seed, &Options::default()) {
            panic!("seed {seed} on {}: {what}", machine.name);
        }
    }
}
