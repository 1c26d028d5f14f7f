//! Layers that are computed part by part, as asked for or as the scheduler found best.
//!
//! Layers in parts are layers of their own, which programs count and name. For every part in turn, the layers of the run stand in
//! their order, each for the smallest box that holds what the part and the layers behind it take, if its operator can be cut
//! there, and not at all where a part before holds that box. Before a layer stand cuts of operands of which no part is at hand;
//! behind the last part, what leaves the run is joined at straight cuts.

use serde::{Deserialize, Serialize};

use crate::LayerId;

/// A run of layers computed once for each part of what leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// First layer.
    pub first: LayerId,
    /// Last layer, inclusive.
    pub last: LayerId,
    /// The parts.
    pub parts: Parts,
}

/// Parts of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Parts {
    /// Every tensor that leaves the layers in parts of equal size, or nearly so.
    Grid {
        /// Parts of the batch.
        images: u32,
        /// Parts from top to bottom.
        rows: u32,
        /// Parts from left to right.
        columns: u32,
    },
    /// Attention by blocks of keys. The last layer is a product of codes that only scales its sums; its left operand is made by a
    /// softmax of the run, which nothing else reads. Parts of its result are those of a grid of matrices and rows. In each the softmax
    /// goes over blocks of what the product sums over three times: for its largest codes, for its sums, and for its shares, which are
    /// multiplied; sums of all blocks are added. What other layers of the run make of products in front of the softmax is kept for a
    /// part, or made anew for each block of each time; whatever else they make is made once.
    KeyBlocks {
        /// Parts along the third last axis of the result, with one matrix each.
        matrices: u32,
        /// Parts along the last but one axis: of the rows of a matrix.
        queries: u32,
        /// Length of a block of the axis that the product sums over; the last may be shorter.
        keys: u32,
        /// Whether the scores of a part are kept.
        keeps_scores: bool,
    },
    /// By part, by axis of the one tensor that leaves the layers: elements `[from, to)`.
    Boxes(Vec<Vec<[u32; 2]>>),
}
