//! The derived parts, compared with the definitions of the operators applied element by element.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use tpuflow_ir::{Graph, Layer, Op, Window};

use super::access::{AccessMap, Part};
use super::{Extent, Span, whole};
use crate::common::wild::wild;
use crate::common::{Net, Random, random};

/// Elements of operands, by operand.
type Touched = BTreeMap<usize, BTreeSet<Vec<usize>>>;

/// All multi-indices of a box.
fn each(span: &[Span]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &(from, to) in span {
        let longer = |index: &Vec<usize>| (from..to).map(|i| [&index[..], &[i]].concat()).collect::<Vec<_>>();
        all = all.iter().flat_map(longer).collect();
    }
    all
}

fn with(index: &[usize], axis: usize, value: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index[axis] = value;
    index
}

fn flat(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |at, (extent, i)| at * extent + i)
}

fn unflat(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = at % shape[axis];
        at /= shape[axis];
    }
    index
}

/// Rows and columns under a window at an element, and the tap each lies under.
fn under(window: &Window, shape: &[usize], index: &[usize]) -> Vec<([usize; 2], [usize; 2])> {
    let cell = |side: usize, tap: usize| {
        let at = index[side + 1] * window.stride[side] as usize + tap * window.dilation[side] as usize;
        at.checked_sub(window.pads[side] as usize).filter(|&cell| cell < shape[side + 1])
    };
    let taps = each(&whole(&window.kernel.map(|k| k as usize)));
    taps.into_iter().filter_map(|t| Some(([cell(0, t[0])?, cell(1, t[1])?], [t[0], t[1]]))).collect()
}

