//! Elementwise operators, gathers and table lookups by index.

use std::ops::Range;

use smallvec::SmallVec;
use tpuflow_ir::Arithmetic::{Fixed, Float};
use tpuflow_ir::isa::{
    Codes, FLOAT_NORM_BYTES, FloatFunction, Lookup, NormParameters, Scaling, Slope, TableShape, Vector, VectorOp,
};
use tpuflow_ir::op::{Exponentials, Norm};
use tpuflow_ir::{DType, Descriptor, DescriptorId, Finish, Op, Space, Table, TensorId, View, Work, timing};

use super::{Lowering, Shortage, codes, refine, scaling, slice_rows, slices, staged_bytes};
use crate::network::Network;
use crate::virtual_program::{BufferId, Memory, Packing};

impl Lowering<'_> {
    /// Operators that take a row of each operand to a row of the result.
    pub(super) fn elementwise(&mut self, op: &Op, output: TensorId) -> Result<(), Shortage> {
        let network = &self.context.network;
        let Some(RowOperator { inputs, vector, parameters }) = of_codes(op, network).or_else(|| of_floats(op, network))
        else {
            return Ok(());
        };
        let bytes = match parameters {
            Parameters::None => 0,
            Parameters::Channels(bytes) => bytes,
            Parameters::Table(table) => network.tensor(table.entries).bytes(),
        };
        if bytes > self.parameter_space() as usize {
            return Err(Shortage(Memory::Ewp));
        }
        let buffer = match parameters {
            Parameters::None => None,
            Parameters::Channels(bytes) => {
                let step = network.parameters_of(self.index);
                Some(self.parameters("parameters", bytes, Packing::Vector { step }))
            }
            Parameters::Table(table) => Some(self.table(table).1),
        };
        self.rowwise(&inputs, vector, output, buffer.map(|buffer| (buffer, 0)))
    }

    fn rowwise(
        &mut self,
        inputs: &[TensorId],
        vector: VectorOp,
        output: TensorId,
        parameters: Option<(BufferId, u32)>,
    ) -> Result<(), Shortage> {
        let word = self.context.machine.word();
        let mut views: Vec<View> = inputs.iter().map(|&t| self.operand(t)).collect();
        views.push(self.operand(output));
        let alone = self.alone(output);
        let descriptor = self.descriptor(Descriptor::Vector(vector.clone()));
        let mut lists = self.by_block(inputs, &views);
        let alone = alone && lists.len() == 1;
        for views in &mut lists {
            let to = views[inputs.len()];
            let widest = views[..inputs.len()].iter().filter(|view| view.width > 1).max_by_key(|view| view.pixel_bytes);
            let packed = widest.copied().filter(|_| !alone).and_then(|from| self.packed(output, &from, &to));
            views[inputs.len()] = packed.unwrap_or(to);
            if !matches!(vector, VectorOp::ResizeLinear { .. }) {
                refine(views, word);
            }
            self.rows_of_block(views, descriptor, &vector, parameters, alone)?;
            if let Some(packed) = packed {
                self.unpack(output, &packed, &to)?;
            }
        }
        Ok(())
    }

    /// The instructions for some channels; the result is the last of `views`.
    fn rows_of_block(
        &mut self,
        views: &[View],
        descriptor: DescriptorId,
        vector: &VectorOp,
        parameters: Option<(BufferId, u32)>,
        alone: bool,
    ) -> Result<(), Shortage> {
        let (machine, word) = (self.context.machine, self.context.machine.word());
        let Some((&to, views)) = views.split_last() else { return Ok(()) };
        let rows_of = |view: &View, rows: Range<u32>| -> Range<u32> {
            match vector {
                VectorOp::ResizeLinear { rows: taps, .. } => resized_rows(view, to.height, taps, rows),
                _ if view.rows == to.rows => rows,
                _ => broadcast_rows(view, &to, rows),
            }
        };
        let need = |rows: Range<u32>| -> u64 {
            let inputs = views.iter().map(|v| staged_bytes(v, rows_of(v, rows.clone()), word)).sum::<u64>();
            inputs + staged_bytes(&to, rows, word)
        };
        let budgets = [self.piece_space(), self.free];
        let height = budgets.iter().find_map(|&budget| slice_rows(0..to.rows, budget, need));
        let height = height.ok_or(Shortage(Memory::Cache))?;
        for rows in slices(0..to.rows, height) {
            let inputs: SmallVec<[View; 2]> =
                views.iter().map(|v| self.stage_in(v, rows_of(v, rows.clone()))).collect();
            let output = self.stage_out(&to, rows.clone());
            let mut instruction = Vector {
                descriptor,
                inputs: inputs.clone(),
                output,
                first_row: rows.start,
                rows: rows.end - rows.start,
                parameters: 0,
            };
            let cycles = timing::vector(&instruction, vector, machine).cycles;
            let piece = self.rows_per_piece(instruction.rows, cycles, machine.ewp.start);
            for part in self.pieces(rows.clone(), to.rows, piece) {
                (instruction.first_row, instruction.rows) = (part.start, part.end - part.start);
                if matches!(vector, VectorOp::ResizeLinear { .. }) {
                    let needed = rows_of(&views[0], part);
                    instruction.inputs[0] = narrowed(&inputs[0], needed, word);
                }
                self.instruction(Work::Vector(instruction.clone()), [parameters, None, None]);
            }
            self.store(&to, &output, rows, alone);
        }
        Ok(())
    }

    /// Picks along an axis: ranges of `outer * indices`, each with the input rows between its extremes.
    pub(super) fn gather(
        &mut self,
        input: TensorId,
        axis: u32,
        indices: &[u32],
        output: TensorId,
    ) -> Result<(), Shortage> {
        let (machine, word) = (self.context.machine, self.context.machine.word());
        let shape = &self.context.network.tensor(input).shape;
        let axis = axis as usize;
        let outer: usize = shape[..axis].iter().product();
        let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let vector = VectorOp::Gather {
            outer: outer as u32,
            extent: extent as u32,
            inner: inner as u32,
            indices: indices.to_vec(),
        };
        let (from, to) = (self.fine(input), self.fine(output));
        let alone = self.alone(output);
        let row_elements = |view: &View| (view.width * view.channels) as usize;
        // Picks per unit: whole output rows, so that a stored row is complete.
        let unit = row_elements(&to) / gcd(row_elements(&to), inner);
        let total = outer * indices.len();
        let needed = |picks: Range<u32>| -> Range<u32> {
            let (start, end) = (picks.start as usize * unit, (picks.end as usize * unit).min(total));
            let at = |q: usize| q / indices.len() * extent + indices[q % indices.len()] as usize;
            let (low, high) = (start..end).fold((usize::MAX, 0), |(l, h), q| (l.min(at(q)), h.max(at(q))));
            let row = row_elements(&from);
            (low * inner / row) as u32..(((high + 1) * inner).div_ceil(row)) as u32
        };
        let out_rows = |picks: Range<u32>| -> Range<u32> {
            let row = row_elements(&to);
            let end = (picks.end as usize * unit).min(total);
            (picks.start as usize * unit * inner / row) as u32..(end * inner).div_ceil(row) as u32
        };
        let units = total.div_ceil(unit) as u32;
        let need = |picks: Range<u32>| {
            staged_bytes(&from, needed(picks.clone()), word) + staged_bytes(&to, out_rows(picks), word)
        };
        let budgets = [self.piece_space(), self.free];
        let Some(height) = budgets.iter().find_map(|&budget| slice_rows(0..units, budget, need)) else {
            return self.scattered(input, [outer, extent, inner], indices, &to, alone);
        };
        let descriptor = self.descriptor(Descriptor::Vector(vector.clone()));
        for slice in slices(0..units, height) {
            let input = self.stage_in(&from, needed(slice.clone()));
            let output = self.stage_out(&to, out_rows(slice.clone()));
            let pick = |units: &Range<u32>, input: View| Vector {
                descriptor,
                inputs: SmallVec::from_iter([input]),
                output,
                first_row: units.start * unit as u32,
                rows: (units.end * unit as u32).min(total as u32) - units.start * unit as u32,
                parameters: 0,
            };
            let cycles = timing::vector(&pick(&slice, input), &vector, machine).cycles;
            let piece = self.rows_per_piece(slice.end - slice.start, cycles, machine.ewp.start);
            for part in slices(slice.clone(), piece) {
                let narrow_weight_tiles = narrowed(&input, needed(part.clone()), word);
                self.instruction(Work::Vector(pick(&part, narrow_weight_tiles)), [None; 3]);
            }
            self.store(&to, &output, out_rows(slice), alone);
        }
        Ok(())
    }

    /// Rows of a constant table by run-time index.
    pub(super) fn embedding(&mut self, table: TensorId, indices: TensorId, output: TensorId) -> Result<(), Shortage> {
        let word = self.context.machine.word();
        let rows = self.operand(table);
        let from = self.operand(indices);
        let mut views = [self.operand(output)];
        refine(&mut views, word);
        let [to] = views;
        let alone = self.alone(output);
        let index_bytes = staged_bytes(&from, 0..from.rows, word);
        if index_bytes > self.free {
            return Err(Shortage(Memory::Cache));
        }
        let need = |rows: Range<u32>| staged_bytes(&to, rows, word);
        let height = slice_rows(0..to.rows, self.free - index_bytes, need).ok_or(Shortage(Memory::Cache))?;
        let indices = self.stage_in(&from, 0..from.rows);
        for slice in slices(0..to.rows, height) {
            let output = self.stage_out(&to, slice.clone());
            let (first, count) = (slice.start * to.width, (slice.end - slice.start) * to.width);
            let lookup = Lookup { table: View { space: Space::Ddr(0), ..rows }, indices, output, first, count };
            self.instruction(Work::Lookup(lookup), [None; 3]);
            self.store(&to, &output, slice, alone);
        }
        Ok(())
    }

    /// A tensor's view in the shortest rows its layout allows.
    pub(super) fn fine(&mut self, tensor: TensorId) -> View {
        let mut views = [self.operand(tensor)];
        refine(&mut views, self.context.machine.word());
        views[0]
    }
}

