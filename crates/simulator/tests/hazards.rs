//! Every rule of `docs/machine.md` broken once, and what is reported.
#![allow(clippy::unwrap_used, reason = "tests")]

mod build;

use std::sync::Arc;

use build::{CODES, cache_view, constants, load, pool, port, product, program, push, store, tiny, vector};
use tpuflow_ir::isa::{ChannelParameters, Direction, Lookup, PoolKind, Scaling, Transfer, VectorOp};
use tpuflow_ir::{DType, Descriptor, DescriptorId, Program, Space, Unit, View, Window, Work};
use tpuflow_simulator::{Hazard, Kept, Options, Rule, Run, Serial, SimError, simulate, simulate_again};

fn run(p: &Program) -> Result<Run, SimError> {
    simulate(p, &[], &Options::default())
}

fn hazard(p: &Program) -> Hazard {
    match run(p) {
        Err(SimError::Hazard(hazard)) => *hazard,
        other => panic!("no hazard: {other:?}"),
    }
}

fn copy(p: &mut Program, from: u64, to: u64) -> Work {
    let scaling = Scaling { multiplier: 1, shift: 0, codes: CODES };
    let machine = p.machine.clone();
    let op = VectorOp::Rescale { input_zero: 0, scaling };
    vector(p, op, &[cache_view(&machine, &[2, 8], DType::I8, from)], cache_view(&machine, &[2, 8], DType::I8, to))
}

/// Constants 0, 1, 2 .. 255 at the start of DDR 0.
fn numbered() -> Program {
    let mut p = program(&tiny(), 1024);
    constants(&mut p, (0..=255).collect());
    p
}

#[test]
fn sim_08_a_read_must_wait_for_the_write() {
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 16));
    let work = copy(&mut p, 64, 128);
    push(&mut p, Unit::Ewp, &[], work);
    let found = hazard(&p);
    assert_eq!((found.instruction, found.unit, &found.rule), (1, Unit::Ewp, &Rule::ReadBeforeWrite(0)));
    assert_eq!(
        found.to_string(),
        "instruction 1 (ewp, layer \"layer ewp\") reads what instruction 0 has not finished writing, at shared cache word 8 (byte 64)"
    );
}

/// What runs leave for later ones says nothing of other programs, nor do the bytes in their memories.
#[test]
fn what_is_kept_of_one_program_serves_no_other() {
    let kept = Kept::default();
    let again = |p: &Program| simulate_again(p, &[], &Options::default(), &kept);
    let mut sound = numbered();
    push(&mut sound, Unit::Dtl0, &[], load(0, 0, 64, 16));
    let work = copy(&mut sound, 64, 128);
    push(&mut sound, Unit::Ewp, &[(Unit::Dtl0, 1)], work);
    let first = again(&sound).unwrap();
    assert_eq!(again(&sound).unwrap().cycles, first.cycles);
    let rule = |p: &Program| match again(p) {
        Err(SimError::Hazard(hazard)) => hazard.rule,
        other => panic!("no hazard: {other:?}"),
    };
    let mut early = sound.clone();
    early.instructions[1].waits.clear();
    assert_eq!(rule(&early), Rule::ReadBeforeWrite(0));
    let mut alone = sound.clone();
    alone.instructions.remove(0);
    alone.instructions[0].waits.clear();
    assert_eq!(rule(&alone), Rule::NeverWritten);
    assert_eq!(again(&sound).unwrap().cycles, first.cycles);
}

#[test]
fn a_unit_waits_for_its_own_results_too() {
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 16));
    let work = copy(&mut p, 64, 128);
    push(&mut p, Unit::Ewp, &[(Unit::Dtl0, 1)], work);
    let work = copy(&mut p, 128, 192);
    push(&mut p, Unit::Ewp, &[], work);
    assert_eq!(hazard(&p).rule, Rule::ReadBeforeWrite(1));
}

#[test]
fn sim_08_readers_and_writers_are_waited_for() {
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 16));
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 1)], store(0, 512, 64, 16));
    push(&mut p, Unit::Dtl0, &[], load(0, 16, 64, 16));
    assert_eq!(hazard(&p).rule, Rule::WriteBeforeRead(1));
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 16));
    push(&mut p, Unit::Dtl1, &[], load(0, 16, 72, 16));
    assert_eq!(hazard(&p).rule, Rule::WriteBeforeWrite(0));
}

#[test]
fn bytes_nobody_wrote_have_no_value() {
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 8));
    let work = copy(&mut p, 64, 128);
    push(&mut p, Unit::Ewp, &[(Unit::Dtl0, 1)], work);
    let found = hazard(&p);
    assert_eq!((found.rule, found.place.as_str()), (Rule::NeverWritten, "shared cache word 9 (byte 72)"));
    // A transfer may carry some such bytes along, but not nothing else.
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 250, 64, 16));
    assert!(run(&p).is_ok());
    push(&mut p, Unit::Dtl0, &[], load(0, 256, 64, 16));
    assert_eq!(hazard(&p).rule, Rule::NeverWritten);
}

