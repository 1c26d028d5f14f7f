//! Every rule of `docs/machine.md` broken once, and what is reported.

use std::sync::Arc;

use crate::build::{CODES, cache_view, constants, load, pool, port, product, program, push, store, tiny, vector};
use tpuflow_ir::isa::{ChannelParameters, Direction, Lookup, PoolKind, Scaling, Transfer, VectorOp};
use tpuflow_ir::{DType, Descriptor, DescriptorId, Program, ReduceKind, Space, Unit, View, Wait, Window, Work};
use tpuflow_simulator::{Hazard, Options, ProgramCache, Rule, Run, Serial, SimError, simulate, simulate_again};

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

// feature: SIM-08
#[test]
fn a_read_must_wait_for_the_write() {
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
    let kept = ProgramCache::default();
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

// feature: SIM-08
#[test]
fn readers_and_writers_are_waited_for() {
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

// feature: SIM-08
#[test]
fn nothing_leaves_its_memory() {
    for (work, place) in
        [(load(0, 0, 1016, 16), "shared cache word 128 (byte 1024)"), (load(0, 1016, 0, 16), "DDR 0 byte 1024")]
    {
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

/// Lookups on both lines; what follows the first in the list, and overwrites its indices, is executed when the second begins,
/// which is earlier.
#[test]
fn a_lookup_reads_its_own_indices_whatever_begins_before_it() {
    let machine = tiny();
    let mut p = program(&machine, 2048);
    // Indices 2, 0 at byte 64, a table of 3 rows of 5 bytes, 8 apart, at 128, and bytes that are no indices.
    let mut bytes = vec![99; 1024];
    bytes[64..80].fill(0);
    bytes[64] = 2;
    bytes[128..152].fill(7);
    constants(&mut p, bytes);
    p.outputs.push(port(&machine, "rows", &[2, 5], DType::I8, 1536));
    let lookup = |indices: u64, output: u64| {
        Work::Lookup(Lookup {
            table: View::whole(&[3, 5], DType::I8, 8, Space::Ddr(0), 128),
            indices: cache_view(&machine, &[2], DType::I32, indices),
            output: cache_view(&machine, &[2, 5], DType::I8, output),
            first: 0,
            count: 2,
        })
    };
    push(&mut p, Unit::Dtl0, &[], load(0, 64, 0, 8));
    push(&mut p, Unit::Dtl0, &[], load(0, 256, 512, 512));
    push(&mut p, Unit::Dtl0, &[], lookup(0, 128));
    push(&mut p, Unit::Dtl0, &[], load(0, 512, 0, 8));
    push(&mut p, Unit::Dtl1, &[], load(0, 64, 64, 8));
    push(&mut p, Unit::Dtl1, &[], lookup(64, 256));
    push(&mut p, Unit::Dtl1, &[], store(0, 1536, 256, 16));
    let stepped = simulate(&p, &[], &Options { stepped: true, ..Options::default() }).unwrap();
    let found = run(&p).unwrap();
    assert_eq!((found.cycles, &found.outputs), (stepped.cycles, &stepped.outputs));
    assert_eq!(found.outputs, [[7; 10]]);
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

// feature: NUM-14, SIM-12
#[test]
fn an_overflow_is_counted() {
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

/// Waits point backwards, so that no program can come to a stop.
#[test]
fn waits_name_earlier_instructions_once() {
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[(Unit::Dtl1, 1)], load(0, 0, 64, 16));
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 1)], load(0, 0, 256, 16));
    let found = hazard(&p);
    assert_eq!((found.instruction, found.rule), (0, Rule::Wait { unit: Unit::Dtl1, count: 1, deposited: 0 }));
    p.instructions[0].waits.clear();
    assert!(run(&p).is_ok());
    p.instructions[1].waits[0].count = 2;
    assert_eq!(hazard(&p).rule, Rule::Wait { unit: Unit::Dtl0, count: 2, deposited: 1 });
    let wait = Wait { unit: Unit::Dtl0, count: 1 };
    p.instructions[1].waits = [wait, wait].into_iter().collect();
    assert_eq!(hazard(&p).rule, Rule::WaitsTwice(Unit::Dtl0));
}

/// What one instruction takes long enough for is not awaited: a copy of what the other line has long loaded.
#[test]
fn a_wait_that_happens_not_to_matter_is_missed() {
    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 16));
    push(&mut p, Unit::Dtl1, &[], load(0, 0, 512, 255));
    let work = copy(&mut p, 64, 128);
    push(&mut p, Unit::Ewp, &[(Unit::Dtl1, 1)], work);
    assert_eq!(hazard(&p).rule, Rule::ReadBeforeWrite(0));
    // Nobody needs to name what those know that he has waited for.
    p.instructions[1].waits.push(Wait { unit: Unit::Dtl0, count: 1 });
    assert!(run(&p).is_ok());
    // Nor what his own unit has waited for.
    let work = copy(&mut p, 64, 192);
    push(&mut p, Unit::Ewp, &[], work);
    assert!(run(&p).is_ok());
}

