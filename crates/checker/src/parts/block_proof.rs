//! Attention by blocks of keys: do its layers compute what the softmax and the product of the original compute?
//!
//! Statistics and partial sums are no boxes of any tensor. What they hold is found layer by layer: the largest code, or the sum of
//! exponentials, of the first keys of some rows of a softmax; sums over some keys of a product. A layer that takes them must go on
//! where they end, and one that makes elements of the original must take all of them.

use std::collections::BTreeMap;

use tpuflow_ir::op::Exponentials;
use tpuflow_ir::{Arithmetic, DType, Graph, Layer, Measure, Op, ReduceKind, TensorId};

use super::error::LayerProofError as Reason;
use super::key_blocks::only_scaled;
use super::proof::{attributes, elements, require, same_epilogue};
use super::{Claim, Extent, Span};

/// What an int64 tensor holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    /// Of rows of a softmax's result, the largest code of the first keys.
    Maxima { softmax: TensorId, rows: Extent, keys: usize },
    /// The same of all keys, and the sum of exponentials of the first.
    Totals { softmax: TensorId, rows: Extent, keys: usize },
    /// Of a box of a product, the sums over these keys, in a stack of so many, each of other keys.
    Sums { product: TensorId, span: Extent, keys: Span, count: usize },
}

/// What the int64 tensors of a graph in parts hold, as far as it has been shown.
pub(super) struct Blocks<'a> {
    graph: &'a Graph,
    parts: &'a Graph,
    claims: &'a [Claim],
    held: BTreeMap<TensorId, Held>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(graph: &'a Graph, parts: &'a Graph, claims: &'a [Claim]) -> Self {
        Self { graph, parts, claims, held: BTreeMap::new() }
    }

    /// Whether a tensor in parts is no box of `of` but statistics or sums on the way to it.
    pub(super) fn is_between(&self, id: TensorId) -> bool {
        let (tensor, of) = (self.parts.tensor(id), self.graph.tensor(self.claims[id.index()].0));
        tensor.constant.is_none() && tensor.dtype == DType::I64 && of.dtype.is_code()
    }

    /// Whether a layer makes or takes such a tensor.
    pub(super) fn concerns(&self, layer: &Layer) -> bool {
        layer.op.operands().into_iter().chain([layer.output]).any(|id| self.is_between(id))
    }

    /// Shows what a layer's result holds.
    pub(super) fn check_layer(&mut self, layer: &Layer) -> Result<(), Reason> {
        let found = match &layer.op {
            Op::SoftmaxStatistics { input, mask, earlier, measure } => {
                Some(self.statistics(layer.output, *input, *mask, *earlier, *measure)?)
            }
            Op::Softmax { .. } => {
                self.shares(layer)?;
                None
            }
            Op::MatMul { partial: true, .. } => Some(self.partial_sums(layer)?),
            Op::Concat { inputs, axis, requants } => {
                require(*axis == 0 && requants.iter().all(Option::is_none), Reason::ConcatAxis)?;
                Some(self.stack(inputs)?)
            }
            Op::Reduce { .. } => {
                self.total(layer)?;
                None
            }
            _ => return Err(Reason::Operator),
        };
        match found {
            Some(held) => {
                let shape = match &held {
                    Held::Maxima { rows, .. } | Held::Totals { rows, .. } => {
                        sizes(rows).chain([2]).collect::<Vec<usize>>()
                    }
                    Held::Sums { span, count, .. } => [*count].into_iter().chain(sizes(span).skip(1)).collect(),
                };
                let own = self.parts.tensor(layer.output);
                require(self.is_between(layer.output) && own.shape == shape, Reason::Block)?;
                self.held.insert(layer.output, held);
                Ok(())
            }
            None => require(!self.is_between(layer.output), Reason::Block),
        }
    }

    fn claim(&self, id: TensorId) -> &'a Claim {
        &self.claims[id.index()]
    }

    fn maker(&self, of: TensorId) -> Result<&'a Op, Reason> {
        self.graph.layers.iter().find(|made| made.output == of).map(|made| &made.op).ok_or(Reason::NoOriginal)
    }

    /// The softmax that makes `of`, if it is one of codes.
    fn softmax(&self, of: TensorId) -> Result<(TensorId, Option<TensorId>, &'a Exponentials), Reason> {
        match self.maker(of)? {
            Op::Softmax { input, mask, exponentials: Arithmetic::Fixed(fixed), statistics: None } => {
                Ok((*input, *mask, fixed))
            }
            _ => Err(Reason::Operator),
        }
    }

    /// The block of a softmax's result whose codes, and whose mask, these operands are: its rows and keys.
    fn block(&self, softmax: TensorId, input: TensorId, mask: Option<TensorId>) -> Result<(Extent, Span), Reason> {
        let (x, own_mask, _) = self.softmax(softmax)?;
        let (of, span) = self.claim(input);
        require(*of == x && mask.is_some() == own_mask.is_some() && !self.is_between(input), Reason::Operands)?;
        if let Some((mask, own)) = mask.zip(own_mask) {
            let (of, under) = self.claim(mask);
            require(*of == own, Reason::Operands)?;
            let shape = &self.graph.tensor(own).shape;
            let lead = span.len().checked_sub(shape.len()).ok_or(Reason::Elements)?;
            let fits = shape
                .iter()
                .zip(under)
                .zip(&span[lead..])
                .all(|((&extent, under), range)| if extent == 1 { *under == (0, 1) } else { under == range });
            elements(fits && under.len() == shape.len())?;
        }
        let (&keys, rows) = span.split_last().ok_or(Reason::Elements)?;
        Ok((rows.to_vec(), keys))
    }

    fn keys_of(&self, softmax: TensorId) -> usize {
        self.graph.tensor(softmax).shape.last().copied().unwrap_or(0)
    }

    fn statistics(
        &self,
        output: TensorId,
        input: TensorId,
        mask: Option<TensorId>,
        earlier: Option<TensorId>,
        measure: Measure,
    ) -> Result<Held, Reason> {
        let softmax = self.claim(output).0;
        let (rows, (from, to)) = self.block(softmax, input, mask)?;
        let before = earlier.map(|id| self.held.get(&id).ok_or(Reason::Block)).transpose()?;
        let all = self.keys_of(softmax);
        match (measure, before) {
            (Measure::Maximum, None) => {
                elements(from == 0)?;
                Ok(Held::Maxima { softmax, rows, keys: to })
            }
            (Measure::Maximum, Some(before)) => {
                let expected = Held::Maxima { softmax, rows: rows.clone(), keys: from };
                elements(*before == expected)?;
                Ok(Held::Maxima { softmax, rows, keys: to })
            }
            (Measure::Sum { coefficient }, Some(before)) => {
                attributes(coefficient == self.softmax(softmax)?.2.coefficient)?;
                let begins = Held::Maxima { softmax, rows: rows.clone(), keys: all };
                let goes_on = Held::Totals { softmax, rows: rows.clone(), keys: from };
                elements(from == 0 && *before == begins || from > 0 && *before == goes_on)?;
                Ok(Held::Totals { softmax, rows, keys: to })
            }
            (Measure::Sum { .. }, None) => Err(Reason::Operands),
        }
    }

    /// A softmax of a block, by statistics of all of its rows.
    fn shares(&self, layer: &Layer) -> Result<(), Reason> {
        let Op::Softmax { input, mask, exponentials, statistics: Some(statistics) } = &layer.op else {
            return Err(Reason::Operator);
        };
        let (softmax, span) = self.claim(layer.output);
        let (rows, keys) = self.block(*softmax, *input, *mask)?;
        attributes(exponentials.fixed() == Some(self.softmax(*softmax)?.2))?;
        let expected = Held::Totals { softmax: *softmax, rows: rows.clone(), keys: self.keys_of(*softmax) };
        elements(self.held.get(statistics) == Some(&expected))?;
        elements(span.split_last() == Some((&keys, &rows[..])))
    }

    /// Sums over some keys of all columns.
    fn partial_sums(&self, layer: &Layer) -> Result<Held, Reason> {
        let (product, span) = self.claim(layer.output);
        let (
            Op::MatMul { a: own_a, b: own_b, bias: None, epilogue: own, partial: true },
            Op::MatMul { a, b, bias: None, epilogue, partial: false },
        ) = (&layer.op, self.maker(*product)?)
        else {
            return Err(Reason::Operator);
        };
        require(only_scaled(epilogue).is_some(), Reason::Operator)?;
        let ((of_a, left), (of_b, right)) = (self.claim(*own_a), self.claim(*own_b));
        require((of_a, of_b) == (a, b) && ![*own_a, *own_b].iter().any(|&id| self.is_between(id)), Reason::Operands)?;
        let (Some((&keys, rows)), Some((&columns, lead))) = (left.split_last(), span.split_last()) else {
            return Err(Reason::Elements);
        };
        let (rank, of) = (right.len(), &self.graph.tensor(*b).shape);
        elements(rows == lead && right[rank - 2] == keys && right[rank - 1] == columns)?;
        elements(rank == 2 || right[..rank - 2] == span[..rank - 2])?;
        elements(columns == (0, of[rank - 1]))?;
        attributes(same_epilogue(epilogue, own, columns))?;
        let count = span.first().map_or(0, |(from, to)| to - from);
        Ok(Held::Sums { product: *product, span: span.clone(), keys, count })
    }

    /// Sums over neighbouring keys, one behind the other.
    fn stack(&self, inputs: &[TensorId]) -> Result<Held, Reason> {
        let mut all: Option<Held> = None;
        for id in inputs {
            let own = self.held.get(id).ok_or(Reason::Block)?;
            all = match (all, own) {
                (None, Held::Sums { .. }) => Some(own.clone()),
                (
                    Some(Held::Sums { product, span, keys, count }),
                    Held::Sums { product: p, span: s, keys: k, count: c },
                ) => {
                    require(*p == product && *s == span && k.0 == keys.1, Reason::ConcatGap)?;
                    Some(Held::Sums { product, span, keys: (keys.0, k.1), count: count + c })
                }
                _ => return Err(Reason::Block),
            };
        }
        all.ok_or(Reason::Operands)
    }

    /// Elements from the sums over all keys.
    fn total(&self, layer: &Layer) -> Result<(), Reason> {
        let Op::Reduce { input, kind: ReduceKind::Sum, axes, requant: Arithmetic::Fixed(requant) } = &layer.op else {
            return Err(Reason::Operator);
        };
        let (product, span) = self.claim(layer.output);
        let Op::MatMul { a, epilogue, .. } = self.maker(*product)? else { return Err(Reason::Operator) };
        attributes(axes[..] == [0] && only_scaled(epilogue).as_ref() == Some(requant))?;
        let depth = self.graph.tensor(*a).shape.last().copied().unwrap_or(0);
        // One of the stack's first axis is one of the box's, which has no others.
        elements(span.first().is_some_and(|(from, to)| to - from == 1))?;
        match self.held.get(input) {
            Some(Held::Sums { product: p, span: s, keys, .. }) => {
                elements(p == product && s == span && *keys == (0, depth))
            }
            _ => Err(Reason::Block),
        }
    }
}

fn sizes(span: &[Span]) -> impl Iterator<Item = usize> {
    span.iter().map(|(from, to)| to - from)
}
