//! Instructions that load packed weights: where the codes come from, and where the elements go.

use tpuflow_ir::isa::Expand;
use tpuflow_ir::{Space, TensorId};

use crate::constant_map::{Constant, ConstantByte};
use crate::contents::{Piece, Value};
use crate::packed::PackedImage;
use crate::rule::{Fault, Rule};
use crate::values::piece_at;
use crate::walk::Walk;

/// The packed weights a byte of the cache is an element of, and which.
pub(crate) fn packed_element(pieces: &[Piece], at: u64) -> Option<(PackedImage, u64)> {
    let piece = piece_at(pieces, at)?;
    match piece.value.advance(at - piece.start) {
        Value::Expanded { image, byte } => Some((image, byte)),
        _ => None,
    }
}

impl Walk<'_> {
    /// Packed weights become int8 elements in the cache.
    pub(crate) fn expand(&mut self, e: &Expand) -> Result<(), Fault> {
        let (rows, columns, image) = (u64::from(e.rows), u64::from(e.row_bytes), PackedImage::new(e));
        let (start, end) = (e.ddr_address, e.ddr_address + image.bytes());
        let constants = self.program.constants.get(usize::from(e.ddr_space)).map_or(0, |c| c.len() as u64);
        let within = end <= constants;
        let found = format_args!("{start:#x}..{end:#x}");
        Rule::NotConstant.require(within, format_args!("packed weights below {constants:#x}"), found)?;
        self.load(Space::Ddr(e.ddr_space), start, end)?;
        let value = Value::Expanded { image, byte: 0 };
        self.store(Space::Cache, e.local_address, e.local_address + rows * columns, value)
    }

    /// Row `row` of a constant, `columns` (first and number) of it, is made of a row that was packed: the constant is packed in the
    /// same blocks, and codes, scales and zero points stand for nothing else.
    pub(crate) fn packed_row(
        &self,
        weights: TensorId,
        image: PackedImage,
        byte: u64,
        row: u64,
        columns: [u64; 2],
    ) -> Result<(), Fault> {
        let Some(e) = &self.expectation else { return Ok(()) };
        let tensor = e.graph.tensor(weights);
        let sound = tensor.packed.as_ref().is_some_and(|packed| image.is_row_of(packed, byte, row));
        let expected = format_args!("row {row} of \"{}\" in its own blocks", tensor.name);
        Rule::Weights.require(sound, expected, format_args!("{image:?}"))?;
        let [first, count] = columns;
        let all = tensor.shape.last().copied().unwrap_or(1) as u64;
        let (own, block) = (byte / u64::from(image.columns), u64::from(image.block));
        if image.is_by_column {
            return self.packed_entry(weights, image, own, [row, first]);
        }
        let (parts, code, cell) = (image.parts(own, 0), row * all + first, row / block * all + first);
        let codes = ConstantByte { of: Constant::Codes(weights, code % 2), byte: code / 2 };
        self.assign_constants(image.space, parts.code.byte, count.div_ceil(2), codes)?;
        if !row.is_multiple_of(block) {
            return Ok(());
        }
        let scales = ConstantByte { of: Constant::Scales(weights), byte: cell };
        self.assign_constants(image.space, parts.scale, count, scales)?;
        if !image.has_zero_points() {
            return Ok(());
        }
        let zero_points = ConstantByte { of: Constant::ZeroPoints(weights, cell % 2), byte: cell / 2 };
        self.assign_constants(image.space, parts.zero_point.byte, count.div_ceil(2), zero_points)
    }

    /// A block of an entry of a table, whose bytes are counted as they lie in entries of this width.
    fn packed_entry(
        &self,
        weights: TensorId,
        image: PackedImage,
        own: u64,
        [row, first]: [u64; 2],
    ) -> Result<(), Fault> {
        let width = u64::from(image.columns);
        let whole = own == row && first.is_multiple_of(width);
        let expected = format_args!("an entry of {width} columns");
        Rule::Weights.require(whole, expected, format_args!("row {row} and column {first} in row {own}"))?;
        if !row.is_multiple_of(image.block.into()) {
            return Ok(());
        }
        let (start, bytes) = image.block_of(row);
        let byte = first / width * image.bytes() + (start - image.start());
        let records = ConstantByte { of: Constant::Records(weights, image.columns), byte };
        self.assign_constants(image.space, start, bytes, records)
    }
}
