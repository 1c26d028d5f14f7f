//! Rows of views as dense codes, and back.

use tpuflow_ir::{DType, Space, View};
use tpuflow_kernels::Values;
use tpuflow_kernels::float::{BF16, F16, Float as _};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Fault, Memories};
use crate::hazard::Rule;
use crate::memory::copy_short;

/// A type elements are computed in: codes their own or int16 for either, floats in float32, anything by its bits.
pub(super) trait Load: Copy + Default {
    /// Appends the elements stored in `bytes` as `dtype`.
    fn append(dtype: DType, bytes: &[u8], elements: &mut Vec<Self>);

    /// Appends the elements of pixels, `pitch` bytes from one to the next, of which the first `payload` are theirs.
    fn append_pixels(dtype: DType, bytes: &[u8], payload: usize, pitch: usize, elements: &mut Vec<Self>) {
        bytes.chunks(pitch).for_each(|pixel| Self::append(dtype, &pixel[..payload], elements));
    }

    /// The elements themselves, where they are stored as they are computed in.
    fn of_bytes(_: DType, _: &[u8]) -> Option<&[Self]> {
        None
    }
}

/// A type codes are computed in.
pub(super) trait Code: Load + tpuflow_kernels::Element {
    /// Buffers of the type that are free.
    fn free_list(buffers: &mut Buffers) -> &mut Vec<Vec<Self>>;

    /// The rows gathered last.
    fn gathered_rows(buffers: &mut Buffers) -> &mut Vec<Self>;

    fn values(codes: Vec<Self>) -> Values;

    /// Codes as [`append`] stores them where that is what they are; results have the type they are stored in.
    fn as_stored(_: &[Self]) -> Option<&[u8]> {
        None
    }
}

/// Buffers that serve one instruction after another.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    narrow: Vec<Vec<i8>>,
    wide: Vec<Vec<i16>>,
    narrow_gathered: Vec<i8>,
    wide_gathered: Vec<i16>,
    pub(super) bytes: Vec<u8>,
}

impl Code for i8 {
    fn free_list(buffers: &mut Buffers) -> &mut Vec<Vec<Self>> {
        &mut buffers.narrow
    }

    fn gathered_rows(buffers: &mut Buffers) -> &mut Vec<Self> {
        &mut buffers.narrow_gathered
    }

    fn values(codes: Vec<Self>) -> Values {
        Values::I8(codes)
    }

    fn as_stored(codes: &[Self]) -> Option<&[u8]> {
        Some(codes.as_bytes())
    }
}

impl Code for i16 {
    fn free_list(buffers: &mut Buffers) -> &mut Vec<Vec<Self>> {
        &mut buffers.wide
    }

    fn gathered_rows(buffers: &mut Buffers) -> &mut Vec<Self> {
        &mut buffers.wide_gathered
    }

    fn values(codes: Vec<Self>) -> Values {
        Values::I16(codes)
    }
}

impl Buffers {
    /// An empty one.
    pub(super) fn take<X: Code>(&mut self) -> Vec<X> {
        let mut buffer = X::free_list(self).pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// One of at least so many codes that hold anything.
    pub(super) fn take_with_length<X: Code>(&mut self, count: usize) -> Vec<X> {
        let mut buffer = X::free_list(self).pop().unwrap_or_default();
        if buffer.len() < count {
            buffer.resize(count, X::default());
        }
        buffer
    }

    pub(super) fn put_back<X: Code>(&mut self, buffer: Vec<X>) {
        X::free_list(self).push(buffer);
    }
}

impl Load for i8 {
    fn append(_: DType, bytes: &[u8], codes: &mut Vec<Self>) {
        codes.extend(bytes.iter().map(|b| b.cast_signed()));
    }

    fn append_pixels(dtype: DType, bytes: &[u8], payload: usize, pitch: usize, codes: &mut Vec<Self>) {
        let first = codes.len();
        codes.resize(first + bytes.len().div_ceil(pitch) * payload, 0);
        for (own, pixel) in codes[first..].chunks_exact_mut(payload).zip(bytes.chunks(pitch)) {
            copy_short(Self::of_bytes(dtype, &pixel[..payload]).expect("bytes are codes"), own);
        }
    }

