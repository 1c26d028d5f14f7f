//! The allocator against its validator, its lower bound, and instances of known optimum.

use crate::common::Random;
use proptest::prelude::*;
use tpuflow_scheduler::alloc::check::{Fault, validate};
use tpuflow_scheduler::alloc::{Fit, Item, Order, PORTFOLIO, Problem, Solution, place, place_apart, solve};

fn item() -> impl Strategy<Value = Item> {
    (0u32..60, 0u32..25, 1u64..50).prop_map(|(first, life, size)| Item { first, last: first + life, size })
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    proptest::collection::vec(item(), 0..60)
}

/// The largest first, each at the lowest address, or in the smallest gap, that holds it: every address is tried.
fn by_size(items: &[Item], fit: Fit) -> Solution {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(items[i].size));
    let mut offsets: Vec<Option<u64>> = vec![None; items.len()];
    for &index in &order {
        let item = items[index];
        let met: Vec<(u64, u64)> = (0..items.len())
            .filter(|&other| items[other].meets(&item))
            .filter_map(|other| offsets[other].map(|offset| (offset, offset + items[other].size)))
            .collect();
        let free = |address: u64| met.iter().all(|&(from, to)| address < from || to <= address);
        let top = met.iter().map(|&(_, to)| to).max().unwrap_or(0);
        let (mut gaps, mut start) = (Vec::new(), 0);
        for address in 0..=top {
            if !free(address) || address == top {
                gaps.extend((address - start >= item.size && address < top).then_some((address - start, start)));
                start = address + 1;
            }
        }
        let found = match fit {
            Fit::Lowest => gaps.first(),
            Fit::Tightest => gaps.iter().min(),
        };
        offsets[index] = Some(found.map_or(top, |&(_, address)| address));
    }
    let offsets: Vec<u64> = offsets.into_iter().map(Option::unwrap).collect();
    let height = items.iter().zip(&offsets).map(|(item, offset)| item.size + offset).max().unwrap_or(0);
    Solution { offsets, height }
}

proptest! {
    #[test]
    fn every_greedy_is_sound(items in items()) {
        let problem = Problem { items, capacity: u64::MAX };
        for (order, fit) in PORTFOLIO {
            let solution = place(&problem, order, fit);
            prop_assert_eq!(validate(&problem, &solution), Ok(()));
            prop_assert!(solution.height >= problem.lower_bound());
            let total: u64 = problem.items.iter().map(|i| i.size).sum();
            prop_assert!(solution.height <= total);
        }
    }

    #[test]
    fn a_greedy_order_takes_the_gap_a_plain_search_finds(items in proptest::collection::vec(item(), 0..300)) {
        let problem = Problem { items, capacity: u64::MAX };
        for fit in [Fit::Lowest, Fit::Tightest] {
            prop_assert_eq!(place(&problem, Order::Size, fit), by_size(&problem.items, fit));
        }
    }

    #[test]
    fn lower_bound_is_the_largest_load(items in items()) {
        let problem = Problem { items, capacity: u64::MAX };
        let load = |t: u32| problem.items.iter().filter(|i| i.first <= t && t <= i.last).map(|i| i.size).sum::<u64>();
        prop_assert_eq!(problem.lower_bound(), (0..100).map(load).max().unwrap_or(0));
    }
}

/// Cuts a full rectangle of 128 time steps and 1024 units into `count` pieces: the optimum is 1024.
fn cut(seed: u64, count: usize) -> Problem {
    let mut random = Random(seed);
    let mut pieces = vec![Item { first: 0, last: 127, size: 1024 }];
    while pieces.len() < count {
        let index = random.below(pieces.len());
        let piece = pieces[index];
        let life = piece.last - piece.first + 1;
        if random.chance(50) && life > 1 {
            let at = piece.first + 1 + random.below(life as usize - 1) as u32;
            pieces[index].last = at - 1;
            pieces.push(Item { first: at, ..piece });
        } else if piece.size > 1 {
            let low = 1 + random.below(piece.size as usize - 1) as u64;
            pieces[index].size = low;
            pieces.push(Item { size: piece.size - low, ..piece });
        }
    }
    Problem { items: pieces, capacity: 1024 }
}

/// Greedy orders promise no ratio (seed 7387829302394298577 ends at 1.504), so this is measured over fixed problems.
#[test]
fn cut_rectangles_stay_near_their_optimum() {
    const PROBLEMS: u64 = 256;
    let (mut sum, mut worst) = (0, 0);
    for seed in 0..PROBLEMS {
        let problem = cut(seed, 60);
        assert_eq!(problem.lower_bound(), problem.capacity);
        let solution = solve(&problem, false);
        assert_eq!(validate(&Problem { capacity: u64::MAX, ..problem }, &solution), Ok(()));
        (sum, worst) = (sum + solution.height, worst.max(solution.height));
    }
    assert!(
        sum <= 1024 * PROBLEMS * 11 / 10 && worst <= 1024 * 3 / 2,
        "mean {} and worst {worst} of 1024",
        sum / PROBLEMS
    );
}

#[test]
fn stages_reach_the_bound() {
    // Double buffering: each buffer lives for two steps, so two are alive at a time.
    let items = (0..50).map(|i| Item { first: i, last: i + 1, size: 7 }).collect();
    let problem = Problem { items, capacity: 14 };
    let solution = solve(&problem, false);
    assert_eq!((solution.height, problem.lower_bound()), (14, 14));
    assert_eq!(validate(&problem, &solution), Ok(()));
}

#[test]
fn buffers_lie_in_banks_of_their_own_where_all_fit_so_and_elsewhere_side_by_side() {
    // Three buffers of a third of two banks each.
    let items = [Item { first: 0, last: 1, size: 21 }; 3];
    let apart = [vec![(1, 1)], vec![(0, 1)], vec![]];
    let offsets = |count: usize, capacity: u64| {
        let problem = Problem { items: items[..count].to_vec(), capacity };
        let solution = place_apart(&problem, &apart[..count], 32);
        assert_eq!(validate(&problem, &solution), Ok(()));
        solution.offsets
    };
    assert_eq!(offsets(2, 64), [0, 32]);
    assert_eq!(offsets(3, 64), [0, 21, 42]);
    assert_eq!(offsets(3, 96), [0, 32, 53]);
}

#[test]
fn the_validator_sees_every_fault() {
    let item = |first, last| Item { first, last, size: 4 };
    let problem = Problem { items: vec![item(0, 2), item(2, 3)], capacity: 8 };
    let solution = |offsets: &[u64]| Solution { offsets: offsets.to_vec(), height: 8 };
    assert_eq!(validate(&problem, &solution(&[0, 4])), Ok(()));
    assert_eq!(validate(&problem, &solution(&[0, 3])), Err(Fault::Overlap(0, 1)));
    assert_eq!(validate(&problem, &solution(&[0, 5])), Err(Fault::Beyond(1)));
    assert_eq!(validate(&problem, &solution(&[0])), Err(Fault::Count { offsets: 1, items: 2 }));
}
