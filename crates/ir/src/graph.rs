//! The graph: tensors and layers in topological order, and the only way to make one.
//!
//! A [`Graph`] is built layer by layer through [`GraphBuilder`], which checks each layer against the shape rule
//! ([`crate::shape`]) as it is added, so that an error names the layer that caused it. A finished graph is immutable.

use serde::{Deserialize, Serialize};

use crate::error::{GraphError, GraphErrors, LayerError, PackedError};
use crate::shape::{Output, contradicting_shape, output_type, product};
use crate::{DType, Error, Exchange, Image, LayerId, Op, Packed, Quant, State, TensorId};

/// Where a tensor comes from: `array.transpose(permutation).reshape(tensor.shape)` of the model's own tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name in the model file.
    pub name: String,
    /// Shape in the model file.
    pub shape: Vec<usize>,
    /// Axis order that makes it channels-last.
    pub permutation: Vec<usize>,
    /// Element type in the model file (NumPy name), such as `float32`.
    pub dtype: String,
}

/// A tensor: dense, row-major, last axis = channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Unique name.
    pub name: String,
    /// Extents, rank 0 to 6.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Absent for indices, biases and tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quant: Option<Quant>,
    /// The model's tensor this one stands for, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Little-endian elements of a constant; absent for activations.
    #[serde(skip)]
    pub constant: Option<Image>,
    /// The codes of 4 bits an int8 constant is made of, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<Packed>,
}

impl Tensor {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        product(&self.shape)
    }

    /// Size in bytes, unpadded.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// Whether the constant is what its packed form stands for.
    fn check_packed(&self) -> Result<(), GraphError> {
        let Some(packed) = &self.packed else { return Ok(()) };
        let fail = |reason| GraphError::Packed { name: self.name.clone(), reason };
        packed.check(&self.shape).map_err(fail)?;
        let same = self.dtype == DType::I8 && self.constant.as_deref() == Some(&packed.expand(&self.shape));
        if same { Ok(()) } else { Err(fail(PackedError::Elements)) }
    }

    /// The zero point, 0 where the tensor has no quantisation.
    #[must_use]
    pub fn zero_point(&self) -> i32 {
        self.quant.as_ref().map_or(0, |q| q.zero_point)
    }

    /// Elements of an int8 constant.
    #[must_use]
    pub fn i8s(&self) -> Vec<i8> {
        self.constant.as_deref().unwrap_or_default().iter().map(|&b| b.cast_signed()).collect()
    }

    /// Elements of an int16 constant.
    #[must_use]
    pub fn i16s(&self) -> Vec<i16> {
        self.chunks().map(i16::from_le_bytes).collect()
    }

    /// Elements of an int32 constant.
    #[must_use]
    pub fn i32s(&self) -> Vec<i32> {
        self.chunks().map(i32::from_le_bytes).collect()
    }

    /// Elements of a float32 constant.
    #[must_use]
    pub fn f32s(&self) -> Vec<f32> {
        self.chunks().map(f32::from_le_bytes).collect()
    }

    /// Elements of a constant of any integer type; none of another.
    #[must_use]
    pub fn integers(&self) -> Vec<i64> {
        match self.dtype {
            DType::I8 => self.i8s().into_iter().map(i64::from).collect(),
            DType::I16 => self.i16s().into_iter().map(i64::from).collect(),
            DType::I32 => self.i32s().into_iter().map(i64::from).collect(),
            DType::I64 => self.chunks().map(i64::from_le_bytes).collect(),
            DType::F16 | DType::BF16 | DType::F32 => Vec::new(),
        }
    }

    fn chunks<const N: usize>(&self) -> impl Iterator<Item = [u8; N]> {
        self.constant.as_deref().unwrap_or_default().as_chunks::<N>().0.iter().copied()
    }
}

/// One operator applied once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Unique name: the model's node, or the last of those fused into it.
    pub name: String,
    /// The operator.
    pub op: Op,
    /// The tensor it produces.
    pub output: TensorId,
    /// The model's nodes fused into this layer.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Of a convolution or product, how many products of the model each sum is made of, where the operator adds others that are
    /// zero by construction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<u32>,
}

/// A quantised network. Layers are in topological order; every tensor is an input, a constant or one layer's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// Name of the network.
    pub name: String,
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// All layers.
    pub layers: Vec<Layer>,
    /// Inputs in the model's order.
    pub inputs: Vec<TensorId>,
    /// Outputs in the model's order; a tensor may be output twice.
    pub outputs: Vec<TensorId>,
    /// Inputs whose rows stay on the device from run to run, with the outputs that are appended to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<State>,
    /// Outputs that are parts of tensors, and the inputs that are the parts of all devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchange>,
}

impl Graph {
    /// No network.
    pub(crate) fn empty() -> Self {
        Self {
            name: String::new(),
            tensors: vec![],
            layers: vec![],
            inputs: vec![],
            outputs: vec![],
            states: vec![],
            exchanges: vec![],
        }
    }

