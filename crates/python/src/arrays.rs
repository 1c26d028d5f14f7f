//! NumPy arrays of integers to and from the kernels' values.

use numpy::{Element, IxDyn, PyArray, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tpuflow_ir::DType;
use tpuflow_kernels::Values;

use crate::error::Failure;

/// Shape and elements (copied, row-major) of an int8, int16, int32 or int64 array; `what` names it in the error.
pub fn values(array: &Bound<'_, PyAny>, what: &str) -> PyResult<(Vec<usize>, Values)> {
    fn elements<T: Element + Copy>(array: &Bound<'_, PyAny>) -> Option<Vec<T>> {
        let array = array.cast::<PyArrayDyn<T>>().ok()?.readonly();
        // NumPy's own `as_slice` also takes column-major arrays, whose elements lie in another order.
        let view = array.as_array();
        Some(view.as_slice().map_or_else(|| view.iter().copied().collect(), <[T]>::to_vec))
    }
    let untyped = array
        .cast::<PyUntypedArray>()
        .map_err(|_| Failure::sample(format!("{what} is {}, expected an array", array.get_type())))?;
    let values = elements(array)
        .map(Values::I8)
        .or_else(|| elements(array).map(Values::I16))
        .or_else(|| elements(array).map(Values::I32))
        .or_else(|| elements(array).map(Values::I64))
        .ok_or_else(|| {
            Failure::sample(format!("{what} is {}, expected int8, int16, int32 or int64", untyped.dtype()))
        })?;
    Ok((untyped.shape().to_vec(), values))
}

/// An array of the given shape.
pub fn array<'py>(py: Python<'py>, shape: &[usize], values: &Values) -> PyResult<Bound<'py, PyAny>> {
    fn made<'py, T: Element + Copy>(py: Python<'py>, shape: &[usize], slice: &[T]) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyArray::from_slice(py, slice).reshape(IxDyn(shape))?.into_any())
    }
    match values {
        Values::I8(v) => made(py, shape, v),
        Values::I16(v) => made(py, shape, v),
        Values::I32(v) => made(py, shape, v),
        Values::I64(v) => made(py, shape, v),
    }
}

/// The element type NumPy calls `name`.
pub fn dtype(name: &str) -> PyResult<DType> {
    let known = [DType::I8, DType::I16, DType::I32, DType::I64];
    let found = known.into_iter().find(|dtype| dtype.name() == name);
    Ok(found.ok_or_else(|| Failure::graph(format!("element type \"{name}\" is none of int8, int16, int32, int64")))?)
}
