//! Attention by blocks of keys: the integers of the undivided softmax, whatever the blocks, in the graph in parts and in programs.

use std::sync::Arc;

use crate::common::Net;
use crate::trial::{STEPS, inputs};
use tpuflow_ir::op::Measure;
use tpuflow_ir::{Arithmetic, BinaryKind, DType, Graph, LayerId, Machine, Op, Parts, Program, TensorId, Tiling};
use tpuflow_kernels::Values;
use tpuflow_scheduler::tiling::request::Request;
use tpuflow_scheduler::tiling::{Tiled, tiled};
use tpuflow_scheduler::{Options as ScheduleOptions, ScheduleError, schedule, schedule_by};
use tpuflow_simulator::{ArrayModel, Interpreter, Keep, Options, simulate};

/// What scores are masked by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    /// The same keys for all queries.
    OfKeys,
    /// Some keys of each query; of some queries all of them.
    OfPairs,
    /// Conditions that are computed.
    Computed,
}

const MASKS: [Mask; 4] = [Mask::None, Mask::OfKeys, Mask::OfPairs, Mask::Computed];

/// Attention of `heads` matrices over inputs; `between`: with a function between scores and softmax. Returns the graph, and the
/// numbers of the first and last layer of the attention.
fn attention(seed: u64, [heads, queries, keys, depth]: [usize; 4], mask: Mask, between: bool) -> (Graph, [u32; 2]) {
    let mut net = Net::new(seed);
    net.wide = seed % 3 == 1;
    let q = net.input(&[1, queries, heads, depth]);
    let (k, v) = (net.input(&[1, heads, depth, keys]), net.input(&[1, heads, keys, depth]));
    let q = net.transposed(q);
    let mask = match mask {
        Mask::None => None,
        Mask::OfKeys => Some(net.constant(&[1, 1, 1, keys], DType::I8, 0, 1)),
        Mask::OfPairs => Some(net.constant(&[queries, keys], DType::I8, 0, 1)),
        Mask::Computed => {
            let (a, b) = (net.input(&[1, 1, queries, keys]), net.input(&[1, 1, 1, keys]));
            Some(net.compare(BinaryKind::Less, a, b))
        }
    };
    let scores = net.product(q, k);
    let scores = if between { net.unary(scores) } else { scores };
    let shares = net.softmax_by(scores, mask);
    let sums = net.product(shares, v);
    let y = net.unary(sums);
    let mut graph = net.finish(&[y]);
    one_scale(&mut graph);
    let count = graph.layers.len() as u32;
    (graph, [0, count - 2])
}

/// Gives products one multiplier for all columns, and nothing behind it.
fn one_scale(graph: &mut Graph) {
    for layer in &mut graph.layers {
        if let Op::MatMul { epilogue: Arithmetic::Fixed(epilogue), .. } = &mut layer.op {
            let (lo, hi) = graph.tensors[layer.output.index()].dtype.range();
            epilogue.requant.multiplier.truncate(1);
            epilogue.requant.shift.truncate(1);
            epilogue.requant.shift[0] += epilogue.first_shift.take().unwrap_or(0) as i8;
            (epilogue.requant.lo, epilogue.requant.hi, epilogue.table) = (lo as i32, hi as i32, None);
        }
    }
}

trait Transposed {
    fn transposed(&mut self, x: TensorId) -> TensorId;
}

impl Transposed for Net {
    /// `[1, a, b, c]` to `[1, b, a, c]`.
    fn transposed(&mut self, x: TensorId) -> TensorId {
        let [n, a, b, c] = self.shape(x)[..] else { panic!("four axes") };
        let dims = [n, b, a, c].map(|extent| extent as u32).to_vec();
        let strides = [a * b * c, c, b * c, 1].map(|stride| stride as i64).to_vec();
        self.rearrange(x, Op::Rearrange { input: x, dims, strides, offset: 0 }, &[n, b, a, c])
    }
}

fn outputs(graph: &Graph, given: &[Values]) -> Vec<Vec<u8>> {
    let run = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given.to_vec(), Keep::Outputs).unwrap();
    graph.outputs.iter().map(|id| run.get(*id).unwrap().to_le_bytes()).collect()
}

fn tiling([first, last]: [u32; 2], [matrices, queries, keys]: [u32; 3], keeps_scores: bool) -> Tiling {
    let parts = Parts::KeyBlocks { matrices, queries, keys, keeps_scores };
    Tiling { first: LayerId(first), last: LayerId(last), parts }
}

