//! Cycles of transfers and lookups.
//!
//! Alone, a transfer that begins in cycle 10 takes 6 + 2 cycles, then for every page run 5 if the page is not open, and
//! `max(ceil(bytes / 3), words)`. Pages are of 64 bytes, words of 8.

use tpuflow_ir::isa::{Direction, Expand, Lookup, PackedForm, PackedLookup, Transfer};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{DType, Program, Space, State, Unit, View, Work};
use tpuflow_simulator::{Options, simulate};

use super::{bank, computed, primes, run};
use crate::build::{cache_view, constants, load, port, program, push, store};

/// Runs of `bytes` bytes, the same number in both memories from one to the next.
fn strided(bytes: u32, counts: [u32; 2], strides: [u64; 2]) -> Work {
    Work::Transfer(Transfer {
        direction: Direction::Load,
        ddr_space: 0,
        ddr_address: 0,
        local_space: Space::Cache,
        local_address: 0,
        bytes,
        counts,
        ddr_strides: strides,
        local_strides: strides,
    })
}

fn parameters(bytes: u32) -> Work {
    let Work::Transfer(t) = load(0, 0, 0, bytes) else { unreachable!("a transfer") };
    Work::Transfer(Transfer { local_space: Space::EwpCache, ..t })
}

#[test]
fn single_transfers() {
    let cases = [
        ("a page", load(0, 0, 0, 64), 5 + 22, 8),
        ("the other channel", load(1, 0, 0, 64), 5 + 22, 8),
        ("a store", store(0, 0, 0, 64), 5 + 22, 8),
        ("of parameters, which take no bank", parameters(64), 5 + 22, 0),
        ("one byte", load(0, 0, 0, 1), 5 + 1, 1),
        ("two bytes in two words, one word a cycle", load(0, 0, 7, 2), 5 + 2, 2),
        ("across a page: two runs", load(0, 60, 0, 8), (5 + 2) + (5 + 2), 2),
        ("three runs of one page", strided(8, [1, 3], [0, 16]), 5 + 3 * 3, 3),
        ("three runs of three pages", strided(8, [3, 1], [64, 0]), 3 * (5 + 3), 3),
        ("pairs of runs of two pages", strided(8, [2, 2], [128, 8]), 2 * (5 + 2 * 3), 4),
        ("and back to the first page", strided(8, [2, 2], [8, 128]), 4 * (5 + 3), 4),
        ("neighbours are not joined", strided(16, [1, 2], [0, 16]), 5 + 2 * 6, 4),
        ("two pages in one run", load(0, 0, 0, 128), 2 * (5 + 22), 16),
    ];
    for unit in [Unit::Dtl0, Unit::Dtl1] {
        for (name, work, cycles, words) in cases.clone() {
            let mut p = program(&primes(), 1024);
            push(&mut p, unit, &[], work);
            let run = run(&p);
            assert_eq!(run.cycles, 10 + 6 + 2 + cycles, "{name}");
            assert_eq!(run.counters.bank_accesses.iter().sum::<u64>(), words, "{name}");
        }
    }
}

#[test]
fn an_open_page_stays_open_for_everybody() {
    // Load of page 0: 10 + 8 + 5 + 22 = 45. The other line waits for it and stores into the same page: 8 + 22 without a miss.
    let mut p = program(&primes(), 1024);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 64));
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 1)], store(0, 0, 0, 64));
    let same = run(&p);
    assert_eq!((same.cycles, same.counters.page_misses), (45 + 8 + 22, 1));
    p.instructions[1].work = store(0, 64, 0, 64);
    let other = run(&p);
    assert_eq!((other.cycles, other.counters.page_misses), (45 + 8 + 5 + 22, 2));
}

#[test]
fn misses_are_nanoseconds_and_rates_fractions() {
    // 300 MHz: 5 ns are 1.5 cycles, which round up to 2; 3 bytes of a clock of 1 GHz are 10 a cycle: 64 bytes take 7, 8 words 8.
    let mut machine = primes();
    machine.clock_hz = 300_000_000;
    let mut p = program(&machine, 1024);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 64));
    assert_eq!(run(&p).cycles, 10 + 8 + 2 + 8);
    // 3 bytes of a clock of 700 MHz are 7 a cycle: 64 bytes take 64 / 7, rounded up.
    p.machine.ddr.clock_hz = 700_000_000;
    assert_eq!(run(&p).cycles, 10 + 8 + 2 + 10);
}

