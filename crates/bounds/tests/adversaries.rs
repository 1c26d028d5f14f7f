//! Programs by hand that do with less wherever the machine lets them: none beats a bound, and what would is refused.

use crate::common::{self, Net};
use crate::hand::{finish, keep_constants, run, serial};
use tpuflow_bounds::bounds;
use tpuflow_checker::{Rule, check};
use tpuflow_ir::isa::{Codes, Direction, Matrix, MatrixDescriptor, Weights};
use tpuflow_ir::{
    Arithmetic, BinaryKind, DType, Descriptor, DescriptorId, Graph, Machine, Op, Program, Space, Unit, Work,
};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule_by};
use tpuflow_simulator::{Options, simulate};

fn asic() -> Machine {
    Machine::preset("128x128_asic").unwrap()
}

fn broken(graph: &Graph, program: &Program) -> Vec<Rule> {
    check(graph, program).err().unwrap_or_default().into_iter().map(|violation| violation.rule).collect()
}

fn refused(program: &Program) -> Option<String> {
    simulate(program, &[], &Options { values: false, ..Options::default() }).err().map(|error| error.to_string())
}

/// Two layers with equal weights, which are two tensors.
fn siblings() -> Graph {
    let mut net = Net::new(7);
    let x = net.input(&[8, 512]);
    let y = net.matmul(x, 512);
    let z = net.matmul(y, 512);
    let mut graph = net.finish(&[z]);
    let weights = graph.layers.iter().map(|layer| layer.op.operands()[1]).collect::<Vec<_>>();
    graph.tensors[weights[1].index()].constant = graph.tensor(weights[0]).constant.clone();
    graph
}

#[test]
fn equal_weights_that_are_loaded_once_take_as_long_as_they_must() {
    let graph = siblings();
    let mut machine = asic();
    machine.ddr.channels = 1;
    let mut program = serial(&graph, &machine);
    let loaded = |program: &Program| -> u64 {
        let transfers = program.instructions.iter().filter_map(|instruction| match &instruction.work {
            Work::Transfer(t) if t.direction == Direction::Load => Some(t.total_bytes()),
            _ => None,
        });
        transfers.sum()
    };
    assert!(program.constants[0].len() < 300 << 10, "equal weights are stored once");
    assert!(loaded(&program) > 512 << 10);
    keep_constants(&mut program);
    finish(&mut program);
    assert!(loaded(&program) < 300 << 10);
    let (cycles, bound) = (run(&graph, &program), bounds(&graph, &machine).whole.binding().1);
    assert!(cycles >= bound, "{cycles} < {bound}");
    // Weights twice, at 12.8 bytes a cycle.
    assert!(cycles < (512 << 10) * 10 / 128, "{cycles}");
}

#[test]
fn pixels_nobody_needs_are_not_counted() {
    let mut net = Net::new(7);
    let x = net.input(&[4096, 1024]);
    let y = net.matmul(x, 128);
    let z = net.slice(y, 0, 0, 512);
    let graph = net.finish(&[z]);
    let mut machine = asic();
    machine.ddr.word_bytes = 128;
    let mut program = serial(&graph, &machine);
    let (input, whole) = (program.inputs[0].view.address, program.instructions.len());
    program.instructions.retain_mut(|instruction| match &mut instruction.work {
        Work::Matrix(m) => m.output.origin[0] + m.first_pixel < 512,
        Work::Transfer(t) if t.direction == Direction::Load && t.ddr_address >= input => {
            t.bytes = t.bytes.min(512 << 10);
            t.ddr_address < input + (512 << 10)
        }
        _ => true,
    });
    assert!(program.instructions.len() < whole);
    finish(&mut program);
    let (cycles, bound) = (run(&graph, &program), bounds(&graph, &machine).whole.binding().1);
    assert!(cycles >= bound, "{cycles} < {bound}");
    assert!(cycles < 8 * 4096, "{cycles}: less than all pixels take on the array");
}

#[test]
fn what_is_computed_twice_makes_no_program_shorter() {
    let graph = siblings();
    let mut program = serial(&graph, &asic());
    let once = run(&graph, &program);
    let at = program.instructions.iter().position(|i| matches!(i.work, Work::Matrix(_))).unwrap();
    let again = program.instructions[at].clone();
    program.instructions.insert(at, again);
    finish(&mut program);
    let cycles = run(&graph, &program);
    assert!(cycles >= bounds(&graph, &asic()).whole.binding().1 && once > 0);
}

/// An instruction behind another one need not set the array up, be it for a layer that nobody needs.
#[test]
fn layers_nobody_needs_keep_the_array_set_up() {
    let machine = common::tiny(32);
    let mut net = Net::new(1);
    let x = net.input(&[1, 3, 3, 3]);
    let x = net.average_pool(x, common::window(3, 1, 0), true);
    let x = net.rescale(x);
    let unneeded = net.conv(x, 3, common::window(1, 1, 0), 3);
    net.conv(unneeded, 4, common::window(1, 1, 0), 1);
    let shift = net.constant_like(x, &[1, 1, 1, 1]);
    let x = net.binary(BinaryKind::Add, x, shift);
    let y = net.conv(x, 2, common::window(3, 1, 2), 1);
    let graph = net.finish(&[y]);
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let options = ScheduleOptions { level: 5, ..ScheduleOptions::default() };
    let program = schedule_by(&graph, &machine, &options, &timing).unwrap();
    let (cycles, bound) = (run(&graph, &program), bounds(&graph, &machine).whole.binding().1);
    let setup = machine.control.issue_cold + machine.array.setup - machine.control.issue;
    assert!(cycles >= bound && cycles < bound + setup, "{cycles}, {bound}, {setup}");
}