#[test]
fn any_blocks_give_the_integers_of_the_whole() {
    for seed in 0..48u64 {
        let mask = MASKS[seed as usize % 4];
        let heads = 1 + seed as usize % 3;
        let (queries, keys) = (3 + seed as usize % 11, 7 + seed as usize * 5 % 40);
        let (graph, run) = attention(seed, [heads, queries, keys, 8], mask, seed % 5 == 0);
        let given = inputs(&graph, seed);
        let expected = outputs(&graph, &given);
        for (parts, block) in [(1, 99), (1, keys as u32 / 2), (2, 5), (3, 1)] {
            let tilings = [tiling(run, [heads as u32, parts, block], seed % 7 < 3)];
            let found = tiled(&graph, &tilings).unwrap();
            assert_eq!(tpuflow_checker::in_parts(&graph, &tilings).as_ref(), Ok(&found.graph), "seed {seed}");
            assert_eq!(tpuflow_checker::check_parts(&graph, &found.graph, &found.claims), Ok(()), "seed {seed}");
            assert_eq!(
                outputs(&found.graph, &given),
                expected,
                "seed {seed}, {mask:?}, {parts} parts, blocks of {block}"
            );
        }
    }
}

#[test]
fn programs_by_blocks_keep_every_bit() {
    let mut small = Machine::preset("32x32_fpga").unwrap();
    (small.cache.banks, small.cache.words) = (8, 512);
    for (seed, machine) in (0..12).zip(
        ["128x128_asic", "32x32_fpga", "64x64_edge"]
            .map(|n| Machine::preset(n).unwrap())
            .iter()
            .chain([&small])
            .cycle(),
    ) {
        let (heads, mask) = (1 + seed as usize % 2, MASKS[seed as usize / 3 % 4]);
        let (graph, [first, last]) = attention(seed, [heads, 40, 90, 16], mask, seed % 4 == 3);
        let tiling =
            Request { attention: vec![[first, last, heads as u32, 2, 32, seed as u32 % 2]], ..Request::default() };
        for level in [1, 5] {
            let options =
                ScheduleOptions { level, tiling: tiling.clone(), budget_steps: STEPS, ..ScheduleOptions::default() };
            let program = schedule(&graph, machine, &options).unwrap();
            assert_eq!(program.fallback, None, "seed {seed}");
            assert_eq!(tpuflow_checker::check(&graph, &program), Ok(()), "seed {seed}, level {level}");
            let given = inputs(&graph, seed);
            let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
            let run = simulate(&program, &bytes, &Options::default()).unwrap();
            assert_eq!(run.outputs, outputs(&graph, &given), "seed {seed}, level {level} on {}", machine.name);
            let registers = Options { array: ArrayModel::Register, ..Options::default() };
            for options in [registers, Options { stepped: true, ..Options::default() }] {
                let again = simulate(&program, &bytes, &options).unwrap();
                assert_eq!((again.cycles, &again.outputs), (run.cycles, &run.outputs), "seed {seed}, level {level}");
            }
            assert!(run.cycles >= program.bounds.binding().1, "seed {seed}");
        }
    }
}

#[test]
fn what_is_no_attention_is_refused_by_name() {
    let (graph, [first, last]) = attention(0, [2, 9, 20, 8], Mask::None, false);
    let of = |run, parts| match tiled(&graph, &[tiling(run, parts, false)]) {
        Err(ScheduleError::Tiling { layer, reason }) => {
            assert!(tpuflow_checker::in_parts(&graph, &[tiling(run, parts, false)]).is_err(), "{reason}");
            format!("{layer}: {reason}")
        }
        other => panic!("{:?}", other.map(|found| found.graph.layers.len())),
    };
    assert!(of([first, last], [1, 1, 2]).contains("several matrices"));
    assert!(of([first, last], [2, 1, 0]).contains("no keys to cut"));
    assert!(of([first, last], [2, 10, 2]).contains("9 columns, too few"));
    // The layer behind belongs to it, the softmax does not, or nothing is multiplied.
    assert!(of([first, last + 1], [2, 1, 2]).contains("no product of a softmax"));
    assert!(of([last, last], [2, 1, 2]).contains("no product of a softmax"));
    assert!(of([first, last - 1], [2, 1, 2]).contains("no product of a softmax"));
}

