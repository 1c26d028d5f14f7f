//! Inputs and outputs that take a channel long lie in parts in both address spaces: fewer cycles, the same values.

use std::collections::BTreeMap;

use crate::build::asic;
use crate::common::{Net, machine, tiny, window};
use crate::trial::{inputs, proven, trial};
use tpuflow_ir::isa::Direction;
use tpuflow_ir::program::PortPart;
use tpuflow_ir::{Graph, Machine, Program, Space, Work, layout};
use tpuflow_kernels::Values;
use tpuflow_scheduler::parameters::{IoMemory, Parameters};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{Options, simulate};

fn compiled(graph: &Graph, machine: &Machine, parameters: Option<Parameters>) -> Program {
    proven(graph, machine, ScheduleOptions { level: 5, parameters, ..ScheduleOptions::default() })
}

/// An image made of another.
fn image(height: usize, width: usize, channels: usize) -> Graph {
    let mut net = Net::new(channels as u64);
    let x = net.input(&[1, height, width, 32]);
    let y = net.conv(x, channels, window(1, 1, 0), 1);
    net.finish(&[y])
}

/// A product with more columns than a tile has: one row of pixels, each of them stored by every tile.
fn scores(pixels: usize, columns: usize) -> Graph {
    let mut net = Net::new(9);
    net.wide = true;
    let x = net.input(&[1, pixels, 64]);
    let y = net.matmul(x, columns);
    net.finish(&[y])
}

fn bytes(graph: &Graph) -> Vec<Vec<u8>> {
    inputs(graph, 3).iter().map(Values::to_le_bytes).collect()
}

/// Bytes that lie in each address space.
fn bytes_by_space(program: &Program, port: usize) -> BTreeMap<Space, u64> {
    let mut found = BTreeMap::new();
    for view in program.outputs[port].views() {
        *found.entry(view.space).or_default() += view.bytes(program.machine.word());
    }
    found
}

#[test]
fn outputs_that_bind_a_channel_lie_in_both_address_spaces() {
    let one_space = Parameters { io_memory: IoMemory::Contiguous, ..Parameters::o5() };
    for (name, graph) in [("rows", image(96, 96, 128)), ("column tiles", scores(256, 4000))] {
        let program = compiled(&graph, &asic(), None);
        let spaces = bytes_by_space(&program, 0);
        let (most, all) = (*spaces.values().max().unwrap(), spaces.values().sum::<u64>());
        assert!(spaces.len() == 2 && most * 10 <= all * 7, "{name}: {spaces:?}");
        let alone = compiled(&graph, &asic(), Some(one_space.clone()));
        assert_eq!(bytes_by_space(&alone, 0).len(), 1);
        let cycles = |program: &Program| simulate(program, &bytes(&graph), &Options::default()).unwrap().cycles;
        assert!(cycles(&program) * 10 < cycles(&alone) * 9, "{name}: {} {}", cycles(&program), cycles(&alone));
        trial(&graph, &asic(), 5, 7, &Options::default()).unwrap();
    }
    // A short one is not worth a second transfer.
    assert_eq!(compiled(&image(8, 8, 16), &asic(), None).outputs[0].parts, []);
}

#[test]
fn columns_of_a_result_larger_than_the_cache_are_stored_many_pixels_at_a_time() {
    let graph = scores(512, 20_000);
    let program = compiled(&graph, &asic(), None);
    let stores = program.instructions.iter().filter_map(|instruction| match &instruction.work {
        Work::Transfer(store) if store.direction == Direction::Store => Some(store.total_bytes()),
        _ => None,
    });
    let (count, bytes) = stores.fold((0, 0), |(count, bytes), own| (count + 1, bytes + own));
    assert!(bytes >= 512 * 20_000 * 2 && bytes / count > 32_768, "{count} stores of {bytes} bytes");
    let start = asic().dma.start + asic().dma.latency;
    assert!(program.outputs[0].parts.len() < 64 && asic().ddr_cycles(bytes / count) > 8 * start);
}

