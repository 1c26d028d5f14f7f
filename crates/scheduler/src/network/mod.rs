//! The graph in the form the scheduler lowers: every result in the geometry its operator gives it, every broadcast one that
//! the elementwise unit can address.
//!
//! Where a layer's output tensor has another shape than the operator computes (an index per pixel stored as a vector, say),
//! a hidden tensor takes the result and a reshape follows; where a broadcast exceeds what a [`View`](tpuflow_ir::View) can say,
//! the operand is expanded first (constants while compiling).

pub(crate) mod linear;
pub(crate) mod placement;
pub(crate) mod stages;
pub(crate) mod summary;

pub(crate) use linear::{Linear, is_depthwise, row_bytes};

use std::collections::BTreeMap;

use tpuflow_ir::constants::EqualConstants;
use tpuflow_ir::layout::image;
use tpuflow_ir::shape::{broadcast, product, result_shape};
use tpuflow_ir::{Graph, LayerId, Machine, Op, TableEntry, Tensor, TensorId};

use crate::error::ScheduleError;

/// One operator to execute. Several steps may belong to one layer.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The layer it works for.
    pub layer: LayerId,
    /// The operation.
    pub op: Op,
    /// Where it goes.
    pub output: TensorId,
}

/// A graph made ready.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// The graph's tensors, then hidden ones.
    pub tensors: Vec<Tensor>,
    /// In topological order.
    pub steps: Vec<Step>,
    /// Names of the graph's layers.
    names: Vec<String>,
    /// Which constants of the graph are equal.
    equal: EqualConstants,
    /// Packed constants whose columns are looked up, and how many of them an entry of that table has.
    table_columns: BTreeMap<TensorId, u32>,
    /// By step, the first with its weights and the first with its parameters.
    first: Vec<[usize; 2]>,
    /// By tensor, the step whose result it is.
    producers: Vec<Option<usize>>,
    /// By tensor, the steps that have it for an operand.
    readers: Vec<Vec<usize>>,
}

impl Network {
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// Name of the layer a step works for.
    pub fn layer_name(&self, step: usize) -> &str {
        &self.names[self.steps[step].layer.index()]
    }

    pub fn is_constant(&self, id: TensorId) -> bool {
        self.tensor(id).constant.is_some()
    }

    /// The first of the graph's constants that is equal to a tensor.
    pub fn first_equal(&self, id: TensorId) -> TensorId {
        self.equal.find(id).unwrap_or(id)
    }

    /// The first step with the weights of a step, which thus lie in the same tiles.
    pub fn weights_of(&self, step: usize) -> usize {
        self.first[step][0]
    }

    /// The first step with the parameters of a step.
    pub fn parameters_of(&self, step: usize) -> usize {
        self.first[step][1]
    }

    /// The step whose result a tensor is.
    pub fn producer(&self, tensor: TensorId) -> Option<&Step> {
        self.producers[tensor.index()].map(|step| &self.steps[step])
    }

    /// The steps that have a tensor for an operand, each once.
    pub fn readers(&self, tensor: TensorId) -> impl Iterator<Item = &Step> {
        self.readers[tensor.index()].iter().map(|&step| &self.steps[step])
    }

    /// Notes who makes and who reads each tensor.
    fn list_users(&mut self) {
        (self.producers, self.readers) = (vec![None; self.tensors.len()], vec![Vec::new(); self.tensors.len()]);
        for (index, step) in self.steps.iter().enumerate() {
            self.producers[step.output.index()] = Some(index);
            for operand in step.op.operands() {
                let readers = &mut self.readers[operand.index()];
                if readers.last() != Some(&index) {
                    readers.push(index);
                }
            }
        }
    }

    /// Notes which constants are tables of columns. Products by them read the entries, so these are tiles: as wide as the array,
    /// unless such a tile takes much of the cache.
    fn list_tables(&mut self, machine: &Machine) {
        for step in &self.steps {
            let Op::Embedding { table, entry: TableEntry::Column, .. } = &step.op else { continue };
            let (rows, columns) = match self.tensor(*table).shape[..] {
                [rows, columns] => (rows as u64, columns as u32),
                _ => continue,
            };
            let mut width = machine.array.columns;
            while width > 8 && rows * u64::from(width) > machine.cache_bytes() / 16 {
                width /= 2;
            }
            let table = self.equal.find(*table).unwrap_or(*table);
            self.table_columns.insert(table, width.min(columns));
        }
    }

    /// Columns of an entry of the table that a constant is, if its columns are looked up.
    pub fn table_columns(&self, id: TensorId) -> Option<u32> {
        self.table_columns.get(&self.first_equal(id)).copied()
    }

    /// Notes which steps read equal constants.
    fn compare_constants(&mut self) {
        let mut weights = BTreeMap::new();
        let mut parameters = BTreeMap::new();
        for (index, step) in self.steps.iter().enumerate() {
            let right = match &step.op {
                Op::Conv { weights, groups, .. } => Some((self.first_equal(*weights), *groups)),
                Op::MatMul { b, .. } => Some((self.first_equal(*b), 0)),
                _ => None,
            };
            let moves = matches!(step.op, Op::Rearrange { .. });
            let own = if moves { None } else { Some((step.op.name(), self.equal.parameters(step.layer))) };
            let first_weights = right.map_or(index, |key| *weights.entry(key).or_insert(index));
            let first_parameters = own.map_or(index, |key| *parameters.entry(key).or_insert(index));
            self.first.push([first_weights, first_parameters]);
        }
    }

