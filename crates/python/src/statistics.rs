//! Statistics of float tensors: `tpuflow_statistics` over NumPy arrays.

use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tpuflow_statistics as statistics;
use tpuflow_statistics::{Activation, Channels, HistogramParts, Layout, Quantizer, Range, StatisticsError, Tensor};

/// Registers the functions and classes of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MANY_VALUES", statistics::MANY)?;
    module.add_class::<Histogram>()?;
    module.add_function(wrap_pyfunction!(observe, module)?)?;
    module.add_function(wrap_pyfunction!(moments, module)?)?;
    module.add_function(wrap_pyfunction!(by_channel, module)?)?;
    module.add_function(wrap_pyfunction!(channel_extrema, module)?)?;
    module.add_function(wrap_pyfunction!(channel_mse_ranges, module)?)
}

fn value_error(error: StatisticsError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A histogram of values by sign and magnitude that widens exactly as larger values arrive.
#[pyclass(module = "tpuflow._core")]
#[derive(Debug)]
struct Histogram(statistics::Histogram);

#[pymethods]
impl Histogram {
    #[new]
    fn new(bins: usize) -> PyResult<Self> {
        statistics::Histogram::new(bins).map(Self).map_err(value_error)
    }

    /// A histogram from what one consists of, as it was saved.
    ///
    /// # Errors
    /// `ValueError` if counts, width and extrema do not fit together.
    #[staticmethod]
    #[pyo3(signature = (bins, *, width, zeros, negative, positive, extrema))]
    fn of_counts(
        bins: usize,
        width: f64,
        zeros: u64,
        negative: Vec<u64>,
        positive: Vec<u64>,
        extrema: Option<(f32, f32)>,
    ) -> PyResult<Self> {
        // A width is a power of two, whose logarithm is exact; any other does not follow from the extrema.
        let exponent = (width > 0.0).then(|| width.log2() as i32);
        let extrema = extrema.map(|(min, max)| statistics::Extrema { min, max });
        let parts = HistogramParts { bins, exponent, zeros, negative, positive, extrema };
        statistics::Histogram::from_parts(parts).map(Self).map_err(value_error)
    }

    /// Adds the counts of another histogram.
    fn merge(&mut self, other: PyRef<'_, Self>) -> PyResult<()> {
        self.0.merge(&other.0).map_err(value_error)
    }

    /// Least number of bins from zero to the largest magnitude.
    #[getter]
    fn bins(&self) -> usize {
        self.0.bins()
    }

    /// Smallest and largest value counted; None before the first.
    #[getter]
    fn extrema(&self) -> Option<(f32, f32)> {
        self.0.extrema().map(|extrema| (extrema.min, extrema.max))
    }

    /// Width of a bin.
    #[getter]
    fn width(&self) -> f64 {
        self.0.width()
    }

    /// Number of values.
    #[getter]
    fn count(&self) -> u64 {
        self.0.count()
    }

    /// Number of exact zeros.
    #[getter]
    fn zeros(&self) -> u64 {
        self.0.zeros()
    }

    /// Counts below zero, by magnitude.
    #[getter]
    fn negative<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_slice(py, self.0.negative())
    }

    /// Counts above zero, by magnitude.
    #[getter]
    fn positive<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_slice(py, self.0.positive())
    }

    /// Smallest and largest value, widened to contain zero.
    #[getter]
    fn range(&self) -> Range {
        self.0.range()
    }

    /// The range cut at the magnitude that `percentile` percent of the values stay within.
    fn percentile_range(&self, percentile: f64) -> PyResult<Range> {
        statistics::percentile_range(&self.0, percentile).map_err(value_error)
    }

    /// The range of least mean squared quantisation error.
    #[pyo3(signature = (*, qmin, qmax, symmetric, clip_weight))]
    fn mse_range(&self, py: Python<'_>, qmin: i32, qmax: i32, symmetric: bool, clip_weight: f64) -> PyResult<Range> {
        let quantizer = Quantizer::new(qmin, qmax, symmetric).map_err(value_error)?;
        py.detach(|| statistics::mse_range(&self.0, quantizer, clip_weight)).map_err(value_error)
    }

    /// The range cut at the magnitude of least divergence over `levels` levels.
    fn kld_range(&self, py: Python<'_>, levels: usize) -> PyResult<Range> {
        py.detach(|| statistics::kld_range(&self.0, levels)).map_err(value_error)
    }
}

/// The statistics of one array: `(extrema, left_out, refused, sums)`.
type ObservedParts<'py> = (Option<(f32, f32)>, u64, u64, Bound<'py, PyArray1<f64>>);

