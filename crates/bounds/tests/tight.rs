//! Programs so close to a bound that they would beat it if it were 1 % higher. The others are counted by hand.

use crate::common::{self, Net};
use tpuflow_bounds::bounds;
use tpuflow_ir::{Bounds, Machine, Program, TensorId};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule_by};
use tpuflow_simulator::{Options, simulate};

/// Cycles of a program and its bounds, of which the one asked for is within 1 %.
fn within(what: fn(&Bounds) -> u64, machine: &Machine, build: impl FnOnce(&mut Net) -> TensorId) {
    let mut net = Net::new(5);
    let y = build(&mut net);
    let graph = net.finish(&[y]);
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let options = ScheduleOptions { level: 5, ..ScheduleOptions::default() };
    let cycles = schedule_by(&graph, machine, &options, &timing).unwrap().predicted_cycles;
    let found = bounds(&graph, machine).whole;
    let bound = what(&found);
    assert!(cycles >= found.binding().1, "{cycles} cycles, {found:?}");
    assert!(100 * cycles < 101 * bound, "{cycles} cycles, {bound} of {found:?}");
}

fn asic() -> Machine {
    Machine::preset("128x128_asic").unwrap()
}

const IMAGE: [usize; 4] = [1, 64, 64, 128];

#[test]
fn array_path_and_segment_are_within_a_hundredth() {
    let mut machine = asic();
    machine.ddr.word_bytes = 64;
    for what in [|b: &Bounds| b.array, |b: &Bounds| b.path, |b: &Bounds| b.segment] {
        within(what, &machine, |net| {
            let x = net.input(&IMAGE);
            (0..32).fold(x, |x, _| net.conv(x, 128, common::window(3, 1, 1), 1))
        });
    }
}

#[test]
fn external_memory_is_within_a_hundredth() {
    let mut machine = asic();
    machine.ddr.channels = 1;
    within(
        |b| b.ddr,
        &machine,
        |net| {
            let x = net.input(&[8, 2048]);
            net.matmul(x, 2048)
        },
    );
}

#[test]
fn the_elementwise_unit_is_within_a_hundredth() {
    let mut machine = asic();
    machine.ewp.lanes = 8;
    within(
        |b| b.ewp,
        &machine,
        |net| {
            let x = net.input(&IMAGE);
            (0..4).fold(x, |x, _| net.rescale(x))
        },
    );
}

#[test]
fn the_pooling_unit_is_within_a_hundredth() {
    let mut machine = asic();
    machine.pdp.taps = 1;
    within(
        |b| b.pdp,
        &machine,
        |net| {
            let x = net.input(&IMAGE);
            (0..2).fold(x, |x, _| net.max_pool(x, common::window(5, 1, 2)))
        },
    );
}
