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

/// Places all items; never fails, as the address space is taken to be unbounded. `O(n^2)`.
#[must_use]
pub fn place(problem: &Problem, order: Order, fit: Fit) -> Solution {
    let items = &problem.items;
    let mut offsets = vec![0; items.len()];
    // Sorted by offset, so that gaps are found in one sweep.
    let mut placed: Vec<(u64, usize)> = Vec::with_capacity(items.len());
    let mut height = 0;
    for index in sequence(items, order) {
        let item = items[index];
        let meeting = placed.iter().filter(|&&(_, other)| items[other].meets(&item));
        let offset = gap(item.size, meeting.map(|&(offset, other)| (offset, offset + items[other].size)), fit);
        offsets[index] = offset;
        height = height.max(offset + item.size);
        let at = placed.partition_point(|&(other, _)| other <= offset);
        placed.insert(at, (offset, index));
    }
    Solution { offsets, height }
}

/// Places by size, keeping items that `apart` names for each other out of each other's banks of `bank` units where a gap
/// allows it: of the starts of gaps, and of banks inside them, the lowest with the fewest shared banks.
#[must_use]
pub fn place_apart(problem: &Problem, apart: &[Vec<usize>], bank: u64) -> Solution {
    let items = &problem.items;
    let mut offsets: Vec<Option<u64>> = vec![None; items.len()];
    let mut placed: Vec<(u64, usize)> = Vec::with_capacity(items.len());
    let mut height = 0;
    for index in sequence(items, Order::Size) {
        let item = items[index];
        let neighbours: Vec<(u64, u64)> = apart[index]
            .iter()
            .filter_map(|&other| offsets[other].map(|offset| (offset / bank, (offset + items[other].size - 1) / bank)))
            .collect();
        let shared = |start: u64| {
            let banks = (start / bank, (start + item.size.max(1) - 1) / bank);
            neighbours.iter().filter(|n| n.0 <= banks.1 && banks.0 <= n.1).count()
        };
        let (mut end, mut best) = (0, None::<(usize, u64)>);
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
fn gap(size: u64, taken: impl Iterator<Item = (u64, u64)>, fit: Fit) -> u64 {
    let (mut end, mut best) = (0, None::<(u64, u64)>);
    for (from, to) in taken {
        if from >= end + size {
            let room = from - end;
            match fit {
                Fit::Lowest => return end,
                Fit::Tightest if best.is_none_or(|(least, _)| room < least) => best = Some((room, end)),
                Fit::Tightest => {}
            }
        }
        end = end.max(to);
    }
    best.map_or(end, |(_, offset)| offset)
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
