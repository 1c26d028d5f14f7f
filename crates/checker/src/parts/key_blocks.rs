//! Attention by blocks of keys: what its layers are, in their order.
//!
//! The softmax of a part is made in three passes over blocks of its rows; whatever depends on the scores is kept, or made anew in each.

use std::collections::BTreeSet;

use tpuflow_ir::op::Epilogue;
use tpuflow_ir::{Arithmetic, Graph, Layer, Measure, Op, Parts, ReduceKind, Requant, TensorId, Tiling};

use super::access::Part;
use super::names::Origin;
use super::tiler::{Tiler, bounding_box};
use super::{Extent, LayerPartsError, PartsError, Span, whole};

/// A run of attention: numbers of its layers, and of the softmax and the product with values, the last.
struct Run<'g> {
    first: usize,
    softmax: usize,
    last: usize,
    keeps_scores: bool,
    softmax_layer: &'g Layer,
    product_layer: &'g Layer,
}

/// How sums of a product end where they are only scaled, all columns alike.
pub(super) fn only_scaled(epilogue: &Arithmetic<Epilogue>) -> Option<Requant> {
    let Arithmetic::Fixed(Epilogue { requant, table: None, first_shift: None }) = epilogue else { return None };
    let first = requant.of(0);
    let alike = (0..requant.multiplier.len()).all(|column| requant.of(column) == first);
    alike.then(|| Requant { multiplier: vec![first.0], shift: vec![first.1], ..requant.clone() })
}

impl<'g> Run<'g> {
    fn of(graph: &'g Graph, tiling: &Tiling) -> Option<Self> {
        let (first, last) = (tiling.first.index(), tiling.last.index());
        let Parts::KeyBlocks { keeps_scores, .. } = tiling.parts else { return None };
        let product_layer = &graph.layers[last];
        let Op::MatMul { a, bias: None, epilogue, partial: false, .. } = &product_layer.op else { return None };
        only_scaled(epilogue)?;
        let softmax = (first..last).find(|&number| graph.layers[number].output == *a)?;
        let softmax_layer = &graph.layers[softmax];
        let codes =
            matches!(softmax_layer.op, Op::Softmax { exponentials: Arithmetic::Fixed(_), statistics: None, .. });
        let deep = graph.tensor(product_layer.output).shape.len() >= 3;
        (codes && deep).then_some(Self { first, softmax, last, keeps_scores, softmax_layer, product_layer })
    }

    /// Tensors in front of the softmax that depend on a product of the run.
    fn of_scores(&self, graph: &Graph) -> BTreeSet<TensorId> {
        graph.layers[self.first..self.softmax].iter().fold(BTreeSet::new(), |mut found, layer| {
            let depends = layer.op.operands().iter().any(|operand| found.contains(operand));
            if depends || matches!(layer.op, Op::MatMul { .. }) {
                found.insert(layer.output);
            }
            found
        })
    }
}

