//! Operators of a graph: one function per operator, with a parameter per field.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use tpuflow_ir::op::{
    Average, BinaryKind, Epilogue, Exponentials, FloatNorm, FloatReduction, FloatSlopes, LinearTap, Norm, PadMode,
    ReduceKind, Slopes, Table,
};
use tpuflow_ir::{Arithmetic, Finish, Op, Real, Requant, TableEntry, TensorId, Window};

use crate::error::Failure;

/// Registers the class of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Operator>()
}

/// A part of an operator with fields of its own, from dictionaries, lists, texts and numbers.
struct Fields<T>(T);

impl<'py, T: DeserializeOwned> FromPyObject<'_, 'py> for Fields<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let fail = |error: serde_json::Error| PyErr::from(Failure::graph(error.to_string()));
        serde_json::from_value(value(&object)?).map(Self).map_err(fail)
    }
}

/// An object of Python as a value without a type. Whole numbers and floats may be those of NumPy.
fn value(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    if object.is_none() {
        Ok(Value::Null)
    } else if let Ok(truth) = object.cast::<PyBool>() {
        Ok(Value::Bool(truth.is_true()))
    } else if let Ok(text) = object.cast::<PyString>() {
        Ok(Value::String(text.to_str()?.to_owned()))
    } else if let Ok(fields) = object.cast::<PyDict>() {
        let entry = |(key, item): (Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((key.extract()?, value(&item)?));
        fields.iter().map(entry).collect::<PyResult<Map<_, _>>>().map(Value::Object)
    } else if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        object.try_iter()?.map(|item| value(&item?)).collect::<PyResult<Vec<_>>>().map(Value::Array)
    } else if object.is_instance_of::<PyInt>() || !object.is_instance_of::<PyFloat>() && object.hasattr("__index__")? {
        object.extract::<i64>().map(Value::from).or_else(|_| object.extract::<u64>().map(Value::from))
    } else {
        let number: f64 = object.extract()?;
        let finite = Number::from_f64(number).map(Value::Number);
        // The words of [`Real`].
        Ok(finite.unwrap_or_else(|| {
            Value::from(if number.is_nan() {
                "nan"
            } else if number > 0.0 {
                "inf"
            } else {
                "-inf"
            })
        }))
    }
}

/// An operator, not yet part of a graph. Tensors are given by the numbers that `GraphBuilder` gave them.
#[pyclass(module = "tpuflow._core", name = "Op", frozen)]
pub struct Operator(pub Op);

#[pymethods]
impl Operator {
    /// 2-D convolution.
    #[staticmethod]
    #[pyo3(signature = (*, input, weights, bias, window, groups, epilogue))]
    fn conv(
        input: u32,
        weights: u32,
        bias: u32,
        window: Fields<Window>,
        groups: u32,
        epilogue: Fields<Arithmetic<Epilogue>>,
    ) -> Self {
        let (input, weights, bias) = (TensorId(input), TensorId(weights), TensorId(bias));
        Self(Op::Conv { input, weights, bias, window: window.0, groups, epilogue: epilogue.0 })
    }

    /// Matrix product.
    #[staticmethod]
    #[pyo3(signature = (*, a, b, epilogue, bias=None))]
    fn mat_mul(a: u32, b: u32, epilogue: Fields<Arithmetic<Epilogue>>, bias: Option<u32>) -> Self {
        let (a, b, bias, epilogue) = (TensorId(a), TensorId(b), bias.map(TensorId), epilogue.0);
        Self(Op::MatMul { a, b, bias, epilogue, partial: false })
    }

    /// Maximum over windows.
    #[staticmethod]
    #[pyo3(signature = (*, input, window))]
    fn max_pool(input: u32, window: Fields<Window>) -> Self {
        Self(Op::MaxPool { input: TensorId(input), window: window.0 })
    }

    /// Average over windows.
    #[staticmethod]
    #[pyo3(signature = (*, input, window, count_include_pad, beyond, average))]
    fn average_pool(
        input: u32,
        window: Fields<Window>,
        count_include_pad: bool,
        beyond: [u32; 2],
        average: Fields<Arithmetic<Average>>,
    ) -> Self {
        let (input, window, average) = (TensorId(input), window.0, average.0);
        Self(Op::AveragePool { input, window, count_include_pad, beyond, average })
    }

    /// Function of two tensors.
    #[staticmethod]
    #[pyo3(signature = (*, kind, a, b, ka, kb, requant))]
    fn binary(
        kind: Fields<BinaryKind>,
        a: u32,
        b: u32,
        ka: i32,
        kb: i32,
        requant: Fields<Arithmetic<Requant>>,
    ) -> Self {
        Self(Op::Binary { kind: kind.0, a: TensorId(a), b: TensorId(b), ka, kb, requant: requant.0 })
    }

    /// Function of one tensor.
    #[staticmethod]
    #[pyo3(signature = (*, input, function))]
    fn unary(input: u32, function: Fields<Arithmetic<Table>>) -> Self {
        Self(Op::Unary { input: TensorId(input), function: function.0 })
    }

    /// Change of scale, zero point, element type or range.
    #[staticmethod]
    #[pyo3(signature = (*, input, requant))]
    fn rescale(input: u32, requant: Fields<Arithmetic<Requant>>) -> Self {
        Self(Op::Rescale { input: TensorId(input), requant: requant.0 })
    }