    /// Operands a step reads as activations: all but the constants that live in packed form.
    pub fn streams(&self, op: &Op) -> Vec<TensorId> {
        match op {
            Op::Conv { input, .. } => vec![*input],
            Op::MatMul { a, b, .. } if self.is_constant(*b) => vec![*a],
            Op::MatMul { a, b, .. } => vec![*a, *b],
            Op::Unary { input, .. } | Op::LayerNorm { input, .. } => vec![*input],
            Op::Embedding { indices, .. } => vec![*indices],
            other => other.operands(),
        }
    }

    fn hidden(&mut self, like: &Tensor, suffix: &str, shape: Vec<usize>) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        self.tensors.push(Tensor {
            name: format!("{}{suffix}", like.name),
            shape,
            dtype: like.dtype,
            quant: like.quant.clone(),
            source: None,
            constant: None,
            packed: None,
        });
        id
    }
}

/// Prepares `graph`.
///
/// # Errors
/// [`ScheduleError::Graph`] when an invariant of the graph is broken.
pub(crate) fn prepare(graph: &Graph, machine: &Machine) -> Result<Network, ScheduleError> {
    if let Some(broken) = graph.verify().into_iter().next() {
        return Err(ScheduleError::Graph(broken));
    }
    let names = graph.layers.iter().map(|l| l.name.clone()).collect();
    let mut network = Network {
        tensors: graph.tensors.clone(),
        steps: Vec::with_capacity(graph.layers.len()),
        names,
        equal: EqualConstants::of(graph),
        table_columns: BTreeMap::new(),
        first: Vec::new(),
        producers: Vec::new(),
        readers: Vec::new(),
    };
    for (index, layer) in graph.layers.iter().enumerate() {
        let id = LayerId::new(index);
        let mut op = layer.op.clone();
        broadcasts(&mut network, id, &mut op);
        let shape = result_shape(&op, &network.tensors);
        let output = network.tensor(layer.output).clone();
        match shape {
            Some(shape) if image(&shape) != image(&output.shape) => {
                let hidden = network.hidden(&output, ":computed", shape);
                network.steps.push(Step { layer: id, op, output: hidden });
                let dims = vec![output.elements() as u32];
                let op = Op::Rearrange { input: hidden, dims, strides: vec![1], offset: 0 };
                network.steps.push(Step { layer: id, op, output: layer.output });
            }
            _ => network.steps.push(Step { layer: id, op, output: layer.output }),
        }
    }
    network.compare_constants();
    network.list_tables(machine);
    network.list_users();
    Ok(network)
}

/// Gives operands of row-wise operators shapes of the result's rank, and expands those whose leading axes broadcast partly.
fn broadcasts(network: &mut Network, layer: LayerId, op: &mut Op) {
    let shape = |id: TensorId| network.tensor(id).shape.clone();
    let (mut operands, target) = match &*op {
        Op::Binary { a, b, .. } => (vec![*a, *b], broadcast(&shape(*a), &shape(*b))),
        Op::Softmax { input, mask: Some(mask), .. } => (vec![*input, *mask], Some(shape(*input))),
        Op::Select { condition, a, b } => {
            let both = broadcast(&shape(*a), &shape(*b));
            (vec![*condition, *a, *b], both.and_then(|s| broadcast(&s, &shape(*condition))))
        }
        _ => return,
    };
    let Some(target) = target else { return };
    for operand in &mut operands {
        *operand = expanded(network, layer, *operand, &target);
    }
    match op {
        Op::Binary { a, b, .. } => [*a, *b] = [operands[0], operands[1]],
        Op::Softmax { input, mask, .. } => (*input, *mask) = (operands[0], Some(operands[1])),
        Op::Select { condition, a, b } => [*condition, *a, *b] = [operands[0], operands[1], operands[2]],
        _ => {}
    }
}

/// `operand`, or a tensor whose images are those of `target`.
fn expanded(network: &mut Network, layer: LayerId, operand: TensorId, target: &[usize]) -> TensorId {
    let tensor = network.tensor(operand).clone();
    let rank = target.len();
    let mut padded = vec![1; rank - tensor.shape.len()];
    padded.extend(&tensor.shape);
    let lead = rank.saturating_sub(3);
    let images = &padded[..lead];
    if images.iter().all(|&n| n == 1) || images == &target[..lead] {
        return operand;
    }
    let mut shape = target[..lead].to_vec();
    shape.extend(&padded[lead..]);
    let mut stride = 1i64;
    let mut strides = vec![0; rank];
    for axis in (0..rank).rev() {
        strides[axis] = if padded[axis] == 1 { 0 } else { stride };
        stride *= padded[axis] as i64;
    }
    let wide = network.hidden(&tensor, &format!(":expanded{}", network.tensors.len()), shape.clone());
    if let Some(bytes) = &tensor.constant {
        network.tensors[wide.index()].constant = Some(expand(bytes, tensor.dtype.bytes(), &shape, &strides).into());
    } else {
        let dims = shape.iter().map(|&d| d as u32).collect();
        let op = Op::Rearrange { input: operand, dims, strides, offset: 0 };
        network.steps.push(Step { layer, op, output: wide });
    }
    wide
}

fn expand(bytes: &[u8], size: usize, shape: &[usize], strides: &[i64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(product(shape) * size);
    for mut index in 0..product(shape) {
        let mut element = 0;
        for (&extent, &stride) in shape.iter().zip(strides).rev() {
            element += (index % extent) * stride as usize;
            index /= extent;
        }
        out.extend_from_slice(&bytes[element * size..][..size]);
    }
    out
}
