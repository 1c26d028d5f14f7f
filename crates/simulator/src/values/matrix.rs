//! Values of a matrix instruction: rows of taps times a column tile, bias, requantisation, table.
//!
//! Instructions that follow each other often take the same weights. A tile is packed once; an instruction that names the same
//! place takes it as it is if every byte there is still the same, because it was copied from the same constants or by comparison.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock, PoisonError};

use tpuflow_ir::isa::{ChannelParameters, Matrix, MatrixDescriptor};
use tpuflow_ir::{DType, DescriptorId, Image, LayerId, Machine, Space, timing};
use tpuflow_kernels::conv::{Conv, Geometry};
use tpuflow_kernels::gemm::unpacked::{FEW, Unpacked, add_products};
use tpuflow_kernels::linear::{self, Epilogue, Linear};
use tpuflow_kernels::{Element, Values};

use super::channels::Channels;
use super::register::Pass;
use super::tensor::{Code, Load, encode};
use super::{Fault, Memories, is_plain};
use crate::memory::Origin;
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

/// A tile with everything that depends on its bytes alone.
#[derive(Debug)]
pub(super) struct PackedTile {
    /// For what it was made.
    descriptor: MatrixDescriptor,
    input: DType,
    /// Bytes of weights, parameters and table.
    bytes: [Vec<u8>; 3],
    /// Constants the weights are a copy of, and the first line of these.
    origin: Option<(Image, Origin)>,
    pub(super) tile: Tile,
    pub(super) epilogue: Epilogue,
    groups: Vec<Group>,
    /// Per group, whether no sum can overflow; then the right operand for gathered rows, once it is wanted.
    linear: Vec<Option<OnceLock<Linear>>>,
    /// The only group as a convolution of lines, once it is wanted.
    conv: OnceLock<Conv>,
}

/// The key of a tile: layer, descriptor, places of weights and parameters, first column and columns.
pub(super) type Place = (LayerId, DescriptorId, u64, u32, u32, u32);

