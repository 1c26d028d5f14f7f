//! Puts the parts together: one plan, one program.

use std::sync::OnceLock;

use tpuflow_ir::{Bounds, Graph, Machine, Space};

use crate::alloc::{Item, Problem, solve};
use crate::bundle::bundle;
use crate::depend::Depend;
use crate::emit::{Addresses, lifetimes};
use crate::finish::{Lines, Planned, Ways};
use crate::homes::{Housed, Request, house, passes};
use crate::lower::{Grain, Grains, stages};
use crate::network::{Network, prepare};
use crate::parameters::Parameters;
use crate::placement::Placement;
use crate::prefetch::{Reaches, prefetch};
use crate::sketch::{Memory, Sketch};
use crate::stripes::{has_room, stripes};
use crate::weave::{Effort, Loom};
use crate::{ScheduleError, Timing};

/// Shares of the cache to plan with, in per cent: the first that also survives packing is taken.
const SHARES: [u64; 8] = [100, 95, 90, 80, 70, 60, 45, 30];

/// Shares of the base order a load may move ahead by, tried in turn.
const REACHES: [u32; 4] = [1, 4, 16, 64];

/// Shares of the cache that interleaved layers may fill, in per cent, tried in turn.
const ROOMS: [u64; 4] = [80, 60, 40, 20];

/// Cycles of a plan's orders that are timed for every step of the budget.
const TRIAL: u64 = 10_000;

/// Parts of the bound; a plan within one of them is close to it.
const CLOSE: u64 = 25;

/// Ways to give transfers to lines, all tried.
const LINES: [Lines; 2] = [Lines::Free, Lines::Even];

/// How instructions are cut and ordered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One at a time.
    Sequential,
    /// All units at the same time, layer after layer, loads ahead.
    Layers {
        /// Layers are cut so that two pieces of one fit the cache at a time, one loaded while the other is at work.
        paired: bool,
    },
    /// Instructions of different layers interleaved.
    Woven {
        /// How finely layers are cut.
        grains: Grains,
    },
}

impl Mode {
    fn paired(self) -> bool {
        matches!(self, Self::Layers { paired: true } | Self::Woven { .. })
    }

    fn grains(self) -> Grains {
        if let Self::Woven { grains } = self { grains } else { Grains::even(Grain::Coarse) }
    }
}

/// What a plan does otherwise than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Bundles are so many times as large.
    pub bundles: u64,
    /// Weights that take much of the cache come in narrower tiles.
    pub narrow: bool,
    /// Large results of the network only pass through the cache.
    pub passing: bool,
    /// Loads are placed in many ways.
    pub searched: bool,
    /// The first rows of an input come in short transfers.
    pub prompt: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self { bundles: 1, narrow: false, passing: false, searched: false, prompt: false }
    }
}

/// What all plans of a graph for a machine share.
pub(crate) struct Site<'a> {
    pub graph: &'a Graph,
    pub machine: &'a Machine,
    pub network: Network,
    pub parameters: &'a Parameters,
    placement: Placement,
    stages: Vec<u8>,
    /// The largest of the bounds, once someone asked.
    bound: OnceLock<u64>,
    pub effort: Effort,
}

impl<'a> Site<'a> {
    pub fn new(
        graph: &'a Graph,
        machine: &'a Machine,
        effort: Effort,
        parameters: &'a Parameters,
    ) -> Result<Self, ScheduleError> {
        let network = prepare(graph)?;
        let placement = Placement::new(&network, &graph.inputs, machine.word(), machine.array.columns as usize);
        let mut by_layer = vec![0; graph.layers.len()];
        for (step, stage) in network.steps.iter().zip(stages(&network)) {
            by_layer[step.layer.index()] = stage;
        }
        Ok(Self { graph, machine, network, parameters, placement, stages: by_layer, bound: OnceLock::new(), effort })
    }

    /// Whether some result of the network need only pass through the cache.
    pub fn passes(&self) -> bool {
        passes(&self.network, &self.placement, &self.graph.outputs, self.machine)
    }

    /// By layer, the stage of its steps.
    pub fn stages(&self) -> &[u8] {
        &self.stages
    }

    /// Whether little can be gained on so many cycles.
    pub fn is_close(&self, cycles: u64) -> bool {
        let bound = *self.bound.get_or_init(|| self.bounds().binding().1);
        cycles <= bound + bound / CLOSE
    }

