//! Every field of a program has its line in `docs/checker.md`: which rule proves it, or why it may be free.
//!
//! Types are taken apart exhaustively: a new field or variant does not compile until it is named here, and is named here in vain
//! until it has its line.

#![allow(clippy::ignored_unit_patterns, reason = "made by macros")]

use std::collections::BTreeSet;

use tpuflow_ir::isa::{
    ChannelParameters, Codes, Expand, FloatFunction, FloatOutput, Lookup, Matrix, MatrixDescriptor, NormParameters,
    PackedLookup, Pool, PoolDescriptor, PoolKind, Scaling, Slope, TableShape, Transfer, Vector, VectorOp, Weights,
};
use tpuflow_ir::program::{Allocation, LayerSummary};
use tpuflow_ir::{
    Bounds, Descriptor, Exchange, Instruction, IterationWait, Measure, Parts, Port, PortPart, Program, Quant, Repeated,
    Source, State, Stream, Tiling, View, Wait, Window, Work,
};

/// Names of the fields of structs.
macro_rules! structs {
    ($($type:ident { $($field:ident),* })*) => {{
        let mut names: Vec<String> = Vec::new();
        $({
            fn _exhaustive(it: &$type) {
                let $type { $($field: _),* } = it;
            }
            names.extend([$(concat!(stringify!($type), ".", stringify!($field))),*].map(str::to_owned));
        })*
        names
    }};
}

/// Names of the fields of enums; of variants without named ones, their own.
macro_rules! enums {
    ($($type:ident { $($variant:ident $({ $($field:ident),* })? $(($hole:tt))?),* })*) => {{
        let mut names: Vec<String> = Vec::new();
        $({
            fn _exhaustive(it: &$type) {
                match it {
                    $($type::$variant $({ $($field: _),* })? $(($hole))? => {})*
                }
            }
            $({
                let fields: &[&str] = &[$($(stringify!($field)),*)?];
                let own = concat!(stringify!($type), "::", stringify!($variant)).to_owned();
                if fields.is_empty() {
                    names.push(own);
                } else {
                    names.extend(fields.iter().map(|field| format!("{own}.{field}")));
                }
            })*
        })*
        names
    }};
}

