//! Random networks, scheduled and simulated: the same integers as the graph interpreter, the same cycles whether idle
//! time is taken in stretches or stepped through, and every cycle of every unit booked.

use std::sync::Arc;

use crate::common::wild::{reshaped, wild};
use crate::common::{self, padded_lines, random, residual, tiny};
use crate::trial::inputs;
use tpuflow_ir::{Descriptor, Graph, Machine, Program, Window};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, ScheduleError, schedule, schedule_by};
use tpuflow_simulator::{
    ArrayModel, Interpreter, Keep, Options, ProgramCache, Run, SimError, Tensors, simulate, simulate_again,
};

fn balanced(run: &Run) {
    for unit in run.counters.units {
        assert_eq!(unit.busy + unit.stalls.total(), unit.end - unit.start, "{unit:?}");
        assert!(unit.end <= run.cycles);
    }
}

/// Runs a program in all ways; the outputs must be the interpreter's.
fn check(graph: &Graph, program: &Program, seed: u64, options: &Options) -> Run {
    let given = inputs(graph, seed);
    let bytes: Vec<Vec<u8>> = given.iter().map(Values::to_le_bytes).collect();
    let run = simulate(program, &bytes, options).unwrap_or_else(|e| panic!("{e}"));
    balanced(&run);
    assert!(run.events.is_empty(), "{:?}", run.events);
    // What runs of other inputs leave changes nothing.
    let kept = ProgramCache::default();
    let others: Vec<Vec<u8>> = inputs(graph, seed + 1).iter().map(Values::to_le_bytes).collect();
    for bytes in [&others, &bytes, &others] {
        let again = simulate_again(program, bytes, options, &kept).unwrap_or_else(|e| panic!("{e}"));
        assert!(bytes == &others || again == run, "another run after others");
    }
    let interpreter = Interpreter::new(Arc::new(graph.clone())).unwrap();
    let all = interpreter.run(given.clone(), Keep::All).unwrap();
    let expected = interpreter.run(given.clone(), Keep::Outputs).unwrap();
    assert!(graph.outputs.iter().all(|id| all.get(*id) == expected.get(*id)), "with all tensors kept");
    some_tensors(graph, &interpreter, &given, &all, seed);
    for (n, (id, port)) in graph.outputs.iter().zip(&program.outputs).enumerate() {
        let same = expected.get(*id).unwrap().to_le_bytes() == run.outputs[n];
        assert!(same, "output {n} \"{}\" differs", port.name);
    }
    run
}

/// Every third tensor alone: kept by a run, or made by its layer alone of what is given.
fn some_tensors(graph: &Graph, interpreter: &Interpreter, given: &[Values], all: &Tensors, seed: u64) {
    let activations = all.iter().map(|(id, _)| id).filter(|id| graph.tensor(*id).constant.is_none());
    let third: Vec<_> = activations.filter(|id| (id.index() as u64 + seed).is_multiple_of(3)).collect();
    let kept = interpreter.run(given.to_vec(), Keep::OutputsAnd(third.clone())).unwrap();
    let held: Vec<_> = kept.iter().map(|(id, _)| id).collect();
    assert!(held.iter().all(|id| third.contains(id) || graph.outputs.contains(id)), "more than was asked for");
    let mut shown: Vec<_> = all.iter().map(|(id, values)| (id, values.clone())).collect();
    shown.retain(|(id, _)| graph.inputs.contains(id) || (id.index() as u64 + seed) % 3 == 1);
    let every = interpreter.run_layers_separately(shown.clone(), None).unwrap();
    let alone = interpreter.run_layers_separately(shown, Some(&third)).unwrap();
    let made: Vec<_> = alone.iter().map(|(id, _)| id).collect();
    assert_eq!(made, third);
    for id in third {
        assert_eq!(kept.get(id), all.get(id), "kept");
        assert_eq!(alone.get(id), every.get(id), "alone");
        assert_eq!(alone.get(id), all.get(id), "of its own values");
    }
}

