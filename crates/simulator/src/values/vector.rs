//! Values of the elementwise unit.

use tpuflow_ir::isa::{Codes, NormParameters, Scaling, Slope, TableShape, Vector, VectorOp};
use tpuflow_ir::op::LinearTap;
use tpuflow_ir::{DType, Requant, Space};
use tpuflow_kernels::elementwise::{self, Binary, Broadcast, PRelu};
use tpuflow_kernels::normalize::LayerNorm;
use tpuflow_kernels::reduce::{self, Reduction};
use tpuflow_kernels::requant::requantize;
use tpuflow_kernels::resize::resize_linear;
use tpuflow_kernels::softmax::Softmax;

use super::tensor::{broadcast_row, encode};
use super::{Fault, Memories};
use crate::hazard::Rule;

fn requant(scaling: &Scaling) -> Requant {
    Requant {
        multiplier: vec![scaling.multiplier],
        shift: vec![scaling.shift],
        zero_point: scaling.codes.zero_point,
        lo: scaling.codes.lo,
        hi: scaling.codes.hi,
    }
}

pub(super) fn softmax_of(coefficient: u64, scaling: &Scaling) -> Softmax {
    Softmax {
        coefficient,
        multiplier: scaling.multiplier,
        shift: scaling.shift,
        zero_point: scaling.codes.zero_point,
        lo: scaling.codes.lo,
        hi: scaling.codes.hi,
    }
}

/// Shares of exponentials along rows of `channels`.
fn softmax<'o>(channels: usize, coefficient: u64, scaling: &Scaling) -> RowFunction<'o> {
    let softmax = softmax_of(coefficient, scaling);
    Box::new(move |x, y| {
        let mask: Vec<i8> = x.get(1).map_or(vec![], |m| m.iter().map(|&m| i8::from(m != 0)).collect());
        for (i, (x, y)) in x[0].chunks_exact(channels).zip(y.chunks_exact_mut(channels)).enumerate() {
            let mask = if mask.is_empty() { &[][..] } else { &mask[i * channels..][..channels] };
            softmax.row(x, mask, y);
        }
    })
}

impl Memories {
    /// Executes the instruction.
    pub(super) fn vector(&mut self, v: &Vector, op: &VectorOp) -> Result<(), Fault> {
        match op {
            VectorOp::Float { function, output } => self.float_vector(v, function, output),
            VectorOp::Quantize { .. } => self.among_floats(v, op),
            VectorOp::ArgMax { .. } | VectorOp::ResizeLinear { .. } if v.inputs[0].dtype.is_float() => {
                self.among_floats(v, op)
            }
            VectorOp::Select => self.select(v),
            VectorOp::SoftmaxStatistics { .. } => self.row_blocks(v, op),
            VectorOp::Softmax { .. } if op.has_statistics(v) => self.row_blocks(v, op),
            VectorOp::Move { .. } => self.shift(v, op),
            VectorOp::Gather { extent, inner, indices, .. } => self.gather_indices(v, *extent, *inner, indices),
            VectorOp::Reduce { kind, shape, axes, input_zero, scaling, partial } => {
                let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
                let reduction = Reduction::new(&shape, axes);
                let mut results = vec![0; v.output.width as usize * (v.output.rows * v.output.channels) as usize];
                if let Some(earlier) = v.inputs.get(1) {
                    results = self.running(earlier)?;
                }
                let is_later = v.inputs.len() > 1;
                if v.inputs[0].dtype == DType::I64 {
                    reduce::add(&reduction, &self.whole::<i64>(&v.inputs[0])?, &mut results, is_later);
                } else {
                    let x = self.whole::<i16>(&v.inputs[0])?;
                    reduce::run(&reduction, *kind, *input_zero, &x, &mut results, is_later);
                }
                if *partial {
                    let size = v.output.dtype.bytes();
                    let bytes: Vec<u8> = results.iter().flat_map(|r| r.to_le_bytes().into_iter().take(size)).collect();
                    return self.store_row(&v.output, 0, &bytes);
                }
                let requant = requant(scaling);
                let y: Vec<i16> = results.into_iter().map(|result| reduce::finish(*kind, &requant, result)).collect();
                let mut bytes = Vec::new();
                let row = v.output.width as usize * v.output.channels as usize;
                for (row, codes) in (0..).zip(y.chunks_exact(row)) {
                    encode(v.output.dtype, codes, &mut bytes);
                    self.store_row(&v.output, row, &bytes)?;
                }
                Ok(())
            }
            VectorOp::Binary { kind, zeros, factors, scaling }
                if v.inputs.iter().chain([&v.output]).all(|view| view.dtype == DType::I8) =>
            {
                let requant = requant(scaling);
                let binary = Binary { kind: *kind, zero_points: *zeros, multipliers: *factors, requant: &requant };
                self.narrow_binary(v, &binary)
            }
            _ => self.row_wise(v, op),
        }
    }

