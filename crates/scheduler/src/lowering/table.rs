//! Lookups of entries of packed tables by run-time index.

use tpuflow_ir::isa::PackedLookup;
use tpuflow_ir::{DType, TableEntry, TensorId, Work};

use super::staging::staged_bytes;
use super::{Lowering, Shortage, refine, slice_rows, slices};
use crate::network::row_bytes;
use crate::virtual_program::{Content, Memory, PackedTable, Packing};

/// Packed bytes an instruction reads: enough to hide its start, so few that both lines are busy and results come early.
const PIECE: u64 = 1 << 15;

impl Lowering<'_> {
    /// Columns of a packed constant, or groups of its rows.
    pub(super) fn packed_embedding(
        &mut self,
        table: TensorId,
        indices: TensorId,
        entry: TableEntry,
        output: TensorId,
    ) -> Result<(), Shortage> {
        let (machine, network) = (self.context.machine, &self.context.network);
        let word = machine.word();
        let tensor = network.tensor(table);
        let (Some(packed), &[rows, columns]) = (&tensor.packed, &tensor.shape[..]) else { return Ok(()) };
        let (block, codes, shape) = (packed.block, packed.kind(), [rows as u32, columns as u32]);
        let (own, width) = match entry {
            TableEntry::Rows(own) => (own, None),
            _ => (shape[0], Some(network.table_columns(table).unwrap_or(machine.array.columns))),
        };
        let contents = PackedTable {
            tensor: network.first_equal(table),
            shape,
            entry: [own, width.unwrap_or(shape[1])],
            row_bytes: width.map_or(shape[1], |width| row_bytes(width, DType::I8, word) as u32),
            is_by_column: width.is_some(),
            // A product reads entries one after the other. Others are picked: each of two tables has a space of its own.
            spaces: if width.is_some() { machine.ddr_spaces() as u32 } else { 1 },
        };
        let name = format!("table of {}", network.layer_name(self.index));
        let from = self.operand(indices);
        let mut views = [self.operand(output)];
        refine(&mut views, word);
        let [to] = views;
        let lookup = PackedLookup {
            ddr_space: 0,
            ddr_address: 0,
            spaces: contents.spaces as u8,
            size: entry.count([rows, columns])[0] as u32,
            columns: width,
            rows: own,
            row_bytes: contents.row_bytes,
            block,
            codes,
            indices: from,
            output: to,
            first: 0,
            count: 0,
        };
        let of_space = u64::from(lookup.entries().div_ceil(contents.spaces)) * lookup.stride(word);
        let alone = self.alone(output);
        let index_bytes = staged_bytes(&from, 0..from.rows, word);
        if index_bytes > self.free {
            return Err(Shortage(Memory::Cache));
        }
        let need = |rows| staged_bytes(&to, rows, word);
        let height = slice_rows(0..to.rows, self.free - index_bytes, need).ok_or(Shortage(Memory::Cache))?;
        let each = lookup.index_bytes() * u64::from(to.width);
        let height = height.min((PIECE / each.max(1)).max(1) as u32);
        let buffer = self.code.buffer(name, of_space, Memory::Ddr, Content::Constant(Packing::Entries(contents)));
        let indices = self.stage_in(&from, 0..from.rows);
        for slice in slices(0..to.rows, height) {
            let output = self.stage_out(&to, slice.clone());
            let (first, count) = (slice.start * to.width, (slice.end - slice.start) * to.width);
            let lookup = PackedLookup { ddr_address: buffer.at(0), indices, output, first, count, ..lookup };
            self.instruction(Work::PackedLookup(lookup), [None; 3]);
            self.store(&to, &output, slice, alone);
        }
        Ok(())
    }
}
