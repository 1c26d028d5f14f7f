//! Exact search for problems of any size: the items that leave no choice exactly, the others greedily around them.
//!
//! ```text
//!  load
//!    | . . . . . . . . . . .limit      An item is hard if it is large against the room that is left when most is alive with
//!    |        __                       it: whatever lives at the peak is, and otherwise only the large. The hardest, the
//!    |   ____|  |                      *core*, are searched; the others find gaps by themselves, or more of them join the
//!    |__|       |____  ___             core. A core for which there is no room proves that there is none for all.
//!    +---------------------> time
//! ```
//!
//! A state of the search holds a copy of its items, so what it can do ends at some thousands.

use super::exact::{Exact, Verdict};
use super::greedy::place_around;
use super::{Item, Problem, Solution};

/// Items of the cores tried, in this order, as far as there are more; the last is all a search can hold.
const CORES: [usize; 6] = [500, 750, 1125, 1700, 2500, 4000];

/// A search over one problem, for any number of limits.
pub(super) struct Search<'a> {
    problem: &'a Problem,
    alignments: &'a [u64],
    seed: u64,
    unit: u64,
    /// Indices of items, the hardest first.
    hardest: Vec<usize>,
    cores: Vec<Core>,
    /// States it may examine in all.
    most: u64,
    /// States examined so far.
    pub steps: u64,
    /// The lowest solution met that was not low enough.
    pub best: Option<Solution>,
}

/// The hardest items, and the search over them.
struct Core {
    items: Vec<usize>,
    exact: Exact,
}

impl<'a> Search<'a> {
    pub fn new(problem: &'a Problem, alignments: &'a [u64], seed: u64, most: u64) -> Self {
        let unit = Exact::new(problem, alignments, seed).unit();
        let hardest = hardest(problem);
        Self { problem, alignments, seed, unit, hardest, cores: Vec::new(), most, steps: 0, best: None }
    }

    /// All heights that are not multiples of this can be rounded down to one.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// Looks for addresses whose ends do not exceed `height`, for about `steps` steps per core; `go_on` is asked now and then.
    pub fn below(&mut self, height: u64, steps: u64, go_on: &mut dyn FnMut(u64) -> bool) -> Verdict {
        let all = self.hardest.len();
        let sizes = CORES.into_iter().filter(|&size| size < all).chain((all <= CORES[CORES.len() - 1]).then_some(all));
        for (at, size) in sizes.enumerate() {
            if at == self.cores.len() {
                self.cores.push(self.core(size));
            }
            let Core { items, exact } = &mut self.cores[at];
            let (before, done) = (exact.steps, self.steps);
            let steps = steps.min(self.most - done);
            let verdict = exact.below(height, steps, &mut |steps| go_on(done + steps - before));
            self.steps += exact.steps - before;
            let Verdict::Feasible(offsets) = verdict else {
                return verdict;
            };
            let mut fixed = vec![None; all];
            for (&item, offset) in items.iter().zip(offsets) {
                fixed[item] = Some(offset);
            }
            let solution = place_around(self.problem, self.alignments, &fixed);
            if solution.height <= height {
                return Verdict::Feasible(solution.offsets);
            }
            // Those without room are harder than they looked.
            let ends = |index: usize| solution.offsets[index] + self.problem.items[index].size;
            self.hardest.sort_by_key(|&index| ends(index) <= height);
            if self.best.as_ref().is_none_or(|best| solution.height < best.height) {
                self.best = Some(solution);
            }
            if self.steps >= self.most || !go_on(self.steps) {
                break;
            }
        }
        Verdict::Unknown
    }

    fn core(&self, size: usize) -> Core {
        let mut items = self.hardest[..size].to_vec();
        // In the problem's order, so that a core of everything is the problem.
        items.sort_unstable();
        let problem = Problem {
            items: items.iter().map(|&index| self.problem.items[index]).collect(),
            capacity: self.problem.capacity,
        };
        let alignments: Vec<u64> = match self.alignments {
            [] => Vec::new(),
            given => items.iter().map(|&index| given[index]).collect(),
        };
        Core { items, exact: Exact::new(&problem, &alignments, self.seed) }
    }
}

/// Indices of all items by how hard they are, the hardest first: by size over the room at the fullest moment of their lives.
fn hardest(problem: &Problem) -> Vec<usize> {
    let loads = problem.loads();
    let bound = loads.iter().map(|&(_, load)| load).max().unwrap_or(0);
    let fullest = PeakLoads::new(loads);
    let hardness: Vec<(u128, u128)> = problem
        .items
        .iter()
        .map(|item| (u128::from(item.size), u128::from(bound - fullest.during(item)) + 1))
        .collect();
    let mut indices: Vec<usize> = (0..problem.items.len()).collect();
    indices.sort_by(|&a, &b| {
        let ((size, room), (other, its)) = (hardness[a], hardness[b]);
        (other * room).cmp(&(size * its)).then(a.cmp(&b))
    });
    indices
}

/// Largest loads of spans of time, by doubling.
struct PeakLoads {
    times: Vec<u32>,
    /// At level `k` and index `i` the largest of `2^k` loads from `i` on.
    levels: Vec<Vec<u64>>,
}

impl PeakLoads {
    fn new(loads: Vec<(u32, u64)>) -> Self {
        let (times, mut level): (Vec<u32>, Vec<u64>) = loads.into_iter().unzip();
        let mut levels = Vec::new();
        while !level.is_empty() {
            let step = 1 << levels.len();
            let next = level.iter().zip(level.get(step..).unwrap_or(&[])).map(|(&a, &b)| a.max(b)).collect();
            levels.push(std::mem::replace(&mut level, next));
        }
        Self { times, levels }
    }

    /// The largest load during an item's life, which starts where the load changes.
    fn during(&self, item: &Item) -> u64 {
        let from = self.times.partition_point(|&time| time < item.first);
        let to = self.times.partition_point(|&time| time <= item.last).max(from + 1);
        let level = (to - from).ilog2() as usize;
        self.levels[level][from].max(self.levels[level][to - (1 << level)])
    }
}
