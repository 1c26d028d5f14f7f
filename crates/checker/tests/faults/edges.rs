//! The edges of single rules: what is just not allowed, reported by the rule that says so, and what just is.

use tpuflow_checker::{Rule, check, check_rules};
use tpuflow_ir::isa::{Direction, FloatOutput, Lookup, MatrixDescriptor, PoolDescriptor, PoolKind, Vector, VectorOp};
use tpuflow_ir::{BinaryKind, DType, Descriptor, Instruction, Program, Real, Space, Unit, Work};

use super::aimed::{compiled, fpga, half, halves, refused};
use super::{joined, moves, subject, tiny};
use crate::common::wild::long_lines;
use crate::common::{Net, window};

/// Puts instructions in place of the last one that `is` accepts; what waits for it waits for the last of them.
fn in_pieces(program: &Program, is: fn(&Work) -> bool, pieces: impl Fn(&Instruction) -> Vec<Instruction>) -> Program {
    let mut cut = program.clone();
    let at = cut.instructions.iter().rposition(|i| is(&i.work)).unwrap();
    let unit = cut.instructions[at].unit;
    let done = cut.instructions[..=at].iter().filter(|i| i.unit == unit).count() as u32;
    let pieces = pieces(&cut.instructions[at]);
    let more = pieces.len() as u32 - 1;
    cut.instructions.splice(at..=at, pieces);
    for instruction in &mut cut.instructions[at + 1 + more as usize..] {
        for wait in instruction.waits.iter_mut().filter(|wait| wait.unit == unit && wait.count >= done) {
            wait.count += more;
        }
    }
    cut
}

#[test]
fn groups_of_products_have_channels() {
    let mut net = Net::new(2);
    let x = net.input(&[1, 8, 8, 16]);
    let y = net.conv(x, 16, window(3, 1, 1), 1);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &fpga(), 1);
    let changes: [fn(&mut MatrixDescriptor); 2] = [|d| d.group_in = 0, |d| d.group_out = 0];
    for change in changes {
        let mut wrong = sound.clone();
        let product = wrong.descriptors.iter_mut().find_map(|descriptor| match descriptor {
            Descriptor::Matrix(d) => Some(d),
            _ => None,
        });
        change(product.unwrap());
        assert_eq!(refused(&graph, &wrong).rule, Rule::Window);
        assert_eq!(check_rules(&wrong).unwrap_err()[0].rule, Rule::Window);
    }
}

/// Each field of a pooling's descriptor alone.
#[test]
fn depthwise_descriptors_repeat_all_of_their_layer() {
    type Change = fn(&mut PoolDescriptor) -> bool;
    fn float(d: &mut PoolDescriptor, change: fn(&mut FloatOutput)) -> bool {
        let PoolKind::FloatDepthwise { output, .. } = &mut d.kind else { return false };
        change(output);
        true
    }
    let changes: [Change; 9] = [
        |d| {
            d.window.pads[0] += 1;
            true
        },
        |d| {
            d.window.dilation = [2, 1];
            true
        },
        |d| float(d, |output| output.lo = Some(Real::new(-1.5))),
        |d| float(d, |output| output.hi = Some(Real::new(1.5))),
        |d| {
            let PoolKind::Depthwise { input_zero, .. } = &mut d.kind else { return false };
            *input_zero += 1;
            true
        },
        |d| {
            let PoolKind::Depthwise { weight_zero, .. } = &mut d.kind else { return false };
            *weight_zero += 1;
            true
        },
        |d| {
            let PoolKind::Depthwise { first_shift, .. } = &mut d.kind else { return false };
            *first_shift = if first_shift.is_none() { Some(1) } else { None };
            true
        },
        |d| {
            let PoolKind::Depthwise { codes, .. } = &mut d.kind else { return false };
            codes.lo += 1;
            true
        },
        |d| {
            let PoolKind::Depthwise { codes, .. } = &mut d.kind else { return false };
            codes.zero_point += 1;
            true
        },
    ];
    for (dtype, expected) in [(None, 7), (Some(DType::F16), 4)] {
        let mut net = Net::new(2);
        net.float = dtype;
        let x = net.input(&[1, 8, 8, 16]);
        let y = net.conv(x, 16, window(3, 1, 1), 16);
        let graph = net.finish(&[y]);
        let sound = compiled(&graph, &fpga(), 1);
        let mut tried = 0;
        for (number, change) in changes.iter().enumerate() {
            let mut wrong = sound.clone();
            let pooling = wrong.descriptors.iter_mut().find_map(|descriptor| match descriptor {
                Descriptor::Pool(d) => Some(d),
                _ => None,
            });
            if change(pooling.unwrap()) {
                assert_eq!(refused(&graph, &wrong).rule, Rule::Descriptor, "change {number} of {dtype:?}");
                tried += 1;
            }
        }
        assert_eq!(tried, expected, "{dtype:?}");
    }
}

