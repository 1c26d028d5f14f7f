//! The register-level array against measured RTL, against its closed form, and the serial fold counts.
//!
//! The integers of `gemmini_mesh` and `systolic_tensors_*` were measured on other people's RTL
//! (ucb-bar/gemmini's generated 16 x 16 mesh, Arjun0170/Systolic-Tensors) with every output checked.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tpuflow_simulator::array::folds::{self, Stationary};
use tpuflow_simulator::array::{
    ArrayError, ArraySpec, Dataflow, Extent, Float, Integer, Outcome, Passes, Precision, Tile, closed, registers,
};

/// Owned operands of one tile.
#[derive(Debug, Clone)]
struct Operands<T> {
    weights: Vec<T>,
    rows: Vec<T>,
    accumulate: bool,
}

fn tiles<T>(operands: &[Operands<T>]) -> Vec<Tile<'_, T>> {
    operands.iter().map(|o| Tile { weights: &o.weights, rows: &o.rows, accumulate: o.accumulate }).collect()
}

/// Fixed operands that fill the 9-bit range.
fn filled(spec: &ArraySpec, extent: Extent, seed: usize) -> Operands<i32> {
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 511) as i32 - 255;
    Operands {
        weights: (0..extent.k * spec.columns).map(value).collect(),
        rows: (0..extent.m * extent.k).map(|i| value(i + 31)).collect(),
        accumulate: false,
    }
}

/// Runs `count` tiles both ways, checks that they agree, and gives the cycles.
fn measured(spec: ArraySpec, extent: Extent, count: usize) -> u64 {
    let operands: Vec<_> = (0..count).map(|seed| filled(&spec, extent, seed)).collect();
    let outcome = registers::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit");
    assert_eq!(outcome, closed::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit"));
    outcome.cycles
}

#[test]
fn gemmini_mesh_16x16_double_buffered() {
    let spec = ArraySpec { rows: 16, columns: 16, dataflow: Dataflow::DoubleBuffered };
    for (count, blocks, cycles) in [
        (1, 1, 65),
        (2, 1, 81),
        (4, 1, 113),
        (8, 1, 177),
        (16, 1, 305),
        (64, 1, 1073),
        (3, 2, 145),
        (2, 8, 305),
        (8, 4, 561),
        (8, 13, 1713),
    ] {
        assert_eq!(measured(spec, Extent { m: 16 * blocks, k: 16 }, count), cycles, "{count} tiles x {blocks} blocks");
    }
}

#[test]
fn gemmini_mesh_gives_its_first_row_in_cycle_49() {
    let spec = ArraySpec { rows: 16, columns: 16, dataflow: Dataflow::DoubleBuffered };
    let operands = [filled(&spec, Extent { m: 16, k: 16 }, 0)];
    let outcome = registers::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit");
    assert_eq!(outcome.tiles[0].first_row, 49);
}

#[test]
fn a_short_tile_holds_the_array_for_as_many_slots_as_rows_even_the_last() {
    let spec = ArraySpec { rows: 6, columns: 3, dataflow: Dataflow::DoubleBuffered };
    for (rows, cycles) in [(vec![1], 6 + 6 + 10), (vec![1, 9, 2], 6 + 21 + 10), (vec![9, 1], 6 + 15 + 10)] {
        let operands: Vec<_> = rows.iter().map(|&m| filled(&spec, Extent { m, k: 6 }, m)).collect();
        let outcome = registers::run(&spec, Integer::I8, &tiles(&operands)).expect("tiles fit");
        assert_eq!(outcome.cycles, cycles, "{rows:?}");
    }
}

#[test]
fn systolic_tensors_single_buffered() {
    for (size, m, k, cycles) in [
        (8, 1, 8, 48),
        (8, 8, 8, 55),
        (8, 64, 8, 111),
        (8, 16, 8, 63),
        (8, 7, 8, 54),
        (8, 64, 64, 888),
        (8, 49, 64, 768),
        (8, 196, 64, 1944),
        (8, 196, 72, 2187),
        (8, 49, 576, 6912),
        (16, 16, 16, 111),
        (16, 64, 16, 159),
        (16, 64, 128, 1272),
        (16, 196, 64, 1164),
    ] {
        let spec = ArraySpec { rows: size, columns: size, dataflow: Dataflow::SingleBuffered { pipeline: 3 } };
        assert_eq!(measured(spec, Extent { m, k: size }, k / size), cycles, "{size}x{size}, m {m}, k {k}");
    }
}

#[test]
fn systolic_tensors_output_stationary() {
    let spec = ArraySpec { rows: 8, columns: 8, dataflow: Dataflow::OutputStationary };
    for (k, cycles) in [(1, 19), (8, 26), (64, 82), (576, 594)] {
        assert_eq!(measured(spec, Extent { m: 8, k }, 1), cycles, "k {k}");
    }
}

/// `[m, n, k]` of the 53 convolutions and the classifier of ResNet-50 v1.5 (He et al. 2016; stride in
/// the 3x3 convolution), 224 x 224 input. `m` counts the positions of the padded input.
fn resnet50() -> Vec<(u64, u64, u64)> {
    let mut layers = Vec::new();
    let mut convolution = |size: u64, channels: u64, filters: u64, kernel: u64, stride: u64| {
        let padded = size + 2 * (kernel / 2);
        let out = (padded - kernel) / stride + 1;
        layers.push((out * out, filters, kernel * kernel * channels));
        out
    };
    let stem = convolution(224, 3, 64, 7, 2);
    let (mut size, mut channels) = (stem / 2, 64);
    for (stage, (width, blocks)) in [(64, 3), (128, 4), (256, 6), (512, 3)].into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            convolution(size, channels, width, 1, 1);
            let out = convolution(size, width, width, 3, stride);
            convolution(out, width, 4 * width, 1, 1);
            if block == 0 {
                convolution(size, channels, 4 * width, 1, stride);
            }
            (size, channels) = (out, 4 * width);
        }
    }
    layers.push((1, 1000, channels));
    layers
}

