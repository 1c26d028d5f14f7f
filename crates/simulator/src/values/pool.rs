//! Values of a pool instruction: the input lines under its output rows, as a small image of their own.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use tpuflow_ir::isa::{ChannelParameters, Pool, PoolDescriptor, PoolKind};
use tpuflow_ir::op::Divisor;
use tpuflow_ir::{DType, DescriptorId, LayerId, Space, View, Window, timing};
use tpuflow_kernels::conv::Geometry;
use tpuflow_kernels::linear::Epilogue;
use tpuflow_kernels::pool::{self, Average};
use tpuflow_kernels::{Element, depthwise};

use super::channels::Channels;
use super::matrix::accumulator_range;
use super::tensor::{Code, Load};
use super::{Fault, Memories};
use crate::hazard::Rule;

/// Output rows of one image with the input lines they need: an image of its own, whose padding is what remains of the
/// original's.
pub(super) struct Slab<'a, X: Clone> {
    pub(super) geometry: Geometry,
    /// Where they lie, or copied from there.
    pub(super) lines: Cow<'a, [X]>,
    /// First input line.
    top: i64,
}

/// A depthwise convolution of codes.
#[derive(Debug)]
pub(super) struct Depthwise {
    /// For what it was made.
    descriptor: PoolDescriptor,
    input: View,
    /// Bytes of weights, parameters and table.
    bytes: [Vec<u8>; 3],
    /// `[taps, channels]`.
    weights: Vec<i16>,
    bias: Vec<i64>,
    zeros: [i32; 2],
    epilogue: Epilogue,
    wide: bool,
    /// As the kernels take it; `None` where sums might overflow.
    prepared: Option<depthwise::Depthwise>,
}

/// The key of a depthwise convolution: layer, descriptor, places of weights, parameters and table.
pub(super) type Place = (LayerId, DescriptorId, u32, u32, u32);

/// Depthwise convolutions that are kept.
const KEPT: usize = 4096;

impl Memories {
    /// Executes the instruction; returns the number of accumulators that overflowed.
    pub(super) fn pool(&mut self, layer: LayerId, p: &Pool, d: &PoolDescriptor) -> Result<u64, Fault> {
        if p.input.dtype.is_float() {
            return self.float_pool(p, d).map(|()| 0);
        }
        match (p.input.dtype, p.output.dtype) {
            (DType::I8, DType::I8) => self.pool_typed::<i8, i8>(layer, p, d),
            (DType::I8, _) => self.pool_typed::<i8, i16>(layer, p, d),
            (_, DType::I8) => self.pool_typed::<i16, i8>(layer, p, d),
            _ => self.pool_typed::<i16, i16>(layer, p, d),
        }
    }

    fn pool_typed<X: Code, Y: Code>(&mut self, layer: LayerId, p: &Pool, d: &PoolDescriptor) -> Result<u64, Fault> {
        let height = p.output.height;
        let last = p.first_row + p.rows - 1;
        let mut overflows = 0;
        let depthwise = match &d.kind {
            PoolKind::Depthwise { .. } => self.depthwise(layer, p, d)?,
            _ => None,
        };
        for image in p.first_row / height..=last / height {
            let (from, to) = (p.first_row.max(image * height), last.min((image + 1) * height - 1));
            let rows = from - image * height..to + 1 - image * height;
            let pixels = rows.len() * p.output.width as usize;
            let mut buffer = self.buffers.take_with_length::<Y>(pixels * p.output.channels as usize);
            let results = &mut buffer[..pixels * p.output.channels as usize];
            let slab = self.slab::<X>(&p.input, &d.window, p.output.width, image, rows)?;
            match &d.kind {
                PoolKind::Max => {
                    let mut largest = vec![X::default(); results.len()];
                    pool::max_pool(&slab.geometry, &slab.lines, &mut largest);
                    let codes = results.iter_mut().zip(&largest);
                    codes.for_each(|(y, x)| *y = Y::narrow(x.widen()));
                }
                PoolKind::Average { input_zero, count_include_pad, beyond, divisors, codes } => {
                    let divisors: Vec<Divisor> =
                        divisors.iter().map(|&(area, multiplier, shift)| Divisor { area, multiplier, shift }).collect();
                    let average = Average {
                        count_include_pad: *count_include_pad,
                        beyond: slab.uncounted_cells(p, &d.window, *beyond),
                        divisors: &divisors,
                        input_zero_point: *input_zero,
                        zero_point: codes.zero_point,
                        lo: codes.lo,
                        hi: codes.hi,
                    };
                    if let Some((_, area)) = pool::missing_divisor(&slab.geometry, &average) {
                        let rule = Rule::Shape(format!("has no divisor for a window of {area} cells"));
                        return Err(((Space::Cache, p.output.address), rule));
                    }
                    pool::average_pool(&slab.geometry, &average, &slab.lines, results);
                }
                PoolKind::FloatAverage { .. } | PoolKind::FloatDepthwise { .. } => {}
                PoolKind::Depthwise { .. } => {
                    if let Some(depthwise) = &depthwise {
                        overflows += depthwise.run(&slab, results);
                    }
                }
            }
            drop(slab);
            self.store_codes(&p.output, from, results)?;
            self.buffers.put_back(buffer);
        }
        Ok(overflows)
    }

