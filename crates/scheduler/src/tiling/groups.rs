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

use rayon::prelude::*;
use tpuflow_ir::{Graph, LayerId, Machine, Op, Parts, TensorId, Tiling, Unit};

use super::region::Region;
use super::{RequiredParts, demands};
use crate::network::Linear;
use crate::network::Network;
use crate::network::summary::unit_of;
use crate::parameters::GroupSearch;

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

/// Cost of computing a run in parts.
struct RunCost {
    /// By part, bytes of what it holds at a time at most.
    live: u64,
    /// Elements read of tensors that come into the run, and elements of those that leave it.
    moved: u64,
    /// By layer, elements computed in all parts beyond those of one pass over all of it.
    again: Vec<(usize, u64)>,
    /// Largest share of a tensor's elements computed or read that others compute or read as well, in per cent.
    overlap: u64,
}

fn survey(graph: &Graph, tiling: &Tiling) -> Option<RunCost> {
    let demands = demands(graph, tiling).ok()?;
    let (first, last) = (tiling.first.index(), tiling.last.index());
    let mut survey = RunCost { live: 0, moved: 0, again: vec![], overlap: 0 };
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
fn live(graph: &Graph, first: usize, last: usize, demand: &RequiredParts) -> u64 {
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
        let fits = |survey: &RunCost| survey.overlap <= u64::from(overlap);
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

/// Cost of groups of layers: the cycles of external memory for what enters and leaves them, and those of their halos.
pub(crate) struct Pricing<'a> {
    pub graph: &'a Graph,
    pub network: &'a Network,
    pub machine: &'a Machine,
    /// Tensors that lie in external memory while layers are whole.
    pub far: &'a BTreeSet<TensorId>,
    /// Bytes of the cache that are for a part.
    pub space: u64,
    pub search: GroupSearch,
}

/// Runs of at most `longest` layers that keep tensors on the chip which otherwise pass through external memory, as far as this
/// costs fewer cycles than it takes to compute halos again; with the cycles of the whole division.
pub(crate) fn groups(pricing: &Pricing, longest: usize) -> (u64, Vec<Tiling>) {
    let count = pricing.graph.layers.len();
    let longest = if pricing.search == GroupSearch::Exact { longest } else { longest.min(LONGEST) };
    // Both searches ask for the price of every run, which is independent of all others.
    let prices: Vec<Vec<Option<u64>>> = (0..count)
        .into_par_iter()
        .map(|first| {
            (first + 1..=count.min(first.saturating_add(longest))).map(|end| pricing.price(first, end)).collect()
        })
        .collect();
    let price = |first: usize, end: usize| prices[first][end - first - 1];
    let found = match pricing.search {
        GroupSearch::Greedy => greedy(count, longest, 0, price),
        GroupSearch::Dynamic | GroupSearch::Exact => division(count, longest, 0, price),
    };
    let (cost, runs) = found.unwrap_or_default();
    (cost, runs.into_iter().filter_map(|(first, end)| pricing.group(first, end)).map(|(_, tiling)| tiling).collect())
}

/// Runs from the last thing to the first, each as long as it costs no more than its things one by one.
fn greedy<C: Copy + Ord + Add<Output = C>>(
    count: usize,
    longest: usize,
    nothing: C,
    mut price: impl FnMut(usize, usize) -> Option<C>,
) -> Option<(C, Vec<(usize, usize)>)> {
    let (mut cost, mut runs, mut end) = (nothing, Vec::new(), count);
    while end > 0 {
        let (mut apart, mut taken) = (nothing, None);
        for first in (end.saturating_sub(longest)..end).rev() {
            apart = apart + price(first, first + 1)?;
            taken = price(first, end).filter(|run| *run <= apart).map(|run| (run, first)).or(taken);
        }
        let (run, first) = taken?;
        cost = cost + run;
        runs.push((first, end));
        end = first;
    }
    runs.reverse();
    Some((cost, runs))
}

impl Pricing<'_> {
    /// Cycles of a run of layers, a single one of which may stay whole; `None`: it keeps nothing on the chip or does not fit.
    fn price(&self, first: usize, end: usize) -> Option<u64> {
        match self.group(first, end) {
            Some((cost, _)) => Some(cost),
            None if end - first == 1 => Some(self.whole(first)),
            None => None,
        }
    }

    /// Cycles of a layer that is computed whole.
    fn whole(&self, layer: usize) -> u64 {
        let layer = &self.graph.layers[layer];
        self.moving(layer.op.operands().into_iter().chain([layer.output]))
    }

    /// Cycles to move those of some tensors that lie in external memory.
    fn moving(&self, tensors: impl IntoIterator<Item = TensorId>) -> u64 {
        self.machine.ddr_cycles(tensors.into_iter().filter(|t| self.far.contains(t)).map(|t| self.bytes(t)).sum())
    }

    fn bytes(&self, tensor: TensorId) -> u64 {
        self.graph.tensor(tensor).bytes() as u64
    }

    /// The cheapest tiling of a run, with its cycles; `None` where it keeps nothing on the chip or does not fit.
    fn group(&self, first: usize, end: usize) -> Option<(u64, Tiling)> {
        let graph = self.graph;
        let made: BTreeSet<TensorId> = graph.layers[first..end].iter().map(|layer| layer.output).collect();
        let leaves: BTreeSet<TensorId> =
            super::leaving(graph, first, end - 1).into_iter().map(|layer| graph.layers[layer].output).collect();
        if !made.iter().any(|tensor| self.far.contains(tensor) && !leaves.contains(tensor)) {
            return None;
        }
        let operands = || graph.layers[first..end].iter().flat_map(|layer| layer.op.operands());
        let entering: BTreeSet<TensorId> = operands().filter(|tensor| !made.contains(tensor)).collect();
        let moved = self.moving(entering) + self.moving(leaves.iter().copied());
        let constants = operands().filter(|&tensor| graph.tensor(tensor).constant.is_some());
        let weights: u64 = constants.map(|tensor| self.bytes(tensor)).sum();
        let images = leaves.iter().map(|&t| graph.tensor(t)).map(|t| if t.shape.len() > 3 { t.shape[0] } else { 1 });
        let images = images.min().unwrap_or(1).min(MOST_PARTS as usize) as u32;
        // Tokens lie along the columns: rows of a product take all of its right operand and no halo.
        let is_windowless = graph.layers[first..end].iter().all(|layer| !has_window(&layer.op));
        let cost = |counts: [u32; 3]| -> Option<(u64, Tiling)> {
            let tiling = run(first, end, counts);
            let survey = survey(graph, &tiling)?;
            let again = survey.again.iter().map(|&(layer, elements)| self.repeated(layer, elements));
            (survey.live + weights <= self.space).then(|| (moved + again.sum::<u64>(), tiling))
        };
        self.counts(images, is_windowless).into_iter().filter_map(cost).min_by_key(|(cost, _)| *cost)
    }

    /// Numbers of tiles to try: images, rows and columns, of which the last are cut only where no layer has a window.
    fn counts(&self, images: u32, is_windowless: bool) -> Vec<[u32; 3]> {
        let most = |taken: u32| MOST_PARTS / taken;
        let mut found: Vec<[u32; 3]> = Vec::new();
        if self.search == GroupSearch::Exact {
            for images in 1..=images {
                for rows in 1..=most(images) {
                    let columns = if is_windowless { most(images * rows) } else { 1 };
                    found.extend((1..=columns).map(|columns| [images, rows, columns]));
                }
            }
        } else {
            let doubled = || std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n <= most(images));
            found.extend(doubled().map(|rows| [images, rows, 1]));
            found.extend(doubled().filter(|_| is_windowless).map(|columns| [images, 1, columns]));
        }
        found.retain(|counts| *counts != [1, 1, 1]);
        found
    }

    /// Cycles a layer's unit takes for some elements of its result.
    fn repeated(&self, layer: usize, elements: u64) -> u64 {
        let (op, machine) = (&self.graph.layers[layer].op, self.machine);
        match unit_of(self.network, op, machine) {
            Unit::Me => {
                let depth = Linear::of(op, self.network).map_or(1, |linear| u64::from(linear.k()));
                elements * depth.div_ceil(machine.array.rows.into()) / u64::from(machine.array.columns)
            }
            _ => elements / u64::from(machine.ewp.lanes),
        }
    }
}

