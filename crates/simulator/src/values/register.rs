//! A matrix instruction through every register of the array, and the closed form beside it.
//!
//! Integers are computed in closed form first; what the registers make of them is compared later, many instructions at a time
//! on all threads.

use std::sync::Arc;

use tpuflow_ir::isa::{Matrix, MatrixDescriptor};
use tpuflow_ir::{DType, Machine, Space, timing};
use tpuflow_kernels::Values;

use super::Fault;
use super::matrix::{PackedTile, Tile, accumulator_range, group_channels};
use super::tensor::Code;
use crate::array::{self, ArraySpec, Dataflow, Extent, Float, Integer, Precision};
use crate::hazard::Rule;

/// A matrix instruction of integers computed in closed form, to go through the registers.
#[derive(Debug)]
pub(super) struct Pass {
    matrix: Matrix,
    descriptor: MatrixDescriptor,
    packed: Arc<PackedTile>,
    /// Operand `[pixels, taps, channels]` and results `[pixels, columns]`.
    rows: Values,
    results: Values,
    overflows: u64,
}

impl Pass {
    pub(super) fn new(
        matrix: &Matrix,
        descriptor: &MatrixDescriptor,
        packed: Arc<PackedTile>,
        rows: Values,
        (results, overflows): (Values, u64),
    ) -> Self {
        Self { matrix: *matrix, descriptor: descriptor.clone(), packed, rows, results, overflows }
    }

    /// Elements it holds.
    pub(super) fn elements(&self) -> usize {
        self.rows.len() + self.results.len()
    }

    /// Takes the operand through the registers.
    ///
    /// # Errors
    /// When the array refuses a tile, takes other than the law's cycles or gives other codes.
    pub(super) fn check(&self, machine: &Machine) -> Result<(), Fault> {
        let (sums, overflows) = match &self.rows {
            Values::I8(rows) => self.sums(rows, machine)?,
            Values::I16(rows) => self.sums(rows, machine)?,
            _ => return Ok(()),
        };
        let same = overflows == self.overflows
            && match &self.results {
                Values::I8(results) => self.sums_give_codes(&sums, results),
                Values::I16(results) => self.sums_give_codes(&sums, results),
                Values::I64(results) => sums == *results,
                _ => true,
            };
        if same { Ok(()) } else { Err(register_fault(&self.matrix, "other results than in closed form")) }
    }

    fn sums<X: Code>(&self, rows: &[X], machine: &Machine) -> Result<(Vec<i64>, u64), Fault> {
        let (m, d) = (&self.matrix, &self.descriptor);
        sums(m, d, &self.packed.tile, rows, &group_channels(m, d), machine)
    }

    /// Whether these sums give these codes.
    fn sums_give_codes<Y: Code>(&self, sums: &[i64], codes: &[Y]) -> bool {
        let columns = self.matrix.columns as usize;
        let mut row = vec![Y::default(); columns];
        sums.chunks_exact(columns).zip(codes.chunks_exact(columns)).all(|(sums, codes)| {
            self.packed.epilogue.apply(sums.iter().copied(), &mut row);
            row == codes
        })
    }
}

fn register_fault(m: &Matrix, what: impl std::fmt::Display) -> Fault {
    ((Space::Cache, m.weights.address), Rule::Shape(format!("in the array: {what}")))
}

/// Accumulators `[pixels, columns]` with their bias, and how many of them overflowed (they are clamped).
///
/// `rows`: `[pixels, taps, channels]` of the operand.
///
/// # Errors
/// When the array refuses a tile or takes other than the law's cycles.
fn sums<X: Code>(
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
    let outputs = pass_through_array(precision, m, d, rows, channels, machine, activation, weight)?;
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
    pass_through_array(precision, m, d, rows, channels, machine, |x| *x, weight)
}

/// The results of the array, `[pixels, columns]`, once all K blocks of the instruction have passed through its registers.
///
/// `rows`: `[pixels, taps, channels]`, fed as `activation` gives them; `weight`: of a tap, a channel and a column.
#[allow(clippy::too_many_arguments, reason = "an instruction, what it reads and how numbers enter the array")]
fn pass_through_array<P: Precision, X>(
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
            let (first, own) = (block.first_channel as usize, block.channels as usize);
            let taps = block.first_tap as usize..(block.first_tap + block.taps) as usize;
            for (row, cells) in rows.chunks_exact(row_length).zip(activations.chunks_exact_mut(height)) {
                for (tap, cells) in taps.clone().zip(cells.chunks_exact_mut(own)) {
                    let from = tap * channels.len() + first - channels.start as usize;
                    cells.iter_mut().zip(&row[from..from + own]).for_each(|(cell, x)| *cell = activation(x));
                }
            }
            for (lane, cells) in weights.chunks_exact_mut(width).enumerate().take(taps.len() * own) {
                let (tap, channel) = (taps.start + lane / own, first + lane % own);
                cells[..columns].iter_mut().enumerate().for_each(|(column, cell)| *cell = weight(tap, channel, column));
            }
            [weights, activations]
        })
        .collect();
    let tiles: Vec<array::Tile<'_, P::Operand>> =
        lanes.iter().enumerate().map(|(n, [weights, rows])| array::Tile { weights, rows, accumulate: n > 0 }).collect();
    let outcome = array::registers::run(&spec, precision, &tiles).map_err(|e| register_fault(m, e))?;
    let law = array::closed::cycles(&spec, precision.passes(), tiles.iter().map(|_| Extent { m: pixels, k: height }));
    if outcome.cycles != law {
        return Err(register_fault(m, format!("{} cycles, the law says {law}", outcome.cycles)));
    }
    let sums = outcome.outputs.iter().flat_map(|block| block.chunks_exact(width));
    Ok(sums.flat_map(|row| row[..columns].iter().copied()).collect())
}