/// Rules of single instructions that nothing at run time would show.
#[test]
fn sizes_that_contradict_each_other_are_refused() {
    let machine = tiny();
    let refused = |p: &Program| {
        let without = simulate(p, &[], &Options { values: false, ..Options::default() });
        let Err(SimError::Hazard(found)) = without else { panic!("accepted without values") };
        assert_eq!(hazard(p), *found);
        found.rule
    };
    let mut p = squares(0);
    let Work::Matrix(m) = &mut p.instructions[3].work else { unreachable!("a product") };
    m.weights.plane_bytes = 64;
    assert_eq!(refused(&p), Rule::Planes(DType::I8));

    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 32));
    let mut work = copy(&mut p, 64, 128);
    if let Work::Vector(v) = &mut work {
        v.inputs[0].stored_rows = 2;
    }
    push(&mut p, Unit::Ewp, &[(Unit::Dtl0, 1)], work);
    assert_eq!(refused(&p), Rule::StoredRows { end: 2, rows: 1 });

    let mut p = numbered();
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 64, 16));
    push(&mut p, Unit::Dtl0, &[], store(0, 255, 64, 16));
    assert_eq!(refused(&p), Rule::Constants);
    p.instructions[1].work = store(0, 256, 64, 16);
    assert!(run(&p).is_ok());

    let view = |shape: &[usize], at| cache_view(&machine, shape, DType::I8, at);
    let sum = VectorOp::Reduce {
        kind: ReduceKind::Sum,
        shape: vec![4, 8],
        axes: vec![],
        input_zero: 0,
        scaling: Scaling { multiplier: 1, shift: 0, codes: CODES },
        partial: false,
    };
    let mut p = program(&machine, 0);
    let mut work = vector(&mut p, sum, &[view(&[4, 1, 8], 0)], view(&[4, 1, 8], 256));
    if let Work::Vector(v) = &mut work {
        v.rows = 3;
    }
    push(&mut p, Unit::Ewp, &[], work);
    assert_eq!(refused(&p), Rule::Shape("reduces to some rows of its result".to_owned()));
}

/// Elements of moves and gathers lie in their views, the first and the last that are touched: 4 rows of 8.
#[test]
fn moves_and_gathers_stay_in_their_views() {
    let machine = tiny();
    let rule = |op: VectorOp, first: u32, rows: u32, held: [u32; 2]| {
        let mut p = program(&machine, 0);
        let view = |at| cache_view(&machine, &[4, 1, 8], DType::I8, at);
        let input = View { first_row: held[0], stored_rows: held[1], ..view(0) };
        let mut work = vector(&mut p, op, &[input], view(256));
        if let Work::Vector(v) = &mut work {
            (v.first_row, v.rows) = (first, rows);
        }
        push(&mut p, Unit::Ewp, &[], work);
        match simulate(&p, &[], &Options { values: false, ..Options::default() }) {
            Ok(_) => None,
            Err(SimError::Hazard(hazard)) => Some(hazard.rule),
            Err(other) => panic!("{other}"),
        }
    };
    let beyond = |element| Some(Rule::Element { element, elements: 32 });
    let copy = |offsets: [i64; 2], strides: [i64; 2]| VectorOp::Move {
        dims: vec![4, 8],
        input_strides: vec![strides[0], 1],
        input_offset: offsets[0],
        output_strides: vec![strides[1], 1],
        output_offset: offsets[1],
        rescale: None,
    };
    assert_eq!(rule(copy([0, 0], [8, 8]), 0, 4, [0, 4]), None);
    assert_eq!(rule(copy([1, 0], [8, 8]), 0, 4, [0, 4]), beyond(32));
    assert_eq!(rule(copy([0, 1], [8, 8]), 0, 4, [0, 4]), beyond(32));
    assert_eq!(rule(copy([24, 0], [-8, 8]), 0, 4, [0, 4]), None);
    assert_eq!(rule(copy([23, 0], [-8, 8]), 0, 4, [0, 4]), beyond(-1));
    assert_eq!(rule(copy([1, 0], [8, 8]), 0, 3, [0, 4]), None, "of three rounds");
    assert_eq!(rule(copy([0, 0], [8, 8]), 1, 3, [1, 3]), None, "rows 1 to 3 are held");
    assert_eq!(rule(copy([0, 0], [8, 8]), 0, 3, [1, 3]), Some(Rule::RowNotHeld(0)));
    assert_eq!(rule(copy([0, 0], [8, 8]), 0, 4, [0, 3]), Some(Rule::RowNotHeld(3)));
    // Two positions before the axis of 4, 4 elements behind it.
    let pick = |indices: &[u32]| VectorOp::Gather { outer: 2, extent: 4, inner: 4, indices: indices.to_vec() };
    assert_eq!(rule(pick(&[3, 0]), 0, 4, [0, 4]), None);
    assert_eq!(rule(pick(&[1, 0]), 0, 2, [0, 1]), None, "elements 0 to 7");
    assert_eq!(rule(pick(&[2, 0]), 0, 2, [0, 1]), Some(Rule::RowNotHeld(1)));
    assert_eq!(rule(pick(&[2, 0]), 2, 2, [2, 2]), None, "elements 16 to 27");
    assert_eq!(rule(pick(&[2, 0]), 1, 3, [2, 2]), Some(Rule::RowNotHeld(0)));
    assert_eq!(rule(pick(&[2, 0, 1, 1, 3]), 0, 10, [0, 4]), beyond(39));
    let wide = VectorOp::Gather { outer: 2, extent: 5, inner: 4, indices: vec![4] };
    assert_eq!(rule(wide, 0, 2, [0, 4]), beyond(39));
}

