//! Networks on several devices: random networks, decoders and convolutional networks, divided among 1 to 5 devices, computed superstep by
//! superstep, by graphs and by proven programs on the simulated machine. Every bit is that of one device.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::wild::{wild, wild_floats};
use crate::common::{Net, random, tiny, window};
use crate::states::{Shape, attention};
use crate::trial::{inputs, proven};
use tpuflow_ir::{DType, Graph, Machine, Op, TensorId};
use tpuflow_kernels::Values;
use tpuflow_scheduler::Options as ScheduleOptions;
use tpuflow_scheduler::tensor_parallel::{DeviceGraph, Slice, split};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

/// Tensors of the whole network by element: which have been given so far, and what they are.
struct Whole<'a> {
    graph: &'a Graph,
    tensors: BTreeMap<TensorId, Vec<Option<Vec<u8>>>>,
}

impl Whole<'_> {
    /// Numbers of the elements of a part.
    fn elements(&self, slice: &Slice) -> Vec<usize> {
        let shape = &self.graph.tensor(slice.tensor).shape;
        let mut all = vec![0];
        for (&(from, to), &extent) in slice.region.iter().zip(shape) {
            all = all.iter().flat_map(|&element| (from..to).map(move |at| element * extent + at)).collect();
        }
        all
    }

    fn read(&self, slice: &Slice) -> Vec<u8> {
        let tensor = &self.tensors[&slice.tensor];
        self.elements(slice).into_iter().flat_map(|element| tensor[element].clone().expect("given before")).collect()
    }

    /// Elements that several devices give must be the same.
    fn write(&mut self, slice: &Slice, bytes: &[u8]) {
        let tensor = self.graph.tensor(slice.tensor);
        let (count, size) = (tensor.elements(), tensor.dtype.bytes());
        let elements = self.elements(slice);
        let own = self.tensors.entry(slice.tensor).or_insert_with(|| vec![None; count]);
        for (element, value) in elements.into_iter().zip(bytes.chunks_exact(size)) {
            let before = own[element].replace(value.to_vec());
            assert!(before.is_none_or(|before| before == value), "\"{}\" differs between devices", tensor.name);
        }
    }
}

/// The outputs of the network, computed by devices that each run their graphs with `run`.
fn computed(
    graph: &Graph,
    devices: usize,
    given: &[Values],
    run: impl Fn(&Graph, Vec<Vec<u8>>) -> Vec<Vec<u8>>,
) -> Vec<Vec<u8>> {
    let supersteps = split(graph, devices).expect("a division");
    let mut whole = Whole { graph, tensors: BTreeMap::new() };
    let all = |id: TensorId| {
        let region = graph.tensor(id).shape.iter().map(|&extent| (0, extent)).collect();
        Slice { tensor: id, region }
    };
    for (&id, values) in graph.inputs.iter().zip(given) {
        whole.write(&all(id), &values.to_le_bytes());
    }
    for superstep in &supersteps {
        let results: Vec<Vec<Vec<u8>>> = superstep
            .iter()
            .map(|device| run(&device.graph, device.inputs().map(|slice| whole.read(slice)).collect()))
            .collect();
        for (device, outputs) in superstep.iter().zip(results) {
            for (slice, bytes) in device.outputs().zip(outputs) {
                whole.write(slice, &bytes);
            }
        }
    }
    let constant = |id: &TensorId| graph.tensor(*id).constant.as_ref().map(|bytes| bytes.to_vec());
    graph.outputs.iter().map(|id| constant(id).unwrap_or_else(|| whole.read(&all(*id)))).collect()
}

fn interpreted(graph: &Graph, given: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let values = graph.inputs.iter().zip(given);
    let values = values.map(|(id, bytes)| Values::from_le_bytes(graph.tensor(*id).dtype, &bytes)).collect();
    let found = Interpreter::new(Arc::new(graph.clone())).unwrap().run(values, Keep::Outputs).unwrap();
    graph.outputs.iter().map(|id| found.get(*id).unwrap().to_le_bytes()).collect()
}

fn expected(graph: &Graph, given: &[Values]) -> Vec<Vec<u8>> {
    interpreted(graph, given.iter().map(Values::to_le_bytes).collect())
}

