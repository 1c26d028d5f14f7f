//! The layers in parts, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use tpuflow_ir::{Graph, Op, Parts, TensorId, Tiling};

use super::access::Part;
use super::names::{Origin, assemble};
use super::{Claim, Extent, LayerPartsError, PartsError, Span, elements, extents, whole};

/// Parts of layers at most; what programs need is some thousands.
const MOST: usize = 1 << 15;
/// Elements of all parts together at most, as a multiple of those of the graph: what several parts need is made by each.
const REPEATED: usize = 32;

/// A tensor of the graph in parts: a box of one of the original's, and how it comes about.
pub(super) struct Piece {
    pub(super) of: TensorId,
    pub(super) span: Extent,
    pub(super) origin: Origin,
}

/// Cuts and joins as they are found. Tensors of the graph are the first pieces; operands are named by pieces.
pub(super) struct Tiler<'a> {
    pub(super) graph: &'a Graph,
    pub(super) pieces: Vec<Piece>,
    /// By tensor of the graph, pieces of it.
    pieces_of: Vec<Vec<usize>>,
    /// Operators in order, the layer of the graph they work for, and the piece each makes.
    pub(super) layers: Vec<(Op, usize, usize)>,
    /// Elements that further pieces may have.
    element_budget: usize,
    /// Pieces that are a tensor of the graph by themselves.
    pub(super) complete: BTreeMap<usize, TensorId>,
}

/// The graph with the layers of every tiling in parts; by tensor, which box of which of the original's it holds.
pub(super) fn tile(graph: &Graph, tilings: &[Tiling]) -> Result<(Graph, Vec<Claim>), PartsError> {
    let count = graph.layers.len();
    // By layer, which tiling it belongs to.
    let mut runs: Vec<Option<&Tiling>> = vec![None; count];
    for tiling in tilings {
        let (first, last) = (tiling.first.index(), tiling.last.index());
        if first > last || last >= count {
            return Err(PartsError::LayerRange { first, last, layers: count });
        }
        for (run, layer) in runs[first..=last].iter_mut().zip(&graph.layers[first..]) {
            if run.replace(tiling).is_some() {
                return Err(PartsError::TwoTilings { layer: layer.name.clone() });
            }
        }
    }
    let original = |(id, tensor): (usize, &tpuflow_ir::Tensor)| Piece {
        of: TensorId::new(id),
        span: whole(&tensor.shape),
        origin: Origin::Original,
    };
    let mut cutter = Tiler {
        graph,
        pieces: graph.tensors.iter().enumerate().map(original).collect(),
        pieces_of: vec![vec![]; graph.tensors.len()],
        layers: vec![],
        element_budget: graph.tensors.iter().map(|tensor| tensor.elements()).sum::<usize>().saturating_mul(REPEATED),
        complete: BTreeMap::new(),
    };
    for (number, layer) in graph.layers.iter().enumerate() {
        match runs[number] {
            None => cutter.layers.push((layer.op.clone(), number, layer.output.index())),
            Some(tiling) if tiling.first.index() == number => cutter.tile_run(tiling)?,
            Some(_) => {}
        }
    }
    Ok(assemble(cutter))
}