/// A view that holds only rows `rows` of `view`, both in the cache.
pub(super) fn narrowed(view: &View, rows: Range<u32>, word: usize) -> View {
    View {
        address: view.row_address(rows.start, word),
        first_row: rows.start,
        stored_rows: rows.end - rows.start,
        ..*view
    }
}

/// Rows of an operand that rows of the result take: images and lines of which there is one serve all.
fn broadcast_rows(operand: &View, result: &View, rows: Range<u32>) -> Range<u32> {
    let (first, last) = (rows.start, rows.end - 1);
    let (images, height) = (operand.rows / operand.height, operand.height);
    let image = |row: u32| if images == 1 { 0 } else { row / result.height };
    let line = |row: u32| if height == 1 { 0 } else { row % result.height };
    if first / result.height == last / result.height {
        let base = image(first) * height;
        base + line(first)..base + line(last) + 1
    } else {
        image(first) * height..(image(last) + 1) * height
    }
}

fn resized_rows(view: &View, out_height: u32, taps: &[tpuflow_ir::LinearTap], rows: Range<u32>) -> Range<u32> {
    let mut hull = (u32::MAX, 0);
    for row in rows {
        let (image, tap) = (row / out_height, &taps[(row % out_height) as usize]);
        for line in [tap.first, tap.second] {
            let line = image * view.height + line;
            hull = (hull.0.min(line), hull.1.max(line));
        }
    }
    hull.0..hull.1 + 1
}

