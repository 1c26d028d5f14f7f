//! Cycles counted by hand, one case per law of `docs/machine.md`; every run is also stepped and its books balanced.
//!
//! `elementwise`, `pooling`, `dma` and `matrix` hold tables of single instructions, one row per rate and form of a unit;
//! `meetings` has what happens between instructions and units; `array` the cycles that were measured on published arrays.

mod array;
mod dma;
mod elementwise;
mod matrix;
mod meetings;
mod pooling;

use tpuflow_ir::{Machine, Program};
use tpuflow_simulator::{Options, Run, simulate};

/// Runs without values, checks that stepping gives the same and that every cycle of a unit is booked.
fn run(program: &Program) -> Run {
    let options = Options { values: false, trace: true, ..Options::default() };
    balanced(program, &[], &options)
}

/// Runs with values, checked in the same way.
fn computed(program: &Program, inputs: &[Vec<u8>]) -> Run {
    balanced(program, inputs, &Options { trace: true, ..Options::default() })
}

fn balanced(program: &Program, inputs: &[Vec<u8>], options: &Options) -> Run {
    let run = simulate(program, inputs, options).expect("runs");
    let stepped = simulate(program, inputs, &Options { stepped: true, ..*options }).expect("runs");
    assert_eq!(run, stepped);
    for unit in run.counters.units {
        assert_eq!(unit.busy + unit.stalls.total(), unit.end - unit.start, "{unit:?}");
    }
    run
}

/// First byte of a bank.
fn bank(machine: &Machine, bank: u64) -> u64 {
    bank * u64::from(machine.cache.words) * u64::from(machine.cache.word_bytes)
}

/// A machine whose rates all differ, so that no law can stand for another: words of 8 bytes, 4 elements a cycle, 8 banks of
/// 256 words, instructions begin in cycle 10.
fn primes() -> Machine {
    let text = r#"
        name = "primes"
        clock_hz = 1_000_000_000
        control = { start = 10, issue = 4, issue_cold = 6 }
        array = { rows = 8, columns = 8, setup = 5, accumulators = 64 }
        feeder = { words = 2 }
        ewp = { lanes = 4, start = 31, latency = 3, move = 2, bilinear = 11, softmax = 5, layer_norm = 7, rms_norm = 3, reduce = 13, step = 17, series = 19 }
        pdp = { lanes = 8, taps = 3, start = 37, latency = 4 }
        cache = { banks = 8, words = 256, word_bytes = 8 }
        ewp_cache = { banks = 2, words = 64 }
        dma = { lines = 2, start = 6, latency = 2 }
        ddr = { channels = 2, word_bytes = 3, clock_hz = 1_000_000_000, capacity_bytes = 65536, page_bytes = 64, page_miss_ns = 5, interleave_bytes = 0 }
    "#;
    Machine::parse("primes", text).expect("sound")
}
