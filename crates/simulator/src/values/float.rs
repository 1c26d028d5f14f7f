//! Values of instructions on floats: operands widened to float32, computed by `tpuflow_kernels::float`, rounded once.

use tpuflow_ir::isa::{
    ChannelParameters, FLOAT_NORM_BYTES, FloatFunction, FloatOutput, Matrix, MatrixDescriptor, Pool, PoolDescriptor,
    PoolKind, Vector, VectorOp,
};
use tpuflow_ir::op::LinearTap;
use tpuflow_ir::{DType, Finish, Machine, Real, View};
use tpuflow_kernels::float::depthwise::Depthwise;
use tpuflow_kernels::float::elementwise::{self, Quantize};
use tpuflow_kernels::float::linear::{self, Linear};
use tpuflow_kernels::float::reduce;
use tpuflow_kernels::float::rows::{self, LayerNorm};
use tpuflow_kernels::float::{BF16, F16, Finisher, Float, window};
use tpuflow_kernels::reduce::Reduction;

use super::{Fault, Memories};
use crate::hazard::Rule;
use crate::run::ArrayModel;

/// A float element as memories hold it.
pub(super) trait StoredFloat: Float {
    fn put(self, bytes: &mut Vec<u8>);
}

impl StoredFloat for F16 {
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0.to_le_bytes());
    }
}

impl StoredFloat for BF16 {
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0.to_le_bytes());
    }
}

impl StoredFloat for f32 {
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes());
    }
}

/// Runs `$body` with `$Y` the element type of `$dtype`.
macro_rules! float {
    ($dtype:expr, $Y:ident => $body:expr) => {
        match $dtype {
            DType::F16 => {
                type $Y = F16;
                $body
            }
            DType::BF16 => {
                type $Y = BF16;
                $body
            }
            _ => {
                type $Y = f32;
                $body
            }
        }
    };
}

/// The bytes of what `compute` puts into `count` elements of a float type.
fn float_bytes<Y: StoredFloat>(count: usize, compute: impl FnOnce(&mut [Y])) -> Vec<u8> {
    let mut elements = vec![Y::default(); count];
    compute(&mut elements);
    let mut bytes = Vec::with_capacity(count * Y::DTYPE.bytes());
    elements.into_iter().for_each(|y| y.put(&mut bytes));
    bytes
}

fn finisher(output: &FloatOutput) -> Finisher {
    Finisher::new(&Finish::from(output))
}

fn elements(view: &View) -> usize {
    view.rows as usize * view.width as usize * view.channels as usize
}

