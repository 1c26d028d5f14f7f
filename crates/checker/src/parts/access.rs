//! The elements of each operand that elements of a result depend on, read off the operator's definition.
//!
//! An operator says, for one position along an axis of its result, from which cell to which along an axis of an operand it
//! takes what it needs; some of these may lie beside the operand, in padding. What a box of the result takes is found by asking
//! for every position of the box. Slow, and obvious: nothing here divides, rounds or reasons about edges.

use tpuflow_ir::{Graph, Layer, LinearTap, Op, PadMode, TableEntry, TensorId, Window};

use super::view::View;
use super::{Extent, LayerPartsError, Span, whole};

/// First and last cell that something takes.
type Cells = Option<(i64, i64)>;

/// The cells that a box of the result takes.
type CellsOf<'a> = Box<dyn Fn(&[Span]) -> Cells + 'a>;

/// Which cells along one axis of an operand a box of the result takes.
pub(super) enum AxisAccess<'a> {
    /// All, whatever the box.
    All,
    /// These.
    Of(CellsOf<'a>),
}

/// Cells of an operand along an axis, and how many cells of padding beside it are taken as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) cells: Span,
    pub(super) before: usize,
    pub(super) after: usize,
}

/// Where an operator can be cut along an axis of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Anywhere,
    /// Every element needs all of them.
    Nowhere,
    /// Between blocks of so many.
    Blocks(usize),
    /// A part begins and ends with one of the positions that are multiples of this.
    OnMultiples(usize),
}

/// An operator's result over its operands.
pub(super) struct AccessMap<'a> {
    /// Extents of the result, as the operator makes it.
    pub(super) shape: Vec<usize>,
    /// By operand, by axis.
    pub(super) operands: Vec<Vec<AxisAccess<'a>>>,
    /// By axis of the result.
    pub(super) cuts: Vec<Cut>,
    extents: Vec<Vec<usize>>,
}

/// Position by position along `axis`.
fn by_position<'a>(axis: usize, cells: impl Fn(usize) -> Cells + 'a) -> AxisAccess<'a> {
    AxisAccess::Of(Box::new(move |span| {
        let taken = (span[axis].0..span[axis].1).filter_map(&cells);
        taken.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }))
}

fn single_cell(cell: usize) -> Cells {
    Some((cell as i64, cell as i64))
}

/// The cell of the same number.
fn same_cell<'a>(axis: usize) -> AxisAccess<'a> {
    by_position(axis, single_cell)
}

/// From the first tap of a window to its last.
fn window(window: &Window, side: usize) -> AxisAccess<'_> {
    by_position(side + 1, move |position| {
        let first = position as i64 * i64::from(window.stride[side]) - i64::from(window.pads[side]);
        let last = first + (i64::from(window.kernel[side]) - 1) * i64::from(window.dilation[side]);
        Some((first, last))
    })
}

fn taps(axis: usize, taps: &[LinearTap]) -> AxisAccess<'_> {
    by_position(axis, move |position| {
        let LinearTap { first, second, .. } = taps[position];
        Some((first.min(second).into(), first.max(second).into()))
    })
}

/// The cell so many further on, or back.
fn shifted_cell<'a>(axis: usize, by: i64) -> AxisAccess<'a> {
    by_position(axis, move |position| Some((position as i64 + by, position as i64 + by)))
}

/// Element by element; the only cell along an axis serves all.
fn broadcast<'a>(shape: &[usize], rank: usize) -> Vec<AxisAccess<'a>> {
    let lead = rank - shape.len();
    let axis = |(axis, &extent): (usize, &usize)| if extent == 1 { AxisAccess::All } else { same_cell(lead + axis) };
    shape.iter().enumerate().map(axis).collect()
}

fn image(shape: &[usize]) -> Result<[usize; 4], LayerPartsError> {
    shape.try_into().map_err(|_| LayerPartsError::ImageExpected)
}

impl<'a> AccessMap<'a> {
    pub(super) fn of(graph: &'a Graph, layer: &'a Layer) -> Result<Self, LayerPartsError> {
        let ids = layer.op.operands();
        let extents: Vec<Vec<usize>> = ids.iter().map(|&id| graph.tensor(id).shape.clone()).collect();
        let result = &graph.tensor(layer.output).shape;
        let (shape, mut operands) = axes(&layer.op, &extents, result)?;
        if shape != *result {
            return Err(LayerPartsError::ResultShape { found: result.clone() });
        }
        // Tables, slopes and the like are taken whole.
        for shape in &extents[operands.len()..] {
            operands.push(shape.iter().map(|_| AxisAccess::All).collect());
        }
        let cuts = cuts(&layer.op, &extents, &shape)?;
        Ok(Self { shape, operands, cuts, extents })
    }

