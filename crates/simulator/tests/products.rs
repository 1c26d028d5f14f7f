//! Products of two activations. In the interpreter, by their definition: packed, where they lie, and out of a rearrangement that
//! is not carried out. In programs, whatever zero point they state.

use std::sync::Arc;

use crate::common::Net;
use crate::trial::inputs;
use tpuflow_ir::{Arithmetic, Descriptor, Graph, Machine, Op, TensorId};
use tpuflow_kernels::Values;
use tpuflow_kernels::requant::{requantize, scale};
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

fn codes(values: &Values) -> Vec<i64> {
    match values {
        Values::I8(codes) => codes.iter().map(|&code| code.into()).collect(),
        Values::I16(codes) => codes.iter().map(|&code| code.into()).collect(),
        other => panic!("{} is no type of codes", other.dtype().name()),
    }
}

/// The result of the last layer of operands `[.., m, k]` and `[.., k, n]`.
fn defined(graph: &Graph, a: &[i64], b: &[i64]) -> Vec<i64> {
    let layer = graph.layers.last().unwrap();
    let Op::MatMul { a: left, b: right, bias: None, epilogue: Arithmetic::Fixed(epilogue), .. } = &layer.op else {
        panic!("a product")
    };
    let ([left, right], output) = ([*left, *right].map(|id| graph.tensor(id)), graph.tensor(layer.output));
    let ([.., m, k], [.., n]) = (&left.shape[..], &right.shape[..]) else { panic!("matrices") };
    let entries = epilogue.table.as_ref().map(|table| graph.tensor(table.entries).i32s());
    let held = |value: i64| value.clamp(i32::MIN.into(), i32::MAX.into());
    (0..output.elements())
        .map(|at| {
            let (matrix, i, j) = (at / (m * n), at / n % m, at % n);
            let x = |p: usize| a[(matrix * m + i) * k + p] - i64::from(left.zero_point());
            let w = |p: usize| b[(matrix * k + p) * n + j] - i64::from(right.zero_point());
            let sum: i64 = (0..*k).map(|p| x(p) * w(p)).sum();
            let sum = epilogue.first_shift.map_or(sum, |shift| held(scale(sum, 1, shift as i8)));
            let code = requantize(sum, &epilogue.requant, j);
            let Some(entries) = &entries else { return code.into() };
            let lookup = tpuflow_kernels::table::Lookup::new(entries.clone(), 16, i32::MIN, i32::MAX).unwrap();
            let table = epilogue.table.as_ref().unwrap();
            i64::from(lookup.at(code).clamp(table.lo, table.hi))
        })
        .collect()
}

/// `heads` products of `m` rows; the right operand is an input as it is, or rearranged by head from rows of a cache, with the
/// rows of a head as columns (keys) or as rows (values).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Right {
    AsItIs,
    Keys,
    Values,
    /// No line without gaps: every element of a row is another head's.
    Interleaved,
}

fn graph([heads, m, k, n]: [usize; 4], right: Right, wide: [bool; 2], seed: u64) -> (Graph, TensorId) {
    let mut net = Net::new(seed);
    net.wide = wide[0];
    let a = net.input(&[1, heads, m, k]);
    net.wide = wide[1];
    let arranged = |net: &mut Net, shape: &[usize], strides: [usize; 3]| {
        let x = net.input(shape);
        let dims = [heads, k, n].map(|extent| extent as u32).to_vec();
        let strides = strides.map(|stride| stride as i64).to_vec();
        net.rearrange(x, Op::Rearrange { input: x, dims, strides, offset: 0 }, &[1, heads, k, n])
    };
    let b = match right {
        Right::AsItIs => net.input(&[1, heads, k, n]),
        Right::Keys => arranged(&mut net, &[1, 1, n, heads * k], [k, 1, heads * k]),
        Right::Values => arranged(&mut net, &[1, 1, k, heads * n], [n, heads * n, 1]),
        Right::Interleaved => arranged(&mut net, &[1, k, n, heads], [1, n * heads, heads]),
    };
    net.wide = wide[0];
    let product = net.product(a, b);
    (net.finish(&[product]), b)
}