    fn of_bytes(dtype: DType, bytes: &[u8]) -> Option<&[Self]> {
        if dtype == DType::I8 { <[Self]>::ref_from_bytes(bytes).ok() } else { None }
    }
}

impl Load for i16 {
    fn append(dtype: DType, bytes: &[u8], codes: &mut Vec<Self>) {
        match dtype {
            DType::I8 => codes.extend(bytes.iter().map(|b| Self::from(b.cast_signed()))),
            _ => codes.extend(bytes.as_chunks().0.iter().map(|b| Self::from_le_bytes(*b))),
        }
    }
}

impl Load for i32 {
    fn append(dtype: DType, bytes: &[u8], codes: &mut Vec<Self>) {
        match dtype {
            DType::I8 => codes.extend(bytes.iter().map(|b| Self::from(b.cast_signed()))),
            DType::I16 => codes.extend(bytes.as_chunks().0.iter().map(|b| Self::from(i16::from_le_bytes(*b)))),
            _ => codes.extend(bytes.as_chunks().0.iter().map(|b| Self::from_le_bytes(*b))),
        }
    }
}

/// Sums and statistics.
impl Load for i64 {
    fn append(_: DType, bytes: &[u8], numbers: &mut Vec<Self>) {
        numbers.extend(bytes.as_chunks().0.iter().map(|b| Self::from_le_bytes(*b)));
    }
}

/// Bits.
impl Load for u32 {
    fn append(dtype: DType, bytes: &[u8], elements: &mut Vec<Self>) {
        match dtype.bytes() {
            1 => elements.extend(bytes.iter().map(|&b| Self::from(b))),
            2 => elements.extend(bytes.as_chunks().0.iter().map(|b| Self::from(u16::from_le_bytes(*b)))),
            _ => elements.extend(bytes.as_chunks().0.iter().map(|b| Self::from_le_bytes(*b))),
        }
    }
}

impl Load for f32 {
    fn append(dtype: DType, bytes: &[u8], elements: &mut Vec<Self>) {
        let halves = || bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b));
        match dtype {
            DType::F16 => elements.extend(halves().map(|bits| F16(bits).widen())),
            DType::BF16 => elements.extend(halves().map(|bits| BF16(bits).widen())),
            _ => elements.extend(bytes.as_chunks().0.iter().map(|b| Self::from_le_bytes(*b))),
        }
    }
}

/// Codes as `dtype` stores them.
pub(super) fn encode<Y: tpuflow_kernels::Element>(dtype: DType, codes: &[Y], bytes: &mut Vec<u8>) {
    bytes.clear();
    append(dtype, codes, bytes);
}

/// Appends codes as `dtype` stores them.
pub(super) fn append<Y: tpuflow_kernels::Element>(dtype: DType, codes: &[Y], bytes: &mut Vec<u8>) {
    match dtype {
        DType::I8 => bytes.extend(codes.iter().map(|y| y.widen() as u8)),
        _ => codes.iter().for_each(|y| bytes.extend_from_slice(&(y.widen() as i16).to_le_bytes())),
    }
}

/// Row of an operand that row `row` of the result takes: images and lines of which there is one serve all.
pub(super) fn broadcast_row(operand: &View, result: &View, row: u32) -> u32 {
    let (image, line) = (row / result.height, row % result.height);
    let image = if operand.rows == operand.height { 0 } else { image };
    image * operand.height + if operand.height == 1 { 0 } else { line }
}

impl Memories {
    /// Fails unless the view holds the row.
    pub(super) fn require_row(view: &View, row: u32) -> Result<(), Fault> {
        if row < view.rows && view.holds(row) {
            Ok(())
        } else {
            Err(((view.space, view.address), Rule::RowNotHeld(row)))
        }
    }

    /// Byte address of pixels from number `first` on that lie side by side, if they do and there is nothing between them beside
    /// their `payload`.
    pub(super) fn contiguous_address(&self, view: &View, payload: usize, first: u32, pixels: u32) -> Option<u64> {
        let (row, last) = (first / view.width, (first + pixels - 1) / view.width);
        let (pitch, pixel_bytes) = (view.row_bytes(self.word), view.pixel_bytes);
        let tight = payload == pixel_bytes as usize
            && (row == last || pitch == u64::from(view.width) * u64::from(pixel_bytes))
            && view.row_address(last, self.word) == view.row_address(row, self.word) + u64::from(last - row) * pitch;
        tight.then(|| view.pixel_address(row, first % view.width, self.word))
    }

    /// Rows `first .. first + rows` of a view, `[rows, width, channels]`, where they lie like that.
    pub(super) fn rows_in_place<X: Load>(&self, view: &View, first: u32, rows: u32) -> Option<&[X]> {
        Self::require_row(view, first).and_then(|()| Self::require_row(view, first + rows - 1)).ok()?;
        let at = self.contiguous_address(view, view.payload(), first * view.width, rows * view.width)?;
        let bytes = self.read(view.space, at, view.payload() * (rows * view.width) as usize).ok()?;
        X::of_bytes(view.dtype, bytes)
    }