/// Bytes of weights whose tiles are kept; a tile takes about three times its weights.
const KEPT: usize = 64 << 20;

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
        let zero = self.weight_zero;
        match &self.weights {
            Values::I8(codes) => {
                self.add_magnitudes(codes, columns, &mut sums, |w| (i32::from(w) - zero).unsigned_abs())
            }
            Values::I16(codes) => {
                self.add_magnitudes(codes, columns, &mut sums, |w| (i32::from(w) - zero).unsigned_abs())
            }
            _ => {}
        }
        let (_, limit) = accumulator_range(self.wide);
        sums.iter().zip(&self.bias[columns.clone()]).all(|(sum, bias)| {
            sum.checked_mul(largest).and_then(|s| s.checked_add(bias.abs())).is_some_and(|s| s <= limit)
        })
    }

    /// Adds the magnitudes of the weights to the sums of their columns.
    fn add_magnitudes<W: Copy>(
        &self,
        codes: &[W],
        columns: &std::ops::Range<usize>,
        sums: &mut [i64],
        magnitude: impl Fn(W) -> u32,
    ) {
        for row in codes.chunks_exact(self.columns) {
            for (sum, &weight) in sums.iter_mut().zip(&row[columns.clone()]) {
                *sum += i64::from(magnitude(weight));
            }
        }
    }

    /// Codes of a group that might overflow: exact sums, clamped to the accumulator; returns how many had to be.
    fn exact_codes<X: Element, Y: Element>(
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
        layer: LayerId,
        m: &Matrix,
        d: &MatrixDescriptor,
        array: ArrayModel,
        machine: &Machine,
    ) -> Result<u64, Fault> {
        if let Some(output) = &d.float {
            return self.float_matrix(m, d, output, array, machine).map(|()| 0);
        }
        let narrow = m.input.dtype == DType::I8 && d.weight_dtype == DType::I8;
        if Self::is_partial(m, d) {
            return if narrow {
                self.partial_product::<i8>(layer, m, d, array)
            } else {
                self.partial_product::<i16>(layer, m, d, array)
            };
        }
        match (narrow, m.output.dtype) {
            (true, DType::I8) => self.product::<i8, i8>(layer, m, d, array),
            (true, _) => self.product::<i8, i16>(layer, m, d, array),
            (false, DType::I8) => self.product::<i16, i8>(layer, m, d, array),
            (false, _) => self.product::<i16, i16>(layer, m, d, array),
        }
    }

    fn product<X: Code, Y: Code>(
        &mut self,
        layer: LayerId,
        m: &Matrix,
        d: &MatrixDescriptor,
        array: ArrayModel,
    ) -> Result<u64, Fault> {
        let channels = group_channels(m, d);
        let zero = X::narrow(d.input_zero.clamp(X::MIN.widen(), -(X::MIN.widen() + 1)));
        let columns = m.columns as usize;
        let mut buffer = self.buffers.take_with_length::<Y>(m.pixels as usize * columns);
        let results = &mut buffer[..m.pixels as usize * columns];
        if array == ArrayModel::Closed && self.few_pixels::<X, Y>(m, d, &channels, zero, results)? {
            self.scatter(m, results);
            self.buffers.put_back(buffer);
            return Ok(0);
        }
        let packed = self.packed_tile(layer, m, d)?;
        if array == ArrayModel::Closed && self.in_place::<X, Y>(m, d, &channels, zero, &packed, results) {
            self.scatter(m, results);
            self.buffers.put_back(buffer);
            return Ok(0);
        }
        let rows = self.gather::<X>(m, d, &channels, zero)?;
        let (tile, epilogue) = (&packed.tile, &packed.epilogue);
        let mut overflows = 0;
        let compute = |index: usize, group: &Group, rows: &[X], codes: &mut [Y]| match packed.linear(index) {
            Some(linear) => {
                linear::multiply(linear, rows, codes);
                0
            }
            None => tile.exact_codes(&group.columns, rows, &epilogue.columns(group.columns.clone()), codes),
        };
        if let [group] = &packed.groups[..] {
            overflows += compute(0, group, &rows, results);
        } else {
            for (index, group) in packed.groups.iter().enumerate() {
                let width = group.columns.len();
                let mut codes = vec![Y::default(); m.pixels as usize * width];
                overflows += compute(index, group, &group.rows(&rows, channels.len(), d), &mut codes);
                for (row, codes) in results.chunks_exact_mut(columns).zip(codes.chunks_exact(width)) {
                    row[group.columns.clone()].copy_from_slice(codes);
                }
            }
        }
        self.scatter(m, results);
        if array == ArrayModel::Register {
            let results = Y::values(results.to_vec());
            self.passes.push(Pass::new(m, d, packed, X::values(rows.clone()), (results, overflows)));
        }
        self.buffers.put_back(buffer);
        *X::gathered_rows(&mut self.buffers) = rows;
        Ok(overflows)
    }

    /// Computes results `[pixels, columns]` of few pixels with weights that are no copy of constants, as they lie: such
    /// weights, expanded or computed, are others every time, and packing a tile takes longer than a product with few rows.
    fn few_pixels<X: Code, Y: Code>(
        &mut self,
        m: &Matrix,
        d: &MatrixDescriptor,
        channels: &std::ops::Range<u32>,
        zero: X,
        results: &mut [Y],
    ) -> Result<bool, Fault> {
        let is_narrow = m.input.dtype == DType::I8 && d.weight_dtype == DType::I8;
        let is_whole = is_plain(&d.window) && channels.len() == d.group_in as usize;
        if m.pixels as usize > FEW || !is_narrow || !is_whole || self.origin(m, d).is_some() {
            return Ok(false);
        }
        let (Ok(weight_zero), columns, k) = (i8::try_from(d.weight_zero), m.columns as usize, channels.len()) else {
            return Ok(false);
        };
        self.copy_deferred_weights(m, d);
        let [parameters, table] = self.parameter_bytes(m, d)?;
        let channel_codes =
            Channels { address: m.parameters, wide: false, codes: d.codes, first_shift: d.first_shift, table: d.table };
        let (bias, epilogue) = channel_codes.decode(&parameters, &table)?;
        // No sum of any codes leaves the accumulator, whatever zero point a program states.
        let zero_point = i64::from(d.input_zero);
        let reach = (-128 - zero_point).abs().max((127 - zero_point).abs());
        let largest = k as i64 * reach * 255 + bias.iter().map(|bias| bias.abs()).max().unwrap_or(0);
        if largest > i32::MAX.into() {
            return Ok(false);
        }
        let rows = self.gather::<X>(m, d, channels, zero)?;
        let inputs: Vec<i32> = rows.iter().map(|x| x.widen() - d.input_zero).collect();
        *X::gathered_rows(&mut self.buffers) = rows;
        let mut sums = vec![0; m.pixels as usize * columns];
        let bytes = self.weight_bytes(m, k, columns)?;
        let Some(codes) = <i8 as Load>::of_bytes(DType::I8, &bytes) else { return Ok(false) };
        let weights = Unpacked { codes, shape: [k, columns], strides: [columns, 1], zero_point: weight_zero };
        add_products(&inputs, &weights, &mut sums);
        for (sums, results) in sums.chunks_exact(columns).zip(results.chunks_exact_mut(columns)) {
            epilogue.apply(sums.iter().zip(&bias).map(|(&sum, bias)| sum + bias), results);
        }
        Ok(true)
    }

    /// Computes results `[pixels, columns]` without gathering rows, if that can be done: the rows lie in the cache, or the
    /// pixels are whole lines of the result, whose windows lie in some lines of the operand.
    fn in_place<X: Code, Y: Code>(
        &self,
        m: &Matrix,
        d: &MatrixDescriptor,
        channels: &std::ops::Range<u32>,
        zero: X,
        packed: &PackedTile,
        results: &mut [Y],
    ) -> bool {
        let (input, width) = (&m.input, m.output.width);
        let whole = channels.len() == input.channels as usize && packed.linear.len() == 1;
        if !whole || input.dtype != DType::I8 || X::BITS != 8 || packed.linear[0].is_none() {
            return false;
        }
        if is_plain(&d.window) {
            let at = self.contiguous_address(input, channels.len(), m.first_pixel, m.pixels);
            let bytes = at.and_then(|at| self.read(Space::Cache, at, channels.len() * m.pixels as usize).ok());
            let (Some(rows), Some(linear)) = (bytes.and_then(|b| X::of_bytes(input.dtype, b)), packed.linear(0)) else {
                return false;
            };
            linear::multiply(linear, rows, results);
            return true;
        }
        let (row, rows) = (m.first_pixel / width, m.pixels / width);
        let (image, first) = (row / m.output.height, row % m.output.height);
        let lines = m.first_pixel.is_multiple_of(width) && m.pixels.is_multiple_of(width);
        let [stride, kernel, dilation] = [d.window.stride, d.window.kernel, d.window.dilation].map(|v| u64::from(v[1]));
        let reach = u64::from(width - 1) * stride + (kernel - 1) * dilation + 1;
        let padding = u64::from(d.window.pads[1]) + u64::from(d.window.pads[3]);
        // Lines are copied with their padding: no more of it than windows reach.
        let inside = padding <= reach && reach <= u64::from(input.width) + padding;
        if !lines || first + rows > m.output.height || !inside {
            return false;
        }
        let Ok(slab) = self.slab::<X>(input, &d.window, width, image, first..first + rows) else { return false };
        packed.conv(&slab.geometry, zero.widen()).run_over(&slab.geometry, &slab.lines, results);
        true
    }

    /// Exact sums of an instruction of integers before requantisation, bias included unless it follows a first rounding:
    /// `[pixels, columns]`. Slow and obvious, for looking at. Nothing of an instruction of floats.
    pub(super) fn accumulators(&self, m: &Matrix, d: &MatrixDescriptor) -> Result<Vec<i64>, Fault> {
        if d.float.is_some() {
            return Ok(vec![]);
        }
        let groups = m.first_column / d.group_out..;
        let channels = group_channels(m, d);
        let zero = d.input_zero.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
        let mut rows = Vec::new();
        self.taps::<i16>(m, d, &channels, zero, &mut rows)?;
        let bytes = self.tile_bytes(m, d)?;
        let (tile, _) = tile(m, d, &bytes)?;
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
    fn scatter<Y: Code>(&mut self, m: &Matrix, results: &[Y]) {
        let mut bytes = std::mem::take(&mut self.buffers.bytes);
        let stored = Y::as_stored(results).unwrap_or_else(|| {
            encode(m.output.dtype, results, &mut bytes);
            &bytes
        });
        self.store_tile(m, stored);
        self.buffers.bytes = bytes;
    }

    /// Writes elements `[pixels, columns]`, as they are stored, to their place in the result.
    pub(super) fn store_tile(&mut self, m: &Matrix, mut rest: &[u8]) {
        let (size, pixel_bytes) = (m.output.dtype.bytes(), m.output.pixel_bytes as usize);
        let payload = m.columns as usize * size;
        if let Some(at) = self.contiguous_address(&m.output, payload, m.first_pixel, m.pixels) {
            self.cache.write(at + u64::from(m.output_channel) * size as u64, rest);
            return;
        }
        let (mut pixel, end) = (m.first_pixel, m.first_pixel + m.pixels);
        while pixel < end {
            let (row, column) = (pixel / m.output.width, pixel % m.output.width);
            let count = (m.output.width - column).min(end - pixel);
            let at = m.output.pixel_address(row, column, self.word) + u64::from(m.output_channel) * size as u64;
            let (own, behind) = rest.split_at(count as usize * payload);
            if payload == pixel_bytes {
                self.cache.write(at, own);
            } else {
                self.cache.write_pieces(at, payload, pixel_bytes, own);
            }
            (pixel, rest) = (pixel + count, behind);
        }
    }

    /// The tile an instruction takes, packed.
    pub(super) fn packed_tile(
        &mut self,
        layer: LayerId,
        m: &Matrix,
        d: &MatrixDescriptor,
    ) -> Result<Arc<PackedTile>, Fault> {
        let place = (layer, m.descriptor, m.weights.address, m.parameters, m.first_column, m.columns);
        let all = Arc::clone(&self.kept.tiles);
        let tiles = || all.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = tiles().get(&place).map(Arc::clone);
        let kept = kept.filter(|packed| (packed.input, &packed.descriptor) == (m.input.dtype, d));
        if let Some(packed) = &kept
            && self.has_origin(m, d, packed.origin.as_ref())
            && self.has_parameters(m, &packed.bytes)?
        {
            return Ok(Arc::clone(packed));
        }
        self.copy_deferred_weights(m, d);
        if let Some(packed) = kept
            && self.has_weights(m, d, &packed.bytes[0])?
            && self.has_parameters(m, &packed.bytes)?
        {
            return Ok(packed);
        }
        let mut packed = PackedTile::new(m, d, self.tile_bytes(m, d)?)?;
        packed.origin = self.origin(m, d).map(|(image, first)| (image.clone(), first));
        let packed = Arc::new(packed);
        let mut tiles = tiles();
        if tiles.values().map(|packed| packed.bytes[0].len()).sum::<usize>() > KEPT {
            tiles.clear();
        }
        tiles.insert(place, Arc::clone(&packed));
        Ok(packed)
    }

    /// Makes the copies of the tile's weights that were put off.
    pub(super) fn copy_deferred_weights(&mut self, m: &Matrix, d: &MatrixDescriptor) {
        let rows = u64::from(d.window.kernel[0] * d.window.kernel[1] * d.group_in);
        let row = u64::from(m.columns) * d.weight_dtype.bytes() as u64;
        let row = if m.weights.plane_bytes > 0 { u64::from(m.columns) } else { row };
        let length = (rows - 1) * u64::from(m.weights.row_bytes) + row;
        for plane in [0, u64::from(m.weights.plane_bytes)] {
            self.cache.copy_deferred(m.weights.address + plane, length as usize);
        }
    }

    /// Constants that all bytes from the tile's first weight to its last are a copy of, and the first line of these.
    fn origin(&self, m: &Matrix, d: &MatrixDescriptor) -> Option<(&Image, Origin)> {
        if m.weights.plane_bytes > 0 {
            return None;
        }
        let rows = (d.window.kernel[0] * d.window.kernel[1] * d.group_in) as usize;
        let row = m.columns as usize * d.weight_dtype.bytes();
        let length = (rows - 1) * m.weights.row_bytes as usize + row;
        let origin = self.cache.origin(m.weights.address, length)?;
        Some((self.ddr.get(origin.memory())?.constants()?, origin))
    }

    /// Whether the tile's weights are a copy of these constants.
    fn has_origin(&self, m: &Matrix, d: &MatrixDescriptor, origin: Option<&(Image, Origin)>) -> bool {
        origin.is_some_and(|(image, first)| {
            self.origin(m, d).is_some_and(|(own, own_first)| own_first == *first && own.is_same(image))
        })
    }

    /// Whether the tile's weights are these bytes.
    fn has_weights(&self, m: &Matrix, d: &MatrixDescriptor, weights: &[u8]) -> Result<bool, Fault> {
        if m.weights.plane_bytes > 0 {
            return Ok(self.tile_bytes(m, d)?[0] == weights);
        }
        let row = m.columns as usize * d.weight_dtype.bytes();
        // Rows without gaps are one.
        let row = if row == m.weights.row_bytes as usize { weights.len() } else { row };
        for (number, own) in (0u64..).zip(weights.chunks_exact(row)) {
            let at = m.weights.address + number * u64::from(m.weights.row_bytes);
            if self.read(Space::Cache, at, row)? != own {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the tile's parameters and its table are these bytes.
    fn has_parameters(&self, m: &Matrix, [_, parameters, table]: &[Vec<u8>; 3]) -> Result<bool, Fault> {
        Ok(self.parameters(m.parameters, parameters.len())? == parameters
            && (table.is_empty() || self.parameters(m.table, table.len())? == table))
    }

    /// The weights of a tile of int8 elements, row-major without gaps.
    fn weight_bytes(&self, m: &Matrix, rows: usize, columns: usize) -> Result<Cow<'_, [u8]>, Fault> {
        if m.weights.row_bytes as usize == columns {
            return Ok(Cow::Borrowed(self.read(Space::Cache, m.weights.address, rows * columns)?));
        }
        let mut weights = Vec::with_capacity(rows * columns);
        for row in 0..rows as u64 {
            let at = m.weights.address + row * u64::from(m.weights.row_bytes);
            weights.extend_from_slice(self.read(Space::Cache, at, columns)?);
        }
        Ok(Cow::Owned(weights))
    }

    /// Bytes of the channel parameters and of the table of a tile.
    fn parameter_bytes(&self, m: &Matrix, d: &MatrixDescriptor) -> Result<[Vec<u8>; 2], Fault> {
        let entry = ChannelParameters::bytes(timing::has_wide_sums(m.input.dtype, d.weight_dtype));
        let parameters = self.parameters(m.parameters, entry * m.columns as usize)?.to_vec();
        let table = match d.table {
            Some(shape) => self.parameters(m.table, shape.entries as usize * 4)?.to_vec(),
            None => Vec::new(),
        };
        Ok([parameters, table])
    }

    /// Bytes of weights, channel parameters and table of the tile.
    fn tile_bytes(&self, m: &Matrix, d: &MatrixDescriptor) -> Result<[Vec<u8>; 3], Fault> {
        let (columns, k) = (m.columns as usize, (d.window.kernel[0] * d.window.kernel[1] * d.group_in) as usize);
        let size = if m.weights.plane_bytes > 0 { 1 } else { d.weight_dtype.bytes() };
        let mut weights = Vec::with_capacity(k * columns * d.weight_dtype.bytes());
        for row in 0..k as u64 {
            let at = m.weights.address + row * u64::from(m.weights.row_bytes);
            let low = self.read(Space::Cache, at, columns * size)?;
            if m.weights.plane_bytes > 0 {
                let high = self.read(Space::Cache, at + u64::from(m.weights.plane_bytes), columns)?;
                weights.extend(low.iter().zip(high).flat_map(|(low, high)| [*low, *high]));
            } else {
                weights.extend_from_slice(low);
            }
        }
        let [parameters, table] = self.parameter_bytes(m, d)?;
        Ok([weights, parameters, table])
    }
}

impl PackedTile {
    fn new(m: &Matrix, d: &MatrixDescriptor, bytes: [Vec<u8>; 3]) -> Result<Self, Fault> {
        let (tile, epilogue) = tile(m, d, &bytes)?;
        let groups: Vec<Group> = (m.first_column / d.group_out..=(m.first_column + m.columns - 1) / d.group_out)
            .map(|group| {
                let first = (group * d.group_out).max(m.first_column) - m.first_column;
                let last = ((group + 1) * d.group_out).min(m.first_column + m.columns) - m.first_column;
                let before = group - m.first_column / d.group_out;
                Group { columns: first as usize..last as usize, first_channel: (before * d.group_in) as usize }
            })
            .collect();
        let safe = |group: &Group| tile.is_safe(m.input.dtype, &group.columns).then(OnceLock::new);
        let linear = groups.iter().map(safe).collect();
        let (descriptor, input, conv) = (d.clone(), m.input.dtype, OnceLock::new());
        Ok(Self { descriptor, input, bytes, origin: None, tile, epilogue, groups, linear, conv })
    }

    /// The right operand of a group; `None` where sums might overflow.
    fn linear(&self, group: usize) -> Option<&Linear> {
        self.linear[group].as_ref().map(|linear| linear.get_or_init(|| self.operand(group, 1)))
    }

    /// The only group as a convolution of images like that one.
    fn conv(&self, geometry: &Geometry, zero: i32) -> &Conv {
        self.conv.get_or_init(|| Conv::new(*geometry, 1, zero, |group, runs| self.operand(group, runs)))
    }

    fn operand(&self, group: usize, runs: usize) -> Linear {
        let (tile, columns) = (&self.tile, self.groups[group].columns.clone());
        let right = linear::Matrix {
            codes: &tile.weights,
            start: columns.start,
            shape: [tile.k, columns.len()],
            strides: [tile.columns, 1],
            zero_point: tile.weight_zero,
        };
        let wide = self.input == DType::I16 || tile.wide;
        let epilogue = self.epilogue.columns(columns.clone());
        Linear::in_runs(&right, runs, wide, tile.input_zero, &tile.bias[columns], epilogue)
    }
}

/// Weights, channel parameters and what follows the product.
fn tile(m: &Matrix, d: &MatrixDescriptor, bytes: &[Vec<u8>; 3]) -> Result<(Tile, Epilogue), Fault> {
    let [weights, parameters, table] = bytes;
    let wide = timing::has_wide_sums(m.input.dtype, d.weight_dtype);
    let channels = Channels { address: m.parameters, wide, codes: d.codes, first_shift: d.first_shift, table: d.table };
    let (bias, epilogue) = channels.decode(parameters, table)?;
    let tile = Tile {
        weights: Values::from_le_bytes(d.weight_dtype, weights),
        k: (d.window.kernel[0] * d.window.kernel[1] * d.group_in) as usize,
        columns: m.columns as usize,
        bias,
        input_zero: d.input_zero,
        weight_zero: d.weight_zero,
        wide,
    };
    Ok((tile, epilogue))
}

/// Input channels of the groups an instruction has columns of.
pub(super) fn group_channels(m: &Matrix, d: &MatrixDescriptor) -> std::ops::Range<u32> {
    let last = (m.first_column + m.columns - 1) / d.group_out;
    m.first_column / d.group_out * d.group_in..(last + 1) * d.group_in
}

impl Group {
    /// The group's channels out of rows of `[taps, channels]`.
    fn rows<X: Copy>(&self, rows: &[X], channels: usize, d: &MatrixDescriptor) -> Vec<X> {
        let width = d.group_in as usize;
        rows.chunks_exact(channels).flat_map(|tap| tap[self.first_channel..][..width].iter().copied()).collect()
    }
}
