//! What each field of the parameters does, and that none breaks a plan.

use std::collections::BTreeSet;

use crate::common::{Net, random, residual, tiny, window};
use tpuflow_ir::isa::Direction;
use tpuflow_ir::{Graph, LayerId, Machine, Program, Unit, Work};
use tpuflow_scheduler::parameters::{Balancing, Dependency, Parameters, Pass};
use tpuflow_scheduler::{Options, schedule};

fn compile(graph: &Graph, machine: &Machine, parameters: &Parameters) -> Program {
    let options = Options { level: 5, parameters: Some(parameters.clone()), ..Options::default() };
    let program = schedule(graph, machine, &options).unwrap();
    assert_eq!(program.fallback, None);
    assert_eq!(tpuflow_checker::check(graph, &program), Ok(()));
    program
}

fn changed(change: impl Fn(&mut Parameters)) -> Parameters {
    let mut parameters = Parameters::o5();
    change(&mut parameters);
    parameters
}

fn asic() -> Machine {
    Machine::preset("128x128_asic").unwrap()
}

/// A network of several layers whose tensors all fit the cache of the large machine.
fn networks() -> Vec<Graph> {
    vec![residual(7), random(3, 12), random(11, 12)]
}

fn transfers(program: &Program) -> impl Iterator<Item = &tpuflow_ir::isa::Transfer> {
    program.instructions.iter().filter_map(|i| if let Work::Transfer(t) = &i.work { Some(t) } else { None })
}

fn moved(program: &Program) -> u64 {
    transfers(program).map(tpuflow_ir::isa::Transfer::total_bytes).sum()
}

// feature: SCH-04, SCH-05
#[test]
fn levels_are_the_presets() {
    for graph in networks() {
        for (level, preset) in [(1, Parameters::o1()), (5, Parameters::o5())] {
            let named = schedule(&graph, &asic(), &Options { level, ..Options::default() }).unwrap();
            let given = Options { level, parameters: Some(preset), ..Options::default() };
            assert_eq!(named, schedule(&graph, &asic(), &given).unwrap());
        }
    }
}

// feature: SCH-08
#[test]
fn tensors_that_stay_in_the_cache_are_not_transferred() {
    for graph in networks() {
        let kept = compile(&graph, &asic(), &Parameters::o5());
        let sent = compile(&graph, &asic(), &changed(|p| p.action_graph_data_transfer_optimization = false));
        assert!(moved(&kept) < moved(&sent));
        assert_eq!(kept.spill_bytes, 0);
        assert!(sent.spill_bytes > 0);
    }
}

// feature: SCH-09
#[test]
fn units_side_by_side_take_no_longer_than_one_after_the_other() {
    for graph in networks() {
        let one = compile(&graph, &asic(), &changed(|p| p.dependency_resolution_algorithm = Dependency::Sequential));
        let all = compile(&graph, &asic(), &Parameters::o5());
        assert!(all.predicted_cycles <= one.predicted_cycles);
        assert!(one.instructions.iter().skip(1).all(|i| i.waits.len() == 1));
    }
}

// feature: SCH-10
#[test]
fn constants_lie_in_all_memories_or_in_the_first() {
    let mut net = Net::new(2);
    let mut x = net.input(&[1, 8, 8, 128]);
    for _ in 0..4 {
        x = net.conv(x, 128, window(3, 1, 1), 1);
    }
    let graph = net.finish(&[x]);
    let spaces = |program: &Program| program.constants.iter().filter(|c| !c.is_empty()).count();
    let both = compile(&graph, &asic(), &Parameters::o5());
    let one = compile(&graph, &asic(), &changed(|p| p.ram_io_balancing = Balancing::None));
    assert_eq!((spaces(&both), spaces(&one)), (2, 1));
    assert!(both.instructions.iter().any(|i| i.unit == Unit::Dtl1));
    assert!(both.predicted_cycles < one.predicted_cycles);
}

fn insertion(depth: i64, time_limit_seconds: i64) -> Pass {
    Pass::IntermediateInsertion { depth, time_limit_seconds }
}

// feature: SCH-11, SCH-12
#[test]
fn loads_ahead_never_cost_and_stay_without_time() {
    for graph in networks() {
        let with = |passes: Vec<Pass>| {
            compile(
                &graph,
                &asic(),
                &changed(|p| p.shared_cache_schedule_optimizations.configurations.clone_from(&passes)),
            )
        };
        let (none, far) = (with(vec![]), with(vec![insertion(-1, -1)]));
        assert_eq!(none, with(vec![insertion(-1, 0)]));
        assert_eq!(none, with(vec![insertion(0, 0)]));
        assert!(far.predicted_cycles <= none.predicted_cycles);
        for depth in [1, 2, 5] {
            assert!(with(vec![insertion(depth, -1)]).predicted_cycles <= none.predicted_cycles);
        }
    }
}

