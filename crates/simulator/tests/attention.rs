//! Attention: heads left side by side in the pixels of the products before and after, row blocks of them at work on two units at
//! a time; proven, simulated, and compared with the interpreter.

use std::sync::Arc;

use crate::common::Net;
use crate::trial::{self, trial};
use tpuflow_ir::isa::VectorOp;
use tpuflow_ir::{BinaryKind, Descriptor, Graph, Machine, Op, Parts, Program, TensorId, Tiling, Unit, Work};
use tpuflow_kernels::Values;
use tpuflow_scheduler::parameters::Parameters;
use tpuflow_scheduler::{Options as ScheduleOptions, schedule, schedule_by};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

/// Heads of a tensor `[batch, tokens, ..]` whose channels begin at `first`, `step` apart: `[batch, heads, tokens, depth]`, or
/// with tokens last.
fn heads(net: &mut Net, x: TensorId, [heads, depth, first, step]: [usize; 4], turned: bool) -> TensorId {
    let [batch, tokens, width] = net.shape(x)[..] else { panic!("batch, tokens, channels") };
    let mut loops = [(batch, tokens * width), (heads, step), (tokens, width), (depth, 1)];
    if turned {
        loops.swap(2, 3);
    }
    let dims = loops.map(|(extent, _)| extent as u32).to_vec();
    let strides = loops.map(|(_, stride)| stride as i64).to_vec();
    let op = Op::Rearrange { input: x, dims, strides, offset: first as i64 };
    net.rearrange(x, op, &loops.map(|(extent, _)| extent))
}

/// A block of attention; `interleaved`: each head's query, key and value are neighbours, as some exporters have it.
fn attention(net: &mut Net, x: TensorId, count: usize, interleaved: bool) -> TensorId {
    let [batch, tokens, width] = net.shape(x)[..] else { panic!("batch, tokens, channels") };
    let depth = width / count;
    let joint = net.matmul(x, 3 * width);
    let part = |which: usize| {
        if interleaved { [count, depth, which * depth, 3 * depth] } else { [count, depth, which * width, depth] }
    };
    let [q, k, v] = [0, 1, 2].map(|which| heads(net, joint, part(which), which == 1));
    let scores = net.product(q, k);
    let shares = net.softmax(scores, false);
    let mixed = net.product(shares, v);
    let dims = [batch, tokens, count, depth];
    let strides = [count * tokens * depth, depth, tokens * depth, 1].map(|stride| stride as i64);
    let together =
        Op::Rearrange { input: mixed, dims: dims.map(|d| d as u32).to_vec(), strides: strides.to_vec(), offset: 0 };
    let mixed = net.rearrange(mixed, together, &[batch, tokens, width]);
    let projected = net.matmul(mixed, width);
    net.binary(BinaryKind::Add, x, projected)
}

fn compiled(graph: &Graph, machine: &Machine) -> Program {
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let options = ScheduleOptions { level: 5, budget_steps: 50, ..ScheduleOptions::default() };
    schedule_by(graph, machine, &options, &timing).unwrap()
}

/// Instructions that copy.
fn copies(program: &Program) -> usize {
    let is_copy = |work: &Work| match work {
        Work::Vector(v) => {
            let descriptor = &program.descriptors[v.descriptor.index()];
            matches!(descriptor, Descriptor::Vector(VectorOp::Move { .. } | VectorOp::Gather { .. }))
        }
        _ => false,
    };
    program.instructions.iter().filter(|each| is_copy(&each.work)).count()
}

#[test]
fn heads_keep_every_bit_wherever_they_lie() {
    let machines = ["32x32_fpga", "64x64_edge", "128x128_asic"].map(|name| Machine::preset(name).unwrap());
    for seed in 0..12 {
        let machine = &machines[seed as usize % machines.len()];
        let mut net = Net::new(seed);
        net.wide = net.random.chance(20);
        let depth = [8, 16, 24, 32, 64, 80][net.random.below(6)];
        let (count, tokens) = (1 + net.random.below(4), [5, 17, 50, 130][net.random.below(4)]);
        let batch = 1 + usize::from(net.random.chance(30));
        let x = net.input(&[batch, tokens, count * depth]);
        let interleaved = net.random.chance(30);
        let y = attention(&mut net, x, count, interleaved);
        let y = attention(&mut net, y, count, !interleaved);
        let graph = net.finish(&[y]);
        for level in [1, 5] {
            if let Err(what) = trial(&graph, machine, level, seed, &Options::default()) {
                panic!("seed {seed} at level {level} on {}: {what}", machine.name);
            }
        }
    }
}

