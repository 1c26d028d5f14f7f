//! Memory of tensors that nobody reads any more, for those yet to come.

use tpuflow_ir::DType;
use tpuflow_kernels::Values;
use tpuflow_kernels::pages::Addresses;

/// Tensors whose elements may be overwritten.
#[derive(Clone, Debug, Default)]
pub(super) struct TensorPool {
    tensors: Vec<Values>,
}

impl TensorPool {
    /// `count` elements that hold anything: in memory that held as many, since others are filled up first; else in new memory,
    /// which later runs then find; where much is kept already, in the smallest that is large enough.
    pub(super) fn take(&mut self, dtype: DType, count: usize) -> Values {
        /// Bytes that are much.
        const MUCH: usize = if cfg!(test) { 100 } else { 64 << 20 };
        let bytes = |tensor: &Values| tensor.capacity() * tensor.dtype().bytes();
        let same = self.tensors.iter().position(|tensor| tensor.dtype() == dtype && tensor.len() == count);
        if let Some(index) = same {
            return self.tensors.swap_remove(index);
        }
        if self.tensors.iter().map(bytes).sum::<usize>() < MUCH {
            return Values::zeros(dtype, count);
        }
        let fitting = self.tensors.iter().enumerate().filter(|(_, t)| t.dtype() == dtype && t.capacity() >= count);
        match fitting.min_by_key(|(_, tensor)| tensor.capacity()) {
            Some((index, _)) => self.tensors.swap_remove(index).resized(count),
            None => Values::zeros(dtype, count),
        }
    }

    /// Where the tensors lie.
    pub(super) fn memory(&self) -> impl Iterator<Item = Addresses> + '_ {
        self.tensors.iter().map(Values::memory)
    }

    /// Keeps the memory of a tensor.
    pub(super) fn recycle(&mut self, tensor: Values) {
        self.tensors.push(tensor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_is_taken() {
        let mut free = TensorPool::default();
        for count in [100, 10, 50] {
            free.recycle(Values::I8(vec![1; count]));
        }
        free.recycle(Values::I16(vec![1; 20]));
        free.recycle(Values::I8(vec![1; 99]).resized(50));
        assert_eq!(free.take(DType::I8, 10).capacity(), 10);
        assert_eq!(TensorPool::default().take(DType::I8, 7), Values::zeros(DType::I8, 7));
        let taken = free.take(DType::I8, 20);
        assert_eq!((taken.len(), taken.capacity()), (20, 50));
        assert_eq!(free.take(DType::I8, 200), Values::zeros(DType::I8, 200));
        assert_eq!(free.take(DType::I16, 3).capacity(), 20);
        assert_eq!(free.take(DType::I16, 3), Values::zeros(DType::I16, 3));
    }
}