#[test]
fn channels_alternate_when_interleaved() {
    // One line goes from block to block; two lines meet on no channel when they take different blocks.
    let mut machine = primes();
    machine.ddr.interleave_bytes = 64;
    let mut p = program(&machine, 1024);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 64));
    push(&mut p, Unit::Dtl1, &[], load(0, 64, bank(&machine, 1), 64));
    assert_eq!(run(&p).cycles, 10 + 8 + 27);
    p.instructions[1].work = load(0, 128, bank(&machine, 1), 64);
    assert_eq!(run(&p).cycles, 10 + 8 + 27 + 27);
    // Pages 0 and 1 lie on two channels, both of which stay open: back to page 0 costs nothing.
    p.instructions.truncate(1);
    p.instructions[0].work = strided(8, [2, 2], [8, 64]);
    assert_eq!(run(&p).cycles, 10 + 8 + 2 * (5 + 3) + 2 * 3);
}

#[test]
fn ganged_channels_are_one_that_is_as_many_times_as_fast() {
    // Of four channels two work in lockstep: 6 bytes a cycle and pages of 128 bytes. A channel of its own opens two pages.
    let mut machine = primes();
    let apart = program(&machine, 1024);
    machine.ddr.channels = 4;
    let ganged = program(&machine, 1024);
    let cycles = |mut p: tpuflow_ir::Program| {
        push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 128));
        (run(&p).cycles, run(&p).counters.page_misses)
    };
    assert_eq!(cycles(apart), (10 + 8 + 2 * (5 + 22), 2));
    assert_eq!(cycles(ganged), (10 + 8 + 5 + 22, 1));
    // Eight are two of four: 64 bytes of a word a cycle are as fast as the cache takes them.
    machine.ddr.channels = 8;
    assert_eq!(cycles(program(&machine, 1024)), (10 + 8 + 5 + 16, 1));
    // There are two address spaces or one, whatever the number.
    assert_eq!((machine.ddr_spaces(), machine.channels(), machine.gang()), (2, 2, 4));
    machine.ddr.interleave_bytes = 128;
    assert!(machine.validate().is_err(), "channels that alternate inside a page");
    machine.ddr.interleave_bytes = 256;
    assert_eq!((machine.ddr_spaces(), machine.ddr_capacity()), (1, 8 * machine.ddr.capacity_bytes));
}

fn packed(ddr_address: u64, rows: u32, row_bytes: u32, has_zero_points: bool) -> Work {
    let codes = if has_zero_points { PackedForm::ZeroPoints } else { PackedForm::Symmetric };
    Work::Expand(Expand { ddr_space: 0, ddr_address, local_address: 0, rows, row_bytes, block: 32, codes })
}

/// Scales of a row of 8 take 8 bytes and 3 cycles, with zero points 12 and 4; a row's codes take 4 bytes.
#[test]
fn packed_weights() {
    let cases = [
        ("8 rows behind their scales", packed(0, 8, 8, false), 3 + 5 + 14, 8),
        ("with zero points", packed(0, 8, 8, true), 4 + 5 + 15, 8),
        ("14 rows fill a page", packed(0, 14, 8, false), 3 + 5 + 22, 14),
        ("across a page: 4 rows each", packed(40, 8, 8, false), 3 + (5 + 8) + (5 + 6), 8),
        ("a page of nothing but scales", packed(56, 2, 8, false), 3 + (5 + 3) + (5 + 3), 2),
        ("two rows a word, the last word half", packed(0, 5, 4, false), 2 + 5 + 5, 3),
        ("a second block", packed(0, 33, 2, false), 1 + 5 + 13, 9),
    ];
    for unit in [Unit::Dtl0, Unit::Dtl1] {
        for (name, work, cycles, words) in cases.clone() {
            let mut p = program(&primes(), 1024);
            push(&mut p, unit, &[], work);
            let run = run(&p);
            assert_eq!(run.cycles, 10 + 6 + 2 + cycles, "{name}");
            assert_eq!(run.counters.bank_accesses.iter().sum::<u64>(), words, "{name}");
        }
    }
}

