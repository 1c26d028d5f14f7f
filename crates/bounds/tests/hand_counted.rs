//! Bounds counted by hand.

use crate::common;
use tpuflow_bounds::bounds;
use tpuflow_ir::isa::Direction;
use tpuflow_ir::{Machine, ReduceKind, Unit, Work};
use tpuflow_scheduler::{Options, schedule};

#[test]
fn weights_without_room_come_after_the_last_pixel_that_waits_for_them() {
    let mut net = common::Net::new(5);
    let x = net.input(&[1, 32, 32, 128]);
    let y = net.conv(x, 128, common::window(3, 1, 1), 1);
    let y = net.conv(y, 256, common::window(8, 8, 0), 1);
    let graph = net.finish(&[y]);
    let mut machine = Machine::preset("128x128_asic").expect("known");
    machine.cache.banks = 2;
    (machine.ewp_cache.banks, machine.ddr.word_bytes) = (1, 16);
    let program = schedule(&graph, &machine, &Options { level: 5, ..Options::default() }).expect("room for all");

    // Nine K blocks of 1024 pixels, set up, filled and drained, and not before a first byte has come.
    let first = 150 + (80 + 24 + 1) + 9 * 1024 + (128 + 50 + 86) + 257;
    // Weights of the second but for one word, beyond both caches; 12.8 bytes a cycle of each channel, pages of 4096 bytes but an open one.
    let half = (64 * 128 * 256 - 128 - machine.cache_bytes() - machine.ewp_cache_bytes()).div_ceil(2);
    let load = (half * 10).div_ceil(128) + half.div_ceil(4096) * 24 - 24;
    assert_eq!(bounds(&graph, &machine).whole.flow, first + load);
    assert_eq!(program.bounds, bounds(&graph, &machine).whole);
}

#[test]
fn the_last_tile_comes_over_both_lines_and_is_still_multiplied_and_stored() {
    let mut net = common::Net::new(5);
    let x = net.input(&[1, 2048]);
    let y = net.matmul(x, 1024);
    let graph = net.finish(&[y]);
    let machine = Machine::preset("128x128_dual_ddr").expect("known");
    let program = schedule(&graph, &machine, &Options { level: 5, ..Options::default() }).expect("room for all");

    // 8 tiles of 16 K blocks; 8 bytes of parameters a column. Pages of 4096 bytes, 25.6 bytes a cycle, half on each channel.
    let bytes: u64 = 2048 * 1024 + 8 * 1024 + 2048;
    let half = bytes.div_ceil(2);
    let load = 150 + 80 + (half * 10).div_ceil(256) + half.div_ceil(4096) * 24;
    assert_eq!(bounds(&graph, &machine).whole.ddr, load + (16 + 128) + 15 * 128 + 257 + 80 + 1);

    let mut lines = [0; 2];
    for instruction in &program.instructions {
        if let Work::Transfer(transfer) = &instruction.work
            && transfer.direction == Direction::Load
        {
            lines[usize::from(instruction.unit == Unit::Dtl1)] += transfer.total_bytes();
        }
    }
    assert!(lines[0].abs_diff(lines[1]) <= 2048 * 128, "{lines:?}");
}

/// What every moment is counted from on `128x128_asic`: the first byte is in the cache behind the start, a line's start-up, a page
/// miss and a cycle of data.
const BEGUN: u64 = 150 + (62 + 18) + 24 + 1;

/// The last result is stored: a line's start-up and a cycle of data.
const STORED: u64 = (62 + 18) + 1;

fn bounds_of(build: impl FnOnce(&mut common::Net) -> tpuflow_ir::TensorId) -> tpuflow_ir::Bounds {
    let mut net = common::Net::new(5);
    let y = build(&mut net);
    let machine = Machine::preset("128x128_asic").expect("known");
    bounds(&net.finish(&[y]), &machine).whole
}

