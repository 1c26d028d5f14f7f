//! Which runs of layers to compute in parts: the cheapest division of the network into runs, by dynamic programming over
//! intervals of its layers.
//!
//! What a division costs is the sum of what its runs cost, so the best division of the first `n` layers is a best division of
//! the first `m` and one run more. Two prices are asked for: *split* cuts as many layers as it can where the user wants all
//! cut, with the least to move and to compute twice; *groups* keep what lies between layers on the chip where it would have
//! to pass through external memory (layer groups; Cocco, ASPLOS 2024, and the group passes of compilers for such machines do
//! the same).

use std::collections::BTreeSet;
use std::ops::Add;

use tpuflow_ir::{Graph, LayerId, Machine, Op, Parts, TensorId, Tiling, Unit};

use super::region::Region;
use super::{Demand, demands};
use crate::network::Linear;
use crate::network::Network;
use crate::network::summary::unit_of;

/// Layers of a run at most.
const LONGEST: usize = 16;

/// Parts of a run at most.
const MOST_PARTS: u32 = 64;

/// The cheapest division of `count` things in a row into runs of at most `longest`. `price(first, end)` is what a run costs,
/// `None` where there is no such run; of equals the division whose last run is the longest.
pub fn division<C: Copy + Ord + Add<Output = C>>(
    count: usize,
    longest: usize,
    nothing: C,
    mut price: impl FnMut(usize, usize) -> Option<C>,
) -> Option<(C, Vec<(usize, usize)>)> {
    let mut best: Vec<Option<(C, usize)>> = vec![Some((nothing, 0))];
    for end in 1..=count {
        let runs = (end.saturating_sub(longest)..end).filter_map(|first| {
            let (before, _) = best[first]?;
            Some((before + price(first, end)?, first))
        });
        let found = runs.min();
        best.push(found);
    }
    let (cost, _) = best[count]?;
    let mut runs = Vec::new();
    let mut end = count;
    while end > 0 {
        let (_, first) = best[end]?;
        runs.push((first, end));
        end = first;
    }
    runs.reverse();
    Some((cost, runs))
}

/// What computing a run in parts takes.
struct Survey {
    /// By part, bytes of what it holds at a time at most.
    live: u64,
    /// Elements read of tensors that come into the run, and elements of those that leave it.
    moved: u64,
    /// By layer, elements computed in all parts beyond those of one pass over all of it.
    again: Vec<(usize, u64)>,
    /// Largest share of a tensor's elements computed or read that others compute or read as well, in per cent.
    overlap: u64,
}

fn survey(graph: &Graph, tiling: &Tiling) -> Option<Survey> {
    let demands = demands(graph, tiling).ok()?;
    let (first, last) = (tiling.first.index(), tiling.last.index());
    let mut survey = Survey { live: 0, moved: 0, again: vec![], overlap: 0 };
    let mut count = |regions: BTreeSet<&Region>| -> (u64, u64) {
        let total: u64 = regions.iter().map(|r| r.elements() as u64).sum();
        let hull = regions.iter().map(|r| (*r).clone()).reduce(|a, b| a.hull(&b));
        let once = hull.map_or(0, |hull| hull.elements() as u64).min(total);
        survey.overlap = survey.overlap.max((100 * (total - once)).div_ceil(total.max(1)));
        (total, once)
    };
    for layer in first..=last {
        let (total, once) = count(demands.iter().filter_map(|d| d.computes.get(&layer)).collect());
        if total > once {
            survey.again.push((layer, total - once));
        }
    }
    let entering: BTreeSet<TensorId> = demands.iter().flat_map(|d| d.enters.iter().map(|e| e.0)).collect();
    for tensor in entering {
        let regions = demands.iter().flat_map(|d| d.enters.iter().filter(|e| e.0 == tensor).map(|e| &e.1));
        survey.moved += count(regions.collect()).0;
    }
    let leaves = demands.iter().flat_map(|demand| demand.leaves.values());
    survey.moved += leaves.map(|region| region.elements() as u64).sum::<u64>();
    survey.live = demands.iter().map(|demand| live(graph, first, last, demand)).max().unwrap_or(0);
    Some(survey)
}

/// Bytes a part holds at most: of every layer its result and what is still to be read.
fn live(graph: &Graph, first: usize, last: usize, demand: &Demand) -> u64 {
    let bytes = |tensor: TensorId, region: &Region| (region.elements() * graph.tensor(tensor).dtype.bytes()) as u64;
    let mut most = 0;
    for now in first..=last {
        let read_from = |tensor: TensorId, from: usize| {
            (from..=last).any(|l| demand.computes.contains_key(&l) && graph.layers[l].op.operands().contains(&tensor))
        };
        let made = (first..=now).filter_map(|l| Some((graph.layers[l].output, l, demand.computes.get(&l)?)));
        let made: u64 = made.filter(|(t, l, _)| *l == now || read_from(*t, now)).map(|(t, _, r)| bytes(t, r)).sum();
        let read: u64 = demand.enters.iter().filter(|(t, _)| read_from(*t, now)).map(|(t, r)| bytes(*t, r)).sum();
        most = most.max(made + read);
    }
    most
}

fn run(first: usize, end: usize, [images, rows, columns]: [u32; 3]) -> Tiling {
    let (first, last) = (LayerId::new(first), LayerId::new(end - 1));
    Tiling { first, last, parts: Parts::Grid { images, rows, columns } }
}

