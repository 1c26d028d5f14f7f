//! Layers that put elements elsewhere.

use tpuflow_ir::op::PadMode;
use tpuflow_ir::{Op, Real, TensorId};

use super::Net;

impl Net {
    pub fn concat(&mut self, inputs: &[TensorId], axis: usize, rescaled: usize) -> TensorId {
        let mut shape = self.shape(inputs[0]);
        shape[axis] = inputs.iter().map(|&t| self.shape(t)[axis]).sum();
        let rescaled = if self.float.is_some() { usize::MAX } else { rescaled };
        let mut requants = Vec::new();
        for (i, &input) in inputs.iter().enumerate() {
            let other_type = self.dtype_of(input) != self.dtype();
            requants.push((i == rescaled || other_type).then(|| self.requant(1, self.dtype(), 14)));
        }
        let op = Op::Concat { inputs: inputs.to_vec(), axis: axis as u32, requants };
        self.layer("concat", op, &shape, self.dtype())
    }

    pub fn pad(&mut self, input: TensorId, before: &[u32], after: &[u32], mode: PadMode) -> TensorId {
        let x = self.shape(input);
        let shape: Vec<usize> = (0..x.len()).map(|i| x[i] + (before[i] + after[i]) as usize).collect();
        let mode = match mode {
            PadMode::Constant(code) if self.dtype_of(input).is_float() => {
                PadMode::Value(Real::new(f64::from(code) / 3.0))
            }
            mode => mode,
        };
        let op = Op::Pad { input, before: before.to_vec(), after: after.to_vec(), mode };
        self.same("pad", op, &shape, input)
    }

    /// Dense steps of a shape.
    pub fn steps(shape: &[usize]) -> Vec<i64> {
        let mut steps = vec![1i64; shape.len()];
        for axis in (1..shape.len()).rev() {
            steps[axis - 1] = steps[axis] * shape[axis] as i64;
        }
        steps
    }

    pub fn transpose(&mut self, input: TensorId, order: &[usize]) -> TensorId {
        let x = self.shape(input);
        let steps = Self::steps(&x);
        let shape: Vec<usize> = order.iter().map(|&a| x[a]).collect();
        let dims = shape.iter().map(|&d| d as u32).collect();
        let strides = order.iter().map(|&a| steps[a]).collect();
        self.same("transpose", Op::Rearrange { input, dims, strides, offset: 0 }, &shape, input)
    }

    pub fn reshape(&mut self, input: TensorId, shape: &[usize]) -> TensorId {
        let dims = vec![shape.iter().product::<usize>() as u32];
        self.same("reshape", Op::Rearrange { input, dims, strides: vec![1], offset: 0 }, shape, input)
    }

    pub fn slice(&mut self, input: TensorId, axis: usize, start: usize, count: usize) -> TensorId {
        let x = self.shape(input);
        let steps = Self::steps(&x);
        let mut shape = x;
        shape[axis] = count;
        let dims = shape.iter().map(|&d| d as u32).collect();
        let offset = start as i64 * steps[axis];
        self.same("slice", Op::Rearrange { input, dims, strides: steps, offset }, &shape, input)
    }

    pub fn gather(&mut self, input: TensorId, axis: usize, indices: &[u32]) -> TensorId {
        let mut shape = self.shape(input);
        shape[axis] = indices.len();
        let op = Op::Gather { input, axis: axis as u32, indices: indices.to_vec() };
        self.same("gather", op, &shape, input)
    }
}
