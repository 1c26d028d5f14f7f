//! The graph interpreter: a [`Graph`] layer by layer with the kernels, the integers every program must reproduce.
//!
//! [`Interpreter::new`] proves that every value fits its width ([`tpuflow_ir::width`]) and packs weights once;
//! [`Interpreter::run`] then only reads, so any number of threads may run it. Tensors are freed after their last reader unless
//! all are kept; their memory serves later tensors, and later runs. Unless all are kept, some layers are done together with the
//! one before ([`fuse`]). [`interpret`] does both for a single run.
//!
//! Source of the arithmetic: `docs/arithmetic.md`.

/// Evaluates the body with the slice of an int8 or int16 tensor.
macro_rules! codes {
    ($values:expr, $slice:ident => $body:expr) => {
        match $values {
            Values::I8($slice) => $body,
            Values::I16($slice) => $body,
            other => unreachable!("the shape rule does not admit {} here", other.dtype().name()),
        }
    };
}

mod blocks;
mod execute;
mod float;
mod fuse;
mod narrow;
mod prepare;
mod products;
mod states;
mod tensor_pool;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tpuflow_ir::{DType, Graph, Layer, Op, Tensor, TensorId};
use tpuflow_kernels::{Isa, Values, pages, parallel};

use crate::SimError;
use prepare::Constants;
pub use states::StateRows;
use tensor_pool::TensorPool;

/// Which tensors a run returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The graph's outputs.
    Outputs,
    /// The graph's outputs, and these inputs and outputs of layers.
    OutputsAnd(Vec<TensorId>),
    /// Inputs and the outputs of all layers.
    All,
}

/// Tensors of a finished run.
#[derive(Clone, Debug)]
pub struct Tensors {
    values: Vec<Option<Arc<Values>>>,
}

impl Tensors {
    /// The elements of a tensor, `None` if it was not kept.
    #[must_use]
    pub fn get(&self, id: TensorId) -> Option<&Values> {
        self.values.get(id.index())?.as_deref()
    }

    /// Every kept tensor, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (TensorId, &Values)> {
        self.values.iter().enumerate().filter_map(|(i, v)| Some((TensorId::new(i), v.as_deref()?)))
    }
}

/// A graph made ready to run many times.
#[derive(Clone, Debug)]
pub struct Interpreter {
    graph: Arc<Graph>,
    layers: Vec<Constants>,
    /// Constants that kernels read as ordinary operands.
    constants: Vec<Option<Arc<Values>>>,
    /// Per layer, the tensors no later layer reads and no output shows.
    last_read: Vec<Vec<TensorId>>,
    /// Per layer, the later one that is done together with it.
    successors: Vec<Option<usize>>,
    /// Per layer, whether its reader does without it.
    spared: Vec<bool>,
    /// Memory that runs leave behind for later ones, which then find all the memory they need.
    free: Arc<Mutex<Vec<TensorPool>>>,
    /// Runs so far.
    runs: Arc<AtomicUsize>,
}

/// The operand that a layer only shows in another shape.
fn reshaped(graph: &Graph, layer: &Layer) -> Option<TensorId> {
    let Op::Rearrange { input, dims, strides, offset: 0 } = &layer.op else { return None };
    let walk = dims.iter().zip(strides).rev();
    let elements = walk
        .filter(|&(&extent, _)| extent != 1)
        .try_fold(1, |step, (&extent, &stride)| (stride == step).then_some(step * i64::from(extent)))?;
    let tensors = [*input, layer.output].map(|id| graph.tensor(id));
    tensors.iter().all(|tensor| tensor.elements() as i64 == elements).then_some(*input)
}

/// After so many runs there will be many more, for whose sake memory is put into large pages.
const WARM: usize = 8;

impl Interpreter {
    /// Checks that every value of `graph` fits its width and packs its weights.
    ///
    /// # Errors
    /// [`SimError::Layer`] naming the layer whose accumulator may overflow or whose parameters do not fit;
    /// [`SimError::Isa`] when `TPUFLOW_ISA` names no instruction set of this processor.
    pub fn new(graph: Arc<Graph>) -> Result<Self, SimError> {
        tpuflow_ir::width::prove(&graph).map_err(|(layer, error)| SimError::Layer { layer, reason: error.into() })?;
        Isa::check()?;
        // Packed weights and values of two types at a time stay within a few times the tensors' own bytes.
        let bytes = |tensor: &Tensor| tensor.elements() as u64 * tensor.dtype.bytes() as u64;
        for tensor in &graph.tensors {
            tpuflow_ir::memory::check(
                &format!("tensor \"{}\", of shape {:?},", tensor.name, tensor.shape),
                bytes(tensor),
            )
            .map_err(|reason| SimError::Graph { name: graph.name.clone(), reason })?;
        }
        let prepared = graph.layers.iter().map(|layer| prepare::prepare(&graph, layer));
        let mut layers = prepared.collect::<Result<Vec<_>, _>>()?;
        let spared = products::read_in_place(&graph, &mut layers);
        let mut constants: Vec<Option<Arc<Values>>> = vec![None; graph.tensors.len()];
        let read = graph.layers.iter().zip(&layers).flat_map(|(layer, prepared)| prepare::reads(layer, prepared));
        for id in read.chain(graph.outputs.iter().copied()) {
            if let Tensor { constant: Some(bytes), dtype, .. } = graph.tensor(id)
                && constants[id.index()].is_none()
            {
                constants[id.index()] = Some(Arc::new(Values::from_le_bytes(*dtype, bytes)));
            }
        }
        let (last_read, successors) = (last_reads(&graph, &layers), fuse::successors(&graph, &layers));
        Ok(Self { graph, layers, constants, last_read, successors, spared, free: Arc::default(), runs: Arc::default() })
    }

