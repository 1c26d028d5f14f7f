//! Operators in the units' terms: which unit computes one, and convolutions and products as rows and columns of the array.

use tpuflow_ir::isa::{Codes, MatrixDescriptor, WorkKind};
use tpuflow_ir::{Arithmetic, DType, Graph, Machine, Op, Space, TensorId, Unit, View, Window, timing};

/// A convolution or matrix product in the array's terms.
pub(super) struct Linear {
    /// Left operand.
    pub input: TensorId,
    /// Right operand, constant or not.
    pub right: TensorId,
    /// Window; 1x1 for products.
    pub window: Window,
    /// Input channels of a group.
    group_in: u32,
    /// Output channels of a group.
    group_out: u32,
    groups: u32,
    /// Products with one right operand each.
    pub leads: u32,
}

impl Linear {
    /// Reads a convolution or product; `None` for other operators.
    pub fn of(op: &Op, graph: &Graph) -> Option<Self> {
        let shape = |id: TensorId| &graph.tensor(id).shape[..];
        match op {
            Op::Conv { input, weights, window, groups, .. } => {
                let (columns, depth) = (*shape(*weights).first()? as u32, *shape(*weights).last()? as u32);
                Some(Self {
                    input: *input,
                    right: *weights,
                    window: *window,
                    group_in: depth,
                    group_out: columns / groups,
                    groups: *groups,
                    leads: 1,
                })
            }
            Op::MatMul { a, b, .. } => {
                let [batch @ .., k, n] = shape(*b) else { return None };
                let lead = shape(*a).len().saturating_sub(2);
                let leads: usize = if batch.is_empty() { 1 } else { shape(*a)[..lead].iter().product() };
                Some(Self {
                    input: *a,
                    right: *b,
                    window: Window { kernel: [1, 1], stride: [1, 1], dilation: [1, 1], pads: [0; 4] },
                    group_in: *k as u32,
                    group_out: *n as u32,
                    groups: 1,
                    leads: leads as u32,
                })
            }
            _ => None,
        }
    }

    pub fn is_grouped(&self) -> bool {
        self.groups > 1
    }

    pub fn columns(&self) -> u32 {
        self.groups * self.group_out
    }

    /// The descriptor of the instructions: geometry alone, values do not matter here.
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

    /// By column tile, the K blocks it takes: of one group each, or of several narrow ones where that makes for fewer.
    pub fn blocks(&self, input: &View, weight_dtype: DType, machine: &Machine) -> Vec<u64> {
        let packed = timing::groups_per_tile(self.group_in, self.group_out, machine);
        let single = self.blocks_of(1, input, weight_dtype, machine);
        // A zero in another group's place is no zero where the operand is not finite.
        let never = input.dtype.is_float() || self.groups == 1 || packed == 1;
        if never || self.group_out > machine.array.columns {
            return single;
        }
        let together = self.blocks_of(packed, input, weight_dtype, machine);
        if together.iter().sum::<u64>() < single.iter().sum() { together } else { single }
    }

    fn blocks_of(&self, packed: u32, input: &View, weight_dtype: DType, machine: &Machine) -> Vec<u64> {
        let descriptor = self.descriptor(weight_dtype);
        let (span, step) = if packed > 1 {
            (self.columns(), packed * self.group_out)
        } else {
            (self.group_out, machine.array.columns.min(self.group_out))
        };
        let groups = (0..self.columns()).step_by(span.max(1) as usize);
        let tiles = groups.flat_map(|start| {
            let end = start + span;
            (start..end).step_by(step.max(1) as usize).map(move |first| (first, step.min(end - first)))
        });
        tiles.map(|(first, count)| timing::blocks(&descriptor, input, first, count, machine).len() as u64).collect()
    }
}

/// Whether a convolution has one output channel per input channel.
pub(super) fn is_depthwise(graph: &Graph, op: &Op) -> bool {
    op.is_depthwise(|tensor| &graph.tensor(tensor).shape)
}

/// The unit of a machine that computes an operator.
pub(super) fn unit_of(graph: &Graph, op: &Op, machine: &Machine) -> Unit {
    Unit::executing(WorkKind::of(op, |tensor| &graph.tensor(tensor).shape), machine)
}

/// The tensor in storage of its own.
pub(super) fn natural_view(graph: &Graph, tensor: TensorId, word: usize) -> View {
    let tensor = graph.tensor(tensor);
    View::whole(&tensor.shape, tensor.dtype, word, Space::Cache, 0)
}

/// Operands an operator reads as activations: all but the constants that live in packed form.
pub(super) fn streams(graph: &Graph, op: &Op) -> Vec<TensorId> {
    match op {
        Op::Conv { input, .. } | Op::Unary { input, .. } | Op::LayerNorm { input, .. } => vec![*input],
        Op::MatMul { a, b, .. } if graph.tensor(*b).constant.is_some() => vec![*a],
        Op::MatMul { a, b, .. } => vec![*a, *b],
        Op::Embedding { indices, .. } => vec![*indices],
        other => other.operands(),
    }
}

/// Whether every element of an operand is taken exactly once.
pub(super) fn is_permutation(dims: &[u32], strides: &[i64], offset: i64, elements: usize) -> bool {
    let mut loops: Vec<(i64, i64)> =
        strides.iter().copied().zip(dims.iter().map(|&d| i64::from(d))).filter(|l| l.1 > 1).collect();
    loops.sort_unstable();
    let mut span = 1;
    for (stride, extent) in loops {
        if stride != span {
            return false;
        }
        span *= extent;
    }
    offset == 0 && i64::try_from(elements) == Ok(span)
}

/// Whether the columns of a layer differ in their weights alone.
pub(super) fn is_plain(op: &Op, graph: &Graph) -> bool {
    match op {
        Op::Conv { groups, epilogue: Arithmetic::Fixed(_), .. } => *groups == 1,
        Op::MatMul { b, epilogue: Arithmetic::Fixed(_), .. } => graph.tensor(*b).constant.is_some(),
        _ => false,
    }
}
