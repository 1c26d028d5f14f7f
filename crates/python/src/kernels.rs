//! Single kernels on arrays, for tests and experiments.

use numpy::{IxDyn, PyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tpuflow_ir::{DType, Requant};
use tpuflow_kernels::gemm::{PackedI8, PackedI16, Rows};
use tpuflow_kernels::requant::ACCUMULATOR_LIMIT;
use tpuflow_kernels::table::Lookup;
use tpuflow_kernels::{Isa, Values, requant, table};

use crate::arrays;
use crate::error::Failure;

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(approximate, module)?)?;
    module.add_function(wrap_pyfunction!(requantize, module)?)?;
    module.add_function(wrap_pyfunction!(lookup, module)?)?;
    module.add_function(wrap_pyfunction!(gemm, module)?)
}

/// `(M, N)` with `factor ~ M * 2^-N`, or None where no pair the machine holds comes near.
#[pyfunction]
#[pyo3(signature = (factor, bits=15, max_shift=31))]
fn approximate(factor: f64, bits: u32, max_shift: i32) -> Option<(i32, i8)> {
    tpuflow_ir::quant::approximate(factor, bits, max_shift)
}

/// `clamp(RNE(accumulators * M * 2^-N) + Z, lo, hi)`; M and N hold one entry, or one per index of the last axis.
#[pyfunction]
fn requantize<'py>(
    py: Python<'py>,
    accumulators: PyReadonlyArrayDyn<'py, i64>,
    multiplier: Vec<i32>,
    shift: Vec<i8>,
    zero_point: i32,
    lo: i32,
    hi: i32,
) -> PyResult<Bound<'py, PyArrayDyn<i32>>> {
    let channels = accumulators.shape().last().copied().unwrap_or(1);
    if multiplier.len() != shift.len() || (multiplier.len() != 1 && multiplier.len() != channels) || lo > hi {
        return Err(Failure::graph(format!("{} multipliers for {channels} channels", multiplier.len())).into());
    }
    let inside = |x: &i64| (-ACCUMULATOR_LIMIT..=ACCUMULATOR_LIMIT).contains(x);
    if let Some(x) = accumulators.as_array().iter().find(|x| !inside(x)) {
        return Err(Failure::graph(format!("accumulator {x} exceeds 48 bits")).into());
    }
    let parameters = Requant { multiplier, shift, zero_point, lo, hi };
    let elements = accumulators.as_array();
    let codes: Vec<i32> =
        elements.iter().enumerate().map(|(i, &x)| requant::requantize(x, &parameters, i % channels)).collect();
    PyArray::from_vec(py, codes).reshape(IxDyn(accumulators.shape()))
}

/// The table's value at every code of an int8 or int16 array.
#[pyfunction]
fn lookup<'py>(
    py: Python<'py>,
    entries: PyReadonlyArrayDyn<'py, i32>,
    codes: &Bound<'py, PyAny>,
    lo: i32,
    hi: i32,
) -> PyResult<Bound<'py, PyAny>> {
    let (shape, values) = arrays::values(codes, "codes")?;
    let bits = values.dtype().bits();
    if bits > 16 {
        return Err(Failure::graph(format!("a table for {bits}-bit codes (at most 16)")).into());
    }
    let entries = entries.as_array().iter().copied().collect();
    let table =
        Lookup::new(entries, bits, lo.max(-32768), hi.min(32767)).map_err(|error| Failure::graph(error.to_string()))?;
    let mut result = Values::zeros(DType::I16, values.len());
    match (&values, &mut result) {
        (Values::I8(x), Values::I16(y)) => table::lookup(&table, x, y),
        (Values::I16(x), Values::I16(y)) => table::lookup(&table, x, y),
        _ => unreachable!("wider codes were refused"),
    }
    arrays::array(py, &shape, &result)
}

/// `a[m,k] · b[k,n]`: int32 for two int8 operands (modulo 2^32), int64 otherwise.
#[pyfunction]
fn gemm<'py>(py: Python<'py>, a: &Bound<'py, PyAny>, b: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let ((a_shape, a), (b_shape, b)) = (arrays::values(a, "a")?, arrays::values(b, "b")?);
    let (&[m, k], &[rows, n]) = (&a_shape[..], &b_shape[..]) else {
        return Err(Failure::graph(format!("{a_shape:?} and {b_shape:?} are no matrices")).into());
    };
    if k != rows || [a.dtype(), b.dtype()].iter().any(|d| d.bits() > 16) {
        return Err(Failure::graph(format!("{a_shape:?} and {b_shape:?} of int8 or int16 do not fit")).into());
    }
    Isa::check().map_err(Failure::from)?;
    let isa = Isa::selected();
    let (mut narrow, mut wide) = (vec![0; m * n], vec![0; m * n]);
    let mut rows = Rows::default();
    let product = match (&a, &b) {
        (Values::I8(a), Values::I8(b)) => {
            PackedI8::new(isa, b, k, n, [n, 1]).multiply(a, &mut narrow, &mut rows);
            Values::I32(narrow)
        }
        (Values::I8(a), Values::I16(b)) => {
            PackedI16::new(isa, b, k, n, [n, 1]).multiply(a, &mut wide, &mut rows);
            Values::I64(wide)
        }
        (Values::I16(a), Values::I8(b)) => {
            PackedI16::new(isa, b, k, n, [n, 1]).multiply(a, &mut wide, &mut rows);
            Values::I64(wide)
        }
        (Values::I16(a), Values::I16(b)) => {
            PackedI16::new(isa, b, k, n, [n, 1]).multiply(a, &mut wide, &mut rows);
            Values::I64(wide)
        }
        _ => unreachable!("wider codes were refused"),
    };
    arrays::array(py, &[m, n], &product)
}
