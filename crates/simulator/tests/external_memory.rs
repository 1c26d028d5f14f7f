//! Inputs and outputs in external memory: apart, sharing pages with other tensors, moved together or one by one when a program
//! is loaded. The same program every time, with the same bits.

use std::collections::BTreeMap;

use crate::common::wild::wild;
use crate::common::{Net, machine, random, tiny, window};
use crate::trial::inputs;
use tpuflow_ir::error::RelocationError;
use tpuflow_ir::{Graph, Machine, Port, Program, Space};
use tpuflow_kernels::Values;
use tpuflow_scheduler::parameters::{IoMemory, Parameters};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{Options, simulate};

fn compiled(graph: &Graph, machine: &Machine, parameters: &Parameters, level: u8) -> Option<Program> {
    let parameters = Some(parameters.clone());
    schedule(graph, machine, &ScheduleOptions { level, parameters, budget_steps: 10, ..ScheduleOptions::default() })
        .ok()
}

/// Bytes of every output, once the program has been proven.
fn outputs(graph: &Graph, program: &Program) -> Vec<Vec<u8>> {
    assert_eq!(tpuflow_checker::check(graph, program), Ok(()));
    let bytes: Vec<Vec<u8>> = inputs(graph, 3).iter().map(Values::to_le_bytes).collect();
    simulate(program, &bytes, &Options::default()).unwrap().outputs
}

/// A plane that is far larger than the cache, through three convolutions.
fn spilling() -> (Graph, Machine) {
    let mut net = Net::new(21);
    let x = net.input(&[1, 64, 32, 8]);
    let y = net.conv(x, 16, window(3, 1, 1), 1);
    let y = net.conv(y, 16, window(3, 1, 1), 16);
    let y = net.conv(y, 8, window(3, 1, 1), 1);
    (net.finish(&[y]), tiny(32))
}

/// The lowest address of what can move: of a port that is no constant.
fn lowest(program: &Program) -> Option<u64> {
    let views = program.inputs.iter().chain(&program.outputs).flat_map(Port::views).filter(|view| match view.space {
        Space::Ddr(space) => view.address >= program.constants[usize::from(space)].len() as u64,
        _ => false,
    });
    views.map(|view| view.address).min()
}

fn shared(parameters: &Parameters) -> Parameters {
    Parameters { io_memory: IoMemory::Shared, ..parameters.clone() }
}

// feature: SCH-26
#[test]
fn shared_memory_takes_fewer_bytes_and_changes_no_bit() {
    let mut fewer = 0;
    for seed in 0..40 {
        let graph = if seed % 2 == 0 { random(seed, 9) } else { wild(seed, 7, 3000) };
        let machine = if seed % 4 < 2 { tiny(32) } else { machine(seed) };
        for (level, parameters) in [(1, Parameters::o1()), (5, Parameters { layer_fusion: 0, ..Parameters::o5() })] {
            let Some(apart) = compiled(&graph, &machine, &parameters, level) else { continue };
            let together = compiled(&graph, &machine, &shared(&parameters), level).unwrap();
            assert_eq!(outputs(&graph, &apart), outputs(&graph, &together), "seed {seed}");
            assert!(together.ddr_bytes[0] <= apart.ddr_bytes[0], "seed {seed}");
            fewer += u32::from(together.ddr_bytes[0] < apart.ddr_bytes[0]);
        }
    }
    assert!(fewer > 5, "{fewer}");
    let (graph, machine) = spilling();
    let parameters = Parameters { layer_fusion: 0, ..Parameters::o5() };
    let [apart, together] = [&parameters, &shared(&parameters)].map(|p| compiled(&graph, &machine, p, 5).unwrap());
    assert!(apart.spill_bytes > 0 && together.ddr_bytes[0] < apart.ddr_bytes[0]);
}

