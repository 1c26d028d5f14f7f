//! Bounds counted by hand.

#[path = "../../scheduler/tests/common/mod.rs"]
mod common;

use tpuflow_bounds::bounds;
use tpuflow_ir::isa::Direction;
use tpuflow_ir::{Machine, Unit, Work};
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