impl Tiler<'_> {
    pub(super) fn tile_key_blocks(&mut self, tiling: &Tiling, leaves: &[usize]) -> Result<(), PartsError> {
        let (graph, last) = (self.graph, tiling.last.index());
        let Parts::KeyBlocks { matrices, queries, keys, .. } = tiling.parts else { return Ok(()) };
        let run = match Run::of(graph, tiling) {
            Some(run) if leaves == [last] => run,
            _ => return Err(self.fail(last)(LayerPartsError::NoAttention)),
        };
        let output = run.product_layer.output;
        let counts = [1, matrices.max(1) as usize, queries.max(1) as usize];
        let extent = graph.tensor(run.softmax_layer.output).shape.last().copied().unwrap_or(0);
        if keys == 0 {
            return Err(self.fail(last)(LayerPartsError::AxisMissing { axis: "keys" }));
        }
        let (length, mut edges) = (keys as usize, Vec::new());
        while let Some(from) = Some(edges.last().map_or(0, |edge: &Span| edge.1)).filter(|&from| from < extent) {
            edges.push((from, from.saturating_add(length).min(extent)));
        }
        let parts = counts[1].saturating_mul(counts[2]);
        self.limit_parts(parts.saturating_mul(edges.len()), last + 1 - run.first)?;
        let mut pieces = Vec::new();
        for number in 0..parts {
            let span = self.grid_cell(last, counts, number).map_err(self.fail(last))?;
            if span[..span.len() - 2].iter().any(|(from, to)| to - from > 1) {
                return Err(self.fail(last)(LayerPartsError::SeveralMatrices));
            }
            pieces.push(self.part_by_blocks(&run, &span, &edges)?);
        }
        let all = whole(&graph.tensor(output).shape);
        let piece = self.join(last, &all, pieces).map_err(self.fail(last))?;
        if piece != output.index() {
            self.complete.insert(piece, output);
        }
        Ok(())
    }

    /// One part of the result: the piece that holds it.
    fn part_by_blocks(&mut self, run: &Run<'_>, span: &[Span], edges: &[Span]) -> Result<usize, PartsError> {
        let (Op::Softmax { exponentials, .. }, Op::MatMul { b, epilogue, .. }) =
            (&run.softmax_layer.op, &run.product_layer.op)
        else {
            return Ok(run.product_layer.output.index());
        };
        let coefficient = exponentials.fixed().map_or(0, |fixed| fixed.coefficient);
        let mut known: Option<usize> = None;
        for measure in [Measure::Maximum, Measure::Sum { coefficient }] {
            for &keys in edges {
                let op = |mask, earlier| Op::SoftmaxStatistics { input: TensorId(0), mask, earlier, measure };
                known = Some(self.of_block(run, &rows(span, keys), known, Origin::Statistics, op)?);
            }
        }
        let product = run.product_layer.output;
        let mut sums = Vec::with_capacity(edges.len());
        for &keys in edges {
            let op = |mask, statistics| {
                let exponentials = exponentials.clone();
                Op::Softmax { input: TensorId(0), exponentials, mask, statistics }
            };
            let block = self.of_block(run, &rows(span, keys), known, Origin::Block, op)?;
            let values = self.values(run, *b, span, keys)?;
            let (a, b, epilogue) = (TensorId(0), TensorId(0), epilogue.clone());
            let op = Op::MatMul { a, b, bias: None, epilogue, partial: true };
            let piece = self.add_piece(product, span, Origin::Sums(span[0].1 - span[0].0));
            self.add_layer(&op, &[block, values], run.last, piece)?;
            sums.push(piece);
        }
        self.total(run, span, &sums)
    }

    /// What the softmax's layer makes of a block, going on from what is known of its rows.
    fn of_block(
        &mut self,
        run: &Run<'_>,
        block: &[Span],
        known: Option<usize>,
        origin: Origin,
        op: impl Fn(Option<TensorId>, Option<TensorId>) -> Op,
    ) -> Result<usize, PartsError> {
        let operands = self.block_operands(run, block)?;
        let op = op(operands.get(1).map(|_| TensorId(0)), known.map(|_| TensorId(0)));
        let piece = self.add_piece(run.softmax_layer.output, block, origin);
        let operands: Vec<usize> = operands.into_iter().chain(known).collect();
        self.add_layer(&op, &operands, run.softmax, piece)?;
        Ok(piece)
    }

    /// The elements of a part from its sums over all blocks.
    fn total(&mut self, run: &Run<'_>, span: &[Span], sums: &[usize]) -> Result<usize, PartsError> {
        let product = run.product_layer.output;
        let stack = match sums {
            &[only] => only,
            _ => {
                let stack = self.add_piece(product, span, Origin::Sums(sums.len()));
                let (inputs, requants) = (vec![TensorId(0); sums.len()], vec![None; sums.len()]);
                self.add_layer(&Op::Concat { inputs, axis: 0, requants }, sums, run.last, stack)?;
                stack
            }
        };
        let piece = self.add_piece(product, span, Origin::Computed);
        let Op::MatMul { epilogue, .. } = &run.product_layer.op else { return Ok(piece) };
        if let Some(requant) = only_scaled(epilogue) {
            let (kind, requant) = (ReduceKind::Sum, Arithmetic::Fixed(requant));
            let op = Op::Reduce { input: TensorId(0), kind, axes: vec![0], requant };
            self.add_layer(&op, &[stack], run.last, piece)?;
        }
        Ok(piece)
    }

    /// Scores of a block, and its mask if there is one.
    fn block_operands(&mut self, run: &Run<'_>, block: &[Span]) -> Result<Vec<usize>, PartsError> {
        if !run.keeps_scores {
            for id in run.of_scores(self.graph) {
                self.forget_pieces(id);
            }
        }
        let wanted: Vec<(TensorId, Extent)> =
            run.softmax_layer.op.operands().into_iter().map(|id| (id, self.under(id, block))).collect();
        self.make(run, wanted, run.softmax)
    }

    /// Values of a block of keys.
    fn values(&mut self, run: &Run<'_>, b: TensorId, span: &[Span], keys: Span) -> Result<usize, PartsError> {
        let mut box_of = whole(&self.graph.tensor(b).shape);
        let rank = box_of.len();
        if rank > 2 {
            box_of[..rank - 2].clone_from_slice(&span[..rank - 2]);
        }
        box_of[rank - 2] = keys;
        let made = self.make(run, vec![(b, box_of)], run.last)?;
        made.first().copied().ok_or_else(|| self.fail(run.last)(LayerPartsError::OperandMissing))
    }

    /// Boxes of tensors, made by the layers in front of the product where they are not there; pieces that hold them for `reader`.
    fn make(
        &mut self,
        run: &Run<'_>,
        wanted: Vec<(TensorId, Extent)>,
        reader: usize,
    ) -> Result<Vec<usize>, PartsError> {
        let mut asked = wanted.clone();
        let mut parts: Vec<(usize, Part)> = Vec::new();
        for number in (run.first..run.last).rev() {
            let layer = &self.graph.layers[number];
            let own = asked.iter().filter(|(id, _)| number != run.softmax && *id == layer.output);
            let Some(span) = own.map(|(_, span)| span.clone()).reduce(|a, b| bounding_box(&a, &b)) else { continue };
            let part = Part::of(self.graph, layer, &span).map_err(self.fail(number))?;
            asked.extend(part.operands.iter().cloned());
            parts.push((number, part));
        }
        for (number, part) in parts.into_iter().rev() {
            self.make_part(number, &part)?;
        }
        Ok(wanted.into_iter().map(|(id, span)| self.slice(id, &span, reader)).collect())
    }

    /// The box of an operand under a box of an elementwise result.
    fn under(&self, id: TensorId, span: &[Span]) -> Extent {
        let shape = &self.graph.tensor(id).shape;
        let own = &span[span.len() - shape.len()..];
        shape.iter().zip(own).map(|(&extent, &range)| if extent == 1 { (0, 1) } else { range }).collect()
    }
}

/// The rows of a softmax behind a box of the product, and some keys.
fn rows(span: &[Span], keys: Span) -> Extent {
    [&span[..span.len() - 1], &[keys]].concat()
}
