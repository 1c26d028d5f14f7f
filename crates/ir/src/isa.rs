//! The instruction set.
//!
//! A program is one list of instructions in a legal serial order; each unit executes its own, in that order. Synchronisation
//! is by tokens: every finished instruction deposits one token of its unit, and an instruction waits until the units it names
//! have deposited as many as it says. Waits only ever point backwards in the list, so no program can deadlock.
//!
//! Operands are [`View`]s: geometry and place of a tensor or of the rows of it that are present. What is the same for all
//! instructions of a layer stands once in a [`Descriptor`].

mod descriptor;
mod expand;
mod packed_lookup;
mod parameters;
mod unit;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{DescriptorId, LayerId, Space, View};

pub use descriptor::*;
pub use expand::{Expand, PackedForm};
pub use packed_lookup::PackedLookup;
pub use parameters::*;
pub use unit::{Law, StartUp, UNITS, Unit, UnitSpec, WorkKind};

/// Wait until `unit` has finished `count` instructions since the program's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Wait {
    /// Whose tokens.
    pub unit: Unit,
    /// How many.
    pub count: u32,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Instruction {
    /// Who executes it.
    pub unit: Unit,
    /// The layer it works for.
    pub layer: LayerId,
    /// Tokens it needs; at most one entry per unit. Its own unit is named where it must see an earlier result.
    pub waits: SmallVec<[Wait; 4]>,
    /// Its work.
    pub work: Work,
}

/// The work of an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Work {
    /// DMA between DDR and a cache.
    Transfer(Transfer),
    /// DMA of table rows by index.
    Lookup(Lookup),
    /// A column tile on the array.
    Matrix(Matrix),
    /// Rows of a pooling or depthwise convolution.
    Pool(Pool),
    /// Rows of an elementwise operator.
    Vector(Vector),
    /// DMA of packed weights.
    Expand(Expand),
    /// DMA of entries of a packed table by index.
    PackedLookup(PackedLookup),
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// DDR to cache.
    Load,
    /// Cache to DDR.
    Store,
}

/// A three-dimensional strided block copy: `counts[0] * counts[1]` runs of `bytes` contiguous bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// DDR address space.
    pub ddr_space: u8,
    /// DDR byte address.
    pub ddr_address: u64,
    /// [`Space::Cache`] or [`Space::EwpCache`].
    pub local_space: Space,
    /// Cache byte address.
    pub local_address: u64,
    /// Contiguous bytes of a run.
    pub bytes: u32,
    /// Number of runs: outer, inner.
    pub counts: [u32; 2],
    /// Bytes between runs in DDR: outer, inner.
    pub ddr_strides: [u64; 2],
    /// Bytes between runs in the cache: outer, inner.
    pub local_strides: [u64; 2],
}

impl Transfer {
    /// `(ddr address, local address)` of every run, in execution order.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..u64::from(self.counts[0])).flat_map(move |outer| {
            (0..u64::from(self.counts[1])).map(move |inner| {
                (
                    self.ddr_address + outer * self.ddr_strides[0] + inner * self.ddr_strides[1],
                    self.local_address + outer * self.local_strides[0] + inner * self.local_strides[1],
                )
            })
        })
    }

    /// The last of its [runs](Self::runs), which lies highest on both sides; `None` when there is none.
    #[must_use]
    pub fn last_run(&self) -> Option<(u64, u64)> {
        let [outer, inner] = [self.counts[0].checked_sub(1)?, self.counts[1].checked_sub(1)?].map(u64::from);
        let last = |start: u64, strides: [u64; 2]| start + outer * strides[0] + inner * strides[1];
        Some((last(self.ddr_address, self.ddr_strides), last(self.local_address, self.local_strides)))
    }

    /// Bytes moved.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.bytes) * u64::from(self.counts[0]) * u64::from(self.counts[1])
    }
}

