//! The cut graph with its names: parts of `a` are `a#1`, `a#2`, ... in the order in which they come about.

use std::collections::{BTreeMap, BTreeSet};

use tpuflow_ir::{DType, Graph, Layer, Op, Quant, Tensor, TensorId};

use super::tiler::{Piece, Tiler};
use super::{Claim, Span, extents};

/// How a tensor of the cut graph comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is one of the original's.
    Original,
    /// Part of a constant.
    Constant,
    /// Cut out of another for a layer that reads it.
    Operand,
    /// By the operator of the original's layer.
    Computed,
    /// Several joined, to one that is not all of a tensor.
    Joined,
    /// Statistics of rows of a softmax, up to and with those of the box.
    Statistics,
    /// The box of a softmax, by statistics of all of its rows.
    Block,
    /// So many stacked sums over some of what a product sums over.
    Sums(usize),
}

/// Names given so far.
struct Names {
    taken: BTreeSet<String>,
    numbers: BTreeMap<String, usize>,
}

impl Names {
    /// The next free of `base#1`, `base#2`, ...
    fn next(&mut self, base: &str) -> String {
        let number = self.numbers.entry(base.to_owned()).or_insert(0);
        let free = (*number + 1..).find(|n| !self.taken.contains(&format!("{base}#{n}")));
        *number = free.unwrap_or(*number);
        let name = format!("{base}#{number}");
        self.taken.insert(name.clone());
        name
    }
}

/// The graph of a cutter's pieces, and their boxes; without tensors that nobody needs any more.
pub(super) fn assemble(cutter: Tiler<'_>) -> (Graph, Vec<Claim>) {
    let Tiler { graph, pieces, layers: made, complete, .. } = cutter;
    let known = graph.tensors.iter().map(|t| &t.name).chain(graph.layers.iter().map(|l| &l.name));
    let mut names = Names { taken: known.cloned().collect(), numbers: BTreeMap::new() };
    let maker: BTreeMap<usize, usize> = made.iter().map(|&(_, layer, piece)| (piece, layer)).collect();
    // By piece, its own name and that of the layer that makes it.
    let mut named: Vec<(String, String)> = Vec::with_capacity(pieces.len());
    for (number, piece) in pieces.iter().enumerate() {
        let own = &graph.tensor(piece.of).name;
        let layer = maker.get(&number).map_or("", |&layer| &graph.layers[layer].name);
        let tensor = if piece.origin == Origin::Original { own.clone() } else { names.next(own) };
        let maker = match piece.origin {
            Origin::Original => layer.to_owned(),
            Origin::Constant => String::new(),
            Origin::Operand => names.next(&format!("{layer}:operand")),
            Origin::Computed | Origin::Statistics | Origin::Block | Origin::Sums(_) => names.next(layer),
            Origin::Joined => names.next(&format!("{layer}:joined")),
        };
        named.push((tensor, maker));
    }
    // A part that is all of a tensor is that tensor.
    let stands = |id: TensorId| complete.get(&id.index()).copied().unwrap_or(id);
    let mut layers: Vec<Layer> = Vec::with_capacity(made.len());
    for (op, of, piece) in made {
        let output = stands(TensorId::new(piece));
        let name = if output.index() == piece { &named[piece].1 } else { &graph.layers[of].name };
        let operands: Vec<TensorId> = op.operands().into_iter().map(stands).collect();
        let nodes = graph.layers[of].nodes.clone();
        // Of its operator, not of the slices and joints around it.
        let terms = graph.layers[of].terms.filter(|_| matches!(op, Op::Conv { .. } | Op::MatMul { .. }));
        layers.push(Layer { name: name.clone(), op: op.with_operands(&operands), output, nodes, terms });
    }
    renumber(graph, &pieces, named.into_iter().map(|names| names.0).collect(), layers)
}

/// Leaves out tensors that nobody needs, and numbers the others.
fn renumber(graph: &Graph, pieces: &[Piece], names: Vec<String>, mut layers: Vec<Layer>) -> (Graph, Vec<Claim>) {
    let used: BTreeSet<TensorId> = (graph.inputs.iter().chain(&graph.outputs).copied())
        .chain(layers.iter().flat_map(|layer| layer.op.operands().into_iter().chain([layer.output])))
        .collect();
    let numbers: BTreeMap<TensorId, TensorId> =
        used.iter().enumerate().map(|(new, &old)| (old, TensorId::new(new))).collect();
    for layer in &mut layers {
        let operands: Vec<TensorId> = layer.op.operands().into_iter().map(|id| numbers[&id]).collect();
        layer.op = layer.op.with_operands(&operands);
        layer.output = numbers[&layer.output];
    }
    let claims = used.iter().map(|id| &pieces[id.index()]).map(|piece| (piece.of, piece.span.clone())).collect();
    let tensors = used.iter().map(|id| tensor(graph, &pieces[id.index()], &names[id.index()])).collect();
    let ports = |ids: &[TensorId]| ids.iter().map(|id| numbers[id]).collect();
    let (inputs, outputs) = (ports(&graph.inputs), ports(&graph.outputs));
    let (states, exchanges) = (graph.states.clone(), graph.exchanges.clone());
    (Graph { name: graph.name.clone(), tensors, layers, inputs, outputs, states, exchanges }, claims)
}

fn tensor(graph: &Graph, piece: &Piece, name: &str) -> Tensor {
    let whole = graph.tensor(piece.of);
    if piece.origin == Origin::Original {
        return whole.clone();
    }
    let constant = whole.constant.as_deref().map(|bytes| {
        let mut own = Vec::new();
        append(bytes, &whole.shape, &piece.span, &mut own);
        own.into()
    });
    let quant = whole.quant.as_ref().map(|quant| scales(quant, whole, &piece.span));
    let mut shape = extents(&piece.span);
    let between = match piece.origin {
        Origin::Statistics => shape.last_mut().map(|keys| *keys = 2),
        Origin::Sums(count) => shape.first_mut().map(|first| *first = count),
        _ => None,
    };
    if between.is_some() {
        let (name, dtype) = (name.to_owned(), DType::I64);
        return Tensor { name, shape, dtype, quant: None, source: None, constant: None, packed: None };
    }
    Tensor { name: name.to_owned(), shape, dtype: whole.dtype, quant, source: None, constant, packed: None }
}

/// Scales of a box: those of its positions along the first axis that has as many as there are scales.
fn scales(quant: &Quant, whole: &Tensor, span: &[Span]) -> Quant {
    let count = quant.scale.len();
    let mut own = quant.clone();
    if count > 1
        && let Some(&(from, to)) =
            span.iter().zip(&whole.shape).find(|(_, extent)| **extent == count).map(|pair| pair.0)
    {
        own.scale = own.scale[from..to].into();
    }
    own
}

/// Appends the bytes of a box's elements: for each position along the first axis, those of the box behind it.
fn append(bytes: &[u8], shape: &[usize], span: &[Span], found: &mut Vec<u8>) {
    let (Some((&extent, shape)), Some((&(from, to), span))) = (shape.split_first(), span.split_first()) else {
        found.extend_from_slice(bytes);
        return;
    };
    let each = bytes.len() / extent;
    if *span == *super::whole(shape) {
        found.extend_from_slice(&bytes[from * each..to * each]);
        return;
    }
    for position in from..to {
        append(&bytes[position * each..][..each], shape, span, found);
    }
}
