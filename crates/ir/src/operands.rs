//! Which tensors an operator reads, and the same operator on others.

use crate::TensorId;
use crate::arithmetic::Arithmetic;
use crate::op::{Epilogue, Op};

impl Op {
    /// Every tensor the operator reads, constants included, in field order.
    #[must_use]
    pub fn operands(&self) -> Vec<TensorId> {
        match self {
            Self::Conv { input, weights, bias, epilogue, .. } => {
                let mut ids = vec![*input, *weights, *bias];
                ids.extend(fused_table(epilogue));
                ids
            }
            Self::MatMul { a, b, bias, epilogue, .. } => {
                let mut ids = vec![*a, *b];
                ids.extend(*bias);
                ids.extend(fused_table(epilogue));
                ids
            }
            Self::Unary { input, function } => {
                std::iter::once(*input).chain(function.fixed().map(|table| table.entries)).collect()
            }
            Self::Binary { a, b, .. } => vec![*a, *b],
            Self::Softmax { input, mask, statistics: last, .. }
            | Self::SoftmaxStatistics { input, mask, earlier: last, .. } => {
                std::iter::once(*input).chain(*mask).chain(*last).collect()
            }
            Self::LayerNorm { input, gamma, beta, .. } => vec![*input, *gamma, *beta],
            Self::Concat { inputs, .. } => inputs.clone(),
            Self::Embedding { table, indices, .. } => vec![*table, *indices],
            Self::Select { condition, a, b } => vec![*condition, *a, *b],
            Self::MaxPool { input, .. }
            | Self::AveragePool { input, .. }
            | Self::Rescale { input, .. }
            | Self::Quantize { input, .. }
            | Self::Dequantize { input, .. }
            | Self::PRelu { input, .. }
            | Self::Reduce { input, .. }
            | Self::ArgMax { input, .. }
            | Self::Pad { input, .. }
            | Self::Rearrange { input, .. }
            | Self::Gather { input, .. }
            | Self::ResizeLinear { input, .. }
            | Self::InsertZeros { input, .. } => vec![*input],
        }
    }

    /// The same operator with other operands, in the order of [`Op::operands`].
    #[must_use]
    pub fn with_operands(&self, ids: &[TensorId]) -> Self {
        let mut op = self.clone();
        let mut next = ids.iter().copied();
        let mut put = |slot: &mut TensorId| {
            if let Some(id) = next.next() {
                *slot = id;
            }
        };
        match &mut op {
            Self::Conv { input, weights, bias, epilogue, .. } => {
                [input, weights, bias].into_iter().for_each(&mut put);
                fused_table_mut(epilogue).into_iter().for_each(put);
            }
            Self::MatMul { a, b, bias, epilogue, .. } => {
                [a, b].into_iter().for_each(&mut put);
                bias.iter_mut().for_each(&mut put);
                fused_table_mut(epilogue).into_iter().for_each(put);
            }
            Self::Unary { input, function } => {
                put(input);
                if let Arithmetic::Fixed(table) = function {
                    put(&mut table.entries);
                }
            }
            Self::Binary { a, b, .. } => [a, b].into_iter().for_each(put),
            Self::Softmax { input, mask, statistics: last, .. }
            | Self::SoftmaxStatistics { input, mask, earlier: last, .. } => {
                std::iter::once(input).chain(mask).chain(last).for_each(put);
            }
            Self::LayerNorm { input, gamma, beta, .. } => [input, gamma, beta].into_iter().for_each(put),
            Self::Concat { inputs, .. } => inputs.iter_mut().for_each(put),
            Self::Embedding { table, indices, .. } => [table, indices].into_iter().for_each(put),
            Self::Select { condition, a, b } => [condition, a, b].into_iter().for_each(put),
            Self::MaxPool { input, .. }
            | Self::AveragePool { input, .. }
            | Self::Rescale { input, .. }
            | Self::Quantize { input, .. }
            | Self::Dequantize { input, .. }
            | Self::PRelu { input, .. }
            | Self::Reduce { input, .. }
            | Self::ArgMax { input, .. }
            | Self::Pad { input, .. }
            | Self::Rearrange { input, .. }
            | Self::Gather { input, .. }
            | Self::ResizeLinear { input, .. }
            | Self::InsertZeros { input, .. } => put(input),
        }
        op
    }
}

/// Entries of the table a linear operator ends in.
fn fused_table(epilogue: &Arithmetic<Epilogue>) -> Option<TensorId> {
    epilogue.fixed()?.table.as_ref().map(|table| table.entries)
}

fn fused_table_mut(epilogue: &mut Arithmetic<Epilogue>) -> Option<&mut TensorId> {
    match epilogue {
        Arithmetic::Fixed(Epilogue { table: Some(table), .. }) => Some(&mut table.entries),
        _ => None,
    }
}
