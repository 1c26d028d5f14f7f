//! The programs under attack: every machine and element type, both levels, and each way a network can use the machine.

use crate::common::wild::{long_lines, wild_floats};
use crate::common::{Net, residual, tiny, window};
use tpuflow_ir::op::PadMode;
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{
    Arithmetic, BinaryKind, DType, Graph, Machine, Op, Packed, Program, ReduceKind, Source, State, TableEntry, TensorId,
};
use tpuflow_scheduler::tiling::request::Request;
use tpuflow_scheduler::{Options, schedule_by};
use tpuflow_simulator::simulate;

pub use crate::common::{Random, float_bytes};

/// A network on a machine at a level.
pub struct Subject {
    /// Name on the command line and in results.
    pub name: &'static str,
    graph: fn() -> Graph,
    machine: fn() -> Machine,
    level: u8,
    /// Parts of all layers from top to bottom and from left to right.
    parts: [u32; 2],
    /// Attention by blocks of keys, as asked for.
    key_blocks: Option<[u32; 6]>,
}

const fn subject(name: &'static str, graph: fn() -> Graph, machine: fn() -> Machine, level: u8) -> Subject {
    Subject { name, graph, machine, level, parts: [1, 1], key_blocks: None }
}

/// All of them; the short run takes the first few.
pub const SUBJECTS: [Subject; 29] = [
    subject("batched-product", batched_product, edge, 1),
    subject("cut-add", cut_add, tiny8, 5),
    subject("embedding-int8", embedding_int8, tiny16, 5),
    subject("joined", joined, tiny8, 5),
    subject("state-int8", state, tiny64, 5),
    Subject { key_blocks: Some([0, 3, 1, 2, 6, 0]), ..subject("key-blocks", || long_keys(false), tiny16, 5) },
    subject("state-packed", state_packed, tiny64, 5),
    subject("packed-tables", packed_tables, tiny16, 5),
    subject("residual-level1", || deep(41, 3, 2), fpga, 1),
    subject("residual-spilled", || residual(7), tiny8, 5),
    subject("residual-dual", || deep(42, 3, 2), dual, 5),
    subject("groups-batch2", groups, edge, 5),
    subject("embedding-int16", embedding_int16, fpga, 1),
    subject("attention-int8", || attention(None, false), dual, 5),
    subject("attention-int16", || attention(None, true), tiny64, 5),
    subject("attention-f16", || attention(Some(DType::F16), false), edge, 5),
    subject("shared-weights", shared_weights, edge, 5),
    subject("functions", functions, tiny16, 5),
    subject("resize-pad", resize_pad, fpga, 5),
    subject("moves", moves, tiny8, 5),
    subject("reductions", reductions, tiny64, 1),
    subject("wild-f32", || wild_floats(5, 36, 1500), fpga, 5),
    subject("wild-bf16", || wild_floats(4, 24, 1500), tiny64, 5),
    subject("long-lines", || long_lines(1, None), tiny16, 5),
    subject("segment", segment, asic, 5),
    Subject { parts: [2, 2], ..subject("parts", pyramid, fpga, 5) },
    Subject { key_blocks: Some([0, 3, 1, 2, 7, 1]), ..subject("key-blocks-int16", || long_keys(true), tiny64, 1) },
    subject("deep-int16", deep_int16, datacenter, 5),
    subject("deep-tiny", || deep(34, 12, 18), tiny64, 5),
];

impl Subject {
    /// The network and its program; a program's cycles are those of its run.
    pub fn build(&self) -> Result<(Graph, Program), String> {
        let graph = with_sources((self.graph)());
        let mut options = Options { level: self.level, budget_steps: 2, ..Options::default() };
        options.tiling = Request { rows: self.parts[0], columns: self.parts[1], overlap: 100, ..Request::default() };
        options.tiling.attention.extend(self.key_blocks);
        let untraced = tpuflow_simulator::Options { values: false, ..tpuflow_simulator::Options::default() };
        let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
        let program = schedule_by(&graph, &(self.machine)(), &options, &timing);
        Ok((graph, program.map_err(|error| format!("{}: {error}", self.name))?))
    }
}

