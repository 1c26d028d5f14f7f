//! Values of attention by blocks of keys: statistics of rows in blocks, shares by them, and sums that go on elsewhere.

use tpuflow_ir::isa::{Matrix, MatrixDescriptor, Vector, VectorOp};
use tpuflow_ir::op::Measure;
use tpuflow_ir::{DType, LayerId, View};
use tpuflow_kernels::Values;
use tpuflow_kernels::softmax::Statistics;
use tpuflow_kernels::sums::{self, Codes};

use super::matrix::{accumulator_range, group_channels};
use super::register::Pass;
use super::tensor::Code;
use super::{Fault, Memories, vector};
use crate::run::ArrayModel;

impl Memories {
    /// A softmax whose rows continue elsewhere, or the statistics of such rows.
    pub(super) fn row_blocks(&mut self, v: &Vector, op: &VectorOp) -> Result<(), Fault> {
        let block = &v.inputs[0];
        let (n, length) = (block.channels as usize, block.width as usize * block.channels as usize);
        let (mut y, mut bytes) = (vec![0i16; length], Vec::new());
        let has_statistics = op.has_statistics(v);
        let has_mask = v.inputs.len() > 1 + usize::from(has_statistics);
        for row in v.first_row..v.first_row + v.rows {
            let mut x = Vec::with_capacity(length);
            self.row::<i16>(block, row, &mut x)?;
            let mask = match v.inputs.get(1).filter(|_| has_mask) {
                Some(mask) => self.broadcast::<i16>(mask, block, row)?.iter().map(|&m| i8::from(m != 0)).collect(),
                None => vec![],
            };
            let of = |pixel: usize| mask.get(pixel * n..pixel * n + n).unwrap_or_default();
            let mut statistics = match v.inputs.last().filter(|_| has_statistics) {
                Some(earlier) => self.statistics(earlier, row)?,
                None => vec![Statistics::EMPTY; block.width as usize],
            };
            match op {
                VectorOp::SoftmaxStatistics { measure } => {
                    for (pixel, (x, own)) in x.chunks_exact(n).zip(&mut statistics).enumerate() {
                        *own = match *measure {
                            Measure::Maximum => own.with_maximum(x, of(pixel)),
                            Measure::Sum { coefficient } => own.with_sum(coefficient, x, of(pixel)),
                        };
                    }
                    let numbers = statistics.iter().flat_map(|own| [own.max, own.sum]);
                    let bytes: Vec<u8> = numbers.flat_map(i64::to_le_bytes).collect();
                    self.store_row(&v.output, row, &bytes)?;
                }
                VectorOp::Softmax { coefficient, scaling } => {
                    let softmax = vector::softmax_of(*coefficient, scaling);
                    let rows = x.chunks_exact(n).zip(y.chunks_exact_mut(n)).zip(statistics);
                    rows.enumerate().for_each(|(pixel, ((x, y), own))| softmax.shares(own, x, of(pixel), y));
                    super::tensor::encode(v.output.dtype, &y, &mut bytes);
                    self.store_row(&v.output, row, &bytes)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Statistics of the pixels of a row.
    fn statistics(&self, view: &View, row: u32) -> Result<Vec<Statistics>, Fault> {
        let mut numbers = Vec::new();
        self.row::<i64>(view, row, &mut numbers)?;
        Ok(numbers.chunks_exact(2).map(|pair| Statistics { max: pair[0], sum: pair[1] }).collect())
    }

    /// Sums `[pixels, columns]` of a product as they are; returns how many left the accumulator and were held to it.
    pub(super) fn partial_product<X: Code>(
        &mut self,
        layer: LayerId,
        m: &Matrix,
        d: &MatrixDescriptor,
        array: ArrayModel,
    ) -> Result<u64, Fault> {
        let zero = X::narrow(d.input_zero.clamp(X::MIN.widen(), -(X::MIN.widen() + 1)));
        let packed = self.packed_tile(layer, m, d)?;
        let rows = self.gather::<X>(m, d, &group_channels(m, d), zero)?;
        let (tile, shape) = (&packed.tile, [packed.tile.k, packed.tile.columns]);
        let mut results = vec![0; m.pixels as usize * shape[1]];
        let a = Codes { codes: &rows[..], zero_point: d.input_zero };
        match &tile.weights {
            Values::I8(codes) => {
                sums::products(a, Codes { codes, zero_point: tile.weight_zero }, shape, &mut results);
            }
            Values::I16(codes) => {
                sums::products(a, Codes { codes, zero_point: tile.weight_zero }, shape, &mut results);
            }
            _ => {}
        }
        let ((lo, hi), mut overflows) = (accumulator_range(tile.wide), 0);
        for row in results.chunks_exact_mut(shape[1]) {
            for (sum, bias) in row.iter_mut().zip(&tile.bias) {
                let exact = *sum + bias;
                *sum = exact.clamp(lo, hi);
                overflows += u64::from(*sum != exact);
            }
        }
        let bytes: Vec<u8> = results.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.store_tile(m, &bytes);
        if array == ArrayModel::Register {
            let results = Values::I64(results);
            self.passes.push(Pass::new(m, d, packed, X::values(rows.clone()), (results, overflows)));
        }
        *X::gathered_rows(&mut self.buffers) = rows;
        Ok(overflows)
    }

    /// Whether the result of a product is its sums as they are.
    pub(super) fn is_partial(m: &Matrix, d: &MatrixDescriptor) -> bool {
        m.output.dtype == DType::I64 && d.float.is_none()
    }
}