/// Addresses do not wrap around, on either side and along either axis.
#[test]
fn strides_of_transfers_reach_no_address_beyond_all() {
    let sound = subject("edges", &joined(), &tiny(), 5).unwrap().program;
    let at = sound.instructions.iter().position(|i| matches!(i.work, Work::Transfer(_))).unwrap();
    for axis in 0..2 {
        for local in [false, true] {
            let mut far = sound.clone();
            let Work::Transfer(transfer) = &mut far.instructions[at].work else { unreachable!() };
            (transfer.counts, transfer.ddr_strides, transfer.local_strides) = ([1, 1], [0, 0], [0, 0]);
            transfer.counts[axis] = 2;
            let strides = if local { &mut transfer.local_strides } else { &mut transfer.ddr_strides };
            strides[axis] = u64::MAX;
            for found in [check(&joined(), &far), check_rules(&far)] {
                assert_eq!(found.unwrap_err()[0].rule, Rule::Memory, "axis {axis}, local {local}");
            }
        }
    }
}

/// A load moves no more than its cache holds, a store no more than the DDR space does, whatever the other side holds.
#[test]
fn transfers_move_what_fits_where_it_arrives() {
    let graph = joined();
    let mut program = subject("edges", &graph, &tiny(), 5).unwrap().program;
    let (cache, ddr) = (program.machine.cache_bytes(), 1 << 20);
    assert!(cache < ddr / 2);
    program.ddr_bytes.fill(ddr);
    for (direction, most) in [(Direction::Load, cache), (Direction::Store, ddr)] {
        for more in [false, true] {
            let mut wrong = program.clone();
            let transfer = wrong.instructions.iter_mut().find_map(|instruction| match &mut instruction.work {
                Work::Transfer(t) if t.direction == direction && t.local_space == Space::Cache => Some(t),
                _ => None,
            });
            let transfer = transfer.unwrap();
            (transfer.ddr_strides, transfer.local_strides) = ([0, 0], [0, 0]);
            transfer.counts = [(most / u64::from(transfer.bytes)) as u32 + u32::from(more), 1];
            let found = check_rules(&wrong).err().unwrap_or_default();
            assert_eq!(found.iter().any(|violation| violation.rule == Rule::Limits), more, "{direction:?}");
        }
    }
}

/// An operand repeated along axes that no view can repeat is read in whole pixels.
#[test]
fn halves_of_a_repeated_operand_are_refused() {
    let mut net = Net::new(8);
    let x = net.input(&[2, 3, 2, 4, 64]);
    let y = net.input(&[2, 1, 2, 4, 64]);
    let z = net.binary(BinaryKind::Add, x, y);
    let graph = net.finish(&[z]);
    let sound = compiled(&graph, &fpga(), 1);
    let elements = |v: &Vector| v.inputs.iter().map(|i| i.rows * i.width * i.channels).collect::<Vec<_>>();
    let mut shown = sound.instructions.iter().filter_map(|i| match &i.work {
        Work::Vector(v) if v.inputs.len() == 2 => Some(elements(v)),
        _ => None,
    });
    assert!(shown.any(|shown| shown == [3072, 3072]), "the operand is repeated");
    for inputs in [[false, true], [true, false], [false, false]] {
        assert!([Rule::Tensor, Rule::Channels].contains(&refused(&graph, &halves(&sound, inputs)).rule), "{inputs:?}");
    }
    assert_eq!(refused(&graph, &halves(&sound, [false, true])).rule, Rule::Tensor);
}

