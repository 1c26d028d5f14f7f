//! Pooling and depthwise convolutions: output rows in slices, channels in groups where their parameters exceed the parameter
//! cache.

use std::ops::Range;

use tpuflow_ir::isa::{ChannelParameters, Pool, PoolDescriptor, PoolKind};
use tpuflow_ir::op::{Average, FloatReduction};
use tpuflow_ir::{Arithmetic, Descriptor, Op, Real, ReduceKind, Requant, Space, TensorId, View, Window, Work, timing};

use super::{Lowering, Shortage, codes, slice_rows, slices, staged_bytes, window_rows};
use crate::network::is_depthwise;
use crate::options::granularity::TileGranularity;
use crate::virtual_program::{BufferId, Memory, Packing};

/// The average over a whole image as what a sum over its pixels ends in.
pub(super) fn whole_average(op: &Op, shape: &[usize]) -> Option<Arithmetic<Requant, FloatReduction>> {
    let Op::AveragePool { window, average, .. } = op else { return None };
    let &[_, h, w, _] = shape else { return None };
    if window.pads != [0; 4] || window.kernel.map(|k| k as usize) != [h, w] {
        return None;
    }
    Some(match average {
        Arithmetic::Fixed(Average { divisors, zero_point, lo, hi }) => {
            let divisor = divisors.iter().find(|d| d.area as usize == h * w)?;
            Arithmetic::Fixed(Requant {
                multiplier: vec![divisor.multiplier],
                shift: vec![divisor.shift],
                zero_point: *zero_point,
                lo: *lo,
                hi: *hi,
            })
        }
        Arithmetic::Float(finish) => {
            Arithmetic::Float(FloatReduction { divisor: Real::from((h * w) as f32), finish: finish.clone() })
        }
    })
}

/// Some channels of a view.
pub(super) fn channels_of(view: &View, first: u32, count: u32) -> View {
    View {
        channels: count,
        channel_offset: view.channel_offset + first * view.dtype.bytes() as u32,
        origin: [view.origin[0], view.origin[1] + first],
        ..*view
    }
}

/// Fields of a pooling instruction beside its views.
struct Operation {
    descriptor: tpuflow_ir::DescriptorId,
    window: Window,
    parameters: [Option<(BufferId, u32)>; 3],
}

