//! Building, saving, loading and running quantised graphs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tpuflow_ir::{Packed, Quant, Source, State, Tensor, TensorId};
use tpuflow_kernels::Values;
use tpuflow_simulator::{Interpreter, Keep, StateRows, Tensors};

use crate::arrays;
use crate::error::Failure;
use crate::operators::Operator;

/// Rows of a block, codes, scales and zero points.
type PackedArrays<'py> = (u32, Bytes2<'py>, Bytes2<'py>, Option<Bytes2<'py>>, bool);
type Bytes2<'py> = Bound<'py, PyArray2<u8>>;

/// Registers the classes of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GraphBuilder>()?;
    module.add_class::<GraphTensor>()?;
    module.add_class::<GraphLayer>()?;
    module.add_class::<GraphState>()?;
    module.add_class::<Graph>()
}

/// One scale, or one per channel.
#[derive(FromPyObject)]
enum Scale {
    One(f32),
    Many(Vec<f32>),
}

fn quant(scale: Option<Scale>, zero_point: i32) -> Option<Quant> {
    let scale = match scale? {
        Scale::One(scale) => vec![scale],
        Scale::Many(scales) => scales,
    };
    Some(Quant { scale, zero_point })
}

fn source(name: &str, json: Option<&str>) -> Result<Option<Source>, Failure> {
    let parse = |json| serde_json::from_str(json);
    json.map(parse).transpose().map_err(|error| Failure::graph(format!("source of \"{name}\": {error}")))
}

/// Builds a graph layer by layer; tensors are numbered in the order they are added.
#[pyclass(module = "tpuflow._core")]
struct GraphBuilder(tpuflow_ir::GraphBuilder);

#[pymethods]
impl GraphBuilder {
    #[new]
    fn new(name: &str) -> Self {
        Self(tpuflow_ir::GraphBuilder::new(name))
    }

    /// Adds an input and returns its number.
    #[pyo3(signature = (name, shape, dtype, scale=None, zero_point=0, source_json=None))]
    fn input(
        &mut self,
        name: String,
        shape: Vec<usize>,
        dtype: &str,
        scale: Option<Scale>,
        zero_point: i32,
        source_json: Option<&str>,
    ) -> PyResult<u32> {
        let source = source(&name, source_json)?;
        let (dtype, quant) = (arrays::dtype(dtype)?, quant(scale, zero_point));
        let tensor = Tensor { name, shape, dtype, quant, source, constant: None, packed: None };
        Ok(self.0.input(tensor).map_err(Failure::from)?.0)
    }

    /// Adds a constant of the array's element type and returns its number.
    #[pyo3(signature = (name, array, scale=None, zero_point=0))]
    fn constant(
        &mut self,
        name: String,
        array: &Bound<'_, PyAny>,
        scale: Option<Scale>,
        zero_point: i32,
    ) -> PyResult<u32> {
        let (shape, values) = arrays::values(array, &format!("constant \"{name}\""))?;
        let constant = Some(values.to_le_bytes().into());
        let tensor = Tensor {
            name,
            shape,
            dtype: values.dtype(),
            quant: quant(scale, zero_point),
            source: None,
            constant,
            packed: None,
        };
        Ok(self.0.constant(tensor).map_err(Failure::from)?.0)
    }

