//! Constants of 4 bits.

use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{DType, Op, Packed, Quant, TableEntry, Tensor, TensorId};

use super::Net;

impl Net {
    /// A random constant of two axes of 4 bits in blocks of so many rows.
    pub fn packed_constant(&mut self, shape: [usize; 2], block: u32, kind: CodeKind) -> TensorId {
        let [rows, columns] = shape;
        let cells = rows.div_ceil(block as usize) * columns;
        let has_zero_points = kind == CodeKind::ZeroPoints;
        let mut bytes =
            |count: usize, most| (0..count).map(|_| self.random.range(0, most) as u8).collect::<Vec<_>>().into();
        let packed = Packed {
            block,
            has_zero_points,
            is_float: kind == CodeKind::Floats,
            codes: bytes((rows * columns).div_ceil(2), 255),
            scales: bytes(cells, 255),
            zero_points: bytes(if has_zero_points { cells } else { 0 }, 15),
        };
        self.packed(&shape, packed)
    }

    /// Looks entries of a packed table up by an int32 input of `shape`.
    pub fn packed_embedding(&mut self, table: TensorId, shape: &[usize], entry: TableEntry) -> TensorId {
        let name = self.name("indices");
        let mut tensor = self.tensor(&name, shape, DType::I32);
        tensor.quant = None;
        let indices = self.builder.input(tensor).unwrap();
        let whole = self.shape(table);
        let out = [shape, &[entry.count([whole[0], whole[1]])[1]]].concat();
        self.same("embedding", Op::Embedding { table, indices, entry }, &out, table)
    }

    /// A constant of two axes as its codes, scales and zero points.
    pub fn packed(&mut self, shape: &[usize], packed: Packed) -> TensorId {
        let name = self.name("packed");
        let quant = Some(Quant { scale: vec![0.05], zero_point: 0 });
        let constant = Some(packed.expand(shape).into());
        let tensor = Tensor { quant, constant, packed: Some(packed), ..self.tensor(&name, shape, DType::I8) };
        self.builder.constant(tensor).unwrap()
    }
}