/// A weight tile is all of its rows: bytes of its last row must not be overwritten while it may still be read, nor be missing.
#[test]
fn every_weight_row_is_waited_for() {
    let mut p = squares(0);
    let machine = tiny();
    // Row 7 of the weights lies at 256 + 56.
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 3)], load(0, 0, 256 + 56, 8));
    assert_eq!(hazard(&p).rule, Rule::WriteBeforeRead(3));
    p.instructions[5].waits = [(Unit::Me, 1)].map(|(unit, count)| Wait { unit, count }).into_iter().collect();
    assert!(run(&p).is_ok());
    // Behind it nobody minds.
    p.instructions[5].work = load(0, 0, 256 + 64, 8);
    p.instructions[5].waits.clear();
    assert!(run(&p).is_ok());
    assert_eq!(machine.word(), 8);
}

/// The image rows under the window of a matrix instruction must be held, of every image.
#[test]
fn rows_under_windows_are_held() {
    let machine = tiny();
    let of = |stored: [u32; 2], pixels: [u32; 2], pads: [u32; 4]| {
        let mut p = program(&machine, 0);
        let mut work = product(&mut p, 1, 9, 8, [0, 256, 512]);
        if let (Work::Matrix(m), Some(Descriptor::Matrix(d))) = (&mut work, p.descriptors.last_mut()) {
            d.window.kernel = [3, 3];
            d.window.pads = pads;
            d.group_in = 1;
            m.input = View {
                first_row: stored[0],
                stored_rows: stored[1],
                ..cache_view(&machine, &[2, 4, 4, 1], DType::I8, 0)
            };
            let [height, width] = d.window.output(4, 4).unwrap();
            m.output = cache_view(&machine, &[2, height, width, 8], DType::I8, 512);
            [m.first_pixel, m.pixels] = pixels;
        }
        push(&mut p, Unit::Me, &[], work);
        match simulate(&p, &[], &Options { values: false, ..Options::default() }) {
            Ok(_) => None,
            Err(SimError::Hazard(hazard)) => Some(hazard.rule),
            Err(other) => panic!("{other}"),
        }
    };
    // Two images of 4 x 4 give two of 2 x 2; rows 0 to 3 and 4 to 7 of the operand.
    assert_eq!(of([0, 8], [0, 8], [0; 4]), None);
    assert_eq!(of([0, 3], [0, 2], [0; 4]), None);
    assert_eq!(of([0, 2], [0, 2], [0; 4]), Some(Rule::RowNotHeld(2)));
    assert_eq!(of([1, 3], [0, 2], [0; 4]), Some(Rule::RowNotHeld(0)));
    assert_eq!(of([1, 3], [2, 2], [0; 4]), None);
    assert_eq!(of([4, 4], [4, 4], [0; 4]), None);
    assert_eq!(of([4, 3], [4, 4], [0; 4]), Some(Rule::RowNotHeld(7)));
    assert_eq!(of([0, 7], [0, 8], [0; 4]), Some(Rule::RowNotHeld(7)));
    // With padding the first line needs rows 0 and 1 alone.
    assert_eq!(of([0, 2], [0, 4], [1; 4]), None);
    assert_eq!(of([0, 2], [4, 4], [1; 4]), Some(Rule::RowNotHeld(2)));
}