#[test]
fn random_networks_on_several_devices_keep_every_bit() {
    let (mut divided, mut exchanged) = (0, 0);
    for seed in 0..150 {
        let graph = match seed % 3 {
            0 => random(seed, 9),
            1 => wild(seed, 9, 3000),
            _ => wild_floats(seed, 9, 3000),
        };
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        let given = inputs(&graph, seed);
        let one = expected(&graph, &given);
        for devices in [1, 2, 3, 5] {
            assert!(computed(&graph, devices, &given, interpreted) == one, "seed {seed} on {devices} devices");
        }
        let supersteps = split(&graph, 2).unwrap();
        divided += usize::from(work(&supersteps, 0) < macs(&graph));
        exchanged += usize::from(supersteps.len() > 1);
    }
    assert!(divided > 20 && exchanged > 20, "{divided} divided, {exchanged} with an exchange");
}

fn macs(graph: &Graph) -> u64 {
    graph.layers.iter().map(|layer| graph.macs(layer)).sum()
}

/// Products of a device.
fn work(supersteps: &[Vec<DeviceGraph>], device: usize) -> u64 {
    supersteps.iter().map(|devices| macs(&devices[device].graph)).sum()
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
        let one = expected(&graph, &given);
        for devices in [2, 3, 4] {
            assert!(computed(&graph, devices, &given, interpreted) == one, "{shape:?} on {devices} devices");
            let supersteps = split(&graph, devices).unwrap();
            let states: usize = supersteps.iter().map(|own| own[0].graph.states.len()).sum();
            assert_eq!(states, graph.states.len(), "{shape:?}");
            if shape.heads % devices == 0 {
                // No exchange at all: a device has its heads from the projections on.
                assert_eq!(supersteps.len(), 1, "{shape:?} on {devices} devices");
                assert_eq!(work(&supersteps, 0) * devices as u64, macs(&graph));
            }
        }
    }
}

#[test]
fn programs_of_devices_keep_every_bit() {
    let presets = ["32x32_fpga", "128x128_asic"].map(|name| Machine::preset(name).unwrap());
    let machines = [presets[0].clone(), presets[1].clone(), tiny(16)];
    for (number, shape) in shapes().into_iter().enumerate() {
        on_machine(&attention(shape), &machines[number % 3], number as u64);
    }
    for seed in 0..12 {
        on_machine(&random(seed, 7), &machines[seed as usize % 2], seed);
    }
}

fn on_machine(graph: &Graph, machine: &Machine, seed: u64) {
    let given = inputs(graph, seed);
    let one = expected(graph, &given);
    for (devices, level) in [(2, 5), (3, 1)] {
        let simulated = |own: &Graph, bytes: Vec<Vec<u8>>| {
            let program = proven(own, machine, ScheduleOptions { level, ..ScheduleOptions::default() });
            simulate(&program, &bytes, &Options::default()).unwrap().outputs
        };
        assert!(computed(graph, devices, &given, simulated) == one, "seed {seed} on {devices} devices");
    }
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
    let supersteps = split(&graph, 4).unwrap();
    assert_eq!(supersteps.len(), 2);
    assert_eq!(work(&supersteps, 3) * 4, macs(&graph));
    let given = inputs(&graph, 1);
    assert!(computed(&graph, 4, &given, interpreted) == expected(&graph, &given));
}

#[test]
fn packed_weights_are_divided_by_columns() {
    let mut net = Net::new(9);
    let weights = net.packed_constant([64, 96], 32, tpuflow_ir::packed::CodeKind::ZeroPoints);
    let x = net.input(&[1, 3, 64]);
    let y = net.product(x, weights);
    let graph = net.finish(&[y]);
    let supersteps = split(&graph, 3).unwrap();
    for device in &supersteps[0] {
        let Op::MatMul { b, .. } = device.graph.layers[0].op else { panic!("a product") };
        let own = device.graph.tensor(b);
        assert_eq!((own.shape.clone(), own.packed.is_some(), own.dtype), (vec![64, 32], true, DType::I8));
    }
    let given = inputs(&graph, 1);
    assert!(computed(&graph, 3, &given, interpreted) == expected(&graph, &given));
}

#[test]
fn no_network_is_divided_among_no_device() {
    let graph = random(1, 3);
    assert_eq!(split(&graph, 0).err().unwrap().to_string(), "0 devices; a network is divided among 1 to 64");
    assert!(split(&graph, 65).is_err());
}
