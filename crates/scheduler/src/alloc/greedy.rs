//! Greedy placement: items in some order, each into a gap left by those placed before it.

use super::placed::Placed;
use super::{Item, Problem, Solution};

/// Which item comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Largest size.
    Size,
    /// Earliest start.
    Start,
    /// Longest life.
    Duration,
    /// Largest size times life.
    Area,
    /// Largest total size of the items it meets.
    Conflicts,
}

/// Which gap is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The lowest that is large enough.
    Lowest,
    /// The smallest that is large enough.
    Tightest,
}

/// The portfolio in the order tried.
pub const PORTFOLIO: [(Order, Fit); 10] = [
    (Order::Size, Fit::Lowest),
    (Order::Start, Fit::Lowest),
    (Order::Size, Fit::Tightest),
    (Order::Start, Fit::Tightest),
    (Order::Conflicts, Fit::Lowest),
    (Order::Duration, Fit::Lowest),
    (Order::Area, Fit::Lowest),
    (Order::Conflicts, Fit::Tightest),
    (Order::Duration, Fit::Tightest),
    (Order::Area, Fit::Tightest),
];

/// The best of the portfolio; stops early at the lower bound, or with `enough` at the first that fits the capacity.
///
/// The height may exceed the capacity when nothing fits.
#[must_use]
pub fn solve(problem: &Problem, enough: bool) -> Solution {
    let bound = problem.lower_bound();
    portfolio(problem, &[], if enough { problem.capacity.max(bound) } else { bound }, &mut || true)
}

/// The best of the portfolio, or the first no higher than `enough`; the first of all if `go_on` says no.
pub(super) fn portfolio(
    problem: &Problem,
    alignments: &[u64],
    enough: u64,
    go_on: &mut dyn FnMut() -> bool,
) -> Solution {
    let mut best: Option<Solution> = None;
    for (order, fit) in PORTFOLIO {
        let found = place_aligned(problem, alignments, order, fit);
        if best.as_ref().is_none_or(|b| found.height < b.height) {
            best = Some(found);
        }
        if best.as_ref().is_some_and(|b| b.height <= enough) || !go_on() {
            break;
        }
    }
    best.unwrap_or(Solution { offsets: Vec::new(), height: 0 })
}

/// Places all items; never fails, as the address space is taken to be unbounded. `O(n^2)` where all meet all.
#[must_use]
pub fn place(problem: &Problem, order: Order, fit: Fit) -> Solution {
    place_aligned(problem, &[], order, fit)
}

/// As [`place`], each item at a multiple of its alignment; where there is none, at any address.
fn place_aligned(problem: &Problem, alignments: &[u64], order: Order, fit: Fit) -> Solution {
    let mut offsets = vec![0; problem.items.len()];
    let mut placed = Placed::new(&problem.items);
    for index in sequence(&problem.items, order) {
        offsets[index] = put(&mut placed, problem.items[index], alignment(alignments, index), fit);
    }
    Solution { offsets, height: placed.height }
}

/// Places the items that have no address yet by size, lowest gap first, around those that have one.
pub(super) fn place_around(problem: &Problem, alignments: &[u64], fixed: &[Option<u64>]) -> Solution {
    let mut placed = Placed::new(&problem.items);
    for (item, offset) in problem.items.iter().zip(fixed) {
        if let Some(offset) = offset {
            placed.add(*item, *offset);
        }
    }
    let mut offsets: Vec<u64> = fixed.iter().map(|offset| offset.unwrap_or(0)).collect();
    for index in sequence(&problem.items, Order::Size) {
        if fixed[index].is_none() {
            offsets[index] = put(&mut placed, problem.items[index], alignment(alignments, index), Fit::Lowest);
        }
    }
    Solution { offsets, height: placed.height }
}

fn alignment(alignments: &[u64], index: usize) -> u64 {
    alignments.get(index).copied().unwrap_or(1).max(1)
}

/// Gives an item an address.
fn put(placed: &mut Placed, item: Item, alignment: u64, fit: Fit) -> u64 {
    let offset = gap(item.size, alignment, placed.meeting(item).iter().map(|t| (t.offset, t.end())), fit);
    placed.add(item, offset);
    offset
}

/// Places items that `apart` names for each other, by item, in different banks of `bank` units as far as the capacity allows;
/// where nothing fits then, without regard to banks: to share one costs less than to have no place.
#[must_use]
pub fn place_apart(problem: &Problem, apart: &[Vec<(usize, u64)>], bank: u64) -> Solution {
    let found = place_by_banks(problem, apart, bank);
    if found.height <= problem.capacity { found } else { solve(problem, true) }
}

