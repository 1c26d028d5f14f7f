//! Cycles measured on published arrays, as whole programs on machines of those arrays.
//!
//! The machines have an array that is double-buffered and weight-stationary, so these are the counts of such arrays: the mesh of
//! ucb-bar/gemmini at register-transfer level, and ResNet-50 in tiles of 128 x 128. `tests/array` holds the other dataflows.

use tpuflow_ir::{Machine, Unit};

use super::{bank, run};
use crate::build::{asic, product, program, push};

/// A machine that is nothing but its array: no start-up but the one cycle that issue takes at least, and banks and accumulators
/// for everything.
fn bare(size: u32) -> Machine {
    let mut machine = asic();
    (machine.array.rows, machine.array.columns, machine.array.accumulators) = (size, size, 1 << 16);
    (machine.cache.word_bytes, machine.pdp.lanes) = (size, size);
    machine.ewp.lanes = size.min(machine.ewp.lanes);
    (machine.cache.banks, machine.cache.words) = (4, 1 << 18);
    (machine.control.start, machine.control.issue, machine.control.issue_cold, machine.array.setup) = (0, 1, 1, 0);
    machine.validate().expect("sound");
    machine
}

/// Cycles of `columns` column tiles of `blocks` K blocks, `pixels` pixels each, from the first weight row on.
fn cycles(machine: &Machine, pixels: usize, blocks: usize, columns: usize) -> u64 {
    let size = machine.array.rows as usize;
    let mut p = program(machine, 0);
    for _ in 0..columns {
        let at = [bank(machine, 0), bank(machine, 1), bank(machine, 2)];
        let work = product(&mut p, pixels, blocks * size, size, at);
        push(&mut p, Unit::Me, &[], work);
    }
    run(&p).cycles - machine.control.issue_cold
}

#[test]
fn the_mesh_of_gemmini() {
    // `tiles` weights of 16 x 16, each met by `rows` times 16 activation rows, as K blocks of one instruction or as instructions.
    let machine = bare(16);
    let measured = [
        (1, 1, 65),
        (2, 1, 81),
        (4, 1, 113),
        (8, 1, 177),
        (16, 1, 305),
        (64, 1, 1073),
        (3, 2, 145),
        (2, 8, 305),
        (8, 4, 561),
        (8, 13, 1713),
    ];
    for (tiles, rows, expected) in measured {
        assert_eq!(cycles(&machine, 16 * rows, tiles, 1), expected, "{tiles} K blocks x {rows}");
        assert_eq!(cycles(&machine, 16 * rows, 1, tiles), expected, "{tiles} instructions x {rows}");
    }
}

/// Pixels, output channels and length of the sums of the 53 convolutions and the classifier of ResNet-50 v1.5 at 224 x 224.
fn resnet50() -> Vec<[usize; 3]> {
    let mut layers = vec![[112 * 112, 64, 7 * 7 * 3]];
    let mut channels = 64;
    for (size, width, blocks) in [(56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)] {
        for block in 0..blocks {
            // The first block of a stage but the first comes from images of twice the size.
            let before = if block == 0 && width > 64 { 2 * size } else { size };
            layers.push([before * before, width, channels]);
            layers.push([size * size, width, 9 * width]);
            layers.push([size * size, 4 * width, width]);
            if block == 0 {
                layers.push([size * size, 4 * width, channels]);
            }
            channels = 4 * width;
        }
    }
    layers.push([1, 1000, channels]);
    layers
}

#[test]
fn resnet50_in_tiles_of_128() {
    let machine = bare(128);
    let layers = resnet50();
    assert_eq!(layers.len(), 54);
    let mut total = 0;
    for [pixels, columns, k] in layers {
        let (tiles, blocks) = (columns.div_ceil(128), k.div_ceil(128));
        let empty = 128usize.saturating_sub(pixels) as u64;
        let taken = cycles(&machine, pixels, blocks, tiles);
        // By law 1; of the last tile's slots only those of pixels count, as nothing waits for the others.
        assert_eq!(taken, 128 + (tiles * blocks * pixels.max(128)) as u64 + 257 - empty, "{pixels} x {columns} x {k}");
        total += taken + empty;
    }
    // The published count leaves out three cycles of a layer: the two registers at the array's edges, and the first cycle.
    assert_eq!(total - 54 * 3, 420_916);
}
