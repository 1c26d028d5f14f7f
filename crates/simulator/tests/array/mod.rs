//! The register-level array: timing laws of other people's hardware, its own closed form, and what it refuses.

mod errors;
mod laws;
mod properties;

use tpuflow_simulator::array::{ArraySpec, Extent, Integer, Tile, closed, registers};

/// Owned operands of one tile.
#[derive(Debug, Clone)]
struct Operands<T> {
    weights: Vec<T>,
    rows: Vec<T>,
    accumulate: bool,
}

fn tiles<T>(operands: &[Operands<T>]) -> Vec<Tile<'_, T>> {
    operands.iter().map(|o| Tile { weights: &o.weights, rows: &o.rows, accumulate: o.accumulate }).collect()
}

/// Fixed operands that fill the 9-bit range.
fn filled(spec: &ArraySpec, extent: Extent, seed: usize) -> Operands<i32> {
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 511) as i32 - 255;
    Operands {
        weights: (0..extent.k * spec.columns).map(value).collect(),
        rows: (0..extent.m * extent.k).map(|i| value(i + 31)).collect(),
        accumulate: false,
    }
}

/// Runs `count` tiles both ways, checks that they agree, and gives the cycles.
fn measured(spec: ArraySpec, extent: Extent, count: usize) -> u64 {
    let operands: Vec<_> = (0..count).map(|seed| filled(&spec, extent, seed)).collect();
    let outcome = registers::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit");
    assert_eq!(outcome, closed::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit"));
    outcome.cycles
}
