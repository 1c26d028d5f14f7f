//! Exchanges: programs of several devices that would load what another device has not stored, or something else.

use tpuflow_checker::{Rule, check, check_rules};
use tpuflow_ir::isa::{Direction, Transfer};
use tpuflow_ir::{Graph, Instruction, Machine, Port, Program, Space, Work};
use tpuflow_scheduler::tensor_parallel::divide;
use tpuflow_scheduler::{Options, schedule};

use crate::common::Net;

/// Two products in a row, of which two devices have a half each: what is between them is exchanged.
fn programs() -> Vec<(Graph, Program)> {
    let mut net = Net::new(5);
    let x = net.input(&[1, 4, 48]);
    let y = net.matmul(x, 128);
    let y = net.matmul(y, 64);
    let network = net.finish(&[y]);
    let graph = divide(&network, 2).unwrap().devices.swap_remove(0).graph;
    let machines = ["32x32_fpga", "128x128_asic"].map(|name| Machine::preset(name).unwrap());
    let all = machines.iter().flat_map(|machine| [1, 5].map(|level| (machine, level)));
    let program = |(machine, level)| {
        let program = schedule(&graph, machine, &Options { level, ..Options::default() }).unwrap();
        assert_eq!(check(&graph, &program), Ok(()));
        assert_eq!(check_rules(&program), Ok(()));
        (graph.clone(), program)
    };
    all.map(program).collect()
}

fn is_part(program: &Program, t: &Transfer) -> bool {
    program.machine.rank(t.ddr_space).is_some()
}

/// The first load of a part.
fn load(program: &mut Program) -> &mut Instruction {
    let at = program.instructions.iter().position(|i| matches!(&i.work, Work::Transfer(t) if is_part(program, t)));
    &mut program.instructions[at.unwrap()]
}

fn transfer(instruction: &mut Instruction) -> &mut Transfer {
    let Work::Transfer(t) = &mut instruction.work else { panic!("a transfer") };
    t
}

/// The first store to the part of this device.
fn store(program: &mut Program) -> &mut Instruction {
    let place = program.outputs[program.exchanges[0].output as usize].view;
    let at = program.instructions.iter().position(|i| match &i.work {
        Work::Transfer(t) => t.direction == Direction::Store && t.ddr_address == place.address,
        _ => false,
    });
    &mut program.instructions[at.unwrap()]
}

fn rule(graph: &Graph, sound: &Program, change: &dyn Fn(&mut Program)) -> Rule {
    let mut wrong = sound.clone();
    change(&mut wrong);
    check(graph, &wrong).unwrap_err()[0].rule
}

#[test]
fn every_field_of_an_exchange_is_proven() {
    for (graph, sound) in programs() {
        let rule = |change: &dyn Fn(&mut Program)| rule(&graph, &sound, change);
        assert_eq!(rule(&|p| p.exchanges.clear()), Rule::Exchange);
        assert_eq!(rule(&|p| p.exchanges.push(p.exchanges[0].clone())), Rule::Exchange);
        assert_eq!(rule(&|p| p.exchanges[0].inputs.swap(0, 1)), Rule::Exchange);
        assert_eq!(rule(&|p| p.exchanges[0].inputs.truncate(1)), Rule::Exchange);
        assert_eq!(rule(&|p| p.exchanges[0].inputs[1] = u32::MAX), Rule::Exchange);
        assert_eq!(rule(&|p| p.exchanges[0].output ^= 1), Rule::Exchange);
        assert_eq!(rule(&|p| p.exchanges[0].output = u32::MAX), Rule::Exchange);
    }
}