    /// A tensor.
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// A layer.
    #[must_use]
    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.index()]
    }

    /// The non-constant operands of a layer, in order, possibly repeated.
    pub fn activations<'a>(&'a self, layer: &'a Layer) -> impl Iterator<Item = TensorId> + 'a {
        layer.op.operands().into_iter().filter(|&id| self.tensor(id).constant.is_none())
    }

    /// Multiply-accumulates of a layer; zero for anything but convolutions and matrix products.
    #[must_use]
    pub fn macs(&self, layer: &Layer) -> u64 {
        let terms = layer.terms.map_or_else(|| self.products(&layer.op), |terms| terms as usize);
        (self.tensor(layer.output).elements() * terms) as u64
    }

    /// How many products a sum of a convolution or matrix product has; zero for anything else.
    fn products(&self, op: &Op) -> usize {
        match op {
            Op::Conv { weights, .. } => product(&self.tensor(*weights).shape[1..]),
            Op::MatMul { a, .. } => self.tensor(*a).shape.last().copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// The first state that is none: rows of other shapes or another grid, a port that another state has, or another length than
    /// the first state's.
    fn broken_state(&self) -> Option<GraphError> {
        let past = |state: &State| self.tensor(self.inputs[state.input as usize]).shape[state.axis as usize];
        let mut ports = std::collections::BTreeSet::new();
        let mut sound = |state: &State| {
            state.fits(self)
                && past(state) == past(&self.states[0])
                && ports.insert((true, self.inputs[state.input as usize]))
                && ports.insert((false, self.outputs[state.output as usize]))
                && self.outputs.iter().filter(|&&id| id == self.outputs[state.output as usize]).count() == 1
                && !self.inputs.contains(&self.outputs[state.output as usize])
        };
        self.states.iter().position(|state| !sound(state)).map(GraphError::State)
    }

    /// The first exchange that is none: ports of different forms, or of states, or of another exchange, or read before the part of
    /// this device is computed.
    fn broken_exchange(&self) -> Option<GraphError> {
        let devices = self.exchanges.first()?.inputs.len();
        let mut ports = std::collections::BTreeSet::new();
        let mut sound = |exchange: &Exchange| {
            let own = exchange.fits(self, devices)
                && ports.insert((false, exchange.output))
                && exchange.inputs.iter().all(|&input| ports.insert((true, input)));
            own && {
                let output = self.outputs[exchange.output as usize];
                let inputs = exchange.inputs.iter().map(|&input| self.inputs[input as usize]);
                let parts: Vec<TensorId> = inputs.collect();
                let made = self.layers.iter().position(|layer| layer.output == output);
                let read = |layer: &Layer| layer.op.operands().iter().any(|id| parts.contains(id));
                made.is_some_and(|made| !self.layers[..=made].iter().any(read))
            }
        };
        self.exchanges.iter().position(|exchange| !sound(exchange)).map(GraphError::Exchange)
    }

    /// How many devices the graph is one of.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.exchanges.first().map_or(1, |exchange| exchange.inputs.len())
    }

    /// Every broken invariant, as one message each; empty for a sound graph.
    #[must_use]
    pub fn verify(&self) -> Vec<GraphError> {
        let mut broken = Vec::new();
        let mut known: Vec<bool> = self.tensors.iter().map(|t| t.constant.is_some()).collect();
        let mut names = std::collections::BTreeSet::new();
        for tensor in &self.tensors {
            if !names.insert(&tensor.name) {
                broken.push(GraphError::TwoTensors(tensor.name.clone()));
            }
            if tensor.constant.as_ref().is_some_and(|bytes| bytes.len() != tensor.bytes()) {
                broken.push(constant_size_error(tensor));
            }
            broken.extend(tensor.check_packed().err());
            if let Some(quant) = &tensor.quant
                && (quant.scale.is_empty() || !quant.scale.iter().all(|s| s.is_finite() && *s > 0.0))
            {
                broken.push(GraphError::Scale(tensor.name.clone()));
            }
            if let Some(Quant { scale, zero_point }) = &tensor.quant
                && tensor.dtype.is_float()
                && (*zero_point != 0 || scale.iter().any(|&s| s != 1.0))
            {
                let (name, dtype) = (tensor.name.clone(), tensor.dtype.name());
                broken.push(GraphError::QuantizedFloats { name, dtype });
            }
        }
        for &id in &self.inputs {
            match known.get_mut(id.index()) {
                Some(slot) => *slot = true,
                None => broken.push(GraphError::Input(id.0)),
            }
        }
        for layer in &self.layers {
            let operands = layer.op.operands();
            if let Some(id) = operands.iter().find(|id| known.get(id.index()) != Some(&true)) {
                broken.push(GraphError::Order { layer: layer.name.clone(), tensor: id.0 });
                continue;
            }
            match (output_type(&layer.op, &self.tensors), self.tensors.get(layer.output.index())) {
                (Err(error), _) => broken.push(layer_error(&layer.name, error)),
                (Ok(_), None) => broken.push(GraphError::NoResult(layer.name.clone())),
                (Ok((elements, dtypes)), Some(output)) => {
                    if let Some(error) = declaration_error(&layer.op, &self.tensors, output, (elements, dtypes)) {
                        broken.push(layer_error(&layer.name, error));
                    }
                    let products = self.products(&layer.op);
                    if let Some(terms) = layer.terms.filter(|&terms| !(1..=products).contains(&(terms as usize))) {
                        broken.push(layer_error(&layer.name, LayerError::Terms { terms, products }));
                    }
                    if std::mem::replace(&mut known[layer.output.index()], true) {
                        let (layer, tensor) = (layer.name.clone(), output.name.clone());
                        broken.push(GraphError::Twice { layer, tensor });
                    }
                }
            }
        }
        for id in &self.outputs {
            if known.get(id.index()) != Some(&true) {
                broken.push(GraphError::Output(id.0));
            }
        }
        broken.extend(self.broken_state());
        broken.extend(self.broken_exchange());
        broken
    }
}

