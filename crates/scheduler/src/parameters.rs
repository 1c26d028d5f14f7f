//! Fields of a schedule, each of which allows or forbids something; levels 1 and 5 are two points in this space.
//!
//! Limits of -1 are none of their own: the budget of the whole search still holds. Seconds become steps at
//! [`STEPS_PER_SECOND`], so that a plan depends on no clock.

use serde::Deserialize;

/// Steps of the search a second of a pass's time limit buys.
pub const STEPS_PER_SECOND: u64 = 20;

/// The fields of a schedule.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Tensors stay in the cache from their producer to their readers; otherwise all pass through DDR.
    pub action_graph_data_transfer_optimization: bool,
    /// Who waits for whom.
    pub dependency_resolution_algorithm: Dependency,
    /// Where constants lie.
    pub ram_io_balancing: Balancing,
    /// Loads into the shared cache.
    pub shared_cache_schedule_optimizations: Passes,
    /// Loads into the parameter cache.
    pub ewp_cache_schedule_optimizations: Passes,
    /// How layers are cut where they need not be.
    pub slicer: Slicer,
    /// How many further layers may run while one does: 0 none, -1 as many as the slicer looks at.
    pub layer_fusion: i64,
    /// How groups of layers are searched for.
    #[serde(default)]
    pub layer_groups: GroupSearch,
    /// Where inputs and outputs lie in external memory.
    #[serde(default)]
    pub io_memory: IoMemory,
    /// Most steps of a search, in place of the usual budget.
    #[serde(default)]
    pub search_steps: Option<u64>,
}

/// How layers are divided into groups that are computed tile by tile. Each finds a division at least as cheap as the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupSearch {
    /// From the last layer to the first, each group as long as it is no dearer than its layers one by one.
    Greedy,
    /// The cheapest division, by dynamic programming; tiles are counted in powers of two.
    #[default]
    Dynamic,
    /// The cheapest division with any number of tiles.
    Exact,
}

/// Where inputs and outputs lie in external memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoMemory {
    /// In pages of their own.
    #[default]
    Separate,
    /// In pages that they share with other tensors whose live ranges are disjoint.
    Shared,
    /// In pages of their own, each in one stretch of the first address space.
    Contiguous,
}

/// Who waits for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Dependency {
    /// Every instruction for the one before it.
    Sequential,
    /// A reader for its writer, a writer for readers.
    Parallel,
}

/// Where constants lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Balancing {
    /// In the first address space.
    None,
    /// In all of them, so that every line has some to load.
    Mirror,
}

/// How loads into one cache are scheduled.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Passes {
    /// In their order.
    pub configurations: Vec<Pass>,
    /// Buffers of loads follow each other round the free cache; otherwise each takes the lowest hole.
    pub round_robin: bool,
    /// Where loads find no room as far ahead as they may, they move less far; otherwise they stay.
    pub fallthrough_patch: bool,
}

/// A pass over the loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Pass {
    /// Loads move ahead of the layers that need them.
    IntermediateInsertion {
        /// Over so many layers; -1: any number.
        depth: i64,
        /// Seconds of search; -1: the budget of the whole.
        time_limit_seconds: i64,
    },
    /// Small constants of neighbouring layers share a transfer.
    BiasScaleNegativeScaleAggressiveGrouping {
        /// Of so many layers; 0 and -1: as many as room allows.
        depth: i64,
        /// Seconds of search; the pass does not search, but 0 turns it off.
        time_limit_seconds: i64,
    },
}

/// Limits of cuts that capacity does not force.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slicer {
    /// Layers along a chain that are looked at together.
    pub analysis_depth: u32,
    /// Branches side by side that are.
    pub analysis_depth_branch: u32,
    /// How many times a plane may be cut in four.
    pub spatial_limit: u32,
    /// Share of the free cache a piece may take.
    pub max_cache_utilization: f64,
}