#[test]
fn parts_lie_alike_on_all_devices_and_alone() {
    for (graph, sound) in programs() {
        let rule = |change: &dyn Fn(&mut Program)| rule(&graph, &sound, change);
        let (own, parts) = (sound.exchanges[0].output as usize, sound.exchanges[0].inputs.clone());
        let part = parts[1] as usize;
        assert_eq!(rule(&|p| p.inputs[part].view.address += 4096), Rule::Exchange);
        assert_eq!(rule(&|p| p.inputs[part].view.space = p.outputs[own].view.space), Rule::Exchange);
        let mut far = sound.clone();
        far.outputs[own].view.space = Space::Ddr(255);
        far.exchanges[0].inputs = vec![parts[0]; 300];
        assert!(check_rules(&far).is_err() && check(&graph, &far).is_err());
        let at =
            |port: &mut Port, view: tpuflow_ir::View| (port.view.space, port.view.address) = (view.space, view.address);
        let place = sound.outputs[own].view;
        let given = (0..sound.inputs.len()).find(|&n| !sound.is_exchanged(n)).unwrap();
        assert_eq!(rule(&|p| at(&mut p.inputs[given], place)), Rule::Exchange, "an input in a part");
        let other = (0..sound.outputs.len()).find(|&n| n != own).unwrap();
        assert_eq!(rule(&|p| at(&mut p.outputs[other], place)), Rule::Exchange, "another output in a part");
    }
}

#[test]
fn what_another_device_does_not_have_is_not_loaded() {
    for (graph, sound) in programs() {
        let rule = |change: &dyn Fn(&mut Program)| rule(&graph, &sound, change);
        let spaces = sound.machine.ddr_spaces() as u8;
        // The part of the other device, of this one without a link, of a device there is none of.
        let other = |space: u8| if space / spaces == 1 { space + spaces } else { space - spaces };
        assert_eq!(rule(&|p| transfer(load(p)).ddr_space = other(transfer(load(p)).ddr_space)), Rule::Value);
        assert_eq!(rule(&|p| transfer(load(p)).ddr_space %= spaces), Rule::Value);
        assert_eq!(rule(&|p| transfer(load(p)).ddr_space += 2 * spaces), Rule::Exchange);
        // Bytes that are no part, in front of it and behind.
        assert_eq!(rule(&|p| transfer(load(p)).ddr_address -= 128), Rule::Exchange);
        // To the cache of parameters, or back.
        assert_eq!(rule(&|p| transfer(load(p)).local_space = Space::EwpCache), Rule::Exchange);
        assert_eq!(rule(&|p| transfer(load(p)).direction = Direction::Store), Rule::Exchange);
        let alone = |change: &dyn Fn(&mut Program)| {
            let mut wrong = sound.clone();
            change(&mut wrong);
            check_rules(&wrong).unwrap_err()[0].rule
        };
        assert_eq!(alone(&|p| transfer(load(p)).ddr_space += 2 * spaces), Rule::Exchange);
        assert_eq!(alone(&|p| transfer(load(p)).ddr_address -= 128), Rule::Exchange);
    }
}

#[test]
fn a_part_is_loaded_once_it_is_stored_and_stored_once() {
    for (graph, sound) in programs() {
        // The others store theirs when this device does: what comes before that comes before theirs.
        let mut wrong = sound.clone();
        let at =
            wrong.instructions.iter().position(|i| matches!(&i.work, Work::Transfer(t) if is_part(&sound, t))).unwrap();
        let mut early = wrong.instructions.remove(at);
        early.waits.clear();
        wrong.instructions.insert(0, early);
        let found = check(&graph, &wrong).unwrap_err();
        assert!(found.iter().any(|violation| violation.rule == Rule::Undefined), "{found:?}");
        // Another device may be behind, and load what it was.
        let twice = |p: &mut Program| {
            let again = store(p).clone();
            let last = p.instructions.len() - 1;
            p.instructions.insert(last, again);
        };
        let mut wrong = sound.clone();
        twice(&mut wrong);
        let found = check(&graph, &wrong).unwrap_err();
        assert!(found.iter().any(|violation| violation.rule == Rule::Exchange), "{found:?}");
    }
}
