//! Instructions that follow each other on a unit, and units that meet at banks, channels and tokens.

use tpuflow_ir::isa::{PoolKind, Scaling, VectorOp};
use tpuflow_ir::{BinaryKind, DType, Unit, Window, Work};
use tpuflow_simulator::counters::Client;

use super::{bank, run};
use crate::build::{CODES, POINT, asic, cache_view, load, pool, port, product, program, push, store, tiny, vector};

const ADD: VectorOp = VectorOp::Binary {
    kind: BinaryKind::Add,
    zeros: [0, 0],
    factors: [1, 1],
    scaling: Scaling { multiplier: 1, shift: 0, codes: CODES },
};

// feature: SIM-02
#[test]
fn one_transfer() {
    // start 150, line 62 + 18, page miss 24, 4096 bytes at 25.6 bytes a cycle = 160
    let mut p = program(&asic(), 1 << 20);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 4096));
    let run = run(&p);
    assert_eq!(run.cycles, 150 + 62 + 18 + 24 + 160);
    let line = run.counters.units[0];
    assert_eq!((line.stalls.issue, line.stalls.ddr, line.busy), (62 + 18, 24, 160));
    assert_eq!((run.counters.ddr_read_bytes, run.counters.page_misses), (4096, 1));
    assert_eq!(run.counters.bank_accesses[0], 32);
}

#[test]
fn a_transfer_over_a_page_border() {
    // bytes 2048 .. 6144: two runs of 2048 bytes (80 cycles), each opens its page
    let mut p = program(&asic(), 1 << 20);
    push(&mut p, Unit::Dtl1, &[], load(0, 2048, 0, 4096));
    assert_eq!(run(&p).cycles, 150 + 80 + (24 + 80) + (24 + 80));
    // a second transfer of the page that is open pays no miss, and its start-up begins when the first is over
    push(&mut p, Unit::Dtl1, &[], load(0, 4096, 8192, 32));
    assert_eq!(run(&p).cycles, 150 + 80 + 2 * 104 + 80 + 2);
}

#[test]
fn lines_take_turns_on_a_channel() {
    // Both lines want channel 0 in cycle 18: DTL0 first; then the one that has waited longer. Pages of 64 bytes take 16 data
    // cycles and 3 for the miss; every run opens its page again, as the other line has been there.
    //   18: DTL0 page 0 (19)   37: DTL1 page 8 (19)   56: DTL0 page 1   75: DTL1 page 9   .. 94
    let mut p = program(&tiny(), 4096);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, bank(&tiny(), 0), 128));
    push(&mut p, Unit::Dtl1, &[], load(0, 512, bank(&tiny(), 1), 128));
    let both = run(&p);
    assert_eq!(both.cycles, 18 + 4 * 19);
    assert_eq!(both.counters.units[0].end, 18 + 3 * 19);
    assert_eq!(both.counters.units[0].stalls.ddr, 2 * 3 + 19);
    assert_eq!(both.counters.units[1].stalls.ddr, 19 + 3 + 19 + 3);
    assert_eq!(both.counters.page_misses, 4);
    // Apart on two channels each takes 38.
    p.instructions[1].work = load(1, 512, bank(&tiny(), 1), 128);
    assert_eq!(run(&p).cycles, 18 + 2 * 19);
}

#[test]
fn lines_meet_at_a_bank() {
    // Words of 8 bytes come every 2 cycles on either channel; both lines write bank 0 in the same cycles. DTL0 wins, DTL1's
    // run then lags by one cycle and never meets it again.
    let mut p = program(&tiny(), 4096);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 64));
    push(&mut p, Unit::Dtl1, &[], load(1, 0, 64, 64));
    let run = run(&p);
    assert_eq!(run.cycles, 18 + 3 + 16 + 1);
    assert_eq!(run.counters.bank_conflicts[Client::Unit(Unit::Dtl0).index()][Client::Unit(Unit::Dtl1).index()], 1);
    assert_eq!(run.counters.units[1].stalls.bank_conflict, 1);
}

#[test]
fn stores_wait_for_what_they_store() {
    // load: 18 + 3 + 16 = 37 cycles; its token is seen in cycle 37; store: 8 + 3 (another page) + 16
    let mut p = program(&tiny(), 4096);
    push(&mut p, Unit::Dtl0, &[], load(0, 0, 0, 64));
    push(&mut p, Unit::Dtl1, &[(Unit::Dtl0, 1)], store(0, 1024, 0, 64));
    let run = run(&p);
    assert_eq!(run.cycles, 37 + 8 + 3 + 16);
    assert_eq!(run.counters.ddr_write_bytes, 64);
}