    /// Adds an int8 constant of two axes as codes of 4 bits in blocks of rows and returns its number.
    #[pyo3(signature = (name, codes, scales, zero_points=None, *, block, scale=None, is_float=false))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn packed_constant(
        &mut self,
        name: String,
        codes: PyReadonlyArray2<'_, u8>,
        scales: PyReadonlyArray2<'_, u8>,
        zero_points: Option<PyReadonlyArray2<'_, u8>>,
        block: u32,
        scale: Option<Scale>,
        is_float: bool,
    ) -> PyResult<u32> {
        let fail = |reason: String| Failure::graph(format!("constant \"{name}\": {reason}"));
        let dense = |array: &PyReadonlyArray2<'_, u8>| -> Vec<u8> {
            array.as_slice().map_or_else(|_| array.as_array().iter().copied().collect(), <[u8]>::to_vec)
        };
        let (shape, codes) = (codes.shape().to_vec(), dense(&codes));
        if let Some(code) = codes.iter().find(|&&code| code > 15) {
            return Err(fail(format!("codes of packed weights are 0 to 15, not {code}")).into());
        }
        let pairs = codes.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4);
        let packed = Packed {
            block,
            has_zero_points: zero_points.is_some(),
            is_float,
            codes: pairs.collect::<Vec<u8>>().into(),
            scales: dense(&scales).into(),
            zero_points: zero_points.as_ref().map_or_else(Vec::new, dense).into(),
        };
        packed.check(&shape).map_err(|error| fail(error.to_string()))?;
        let (constant, quant) = (Some(packed.expand(&shape).into()), quant(scale, 0));
        let dtype = tpuflow_ir::DType::I8;
        let tensor = Tensor { name, shape, dtype, quant, source: None, constant, packed: Some(packed) };
        Ok(self.0.constant(tensor).map_err(Failure::from)?.0)
    }

    /// Adds a layer and its output tensor, whose number is returned.
    #[pyo3(signature = (name, op, output_name, shape, dtype, scale=None, zero_point=0, source_json=None, nodes=vec![]))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python method")]
    fn layer(
        &mut self,
        name: &str,
        op: &Operator,
        output_name: String,
        shape: Vec<usize>,
        dtype: &str,
        scale: Option<Scale>,
        zero_point: i32,
        source_json: Option<&str>,
        nodes: Vec<String>,
    ) -> PyResult<u32> {
        let source = source(&output_name, source_json)?;
        let (dtype, quant) = (arrays::dtype(dtype)?, quant(scale, zero_point));
        let output = Tensor { name: output_name, shape, dtype, quant, source, constant: None, packed: None };
        Ok(self.0.layer(name, op.0.clone(), output, nodes).map_err(Failure::from)?.0)
    }

    /// Says how many products of the model a sum of the last layer is made of, where it has others that are zero by construction.
    fn terms(&mut self, terms: u32) {
        self.0.terms(terms);
    }

    /// Marks a tensor as output.
    fn output(&mut self, tensor: u32) {
        self.0.output(TensorId(tensor));
    }

    /// Declares that the rows of an input along an axis stay on the device, and those of an output are appended to them.
    fn state(&mut self, past: u32, new: u32, axis: u32) {
        self.0.state(State { input: past, output: new, axis });
    }

    /// The finished graph; the builder can go on being used.
    fn finish(&self) -> PyResult<Graph> {
        Ok(Graph::new(self.0.clone().finish().map_err(Failure::from)?))
    }
}

/// A tensor of a graph.
#[pyclass(module = "tpuflow._core", name = "Tensor", frozen, get_all)]
struct GraphTensor {
    name: String,
    shape: Vec<usize>,
    dtype: &'static str,
    scale: Option<Vec<f32>>,
    zero_point: i32,
    is_constant: bool,
    source_json: Option<String>,
}

/// A layer of a graph.
#[pyclass(module = "tpuflow._core", name = "Layer", frozen, get_all)]
struct GraphLayer {
    name: String,
    op: &'static str,
    op_json: String,
    operands: Vec<u32>,
    output: u32,
    nodes: Vec<String>,
    macs: u64,
}

/// A quantised network, immutable.
#[pyclass(module = "tpuflow._core", frozen)]
pub struct Graph {
    /// The graph.
    pub graph: Arc<tpuflow_ir::Graph>,
    /// Made by the first run, which others that meet it wait for.
    interpreter: Mutex<Option<Arc<Interpreter>>>,
}

impl Graph {
    /// Wraps a finished graph.
    pub fn new(graph: tpuflow_ir::Graph) -> Self {
        Self { graph: Arc::new(graph), interpreter: Mutex::default() }
    }

