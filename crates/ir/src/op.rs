//! The closed set of operators of the [`crate::Graph`].
//!
//! Tensors are dense, row-major and channels-last; shapes may have any rank up to six. Every operator has one output, whose
//! shape and element type follow from its fields ([`crate::shape`] holds the rule). Zero points of operands are those of
//! the operand tensors. Geometry stands in an operator once; how its result becomes an element is an [`Arithmetic`], fixed
//! point for codes and IEEE for floats. Operators without one only move or compare elements, of whatever type. The
//! arithmetic of each operator is defined in `docs/arithmetic.md`.

use serde::{Deserialize, Serialize};

use crate::arithmetic::Arithmetic;
pub use crate::window::Window;
use crate::{Finish, Real, Requant, Tensor, TensorId};

/// A function of one variable: sampled values between which is interpolated, in one of the forms of [`crate::table`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Constant `[n]`, int32: a table of a form that [`crate::table::Form`] knows, of unclamped output codes.
    pub entries: TensorId,
    /// Lower clamp of the result.
    pub lo: i32,
    /// Upper clamp of the result.
    pub hi: i32,
}

/// The conversion of an integer accumulator to an element of the result of a linear operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epilogue {
    /// A rounding before that of `requant`, 0..=47, only where an operand is int16: the sum without its bias loses so many
    /// bits, is held to 32 of them, and so is what the bias makes of it. The bias has the scale of the shifted sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_shift: Option<u8>,
    /// To the output codes, or to the symmetric 16-bit intermediate when a table follows.
    pub requant: Requant,
    /// A fused unary function that reads the 16-bit intermediate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
}

/// Binary elementwise functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BinaryKind {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`, one exact rounded division.
    Div,
    /// The larger.
    Max,
    /// The smaller.
    Min,
    /// `a < b`: 1 where it holds, else 0.
    Less,
    /// `a <= b`: 1 where it holds, else 0.
    #[serde(rename = "less_or_equal")]
    LessOrEqual,
    /// `a = b`: 1 where it holds, else 0.
    Equal,
    /// `a != b`: 1 where it holds, else 0; of conditions, their exclusive or.
    #[serde(rename = "not_equal")]
    NotEqual,
}

impl BinaryKind {
    /// Whether the result is a condition, 0 or 1.
    #[must_use]
    pub fn compares(self) -> bool {
        matches!(self, Self::Less | Self::LessOrEqual | Self::Equal | Self::NotEqual)
    }
}

/// Reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceKind {
    /// `sum(x - Z)`; a mean is a sum whose multiplier holds `1/n`.
    Sum,
    /// Largest code.
    Max,
    /// Smallest code.
    Min,
    /// `sum |x - Z|`
    SumAbs,
    /// `sum (x - Z)^2`
    SumSquare,
    /// The Euclidean norm; of codes `floor(sqrt(sum (x - Z)^2 * 2^16))`, with eight fraction bits.
    Norm,
}

/// What [`Op::SoftmaxStatistics`] takes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The largest code.
    Maximum,
    /// The sum of the exponentials of the distances to the largest code.
    Sum {
        /// See [`Exponentials`].
        coefficient: u64,
    },
}

/// How [`Op::Pad`] fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadMode {
    /// With this code.
    Constant(i32),
    /// With this number (float tensors).
    Value(Real),
    /// Mirror without repeating the border.
    Reflect,
    /// Repeat the border.
    Edge,
}

/// Multiplier and shift of an average over `area` cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Divisor {
    /// Number of cells summed.
    pub area: u32,
    /// M of `S_in / (S_out * area)`.
    pub multiplier: i32,
    /// N.
    pub shift: i8,
}

/// Average of codes: `clamp(RNE(sum(x - Zx) * M * 2^-N) + Zy)`, M and N by the number of cells that count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Average {
    /// One entry per area that occurs, ascending.
    pub divisors: Vec<Divisor>,
    /// Zero point of the output.
    pub zero_point: i32,
    /// Lower clamp.
    pub lo: i32,
    /// Upper clamp.
    pub hi: i32,
}

/// Slopes of a piecewise linear function of codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slopes {
    /// For `x >= Zx`.
    pub positive: Requant,
    /// Multipliers for `x < Zx`, one or one per channel; may be negative.
    pub negative_multiplier: Vec<i32>,
    /// Shifts for `x < Zx`.
    pub negative_shift: Vec<i8>,
}

/// Slopes of a piecewise linear function of floats: `x` where `x >= 0`, else `x * negative`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloatSlopes {
    /// One float32, or one per channel.
    pub negative: Vec<Real>,
    /// To the output.
    #[serde(default)]
    pub finish: Finish,
}