/// An operator of rows as the elementwise unit computes it.
struct RowOperator<'a> {
    inputs: Vec<TensorId>,
    vector: VectorOp,
    parameters: Parameters<'a>,
}

/// Parameters that an operator of rows reads from the unit's own cache.
#[derive(Clone, Copy)]
enum Parameters<'a> {
    None,
    /// So many bytes for its channels.
    Channels(usize),
    Table(&'a Table),
}

impl RowOperator<'_> {
    fn new(inputs: &[TensorId], vector: VectorOp) -> Self {
        Self { inputs: inputs.to_vec(), vector, parameters: Parameters::None }
    }

    fn with(inputs: &[TensorId], vector: VectorOp, bytes: usize) -> Self {
        Self { parameters: Parameters::Channels(bytes), ..Self::new(inputs, vector) }
    }
}

/// Channels of a tensor.
fn channels(network: &Network, id: TensorId) -> usize {
    network.tensor(id).shape.last().copied().unwrap_or(1)
}

/// Operators on codes, and those that take elements of any type.
fn of_codes<'a>(op: &'a Op, network: &Network) -> Option<RowOperator<'a>> {
    let zero = |id: &TensorId| network.tensor(*id).zero_point();
    Some(match op {
        Op::Binary { kind, a, b, ka, kb, requant: Fixed(requant) } => {
            let (zeros, factors) = ([zero(a), zero(b)], [*ka, *kb]);
            RowOperator::new(&[*a, *b], VectorOp::Binary { kind: *kind, zeros, factors, scaling: scaling(requant) })
        }
        Op::Unary { input, function: Fixed(table) } => {
            let entries = network.tensor(table.entries).elements() as u32;
            let shape = TableShape { entries, lo: table.lo, hi: table.hi };
            RowOperator { parameters: Parameters::Table(table), ..RowOperator::new(&[*input], VectorOp::Table(shape)) }
        }
        Op::Rescale { input, requant: Fixed(requant) } => {
            RowOperator::new(&[*input], VectorOp::Rescale { input_zero: zero(input), scaling: scaling(requant) })
        }
        Op::PRelu { input, slopes: Fixed(slopes) } => {
            let (count, positive) = (slopes.negative_multiplier.len(), scaling(&slopes.positive));
            let vector = VectorOp::PRelu { input_zero: zero(input), positive, per_channel: count > 1 };
            RowOperator::with(&[*input], vector, count * Slope::BYTES)
        }
        Op::SoftmaxStatistics { measure, .. } => {
            RowOperator::new(&op.operands(), VectorOp::SoftmaxStatistics { measure: *measure })
        }
        Op::Softmax { exponentials: Fixed(exponentials), .. } => {
            let Exponentials { coefficient, multiplier, shift, zero_point, lo, hi } = exponentials;
            let codes = Codes { zero_point: *zero_point, lo: *lo, hi: *hi };
            let scaling = Scaling { multiplier: *multiplier, shift: *shift, codes };
            RowOperator::new(&op.operands(), VectorOp::Softmax { coefficient: *coefficient, scaling })
        }
        Op::LayerNorm { input, gamma, beta, center, norm: Fixed(norm) } => {
            let Norm { epsilon, multiplier, shift, requant } = norm;
            let (center, input_zero, epsilon, codes) = (*center, zero(input), *epsilon, codes(requant));
            let normalize = (*multiplier, *shift);
            if norm.is_shared(network.tensor(*gamma), network.tensor(*beta)) {
                let vector = VectorOp::SharedLayerNorm { center, input_zero, epsilon, normalize, codes };
                return Some(RowOperator::with(&[*input], vector, NormParameters::BYTES));
            }
            let vector = VectorOp::LayerNorm { center, input_zero, epsilon, normalize, codes };
            RowOperator::with(&[*input], vector, channels(network, *input) * NormParameters::BYTES)
        }
        Op::ArgMax { input, largest, select_last } => {
            RowOperator::new(&[*input], VectorOp::ArgMax { largest: *largest, select_last: *select_last })
        }
        Op::Select { condition, a, b } => RowOperator::new(&[*condition, *a, *b], VectorOp::Select),
        Op::ResizeLinear { input, rows, columns } => {
            let vector = VectorOp::ResizeLinear { rows: rows.clone(), columns: columns.clone() };
            RowOperator::new(&[*input], vector)
        }
        _ => return None,
    })
}

