//! Programs by hand: one of level 1 taken apart and put together in another way, and what becomes of it.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several test files, each of which uses a part")]

use std::sync::Arc;

use tpuflow_ir::access::{Accesses, Stretch, accesses};
use tpuflow_ir::isa::Direction;
use tpuflow_ir::{Graph, Instruction, Machine, Program, Space, Unit, Wait, Work};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

use crate::trial::inputs;

/// A program that does one thing after the other.
pub fn serial(graph: &Graph, machine: &Machine) -> Program {
    schedule(graph, machine, &ScheduleOptions { level: 1, ..ScheduleOptions::default() }).unwrap()
}

/// Whether an instruction must follow an earlier one.
pub fn follows(late: &Accesses, early: &Accesses) -> bool {
    let meet = |a: &[Stretch], b: &[Stretch]| a.iter().any(|a| b.iter().any(|b| a.overlaps(b)));
    meet(&late.reads, &early.writes) || meet(&late.writes, &early.reads) || meet(&late.writes, &early.writes)
}

/// What every instruction of a program touches.
pub fn touched(program: &Program) -> Vec<Accesses> {
    program.instructions.iter().map(|i| accesses(i, &program.descriptors, &program.machine)).collect()
}

/// Lets every instruction wait for what it must follow, and for nothing else.
pub fn finish(program: &mut Program) {
    let touched = touched(program);
    let mut numbers = Vec::new();
    let mut done = [0; Unit::ALL.len()];
    for (at, instruction) in program.instructions.iter_mut().enumerate() {
        let mut waits = [0; Unit::ALL.len()];
        for (early, &(unit, number)) in numbers.iter().enumerate() {
            if follows(&touched[at], &touched[early]) {
                waits[unit] = number;
            }
        }
        let some = Unit::ALL.into_iter().zip(waits).filter(|wait| wait.1 > 0);
        instruction.waits = some.map(|(unit, count)| Wait { unit, count }).collect();
        done[instruction.unit.index()] += 1;
        numbers.push((instruction.unit.index(), done[instruction.unit.index()]));
    }
    program.cache_peak_bytes = program.machine.cache_bytes();
    program.allocations.clear();
}

/// Loads every constant of the shared cache once, to a place of its own in the upper half, and keeps it there.
pub fn keep_constants(program: &mut Program) {
    let mut places = std::collections::BTreeMap::new();
    let mut moved: Vec<(u64, u64, u64)> = Vec::new();
    let mut free = program.machine.cache_bytes() / 2;
    let constants: Vec<u64> = program.constants.iter().map(|image| image.len() as u64).collect();
    let mut keep = |instruction: &mut Instruction| {
        match &mut instruction.work {
            Work::Transfer(t) if t.direction == Direction::Load && t.local_space == Space::Cache => {
                let is_constant = t.ddr_address < constants.get(usize::from(t.ddr_space)).copied().unwrap_or(0);
                if !is_constant || t.counts != [1, 1] {
                    return true;
                }
                let bytes = u64::from(t.bytes);
                let known = places.get(&(t.ddr_space, t.ddr_address)).copied();
                let place = known.unwrap_or(free);
                moved.push((t.local_address, t.local_address + bytes, place));
                if known.is_some() {
                    return false;
                }
                places.insert((t.ddr_space, t.ddr_address), place);
                free += bytes;
                t.local_address = place;
            }
            Work::Matrix(m) => {
                let at = m.weights.address;
                if let Some(&(start, _, place)) =
                    moved.iter().rev().find(|&&(start, end, _)| (start..end).contains(&at))
                {
                    m.weights.address = place + (at - start);
                }
            }
            _ => {}
        }
        true
    };
    program.instructions.retain_mut(&mut keep);
}

/// Cycles of a program that is proven and computes what its graph does.
pub fn run(graph: &Graph, program: &Program) -> u64 {
    tpuflow_checker::check(graph, program).unwrap_or_else(|broken| panic!("{}: {}", graph.name, broken[0]));
    let given = inputs(graph, 3);
    let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    let run = simulate(program, &bytes, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    let expected = Interpreter::new(Arc::new(graph.clone())).unwrap().run(given, Keep::Outputs).unwrap();
    for (id, found) in graph.outputs.iter().zip(&run.outputs) {
        assert!(expected.get(*id).unwrap().to_le_bytes() == *found, "output \"{}\"", graph.tensor(*id).name);
    }
    run.cycles
}