#[test]
fn ports_in_parts_are_in_every_form_what_the_graph_says() {
    let mut in_parts = 0;
    for seed in 0..12u64 {
        let mut net = Net::new(seed);
        net.wide = seed % 5 == 0;
        let c = [21, 64, 70, 128, 96, 3][seed as usize % 6];
        let (h, w) = [(1, 700), (30, 23), (7, 99), (64, 11)][seed as usize / 3];
        let x = net.input(&[1, h, w, 8]);
        let a = net.conv(x, c, window(1, 1, 0), 1);
        let b = net.conv(a, c, window(3, 1, 1), c);
        let wide = net.conv(x, 300, window(1, 1, 0), 1);
        let joined = net.concat(&[a, b], 1, 0);
        let rows = net.reshape(joined, &[1, 2 * h * w, c]);
        // Read by others, of several column tiles, joined in place, a view of another, an input that is an output.
        let graph = net.finish(&[a, wide, rows, b, x]);
        for machine in [asic(), machine(seed), tiny(64)] {
            let done = trial(&graph, &machine, 5, seed, &Options::default());
            let refused = done.as_ref().is_err_and(|e| e.starts_with("schedule"));
            assert!(done.is_ok() || refused, "seed {seed}, {}: {done:?}", machine.name);
        }
        let program = compiled(&graph, &asic(), None);
        in_parts += program.inputs.iter().chain(&program.outputs).filter(|port| !port.parts.is_empty()).count();
    }
    assert!(in_parts > 20, "{in_parts}");
}

#[test]
fn programs_with_ports_in_parts_are_moved_repeated_written_and_read() {
    for graph in [image(96, 96, 128), scores(256, 1500)] {
        let program = compiled(&graph, &asic(), None);
        assert!(!program.outputs[0].parts.is_empty());
        let run = |program: &Program| simulate(program, &bytes(&graph), &Options::default()).unwrap().outputs;
        let expected = run(&program);
        let end = program.ddr_bytes.iter().max().unwrap().next_multiple_of(1 << 20);
        let addresses = BTreeMap::from([(program.outputs[0].name.clone(), program.outputs[0].view.address + end)]);
        for moved in [program.with_io_at(end).unwrap(), program.with_ports_at(&addresses).unwrap()] {
            assert_eq!(tpuflow_checker::check(&graph, &moved), Ok(()));
            assert_eq!(run(&moved), expected);
        }
        let text = Program::from_text(&program.to_text(true).unwrap()).unwrap();
        assert_eq!(text, program);
        let path = std::env::temp_dir().join(format!("tpuflow-parts-{}.tpu", std::process::id()));
        program.save(&path).unwrap();
        assert_eq!(Program::load(&path).unwrap(), program);
        std::fs::remove_file(path).unwrap();
        // Words as they lie, nothing said of what they mean.
        let raw = program.to_raw();
        assert!(raw.is_raw());
        let whole = Parameters { io_memory: IoMemory::Contiguous, ..Parameters::o5() };
        let of_whole = tpuflow_checker::check_rules(&compiled(&graph, &asic(), Some(whole)).to_raw());
        // Padding that nobody wrote is undefined, in parts or not.
        assert_eq!(tpuflow_checker::check_rules(&raw).is_ok(), of_whole.is_ok());
        let input = &program.inputs[0];
        let words = layout::pack(&bytes(&graph)[0], &input.shape, input.dtype, asic().word());
        let out = simulate(&raw, &[words], &Options::default()).unwrap().outputs;
        assert_eq!(program.outputs[0].view.unpack(&out[0], asic().word()), expected[0]);
        let options = ScheduleOptions { level: 5, budget_steps: 10, stream: true, ..ScheduleOptions::default() };
        let repeated = schedule(&graph, &asic(), &options).unwrap().unrolled(9).unwrap();
        let given: Vec<Vec<u8>> = (0..9).flat_map(|_| bytes(&graph)).collect();
        let outputs = simulate(&repeated, &given, &Options::default()).unwrap().outputs;
        assert!(outputs.iter().all(|output| *output == expected[0]));
    }
}

#[test]
fn parts_that_are_not_what_the_transfers_write_are_refused() {
    for graph in [image(96, 96, 128), scores(256, 1500)] {
        let sound = compiled(&graph, &asic(), None);
        let bytes = bytes(&graph);
        let refused = |change: &dyn Fn(&mut Vec<PortPart>)| {
            let mut program = sound.clone();
            change(&mut program.outputs[0].parts);
            // Whatever it says, the simulator neither panics nor gives other bytes as if they were right.
            let _ = simulate(&program, &bytes, &Options::default());
            tpuflow_checker::check(&graph, &program).is_err()
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|parts| parts.clear()));
        assert!(refused(&|parts| parts[0].first_pixel += 1));
        assert!(refused(&|parts| parts[0].first_pixel = 0));
        assert!(refused(&|parts| parts[0].first_pixel = u32::MAX));
        assert!(refused(&|parts| parts[0].address += 128));
        assert!(refused(&|parts| parts[0].address += 1));
        assert!(refused(&|parts| parts[0].address = u64::MAX - 127));
        assert!(refused(&|parts| parts[0].space = Space::Ddr(7)));
        assert!(refused(&|parts| parts[0].space = Space::Cache));
        assert!(refused(&|parts| parts.push(parts[0])));
        assert!(refused(&|parts| parts.reverse()) || sound.outputs[0].parts.len() == 1);
    }
}