#[test]
fn products_are_those_of_the_definition() {
    let mut different = 0;
    for seed in 0..160u64 {
        let right = [Right::AsItIs, Right::Keys, Right::Values, Right::Interleaved][seed as usize % 4];
        let wide = [seed / 4 % 2 == 1, seed / 8 % 5 == 4];
        let [heads, m, k, n] = [
            1 + seed % 3,
            1 + seed / 3 % 6,
            [1, 7, 64, 200][seed as usize / 7 % 4],
            [1, 5, 65, 130][seed as usize / 11 % 4],
        ]
        .map(|extent| extent as usize);
        let (graph, b) = graph([heads, m, k, n], right, wide, seed);
        let interpreter = Interpreter::new(Arc::new(graph.clone())).unwrap();
        let given = inputs(&graph, seed);
        let all = interpreter.run(given.clone(), Keep::All).unwrap();
        let expected = defined(&graph, &codes(&given[0]), &codes(all.get(b).unwrap()));
        let output = graph.outputs[0];
        let what = format!("{right:?}, {heads} products of {m} by {k} by {n}, wide {wide:?}");
        assert_eq!(codes(all.get(output).unwrap()), expected, "{what}");
        let alone = interpreter.run(given.clone(), Keep::Outputs).unwrap();
        assert_eq!(codes(alone.get(output).unwrap()), expected, "{what}");
        different += usize::from(expected.iter().any(|code| code != &expected[0]));
        // What is given for the rearranged operand counts, not what it would be made of.
        let other = inputs(&graph, seed + 1000);
        let rearranged = interpreter.run(other, Keep::All).unwrap().get(b).unwrap().clone();
        let expected = defined(&graph, &codes(&given[0]), &codes(&rearranged));
        let pairs = graph.inputs.iter().copied().zip(given).chain([(b, rearranged)]).collect();
        let separate = interpreter.run_layers_separately(pairs, None).unwrap();
        assert_eq!(codes(separate.get(output).unwrap()), expected, "{what}, given");
    }
    assert!(different > 100, "only {different} products have several results");
}

/// Four rows are multiplied where they lie, five are packed first: also with zero points that no compiler states, with which sums
/// leave the accumulator.
#[test]
fn few_rows_give_the_codes_of_many_for_every_zero_point() {
    let machine = Machine::preset("128x128_asic").unwrap();
    let mut overflows = 0;
    for zero_point in [-32768, 32767, 300, -129, 0] {
        let runs = [4usize, 5].map(|m| {
            let (graph, _) = graph([1, m, 600, 70], Right::AsItIs, [false, false], 3);
            let options = ScheduleOptions { level: 1, ..ScheduleOptions::default() };
            let mut program = schedule(&graph, &machine, &options).unwrap();
            for descriptor in &mut program.descriptors {
                if let Descriptor::Matrix(d) = descriptor {
                    d.input_zero = zero_point;
                }
            }
            // Rows of the least code times columns of the greatest have the largest sums there are.
            let rows = (0..m * 600)
                .map(|i| if i < 1200 { 0x80 } else { (i as u32).wrapping_mul(2_654_435_761).rotate_left(9) as u8 })
                .collect();
            let columns = (0..600 * 70)
                .map(|i| if i % 70 < 20 { 0x7f } else { (i as u32).wrapping_mul(104_729).rotate_left(9) as u8 })
                .collect();
            let run = simulate(&program, &[rows, columns], &Options::default()).unwrap();
            (run.outputs[0][..4 * 70].to_vec(), run.events)
        });
        assert_eq!(runs[0].0, runs[1].0, "{zero_point}");
        assert_eq!(runs[0].1.is_empty(), runs[1].1.is_empty(), "{zero_point}");
        overflows += runs[0].1.len();
    }
    assert!(overflows > 0, "some sums leave the accumulator");
}