/// The elements of its operands that one element of a layer's result is computed from.
fn touched(graph: &Graph, layer: &Layer, index: &[usize]) -> Vec<(usize, Vec<usize>)> {
    let shapes: Vec<&[usize]> = layer.op.operands().iter().map(|&id| &graph.tensor(id).shape[..]).collect();
    let result = &graph.tensor(layer.output).shape;
    let all = |operand: usize| each(&whole(shapes[operand])).into_iter().map(move |i| (operand, i));
    let spread = |operand: usize| {
        let lead = index.len() - shapes[operand].len();
        let own = shapes[operand].iter().zip(&index[lead..]).map(|(&extent, &i)| if extent == 1 { 0 } else { i });
        (operand, own.collect::<Vec<_>>())
    };
    let mut found: Vec<(usize, Vec<usize>)> = match &layer.op {
        Op::Conv { window, .. } => {
            let (out, depth) = (shapes[1][0], shapes[1][3]);
            let group = index[3] * (shapes[0][3] / depth) / out;
            let mut found = vec![(2, vec![index[3]])];
            for ([y, x], [ty, tx]) in under(window, shapes[0], index) {
                for channel in 0..depth {
                    found.push((0, vec![index[0], y, x, group * depth + channel]));
                    found.push((1, vec![index[3], ty, tx, channel]));
                }
            }
            found
        }
        Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => {
            let cells = under(window, shapes[0], index).into_iter();
            cells.map(|([y, x], _)| (0, vec![index[0], y, x, index[3]])).collect()
        }
        Op::MatMul { bias, .. } => {
            let (last, column) = (index.len() - 1, index[index.len() - 1]);
            let mut found: Vec<_> = bias.iter().map(|_| (2, vec![column])).collect();
            for k in 0..shapes[0][last] {
                found.push((0, with(index, last, k)));
                let lead = if shapes[1].len() > 2 { &index[..last - 1] } else { &[] };
                found.push((1, [lead, &[k, column]].concat()));
            }
            found
        }
        Op::Binary { .. } | Op::Select { .. } => (0..shapes.len()).map(spread).collect(),
        Op::Softmax { .. } => {
            let last = index.len() - 1;
            let mut found = vec![];
            for (operand, shape) in shapes.iter().enumerate() {
                let (_, own) = spread(operand);
                let end = own.len() - 1;
                let taken = (0..result[last]).filter(|&i| i < shape[end]);
                found.extend(taken.map(|i| (operand, with(&own, end, i))));
            }
            found
        }
        Op::LayerNorm { .. } => {
            let last = index.len() - 1;
            (0..result[last]).map(|i| (0, with(index, last, i))).chain(all(1)).chain(all(2)).collect()
        }
        Op::Reduce { axes, .. } => {
            let mut kept = index.iter().copied();
            let keeps = index.len() == shapes[0].len();
            let span = shapes[0].iter().enumerate().map(|(axis, &extent)| {
                let reduced = axes.contains(&(axis as u32));
                let i = if reduced && !keeps { 0 } else { kept.next().unwrap() };
                if reduced { (0, extent) } else { (i, i + 1) }
            });
            each(&span.collect::<Extent>()).into_iter().map(|i| (0, i)).collect()
        }
        Op::ArgMax { .. } => {
            let last = shapes[0].len() - 1;
            (0..shapes[0][last]).map(|i| (0, [&index[..last], &[i]].concat())).collect()
        }
        Op::Embedding { .. } => {
            let (lead, column) = (&index[..index.len() - 1], index[index.len() - 1]);
            let rows = (0..shapes[0][0]).map(|row| (0, vec![row, column]));
            rows.chain([(1, lead.to_vec())]).collect()
        }
        Op::ResizeLinear { rows, columns, .. } => {
            let (row, column) = (rows[index[1]], columns[index[2]]);
            let near = |y: u32, x: u32| (0, vec![index[0], y as usize, x as usize, index[3]]);
            [row.first, row.second].iter().flat_map(|&y| [near(y, column.first), near(y, column.second)]).collect()
        }
        Op::Concat { axis, .. } => {
            let (axis, mut at) = (*axis as usize, index[*axis as usize]);
            let of = |(operand, shape): (usize, &&[usize])| {
                let here = at < shape[axis];
                let found = here.then(|| (operand, with(index, axis, at)));
                at = if here { usize::MAX } else { at.wrapping_sub(shape[axis]) };
                found
            };
            shapes.iter().enumerate().find_map(of).into_iter().collect()
        }
        Op::Pad { before, .. } => {
            let own = index.iter().zip(before).map(|(i, &pad)| i.checked_sub(pad as usize));
            let own: Option<Vec<usize>> = own.collect();
            let inside = own.filter(|own| own.iter().zip(shapes[0]).all(|(i, extent)| i < extent));
            inside.map(|own| (0, own)).into_iter().collect()
        }
        Op::Gather { axis, indices, .. } => {
            let axis = *axis as usize;
            vec![(0, with(index, axis, indices[index[axis]] as usize))]
        }
        Op::Rearrange { dims, strides, offset, .. } => {
            let dims: Vec<usize> = dims.iter().map(|&extent| extent as usize).collect();
            let steps = unflat(&dims, flat(result, index));
            let source: i64 = offset + steps.iter().zip(strides).map(|(&i, stride)| i as i64 * stride).sum::<i64>();
            vec![(0, unflat(shapes[0], source as usize))]
        }
        Op::InsertZeros { stride, .. } => {
            let [sh, sw] = stride.map(|step| step as usize);
            let cell = index[1].is_multiple_of(sh) && index[2].is_multiple_of(sw);
            cell.then(|| (0, vec![index[0], index[1] / sh, index[2] / sw, index[3]])).into_iter().collect()
        }
        _ => vec![(0, index.to_vec())],
    };
    let tables = match &layer.op {
        Op::Conv { .. } => 3..shapes.len(),
        Op::MatMul { bias, .. } => 2 + usize::from(bias.is_some())..shapes.len(),
        Op::Unary { .. } => 1..shapes.len(),
        _ => 0..0,
    };
    found.extend(tables.flat_map(all));
    found
}

/// The box around some elements.
fn around(elements: &BTreeSet<Vec<usize>>) -> Extent {
    let rank = elements.first().unwrap().len();
    let along = |axis: usize| elements.iter().map(move |index| index[axis]);
    (0..rank).map(|axis| (along(axis).min().unwrap(), along(axis).max().unwrap() + 1)).collect()
}