/// The same network as if made from a model of images with channels in front.
fn with_sources(mut graph: Graph) -> Graph {
    for id in graph.inputs.iter().chain(&graph.outputs).copied().collect::<Vec<_>>() {
        let tensor = &mut graph.tensors[id.index()];
        let permutation = match tensor.shape.len() {
            4 => vec![0, 2, 3, 1],
            3 => vec![0, 2, 1],
            rank => (0..rank).collect(),
        };
        let mut shape = tensor.shape.clone();
        for (own, &axis) in permutation.iter().enumerate() {
            shape[axis] = tensor.shape[own];
        }
        let dtype = if tensor.dtype == DType::I32 { "int64" } else { "float32" };
        let name = format!("model.{}", tensor.name);
        tensor.source = Some(Source { name, shape, permutation, dtype: dtype.to_owned() });
    }
    graph
}

fn preset(name: &str) -> Machine {
    Machine::preset(name).unwrap_or_else(|error| panic!("{error}"))
}

/// A preset with less cache: memories are made anew for every run.
fn smaller(name: &str, words: u32) -> Machine {
    let mut machine = preset(name);
    machine.cache.words = words;
    machine.ewp_cache.words = machine.ewp_cache.words.min(4 * words);
    machine
}

fn asic() -> Machine {
    smaller("128x128_asic", 64)
}

fn dual() -> Machine {
    smaller("128x128_dual_ddr", 64)
}

fn edge() -> Machine {
    smaller("64x64_edge", 64)
}

fn fpga() -> Machine {
    smaller("32x32_fpga", 128)
}

fn datacenter() -> Machine {
    smaller("256x256_dc", 64)
}

fn tiny8() -> Machine {
    tiny(8)
}

fn tiny16() -> Machine {
    tiny(16)
}

fn tiny64() -> Machine {
    tiny(64)
}

fn batched_product() -> Graph {
    let mut net = Net::new(21);
    let x = net.input(&[2, 32, 64]);
    let mut y = x;
    for _ in 0..9 {
        let w = net.constant(&[2, 64, 64], DType::I8, -128, 127);
        y = net.product(y, w);
    }
    let z = net.rescale(y);
    net.finish(&[z, y])
}

/// Sums of tensors too wide for the cache, which are cut by channels.
fn cut_add() -> Graph {
    let mut net = Net::new(22);
    let x = net.input(&[1, 4, 4, 64]);
    let mut b = x;
    for _ in 0..3 {
        let a = net.conv(b, 64, window(1, 1, 0), 1);
        b = net.binary(BinaryKind::Add, a, b);
    }
    let c = net.unary(b);
    let d = net.rescale(c);
    let e = net.prelu(d);
    net.finish(&[e, b])
}

fn embedding(mut net: Net) -> Graph {
    let tables = [11, 7, 9, 8, 12, 10].map(|rows| net.embedding(rows, 24, &[2, 6]));
    let mut f = tables[0];
    for table in &tables[1..] {
        let sum = net.binary(BinaryKind::Add, f, *table);
        let normal = net.layer_norm(sum, true);
        f = net.matmul(normal, 24);
    }
    let g = net.matmul(f, 17);
    let h = net.softmax(g, true);
    let i = net.arg_max(g, false);
    net.finish(&[h, i])
}

fn embedding_int8() -> Graph {
    embedding(Net::new(23))
}

fn embedding_int16() -> Graph {
    let mut net = Net::new(24);
    net.wide = true;
    embedding(net)
}

/// Branches joined by channels and by rows.
fn joined() -> Graph {
    let mut net = Net::new(3);
    let x = net.input(&[1, 12, 12, 4]);
    let (a, b) = (net.conv(x, 12, window(3, 1, 1), 1), net.conv(x, 12, window(1, 1, 0), 1));
    let c = net.concat(&[a, b, a], 3, 1);
    let d = net.max_pool(c, window(3, 2, 1));
    let e = net.concat(&[d, d], 1, usize::MAX);
    let f = net.conv(e, 8, window(3, 2, 1), 1);
    net.finish(&[f, c])
}