    fn interpreter(&self) -> Result<Arc<Interpreter>, Failure> {
        let mut held = self.interpreter.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = &*held {
            return Ok(Arc::clone(ready));
        }
        let made = Arc::new(Interpreter::new(Arc::clone(&self.graph))?);
        *held = Some(Arc::clone(&made));
        Ok(made)
    }

    /// The arrays of `inputs`, a dictionary by name or a list in the graph's order; without `states` those of no state.
    fn extract(&self, inputs: &Bound<'_, PyAny>, states: bool) -> PyResult<Vec<Values>> {
        let is_state = |number: usize| self.graph.states.iter().any(|state| state.input as usize == number);
        let wanted = self.graph.inputs.iter().enumerate().filter(|&(number, _)| states || !is_state(number));
        let tensors: Vec<&Tensor> = wanted.map(|(_, &id)| self.graph.tensor(id)).collect();
        let arrays: Vec<Bound<'_, PyAny>> = if let Ok(by_name) = inputs.cast::<PyDict>() {
            for name in by_name.keys() {
                let name: String = name.extract()?;
                if !tensors.iter().any(|t| t.name == name) {
                    return Err(Failure::sample(format!("\"{}\" has no input \"{name}\"", self.graph.name)).into());
                }
            }
            let find = |tensor: &&Tensor| -> PyResult<Bound<'_, PyAny>> {
                let found = by_name.get_item(&tensor.name)?;
                Ok(found.ok_or_else(|| Failure::sample(format!("input \"{}\" is missing", tensor.name)))?)
            };
            tensors.iter().map(find).collect::<PyResult<_>>()?
        } else {
            inputs.cast::<PyList>()?.iter().collect()
        };
        let mut extracted = Vec::with_capacity(arrays.len());
        for (i, array) in arrays.iter().enumerate() {
            let name = tensors.get(i).map_or_else(|| format!("input {i}"), |t| format!("input \"{}\"", t.name));
            let (shape, values) = arrays::values(array, &name)?;
            if let Some(tensor) = tensors.get(i)
                && shape != tensor.shape
            {
                return Err(Failure::sample(format!("{name} has shape {shape:?}, expected {:?}", tensor.shape)).into());
            }
            extracted.push(values);
        }
        Ok(extracted)
    }

    /// The activations of these names.
    fn activations(&self, names: &[String]) -> Result<Vec<TensorId>, Failure> {
        let mut by_name = HashMap::new();
        for (number, tensor) in self.graph.tensors.iter().enumerate().filter(|(_, tensor)| tensor.constant.is_none()) {
            by_name.insert(tensor.name.as_str(), TensorId::new(number));
        }
        let id = |name: &String| {
            let found = by_name.get(name.as_str()).copied();
            found.ok_or_else(|| Failure::sample(format!("\"{}\" computes no tensor \"{name}\"", self.graph.name)))
        };
        names.iter().map(id).collect()
    }

    /// Tensors of a run by name.
    fn arrays_of<'py>(&self, py: Python<'py>, tensors: &Tensors) -> PyResult<Bound<'py, PyDict>> {
        let result = PyDict::new(py);
        for (id, values) in tensors.iter() {
            let tensor = self.graph.tensor(id);
            result.set_item(&tensor.name, arrays::array(py, &tensor.shape, values)?)?;
        }
        Ok(result)
    }
}

/// Rows of the states of some graphs of one network, from run to run.
#[pyclass(module = "tpuflow._core", frozen)]
struct GraphState(Mutex<StateRows>);

impl GraphState {
    fn rows(&self) -> MutexGuard<'_, StateRows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl GraphState {
    /// Of as many rows as the longest past of these graphs has, none of them written.
    #[new]
    fn new(graphs: Vec<PyRef<'_, Graph>>) -> PyResult<Self> {
        let rows = StateRows::new(graphs.iter().map(|graph| &*graph.graph)).map_err(Failure::from)?;
        Ok(Self(Mutex::new(rows)))
    }

    /// Rows that were written.
    #[getter]
    fn rows_written(&self) -> usize {
        self.rows().count()
    }