/// Blocks of 8 rows of 8 columns: 8 records of 5 bytes, which take 14 cycles; no row is complete before all of them.
#[test]
fn packed_weights_by_column() {
    let of = |rows| {
        let codes = PackedForm::ByColumn(CodeKind::Symmetric);
        Work::Expand(Expand { ddr_space: 0, ddr_address: 0, local_address: 0, rows, row_bytes: 8, block: 8, codes })
    };
    let cases = [
        ("a block", of(8), 14 + 5 + 14, 8),
        ("two, of which the second ends in another page", of(16), 14 + (5 + 22) + (5 + 8), 16),
        ("a short one: 8 records of 3 bytes", of(4), 14 + 5 + 8, 4),
    ];
    for (name, work, cycles, words) in cases {
        let mut p = program(&primes(), 1024);
        push(&mut p, Unit::Dtl0, &[], work);
        let run = run(&p);
        assert_eq!(run.cycles, 10 + 6 + 2 + cycles, "{name}");
        assert_eq!(run.counters.bank_accesses.iter().sum::<u64>(), words, "{name}");
    }
}

/// Two entries of 8 columns and 8 rows in blocks of 4, records of 3 bytes; indices 1 and 9 behind them, loaded first.
#[test]
fn a_lookup_of_columns_reads_a_record_of_every_block() {
    let machine = primes();
    let mut p = program(&machine, 1024);
    let mut bytes: Vec<u8> = (0..128).collect();
    bytes.extend([1u32, 9].into_iter().flat_map(u32::to_le_bytes));
    constants(&mut p, bytes);
    push(&mut p, Unit::Dtl0, &[], load(0, 128, 0, 8));
    let work = Work::PackedLookup(PackedLookup {
        ddr_space: 0,
        ddr_address: 0,
        spaces: 1,
        size: 16,
        columns: Some(8),
        rows: 8,
        row_bytes: 8,
        block: 4,
        codes: CodeKind::Symmetric,
        indices: cache_view(&machine, &[2], DType::I32, 0),
        output: cache_view(&machine, &[2, 8], DType::I8, bank(&machine, 1)),
        first: 0,
        count: 2,
    });
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 1)], work);
    let run = computed(&p, &[]);
    // 8 bytes of indices: 10 + 8 + 5 + 3 = 26. Then 8 cycles; the index word: 1; bytes 3 and 27 in page 0: 5 + 1 and 1; byte 51 in
    // page 0: 1, byte 75 in page 1: 5 + 1.
    assert_eq!(run.cycles, 26 + 8 + 1 + (5 + 1) + 1 + 1 + (5 + 1));
    assert_eq!(run.counters.bank_accesses[..2], [1 + 1, 2]);
    assert_eq!(run.counters.page_misses, 3);
    assert_eq!(run.counters.ddr_read_bytes, 8 + 2 * 2 * 3);
}

#[test]
fn a_line_begins_its_next_transfer_when_the_last_is_over() {
    let mut p = program(&primes(), 1024);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 8));
    push(&mut p, Unit::Dtl0, &[], load(0, 8, 8, 8));
    assert_eq!(run(&p).cycles, 10 + (8 + 5 + 3) + (8 + 3));
}

/// 32 rows of 8 bytes at DDR 0, 8 a page; the indices 0, 1, 9, 8 behind them, loaded first.
fn lookup() -> Program {
    let machine = primes();
    let mut p = program(&machine, 1024);
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.extend([0u32, 1, 9, 8].into_iter().flat_map(u32::to_le_bytes));
    constants(&mut p, bytes);
    push(&mut p, Unit::Dtl0, &[], load(0, 256, 0, 16));
    let work = Work::Lookup(Lookup {
        table: View::whole(&[32, 8], DType::I8, machine.word(), Space::Ddr(0), 0),
        indices: cache_view(&machine, &[4], DType::I32, 0),
        output: cache_view(&machine, &[4, 8], DType::I8, bank(&machine, 1)),
        first: 0,
        count: 4,
    });
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 1)], work);
    p
}

#[test]
fn a_lookup_reads_index_words_and_rows() {
    // 16 bytes of indices: 10 + 8 + 5 + 6 = 29. Then 8 cycles; an index word: 1; row 0 in page 0: 5 + 3; row 1: 3; the second
    // index word: 1; row 9 in page 1: 5 + 3; row 8: 3.
    let run = computed(&lookup(), &[]);
    assert_eq!(run.cycles, 29 + 8 + (1 + 8 + 3) + (1 + 8 + 3));
    assert_eq!(run.counters.bank_accesses[..2], [2 + 2, 4]);
    assert_eq!(run.counters.page_misses, 3);
    assert_eq!(run.counters.ddr_read_bytes, 16 + 4 * 8);
}

