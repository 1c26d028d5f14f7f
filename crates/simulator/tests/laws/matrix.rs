//! Cycles of the matrix engine: K blocks, passes, phases, weight loads, the feeder and the output pipe.
//!
//! Alone, an instruction that begins in cycle 10 is issued in 6 cycles, sets the pipe up in 5, loads the first tile's weights,
//! streams its tiles and ends `8 + 8 + 1` cycles behind the last pixel.

use tpuflow_ir::isa::FloatOutput;
use tpuflow_ir::{DType, Descriptor, Machine, Program, Unit, Work, timing};

use super::{bank, primes, run};
use crate::build::{cache_view, product, program, push};

use DType::{BF16, F16, F32, I8, I16};

const BEGUN: u64 = 10 + 6 + 5;
const DRAIN: u64 = 8 + 8 + 1;

/// A product of `pixels` rows of `k` elements and 8 columns; 16-bit weights in planes of low and high bytes or side by side.
fn typed(machine: &Machine, pixels: usize, k: usize, types: [DType; 2], planes: bool) -> Program {
    let mut p = program(machine, 0);
    push_typed(&mut p, pixels, k, types, planes);
    p
}

fn push_typed(p: &mut Program, pixels: usize, k: usize, [data, weights]: [DType; 2], planes: bool) {
    let machine = p.machine.clone();
    let mut work = product(p, pixels, k, 8, [0, bank(&machine, 1), bank(&machine, 2)]);
    if let (Work::Matrix(m), Some(Descriptor::Matrix(d))) = (&mut work, p.descriptors.last_mut()) {
        m.input = cache_view(&machine, &[pixels, k], data, 0);
        d.weight_dtype = weights;
        if data.is_float() {
            m.output = cache_view(&machine, &[pixels, 8], data, bank(&machine, 2));
            d.float = Some(FloatOutput::default());
        }
        if planes {
            m.weights.plane_bytes = 1024;
        } else {
            m.weights.row_bytes = 8 * weights.bytes() as u32;
        }
    }
    push(p, Unit::Me, &[], work);
}

#[test]
fn streams_of_every_type() {
    // Weight load, streams of K blocks x passes, drain. A row vector is a word: 8 elements of 8 bits, 4 of 16, 2 of 32, each of
    // which takes as many rows of the array as it has bytes. Weight rows of 8 columns take a word of 8 bits or of a plane,
    // 2 words of 16 bits, 4 of 32: as many as there are array rows for them, but for 8 x 16. Unused rows take a cycle each.
    let results = 16;
    let cases = [
        ("8 x 8", 16, 8, [I8, I8], false, 8 + 16 + DRAIN),
        ("8 x 8, three blocks", 16, 24, [I8, I8], false, 8 + 3 * 16 + DRAIN),
        // Each stream holds the array for its 8 rows, but behind the last nothing waits.
        ("8 x 8, short", 3, 24, [I8, I8], false, 8 + 2 * 8 + 3 + DRAIN),
        ("16 x 8", 16, 4, [I16, I8], false, 8 + 2 * 16 + DRAIN),
        ("16 x 8, two blocks", 16, 8, [I16, I8], false, 8 + 2 * 2 * 16 + DRAIN),
        ("8 x 16 in planes", 16, 8, [I8, I16], true, 8 + 2 * 16 + DRAIN),
        ("8 x 16 side by side", 16, 8, [I8, I16], false, 16 + 2 * 16 + DRAIN),
        ("16 x 16 in planes", 16, 4, [I16, I16], true, 8 + 4 * 16 + DRAIN),
        ("16 x 16 side by side", 16, 4, [I16, I16], false, 8 + 4 * 16 + DRAIN),
    ];
    let machine = primes();
    for (name, pixels, k, types, planes, cycles) in cases {
        let run = run(&typed(&machine, pixels, k, types, planes));
        assert_eq!(run.cycles, BEGUN + cycles, "{name}");
        // int8 results take a word a pixel.
        assert_eq!(run.counters.bank_accesses[2], results.min(pixels as u64), "{name}");
    }
}