#[test]
fn caches_are_empty_at_the_start() {
    let graph = siblings();
    let mut program = serial(&graph, &asic());
    let of_weights = |instruction: &tpuflow_ir::Instruction| {
        matches!(&instruction.work,
        Work::Transfer(t) if t.local_space == Space::Cache && t.bytes > 1 << 16)
    };
    let at = program.instructions.iter().position(of_weights).unwrap();
    program.instructions.remove(at);
    finish(&mut program);
    assert!(broken(&graph, &program).contains(&Rule::Undefined));
    assert!(refused(&program).is_some() || simulate(&program, &[vec![1; 8 * 512]], &Options::default()).is_err());
}

#[test]
fn the_array_refuses_depthwise_convolutions() {
    let mut net = Net::new(7);
    let x = net.input(&[1, 8, 8, 128]);
    let y = net.conv(x, 128, common::window(3, 1, 1), 128);
    let graph = net.finish(&[y]);
    let mut program = serial(&graph, &asic());
    let at = program.instructions.iter().position(|i| matches!(i.work, Work::Pool(_))).unwrap();
    let Work::Pool(pool) = program.instructions[at].work.clone() else { unreachable!("found as one") };
    let d = MatrixDescriptor {
        window: common::window(3, 1, 1),
        group_in: 1,
        group_out: 1,
        input_zero: 0,
        weight_zero: 0,
        weight_dtype: DType::I8,
        first_shift: None,
        codes: Codes { zero_point: 0, lo: -128, hi: 127 },
        table: None,
        float: None,
    };
    program.descriptors.push(Descriptor::Matrix(d));
    program.instructions[at].unit = Unit::Me;
    program.instructions[at].work = Work::Matrix(Matrix {
        descriptor: DescriptorId::new(program.descriptors.len() - 1),
        input: pool.input,
        output: pool.output,
        first_pixel: 0,
        pixels: 64,
        first_column: 0,
        columns: 128,
        output_channel: 0,
        weights: Weights { address: 0, row_bytes: 128, plane_bytes: 0 },
        parameters: 0,
        table: 0,
    });
    finish(&mut program);
    assert!(broken(&graph, &program).contains(&Rule::Unit));
    let message = refused(&program).unwrap();
    assert!(message.contains("depthwise convolution, which the pooling unit computes"), "{message}");
}

/// Parameters of one tile that look like those of the other are not those of the other.
#[test]
fn constants_that_look_alike_in_part_are_brought_in_apart() {
    let mut net = Net::new(7);
    let x = net.input(&[8, 128]);
    let y = net.matmul(x, 256);
    let mut graph = net.finish(&[y]);
    let Op::MatMul { bias: Some(bias), epilogue: Arithmetic::Fixed(epilogue), .. } = &mut graph.layers[0].op else {
        panic!("a product")
    };
    (epilogue.requant.multiplier, epilogue.requant.shift) = (vec![9], vec![12]);
    let bias = *bias;
    graph.tensors[bias.index()].constant = Some(vec![0; 4 * 256].into());
    let mut program = serial(&graph, &asic());
    run(&graph, &program);
    let mut tiles = program.instructions.iter_mut().filter_map(|instruction| match &mut instruction.work {
        Work::Matrix(m) => Some(m),
        _ => None,
    });
    let (first, second) = (tiles.next().unwrap(), tiles.next().unwrap());
    assert_ne!(first.parameters, second.parameters);
    second.parameters = first.parameters;
    finish(&mut program);
    assert!(simulate(&program, &[vec![1; 8 * 128]], &Options::default()).is_ok(), "the bytes are the same");
    assert_eq!(broken(&graph, &program)[0], Rule::ConstantPlace);
}

#[test]
fn inputs_and_outputs_lie_in_any_address_space() {
    let graph = siblings();
    let mut program = serial(&graph, &asic());
    program.outputs[0].view.space = Space::Ddr(1);
    program.ddr_bytes = vec![program.ddr_bytes[0]; 2];
    for instruction in &mut program.instructions {
        if let Work::Transfer(t) = &mut instruction.work
            && t.direction == Direction::Store
        {
            t.ddr_space = 1;
        }
    }
    finish(&mut program);
    run(&graph, &program);
}

/// Zeros between pixels cost nothing that convolutions of the phases would not.
#[test]
fn zeros_of_transposed_convolutions_are_not_counted() {
    let (size, channels) = (16, 128);
    let whole = {
        let mut net = Net::new(3);
        let x = net.input(&[1, size, size, channels]);
        let apart = net.insert_zeros(x, [2, 2]);
        let y = net.conv(apart, channels, common::window(4, 1, 2), 1);
        net.finish(&[y])
    };
    let phases = {
        let mut net = Net::new(3);
        let x = net.input(&[1, size, size, channels]);
        let parts: Vec<_> = (0..4).map(|_| net.conv(x, channels, common::window(2, 1, 0), 1)).collect();
        net.finish(&parts)
    };
    let [whole, phases] = [whole, phases].map(|graph| bounds(&graph, &asic()).whole.array);
    // The window reaches over the edge of the one, not of the others.
    let edge = (size * size * 4) as u64 * 4 / 8;
    assert!(whole <= phases + edge && whole > 4 * 200, "{whole}, of phases {phases}");
}