    /// A binary operator of int8 codes, all rows at once.
    fn narrow_binary(&mut self, v: &Vector, binary: &Binary<'_>) -> Result<(), Fault> {
        let row = v.output.width as usize * v.output.channels as usize;
        let length = row * v.rows as usize;
        let mut buffer = self.buffers.take_with_length::<i8>(length);
        let mut gathered = [Vec::new(), Vec::new()];
        let shape = |view: &tpuflow_ir::View| [view.rows, view.height, view.width, view.channels];
        let in_place = |memories: &Self, view: &tpuflow_ir::View| {
            shape(view) == shape(&v.output) && memories.rows_in_place::<i8>(view, v.first_row, v.rows).is_some()
        };
        for (view, codes) in v.inputs.iter().zip(&mut gathered) {
            if in_place(self, view) {
                continue;
            }
            *codes = self.buffers.take::<i8>();
            for row in v.first_row..v.first_row + v.rows {
                if (view.width, view.channels) == (v.output.width, v.output.channels) {
                    self.row(view, broadcast_row(view, &v.output, row), codes)?;
                } else {
                    codes.extend(self.broadcast::<i8>(view, &v.output, row)?);
                }
            }
        }
        let operand = |n: usize| match &gathered[n][..] {
            [] => self.rows_in_place(&v.inputs[n], v.first_row, v.rows).unwrap_or_default(),
            gathered => gathered,
        };
        let same = Broadcast::new(&[length], &[length]).expect("equal shapes broadcast");
        let y = &mut buffer[..length];
        elementwise::binary(binary, &same, operand(0), operand(1), y);
        self.store_codes(&v.output, v.first_row, y)?;
        gathered.into_iter().chain([buffer]).for_each(|buffer| self.buffers.put_back(buffer));
        Ok(())
    }

    /// Running results of a reduction: codes, or 64-bit sums.
    fn running(&self, view: &tpuflow_ir::View) -> Result<Vec<i64>, Fault> {
        if view.dtype != DType::I64 {
            return Ok(self.whole::<i16>(view)?.into_iter().map(i64::from).collect());
        }
        let bytes = self.read(view.space, view.pixel_address(0, 0, self.word), view.payload())?;
        Ok(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect())
    }

    /// Operators that take the same row of operands and result.
    fn row_wise(&mut self, v: &Vector, op: &VectorOp) -> Result<(), Fault> {
        let channels = v.output.channels as usize;
        let length = v.output.width as usize * channels;
        let function = self.function(v, op)?;
        let (mut y, mut bytes) = (vec![0i16; length], Vec::new());
        for row in v.first_row..v.first_row + v.rows {
            if let VectorOp::ArgMax { largest, select_last } = op {
                let input = &v.inputs[0];
                let mut x = Vec::new();
                self.row::<i16>(input, row, &mut x)?;
                let mut indices = vec![0i32; input.width as usize];
                reduce::arg_max(input.channels as usize, *largest, *select_last, &x, &mut indices);
                let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
                self.store_row(&v.output, row, &bytes)?;
                continue;
            }
            if let VectorOp::Fill { code } = op {
                let element = &code.to_le_bytes()[..v.output.dtype.bytes().min(4)];
                self.store_row(&v.output, row, &element.repeat(length))?;
                continue;
            }
            if let VectorOp::ResizeLinear { rows, columns } = op {
                self.resize(v, row, rows, columns, &mut y)?;
            } else {
                let operands = v
                    .inputs
                    .iter()
                    .map(|view| self.broadcast::<i16>(view, &v.output, row))
                    .collect::<Result<Vec<_>, _>>()?;
                function(&operands, &mut y);
            }
            encode(v.output.dtype, &y, &mut bytes);
            self.store_row(&v.output, row, &bytes)?;
        }
        Ok(())
    }

