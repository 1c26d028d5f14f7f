//! Constants of 4 bits.

use tpuflow_ir::{DType, Packed, Quant, Tensor, TensorId};

use super::Net;

impl Net {
    /// A constant of two axes as its codes, scales and zero points.
    pub fn packed(&mut self, shape: &[usize], packed: Packed) -> TensorId {
        let name = self.name("packed");
        let quant = Some(Quant { scale: vec![0.05], zero_point: 0 });
        let constant = Some(packed.expand(shape).into());
        let tensor = Tensor { quant, constant, packed: Some(packed), ..self.tensor(&name, shape, DType::I8) };
        self.builder.constant(tensor).unwrap()
    }
}