/// What the scheduler counts before there is a run: a tile of few pixels holds the array for its 8 rows all the same.
#[test]
fn slots_are_cycles_the_array_is_held() {
    let machine = primes();
    for (pixels, k, types, planes, slots) in [
        (16, 24, [I8, I8], false, 3 * 16),
        (3, 24, [I8, I8], false, 3 * 8),
        (1, 8, [I8, I16], true, 2 * 8),
        (10, 4, [F16, F16], false, 10 * 4),
    ] {
        let p = typed(&machine, pixels, k, types, planes);
        let (Some(Work::Matrix(work)), Some(Descriptor::Matrix(d))) =
            (p.instructions.last().map(|i| &i.work), p.descriptors.last())
        else {
            panic!("a product")
        };
        assert_eq!(timing::matrix_slots(work, d, &machine), slots, "{pixels} x {k}");
    }
}

#[test]
fn floats_stay_for_their_phases() {
    // A pixel stays for 4 cycles (16-bit operands) or 16 (32-bit ones); its result of 2 or 4 words follows its last cycle, so the
    // pipe ends with the words of the last pixel: one in the cycle of its result and 1 or 3 behind it.
    let cases = [
        ("float16", 10, 4, F16, 8 + 10 * 4 + DRAIN + 1),
        ("bfloat16", 10, 4, BF16, 8 + 10 * 4 + DRAIN + 1),
        ("float16, two blocks", 10, 8, F16, 8 + 2 * 10 * 4 + DRAIN + 1),
        ("float16, short", 3, 8, F16, 8 + 8 * 4 + 3 * 4 + DRAIN + 1),
        ("float32", 10, 2, F32, 8 + 10 * 16 + DRAIN + 3),
        ("float32, two blocks", 10, 4, F32, 8 + 2 * 10 * 16 + DRAIN + 3),
    ];
    let machine = primes();
    for (name, pixels, k, dtype, cycles) in cases {
        let run = run(&typed(&machine, pixels, k, [dtype, dtype], false));
        assert_eq!(run.cycles, BEGUN + cycles, "{name}");
        assert_eq!(run.counters.bank_accesses[2], (pixels * dtype.bytes()) as u64, "{name}");
    }
}

#[test]
fn unused_rows_take_a_cycle_and_no_access() {
    // 3 of 8 weight rows are read; the load takes 8 cycles all the same.
    let run = run(&typed(&primes(), 16, 3, [I8, I8], false));
    assert_eq!(run.cycles, BEGUN + 8 + 16 + DRAIN);
    assert_eq!(run.counters.bank_accesses[1], 3);
}

#[test]
fn a_row_in_more_words_than_its_array_rows_takes_longer() {
    // 16-bit rows of 16 bytes from the middle of a word on lie in 3 words, one more than there are array rows for each: 4 cycles
    // more. With 3 of 4 rows used, 3 more, and the two array rows of the other take a cycle each.
    let machine = primes();
    for (k, words) in [(4, 4 * 3), (3, 3 * 3)] {
        let mut p = typed(&machine, 16, k, [I16, I16], false);
        let Work::Matrix(m) = &mut p.instructions[0].work else { unreachable!("a product") };
        m.weights.address += 4;
        let run = run(&p);
        assert_eq!(run.cycles, BEGUN + (8 + k as u64) + 4 * (8 + k as u64).max(16) + DRAIN, "{k}");
        assert_eq!(run.counters.bank_accesses[1], 4 * words);
    }
}

#[test]
fn groups_visit_their_own_words() {
    // 16 channels in two words. Columns 8 .. 16 of two groups of 8: one K block, of the second word; of one group: two.
    let machine = primes();
    let of = |groups: u32| {
        let mut p = typed(&machine, 16, 16, [I8, I8], false);
        let Work::Matrix(m) = &mut p.instructions[0].work else { unreachable!("a product") };
        m.first_column = 8;
        m.output.origin = [0, 8];
        let Descriptor::Matrix(d) = &mut p.descriptors[0] else { unreachable!("a product") };
        (d.group_in, d.group_out) = (16 / groups, 16 / groups);
        run(&p)
    };
    assert_eq!(of(1).cycles, BEGUN + 8 + 2 * 16 + DRAIN);
    assert_eq!(of(2).cycles, BEGUN + 8 + 16 + DRAIN);
    assert_eq!(of(2).counters.bank_accesses[..2], [16, 8]);
    // Four groups of 4 channels: two of them side by side in one tile.
    assert_eq!(of(4).cycles, BEGUN + 8 + 16 + DRAIN);
}

