//! Greedy placement: items in some order, each into a gap left by those placed before it.

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

/// Places all items; never fails, as the address space is taken to be unbounded. `O(n^2)`.
#[must_use]
pub fn place(problem: &Problem, order: Order, fit: Fit) -> Solution {
    place_aligned(problem, &[], order, fit)
}

/// A buffer with an address.
#[derive(Clone, Copy)]
struct Placed {
    offset: u64,
    item: Item,
}

/// As [`place`], each item at a multiple of its alignment; where there is none, at any address.
fn place_aligned(problem: &Problem, alignments: &[u64], order: Order, fit: Fit) -> Solution {
    let items = &problem.items;
    let mut offsets = vec![0; items.len()];
    // Sorted by offset, so that gaps are found in one sweep; items lie in it, so that the sweep runs through memory.
    let mut placed: Vec<Placed> = Vec::with_capacity(items.len());
    let mut height = 0;
    for index in sequence(items, order) {
        let item = items[index];
        let meeting = placed.iter().filter(|other| other.item.meets(&item));
        let alignment = alignments.get(index).copied().unwrap_or(1).max(1);
        let taken = meeting.map(|other| (other.offset, other.offset + other.item.size));
        let offset = gap(item.size, alignment, taken, fit);
        offsets[index] = offset;
        height = height.max(offset + item.size);
        let at = placed.partition_point(|other| other.offset <= offset);
        placed.insert(at, Placed { offset, item });
    }
    Solution { offsets, height }
}

/// Places by size, keeping items that `apart` names for each other out of each other's banks of `bank` units where a gap
/// allows it: of the starts of gaps, and of banks inside them, the lowest with the least weight of items whose banks it shares.
#[must_use]
pub fn place_apart(problem: &Problem, apart: &[Vec<(usize, u64)>], bank: u64) -> Solution {
    let items = &problem.items;
    let mut offsets: Vec<Option<u64>> = vec![None; items.len()];
    let mut placed: Vec<(u64, usize)> = Vec::with_capacity(items.len());
    let mut height = 0;
    for index in sequence(items, Order::Size) {
        let item = items[index];
        let neighbours: Vec<(u64, u64, u64)> = apart[index]
            .iter()
            .filter_map(|&(other, weight)| {
                let offset = offsets[other]?;
                Some((offset / bank, (offset + items[other].size - 1) / bank, weight))
            })
            .collect();
        let shared = |start: u64| {
            let banks = (start / bank, (start + item.size.max(1) - 1) / bank);
            neighbours.iter().filter(|n| n.0 <= banks.1 && banks.0 <= n.1).map(|n| n.2).sum::<u64>()
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
    let conflicts: Vec<u64> = if order == Order::Conflicts {
        items.iter().map(|a| items.iter().filter(|b| a.meets(b)).map(|b| b.size).sum()).collect()
    } else {
        Vec::new()
    };
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
