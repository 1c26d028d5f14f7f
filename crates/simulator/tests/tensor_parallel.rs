//! Networks on several devices: random networks, decoders and convolutional networks, divided among 1 to 5 devices, as graphs and as
//! proven programs that load each other's parts. Every bit is that of one device, and all simulators count the same cycles.
//!
//! ```text
//! NETWORKS_FIRST=1000 NETWORKS_COUNT=500 cargo test --profile checked -p tpuflow-simulator --test main tensor_parallel
//! ```

use std::sync::Arc;

use crate::common::wild::{wild, wild_floats};
use crate::common::{Net, random, tiny, window};
use crate::states::{Shape, attention};
use crate::trial::{inputs, proven};
use crate::twin;
use tpuflow_ir::{DType, Graph, Machine, Op, Program, TensorId, Work};
use tpuflow_kernels::Values;
use tpuflow_scheduler::Options as ScheduleOptions;
use tpuflow_scheduler::tensor_parallel::{DeviceGraph, Division, Slice, divide};
use tpuflow_simulator::{Devices, Interpreter, Keep, Options, simulate};

/// Numbers of the elements of a part of a tensor.
fn elements(graph: &Graph, slice: &Slice) -> Vec<usize> {
    let mut all = vec![0];
    for (&(from, to), &extent) in slice.region.iter().zip(&graph.tensor(slice.tensor).shape) {
        all = all.iter().flat_map(|&element| (from..to).map(move |at| element * extent + at)).collect();
    }
    all
}

/// The inputs of a device, of those of the network; nothing for parts that it loads.
fn device_inputs(graph: &Graph, device: &DeviceGraph, given: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let part = |slice: &Slice| {
        let number = graph.inputs.iter().position(|id| *id == slice.tensor);
        let Some(bytes) = number.map(|number| &given[number]) else { return vec![] };
        let size = graph.tensor(slice.tensor).dtype.bytes();
        elements(graph, slice).into_iter().flat_map(|at| bytes[at * size..][..size].to_vec()).collect()
    };
    device.inputs().map(part).collect()
}

/// The outputs of the network, of those of the devices; what several give must be the same.
fn network_outputs(graph: &Graph, devices: &[DeviceGraph], given: &[Vec<u8>], found: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let whole = |id: &TensorId| {
        let tensor = graph.tensor(*id);
        if let Some(bytes) = &tensor.constant {
            return bytes.to_vec();
        }
        if let Some(input) = graph.inputs.iter().position(|input| input == id) {
            return given[input].clone();
        }
        let size = tensor.dtype.bytes();
        let mut all: Vec<Option<Vec<u8>>> = vec![None; tensor.elements()];
        for (device, outputs) in devices.iter().zip(found) {
            for (slice, bytes) in device.outputs().zip(outputs).filter(|(slice, _)| slice.tensor == *id) {
                for (at, value) in elements(graph, slice).into_iter().zip(bytes.chunks_exact(size)) {
                    let before = all[at].replace(value.to_vec());
                    assert!(before.is_none_or(|before| before == value), "\"{}\" differs", tensor.name);
                }
            }
        }
        all.into_iter().flat_map(|value| value.expect("an element of a device")).collect()
    };
    graph.outputs.iter().map(whole).collect()
}

fn bytes(values: &[Values]) -> Vec<Vec<u8>> {
    values.iter().map(Values::to_le_bytes).collect()
}

fn interpreted(graph: &Graph, given: &[Values]) -> Vec<Vec<u8>> {
    let found = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given.to_vec(), Keep::Outputs).unwrap();
    graph.outputs.iter().map(|id| found.get(*id).unwrap().to_le_bytes()).collect()
}

/// So many seeds, or those that the environment asks for.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("NETWORKS_FIRST").unwrap_or(0);
    first..first + number("NETWORKS_COUNT").unwrap_or(usual)
}

/// Multiply-accumulates of a graph.
fn macs(graph: &Graph) -> u64 {
    graph.layers.iter().map(|layer| graph.macs(layer)).sum()
}