#[test]
fn the_feeder_takes_so_many_words_a_cycle() {
    // 3 x 1 over pixels of a byte, image rows of 2048: three words of three banks at pixels 0 and 8, each for 8 pixels. The feeder
    // takes two a cycle, so both pixels take two cycles; with three words a cycle none does.
    let mut machine = primes();
    for (words, extra) in [(1, 4), (2, 2), (3, 0)] {
        machine.feeder.words = words;
        let mut p = program(&machine, 0);
        let mut work = product(&mut p, 16, 3, 1, [0, bank(&machine, 4), bank(&machine, 5)]);
        if let (Work::Matrix(m), Some(Descriptor::Matrix(d))) = (&mut work, p.descriptors.last_mut()) {
            m.input = cache_view(&machine, &[1, 3, 2048, 1], I8, 0);
            m.output = cache_view(&machine, &[1, 1, 2048, 1], I8, bank(&machine, 5));
            d.window.kernel = [3, 1];
            d.group_in = 1;
        }
        push(&mut p, Unit::Me, &[], work);
        let run = run(&p);
        assert_eq!(run.cycles, BEGUN + 8 + 16 + extra + DRAIN, "{words} words");
        assert_eq!(run.counters.units[Unit::Me.index()].stalls.unit_busy, extra + DRAIN, "{words} words");
        // Two words per image row; results of 16 pixels in two words.
        assert_eq!(run.counters.bank_accesses[..6], [2, 2, 2, 0, 3, 2]);
    }
}

#[test]
fn the_output_pipe_writes_a_word_a_cycle() {
    // 16 pixels of two words: the first result is there 17 cycles behind the first pixel, then 32 words.
    let machine = primes();
    let mut p = typed(&machine, 16, 8, [I8, I8], false);
    let Work::Matrix(m) = &mut p.instructions[0].work else { unreachable!("a product") };
    m.output = cache_view(&machine, &[16, 8], I16, bank(&machine, 2));
    assert_eq!(run(&p).cycles, BEGUN + 8 + DRAIN + 32);
}

#[test]
fn issue_shows_when_it_is_longer_than_the_work() {
    // The first is over in cycle 21 + 8 + 16 + 17 = 62. The stage is free when the port takes the first tile, in cycle 21.
    let of = |issue| {
        let mut machine = primes();
        machine.control.issue = issue;
        let mut p = typed(&machine, 16, 8, [I8, I8], false);
        push_typed(&mut p, 16, 8, [I8, I8], false);
        run(&p).cycles
    };
    assert_eq!(of(4), BEGUN + 8 + 2 * 16 + DRAIN);
    assert_eq!(of(30), 21 + 30 + 8 + 16 + DRAIN);
    // Everything before has finished by then: the pipe is set up again.
    assert_eq!(of(50), 21 + 50 + 5 + 8 + 16 + DRAIN);
}

#[test]
fn wide_sums_take_two_entries() {
    // 32 entries hold two instructions of 8 pixels of 48-bit sums, streams of 2 x 8 from cycle 29 on. The first is over in cycle
    // 44 + 17, so the third streams from cycle 62 on, one later than the second's end; 32-bit sums leave it all it needs.
    let of = |types: [DType; 2], k| {
        let mut machine = primes();
        machine.array.accumulators = 32;
        let mut p = program(&machine, 0);
        for _ in 0..3 {
            push_typed(&mut p, 8, k, types, false);
        }
        run(&p).cycles
    };
    assert_eq!(of([I16, I8], 4), 29 + 2 * 16 + 1 + 16 + DRAIN);
    assert_eq!(of([I8, I8], 16), 29 + 2 * 16 + 16 + DRAIN);
}
