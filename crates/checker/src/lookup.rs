//! Lookups: entries of a table by indices.

use tpuflow_ir::isa::{Expand, Lookup, PackedForm, PackedLookup};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Layer, Op, Packed, Space, TableEntry, TensorId, View};

use crate::packed::{Half, PackedImage};
use crate::rule::{Fault, Operand, Rule};
use crate::walk::Walk;

/// The tensors of a lookup: the table, its indices, and the result, and what an index names.
struct Embedding {
    table: TensorId,
    indices: TensorId,
    output: TensorId,
    entry: TableEntry,
}

/// The indices of an instruction, and where what they name goes.
struct Indices<'a> {
    view: &'a View,
    output: &'a View,
}

impl Walk<'_> {
    pub(crate) fn lookup(&mut self, lookup: &Lookup, layer: Option<&Layer>) -> Result<(), Fault> {
        let embedding = embedding(layer, TableEntry::is_row)?;
        let (view, table) = (&lookup.table, embedding.as_ref().map(|e| e.table));
        self.whole_table(lookup, table).map_err(|fault| fault.of_operand(Operand::Table))?;
        self.consume(view, table, 0..1, 0..view.width, 0..view.channels)
            .map_err(|fault| fault.of_operand(Operand::Table))?;
        for index in u64::from(lookup.first)..u64::from(lookup.first) + u64::from(lookup.count) {
            let row = match &embedding {
                Some(e) => (self.whole_channels(&lookup.table, Some(e.table))?, lookup.table.origin[1]),
                None => (0, 0),
            };
            let list = Indices { view: &lookup.indices, output: &lookup.output };
            self.check_index(&list, row, index, embedding.as_ref())?;
        }
        Ok(())
    }

    /// Entries of packed weights, which hold all of the constant, in its own blocks.
    pub(crate) fn packed_lookup(&mut self, l: &PackedLookup, layer: Option<&Layer>) -> Result<(), Fault> {
        let embedding = embedding(layer, |entry| !entry.is_row())?;
        let form = match (l.columns, l.codes) {
            (Some(_), kind) => PackedForm::ByColumn(kind),
            (None, CodeKind::Symmetric) => PackedForm::Symmetric,
            (None, CodeKind::ZeroPoints) => PackedForm::ZeroPoints,
            (None, CodeKind::Floats) => PackedForm::Floats,
        };
        let image = PackedImage::new(&Expand {
            ddr_space: l.ddr_space,
            ddr_address: l.ddr_address,
            local_address: 0,
            rows: l.rows,
            row_bytes: l.row_bytes,
            block: l.block,
            codes: form,
        });
        let (bytes, stride) = (image.bytes(), image.bytes().next_multiple_of(self.machine().word() as u64));
        let (spaces, entries) = (u32::from(l.spaces), l.size.div_ceil(l.columns.unwrap_or(1)));
        for space in 0..spaces.min(entries) {
            let end = l.ddr_address + u64::from((entries - 1 - space) / spaces) * stride + bytes;
            let constants =
                self.program.constants.get(usize::from(l.ddr_space) + space as usize).map_or(0, |c| c.len() as u64);
            let found = format_args!("{:#x}..{end:#x}", l.ddr_address);
            Rule::NotConstant.require(end <= constants, format_args!("packed weights below {constants:#x}"), found)?;
            self.load(Space::Ddr(l.ddr_space + space as u8), l.ddr_address, end)?;
        }
        if let Some(e) = &embedding
            && self.compared_tables.insert((e.table, image, l.size, l.columns, l.spaces))
        {
            self.compare_table(l, e, image).map_err(|fault| fault.of_operand(Operand::Table))?;
        }
        let elements = u64::from(l.rows) * if l.columns.is_some() { 1 } else { u64::from(l.row_bytes) };
        let list = Indices { view: &l.indices, output: &l.output };
        for index in u64::from(l.first)..u64::from(l.first) + u64::from(l.count) {
            self.check_index(&list, (elements, 0), index, embedding.as_ref())?;
        }
        Ok(())
    }

    /// Every entry is what an index of its number names.
    fn compare_table(&self, l: &PackedLookup, embedding: &Embedding, form: PackedImage) -> Result<(), Fault> {
        let Some(e) = &self.expectation else { return Ok(()) };
        let tensor = e.graph.tensor(embedding.table);
        let (Some(packed), &[rows, columns]) = (&tensor.packed, &tensor.shape[..]) else {
            return Err(Rule::Lookup.violation("a table that is packed", format_args!("\"{}\"", tensor.name)));
        };
        let (rows, columns) = (rows as u64, columns as u64);
        // Entries, rows and columns of each, and the elements of a row.
        let (size, own_rows, row_bytes) = match (embedding.entry, l.columns) {
            (TableEntry::Column, Some(_)) => (columns, rows, u64::from(l.row_bytes)),
            (TableEntry::Rows(each), None) => (rows / u64::from(each), u64::from(each), columns),
            (entry, _) => {
                return Err(Rule::Lookup.violation(format_args!("{entry:?}"), format_args!("{:?}", l.columns)));
            }
        };
        let found = [l.size, l.rows, l.row_bytes].map(u64::from);
        Rule::Lookup.require_equal("entries, rows and columns", &[size, own_rows, row_bytes], &found)?;
        let width = l.columns.map_or(columns, u64::from);
        let stride = form.bytes().next_multiple_of(self.machine().word() as u64);
        for entry in 0..u64::from(l.size.div_ceil(l.columns.unwrap_or(1))) {
            let at = l.ddr_address + entry / u64::from(l.spaces) * stride;
            let image = form.at(l.ddr_space + (entry % u64::from(l.spaces)) as u8, at);
            let (first_row, first) = if l.columns.is_some() { (0, entry * width) } else { (entry * own_rows, 0) };
            let count = width.min(columns - first);
            self.spend(own_rows * (1 + count / 64))?;
            for row in 0..own_rows {
                let cells = [first_row + row, first, count, columns];
                self.compare_packed_row(image, row, packed, cells)?;
                self.packed_row(embedding.table, image, row * row_bytes, first_row + row, [first, count])?;
            }
        }
        Ok(())
    }

    /// A row of an entry has the codes of `[row, first column, columns, columns of all]` of a constant, and their scales and zero points.
    fn compare_packed_row(
        &self,
        image: PackedImage,
        own: u64,
        packed: &Packed,
        [row, first, count, all]: [u64; 4],
    ) -> Result<(), Fault> {
        let constants = self.program.constants.get(usize::from(image.space)).map(|c| &c[..]).unwrap_or_default();
        let cell = row / u64::from(image.block) * all + first;
        let byte = |bytes: &[u8], at: u64| bytes.get(at as usize).copied();
        let same = (0..count).all(|column| {
            let (parts, code) = (image.parts(own, column), row * all + first + column);
            let zeros =
                !image.has_zero_points() || parts.zero_point.of(constants) == byte(&packed.zero_points, cell + column);
            parts.code.of(constants) == Half { byte: code / 2, is_high: code % 2 == 1 }.of(&packed.codes)
                && byte(constants, parts.scale) == byte(&packed.scales, cell + column)
                && zeros
        });
        let expected = format_args!("codes and scales of row {row}, columns {first}..");
        Rule::Lookup.require(same, expected, format_args!("others of row {own} at {:#x}", image.start()))
    }

    /// An index is a row's number in the whole table.
    fn whole_table(&self, lookup: &Lookup, table: Option<TensorId>) -> Result<(), Fault> {
        let Some((e, id)) = self.expectation.as_ref().zip(table) else { return Ok(()) };
        self.true_pixels(&lookup.table, table)?;
        let rows = e.graph.tensor(id).shape.first().map_or(0, |&rows| rows as u64);
        let found = (lookup.table.origin[0], u64::from(lookup.table.width));
        Rule::Lookup.require_equal("first row and rows of the table", &(0, rows), &found)
    }

    /// One index, which must be that of the pixel that what it names goes to; `row`: elements of an entry, and the first of them
    /// that is looked up.
    fn check_index(
        &mut self,
        list: &Indices,
        row: (u64, u32),
        index: u64,
        embedding: Option<&Embedding>,
    ) -> Result<(), Fault> {
        let (indices, out) = (list.view, list.output);
        let (channels, width) = (u64::from(indices.channels), u64::from(indices.width));
        let (pixel, channel) = (index / channels, (index % channels) as u32);
        if let Some(embedding) = embedding {
            let [first, lead] = indices.origin.map(u64::from);
            let number =
                (first + pixel) * self.whole_channels(indices, Some(embedding.indices))? + lead + u64::from(channel);
            let expected = number * row.0 + u64::from(row.1);
            let [first, lead] = out.origin.map(u64::from);
            let found = (first + index) * self.whole_channels(out, Some(embedding.output))? + lead;
            Rule::Lookup.require_equal(format_args!("for index {number}, element"), &expected, &found)?;
        }
        let (row, column) = ((pixel / width) as u32, (pixel % width) as u32);
        let tensor = embedding.map(|e| e.indices);
        self.consume(indices, tensor, row..row + 1, column..column + 1, channel..channel + 1)
            .map_err(|fault| fault.of_operand(Operand::Indices))?;
        let (row, column) = ((index / u64::from(out.width)) as u32, (index % u64::from(out.width)) as u32);
        self.produce(out, embedding.map(|e| e.output), row..row + 1, column..column + 1, 0..out.channels)
            .map_err(|fault| fault.of_operand(Operand::Output))
    }
}

/// The lookup a layer is, of entries that such an instruction brings.
fn embedding(layer: Option<&Layer>, brings: fn(&TableEntry) -> bool) -> Result<Option<Embedding>, Fault> {
    match layer.map(|l| (&l.op, l.output)) {
        Some((Op::Embedding { table, indices, entry }, output)) => {
            Rule::Lookup.require(brings(entry), format_args!("a lookup of {entry:?}"), "one of other entries")?;
            Ok(Some(Embedding { table: *table, indices: *indices, output, entry: *entry }))
        }
        Some((other, _)) => Err(Rule::Operator.violation(other.name(), "a lookup")),
        None => Ok(None),
    }
}