    /// Floats to codes.
    #[staticmethod]
    #[pyo3(signature = (*, input, scale, zero_point, lo, hi))]
    fn quantize(input: u32, scale: f64, zero_point: i32, lo: i32, hi: i32) -> Self {
        Self(Op::Quantize { input: TensorId(input), scale: Real::new(scale), zero_point, lo, hi })
    }

    /// Codes to floats.
    #[staticmethod]
    #[pyo3(signature = (*, input, scale, finish))]
    fn dequantize(input: u32, scale: f64, finish: Fields<Finish>) -> Self {
        Self(Op::Dequantize { input: TensorId(input), scale: Real::new(scale), finish: finish.0 })
    }

    /// Piecewise linear function.
    #[staticmethod]
    #[pyo3(signature = (*, input, slopes))]
    fn p_relu(input: u32, slopes: Fields<Arithmetic<Slopes, FloatSlopes>>) -> Self {
        Self(Op::PRelu { input: TensorId(input), slopes: slopes.0 })
    }

    /// Softmax over the last axis.
    #[staticmethod]
    #[pyo3(signature = (*, input, exponentials, mask=None))]
    fn softmax(input: u32, exponentials: Fields<Arithmetic<Exponentials>>, mask: Option<u32>) -> Self {
        let (input, exponentials, mask) = (TensorId(input), exponentials.0, mask.map(TensorId));
        Self(Op::Softmax { input, exponentials, mask, statistics: None })
    }

    /// Normalisation over the last axis.
    #[staticmethod]
    #[pyo3(signature = (*, input, gamma, beta, center, norm))]
    fn layer_norm(input: u32, gamma: u32, beta: u32, center: bool, norm: Fields<Arithmetic<Norm, FloatNorm>>) -> Self {
        let (input, gamma, beta) = (TensorId(input), TensorId(gamma), TensorId(beta));
        Self(Op::LayerNorm { input, gamma, beta, center, norm: norm.0 })
    }

    /// Reduction over axes.
    #[staticmethod]
    #[pyo3(signature = (*, input, kind, axes, requant))]
    fn reduce(
        input: u32,
        kind: Fields<ReduceKind>,
        axes: Vec<u32>,
        requant: Fields<Arithmetic<Requant, FloatReduction>>,
    ) -> Self {
        Self(Op::Reduce { input: TensorId(input), kind: kind.0, axes, requant: requant.0 })
    }

    /// Index of the largest or smallest element along the last axis.
    #[staticmethod]
    #[pyo3(signature = (*, input, largest, select_last))]
    fn arg_max(input: u32, largest: bool, select_last: bool) -> Self {
        Self(Op::ArgMax { input: TensorId(input), largest, select_last })
    }

    /// Concatenation.
    #[staticmethod]
    #[pyo3(signature = (*, inputs, axis, requants))]
    fn concat(inputs: Vec<u32>, axis: u32, requants: Fields<Vec<Option<Requant>>>) -> Self {
        let inputs = inputs.into_iter().map(TensorId).collect();
        Self(Op::Concat { inputs, axis, requants: requants.0 })
    }

    /// Padding of any axis.
    #[staticmethod]
    #[pyo3(signature = (*, input, before, after, mode))]
    fn pad(input: u32, before: Vec<u32>, after: Vec<u32>, mode: Fields<PadMode>) -> Self {
        Self(Op::Pad { input: TensorId(input), before, after, mode: mode.0 })
    }

    /// Movement of elements.
    #[staticmethod]
    #[pyo3(signature = (*, input, dims, strides, offset))]
    fn rearrange(input: u32, dims: Vec<u32>, strides: Vec<i64>, offset: i64) -> Self {
        Self(Op::Rearrange { input: TensorId(input), dims, strides, offset })
    }

    /// Picks indices along an axis.
    #[staticmethod]
    #[pyo3(signature = (*, input, axis, indices))]
    fn gather(input: u32, axis: u32, indices: Vec<u32>) -> Self {
        Self(Op::Gather { input: TensorId(input), axis, indices })
    }

    /// Entries of a constant table by run-time index: rows, or of a packed one columns or so many rows each.
    #[staticmethod]
    #[pyo3(signature = (*, table, indices, entry=None))]
    fn embedding(table: u32, indices: u32, entry: Option<Fields<TableEntry>>) -> Self {
        let entry = entry.map(|entry| entry.0).unwrap_or_default();
        Self(Op::Embedding { table: TensorId(table), indices: TensorId(indices), entry })
    }

    /// Separable linear resize.
    #[staticmethod]
    #[pyo3(signature = (*, input, rows, columns))]
    fn resize_linear(input: u32, rows: Fields<Vec<LinearTap>>, columns: Fields<Vec<LinearTap>>) -> Self {
        Self(Op::ResizeLinear { input: TensorId(input), rows: rows.0, columns: columns.0 })
    }

    /// Zero points between neighbours.
    #[staticmethod]
    #[pyo3(signature = (*, input, stride))]
    fn insert_zeros(input: u32, stride: [u32; 2]) -> Self {
        Self(Op::InsertZeros { input: TensorId(input), stride })
    }

    /// One of two tensors by a condition.
    #[staticmethod]
    #[pyo3(signature = (*, condition, a, b))]
    fn select(condition: u32, a: u32, b: u32) -> Self {
        Self(Op::Select { condition: TensorId(condition), a: TensorId(a), b: TensorId(b) })
    }

    fn __repr__(&self) -> String {
        format!("Op({:?})", self.0)
    }
}
