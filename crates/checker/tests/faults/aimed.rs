//! Wrong programs made on purpose: valid values of one place put into another, where only what they mean is wrong.

use tpuflow_checker::{Operand, Rule, Violation, check};
use tpuflow_ir::isa::{Direction, Transfer, VectorOp};
use tpuflow_ir::{
    BinaryKind, DType, Descriptor, Graph, Instruction, Machine, Program, Quant, Source, Space, Unit, View, Work,
};
use tpuflow_scheduler::{Options, schedule};

use crate::common::{Net, window};

pub fn compiled(graph: &Graph, machine: &Machine, level: u8) -> Program {
    let program = schedule(graph, machine, &Options { level, ..Options::default() }).unwrap();
    assert_eq!(check(graph, &program), Ok(()));
    program
}

pub fn refused(graph: &Graph, program: &Program) -> Violation {
    check(graph, program).expect_err("a wrong program was accepted").remove(0)
}

pub fn fpga() -> Machine {
    Machine::preset("32x32_fpga").unwrap()
}

/// A machine whose DDR channels are address spaces of their own.
fn two_spaces() -> Machine {
    Machine::presets().iter().map(|name| Machine::preset(name).unwrap()).find(|m| m.ddr_spaces() > 1).unwrap()
}

/// Loads of constants, by position.
fn constant_loads(program: &Program) -> Vec<(usize, Transfer)> {
    let load = |(at, instruction): (usize, &Instruction)| match &instruction.work {
        Work::Transfer(t) if t.direction == Direction::Load => {
            let constants = program.constants.get(usize::from(t.ddr_space)).map_or(0, |bytes| bytes.len() as u64);
            (t.ddr_address < constants).then_some((at, *t))
        }
        _ => None,
    };
    program.instructions.iter().enumerate().filter_map(load).collect()
}

