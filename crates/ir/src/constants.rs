//! Which constants of a graph are equal. A program keeps equal ones at one place and different ones apart, so that every byte of
//! external memory stands for one element of one of them, and bounds count each once.

use std::collections::BTreeMap;

use crate::Arithmetic::{Fixed, Float};
use crate::isa::{ChannelParameters, NormParameters, Slope};
use crate::{Graph, LayerId, Op, TensorId, timing};

/// Constants of a graph by the first that is equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqualConstants {
    tensors: Vec<TensorId>,
    parameters: Vec<LayerId>,
}

impl EqualConstants {
    /// Compares all constants of a graph: tensors of one type and shape by their bytes, parameters of layers as the units read
    /// them.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        let mut known = BTreeMap::new();
        let mut tensors: Vec<TensorId> = (0..graph.tensors.len()).map(TensorId::new).collect();
        for (own, tensor) in tensors.iter_mut().zip(&graph.tensors) {
            if let Some(bytes) = tensor.constant.as_deref() {
                // Equal elements of other codes lie elsewhere.
                let packed = tensor.packed.as_ref().map(|p| (p.block, &p.codes[..], &p.scales[..], &p.zero_points[..]));
                *own = *known.entry((tensor.dtype, &tensor.shape, bytes, packed)).or_insert(*own);
            }
        }
        let mut sets: BTreeMap<Vec<u8>, LayerId> = BTreeMap::new();
        let own = |(index, layer): (usize, &crate::Layer)| {
            let (id, bytes) = (LayerId::new(index), parameters(graph, &layer.op));
            if bytes.is_empty() { id } else { *sets.entry(bytes).or_insert(id) }
        };
        let parameters = graph.layers.iter().enumerate().map(own).collect();
        Self { tensors, parameters }
    }

    /// The first constant equal to a tensor; of what is no constant, itself.
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> TensorId {
        self.tensors[id.index()]
    }

    /// The same, unless the graph has no such tensor.
    #[must_use]
    pub fn find(&self, id: TensorId) -> Option<TensorId> {
        self.tensors.get(id.index()).copied()
    }

    /// The first layer whose parameters, slopes or norms are those of a layer.
    #[must_use]
    pub fn parameters(&self, id: LayerId) -> LayerId {
        self.parameters[id.index()]
    }
}

/// The parameters a layer reads from the EWP cache for each of its channels, as they lie there, without tables and depthwise
/// weights.
#[must_use]
pub fn parameters(graph: &Graph, op: &Op) -> Vec<u8> {
    let mut out = Vec::new();
    let (left, right, bias, epilogue, channels) = match op {
        Op::Conv { input, weights, bias, epilogue, .. } => {
            (input, weights, Some(bias), epilogue, graph.tensor(*weights).shape.first())
        }
        Op::MatMul { a, b, bias, epilogue, .. } => (a, b, bias.as_ref(), epilogue, graph.tensor(*b).shape.last()),
        Op::PRelu { slopes: Fixed(slopes), .. } => {
            for (&multiplier, &shift) in slopes.negative_multiplier.iter().zip(&slopes.negative_shift) {
                Slope { multiplier: multiplier as i16, shift }.encode(&mut out);
            }
            return out;
        }
        Op::PRelu { slopes: Float(slopes), .. } => {
            let singles = slopes.negative.iter().map(|slope| slope.single().unwrap_or_default());
            singles.for_each(|slope| out.extend_from_slice(&slope.to_le_bytes()));
            return out;
        }
        Op::LayerNorm { gamma, beta, norm: Fixed(norm), .. } => {
            let entries = NormParameters::of(norm, graph.tensor(*gamma), graph.tensor(*beta));
            entries.iter().for_each(|entry| entry.encode(&mut out));
            return out;
        }
        Op::LayerNorm { gamma, beta, norm: Float(_), .. } => {
            for (gamma, beta) in graph.tensor(*gamma).f32s().into_iter().zip(graph.tensor(*beta).f32s()) {
                out.extend_from_slice(&gamma.to_le_bytes());
                out.extend_from_slice(&beta.to_le_bytes());
            }
            return out;
        }
        _ => return out,
    };
    let wide = timing::has_wide_sums(graph.tensor(*left).dtype, graph.tensor(*right).dtype);
    let bias = bias.map(|b| graph.tensor(*b));
    let (integers, singles) = match epilogue {
        Fixed(_) => (bias.map(crate::Tensor::integers), None),
        Float(_) => (None, bias.map(crate::Tensor::f32s)),
    };
    for channel in 0..channels.copied().unwrap_or(0) {
        let of = |bias: &Vec<i64>| bias.get(channel).copied().unwrap_or(0);
        let single = |bias: &Vec<f32>| bias.get(channel).copied().unwrap_or(0.0);
        let entry = match epilogue {
            Fixed(epilogue) => {
                let (multiplier, shift) = epilogue.requant.of(channel);
                ChannelParameters { bias: integers.as_ref().map_or(0, of), multiplier: multiplier as i16, shift }
            }
            Float(_) => ChannelParameters::float(singles.as_ref().map_or(0.0, single)),
        };
        entry.encode(wide, &mut out);
    }
    out
}
