//! What holds for every program, whatever the graph and the machine.

use crate::common::{padded_lines, random, residual, tiny};
use tpuflow_ir::access::accesses;
use tpuflow_ir::{Descriptor, Graph, Machine, Program, Space};
use tpuflow_scheduler::{Options, ScheduleError, schedule};

/// Waits point backwards, addresses stay in range, ports lie inside external memory.
fn check(program: &Program) {
    let machine = &program.machine;
    let mut done = [0u32; 5];
    for (index, instruction) in program.instructions.iter().enumerate() {
        let mut units = Vec::new();
        for wait in &instruction.waits {
            assert!(wait.count > 0 && wait.count <= done[wait.unit.index()], "instruction {index} waits forwards");
            assert!(!units.contains(&wait.unit), "instruction {index} waits twice for a unit");
            units.push(wait.unit);
        }
        done[instruction.unit.index()] += 1;
        let touched = accesses(instruction, &program.descriptors, machine);
        for stretch in touched.reads.iter().chain(&touched.writes) {
            let limit = match stretch.space {
                Space::Cache => machine.cache_bytes(),
                Space::EwpCache => machine.ewp_cache_bytes(),
                Space::Ddr(space) => program.ddr_bytes[usize::from(space)],
            };
            assert!(
                stretch.start <= stretch.end && stretch.end <= limit,
                "instruction {index}: {stretch:?} of {limit}"
            );
        }
        for stretch in &touched.writes {
            if let Space::Ddr(space) = stretch.space {
                let constants = program.constants[usize::from(space)].len() as u64;
                assert!(stretch.start >= constants, "instruction {index} overwrites constants");
            }
        }
    }
    for port in program.inputs.iter().chain(&program.outputs) {
        for view in port.views() {
            let Space::Ddr(space) = view.space else { panic!("port {} is not in DDR", port.name) };
            let end = view.address + view.bytes(machine.word());
            assert!(end <= program.ddr_bytes[usize::from(space)], "port {} ends at {end}", port.name);
        }
    }
    assert!(program.cache_peak_bytes <= machine.cache_bytes());
    assert_eq!(program.layers.len(), program.layers.iter().filter(|l| !l.op.is_empty()).count());
}

fn options(level: u8) -> Options {
    Options { level, ..Options::default() }
}

fn compiles(graph: &Graph, machine: &Machine, level: u8) -> Program {
    let program = schedule(graph, machine, &options(level)).unwrap_or_else(|e| panic!("{}: {e}", machine.name));
    check(&program);
    proven(graph, &program);
    program
}

fn proven(graph: &Graph, program: &Program) {
    if let Err(violations) = tpuflow_checker::check(graph, program) {
        let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
        panic!("{} at level {}: {}", program.machine.name, program.level, list.join("\n"));
    }
}

#[test]
fn residual_network_on_every_preset() {
    let graph = residual(7);
    for name in Machine::presets() {
        for level in [1, 5] {
            let program = compiles(&graph, &Machine::preset(&name).unwrap(), level);
            assert_eq!(program.spill_bytes, 0, "{name} has room for everything");
        }
    }
}

#[test]
fn a_small_cache_forces_slices() {
    let graph = residual(7);
    let roomy = compiles(&graph, &Machine::preset("32x32_fpga").unwrap(), 1);
    for level in [1, 5] {
        let program = compiles(&graph, &tiny(8), level);
        assert!(program.spill_bytes > 0);
        assert!(program.instructions.len() > roomy.instructions.len());
    }
}

#[test]
fn a_layer_too_large_is_named() {
    let error = schedule(&residual(7), &tiny(1), &options(1)).unwrap_err();
    assert!(matches!(&error, ScheduleError::Capacity { .. }), "{error}");
    assert!(error.to_string().contains("tiny1"), "{error}");
}

#[test]
fn unknown_level() {
    let machine = Machine::preset("128x128_asic").unwrap();
    assert_eq!(schedule(&residual(7), &machine, &options(3)), Err(ScheduleError::Level(3)));
}

#[test]
fn random_networks_everywhere() {
    let machines =
        [Machine::preset("32x32_fpga").unwrap(), Machine::preset("128x128_asic").unwrap(), tiny(16), tiny(64)];
    let mut built = 0;
    for seed in 0..20 {
        let graph = random(seed, 9);
        for machine in &machines {
            for level in [1, 5] {
                match schedule(&graph, machine, &options(level)) {
                    Ok(program) => {
                        check(&program);
                        proven(&graph, &program);
                        built += 1;
                    }
                    // Some layers cannot be cut small enough for the tiny machines.
                    Err(ScheduleError::Capacity { .. }) if machine.name.starts_with("tiny") => {}
                    Err(error) => panic!("seed {seed} on {}: {error}", machine.name),
                }
            }
        }
    }
    assert!(built > 115, "only {built} programs were built");
}

#[test]
fn same_bytes_every_time() {
    let graph = random(3, 12);
    let machine = Machine::preset("64x64_edge").unwrap();
    for level in [1, 5] {
        assert_eq!(compiles(&graph, &machine, level), compiles(&graph, &machine, level));
    }
    // Plans are made side by side; which is taken must not depend on who comes first.
    let by = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| compiles(&graph, &machine, 5))
    };
    assert_eq!(by(1), by(2));
}

#[test]
fn halves_of_small_images_fit_the_accumulators() {
    // Of 16 bits in a machine of few accumulators, in halves of different sizes.
    let graph = random(8235, 9);
    let program = compiles(&graph, &tiny(8), 5);
    assert_eq!(program.fallback, None);
}

#[test]
fn stretches_of_a_line_have_no_more_padding_than_the_line() {
    let (machine, graphs) = padded_lines();
    for graph in &graphs {
        for level in [1, 5] {
            let program = compiles(graph, &machine, level);
            assert!(program.descriptors.len() > 1, "cut into stretches");
            for descriptor in &program.descriptors {
                let Descriptor::Matrix(d) = descriptor else { continue };
                assert!(d.window.pads.iter().all(|&pad| pad <= 90), "{:?}", d.window);
            }
        }
    }
}