    /// Appends the pixels of a row, `[width, channels]`.
    pub(super) fn row<X: Load>(&self, view: &View, row: u32, codes: &mut Vec<X>) -> Result<(), Fault> {
        Self::require_row(view, row)?;
        let (start, payload) = (view.pixel_address(row, 0, self.word), view.payload());
        if payload == view.pixel_bytes as usize {
            let bytes = self.read(view.space, start, payload * view.width as usize)?;
            X::append(view.dtype, bytes, codes);
            return Ok(());
        }
        self.pixels(view.space, view.dtype, start, [payload, view.pixel_bytes as usize, view.width as usize], codes)
    }

    /// Appends `count` pixels from an address on, `pitch` bytes from one to the next, of which `payload` are wanted.
    pub(super) fn pixels<X: Load>(
        &self,
        space: Space,
        dtype: DType,
        start: u64,
        [payload, pitch, count]: [usize; 3],
        codes: &mut Vec<X>,
    ) -> Result<(), Fault> {
        let bytes = self.of(space).read_pieces(start, payload, pitch, count);
        let bytes = bytes.map_err(|missing| ((space, missing.0), Rule::NeverWritten))?;
        X::append_pixels(dtype, bytes, payload, pitch, codes);
        Ok(())
    }

    /// The pixels of the operand that row `row` of the result takes, repeated to its width and channels.
    pub(super) fn broadcast<X: Load>(&self, view: &View, result: &View, row: u32) -> Result<Vec<X>, Fault> {
        let mut own = Vec::with_capacity(result.width as usize * result.channels as usize);
        self.row(view, broadcast_row(view, result, row), &mut own)?;
        if view.channels < result.channels {
            own = own.iter().flat_map(|&code| std::iter::repeat_n(code, result.channels as usize)).collect();
        }
        if view.width < result.width {
            own = own.repeat(result.width as usize);
        }
        Ok(own)
    }

    /// Writes codes `[rows, width, channels]` to rows from `first` on.
    pub(super) fn store_codes<Y: Code>(&mut self, view: &View, first: u32, codes: &[Y]) -> Result<(), Fault> {
        let row = view.width as usize * view.channels as usize;
        let rows = (codes.len() / row) as u32;
        Self::require_row(view, first)?;
        if Self::require_row(view, first + rows - 1).is_ok()
            && let Some(bytes) = Y::as_stored(codes)
            && let Some(at) = self.contiguous_address(view, view.payload(), first * view.width, rows * view.width)
        {
            self.of_mut(view.space).write(at, bytes);
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.buffers.bytes);
        for (row, codes) in (first..).zip(codes.chunks_exact(row)) {
            let stored = Y::as_stored(codes).unwrap_or_else(|| {
                encode(view.dtype, codes, &mut bytes);
                &bytes
            });
            self.store_row(view, row, stored)?;
        }
        self.buffers.bytes = bytes;
        Ok(())
    }

    /// Writes a row `[width, channels]`, given as bytes.
    pub(super) fn store_row(&mut self, view: &View, row: u32, bytes: &[u8]) -> Result<(), Fault> {
        Self::require_row(view, row)?;
        self.non_finite.count_pixels(view.dtype, bytes, [row, 0, 0], view.channels);
        let (start, payload) = (view.pixel_address(row, 0, self.word), view.payload());
        if payload == view.pixel_bytes as usize {
            self.of_mut(view.space).write(start, bytes);
            return Ok(());
        }
        self.of_mut(view.space).write_pieces(start, payload, view.pixel_bytes as usize, bytes);
        Ok(())
    }

    /// Byte address of row-major element `element` of a view; `None` in front of or behind it.
    pub(super) fn element(&self, view: &View, element: i64) -> Result<u64, Fault> {
        let outside = ((view.space, view.address), Rule::OutOfRange);
        let element = u64::try_from(element).map_err(|_| outside.clone())?;
        let (pixel, channel) = (element / u64::from(view.channels), element % u64::from(view.channels));
        let (row, column) = (pixel / u64::from(view.width), pixel % u64::from(view.width));
        let row = u32::try_from(row).map_err(|_| outside)?;
        Self::require_row(view, row)?;
        Ok(view.pixel_address(row, column as u32, self.word) + channel * view.dtype.bytes() as u64)
    }

    /// The whole of a view, dense.
    pub(super) fn whole<X: Load>(&self, view: &View) -> Result<Vec<X>, Fault> {
        let mut codes = Vec::with_capacity(view.rows as usize * view.width as usize * view.channels as usize);
        for row in 0..view.rows {
            self.row(view, row, &mut codes)?;
        }
        Ok(codes)
    }

    /// Appends `length` bytes at a pixel of the cache, as codes.
    pub(super) fn codes<X: Load>(
        &self,
        dtype: DType,
        address: u64,
        length: usize,
        codes: &mut Vec<X>,
    ) -> Result<(), Fault> {
        X::append(dtype, self.read(Space::Cache, address, length)?, codes);
        Ok(())
    }
}
