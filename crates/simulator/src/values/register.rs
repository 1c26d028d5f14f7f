//! A matrix instruction through every register of the array, and the closed form beside it.

use tpuflow_ir::isa::{Matrix, MatrixDescriptor};
use tpuflow_ir::{DType, Machine, Space, timing};

use super::Fault;
use super::matrix::{Tile, accumulator_range};
use super::tensor::Code;
use crate::array::{self, ArraySpec, Dataflow, Extent, Float, Integer, Precision};
use crate::hazard::Rule;

/// Accumulators `[pixels, columns]` with their bias, and how many of them overflowed (they are clamped).
///
/// `rows`: `[pixels, taps, channels]` of the operand.
///
/// # Errors
/// When the array refuses a tile or takes other than the law's cycles.
pub(super) fn sums<X: Code>(
    m: &Matrix,
    d: &MatrixDescriptor,
    tile: &Tile,
    rows: &[X],
    channels: &std::ops::Range<u32>,
    machine: &Machine,
) -> Result<(Vec<i64>, u64), Fault> {
    let precision = match (m.input.dtype, d.weight_dtype) {
        (DType::I8, DType::I8) => Integer::I8,
        (DType::I8, _) => Integer::I8I16,
        (_, DType::I8) => Integer::I16I8,
        _ => Integer::I16,
    };
    let weight = |tap: usize, channel: usize, column: usize| {
        let group = (m.first_column as usize + column) / d.group_out as usize;
        let own = group == channel / d.group_in as usize;
        if own { tile.weight(tap * d.group_in as usize + channel % d.group_in as usize, column) as i32 } else { 0 }
    };
    let activation = |x: &X| x.widen() - tile.input_zero;
    let outputs = passed(precision, m, d, rows, channels, machine, activation, weight)?;
    let (lo, hi) = accumulator_range(tile.wide);
    let mut overflows = 0;
    let kept = outputs
        .chunks_exact(m.columns as usize)
        .flat_map(|row| row.iter().zip(&tile.bias).map(|(sum, bias)| sum + bias))
        .map(|sum| {
            overflows += u64::from(!(lo..=hi).contains(&sum));
            sum.clamp(lo, hi)
        })
        .collect();
    Ok((kept, overflows))
}

/// Sums `[pixels, columns]` of floats, in the order of the array's rows and blocks.
///
/// `weights`: `[k, columns]`; `rows`: `[pixels, taps, channels]` of the operand.
///
/// # Errors
/// When the array refuses a tile or takes other than the law's cycles.
pub(super) fn float_sums(
    m: &Matrix,
    d: &MatrixDescriptor,
    weights: &[f32],
    rows: &[f32],
    channels: &std::ops::Range<u32>,
    machine: &Machine,
) -> Result<Vec<f32>, Fault> {
    let precision = match d.weight_dtype {
        DType::F16 => Float::F16,
        DType::BF16 => Float::Bf16,
        _ => Float::F32,
    };
    let weight = |tap: usize, channel: usize, column: usize| {
        let k = tap * d.group_in as usize + channel % d.group_in as usize;
        weights[k * m.columns as usize + column]
    };
    passed(precision, m, d, rows, channels, machine, |x| *x, weight)
}

/// What leaves the array, `[pixels, columns]`, once all K blocks of the instruction have passed through its registers.
///
/// `rows`: `[pixels, taps, channels]`, fed as `activation` gives them; `weight`: of a tap, a channel and a column.
#[allow(clippy::too_many_arguments, reason = "an instruction, what it reads and how numbers enter the array")]
fn passed<P: Precision, X>(
    precision: P,
    m: &Matrix,
    d: &MatrixDescriptor,
    rows: &[X],
    channels: &std::ops::Range<u32>,
    machine: &Machine,
    activation: impl Fn(&X) -> P::Operand,
    weight: impl Fn(usize, usize, usize) -> P::Operand,
) -> Result<Vec<P::Sum>, Fault> {
    let (height, width) = (machine.array.rows as usize, machine.array.columns as usize);
    let spec = ArraySpec { rows: height, columns: width, dataflow: Dataflow::DoubleBuffered };
    let (pixels, columns) = (m.pixels as usize, m.columns as usize);
    let row_length = (d.window.kernel[0] * d.window.kernel[1]) as usize * channels.len();
    let blocks = timing::blocks(d, &m.input, m.first_column, m.columns, machine);
    let lanes: Vec<[Vec<P::Operand>; 2]> = blocks
        .iter()
        .map(|block| {
            let mut weights = vec![P::Operand::default(); height * width];
            let mut activations = vec![P::Operand::default(); pixels * height];
            for lane in 0..(block.taps * block.channels) as usize {
                let tap = block.first_tap as usize + lane / block.channels as usize;
                let channel = block.first_channel as usize + lane % block.channels as usize;
                let own = tap * channels.len() + channel - channels.start as usize;
                for (pixel, row) in rows.chunks_exact(row_length).enumerate() {
                    activations[pixel * height + lane] = activation(&row[own]);
                }
                for (column, cell) in weights[lane * width..][..columns].iter_mut().enumerate() {
                    *cell = weight(tap, channel, column);
                }
            }
            [weights, activations]
        })
        .collect();
    let tiles: Vec<array::Tile<'_, P::Operand>> =
        lanes.iter().enumerate().map(|(n, [weights, rows])| array::Tile { weights, rows, accumulate: n > 0 }).collect();
    let broken = |what: String| ((Space::Cache, m.weights.address), Rule::Shape(format!("in the array: {what}")));
    let outcome = array::registers::run(&spec, precision, &tiles).map_err(|e| broken(e.to_string()))?;
    let law = array::closed::cycles(&spec, precision.passes(), tiles.iter().map(|_| Extent { m: pixels, k: height }));
    if outcome.cycles != law {
        return Err(broken(format!("{} cycles, the law says {law}", outcome.cycles)));
    }
    let sums = outcome.outputs.iter().flat_map(|block| block.chunks_exact(width));
    Ok(sums.flat_map(|row| row[..columns].iter().copied()).collect())
}