/// Per array its extrema (none without values), the number of values left out as masks, the number of
/// those that are NaN or positive infinity, and the sums of slices along an axis, where one is named.
///
/// Its values are counted in its histogram, if there are histograms; nothing of an array that has any of
/// the last kind. Of arrays of more than 65536 values a part stands for all, unless the `whole` is counted.
#[pyfunction]
#[pyo3(signature = (arrays, histograms, axes, *, whole = true))]
fn observe<'py>(
    py: Python<'py>,
    arrays: Vec<PyReadonlyArrayDyn<'py, f32>>,
    mut histograms: Vec<PyRefMut<'py, Histogram>>,
    axes: Vec<Option<usize>>,
    whole: bool,
) -> PyResult<Vec<ObservedParts<'py>>> {
    if axes.len() != arrays.len() {
        return Err(PyValueError::new_err(format!("{} axes of {} arrays", axes.len(), arrays.len())));
    }
    let tensors =
        arrays.iter().zip(axes).map(|(array, axis)| tensor(array, axis, whole)).collect::<PyResult<Vec<_>>>()?;
    let mut histograms: Vec<_> = histograms.iter_mut().map(|histogram| &mut histogram.0).collect();
    let found = py.detach(|| statistics::observe(&tensors, &mut histograms)).map_err(value_error)?;
    found
        .into_iter()
        .map(|seen| match seen {
            Ok(seen) => Ok((seen.extrema.map(|e| (e.min, e.max)), seen.left_out, 0, seen.sums.into_pyarray(py))),
            Err(StatisticsError::NotFinite(refused)) => Ok((None, 0, refused as u64, Vec::new().into_pyarray(py))),
            Err(error) => Err(value_error(error)),
        })
        .collect()
}

fn tensor<'a>(array: &'a PyReadonlyArrayDyn<'_, f32>, axis: Option<usize>, all: bool) -> PyResult<Tensor<'a>> {
    let layout = axis.map(|axis| split(array.shape(), axis)).transpose()?;
    let layout = layout.map(|(_, channels, inner)| Layout { channels, inner });
    Ok(Tensor { values: row_major(array)?, layout, all })
}

/// Elements in their order; NumPy's own `as_slice` also takes column-major arrays, whose elements lie in another.
fn row_major<'a>(array: &'a PyReadonlyArrayDyn<'_, f32>) -> PyResult<&'a [f32]> {
    array.as_array().to_slice().ok_or_else(|| PyValueError::new_err("the array is not row-major"))
}

/// Products of what is before an axis, its length, and of what follows it.
fn split(shape: &[usize], axis: usize) -> PyResult<(usize, usize, usize)> {
    match shape.get(axis) {
        Some(&length) => Ok((shape[..axis].iter().product(), length, shape[axis + 1..].iter().product())),
        None => Err(PyValueError::new_err(format!("axis {axis} of an array of {} axes", shape.len()))),
    }
}

/// `(count, mean, sum of squared deviations)`.
#[pyfunction]
fn moments(py: Python<'_>, values: PyReadonlyArrayDyn<'_, f32>) -> PyResult<(u64, f64, f64)> {
    let values = values.as_slice()?;
    let found = py.detach(|| statistics::moments(values));
    Ok((found.count, found.mean, found.squares))
}

/// Smallest and largest value and mean square of the channels of every array: `[3, channels]`.
///
/// `kept` says for every axis of an array whether it tells channels apart; they are in row-major order over those that do.
#[pyfunction]
fn by_channel<'py>(
    py: Python<'py>,
    arrays: Vec<PyReadonlyArrayDyn<'py, f32>>,
    kept: Vec<Vec<bool>>,
) -> PyResult<Vec<Bound<'py, PyArray2<f64>>>> {
    if kept.len() != arrays.len() {
        return Err(PyValueError::new_err(format!("axes of {} arrays, for {}", kept.len(), arrays.len())));
    }
    let tensors = arrays
        .iter()
        .zip(&kept)
        .map(|(array, kept)| Activation::new(row_major(array)?, array.shape(), kept).map_err(value_error))
        .collect::<PyResult<Vec<_>>>()?;
    let found = py.detach(|| statistics::by_channel(&tensors));
    Ok(found
        .into_iter()
        .map(|each| {
            let channels = each.square.len();
            let extrema = each.low.into_iter().chain(each.high).map(f64::from);
            let flat = extrema.chain(each.square).collect();
            Array2::from_shape_vec((3, channels), flat).expect("three rows").into_pyarray(py)
        })
        .collect())
}

/// Smallest and largest value, with zero, of every slice along `axis`: `[channels, 2]`.
#[pyfunction]
fn channel_extrema<'py>(
    py: Python<'py>,
    values: PyReadonlyArrayDyn<'py, f32>,
    axis: usize,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let channels = channels(&values, axis)?;
    Ok(ranges(py, py.detach(|| statistics::channel_extrema(channels))))
}

/// The range of least mean squared quantisation error of every slice along `axis`: `[channels, 2]`.
#[pyfunction]
#[pyo3(signature = (values, axis, *, qmin, qmax, symmetric))]
fn channel_mse_ranges<'py>(
    py: Python<'py>,
    values: PyReadonlyArrayDyn<'py, f32>,
    axis: usize,
    qmin: i32,
    qmax: i32,
    symmetric: bool,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let quantizer = Quantizer::new(qmin, qmax, symmetric).map_err(value_error)?;
    let channels = channels(&values, axis)?;
    Ok(ranges(py, py.detach(|| statistics::channel_mse_ranges(channels, quantizer))))
}

fn channels<'a>(values: &'a PyReadonlyArrayDyn<'_, f32>, axis: usize) -> PyResult<Channels<'a>> {
    let (outer, length, inner) = split(values.shape(), axis)?;
    Channels::new(row_major(values)?, outer, length, inner).map_err(value_error)
}

fn ranges(py: Python<'_>, ranges: Vec<Range>) -> Bound<'_, PyArray2<f64>> {
    let rows = ranges.len();
    let flat = ranges.into_iter().flat_map(|(low, high)| [low, high]).collect();
    Array2::from_shape_vec((rows, 2), flat).expect("two numbers a row").into_pyarray(py)
}
