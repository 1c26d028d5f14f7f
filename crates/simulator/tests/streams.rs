//! Streams: so many overlapping runs compute what as many single ones do, in no less time than the bound; and the checker refuses
//! what would not.

use std::sync::Arc;

use tpuflow_checker::check;
use tpuflow_ir::{Graph, Machine, Program};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, ScheduleError, schedule_by};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

use crate::common::wild::wild;
use crate::common::{Net, Random, machine, random, residual, tiny, window};
use crate::trial::{STEPS, inputs};

/// A program with a stream, timed by the simulator.
fn compile(graph: &Graph, machine: &Machine, level: u8) -> Result<Program, ScheduleError> {
    let options = ScheduleOptions { level, budget_steps: STEPS, stream: true, ..ScheduleOptions::default() };
    let untraced = Options { values: false, ..Options::default() };
    schedule_by(graph, machine, &options, &|program| Some(simulate(program, &[], &untraced).ok()?.cycles))
}

/// What goes wrong with a stream of so many runs, if anything: every run has inputs of its own, and the outputs of that run alone.
fn run(graph: &Graph, program: &Program, runs: u32, stepped: bool) -> Result<u64, String> {
    let interpreter = Interpreter::new(Arc::new(graph.clone())).map_err(|e| format!("interpreter: {e}"))?;
    let given: Vec<Vec<Values>> = (0..runs).map(|run| inputs(graph, u64::from(run))).collect();
    let unrolled = program.unrolled(runs).map_err(|e| format!("unrolled: {e}"))?;
    let bytes: Vec<Vec<u8>> = given.iter().flatten().map(Values::to_le_bytes).collect();
    let found = simulate(&unrolled, &bytes, &Options { stepped, ..Options::default() });
    let found = found.map_err(|e| format!("{runs} runs: {e}"))?;
    for (name, bound) in unrolled.bounds.by_name() {
        if found.cycles < bound {
            return Err(format!("{runs} runs of {} cycles beat the bound {name} of {bound}", found.cycles));
        }
    }
    let mut outputs = found.outputs.iter();
    for (number, given) in given.into_iter().enumerate() {
        let expected = interpreter.run(given, Keep::Outputs).map_err(|e| format!("interpreter: {e}"))?;
        for id in &graph.outputs {
            if outputs.next() != expected.get(*id).map(Values::to_le_bytes).as_ref() {
                return Err(format!("output \"{}\" of run {number} of {runs} differs", graph.tensor(*id).name));
            }
        }
    }
    Ok(found.cycles)
}

fn interval(program: &Program) -> u64 {
    program.stream.as_ref().unwrap().predicted_interval
}

#[test]
fn random_networks_in_streams_agree_in_every_bit() {
    let (mut streams, mut overlapping) = (0, 0);
    for seed in 0..20 {
        let graph = if seed % 2 == 0 { wild(7000 + seed, 6, 3000) } else { random(8000 + seed, 7) };
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        let machine = machine(seed);
        let level = if seed % 5 == 0 { 1 } else { 5 };
        let what = format!("seed {seed}, {}, level {level}", machine.name);
        let program = match compile(&graph, &machine, level) {
            Ok(program) => program,
            Err(ScheduleError::Capacity { .. }) => continue,
            Err(error) => panic!("{what}: {error}"),
        };
        assert_eq!(program.fallback, None, "{what}");
        let alone = run(&graph, &program, 1, false).unwrap_or_else(|e| panic!("{what}: {e}"));
        for runs in [2, 3, 9] {
            let cycles = run(&graph, &program, runs, false).unwrap_or_else(|e| panic!("{what}: {e}"));
            overlapping += u32::from(cycles < u64::from(runs) * alone);
        }
        let closed = run(&graph, &program, 4, false).unwrap();
        assert_eq!(run(&graph, &program, 4, true), Ok(closed), "{what}: step by step");
        let bounds = &program.stream.as_ref().unwrap().bounds;
        for (name, bound) in bounds.by_name() {
            assert!(
                interval(&program) >= bound,
                "{what}: {} cycles beat the bound {name} of {bound}",
                interval(&program)
            );
        }
        streams += 1;
    }
    assert!(streams >= 14, "{streams} streams");
    assert!(overlapping >= streams, "{overlapping} of {streams} streams took less time than single runs");
}

#[test]
fn a_repeated_graph_computes_every_run() {
    let graph = residual(5);
    let repeated = graph.repeated(3);
    assert!(repeated.verify().is_empty(), "{:?}", repeated.verify());
    assert_eq!(repeated.layers.len(), 3 * graph.layers.len());
    let constants = |graph: &Graph| graph.tensors.iter().filter(|tensor| tensor.constant.is_some()).count();
    assert_eq!(constants(&repeated), constants(&graph), "constants stand there once");
    let given: Vec<Vec<Values>> = (0..3).map(|run| inputs(&graph, run)).collect();
    let all = Interpreter::new(Arc::new(repeated.clone())).unwrap();
    let all = all.run(given.clone().into_iter().flatten().collect(), Keep::Outputs).unwrap();
    let alone = Interpreter::new(Arc::new(graph.clone())).unwrap();
    for (run, given) in given.into_iter().enumerate() {
        let own = alone.run(given, Keep::Outputs).unwrap();
        for (id, of) in graph.outputs.iter().zip(&repeated.outputs[run * graph.outputs.len()..]) {
            assert_eq!(own.get(*id).unwrap().to_le_bytes(), all.get(*of).unwrap().to_le_bytes());
        }
    }
}