    /// Input lines of output rows `rows`, `width` pixels each, of an image.
    pub(super) fn slab<X: Load>(
        &self,
        view: &View,
        window: &Window,
        width: u32,
        image: u32,
        rows: Range<u32>,
    ) -> Result<Slab<'_, X>, Fault> {
        let height = i64::from(view.height);
        let start = i64::from(rows.start) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        let reach = i64::from((window.kernel[0] - 1) * window.dilation[0]) + 1;
        let end = start + i64::from((rows.end - 1 - rows.start) * window.stride[0]) + reach;
        let (top, bottom) = (start.clamp(0, height), end.clamp(0, height));
        let (first, count) = (image * view.height + top as u32, (bottom - top) as u32);
        let in_place = if count > 0 { self.rows_in_place(view, first, count) } else { None };
        let lines = match in_place {
            Some(lines) => Cow::Borrowed(lines),
            None => {
                let mut lines = Vec::with_capacity((count * view.width * view.channels) as usize);
                (first..first + count).try_for_each(|row| self.row(view, row, &mut lines))?;
                Cow::Owned(lines)
            }
        };
        let mut window = *window;
        window.pads[0] = (top - start) as u32;
        window.pads[2] = (end - bottom) as u32;
        let input = [1, count as usize, view.width as usize, view.channels as usize];
        let geometry = Geometry { input, output: [rows.len(), width as usize], window };
        Ok(Slab { geometry, lines, top })
    }

    /// The depthwise convolution an instruction takes; nothing of another kind.
    fn depthwise(&self, layer: LayerId, p: &Pool, d: &PoolDescriptor) -> Result<Option<Arc<Depthwise>>, Fault> {
        let PoolKind::Depthwise { weight_dtype, table, .. } = &d.kind else { return Ok(None) };
        let channels = p.input.channels as usize;
        let taps = (d.window.kernel[0] * d.window.kernel[1]) as usize;
        let entry = ChannelParameters::bytes(timing::has_wide_sums(p.input.dtype, *weight_dtype));
        let bytes = [
            self.parameters(p.weights, taps * channels * weight_dtype.bytes())?,
            self.parameters(p.parameters, entry * channels)?,
            match table {
                Some(shape) => self.parameters(p.table, shape.entries as usize * 4)?,
                None => &[],
            },
        ];
        let place = (layer, p.descriptor, p.weights, p.parameters, p.table);
        let kept = || self.kept.depthwise.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |kept: &&Arc<Depthwise>| {
            let input = (kept.input.dtype, kept.input.channels) == (p.input.dtype, p.input.channels);
            input && kept.descriptor == *d && kept.bytes == bytes
        };
        if let Some(depthwise) = kept().get(&place).filter(same) {
            return Ok(Some(Arc::clone(depthwise)));
        }
        let depthwise = Depthwise::new(p, d, bytes.map(<[u8]>::to_vec))?.map(Arc::new);
        if let Some(depthwise) = &depthwise {
            let mut kept = kept();
            if kept.len() == KEPT {
                kept.clear();
            }
            kept.insert(place, Arc::clone(depthwise));
        }
        Ok(depthwise)
    }
}

impl<X: Clone> Slab<'_, X> {
    /// The cells that never count, as the slab sees them.
    pub(super) fn uncounted_cells(&self, p: &Pool, window: &Window, beyond: [u32; 2]) -> [u32; 2] {
        let end = i64::from(p.input.height) + i64::from(window.pads[2]) - i64::from(beyond[0]);
        let shown = self.geometry.input[1] as i64 + i64::from(self.geometry.window.pads[2]) + self.top;
        [(shown - end).max(0) as u32, beyond[1]]
    }
}