#[test]
fn resnet50_in_serial_folds_and_double_buffered() {
    let layers = resnet50();
    assert_eq!(layers.len(), 54);
    assert_eq!(layers.iter().map(|(m, n, k)| m * n * k).sum::<u64>(), 4_089_184_256);
    let spec = ArraySpec { rows: 128, columns: 128, dataflow: Dataflow::DoubleBuffered };
    let total = |stationary| layers.iter().map(|&layer| folds::cycles(&spec, stationary, layer)).sum::<u64>();
    assert_eq!(total(Stationary::Weights), 916_490);
    assert_eq!(total(Stationary::Outputs), 645_320);

    // The array's own law, less the two edge registers and the count of the first cycle, which folds leave out.
    let streamed = |&(m, n, k): &(u64, u64, u64)| {
        let count = folds::folds(&spec, Stationary::Weights, (m, n, k)) as usize;
        closed::cycles(&spec, Passes::Streams(1), vec![Extent { m: m as usize, k: 128 }; count]) - 3
    };
    assert_eq!(layers.iter().map(streamed).sum::<u64>(), 420_916);
}

#[test]
fn a_serial_fold_is_a_single_buffered_tile_without_pipeline_less_one_cycle() {
    for (rows, columns, m) in [(1, 1, 1), (3, 5, 2), (8, 4, 30)] {
        let spec = ArraySpec { rows, columns, dataflow: Dataflow::SingleBuffered { pipeline: 0 } };
        let cycles = measured(spec, Extent { m, k: rows }, 4);
        let serial = folds::cycles(&spec, Stationary::Weights, (m as u64, columns as u64, 4 * rows as u64));
        assert_eq!(cycles, serial + 1 + 4);
    }
}

#[test]
fn input_stationary_swaps_the_roles_of_rows_and_columns_of_the_result() {
    let spec = ArraySpec { rows: 8, columns: 4, dataflow: Dataflow::DoubleBuffered };
    assert_eq!(folds::cycles(&spec, Stationary::Inputs, (9, 30, 17)), 3 * 3 * (16 + 4 + 30 - 2) - 1);
    assert_eq!(
        folds::cycles(&spec, Stationary::Inputs, (9, 30, 17)),
        folds::cycles(&spec, Stationary::Weights, (30, 9, 17))
    );
}

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