impl Parameters {
    /// Level 1.
    pub fn o1() -> Self {
        Self {
            action_graph_data_transfer_optimization: true,
            dependency_resolution_algorithm: Dependency::Sequential,
            ram_io_balancing: Balancing::None,
            shared_cache_schedule_optimizations: Passes {
                configurations: vec![Pass::IntermediateInsertion { depth: 16, time_limit_seconds: 240 }],
                ..Passes::default()
            },
            ewp_cache_schedule_optimizations: Passes::default(),
            slicer: Slicer {
                analysis_depth: 1,
                analysis_depth_branch: 4,
                spatial_limit: 2,
                max_cache_utilization: 1.0,
            },
            layer_fusion: 0,
            layer_groups: GroupSearch::default(),
            io_memory: IoMemory::default(),
            search_steps: None,
        }
    }

    /// Level 5.
    pub fn o5() -> Self {
        let passes = |configurations| Passes { configurations, round_robin: true, fallthrough_patch: true };
        Self {
            action_graph_data_transfer_optimization: true,
            dependency_resolution_algorithm: Dependency::Parallel,
            ram_io_balancing: Balancing::Mirror,
            shared_cache_schedule_optimizations: passes(vec![
                Pass::BiasScaleNegativeScaleAggressiveGrouping { depth: 0, time_limit_seconds: -1 },
                Pass::IntermediateInsertion { depth: -1, time_limit_seconds: -1 },
            ]),
            ewp_cache_schedule_optimizations: passes(vec![]),
            slicer: Slicer {
                analysis_depth: 10,
                analysis_depth_branch: 4,
                spatial_limit: 4,
                max_cache_utilization: 0.5,
            },
            layer_fusion: -1,
            layer_groups: GroupSearch::default(),
            io_memory: IoMemory::default(),
            search_steps: None,
        }
    }

    /// Whether units work at the same time.
    pub(crate) fn parallel(&self) -> bool {
        self.dependency_resolution_algorithm == Dependency::Parallel
    }

    /// Most layers whose small constants share a transfer, if any do.
    pub(crate) fn grouped(&self) -> Option<u32> {
        self.shared_cache_schedule_optimizations.configurations.iter().find_map(|pass| match *pass {
            Pass::BiasScaleNegativeScaleAggressiveGrouping { depth, time_limit_seconds } if time_limit_seconds != 0 => {
                Some(if depth <= 0 { u32::MAX } else { count(depth) })
            }
            _ => None,
        })
    }

    /// Layers a load may move ahead over.
    pub(crate) fn prefetch_depth(&self) -> u32 {
        self.insertion().map_or(0, |(depth, seconds)| if seconds == 0 { 0 } else { count(depth) })
    }

    /// The same without loads ahead, where they may move over some layers but not over all.
    pub(crate) fn without_prefetch(&self) -> Option<Self> {
        let mut same = self.clone();
        let limited = (1..u32::MAX).contains(&self.prefetch_depth());
        same.shared_cache_schedule_optimizations
            .configurations
            .retain(|pass| !matches!(pass, Pass::IntermediateInsertion { .. }));
        (limited && self.parallel()).then_some(same)
    }

    /// Steps of search out of a budget.
    pub(crate) fn steps(&self, usual: u64) -> u64 {
        let budget = self.search_steps.unwrap_or(usual);
        match self.insertion() {
            Some((_, seconds)) if seconds >= 0 => budget.min(seconds.unsigned_abs().saturating_mul(STEPS_PER_SECOND)),
            Some(_) => budget,
            None => 0,
        }
    }

    /// Layers that may be under way at a time.
    pub(crate) fn window(&self) -> u32 {
        let Slicer { analysis_depth, analysis_depth_branch, .. } = self.slicer;
        let looked_at = analysis_depth.saturating_mul(analysis_depth_branch).max(1);
        count(self.layer_fusion).saturating_add(1).min(looked_at)
    }

    /// Most pieces a layer is cut into.
    pub(crate) fn pieces(&self) -> u64 {
        4u64.saturating_pow(self.slicer.spatial_limit)
    }

    fn insertion(&self) -> Option<(i64, i64)> {
        self.shared_cache_schedule_optimizations.configurations.iter().find_map(|pass| match *pass {
            Pass::IntermediateInsertion { depth, time_limit_seconds } => Some((depth, time_limit_seconds)),
            Pass::BiasScaleNegativeScaleAggressiveGrouping { .. } => None,
        })
    }
}

/// A limit, of which negative ones are none.
fn count(limit: i64) -> u32 {
    if limit < 0 { u32::MAX } else { u32::try_from(limit).unwrap_or(u32::MAX) }
}