impl Depthwise {
    fn new(p: &Pool, d: &PoolDescriptor, bytes: [Vec<u8>; 3]) -> Result<Option<Self>, Fault> {
        let PoolKind::Depthwise { input_zero, weight_zero, weight_dtype, first_shift, codes, table } = &d.kind else {
            return Ok(None);
        };
        let wide = timing::has_wide_sums(p.input.dtype, *weight_dtype);
        let mut weights = Vec::new();
        <i16 as Load>::append(*weight_dtype, &bytes[0], &mut weights);
        let (codes, first_shift, table) = (*codes, *first_shift, *table);
        let channels = Channels { address: p.parameters, wide, codes, first_shift, table };
        let (bias, epilogue) = channels.decode(&bytes[1], &bytes[2])?;
        let (zeros, prepared) = ([*input_zero, *weight_zero], None);
        let (descriptor, input) = (d.clone(), p.input);
        let mut own = Self { descriptor, input, bytes, weights, bias, zeros, epilogue, wide, prepared };
        own.prepared = (first_shift.is_none() && own.is_safe()).then(|| own.prepare(*weight_dtype));
        Ok(Some(own))
    }

    /// Whether no operand codes can take a sum beyond the accumulator, in any order of its terms, and padding is a code.
    fn is_safe(&self) -> bool {
        let (lo, hi) = self.input.dtype.range();
        let zero = i64::from(self.zeros[0]);
        if !(lo..=hi).contains(&zero) {
            return false;
        }
        let largest = (lo - zero).abs().max((hi - zero).abs());
        let (_, limit) = accumulator_range(self.wide);
        let channels = self.bias.len();
        (0..channels).all(|channel| {
            let weights = self.weights.iter().skip(channel).step_by(channels);
            let sum: i64 = weights.map(|&weight| (i64::from(weight) - i64::from(self.zeros[1])).abs()).sum();
            sum.checked_mul(largest).and_then(|s| s.checked_add(self.bias[channel].abs())).is_some_and(|s| s <= limit)
        })
    }

    fn prepare(&self, weight_dtype: DType) -> depthwise::Depthwise {
        let (channels, kernel) = (self.bias.len(), self.descriptor.window.kernel);
        let by_channel = (0..channels).flat_map(|channel| self.weights.iter().skip(channel).step_by(channels).copied());
        let ([zero_x, zero_w], wide) = (self.zeros, self.wide);
        let (bias, epilogue) = (self.bias.clone(), self.epilogue.clone());
        if weight_dtype == DType::I8 {
            let weights: Vec<i8> = by_channel.map(|weight| weight as i8).collect();
            depthwise::Depthwise::new(&weights, kernel, zero_w, wide, zero_x, bias, epilogue)
        } else {
            let weights: Vec<i16> = by_channel.collect();
            depthwise::Depthwise::new(&weights, kernel, zero_w, wide, zero_x, bias, epilogue)
        }
    }

    /// Computes the results; returns how many accumulators overflowed.
    fn run<X: Element, Y: Element>(&self, slab: &Slab<'_, X>, results: &mut [Y]) -> u64 {
        if let Some(prepared) = &self.prepared {
            prepared.run(&slab.geometry, &slab.lines, results);
            return 0;
        }
        self.exact_sums(slab, results)
    }

    /// Exact sums, clamped to the accumulator.
    fn exact_sums<X: Element, Y: Element>(&self, slab: &Slab<'_, X>, results: &mut [Y]) -> u64 {
        let [_, h, w, channels] = slab.geometry.input;
        let window = &slab.geometry.window;
        let (lo, hi) = accumulator_range(self.wide);
        let mut overflows = 0;
        let mut sums = vec![0i64; channels];
        for (pixel, result) in results.chunks_exact_mut(channels).enumerate() {
            let (_, [top, left]) = slab.geometry.origin(pixel);
            sums.copy_from_slice(&self.bias);
            for (tap, weights) in self.weights.chunks_exact(channels).enumerate() {
                let (kh, kw) = (tap as u32 / window.kernel[1], tap as u32 % window.kernel[1]);
                let y = top + (kh * window.dilation[0]) as isize;
                let x = left + (kw * window.dilation[1]) as isize;
                if !(0..h as isize).contains(&y) || !(0..w as isize).contains(&x) {
                    continue;
                }
                let cell = &slab.lines[(y as usize * w + x as usize) * channels..][..channels];
                for ((sum, x), weight) in sums.iter_mut().zip(cell).zip(weights) {
                    let factor = i64::from(i32::from(*weight) - self.zeros[1]);
                    *sum += i64::from(x.widen() - self.zeros[0]) * factor;
                }
            }
            for sum in &mut sums {
                overflows += u64::from(!(lo..=hi).contains(sum));
                *sum = (*sum).clamp(lo, hi);
            }
            self.epilogue.apply(sums.iter().copied(), result);
        }
        overflows
    }
}