    /// The graph.
    #[must_use]
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Runs the graph on `inputs`, one per graph input in order.
    ///
    /// # Errors
    /// [`SimError`] for inputs of another number, size or type, and for indices outside a table.
    pub fn run(&self, inputs: Vec<Values>, keep: Keep) -> Result<Tensors, SimError> {
        let graph = &*self.graph;
        if inputs.len() != graph.inputs.len() {
            return Err(SimError::InputCount {
                graph: graph.name.clone(),
                given: inputs.len(),
                expected: graph.inputs.len(),
            });
        }
        let inputs = inputs.into_iter().map(Arc::new).collect();
        parallel::inside(|| self.run_layers(inputs, keep))
    }

    /// Runs the graph behind the first `position` rows of its states, which are the inputs that `inputs` lacks, and writes the
    /// new rows there: those from the position on are replaced.
    ///
    /// # Errors
    /// As [`Interpreter::run`]; [`SimError::State`] for rows of other graphs, and a position beyond the past or the rows.
    pub fn step(&self, inputs: Vec<Values>, rows: &mut StateRows, position: usize) -> Result<Tensors, SimError> {
        let graph = &*self.graph;
        rows.check_position(graph, position)?;
        let (given, expected) = (inputs.len(), graph.inputs.len() - graph.states.len());
        if given != expected {
            return Err(SimError::InputCount { graph: graph.name.clone(), given, expected });
        }
        rows.truncate(position);
        let mut others = inputs.into_iter();
        let input = |number: usize| {
            let state = graph.states.iter().position(|state| state.input as usize == number);
            state.map_or_else(|| others.next().map(Arc::new), |state| Some(rows.past(graph, state)))
        };
        let inputs = (0..graph.inputs.len()).filter_map(input).collect();
        let mut tensors = parallel::inside(|| self.run_layers(inputs, Keep::Outputs))?;
        for (index, state) in graph.states.iter().enumerate() {
            if let Some(new) = tensors.values[graph.outputs[state.output as usize].index()].take() {
                rows.append(index, position, &new);
            }
        }
        Ok(tensors)
    }

    /// Runs the layers one by one on given operands: what a layer reads is what is given for a tensor, and only where nothing
    /// is given what another layer made. So a layer's own error can be told from what it inherits.
    ///
    /// Returns what every layer made, and the inputs; with `wanted` only these, and only their layers run, with those whose
    /// results they read and nothing gives.
    ///
    /// # Errors
    /// As [`Interpreter::run`]; an input of the graph that is read and for which nothing is given is one of another size.
    pub fn run_layers_separately(
        &self,
        given: Vec<(TensorId, Values)>,
        wanted: Option<&[TensorId]>,
    ) -> Result<Tensors, SimError> {
        let graph = &*self.graph;
        let mut values = self.constants.clone();
        for (id, array) in given {
            expect(graph.tensor(id), &array)?;
            values[id.index()] = Some(Arc::new(array));
        }
        let read = self.needed(&values, wanted);
        if let Some(&id) = graph.inputs.iter().find(|id| values[id.index()].is_none() && read[id.index()]) {
            return Err(wrong_input(graph.tensor(id), 0, graph.tensor(id).dtype));
        }
        let kept = |id: TensorId| wanted.is_none_or(|wanted| wanted.contains(&id));
        let mut made: Vec<Option<Arc<Values>>> = vec![None; values.len()];
        for &id in graph.inputs.iter().filter(|&&id| kept(id)) {
            made[id.index()].clone_from(&values[id.index()]);
        }
        let mut free = TensorPool::default();
        parallel::inside(|| {
            let needed = |layer: &Layer| read[layer.output.index()];
            for (layer, prepared) in graph.layers.iter().zip(&self.layers).filter(|(layer, _)| needed(layer)) {
                let output = execute::execute(graph, layer, None, prepared, &values, &mut free)
                    .map_err(|reason| SimError::Layer { layer: layer.name.clone(), reason })?;
                let output = Arc::new(output);
                values[layer.output.index()].get_or_insert_with(|| Arc::clone(&output));
                if kept(layer.output) {
                    made[layer.output.index()] = Some(output);
                }
            }
            Ok(Tensors { values: made })
        })
    }