fn groups() -> Graph {
    let mut net = Net::new(25);
    let x = net.input(&[2, 9, 10, 16]);
    let mut b = x;
    for groups in [4, 2, 8, 16, 1, 4, 8, 2] {
        let a = net.conv(b, 32, window(3, 1, 1), groups);
        b = net.conv(a, 32, window(3, 1, 1), 32);
    }
    let c = net.average_pool(b, window(2, 2, 0), true);
    let d = net.conv(c, 24, window(3, 1, 1), 2);
    let e = net.max_pool(d, window(2, 1, 0));
    net.finish(&[e, c])
}

fn attention(float: Option<DType>, wide: bool) -> Graph {
    let mut net = Net::new(26);
    (net.float, net.wide) = (float, wide);
    let mut x = net.input(&[2, 12, 24]);
    for _ in 0..2 {
        let n = net.layer_norm(x, false);
        let [q, k, v] = [24; 3].map(|width| net.matmul(n, width));
        let [q, k, v] = [(q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])].map(|(t, order)| {
            let heads = net.reshape(t, &[2, 12, 3, 8]);
            net.transpose(heads, &order)
        });
        let scores = net.product(q, k);
        let weights = net.softmax(scores, true);
        let mixed = net.product(weights, v);
        let back = net.transpose(mixed, &[0, 2, 1, 3]);
        let flat = net.reshape(back, &[2, 12, 24]);
        x = net.binary(BinaryKind::Add, flat, x);
    }
    net.finish(&[x])
}

/// Attention of a few queries over keys, some of which are masked by a condition that is computed.
fn long_keys(wide: bool) -> Graph {
    let mut net = Net::new(31);
    net.wide = wide;
    let (q, k, v) = (net.input(&[1, 1, 10, 8]), net.input(&[1, 1, 8, 20]), net.input(&[1, 1, 20, 8]));
    let (a, b) = (net.input(&[1, 1, 10, 20]), net.input(&[1, 1, 1, 20]));
    let mask = net.compare(BinaryKind::Less, a, b);
    let scores = net.product(q, k);
    let weights = net.softmax_by(scores, Some(mask));
    let y = net.product(weights, v);
    let mut graph = net.finish(&[y]);
    for layer in &mut graph.layers {
        if let Op::MatMul { epilogue: Arithmetic::Fixed(epilogue), .. } = &mut layer.op {
            let (lo, hi) = graph.tensors[layer.output.index()].dtype.range();
            (epilogue.requant.lo, epilogue.requant.hi) = (lo as i32, hi as i32);
            epilogue.requant.multiplier.truncate(1);
            epilogue.requant.shift.truncate(1);
            (epilogue.table, epilogue.first_shift) = (None, None);
        }
    }
    graph
}

/// A cache of rows of this shape, of so many, to which one is appended, and what is computed of all rows.
fn cache(net: &mut Net, row: [usize; 4], axis: usize, [own, queries]: [TensorId; 2]) -> Graph {
    let mut whole = row;
    whole[axis] = 7;
    let past = net.input(&whole);
    let own = net.reshape(own, &row);
    let rows = net.concat(&[past, own], axis, 0);
    let rows = net.reshape(rows, &[1, 8, 2, 8]);
    let queries = net.reshape(queries, &[1, 2, 1, 8]);
    let keys = net.transpose(rows, &[0, 2, 3, 1]);
    let scores = net.product(queries, keys);
    let weights = net.softmax(scores, false);
    let values = net.transpose(rows, &[0, 2, 1, 3]);
    let mixed = net.product(weights, values);
    let mut graph = std::mem::replace(net, Net::new(0)).finish(&[mixed, own]);
    let grid = graph.tensor(own).quant.clone();
    graph.tensors[past.index()].quant = grid;
    graph.states.push(State { input: 1, output: 1, axis: axis as u32 });
    graph
}

/// Rows that are image rows.
fn state() -> Graph {
    let mut net = Net::new(29);
    let x = net.input(&[1, 1, 12]);
    let made = [net.matmul(x, 16), net.matmul(x, 16)];
    cache(&mut net, [1, 1, 2, 8], 1, made)
}

