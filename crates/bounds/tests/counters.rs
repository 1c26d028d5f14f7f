//! The least counters: no run stays below one, and for some network each is what a run counts.

use tpuflow_bounds::bounds;
use tpuflow_ir::{BinaryKind, DType, Graph, Machine, Program, Unit};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule_by};
use tpuflow_simulator::{Options, Run, simulate};

use crate::common::wild::{wild, wild_floats};
use crate::common::{self, Net};

/// What a run counts beside what every run counts at least, by name.
type Pairs = Vec<(&'static str, u64, u64)>;

/// By level, runs of programs that compute layers whole: those in parts have bounds of their own.
fn runs(graph: &Graph, machine: &Machine) -> Vec<(u8, Run)> {
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let levels = [1, 5].into_iter().filter_map(|level| {
        let options = ScheduleOptions { level, budget_steps: 5, ..ScheduleOptions::default() };
        let program = schedule_by(graph, machine, &options, &timing).ok()?;
        let run = simulate(&program, &[], &untraced).ok()?;
        program.tilings.is_empty().then_some((level, run))
    });
    levels.collect()
}

fn compared(graph: &Graph, machine: &Machine, run: &Run) -> Pairs {
    let least = bounds(graph, machine).counters;
    let layers = &run.layers;
    let busy = |unit: Unit| layers.iter().map(|layer| layer.busy_by_unit[unit.index()]).sum::<u64>();
    let array: u64 = least.layers.iter().map(|layer| layer.array).sum();
    let mut pairs = vec![
        ("array", array, busy(Unit::Me)),
        ("ewp", least.layers.iter().map(|layer| layer.ewp).sum(), busy(Unit::Ewp)),
        ("bank accesses", least.bank_accesses, run.counters.bank_accesses.iter().sum()),
        ("bytes read", least.ddr_read_bytes, run.counters.ddr_read_bytes),
        ("bytes written", least.ddr_write_bytes, run.counters.ddr_write_bytes),
    ];
    let opened = run.counters.page_misses * machine.page_bytes();
    pairs.push(("bytes in opened pages", least.ddr_read_bytes + least.ddr_write_bytes, opened));
    for (layer, counted) in least.layers.iter().zip(layers) {
        pairs.push(("array of a layer", layer.array, counted.busy_by_unit[Unit::Me.index()]));
        pairs.push(("ewp of a layer", layer.ewp, counted.busy_by_unit[Unit::Ewp.index()]));
    }
    pairs
}

#[test]
fn no_run_counts_less() {
    for seed in 0..60 {
        let machine = common::machine(seed);
        let graph = match seed % 3 {
            0 => common::random(seed, 9),
            1 => wild(seed, 7, 3000),
            _ => wild_floats(seed, 7, 3000),
        };
        for (level, run) in runs(&graph, &machine) {
            for (what, least, counted) in compared(&graph, &machine, &run) {
                assert!(counted >= least, "seed {seed}, level {level}, {what}: {counted} < {least}");
            }
        }
    }
}

#[test]
fn a_run_counts_just_that() {
    let machine = Machine::preset("128x128_asic").unwrap();
    let mut net = Net::new(5);
    let x = net.input(&[1, 32, 32, 128]);
    let y = net.conv(x, 128, common::window(3, 1, 1), 1);
    let y = net.binary(BinaryKind::Add, y, x);
    let graph = net.finish(&[y]);
    let mut tight = std::collections::BTreeSet::new();
    for (_, run) in runs(&graph, &machine) {
        let pairs = compared(&graph, &machine, &run);
        tight.extend(pairs.iter().filter(|(_, least, counted)| 100 * counted < 101 * least).map(|pair| pair.0));
    }
    let all =
        ["array", "array of a layer", "bytes in opened pages", "bytes read", "bytes written", "ewp", "ewp of a layer"];
    assert_eq!(tight.into_iter().collect::<Vec<_>>(), all);
}

/// Operators over channels take pixels whole, in words of their own or parts of a word that are powers of two: the elementwise
/// unit is at work as long as the bound says, whatever the channels.
#[test]
fn operators_over_channels_count_whole_pixels() {
    let machine = Machine::preset("128x128_asic").unwrap();
    for (seed, channels) in [1, 3, 16, 49, 64, 100, 128, 129, 192, 197, 256, 300].into_iter().enumerate() {
        for kind in 0..4 {
            let mut net = Net::new(seed as u64);
            (net.wide, net.float) = (kind == 1, (kind == 2).then_some(DType::F16));
            let x = net.input(&[1, 1, 256, channels]);
            let y = if seed % 2 == kind % 2 { net.softmax(x, false) } else { net.layer_norm(x, seed % 3 == 0) };
            let graph = net.finish(&[y]);
            for (level, run) in runs(&graph, &machine) {
                let (least, counted) =
                    (bounds(&graph, &machine).counters.layers[0].ewp, run.layers[0].busy_by_unit[Unit::Ewp.index()]);
                assert_eq!(least, counted, "{channels} channels, kind {kind}, level {level}");
            }
        }
    }
}
