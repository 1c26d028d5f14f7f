//! Values of a matrix instruction: rows of taps times a column tile, bias, requantisation, table.

use tpuflow_ir::isa::{ChannelParameters, Matrix, MatrixDescriptor};
use tpuflow_ir::{DType, Machine, Requant, Space, timing};
use tpuflow_kernels::linear::{self, Epilogue, Linear};
use tpuflow_kernels::{Element, Values};

use super::tensor::{Code, Load, encode};
use super::{Fault, Memories, is_plain};
use crate::hazard::Rule;
use crate::run::ArrayModel;

/// The part of a tile that belongs to one group.
#[derive(Clone, Debug)]
struct Group {
    /// Columns of the tile.
    columns: std::ops::Range<usize>,
    /// First input channel, counted from the first gathered one.
    first_channel: usize,
}

/// Right operand of a tile, `[k, columns]`, and what follows the product.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) weights: Values,
    pub(super) k: usize,
    pub(super) columns: usize,
    pub(super) bias: Vec<i64>,
    pub(super) input_zero: i32,
    pub(super) weight_zero: i32,
    pub(super) wide: bool,
}

/// Largest magnitude of an accumulator.
pub(super) fn accumulator_range(wide: bool) -> (i64, i64) {
    if wide { (-(1 << 47), (1 << 47) - 1) } else { (i32::MIN.into(), i32::MAX.into()) }
}

impl Tile {
    pub(super) fn weight(&self, row: usize, column: usize) -> i64 {
        let at = row * self.columns + column;
        match &self.weights {
            Values::I8(codes) => i64::from(codes[at]) - i64::from(self.weight_zero),
            Values::I16(codes) => i64::from(codes[at]) - i64::from(self.weight_zero),
            _ => 0,
        }
    }

    /// Whether no operand codes of `dtype` can take a sum of these columns beyond the accumulator, in any order of its terms.
    fn is_safe(&self, dtype: DType, columns: &std::ops::Range<usize>) -> bool {
        let (lo, hi) = dtype.range();
        let zero = i64::from(self.input_zero);
        let largest = (lo - zero).abs().max((hi - zero).abs());
        let mut sums = vec![0i64; columns.len()];
        for row in 0..self.k {
            for (sum, column) in sums.iter_mut().zip(columns.clone()) {
                *sum += self.weight(row, column).abs();
            }
        }
        let (_, limit) = accumulator_range(self.wide);
        sums.iter().zip(&self.bias[columns.clone()]).all(|(sum, bias)| {
            sum.checked_mul(largest).and_then(|s| s.checked_add(bias.abs())).is_some_and(|s| s <= limit)
        })
    }

    /// Codes of a group that might overflow: exact sums, clamped to the accumulator; returns how many had to be.
    fn checked<X: Element, Y: Element>(
        &self,
        columns: &std::ops::Range<usize>,
        rows: &[X],
        epilogue: &Epilogue,
        results: &mut [Y],
    ) -> u64 {
        let (lo, hi) = accumulator_range(self.wide);
        let mut overflows = 0;
        for (row, result) in rows.chunks_exact(self.k).zip(results.chunks_exact_mut(columns.len())) {
            let sums: Vec<i64> = columns
                .clone()
                .map(|column| {
                    let terms = row.iter().enumerate().map(|(k, x)| {
                        i128::from(i64::from(x.widen()) - i64::from(self.input_zero))
                            * i128::from(self.weight(k, column))
                    });
                    let sum = terms.sum::<i128>() + i128::from(self.bias[column]);
                    let kept = sum.clamp(lo.into(), hi.into());
                    overflows += u64::from(kept != sum);
                    kept as i64
                })
                .collect();
            epilogue.apply(sums.into_iter(), result);
        }
        overflows
    }
}

impl Memories {
    /// Executes the instruction; returns the number of accumulators that overflowed.
    pub(super) fn matrix(
        &mut self,
        m: &Matrix,
        d: &MatrixDescriptor,
        array: ArrayModel,
        machine: &Machine,
    ) -> Result<u64, Fault> {
        if let Some(output) = &d.float {
            return self.float_matrix(m, d, output, array, machine).map(|()| 0);
        }
        let narrow = m.input.dtype == DType::I8 && d.weight_dtype == DType::I8;
        match (narrow, m.output.dtype) {
            (true, DType::I8) => self.product::<i8, i8>(m, d, array, machine),
            (true, _) => self.product::<i8, i16>(m, d, array, machine),
            (false, DType::I8) => self.product::<i16, i8>(m, d, array, machine),
            (false, _) => self.product::<i16, i16>(m, d, array, machine),
        }
    }

