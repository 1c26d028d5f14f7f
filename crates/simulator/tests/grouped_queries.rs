//! Attention whose heads share keys: queries of a group are one matrix, a stretch of rows for each head, that lies in the pixels of the
//! joint tensor; by blocks of queries, whole or one matrix at a time, proven, simulated, and compared with the interpreter.

use std::sync::Arc;

use crate::common::{Net, tiny};
use crate::trial::{inputs, proven};
use tpuflow_ir::isa::VectorOp;
use tpuflow_ir::{Descriptor, Graph, Machine, Op, Program, TensorId, Work};
use tpuflow_kernels::Values;
use tpuflow_scheduler::Options as ScheduleOptions;
use tpuflow_scheduler::parameters::Parameters;
use tpuflow_scheduler::tiling::request::Request as Tiling;
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

/// Attention of `groups` times `shared` heads of `depth` channels.
#[derive(Clone, Copy)]
struct Form {
    groups: usize,
    shared: usize,
    depth: usize,
    /// Queries of a block, and blocks.
    rows: usize,
    blocks: usize,
    keys: usize,
}

fn moved(net: &mut Net, x: TensorId, shape: &[usize], loops: &[(usize, usize)], offset: usize) -> TensorId {
    let (dims, strides) = loops.iter().map(|&(extent, stride)| (extent as u32, stride as i64)).unzip();
    net.rearrange(x, Op::Rearrange { input: x, dims, strides, offset: offset as i64 }, shape)
}

fn attention(mut net: Net, form: Form, by_heads: bool) -> Graph {
    let Form { groups, shared, depth, rows, blocks, keys } = form;
    let (heads, tokens) = (groups * shared, rows * blocks);
    let width = heads * depth;
    let x = net.input(&[1, tokens, 24]);
    let joint = net.matmul(x, width);
    // As rotary positions leave them: an image whose pixels are heads.
    let joint = if by_heads {
        let apart = net.reshape(joint, &[1, tokens, heads, depth]);
        net.rescale(apart)
    } else {
        joint
    };
    let cache = net.input(&[1, groups, depth, keys]);
    let values = net.input(&[1, groups, keys, depth]);
    let sums = |net: &mut Net, block: usize| {
        let loops = [(heads, depth), (rows, width), (depth, 1)];
        let queries = moved(net, joint, &[1, groups, shared * rows, depth], &loops, block * rows * width);
        let scores = net.product(queries, cache);
        let scores = net.reshape(scores, &[1, heads, rows, keys]);
        let shares = net.softmax(scores, false);
        let shares = net.reshape(shares, &[1, groups, shared * rows, keys]);
        net.product(shares, values)
    };
    let sums: Vec<TensorId> = (0..blocks).map(|block| sums(&mut net, block)).collect();
    let loops = [(rows, depth), (heads, rows * depth), (depth, 1)];
    let parts: Vec<TensorId> =
        sums.into_iter().map(|sums| moved(&mut net, sums, &[1, rows, width], &loops, 0)).collect();
    let all = if blocks > 1 { net.concat(&parts, 1, usize::MAX) } else { parts[0] };
    let y = net.matmul(all, 24);
    net.finish(&[y])
}

/// Instructions of the elementwise unit that move elements.
fn moves(program: &Program) -> usize {
    let is_move = |work: &Work| match work {
        Work::Vector(v) => {
            matches!(program.descriptors[v.descriptor.index()], Descriptor::Vector(VectorOp::Move { .. }))
        }
        _ => false,
    };
    program.instructions.iter().filter(|each| is_move(&each.work)).count()
}

fn compared(graph: &Graph, program: &Program, seed: u64) {
    let given = inputs(graph, seed);
    let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    let run = simulate(program, &bytes, &Options::default()).unwrap();
    assert!(run.cycles >= program.bounds.binding().1, "{} cycles, {:?}", run.cycles, program.bounds.binding());
    let expected = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given, Keep::Outputs).unwrap();
    assert_eq!(run.outputs[0], expected.get(graph.outputs[0]).unwrap().to_le_bytes(), "seed {seed}");
}