    /// Replaces all rows by the first `count` of the arrays, codes of the longest past, one per state.
    fn write(&self, arrays: Vec<Bound<'_, PyAny>>, count: usize) -> PyResult<()> {
        let values = arrays.iter().map(|array| Ok(arrays::values(array, "an array of rows")?.1));
        let values = values.collect::<PyResult<Vec<_>>>()?;
        Ok(self.rows().write(values, count).map_err(Failure::from)?)
    }

    /// Forgets all rows.
    fn reset(&self) {
        self.rows().truncate(0);
    }
}

#[pymethods]
impl Graph {
    /// Name of the network.
    #[getter]
    fn name(&self) -> &str {
        &self.graph.name
    }

    /// All tensors, by number.
    #[getter]
    fn tensors(&self) -> PyResult<Vec<GraphTensor>> {
        let made = |t: &Tensor| {
            let source_json = t.source.as_ref().map(serde_json::to_string).transpose();
            let source_json = source_json.map_err(|error| Failure::graph(error.to_string()))?;
            Ok(GraphTensor {
                name: t.name.clone(),
                shape: t.shape.clone(),
                dtype: t.dtype.name(),
                scale: t.quant.as_ref().map(|q| q.scale.clone()),
                zero_point: t.zero_point(),
                is_constant: t.constant.is_some(),
                source_json,
            })
        };
        self.graph.tensors.iter().map(made).collect()
    }

    /// Inputs whose rows stay on the device from run to run, and the outputs that are appended to them: numbers of tensors.
    #[getter]
    fn states(&self) -> Vec<(u32, u32)> {
        let ports = self.graph.states.iter();
        ports.map(|s| (self.graph.inputs[s.input as usize].0, self.graph.outputs[s.output as usize].0)).collect()
    }

    /// Outputs that are parts of tensors, and the inputs that are the parts of all devices, by rank: numbers of ports.
    #[getter]
    fn exchanges(&self) -> Vec<(u32, Vec<u32>)> {
        self.graph.exchanges.iter().map(|exchange| (exchange.output, exchange.inputs.clone())).collect()
    }

    /// The graph of so many independent runs: inputs, layers and outputs run by run, constants once.
    fn repeated(&self, runs: u32) -> Self {
        Self::new(self.graph.repeated(runs))
    }

    /// All layers in order.
    #[getter]
    fn layers(&self) -> PyResult<Vec<GraphLayer>> {
        let made = |layer: &tpuflow_ir::Layer| {
            Ok(GraphLayer {
                name: layer.name.clone(),
                op: layer.op.name(),
                op_json: serde_json::to_string(&layer.op).map_err(|error| Failure::graph(error.to_string()))?,
                operands: layer.op.operands().iter().map(|id| id.0).collect(),
                output: layer.output.0,
                nodes: layer.nodes.clone(),
                macs: self.graph.macs(layer),
            })
        };
        self.graph.layers.iter().map(made).collect()
    }

    /// Numbers of the inputs.
    #[getter]
    fn inputs(&self) -> Vec<u32> {
        self.graph.inputs.iter().map(|id| id.0).collect()
    }

    /// Numbers of the outputs.
    #[getter]
    fn outputs(&self) -> Vec<u32> {
        self.graph.outputs.iter().map(|id| id.0).collect()
    }

    /// Multiply-accumulates of all layers.
    #[getter]
    fn macs(&self) -> u64 {
        self.graph.layers.iter().map(|layer| self.graph.macs(layer)).sum()
    }