/// Every way to go on with other statistics or sums than those of the blocks before.
#[test]
fn graphs_with_other_blocks_are_not_proven() {
    let (graph, run) = attention(4, [2, 6, 12, 8], Mask::OfPairs, false);
    let sound = tiled(&graph, &[tiling(run, [2, 2, 4], false)]).unwrap();
    let refused = |what: &str, change: &dyn Fn(&mut Tiled)| {
        let mut broken = Tiled { graph: sound.graph.clone(), claims: sound.claims.clone() };
        change(&mut broken);
        assert!(broken.graph != sound.graph, "{what} changes nothing");
        let found = tpuflow_checker::check_parts(&graph, &broken.graph, &broken.claims);
        assert!(found.is_err(), "{what} was proven");
    };
    let of = |name: &str| -> Vec<usize> {
        let layers = sound.graph.layers.iter().enumerate();
        layers.filter(|(_, layer)| layer.op.name() == name).map(|(at, _)| at).collect()
    };
    let (statistics, softmaxes, sums) = (of("softmax_statistics"), of("softmax"), of("reduce"));
    let partial: Vec<usize> = of("mat_mul").into_iter().filter(|&at| is_partial(&sound.graph.layers[at].op)).collect();
    assert_eq!([statistics.len(), softmaxes.len(), sums.len(), partial.len()], [24, 12, 4, 12]);
    let output = |at: usize| sound.graph.layers[at].output;
    let earlier = |t: &mut Tiled, at: usize, of: Option<TensorId>| {
        let Op::SoftmaxStatistics { earlier, .. } = &mut t.graph.layers[at].op else { panic!("statistics") };
        *earlier = of;
    };
    // Of a part: maxima of three blocks, then three sums, then three shares.
    refused("a maximum without the block before", &|t| earlier(t, statistics[2], None));
    refused("a maximum with the block before left out", &|t| earlier(t, statistics[2], Some(output(statistics[0]))));
    refused("a sum from the maximum of some", &|t| earlier(t, statistics[3], Some(output(statistics[1]))));
    refused("a sum with a block counted twice", &|t| earlier(t, statistics[4], Some(output(statistics[2]))));
    refused("a sum of another part", &|t| earlier(t, statistics[10], Some(output(statistics[3]))));
    refused("a sum by another table", &|t| {
        let Op::SoftmaxStatistics { measure: Measure::Sum { coefficient }, .. } = &mut t.graph.layers[statistics[3]].op
        else {
            panic!("a sum")
        };
        *coefficient += 1;
    });
    refused("statistics without the mask", &|t| {
        let Op::SoftmaxStatistics { mask, .. } = &mut t.graph.layers[statistics[0]].op else { panic!("statistics") };
        *mask = None;
    });
    let shares = |t: &mut Tiled, of: Option<TensorId>| {
        let Op::Softmax { statistics, .. } = &mut t.graph.layers[softmaxes[0]].op else { panic!("a softmax") };
        *statistics = of;
    };
    refused("shares by the sum of some", &|t| shares(t, Some(output(statistics[4]))));
    refused("shares by a maximum", &|t| shares(t, Some(output(statistics[2]))));
    refused("shares by a block's own", &|t| shares(t, None));
    refused("shares of another part", &|t| shares(t, Some(output(statistics[11]))));
    refused("sums of a block twice", &|t| {
        let stack = sums[0] - 1;
        let Op::Concat { inputs, .. } = &mut t.graph.layers[stack].op else { panic!("a stack") };
        inputs[1] = inputs[0];
    });
    refused("sums of two blocks of three", &|t| {
        let Op::Reduce { input, .. } = &mut t.graph.layers[sums[0]].op else { panic!("a sum") };
        *input = output(partial[0]);
    });
    refused("sums by another scale", &|t| {
        let Op::Reduce { requant: Arithmetic::Fixed(requant), .. } = &mut t.graph.layers[sums[0]].op else {
            panic!("a sum")
        };
        requant.shift[0] += 1;
    });
    refused("a product of other values", &|t| {
        let other = t.graph.layers[partial[1]].op.operands()[1];
        let Op::MatMul { b, .. } = &mut t.graph.layers[partial[0]].op else { panic!("a product") };
        *b = other;
    });
}

fn is_partial(op: &Op) -> bool {
    matches!(op, Op::MatMul { partial: true, .. })
}

/// Shares of a tile of queries with all keys take too much of the cache: level 5 takes blocks, and nothing is spilled.
#[test]
fn long_keys_stay_on_the_chip() {
    let mut machine = Machine::preset("128x128_asic").unwrap();
    machine.cache.banks = 4;
    let (graph, _) = attention(3, [1, 1024, 6000, 64], Mask::None, false);
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let options = ScheduleOptions { level: 5, budget_steps: STEPS, ..ScheduleOptions::default() };
    let program = schedule_by(&graph, &machine, &options, &timing).unwrap();
    assert!(matches!(program.tilings[..], [Tiling { parts: Parts::KeyBlocks { .. }, .. }]), "{:?}", program.tilings);
    assert_eq!((program.spill_bytes, tpuflow_checker::check(&graph, &program)), (0, Ok(())));
    let (cycles, bound) = (simulate(&program, &[], &untraced).unwrap().cycles, program.bounds.binding().1);
    assert!(3 * cycles < 5 * bound, "{cycles} cycles, bound {bound}");
}