#[test]
fn an_output_must_be_written() {
    let mut p = numbered();
    p.outputs.push(port(&tiny(), "y", &[12], DType::I8, 512));
    push(&mut p, Unit::Dtl0, &[], load(0, 3, 64, 12));
    push(&mut p, Unit::Dtl0, &[], store(0, 512, 64, 8));
    let error = run(&p).unwrap_err();
    assert_eq!(error.to_string(), "output \"y\": DDR 0 byte 520 was never written");
    p.instructions[1].work = store(0, 512, 64, 12);
    assert_eq!(run(&p).unwrap().outputs, [(3..15).collect::<Vec<u8>>()]);
}

#[test]
fn sim_08_nothing_leaves_its_memory() {
    for (work, place) in [
        (load(0, 0, 1016, 16), "shared cache word 128 (byte 1024)"),
        (load(0, 1016, 0, 16), "DDR 0 byte 1024"),
        (load(7, 0, 0, 16), "DDR 7 byte 0"),
    ] {
        let mut p = numbered();
        push(&mut p, Unit::Dtl0, &[], work);
        let found = hazard(&p);
        assert_eq!((found.rule, found.place.as_str()), (Rule::OutOfRange, place));
    }
    let mut p = numbered();
    let work = Work::Transfer(Transfer {
        direction: Direction::Load,
        ddr_space: 0,
        ddr_address: 0,
        local_space: Space::Ddr(1),
        local_address: 0,
        bytes: 8,
        counts: [1, 1],
        ddr_strides: [0, 0],
        local_strides: [0, 0],
    });
    push(&mut p, Unit::Dtl0, &[], work);
    assert!(matches!(hazard(&p).rule, Rule::Placement(_)));
}

#[test]
fn views_hold_the_rows_that_are_touched() {
    let window = Window { kernel: [2, 2], stride: [1, 1], dilation: [1, 1], pads: [0; 4] };
    let machine = tiny();
    let mut p = program(&machine, 0);
    let input = View { stored_rows: 2, ..cache_view(&machine, &[1, 4, 4, 8], DType::I8, 0) };
    let work = pool(&mut p, PoolKind::Max, window, input, cache_view(&machine, &[1, 3, 3, 8], DType::I8, 512));
    push(&mut p, Unit::Pdp, &[], work);
    assert_eq!(hazard(&p).rule, Rule::RowNotHeld(3));
}

#[test]
fn units_and_descriptors_must_fit() {
    let mut p = numbered();
    let work = copy(&mut p, 64, 128);
    push(&mut p, Unit::Pdp, &[], work.clone());
    assert_eq!(hazard(&p).rule, Rule::Unit);
    let mut p = numbered();
    let mut work = product(&mut p, 4, 8, 8, [0, 64, 512]);
    push(&mut p, Unit::Me, &[], work.clone());
    p.descriptors.clear();
    assert_eq!(hazard(&p).rule, Rule::Descriptor);
    if let Work::Matrix(m) = &mut work {
        m.descriptor = DescriptorId(9);
    }
    p.instructions[0].work = work;
    assert_eq!(hazard(&p).rule, Rule::Descriptor);
    for zero_point in [32768, -32769, 10_000_000] {
        let mut p = numbered();
        let work = product(&mut p, 4, 8, 8, [0, 64, 512]);
        push(&mut p, Unit::Me, &[], work);
        let Descriptor::Matrix(d) = &mut p.descriptors[0] else { unreachable!("of a product") };
        d.codes.zero_point = zero_point;
        assert_eq!(hazard(&p).rule, Rule::Shape(format!("has zero point {zero_point}, which is no int16 code")));
    }
    let mut p = numbered();
    let work = product(&mut p, 17, 8, 8, [0, 256, 512]);
    push(&mut p, Unit::Me, &[], work);
    assert_eq!(hazard(&p).rule, Rule::Shape("has 17 rows of 16".to_owned()));
}

#[test]
fn lookups_stay_in_their_table() {
    let machine = tiny();
    let mut p = program(&machine, 1024);
    // Indices 2, 0, 3 at byte 64; a table of 3 rows of 5 bytes, 8 apart, at 128.
    let mut bytes = vec![0; 256];
    (bytes[64], bytes[68], bytes[72]) = (2, 0, 3);
    for row in 0..3u8 {
        bytes[128 + 8 * usize::from(row)..][..5].fill(row + 10);
    }
    constants(&mut p, bytes);
    p.outputs.push(port(&machine, "rows", &[3, 5], DType::I8, 512));
    push(&mut p, Unit::Dtl0, &[], load(0, 64, 0, 12));
    let lookup = Lookup {
        table: View::whole(&[3, 5], DType::I8, 8, Space::Ddr(0), 128),
        indices: cache_view(&machine, &[3], DType::I32, 0),
        output: cache_view(&machine, &[3, 5], DType::I8, 256),
        first: 0,
        count: 2,
    };
    push(&mut p, Unit::Dtl0, &[], Work::Lookup(lookup));
    push(&mut p, Unit::Dtl0, &[], store(0, 512, 256, 24));
    let error = run(&p).unwrap_err();
    assert_eq!(error.to_string(), "output \"rows\": DDR 0 byte 528 was never written");
    p.outputs[0] = port(&machine, "rows", &[2, 5], DType::I8, 512);
    assert_eq!(run(&p).unwrap().outputs, [[[12u8; 5], [10; 5]].concat()]);
    // start 10, load 8 + 3 + 3; lookup 8, an index word, row 2 in page 2 (3 + 2), row 0 (2, the page is open); then the store:
    // 8, page 8 (3 + 6).
    assert_eq!(run(&p).unwrap().cycles, 10 + 14 + (8 + 1 + 5 + 2) + (8 + 3 + 6));
    p.instructions[1].work = Work::Lookup(Lookup { count: 3, ..lookup });
    assert_eq!(hazard(&p).rule, Rule::Lookup(3));
}

