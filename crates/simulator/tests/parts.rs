//! Layers in parts: forced slices, runs and whole networks in parts, groups that stay on the chip. Every integer is that of the
//! graph as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::wild::wild;
use crate::common::{Net, Random, random, residual, tiny, window};
use crate::trial::{STEPS, inputs};
use tpuflow_ir::{BinaryKind, Graph, LayerId, Machine, Op, Parts, Program, TensorId, Tiling};
use tpuflow_kernels::Values;
use tpuflow_scheduler::parameters::{GroupSearch, Parameters};
use tpuflow_scheduler::tiling::groups::division;
use tpuflow_scheduler::tiling::request::{Axis, Request, Slice};
use tpuflow_scheduler::tiling::{Tiled, tiled};
use tpuflow_scheduler::{Options as ScheduleOptions, ScheduleError, schedule, schedule_by};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

/// Bytes of every output.
fn outputs(graph: &Graph, given: &[Values]) -> Option<Vec<Vec<u8>>> {
    let tensors = Interpreter::new(Arc::new(graph.clone())).ok()?.run(given.to_vec(), Keep::Outputs).unwrap();
    Some(graph.outputs.iter().map(|id| tensors.get(*id).unwrap().to_le_bytes()).collect())
}

/// Whether a graph in parts is proven, derived alike by the checker, and gives the same; false where the original cannot be run.
fn same(graph: &Graph, tilings: &[Tiling], found: &Tiled, seed: u64) -> bool {
    let derived = tpuflow_checker::in_parts(graph, tilings);
    assert!(tilings.is_empty() || derived.as_ref() == Ok(&found.graph), "seed {seed}: {:?}", derived.err());
    assert_eq!(tpuflow_checker::check_parts(graph, &found.graph, &found.claims), Ok(()), "seed {seed}");
    let given = inputs(graph, seed);
    let Some(expected) = outputs(graph, &given) else { return false };
    assert_eq!(outputs(&found.graph, &given).unwrap(), expected, "seed {seed}");
    true
}

/// Compiles at a level, simulates, and compares with the graph.
fn runs(graph: &Graph, machine: &Machine, options: &ScheduleOptions, seed: u64) -> Program {
    let program = schedule(graph, machine, options).unwrap();
    assert_eq!(program.fallback, None);
    assert_eq!(tpuflow_checker::check(graph, &program), Ok(()));
    let given = inputs(graph, seed);
    let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    let run = simulate(&program, &bytes, &Options::default()).unwrap();
    assert_eq!(run.outputs, outputs(graph, &given).unwrap());
    assert!(run.cycles >= program.bounds.binding().1, "{} cycles beat {:?}", run.cycles, program.bounds);
    program
}

fn level(level: u8, tiling: Request) -> ScheduleOptions {
    ScheduleOptions { level, tiling, budget_steps: STEPS, ..ScheduleOptions::default() }
}

/// Two views that take the same elements in the same order give tensors of different shapes, whose boxes hold others.
#[test]
fn views_that_take_the_same_elements_have_parts_of_their_own() {
    let mut net = Net::new(3);
    let x = net.input(&[1, 96]);
    let (wide, high) = (net.reshape(x, &[1, 4, 6, 4]), net.reshape(x, &[1, 8, 3, 4]));
    let outputs = [wide, high].map(|view| net.unary(view));
    let graph = net.finish(&outputs);
    assert_eq!(graph.layers[0].op, graph.layers[1].op);
    for layers in [[0, 2], [1, 3]] {
        let parts = || Parts::Grid { images: 1, rows: 2, columns: 1 };
        let tilings = layers.map(LayerId::new).map(|layer| Tiling { first: layer, last: layer, parts: parts() });
        let found = tiled(&graph, &tilings).unwrap();
        assert!(found.graph.layers.len() > graph.layers.len());
        assert!(same(&graph, &tilings, &found, 5));
    }
}

