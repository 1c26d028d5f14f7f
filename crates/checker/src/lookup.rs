//! Lookups: rows of a table by indices.

use tpuflow_ir::isa::Lookup;
use tpuflow_ir::{Layer, Op, TensorId};

use crate::rule::{Fault, Operand, Rule};
use crate::walk::Walk;

/// The tensors of a lookup: the table, its indices, and the result.
struct Embedding {
    table: TensorId,
    indices: TensorId,
    output: TensorId,
}

impl Walk<'_> {
    pub(crate) fn lookup(&mut self, lookup: &Lookup, layer: Option<&Layer>) -> Result<(), Fault> {
        let embedding = match layer.map(|l| (&l.op, l.output)) {
            Some((Op::Embedding { table, indices }, output)) => {
                Some(Embedding { table: *table, indices: *indices, output })
            }
            Some((other, _)) => return Err(Rule::Operator.violation(other.name(), "a lookup")),
            None => None,
        };
        let (view, table) = (&lookup.table, embedding.as_ref().map(|e| e.table));
        self.whole_table(lookup, table).map_err(|fault| fault.of_operand(Operand::Table))?;
        self.consume(view, table, 0..1, 0..view.width, 0..view.channels)
            .map_err(|fault| fault.of_operand(Operand::Table))?;
        for index in u64::from(lookup.first)..u64::from(lookup.first) + u64::from(lookup.count) {
            self.check_index(lookup, index, embedding.as_ref())?;
        }
        Ok(())
    }

    /// An index is a row's number in the whole table.
    fn whole_table(&self, lookup: &Lookup, table: Option<TensorId>) -> Result<(), Fault> {
        let Some((e, id)) = self.expectation.as_ref().zip(table) else { return Ok(()) };
        self.true_pixels(&lookup.table, table)?;
        let rows = e.graph.tensor(id).shape.first().map_or(0, |&rows| rows as u64);
        let found = (lookup.table.origin[0], u64::from(lookup.table.width));
        Rule::Lookup.require_equal("first row and rows of the table", &(0, rows), &found)
    }

    /// One index, which must be that of the pixel its row goes to.
    fn check_index(&mut self, lookup: &Lookup, index: u64, embedding: Option<&Embedding>) -> Result<(), Fault> {
        let (indices, out) = (&lookup.indices, &lookup.output);
        let (channels, width) = (u64::from(indices.channels), u64::from(indices.width));
        let (pixel, channel) = (index / channels, (index % channels) as u32);
        if let Some(embedding) = embedding {
            let [first, lead] = indices.origin.map(u64::from);
            let number =
                (first + pixel) * self.whole_channels(indices, Some(embedding.indices))? + lead + u64::from(channel);
            let row = self.whole_channels(&lookup.table, Some(embedding.table))?;
            let expected = number * row + u64::from(lookup.table.origin[1]);
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