/// What a stretch of parameters stands for is counted from the first channel of the tensor, not of the view.
#[test]
fn channels_of_a_depthwise_convolution_may_be_computed_once_more() {
    for float in [None, Some(DType::F16)] {
        let mut net = Net::new(8);
        net.float = float;
        let x = net.input(&[1, 4, 4, 64]);
        let y = net.conv(x, 64, window(1, 1, 0), 64);
        let graph = net.finish(&[y]);
        let sound = compiled(&graph, &fpga(), 1);
        let again = |off: [u32; 2]| {
            in_pieces(
                &sound,
                |work| matches!(work, Work::Pool(_)),
                |whole| {
                    let mut part = whole.clone();
                    let Work::Pool(p) = &mut part.work else { unreachable!() };
                    (p.input, p.output) = (half(&p.input, true), half(&p.output, true));
                    p.weights += off[0];
                    p.parameters += off[1];
                    vec![whole.clone(), part]
                },
            )
        };
        let weight = if float.is_some() { 2 } else { 1 };
        let found: Vec<u32> = (1..=32u32)
            .map(|bytes| bytes * 32)
            .filter(|&bytes| check(&graph, &again([32 * weight, bytes])) == Ok(()))
            .collect();
        let entry = tpuflow_ir::isa::ChannelParameters::bytes(false) as u32;
        assert!(float.is_some() || found == [32 * entry], "{found:?}");
        assert_eq!(found.len(), 1, "{float:?}: {found:?}");
    }
}

/// A lookup of some columns of the table gives those of the result.
#[test]
fn rows_may_be_looked_up_in_halves() {
    let mut net = Net::new(3);
    let y = net.embedding(16, 64, &[1, 8]);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &fpga(), 1);
    let in_halves = |table: [bool; 2]| {
        in_pieces(
            &sound,
            |work| matches!(work, Work::Lookup(_)),
            |whole| {
                let part = |(second, from): (bool, bool)| {
                    let mut part = whole.clone();
                    let Work::Lookup(lookup) = &mut part.work else { unreachable!() };
                    let Lookup { table, output, .. } = lookup;
                    (*table, *output) = (half(table, from), half(output, second));
                    part
                };
                [false, true].into_iter().zip(table).map(part).collect()
            },
        )
    };
    assert_eq!(check(&graph, &in_halves([false, true])), Ok(()));
    for table in [[true, false], [false, false], [true, true]] {
        assert_eq!(refused(&graph, &in_halves(table)).rule, Rule::Lookup, "{table:?}");
    }
}

/// The first element behind the last one is no element of a view.
#[test]
fn moves_stay_inside_their_views() {
    let sound = subject("edges", &moves(), &tiny(), 5).unwrap().program;
    let mut tried = 0;
    for at in 0..sound.instructions.len() {
        let Work::Vector(v) = &sound.instructions[at].work else { continue };
        let number = v.descriptor.index();
        if !matches!(sound.descriptors[number], Descriptor::Vector(VectorOp::Move { .. })) {
            continue;
        }
        for of_output in [false, true] {
            let mut wrong = sound.clone();
            let Work::Vector(v) = &wrong.instructions[at].work else { unreachable!() };
            let view = if of_output { &v.output } else { &v.inputs[0] };
            let behind = i64::from(view.rows * view.width * view.channels);
            let Descriptor::Vector(VectorOp::Move { input_offset, output_offset, .. }) = &mut wrong.descriptors[number]
            else {
                unreachable!()
            };
            *(if of_output { output_offset } else { input_offset }) = behind;
            assert_eq!(check_rules(&wrong).unwrap_err()[0].rule, Rule::Extent, "instruction {at}");
            tried += 1;
        }
    }
    assert!(tried > 1, "{tried}");
}

/// An element left out between two is not written, though it is as short as the padding behind a pixel.
#[test]
fn moves_write_no_element_they_leave_out() {
    let mut net = Net::new(9);
    let x = net.input(&[1, 5, 7, 3]);
    let y = net.transpose(x, &[0, 2, 1, 3]);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &fpga(), 1);
    assert_eq!(check(&graph, &sound), Ok(()));
    let mut wrong = sound;
    let mut tried = 0;
    for descriptor in &mut wrong.descriptors {
        let Descriptor::Vector(VectorOp::Move { dims, input_strides, output_strides, .. }) = descriptor else {
            continue;
        };
        let channels = output_strides.iter().position(|&stride| stride == 1).unwrap();
        assert_eq!((dims[channels], input_strides[channels]), (3, 1));
        (dims[channels], input_strides[channels], output_strides[channels]) = (2, 2, 2);
        tried += 1;
    }
    assert!(tried > 0);
    assert_eq!(refused(&graph, &wrong).rule, Rule::Undefined);
    assert_eq!(check_rules(&wrong).unwrap_err()[0].rule, Rule::Undefined);
}