// feature: TIL-01, SCH-23
#[test]
fn runs_of_any_network_in_parts_give_the_same_integers() {
    let (mut ran, mut grew) = (0, 0);
    for seed in 0..400 {
        let graph = if seed % 2 == 0 { random(seed, 9) } else { wild(seed, 7, 3000) };
        let mut random = Random(seed + 77);
        let first = random.below(graph.layers.len());
        let last = (first + random.below(5)).min(graph.layers.len() - 1);
        let mut count = || 1 + random.below(3) as u32;
        let parts = Parts::Grid { images: count().min(2), rows: count(), columns: count() };
        let tiling = Tiling { first: LayerId::new(first), last: LayerId::new(last), parts };
        let tilings = [tiling];
        match tiled(&graph, &tilings) {
            Ok(found) => {
                ran += u32::from(same(&graph, &tilings, &found, seed));
                grew += u32::from(found.graph.layers.len() > graph.layers.len());
            }
            Err(ScheduleError::Tiling { layer, reason }) => {
                assert!(!layer.is_empty(), "{reason}");
                assert!(tpuflow_checker::in_parts(&graph, &tilings).is_err(), "seed {seed}: {layer} {reason}");
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(ran > 80 && grew > 60, "{ran} ran, {grew} grew");
}

/// Convolutions, a branch, pooling: a plane of 24 x 20.
fn branched() -> Graph {
    let mut net = Net::new(3);
    let x = net.input(&[1, 24, 20, 8]);
    let a = net.conv(x, 16, window(3, 1, 1), 1);
    let b = net.conv(a, 16, window(3, 1, 1), 16);
    let c = net.conv(b, 16, window(1, 1, 0), 1);
    let d = net.binary(BinaryKind::Add, a, c);
    let e = net.max_pool(d, window(2, 2, 0));
    let f = net.unary(e);
    net.finish(&[f])
}

// feature: TIL-01
#[test]
fn programs_of_runs_in_parts_are_proven_and_equal() {
    let graph = branched();
    let last = graph.layers.len() as u32 - 1;
    for machine in [Machine::preset("128x128_asic").unwrap(), tiny(64)] {
        for at in [1, 5] {
            for runs_of in [vec![[0, last, 2, 2]], vec![[0, 1, 3, 1], [2, last, 1, 2]]] {
                let request = Request { runs: runs_of, ..Request::default() };
                let whole = runs(&graph, &machine, &level(at, Request::default()), 4);
                let parts = runs(&graph, &machine, &level(at, request), 4);
                assert!(parts.layers.len() > whole.layers.len());
                assert!(!parts.tilings.is_empty());
            }
        }
    }
}

// feature: TIL-01
#[test]
fn wrong_runs_are_named() {
    let graph = branched();
    let refused = |run: [u32; 4]| {
        let request = Request { runs: vec![run], ..Request::default() };
        schedule(&graph, &tiny(64), &level(1, request)).unwrap_err().to_string()
    };
    assert!(refused([0, 99, 2, 2]).contains("do not exist"));
    assert!(refused([3, 1, 2, 2]).contains("do not exist"));
    assert!(refused([0, 0, 25, 1]).contains("24 rows, too few for 25 parts"));
}

// feature: TIL-02
#[test]
fn the_whole_network_in_two_by_two_is_equal_and_has_more_operators() {
    for (graph, seed) in [(branched(), 1), (residual(5), 2)] {
        let request = Request { rows: 2, columns: 2, ..Request::default() };
        let tilings = request.tilings(&graph).unwrap();
        let found = tiled(&graph, &tilings).unwrap();
        assert!(same(&graph, &tilings, &found, seed));
        assert!(found.graph.layers.len() > 2 * graph.layers.len());
        assert_eq!(Request::default().tilings(&graph).unwrap(), []);
        for at in [1, 5] {
            runs(&graph, &Machine::preset("32x32_fpga").unwrap(), &level(at, request.clone()), seed);
        }
    }
}

// feature: TIL-03
#[test]
fn layers_with_large_kernels_stay_whole() {
    let mut net = Net::new(9);
    let x = net.input(&[1, 12, 12, 4]);
    let y = net.conv(x, 8, window(11, 1, 5), 1);
    let z = net.conv(y, 8, window(1, 1, 0), 1);
    let graph = net.finish(&[z]);
    let cut = |overlap: u32| -> Vec<u32> {
        let request = Request { rows: 2, overlap, ..Request::default() };
        let tilings = request.tilings(&graph).unwrap();
        tilings.iter().flat_map(|tiling| tiling.first.0..=tiling.last.0).collect()
    };
    // Each half of the first reads 11 of 12 rows: 10 of 22 are read twice.
    assert_eq!(cut(46), [0, 1]);
    assert_eq!(cut(45), [1]);
    assert_eq!(cut(0), [1]);
}

fn slice(ranges: &[(Axis, u32, u32)]) -> Slice {
    ranges.iter().map(|&(axis, from, to)| (axis, [from, to])).collect()
}

fn sliced(graph: &Graph, layer: usize, slices: Vec<Slice>) -> Request {
    Request { slices: BTreeMap::from([(graph.layers[layer].name.clone(), slices)]), ..Request::default() }
}

// feature: SCH-16
#[test]
fn slices_are_obeyed_exactly() {
    use Axis::{Channel, Height, Width};
    let graph = branched();
    let cuts = [
        vec![slice(&[(Height, 0, 5)]), slice(&[(Height, 5, 24)])],
        vec![slice(&[(Channel, 0, 7)]), slice(&[(Channel, 7, 16)])],
        vec![
            slice(&[(Height, 10, 24)]),
            slice(&[(Height, 0, 10), (Width, 3, 20)]),
            slice(&[(Height, 0, 10), (Width, 0, 3)]),
        ],
    ];
    for slices in cuts {
        for layer in 0..graph.layers.len() - 2 {
            let request = sliced(&graph, layer, slices.clone());
            let tilings = request.tilings(&graph).unwrap();
            let found = tiled(&graph, &tilings).unwrap();
            assert!(same(&graph, &tilings, &found, 8));
            let name = format!("{}#", graph.layers[layer].name);
            let made: Vec<usize> = (found.graph.layers.iter())
                .filter(|l| l.name.starts_with(&name) && !matches!(l.op, Op::Concat { .. }))
                .map(|l| found.graph.tensor(l.output).elements())
                .collect();
            let wanted = |slice: &Slice| {
                let extent = |axis, all| slice.get(&axis).map_or(all, |range| (range[1] - range[0]) as usize);
                extent(Height, 24) * extent(Width, 20) * extent(Channel, 16)
            };
            assert_eq!(made, slices.iter().map(wanted).collect::<Vec<_>>());
        }
        for at in [1, 5] {
            runs(&graph, &tiny(64), &level(at, sliced(&graph, 0, slices.clone())), 8);
        }
    }
}

// feature: SCH-16
#[test]
fn impossible_slices_are_refused() {
    use Axis::{Batch, Channel, Height, Width};
    let graph = branched();
    let refused = |layer: usize, slices: Vec<Slice>| {
        schedule(&graph, &tiny(64), &level(5, sliced(&graph, layer, slices))).unwrap_err().to_string()
    };
    let half = slice(&[(Height, 0, 12)]);
    assert!(refused(0, vec![half.clone()]).contains("in no part"));
    assert!(refused(0, vec![half.clone(), slice(&[(Height, 11, 24)])]).contains("in two parts"));
    assert!(refused(0, vec![half.clone(), slice(&[(Height, 12, 25)])]).contains("has no part"));
    assert!(refused(0, vec![half.clone(), slice(&[(Height, 12, 12)])]).contains("has no part"));
    assert!(refused(0, vec![slice(&[(Batch, 0, 2)])]).contains("has no part"));
    let pinwheel = vec![
        slice(&[(Height, 0, 16), (Width, 0, 4)]),
        slice(&[(Height, 16, 24), (Width, 0, 10)]),
        slice(&[(Height, 8, 24), (Width, 10, 20)]),
        slice(&[(Height, 0, 8), (Width, 4, 20)]),
        slice(&[(Height, 8, 16), (Width, 4, 10)]),
    ];
    assert!(refused(0, pinwheel).contains("no straight cut"));
    let unknown = Request { slices: BTreeMap::from([("nobody".to_owned(), vec![half])]), ..Request::default() };
    let error = schedule(&graph, &tiny(64), &level(1, unknown)).unwrap_err().to_string();
    assert!(error.contains("\"nobody\"") && error.contains("does not exist"), "{error}");
    let mut net = Net::new(1);
    let x = net.input(&[1, 6, 6, 8]);
    let y = net.softmax(x, false);
    let graph = net.finish(&[y]);
    let slices = vec![slice(&[(Channel, 0, 4)]), slice(&[(Channel, 4, 8)])];
    let error = schedule(&graph, &tiny(64), &level(1, sliced(&graph, 0, slices))).unwrap_err().to_string();
    assert!(error.contains("all channels"), "{error}");
}

/// A graph in parts with one thing wrong.
type Damage = fn(&mut Tiled, &Graph);

#[test]
fn wrong_parts_are_not_proven() {
    let graph = branched();
    let request = Request { runs: vec![[0, graph.layers.len() as u32 - 1, 2, 2]], ..Request::default() };
    let sound = tiled(&graph, &request.tilings(&graph).unwrap()).unwrap();
    fn first(tiled: &mut Tiled, change: impl Fn(&mut Op) -> bool) {
        assert!(tiled.graph.layers.iter_mut().any(|layer| change(&mut layer.op)));
    }
    let damages: Vec<(&str, Damage)> = vec![
        ("padding", |t, _| {
            first(t, |op| {
                let Op::Conv { window, .. } = op else { return false };
                let any = window.pads[0] > 0 && window.pads[2] == 0;
                if any {
                    (window.pads[0], window.pads[2]) = (0, 1);
                }
                any
            });
        }),
        ("offset", |t, _| {
            first(t, |op| {
                let Op::Rearrange { offset, .. } = op else { return false };
                *offset += 8;
                true
            });
        }),
        ("order", |t, _| {
            first(t, |op| {
                let Op::Concat { inputs, .. } = op else { return false };
                inputs.reverse();
                true
            });
        }),
        ("scale", |t, _| {
            first(t, |op| {
                let Op::Conv { epilogue: tpuflow_ir::Arithmetic::Fixed(e), .. } = op else { return false };
                e.requant.multiplier[0] += 1;
                true
            });
        }),
        ("factor", |t, _| {
            first(t, |op| {
                let Op::Binary { ka, .. } = op else { return false };
                *ka += 1;
                true
            });
        }),
        ("claim", |t, _| {
            let part = t.claims.iter_mut().find(|(_, spans)| spans.len() == 4 && spans[1].0 > 0).unwrap();
            part.1[1] = (part.1[1].0 - 1, part.1[1].1 - 1);
        }),
        ("constant", |t, g| {
            let weights = t.claims.iter().position(|(of, s)| g.tensor(*of).constant.is_some() && s.len() == 4).unwrap();
            let mut bytes = t.graph.tensors[weights].constant.as_deref().unwrap().to_vec();
            bytes[3] ^= 1;
            t.graph.tensors[weights].constant = Some(bytes.into());
        }),
        ("output", |t, _| t.graph.outputs[0] = TensorId(t.graph.outputs[0].0 - 1)),
    ];
    for (what, damage) in damages {
        let mut broken = sound.clone();
        damage(&mut broken, &graph);
        assert!(tpuflow_checker::check_parts(&graph, &broken.graph, &broken.claims).is_err(), "{what} was proven");
    }
}

// feature: SCH-21
#[test]
fn divisions_are_as_cheap_as_the_cheapest_of_all() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let count = 1 + random.below(8);
        let prices: Vec<Vec<Option<u64>>> = (0..=count)
            .map(|_| (0..=count).map(|_| (!random.chance(25)).then(|| random.below(50) as u64)).collect())
            .collect();
        let price = |first: usize, end: usize| if end - first == 1 { Some(60) } else { prices[first][end] };
        // Every set of borders between neighbours.
        let cheapest = (0..1u32 << (count - 1)).filter_map(|borders| {
            let mut ends: Vec<usize> = (1..count).filter(|at| borders >> (at - 1) & 1 == 1).collect();
            ends.push(count);
            let mut first = 0;
            ends.into_iter().try_fold(0, |sum, end| {
                let cost = price(std::mem::replace(&mut first, end), end)?;
                Some(sum + cost)
            })
        });
        let (cost, runs) = division(count, count, 0, price).unwrap();
        assert_eq!(Some(cost), cheapest.min(), "seed {seed}");
        assert_eq!(runs.iter().map(|&(first, end)| price(first, end).unwrap()).sum::<u64>(), cost);
        assert!(runs.windows(2).all(|pair| pair[0].1 == pair[1].0) && runs.last().unwrap().1 == count);
    }
}

/// A plane that is far larger than the cache, through convolutions and a pool.
fn wide_plane() -> Graph {
    let mut net = Net::new(21);
    let x = net.input(&[1, 64, 32, 8]);
    let a = net.conv(x, 16, window(3, 1, 1), 1);
    let b = net.conv(a, 16, window(3, 1, 1), 16);
    let c = net.conv(b, 16, window(1, 1, 0), 1);
    let d = net.max_pool(c, window(2, 2, 0));
    let e = net.conv(d, 8, window(3, 2, 1), 1);
    net.finish(&[e])
}

// feature: SCH-17, SCH-21
#[test]
fn fused_layers_keep_what_lies_between_them_on_the_chip() {
    let graph = wide_plane();
    // Memory so slow that what passes through it decides.
    let mut machine = tiny(32);
    machine.ddr.clock_hz /= 16;
    let with = |layer_fusion: i64| {
        let parameters = Parameters { layer_fusion, ..Parameters::o5() };
        let options = ScheduleOptions {
            level: 5,
            parameters: Some(parameters),
            budget_steps: STEPS,
            ..ScheduleOptions::default()
        };
        runs(&graph, &machine, &options, 6)
    };
    let (apart, fused) = (with(0), with(-1));
    assert!(apart.tilings.is_empty() && apart.spill_bytes > 0);
    assert!(!fused.tilings.is_empty());
    assert!(fused.spill_bytes < apart.spill_bytes / 2, "{} of {}", fused.spill_bytes, apart.spill_bytes);
    assert!(fused.predicted_cycles < apart.predicted_cycles);
    // A part of the second layer is made of a part of the first, without the rest of it.
    let at = |layer: &str| {
        let number = fused.layers.iter().position(|l| l.name == layer).unwrap();
        fused.instructions.iter().position(|i| i.layer.index() == number).unwrap()
    };
    let [first, second] = [0, 1].map(|layer| &graph.layers[layer].name);
    assert!(at(&format!("{second}#1")) < at(&format!("{first}#3")));
}

// feature: SCH-22
#[test]
fn every_search_for_groups_gives_proven_programs_of_the_same_bits() {
    let graph = wide_plane();
    let mut machine = tiny(32);
    machine.ddr.clock_hz /= 16;
    let with = |layer_groups| {
        let parameters = Parameters { layer_groups, ..Parameters::o5() };
        let options = ScheduleOptions {
            level: 5,
            parameters: Some(parameters),
            budget_steps: STEPS,
            ..ScheduleOptions::default()
        };
        runs(&graph, &machine, &options, 6)
    };
    let programs = [GroupSearch::Greedy, GroupSearch::Dynamic, GroupSearch::Exact].map(with);
    assert!(programs.iter().all(|program| !program.tilings.is_empty()));
}

// feature: SCH-20, SCH-39
#[test]
fn time_that_is_up_leaves_level_one() {
    let graph = residual(4);
    let options = ScheduleOptions { level: 5, time_limit: Some(1e-9), ..ScheduleOptions::default() };
    let program = runs_with_fallback(&graph, &options);
    let note = program.fallback.unwrap();
    assert!(note.starts_with("level 1 taken; the settings asked for: the time limit"), "{note}");
}

/// Whoever times a plan takes longer than all the time there is: nothing is searched for, and the program says so.
#[test]
fn time_for_one_plan_leaves_the_one_that_is_made_quickest() {
    let (graph, machine) = (residual(4), tiny(64));
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| {
        std::thread::sleep(std::time::Duration::from_millis(60));
        Some(simulate(program, &[], &untraced).ok()?.cycles)
    };
    let with = |time_limit| {
        let options = ScheduleOptions { level: 5, time_limit, budget_steps: 1, ..ScheduleOptions::default() };
        let program = schedule_by(&graph, &machine, &options, &timing).unwrap();
        assert_eq!(tpuflow_checker::check(&graph, &program), Ok(()));
        program
    };
    let (quick, searched) = (with(Some(0.05)), with(Some(600.0)));
    assert_eq!(
        quick.fallback.as_deref(),
        Some("the plan that is made quickest taken; the time limit left no time for a search")
    );
    assert_eq!(searched.fallback, None);
    assert!(searched.predicted_cycles <= quick.predicted_cycles);
    // With time enough the search finds what it finds without a limit.
    assert_eq!(searched.instructions, with(None).instructions);
}

fn runs_with_fallback(graph: &Graph, options: &ScheduleOptions) -> Program {
    let program = schedule(graph, &tiny(64), options).unwrap();
    assert_eq!(tpuflow_checker::check(graph, &program), Ok(()));
    program
}