/// Operators that take floats or give them.
fn of_floats<'a>(op: &'a Op, network: &Network) -> Option<RowOperator<'a>> {
    Some(match op {
        Op::Binary { kind, a, b, requant: Float(finish), .. } => {
            RowOperator::new(&[*a, *b], float(FloatFunction::Binary(*kind), finish))
        }
        Op::Unary { input, function: Float(finish) } | Op::Rescale { input, requant: Float(finish) } => {
            RowOperator::new(&[*input], float(FloatFunction::Identity, finish))
        }
        Op::Dequantize { input, scale, finish } => {
            let zero_point = network.tensor(*input).zero_point();
            RowOperator::new(&[*input], float(FloatFunction::Dequantize { zero_point, scale: *scale }, finish))
        }
        Op::Quantize { input, scale, zero_point, lo, hi } => {
            let codes = Codes { zero_point: *zero_point, lo: *lo, hi: *hi };
            RowOperator::new(&[*input], VectorOp::Quantize { scale: *scale, codes })
        }
        Op::PRelu { input, slopes: Float(slopes) } => {
            let count = slopes.negative.len();
            let vector = float(FloatFunction::PRelu { per_channel: count > 1 }, &slopes.finish);
            RowOperator::with(&[*input], vector, count * DType::F32.bytes())
        }
        Op::Softmax { exponentials: Float(finish), .. } => {
            RowOperator::new(&op.operands(), float(FloatFunction::Softmax, finish))
        }
        Op::LayerNorm { input, center, norm: Float(norm), .. } => {
            let function = FloatFunction::LayerNorm { center: *center, epsilon: norm.epsilon };
            let bytes = channels(network, *input) * FLOAT_NORM_BYTES;
            RowOperator::with(&[*input], float(function, &norm.finish), bytes)
        }
        _ => return None,
    })
}

pub(super) fn float(function: FloatFunction, finish: &Finish) -> VectorOp {
    VectorOp::Float { function, output: finish.into() }
}

pub(crate) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