    /// The function of a row of operands, with its parameters read.
    fn function<'o>(&self, v: &'o Vector, op: &'o VectorOp) -> Result<RowFunction<'o>, Fault> {
        let channels = v.output.channels as usize;
        Ok(match op {
            VectorOp::Binary { kind, zeros, factors, scaling } => {
                let requant = requant(scaling);
                Box::new(move |x, y| {
                    let binary = Binary { kind: *kind, zero_points: *zeros, multipliers: *factors, requant: &requant };
                    for ((y, &a), &b) in y.iter_mut().zip(&x[0]).zip(&x[1]) {
                        *y = binary.at(a.into(), b.into()) as i16;
                    }
                })
            }
            VectorOp::Table(shape) => self.lookup(v, *shape)?,
            VectorOp::Rescale { input_zero, scaling } => {
                let requant = requant(scaling);
                Box::new(move |x, y| elementwise::rescale(*input_zero, &requant, &x[0], y))
            }
            VectorOp::PRelu { input_zero, positive, per_channel } => {
                self.p_relu(v, *input_zero, positive, if *per_channel { channels } else { 1 })?
            }
            VectorOp::Softmax { coefficient, scaling } => softmax(channels, *coefficient, scaling),
            VectorOp::LayerNorm { center, input_zero, epsilon, normalize, codes }
            | VectorOp::SharedLayerNorm { center, input_zero, epsilon, normalize, codes } => {
                let shared = matches!(op, VectorOp::SharedLayerNorm { .. });
                let (gamma, beta, requant) = self.norm_parameters(v, codes, shared)?;
                let norm = LayerNorm {
                    center: *center,
                    input_zero_point: *input_zero,
                    epsilon: *epsilon,
                    multiplier: normalize.0,
                    shift: normalize.1,
                    gamma,
                    beta,
                    requant,
                };
                Box::new(move |x, y| {
                    for (x, y) in x[0].chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
                        norm.row(x, y);
                    }
                })
            }
            VectorOp::Select
            | VectorOp::SoftmaxStatistics { .. }
            | VectorOp::Reduce { .. }
            | VectorOp::ArgMax { .. }
            | VectorOp::Move { .. }
            | VectorOp::Gather { .. }
            | VectorOp::Fill { .. }
            | VectorOp::ResizeLinear { .. }
            | VectorOp::Float { .. }
            | VectorOp::Quantize { .. } => Box::new(|_, _| {}),
        })
    }

    /// Codes through a table, those of eight bits through the values of all of them.
    fn lookup<'o>(&self, v: &Vector, shape: TableShape) -> Result<RowFunction<'o>, Fault> {
        let bits = v.inputs[0].dtype.bits();
        let table = self.table(v.parameters, shape, bits)?;
        if bits == 8 {
            // Every code's value, once.
            let values: Vec<i16> = (-128..=127).map(|code| table.at(code) as i16).collect();
            return Ok(Box::new(move |x, y| {
                for (y, &x) in y.iter_mut().zip(&x[0]) {
                    *y = values[(x + 128) as u8 as usize];
                }
            }));
        }
        Ok(Box::new(move |x, y| {
            for (y, &x) in y.iter_mut().zip(&x[0]) {
                *y = table.at(x.into()) as i16;
            }
        }))
    }

    /// Negative codes by slopes of their own, of which there are `count`.
    fn p_relu<'o>(
        &self,
        v: &Vector,
        zero_point: i32,
        positive: &Scaling,
        count: usize,
    ) -> Result<RowFunction<'o>, Fault> {
        let bytes = self.parameters(v.parameters, Slope::BYTES * count)?;
        let slopes: Vec<Slope> = bytes.chunks_exact(Slope::BYTES).map(Slope::decode).collect();
        let multipliers: Vec<i32> = slopes.iter().map(|s| s.multiplier.into()).collect();
        let shifts: Vec<i8> = slopes.iter().map(|s| s.shift).collect();
        let requant = requant(positive);
        Ok(Box::new(move |x, y| {
            let function =
                PRelu { zero_point, positive: &requant, negative_multiplier: &multipliers, negative_shift: &shifts };
            elementwise::p_relu(&function, &x[0], y);
        }))
    }

    /// Scales, offsets and requantisation of the channels of a normalisation, which may all have the first entry.
    fn norm_parameters(&self, v: &Vector, codes: &Codes, shared: bool) -> Result<(Vec<i32>, Vec<i64>, Requant), Fault> {
        let channels = v.output.channels as usize;
        let bytes = self.parameters(v.parameters, NormParameters::BYTES * if shared { 1 } else { channels })?;
        let entries = bytes.chunks_exact(NormParameters::BYTES).map(NormParameters::decode);
        let parameters: Vec<NormParameters> = entries.cycle().take(channels).collect();
        // The intermediate has 24 bits and their sum 48.
        let sum = |p: &NormParameters| (i128::from(p.gamma).abs() << 23) + i128::from(p.beta).abs();
        if !parameters.iter().all(|p| sum(p) <= 1 << 47) {
            let place = (Space::EwpCache, v.parameters.into());
            return Err((place, Rule::Shape("has an offset beyond 48 bits".to_owned())));
        }
        let gamma = parameters.iter().map(|p| p.gamma.into()).collect();
        let beta = parameters.iter().map(|p| p.beta).collect();
        let requant = Requant {
            multiplier: parameters.iter().map(|p| p.multiplier.into()).collect(),
            shift: parameters.iter().map(|p| p.shift).collect(),
            zero_point: codes.zero_point,
            lo: codes.lo,
            hi: codes.hi,
        };
        Ok((gamma, beta, requant))
    }

    /// One output row of a linear resize, from the two input lines it lies between.
    fn resize(
        &self,
        v: &Vector,
        row: u32,
        rows: &[LinearTap],
        columns: &[LinearTap],
        y: &mut [i16],
    ) -> Result<(), Fault> {
        let input = &v.inputs[0];
        let (image, line) = (row / v.output.height, row % v.output.height);
        let tap = rows[line as usize];
        let mut lines = Vec::new();
        for line in [tap.first, tap.second] {
            self.row::<i16>(input, image * input.height + line, &mut lines)?;
        }
        let shape = [1, 2, input.width as usize, input.channels as usize];
        resize_linear(shape, &[LinearTap { first: 0, second: 1, weight: tap.weight }], columns, &lines, y);
        Ok(())
    }

    /// A strided copy, innermost stretches of neighbours at a time.
    fn shift(&mut self, v: &Vector, op: &VectorOp) -> Result<(), Fault> {
        let VectorOp::Move { dims, input_strides, input_offset, output_strides, output_offset, rescale } = op else {
            return Ok(());
        };
        let last = dims.len() - 1;
        let mut counts: Vec<u32> = dims.clone();
        counts[0] = v.rows;
        let start = i64::from(v.first_row);
        let mut index = vec![0u32; last];
        let mut bytes = Vec::new();
        loop {
            let at = |offset: i64, strides: &[i64]| {
                offset
                    + start * strides[0]
                    + index.iter().zip(strides).map(|(&i, stride)| i64::from(i) * stride).sum::<i64>()
            };
            let (from, to) = (at(*input_offset, input_strides), at(*output_offset, output_strides));
            let mut done = 0;
            while done < counts[last] {
                let step = i64::from(done);
                let (source, target) = (from + step * input_strides[last], to + step * output_strides[last]);
                let count = if (input_strides[last], output_strides[last]) == (1, 1) {
                    let room = |element: i64, view: &tpuflow_ir::View| {
                        view.channels - element.rem_euclid(view.channels.into()) as u32
                    };
                    room(source, &v.inputs[0]).min(room(target, &v.output)).min(counts[last] - done)
                } else {
                    1
                };
                self.copy(v, source, target, count, rescale.as_ref(), &mut bytes)?;
                done += count;
            }
            let Some(axis) = (0..last).rev().find(|&axis| index[axis] + 1 < counts[axis]) else { return Ok(()) };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
    }

    /// Copies `count` neighbours that lie in one pixel on both sides.
    fn copy(
        &mut self,
        v: &Vector,
        source: i64,
        target: i64,
        count: u32,
        rescale: Option<&(i32, Scaling)>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let input = &v.inputs[0];
        let (from, to) = (self.element(input, source)?, self.element(&v.output, target)?);
        let found = self.read(input.space, from, count as usize * input.dtype.bytes())?;
        if let Some((zero, scaling)) = rescale {
            let mut codes: Vec<i16> = Vec::with_capacity(count as usize);
            super::tensor::Load::append(input.dtype, found, &mut codes);
            let requant = requant(scaling);
            for code in &mut codes {
                *code = requantize(i64::from(*code) - i64::from(*zero), &requant, 0) as i16;
            }
            encode(v.output.dtype, &codes, bytes);
        } else {
            bytes.clear();
            bytes.extend_from_slice(found);
        }
        self.of_mut(v.output.space).write(to, bytes);
        Ok(())
    }

    /// A gather: each row of the result is a run of `inner` neighbours of the operand.
    fn gather_indices(&mut self, v: &Vector, extent: u32, inner: u32, indices: &[u32]) -> Result<(), Fault> {
        let count = indices.len() as u32;
        let mut bytes = Vec::new();
        for row in v.first_row..v.first_row + v.rows {
            let source = u64::from(row / count) * u64::from(extent) + u64::from(indices[(row % count) as usize]);
            let (from, to) = (source * u64::from(inner), u64::from(row) * u64::from(inner));
            let mut done = 0;
            while done < inner {
                let (source, target) = ((from + u64::from(done)) as i64, (to + u64::from(done)) as i64);
                let room = |element: i64, view: &tpuflow_ir::View| {
                    view.channels - element.rem_euclid(view.channels.into()) as u32
                };
                let run = room(source, &v.inputs[0]).min(room(target, &v.output)).min(inner - done);
                self.copy(v, source, target, run, None, &mut bytes)?;
                done += run;
            }
        }
        Ok(())
    }
}

/// Computes a row `[width, channels]` from the operands' rows of the same size.
type RowFunction<'o> = Box<dyn Fn(&[Vec<i16>], &mut [i16]) + 'o>;