#[test]
fn runs_of_a_small_network_are_bound_by_a_unit_and_not_by_latency() {
    let mut net = Net::new(4);
    let mut y = net.input(&[1, 16, 16, 128]);
    for _ in 0..6 {
        y = net.conv(y, 128, window(3, 1, 1), 1);
    }
    let graph = net.finish(&[y]);
    let program = compile(&graph, &Machine::preset("128x128_asic").unwrap(), 5).unwrap();
    let (bound, stream) = (program.stream.as_ref().unwrap().bounds.binding(), interval(&program));
    assert!(stream >= bound.1 && stream * 10 <= bound.1 * 11, "{stream} cycles from run to run, bound {bound:?}");
    assert!(stream * 10 <= program.predicted_cycles * 7, "{stream} of {}", program.predicted_cycles);
    // Nothing is loaded again but the input.
    assert!(program.stream.as_ref().unwrap().body.len() < program.instructions.len());
}

#[test]
fn constants_that_do_not_fit_are_loaded_in_every_run() {
    let mut net = Net::new(4);
    let x = net.input(&[1, 1, 1, 2048]);
    let y = net.conv(x, 1024, window(1, 1, 0), 1);
    let y = net.conv(y, 1024, window(1, 1, 0), 1);
    let graph = net.finish(&[y]);
    let mut machine = Machine::preset("128x128_asic").unwrap();
    (machine.cache.banks, machine.ddr.clock_hz) = (2, machine.ddr.clock_hz / 2);
    let program = compile(&graph, &machine, 5).unwrap();
    let bounds = &program.stream.as_ref().unwrap().bounds;
    assert!(bounds.ddr > bounds.array, "{bounds:?}");
    assert!(interval(&program) >= bounds.ddr);
}

#[test]
fn of_constants_that_do_not_fit_most_stay() {
    let mut net = Net::new(5);
    let mut y = net.input(&[1, 2, 2, 512]);
    for _ in 0..6 {
        y = net.conv(y, 512, window(1, 1, 0), 1);
    }
    let graph = net.finish(&[y]);
    let mut machine = Machine::preset("128x128_asic").unwrap();
    (machine.cache.banks, machine.ddr.clock_hz) = (2, machine.ddr.clock_hz / 2);
    // 1.5 MiB of weights, 1 MiB of cache.
    let all = machine.ddr_cycles(6 * 512 * 512) / machine.channels() as u64;
    let program = compile(&graph, &machine, 5).unwrap();
    assert!(program.predicted_cycles > all);
    assert!(interval(&program) * 10 < all * 9, "{} of {all}", interval(&program));
}

/// Every change of a stream that the checker accepts must compute the same: waits left out and weakened, neighbors exchanged, lags
/// changed, instructions left out.
#[test]
fn changed_streams_are_refused_or_compute_the_same() {
    let (mut refused, mut accepted) = (0, 0);
    for seed in 0..4 {
        let graph = if seed % 2 == 0 { residual(seed) } else { random(9000 + seed, 6) };
        if Interpreter::new(Arc::new(graph.clone())).is_err() {
            continue;
        }
        let machine = if seed < 2 { Machine::preset("32x32_fpga").unwrap() } else { tiny(64) };
        let Ok(program) = compile(&graph, &machine, 5) else { continue };
        let mut draw = Random(seed);
        for _ in 0..120 {
            let mut changed = program.clone();
            let body = &mut changed.stream.as_mut().unwrap().body;
            let at = draw.below(body.len());
            match draw.below(6) {
                0 if !body[at].waits.is_empty() => {
                    let wait = draw.below(body[at].waits.len());
                    body[at].waits.remove(wait);
                }
                1 if !body[at].waits.is_empty() => {
                    let wait = draw.below(body[at].waits.len());
                    let wait = &mut body[at].waits[wait];
                    wait.count = wait.count.saturating_sub(1);
                }
                2 if !body[at].waits.is_empty() => {
                    let wait = draw.below(body[at].waits.len());
                    body[at].waits[wait].ago += 1;
                }
                3 if at > 0 => body.swap(at - 1, at),
                4 => body[at].lag = (body[at].lag + 1) % 3,
                _ => {
                    body.remove(at);
                }
            }
            match check(&graph, &changed) {
                Err(_) => refused += 1,
                Ok(()) => {
                    for runs in [1, 2, 5, 12] {
                        run(&graph, &changed, runs, false).unwrap_or_else(|e| panic!("seed {seed}: accepted, but {e}"));
                    }
                    accepted += 1;
                }
            }
        }
    }
    assert!(refused > 50 && accepted > 5, "{refused} refused, {accepted} accepted");
}