#[test]
fn random_networks_on_several_devices_keep_every_bit() {
    let (mut divided, mut exchanged) = (0, 0);
    for seed in seeds(150) {
        let graph = match seed % 3 {
            0 => random(seed, 9),
            1 => wild(seed, 9, 3000),
            _ => wild_floats(seed, 9, 3000),
        };
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        let given = inputs(&graph, seed);
        let one = interpreted(&graph, &given);
        for devices in [1, 2, 3, 5] {
            let Division { joined, devices: own } = divide(&graph, devices).unwrap();
            assert_eq!(joined.verify(), vec![], "seed {seed} on {devices} devices");
            assert!(interpreted(&joined, &given) == one, "seed {seed} on {devices} devices");
            divided += usize::from(macs(&own[0].graph) < macs(&graph));
            exchanged += usize::from(!own[0].graph.exchanges.is_empty());
        }
    }
    assert!(divided > 60 && exchanged > 60, "{divided} divided, {exchanged} with an exchange");
}

/// What a step of a decoder computes, for several heads, tokens and kinds of caches.
fn shapes() -> Vec<Shape> {
    let shape = |past, new, heads, width| Shape { past, new, heads, width, wide: false, pixels: true };
    let mut shapes = vec![shape(7, 1, 4, 8), shape(20, 1, 3, 16), shape(12, 5, 8, 4), shape(9, 2, 6, 32)];
    shapes.push(Shape { wide: true, ..shape(6, 1, 4, 16) });
    shapes.push(Shape { pixels: false, ..shape(6, 2, 4, 16) });
    shapes
}

#[test]
fn heads_are_divided_with_their_caches() {
    for shape in shapes() {
        let graph = attention(shape);
        let given = inputs(&graph, 11);
        let one = interpreted(&graph, &given);
        for devices in [2, 3, 4] {
            let division = divide(&graph, devices).unwrap();
            let own = &division.devices[0].graph;
            assert!(interpreted(&division.joined, &given) == one, "{shape:?} on {devices} devices");
            assert_eq!(own.states.len(), graph.states.len(), "{shape:?}");
            if shape.heads % devices == 0 {
                // No exchange at all: a device has its heads from the projections on.
                assert_eq!(own.exchanges, vec![], "{shape:?} on {devices} devices");
                assert_eq!(macs(own) * devices as u64, macs(&graph));
            }
        }
    }
}

/// The programs of all devices, and what they compute together at a position.
fn programs(division: &Division, machine: &Machine, level: u8) -> Vec<Arc<Program>> {
    let program = |device: &DeviceGraph| {
        let program = proven(&device.graph, machine, ScheduleOptions { level, ..ScheduleOptions::default() });
        assert_eq!(program.fallback, None);
        Arc::new(program)
    };
    division.devices.iter().map(program).collect()
}

/// Whether the second simulator models all of a program: bytes, no sums of 48 bits, no rows that values choose.
fn is_modeled(program: &Program) -> bool {
    let ports = program.inputs.iter().chain(&program.outputs).all(|port| port.dtype == DType::I8);
    ports
        && program.instructions.iter().all(|instruction| match &instruction.work {
            Work::Matrix(m) => m.input.dtype == DType::I8 && m.output.dtype == DType::I8,
            Work::Transfer(_) => true,
            _ => false,
        })
}