    /// Elements of a constant.
    fn constant<'py>(&self, py: Python<'py>, tensor: u32) -> PyResult<Bound<'py, PyAny>> {
        let found = self.graph.tensors.get(tensor as usize).filter(|t| t.constant.is_some());
        let tensor = found.ok_or_else(|| Failure::graph(format!("tensor {tensor} is no constant")))?;
        let values = Values::from_le_bytes(tensor.dtype, tensor.constant.as_deref().unwrap_or_default());
        arrays::array(py, &tensor.shape, &values)
    }

    /// Rows of a block, codes, scales and zero points of a constant of 4 bits, one byte each, and whether codes are floats; None of
    /// any other tensor.
    fn packed<'py>(&self, py: Python<'py>, tensor: u32) -> PyResult<Option<PackedArrays<'py>>> {
        let Some((tensor, packed)) =
            self.graph.tensors.get(tensor as usize).and_then(|tensor| Some((tensor, tensor.packed.as_ref()?)))
        else {
            return Ok(None);
        };
        let columns = tensor.shape[1].max(1);
        let array = |bytes: Vec<u8>| {
            let rows = bytes.len() / columns;
            PyArray1::from_vec(py, bytes).reshape([rows, columns])
        };
        let codes = array((0..tensor.elements()).map(|index| packed.code(index)).collect())?;
        let zero_points = packed.has_zero_points.then(|| array(packed.zero_points.to_vec())).transpose()?;
        Ok(Some((packed.block, codes, array(packed.scales.to_vec())?, zero_points, packed.is_float)))
    }

    /// The graph as JSON, without the elements of its constants.
    fn to_json(&self) -> PyResult<String> {
        Ok(self.graph.to_json().map_err(Failure::from)?)
    }

    /// Writes the file form.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(py.detach(|| self.graph.save(&path)).map_err(Failure::from)?)
    }

    /// Reads the file form.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self::new(py.detach(|| tpuflow_ir::Graph::load(&path)).map_err(Failure::from)?))
    }

    /// Proves that every value fits its width and packs the weights, which the first run does otherwise.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.interpreter())?;
        Ok(())
    }

    /// Frees the packed weights, which the next run packs again.
    fn release(&self) {
        *self.interpreter.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Runs the graph: outputs by name, with `tensors` also activations of these names, or all activations.
    #[pyo3(signature = (inputs, *, all_tensors=false, tensors=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        all_tensors: bool,
        tensors: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let inputs = self.extract(inputs, true)?;
        let keep = match tensors {
            _ if all_tensors => Keep::All,
            None => Keep::Outputs,
            Some(names) => Keep::OutputsAnd(self.activations(&names)?),
        };
        let tensors = py.detach(|| Ok::<_, Failure>(self.interpreter()?.run(inputs, keep)?))?;
        self.arrays_of(py, &tensors)
    }

    /// Runs the graph behind the first `position` rows of its states, to which it appends: outputs by name, new rows apart.
    fn step<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        state: &GraphState,
        position: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let inputs = self.extract(inputs, false)?;
        let tensors = py.detach(|| {
            let mut rows = state.rows();
            Ok::<_, Failure>(self.interpreter()?.step(inputs, &mut rows, position)?)
        })?;
        self.arrays_of(py, &tensors)
    }

    /// Runs every layer on given operands: what each makes of them, by name; with `tensors` only these. See
    /// [`Interpreter::run_layers_separately`].
    #[pyo3(signature = (given, tensors=None))]
    fn run_apart<'py>(
        &self,
        py: Python<'py>,
        given: &Bound<'py, PyDict>,
        tensors: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut arrays = Vec::with_capacity(given.len());
        for (name, array) in given.iter() {
            let name: String = name.extract()?;
            let (shape, values) = arrays::values(&array, &name)?;
            let found = self.graph.tensors.iter().position(|tensor| tensor.name == name && tensor.shape == shape);
            let Some(number) = found else {
                let text = format!("\"{}\" has no tensor \"{name}\" of shape {shape:?}", self.graph.name);
                return Err(Failure::sample(text).into());
            };
            arrays.push((TensorId::new(number), values));
        }
        let wanted = tensors.map(|names| self.activations(&names)).transpose()?;
        let run = || Ok::<_, Failure>(self.interpreter()?.run_layers_separately(arrays, wanted.as_deref())?);
        let tensors = py.detach(run)?;
        self.arrays_of(py, &tensors)
    }

    fn __repr__(&self) -> String {
        format!("Graph({:?}, {} layers)", self.graph.name, self.graph.layers.len())
    }
}
