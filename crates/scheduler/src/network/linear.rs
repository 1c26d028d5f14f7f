//! Convolutions and matrix products in the array's terms: rows of weights, columns, groups, and tiles of columns.

use tpuflow_ir::isa::{Codes, MatrixDescriptor};
use tpuflow_ir::layout::pixel_bytes;
use tpuflow_ir::{DType, Machine, Op, Packed, TensorId, View, Window, timing};

use crate::network::Network;
use crate::virtual_program::PackedPart;

/// Whether a convolution has one output channel per input channel, the form the pooling unit computes. With three taps per
/// lane and cycle that is always fewer cycles than a diagonal tile on the array.
pub(crate) fn is_depthwise(network: &Network, op: &Op) -> bool {
    op.is_depthwise(|tensor| &network.tensor(tensor).shape)
}

/// A linear operator in the array's terms.
#[derive(Clone)]
pub(crate) struct Linear {
    /// Left operand.
    pub input: TensorId,
    /// Right operand, constant or not.
    pub right: TensorId,
    /// Window; 1x1 for products.
    pub window: Window,
    /// Input channels of a group.
    pub group_in: u32,
    /// Output channels of a group.
    pub group_out: u32,
    /// Groups.
    pub groups: u32,
    /// Products with one right operand each.
    pub leads: u32,
    /// Columns of every tile, if the right operand is a table of columns as well.
    pub table_columns: Option<u32>,
}

impl Linear {
    /// Reads a convolution or product; `None` for other operators.
    pub fn of(op: &Op, network: &Network) -> Option<Self> {
        match op {
            Op::Conv { input, weights, window, groups, .. } => {
                let w = &network.tensor(*weights).shape;
                Some(Self {
                    input: *input,
                    right: *weights,
                    window: *window,
                    group_in: w[3] as u32,
                    group_out: w[0] as u32 / groups,
                    groups: *groups,
                    leads: 1,
                    table_columns: None,
                })
            }
            Op::MatMul { a, b, .. } => {
                let (x, w) = (&network.tensor(*a).shape, &network.tensor(*b).shape);
                let (k, n) = (w[w.len() - 2], w[w.len() - 1]);
                let leads = if w.len() > 2 { x[..x.len() - 2].iter().product() } else { 1 };
                let window = Window { kernel: [1, 1], stride: [1, 1], dilation: [1, 1], pads: [0; 4] };
                Some(Self {
                    input: *a,
                    right: *b,
                    window,
                    group_in: k as u32,
                    group_out: n as u32,
                    groups: 1,
                    leads: leads as u32,
                    table_columns: network.table_columns(*b),
                })
            }
            _ => None,
        }
    }

    /// Rows of the right operand.
    pub fn k(&self) -> u32 {
        self.window.kernel[0] * self.window.kernel[1] * self.group_in
    }

    /// Columns.
    pub fn columns(&self) -> u32 {
        self.groups * self.group_out
    }

    pub fn is_plain(&self) -> bool {
        self.window.kernel == [1, 1] && self.window.stride == [1, 1] && self.window.pads == [0; 4]
    }

    /// Column tiles of at most `width` columns, `packed` groups side by side where a group is narrower.
    pub fn tiles(&self, width: u32, packed: u32) -> Vec<(u32, u32)> {
        let step = if packed > 1 { packed * self.group_out } else { width.min(self.group_out) };
        let span = if packed > 1 { self.columns() } else { self.group_out };
        (0..self.columns())
            .step_by(span as usize)
            .flat_map(|start| {
                (start..start + span).step_by(step as usize).map(move |c| (c, step.min(start + span - c)))
            })
            .collect()
    }

    /// The same for a result whose channels begin inside a word, `lead` channels before the next: the first tile is narrower, so
    /// that the others lie in words as they would from the start of one. `None` where this takes more tiles.
    pub fn tiles_behind(&self, width: u32, lead: u32) -> Option<Vec<(u32, u32)>> {
        let columns = self.columns();
        let rest = columns.checked_sub(lead).filter(|_| self.groups == 1 && lead < width)?;
        if 1 + rest.div_ceil(width) > columns.div_ceil(width) {
            return None;
        }
        let rest = (lead..columns).step_by(width as usize).map(|c| (c, width.min(columns - c)));
        Some(std::iter::once((0, lead)).chain(rest).collect())
    }

    /// Bytes of the packed weights of a tile: planes of bytes for integers, whole elements side by side for floats.
    pub fn tile_bytes(&self, columns: u32, dtype: DType, word: usize) -> u64 {
        let planes = if dtype.is_float() { 1 } else { dtype.bytes() };
        let plane = (self.k() as usize * self.row_bytes(columns, dtype, word)).next_multiple_of(word);
        (plane * planes) as u64
    }

    /// The packed form of the weights, if they have one: that of products, whose tiles are rows and columns of it.
    pub fn packed<'a>(&self, network: &'a Network) -> Option<&'a Packed> {
        let right = network.tensor(self.right);
        right.packed.as_ref().filter(|_| self.is_plain() && right.shape.len() == 2)
    }

    /// A tile of packed weights.
    pub fn packed_tile(&self, network: &Network, (first, columns): (u32, u32), word: usize) -> PackedPart {
        PackedPart {
            tensor: network.first_equal(self.right),
            rows: [0, self.k()],
            columns: [first, columns],
            row_bytes: self.row_bytes(columns, DType::I8, word) as u32,
            is_by_column: self.table_columns.is_some(),
        }
    }

    /// Bytes from row to row of a tile in the cache.
    pub fn row_bytes(&self, columns: u32, dtype: DType, word: usize) -> usize {
        row_bytes(self.table_columns.map_or(columns, |all| columns.max(all)), dtype, word)
    }

    /// The packing of groups that takes fewer array slots.
    pub fn packing(&self, input: &View, machine: &Machine) -> u32 {
        let packed = timing::groups_per_tile(self.group_in, self.group_out, machine);
        // A zero in another group's place is no zero where the operand is not finite.
        if input.dtype.is_float() || self.groups == 1 || packed == 1 || self.group_out > machine.array.columns {
            return 1;
        }
        let descriptor = self.descriptor(DType::I8);
        let blocks = |packed: u32| -> usize {
            let tiles = self.tiles(machine.array.columns, packed);
            tiles.iter().map(|&(c, n)| timing::blocks(&descriptor, input, c, n, machine).len()).sum()
        };
        if blocks(packed) < blocks(1) { packed } else { 1 }
    }

    pub fn descriptor(&self, weight_dtype: DType) -> MatrixDescriptor {
        MatrixDescriptor {
            window: self.window,
            group_in: self.group_in,
            group_out: self.group_out,
            input_zero: 0,
            weight_zero: 0,
            weight_dtype,
            first_shift: None,
            codes: Codes { zero_point: 0, lo: 0, hi: 0 },
            table: None,
            float: None,
        }
    }
}

/// Bytes from row to row of packed weights.
pub(crate) fn row_bytes(columns: u32, dtype: DType, word: usize) -> usize {
    let size = if dtype.is_float() { dtype.bytes() } else { 1 };
    pixel_bytes(columns as usize * size, word)
}
