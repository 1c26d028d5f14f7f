//! Unit cycles of every elementwise operator and element type.
//!
//! Alone, an instruction that begins in cycle 10 ends in cycle `10 + 31 + c + 3`. Operands and results lie in banks of their own,
//! so no access is refused. `words x elements a word / 4 lanes` are the beats; a beat takes the rate of the operator, twice that
//! with 32-bit elements.

use tpuflow_ir::isa::{FloatFunction, FloatOutput, Scaling, TableShape, VectorOp};
use tpuflow_ir::op::{LinearTap, Measure, ReduceKind};
use tpuflow_ir::{BinaryKind, DType, Function, Machine, Program, Real, Unit, View, Work, function::Step};

use super::{bank, primes, run};
use crate::build::{CODES, cache_view, program, push, vector};

use DType::{BF16, F16, F32, I8, I16, I32, I64};

const ONE: Scaling = Scaling { multiplier: 1, shift: 0, codes: CODES };
const TABLE: TableShape = TableShape { entries: 5, lo: -128, hi: 127 };

/// An instruction and what it takes: operator, operands, result, unit cycles.
type Case<'a> = (&'a str, VectorOp, &'a [(&'a [usize], DType)], (&'a [usize], DType), u64);

/// Operands in banks 0, 1, ..; the result in bank 7.
fn only(machine: &Machine, op: VectorOp, inputs: &[(&[usize], DType)], output: (&[usize], DType)) -> Program {
    let mut p = program(machine, 0);
    let at = |shape: &[usize], dtype, number| cache_view(machine, shape, dtype, bank(machine, number));
    let inputs: Vec<View> = (0..).zip(inputs).map(|(n, &(shape, dtype))| at(shape, dtype, n)).collect();
    let work = vector(&mut p, op, &inputs, at(output.0, output.1, 7));
    push(&mut p, Unit::Ewp, &[], work);
    p
}

fn check(machine: &Machine, cases: Vec<Case<'_>>) {
    for (name, op, inputs, output, cycles) in cases {
        let run = run(&only(machine, op, inputs, output));
        assert_eq!(run.cycles, 10 + 31 + cycles + 3, "{name}");
        assert_eq!(run.counters.units[Unit::Ewp.index()].busy, cycles, "{name}");
    }
}

fn binary(kind: BinaryKind) -> VectorOp {
    VectorOp::Binary { kind, zeros: [0, 0], factors: [1, 1], scaling: ONE }
}

fn float(function: FloatFunction) -> VectorOp {
    VectorOp::Float { function, output: FloatOutput::default() }
}

fn reduce(partial: bool) -> VectorOp {
    let (shape, axes) = (vec![4, 8], vec![0]);
    VectorOp::Reduce { kind: ReduceKind::Sum, shape, axes, input_zero: 0, scaling: ONE, partial }
}

fn float_reduce(partial: bool) -> VectorOp {
    let (shape, axes, divisor) = (vec![4, 8], vec![0], Real::new(1.0));
    float(FloatFunction::Reduce { kind: ReduceKind::Sum, shape, axes, divisor, partial })
}

fn norm(center: bool) -> VectorOp {
    VectorOp::LayerNorm { center, input_zero: 0, epsilon: 1, normalize: (1, 0), codes: CODES }
}

fn float_norm(center: bool) -> VectorOp {
    float(FloatFunction::LayerNorm { center, epsilon: Real::new(1e-5) })
}

const SOFTMAX: VectorOp = VectorOp::Softmax { coefficient: 1, scaling: ONE };

fn quantize() -> VectorOp {
    VectorOp::Quantize { scale: Real::new(1.0), codes: CODES }
}

/// 32 elements: 4 words of int8, 8 of 16 bits, 16 of 32 bits; 8 beats whatever the type.
const X: &[usize] = &[4, 8];

/// The second word of pixels of two words: 4 pixels are 4 words, as if they lay one behind the other.
#[test]
fn slices_of_wide_pixels_take_the_words_that_hold_them() {
    let machine = primes();
    let mut p = program(&machine, 0);
    let mut slice = cache_view(&machine, &[4, 16], I8, 0);
    (slice.channel_offset, slice.channels) = (8, 8);
    let work = vector(
        &mut p,
        VectorOp::Rescale { input_zero: 0, scaling: ONE },
        &[slice],
        cache_view(&machine, X, I8, bank(&machine, 7)),
    );
    push(&mut p, Unit::Ewp, &[], work);
    let run = run(&p);
    assert_eq!(run.cycles, 10 + 31 + 16 + 3);
    assert_eq!((run.counters.bank_accesses[0], run.counters.bank_accesses[7]), (4, 4));
}

#[test]
fn moves_take_two_cycles_a_beat() {
    // 8 beats x move 2 = 16
    let machine = primes();
    let kinds = [
        BinaryKind::Add,
        BinaryKind::Sub,
        BinaryKind::Mul,
        BinaryKind::Div,
        BinaryKind::Max,
        BinaryKind::Min,
        BinaryKind::Less,
        BinaryKind::LessOrEqual,
        BinaryKind::Equal,
        BinaryKind::NotEqual,
    ];
    for kind in kinds {
        let name = format!("{kind:?}");
        check(
            &machine,
            vec![
                (&name, binary(kind), &[(X, I8), (X, I8)], (X, I8), 16),
                (&name, binary(kind), &[(X, I16), (X, I16)], (X, I16), 16),
                (&name, binary(kind), &[(X, I8), (X, I16)], (X, I8), 16),
            ],
        );
        let result = if kind.compares() { I8 } else { F16 };
        let op = || float(FloatFunction::Binary(kind));
        check(
            &machine,
            vec![
                (&name, op(), &[(X, F16), (X, F16)], (X, result), 16),
                // 32-bit operands or results: half the rate
                (&name, op(), &[(X, F32), (X, F32)], (X, if kind.compares() { I8 } else { F32 }), 32),
                (&name, op(), &[(X, F16), (X, F32)], (X, result), 32),
            ],
        );
    }
    let prelu = |per_channel| VectorOp::PRelu { input_zero: 0, positive: ONE, per_channel };
    let select: &[(&[usize], DType)] = &[(X, I8), (X, I8), (X, I8)];
    check(
        &machine,
        vec![
            ("table", VectorOp::Table(TABLE), &[(X, I8)], (X, I8), 16),
            ("table, 16 bits", VectorOp::Table(TABLE), &[(X, I16)], (X, I16), 16),
            ("rescale", VectorOp::Rescale { input_zero: 0, scaling: ONE }, &[(X, I8)], (X, I16), 16),
            ("prelu", prelu(false), &[(X, I8)], (X, I8), 16),
            ("prelu by channel", prelu(true), &[(X, I16)], (X, I16), 16),
            ("fill", VectorOp::Fill { code: 1 }, &[], (X, I8), 16),
            ("fill, 32 bits", VectorOp::Fill { code: 1 }, &[], (X, F32), 32),
            ("select", VectorOp::Select, select, (X, I8), 16),
            ("select, 32 bits", VectorOp::Select, &[(X, I8), (X, F32), (X, F32)], (X, F32), 32),
        ],
    );
}

#[test]
fn float_forms_take_the_rate_of_their_function() {
    // 8 beats x move 2 = 16; float32 twice that
    let identity = || float(FloatFunction::Identity);
    let constant = || float(FloatFunction::Constant(Real::new(0.5)));
    let prelu = || float(FloatFunction::PRelu { per_channel: false });
    let dequantize = || float(FloatFunction::Dequantize { zero_point: 0, scale: Real::new(1.0) });
    check(
        &primes(),
        vec![
            ("cast", identity(), &[(X, F16)], (X, BF16), 16),
            ("cast to 32 bits", identity(), &[(X, F16)], (X, F32), 32),
            ("cast from 32 bits", identity(), &[(X, F32)], (X, F16), 32),
            ("constant", constant(), &[], (X, F16), 16),
            ("prelu", prelu(), &[(X, F16)], (X, F16), 16),
            ("prelu, 32 bits", prelu(), &[(X, F32)], (X, F32), 32),
            ("dequantize", dequantize(), &[(X, I8)], (X, F16), 16),
            ("dequantize to 32 bits", dequantize(), &[(X, I8)], (X, F32), 32),
            ("quantize", quantize(), &[(X, F16)], (X, I8), 16),
            ("quantize from 32 bits", quantize(), &[(X, F32)], (X, I8), 32),
        ],
    );
}

#[test]
fn functions_of_floats_cost_their_steps() {
    // A beat: move 2, every single operation 17, every series 19.
    let ended = |steps: Vec<Step>| VectorOp::Float {
        function: FloatFunction::Identity,
        output: FloatOutput { function: Some(Function { steps }), ..FloatOutput::default() },
    };
    let one = Step::Constant(Real::new(1.0));
    let sigmoid = || ended(vec![Step::Neg(0), Step::Exp(1), one, Step::Add(2, 3), Step::Div(3, 4)]);
    check(
        &primes(),
        vec![
            ("neg", ended(vec![Step::Neg(0)]), &[(X, F16)], (X, F16), 8 * (2 + 17)),
            ("exp", ended(vec![Step::Exp(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("expm1", ended(vec![Step::ExpM1(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("log", ended(vec![Step::Log(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("log1p", ended(vec![Step::Log1P(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("sin", ended(vec![Step::Sin(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("cos", ended(vec![Step::Cos(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("atan", ended(vec![Step::Atan(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("erf", ended(vec![Step::Erf(0)]), &[(X, F16)], (X, F16), 8 * (2 + 19)),
            ("sqrt", ended(vec![Step::Sqrt(0)]), &[(X, F16)], (X, F16), 8 * (2 + 17)),
            ("sigmoid", sigmoid(), &[(X, F16)], (X, F16), 8 * (2 + 4 * 17 + 19)),
            ("sigmoid, 32 bits", sigmoid(), &[(X, F32)], (X, F32), 2 * 8 * (2 + 4 * 17 + 19)),
        ],
    );
}

#[test]
fn softmax_norms_and_resizing_have_their_own_rates() {
    // 8 beats x softmax 5, layer_norm 7, rms_norm 3, bilinear 11
    let tap = |first, second| LinearTap { first, second, weight: Real::new(0.5) };
    let resize = || VectorOp::ResizeLinear { rows: vec![tap(0, 0)], columns: vec![tap(0, 1); 4] };
    let softmax = || float(FloatFunction::Softmax);
    let half: &[usize] = &[2, 8];
    check(
        &primes(),
        vec![
            ("softmax", SOFTMAX, &[(X, I8)], (X, I8), 8 * 5),
            ("softmax, 16 bits", SOFTMAX, &[(X, I16)], (X, I16), 8 * 5),
            ("softmax with a mask", SOFTMAX, &[(X, I8), (X, I8)], (X, I8), 8 * 5),
            ("softmax of floats", softmax(), &[(X, F16)], (X, F16), 8 * 5),
            ("softmax of floats, 32 bits", softmax(), &[(X, F32)], (X, F32), 2 * 8 * 5),
            ("layer norm", norm(true), &[(X, I8)], (X, I8), 8 * 7),
            ("layer norm, 16 bits", norm(true), &[(X, I16)], (X, I16), 8 * 7),
            ("layer norm of floats", float_norm(true), &[(X, F16)], (X, F16), 8 * 7),
            ("layer norm of floats, 32 bits", float_norm(true), &[(X, F32)], (X, F32), 2 * 8 * 7),
            ("rms norm", norm(false), &[(X, I8)], (X, I8), 8 * 3),
            ("rms norm, 16 bits", norm(false), &[(X, I16)], (X, I16), 8 * 3),
            ("rms norm of floats", float_norm(false), &[(X, BF16)], (X, BF16), 8 * 3),
            ("rms norm of floats, 32 bits", float_norm(false), &[(X, F32)], (X, F32), 2 * 8 * 3),
            ("resize", resize(), &[(half, I8)], (X, I8), 8 * 11),
            ("resize, 16 bits", resize(), &[(half, I16)], (X, I16), 8 * 11),
            ("resize of floats", resize(), &[(half, F16)], (X, F16), 8 * 11),
            ("resize of floats, 32 bits", resize(), &[(half, F32)], (X, F32), 2 * 8 * 11),
        ],
    );
}

#[test]
fn reductions_count_their_operand() {
    // 8 beats of the operand x reduce 13, however few results there are
    let arg_max = || VectorOp::ArgMax { largest: true, select_last: false };
    let row: &[usize] = &[1, 8];
    check(
        &primes(),
        vec![
            ("sum", reduce(false), &[(X, I8)], (row, I8), 8 * 13),
            ("sum, 16 bits", reduce(false), &[(X, I16)], (row, I16), 8 * 13),
            ("a stretch of a sum", reduce(true), &[(X, I8)], (row, I64), 8 * 13),
            ("the last stretch of a sum", reduce(false), &[(X, I8), (row, I64)], (row, I8), 8 * 13),
            ("sum of sums", reduce(false), &[(X, I64)], (row, I8), 8 * 13),
            ("sum of floats", float_reduce(false), &[(X, F16)], (row, F16), 8 * 13),
            ("sum of floats, 32 bits", float_reduce(false), &[(X, F32)], (row, F32), 2 * 8 * 13),
            // The running result is a float32.
            ("a stretch of a sum of floats", float_reduce(true), &[(X, F16)], (row, F32), 2 * 8 * 13),
            // Indices are int32.
            ("argmax", arg_max(), &[(X, I8)], (&[4, 1], I32), 2 * 8 * 13),
            ("argmax, 16 bits", arg_max(), &[(X, I16)], (&[4, 1], I32), 2 * 8 * 13),
            ("argmax of floats", arg_max(), &[(X, F16)], (&[4, 1], I32), 2 * 8 * 13),
        ],
    );
}

#[test]
fn blocks_of_a_softmax_take_a_pass_each() {
    // 8 beats x reduce 13 for either of the statistics, x move 2 for the quotients.
    let of = |measure| VectorOp::SoftmaxStatistics { measure };
    let pairs: &[usize] = &[4, 2];
    let sum = || of(Measure::Sum { coefficient: 1 });
    check(
        &primes(),
        vec![
            ("largest codes", of(Measure::Maximum), &[(X, I8)], (pairs, I64), 8 * 13),
            ("largest codes, masked", of(Measure::Maximum), &[(X, I16), (X, I8)], (pairs, I64), 8 * 13),
            ("largest codes of a further block", of(Measure::Maximum), &[(X, I8), (pairs, I64)], (pairs, I64), 8 * 13),
            ("sums", sum(), &[(X, I16), (pairs, I64)], (pairs, I64), 8 * 13),
            ("sums, masked", sum(), &[(X, I16), (X, I8), (pairs, I64)], (pairs, I64), 8 * 13),
            ("quotients", SOFTMAX, &[(X, I16), (pairs, I64)], (X, I8), 8 * 2),
            ("quotients, masked", SOFTMAX, &[(X, I16), (X, I8), (pairs, I64)], (X, I16), 8 * 2),
        ],
    );
}

#[test]
fn copies_and_gathers_count_what_they_touch() {
    // Of 32 elements 24 are moved: 6 beats x move 2.
    let copy = |rescale| VectorOp::Move {
        dims: vec![3, 8],
        input_strides: vec![8, 1],
        input_offset: 8,
        output_strides: vec![8, 1],
        output_offset: 0,
        rescale,
    };
    let gather = || VectorOp::Gather { outer: 3, extent: 4, inner: 4, indices: vec![3, 1] };
    let to: &[usize] = &[6, 4];
    let from = [I8, I16, F32].map(|dtype| [(&[12, 4][..], dtype)]);
    let machine = primes();
    let cases: Vec<Case<'_>> = vec![
        ("copy", copy(None), &[(X, I8)], (X, I8), 12),
        ("copy, 16 bits", copy(None), &[(X, I16)], (X, I16), 12),
        ("copy, 32 bits", copy(None), &[(X, F32)], (X, F32), 24),
        ("copy and rescale", copy(Some((0, ONE))), &[(X, I8)], (X, I16), 12),
        // 6 picks of 4 elements
        ("gather", gather(), &from[0], (to, I8), 12),
        ("gather, 16 bits", gather(), &from[1], (to, I16), 12),
        ("gather, 32 bits", gather(), &from[2], (to, F32), 24),
    ];
    for (name, op, inputs, output, cycles) in cases {
        let mut p = only(&machine, op, inputs, output);
        let Work::Vector(v) = &mut p.instructions[0].work else { unreachable!("elementwise") };
        v.rows = if name.starts_with("copy") { 3 } else { 6 };
        assert_eq!(run(&p).cycles, 10 + 31 + cycles + 3, "{name}");
    }
}

#[test]
fn padding_counts_and_rows_are_taken_apart() {
    let machine = primes();
    // Three int8 channels take four bytes: 4 rows x 2 pixels fill 4 words, 32 bytes, 8 beats x 2.
    let x: &[usize] = &[4, 1, 2, 3];
    check(&machine, vec![("padded", binary(BinaryKind::Add), &[(x, I8), (x, I8)], (x, I8), 16)]);
    // Two of four rows of 8 int8: 2 words, 4 beats x 2. The operand of one row is read once, the other row by row.
    let (x, one): (&[usize], &[usize]) = (&[4, 1, 1, 8], &[1, 1, 1, 8]);
    let mut p = only(&machine, binary(BinaryKind::Mul), &[(x, I8), (one, I8)], (x, I8));
    let Work::Vector(v) = &mut p.instructions[0].work else { unreachable!("elementwise") };
    (v.first_row, v.rows) = (1, 2);
    let run = run(&p);
    assert_eq!(run.cycles, 10 + 31 + 8 + 3);
    assert_eq!(run.counters.bank_accesses, [2, 1, 0, 0, 0, 0, 0, 2]);
}

#[test]
fn words_bind_where_lanes_do_not() {
    // Eight lanes, a cycle a beat. int8: 4 words take 4 beats, but three operands of 4 words, two words a cycle, take 6 cycles.
    let mut machine = primes();
    (machine.ewp.lanes, machine.ewp.r#move) = (8, 1);
    check(
        &machine,
        vec![
            ("add", binary(BinaryKind::Add), &[(X, I8), (X, I8)], (X, I8), 4),
            ("select", VectorOp::Select, &[(X, I8), (X, I8), (X, I8)], (X, I8), 6),
            // int16: 32 elements are 4 beats, but 8 words are written.
            ("table, 16 bits", VectorOp::Table(TABLE), &[(X, I16)], (X, I16), 8),
            // 32 float32: 4 beats x 2, but 16 words are written.
            ("fill, 32 bits", VectorOp::Fill { code: 0 }, &[], (X, F32), 16),
        ],
    );
}

#[test]
fn reads_and_writes_are_spread_over_the_unit_cycles() {
    // 16 words read and written in 32 cycles, first read in cycle 41: read i in cycle 41 + 2 i, write i in 41 + 2 i + 1 + 3. A
    // store of the first word of the result, which waits for nothing else, is refused in none of the cycles it wants.
    let machine = primes();
    let x: &[usize] = &[16, 8];
    let mut p = only(&machine, VectorOp::Rescale { input_zero: 0, scaling: ONE }, &[(x, I8)], (x, I8));
    let whole = run(&p);
    assert_eq!(whole.cycles, 10 + 31 + 64 + 3);
    // A second unit that wants the operand's bank in every cycle loses exactly the cycles of the reads.
    let pool = crate::build::pool(
        &mut p,
        tpuflow_ir::isa::PoolKind::Max,
        crate::build::POINT,
        cache_view(&machine, &[1, 1, 64, 8], I8, 128),
        cache_view(&machine, &[1, 1, 64, 8], I8, bank(&machine, 3)),
    );
    push(&mut p, Unit::Pdp, &[], pool);
    let both = run(&p);
    // PDP reads from cycle 47 on, a word a cycle; EWP reads in 41, 45, 49, .., 101: of those 14 are left, and each costs PDP one.
    assert_eq!(both.counters.units[Unit::Ewp.index()].end, 10 + 31 + 64 + 3);
    assert_eq!(both.counters.units[Unit::Pdp.index()].stalls.bank_conflict, 14);
}