#[test]
fn a_lookup_without_values_takes_scattered_rows() {
    // Rows 0, 17, 2 and 19 of pages 0, 2, 0 and 2: a miss each.
    let run = run(&lookup());
    assert_eq!(run.cycles, 29 + 8 + 2 + 4 * (5 + 3));
    assert_eq!(run.counters.page_misses, 1 + 4);
}

#[test]
fn the_two_lines_alternate_run_by_run() {
    // Both want channel 0 in cycle 18. DTL0's runs: 8 cycles each (miss and 3), as the other line has opened its own page.
    let mut p = program(&primes(), 1024);
    push(&mut p, Unit::Dtl0, &[], strided(8, [1, 3], [0, 8]));
    let Work::Transfer(t) = strided(8, [1, 3], [0, 8]) else { unreachable!("a transfer") };
    let other = Transfer { ddr_address: 64, local_address: bank(&primes(), 1), ..t };
    push(&mut p, Unit::Dtl1, &[], Work::Transfer(other));
    let run = run(&p);
    assert_eq!(run.counters.units[0].end, 18 + 5 * 8);
    assert_eq!(run.counters.units[1].end, 18 + 6 * 8);
}

/// A past of four rows of a word from address 32 on, in front of a page's end, and the row of an output behind it.
fn with_state() -> Program {
    let machine = primes();
    let mut p = program(&machine, 1024);
    p.inputs.push(port(&machine, "past", &[1, 4, 1, 8], DType::I8, 32));
    p.outputs.push(port(&machine, "new", &[1, 1, 1, 8], DType::I8, 64));
    p.states.push(State { input: 0, output: 0, axis: 1 });
    p
}

#[test]
fn rows_of_a_state_that_do_not_count_take_a_cycle_a_word_and_no_channel() {
    for unit in [Unit::Dtl0, Unit::Dtl1] {
        for (position, cycles, read) in
            [(None, 5 + 11, 32), (Some(4), 5 + 11, 32), (Some(1), 5 + 3 + 3, 8), (Some(0), 4, 0)]
        {
            let mut p = with_state();
            push(&mut p, unit, &[], load(0, 32, 0, 32));
            p.position = position;
            let run = run(&p);
            assert_eq!(run.cycles, 10 + 6 + 2 + cycles, "{position:?}");
            assert_eq!(run.counters.bank_accesses.iter().sum::<u64>(), 4, "{position:?}");
            assert_eq!(run.counters.ddr_read_bytes, read, "{position:?}");
        }
        // Half a row is there: its word is written by what is loaded, and again by what is not.
        let mut p = with_state();
        push(&mut p, unit, &[], load(0, 36, 4, 8));
        p.position = Some(1);
        assert_eq!(run(&p).cycles, 10 + 6 + 2 + 5 + 2 + 1);
        let mut p = with_state();
        push(&mut p, unit, &[], store(0, 64, 0, 8));
        p.position = Some(2);
        assert_eq!((run(&p).cycles, run(&p).counters.ddr_write_bytes), (10 + 6 + 2 + 5 + 3, 8));
    }
}

#[test]
fn a_state_is_loaded_from_its_past_and_moved_from_and_to_its_output() {
    let refused = |work: Work| {
        let mut p = with_state();
        push(&mut p, Unit::Dtl0, &[], work);
        simulate(&p, &[], &Options { values: false, ..Options::default() }).is_err_and(|error| {
            error.to_string().contains("moves bytes of a state other than from its past, or to and from its output")
        })
    };
    let Work::Transfer(loaded) = load(0, 32, 0, 8) else { unreachable!("a transfer") };
    for (name, work, expected) in [
        ("a row", load(0, 40, 0, 8), false),
        ("the output", load(0, 64, 0, 8), false),
        ("both", load(0, 56, 0, 16), true),
        ("from in front of it", load(0, 24, 0, 16), true),
        ("to behind it", load(0, 64, 0, 16), true),
        ("behind it", load(0, 72, 0, 16), false),
        ("a store to the past", store(0, 32, 0, 8), true),
        ("a store to both", store(0, 60, 0, 8), true),
        ("parameters", Work::Transfer(Transfer { local_space: Space::EwpCache, ..loaded }), true),
        ("a run inside and one behind", strided(8, [2, 1], [64, 0]), true),
        (
            "weights",
            Work::Expand(Expand {
                ddr_space: 0,
                ddr_address: 0,
                local_address: 0,
                rows: 8,
                row_bytes: 8,
                block: 32,
                codes: PackedForm::Symmetric,
            }),
            true,
        ),
    ] {
        assert_eq!(refused(work), expected, "{name}");
    }
}
