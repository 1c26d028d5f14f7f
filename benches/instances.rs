//! Allocation problems whose optimum is known.

use tpuflow_scheduler::alloc::{Item, Problem};

use crate::Random;

/// Cuts a full rectangle of `steps` time steps and `units` units of memory into `count` pieces, in time or in memory by turns
/// of a coin. All of them fit `units`, and nothing less: every moment is full.
///
/// # Panics
/// If the rectangle has fewer cells than pieces are asked for.
#[must_use]
pub fn cut_rectangle(seed: u64, steps: u32, units: u64, count: usize) -> Problem {
    assert!(u64::from(steps) * units >= count as u64, "a cell cannot be cut");
    let mut random = Random(seed);
    let mut items = vec![Item { first: 0, last: steps - 1, size: units }];
    while items.len() < count {
        let at = random.below(items.len() as u64) as usize;
        let item = items[at];
        let life = item.last - item.first + 1;
        if random.below(2) == 0 && life > 1 {
            let middle = item.first + 1 + random.below(u64::from(life) - 1) as u32;
            items[at].last = middle - 1;
            items.push(Item { first: middle, ..item });
        } else if item.size > 1 {
            let low = 1 + random.below(item.size - 1);
            items[at].size = low;
            items.push(Item { size: item.size - low, ..item });
        }
    }
    Problem { items, capacity: units }
}
