//! Registers against closed form on generated arrays, tiles and operands: values and cycles.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tpuflow_simulator::array::{
    ArrayError, ArraySpec, Dataflow, Extent, Float, Integer, Outcome, Passes, Precision, closed, registers,
};

use super::{Operands, filled, measured, tiles};

/// A generated run. The extents are shared by all precisions.
#[derive(Debug, Clone)]
struct Case<T> {
    spec: ArraySpec,
    operands: Vec<Operands<T>>,
}

/// Array shape, and tiles as (extent, accumulate).
fn shape() -> impl Strategy<Value = (ArraySpec, Vec<(Extent, bool)>)> {
    let size = prop_oneof![9 => (1usize..10, 1usize..10), 1 => Just((16, 16))];
    let dataflow = prop_oneof![
        3 => Just(Dataflow::DoubleBuffered),
        1 => (0usize..5).prop_map(|pipeline| Dataflow::SingleBuffered { pipeline }),
        1 => Just(Dataflow::OutputStationary),
    ];
    let blocks = prop::collection::vec((1usize..24, 1usize..4, prop::collection::vec(1usize..12, 3)), 1..4);
    (size, dataflow, blocks).prop_map(|((rows, columns), dataflow, blocks)| {
        let spec = ArraySpec { rows, columns, dataflow };
        let mut extents = Vec::new();
        for (m, tiles, depths) in blocks {
            for (tile, depth) in depths.into_iter().take(tiles).enumerate() {
                let extent = match dataflow {
                    Dataflow::OutputStationary => Extent { m: (m - 1) % rows + 1, k: depth },
                    _ => Extent { m, k: rows },
                };
                extents.push((extent, tile > 0));
            }
        }
        (spec, extents)
    })
}

fn case<T: Clone + std::fmt::Debug + 'static>(
    activation: impl Strategy<Value = T> + Clone + 'static,
    weight: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Case<T>> {
    shape().prop_flat_map(move |(spec, extents)| {
        let tiles: Vec<_> = extents
            .into_iter()
            .map(|(Extent { m, k }, accumulate)| {
                let weights = prop::collection::vec(weight.clone(), k * spec.columns);
                let rows = prop::collection::vec(activation.clone(), m * k);
                (weights, rows).prop_map(move |(weights, rows)| Operands { weights, rows, accumulate })
            })
            .collect();
        tiles.prop_map(move |operands| Case { spec, operands })
    })
}

/// A value minus its zero point; the ends and the borders between the slices come often.
fn integer(bytes: usize) -> BoxedStrategy<i32> {
    let limit = (1 << (8 * bytes)) - 1;
    prop_oneof![
        4 => -limit..=limit,
        1 => prop::sample::select(vec![-limit, limit, 0, -1, 1, 255, -255]),
        1 => prop::sample::select(vec![limit & 256, -(limit & 256), limit & 0x7FFF, -(limit & 0x8000)]),
    ]
    .boxed()
}

/// A finite value of the format, all exponents; or infinity or NaN, rarely.
fn float(precision: Float) -> BoxedStrategy<f32> {
    let mask = match precision {
        Float::F16 => 0xFFFF_E000,
        Float::Bf16 => 0xFFFF_0000,
        Float::F32 => 0xFFFF_FFFF,
    };
    let ordinary = (-8.0f32..8.0).prop_map(move |v| f32::from_bits(v.to_bits() & mask));
    let any = any::<u32>().prop_map(move |bits| f32::from_bits(bits & mask));
    let subnormal = (0u32..1 << 23).prop_map(move |bits| f32::from_bits(bits & mask));
    let half_subnormal = (-1023i16..1024).prop_map(|units| f32::from(units) * 2f32.powi(-24));
    match precision {
        Float::F16 => {
            prop_oneof![60 => ordinary.prop_map(half), 20 => half_subnormal, 1 => Just(f32::INFINITY)].boxed()
        }
        Float::Bf16 | Float::F32 => prop_oneof![60 => ordinary, 20 => any, 10 => subnormal].boxed(),
    }
}

/// Nearest multiple of 2^-24, the grid of the f16 subnormals, towards zero.
fn half(value: f32) -> f32 {
    (value * 2f32.powi(24)).trunc() * 2f32.powi(-24)
}

/// Floats must agree in every bit, and the sign of zero and the NaN count.
trait Bits {
    fn bits(self) -> i64;
}

impl Bits for i64 {
    fn bits(self) -> i64 {
        self
    }
}

impl Bits for f32 {
    fn bits(self) -> i64 {
        i64::from(self.to_bits())
    }
}

type Comparable = Result<(Vec<Vec<i64>>, u64, Vec<[u64; 4]>), ArrayError>;

fn comparable<S: Bits + Copy>(outcome: Result<Outcome<S>, ArrayError>) -> Comparable {
    outcome.map(|o| {
        let outputs = o.outputs.iter().map(|block| block.iter().map(|s| s.bits()).collect()).collect();
        let timings = o.tiles.iter().map(|t| [t.start, t.first_row, t.last_row, t.end]).collect();
        (outputs, o.cycles, timings)
    })
}