fn named() -> BTreeSet<String> {
    let mut names = structs! {
        Program {
            name, machine, batch, level, fallback, descriptors, instructions, constants, ddr_bytes, spill_bytes,
            cache_peak_bytes, inputs, outputs, states, exchanges, position, tilings, layers, bounds, predicted_cycles, allocations,
            stream
        }
        Stream { body, predicted_interval, bounds }
        Repeated { instruction, lag, waits }
        IterationWait { unit, ago, count }
        Port { name, shape, dtype, quant, source, view, parts }
        PortPart { first_pixel, space, address }
        Quant { scale, zero_point }
        Source { name, shape, permutation, dtype }
        LayerSummary { name, op, dtype, unit, macs, bound, binding, nodes }
        Allocation { name, address, bytes, first, last }
        Bounds { array, ddr, ewp, pdp, ports, flow, segment, path }
        State { input, output, axis }
        Exchange { output, inputs }
        Tiling { first, last, parts }
        Instruction { unit, layer, waits, work }
        Wait { unit, count }
        Transfer {
            direction, ddr_space, ddr_address, local_space, local_address, bytes, counts, ddr_strides, local_strides
        }
        Expand { ddr_space, ddr_address, local_address, rows, row_bytes, block, codes }
        Lookup { table, indices, output, first, count }
        PackedLookup {
            ddr_space, ddr_address, spaces, size, columns, rows, row_bytes, block, codes, indices, output, first, count
        }
        Weights { address, row_bytes, plane_bytes }
        Matrix {
            descriptor, input, output, first_pixel, pixels, first_column, columns, output_channel, weights, parameters,
            table
        }
        Pool { descriptor, input, output, first_row, rows, weights, parameters, table }
        Vector { descriptor, inputs, output, first_row, rows, parameters }
        View {
            space, address, dtype, rows, height, width, channels, pixel_bytes, channel_offset, first_row, stored_rows,
            origin
        }
        Window { kernel, stride, dilation, pads }
        MatrixDescriptor {
            window, group_in, group_out, input_zero, weight_zero, weight_dtype, first_shift, codes, table, float
        }
        PoolDescriptor { kind, window }
        TableShape { entries, lo, hi }
        Codes { zero_point, lo, hi }
        Scaling { multiplier, shift, codes }
        FloatOutput { function, lo, hi }
        ChannelParameters { bias, multiplier, shift }
        Slope { multiplier, shift }
        NormParameters { beta, gamma, multiplier, shift }
    };
    names.extend(enums! {
        Parts { Grid { images, rows, columns }, KeyBlocks { matrices, queries, keys, keeps_scores }, Boxes(_) }
        Work { Transfer(_), Lookup(_), Matrix(_), Pool(_), Vector(_), Expand(_), PackedLookup(_) }
        Descriptor { Matrix(_), Pool(_), Vector(_) }
        PoolKind {
            Max, Average { input_zero, count_include_pad, beyond, divisors, codes },
            Depthwise { input_zero, weight_zero, weight_dtype, first_shift, codes, table },
            FloatAverage { count_include_pad, beyond, output }, FloatDepthwise { weight_dtype, output }
        }
        VectorOp {
            Binary { kind, zeros, factors, scaling }, Table(_), Rescale { input_zero, scaling },
            PRelu { input_zero, positive, per_channel }, Softmax { coefficient, scaling },
            LayerNorm { center, input_zero, epsilon, normalize, codes },
            SharedLayerNorm { center, input_zero, epsilon, normalize, codes },
            Reduce { kind, shape, axes, input_zero, scaling, partial }, ArgMax { largest, select_last },
            Move { dims, input_strides, input_offset, output_strides, output_offset, rescale },
            Gather { outer, extent, inner, indices }, Fill { code }, ResizeLinear { rows, columns }, Select,
            Float { function, output }, Quantize { scale, codes }, SoftmaxStatistics { measure }
        }
        Measure { Maximum, Sum { coefficient } }
        FloatFunction {
            Identity, Constant(_), Binary(_), PRelu { per_channel }, Softmax, LayerNorm { center, epsilon },
            Reduce { kind, shape, axes, divisor, partial }, Dequantize { zero_point, scale }
        }
    });
    // Of the file alone, which reading compares before there is a program.
    names.extend(["version", "sha256", "machine_hash"].map(|field| format!("Header.{field}")));
    names.into_iter().collect()
}

#[test]
fn every_field_has_a_line_that_says_what_proves_it() {
    let text = include_str!("../../../../docs/checker.md");
    let line = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?.to_owned();
        let reason = cells.next()?.trim_end_matches(" |").trim().to_owned();
        Some((name, reason))
    };
    let lines: Vec<(String, String)> = text.lines().filter_map(line).collect();
    let found: BTreeSet<String> = lines.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(found.len(), lines.len(), "a field has two lines");
    let names = named();
    let missing: Vec<_> = names.difference(&found).collect();
    let strange: Vec<_> = found.difference(&names).collect();
    assert!(missing.is_empty() && strange.is_empty(), "without a line: {missing:?}; no field: {strange:?}");
    let rules: BTreeSet<String> = tpuflow_checker::Rule::ALL.iter().map(|rule| format!("`{rule:?}`")).collect();
    for (name, reason) in &lines {
        let proved = rules.iter().any(|rule| reason.contains(rule));
        let other = ["free: ", "reading: ", "`tpuflow check`: "].iter().any(|start| reason.contains(start));
        assert!(proved || other, "{name} is neither proved by a rule nor free: {reason}");
    }
}
