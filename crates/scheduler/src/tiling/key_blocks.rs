//! Attention by blocks of keys: a softmax and the product behind it, whose rows are longer than the cache has space for.
//!
//! ```text
//!   for the queries of a part:
//!     for each block of keys:   scores, largest score so far
//!     for each block of keys:   scores, sum of exponentials so far
//!     for each block of keys:   scores, shares, sums of shares times values
//!     sum of these over the blocks
//! ```
//!
//! Scores of the queries are kept, so that of their shares never more than a block is there; or they are computed three times, and
//! never more than a block of either is there. The elementwise unit makes as many passes over them as an undivided softmax does.
//! Maxima and integer sums do not depend on the cuts, so no bit changes.

use std::collections::BTreeMap;

use tpuflow_ir::{
    Arithmetic, DType, Epilogue, Graph, Layer, Measure, Op, Parts, ReduceKind, Requant, TensorId, Tiling,
};

use super::part::part;
use super::region::Region;
use super::{Writer, covers, grid, leaving};
use crate::error::{ScheduleError, TilingError};

/// The layers of attention in a run, by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    first: usize,
    softmax: usize,
    product: usize,
    keeps_scores: bool,
}

/// Layers and their regions, in order.
type Computed = BTreeMap<usize, Region>;

impl Attention {
    /// The attention that layers `first ..= last` are, if it can be computed by blocks of keys: the last is a product of codes that
    /// only scales its sums, and the only one to read the softmax that is its left operand.
    fn of(graph: &Graph, first: usize, last: usize, keeps_scores: bool) -> Option<Self> {
        let Op::MatMul { a, bias: None, epilogue: Arithmetic::Fixed(epilogue), partial: false, .. } =
            &graph.layers.get(last)?.op
        else {
            return None;
        };
        let softmax = (first..last).find(|&at| graph.layers[at].output == *a)?;
        let is_softmax = matches!(
            &graph.layers[softmax].op,
            Op::Softmax { exponentials: Arithmetic::Fixed(_), statistics: None, .. }
        );
        let has_rank = graph.tensor(graph.layers[last].output).shape.len() > 2;
        (is_softmax && has_rank && single_requant(epilogue).is_some() && leaving(graph, first, last) == [last])
            .then_some(Self { first, softmax, product: last, keeps_scores })
    }

    /// Axis of the softmax that is cut into blocks.
    fn keys(self, graph: &Graph) -> usize {
        graph.tensor(graph.layers[self.softmax].output).shape.last().copied().unwrap_or(0)
    }

    /// Tensors that are computed anew for every pass: the scores, and what is made of them before the softmax.
    fn scores(self, graph: &Graph) -> Vec<TensorId> {
        let mut found: Vec<TensorId> = Vec::new();
        for layer in &graph.layers[self.first..self.softmax] {
            let is_of_scores = layer.op.operands().iter().any(|id| found.contains(id));
            if is_of_scores || matches!(layer.op, Op::MatMul { .. }) {
                found.push(layer.output);
            }
        }
        found
    }
}

/// The softmax of layers `first ..= last`, where these are attention that can be computed by blocks of keys.
pub(super) fn softmax(graph: &Graph, first: usize, last: usize) -> Option<usize> {
    Attention::of(graph, first, last, false).map(|attention| attention.softmax)
}

/// The one requantisation of all columns, where nothing else follows the sums.
fn single_requant(epilogue: &Epilogue) -> Option<Requant> {
    let Epilogue { first_shift: None, requant, table: None } = epilogue else { return None };
    let (multiplier, shift) = (*requant.multiplier.first()?, *requant.shift.first()?);
    let is_single = requant.multiplier.iter().all(|&m| m == multiplier) && requant.shift.iter().all(|&s| s == shift);
    is_single.then(|| Requant { multiplier: vec![multiplier], shift: vec![shift], ..requant.clone() })
}