/// What was packed for one program is taken for another only where everything it was made of is the same.
#[test]
fn packed_tiles_are_those_of_their_descriptor_and_parameters() {
    let kept = ProgramCache::default();
    let again = |p: &Program| {
        let run = simulate_again(p, &[], &Options::default(), &kept).unwrap();
        assert_eq!(run.outputs, simulate(p, &[], &Options::default()).unwrap().outputs);
        run.outputs[0][0].cast_signed()
    };
    // 8 x 128 x 128 = 2^17, shifted by 12 to 32.
    let with = |shift: i8, edit: &dyn Fn(&mut tpuflow_ir::isa::MatrixDescriptor)| {
        let mut p = squares(0);
        let mut bytes = vec![0x80; 128];
        (0..8).for_each(|_| ChannelParameters { bias: 0, multiplier: 1, shift }.encode(false, &mut bytes));
        constants(&mut p, bytes);
        let Descriptor::Matrix(d) = &mut p.descriptors[0] else { unreachable!("a product") };
        edit(d);
        p
    };
    let same = |_: &mut tpuflow_ir::isa::MatrixDescriptor| ();
    assert_eq!(again(&with(12, &same)), 32);
    assert_eq!(again(&with(12, &|d| d.codes.zero_point = 5)), 37);
    assert_eq!(again(&with(12, &|d| d.codes.hi = 20)), 20);
    assert_eq!(again(&with(12, &|d| d.input_zero = -64)), 16);
    assert_eq!(again(&with(12, &|d| d.weight_zero = -64)), 16);
    assert_eq!(again(&with(13, &same)), 16);
    assert_eq!(again(&with(12, &same)), 32);
}

/// In one program: the same weights, copied from the same constants, with other parameters at the same place.
#[test]
fn parameters_are_compared_where_weights_are_known() {
    let mut p = squares(0);
    // Whole lines of 64 bytes, so that what they are a copy of is known.
    p.instructions[1].work = load(0, 64, 256, 64);
    let Some(Work::Transfer(parameters)) = p.instructions.get(2).map(|i| i.work.clone()) else {
        unreachable!("a load")
    };
    let mut bytes = p.constants[0].to_vec();
    (0..8).for_each(|_| ChannelParameters { bias: 0, multiplier: 1, shift: 12 }.encode(false, &mut bytes));
    constants(&mut p, bytes);
    p.outputs.push(port(&tiny(), "z", &[2, 8], DType::I8, 1536));
    push(&mut p, Unit::Dtl0, &[], Work::Transfer(Transfer { ddr_address: 192, ..parameters }));
    let Work::Matrix(m) = p.instructions[3].work.clone() else { unreachable!("a product") };
    let mut second = m;
    second.output.address = 640;
    push(&mut p, Unit::Me, &[(Unit::Dtl0, 5)], Work::Matrix(second));
    push(&mut p, Unit::Dtl0, &[(Unit::Me, 2)], store(0, 1536, 640, 16));
    let run = run(&p).unwrap();
    // 2^17 >> 24, then 2^17 >> 12.
    assert_eq!(run.outputs, [vec![0; 16], vec![32; 16]]);
}

/// What was checked of one program says nothing of another whose instructions are the same and whose descriptors are not.
#[test]
fn soundness_is_that_of_descriptors_too() {
    let kept = ProgramCache::default();
    let sound = squares(0);
    assert!(simulate_again(&sound, &[], &Options::default(), &kept).is_ok());
    let mut other = sound.clone();
    let Descriptor::Matrix(d) = &mut other.descriptors[0] else { unreachable!("a product") };
    d.codes.zero_point = 40_000;
    let error = simulate_again(&other, &[], &Options::default(), &kept).unwrap_err();
    assert!(error.to_string().contains("zero point 40000"), "{error}");
    // A slower descriptor of the same instruction takes its own time: float functions, say, or here 16-bit weights.
    let mut wide = sound.clone();
    let Descriptor::Matrix(d) = &mut wide.descriptors[0] else { unreachable!("a product") };
    d.weight_dtype = DType::I16;
    let options = Options { values: false, ..Options::default() };
    let fresh = simulate(&wide, &[], &options).unwrap().cycles;
    assert_eq!(simulate_again(&wide, &[], &options, &kept).unwrap().cycles, fresh);
    assert_ne!(simulate_again(&sound, &[], &options, &kept).unwrap().cycles, fresh);
    let mut smaller = sound;
    smaller.ddr_bytes = vec![512; 2];
    assert!(simulate_again(&smaller, &[], &Options::default(), &kept).is_err());
}

#[test]
fn ports_lie_where_their_shape_says() {
    let mut p = numbered();
    p.outputs.push(port(&tiny(), "y", &[12], DType::I8, 1020));
    assert!(matches!(run(&p), Err(SimError::Program { .. })));
}