impl Lowering<'_> {
    pub(super) fn pooling(&mut self, op: &Op, output: TensorId) -> Result<(), Shortage> {
        let (input, window, kind) = match op {
            Op::MaxPool { input, window } => (*input, *window, PoolKind::Max),
            Op::AveragePool { input, window, count_include_pad, beyond, average: Arithmetic::Fixed(average) } => {
                let Average { divisors, zero_point, lo, hi } = average;
                let kind = PoolKind::Average {
                    input_zero: self.context.network.tensor(*input).zero_point(),
                    count_include_pad: *count_include_pad,
                    beyond: *beyond,
                    divisors: PoolKind::divisors(divisors),
                    codes: tpuflow_ir::isa::Codes { zero_point: *zero_point, lo: *lo, hi: *hi },
                };
                (*input, *window, kind)
            }
            Op::AveragePool { input, window, count_include_pad, beyond, average: Arithmetic::Float(finish) } => {
                let (count_include_pad, beyond, output) = (*count_include_pad, *beyond, finish.into());
                (*input, *window, PoolKind::FloatAverage { count_include_pad, beyond, output })
            }
            _ => return Ok(()),
        };
        let (from, to) = (self.operand(input), self.operand(output));
        let mean = whole_average(op, &self.context.network.tensor(input).shape);
        let blocks = self.blocks(input, &from);
        match (&mean, &blocks) {
            (Some(mean), None) if self.is_worth_stretches(input, &from) => {
                return self.reduction(input, ReduceKind::Sum, &[1, 2], mean, output);
            }
            // Beside the pooling unit that makes them.
            (Some(mean), Some(blocks))
                if self.is_pooled(input) && from.rows == from.height && to.space == Space::Cache =>
            {
                return blocks.iter().try_for_each(|from| {
                    let to = channels_of(&to, from.origin[1], from.channels);
                    self.reduction_of([*from, to], input, ReduceKind::Sum, &[1, 2], mean, output)
                });
            }
            _ => {}
        }
        let descriptor = self.descriptor(Descriptor::Pool(PoolDescriptor { kind, window }));
        let operation = Operation { descriptor, window, parameters: [None; 3] };
        if let Some(blocks) = blocks {
            for from in blocks {
                let to = channels_of(&to, from.origin[1], from.channels);
                self.pool_rows(&operation, &from, &to, false)?;
            }
            return Ok(());
        }
        let outcome = self.pool_rows(&operation, &from, &to, self.alone(output));
        match mean {
            // Too large to be under one window at a time: a sum by stretches.
            Some(mean) if outcome.is_err() && from.space != Space::Cache => {
                self.reduction(input, ReduceKind::Sum, &[1, 2], &mean, output)
            }
            _ => outcome,
        }
    }

    /// Whether a tensor is a depthwise convolution's.
    fn is_pooled(&self, tensor: TensorId) -> bool {
        let network = &self.context.network;
        network.producer(tensor).is_some_and(|step| is_depthwise(network, &step.op))
    }

    /// Whether the average over an image is better made of sums over its rows as they come: under one window it would wait for
    /// all of them.
    fn is_worth_stretches(&self, input: TensorId, from: &View) -> bool {
        let (context, elements) = (self.context, self.context.network.tensor(input).elements() as u64);
        let cycles = elements / u64::from(context.machine.ewp.lanes) * context.machine.ewp.reduce;
        self.granularity() != TileGranularity::Coarse
            && from.space == Space::Cache
            && cycles > 8 * context.machine.ewp.start
    }

    pub(super) fn depthwise(
        &mut self,
        op: &Op,
        input: TensorId,
        window: &Window,
        output: TensorId,
    ) -> Result<(), Shortage> {
        let Op::Conv { weights, epilogue, .. } = op else { return Ok(()) };
        let (network, word) = (&self.context.network, self.context.machine.word());
        let (x, w) = (network.tensor(input), network.tensor(*weights));
        let taps = window.kernel[0] * window.kernel[1];
        let fused = epilogue.fixed().and_then(|e| e.table.as_ref());
        let table_bytes = fused.map_or(0, |t| network.tensor(t.entries).bytes());
        let space = self.parameter_space().saturating_sub(table_bytes.next_multiple_of(word) as u64);
        let entry = ChannelParameters::bytes(timing::has_wide_sums(x.dtype, w.dtype));
        let bytes = |channels: u32| {
            let weights = (taps * channels) as usize * w.dtype.bytes();
            (weights.next_multiple_of(word), weights.next_multiple_of(word) + channels as usize * entry)
        };
        let (from, to) = (self.operand(input), self.operand(output));
        let (blocks, results) = (self.blocks(input, &from), self.blocks(output, &to));
        let mut group = if blocks.is_some() { self.context.machine.array.columns } else { from.channels };
        // Whole words of channels, so that no word is touched by two groups.
        let lanes = (word / x.dtype.bytes()) as u32;
        while bytes(group).1.next_multiple_of(word) as u64 > space {
            if group <= lanes {
                return Err(Shortage(Memory::Ewp));
            }
            group = (group / 2).next_multiple_of(lanes);
            if group >= from.channels {
                group = lanes;
            }
        }
        let table = fused.map(|t| self.table(t));
        let kind = match epilogue {
            Arithmetic::Fixed(epilogue) => PoolKind::Depthwise {
                input_zero: x.zero_point(),
                weight_zero: w.zero_point(),
                weight_dtype: w.dtype,
                first_shift: epilogue.first_shift,
                codes: codes(&epilogue.requant),
                table: table.map(|t| t.0),
            },
            Arithmetic::Float(finish) => PoolKind::FloatDepthwise { weight_dtype: w.dtype, output: finish.into() },
        };
        let descriptor = self.descriptor(Descriptor::Pool(PoolDescriptor { kind, window: *window }));
        let (whole, whole_from) = (group == from.channels, from);
        for first in (0..from.channels).step_by(group as usize) {
            let count = group.min(from.channels - first);
            let network = &self.context.network;
            let (weights, parameters) = (network.weights_of(self.index), network.parameters_of(self.index));
            let step = if weights == parameters { weights } else { self.index };
            let packing = Packing::Depthwise { step, first, count };
            let buffer = self.parameters("parameters", bytes(count).1, packing);
            let parameters = [Some((buffer, bytes(count).0 as u32)), table.map(|t| (t.1, 0)), Some((buffer, 0))];
            let operation = Operation { descriptor, window: *window, parameters };
            let alone = whole && self.alone(output);
            let from = blocks.as_ref().and_then(|blocks| blocks.get((first / group) as usize)).copied();
            let from = from.unwrap_or_else(|| channels_of(&whole_from, first, count));
            if let Some(to) = results.as_ref().and_then(|blocks| blocks.get((first / group) as usize)) {
                self.pool_rows(&operation, &from, to, false)?;
                continue;
            }
            let to = channels_of(&to, first, count);
            let packed = self.packed(output, &from, &to);
            self.pool_rows(&operation, &from, packed.as_ref().unwrap_or(&to), alone)?;
            if let Some(packed) = packed {
                self.unpack(output, &packed, &to)?;
            }
        }
        Ok(())
    }

    fn pool_rows(&mut self, operation: &Operation, from: &View, to: &View, alone: bool) -> Result<(), Shortage> {
        let (machine, word) = (self.context.machine, self.context.machine.word());
        let needs = |rows: Range<u32>| window_rows(&operation.window, from, to.height, rows);
        let need = |rows: Range<u32>| staged_bytes(from, needs(rows.clone()), word) + staged_bytes(to, rows, word);
        let budgets = [self.piece_space(), self.free];
        let height =
            budgets.iter().find_map(|&budget| slice_rows(0..to.rows, budget, need)).ok_or(Shortage(Memory::Cache))?;
        for rows in slices(0..to.rows, height) {
            let input = self.stage_in(from, needs(rows.clone()));
            let output = self.stage_out(to, rows.clone());
            let pool = |rows: &Range<u32>| Pool {
                descriptor: operation.descriptor,
                input,
                output,
                first_row: rows.start,
                rows: rows.end - rows.start,
                weights: 0,
                parameters: 0,
                table: 0,
            };
            let Descriptor::Pool(descriptor) = &self.code.descriptors[operation.descriptor.index()] else {
                continue;
            };
            let cycles = timing::pool(&pool(&rows), descriptor, machine).cycles;
            let piece = self.rows_per_piece(rows.end - rows.start, cycles, machine.pdp.start);
            for part in self.pieces(rows.clone(), to.rows, piece) {
                self.instruction(Work::Pool(pool(&part)), operation.parameters);
            }
            self.store(to, &output, rows, alone);
        }
        Ok(())
    }
}
