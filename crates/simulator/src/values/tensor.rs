//! Rows of views as dense codes, and back.

use tpuflow_ir::{DType, Space, View};
use tpuflow_kernels::Values;
use tpuflow_kernels::float::{BF16, F16, Float as _};

use super::{Fault, Memories};
use crate::hazard::Rule;

/// A type elements are computed in: codes their own or int16 for either, floats in float32, anything by its bits.
pub(super) trait Load: Copy + Default {
    /// Appends the elements stored in `bytes` as `dtype`.
    fn append(dtype: DType, bytes: &[u8], elements: &mut Vec<Self>);
}

/// A type codes are computed in.
pub(super) trait Code: Load + tpuflow_kernels::Element {
    /// Buffers of the type that are free.
    fn free(buffers: &mut Buffers) -> &mut Vec<Vec<Self>>;

    /// The rows gathered last.
    fn gathered(buffers: &mut Buffers) -> &mut Vec<Self>;

    fn values(codes: Vec<Self>) -> Values;
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
    fn free(buffers: &mut Buffers) -> &mut Vec<Vec<Self>> {
        &mut buffers.narrow
    }

    fn gathered(buffers: &mut Buffers) -> &mut Vec<Self> {
        &mut buffers.narrow_gathered
    }

    fn values(codes: Vec<Self>) -> Values {
        Values::I8(codes)
    }
}

impl Code for i16 {
    fn free(buffers: &mut Buffers) -> &mut Vec<Vec<Self>> {
        &mut buffers.wide
    }

    fn gathered(buffers: &mut Buffers) -> &mut Vec<Self> {
        &mut buffers.wide_gathered
    }

    fn values(codes: Vec<Self>) -> Values {
        Values::I16(codes)
    }
}

impl Buffers {
    /// An empty one.
    pub(super) fn take<X: Code>(&mut self) -> Vec<X> {
        let mut buffer = X::free(self).pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// One of so many codes that hold anything.
    pub(super) fn take_of<X: Code>(&mut self, count: usize) -> Vec<X> {
        let mut buffer = X::free(self).pop().unwrap_or_default();
        buffer.resize(count, X::default());
        buffer
    }

    pub(super) fn give<X: Code>(&mut self, buffer: Vec<X>) {
        X::free(self).push(buffer);
    }
}

impl Load for i8 {
    fn append(_: DType, bytes: &[u8], codes: &mut Vec<Self>) {
        codes.extend(bytes.iter().map(|b| b.cast_signed()));
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
    pub(super) fn held(view: &View, row: u32) -> Result<(), Fault> {
        if row < view.rows && view.holds(row) {
            Ok(())
        } else {
            Err(((view.space, view.address), Rule::RowNotHeld(row)))
        }
    }

    /// Appends the pixels of a row, `[width, channels]`.
    pub(super) fn row<X: Load>(&self, view: &View, row: u32, codes: &mut Vec<X>) -> Result<(), Fault> {
        Self::held(view, row)?;
        let (start, payload) = (view.pixel_address(row, 0, self.word), view.payload());
        if payload == view.pixel_bytes as usize {
            let bytes = self.read(view.space, start, payload * view.width as usize)?;
            X::append(view.dtype, bytes, codes);
            return Ok(());
        }
        for column in 0..u64::from(view.width) {
            let bytes = self.read(view.space, start + column * u64::from(view.pixel_bytes), payload)?;
            X::append(view.dtype, bytes, codes);
        }
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

    /// Writes a row `[width, channels]`, given as bytes.
    pub(super) fn store_row(&mut self, view: &View, row: u32, bytes: &[u8]) -> Result<(), Fault> {
        Self::held(view, row)?;
        self.met.look(view.dtype, bytes, [row, 0, 0], view.channels);
        let (start, payload) = (view.pixel_address(row, 0, self.word), view.payload());
        if payload == view.pixel_bytes as usize {
            self.of_mut(view.space).write(start, bytes);
            return Ok(());
        }
        let memory = self.of_mut(view.space);
        for (column, pixel) in (0u64..).zip(bytes.chunks_exact(payload)) {
            memory.write(start + column * u64::from(view.pixel_bytes), pixel);
        }
        Ok(())
    }

    /// Byte address of row-major element `element` of a view; `None` in front of or behind it.
    pub(super) fn element(&self, view: &View, element: i64) -> Result<u64, Fault> {
        let outside = ((view.space, view.address), Rule::OutOfRange);
        let element = u64::try_from(element).map_err(|_| outside.clone())?;
        let (pixel, channel) = (element / u64::from(view.channels), element % u64::from(view.channels));
        let (row, column) = (pixel / u64::from(view.width), pixel % u64::from(view.width));
        let row = u32::try_from(row).map_err(|_| outside)?;
        Self::held(view, row)?;
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