#[test]
fn units_have_their_cycles_and_nothing_more() {
    // 1024 pixels of 128 channels, a word each. One tile: issue, set-up, the first weights; its slots; the drain.
    let convolutions = |layers: usize| {
        bounds_of(|net| {
            let x = net.input(&[1, 32, 32, 128]);
            (0..layers).fold(x, |x, _| net.conv(x, 128, common::window(1, 1, 0), 1))
        })
    };
    let array = |layers: u64| BEGUN + (50 + 86 + 128) + layers * 1024 + 257 + STORED;
    assert_eq!(convolutions(1).array, array(1));
    assert_eq!(convolutions(3).array, array(3));
    // 128 weight words through the port, which is more than operands and results at 32 banks.
    assert_eq!(convolutions(1).ports, BEGUN + 128);
    assert_eq!(convolutions(3).ports, BEGUN + 3 * 128);
    // 7 pixels hold the array for 128 slots, of which nobody waits for the last 121.
    let short = bounds_of(|net| {
        let x = net.input(&[7, 256]);
        net.matmul(x, 128)
    });
    assert_eq!(short.array, BEGUN + (50 + 86 + 128) + 128 + 7 + 257 + STORED);
    // 131072 elements, 64 a cycle.
    let unary = bounds_of(|net| {
        let x = net.input(&[1, 32, 32, 128]);
        net.unary(x)
    });
    assert_eq!(unary.ewp, BEGUN + 144 + 92 + 2048 + STORED);
    // 1024 words of the result, ceil(25 / 3) cycles each; the five lines under each are read in less.
    let pool = bounds_of(|net| {
        let x = net.input(&[1, 32, 32, 128]);
        net.max_pool(x, common::window(5, 1, 2))
    });
    assert_eq!(pool.pdp, BEGUN + 64 + 92 + 1024 * 9 + STORED);
}

/// Lines of 8 pixels of 4 channels are a word each, of which the first pixel of an output line takes all that lie inside.
#[test]
fn the_array_waits_for_lines_of_one_bank_from_two_of_its_heights_on() {
    let slots = |height: usize| {
        let mut net = common::Net::new(5);
        let x = net.input(&[1, height, 8, 4]);
        let y = net.conv(x, 32, common::window(3, 1, 1), 1);
        let machine = Machine::preset("32x32_fpga").expect("known");
        let found = bounds(&net.finish(&[y]), &machine);
        found.layers[0]
    };
    let array = |cycles: u64| tpuflow_bounds::LayerBound { binding: "array", cycles };
    // 9 taps of 4 channels are 2 K blocks. The first has taps of all three lines: 2 cycles are lost at a line inside the image, 1
    // at its edges, and 2 saved by an end of a bank in each of two instructions; the third costs more.
    assert_eq!(slots(8), array(2 * 64 + (6 * 2 + 2 - 2 * 2)));
    assert_eq!(slots(9), array(2 * 72 + (7 * 2 + 2 - 2 * 2)));
    assert_eq!(slots(7), array(2 * 56));
}

#[test]
fn chains_and_segments_have_their_cycles_and_nothing_more() {
    let image = [1, 32, 32, 128];
    // A layer alone has to set the array up.
    let convolution = bounds_of(|net| {
        let x = net.input(&image);
        net.conv(x, 128, common::window(1, 1, 0), 1)
    });
    // Behind the first element all of them are stored, half by each channel, the first page perhaps open.
    let all_stored = 62 + 18 + (32 * 32 * 64 * 10 / 256) + (16 - 1) * 24;
    assert_eq!(convolution.path, BEGUN + (50 + 86 + 128) + 257 + all_stored);
    assert_eq!(convolution.segment, BEGUN + (50 + 86 + 128) + 1024 + 257 + STORED);
    let unary = bounds_of(|net| {
        let x = net.input(&image);
        net.unary(x)
    });
    assert_eq!(unary.path, BEGUN + 144 + 1 + 92 + all_stored);
    assert_eq!(unary.segment, BEGUN + 144 + 2048 + 92 + STORED);
    // A sum over the image begins with the first pixel of the convolution, and has 2048 cycles of work from there.
    let first = BEGUN + (50 + 86 + 128) + 257;
    let summed = first + 144 + 2048 + 92;
    let sum = bounds_of(|net| {
        let x = net.input(&image);
        let y = net.conv(x, 128, common::window(1, 1, 0), 1);
        net.reduce(y, ReduceKind::Sum, &[1, 2], true)
    });
    assert_eq!((sum.path, sum.segment), (summed + STORED, summed + STORED));
    // What reads the sum comes behind all of it: a pixel, on an array that a part of the first layer may have kept at work.
    let gated = bounds_of(|net| {
        let x = net.input(&image);
        let y = net.conv(x, 128, common::window(1, 1, 0), 1);
        let z = net.reduce(y, ReduceKind::Sum, &[1, 2], true);
        net.conv(z, 128, common::window(1, 1, 0), 1)
    });
    let pixel = (16 + 128) + 1 + 257;
    let end = summed + pixel + STORED;
    // All 128 bytes of it are stored behind the first.
    assert_eq!((gated.path, gated.segment), (end - 2 + 3, end));
}