// feature: SIM-03
#[test]
fn random_networks_give_the_interpreters_integers() {
    let machines =
        [Machine::preset("32x32_fpga").unwrap(), Machine::preset("128x128_dual_ddr").unwrap(), tiny(16), tiny(64)];
    let mut ran = 0;
    for seed in 0..100 {
        let graph = random(seed, 9);
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        let machine = &machines[seed as usize % machines.len()];
        let level = if seed % 8 < 4 { 1 } else { 5 };
        let program = match schedule(&graph, machine, &ScheduleOptions { level, ..ScheduleOptions::default() }) {
            Ok(program) => program,
            Err(ScheduleError::Capacity { .. }) if machine.name.starts_with("tiny") => continue,
            Err(error) => panic!("seed {seed} on {}: {error}", machine.name),
        };
        let run = std::panic::catch_unwind(|| check(&graph, &program, seed, &Options::default()));
        let run = run.unwrap_or_else(|_| panic!("seed {seed} on {}", machine.name));
        let timing = simulate(&program, &[], &Options { values: false, ..Options::default() }).unwrap();
        let stepped = simulate(&program, &[], &Options { values: false, stepped: true, ..Options::default() }).unwrap();
        assert_eq!(timing, stepped, "seed {seed} on {}", machine.name);
        assert_eq!((timing.cycles, &timing.counters), (run.cycles, &run.counters), "seed {seed} on {}", machine.name);
        ran += 1;
    }
    assert!(ran > 60, "only {ran} networks ran");
}

/// A reshape may have become part of the layer before it, so that its result has another shape than the operands tell.
#[test]
fn results_of_other_shapes_are_planned_proven_and_bounded_alike() {
    let machines = [Machine::preset("32x32_fpga").unwrap(), Machine::preset("128x128_asic").unwrap(), tiny(64)];
    let mut ran = 0;
    for seed in 0..120 {
        let graph = if seed % 2 == 0 { random(seed, 9) } else { wild(seed, 7, 2000) };
        let graph = reshaped(graph, seed);
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        let machine = &machines[seed as usize % machines.len()];
        for level in [1, 5] {
            let options = ScheduleOptions { level, budget_steps: 3, ..ScheduleOptions::default() };
            let program = match schedule(&graph, machine, &options) {
                Ok(program) => program,
                Err(ScheduleError::Capacity { .. }) if machine.name.starts_with("tiny") => continue,
                Err(error) => panic!("seed {seed} on {}: {error}", machine.name),
            };
            assert_eq!(tpuflow_checker::check(&graph, &program), Ok(()), "seed {seed}");
            let run = check(&graph, &program, seed, &Options::default());
            assert!(run.cycles >= program.bounds.binding().1, "seed {seed}: {} cycles", run.cycles);
            ran += 1;
        }
    }
    assert!(ran > 150, "only {ran} programs ran");
}

// feature: SCH-35, SCH-38
/// Plans chosen by runs: no program at level 5 is slower than that at level 1, and the cycles predicted are those simulated.
#[test]
fn a_timing_by_runs_predicts_exactly_and_keeps_level_5_ahead() {
    let untraced = Options { values: false, ..Options::default() };
    let timing = |program: &Program| Some(simulate(program, &[], &untraced).ok()?.cycles);
    let machines = [Machine::preset("64x64_edge").unwrap(), Machine::preset("128x128_asic").unwrap(), tiny(64)];
    let (mut ran, mut ahead) = (0, 0);
    for seed in 200..230 {
        let graph = random(seed, 9);
        let machine = &machines[seed as usize % machines.len()];
        let cycles = [1, 5].map(|level| {
            let options = ScheduleOptions { level, ..ScheduleOptions::default() };
            let program = schedule_by(&graph, machine, &options, &timing).ok()?;
            let run = simulate(&program, &[], &untraced).unwrap();
            assert_eq!(program.predicted_cycles, run.cycles, "seed {seed} on {} at level {level}", machine.name);
            assert!(run.cycles >= program.bounds.binding().1, "seed {seed} on {} at level {level}", machine.name);
            Some(run.cycles)
        });
        let [Some(slow), Some(fast)] = cycles else { continue };
        assert!(fast <= slow, "seed {seed} on {}: {fast} cycles, at level 1 {slow}", machine.name);
        (ran, ahead) = (ran + 1, ahead + u32::from(fast < slow));
    }
    assert!(ran > 20 && 2 * ahead > ran, "{ahead} of {ran} programs are faster");
}