// feature: SIM-02
#[test]
fn one_matrix_tile() {
    // start 150, issue 50 to an idle unit, set-up 86; then law 1: 128 weight rows, 128 pixels, 257 to the last result
    let machine = asic();
    let mut p = program(&machine, 0);
    let work = product(&mut p, 128, 128, 128, [bank(&machine, 0), bank(&machine, 1), bank(&machine, 2)]);
    push(&mut p, Unit::Me, &[], work);
    let run = run(&p);
    assert_eq!(run.cycles, 150 + 50 + 86 + (128 + 128 + 257));
    let me = run.counters.units[Unit::Me.index()];
    assert_eq!((me.stalls.issue, me.stalls.weight_load, me.busy, me.stalls.unit_busy), (136, 128, 128, 257));
}

#[test]
fn ready_tiles_follow_by_law_1() {
    // Three instructions of 2 K blocks each and 300, 200, 7 pixels: R + sum max(M, R) + R + C + 1 from the first weight row to
    // the last slot of the array, of which the last 128 - 7 are empty.
    let machine = asic();
    let mut p = program(&machine, 0);
    let mut slots = 0;
    for (n, pixels) in [300, 200, 7].into_iter().enumerate() {
        let at = [bank(&machine, 3 * n as u64), bank(&machine, 3 * n as u64 + 1), bank(&machine, 3 * n as u64 + 2)];
        let work = product(&mut p, pixels, 256, 128, at);
        push(&mut p, Unit::Me, &[], work);
        slots += 2 * pixels.max(128) as u64;
    }
    assert_eq!(run(&p).cycles, 150 + 136 + 128 + slots + 257 - (128 - 7));
}

#[test]
fn short_streams_follow_by_law_1() {
    // Ten instructions of 128 pixels and one K block: their sums leave before the accumulators are full.
    let machine = asic();
    let mut p = program(&machine, 0);
    for n in 0..10 {
        let at = [bank(&machine, 3 * n), bank(&machine, 3 * n + 1), bank(&machine, 3 * n + 2)];
        let work = product(&mut p, 128, 128, 128, at);
        push(&mut p, Unit::Me, &[], work);
    }
    assert_eq!(run(&p).cycles, 150 + 136 + 128 + 10 * 128 + 257);
}

#[test]
fn streams_wait_for_accumulators() {
    // 256 entries hold the sums of two instructions of 128 pixels. The first has written its last result in cycle
    // L + 128 + 127 + 257, so the third streams from the next one on, 257 cycles after the second began instead of 128.
    let mut machine = asic();
    machine.array.accumulators = 256;
    let mut p = program(&machine, 0);
    for n in 0..3 {
        let at = [bank(&machine, 3 * n), bank(&machine, 3 * n + 1), bank(&machine, 3 * n + 2)];
        let work = product(&mut p, 128, 128, 128, at);
        push(&mut p, Unit::Me, &[], work);
    }
    let run = run(&p);
    assert_eq!(run.cycles, 150 + 136 + 128 + 128 + 257 + 128 + 257);
    // The array runs empty for 257 - 128 cycles in between, and for 257 at the end.
    assert_eq!(run.counters.units[Unit::Me.index()].stalls.unit_busy, 257 - 128 + 257);
}

#[test]
fn a_drained_array_is_set_up_again() {
    // The second product waits for the first: its token is seen one cycle after the last result, in cycle 799; then issue to
    // an idle unit, set-up and everything else once more.
    let machine = asic();
    let mut p = program(&machine, 0);
    for n in 0..2 {
        let work = product(
            &mut p,
            128,
            128,
            128,
            [bank(&machine, 3 * n), bank(&machine, 3 * n + 1), bank(&machine, 3 * n + 2)],
        );
        push(&mut p, Unit::Me, if n == 0 { &[] } else { &[(Unit::Me, 1)] }, work);
    }
    assert_eq!(run(&p).cycles, 150 + 2 * (136 + 513));
}

