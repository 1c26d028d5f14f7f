//! Cycle counts known from elsewhere.
//!
//! The integers of `gemmini_mesh` and `systolic_tensors_*` were measured on other people's RTL
//! (ucb-bar/gemmini's generated 16 x 16 mesh, Arjun0170/Systolic-Tensors) with every output checked.

use tpuflow_simulator::array::folds::{self, Stationary};
use tpuflow_simulator::array::{ArraySpec, Dataflow, Extent, Integer, Passes, closed, registers};

use super::{filled, measured, tiles};

#[test]
fn gemmini_mesh_16x16_double_buffered() {
    let spec = ArraySpec { rows: 16, columns: 16, dataflow: Dataflow::DoubleBuffered };
    for (count, blocks, cycles) in [
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
    ] {
        assert_eq!(measured(spec, Extent { m: 16 * blocks, k: 16 }, count), cycles, "{count} tiles x {blocks} blocks");
    }
}

#[test]
fn gemmini_mesh_gives_its_first_row_in_cycle_49() {
    let spec = ArraySpec { rows: 16, columns: 16, dataflow: Dataflow::DoubleBuffered };
    let operands = [filled(&spec, Extent { m: 16, k: 16 }, 0)];
    let outcome = registers::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit");
    assert_eq!(outcome.tiles[0].first_row, 49);
}

#[test]
fn a_short_tile_holds_the_array_for_as_many_slots_as_rows_even_the_last() {
    let spec = ArraySpec { rows: 6, columns: 3, dataflow: Dataflow::DoubleBuffered };
    for (rows, cycles) in [(vec![1], 6 + 6 + 10), (vec![1, 9, 2], 6 + 21 + 10), (vec![9, 1], 6 + 15 + 10)] {
        let operands: Vec<_> = rows.iter().map(|&m| filled(&spec, Extent { m, k: 6 }, m)).collect();
        let outcome = registers::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit");
        assert_eq!(outcome.cycles, cycles, "{rows:?}");
    }
}

#[test]
fn systolic_tensors_single_buffered() {
    for (size, m, k, cycles) in [
        (8, 1, 8, 48),
        (8, 8, 8, 55),
        (8, 64, 8, 111),
        (8, 16, 8, 63),
        (8, 7, 8, 54),
        (8, 64, 64, 888),
        (8, 49, 64, 768),
        (8, 196, 64, 1944),
        (8, 196, 72, 2187),
        (8, 49, 576, 6912),
        (16, 16, 16, 111),
        (16, 64, 16, 159),
        (16, 64, 128, 1272),
        (16, 196, 64, 1164),
    ] {
        let spec = ArraySpec { rows: size, columns: size, dataflow: Dataflow::SingleBuffered { pipeline: 3 } };
        assert_eq!(measured(spec, Extent { m, k: size }, k / size), cycles, "{size}x{size}, m {m}, k {k}");
    }
}

#[test]
fn systolic_tensors_output_stationary() {
    let spec = ArraySpec { rows: 8, columns: 8, dataflow: Dataflow::OutputStationary };
    for (k, cycles) in [(1, 19), (8, 26), (64, 82), (576, 594)] {
        assert_eq!(measured(spec, Extent { m: 8, k }, 1), cycles, "k {k}");
    }
}

/// `[m, n, k]` of the 53 convolutions and the classifier of ResNet-50 v1.5 (He et al. 2016; stride in
/// the 3x3 convolution), 224 x 224 input. `m` counts the positions of the padded input.
fn resnet50() -> Vec<(u64, u64, u64)> {
    let mut layers = Vec::new();
    let mut convolution = |size: u64, channels: u64, filters: u64, kernel: u64, stride: u64| {
        let padded = size + 2 * (kernel / 2);
        let out = (padded - kernel) / stride + 1;
        layers.push((out * out, filters, kernel * kernel * channels));
        out
    };
    let stem = convolution(224, 3, 64, 7, 2);
    let (mut size, mut channels) = (stem / 2, 64);
    for (stage, (width, blocks)) in [(64, 3), (128, 4), (256, 6), (512, 3)].into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            convolution(size, channels, width, 1, 1);
            let out = convolution(size, width, width, 3, stride);
            convolution(out, width, 4 * width, 1, 1);
            if block == 0 {
                convolution(size, channels, 4 * width, 1, stride);
            }
            (size, channels) = (out, 4 * width);
        }
    }
    layers.push((1, 1000, channels));
    layers
}

#[test]
fn resnet50_in_serial_folds_and_double_buffered() {
    let layers = resnet50();
    assert_eq!(layers.len(), 54);
    assert_eq!(layers.iter().map(|(m, n, k)| m * n * k).sum::<u64>(), 4_089_184_256);
    let spec = ArraySpec { rows: 128, columns: 128, dataflow: Dataflow::DoubleBuffered };
    let total = |stationary| layers.iter().map(|&layer| folds::cycles(&spec, stationary, layer)).sum::<u64>();
    assert_eq!(total(Stationary::Weights), 916_490);
    assert_eq!(total(Stationary::Outputs), 645_320);

    // The array's own law, less the two edge registers and the count of the first cycle, which folds leave out.
    let streamed = |&(m, n, k): &(u64, u64, u64)| {
        let count = folds::folds(&spec, Stationary::Weights, (m, n, k)) as usize;
        closed::cycles(&spec, Passes::Streams(1), vec![Extent { m: m as usize, k: 128 }; count]) - 3
    };
    assert_eq!(layers.iter().map(streamed).sum::<u64>(), 420_916);
}

#[test]
fn a_serial_fold_is_a_single_buffered_tile_without_pipeline_less_one_cycle() {
    for (rows, columns, m) in [(1, 1, 1), (3, 5, 2), (8, 4, 30)] {
        let spec = ArraySpec { rows, columns, dataflow: Dataflow::SingleBuffered { pipeline: 0 } };
        let cycles = measured(spec, Extent { m, k: rows }, 4);
        let serial = folds::cycles(&spec, Stationary::Weights, (m as u64, columns as u64, 4 * rows as u64));
        assert_eq!(cycles, serial + 1 + 4);
    }
}

#[test]
fn input_stationary_swaps_the_roles_of_rows_and_columns_of_the_result() {
    let spec = ArraySpec { rows: 8, columns: 4, dataflow: Dataflow::DoubleBuffered };
    assert_eq!(folds::cycles(&spec, Stationary::Inputs, (9, 30, 17)), 3 * 3 * (16 + 4 + 30 - 2) - 1);
    assert_eq!(
        folds::cycles(&spec, Stationary::Inputs, (9, 30, 17)),
        folds::cycles(&spec, Stationary::Weights, (30, 9, 17))
    );
}