fn singles(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The parameters that all rows of a float operator share.
struct FloatRows {
    finisher: Finisher,
    slopes: Vec<f32>,
    norm: Option<LayerNorm>,
}

impl Memories {
    pub(super) fn float_matrix(
        &mut self,
        m: &Matrix,
        d: &MatrixDescriptor,
        output: &FloatOutput,
        array: ArrayModel,
        machine: &Machine,
    ) -> Result<(), Fault> {
        let groups = m.first_column / d.group_out..(m.first_column + m.columns - 1) / d.group_out + 1;
        let channels = groups.start * d.group_in..groups.end * d.group_in;
        let (columns, k) = (m.columns as usize, (d.window.kernel[0] * d.window.kernel[1] * d.group_in) as usize);
        let mut rows = Vec::new();
        self.taps::<f32>(m, d, &channels, 0.0, &mut rows)?;
        self.copy_deferred_weights(m, d);
        let mut weights = Vec::with_capacity(k * columns);
        for row in 0..k as u64 {
            let at = m.weights.address + row * u64::from(m.weights.row_bytes);
            self.codes(d.weight_dtype, at, columns * d.weight_dtype.bytes(), &mut weights)?;
        }
        let bias = self.float_bias(m.parameters, columns)?;
        let finisher = finisher(output);
        let size = m.output.dtype.bytes();
        let mut results = vec![0; m.pixels as usize * columns * size];
        if array == ArrayModel::Register {
            let sums = super::register::float_sums(m, d, &weights, &rows, &channels, machine)?;
            let results = float!(m.output.dtype, Y => float_bytes::<Y>(sums.len(), |y| {
                for (sums, y) in sums.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
                    let sums: Vec<f32> = sums.iter().zip(&bias).map(|(sum, bias)| sum + bias).collect();
                    finisher.apply(&sums, y);
                }
            }));
            return self.scatter_bytes(m, &results);
        }
        for group in groups.clone() {
            let first = ((group * d.group_out).max(m.first_column) - m.first_column) as usize;
            let last = (((group + 1) * d.group_out).min(m.first_column + m.columns) - m.first_column) as usize;
            let own: Vec<f32>;
            let taken = if groups.len() == 1 {
                &rows
            } else {
                let (start, width) = (((group - groups.start) * d.group_in) as usize, d.group_in as usize);
                own = rows.chunks_exact(channels.len()).flat_map(|tap| tap[start..][..width].iter().copied()).collect();
                &own
            };
            let right = linear::Matrix { elements: &weights[first..], shape: [k, last - first], strides: [columns, 1] };
            let linear = Linear::new(&right, &bias[first..last], finisher.clone());
            let bytes = float!(m.output.dtype, Y => float_bytes::<Y>(m.pixels as usize * (last - first), |y| {
                linear::multiply(&linear, taken, y);
            }));
            let width = (last - first) * size;
            for (row, bytes) in results.chunks_exact_mut(columns * size).zip(bytes.chunks_exact(width)) {
                row[first * size..][..width].copy_from_slice(bytes);
            }
        }
        self.scatter_bytes(m, &results)
    }

    fn float_bias(&self, address: u32, channels: usize) -> Result<Vec<f32>, Fault> {
        let entry = ChannelParameters::bytes(false);
        let bytes = self.parameters(address, entry * channels)?;
        Ok(bytes.chunks_exact(entry).map(|bytes| ChannelParameters::decode(false, bytes).float_bias()).collect())
    }

    /// Writes elements `[pixels, columns]` to their place in the result.
    fn scatter_bytes(&mut self, m: &Matrix, results: &[u8]) -> Result<(), Fault> {
        let size = m.output.dtype.bytes();
        for (pixel, row) in (m.first_pixel..).zip(results.chunks_exact(m.columns as usize * size)) {
            let at = m.output.pixel_address(pixel / m.output.width, pixel % m.output.width, self.word);
            let place = [pixel / m.output.width, pixel % m.output.width, m.first_column];
            self.non_finite.count_pixels(m.output.dtype, row, place, m.columns);
            self.cache.write(at + u64::from(m.output_channel) * size as u64, row);
        }
        Ok(())
    }

    pub(super) fn float_pool(&mut self, p: &Pool, d: &PoolDescriptor) -> Result<(), Fault> {
        let height = p.output.height;
        let last = p.first_row + p.rows - 1;
        let channels = p.output.channels as usize;
        let depthwise = match &d.kind {
            PoolKind::FloatDepthwise { weight_dtype, output } => {
                let taps = (d.window.kernel[0] * d.window.kernel[1]) as usize;
                let mut weights = Vec::with_capacity(taps * channels);
                let bytes = self.parameters(p.weights, taps * channels * weight_dtype.bytes())?;
                super::tensor::Load::append(*weight_dtype, bytes, &mut weights);
                let turned: Vec<f32> = (0..channels)
                    .flat_map(|c| (0..taps).map(move |t| (t, c)))
                    .map(|(t, c)| weights[t * channels + c])
                    .collect();
                Some(Depthwise::new(&turned, self.float_bias(p.parameters, channels)?, finisher(output)))
            }
            _ => None,
        };
        for image in p.first_row / height..=last / height {
            let (from, to) = (p.first_row.max(image * height), last.min((image + 1) * height - 1));
            let rows = from - image * height..to + 1 - image * height;
            let slab = self.slab::<f32>(&p.input, &d.window, p.output.width, image, rows)?;
            let (geometry, x) = (&slab.geometry, &slab.lines[..]);
            let bytes = float!(p.output.dtype, Y => float_bytes::<Y>(geometry.pixels() * channels, |y| match &d.kind {
                PoolKind::FloatAverage { count_include_pad, beyond, output } => {
                    let beyond = slab.uncounted_cells(p, &d.window, *beyond);
                    window::average_pool(geometry, *count_include_pad, beyond, &finisher(output), x, y);
                }
                PoolKind::Max => window::max_pool(geometry, x, y),
                _ => {
                    if let Some(depthwise) = &depthwise {
                        depthwise.run(geometry, x, y);
                    }
                }
            }));
            drop(slab);
            let row = p.output.width as usize * channels * p.output.dtype.bytes();
            for (row, bytes) in (from..).zip(bytes.chunks_exact(row)) {
                self.store_row(&p.output, row, bytes)?;
            }
        }
        Ok(())
    }

    /// A float operator of the elementwise unit.
    pub(super) fn float_vector(
        &mut self,
        v: &Vector,
        function: &FloatFunction,
        output: &FloatOutput,
    ) -> Result<(), Fault> {
        if let FloatFunction::Reduce { .. } = function {
            return self.float_reduction(v, function, output);
        }
        let rows = self.float_rows(v, function, output)?;
        for row in v.first_row..v.first_row + v.rows {
            let bytes = self.float_row(v, function, &rows, row)?;
            self.store_row(&v.output, row, &bytes)?;
        }
        Ok(())
    }

    /// A reduction, from running results where there are some.
    fn float_reduction(&mut self, v: &Vector, function: &FloatFunction, output: &FloatOutput) -> Result<(), Fault> {
        let FloatFunction::Reduce { kind, shape, axes, divisor, partial } = function else { return Ok(()) };
        let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let x = self.whole::<f32>(&v.inputs[0])?;
        let mut results = vec![0.0; elements(&v.output)];
        if let Some(earlier) = v.inputs.get(1) {
            results = self.whole::<f32>(earlier)?;
        }
        reduce::run(&Reduction::new(&shape, axes), *kind, &x, &mut results, v.inputs.len() > 1);
        let bytes = float!(v.output.dtype, Y => float_bytes::<Y>(results.len(), |y| {
            if *partial {
                results.iter().zip(y).for_each(|(result, y)| *y = Y::nearest_single(*result));
            } else {
                reduce::finish(*kind, divisor.get() as f32, &finisher(output), &mut results, y);
            }
        }));
        self.store_rows(v, &bytes)
    }

    /// The parameters that all rows of an operator share, read once.
    fn float_rows(&self, v: &Vector, function: &FloatFunction, output: &FloatOutput) -> Result<FloatRows, Fault> {
        let channels = v.output.channels as usize;
        let mut rows = FloatRows { finisher: finisher(output), slopes: Vec::new(), norm: None };
        match function {
            FloatFunction::PRelu { per_channel } => {
                let count = if *per_channel { channels } else { 1 };
                rows.slopes = singles(self.parameters(v.parameters, DType::F32.bytes() * count)?);
            }
            FloatFunction::LayerNorm { center, epsilon } => {
                let parameters = singles(self.parameters(v.parameters, FLOAT_NORM_BYTES * channels)?);
                rows.norm = Some(LayerNorm {
                    center: *center,
                    epsilon: epsilon.get() as f32,
                    gamma: parameters.iter().step_by(2).copied().collect(),
                    beta: parameters.iter().skip(1).step_by(2).copied().collect(),
                    finisher: rows.finisher.clone(),
                });
            }
            _ => {}
        }
        Ok(rows)
    }

    /// The elements of one row of the result.
    fn float_row(&self, v: &Vector, function: &FloatFunction, rows: &FloatRows, row: u32) -> Result<Vec<u8>, Fault> {
        let FloatRows { finisher, slopes, norm } = rows;
        let channels = v.output.channels as usize;
        let length = v.output.width as usize * channels;
        let operand = |n: usize| self.broadcast::<f32>(&v.inputs[n], &v.output, row);
        let finished = |x: &[f32]| float!(v.output.dtype, Y => float_bytes::<Y>(length, |y| finisher.apply(x, y)));
        Ok(match function {
            FloatFunction::Constant(number) => constant_bytes(*number, v.output.dtype, length),
            FloatFunction::Binary(kind) if kind.compares() => {
                let (a, b) = (operand(0)?, operand(1)?);
                a.iter().zip(&b).map(|(&a, &b)| u8::from(elementwise::holds(*kind, a, b))).collect()
            }
            FloatFunction::Softmax => {
                let x = operand(0)?;
                let mask: Vec<i8> = match v.inputs.get(1) {
                    Some(view) => self.broadcast::<i8>(view, &v.output, row)?,
                    None => Vec::new(),
                };
                float!(v.output.dtype, Y => float_bytes::<Y>(length, |y| rows::softmax(channels, finisher, &x, &mask, y)))
            }
            FloatFunction::LayerNorm { .. } => {
                let x = operand(0)?;
                float!(v.output.dtype, Y => float_bytes::<Y>(length, |y| {
                    if let Some(norm) = norm {
                        norm.rows(&x, y);
                    }
                }))
            }
            FloatFunction::PRelu { .. } => {
                let x = operand(0)?;
                float!(v.output.dtype, Y => float_bytes::<Y>(length, |y| elementwise::p_relu(slopes, finisher, &x, y)))
            }
            FloatFunction::Binary(kind) => {
                let (a, b) = (operand(0)?, operand(1)?);
                let x: Vec<f32> = a.iter().zip(&b).map(|(&a, &b)| elementwise::combine(*kind, a, b)).collect();
                finished(&x)
            }
            FloatFunction::Dequantize { zero_point, scale } => {
                let codes = self.broadcast::<i32>(&v.inputs[0], &v.output, row)?;
                let scale = scale.get() as f32;
                let x: Vec<f32> = codes.iter().map(|&x| elementwise::dequantize(scale, *zero_point, x)).collect();
                finished(&x)
            }
            FloatFunction::Identity | FloatFunction::Reduce { .. } => finished(&operand(0)?),
        })
    }

    /// Row-wise operators that are not float arithmetic but take or give floats.
    pub(super) fn among_floats(&mut self, v: &Vector, op: &VectorOp) -> Result<(), Fault> {
        for row in v.first_row..v.first_row + v.rows {
            let bytes = match op {
                VectorOp::Quantize { scale, codes } => {
                    let x = self.broadcast::<f32>(&v.inputs[0], &v.output, row)?;
                    let scale = scale.get() as f32;
                    let to = Quantize { scale, zero_point: codes.zero_point, lo: codes.lo, hi: codes.hi };
                    let size = v.output.dtype.bytes();
                    x.iter().flat_map(|&x| to.at(x).to_le_bytes().into_iter().take(size)).collect()
                }
                VectorOp::ArgMax { largest, select_last } => {
                    let (mut x, mut indices) = (Vec::new(), vec![0; v.inputs[0].width as usize]);
                    self.row::<f32>(&v.inputs[0], row, &mut x)?;
                    elementwise::arg_max(v.inputs[0].channels as usize, *largest, *select_last, &x, &mut indices);
                    indices.iter().flat_map(|i| i.to_le_bytes()).collect()
                }
                VectorOp::ResizeLinear { rows, columns } => self.float_resize(v, row, rows, columns)?,
                _ => return Err(((v.output.space, v.output.address), Rule::Descriptor)),
            };
            self.store_row(&v.output, row, &bytes)?;
        }
        Ok(())
    }

    fn float_resize(&self, v: &Vector, row: u32, rows: &[LinearTap], columns: &[LinearTap]) -> Result<Vec<u8>, Fault> {
        let input = &v.inputs[0];
        let (image, line) = (row / v.output.height, row % v.output.height);
        let tap = rows[line as usize];
        let mut lines = Vec::new();
        for line in [tap.first, tap.second] {
            self.row::<f32>(input, image * input.height + line, &mut lines)?;
        }
        let shape = [1, 2, input.width as usize, input.channels as usize];
        let tap = [LinearTap { first: 0, second: 1, weight: tap.weight }];
        let count = v.output.width as usize * v.output.channels as usize;
        Ok(
            float!(v.output.dtype, Y => float_bytes::<Y>(count, |y| window::resize_linear(shape, &tap, columns, &lines, y))),
        )
    }

    /// `condition ? a : b` on elements of any type.
    pub(super) fn select(&mut self, v: &Vector) -> Result<(), Fault> {
        for row in v.first_row..v.first_row + v.rows {
            let condition = self.broadcast::<i16>(&v.inputs[0], &v.output, row)?;
            let a = self.broadcast::<u32>(&v.inputs[1], &v.output, row)?;
            let b = self.broadcast::<u32>(&v.inputs[2], &v.output, row)?;
            let chosen = condition.iter().zip(a.iter().zip(&b)).map(|(&c, (&a, &b))| if c != 0 { a } else { b });
            let size = v.output.dtype.bytes();
            let bytes: Vec<u8> = chosen.flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect();
            self.store_row(&v.output, row, &bytes)?;
        }
        Ok(())
    }

    /// Stores all rows of a result.
    pub(super) fn store_rows(&mut self, v: &Vector, bytes: &[u8]) -> Result<(), Fault> {
        let row = v.output.width as usize * v.output.payload();
        for (row, bytes) in (0..).zip(bytes.chunks_exact(row)) {
            self.store_row(&v.output, row, bytes)?;
        }
        Ok(())
    }
}

fn constant_bytes(number: Real, dtype: DType, count: usize) -> Vec<u8> {
    float!(dtype, Y => float_bytes::<Y>(count, |y| y.fill(Y::nearest(number.get()))))
}
