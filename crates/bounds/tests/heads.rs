//! Attention: keys wait for all tokens, and a token's next layer for a pixel of every head.

use crate::common::{Net, Random, machine};
use tpuflow_bounds::bounds;
use tpuflow_ir::{BinaryKind, Graph, Machine, Program, TensorId};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule_by};
use tpuflow_simulator::{Options, simulate};

/// Cycles of the program of level 5.
fn cycles(graph: &Graph, machine: &Machine) -> Option<u64> {
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let options = ScheduleOptions { level: 5, budget_steps: 40, ..ScheduleOptions::default() };
    Some(schedule_by(graph, machine, &options, &timing).ok()?.predicted_cycles)
}

/// Tokens, heads, channels of a head.
type Sizes = [usize; 3];

/// Heads of a tensor `[1, tokens, heads x channels]` as matrices, of tokens or, turned, of channels.
fn split(net: &mut Net, x: TensorId, [tokens, heads, channels]: Sizes, turned: bool) -> TensorId {
    let x = net.reshape(x, &[1, tokens, heads, channels]);
    net.transpose(x, if turned { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] })
}

/// Attention over heads, with the elementwise layer that rotary positions have in front of it or without.
fn attention(net: &mut Net, x: TensorId, sizes: Sizes, rotated: bool) -> TensorId {
    let [tokens, heads, channels] = sizes;
    let width = heads * channels;
    let [mut queries, mut keys, values] = [(); 3].map(|()| net.matmul(x, width));
    if rotated {
        let angles = net.constant_like(queries, &[tokens, width]);
        queries = net.binary(BinaryKind::Mul, queries, angles);
        keys = net.binary(BinaryKind::Mul, keys, angles);
    }
    let (queries, keys) = (split(net, queries, sizes, false), split(net, keys, sizes, true));
    let scores = net.product(queries, keys);
    let shares = net.softmax(scores, false);
    let values = split(net, values, sizes, false);
    let sums = net.product(shares, values);
    let sums = net.transpose(sums, &[0, 2, 1, 3]);
    let sums = net.reshape(sums, &[1, tokens, width]);
    let y = net.matmul(sums, width);
    net.binary(BinaryKind::Add, x, y)
}

#[test]
fn no_program_of_attention_is_shorter_than_its_bounds() {
    let mut rng = Random(7);
    let (mut built, mut near) = (0, 0);
    for seed in 0..60 {
        let machine = if seed % 3 == 0 { Machine::preset("128x128_asic").expect("known") } else { machine(seed) };
        let sizes = [1 + rng.below(24), 1 + rng.below(5), 1 + rng.below(20)];
        let mut net = Net::new(seed);
        let mut x = net.input(&[1, sizes[0], sizes[1] * sizes[2]]);
        for _ in 0..=rng.below(2) {
            if rng.chance(50) {
                x = net.layer_norm(x, true);
            }
            x = attention(&mut net, x, sizes, seed % 2 == 0);
        }
        let graph = net.finish(&[x]);
        let Some(cycles) = cycles(&graph, &machine) else { continue };
        let found = bounds(&graph, &machine).whole;
        assert!(cycles >= found.binding().1, "seed {seed}, {sizes:?} on {}: {cycles} < {found:?}", machine.name);
        built += 1;
        near += usize::from(4 * cycles < 7 * found.binding().1);
    }
    assert!(built > 50 && near > 20, "{built} built, {near} within 75 %");
}

/// What joins 256 heads waits for 256 tiles of their scores and as many of their sums.
#[test]
fn joined_heads_are_within_a_tenth() {
    let mut machine = Machine::preset("128x128_asic").expect("known");
    machine.ddr.word_bytes = 64;
    let [tokens, heads, channels] = [16, 256, 32];
    let mut net = Net::new(5);
    let x = net.input(&[1, heads, tokens, channels]);
    let keys = net.input(&[1, heads, channels, channels]);
    let scores = net.product(x, keys);
    let sums = net.product(scores, keys);
    let sums = net.transpose(sums, &[0, 2, 1, 3]);
    let sums = net.reshape(sums, &[1, tokens, heads * channels]);
    let y = net.matmul(sums, 16);
    let graph = net.finish(&[y]);
    let cycles = cycles(&graph, &machine).expect("a program");
    let found = bounds(&graph, &machine).whole;
    assert!(cycles >= found.binding().1 && 10 * cycles < 11 * found.path, "{cycles} cycles, {found:?}");
}