/// On a machine at both levels, with several numbers of devices: the bits of one, and the cycles of all simulators.
fn on_machine(graph: &Graph, machine: &Machine, seed: u64) -> usize {
    let given = inputs(graph, seed);
    let one = interpreted(graph, &given);
    let given = bytes(&given);
    let mut exchanges = 0;
    for (devices, level) in [(2, 5), (3, 1), (4, 5)] {
        let division = divide(graph, devices).unwrap();
        let programs = programs(&division, machine, level);
        let own: Vec<_> = division.devices.iter().map(|device| device_inputs(graph, device, &given)).collect();
        let runs = Devices::new(programs.clone()).unwrap().run(&own).unwrap();
        let found: Vec<Vec<Vec<u8>>> = runs.into_iter().map(|(outputs, _)| outputs).collect();
        let outputs = network_outputs(graph, &division.devices, &given, &found);
        assert!(outputs == one, "seed {seed} on {devices} devices at level {level}");
        let timed = |options: Options| simulate(&programs[0], &[], &Options { values: false, ..options }).unwrap();
        let (run, stepped) = (timed(Options::default()), timed(Options { stepped: true, ..Options::default() }));
        assert_eq!((run.cycles, &run.counters), (stepped.cycles, &stepped.counters), "seed {seed}");
        // The second simulator knows neither sums of 48 bits nor, without values, which rows are looked up.
        if is_modeled(&programs[0]) {
            assert_eq!(twin::ends(&programs[0]).iter().max(), Some(&run.cycles), "seed {seed}");
        }
        assert!(run.cycles >= programs[0].bounds.binding().1, "seed {seed}");
        exchanges += programs[0].exchanges.len();
    }
    exchanges
}

#[test]
fn programs_of_devices_keep_every_bit() {
    let presets = ["32x32_fpga", "128x128_asic", "128x128_dual_ddr"].map(|name| Machine::preset(name).unwrap());
    let machines = [presets[0].clone(), presets[1].clone(), presets[2].clone(), tiny(16)];
    let mut exchanges = 0;
    for (number, shape) in shapes().into_iter().enumerate() {
        exchanges += on_machine(&attention(shape), &machines[number % 4], number as u64);
    }
    for seed in seeds(40) {
        let graph = random(seed, 7);
        if Interpreter::new(Arc::new(graph.clone())).is_ok() {
            exchanges += on_machine(&graph, &machines[seed as usize % 3], seed);
        }
    }
    assert!(exchanges > 30, "{exchanges}");
}

/// Two convolutions in a row: the channels between them are exchanged; a depthwise one between them needs none.
#[test]
fn output_channels_of_convolutions_are_divided() {
    let mut net = Net::new(3);
    let x = net.input(&[1, 8, 8, 16]);
    let y = net.conv(x, 64, window(1, 1, 0), 1);
    let y = net.conv(y, 64, window(3, 1, 1), 64);
    let y = net.conv(y, 32, window(1, 1, 0), 1);
    let graph = net.finish(&[y]);
    let division = divide(&graph, 4).unwrap();
    assert_eq!(division.devices[3].graph.exchanges.len(), 1);
    assert_eq!(macs(&division.devices[3].graph) * 4, macs(&graph));
    on_machine(&graph, &Machine::preset("64x64_edge").unwrap(), 1);
}

#[test]
fn packed_weights_are_divided_by_columns() {
    let mut net = Net::new(9);
    let weights = net.packed_constant([64, 96], 32, tpuflow_ir::packed::CodeKind::ZeroPoints);
    let x = net.input(&[1, 3, 64]);
    let y = net.product(x, weights);
    let y = net.rescale(y);
    let y = net.matmul(y, 48);
    let graph = net.finish(&[y]);
    for device in divide(&graph, 3).unwrap().devices {
        let Op::MatMul { b, .. } = device.graph.layers[0].op else { panic!("a product") };
        let own = device.graph.tensor(b);
        assert_eq!((own.shape.clone(), own.packed.is_some(), own.dtype), (vec![64, 32], true, DType::I8));
    }
    on_machine(&graph, &Machine::preset("128x128_asic").unwrap(), 1);
}

/// Nothing but products and exchanges: the second simulator knows every law of them.
#[test]
fn cycles_of_exchanges_are_those_of_the_second_simulator() {
    for (number, name) in ["32x32_fpga", "64x64_edge", "128x128_asic", "128x128_dual_ddr"].iter().enumerate() {
        let mut net = Net::new(number as u64);
        let mut x = net.input(&[1, 6, 48]);
        for columns in [256, 512, 64, 1024, 96] {
            x = net.matmul(x, columns);
        }
        let graph = net.finish(&[x]);
        let division = divide(&graph, 4).unwrap();
        let machine = Machine::preset(name).unwrap();
        let programs = programs(&division, &machine, 5);
        assert!(is_modeled(&programs[0]) && programs[0].exchanges.len() == 4, "{name}");
        on_machine(&graph, &machine, number as u64);
    }
}