/// Softmax of codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exponentials {
    /// `RNE(log2(e) * S_in * 2^32)`.
    pub coefficient: u64,
    /// K of the output scale.
    pub multiplier: i32,
    /// N of the output scale.
    pub shift: i8,
    /// Zero point of the output.
    pub zero_point: i32,
    /// Lower clamp.
    pub lo: i32,
    /// Upper clamp.
    pub hi: i32,
}

/// Normalisation of codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// `max(1, RNE(epsilon / S_in^2 * 2^16 * n))`.
    pub epsilon: u64,
    /// M of `sqrt(n) / S_t`, the normalised intermediate.
    pub multiplier: i32,
    /// N of it.
    pub shift: i8,
    /// Of `t * gamma + beta`; per channel or single.
    pub requant: Requant,
}

impl Norm {
    /// Whether all channels of an operator have the same gamma, beta and requantisation.
    #[must_use]
    pub fn is_shared(&self, gamma: &Tensor, beta: &Tensor) -> bool {
        fn same<T: PartialEq>(all: &[T]) -> bool {
            all.windows(2).all(|pair| pair[0] == pair[1])
        }
        same(&gamma.integers()) && same(&beta.integers()) && same(&self.requant.multiplier) && same(&self.requant.shift)
    }
}

/// Normalisation of floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloatNorm {
    /// Added to the variance, a float32.
    pub epsilon: Real,
    /// To the output.
    #[serde(default)]
    pub finish: Finish,
}

/// Reduction of floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloatReduction {
    /// The divisor of the sum (or norm), a float32: the number of elements for a mean, else 1.
    pub divisor: Real,
    /// To the output.
    #[serde(default)]
    pub finish: Finish,
}

/// What an index of a table names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableEntry {
    /// A row.
    #[default]
    Row,
    /// So many rows, one after the other, of a packed table.
    Rows(u32),
    /// A column of a packed table: one that is the right operand of a product as well.
    Column,
}

impl TableEntry {
    /// Whether it is a row.
    #[must_use]
    pub fn is_row(&self) -> bool {
        *self == Self::Row
    }

    /// Entries of a table of `[rows, columns]`, and elements of each.
    #[must_use]
    pub fn count(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Row => [rows, columns],
            Self::Rows(each) => [rows / (each as usize).max(1), each as usize * columns],
            Self::Column => [columns, rows],
        }
    }
}

/// One axis of a linear resize: output index `i` is `(1 - weight) * x[first] + weight * x[second]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearTap {
    /// Index of the first source cell.
    pub first: u32,
    /// Index of the second source cell.
    pub second: u32,
    /// Weight of the second cell, a float32 in 0..=1; a multiple of 1/2048 where the tensors hold codes.
    pub weight: Real,
}

