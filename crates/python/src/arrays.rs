//! NumPy arrays to and from the kernels' values. Of 16-bit floats NumPy knows one and `ml_dtypes` the other; both are passed
//! as their bits.

use numpy::{Element, IxDyn, PyArray, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tpuflow_ir::DType;
use tpuflow_kernels::{BF16, F16, Values};

use crate::error::Failure;

/// Shape and elements (copied, row-major) of an array of one of the types of tensors; `what` names it in the error.
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
    let half = |name: &str| -> PyResult<Option<Vec<u16>>> {
        let named: String = untyped.dtype().getattr("name")?.extract()?;
        if named == name { Ok(elements(&array.call_method1("view", ("uint16",))?)) } else { Ok(None) }
    };
    let (half, brain) = (half(DType::F16.name())?, half(DType::BF16.name())?);
    let values = elements(array)
        .map(Values::I8)
        .or_else(|| elements(array).map(Values::I16))
        .or_else(|| elements(array).map(Values::I32))
        .or_else(|| elements(array).map(Values::I64))
        .or_else(|| elements(array).map(Values::F32))
        .or_else(|| half.map(|bits| Values::F16(bits.into_iter().map(F16).collect())))
        .or_else(|| brain.map(|bits| Values::BF16(bits.into_iter().map(BF16).collect())))
        .ok_or_else(|| Failure::sample(format!("{what} is {}, expected {}", untyped.dtype(), names())))?;
    Ok((untyped.shape().to_vec(), values))
}

/// An array of the given shape.
pub fn array<'py>(py: Python<'py>, shape: &[usize], values: &Values) -> PyResult<Bound<'py, PyAny>> {
    fn new_array<'py, T: Element + Copy>(py: Python<'py>, shape: &[usize], slice: &[T]) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyArray::from_slice(py, slice).reshape(IxDyn(shape))?.into_any())
    }
    match values {
        Values::I8(v) => new_array(py, shape, v),
        Values::I16(v) => new_array(py, shape, v),
        Values::I32(v) => new_array(py, shape, v),
        Values::I64(v) => new_array(py, shape, v),
        Values::F32(v) => new_array(py, shape, v),
        Values::F16(v) => {
            let bits: Vec<u16> = v.iter().map(|x| x.0).collect();
            new_array(py, shape, &bits)?.call_method1("view", ("float16",))
        }
        Values::BF16(v) => {
            let bits: Vec<u16> = v.iter().map(|x| x.0).collect();
            let dtype = py.import("ml_dtypes")?.getattr("bfloat16")?;
            new_array(py, shape, &bits)?.call_method1("view", (dtype,))
        }
    }
}

/// The element type NumPy calls `name`.
pub fn dtype(name: &str) -> PyResult<DType> {
    let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
    Ok(found.ok_or_else(|| Failure::graph(format!("element type \"{name}\" is none of {}", names())))?)
}

fn names() -> String {
    DType::ALL.map(DType::name).join(", ")
}