/// A move computes nothing: what it reads and writes are elements of one type, however large those of another are.
#[test]
fn moves_between_types_of_one_size_are_refused() {
    let mut net = Net::new(9);
    net.wide = true;
    let x = net.input(&[1, 6, 10, 4]);
    let mut y = net.conv(x, 4, window(1, 1, 0), 1);
    y = net.transpose(y, &[0, 2, 1, 3]);
    y = net.gather(y, 1, &[4, 0, 0, 3]);
    let z = net.conv(y, 8, window(1, 1, 0), 1);
    let graph = net.finish(&[z, y]);
    let mut tried = 0;
    for machine in [fpga(), Machine::preset("128x128_asic").unwrap()] {
        let sound = compiled(&graph, &machine, 1);
        for at in 0..sound.instructions.len() {
            for dtype in [DType::F16, DType::BF16] {
                let mut wrong = sound.clone();
                let Work::Vector(v) = &mut wrong.instructions[at].work else { continue };
                let Descriptor::Vector(op) = &sound.descriptors[v.descriptor.index()] else { unreachable!() };
                if matches!(op, VectorOp::Move { rescale: None, .. } | VectorOp::Gather { .. }) {
                    v.inputs[0].dtype = dtype;
                    assert_eq!(refused(&graph, &wrong).rule, Rule::ElementTypes, "instruction {at}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 3, "{tried}");
}

#[test]
fn weights_of_another_batch_entry_are_refused() {
    let mut net = Net::new(4);
    let x = net.input(&[2, 32, 64]);
    let w = net.constant(&[2, 64, 64], DType::I8, -100, 100);
    let y = net.product(x, w);
    let graph = net.finish(&[y]);
    let mut tried = 0;
    for machine in [fpga(), Machine::preset("128x128_asic").unwrap()] {
        let sound = compiled(&graph, &machine, 1);
        let weights: Vec<(usize, Transfer)> =
            constant_loads(&sound).into_iter().filter(|(_, t)| t.local_space == Space::Cache).collect();
        for &(at, _) in &weights {
            for &(other, from) in weights.iter().filter(|&&(other, _)| other != at) {
                let mut wrong = sound.clone();
                let Work::Transfer(t) = &mut wrong.instructions[at].work else { unreachable!() };
                (t.ddr_address, t.ddr_space) = (from.ddr_address, from.ddr_space);
                assert_eq!(refused(&graph, &wrong).rule, Rule::Weights, "load {at} of what {other} loads");
                tried += 1;
            }
        }
    }
    assert!(tried > 2, "{tried}");
}

#[test]
fn a_tile_from_the_other_address_space_is_refused() {
    let mut net = Net::new(6);
    let x = net.input(&[1, 8, 8, 32]);
    let y = net.conv(x, 32, window(1, 1, 0), 1);
    let y = net.conv(y, 32, window(3, 1, 1), 1);
    let graph = net.finish(&[y]);
    let machine = two_spaces();
    let sound = compiled(&graph, &machine, 5);
    let mut tried = 0;
    for (at, load) in constant_loads(&sound) {
        let mut wrong = sound.clone();
        let other = 1 - load.ddr_space;
        // The other space has other bytes at the same address.
        let image: Vec<u8> = sound.constants[usize::from(load.ddr_space)].iter().map(|byte| byte ^ 1).collect();
        let mut there = sound.constants[usize::from(other)].to_vec();
        there.resize(there.len().max(image.len()), 0);
        there[load.ddr_address as usize..][..load.bytes as usize]
            .copy_from_slice(&image[load.ddr_address as usize..][..load.bytes as usize]);
        wrong.constants[usize::from(other)] = there.into();
        let Work::Transfer(t) = &mut wrong.instructions[at].work else { unreachable!() };
        t.ddr_space = other;
        // Loaded once as it should be, then once more from the other space.
        let mut twice = wrong.clone();
        let again = twice.instructions[at].clone();
        twice.instructions[at] = sound.instructions[at].clone();
        twice.instructions.insert(at + 1, again);
        for program in [&wrong, &twice] {
            assert!(check(&graph, program).is_err(), "load {at} from space {other}");
        }
        tried += 1;
    }
    assert!(tried > 2, "{tried}");
}

/// The same tile loaded from two places, of which the second has other bytes: nothing may be taken as compared already.
#[test]
fn what_was_compared_is_known_by_all_that_says_what_it_is() {
    let mut net = Net::new(6);
    let x = net.input(&[1, 8, 8, 32]);
    let y = net.conv(x, 32, window(1, 1, 0), 1);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &two_spaces(), 1);
    let (at, load) = *constant_loads(&sound).iter().find(|(_, t)| t.local_space == Space::Cache).unwrap();
    let product = sound.instructions.iter().position(|i| matches!(i.work, Work::Matrix(_))).unwrap();
    // The product twice, with the tile loaded again in between from the other space.
    let mut twice = sound.clone();
    let other = 1 - load.ddr_space;
    while twice.constants.len() <= usize::from(other) {
        twice.constants.push(vec![].into());
    }
    twice.ddr_bytes.resize(twice.ddr_bytes.len().max(usize::from(other) + 1), 0);
    let mut there = twice.constants[usize::from(other)].to_vec();
    there.resize(there.len().max((load.ddr_address + u64::from(load.bytes)) as usize), 7);
    twice.ddr_bytes[usize::from(other)] = twice.ddr_bytes[usize::from(other)].max(there.len() as u64);
    twice.constants[usize::from(other)] = there.into();
    let (mut again, mut same) = (sound.instructions[at].clone(), sound.instructions[product].clone());
    let Work::Transfer(t) = &mut again.work else { unreachable!() };
    t.ddr_space = other;
    let done = |unit: Unit| sound.instructions[..=product].iter().filter(|i| i.unit == unit).count() as u32;
    again.waits = [tpuflow_ir::Wait { unit: Unit::Me, count: done(Unit::Me) }].into_iter().collect();
    same.waits = [tpuflow_ir::Wait { unit: again.unit, count: done(again.unit) + 1 }].into_iter().collect();
    twice.instructions.insert(product + 1, again);
    twice.instructions.insert(product + 2, same);
    assert_eq!(refused(&graph, &twice).rule, Rule::Weights);
}

/// A view of half of the channels.
pub fn half(view: &View, second: bool) -> View {
    let channels = view.channels / 2;
    let first = if second { channels } else { 0 };
    let offset = view.channel_offset + first * view.dtype.bytes() as u32;
    View { channels, channel_offset: offset, origin: [view.origin[0], view.origin[1] + first], ..*view }
}

/// The last vector instruction cut in two by channels, and by which halves its inputs are read.
pub fn halves(program: &Program, inputs: [bool; 2]) -> Program {
    let mut cut = program.clone();
    let at = cut.instructions.iter().rposition(|i| matches!(i.work, Work::Vector(_))).unwrap();
    let done = cut.instructions[..=at].iter().filter(|i| i.unit == Unit::Ewp).count() as u32;
    let whole = cut.instructions[at].clone();
    let part = |second: bool, from: bool| {
        let mut part = whole.clone();
        let Work::Vector(v) = &mut part.work else { unreachable!() };
        v.output = half(&v.output, second);
        for view in &mut v.inputs {
            *view = half(view, from);
        }
        part
    };
    cut.instructions[at] = part(false, inputs[0]);
    cut.instructions.insert(at + 1, part(true, inputs[1]));
    for instruction in &mut cut.instructions[at + 2..] {
        for wait in instruction.waits.iter_mut().filter(|wait| wait.unit == Unit::Ewp && wait.count >= done) {
            wait.count += 1;
        }
    }
    for allocation in &mut cut.allocations {
        allocation.last = allocation.last.min(cut.instructions.len() as u32 - 1);
    }
    cut
}

#[test]
fn channel_halves_exchanged_are_refused() {
    type Make = fn(&mut Net, tpuflow_ir::TensorId) -> tpuflow_ir::TensorId;
    let makers: [(&str, Make); 6] = [
        ("add", |net, x| {
            let y = net.constant_like(x, &[1, 4, 4, 64]);
            net.binary(BinaryKind::Add, x, y)
        }),
        ("table", |net, x| net.unary(x)),
        ("rescale", |net, x| net.rescale(x)),
        ("select", |net, x| {
            let y = net.constant_like(x, &[1, 4, 4, 64]);
            net.select(x, y)
        }),
        ("resize", |net, x| net.resize(x, 4, 4)),
        ("slope", |net, x| net.prelu(x)),
    ];
    for float in [None, Some(DType::F16)] {
        for (name, make) in makers {
            let mut net = Net::new(8);
            net.float = float;
            let x = net.input(&[1, 4, 4, 64]);
            let y = make(&mut net, x);
            let graph = net.finish(&[y]);
            let sound = compiled(&graph, &fpga(), 1);
            let straight = check(&graph, &halves(&sound, [false, true]));
            // Parameters of channels lie as the whole instruction reads them.
            if name != "slope" {
                assert_eq!(straight, Ok(()), "{name} {float:?}");
            }
            for inputs in [[true, false], [false, false], [true, true]] {
                let wrong = refused(&graph, &halves(&sound, inputs));
                let expected = [Rule::Channels, Rule::Parameters];
                assert!(expected.contains(&wrong.rule), "{name} {float:?}: {wrong}");
                assert!(wrong.instruction.is_some());
            }
        }
    }
}

#[test]
fn an_index_of_another_pixel_is_refused() {
    let mut net = Net::new(3);
    let y = net.embedding(16, 32, &[1, 8]);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &fpga(), 1);
    let at = sound.instructions.iter().position(|i| matches!(i.work, Work::Lookup(_))).unwrap();
    let change = |change: &dyn Fn(&mut tpuflow_ir::isa::Lookup)| {
        let mut wrong = sound.clone();
        let Work::Lookup(lookup) = &mut wrong.instructions[at].work else { unreachable!() };
        change(lookup);
        refused(&graph, &wrong)
    };
    let later = change(&|l| {
        (l.indices.channels, l.indices.channel_offset, l.indices.origin[1]) = (4, 16, 4);
        (l.first, l.count) = (0, 4);
    });
    assert!([Rule::Lookup, Rule::Tensor].contains(&later.rule), "{later}");
    let elsewhere = change(&|l| {
        (l.output.width, l.output.origin[0]) = (4, 4);
        (l.first, l.count) = (0, 4);
    });
    assert!([Rule::Lookup, Rule::Tensor].contains(&elsewhere.rule), "{elsewhere}");
    // Fewer rows of the table than there are, or from another on.
    assert_eq!(change(&|l| l.table.width -= 1).operand, Some(Operand::Table));
    assert_eq!(change(&|l| (l.table.width, l.table.origin[0]) = (8, 8)).operand, Some(Operand::Table));
}

#[test]
fn an_index_of_the_largest_of_another_pixel_is_refused() {
    let mut net = Net::new(3);
    let x = net.input(&[1, 2, 8, 32]);
    let y = net.arg_max(x, true);
    let graph = net.finish(&[y]);
    let mut wrong = compiled(&graph, &fpga(), 1);
    let vector = wrong.instructions.iter_mut().find_map(|i| match &mut i.work {
        Work::Vector(v) => Some(v),
        _ => None,
    });
    let view = &mut vector.unwrap().inputs[0];
    let row = view.row_bytes(fpga().word());
    (view.rows, view.height, view.stored_rows, view.origin[0]) = (1, 1, 1, 8);
    view.address += row;
    let output = &mut wrong.instructions.iter_mut().find_map(|i| match &mut i.work {
        Work::Vector(v) => Some(v),
        _ => None,
    });
    let v = output.as_mut().unwrap();
    (v.output.rows, v.output.height, v.output.stored_rows, v.rows) = (1, 1, 1, 1);
    assert_eq!(refused(&graph, &wrong).rule, Rule::SamePixels);
}

#[test]
fn ports_and_header_say_what_the_graph_says() {
    let mut net = Net::new(2);
    let x = net.input(&[1, 8, 8, 16]);
    let y = net.conv(x, 16, window(3, 1, 1), 1);
    let mut graph = net.finish(&[y]);
    for id in [graph.inputs[0], graph.outputs[0]] {
        let tensor = &mut graph.tensors[id.index()];
        tensor.source = Some(Source {
            name: tensor.name.clone(),
            shape: vec![1, 16, 8, 8],
            permutation: vec![0, 2, 3, 1],
            dtype: "float32".to_owned(),
        });
    }
    let sound = compiled(&graph, &fpga(), 5);
    type Change = fn(&mut Program);
    let changes: [(Rule, Change); 22] = [
        (Rule::PortQuant, |p| p.inputs[0].quant.as_mut().unwrap().scale[0] *= 2.0),
        (Rule::PortQuant, |p| p.inputs[0].quant.as_mut().unwrap().zero_point += 6),
        (Rule::PortQuant, |p| p.outputs[0].quant = Some(Quant { scale: vec![1.0], zero_point: 0 })),
        (Rule::PortSource, |p| p.outputs[0].source.as_mut().unwrap().permutation.swap(1, 2)),
        (Rule::PortSource, |p| p.inputs[0].source.as_mut().unwrap().name.push('x')),
        (Rule::PortSource, |p| p.inputs[0].source.as_mut().unwrap().shape.swap(1, 2)),
        (Rule::PortSource, |p| p.inputs[0].source.as_mut().unwrap().dtype = "float16".to_owned()),
        (Rule::PortSource, |p| p.inputs[0].source = None),
        (Rule::PortName, |p| p.outputs[0].name.push('x')),
        (Rule::PortShape, |p| {
            p.inputs[0].shape = vec![8, 8, 16];
            p.inputs[0].view.rows = 8;
        }),
        (Rule::PortView, |p| p.outputs[0].view.origin[0] = 1),
        (Rule::PortCount, |p| p.outputs.clear()),
        (Rule::Header, |p| p.name.push('x')),
        (Rule::Header, |p| p.batch += 1),
        (Rule::Header, |p| p.level = 3),
        (Rule::LayerSummary, |p| p.layers[0].macs += 1),
        (Rule::LayerSummary, |p| p.layers[0].name.push('x')),
        (Rule::LayerSummary, |p| p.layers[0].unit = Unit::Pdp),
        (Rule::LayerSummary, |p| drop(p.layers.pop())),
        (Rule::MemoryFigures, |p| p.cache_peak_bytes /= 2),
        (Rule::MemoryFigures, |p| p.spill_bytes += 1),
        (Rule::MemoryFigures, |p| p.allocations[0].address = p.cache_peak_bytes),
    ];
    for (number, (rule, change)) in changes.into_iter().enumerate() {
        let mut wrong = sound.clone();
        change(&mut wrong);
        assert_eq!(refused(&graph, &wrong).rule, rule, "change {number}");
    }
}

#[test]
fn a_fill_of_another_type_is_refused() {
    let mut net = Net::new(2);
    net.wide = true;
    let x = net.input(&[1, 4, 4, 16]);
    let y = net.pad(x, &[0, 1, 1, 0], &[0, 1, 1, 0], tpuflow_ir::PadMode::Constant(5));
    let graph = net.finish(&[y]);
    let mut wrong = compiled(&graph, &fpga(), 1);
    let mut changed = 0;
    for instruction in &mut wrong.instructions {
        let Work::Vector(v) = &mut instruction.work else { continue };
        let fills = matches!(
            wrong.descriptors[v.descriptor.index()],
            Descriptor::Vector(tpuflow_ir::isa::VectorOp::Fill { .. })
        );
        if fills && v.output.dtype == DType::I16 {
            (v.output.dtype, v.output.channels) = (DType::I8, 2 * v.output.channels);
            changed += 1;
        }
    }
    assert!(changed > 0);
    assert_eq!(refused(&graph, &wrong).rule, Rule::Value);
}

#[test]
fn fields_that_nothing_reads_are_zero() {
    let mut net = Net::new(2);
    let x = net.input(&[1, 8, 8, 16]);
    let y = net.conv(x, 16, window(3, 1, 1), 1);
    let y = net.max_pool(y, window(2, 2, 0));
    let y = net.rescale(y);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &fpga(), 1);
    let mut changed = 0;
    for at in 0..sound.instructions.len() {
        let mut wrong = sound.clone();
        match &mut wrong.instructions[at].work {
            Work::Matrix(m) if matches!(&sound.descriptors[m.descriptor.index()], Descriptor::Matrix(d) if d.table.is_none()) =>
            {
                m.table = 64;
            }
            Work::Pool(p) => p.weights = 64,
            Work::Vector(v) => v.parameters = 64,
            _ => continue,
        }
        assert_eq!(refused(&graph, &wrong).rule, Rule::Unused, "instruction {at}");
        changed += 1;
    }
    assert!(changed > 1, "{changed}");
}

#[test]
fn a_result_over_an_operand_that_is_still_read_is_refused() {
    let mut net = Net::new(7);
    let x = net.input(&[1, 8, 8, 8]);
    let y = net.conv(x, 8, window(1, 1, 0), 1);
    let y = net.transpose(y, &[0, 2, 1, 3]);
    let y = net.conv(y, 8, window(1, 1, 0), 1);
    let graph = net.finish(&[y]);
    let mut wrong = compiled(&graph, &fpga(), 1);
    let mover = wrong.instructions.iter().find_map(|i| match &i.work {
        Work::Vector(v) => Some((v.inputs[0].address, v.output.address)),
        _ => None,
    });
    let (from, to) = mover.unwrap();
    for instruction in &mut wrong.instructions {
        match &mut instruction.work {
            Work::Matrix(m) if m.output.address == from => m.output.address = to,
            Work::Vector(v) => v.inputs[0].address = to,
            _ => {}
        }
    }
    assert_eq!(refused(&graph, &wrong).rule, Rule::InPlace);
}

/// One entry for all channels is right where it is every channel's, and not where it is only the first one's.
#[test]
fn the_first_entry_of_a_normalization_does_not_serve_the_others() {
    let mut net = Net::new(7);
    let x = net.input(&[2, 6, 4, 12]);
    let y = net.layer_norm(x, true);
    let graph = net.finish(&[y]);
    let mut wrong = compiled(&graph, &fpga(), 1);
    let norm = wrong.descriptors.iter_mut().find_map(|descriptor| match descriptor {
        Descriptor::Vector(op @ VectorOp::LayerNorm { .. }) => Some(op),
        _ => None,
    });
    let norm = norm.unwrap();
    let VectorOp::LayerNorm { center, input_zero, epsilon, normalize, codes } = norm.clone() else { unreachable!() };
    *norm = VectorOp::SharedLayerNorm { center, input_zero, epsilon, normalize, codes };
    assert_eq!(refused(&graph, &wrong).rule, Rule::Parameters);
}

#[test]
fn a_broadcast_where_the_graph_has_none_is_refused() {
    let mut net = Net::new(7);
    let x = net.input(&[2, 6, 4, 12]);
    let y = net.constant_like(x, &[2, 6, 4, 12]);
    let z = net.binary(BinaryKind::Add, x, y);
    let graph = net.finish(&[z]);
    let sound = compiled(&graph, &fpga(), 1);
    let at = sound.instructions.iter().position(|i| matches!(i.work, Work::Vector(_))).unwrap();
    type Change = fn(&mut View);
    let mut tried = 0;
    let changes: [Change; 4] = [
        |v| v.channels = 1,
        |v| v.width = 1,
        |v| (v.rows, v.stored_rows, v.height) = (v.height, v.height, v.height),
        |v| (v.rows, v.stored_rows, v.height) = (1, 1, 1),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for input in 0..2 {
            let mut wrong = sound.clone();
            let Work::Vector(v) = &mut wrong.instructions[at].work else { unreachable!() };
            change(&mut v.inputs[input]);
            // Where it shows a single image or row, one serves all.
            if wrong == sound || results(&wrong) == results(&sound) {
                continue;
            }
            tried += 1;
            let rule = refused(&graph, &wrong).rule;
            let expected = [Rule::Channels, Rule::SamePixels, Rule::Value, Rule::Pixels, Rule::Undefined];
            assert!(expected.contains(&rule), "{number} of input {input}: {rule:?}");
        }
    }
    assert!(tried > 3, "{tried}");
}

/// What a program computes of some input; nothing where it cannot be run.
fn results(program: &Program) -> Option<Vec<Vec<u8>>> {
    let port = |port: &tpuflow_ir::Port| -> Vec<u8> {
        (0..port.shape.iter().product::<usize>() * port.dtype.bytes()).map(|i| (i * 37 % 251) as u8).collect()
    };
    let inputs: Vec<Vec<u8>> = program.inputs.iter().map(port).collect();
    Some(tpuflow_simulator::simulate(program, &inputs, &tpuflow_simulator::Options::default()).ok()?.outputs)
}
