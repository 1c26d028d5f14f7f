//! Programs whose numbers ask for more than can be followed: each is refused, at once or when the steps are used up.

use tpuflow_checker::{Rule, Violation, check, check_rules};
use tpuflow_ir::isa::{Direction, Transfer, VectorOp};
use tpuflow_ir::{Descriptor, Graph, Instruction, Machine, Program, Space, Work};

use super::aimed::{compiled, fpga};
use super::{joined, moves, subject, tiny};
use crate::common::Net;

/// A graph and a sound program of it.
fn sound(graph: Graph, machine: &Machine) -> (Graph, Program) {
    let subject = subject("endless", &graph, machine, 5).unwrap();
    (graph, subject.program)
}

fn transfers(program: &mut Program, direction: Direction) -> Vec<&mut Transfer> {
    let all = program.instructions.iter_mut().filter_map(|instruction| match &mut instruction.work {
        Work::Transfer(transfer) => Some(transfer),
        _ => None,
    });
    all.filter(|transfer| transfer.direction == direction).collect()
}

/// The loops of the first move: extents and strides.
fn first_move(program: &mut Program) -> (&mut Vec<u32>, &mut Vec<i64>, &mut Vec<i64>, usize) {
    let (at, number) = program
        .instructions
        .iter()
        .enumerate()
        .find_map(|(at, instruction)| match &instruction.work {
            Work::Vector(v) => {
                let is_move =
                    matches!(program.descriptors[v.descriptor.index()], Descriptor::Vector(VectorOp::Move { .. }));
                is_move.then_some((at, v.descriptor.index()))
            }
            _ => None,
        })
        .unwrap();
    let Descriptor::Vector(VectorOp::Move { dims, input_strides, output_strides, .. }) =
        &mut program.descriptors[number]
    else {
        panic!("found as a move")
    };
    (dims, input_strides, output_strides, at)
}

/// With and without its graph the program is refused by one of the rules.
fn refused(graph: &Graph, program: &Program, rules: &[Rule]) {
    let holds = |found: Result<(), Vec<Violation>>| {
        let found = found.unwrap_err();
        assert!(found.iter().any(|violation| rules.contains(&violation.rule)), "{}", found[0]);
    };
    holds(check(graph, program));
    holds(check_rules(program));
}

/// Elements beyond all memories are refused before anybody counts bytes to them.
#[test]
fn rows_of_gathers_lie_in_some_memory() {
    let mut net = Net::new(4);
    let x = net.input(&[4, 32]);
    let y = net.gather(x, 0, &[2, 0]);
    let graph = net.finish(&[y]);
    let mut program = compiled(&graph, &fpga(), 1);
    for descriptor in &mut program.descriptors {
        if let Descriptor::Vector(VectorOp::Gather { extent, inner, indices, .. }) = descriptor {
            (*extent, *inner) = (u32::MAX, u32::MAX);
            indices.fill(u32::MAX - 1);
        }
    }
    refused(&graph, &program, &[Rule::Loops]);
}

/// Steps grow with the rows that a gather brings, not with their square: these many are within the limit.
#[test]
fn gathers_of_many_rows_are_followed() {
    let mut net = Net::new(4);
    let x = net.input(&[1, 3000, 3]);
    let indices: Vec<u32> = (0..3000).map(|row| row * 7 % 3000).collect();
    let y = net.gather(x, 1, &indices);
    let y = net.transpose(y, &[1, 0, 2]);
    let graph = net.finish(&[y]);
    let program = compiled(&graph, &fpga(), 1);
    assert_eq!((check(&graph, &program), check_rules(&program)), (Ok(()), Ok(())));
}

#[test]
fn transfers_bring_no_byte_twice() {
    let (graph, program) = sound(joined(), &tiny());
    for direction in [Direction::Load, Direction::Store] {
        for counts in [[u32::MAX, u32::MAX], [1 << 21, 1], [1, 1 << 27]] {
            let mut endless = program.clone();
            let transfer = transfers(&mut endless, direction).into_iter().next().unwrap();
            transfer.counts = counts;
            (transfer.ddr_strides, transfer.local_strides) = ([0, 0], [0, 0]);
            refused(&graph, &endless, &[Rule::Limits]);
        }
    }
    // As many bytes as fit where they arrive, but from where nothing is.
    let mut far = program;
    let transfer = transfers(&mut far, Direction::Load).into_iter().next().unwrap();
    (transfer.counts, transfer.ddr_strides) = ([2, 2], [u64::MAX / 2, 1]);
    refused(&graph, &far, &[Rule::Memory]);
}

#[test]
fn loops_of_moves_end() {
    let (graph, program) = sound(moves(), &tiny());
    // The same element over and over.
    let mut endless = program.clone();
    let (dims, from, to, at) = first_move(&mut endless);
    (*dims, *from, *to) = (vec![1 << 11; 3], vec![0; 3], vec![0; 3]);
    let Work::Vector(v) = &mut endless.instructions[at].work else { panic!("found as a move") };
    (v.first_row, v.rows) = (0, 1 << 11);
    refused(&graph, &endless, &[Rule::Limits]);
    for stride in [i64::MAX, i64::MIN, 1 << 47] {
        let mut far = program.clone();
        let (dims, from, ..) = first_move(&mut far);
        dims[0] = dims[0].max(3);
        from[0] = stride;
        refused(&graph, &far, &[Rule::Loops, Rule::Extent]);
        let mut far = program.clone();
        let (dims, _, to, _) = first_move(&mut far);
        dims[0] = dims[0].max(3);
        to[0] = stride;
        refused(&graph, &far, &[Rule::Loops, Rule::Extent]);
    }
}

/// Every second byte of a large cache, again and again: what the memories hold falls into ever more runs.
#[test]
fn memories_do_not_fall_to_pieces() {
    let (graph, mut program) = sound(joined(), &tiny());
    program.machine.cache.words = 1 << 20;
    let bytes = program.machine.cache_bytes();
    let pieces = (0..6u64).map(|n| {
        let work = Work::Transfer(Transfer {
            direction: Direction::Load,
            ddr_space: 0,
            ddr_address: 0,
            local_space: Space::Cache,
            local_address: n % 2 + bytes / 6 * n,
            bytes: 1,
            counts: [(bytes / 12) as u32, 1],
            ddr_strides: [0, 0],
            local_strides: [2, 0],
        });
        Instruction { work, waits: Default::default(), ..program.instructions[0].clone() }
    });
    let first: Vec<Instruction> = pieces.collect();
    program.instructions.splice(0..0, first);
    refused(&graph, &program, &[Rule::Limits]);
}
