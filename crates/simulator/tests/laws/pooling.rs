//! Unit cycles of pooling and depthwise convolution.
//!
//! Alone, an instruction that begins in cycle 10 ends in cycle `10 + 37 + c + 4`; c is `results / elements of the input in a
//! word x ceil(taps / 3)`. Words read number at most c, so operand and result, each in a bank of its own, are never refused.

use tpuflow_ir::isa::{FloatOutput, PoolKind, TableShape};
use tpuflow_ir::{DType, Machine, Program, Unit, Window};

use super::{bank, primes, run};
use crate::build::{CODES, cache_view, pool, program, push};

use DType::{BF16, F16, F32, I8, I16};

fn average() -> PoolKind {
    let divisors = (1..=8).map(|area| (area, 1, 0)).collect();
    PoolKind::Average { input_zero: 0, count_include_pad: true, beyond: [0, 0], divisors, codes: CODES }
}

fn depthwise(weight_dtype: DType, table: Option<TableShape>) -> PoolKind {
    PoolKind::Depthwise { input_zero: 0, weight_zero: 0, weight_dtype, first_shift: None, codes: CODES, table }
}

fn float_average() -> PoolKind {
    PoolKind::FloatAverage { count_include_pad: true, beyond: [0, 0], output: FloatOutput::default() }
}

fn float_depthwise(weight_dtype: DType) -> PoolKind {
    PoolKind::FloatDepthwise { weight_dtype, output: FloatOutput::default() }
}

/// A window over an image of pixels of one word.
fn only(machine: &Machine, kind: PoolKind, dtype: DType, window: Window, image: [usize; 2]) -> Program {
    between(machine, kind, [dtype; 2], 8 / dtype.bytes(), window, image)
}

/// A window over an image of one type, with results of another.
fn between(
    machine: &Machine,
    kind: PoolKind,
    [from, to]: [DType; 2],
    channels: usize,
    window: Window,
    image: [usize; 2],
) -> Program {
    let mut p = program(machine, 0);
    let [height, width] = window.output(image[0], image[1]).expect("fits");
    let input = cache_view(machine, &[1, image[0], image[1], channels], from, 0);
    let output = cache_view(machine, &[1, height, width, channels], to, bank(machine, 1));
    let work = pool(&mut p, kind, window, input, output);
    push(&mut p, Unit::Pdp, &[], work);
    p
}

const SEVEN: Window = Window { kernel: [1, 7], stride: [1, 1], dilation: [1, 1], pads: [0; 4] };

#[test]
fn every_kind_and_width() {
    // 1 x 7 over 2 x 9 pixels: 2 x 3 words of the result, ceil(7 / 3) = 3 cycles each, whatever a word holds
    let machine = primes();
    let table = Some(TableShape { entries: 5, lo: -128, hi: 127 });
    let cases = [
        (PoolKind::Max, I8, 18),
        (PoolKind::Max, I16, 18),
        (PoolKind::Max, F16, 18),
        (PoolKind::Max, BF16, 18),
        (PoolKind::Max, F32, 18),
        (average(), I8, 18),
        (average(), I16, 18),
        (float_average(), F16, 18),
        (float_average(), F32, 18),
        (depthwise(I8, None), I8, 18),
        (depthwise(I8, table), I8, 18),
        (depthwise(I16, None), I16, 18),
        (float_depthwise(F16), F16, 18),
        (float_depthwise(F32), F32, 18),
    ];
    for (kind, dtype, cycles) in cases {
        let name = format!("{kind:?} of {dtype:?}");
        let run = run(&only(&machine, kind, dtype, SEVEN, [2, 9]));
        assert_eq!(run.cycles, 10 + 37 + cycles + 4, "{name}");
        assert_eq!(run.counters.bank_accesses[..2], [18, 6], "{name}");
    }
}

#[test]
fn the_width_of_the_operand_counts_not_that_of_the_result() {
    // 1 x 7 over 2 x 18 pixels of 4 channels: 2 x 12 pixels, 96 results. A word has 8 elements of 8 bits: 12 times
    // ceil(7 / 3) = 3 cycles; or 4 of 16 bits: 24 times.
    let machine = primes();
    let cases = [
        (depthwise(I8, None), [I8, I8], 36, [18, 12]),
        (depthwise(I8, None), [I8, I16], 36, [18, 24]),
        (depthwise(I8, None), [I16, I8], 72, [36, 12]),
        (depthwise(I8, None), [I16, I16], 72, [36, 24]),
    ];
    for (kind, types, cycles, words) in cases {
        let run = run(&between(&machine, kind, types, 4, SEVEN, [2, 18]));
        assert_eq!(run.counters.units[Unit::Pdp.index()].busy, cycles, "{types:?}");
        assert_eq!(run.counters.bank_accesses[..2], words, "{types:?}");
    }
}

#[test]
fn taps_are_taken_three_a_cycle() {
    // 1 x k over k + 3 pixels: 4 words, ceil(k / 3) cycles each
    let machine = primes();
    for (taps, cycles) in [(1, 4), (3, 4), (4, 8), (6, 8), (7, 12), (9, 12), (10, 16)] {
        let window = Window { kernel: [1, taps], ..SEVEN };
        let run = run(&only(&machine, PoolKind::Max, I8, window, [1, taps as usize + 3]));
        // k + 3 words are read; one bank gives one a cycle.
        assert_eq!(run.counters.units[Unit::Pdp.index()].busy, cycles, "{taps} taps");
        assert_eq!(run.counters.bank_accesses[0], u64::from(taps) + 3, "{taps} taps");
    }
}

#[test]
fn lines_outside_the_image_are_not_read() {
    // 3 x 1 over 4 x 2 pixels with a padded line above and below: 8 words, a cycle each. Output lines 0 and 3 have two lines of
    // the image under their window, the others three: 10 lines of 2 words. Reads bind: 20 words, two a cycle, 10 cycles, and one
    // bank gives one of each pair, so 10 cycles more.
    let machine = primes();
    let window = Window { kernel: [3, 1], stride: [1, 1], dilation: [1, 1], pads: [1, 0, 1, 0] };
    let run = run(&only(&machine, PoolKind::Max, I8, window, [4, 2]));
    assert_eq!(run.counters.bank_accesses[..2], [20, 8]);
    let unit = run.counters.units[Unit::Pdp.index()];
    assert_eq!((unit.busy, unit.stalls.bank_conflict), (10, 10));
    assert_eq!(run.cycles, 10 + 37 + 10 + 10 + 4);
}

#[test]
fn the_feeder_takes_so_many_words_a_cycle() {
    // 1 x 1 with stride 8 over 64 pixels: 8 words written, 64 read: 64 / feeder.words cycles, and the others are conflicts.
    let mut machine = primes();
    let window = Window { kernel: [1, 1], stride: [1, 8], dilation: [1, 1], pads: [0; 4] };
    for (words, cycles) in [(2, 32), (4, 16), (3, 22)] {
        machine.feeder.words = words;
        let run = run(&only(&machine, PoolKind::Max, I8, window, [1, 64]));
        let unit = run.counters.units[Unit::Pdp.index()];
        assert_eq!((unit.busy, unit.stalls.bank_conflict), (cycles, 64 - cycles), "{words} words");
        assert_eq!(run.counters.bank_accesses[..2], [64, 8]);
    }
}