/// All layers that can be cut into so many images, rows and columns, in the runs that move and repeat the least; `overlap`: as
/// [`super::request::Request::overlap`]; `taken`: layers to leave alone.
pub(super) fn split(graph: &Graph, counts: [u32; 3], overlap: u32, taken: impl Fn(usize) -> bool) -> Vec<Tiling> {
    let price = |first: usize, end: usize| -> Option<Cost> {
        let fits = |survey: &Survey| survey.overlap <= u64::from(overlap);
        let found = if (first..end).any(&taken) { None } else { survey(graph, &run(first, end, counts)).filter(fits) };
        match found {
            Some(survey) => {
                Some(Cost(0, survey.moved + survey.again.iter().map(|(_, elements)| elements).sum::<u64>()))
            }
            None if end - first == 1 => Some(Cost(1, 0)),
            None => None,
        }
    };
    let runs = division(graph.layers.len(), LONGEST, Cost(0, 0), price).map_or_else(Vec::new, |found| found.1);
    let can = |&(first, end): &(usize, usize)| !(first..end).any(&taken) && price(first, end).is_some_and(|c| c.0 == 0);
    runs.iter().filter(|run| can(run)).map(|&(first, end)| run(first, end, counts)).collect()
}

/// Layers that stay whole, then elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost(u64, u64);

impl Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }
}

/// Runs that keep tensors on the chip which otherwise pass through external memory, as far as this costs fewer cycles than it
/// takes to compute halos again.
///
/// `far` names the tensors that lie in external memory while layers are whole; `space` bytes of the cache are for a part,
/// and runs have at most `longest` layers.
pub(crate) fn groups(
    graph: &Graph,
    network: &Network,
    machine: &Machine,
    far: &BTreeSet<TensorId>,
    space: u64,
    longest: usize,
) -> Vec<Tiling> {
    let bytes = |tensor: TensorId| graph.tensor(tensor).bytes() as u64;
    let moving = |tensors: &mut dyn Iterator<Item = TensorId>| -> u64 {
        machine.ddr_cycles(tensors.filter(|t| far.contains(t)).map(bytes).sum())
    };
    let grouped = |first: usize, end: usize| -> Option<(u64, Tiling)> {
        let made: BTreeSet<TensorId> = graph.layers[first..end].iter().map(|layer| layer.output).collect();
        let leaves: BTreeSet<TensorId> =
            super::leaving(graph, first, end - 1).into_iter().map(|layer| graph.layers[layer].output).collect();
        if !made.iter().any(|tensor| far.contains(tensor) && !leaves.contains(tensor)) {
            return None;
        }
        let weights: u64 = graph.layers[first..end]
            .iter()
            .flat_map(|layer| layer.op.operands())
            .filter(|&tensor| graph.tensor(tensor).constant.is_some())
            .map(bytes)
            .sum();
        let price = |tiling: Tiling| -> Option<(u64, Tiling)> {
            let survey = survey(graph, &tiling)?;
            if survey.live + weights > space {
                return None;
            }
            let again =
                survey.again.iter().map(|&(layer, elements)| repeated(graph, network, machine, layer, elements));
            let entering = graph.layers[first..end].iter().flat_map(|layer| layer.op.operands());
            let entering: BTreeSet<TensorId> = entering.filter(|tensor| !made.contains(tensor)).collect();
            let moved = moving(&mut entering.into_iter()) + moving(&mut leaves.iter().copied());
            Some((moved + again.sum::<u64>(), tiling))
        };
        let images = leaves.iter().map(|&t| graph.tensor(t)).map(|t| if t.shape.len() > 3 { t.shape[0] } else { 1 });
        let images = images.min().unwrap_or(1).min(MOST_PARTS as usize) as u32;
        let doubled = || std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| n * images <= MOST_PARTS);
        // Tokens lie along the columns: rows of a product take all of its right operand and no halo.
        let is_windowless = graph.layers[first..end].iter().all(|layer| !has_window(&layer.op));
        let tokens = doubled().filter(|_| is_windowless).map(|columns| [images, 1, columns]);
        let candidates = doubled().map(|rows| [images, rows, 1]).chain(tokens).filter(|counts| *counts != [1, 1, 1]);
        candidates.filter_map(|counts| price(run(first, end, counts))).min_by_key(|(cost, _)| *cost)
    };
    let whole = |layer: usize| {
        let layer = &graph.layers[layer];
        moving(&mut layer.op.operands().into_iter().chain([layer.output]))
    };
    let price = |first: usize, end: usize| match grouped(first, end) {
        Some((cost, _)) => Some(cost),
        None if end - first == 1 => Some(whole(first)),
        None => None,
    };
    let runs = division(graph.layers.len(), longest.min(LONGEST), 0, price).map_or_else(Vec::new, |found| found.1);
    runs.into_iter().filter_map(|(first, end)| grouped(first, end)).map(|(_, tiling)| tiling).collect()
}

/// Whether an operator's pixels depend on others around them.
fn has_window(op: &Op) -> bool {
    matches!(op, Op::Conv { .. } | Op::MaxPool { .. } | Op::AveragePool { .. } | Op::ResizeLinear { .. })
}

/// Cycles a layer's unit takes for some elements of its result.
fn repeated(graph: &Graph, network: &Network, machine: &Machine, layer: usize, elements: u64) -> u64 {
    let op = &graph.layers[layer].op;
    match unit_of(network, op, machine) {
        Unit::Me => {
            let depth = Linear::of(op, network).map_or(1, |linear| u64::from(linear.k()));
            elements * depth.div_ceil(machine.array.rows.into()) / u64::from(machine.array.columns)
        }
        _ => elements / u64::from(machine.ewp.lanes),
    }
}