    fn product<X: Code, Y: Element>(
        &mut self,
        m: &Matrix,
        d: &MatrixDescriptor,
        array: ArrayModel,
        machine: &Machine,
    ) -> Result<u64, Fault> {
        let groups = m.first_column / d.group_out..(m.first_column + m.columns - 1) / d.group_out + 1;
        let channels = groups.start * d.group_in..groups.end * d.group_in;
        let zero = X::narrow(d.input_zero.clamp(X::MIN.widen(), -(X::MIN.widen() + 1)));
        let rows = self.taps::<X>(m, d, &channels, zero)?;
        let (tile, epilogue) = self.tile(m, d)?;
        let columns = m.columns as usize;
        let mut results = vec![Y::default(); m.pixels as usize * columns];
        let mut overflows = 0;
        if array == ArrayModel::Register {
            let (sums, count) = super::register::sums(m, d, &tile, &rows, &channels, machine)?;
            for (row, sums) in results.chunks_exact_mut(columns).zip(sums.chunks_exact(columns)) {
                epilogue.apply(sums.iter().copied(), row);
            }
            self.scatter(m, &results);
            return Ok(count);
        }
        for group in groups.clone() {
            let first = (group * d.group_out).max(m.first_column) - m.first_column;
            let last = ((group + 1) * d.group_out).min(m.first_column + m.columns) - m.first_column;
            let part = Group {
                columns: first as usize..last as usize,
                first_channel: ((group - groups.start) * d.group_in) as usize,
            };
            let own = if groups.len() == 1 { None } else { Some(part.rows(&rows, channels.len(), d)) };
            let own = own.as_deref().unwrap_or(&rows);
            let epilogue = epilogue.columns(part.columns.clone());
            let mut codes = vec![Y::default(); m.pixels as usize * part.columns.len()];
            if tile.is_safe(m.input.dtype, &part.columns) {
                let right = linear::Matrix {
                    codes: &tile.weights,
                    start: part.columns.start,
                    shape: [tile.k, part.columns.len()],
                    strides: [columns, 1],
                    zero_point: tile.weight_zero,
                };
                let bias = &tile.bias[part.columns.clone()];
                let wide = m.input.dtype == DType::I16;
                let prepared = Linear::new(&right, wide || tile.wide, tile.input_zero, bias, epilogue);
                linear::multiply(&prepared, own, &mut codes);
            } else {
                overflows += tile.checked(&part.columns, own, &epilogue, &mut codes);
            }
            let width = part.columns.len();
            for (row, codes) in results.chunks_exact_mut(columns).zip(codes.chunks_exact(width)) {
                row[part.columns.clone()].copy_from_slice(codes);
            }
        }
        self.scatter(m, &results);
        Ok(overflows)
    }

    /// Exact sums of an instruction of integers, bias included, before requantisation: `[pixels, columns]`. Slow and obvious,
    /// for looking at. Nothing of an instruction of floats.
    pub(super) fn accumulators(&self, m: &Matrix, d: &MatrixDescriptor) -> Result<Vec<i64>, Fault> {
        if d.float.is_some() {
            return Ok(vec![]);
        }
        let groups = m.first_column / d.group_out..(m.first_column + m.columns - 1) / d.group_out + 1;
        let channels = groups.start * d.group_in..groups.end * d.group_in;
        let zero = d.input_zero.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
        let rows = self.taps::<i16>(m, d, &channels, zero)?;
        let (tile, _) = self.tile(m, d)?;
        let (taps, width) = ((d.window.kernel[0] * d.window.kernel[1]) as usize, d.group_in as usize);
        let mut sums = Vec::with_capacity(m.pixels as usize * m.columns as usize);
        for row in rows.chunks_exact(taps * channels.len()) {
            for column in 0..m.columns as usize {
                let group = (m.first_column as usize + column) / d.group_out as usize - groups.start as usize;
                let term = |tap: usize, c: usize| {
                    let x = i64::from(row[tap * channels.len() + group * width + c]) - i64::from(d.input_zero);
                    x * tile.weight(tap * width + c, column)
                };
                let sum: i64 =
                    (0..taps).flat_map(|tap| (0..width).map(move |c| (tap, c))).map(|(t, c)| term(t, c)).sum();
                sums.push(sum + tile.bias[column]);
            }
        }
        Ok(sums)
    }

    /// Writes codes `[pixels, columns]` to their place in the result.
    fn scatter<Y: Element>(&mut self, m: &Matrix, results: &[Y]) {
        let mut bytes = Vec::new();
        for (pixel, row) in (m.first_pixel..).zip(results.chunks_exact(m.columns as usize)) {
            let at = m.output.pixel_address(pixel / m.output.width, pixel % m.output.width, self.word);
            encode(m.output.dtype, row, &mut bytes);
            self.cache.write(at + u64::from(m.output_channel) * m.output.dtype.bytes() as u64, &bytes);
        }
    }