    /// The smallest box around `wanted` whose elements an operator of this kind can make by themselves.
    pub(super) fn round_out(&self, wanted: &[Span]) -> Result<Extent, LayerPartsError> {
        let mut grown = wanted.to_vec();
        for (axis, (from, to)) in grown.iter_mut().enumerate() {
            match self.cuts[axis] {
                Cut::Anywhere => {}
                Cut::Nowhere if (*from, *to) == (0, self.shape[axis]) => {}
                Cut::Nowhere => return Err(LayerPartsError::AllChannels),
                Cut::Blocks(size) => {
                    while !from.is_multiple_of(size) {
                        *from -= 1;
                    }
                    while !to.is_multiple_of(size) {
                        *to += 1;
                    }
                }
                Cut::OnMultiples(step) => {
                    while !from.is_multiple_of(step) {
                        *from -= 1;
                    }
                    while !(*to - 1).is_multiple_of(step) {
                        *to += 1;
                    }
                }
            }
        }
        Ok(grown)
    }

    /// The stretches of an operand that a box of the result takes, by axis; `None` where it takes nothing but padding.
    pub(super) fn operand_region(&self, operand: usize, span: &[Span]) -> Option<Vec<Stretch>> {
        let extents = &self.extents[operand];
        let axis = |(reads, &extent): (&AxisAccess, &usize)| {
            let AxisAccess::Of(cells) = reads else { return Some(Stretch { cells: (0, extent), before: 0, after: 0 }) };
            let (first, last) = cells(span)?;
            let (from, to) = (first.max(0), (last + 1).min(extent as i64));
            let beside = |cells: i64| usize::try_from(cells).ok();
            (from < to).then_some(Stretch {
                cells: (beside(from)?, beside(to)?),
                before: beside(from - first)?,
                after: beside(last + 1 - to)?,
            })
        };
        self.operands[operand].iter().zip(extents).map(axis).collect()
    }
}