/// A load of another device's part takes as many cycles longer as the links have latency, and no more.
#[test]
fn a_slower_link_costs_its_latency() {
    let mut net = Net::new(3);
    let x = net.input(&[1, 4, 64]);
    let y = net.matmul(x, 128);
    let y = net.matmul(y, 64);
    let graph = net.finish(&[y]);
    let division = divide(&graph, 2).unwrap();
    let mut machine = Machine::preset("128x128_asic").unwrap();
    let mut cycles = |latency: u64| {
        machine.dma.link_latency = latency;
        let program = proven(&division.devices[0].graph, &machine, ScheduleOptions { level: 5, ..Default::default() });
        simulate(&program, &[], &Options { values: false, ..Options::default() }).unwrap().cycles
    };
    let (fast, slow) = (cycles(0), cycles(1000));
    assert!((900..=2 * 1000).contains(&(slow - fast)), "{fast} and {slow} cycles");
}

#[test]
fn programs_that_do_not_belong_together_are_refused() {
    let graph = random(6, 7);
    assert_eq!(divide(&graph, 0).err().unwrap().to_string(), "0 devices; a network is divided among 1 to 64");
    assert!(divide(&graph, 65).is_err());
    let machine = Machine::preset("128x128_asic").unwrap();
    let mut net = Net::new(3);
    let x = net.input(&[1, 4, 64]);
    let y = net.matmul(x, 128);
    let y = net.matmul(y, 64);
    let graph = net.finish(&[y]);
    let programs = programs(&divide(&graph, 2).unwrap(), &machine, 5);
    let alone = simulate(&programs[0], &[vec![0; 256], vec![], vec![]], &Options::default()).err().unwrap().to_string();
    assert!(alone.contains("is one of 2 devices"), "{alone}");
    assert!(Devices::new(programs[..1].to_vec()).is_err());
    assert!(Devices::new(vec![programs[0].clone(), programs[1].clone(), programs[0].clone()]).is_err());
    // One device has no others to load from.
    let mut lone = proven(&graph, &machine, ScheduleOptions::default());
    let load = lone.instructions.iter_mut().find_map(|instruction| match &mut instruction.work {
        Work::Transfer(transfer) => Some(transfer),
        _ => None,
    });
    load.unwrap().ddr_space += 2;
    let found = simulate(&lone, &[vec![0; 256]], &Options::default()).err().unwrap().to_string();
    assert!(found.contains("of another device"), "{found}");
    let mut other = (*programs[1]).clone();
    other.instructions.pop();
    assert!(Devices::new(vec![programs[0].clone(), Arc::new(other)]).is_err());
}

/// Queries are normalised by head as rows of one matrix: heads are divided all the same.
#[test]
fn heads_that_are_rows_are_divided() {
    let mut net = Net::new(4);
    let (tokens, heads, width) = (3, 4, 16);
    let x = net.input(&[1, tokens, 24]);
    let y = net.matmul(x, heads * width);
    let rows = net.reshape(y, &[tokens * heads, width]);
    let rows = net.layer_norm(rows, true);
    let y = net.reshape(rows, &[1, tokens, heads, width]);
    let y = net.transpose(y, &[0, 2, 1, 3]);
    let graph = net.finish(&[y]);
    for devices in [2, 4] {
        let own = &divide(&graph, devices).unwrap().devices[1].graph;
        assert_eq!((macs(own) * devices as u64, own.exchanges.len()), (macs(&graph), 0));
    }
    on_machine(&graph, &Machine::preset("128x128_asic").unwrap(), 2);
}