fn some_box(random: &mut Random, shape: &[usize]) -> Extent {
    let axis = |&extent: &usize| {
        let (a, b) = (random.below(extent), random.below(extent));
        if random.chance(40) { (0, extent) } else { (a.min(b), a.max(b) + 1) }
    };
    shape.iter().map(axis).collect()
}

/// Whether a box takes just what its elements touch: windows and views take what lies between as well.
fn exact(op: &Op) -> bool {
    !matches!(
        op,
        Op::Conv { .. } | Op::MaxPool { .. } | Op::AveragePool { .. } | Op::Rearrange { .. } | Op::Embedding { .. }
    )
}

/// A network of operators that random ones draw seldom.
fn moves(seed: u64) -> Graph {
    let mut net = Net::new(seed);
    let x = net.input(&[2, 5, 6, 4]);
    let zeros = net.insert_zeros(x, [2, 3]);
    let resized = net.resize(x, 7, 4);
    let turned = net.transpose(resized, &[0, 2, 1, 3]);
    let flat = net.reshape(turned, &[2, 28, 4]);
    let padded = net.pad(x, &[0, 2, 1, 0], &[0, 1, 3, 0], tpuflow_ir::PadMode::Constant(3));
    let picked = net.gather(padded, 1, &[6, 1, 1, 4]);
    let table = net.embedding(9, 8, &[2, 3]);
    let joined = net.concat(&[x, x, x], 2, 1);
    let cut = net.slice(joined, 2, 3, 9);
    net.finish(&[zeros, flat, picked, table, cut])
}

#[test]
fn what_a_part_takes_is_what_its_elements_touch() {
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for seed in 0..150 {
        let graph = match seed % 3 {
            0 => random(seed, 8),
            1 => wild(seed, 7, 400),
            _ => moves(seed),
        };
        let mut random = Random(seed);
        for layer in &graph.layers {
            let shape = &graph.tensor(layer.output).shape;
            if shape.iter().product::<usize>() > 700 {
                continue;
            }
            for _ in 0..3 {
                let wanted = some_box(&mut random, shape);
                let count = kinds.entry(layer.op.name()).or_default();
                let Ok(part) = Part::of(&graph, layer, &wanted) else {
                    count.1 += 1;
                    continue;
                };
                count.0 += 1;
                let grown = part.span.iter().zip(&wanted).all(|(grown, own)| grown.0 <= own.0 && own.1 <= grown.1);
                assert!(grown, "seed {seed}, {}: {:?} for {wanted:?}", layer.name, part.span);
                compare(&graph, layer, &part.span, seed);
            }
        }
    }
    let cut = kinds.values().filter(|(cut, _)| *cut > 3).count();
    assert!(cut >= 20, "{kinds:?}");
}

/// Holds what a box takes against what its elements touch.
fn compare(graph: &Graph, layer: &Layer, span: &[Span], seed: u64) {
    let mut elements = Touched::new();
    for index in each(span) {
        for (operand, own) in touched(graph, layer, &index) {
            elements.entry(operand).or_default().insert(own);
        }
    }
    let map = AccessMap::of(graph, layer).unwrap();
    for operand in 0..layer.op.operands().len() {
        let taken =
            map.operand_region(operand, span).map(|axes| axes.iter().map(|axis| axis.cells).collect::<Extent>());
        let what = format!("seed {seed}, {} {span:?}, operand {operand}: {taken:?}", layer.name);
        match (taken, elements.get(&operand)) {
            (None, found) => assert!(found.is_none(), "{what}"),
            // Windows far apart may take nothing but what lies between.
            (Some(_), None) => assert!(!exact(&layer.op), "{what}"),
            (Some(taken), Some(found)) => {
                let needed = around(found);
                let holds = taken.iter().zip(&needed).all(|(t, n)| t.0 <= n.0 && n.1 <= t.1);
                assert!(holds && (!exact(&layer.op) || taken == needed), "{what}, needed {needed:?}");
            }
        }
    }
}