/// The shape of what an operator makes, and by operand and axis what it takes; operands left out are taken whole.
fn axes<'a>(
    op: &'a Op,
    extents: &[Vec<usize>],
    result: &[usize],
) -> Result<(Vec<usize>, Vec<Vec<AxisAccess<'a>>>), LayerPartsError> {
    let first = extents.first().ok_or(LayerPartsError::OperandMissing)?.clone();
    let rank = result.len();
    Ok(match op {
        Op::Conv { window: w, groups, .. } => convolution(w, *groups as usize, extents)?,
        Op::MaxPool { window: w, .. } | Op::AveragePool { window: w, .. } => {
            let [n, height, width, depth] = image(&first)?;
            let [y, x] = w.output(height, width).ok_or(LayerPartsError::WindowSize)?;
            (vec![n, y, x, depth], vec![vec![same_cell(0), window(w, 0), window(w, 1), same_cell(3)]])
        }
        Op::MatMul { bias, .. } => product(&first, &extents[1], bias.is_some())?,
        // Made by tilings only, never tiled again.
        Op::SoftmaxStatistics { .. } => return Err(LayerPartsError::Block),
        Op::Binary { .. } | Op::Select { .. } | Op::Softmax { .. } => {
            let all = extents.iter().try_fold(vec![], |all, shape| tpuflow_ir::shape::broadcast(&all, shape));
            let all = all
                .filter(|all| all == result)
                .ok_or_else(|| LayerPartsError::BroadcastShape { found: result.to_vec() })?;
            (all, extents.iter().map(|shape| broadcast(shape, rank)).collect())
        }
        Op::Unary { .. }
        | Op::Rescale { .. }
        | Op::Quantize { .. }
        | Op::Dequantize { .. }
        | Op::PRelu { .. }
        | Op::LayerNorm { .. } => {
            let reads = same_cells(&first);
            (first, vec![reads])
        }
        Op::Reduce { axes, .. } => reduction(&first, &axes.iter().map(|&axis| axis as usize).collect::<Vec<_>>(), rank),
        Op::ArgMax { .. } => {
            reduction(&first, &[first.len().checked_sub(1).ok_or(LayerPartsError::ScalarOperand)?], rank)
        }
        Op::Embedding { entry, .. } => {
            let indices = &extents[1];
            let elements = match (entry, &first[..]) {
                (TableEntry::Column, [rows, _]) => *rows,
                (TableEntry::Rows(each), [_, columns]) => *each as usize * columns,
                _ => first.last().copied().unwrap_or(1),
            };
            let shape = indices.iter().copied().chain([elements]).collect();
            (shape, vec![vec![AxisAccess::All, AxisAccess::All], same_cells(indices)])
        }
        Op::ResizeLinear { rows, columns, .. } => {
            let [n, _, _, depth] = image(&first)?;
            let reads = vec![same_cell(0), taps(1, rows), taps(2, columns), same_cell(3)];
            (vec![n, rows.len(), columns.len(), depth], vec![reads])
        }
        Op::Concat { axis, .. } => concatenation(extents, *axis as usize)?,
        Op::Pad { before, after, mode, .. } => padding(&first, [before, after], *mode)?,
        Op::Gather { axis, indices, .. } => {
            let axis = *axis as usize;
            let mut reads = same_cells(&first);
            reads[axis] = by_position(axis, move |position| single_cell(indices[position] as usize));
            let mut shape = first;
            shape[axis] = indices.len();
            (shape, vec![reads])
        }
        Op::Rearrange { dims, strides, offset, .. } => {
            let view = View::new(dims, strides, *offset, result)?;
            (result.to_vec(), vec![view.reads(&first)])
        }
        Op::InsertZeros { stride, .. } => {
            let [n, height, width, depth] = image(&first)?;
            let [sh, sw] = stride.map(|step| step as usize);
            let cells = |axis: usize, step: usize| {
                by_position(axis, move |position| {
                    position.is_multiple_of(step).then(|| single_cell(position / step)).flatten()
                })
            };
            let reads = vec![same_cell(0), cells(1, sh), cells(2, sw), same_cell(3)];
            (vec![n, (height - 1) * sh + 1, (width - 1) * sw + 1, depth], vec![reads])
        }
    })
}

/// Windows over the channels of their group, all of the filters of some results.
fn convolution<'a>(
    w: &'a Window,
    groups: usize,
    extents: &[Vec<usize>],
) -> Result<(Vec<usize>, Vec<Vec<AxisAccess<'a>>>), LayerPartsError> {
    let ([n, height, width, _], [out, _, _, depth]) = (image(&extents[0])?, image(&extents[1])?);
    let [y, x] = w.output(height, width).ok_or(LayerPartsError::WindowSize)?;
    let own = out / groups;
    let channels = by_position(3, move |channel| {
        let group = channel / own;
        Some(((group * depth) as i64, ((group + 1) * depth) as i64 - 1))
    });
    let kernel = vec![same_cell(3), AxisAccess::All, AxisAccess::All, AxisAccess::All];
    Ok((vec![n, y, x, out], vec![vec![same_cell(0), window(w, 0), window(w, 1), channels], kernel, vec![same_cell(3)]]))
}

/// Operands one behind the other along an axis.
fn concatenation<'a>(
    extents: &[Vec<usize>],
    axis: usize,
) -> Result<(Vec<usize>, Vec<Vec<AxisAccess<'a>>>), LayerPartsError> {
    let (mut start, mut operands) = (0, Vec::new());
    for shape in extents {
        let mut reads = same_cells(shape);
        *reads.get_mut(axis).ok_or(LayerPartsError::ConcatAxis)? = shifted_cell(axis, -(start as i64));
        start += shape[axis];
        operands.push(reads);
    }
    let mut shape = extents[0].clone();
    shape[axis] = start;
    Ok((shape, operands))
}

/// Cells moved by the padding before them.
fn padding<'a>(
    first: &[usize],
    [before, after]: [&'a [u32]; 2],
    mode: PadMode,
) -> Result<(Vec<usize>, Vec<Vec<AxisAccess<'a>>>), LayerPartsError> {
    if !matches!(mode, PadMode::Constant(_) | PadMode::Value(_)) {
        return Err(LayerPartsError::PadMode);
    }
    let pads = before.iter().zip(after).map(|(&before, &after)| (before + after) as usize);
    let shape = first.iter().zip(pads).map(|(extent, pads)| extent + pads).collect();
    let reads = before.iter().enumerate().map(|(axis, &before)| shifted_cell(axis, -i64::from(before))).collect();
    Ok((shape, vec![reads]))
}