#[test]
fn heads_that_somebody_else_reads_are_copied_and_keep_every_bit() {
    let machine = Machine::preset("128x128_asic").unwrap();
    for returned in [false, true] {
        let mut net = Net::new(5);
        let x = net.input(&[1, 40, 96]);
        let y = net.matmul(x, 192);
        let a = heads(&mut net, y, [3, 32, 0, 32], false);
        let b = heads(&mut net, y, [3, 32, 96, 32], true);
        let scores = net.product(a, b);
        let other = net.rescale(a);
        let graph = net.finish(&if returned { vec![scores, a, other] } else { vec![scores, other] });
        trial(&graph, &machine, 5, 5, &Options::default()).unwrap();
    }
}

#[test]
fn heads_in_external_memory_keep_every_bit() {
    let machine = Machine::preset("128x128_asic").unwrap();
    for seed in 0..3 {
        let mut net = Net::new(seed);
        let x = net.input(&[1 + seed as usize % 2, 40, 96]);
        let y = attention(&mut net, x, 3, seed == 2);
        let graph = net.finish(&[y]);
        let parameters = Parameters { action_graph_data_transfer_optimization: false, ..Parameters::o5() };
        let options = ScheduleOptions { level: 5, parameters: Some(parameters), ..ScheduleOptions::default() };
        let program = schedule(&graph, &machine, &options).unwrap();
        assert_eq!(program.fallback, None);
        let given = trial::inputs(&graph, seed);
        let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
        let run = simulate(&program, &bytes, &Options::default()).unwrap();
        let expected = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given, Keep::Outputs).unwrap();
        assert_eq!(run.outputs[0], expected.get(graph.outputs[0]).unwrap().to_le_bytes(), "seed {seed}");
    }
}

#[test]
fn heads_are_copied_for_their_transposition_alone_and_units_overlap() {
    let machine = Machine::preset("128x128_asic").unwrap();
    let mut net = Net::new(1);
    let x = net.input(&[1, 197, 192]);
    let y = attention(&mut net, x, 3, false);
    let graph = net.finish(&[y]);
    let program = compiled(&graph, &machine);
    let run = simulate(&program, &[], &Options { values: false, ..Options::default() }).unwrap();
    // A head each.
    assert!(copies(&program) <= 3, "{} copies", copies(&program));
    let busy = |unit: Unit| run.counters.units[unit.index()].busy;
    let (array, elementwise) = (busy(Unit::Me), busy(Unit::Ewp));
    assert!(run.cycles < 19_000, "{} cycles, array {array}, elementwise {elementwise}", run.cycles);
}

/// Scores of one head take several times the cache, so that tensors between the products would go through external memory.
#[test]
fn scores_that_do_not_fit_stay_on_the_chip_near_the_bound() {
    let mut machine = Machine::preset("128x128_asic").unwrap();
    machine.cache.banks = 4;
    for (count, tokens, width) in [(1, 1500, 64), (2, 1024, 128)] {
        let mut net = Net::new(2);
        let x = net.input(&[1, tokens, width]);
        let y = attention(&mut net, x, count, false);
        let graph = net.finish(&[y]);
        let program = compiled(&graph, &machine);
        let parts = |tiling: &Tiling| match &tiling.parts {
            Parts::Grid { rows, columns, .. } => (rows * columns) as usize,
            Parts::Boxes(boxes) => boxes.len(),
            Parts::KeyBlocks { matrices, queries, .. } => (matrices * queries) as usize,
        };
        assert!(program.tilings.iter().any(|tiling| parts(tiling) > count), "{:?}", program.tilings);
        assert_eq!(program.spill_bytes, 0, "{count} heads");
        let run = simulate(&program, &[], &Options { values: false, ..Options::default() }).unwrap();
        let bound = program.bounds.binding().1;
        assert!(2 * run.cycles < 3 * bound, "{count} heads: {} cycles, bound {bound}", run.cycles);
    }
}

/// Tiles of queries, heads that share keys among them, on machines with little cache.
#[test]
fn attention_in_tiles_of_queries_keeps_every_bit() {
    for (seed, banks) in [(0, 4), (1, 4), (2, 8)] {
        let mut machine = Machine::preset("32x32_fpga").unwrap();
        (machine.cache.banks, machine.cache.words) = (banks, 512);
        let mut net = Net::new(seed);
        let tokens = 200 + net.random.below(100);
        let x = net.input(&[1, tokens, 48]);
        let y = attention(&mut net, x, 1 + seed as usize, false);
        let graph = net.finish(&[y]);
        let program = compiled(&graph, &machine);
        assert!(!program.tilings.is_empty(), "seed {seed}");
        trial(&graph, &machine, 5, seed, &Options::default()).unwrap();
    }
}
