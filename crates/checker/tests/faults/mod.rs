//! The checker against damaged programs: whatever changes what a program computes must be reported.
//!
//! Valid programs are damaged on purpose, in kinds ([`kinds`]) or at some number ([`numbers`]). A damaged program is either
//! reported, by a rule that fits the damage, or the simulator must find it as good as the sound one: no hazard, and the same
//! bits. Nearly every kind must be reported in every program that has a place for it: some programs have only places where it
//! does no harm, such as the first pixel of a result of which nobody reads that part.

mod aimed;
mod constants;
mod devices;
mod edges;
mod endless;
mod exchanges;
mod fields;
mod kinds;
mod listing;
mod numbers;
mod packed;
mod packed_tables;
mod rules;
mod states;

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use crate::common::wild::{long_lines, wild_floats};
use crate::common::{self, Net, Random, float_bytes, random, residual, window};
use kinds::FAULTS;
use tpuflow_checker::{Violation, check, check_rules};
use tpuflow_ir::op::PadMode;
use tpuflow_ir::{DType, Graph, Machine, Program, Work};
use tpuflow_scheduler::{Options, ScheduleError, schedule};
use tpuflow_simulator::simulate;

/// A graph, a sound program of it, and what that computes for some input.
struct Subject {
    what: String,
    graph: Graph,
    program: Program,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

fn subject(what: &str, graph: &Graph, machine: &Machine, level: u8) -> Option<Subject> {
    let options = Options { level, ..Options::default() };
    let program = match schedule(graph, machine, &options) {
        Ok(program) => program,
        Err(ScheduleError::Capacity { .. }) => return None,
        Err(error) => panic!("{what}: {error}"),
    };
    assert_eq!(program.fallback, None, "{what} on {} at level {level}", machine.name);
    let mut random = Random(1);
    let port = |id: &tpuflow_ir::TensorId| {
        let tensor = graph.tensor(*id);
        let (lo, hi) = if tensor.dtype == DType::I32 { (0, 3) } else { tensor.dtype.range() };
        let code = |_| {
            let value = random.range(lo - 100 * i64::from(tensor.dtype.is_float()), hi);
            if tensor.dtype.is_float() {
                return float_bytes(tensor.dtype, value as f32 / 32.0);
            }
            value.to_le_bytes()[..tensor.dtype.bytes()].to_vec()
        };
        (0..tensor.elements()).flat_map(code).collect()
    };
    let inputs: Vec<Vec<u8>> = graph.inputs.iter().map(port).collect();
    let outputs = simulate(&program, &inputs, &tpuflow_simulator::Options::default()).unwrap().outputs;
    let what = format!("{what}, {}, level {level}", machine.name);
    Some(Subject { what, graph: graph.clone(), program, inputs, outputs })
}

/// A machine with words of 8 bytes and 4 KiB of cache.
fn tiny() -> Machine {
    let mut machine = Machine::preset("32x32_fpga").unwrap();
    machine.name = "tiny".to_owned();
    (machine.array.rows, machine.array.columns, machine.array.accumulators) = (8, 8, 32);
    (machine.cache.word_bytes, machine.cache.banks, machine.cache.words) = (8, 8, 64);
    (machine.pdp.lanes, machine.ewp.lanes) = (8, 4);
    machine.ewp_cache.words = 512;
    machine
}

/// Branches joined by channels, larger than the tiny machine's cache: parts of pixels go to DDR and back.
fn joined() -> Graph {
    let mut net = Net::new(3);
    let x = net.input(&[1, 16, 16, 4]);
    let (a, b) = (net.conv(x, 12, window(3, 1, 1), 1), net.conv(x, 12, window(1, 1, 0), 1));
    let c = net.concat(&[a, b], 3, usize::MAX);
    let d = net.max_pool(c, window(3, 2, 1));
    let e = net.conv(d, 8, window(3, 2, 1), 1);
    let f = net.pad(e, &[0, 1, 1, 0], &[0, 1, 0, 0], PadMode::Constant(5));
    net.finish(&[f])
}

/// Windows that leave lines out between them, and the last of an image.
fn apart() -> Graph {
    let mut net = Net::new(5);
    let x = net.input(&[1, 12, 11, 8]);
    let a = net.conv(x, 8, window(3, 1, 1), 1);
    let b = net.average_pool(a, window(2, 5, 0), true);
    let c = net.max_pool(a, window(1, 3, 0));
    net.finish(&[b, c])
}

/// Moves that do not compose to one.
fn moves() -> Graph {
    let mut net = Net::new(9);
    let x = net.input(&[1, 6, 10, 4]);
    let mut y = net.conv(x, 4, window(1, 1, 0), 1);
    for _ in 0..4 {
        y = net.transpose(y, &[0, 2, 1, 3]);
        y = net.reshape(y, &[1, 6, 10, 4]);
    }
    let y = net.conv(y, 8, window(3, 1, 1), 1);
    net.finish(&[y])
}

/// Programs of a graph: on two machines, at both levels, where it fits.
fn everywhere(name: &str, graph: &Graph) -> Vec<Arc<Subject>> {
    let machines = [Machine::preset("32x32_fpga").unwrap(), tiny()];
    let on = |machine: &Machine| [1, 5].map(|level| subject(name, graph, machine, level).map(Arc::new));
    machines.iter().flat_map(on).flatten().collect()
}

/// Programs of random graphs, and those of the graphs with a name, which are made once.
fn subjects(seeds: impl IntoIterator<Item = u64>) -> Vec<Arc<Subject>> {
    static NAMED: LazyLock<Vec<Arc<Subject>>> = LazyLock::new(|| {
        let graphs = [
            ("residual", residual(7)),
            ("joined", joined()),
            ("apart", apart()),
            ("moves", moves()),
            ("floats", wild_floats(5, 7, 1500)),
            ("lines", long_lines(1, None)),
        ];
        graphs.iter().flat_map(|(name, graph)| everywhere(name, graph)).collect()
    });
    let drawn = seeds.into_iter().flat_map(|seed| everywhere(&format!("random {seed}"), &random(seed, 9)));
    drawn.chain(NAMED.iter().cloned()).collect()
}

impl Subject {
    /// The violations of a damaged program; for one that has none, an error unless it runs like the sound one.
    fn judge(&self, damaged: &Program) -> Result<Vec<Violation>, String> {
        let Err(violations) = check(&self.graph, damaged) else {
            return match simulate(damaged, &self.inputs, &tpuflow_simulator::Options::default()) {
                Ok(run) if run.outputs == self.outputs => Ok(vec![]),
                Ok(_) => Err("passes with other results".to_owned()),
                Err(error) => Err(format!("passes, but {error}")),
            };
        };
        Ok(violations)
    }
}

// feature: SCH-34
#[test]
fn every_kind_of_damage_is_reported() {
    const TRIES: u64 = 40;
    let mut met = vec![0; FAULTS.len()];
    let (mut wrong, mut places, mut harmless) = (Vec::new(), 0, Vec::new());
    for subject in subjects(0..6) {
        for (fault, met) in FAULTS.iter().zip(&mut met) {
            let (mut applied, mut caught) = (0, 0);
            for seed in 0..TRIES {
                let mut damaged = subject.program.clone();
                if !(fault.damage)(&mut damaged, &mut Random(seed)) {
                    continue;
                }
                applied += 1;
                match subject.judge(&damaged) {
                    Ok(violations) => {
                        let Some(first) = violations.first() else { continue };
                        if !fault.rules.iter().any(|rules| rules.contains(&first.rule)) {
                            wrong.push(format!("{}: {} {seed}: {first}", subject.what, fault.name));
                        }
                        caught += 1;
                    }
                    Err(how) => wrong.push(format!("{}: {} {seed}: {how}", subject.what, fault.name)),
                }
                if caught == 2 {
                    break;
                }
            }
            *met += usize::from(caught > 0);
            places += usize::from(applied > 0);
            if applied > 0 && caught == 0 {
                harmless.push(format!("{}: {} does no harm in {applied} tries", subject.what, fault.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
    assert!(100 * harmless.len() <= places, "{} of {places}:\n{}", harmless.len(), harmless.join("\n"));
    let rare: Vec<_> = FAULTS.iter().zip(met).filter(|&(_, met)| met < 2).map(|(fault, _)| fault.name).collect();
    assert!(rare.is_empty(), "no place in two programs for {rare:?}");
}

/// How a program is changed at a random place: what the place is, if there is one.
type Change = fn(&mut Program, &mut Random) -> Option<String>;

/// Changes the programs of some seeds; gives how many were changed and reported, and panics where one passed with other results.
fn attacked(seeds: Range<u64>, tries: u64, change: Change) -> (usize, usize) {
    let (mut changed, mut reported, mut wrong) = (0, 0, Vec::new());
    for (i, subject) in subjects(seeds).iter().enumerate() {
        for seed in 0..tries {
            let mut damaged = subject.program.clone();
            let place = change(&mut damaged, &mut Random(1000 * i as u64 + seed));
            let Some(place) = place.filter(|_| damaged != subject.program) else { continue };
            changed += 1;
            match subject.judge(&damaged) {
                Ok(violations) => reported += usize::from(!violations.is_empty()),
                Err(how) => wrong.push(format!("{}: {place}: {how}", subject.what)),
            }
        }
    }
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
    (changed, reported)
}

#[test]
fn no_changed_number_passes_with_other_results() {
    let (changed, reported) = attacked(20..24, 120, numbers::change);
    assert!(changed > 1300 && 4 * reported > 3 * changed, "{reported} of {changed} were reported");
}

#[test]
fn no_exchanged_field_passes_with_other_results() {
    let (changed, reported) = attacked(30..34, 150, exchanges::exchange);
    assert!(changed > 650 && 2 * reported > changed, "{reported} of {changed} were reported");
}

/// Units that read all that a view stores would read rows that nobody has promised.
#[test]
fn no_view_stores_more_rows_than_its_tensor_has() {
    let mut changed = 0;
    for subject in subjects([]) {
        let vectors = |work: &Work| matches!(work, Work::Vector(_));
        for at in (0..subject.program.instructions.len()).filter(|&at| vectors(&subject.program.instructions[at].work))
        {
            let mut damaged = subject.program.clone();
            let Work::Vector(vector) = &mut damaged.instructions[at].work else { continue };
            let Some(view) = vector.inputs.first_mut() else { continue };
            view.stored_rows = view.rows + 1 - view.first_row;
            changed += 1;
            assert!(!subject.judge(&damaged).unwrap().is_empty(), "{}: instruction {at}", subject.what);
        }
    }
    assert!(changed > 20, "{changed}");
}

/// What the scheduler plans first is what the checker passes: no operator, alone or among others, needs a fallback.
#[test]
fn sound_programs_pass() {
    for (name, make) in common::operators::OPERATORS {
        for float in [None, Some(DType::F16)] {
            let mut net = Net::new(11);
            net.float = float;
            let x = net.input(&[2, 5, 6, 10]);
            let y = make(&mut net, x);
            let graph = net.finish(&[y]);
            subject(name, &graph, &tiny(), 5);
            subject(name, &graph, &Machine::preset("128x128_dual_ddr").unwrap(), 1);
        }
    }
}

/// What `tpuflow check` computes again is what programs state.
#[test]
fn programs_state_the_cycles_of_a_run_and_the_bounds_of_their_graph() {
    let untraced = tpuflow_simulator::Options { values: false, ..tpuflow_simulator::Options::default() };
    let cycles = |program: &Program| simulate(program, &[], &untraced).unwrap().cycles;
    for graph in [residual(7), joined(), random(3, 9), wild_floats(5, 7, 1500)] {
        for machine in [tiny(), Machine::preset("128x128_asic").unwrap()] {
            for level in [1, 5] {
                let options = Options { level, ..Options::default() };
                let timing = |program: &Program| simulate(program, &[], &untraced).ok().map(|run| run.cycles);
                let Ok(program) = tpuflow_scheduler::schedule_by(&graph, &machine, &options, &timing) else { continue };
                assert_eq!(program.predicted_cycles, cycles(&program));
                let parts = tpuflow_checker::in_parts(&graph, &program.tilings).unwrap();
                let found = tpuflow_bounds::bounds(&parts, &machine);
                let whole = tpuflow_bounds::bounds(&graph, &machine).whole.min(&found.whole);
                assert_eq!(program.bounds, if program.tilings.is_empty() { found.whole } else { whole });
                let layers = program.layers.iter().map(|layer| (layer.bound, layer.binding.as_str()));
                assert!(layers.eq(found.layers.iter().map(|layer| (layer.cycles, layer.binding))));
            }
        }
    }
}

/// Without the graph, what remains is that an execution is well defined.
#[test]
fn a_program_alone_shows_missing_waits_and_values() {
    let subject = subject("residual", &residual(7), &tiny(), 5).unwrap();
    assert_eq!(check_rules(&subject.program), Ok(()));
    for name in ["wait dropped", "wait for a later instruction", "instruction left out", "cache address off by a word"]
    {
        let fault = FAULTS.iter().find(|fault| fault.name == name).unwrap();
        let caught = (0..40).filter(|&seed| {
            let mut damaged = subject.program.clone();
            assert!((fault.damage)(&mut damaged, &mut Random(seed)));
            check_rules(&damaged).is_err()
        });
        assert!(caught.count() > 4, "{name}");
    }
}