    /// Lower bounds of every program.
    pub fn bounds(&self) -> Bounds {
        tpuflow_bounds::bounds(self.graph, self.machine).whole
    }

    /// Share of the free cache a piece may take; a piece alone may take what two would at a time.
    fn utilization(&self, mode: Mode) -> f64 {
        let share = self.parameters.slicer.max_cache_utilization;
        if mode.paired() || !self.parameters.parallel() { share } else { (2.0 * share).min(1.0) }
    }

    /// Lowers the network and gives everything a place and a time: of several orders the fastest by `timing`.
    pub fn plan(&self, mode: Mode, manner: Manner, timing: Timing) -> Result<Planned, ScheduleError> {
        let machine = self.machine;
        let mut failure = None;
        for share in SHARES {
            let request = Request {
                network: &self.network,
                placement: &self.placement,
                machine,
                inputs: &self.graph.inputs,
                outputs: &self.graph.outputs,
                grains: mode.grains(),
                parallel: mode.paired(),
                pieces: self.parameters.pieces(),
                utilization: self.utilization(mode),
                narrow: manner.narrow,
                prompt: manner.prompt,
                passing: manner.passing,
                outside: !self.parameters.action_graph_data_transfer_optimization,
                capacity: machine.cache_bytes() / 100 * share,
            };
            let mut housed = match house(&request) {
                Ok(housed) => housed,
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            if let (true, Some(layers)) = (mode != Mode::Sequential, self.parameters.grouped()) {
                bundle(&mut housed.sketch, machine, layers, manner.bundles);
            }
            let found = match mode {
                Mode::Sequential => addresses(&housed.sketch, machine).map(|found| (found, Vec::new())),
                Mode::Layers { .. } => self.ahead(&mut housed.sketch, manner.searched).map(|found| {
                    let orders = self.taken_up(&housed.sketch, &found);
                    (found, orders)
                }),
                Mode::Woven { .. } => self.interleaved(&mut housed.sketch, manner.searched),
            };
            let (found, orders) = match found {
                Ok(found) => found,
                Err(error) => {
                    failure = failure.or(Some(error));
                    continue;
                }
            };
            let plan = |housed: &Housed| {
                let planned = |ways| Planned::new(self, housed.clone(), found.clone(), mode, ways);
                fastest(self.ways(mode, manner).into_iter().map(|ways| Ok(planned(ways)?.timed(timing))))
            };
            if orders.is_empty() {
                return plan(&housed);
            }
            let ordered = |order| Housed { sketch: housed.sketch.reordered(order), ..housed.clone() };
            return fastest(orders.iter().map(|order: &Vec<u32>| plan(&ordered(order))));
        }
        Err(failure.unwrap_or(ScheduleError::Level(1)))
    }

    /// Ways to bring in what lies in external memory, all tried.
    fn ways(&self, mode: Mode, manner: Manner) -> Vec<Ways> {
        let lines: &[Lines] = if mode == Mode::Sequential { &LINES[..1] } else { &LINES };
        let splits: &[bool] = if manner == Manner::default() { &[false] } else { &[false, true] };
        let all = splits.iter().flat_map(|&backward| lines.iter().map(move |&lines| (backward, lines)));
        all.map(|(backward, lines)| Ways { backward, ..Ways::new(lines) }).collect()
    }

    /// Moves loads ahead as far as room is found, and less far where that leaves none for what must be.
    fn ahead(&self, sketch: &mut Sketch, searched: bool) -> Result<Addresses, ScheduleError> {
        let parameters = self.parameters;
        let effort = searched.then_some(&self.effort);
        let caches = [&parameters.shared_cache_schedule_optimizations, &parameters.ewp_cache_schedule_optimizations];
        for share in REACHES {
            let reaches = Reaches {
                layers: parameters.ahead(),
                positions: sketch.drafts.len() as u32 / share,
                ring: caches.map(|passes| passes.round_robin),
            };
            match prefetch(sketch, self.machine, &reaches, effort) {
                Ok(found) => {
                    *sketch = found.sketch;
                    return Ok(found.addresses);
                }
                Err(memory) => {
                    let full = usize::from(memory == Memory::Ewp);
                    if !caches[full].fallthrough_patch {
                        break;
                    }
                }
            }
        }
        addresses(sketch, self.machine)
    }

    /// Interleaves layers, with buffers in stripes where that leaves room enough, and gives orders beside the addresses, if any
    /// could be made.
    fn interleaved(&self, sketch: &mut Sketch, searched: bool) -> Result<(Addresses, Vec<Vec<u32>>), ScheduleError> {
        if has_room(sketch, self.machine) {
            let mut striped = sketch.clone();
            stripes(&mut striped, self.machine);
            if let Some(found) = self.woven(&mut striped, &ROOMS[..1], searched) {
                *sketch = striped;
                return Ok(found);
            }
        }
        if let Some(found) = self.woven(sketch, &ROOMS, searched) {
            return Ok(found);
        }
        Ok((self.ahead(sketch, searched)?, Vec::new()))
    }

    /// Interleaves layers with as much memory as leaves room for loads, moves these ahead, and once everything has its place
    /// lets all units take up their work as soon as they can.
    fn woven(&self, sketch: &mut Sketch, rooms: &[u64], searched: bool) -> Option<(Addresses, Vec<Vec<u32>>)> {
        let (machine, window) = (self.machine, self.parameters.window());
        let depend = Depend::new(sketch, machine, None);
        let loom = Loom::new(sketch, &depend, machine, window, None);
        for share in rooms {
            let order = loom.order(machine.cache_bytes() / 100 * share, &self.effort);
            let mut woven = sketch.reordered(&loom.late_loads(&order));
            if let Ok(found) = self.ahead(&mut woven, searched) {
                let orders = self.orders(&woven, &found);
                *sketch = woven;
                return Some((found, orders));
            }
        }
        None
    }

    /// Orders in which all units take up their work as soon as they can, now that everything has its place.
    fn orders(&self, sketch: &Sketch, addresses: &Addresses) -> Vec<Vec<u32>> {
        let depend = Depend::new(sketch, self.machine, Some(addresses));
        let loom = Loom::new(sketch, &depend, self.machine, self.parameters.window(), Some(addresses));
        loom.orders(u64::MAX, &self.effort, self.effort.steps.saturating_mul(TRIAL))
    }

    /// The order of layers, and those in which nothing that could begin stands behind loads that have time.
    fn taken_up(&self, sketch: &Sketch, addresses: &Addresses) -> Vec<Vec<u32>> {
        let mut orders = vec![(0..sketch.drafts.len() as u32).collect()];
        if self.parameters.layer_fusion != 0 {
            orders.extend(self.orders(sketch, addresses));
        }
        orders
    }
}

/// The plan of the fewest cycles, the first of equals; without any, the first reason why.
pub(crate) fn fastest(
    plans: impl IntoIterator<Item = Result<Planned, ScheduleError>>,
) -> Result<Planned, ScheduleError> {
    let cycles = |plan: &Planned| plan.program.predicted_cycles;
    let faster = |best, found| match (best, found) {
        (Ok(best), Ok(found)) => Ok(if cycles(&found) < cycles(&best) { found } else { best }),
        (Ok(plan), Err(_)) | (Err(_), Ok(plan)) => Ok(plan),
        (Err(first), Err(_)) => Err(first),
    };
    plans.into_iter().reduce(faster).unwrap_or(Err(ScheduleError::Level(5)))
}

/// Addresses in both caches.
fn addresses(sketch: &Sketch, machine: &Machine) -> Result<Addresses, ScheduleError> {
    let lives = lifetimes(sketch);
    let word = machine.word() as u64;
    let mut addresses: Addresses = vec![(Space::Ddr(0), 0); sketch.buffers.len()];
    for (memory, space, name, capacity) in [
        (Memory::Cache, Space::Cache, "the shared cache", machine.cache_bytes()),
        (Memory::Ewp, Space::EwpCache, "the parameter cache", machine.ewp_cache_bytes()),
    ] {
        let mut items = Vec::new();
        let mut owners = Vec::new();
        for (index, buffer) in sketch.buffers.iter().enumerate() {
            if let (true, Some((first, last))) = (buffer.memory == memory, lives[index]) {
                items.push(Item { first, last, size: buffer.bytes.div_ceil(word) });
                owners.push(index);
            }
        }
        let problem = Problem { items, capacity: capacity / word };
        let solution = solve(&problem, true);
        if solution.height > problem.capacity {
            return Err(ScheduleError::Allocation {
                memory: name,
                machine: machine.name.clone(),
                height: solution.height * word,
                capacity,
            });
        }
        for (owner, offset) in owners.into_iter().zip(solution.offsets) {
            addresses[owner] = (space, offset * word);
        }
    }
    Ok(addresses)
}