/// An operator. Fields named after tensors are operands; everything else is fixed when the graph is built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// 2-D convolution: input `[n,h,w,c]`, weights `[o,kh,kw,c/groups]`, bias `[o]`, output `[n,oh,ow,o]`.
    Conv {
        /// Activations `[n,h,w,c]`.
        input: TensorId,
        /// Constant `[o,kh,kw,c/groups]`.
        weights: TensorId,
        /// Constant `[o]`: int32 when input and weights are int8, else int64 (48 bits used); float32 for floats.
        bias: TensorId,
        /// Window geometry.
        window: Window,
        /// Number of groups.
        groups: u32,
        /// Per output channel.
        epilogue: Arithmetic<Epilogue>,
    },
    /// Matrix product: `a` `[.., m, k]`, `b` `[.., k, n]` (same leading axes, or rank 2), output `[.., m, n]`.
    MatMul {
        /// Left operand, activations.
        a: TensorId,
        /// Right operand, constant or activations.
        b: TensorId,
        /// Constant `[n]`, of the types of convolutions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bias: Option<TensorId>,
        /// Per column.
        epilogue: Arithmetic<Epilogue>,
        /// The result is the sums as they are, int64: those over some of what another product sums over, whose epilogue this is.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        partial: bool,
    },
    /// Maximum over windows; padded cells never win. Output has the input's quantisation.
    MaxPool {
        /// Activations `[n,h,w,c]`.
        input: TensorId,
        /// Window geometry.
        window: Window,
    },
    /// Average over windows.
    AveragePool {
        /// Activations `[n,h,w,c]`.
        input: TensorId,
        /// Window geometry; padded cells add zero.
        window: Window,
        /// Padding counts as cells; cells beyond the padding (ceil mode) never do.
        count_include_pad: bool,
        /// How far bottom and right padding reach beyond the declared padding (ceil mode); these cells never count.
        beyond: [u32; 2],
        /// Division and rounding.
        average: Arithmetic<Average>,
    },
    /// Elementwise function of two tensors with NumPy broadcasting; codes are first multiplied to a common scale:
    /// `requant(f((a - Za) * ka, (b - Zb) * kb))`. Products and quotients take `ka = kb = 1`, and so do floats, whose
    /// comparisons give int8 conditions.
    Binary {
        /// The function.
        kind: BinaryKind,
        /// Left operand.
        a: TensorId,
        /// Right operand.
        b: TensorId,
        /// Multiplier of the left operand, 0..=32767.
        ka: i32,
        /// Multiplier of the right operand, 0..=32767.
        kb: i32,
        /// Single multiplier to the output codes.
        requant: Arithmetic<Requant>,
    },
    /// Any function of one variable.
    Unary {
        /// Operand, int8, int16 or float.
        input: TensorId,
        /// The function, sampled; of floats, the function of the finish.
        function: Arithmetic<Table>,
    },
    /// Change of scale, zero point, element type or range (Relu and Clip are clamps): codes to codes, floats to floats.
    Rescale {
        /// Operand.
        input: TensorId,
        /// Single multiplier.
        requant: Arithmetic<Requant>,
    },
    /// Floats to codes: `clamp(RNE(x / S) + Z)`.
    Quantize {
        /// Operand, float.
        input: TensorId,
        /// S of the output, a float32.
        scale: Real,
        /// Z of the output.
        zero_point: i32,
        /// Lower clamp.
        lo: i32,
        /// Upper clamp.
        hi: i32,
    },
    /// Codes (or int32) to floats: `S * (x - Zx)`.
    Dequantize {
        /// Operand, integer.
        input: TensorId,
        /// S of the operand, a float32.
        scale: Real,
        /// To the output.
        finish: Finish,
    },
    /// Piecewise linear function: `RNE((x - Zx) * M * 2^-N) + Zy` with M and N by sign (and channel).
    PRelu {
        /// Operand.
        input: TensorId,
        /// One for numbers below zero, one for the others.
        slopes: Arithmetic<Slopes, FloatSlopes>,
    },
    /// Softmax over the last axis.
    Softmax {
        /// Operand.
        input: TensorId,
        /// Exponentials and their quotients.
        exponentials: Arithmetic<Exponentials>,
        /// Int8 mask, constant or computed, broadcast over the operand; a zero leaves the element out (its result is real 0).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<TensorId>,
        /// Statistics `[.., 2]` of the rows that the operand is a part of, by [`Op::SoftmaxStatistics`]; its own rows if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        statistics: Option<TensorId>,
    },
    /// Statistics `[.., 2]` of rows `[.., n]` that are parts of longer ones, int64: the largest code (the least int64 where none is
    /// left), and the sum of exponentials. Makes a softmax computable by blocks of its rows.
    SoftmaxStatistics {
        /// Operand, codes.
        input: TensorId,
        /// As of [`Op::Softmax`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<TensorId>,
        /// Statistics of the blocks before. A sum goes on from those with the largest code of all blocks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        earlier: Option<TensorId>,
        /// The largest code, beside a sum of 0, or the sum.
        measure: Measure,
    },
    /// Normalisation over the last axis, then `gamma * t + beta` per channel.
    LayerNorm {
        /// Operand `[.., n]`.
        input: TensorId,
        /// Constant `[n]`, int8 or int16; float32 for floats.
        gamma: TensorId,
        /// Constant `[n]`, int64; float32 for floats.
        beta: TensorId,
        /// Subtract the mean (false: RMS normalisation).
        center: bool,
        /// Division by the deviation and rounding.
        norm: Arithmetic<Norm, FloatNorm>,
    },
    /// Reduction over axes (output keeps them with size one or drops them; only the element count matters).
    Reduce {
        /// Operand; of sums also int64, the results of partial products.
        input: TensorId,
        /// The operation.
        kind: ReduceKind,
        /// Reduced axes, ascending.
        axes: Vec<u32>,
        /// Single multiplier; ignored by `max` and `min`, whose output has the input's quantisation.
        requant: Arithmetic<Requant, FloatReduction>,
    },
    /// Index of the largest (or smallest) element along the last axis, int32; ties go to the first (or last).
    ArgMax {
        /// Operand.
        input: TensorId,
        /// Largest or smallest.
        largest: bool,
        /// Ties go to the last index.
        select_last: bool,
    },
    /// Concatenation; operands whose quantisation differs from the output's carry a requantisation.
    Concat {
        /// Operands, at least one.
        inputs: Vec<TensorId>,
        /// Axis of concatenation.
        axis: u32,
        /// One per operand.
        requants: Vec<Option<Requant>>,
    },
    /// Padding of any axis.
    Pad {
        /// Operand.
        input: TensorId,
        /// Cells before, per axis.
        before: Vec<u32>,
        /// Cells after, per axis.
        after: Vec<u32>,
        /// Their value.
        mode: PadMode,
    },
    /// Movement of elements: the output in row-major order runs over `dims`; the element at multi-index `i` is the input's
    /// (row-major) element `offset + sum(i * strides)`. Reshape, transpose, slice, expand, depth-to-space are all this.
    Rearrange {
        /// Operand.
        input: TensorId,
        /// Loop extents, outermost first; their product is the number of output elements.
        dims: Vec<u32>,
        /// Step in the input per loop, in elements.
        strides: Vec<i64>,
        /// First element.
        offset: i64,
    },
    /// Picks indices along an axis: constant gather, nearest resize (twice).
    Gather {
        /// Operand.
        input: TensorId,
        /// Axis picked from.
        axis: u32,
        /// Picked indices; the axis' extent in the output.
        indices: Vec<u32>,
    },
    /// Entries of a constant table by run-time index: `table` `[v, d]`, `indices` int32 of any shape, output `[.., elements]`.
    Embedding {
        /// Constant `[v, d]`.
        table: TensorId,
        /// Indices, int32, those of entries.
        indices: TensorId,
        /// What an index names.
        #[serde(default, skip_serializing_if = "TableEntry::is_row")]
        entry: TableEntry,
    },
    /// Separable linear resize; codes have 11-bit weights per axis.
    ResizeLinear {
        /// Activations `[n,h,w,c]`.
        input: TensorId,
        /// One per output row.
        rows: Vec<LinearTap>,
        /// One per output column.
        columns: Vec<LinearTap>,
    },
    /// Puts `stride - 1` cells holding the zero point between neighbours (transposed convolution).
    InsertZeros {
        /// Activations `[n,h,w,c]`.
        input: TensorId,
        /// Vertical and horizontal stride.
        stride: [u32; 2],
    },
    /// `condition ? a : b`; both choices have the output's quantisation, NumPy broadcasting.
    Select {
        /// Constant or computed int8, non-zero where `a` is taken.
        condition: TensorId,
        /// Taken where the condition holds.
        a: TensorId,
        /// Taken elsewhere.
        b: TensorId,
    },
}