fn check_error<P: Precision>(spec: &ArraySpec, precision: P, tiles: &[Tile<'_, P::Operand>], expected: &ArrayError) {
    assert_eq!(registers::run(spec, precision, tiles).as_ref().err(), Some(expected));
    assert_eq!(closed::run(spec, precision, tiles).as_ref().err(), Some(expected));
}

#[test]
fn malformed_tiles_are_refused() {
    let spec = ArraySpec { rows: 2, columns: 3, dataflow: Dataflow::DoubleBuffered };
    let good = Tile { weights: &[1; 6], rows: &[1; 4], accumulate: false };
    let shape = |tile, weights, rows| ArrayError::Shape { tile, weights, rows };
    check_error(&spec, Integer::I8, &[good, Tile { weights: &[1; 5], ..good }], &shape(1, 5, 4));
    check_error(&spec, Integer::I8, &[Tile { weights: &[1; 9], ..good }], &shape(0, 9, 4));
    check_error(&spec, Integer::I8, &[Tile { rows: &[1; 3], ..good }], &shape(0, 6, 3));
    check_error(&spec, Integer::I8, &[Tile { rows: &[], ..good }], &shape(0, 6, 0));
    check_error(&spec, Integer::I8, &[Tile { weights: &[], ..good }], &shape(0, 0, 4));
    let outputs = ArraySpec { dataflow: Dataflow::OutputStationary, ..spec };
    check_error(&outputs, Integer::I8, &[Tile { rows: &[1; 6], ..good }], &shape(0, 6, 6));
    let accumulate = Tile { accumulate: true, ..good };
    check_error(&spec, Integer::I8, &[accumulate], &ArrayError::Accumulate { tile: 0, m: 2 });
    let longer = Tile { rows: &[1; 6], ..accumulate };
    check_error(&spec, Integer::I8, &[good, longer], &ArrayError::Accumulate { tile: 1, m: 3 });
    let empty = ArraySpec { rows: 0, ..spec };
    check_error(&empty, Integer::I8, &[good], &ArrayError::Size { rows: 0, columns: 3 });
}

#[test]
fn operands_outside_the_format_are_refused() {
    let spec = ArraySpec { rows: 1, columns: 1, dataflow: Dataflow::DoubleBuffered };
    let (wide, narrow) = ([256], [255]);
    let weight = Tile { weights: &wide, rows: &narrow, accumulate: false };
    let activation = Tile { weights: &narrow, rows: &wide, accumulate: false };
    let error = |operand| ArrayError::Operand { tile: 0, operand, index: 0 };
    check_error(&spec, Integer::I16I8, &[weight], &error("weight"));
    assert!(registers::run(&spec, Integer::I16I8, &[activation]).is_ok());
    check_error(&spec, Integer::I8I16, &[activation], &error("activation"));
    let third = [1.0 / 3.0];
    check_error(&spec, Float::Bf16, &[Tile { weights: &[1.0], rows: &third, accumulate: false }], &error("activation"));
}

/// 255 * 255 * 16 * 2065 is the first multiple of a tile beyond 2^31.
#[test]
fn a_sum_beyond_the_accumulator_is_an_error_of_the_tile_that_reaches_it() {
    for dataflow in [Dataflow::DoubleBuffered, Dataflow::SingleBuffered { pipeline: 3 }, Dataflow::OutputStationary] {
        let spec = ArraySpec { rows: 16, columns: 2, dataflow };
        let mut weights = vec![255; 32];
        weights.iter_mut().step_by(2).for_each(|w| *w = 0);
        let first = Tile { weights: &weights, rows: &[255; 16], accumulate: false };
        let mut tiles = vec![Tile { accumulate: true, ..first }; 2065];
        tiles[0] = first;
        check_error(&spec, Integer::I8, &tiles, &ArrayError::Overflow { tile: 2064, row: 0, column: 1 });
        assert!(closed::run(&spec, Integer::I8, &tiles[..2064]).is_ok());
        assert!(closed::run(&spec, Integer::I16I8, &tiles).is_ok());
    }
}

/// A row of floats comes out R + C + 1 cycles after it went in; the next block of K needs it the cycle after.
#[test]
fn float_sums_must_be_back_before_the_next_block_needs_them() {
    for (columns, late) in [(5, true), (4, false)] {
        let spec = ArraySpec { rows: 2, columns, dataflow: Dataflow::DoubleBuffered };
        let weights = vec![1.5f32; 2 * columns];
        let first = Tile { weights: &weights, rows: &[0.5; 2], accumulate: false };
        let tiles = [first, Tile { accumulate: true, ..first }];
        if late {
            check_error(&spec, Float::F16, &tiles, &ArrayError::Turnaround { tile: 1, row: 0 });
        } else {
            let outcome = registers::run(&spec, Float::F16, &tiles).expect("in time");
            assert_eq!(outcome.outputs, [vec![3.0; columns]]);
        }
    }
}

#[test]
fn nothing_takes_no_time() {
    for dataflow in [Dataflow::DoubleBuffered, Dataflow::SingleBuffered { pipeline: 3 }, Dataflow::OutputStationary] {
        let spec = ArraySpec { rows: 2, columns: 2, dataflow };
        let outcome = registers::run(&spec, Integer::I8, &[]).expect("no tiles");
        assert_eq!(outcome, Outcome { outputs: vec![], cycles: 0, tiles: vec![] });
        assert_eq!(Ok(outcome), closed::run(&spec, Integer::I8, &[]));
    }
}
