//! Programs so close to a bound that they would beat it if it were 1 % higher. The others are counted by hand.

use crate::common::{self, Net};
use tpuflow_bounds::bounds;
use tpuflow_ir::{BinaryKind, Bounds, Machine, PadMode, Program, ReduceKind, TensorId};
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
fn stores_behind_a_pixel_of_the_whole_image_are_within_a_hundredth() {
    let mut machine = asic();
    machine.ewp.lanes = 128;
    within(
        |b| b.path,
        &machine,
        |net| {
            let x = net.input(&[1, 64, 64, 16]);
            let y = (0..16).fold(x, |x, _| net.conv(x, 128, common::window(3, 1, 1), 1));
            // Every element needs a pixel that is made of the whole image.
            let blocks = net.conv(y, 128, common::window(8, 8, 0), 1);
            let gates = net.conv(blocks, 128, common::window(8, 1, 0), 1);
            net.binary(BinaryKind::Add, y, gates)
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
            (0..3).fold(x, |x, _| net.max_pool(x, common::window(5, 1, 2)))
        },
    );
}

/// The sum of some tensors, two by two.
fn sum(net: &mut Net, mut terms: Vec<TensorId>) -> TensorId {
    while terms.len() > 1 {
        terms = terms.chunks(2).map(|pair| net.binary(BinaryKind::Add, pair[0], pair[1])).collect();
    }
    terms[0]
}

#[test]
fn short_instructions_one_after_the_other_are_within_a_hundredth() {
    for what in [|b: &Bounds| b.ewp, |b: &Bounds| b.path] {
        within(what, &asic(), |net| {
            let x = net.input(&[1, 64]);
            let terms = (0..512).map(|_| net.rescale(x)).collect();
            sum(net, terms)
        });
    }
    let mut machine = asic();
    machine.pdp.start = 20_000;
    for what in [|b: &Bounds| b.pdp, |b: &Bounds| b.path] {
        within(what, &machine, |net| {
            let x = net.input(&[1, 4, 4, 128]);
            let terms = (0..64).map(|_| net.max_pool(x, common::window(4, 1, 0))).collect();
            sum(net, terms)
        });
    }
}

#[test]
fn what_moved_or_summed_parts_are_made_of_counts() {
    type Build = fn(&mut Net, TensorId) -> TensorId;
    // Of 16 lines, the first so many are what the lines kept of another form are made of.
    let cases: [(&str, usize, Build); 6] = [
        ("constant", 15, |net, x| {
            let padded = net.pad(x, &[0, 1, 0, 0], &[0, 3, 2, 0], PadMode::Constant(0));
            net.slice(padded, 1, 0, 16)
        }),
        ("edge", 15, |net, x| {
            let padded = net.pad(x, &[0, 1, 0, 0], &[0, 1, 0, 0], PadMode::Edge);
            net.slice(padded, 1, 0, 16)
        }),
        ("reflect", 12, |net, x| {
            let padded = net.pad(x, &[0, 11, 0, 0], &[0, 1, 0, 0], PadMode::Reflect);
            net.slice(padded, 1, 0, 12)
        }),
        ("insert_zeros", 8, |net, x| {
            let spread = net.insert_zeros(x, [2, 3]);
            net.slice(spread, 1, 0, 16)
        }),
        ("reduce", 9, |net, x| {
            let sums = net.reduce(x, ReduceKind::Max, &[2], true);
            net.slice(sums, 1, 0, 9)
        }),
        ("reduce", 9, |net, x| {
            let sums = net.reduce(x, ReduceKind::Sum, &[2, 3], false);
            net.slice(sums, 1, 0, 9)
        }),
    ];
    for (name, lines, build) in cases {
        let array = |build: &dyn Fn(&mut Net, TensorId) -> TensorId| {
            let mut net = Net::new(5);
            let x = net.input(&[1, 16, 16, 128]);
            let y = net.conv(x, 256, common::window(3, 1, 1), 1);
            let y = build(&mut net, y);
            bounds(&net.finish(&[y]), &asic()).whole.array
        };
        let (found, expected) = (array(&build), array(&|net, y| net.slice(y, 1, 0, lines)));
        assert!(expected > 0);
        assert_eq!(found, expected, "{name}");
    }
}