/// Rows that share words, of products with packed weights.
fn state_packed() -> Graph {
    let mut net = Net::new(30);
    let mut random = Random(31);
    let x = net.input(&[1, 1, 70]);
    let made = [(true, false), (false, true)].map(|(has_zero_points, is_float)| {
        let mut bytes = |count: usize, most| (0..count).map(|_| random.range(1, most) as u8).collect::<Vec<_>>().into();
        let packed = Packed {
            block: 32,
            has_zero_points,
            is_float,
            codes: bytes(70 * 16 / 2, 255),
            scales: bytes(3 * 16, 255),
            zero_points: bytes(if has_zero_points { 3 * 16 } else { 0 }, 15),
        };
        let weights = net.packed(&[70, 16], packed);
        net.product(x, weights)
    });
    cache(&mut net, [1, 1, 1, 16], 2, made)
}

/// Columns of a product's weights, and matrices that are picked.
fn packed_tables() -> Graph {
    let mut net = Net::new(32);
    let table = net.packed_constant([40, 37], 32, CodeKind::ZeroPoints);
    let x = net.packed_embedding(table, &[1, 3], TableEntry::Column);
    let y = net.product(x, table);
    let table = net.packed_constant([5 * 48, 16], 16, CodeKind::Floats);
    let picked = net.packed_embedding(table, &[1, 2], TableEntry::Rows(48));
    let matrices = net.reshape(picked, &[1, 2, 48, 16]);
    let rows = net.input(&[1, 2, 3, 48]);
    let z = net.product(rows, matrices);
    net.finish(&[y, z])
}

/// Products with the same constants.
fn shared_weights() -> Graph {
    let mut net = Net::new(27);
    net.float = Some(DType::F16);
    let (x, y) = (net.input(&[1, 40, 48]), net.input(&[1, 40, 48]));
    let w = net.constant(&[48, 48], DType::F16, -60, 60);
    let (a, b) = (net.product(x, w), net.product(y, w));
    let mut d = net.binary(BinaryKind::Sub, a, b);
    for _ in 0..14 {
        let c = net.product(d, w);
        d = net.binary(BinaryKind::Add, c, a);
    }
    net.finish(&[d, a])
}

/// Every function by channel or by table.
fn functions() -> Graph {
    let mut net = Net::new(28);
    let x = net.input(&[2, 5, 6, 10]);
    let (mut y, mut d) = (x, x);
    for _ in 0..2 {
        let a = net.unary(y);
        let b = net.prelu(a);
        let c = net.rescale(b);
        d = net.select(c, y);
        let e = net.softmax(d, false);
        let f = net.layer_norm(c, true);
        let g = net.binary(BinaryKind::Mul, e, f);
        let h = net.binary(BinaryKind::Max, g, x);
        y = net.binary(BinaryKind::Div, h, f);
    }
    net.finish(&[y, d])
}

fn resize_pad() -> Graph {
    let mut net = Net::new(29);
    let x = net.input(&[2, 5, 6, 8]);
    let a = net.resize(x, 9, 11);
    let b = net.pad(a, &[0, 1, 2, 0], &[0, 0, 1, 0], PadMode::Constant(5));
    let c = net.pad(b, &[0, 2, 1, 0], &[0, 1, 3, 0], PadMode::Reflect);
    let d = net.slice(c, 3, 2, 4);
    let e = net.insert_zeros(d, [2, 1]);
    let f = net.gather(e, 1, &[4, 0, 0, 3, 9]);
    let mut y = f;
    for _ in 0..3 {
        let g = net.resize(y, 12, 9);
        let h = net.pad(g, &[0, 0, 3, 1], &[0, 2, 0, 1], PadMode::Edge);
        let i = net.transpose(h, &[0, 2, 1, 3]);
        y = net.slice(i, 3, 1, 4);
    }
    let j = net.resize(y, 3, 5);
    net.finish(&[j, c])
}

/// Moves that do not compose to one.
fn moves() -> Graph {
    let mut net = Net::new(9);
    let x = net.input(&[1, 6, 10, 4]);
    let mut y = net.conv(x, 4, window(1, 1, 0), 1);
    for n in 0..20 {
        y = net.transpose(y, &[0, 2, 1, 3]);
        y = net.reshape(y, &[1, 6, 10, 4]);
        if n % 4 == 3 {
            y = net.conv(y, 4, window(1, 1, 0), 1);
        }
    }
    let z = net.transpose(y, &[0, 3, 1, 2]);
    let y = net.conv(y, 8, window(3, 1, 1), 1);
    net.finish(&[y, z])
}