/// The box of an operand that a box of an elementwise result takes.
fn broadcast(shape: &[usize], result: &Region) -> Region {
    let lead = result.0.len() - shape.len();
    let range = |(axis, &extent): (usize, &usize)| if extent == 1 { (0, 1) } else { result.0[lead + axis] };
    Region(shape.iter().enumerate().map(range).collect())
}

impl Writer<'_> {
    /// Attention in parts of some queries of a matrix, each by blocks of keys.
    pub(super) fn key_blocks(&mut self, tiling: &Tiling) -> Result<(), ScheduleError> {
        let (graph, last) = (self.graph, tiling.last.index());
        let own = &graph.layers[last];
        let fail = |reason| ScheduleError::Tiling { layer: own.name.clone(), reason };
        let Parts::KeyBlocks { matrices, queries, keys, keeps_scores } = tiling.parts else { return Ok(()) };
        let attention = Attention::of(graph, tiling.first.index(), last, keeps_scores);
        let attention = attention.ok_or_else(|| fail(TilingError::NoAttention))?;
        let (shape, extent) = (&graph.tensor(own.output).shape, attention.keys(graph));
        if keys == 0 {
            return Err(fail(TilingError::Nothing { what: "keys" }));
        }
        let starts = (0..extent).step_by(keys as usize);
        let blocks: Vec<(usize, usize)> = starts.map(|start| (start, extent.min(start + keys as usize))).collect();
        let mut pieces = Vec::new();
        for cell in grid(shape, [1, matrices, queries]).map_err(fail)? {
            if cell.0[..cell.0.len() - 2].iter().any(|(from, to)| to - from != 1) {
                return Err(fail(TilingError::SeveralMatrices));
            }
            let piece = self.attention_part(attention, &cell, &blocks)?;
            self.parts.push((own.output, cell.clone(), piece));
            pieces.push((cell, piece));
        }
        let whole = Region::whole(shape);
        covers(&whole, &pieces).and_then(|()| self.join(own, pieces, &whole)).map_err(fail)?;
        Ok(())
    }

    /// What attention gives for one box of queries of one matrix.
    fn attention_part(
        &mut self,
        attention: Attention,
        cell: &Region,
        blocks: &[(usize, usize)],
    ) -> Result<TensorId, ScheduleError> {
        let graph = self.graph;
        let (softmax, product) = (&graph.layers[attention.softmax], &graph.layers[attention.product]);
        let Op::Softmax { input, exponentials: Arithmetic::Fixed(exponentials), mask, .. } = &softmax.op else {
            return Ok(product.output);
        };
        let measures = [Measure::Maximum, Measure::Sum { coefficient: exponentials.coefficient }];
        let mut statistics = None;
        for measure in measures {
            for &block in blocks {
                let scores = cell.with(cell.0.len() - 1, block);
                let [x, own_mask] = self.scores(attention, &scores)?;
                let op =
                    Op::SoftmaxStatistics { input: x.unwrap_or(*input), mask: own_mask, earlier: statistics, measure };
                let mut shape = scores.shape();
                shape[cell.0.len() - 1] = 2;
                statistics = Some(self.block(softmax, op, (softmax.output, &scores), shape));
            }
        }
        let mut sums = Vec::new();
        for &block in blocks {
            let scores = cell.with(cell.0.len() - 1, block);
            let [x, own_mask] = self.scores(attention, &scores)?;
            let exponentials = Arithmetic::Fixed(exponentials.clone());
            let op = Op::Softmax { input: x.unwrap_or(*input), exponentials, mask: mask.and(own_mask), statistics };
            let shares = self.tensor(softmax.output, &scores);
            self.push(softmax, op, shares);
            sums.push(self.partial_product(attention, cell, block, shares)?);
        }
        Ok(self.total(product, cell, sums))
    }

    /// The operands of a block of the softmax, scores and mask, computed as far as they are not there.
    fn scores(&mut self, attention: Attention, block: &Region) -> Result<[Option<TensorId>; 2], ScheduleError> {
        let layer = &self.graph.layers[attention.softmax];
        let Op::Softmax { input, mask, .. } = &layer.op else { return Ok([None; 2]) };
        if !attention.keeps_scores {
            // Whatever passes before have made of the scores is gone.
            let scores = attention.scores(self.graph);
            self.parts.retain(|(of, ..)| !scores.contains(of));
        }
        let wanted: Vec<(TensorId, Region)> = std::iter::once(*input)
            .chain(*mask)
            .map(|id| (id, broadcast(&self.graph.tensor(id).shape, block)))
            .collect();
        self.compute_operands(attention, &wanted)?;
        let found: Vec<TensorId> = wanted.iter().map(|(id, region)| self.fetch(*id, region, layer)).collect();
        Ok([found.first().copied(), found.get(1).copied()])
    }

    /// Computes what layers of the run in front of the product make of these regions.
    fn compute_operands(&mut self, attention: Attention, wanted: &[(TensorId, Region)]) -> Result<(), ScheduleError> {
        let graph = self.graph;
        let mut needs = wanted.to_vec();
        let mut computes = Computed::new();
        for at in (attention.first..attention.product).rev().filter(|&at| at != attention.softmax) {
            let layer = &graph.layers[at];
            let own = needs.iter().filter(|(id, _)| *id == layer.output).map(|(_, region)| region.clone());
            let Some(region) = own.reduce(|a, b| a.hull(&b)) else { continue };
            let fail = |reason| ScheduleError::Tiling { layer: layer.name.clone(), reason };
            let found = part(graph, layer, &region).map_err(fail)?;
            needs.extend(found.op.operands().into_iter().zip(found.operands));
            computes.insert(at, found.region);
        }
        self.compute(&computes)
    }

    /// The sums of one block of keys, as they are.
    fn partial_product(
        &mut self,
        attention: Attention,
        cell: &Region,
        block: (usize, usize),
        shares: TensorId,
    ) -> Result<TensorId, ScheduleError> {
        let graph = self.graph;
        let product = &graph.layers[attention.product];
        let Op::MatMul { b, epilogue, .. } = &product.op else { return Ok(shares) };
        let mut values = Region::whole(&graph.tensor(*b).shape);
        let rank = values.0.len();
        if rank > 2 {
            values.0[..rank - 2].copy_from_slice(&cell.0[..rank - 2]);
        }
        values.0[rank - 2] = block;
        self.compute_operands(attention, &[(*b, values.clone())])?;
        let b = self.fetch(*b, &values, product);
        let op = Op::MatMul { a: shares, b, bias: None, epilogue: epilogue.clone(), partial: true };
        Ok(self.block(product, op, (product.output, cell), cell.shape()))
    }

    /// The elements of a box from the sums of all blocks.
    fn total(&mut self, product: &Layer, cell: &Region, sums: Vec<TensorId>) -> TensorId {
        let requant = match &product.op {
            Op::MatMul { epilogue: Arithmetic::Fixed(epilogue), .. } => single_requant(epilogue),
            _ => None,
        };
        let mut shape = cell.shape();
        shape[0] = sums.len();
        let requants = vec![None; sums.len()];
        let stacked = match sums[..] {
            [only] => only,
            _ => self.block(product, Op::Concat { inputs: sums, axis: 0, requants }, (product.output, cell), shape),
        };
        let output = self.tensor(product.output, cell);
        if let Some(requant) = requant {
            let (kind, requant) = (ReduceKind::Sum, Arithmetic::Fixed(requant));
            self.push(product, Op::Reduce { input: stacked, kind, axes: vec![0], requant }, output);
        }
        output
    }

    /// An int64 tensor that a block of `own` gives, beside a box of a tensor.
    fn block(&mut self, own: &Layer, op: Op, (of, region): (TensorId, &Region), shape: Vec<usize>) -> TensorId {
        let output = self.tensor(of, region);
        let tensor = &mut self.tensors[output.index()];
        (tensor.shape, tensor.dtype, tensor.quant) = (shape, DType::I64, None);
        self.push(own, op, output);
        output
    }
}