/// The reference on indices alone: sums over k and tiles of a block.
fn sums<T: Copy, S: Copy + Default>(case: &Case<T>, add: impl Fn(S, T, T) -> S) -> Vec<Vec<S>> {
    let columns = case.spec.columns;
    let mut blocks: Vec<Vec<S>> = Vec::new();
    for o in &case.operands {
        let k = o.weights.len() / columns;
        let m = o.rows.len() / k;
        if !o.accumulate {
            blocks.push(vec![S::default(); m * columns]);
        }
        let block = blocks.last_mut().expect("the first tile begins a block");
        for (i, sum) in block.iter_mut().enumerate() {
            for t in 0..k {
                *sum = add(*sum, o.rows[i / columns * k + t], o.weights[t * columns + i % columns]);
            }
        }
    }
    blocks
}

/// The timing laws written out: total cycles of a list of tiles.
fn law(spec: &ArraySpec, precision: Passes, extents: &[Extent]) -> u64 {
    let (rows, columns, passes) = (spec.rows, spec.columns, precision.count() as usize);
    let total: usize = match spec.dataflow {
        Dataflow::DoubleBuffered => {
            rows + passes * extents.iter().map(|e| e.m.max(rows)).sum::<usize>() + rows + columns + 1
        }
        Dataflow::SingleBuffered { pipeline: p } => {
            let (streams, phases) = if let Passes::Phases(_) = precision { (1, passes) } else { (passes, 1) };
            let tile = |m: usize| rows + (rows - 1) * (p + 1) + p + 2 + (m - 1) + (columns - 1);
            extents.iter().map(|e| streams * tile(phases * e.m)).sum()
        }
        Dataflow::OutputStationary => extents.iter().map(|e| passes * e.k + rows + columns + 2).sum(),
    };
    total as u64
}

const CASES: u32 = 120;

/// Runs `CASES` generated cases with a fixed seed, and gives how many of them ran without an error.
fn agree<P>(
    precision: P,
    operands: impl Strategy<Value = Case<P::Operand>>,
    add: impl Fn(P::Sum, P::Operand, P::Operand) -> P::Sum,
) -> u32
where
    P: Precision,
    P::Sum: Bits,
    P::Operand: std::fmt::Debug + Clone,
{
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let ran = std::cell::Cell::new(0);
    TestRunner::new_with_rng(config, rng)
        .run(&operands, |case| {
            let tiles = tiles(&case.operands);
            let stepped = comparable(registers::run(&case.spec, precision, &tiles));
            prop_assert_eq!(&stepped, &comparable(closed::run(&case.spec, precision, &tiles)));
            match stepped {
                Ok((outputs, cycles, _)) => {
                    let expected: Vec<Vec<i64>> =
                        sums(&case, &add).iter().map(|block| block.iter().map(|s| s.bits()).collect()).collect();
                    prop_assert_eq!(outputs, expected);
                    let extents: Vec<Extent> = case
                        .operands
                        .iter()
                        .map(|o| Extent {
                            m: o.rows.len() * case.spec.columns / o.weights.len(),
                            k: o.weights.len() / case.spec.columns,
                        })
                        .collect();
                    prop_assert_eq!(cycles, law(&case.spec, precision.passes(), &extents));
                    ran.set(ran.get() + 1);
                }
                Err(error) => prop_assert!(matches!(error, ArrayError::Turnaround { .. }), "{}", error),
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{precision:?}: {failure}"));
    ran.get()
}

fn agree_integers(precision: Integer) {
    let (activation, weight) = precision.bytes();
    let add = |sum: i64, a: i32, w: i32| sum + i64::from(a) * i64::from(w);
    let ran = agree(precision, case(integer(activation), integer(weight)), add);
    assert_eq!(ran, CASES);
}

fn agree_floats(precision: Float) {
    let add = |sum: f32, a: f32, w: f32| {
        let product = a * w;
        let sum = sum + product;
        if sum.is_nan() { f32::from_bits(0x7FC0_0000) } else { sum }
    };
    let ran = agree(precision, case(float(precision), float(precision)), add);
    assert!(ran > CASES * 3 / 4, "{ran}");
}

#[test]
fn registers_equal_closed_form_i8() {
    agree_integers(Integer::I8);
}

#[test]
fn registers_equal_closed_form_i16_i8() {
    agree_integers(Integer::I16I8);
}

#[test]
fn registers_equal_closed_form_i8_i16() {
    agree_integers(Integer::I8I16);
}

#[test]
fn registers_equal_closed_form_i16() {
    agree_integers(Integer::I16);
}

#[test]
fn registers_equal_closed_form_f16() {
    agree_floats(Float::F16);
}

#[test]
fn registers_equal_closed_form_bf16() {
    agree_floats(Float::Bf16);
}

#[test]
fn registers_equal_closed_form_f32() {
    agree_floats(Float::F32);
}

/// The machine's own size once: registers of 128 x 128 PEs.
#[test]
fn registers_equal_closed_form_at_128x128() {
    let spec = ArraySpec { rows: 128, columns: 128, dataflow: Dataflow::DoubleBuffered };
    assert_eq!(measured(spec, Extent { m: 49, k: 128 }, 2), 128 + 2 * 128 + 257);
    let operands = [Operands { accumulate: true, ..filled(&spec, Extent { m: 130, k: 128 }, 3) }];
    let operands = [filled(&spec, Extent { m: 130, k: 128 }, 5), operands[0].clone()];
    let outcome = registers::run(&spec, Integer::I16, &tiles(&operands)).expect("tiles fit");
    assert_eq!(outcome, closed::run(&spec, Integer::I16, &tiles(&operands)).expect("tiles fit"));
    assert_eq!(outcome.cycles, 128 + 2 * 4 * 130 + 257);
}