/// 2 pixels x 8 channels of -128 times 8 columns of -128, with this bias of column 0: input, weights and parameters are loaded by
/// instructions 0, 1 and 2, instruction 3 is the product.
fn squares(bias: i64) -> Program {
    let machine = tiny();
    let mut p = program(&machine, 2048);
    let mut bytes = vec![0x80; 128];
    for column in 0..8 {
        let bias = if column == 0 { bias } else { 0 };
        ChannelParameters { bias, multiplier: 1, shift: 24 }.encode(false, &mut bytes);
    }
    constants(&mut p, bytes);
    p.outputs.push(port(&machine, "y", &[2, 8], DType::I8, 1024));
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 16));
    push(&mut p, Unit::Dtl0, &[], load(0, 16, 256, 64));
    let Work::Transfer(t) = load(0, 128, 0, 64) else { panic!("a transfer") };
    push(&mut p, Unit::Dtl0, &[], Work::Transfer(Transfer { local_space: Space::EwpCache, ..t }));
    let work = product(&mut p, 2, 8, 8, [0, 256, 512]);
    push(&mut p, Unit::Me, &[(Unit::Dtl0, 3)], work);
    push(&mut p, Unit::Dtl0, &[(Unit::Me, 1)], store(0, 1024, 512, 16));
    p
}

#[test]
fn num_14_sim_12_an_overflow_is_counted() {
    // The bias of column 0 lies near the largest 32-bit number.
    let p = squares(i64::from(i32::MAX) - 100);
    for array in [tpuflow_simulator::ArrayModel::Closed, tpuflow_simulator::ArrayModel::Register] {
        let run = simulate(&p, &[], &Options { array, ..Options::default() }).unwrap();
        assert_eq!(run.events.len(), 1);
        assert_eq!((run.events[0].layer.as_str(), run.events[0].count), ("layer me", 2));
        // The sum is kept at 2^31 - 1, which the shift turns into 128, clamped; the others are 131072 / 2^24 = 0.
        assert_eq!(run.outputs[0], [[127, 0, 0, 0, 0, 0, 0, 0]; 2].concat());
    }
}

/// A step that broke a rule can be taken again once what it missed is there: without and with sums that may overflow.
#[test]
fn a_step_that_failed_leaves_nothing_behind() {
    for bias in [0, i64::from(i32::MAX) - 100] {
        let serial = Serial::new(Arc::new(squares(bias))).unwrap();
        let (expected, _) = serial.run(&[]).unwrap();
        for (late, place) in
            [(0, "shared cache word 0 (byte 0)"), (1, "shared cache word 32 (byte 256)"), (2, "EWP cache")]
        {
            // A program of its own: nothing is kept of an earlier run.
            let serial = Serial::new(Arc::new(squares(bias))).unwrap();
            let mut stepper = serial.begin(&[]).unwrap();
            (0..3).filter(|&load| load != late).for_each(|load| stepper.execute(load).unwrap());
            for _ in 0..2 {
                let error = stepper.execute(3).unwrap_err();
                let SimError::Hazard(hazard) = error else { panic!("{error}") };
                assert_eq!((hazard.instruction, hazard.rule), (3, Rule::NeverWritten));
                assert!(hazard.place.to_lowercase().contains(&place.to_lowercase()), "{}", hazard.place);
            }
            [late, 3, 4].into_iter().for_each(|step| stepper.execute(step).unwrap());
            assert_eq!(stepper.outputs().unwrap(), expected, "load {late} late, bias {bias}");
        }
    }
}

#[test]
fn units_that_wait_for_each_other_are_found() {
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[(Unit::Dtl1, 1)], load(0, 0, 64, 16));
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 1)], load(0, 0, 256, 16));
    assert!(matches!(run(&p), Err(SimError::Deadlock { instruction: 0, .. })));
}

#[test]
fn ports_lie_where_their_shape_says() {
    let mut p = numbered();
    p.outputs.push(port(&tiny(), "y", &[12], DType::I8, 1020));
    assert!(matches!(run(&p), Err(SimError::Program { .. })));
}
