//! Random programs whose units run side by side, with only the waits that true dependencies ask for: taking stretches of
//! cycles at a time never changes a cycle, all cycles are booked, and taking a needed wait away is reported.

use crate::build::{CODES, cache_view, pool, product, program, push, tiny, vector};
use proptest::prelude::*;
use tpuflow_ir::access::{Accesses, Stretch, accesses};
use tpuflow_ir::isa::{
    Direction, Expand, FloatOutput, Lookup, PackedForm, PackedLookup, PoolKind, Scaling, Transfer, VectorOp,
};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{BinaryKind, DType, Descriptor, Machine, Program, Space, Unit, View, Window, Work};
use tpuflow_simulator::{Options, Run, SimError, simulate};

const DDR: u64 = 4096;

const FORMS: [PackedForm; 5] = [
    PackedForm::ZeroPoints,
    PackedForm::Symmetric,
    PackedForm::Floats,
    PackedForm::ByColumn(CodeKind::ZeroPoints),
    PackedForm::ByColumn(CodeKind::Floats),
];

/// What an instruction is made from: a kind, three places and five sizes.
type Draw = (u8, [u16; 3], [u8; 5]);

fn machine(feeder: u32, interleaved: bool) -> Machine {
    let mut machine = tiny();
    machine.cache.words = 64;
    machine.feeder.words = feeder;
    machine.ddr.interleave_bytes = if interleaved { 64 } else { 0 };
    machine
}

/// Machines of one, two or four banks, so that everybody meets everybody, whose start-ups and latencies are as short as they
/// can be or longer than most work. `scale` stretches the sizes of the work.
fn crowded(draw: [u8; 8], interleaved: bool) -> Machine {
    let mut machine = machine(1 + u32::from(draw[0] % 4), interleaved);
    machine.cache.banks = [1, 2, 4][usize::from(draw[1] % 3)];
    machine.cache.words = [1024, 1500, 2048][usize::from(draw[2] % 3)];
    machine.array.accumulators = [224, 300, 400][usize::from(draw[3] % 3)];
    let short = |at: usize, long: u64| if draw[at].is_multiple_of(2) { long } else { u64::from(draw[at] % 16 / 4) };
    (machine.control.issue, machine.control.issue_cold) = (short(4, 16), short(5, 40));
    (machine.array.setup, machine.control.start) = (short(6, 30), short(3, 70));
    (machine.dma.start, machine.dma.latency) = (short(7, 50), short(2, 0));
    (machine.ewp.start, machine.pdp.start) = (short(0, 90), short(1, 33));
    (machine.ewp.latency, machine.pdp.latency) = (1 + short(5, 70), 1 + short(4, 9));
    machine
}

/// A cache address for `bytes` bytes.
fn place(machine: &Machine, draw: u16, bytes: u64) -> u64 {
    let word = machine.word() as u64;
    let room = machine.cache_bytes() - bytes.next_multiple_of(word);
    u64::from(draw) % (room / word + 1) * word
}

fn view(machine: &Machine, shape: &[usize], dtype: DType, draw: u16) -> View {
    let bytes = cache_view(machine, shape, dtype, 0).bytes(machine.word());
    cache_view(machine, shape, dtype, place(machine, draw, bytes))
}