fn reductions() -> Graph {
    let mut net = Net::new(30);
    net.wide = true;
    let x = net.input(&[2, 7, 5, 12]);
    let a = net.reduce(x, ReduceKind::Sum, &[1], true);
    let b = net.reduce(x, ReduceKind::Max, &[2, 3], true);
    let c = net.reduce(x, ReduceKind::SumSquare, &[3], false);
    let d = net.reduce(x, ReduceKind::Min, &[0], true);
    let e = net.arg_max(x, true);
    let f = net.binary(BinaryKind::Add, a, b);
    let g = net.binary(BinaryKind::Sub, x, d);
    let mut y = g;
    for axes in [[1, 2], [2, 3], [1, 3], [0, 1], [0, 3], [0, 2], [1, 3], [2, 3], [0, 1]] {
        let h = net.reduce(y, ReduceKind::Sum, &axes, true);
        let i = net.binary(BinaryKind::Mul, y, h);
        let j = net.reduce(i, ReduceKind::SumAbs, &[3], true);
        y = net.binary(BinaryKind::Sub, i, j);
    }
    let k = net.arg_max(y, false);
    net.finish(&[f, c, e, y, k])
}

/// As a host leaves a part of its network to the machine: values of several types at both borders, some of which only pass.
fn segment() -> Graph {
    let mut net = Net::new(31);
    let (x, y) = (net.input(&[2, 6, 6, 20]), net.input(&[2, 6, 6, 20]));
    let e = net.embedding(9, 20, &[2, 6, 6]);
    let a = net.binary(BinaryKind::Add, x, y);
    let mut b = net.conv(a, 20, window(3, 1, 1), 1);
    for _ in 0..12 {
        let inner = net.conv(b, 20, window(3, 1, 1), 20);
        let outer = net.conv(inner, 20, window(1, 1, 0), 1);
        b = net.binary(BinaryKind::Max, outer, x);
    }
    let c = net.binary(BinaryKind::Sub, b, e);
    let d = net.arg_max(c, false);
    let f = net.reduce(c, ReduceKind::Sum, &[1, 2], false);
    net.finish(&[c, d, f, x])
}

fn pyramid() -> Graph {
    let mut net = Net::new(32);
    let x = net.input(&[1, 24, 24, 3]);
    let a = net.conv(x, 16, window(3, 1, 1), 1);
    let b = net.conv(a, 16, window(3, 1, 1), 16);
    let c = net.max_pool(b, window(2, 2, 0));
    let d = net.conv(c, 24, window(3, 1, 1), 1);
    let e = net.unary(d);
    net.finish(&[e])
}

fn blocks(net: &mut Net, x: TensorId, count: usize, width: usize) -> TensorId {
    let mut y = net.conv(x, width, window(3, 1, 1), 1);
    for _ in 0..count {
        let a = net.conv(y, width, window(3, 1, 1), 1);
        let b = net.conv(a, width, window(3, 1, 1), width);
        y = net.binary(BinaryKind::Add, b, y);
    }
    y
}

fn deep_int16() -> Graph {
    let mut net = Net::new(33);
    net.wide = true;
    let x = net.input(&[1, 8, 8, 6]);
    let y = blocks(&mut net, x, 12, 16);
    let z = net.reduce(y, ReduceKind::Sum, &[1, 2], false);
    net.finish(&[z, y])
}

/// Blocks before a pool and behind it; on a small machine some thousands of instructions.
fn deep(seed: u64, before: usize, behind: usize) -> Graph {
    let mut net = Net::new(seed);
    let x = net.input(&[2, 14, 14, 3]);
    let a = blocks(&mut net, x, before, 40);
    let b = net.max_pool(a, window(2, 2, 0));
    let c = blocks(&mut net, b, behind, 48);
    let d = net.average_pool(c, window(7, 1, 0), false);
    let e = net.reshape(d, &[2, 48]);
    let f = net.matmul(e, 30);
    net.finish(&[f])
}