    /// Per tensor, whether it is wanted, or read by a layer that runs for its sake while `values` lack it.
    fn needed(&self, values: &[Option<Arc<Values>>], wanted: Option<&[TensorId]>) -> Vec<bool> {
        let mut needed = vec![wanted.is_none(); values.len()];
        wanted.unwrap_or_default().iter().for_each(|id| needed[id.index()] = true);
        for layer in self.graph.layers.iter().rev().filter(|_| wanted.is_some()) {
            if needed[layer.output.index()] {
                let lacking = self.graph.activations(layer).filter(|id| values[id.index()].is_none());
                lacking.for_each(|id| needed[id.index()] = true);
            }
        }
        needed
    }

    /// Per tensor, whether a run returns it.
    fn kept(&self, keep: Keep) -> Vec<bool> {
        let tensors = &self.graph.tensors;
        let mut kept = vec![false; tensors.len()];
        match keep {
            Keep::Outputs => {}
            Keep::OutputsAnd(ids) => ids.into_iter().for_each(|id| kept[id.index()] = true),
            Keep::All => kept = tensors.iter().map(|tensor| tensor.constant.is_none()).collect(),
        }
        self.graph.outputs.iter().for_each(|id| kept[id.index()] = true);
        kept
    }

    fn run_layers(&self, inputs: Vec<Arc<Values>>, keep: Keep) -> Result<Tensors, SimError> {
        let graph = &*self.graph;
        let kept = self.kept(keep);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let mut values = self.constants.clone();
        for (&id, input) in graph.inputs.iter().zip(inputs) {
            expect(graph.tensor(id), &input)?;
            values[id.index()] = Some(input);
        }
        for (position, (layer, dead)) in graph.layers.iter().zip(&self.last_read).enumerate() {
            let successor = self.successors[position].filter(|_| !kept[layer.output.index()]);
            let successor = successor.map(|successor| &graph.layers[successor]);
            let result = successor.unwrap_or(layer).output.index();
            let is_spared = self.spared[position] && !kept[layer.output.index()];
            // It may have been done with another one.
            if let (Some(input), None, false) = (reshaped(graph, layer), &values[result], is_spared) {
                values[result] = values[input.index()].clone();
            } else if values[result].is_none() && !is_spared {
                let output = execute::execute(graph, layer, successor, &self.layers[position], &values, &mut free)
                    .map_err(|reason| SimError::Layer { layer: layer.name.clone(), reason })?;
                values[result] = Some(Arc::new(output));
            }
            for id in dead.iter().filter(|id| !kept[id.index()]) {
                // The caller's inputs are not ours, and constants are read again.
                let tensor = values[id.index()].take().filter(|_| !graph.inputs.contains(id));
                if let Some(Ok(tensor)) = tensor.map(Arc::try_unwrap) {
                    free.recycle(tensor);
                }
            }
        }
        if self.runs.fetch_add(1, Ordering::Relaxed) == WARM {
            let weights = self.layers.iter().flat_map(Constants::memory);
            pages::enlarge(weights.chain(free.memory()));
        }
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(free);
        for (value, _) in values.iter_mut().zip(&kept).filter(|(_, kept)| !**kept) {
            *value = None;
        }
        Ok(Tensors { values })
    }
}

fn expect(tensor: &Tensor, array: &Values) -> Result<(), SimError> {
    let fits = array.len() == tensor.elements() && array.dtype() == tensor.dtype;
    if fits { Ok(()) } else { Err(wrong_input(tensor, array.len(), array.dtype())) }
}

fn wrong_input(tensor: &Tensor, given: usize, dtype: DType) -> SimError {
    SimError::Input {
        name: tensor.name.clone(),
        given,
        given_type: dtype.name(),
        expected: tensor.elements(),
        expected_type: tensor.dtype.name(),
    }
}

/// Runs a graph once. See [`Interpreter`].
///
/// # Errors
/// Those of [`Interpreter::new`] and [`Interpreter::run`].
pub fn interpret(graph: &Graph, inputs: Vec<Values>, keep: Keep) -> Result<Tensors, SimError> {
    Interpreter::new(Arc::new(graph.clone()))?.run(inputs, keep)
}

/// Per layer, the activations it is the last to touch.
fn last_reads(graph: &Graph, layers: &[Constants]) -> Vec<Vec<TensorId>> {
    let mut last: Vec<Option<usize>> = vec![None; graph.tensors.len()];
    for (i, (layer, prepared)) in graph.layers.iter().zip(layers).enumerate() {
        let source = if let Constants::Products(products) = prepared { products.source() } else { None };
        for id in graph.activations(layer).chain(source).chain([layer.output]) {
            last[id.index()] = Some(i);
        }
    }
    let mut dead = vec![Vec::new(); graph.layers.len()];
    for (i, layer) in last.into_iter().enumerate() {
        if let Some(layer) = layer
            && !graph.outputs.contains(&TensorId::new(i))
        {
            dead[layer].push(TensorId::new(i));
        }
    }
    dead
}