fn work(p: &mut Program, (kind, places, sizes): Draw, scale: usize) -> (Unit, Work) {
    let machine = p.machine.clone();
    let size = |n: usize, most: usize| 1 + usize::from(sizes[n]) % most;
    // The second extent of images; with `scale` 1 as the others.
    let long = |n: usize, most: usize| 1 + usize::from(sizes[n]) % (most * scale);
    let dtype = if sizes[4] % 4 == 0 { DType::I16 } else { DType::I8 };
    match kind % 8 {
        0 if sizes[3] % 4 == 0 => {
            let expand = Expand {
                ddr_space: if machine.ddr_spaces() > 1 { sizes[4] % 2 } else { 0 },
                ddr_address: u64::from(places[1]) % (DDR / 2),
                local_address: place(&machine, places[0], 1024),
                rows: size(0, 40) as u32,
                row_bytes: size(1, 24) as u32,
                block: [3, 8, 32][size(2, 3) - 1],
                codes: FORMS[sizes[4] as usize % FORMS.len()],
            };
            (Unit::Dtl0, Work::Expand(expand))
        }
        0 | 1 => {
            let (bytes, outer, inner) = (size(0, 60) as u64, size(1, 3) as u64, size(2, 3) as u64);
            let span = (outer - 1) * 200 + (inner - 1) * 64 + bytes;
            let work = Work::Transfer(Transfer {
                direction: if sizes[3] % 2 == 0 { Direction::Load } else { Direction::Store },
                ddr_space: if machine.ddr_spaces() > 1 { sizes[4] % 2 } else { 0 },
                ddr_address: u64::from(places[1]) % (DDR - span),
                local_space: Space::Cache,
                local_address: u64::from(places[0]) % (machine.cache_bytes() - span),
                bytes: bytes as u32,
                counts: [outer as u32, inner as u32],
                ddr_strides: [200, 64],
                local_strides: [200, 64],
            });
            (if kind % 8 == 0 { Unit::Dtl0 } else { Unit::Dtl1 }, work)
        }
        2 if sizes[3] % 2 == 0 => {
            let (rows, count, by_column) = (size(0, 12), size(2, 6), sizes[4] % 2 == 0);
            let row_bytes = [1, 3, 8][size(1, 3) - 1];
            let elements = if by_column { rows } else { rows * row_bytes };
            let lookup = PackedLookup {
                ddr_space: if machine.ddr_spaces() > 1 { sizes[0] % 2 } else { 0 },
                ddr_address: 512 + u64::from(places[2]) % 64,
                spaces: if sizes[0] % 2 == 0 { machine.ddr_spaces() as u8 } else { 1 },
                size: 1 + u32::from(sizes[4]) % 9,
                columns: by_column.then_some(row_bytes as u32),
                rows: rows as u32,
                row_bytes: row_bytes as u32,
                block: [3, 4, 8][size(2, 3) - 1],
                codes: FORMS[sizes[4] as usize % FORMS.len()].kind(),
                indices: view(&machine, &[count], DType::I32, places[0]),
                output: view(&machine, &[count, elements], DType::I8, places[1]),
                first: 0,
                count: count as u32,
            };
            (Unit::Dtl1, Work::PackedLookup(lookup))
        }
        2 => {
            let (rows, width, count) = (size(0, 30), size(1, 20), size(2, 6));
            let work = Work::Lookup(Lookup {
                table: View::whole(&[rows, width], DType::I8, machine.word(), Space::Ddr(0), 512),
                indices: view(&machine, &[count], DType::I32, places[0]),
                output: view(&machine, &[count, width], DType::I8, places[1]),
                first: 0,
                count: count as u32,
            });
            (Unit::Dtl1, work)
        }
        3 => {
            let (pixels, k, columns) = (long(0, 8), size(1, 20), size(2, 8));
            let mut work = product(p, pixels, k, columns, [0, place(&machine, places[1], 32 * 20), 0]);
            let float = match sizes[4] % 8 {
                1 => Some(DType::F16),
                2 => Some(DType::F32),
                _ => None,
            };
            let dtype = float.unwrap_or(dtype);
            if let (Work::Matrix(m), Some(Descriptor::Matrix(d))) = (&mut work, p.descriptors.last_mut()) {
                m.input = view(&machine, &[pixels, k], dtype, places[0]);
                m.output = view(&machine, &[pixels, columns], dtype, places[2]);
                let weights = if sizes[3] % 4 == 0 { DType::I16 } else { DType::I8 };
                d.weight_dtype = float.unwrap_or(weights);
                d.float = float.map(|_| FloatOutput::default());
                m.weights.row_bytes = 32;
            }
            (Unit::Me, work)
        }
        4 => {
            let (h, w, c) = (3 + size(0, 3), 3 + long(1, 4), size(2, if scale > 1 { 18 } else { 4 }));
            let mut work = product(p, 1, 1, 8, [0, place(&machine, places[1], 9 * c as u64 * 8), 0]);
            if let (Work::Matrix(m), Some(Descriptor::Matrix(d))) = (&mut work, p.descriptors.last_mut()) {
                d.window =
                    Window { kernel: [3, 3], stride: [1 + u32::from(sizes[3] % 2); 2], dilation: [1; 2], pads: [1; 4] };
                let [oh, ow] = d.window.output(h, w).unwrap();
                m.input = view(&machine, &[1, h, w, c], DType::I8, places[0]);
                m.output = view(&machine, &[1, oh, ow, 8], DType::I8, places[2]);
                d.group_in = c as u32;
                m.pixels = (oh * ow).min(machine.matrix_rows(false)) as u32;
            }
            (Unit::Me, work)
        }
        5 | 6 => {
            let shape = [size(0, 5), long(1, 4), size(2, 12)];
            let scaling = Scaling { multiplier: 1, shift: 0, codes: CODES };
            let (a, b) = (view(&machine, &shape, dtype, places[0]), view(&machine, &shape, DType::I8, places[1]));
            let result = view(&machine, &shape, dtype, places[2]);
            let work = match sizes[3] % 4 {
                0 => {
                    let [rows, width, channels] = shape.map(|n| n as u32);
                    let op = VectorOp::Reduce {
                        partial: false,
                        kind: tpuflow_ir::ReduceKind::Sum,
                        shape: vec![rows, width, channels],
                        axes: vec![0, 1],
                        input_zero: 0,
                        scaling,
                    };
                    let result = view(&machine, &[shape[2]], dtype, places[2]);
                    vector(p, op, &[a], result)
                }
                1 => vector(p, VectorOp::Softmax { coefficient: 1 << 30, scaling }, &[a], result),
                2 => vector(p, VectorOp::Fill { code: 1 }, &[], result),
                _ => {
                    let op = VectorOp::Binary { kind: BinaryKind::Add, zeros: [0, 0], factors: [1, 1], scaling };
                    vector(p, op, &[a, b], result)
                }
            };
            (Unit::Ewp, work)
        }
        _ => {
            let (h, w, c) = (2 + size(0, 4), 2 + long(1, 4), size(2, 10));
            let window =
                Window { kernel: [2, 2], stride: [1, 1 + u32::from(sizes[3] % 2)], dilation: [1; 2], pads: [0; 4] };
            let [oh, ow] = window.output(h, w).unwrap();
            let input = view(&machine, &[1, h, w, c], dtype, places[0]);
            let output = view(&machine, &[1, oh, ow, c], dtype, places[1]);
            (Unit::Pdp, pool(p, PoolKind::Max, window, input, output))
        }
    }
}