impl Tiler<'_> {
    fn shape(&self, id: TensorId) -> &[usize] {
        &self.graph.tensor(id).shape
    }

    /// Makes the reason of a layer an error with the layer's name.
    pub(super) fn fail(&self, layer: usize) -> impl FnOnce(LayerPartsError) -> PartsError {
        let layer = self.graph.layers[layer].name.clone();
        move |reason| PartsError::Layer { layer, reason }
    }

    fn tile_run(&mut self, tiling: &Tiling) -> Result<(), PartsError> {
        let run = tiling.first.index()..=tiling.last.index();
        let mut leaves: Vec<usize> = run.clone().filter(|&layer| self.is_read_outside(layer, *run.end())).collect();
        if leaves.is_empty() {
            // Nobody reads the last: it is computed all the same.
            leaves.push(*run.end());
        }
        if matches!(tiling.parts, Parts::KeyBlocks { .. }) {
            return self.tile_key_blocks(tiling, &leaves);
        }
        let mut joined: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let boxes = self.boxes(&tiling.parts, &leaves)?;
        self.limit_parts(boxes.len(), run.clone().count())?;
        for part in boxes {
            for (layer, part) in self.required_parts(run.clone(), &part)? {
                self.make_part(layer, &part)?;
            }
            for (&layer, span) in &part {
                let piece = self.slice(self.graph.layers[layer].output, span, layer);
                joined.entry(layer).or_default().push(piece);
            }
        }
        for (layer, pieces) in joined {
            let output = self.graph.layers[layer].output;
            let all = whole(self.shape(output));
            let piece = self.join(layer, &all, pieces).map_err(self.fail(layer))?;
            if piece != output.index() {
                // A single part is all there is.
                self.complete.insert(piece, output);
            }
        }
        Ok(())
    }

    /// Refuses more parts of layers than any program needs.
    pub(super) fn limit_parts(&self, parts: usize, layers: usize) -> Result<(), PartsError> {
        let fits = parts.saturating_mul(layers) <= MOST;
        if fits { Ok(()) } else { Err(PartsError::PartCount { parts, layers, limit: MOST }) }
    }

    /// Makes a part of a layer unless a piece holds it.
    pub(super) fn make_part(&mut self, layer: usize, part: &Part) -> Result<(), PartsError> {
        let output = self.graph.layers[layer].output;
        if self.smallest_containing(output, &part.span).is_some() {
            return Ok(());
        }
        let operands: Vec<_> = part.operands.iter().map(|(id, span)| self.slice(*id, span, layer)).collect();
        let piece = self.add_piece(output, &part.span, Origin::Computed);
        self.add_layer(&part.op, &operands, layer, piece)
    }

    /// Makes pieces of a tensor count as not there.
    pub(super) fn forget_pieces(&mut self, of: TensorId) {
        self.pieces_of[of.index()].clear();
    }

    /// Whether what a layer makes is wanted behind layer `last`.
    fn is_read_outside(&self, layer: usize, last: usize) -> bool {
        let output = self.graph.layers[layer].output;
        let behind = &self.graph.layers[last + 1..];
        self.graph.outputs.contains(&output) || behind.iter().any(|reader| reader.op.operands().contains(&output))
    }

    /// By part, the box of each layer that leaves the run.
    fn boxes(&self, parts: &Parts, leaves: &[usize]) -> Result<Vec<BTreeMap<usize, Extent>>, PartsError> {
        match parts {
            Parts::Boxes(boxes) => {
                let [layer] = leaves else { return Err(PartsError::SeveralResults) };
                let shape = self.shape(self.graph.layers[*layer].output);
                let one = |ranges: &Vec<[u32; 2]>| {
                    let span: Extent = ranges.iter().map(|&[from, to]| (from as usize, to as usize)).collect();
                    let inside = span.iter().zip(shape).all(|(&(from, to), &extent)| from < to && to <= extent);
                    let sound = inside && span.len() == shape.len();
                    if sound {
                        Ok(BTreeMap::from([(*layer, span)]))
                    } else {
                        Err(LayerPartsError::OutsideResult { part: ranges.clone() })
                    }
                };
                boxes.iter().map(one).collect::<Result<_, _>>().map_err(self.fail(*layer))
            }
            // These are made in an order of their own.
            Parts::KeyBlocks { .. } => Ok(vec![]),
            Parts::Grid { images, rows, columns } => {
                let counts = [*images, *rows, *columns].map(|count| count.max(1) as usize);
                let parts = counts.iter().try_fold(1usize, |all, &count| all.checked_mul(count));
                let parts = parts.filter(|parts| parts.saturating_mul(leaves.len()) <= MOST);
                let parts = parts.ok_or(PartsError::GridSize { counts, limit: MOST })?;
                let part = |number: usize| {
                    let cell = |&layer| Ok((layer, self.grid_cell(layer, counts, number).map_err(self.fail(layer))?));
                    leaves.iter().map(cell).collect()
                };
                (0..parts).map(part).collect()
            }
        }
    }

    /// Part `number` of a layer's result, cut into so many images, rows and columns; columns first.
    pub(super) fn grid_cell(
        &self,
        layer: usize,
        counts: [usize; 3],
        mut number: usize,
    ) -> Result<Extent, LayerPartsError> {
        let shape = self.shape(self.graph.layers[layer].output);
        let mut span = whole(shape);
        // Axes from the end: columns stand before channels, rows before them; images first, where there are four axes.
        let axes = [(shape.len() > 3).then_some(0), shape.len().checked_sub(3), shape.len().checked_sub(2)];
        for ((count, axis), what) in counts.into_iter().zip(axes).zip(["images", "rows", "columns"]).rev() {
            let at = number % count;
            number /= count;
            if count > 1 {
                let axis = axis.ok_or(LayerPartsError::AxisMissing { axis: what })?;
                let extent = shape[axis];
                if extent < count {
                    return Err(LayerPartsError::TooFewPositions { extent, axis: what, parts: count });
                }
                let start = |part: usize| part * extent / count;
                span[axis] = (start(at), start(at + 1));
            }
        }
        Ok(span)
    }

    /// The part of every layer of the run for one box: the elements that leave the run, and those that later layers take.
    fn required_parts(
        &self,
        run: std::ops::RangeInclusive<usize>,
        leaves: &BTreeMap<usize, Extent>,
    ) -> Result<BTreeMap<usize, Part>, PartsError> {
        let mut needs: BTreeMap<usize, Part> = BTreeMap::new();
        for number in run.rev() {
            let layer = &self.graph.layers[number];
            let taken = needs.values().flat_map(|part| &part.operands).filter(|(id, _)| *id == layer.output);
            let asked = leaves.get(&number).into_iter().chain(taken.map(|(_, span)| span)).cloned();
            if let Some(wanted) = asked.reduce(|a, b| bounding_box(&a, &b)) {
                needs.insert(number, Part::of(self.graph, layer, &wanted).map_err(self.fail(number))?);
            }
        }
        Ok(needs)
    }

    /// The smallest part made or cut before that holds a box; of several, the first.
    fn smallest_containing(&self, of: TensorId, span: &[Span]) -> Option<usize> {
        let holds = |piece: &usize| {
            let outer = &self.pieces[*piece].span;
            !self.complete.contains_key(piece) && outer.iter().zip(span).all(|(o, s)| o.0 <= s.0 && s.1 <= o.1)
        };
        let size = |piece: &usize| elements(&self.pieces[*piece].span);
        self.pieces_of[of.index()].iter().copied().filter(holds).min_by_key(size)
    }

    /// A box of a tensor, cut out of the smallest piece that holds it unless it is one.
    pub(super) fn slice(&mut self, of: TensorId, span: &[Span], reader: usize) -> usize {
        let source = self.smallest_containing(of, span).unwrap_or(of.index());
        if self.pieces[source].span == span {
            return source;
        }
        let constant = self.graph.tensor(of).constant.is_some();
        let outer = self.pieces[source].span.clone();
        let piece = self.add_piece(of, span, if constant { Origin::Constant } else { Origin::Operand });
        if !constant {
            // One loop for each axis of what is cut, from its first element on.
            let mut strides = Vec::with_capacity(outer.len());
            let mut step = 1;
            for extent in extents(&outer).into_iter().rev() {
                strides.insert(0, step);
                step *= extent as i64;
            }
            let dims: Vec<u32> = extents(span).into_iter().map(|extent| extent as u32).collect();
            let offset = (0..span.len()).map(|axis| (span[axis].0 - outer[axis].0) as i64 * strides[axis]).sum();
            self.layers.push((Op::Rearrange { input: TensorId::new(source), dims, strides, offset }, reader, piece));
        }
        piece
    }

    pub(super) fn add_piece(&mut self, of: TensorId, span: &[Span], origin: Origin) -> usize {
        let number = self.pieces.len();
        if !matches!(origin, Origin::Joined | Origin::Statistics | Origin::Block | Origin::Sums(_)) {
            self.pieces_of[of.index()].push(number);
        }
        self.element_budget = self.element_budget.saturating_sub(elements(span));
        self.pieces.push(Piece { of, span: span.to_vec(), origin });
        number
    }

    pub(super) fn add_layer(
        &mut self,
        op: &Op,
        operands: &[usize],
        layer: usize,
        piece: usize,
    ) -> Result<(), PartsError> {
        let ids: Vec<TensorId> = operands.iter().map(|&piece| TensorId::new(piece)).collect();
        self.layers.push((op.with_operands(&ids), layer, piece));
        if self.element_budget == 0 {
            return Err(PartsError::ElementCount { factor: REPEATED });
        }
        if self.layers.len() > 4 * MOST { Err(PartsError::LayerCount { limit: 4 * MOST }) } else { Ok(()) }
    }

    /// Where pieces begin along an axis, and none goes on from before.
    fn straight_cuts(&self, pieces: &[usize], axis: usize) -> Vec<usize> {
        // By position, how many more pieces lie on both sides of it than on both sides of the one before.
        let mut across: BTreeMap<usize, i64> = BTreeMap::new();
        let mut starts = BTreeSet::new();
        for &piece in pieces {
            let (from, to) = self.pieces[piece].span[axis];
            starts.insert(from);
            *across.entry(from + 1).or_default() += 1;
            *across.entry(to).or_default() -= 1;
        }
        let mut depth = 0;
        let mut changes = across.into_iter().peekable();
        starts.retain(|&start| {
            while let Some((_, change)) = changes.next_if(|&(at, _)| at <= start) {
                depth += change;
            }
            depth == 0
        });
        starts.into_iter().collect()
    }

    /// Joins the pieces of a box at every straight cut between them.
    pub(super) fn join(&mut self, layer: usize, span: &[Span], pieces: Vec<usize>) -> Result<usize, LayerPartsError> {
        if let [only] = pieces[..] {
            let found = &self.pieces[only].span;
            return if found == span { Ok(only) } else { Err(LayerPartsError::Coverage { expected: span.to_vec() }) };
        }
        let (axis, mut starts) = (0..span.len())
            .map(|axis| (axis, self.straight_cuts(&pieces, axis)))
            .find(|(_, starts)| starts.len() > 1)
            .ok_or(LayerPartsError::NoStraightCut)?;
        starts[0] = span[axis].0;
        let mut own: Vec<Vec<usize>> = vec![vec![]; starts.len()];
        for piece in pieces {
            let from = self.pieces[piece].span[axis].0;
            own[starts.partition_point(|&start| start <= from).saturating_sub(1)].push(piece);
        }
        let mut slabs = Vec::with_capacity(starts.len());
        for (number, own) in own.into_iter().enumerate() {
            let mut slab = span.to_vec();
            slab[axis] = (starts[number], starts.get(number + 1).copied().unwrap_or(span[axis].1));
            slabs.push(self.join(layer, &slab, own)?);
        }
        let output = self.graph.layers[layer].output;
        let all = *span == whole(self.shape(output));
        let piece = if all { output.index() } else { self.add_piece(output, span, Origin::Joined) };
        let requants = vec![None; slabs.len()];
        let op = Op::Concat { inputs: slabs.iter().copied().map(TensorId::new).collect(), axis: axis as u32, requants };
        self.layers.push((op, layer, piece));
        Ok(piece)
    }
}

/// The smallest box around two.
pub(super) fn bounding_box(a: &[Span], b: &[Span]) -> Extent {
    a.iter().zip(b).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))).collect()
}