/// Places by size: of the starts of gaps, and of banks inside them, the lowest with the least weight of items whose banks an item
/// shares.
fn place_by_banks(problem: &Problem, apart: &[Vec<(usize, u64)>], bank: u64) -> Solution {
    let items = &problem.items;
    let mut offsets: Vec<Option<u64>> = vec![None; items.len()];
    let mut placed: Vec<(u64, usize)> = Vec::with_capacity(items.len());
    let mut height = 0;
    for index in sequence(items, Order::Size) {
        let item = items[index];
        let neighbors: Vec<(u64, u64, u64)> = apart[index]
            .iter()
            .filter_map(|&(other, weight)| {
                let offset = offsets[other]?;
                Some((offset / bank, (offset + items[other].size - 1) / bank, weight))
            })
            .collect();
        let shared = |start: u64| {
            let banks = (start / bank, (start + item.size.max(1) - 1) / bank);
            neighbors.iter().filter(|n| n.0 <= banks.1 && banks.0 <= n.1).map(|n| n.2).sum::<u64>()
        };
        let (mut end, mut best) = (0, None::<(u64, u64)>);
        let meeting = placed.iter().filter(|&&(_, other)| items[other].meets(&item));
        let stretches = meeting.map(|&(offset, other)| (offset, offset + items[other].size));
        for (from, to) in stretches.chain([(problem.capacity.max(height + item.size), u64::MAX)]) {
            let mut start = end;
            while from >= start + item.size {
                let found = (shared(start), start);
                if best.is_none_or(|b| found < b) {
                    best = Some(found);
                }
                start = (start / bank + 1) * bank;
            }
            end = end.max(to);
        }
        let offset = best.map_or(height, |(_, start)| start);
        offsets[index] = Some(offset);
        height = height.max(offset + item.size);
        let at = placed.partition_point(|&(other, _)| other <= offset);
        placed.insert(at, (offset, index));
    }
    Solution { offsets: offsets.into_iter().map(Option::unwrap_or_default).collect(), height }
}

/// Where `size` units go among stretches sorted by their starts; the open end is the last resort.
fn gap(size: u64, alignment: u64, taken: impl Iterator<Item = (u64, u64)>, fit: Fit) -> u64 {
    let (mut start, mut best) = (0u64, None::<(u64, u64)>);
    for (from, to) in taken {
        if from >= start + size {
            let room = from - start;
            match fit {
                Fit::Lowest => return start,
                Fit::Tightest if best.is_none_or(|(least, _)| room < least) => best = Some((room, start)),
                Fit::Tightest => {}
            }
        }
        start = start.max(to.next_multiple_of(alignment));
    }
    best.map_or(start, |(_, offset)| offset)
}

fn sequence(items: &[Item], order: Order) -> Vec<usize> {
    let life = |i: usize| u64::from(items[i].last - items[i].first) + 1;
    let conflicts = if order == Order::Conflicts { conflicts(items) } else { Vec::new() };
    let mut indices: Vec<usize> = (0..items.len()).collect();
    // Ties by size, then by position: the same answer on every run.
    indices.sort_by_key(|&i| {
        let size = std::cmp::Reverse(items[i].size);
        let first = match order {
            Order::Size => 0,
            Order::Start => u128::from(items[i].first),
            Order::Duration => u128::MAX - u128::from(life(i)),
            Order::Area => u128::MAX - u128::from(items[i].size) * u128::from(life(i)),
            Order::Conflicts => u128::MAX - u128::from(conflicts[i]),
        };
        (first, size, i)
    });
    indices
}

/// Of every item the total size of those it meets: all that starts until it ends, but for what ends before it starts.
fn conflicts(items: &[Item]) -> Vec<u64> {
    let sums = |moment: fn(&Item) -> u32| {
        let mut sums: Vec<(u32, u64)> = items.iter().map(|item| (moment(item), item.size)).collect();
        sums.sort_unstable();
        let mut total = 0u64;
        for (_, size) in &mut sums {
            total = total.wrapping_add(*size);
            *size = total;
        }
        sums
    };
    let until = |sums: &[(u32, u64)], count: usize| count.checked_sub(1).map_or(0, |last| sums[last].1);
    let (started, ended) = (sums(|item| item.first), sums(|item| item.last));
    let of = |item: &Item| {
        let started = until(&started, started.partition_point(|&(first, _)| first <= item.last));
        let ended = until(&ended, ended.partition_point(|&(last, _)| last < item.first));
        started.wrapping_sub(ended)
    };
    items.iter().map(of).collect()
}