#[test]
fn narrow_results_share_words() {
    // 16 pixels of 2 channels: 4 pixels a word, so the pipe writes 4 words; a tile of 8 x 8 PEs with 8 weight rows used.
    let machine = tiny();
    let mut p = program(&machine, 0);
    let work = product(&mut p, 16, 8, 2, [bank(&machine, 0), bank(&machine, 1), bank(&machine, 2)]);
    push(&mut p, Unit::Me, &[], work);
    let run = run(&p);
    assert_eq!(run.cycles, 10 + 6 + 5 + (8 + 16 + 17));
    assert_eq!(run.counters.bank_accesses, [16, 8, 4, 0]);
}

#[test]
fn weights_and_activations_in_one_bank() {
    // While 8 pixels of tile 0 stream, the port wants the rows of tile 1 from the same bank: the feeder wins 8 times, then the
    // port takes 8 cycles, then 8 pixels stream: 8 cycles later than without conflicts.
    let machine = tiny();
    let mut p = program(&machine, 0);
    let work = product(&mut p, 8, 16, 8, [0, 128, bank(&machine, 2)]);
    push(&mut p, Unit::Me, &[], work);
    let run = run(&p);
    assert_eq!(run.cycles, 10 + 6 + 5 + (8 + 8 + 8 + 8 + 17));
    assert_eq!(run.counters.bank_conflicts[Client::Feeder.index()][Client::WeightPort.index()], 8);
    assert_eq!(run.counters.units[Unit::Me.index()].stalls.weight_load, 16);
}

#[test]
fn wide_weight_rows_take_two_words() {
    // int16 x int16, 8 columns of 16 bits: every weight row is two words, and the weights of two array rows; 4 lanes of two bytes
    // fill a word. So a load takes 8 cycles, as long as a stream of 8 pixels, of which there are 4, one for each pass.
    let machine = tiny();
    let mut p = program(&machine, 0);
    let mut work = product(&mut p, 8, 4, 8, [bank(&machine, 0), bank(&machine, 1), bank(&machine, 2)]);
    if let Work::Matrix(m) = &mut work {
        m.input = cache_view(&machine, &[8, 4], DType::I16, bank(&machine, 0));
        m.weights.row_bytes = 16;
    }
    if let Some(tpuflow_ir::Descriptor::Matrix(d)) = p.descriptors.last_mut() {
        d.weight_dtype = DType::I16;
    }
    push(&mut p, Unit::Me, &[], work);
    assert_eq!(run(&p).cycles, 10 + 6 + 5 + (4 * 8 + 8 + 17));
}

#[test]
fn a_window_is_fetched_once_per_row() {
    // 3 x 3 over 6 x 6 pixels of 1 byte, 8 pixels a word: one word holds a whole image row. A K block is 8 taps, so blocks of 8
    // and 1 taps. For every output row block 0 needs 3 words at the first pixel and none after, block 1 needs 1 word. 4 x 4
    // output pixels: block 0 takes 4 * (3 + 3) = 24 cycles, block 1 16.
    let machine = tiny();
    let mut p = program(&machine, 0);
    let mut work = product(&mut p, 1, 9, 8, [bank(&machine, 0), bank(&machine, 1), bank(&machine, 2)]);
    if let Work::Matrix(m) = &mut work {
        m.input = cache_view(&machine, &[1, 6, 6, 1], DType::I8, 0);
        m.output = cache_view(&machine, &[1, 4, 4, 8], DType::I8, bank(&machine, 2));
        m.pixels = 16;
    }
    if let Some(tpuflow_ir::Descriptor::Matrix(d)) = p.descriptors.last_mut() {
        d.window.kernel = [3, 3];
        d.group_in = 1;
    }
    push(&mut p, Unit::Me, &[], work);
    let run = run(&p);
    // All words lie in one bank, so the feeder gets one a cycle: 3 cycles at the first pixel of a row, in which first 2 words
    // wait, then 1.
    assert_eq!(run.cycles, 10 + 6 + 5 + (8 + 4 * (3 + 3) + 16 + 17));
    assert_eq!(run.counters.bank_accesses[0], 4 * 3 + 4);
    assert_eq!(run.counters.bank_conflicts[Client::Feeder.index()][Client::Feeder.index()], 4 * (2 + 1));
}