/// Copies the table rows whose numbers stand in `indices[first .. first + count]` (row-major) to the same pixels of `output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lookup {
    /// The table in DDR: one pixel per row of the table (`width` rows of it, one image row).
    pub table: View,
    /// Indices, int32, in the cache, as the index tensor's own shape lies.
    pub indices: View,
    /// Destination in the cache: pixel `i` (row-major) takes the table row of index `i`.
    pub output: View,
    /// First index.
    pub first: u32,
    /// Number of indices.
    pub count: u32,
}

/// The indices an instruction looks up, in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Indices {
    /// Where they lie, as the index tensor's own shape does.
    pub view: View,
    /// First index, row-major.
    pub first: u32,
    /// Number of indices.
    pub count: u32,
    /// What each is below.
    pub size: u32,
}

impl Work {
    /// The indices it looks up, if it does.
    #[must_use]
    pub fn indices(&self) -> Option<Indices> {
        match self {
            Self::Lookup(l) => Some(Indices { view: l.indices, first: l.first, count: l.count, size: l.table.width }),
            Self::PackedLookup(l) => Some(Indices { view: l.indices, first: l.first, count: l.count, size: l.size }),
            _ => None,
        }
    }
}

/// Weights of a column tile in the shared cache: one row per k in order `(kh, kw, channel of the group)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Weights {
    /// Byte address of row 0, column 0 of the tile.
    pub address: u64,
    /// Bytes from one row to the next.
    pub row_bytes: u32,
    /// int16 weights: 0 when the two bytes of an element are neighbours (an activation as right operand); else the distance
    /// from the plane of low bytes to the plane of high bytes, each with one byte per column. int8 and float weights: 0.
    pub plane_bytes: u32,
}

/// One column tile of a convolution or matrix product, all of K, for a run of output pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Matrix {
    /// A [`Descriptor::Matrix`].
    pub descriptor: DescriptorId,
    /// Left operand.
    pub input: View,
    /// Result.
    pub output: View,
    /// First output pixel, counted over the output view (`row * width + column`, rows over all images).
    pub first_pixel: u32,
    /// Number of output pixels, at most [`crate::Machine::matrix_rows`].
    pub pixels: u32,
    /// First output channel of the tile, counted over the whole layer (it determines the groups).
    pub first_column: u32,
    /// Number of output channels, at most the array's columns.
    pub columns: u32,
    /// Channel of the `output` view that receives the tile's first column; `output.origin[1] + output_channel` equals
    /// `first_column`.
    pub output_channel: u32,
    /// Right operand.
    pub weights: Weights,
    /// EWP-cache byte address of the tile's channel parameters, [`ChannelParameters`] each.
    pub parameters: u32,
    /// EWP-cache byte address of the fused table (int32 entries), if the descriptor has one.
    pub table: u32,
}

/// Output rows of a pooling or depthwise convolution, all channels of the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pool {
    /// A [`Descriptor::Pool`].
    pub descriptor: DescriptorId,
    /// Operand.
    pub input: View,
    /// Result.
    pub output: View,
    /// First output row (over all images).
    pub first_row: u32,
    /// Number of output rows.
    pub rows: u32,
    /// EWP-cache byte address of depthwise weights `[tap][channel]`, for the channels of the views.
    pub weights: u32,
    /// EWP-cache byte address of the channel parameters (depthwise).
    pub parameters: u32,
    /// EWP-cache byte address of the fused table, if the descriptor has one.
    pub table: u32,
}

/// Part of an elementwise operator: rows of the output, or a range of the outermost loop of a move or gather.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vector {
    /// A [`Descriptor::Vector`].
    pub descriptor: DescriptorId,
    /// Operands in the order of the descriptor.
    pub inputs: SmallVec<[View; 2]>,
    /// Result.
    pub output: View,
    /// First row (move: first outermost index; gather: first of `outer * indices`).
    pub first_row: u32,
    /// Number of them. Reductions always take all rows.
    pub rows: u32,
    /// EWP-cache byte address of the operator's parameters, if it has any.
    pub parameters: u32,
}
