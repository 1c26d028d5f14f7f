//! Outputs whose pixels would leave much of their words empty lie in DDR pixel behind pixel: fewer cycles, the same values.

use crate::build::asic;
use crate::common::{Net, machine, tiny, window};
use crate::trial::{inputs, proven, trial};
use tpuflow_ir::{Graph, Machine, Program};
use tpuflow_kernels::Values;
use tpuflow_scheduler::Options as ScheduleOptions;
use tpuflow_simulator::{Options, simulate};

fn compiled(graph: &Graph, machine: &Machine, level: u8) -> Program {
    proven(graph, machine, ScheduleOptions { level, ..ScheduleOptions::default() })
}

/// An image of some channels made of another.
fn image(height: usize, width: usize, channels: usize) -> Graph {
    let mut net = Net::new(channels as u64);
    let x = net.input(&[1, height, width, 8]);
    let y = net.conv(x, channels, window(1, 1, 0), 1);
    net.finish(&[y])
}

#[test]
fn outputs_lose_their_padding_where_that_takes_the_channel_less_time() {
    // A pixel of 5 bytes takes a cycle of its own; 120 and 128 leave next to nothing empty.
    for (channels, tight) in [
        (5, false),
        (21, true),
        (33, true),
        (85, true),
        (91, true),
        (96, true),
        (120, false),
        (128, false),
        (130, true),
    ] {
        let graph = image(40, 40, channels);
        for level in [1, 5] {
            let view = compiled(&graph, &asic(), level).outputs[0].view;
            assert_eq!(view.pixel_bytes as usize == channels && channels != 128, tight, "{channels} channels");
            trial(&graph, &asic(), level, 7, &Options::default()).unwrap_or_else(|e| panic!("{channels}: {e}"));
        }
    }
    // A few pixels save less than the start-up of a transfer.
    assert_eq!(compiled(&image(4, 4, 85), &asic(), 5).outputs[0].view.pixel_bytes, 128);
    // With one address space over both channels, lines that take turns would open a page for every pixel.
    let dual = Machine::preset("128x128_dual_ddr").unwrap();
    assert_eq!(compiled(&image(40, 40, 85), &dual, 5).outputs[0].view.pixel_bytes, 128);
}

#[test]
fn outputs_without_padding_are_in_every_form_what_the_graph_says() {
    for seed in 0..24u64 {
        let mut net = Net::new(seed);
        let c = [21, 33, 70, 85, 96, 130][seed as usize % 6];
        let (h, w) = [(1, 700), (30, 23), (7, 99), (64, 11)][seed as usize / 6];
        let x = net.input(&[1, h, w, 8]);
        let a = net.conv(x, c, window(1, 1, 0), 1);
        let b = net.conv(a, c, window(3, 1, 1), c);
        let wide = net.conv(x, 300, window(1, 1, 0), 1);
        let joined = net.concat(&[a, b], 1, 0);
        let rows = net.reshape(joined, &[1, 2 * h * w, c]);
        let part = net.slice(b, 3, 3, c - 5);
        // Read by others, of several column tiles, joined in place, a view of another, some channels of another.
        let graph = net.finish(&[a, wide, rows, part]);
        for machine in [asic(), machine(seed), tiny(64)] {
            for level in [1, 5] {
                let done = trial(&graph, &machine, level, seed, &Options::default());
                let refused = done.as_ref().is_err_and(|e| e.starts_with("schedule"));
                assert!(done.is_ok() || refused, "seed {seed}, {}: {done:?}", machine.name);
            }
        }
    }
}

#[test]
fn an_output_without_padding_can_be_moved_and_shares_no_byte() {
    let graph = image(40, 40, 85);
    let program = compiled(&graph, &asic(), 5);
    let bytes: Vec<Vec<u8>> = inputs(&graph, 3).iter().map(Values::to_le_bytes).collect();
    let run = |program: &Program| simulate(program, &bytes, &Options::default()).unwrap().outputs;
    let end = program.ddr_bytes.iter().max().unwrap().next_multiple_of(1 << 12);
    let moved = program.with_io_at(end + (1 << 14)).unwrap();
    assert_eq!(tpuflow_checker::check(&graph, &moved), Ok(()));
    assert_eq!(run(&moved), run(&program));
    assert_eq!(program.outputs[0].view.bytes(128), 40 * (40 * 85_u64).next_multiple_of(128));
    // Rows of 16 bits begin on words as well.
    let mut net = Net::new(5);
    net.wide = true;
    let x = net.input(&[1, 9, 41, 8]);
    let y = net.conv(x, 21, window(1, 1, 0), 1);
    let graph = net.finish(&[y]);
    let program = compiled(&graph, &asic(), 5);
    assert_eq!(program.outputs[0].view.pixel_bytes, 42);
    trial(&graph, &asic(), 5, 1, &Options::default()).unwrap();
}

#[test]
fn another_layout_than_the_transfers_write_is_refused() {
    let graph = image(40, 40, 85);
    let sound = compiled(&graph, &asic(), 5);
    let changed = |change: fn(&mut Program)| {
        let mut program = sound.clone();
        change(&mut program);
        tpuflow_checker::check(&graph, &program).is_err()
    };
    assert!(!changed(|_| {}));
    assert!(changed(|p| p.outputs[0].view.pixel_bytes = 128));
    assert!(changed(|p| p.outputs[0].view.pixel_bytes = 86));
    assert!(changed(|p| p.outputs[0].view.address += 85));
    assert!(changed(|p| p.outputs[0].view.channel_offset = 1));
    assert!(changed(|p| p.ddr_bytes[0] -= 1 << 12));
    // Inputs are laid out as in the cache.
    let graph = {
        let mut net = Net::new(1);
        let x = net.input(&[1, 40, 40, 85]);
        let y = net.conv(x, 8, window(1, 1, 0), 1);
        net.finish(&[y])
    };
    let mut program = compiled(&graph, &asic(), 5);
    assert_eq!(program.inputs[0].view.pixel_bytes, 128);
    program.inputs[0].view.pixel_bytes = 85;
    assert!(tpuflow_checker::check(&graph, &program).is_err());
    let bytes: Vec<Vec<u8>> = inputs(&graph, 3).iter().map(Values::to_le_bytes).collect();
    assert!(simulate(&program, &bytes, &Options::default()).is_err());
}