/// A gather reads all its rows before it writes one, whichever order a machine takes them in: rows in place of others are refused.
#[test]
fn gathers_write_no_row_they_read_later() {
    let mut net = Net::new(9);
    let x = net.input(&[2, 32]);
    let y = net.gather(x, 0, &[1, 0]);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &fpga(), 1);
    let mut wrong = sound.clone();
    let gather = wrong.instructions.iter_mut().find_map(|instruction| match &mut instruction.work {
        Work::Vector(v) => Some(v),
        _ => None,
    });
    let gather = gather.unwrap();
    let (from, to) = (gather.inputs[0].address, gather.output.address);
    gather.output.address = from;
    for instruction in &mut wrong.instructions {
        if let Work::Transfer(t) = &mut instruction.work
            && t.direction == Direction::Store
        {
            assert_eq!(t.local_address, to);
            t.local_address = from;
        }
    }
    assert_eq!(check_rules(&sound), Ok(()));
    assert_eq!(check_rules(&wrong).unwrap_err()[0].rule, Rule::InPlace);
    assert_eq!(refused(&graph, &wrong).rule, Rule::InPlace);
}

/// A step of a reduction may take the place of the running results it goes on with, each its own, but of no other.
#[test]
fn running_results_take_their_own_places() {
    let sound = subject("edges", &long_lines(1, None), &tiny(), 5).unwrap().program;
    let mut tried = 0;
    for at in 0..sound.instructions.len() {
        let mut wrong = sound.clone();
        let Work::Vector(v) = &mut wrong.instructions[at].work else { continue };
        let Descriptor::Vector(VectorOp::Reduce { partial: true, .. }) = sound.descriptors[v.descriptor.index()] else {
            continue;
        };
        let Some(sums) = v.inputs.get(1).filter(|sums| sums.channels > 1) else { continue };
        v.output.address = sums.address + sums.dtype.bytes() as u64;
        let found = check_rules(&wrong).unwrap_err();
        assert!(found.iter().any(|violation| violation.rule == Rule::InPlace), "instruction {at}: {}", found[0]);
        tried += 1;
    }
    assert!(tried > 0);
}

/// Indices may be found one by one, as channels of a single pixel, each that of its own pixel of the operand.
#[test]
fn indices_are_those_of_their_pixels() {
    let mut net = Net::new(3);
    let x = net.input(&[5, 32]);
    let y = net.arg_max(x, false);
    let graph = net.finish(&[y]);
    let sound = compiled(&graph, &fpga(), 1);
    let found = sound.instructions.iter().position(|i| matches!(i.work, Work::Vector(_))).unwrap();
    let by_pixel = |from: [u32; 5]| {
        let mut cut = sound.clone();
        let whole = cut.instructions[found].clone();
        let one = |(to, from): (u32, u32)| {
            let mut one = whole.clone();
            let Work::Vector(v) = &mut one.work else { unreachable!() };
            let (input, output) = (&mut v.inputs[0], &mut v.output);
            (input.width, input.origin[0]) = (1, from);
            input.address += u64::from(from * input.pixel_bytes);
            (output.width, output.origin[1]) = (1, to);
            (output.channel_offset, output.pixel_bytes) = (to * 4, 32);
            one
        };
        cut.instructions.splice(found..=found, (0..5).zip(from).map(one));
        for instruction in &mut cut.instructions[found + 5..] {
            for wait in instruction.waits.iter_mut().filter(|wait| wait.unit == Unit::Ewp) {
                wait.count += 4;
            }
        }
        for allocation in &mut cut.allocations {
            for at in [&mut allocation.first, &mut allocation.last] {
                *at += if *at as usize > found { 4 } else { 0 };
            }
        }
        cut
    };
    assert_eq!(check(&graph, &by_pixel([0, 1, 2, 3, 4])), Ok(()));
    for wrong in [[1, 0, 2, 3, 4], [4, 3, 2, 1, 0], [0; 5]] {
        assert_eq!(refused(&graph, &by_pixel(wrong)).rule, Rule::SamePixels, "{wrong:?}");
    }
}