// feature: SIM-02
#[test]
fn one_elementwise_add() {
    // 8192 elements, 64 a cycle: 128 unit cycles; start 144, latency 92; reads of 64 words each fall due every second cycle
    let machine = asic();
    let mut p = program(&machine, 0);
    let view = |n: u64| cache_view(&machine, &[64, 128], DType::I8, bank(&machine, n));
    let work = vector(&mut p, ADD, &[view(0), view(1)], view(2));
    push(&mut p, Unit::Ewp, &[], work);
    let once = run(&p);
    assert_eq!(once.cycles, 150 + 144 + 128 + 92);
    assert_eq!(once.counters.bank_accesses[..3], [64, 64, 64]);
    // Operands in one bank: both words of a pair fall due in the same cycle, and the second waits one: 64 cycles more.
    let work = vector(&mut p, ADD, &[view(0), cache_view(&machine, &[64, 128], DType::I8, 8192)], view(2));
    p.instructions[0].work = work;
    let conflicts = run(&p);
    assert_eq!(conflicts.cycles, once.cycles + 64);
    assert_eq!(conflicts.counters.units[Unit::Ewp.index()].stalls.bank_conflict, 64);
}

#[test]
fn ready_elementwise_instructions_follow_without_a_gap() {
    // The second is issued while the first works (128 < 144: 16 cycles of issue show), reads at 150 + 288.
    let machine = asic();
    let mut p = program(&machine, 0);
    for n in 0..2 {
        let view = |m: u64| cache_view(&machine, &[64, 128], DType::I8, bank(&machine, 3 * n + m));
        let work = vector(&mut p, ADD, &[view(0), view(1)], view(2));
        push(&mut p, Unit::Ewp, &[], work);
    }
    let run = run(&p);
    assert_eq!(run.cycles, 150 + 144 + 144 + 128 + 92);
    assert_eq!(run.counters.units[Unit::Ewp.index()].stalls.issue, 144 + 16);
}

// feature: SIM-02
#[test]
fn one_pooling() {
    // 2 x 2 / 2 over 8 x 8 pixels of 128 channels: 16 words, ceil(4 / 3) = 2 cycles each; start 64, latency 92
    let machine = asic();
    let mut p = program(&machine, 0);
    let window = Window { kernel: [2, 2], stride: [2, 2], dilation: [1, 1], pads: [0; 4] };
    let input = cache_view(&machine, &[1, 8, 8, 128], DType::I8, 0);
    let output = cache_view(&machine, &[1, 4, 4, 128], DType::I8, bank(&machine, 1));
    let work = pool(&mut p, PoolKind::Max, window, input, output);
    push(&mut p, Unit::Pdp, &[], work);
    let run = run(&p);
    // Two of the 64 input words fall due in each of the 32 cycles, and both lie in bank 0: 32 cycles more.
    assert_eq!(run.cycles, 150 + 64 + 32 + 32 + 92);
    assert_eq!(run.counters.bank_accesses[..2], [64, 16]);
}

#[test]
fn two_units_meet_at_a_bank() {
    // EWP copies 4 words of bank 0, one every 2 cycles, from cycle 10 + 7 on; PDP pools 1 x 1 over 8 words of bank 0, one a
    // cycle, from 10 + 5 on. EWP wins in cycles 17, 19, .. as often as they meet: PDP loses 4 cycles.
    let machine = tiny();
    let mut p = program(&machine, 0);
    let copy = VectorOp::Rescale { input_zero: 0, scaling: Scaling { multiplier: 1, shift: 0, codes: CODES } };
    let work = vector(
        &mut p,
        copy,
        &[cache_view(&machine, &[4, 8], DType::I8, 0)],
        cache_view(&machine, &[4, 8], DType::I8, bank(&machine, 1)),
    );
    push(&mut p, Unit::Ewp, &[], work);
    let window = POINT;
    let work = pool(
        &mut p,
        PoolKind::Max,
        window,
        cache_view(&machine, &[1, 1, 16, 8], DType::I8, 64),
        cache_view(&machine, &[1, 1, 16, 8], DType::I8, bank(&machine, 2)),
    );
    push(&mut p, Unit::Pdp, &[], work);
    let run = run(&p);
    assert_eq!(run.counters.units[Unit::Ewp.index()].end, 10 + 7 + 8 + 3);
    assert_eq!(run.counters.units[Unit::Pdp.index()].end, 10 + 5 + 16 + 4 + 4);
    assert_eq!(run.counters.bank_conflicts[Client::Unit(Unit::Ewp).index()][Client::Unit(Unit::Pdp).index()], 4);
}

#[test]
fn an_empty_program_takes_no_time() {
    let mut p = program(&tiny(), 64);
    p.outputs.push(port(&tiny(), "y", &[1], DType::I8, 0));
    assert_eq!(run(&p).cycles, 0);
}