impl Op {
    /// Whether it is a convolution with one output channel per input channel, the form the pooling unit computes; `shape` gives
    /// those of its operands.
    #[must_use]
    pub fn is_depthwise<'a>(&self, shape: impl Fn(TensorId) -> &'a [usize]) -> bool {
        let Self::Conv { input, weights, groups, .. } = self else { return false };
        let channels = shape(*input)[3];
        *groups as usize == channels && shape(*weights)[0] == channels && channels > 1
    }

    /// Whether it is a block of attention, which only a tiling makes: it reads or gives softmax statistics, or gives partial sums.
    #[must_use]
    pub fn is_of_blocks(&self) -> bool {
        matches!(
            self,
            Self::SoftmaxStatistics { .. }
                | Self::Softmax { statistics: Some(_), .. }
                | Self::MatMul { partial: true, .. }
        )
    }

    /// The operator's name in files and reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Conv { .. } => "conv",
            Self::MatMul { .. } => "mat_mul",
            Self::MaxPool { .. } => "max_pool",
            Self::AveragePool { .. } => "average_pool",
            Self::Binary { kind, .. } => match kind {
                BinaryKind::Add => "add",
                BinaryKind::Sub => "sub",
                BinaryKind::Mul => "mul",
                BinaryKind::Div => "div",
                BinaryKind::Max => "max",
                BinaryKind::Min => "min",
                BinaryKind::Less => "less",
                BinaryKind::LessOrEqual => "less_or_equal",
                BinaryKind::Equal => "equal",
                BinaryKind::NotEqual => "not_equal",
            },
            Self::Unary { .. } => "unary",
            Self::Rescale { .. } => "rescale",
            Self::Quantize { .. } => "quantize",
            Self::Dequantize { .. } => "dequantize",
            Self::PRelu { .. } => "p_relu",
            Self::Softmax { .. } => "softmax",
            Self::SoftmaxStatistics { .. } => "softmax_statistics",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Reduce { .. } => "reduce",
            Self::ArgMax { .. } => "arg_max",
            Self::Concat { .. } => "concat",
            Self::Pad { .. } => "pad",
            Self::Rearrange { .. } => "rearrange",
            Self::Gather { .. } => "gather",
            Self::Embedding { .. } => "embedding",
            Self::ResizeLinear { .. } => "resize_linear",
            Self::InsertZeros { .. } => "insert_zeros",
            Self::Select { .. } => "select",
        }
    }
}