fn constant_size_error(tensor: &Tensor) -> GraphError {
    GraphError::Constant { name: tensor.name.clone(), shape: tensor.shape.clone() }
}

fn layer_error(layer: &str, error: impl Into<LayerError>) -> GraphError {
    GraphError::Layer { layer: layer.to_owned(), source: error.into() }
}

/// The result is declared as `output` and computed as something else.
/// What is wrong, if anything, with how the result of an operator is declared.
fn declaration_error(
    op: &Op,
    tensors: &[Tensor],
    output: &Tensor,
    (elements, dtypes): (usize, Output),
) -> Option<LayerError> {
    let shape = output.shape.clone();
    if elements != output.elements() || !dtypes.admits(output.dtype) {
        let dtype = output.dtype.name();
        return Some(LayerError::Result { shape, dtype, elements, computed: dtypes.name() });
    }
    contradicting_shape(op, tensors, &shape).map(|computed| LayerError::ResultShape { shape, computed })
}

/// Builds a [`Graph`] layer by layer.
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// An empty graph.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { graph: Graph { name: name.to_owned(), ..Graph::empty() } }
    }

    /// Adds an input.
    ///
    /// # Errors
    /// [`Error::Graph`] when the name is taken.
    pub fn input(&mut self, tensor: Tensor) -> Result<TensorId, Error> {
        let id = self.tensor(tensor)?;
        self.graph.inputs.push(id);
        Ok(id)
    }

    /// Adds a constant.
    ///
    /// # Errors
    /// [`Error::Graph`] when the name is taken or the bytes do not fill the shape.
    pub fn constant(&mut self, tensor: Tensor) -> Result<TensorId, Error> {
        if tensor.constant.as_ref().is_none_or(|bytes| bytes.len() != tensor.bytes()) {
            return Err(constant_size_error(&tensor).into());
        }
        tensor.check_packed()?;
        self.tensor(tensor)
    }

    /// Adds a layer and its output tensor.
    ///
    /// # Errors
    /// [`Error::Graph`] naming the layer, when an operand does not exist, or shapes or element types do not fit.
    pub fn layer(&mut self, name: &str, op: Op, output: Tensor, nodes: Vec<String>) -> Result<TensorId, Error> {
        if let Some(id) = op.operands().iter().find(|id| id.index() >= self.graph.tensors.len()) {
            return Err(layer_error(name, LayerError::Operand(id.0)).into());
        }
        let (elements, dtypes) = output_type(&op, &self.graph.tensors).map_err(|error| layer_error(name, error))?;
        if let Some(error) = declaration_error(&op, &self.graph.tensors, &output, (elements, dtypes)) {
            return Err(layer_error(name, error).into());
        }
        let id = self.tensor(output)?;
        self.graph.layers.push(Layer { name: name.to_owned(), op, output: id, nodes, terms: None });
        Ok(id)
    }

    /// Says how many products of the model a sum of the last layer is made of ([`Layer::terms`]).
    pub fn terms(&mut self, terms: u32) {
        if let Some(layer) = self.graph.layers.last_mut() {
            layer.terms = Some(terms);
        }
    }

    /// Marks a tensor as output.
    pub fn output(&mut self, id: TensorId) {
        self.graph.outputs.push(id);
    }

    /// Declares that an input's rows stay on the device from run to run.
    pub fn state(&mut self, state: State) {
        self.graph.states.push(state);
    }

    /// The finished graph.
    ///
    /// # Errors
    /// [`Error::Graph`] with every broken invariant.
    pub fn finish(self) -> Result<Graph, Error> {
        let broken = self.graph.verify();
        if broken.is_empty() { Ok(self.graph) } else { Err(Error::Graph(GraphErrors(broken))) }
    }

    /// A tensor added so far.
    #[must_use]
    pub fn peek(&self, id: TensorId) -> Option<&Tensor> {
        self.graph.tensors.get(id.index())
    }

    fn tensor(&mut self, tensor: Tensor) -> Result<TensorId, Error> {
        let id = TensorId::new(self.graph.tensors.len());
        self.graph.tensors.push(tensor);
        Ok(id)
    }
}
