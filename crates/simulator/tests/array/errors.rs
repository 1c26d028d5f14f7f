//! What both models refuse, and with which error.

use tpuflow_simulator::array::{
    ArrayError, ArraySpec, Dataflow, Float, Integer, Outcome, Precision, Tile, closed, registers,
};

fn check_error<P: Precision>(spec: &ArraySpec, precision: P, tiles: &[Tile<'_, P::Operand>], expected: &ArrayError) {
    assert_eq!(registers::run(spec, precision, tiles).as_ref().err(), Some(expected));
    assert_eq!(closed::run(spec, precision, tiles).as_ref().err(), Some(expected));
}

#[test]
fn malformed_tiles_are_refused() {
    let spec = ArraySpec { rows: 2, columns: 3, dataflow: Dataflow::DoubleBuffered };
    let good = Tile { weights: &[1; 6], rows: &[1; 4], accumulate: false };
    let shape = |tile, weights, rows| ArrayError::Shape { tile, weights, rows };
    check_error(&spec, Integer::I8, &[good, Tile { weights: &[1; 5], ..good }], &shape(1, 5, 4));
    check_error(&spec, Integer::I8, &[Tile { weights: &[1; 9], ..good }], &shape(0, 9, 4));
    check_error(&spec, Integer::I8, &[Tile { rows: &[1; 3], ..good }], &shape(0, 6, 3));
    check_error(&spec, Integer::I8, &[Tile { rows: &[], ..good }], &shape(0, 6, 0));
    check_error(&spec, Integer::I8, &[Tile { weights: &[], ..good }], &shape(0, 0, 4));
    let outputs = ArraySpec { dataflow: Dataflow::OutputStationary, ..spec };
    check_error(&outputs, Integer::I8, &[Tile { rows: &[1; 6], ..good }], &shape(0, 6, 6));
    let accumulate = Tile { accumulate: true, ..good };
    check_error(&spec, Integer::I8, &[accumulate], &ArrayError::Accumulate { tile: 0, m: 2 });
    let longer = Tile { rows: &[1; 6], ..accumulate };
    check_error(&spec, Integer::I8, &[good, longer], &ArrayError::Accumulate { tile: 1, m: 3 });
    let empty = ArraySpec { rows: 0, ..spec };
    check_error(&empty, Integer::I8, &[good], &ArrayError::Size { rows: 0, columns: 3 });
}

#[test]
fn operands_outside_the_format_are_refused() {
    let spec = ArraySpec { rows: 1, columns: 1, dataflow: Dataflow::DoubleBuffered };
    let (wide, narrow) = ([256], [255]);
    let weight = Tile { weights: &wide, rows: &narrow, accumulate: false };
    let activation = Tile { weights: &narrow, rows: &wide, accumulate: false };
    let error = |operand| ArrayError::Operand { tile: 0, operand, index: 0 };
    check_error(&spec, Integer::I16I8, &[weight], &error("weight"));
    assert!(registers::run(&spec, Integer::I16I8, &[activation]).is_ok());
    check_error(&spec, Integer::I8I16, &[activation], &error("activation"));
    let third = [1.0 / 3.0];
    check_error(&spec, Float::Bf16, &[Tile { weights: &[1.0], rows: &third, accumulate: false }], &error("activation"));
}

/// 255 * 255 * 16 * 2065 is the first multiple of a tile beyond 2^31.
#[test]
fn a_sum_beyond_the_accumulator_is_an_error_of_the_tile_that_reaches_it() {
    for dataflow in [Dataflow::DoubleBuffered, Dataflow::SingleBuffered { pipeline: 3 }, Dataflow::OutputStationary] {
        let spec = ArraySpec { rows: 16, columns: 2, dataflow };
        let mut weights = vec![255; 32];
        weights.iter_mut().step_by(2).for_each(|w| *w = 0);
        let first = Tile { weights: &weights, rows: &[255; 16], accumulate: false };
        let mut tiles = vec![Tile { accumulate: true, ..first }; 2065];
        tiles[0] = first;
        check_error(&spec, Integer::I8, &tiles, &ArrayError::Overflow { tile: 2064, row: 0, column: 1 });
        assert!(closed::run(&spec, Integer::I8, &tiles[..2064]).is_ok());
        assert!(closed::run(&spec, Integer::I16I8, &tiles).is_ok());
    }
}

/// A row of floats comes out R + C + 1 cycles after it went in; the next block of K needs it the cycle after.
#[test]
fn float_sums_must_be_back_before_the_next_block_needs_them() {
    for (columns, late) in [(5, true), (4, false)] {
        let spec = ArraySpec { rows: 2, columns, dataflow: Dataflow::DoubleBuffered };
        let weights = vec![1.5f32; 2 * columns];
        let first = Tile { weights: &weights, rows: &[0.5; 2], accumulate: false };
        let tiles = [first, Tile { accumulate: true, ..first }];
        if late {
            check_error(&spec, Float::F16, &tiles, &ArrayError::Turnaround { tile: 1, row: 0 });
        } else {
            let outcome = registers::run(&spec, Float::F16, &tiles).expect("in time");
            assert_eq!(outcome.outputs, [vec![3.0; columns]]);
        }
    }
}

#[test]
fn nothing_takes_no_time() {
    for dataflow in [Dataflow::DoubleBuffered, Dataflow::SingleBuffered { pipeline: 3 }, Dataflow::OutputStationary] {
        let spec = ArraySpec { rows: 2, columns: 2, dataflow };
        let outcome = registers::run(&spec, Integer::I8, &[]).expect("no tiles");
        assert_eq!(outcome, Outcome { outputs: vec![], cycles: 0, tiles: vec![] });
        assert_eq!(Ok(outcome), closed::run(&spec, Integer::I8, &[]));
    }
}