#[test]
fn a_network_through_every_register_of_the_array() {
    let graph = residual(7);
    let program = schedule(&graph, &tiny(64), &ScheduleOptions::default()).unwrap();
    let closed = check(&graph, &program, 1, &Options::default());
    let register = check(&graph, &program, 1, &Options { array: ArrayModel::Register, ..Options::default() });
    assert_eq!(closed, register);
}

#[test]
fn inputs_must_fit() {
    let graph = residual(7);
    let program = schedule(&graph, &tiny(64), &ScheduleOptions::default()).unwrap();
    let error = simulate(&program, &[vec![0; 3]], &Options::default()).unwrap_err();
    assert!(matches!(&error, SimError::Input { given: 3, expected: 1200, .. }), "{error}");
    assert!(matches!(simulate(&program, &[], &Options::default()), Err(SimError::InputCount { .. })));
}

/// Whatever instruction does not wait, either the run is the same to the bit or the hazard is reported.
#[test]
fn a_missing_wait_never_gives_wrong_values() {
    let (mut broken_ones, mut reported) = (0, 0);
    for graph in [residual(7), random(4, 9), random(12, 9)] {
        let options = ScheduleOptions { level: 5, ..ScheduleOptions::default() };
        let mut program = schedule(&graph, &tiny(64), &options).unwrap();
        let given: Vec<Vec<u8>> = inputs(&graph, 3).iter().map(Values::to_le_bytes).collect();
        let sound = simulate(&program, &given, &Options::default()).unwrap();
        for position in 0..program.instructions.len().min(120) {
            let waits = std::mem::take(&mut program.instructions[position].waits);
            broken_ones += usize::from(!waits.is_empty());
            match simulate(&program, &given, &Options::default()) {
                Ok(run) => assert_eq!(run.outputs, sound.outputs, "instruction {position} without waits"),
                Err(SimError::Hazard(hazard)) => {
                    // A later one is caught if it relied on this one's waits.
                    assert!(hazard.instruction as usize >= position, "{hazard}");
                    reported += 1;
                }
                Err(error) => panic!("instruction {position} without waits: {error}"),
            }
            program.instructions[position].waits = waits;
        }
    }
    // How many waits are redundant is the scheduler's affair; that none is ever needed would be a defect here.
    assert!(reported > 0, "none of {broken_ones} missing waits was reported");
}

#[test]
fn stretches_of_a_line_that_see_nothing_but_padding() {
    let (machine, graphs) = padded_lines();
    for graph in &graphs {
        for level in [1, 5] {
            let options = ScheduleOptions { level, ..ScheduleOptions::default() };
            check(graph, &schedule(graph, &machine, &options).unwrap(), 1, &Options::default());
        }
    }
}

/// What is padded beyond the last window does not count, however much.
#[test]
fn padding_that_no_window_reaches_changes_nothing() {
    let mut net = common::Net::new(3);
    let x = net.input(&[1, 1, 20, 64]);
    let window = Window { kernel: [1, 3], stride: [1, 1], dilation: [1, 1], pads: [0, 1, 0, 1] };
    let y = net.conv(x, 32, window, 1);
    net.builder.output(y);
    let graph = net.builder.finish().unwrap();
    let mut program = schedule(&graph, &Machine::preset("32x32_fpga").unwrap(), &ScheduleOptions::default()).unwrap();
    for right in [0, 2, 5000, u32::MAX - 17] {
        for descriptor in &mut program.descriptors {
            let Descriptor::Matrix(d) = descriptor else { continue };
            d.window.pads[3] = right;
        }
        check(&graph, &program, 1, &Options::default());
    }
}