fn overlap(a: &[Stretch], b: &[Stretch]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.overlaps(y)))
}

/// The program of some draws. Its instructions wait for the last of each unit that they truly depend on.
fn build_program(machine: &Machine, draws: &[Draw]) -> Program {
    build_scaled(machine, draws, 1)
}

fn build_scaled(machine: &Machine, draws: &[Draw], scale: usize) -> Program {
    let mut p = program(machine, DDR);
    let mut done: Vec<(Unit, u32, Accesses)> = Vec::new();
    let mut counts = [0u32; Unit::COUNT];
    for &draw in draws {
        let (unit, work) = work(&mut p, draw, scale);
        push(&mut p, unit, &[], work);
        let touched = accesses(p.instructions.last().unwrap(), &p.descriptors, machine);
        let mut needs = [0u32; Unit::COUNT];
        for (other, count, early) in &done {
            let mut clash = overlap(&touched.reads, &early.writes);
            if *other != unit {
                clash |= overlap(&touched.writes, &early.reads) || overlap(&touched.writes, &early.writes);
            }
            if clash {
                needs[other.index()] = *count;
            }
        }
        p.instructions.last_mut().unwrap().waits = Unit::ALL
            .into_iter()
            .filter(|u| needs[u.index()] > 0)
            .map(|u| tpuflow_ir::Wait { unit: u, count: needs[u.index()] })
            .collect();
        counts[unit.index()] += 1;
        done.push((unit, counts[unit.index()], touched));
    }
    p
}