/// Every axis as the result has it.
fn same_cells<'a>(shape: &[usize]) -> Vec<AxisAccess<'a>> {
    (0..shape.len()).map(same_cell).collect()
}

/// Of `a` all of a row; of `b` all of a column, and the matrix of the same number where there are several.
fn product<'a>(
    a: &[usize],
    b: &[usize],
    bias: bool,
) -> Result<(Vec<usize>, Vec<Vec<AxisAccess<'a>>>), LayerPartsError> {
    let ([lead @ .., _], [others @ .., _, columns]) = (a, b) else { return Err(LayerPartsError::MatricesExpected) };
    let last = lead.len();
    let mut left: Vec<AxisAccess> = (0..last).map(same_cell).collect();
    left.push(AxisAccess::All);
    let mut right: Vec<AxisAccess> = (0..others.len()).map(same_cell).collect();
    right.extend([AxisAccess::All, same_cell(last)]);
    let mut operands = vec![left, right];
    operands.extend(bias.then(|| vec![same_cell(last)]));
    Ok((lead.iter().chain([columns]).copied().collect(), operands))
}

/// All along reduced axes, which the result keeps with one element or drops.
fn reduction<'a>(shape: &[usize], axes: &[usize], rank: usize) -> (Vec<usize>, Vec<Vec<AxisAccess<'a>>>) {
    let (kept, mut result, mut reads) = (rank == shape.len(), Vec::new(), Vec::new());
    for (axis, &extent) in shape.iter().enumerate() {
        if axes.contains(&axis) {
            reads.push(AxisAccess::All);
            result.extend(kept.then_some(1));
        } else {
            reads.push(same_cell(result.len()));
            result.push(extent);
        }
    }
    (result, vec![reads])
}

/// Where the result of an operator can be cut, by axis.
fn cuts(op: &Op, extents: &[Vec<usize>], shape: &[usize]) -> Result<Vec<Cut>, LayerPartsError> {
    let mut cuts = vec![Cut::Anywhere; shape.len()];
    let last = shape.len().checked_sub(1);
    match op {
        // Groups are made whole.
        Op::Conv { groups, .. } if *groups > 1 => cuts[3] = Cut::Blocks(extents[1][0] / *groups as usize),
        Op::Softmax { .. } | Op::LayerNorm { .. } | Op::Embedding { .. } => {
            if let Some(last) = last {
                cuts[last] = Cut::Nowhere;
            }
        }
        Op::InsertZeros { stride, .. } => {
            for side in 0..2 {
                cuts[side + 1] = Cut::OnMultiples(stride[side] as usize);
            }
        }
        Op::Rearrange { dims, strides, offset, .. } => {
            let view = View::new(dims, strides, *offset, shape)?;
            cuts = (0..shape.len()).map(|axis| Cut::Blocks(view.block(axis))).collect();
        }
        _ => {}
    }
    Ok(cuts)
}

/// A part of what a layer makes: its box, the operator that makes it, and the boxes that takes.
pub(super) struct Part {
    pub(super) span: Extent,
    pub(super) op: Op,
    pub(super) operands: Vec<(TensorId, Extent)>,
}

impl Part {
    /// The part of `layer` that makes `wanted`, and more where its operator can do no less.
    pub(super) fn of(graph: &Graph, layer: &Layer, wanted: &[Span]) -> Result<Self, LayerPartsError> {
        let map = AccessMap::of(graph, layer)?;
        let span = map.round_out(wanted)?;
        let (mut operands, mut stretches) = (Vec::new(), Vec::new());
        for (operand, id) in layer.op.operands().into_iter().enumerate() {
            let taken = map.operand_region(operand, &span);
            if taken.is_none() && !matches!(layer.op, Op::Concat { .. }) {
                return Err(LayerPartsError::OnlyPadding);
            }
            operands.extend(taken.iter().map(|axes| (id, axes.iter().map(|axis| axis.cells).collect())));
            stretches.push(taken);
        }
        let result = whole(&graph.tensor(layer.output).shape);
        let op = super::local::local(graph, &layer.op, &span, &result, &stretches)?;
        Ok(Self { span, op, operands })
    }
}