    /// Row vectors `[pixels, taps, channels]`; taps outside the image hold `zero`.
    pub(super) fn taps<X: Load>(
        &self,
        m: &Matrix,
        d: &MatrixDescriptor,
        channels: &std::ops::Range<u32>,
        zero: X,
    ) -> Result<Vec<X>, Fault> {
        let (input, window) = (&m.input, &d.window);
        let size = input.dtype.bytes();
        let (offset, length) = (u64::from(channels.start) * size as u64, channels.len() * size);
        let taps = (window.kernel[0] * window.kernel[1]) as usize;
        let mut rows = Vec::with_capacity(m.pixels as usize * taps * channels.len());
        for pixel in m.first_pixel..m.first_pixel + m.pixels {
            if is_plain(window) {
                let at = input.pixel_address(pixel / input.width, pixel % input.width, self.word);
                self.codes(input.dtype, at + offset, length, &mut rows)?;
                continue;
            }
            let (row, column) = (pixel / m.output.width, pixel % m.output.width);
            let (image, line) = (row / m.output.height, row % m.output.height);
            for kh in 0..window.kernel[0] {
                let y = i64::from(line * window.stride[0] + kh * window.dilation[0]) - i64::from(window.pads[0]);
                for kw in 0..window.kernel[1] {
                    let x = i64::from(column * window.stride[1] + kw * window.dilation[1]) - i64::from(window.pads[1]);
                    if (0..i64::from(input.height)).contains(&y) && (0..i64::from(input.width)).contains(&x) {
                        let at = input.pixel_address(image * input.height + y as u32, x as u32, self.word);
                        self.codes(input.dtype, at + offset, length, &mut rows)?;
                    } else {
                        rows.resize(rows.len() + channels.len(), zero);
                    }
                }
            }
        }
        Ok(rows)
    }

    /// Weights and channel parameters of the tile.
    fn tile(&self, m: &Matrix, d: &MatrixDescriptor) -> Result<(Tile, Epilogue), Fault> {
        let (columns, k) = (m.columns as usize, (d.window.kernel[0] * d.window.kernel[1] * d.group_in) as usize);
        let size = if m.weights.plane_bytes > 0 { 1 } else { d.weight_dtype.bytes() };
        let mut bytes = Vec::with_capacity(k * columns * d.weight_dtype.bytes());
        for row in 0..k as u64 {
            let at = m.weights.address + row * u64::from(m.weights.row_bytes);
            let low = self.read(Space::Cache, at, columns * size)?;
            if m.weights.plane_bytes > 0 {
                let high = self.read(Space::Cache, at + u64::from(m.weights.plane_bytes), columns)?;
                bytes.extend(low.iter().zip(high).flat_map(|(low, high)| [*low, *high]));
            } else {
                bytes.extend_from_slice(low);
            }
        }
        let wide = timing::wide(m.input.dtype, d.weight_dtype);
        let entry = ChannelParameters::bytes(wide);
        let parameters: Vec<ChannelParameters> = self
            .parameters(m.parameters, entry * columns)?
            .chunks_exact(entry)
            .map(|bytes| ChannelParameters::decode(wide, bytes))
            .collect();
        let requant = Requant {
            multiplier: parameters.iter().map(|p| p.multiplier.into()).collect(),
            shift: parameters.iter().map(|p| p.shift).collect(),
            zero_point: d.codes.zero_point,
            lo: d.codes.lo,
            hi: d.codes.hi,
        };
        if !requant.shift.iter().all(|shift| (-15..=47).contains(shift)) {
            return Err((
                (Space::EwpCache, m.parameters.into()),
                Rule::Shape("has a shift beyond -15..=47".to_owned()),
            ));
        }
        let table = match d.table {
            Some(shape) => Some((self.table(m.table, shape.entries)?, shape.lo, shape.hi)),
            None => None,
        };
        let tile = Tile {
            weights: Values::from_le_bytes(d.weight_dtype, &bytes),
            k,
            columns,
            bias: parameters.iter().map(|p| p.bias).collect(),
            input_zero: d.input_zero,
            weight_zero: d.weight_zero,
            wide,
        };
        Ok((tile, Epilogue::new(requant, table)))
    }
}

impl Group {
    /// The group's channels out of rows of `[taps, channels]`.
    fn rows<X: Copy>(&self, rows: &[X], channels: usize, d: &MatrixDescriptor) -> Vec<X> {
        let width = d.group_in as usize;
        rows.chunks_exact(channels).flat_map(|tap| tap[self.first_channel..][..width].iter().copied()).collect()
    }
}