fn run(p: &Program, stepped: bool) -> Result<Run, SimError> {
    simulate(p, &[], &Options { values: false, trace: true, stepped, ..Options::default() })
}

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    prop::collection::vec((any::<u8>(), any::<[u16; 3]>(), any::<[u8; 5]>()), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn stretches_never_change_a_cycle(draws in draws(), feeder in 1u32..4, interleaved: bool) {
        let p = build_program(&machine(feeder, interleaved), &draws);
        let skipped = run(&p, false).unwrap();
        prop_assert_eq!(&skipped, &run(&p, true).unwrap());
        let total: u32 = skipped.counters.units.iter().map(|u| u.instructions).sum();
        prop_assert_eq!(total as usize, p.instructions.len());
        for unit in skipped.counters.units {
            prop_assert_eq!(unit.busy + unit.stalls.total(), unit.end - unit.start);
            prop_assert!(unit.end <= skipped.cycles);
        }
        // Every refusal is booked once for the bank's sake; a bank never serves more than one word a cycle.
        for &accesses in &skipped.counters.bank_accesses {
            prop_assert!(accesses <= skipped.cycles);
        }
    }

    /// Work of hundreds of cycles on few banks.
    #[test]
    fn crowded_banks_change_no_cycle(draws in draws(), draw: [u8; 8], interleaved: bool, scale in 1usize..8) {
        let p = build_scaled(&crowded(draw, interleaved), &draws, scale);
        prop_assert_eq!(run(&p, false).unwrap(), run(&p, true).unwrap());
    }

    #[test]
    fn every_instruction_ends_as_in_the_plain_twin(draws in draws(), feeder in 1u32..4, interleaved: bool) {
        let p = build_program(&machine(feeder, interleaved), &draws);
        let fast = run(&p, false).unwrap();
        let mut ends = vec![0; p.instructions.len()];
        for interval in fast.trace.unwrap() {
            let end = &mut ends[interval.instruction as usize];
            *end = interval.end.max(*end);
        }
        prop_assert_eq!(&ends, &crate::twin::ends(&p));
        prop_assert_eq!(fast.cycles, ends.into_iter().max().unwrap());
    }

    #[test]
    fn a_wait_taken_away_is_reported_or_was_not_needed(draws in draws(), which in any::<prop::sample::Index>()) {
        let mut p = build_program(&machine(2, false), &draws);
        let sound = run(&p, false).unwrap();
        let waiting: Vec<usize> = (0..p.instructions.len()).filter(|&n| !p.instructions[n].waits.is_empty()).collect();
        prop_assume!(!waiting.is_empty());
        let position = waiting[which.index(waiting.len())];
        p.instructions[position].waits.clear();
        // It starts no later than before, so either the books say so or it met what it should have waited for.
        match run(&p, false) {
            Ok(faster) => {
                let start = |run: &Run| {
                    let trace = run.trace.as_ref().unwrap().iter();
                    trace.filter(|i| i.instruction as usize == position).map(|i| i.start).min().unwrap()
                };
                prop_assert!(start(&faster) <= start(&sound));
            }
            Err(SimError::Hazard(hazard)) => prop_assert!(hazard.instruction as usize >= position),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
}