// feature: SCH-13
#[test]
fn grouped_constants_take_fewer_loads() {
    for graph in networks() {
        let loads = |program: &Program| transfers(program).filter(|t| t.direction == Direction::Load).count();
        let grouping = |depth| Pass::BiasScaleNegativeScaleAggressiveGrouping { depth, time_limit_seconds: -1 };
        let with = |passes: Vec<Pass>| {
            let mut parameters = changed(|p| p.shared_cache_schedule_optimizations.configurations.clone_from(&passes));
            parameters.layer_fusion = 0;
            loads(&compile(&graph, &asic(), &parameters))
        };
        let (alone, grouped) = (with(vec![insertion(-1, -1)]), with(vec![grouping(0), insertion(-1, -1)]));
        assert!(grouped < alone, "{grouped} of {alone}");
        assert!((grouped..=alone).contains(&with(vec![grouping(2), insertion(-1, -1)])));
    }
}

// feature: SCH-11, SCH-14
#[test]
fn flags_of_both_caches_leave_valid_plans() {
    for graph in networks() {
        // All sixteen on the tiny machine, which compiles in a fraction of the time.
        for (machine, step) in [(asic(), 5), (tiny(64), 1)] {
            for flags in (0..16u32).step_by(step) {
                let flag = |bit: u32| flags >> bit & 1 == 1;
                let parameters = changed(|p| {
                    let (shared, ewp) =
                        (&mut p.shared_cache_schedule_optimizations, &mut p.ewp_cache_schedule_optimizations);
                    (shared.round_robin, shared.fallthrough_patch) = (flag(0), flag(1));
                    (ewp.round_robin, ewp.fallthrough_patch) = (flag(2), flag(3));
                });
                compile(&graph, &machine, &parameters);
            }
        }
    }
}

/// A wide image through two convolutions: enough rows to cut.
fn tall() -> Graph {
    let mut net = Net::new(5);
    let x = net.input(&[1, 64, 64, 8]);
    let x = net.conv(x, 16, window(3, 1, 1), 1);
    let y = net.conv(x, 16, window(3, 1, 1), 1);
    net.finish(&[y])
}

// feature: SCH-15
#[test]
fn planes_are_cut_as_often_as_allowed() {
    let graph = tall();
    let mut counts = BTreeSet::new();
    for limit in [0, 1, 2, 8] {
        let program = compile(&graph, &asic(), &changed(|p| p.slicer.spatial_limit = limit));
        let rows = |layer: u32| {
            let ours = program.instructions.iter().filter(|i| i.layer == LayerId(layer));
            let starts: BTreeSet<u32> =
                ours.filter_map(|i| if let Work::Matrix(m) = &i.work { Some(m.first_pixel) } else { None }).collect();
            starts.len()
        };
        // The accumulators force a number of cuts.
        let forced = (64usize * 64).div_ceil(asic().matrix_rows(false));
        let most = forced.max(4usize.pow(limit)) + 1;
        assert!((0..2).all(|layer| rows(layer) <= most), "{limit}: {} and {}", rows(0), rows(1));
        counts.insert(rows(0));
    }
    assert!(counts.len() > 1, "{counts:?}");
}

// feature: SCH-15
#[test]
fn pieces_take_their_share_of_the_cache() {
    // Every tensor in DDR: pieces are staged, as large as the share allows.
    let graph = tall();
    let largest = |share: f64| {
        let parameters = changed(|p| {
            p.action_graph_data_transfer_optimization = false;
            p.layer_fusion = 0;
            p.slicer.max_cache_utilization = share;
        });
        let program = compile(&graph, &tiny(64), &parameters);
        program.allocations.iter().map(|a| a.bytes).max().unwrap()
    };
    assert!(largest(0.1) < largest(0.5));
}

#[test]
fn layers_run_side_by_side_as_far_as_allowed() {
    let mut net = Net::new(5);
    let x = net.input(&[1, 64, 64, 8]);
    let y = net.conv(x, 128, window(3, 1, 1), 1);
    let z = net.max_pool(y, window(3, 1, 1));
    let graph = net.finish(&[z]);
    let interleaved = |fusion: i64| {
        let program = compile(&graph, &asic(), &changed(|p| p.layer_fusion = fusion));
        let last = program.instructions.iter().rposition(|i| matches!(i.work, Work::Matrix(_)));
        program.instructions.iter().position(|i| matches!(i.work, Work::Pool(_))) < last
    };
    assert!(!interleaved(0));
    assert!(interleaved(1));
    assert!(interleaved(-1));
}

#[test]
fn every_corner_of_the_parameters_gives_a_valid_plan() {
    for seed in 0..6 {
        let graph = random(seed, 10);
        for machine in [asic(), tiny(64)] {
            for parallel in [Dependency::Sequential, Dependency::Parallel] {
                for mirror in [Balancing::None, Balancing::Mirror] {
                    let parameters = changed(|p| {
                        p.dependency_resolution_algorithm = parallel;
                        p.ram_io_balancing = mirror;
                        p.action_graph_data_transfer_optimization = seed % 2 == 0;
                        p.layer_fusion = seed as i64 % 3 - 1;
                        p.slicer.analysis_depth = 1 + seed as u32;
                        p.slicer.max_cache_utilization = 0.25;
                        p.shared_cache_schedule_optimizations.configurations = vec![insertion(seed as i64 % 4, 1)];
                    });
                    let options = Options { level: 5, parameters: Some(parameters), ..Options::default() };
                    let Ok(program) = schedule(&graph, &machine, &options) else { continue };
                    assert_eq!(tpuflow_checker::check(&graph, &program), Ok(()), "seed {seed}");
                }
            }
        }
    }
}