/// Whether an operator's pixels depend on others around them.
fn has_window(op: &Op) -> bool {
    matches!(op, Op::Conv { .. } | Op::MaxPool { .. } | Op::AveragePool { .. } | Op::ResizeLinear { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Net, Random, window};
    use crate::network::prepare;

    /// A few convolutions, pools and changes of scale, some of which read an earlier result.
    fn random_graph(random: &mut Random) -> Graph {
        let mut net = Net::new(random.next());
        let mut made = vec![net.input(&[1 + random.below(2), 24, 8, 4])];
        for _ in 0..2 + random.below(5) {
            let last = made[made.len() - 1];
            made.push(match random.below(4) {
                0 => net.conv(last, 4, window(3, 1, 1), 1),
                1 => net.conv(last, 4, window(5, 1, 2), 1),
                2 if made.len() > 2 => {
                    let other = made[1 + random.below(made.len() - 2)];
                    net.binary(tpuflow_ir::BinaryKind::Add, last, other)
                }
                _ => net.conv(last, 4, window(1, 1, 0), 1),
            });
        }
        let last = made[made.len() - 1];
        net.finish(&[last])
    }

    /// The cheapest of all divisions into groups and whole layers, by trying every one with every number of tiles.
    fn cheapest(pricing: &Pricing) -> u64 {
        let count = pricing.graph.layers.len();
        let all = |first: usize, end: usize| -> Option<u64> {
            let layers = &pricing.graph.layers[first..end];
            let operands: Vec<TensorId> = layers.iter().flat_map(|layer| layer.op.operands()).collect();
            let constants = operands.iter().filter(|&&t| pricing.graph.tensor(t).constant.is_some());
            let weights: u64 = constants.map(|&t| pricing.bytes(t)).sum();
            let read = |t: TensorId| {
                let mut others = (0..count).filter(|at| !(first..end).contains(at));
                let outside = others.any(|at| pricing.graph.layers[at].op.operands().contains(&t));
                outside || pricing.graph.outputs.contains(&t)
            };
            let made: BTreeSet<TensorId> = layers.iter().map(|layer| layer.output).collect();
            let leaving: BTreeSet<TensorId> = made.iter().copied().filter(|&t| read(t)).collect();
            let entering: BTreeSet<TensorId> = operands.into_iter().filter(|t| !made.contains(t)).collect();
            let kept = made.iter().any(|t| pricing.far.contains(t) && !leaving.contains(t));
            let moved = pricing.moving(entering) + pricing.moving(leaving);
            let counts = (1..=MOST_PARTS).flat_map(|images| (1..=MOST_PARTS / images).map(move |rows| (images, rows)));
            let tiled = counts.filter(|(images, rows)| kept && images * rows > 1).filter_map(|(images, rows)| {
                let survey = survey(pricing.graph, &run(first, end, [images, rows, 1]))?;
                let again = survey.again.iter().map(|&(layer, elements)| pricing.repeated(layer, elements));
                (survey.live + weights <= pricing.space).then(|| moved + again.sum::<u64>())
            });
            tiled.chain((end - first == 1).then(|| pricing.whole(first))).min()
        };
        let divisions = (0..1u32 << (count - 1)).filter_map(|borders| {
            let mut ends: Vec<usize> = (1..count).filter(|at| borders >> (at - 1) & 1 == 1).collect();
            ends.push(count);
            let mut first = 0;
            ends.into_iter().try_fold(0, |sum, end| Some(sum + all(std::mem::replace(&mut first, end), end)?))
        });
        divisions.min().expect("layers one by one are a division")
    }

    // feature: SCH-22
    #[test]
    fn a_search_for_groups_that_looks_at_more_is_never_dearer_and_the_last_is_exact() {
        let machine = Machine::preset("128x128_asic").expect("known");
        let mut gains = [0, 0];
        for seed in 0..40 {
            let mut random = Random(seed);
            let graph = random_graph(&mut random);
            let network = prepare(&graph, &machine).expect("a sound graph");
            let far: BTreeSet<TensorId> = graph
                .layers
                .iter()
                .map(|layer| layer.output)
                .chain(graph.inputs.iter().copied())
                .filter(|_| random.chance(80))
                .collect();
            let space = 512 + random.below(3000) as u64;
            let pricing =
                |search| Pricing { graph: &graph, network: &network, machine: &machine, far: &far, space, search };
            let [greedy, dynamic, exact] = [GroupSearch::Greedy, GroupSearch::Dynamic, GroupSearch::Exact]
                .map(|search| groups(&pricing(search), graph.layers.len()).0);
            assert!(exact <= dynamic && dynamic <= greedy, "seed {seed}: {greedy}, {dynamic}, {exact}");
            assert_eq!(exact, cheapest(&pricing(GroupSearch::Exact)), "seed {seed}");
            gains[0] += usize::from(dynamic < greedy);
            gains[1] += usize::from(exact < dynamic);
        }
        assert!(gains.iter().all(|&gains| gains > 0), "{gains:?}");
    }

    #[test]
    fn a_greedy_division_covers_everything_and_costs_what_its_runs_do() {
        for seed in 0..60 {
            let mut random = Random(seed);
            let (count, longest) = (1 + random.below(8), 1 + random.below(8));
            let prices: Vec<Vec<Option<u64>>> = (0..=count)
                .map(|_| (0..=count).map(|_| (!random.chance(25)).then(|| random.below(90) as u64)).collect())
                .collect();
            let price = |first: usize, end: usize| if end - first == 1 { Some(30) } else { prices[first][end] };
            let (cost, runs) = greedy(count, longest, 0, price).expect("single things have a price");
            assert!(runs[0].0 == 0 && runs.last().expect("a run").1 == count);
            assert!(runs.windows(2).all(|pair| pair[0].1 == pair[1].0));
            assert_eq!(runs.iter().map(|&(first, end)| price(first, end).expect("a run")).sum::<u64>(), cost);
            assert!(runs.iter().all(|&(first, end)| end - first <= longest && price(first, end) <= Some(30 * (end - first) as u64)));
            assert!(division(count, longest, 0, price).expect("as above").0 <= cost, "seed {seed}");
        }
    }

    #[test]
    fn nothing_is_divided_where_something_has_no_price() {
        assert_eq!(greedy(2, 2, 0, |first, _| (first > 0).then_some(1)), None);
        assert_eq!(greedy(0, 2, 0, |_, _| Some(1)), Some((0, vec![])));
    }
}