// feature: SCH-26
#[test]
fn ports_move_together_and_one_by_one_with_the_same_bits() {
    let mut moved = 0;
    for seed in 0..40 {
        let graph = if seed % 2 == 0 { random(seed, 9) } else { wild(seed, 7, 3000) };
        let machine = if seed % 4 < 2 { tiny(32) } else { machine(seed) };
        let level = [1, 5][seed as usize / 2 % 2];
        let parameters = if level == 1 { Parameters::o1() } else { Parameters::o5() };
        let Some(program) = compiled(&graph, &machine, &parameters, level) else { continue };
        let page = machine.page_bytes().max(machine.word() as u64);
        let expected = outputs(&graph, &program);
        let end = program.ddr_bytes.iter().max().unwrap().next_multiple_of(page);
        let together = program.with_io_at(end + 5 * page).unwrap();
        assert_eq!(outputs(&graph, &together), expected, "seed {seed}");
        let Some(lowest) = lowest(&program) else { continue };
        assert_eq!(self::lowest(&together), Some(end + 5 * page));
        // In reverse order, with gaps between them; ports that lie together move by the first that is named.
        let mut addresses = BTreeMap::new();
        let mut at = end + 3 * page;
        let ports = || program.inputs.iter().chain(&program.outputs);
        // Those that lie in another move with all of it.
        let most = ports().map(|port| port.view.bytes(machine.word())).max().unwrap_or(0);
        for port in ports().rev() {
            let mut one = addresses.clone();
            one.insert(port.name.clone(), at + port.view.address % page);
            match program.with_ports_at(&one) {
                Ok(_) => addresses = one,
                Err(RelocationError::Together { .. } | RelocationError::Constant { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
            at += (most + 2 * page).next_multiple_of(page);
        }
        let apart = program.with_ports_at(&addresses).unwrap();
        assert_eq!(outputs(&graph, &apart), expected, "seed {seed}");
        for (name, &address) in &addresses {
            let of = |program: &Program| {
                let mut ports = program.inputs.iter().chain(&program.outputs);
                ports.find(|port| port.name == *name).unwrap().view
            };
            assert_eq!((of(&apart).space, of(&apart).address), (of(&program).space, address));
        }
        // And back.
        assert_eq!(together.with_io_at(lowest).unwrap().instructions, program.instructions);
        moved += 1;
    }
    assert!(moved > 25, "{moved}");
}

// feature: SCH-26
#[test]
fn ports_that_cannot_lie_there_stay() {
    let (graph, machine) = spilling();
    let parameters = Parameters::o1();
    let program = compiled(&graph, &machine, &parameters, 1).unwrap();
    assert!(program.spill_bytes > 0);
    let (page, capacity) = (machine.page_bytes(), machine.ddr_capacity());
    let at = |name: &str, address: u64| program.with_ports_at(&BTreeMap::from([(name.to_owned(), address)]));
    let (input, output) = (program.inputs[0].name.as_str(), program.outputs[0].name.as_str());
    let free = program.ddr_bytes[0].next_multiple_of(page);
    assert_eq!(at("nobody", free), Err(RelocationError::Unknown { port: "nobody".to_owned() }));
    assert!(matches!(at(input, free + 1), Err(RelocationError::Page { .. })));
    assert!(matches!(at(input, capacity - page), Err(RelocationError::Capacity { .. })));
    assert!(matches!(at(input, u64::MAX / page * page), Err(RelocationError::Range { .. })));
    // Over constants, over a spilled tensor, over the other port.
    assert!(matches!(at(input, 0), Err(RelocationError::Taken { .. })));
    let spilled = program.outputs[0].view.address + program.outputs[0].view.bytes(machine.word());
    assert!(matches!(at(input, spilled.next_multiple_of(page)), Err(RelocationError::Taken { .. })));
    assert!(matches!(at(input, program.outputs[0].view.address), Err(RelocationError::Taken { .. })));
    assert!(at(output, free).is_ok());
    assert!(matches!(program.with_io_at(capacity - page), Err(RelocationError::Capacity { .. })));
    // What shares its pages with tensors that are longer cannot be told apart from them.
    let together = compiled(&graph, &machine, &shared(&parameters), 1).unwrap();
    match together.with_io_at(free) {
        Err(RelocationError::Shared { ports, .. }) => assert!(!ports.is_empty()),
        Ok(moved) => assert_eq!(outputs(&graph, &moved), outputs(&graph, &program)),
        Err(error) => panic!("{error}"),
    }
}