/// From the product in front of every softmax to the one behind it, a matrix at a time, as the scheduler does it where attention would
/// fill the cache.
fn by_matrix(graph: &Graph, groups: usize) -> Tiling {
    let products = graph
        .layers
        .iter()
        .enumerate()
        .filter(|(_, layer)| matches!(layer.op, Op::MatMul { b, .. } if graph.tensor(b).constant.is_none()));
    let products: Vec<u32> = products.map(|(at, _)| at as u32).collect();
    let runs = products.chunks(2).map(|pair| [pair[0] - 1, pair[1], groups as u32, 1]).collect();
    Tiling { runs, ..Tiling::default() }
}

#[test]
fn grouped_queries_keep_every_bit_wherever_they_lie() {
    let mut machines = vec![tiny(8), tiny(16)];
    machines.extend(["32x32_fpga", "128x128_asic"].map(|name| Machine::preset(name).unwrap()));
    for seed in 0..24 {
        let machine = &machines[seed as usize % machines.len()];
        let mut net = Net::new(seed);
        let large = machine.array.rows > 16;
        let rows = if large { [128, 96, 256][net.random.below(3)] } else { [32, 20, 16, 64][net.random.below(4)] };
        let form = Form {
            groups: 1 + net.random.below(3),
            shared: 1 + net.random.below(3),
            depth: if large { [128, 64, 32][net.random.below(3)] } else { [8, 16, 24][net.random.below(3)] },
            rows,
            blocks: 1 + net.random.below(2),
            keys: [40, 128, 72][net.random.below(3)],
        };
        let by_heads = net.random.chance(50);
        let graph = attention(net, form, by_heads);
        let whole = Tiling::default;
        for (level, tiling) in [(1, whole()), (5, whole()), (5, by_matrix(&graph, form.groups))] {
            let program = proven(&graph, machine, ScheduleOptions { level, tiling, ..ScheduleOptions::default() });
            assert_eq!(program.fallback, None, "seed {seed}");
            compared(&graph, &program, seed);
        }
        // Every tensor in external memory.
        let parameters = Some(Parameters { action_graph_data_transfer_optimization: false, ..Parameters::o5() });
        let program = proven(&graph, machine, ScheduleOptions { level: 5, parameters, ..ScheduleOptions::default() });
        compared(&graph, &program, seed);
    }
}

/// Tokens that are pixels of an image: rows of 7 pixels of 64 bytes end inside a word, those of 8 do not.
#[test]
fn heads_of_the_pixels_of_an_image_keep_every_bit() {
    let machine = Machine::preset("128x128_asic").unwrap();
    for (side, is_moved) in [(7, true), (8, false)] {
        let mut net = Net::new(side as u64);
        let x = net.input(&[1, side, side, 24]);
        let joint = net.matmul(x, 64);
        let tokens = side * side;
        let queries = moved(&mut net, joint, &[1, 2, tokens, 32], &[(2, 32), (tokens, 64), (32, 1)], 0);
        let cache = net.input(&[1, 2, 32, 40]);
        let y = net.product(queries, cache);
        let graph = net.finish(&[y]);
        for level in [1, 5] {
            let program = proven(&graph, &machine, ScheduleOptions { level, ..ScheduleOptions::default() });
            assert_eq!((program.fallback.as_deref(), moves(&program) > 0), (None, is_moved), "{side} x {side}");
            compared(&graph, &program, 3);
        }
    }
}

/// Where each head's queries fill tiles of the array, nothing is moved in front of the products or behind them.
#[test]
fn queries_that_fill_tiles_stay_where_they_are() {
    let machine = Machine::preset("128x128_asic").unwrap();
    for (rows, by_heads, is_moved) in [(128, true, false), (128, false, false), (256, true, false), (64, true, true)] {
        let form = Form { groups: 2, shared: 2, depth: 128, rows, blocks: 2, keys: 256 };
        let graph = attention(Net::new(7), form, by_heads);
        for tiling in [Tiling::default(), by_matrix(&graph, form.groups)] {
            let program = proven(&graph, &machine, ScheduleOptions { level: 5, tiling, ..ScheduleOptions::default() });
            assert_eq!(moves(&program) > 0, is_moved, "{rows} queries, {by_heads}");
            compared(&graph, &program, 7);
        }
    }
}
