//! Tilings that a user asks for: slices of single layers, runs of layers in parts, or the whole network in parts.

use std::collections::BTreeMap;

use serde::Deserialize;
use tpuflow_ir::{Graph, LayerId, Parts, Tiling};

use super::groups::split;
use crate::error::{ScheduleError, TilingError};

/// Axis of a layer's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The first of four or more.
    Batch,
    /// The last but two.
    Height,
    /// The last but one.
    Width,
    /// The last.
    Channel,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Height => "height",
            Self::Width => "width",
            Self::Channel => "channel",
        }
    }
}

/// A slice: by axis, elements `[from, to)`; all of an axis that is not named.
pub type Slice = BTreeMap<Axis, [u32; 2]>;

/// The layers to cut.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// By name of a layer, its slices.
    pub slices: BTreeMap<String, Vec<Slice>>,
    /// First and last layer of a run by their numbers, and its parts from top to bottom and from left to right.
    pub runs: Vec<[u32; 4]>,
    /// First and last layer of attention by their numbers, its parts, of matrices and of queries, the keys of a block, and 1 where
    /// scores are kept ([`Parts::KeyBlocks`]).
    pub attention: Vec<[u32; 6]>,
    /// Parts of all layers that can be cut, from left to right.
    pub columns: u32,
    /// From top to bottom.
    pub rows: u32,
    /// Of these, most of what parts compute or read that others do as well, in per cent.
    pub overlap: u32,
}

impl Default for Request {
    fn default() -> Self {
        Self { slices: BTreeMap::new(), runs: vec![], attention: vec![], columns: 1, rows: 1, overlap: 50 }
    }
}

impl Request {
    /// The tilings of a graph.
    ///
    /// # Errors
    /// [`ScheduleError::Tiling`] where a layer does not exist or has not the axis.
    pub fn tilings(&self, graph: &Graph) -> Result<Vec<Tiling>, ScheduleError> {
        let mut tilings = Vec::new();
        for (name, slices) in &self.slices {
            let fail = |reason| ScheduleError::Tiling { layer: name.clone(), reason };
            let found = graph.layers.iter().position(|layer| layer.name == *name);
            let layer = found.ok_or_else(|| fail(TilingError::Unknown))?;
            let shape = &graph.tensor(graph.layers[layer].output).shape;
            let boxes: Result<Vec<Vec<[u32; 2]>>, ScheduleError> =
                slices.iter().map(|slice| sliced(slice, shape).map_err(fail)).collect();
            let id = LayerId::new(layer);
            tilings.push(Tiling { first: id, last: id, parts: Parts::Boxes(boxes?) });
        }
        for &[first, last, rows, columns] in &self.runs {
            let parts = Parts::Grid { images: 1, rows, columns };
            tilings.push(Tiling { first: LayerId(first), last: LayerId(last), parts });
        }
        for &[first, last, matrices, queries, keys, keeps_scores] in &self.attention {
            let parts = Parts::KeyBlocks { matrices, queries, keys, keeps_scores: keeps_scores > 0 };
            tilings.push(Tiling { first: LayerId(first), last: LayerId(last), parts });
        }
        if self.rows > 1 || self.columns > 1 {
            let taken = |layer: usize| {
                let cut = |tiling: &Tiling| (tiling.first.index()..=tiling.last.index()).contains(&layer);
                tilings.iter().any(cut)
            };
            tilings.extend(split(graph, [1, self.rows, self.columns], self.overlap, taken));
        }
        Ok(tilings)
    }
}

fn sliced(slice: &Slice, shape: &[usize]) -> Result<Vec<[u32; 2]>, TilingError> {
    let mut ranges: Vec<[u32; 2]> = shape.iter().map(|&extent| [0, extent as u32]).collect();
    for (axis, range) in slice {
        let back = |count: usize| shape.len().checked_sub(count);
        let index = match axis {
            Axis::Batch => (shape.len() > 3).then_some(0),
            Axis::Height => back(3),
            Axis::Width => back(2),
            Axis::Channel => back(1),
        };
        let index = index.ok_or_else(|| TilingError::NoAxis { shape: shape.to_vec(), axis: axis.name() })?;
        ranges[index] = *range;
    }
    Ok(ranges)
}
