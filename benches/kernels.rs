//! Products, requantisation, depthwise convolution and functions of floats: every variant this processor offers beside the scalar reference.
//!
//! Sizes are those of ResNet-50's fourth stage (3x3 of 256 channels at 14x14) and of its second stage's outputs.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tpuflow_ir::function::Step;
use tpuflow_ir::{Function, Requant, Window};
use tpuflow_kernels::conv::Geometry;
use tpuflow_kernels::depthwise::Depthwise;
use tpuflow_kernels::epilogue::{Epilogue, Offsets};
use tpuflow_kernels::float::function::Evaluator;
use tpuflow_kernels::float::gemm::Packed;
use tpuflow_kernels::gemm::{PackedI8, PackedI16, Rows};
use tpuflow_kernels::linear::{Linear, Matrix, Scratch};
use tpuflow_kernels::{Isa, Values};

const M: usize = 196;
const K: usize = 2304;
const N: usize = 256;

fn codes(count: usize) -> Vec<i8> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as i8).collect()
}

fn wide(codes: &[i8]) -> Vec<i16> {
    codes.iter().map(|&c| i16::from(c) * 255).collect()
}

fn products(criterion: &mut Criterion) {
    let (a, b) = (codes(M * K), codes(K * N));
    let mut group = criterion.benchmark_group("gemm_i8i8i32/resnet50_conv4");
    group.throughput(Throughput::Elements((M * K * N) as u64)).sample_size(10);
    for isa in Isa::variants() {
        let packed = PackedI8::new(isa, &b, K, N, [N, 1]);
        let (mut c, mut rows) = (vec![0; M * N], Rows::default());
        group.bench_function(BenchmarkId::from_parameter(isa.name()), |bench| {
            bench.iter(|| packed.multiply(&a, &mut c, &mut rows));
        });
    }
    group.finish();
    let (a, b) = (wide(&a), wide(&b));
    let mut group = criterion.benchmark_group("gemm_i16i16i64/resnet50_conv4");
    group.throughput(Throughput::Elements((M * K * N) as u64)).sample_size(10);
    for isa in Isa::variants() {
        let packed = PackedI16::new(isa, &b, K, N, [N, 1]);
        let (mut c, mut rows) = (vec![0; M * N], Rows::default());
        group.bench_function(BenchmarkId::from_parameter(isa.name()), |bench| {
            bench.iter(|| packed.multiply(&a, &mut c, &mut rows));
        });
    }
}

/// A product that fits into the second-level cache, for multiply-accumulates a second.
fn cube(criterion: &mut Criterion) {
    const SIDE: usize = 1024;
    let (a, b) = (codes(SIDE * SIDE), codes(SIDE * SIDE));
    let mut group = criterion.benchmark_group("gemm_i8i8i32/cube1024");
    group.throughput(Throughput::Elements((SIDE * SIDE * SIDE) as u64)).sample_size(10);
    for isa in Isa::variants().into_iter().filter(|isa| !matches!(isa, Isa::Reference)) {
        let packed = PackedI8::new(isa, &b, SIDE, SIDE, [SIDE, 1]);
        let (mut c, mut rows) = (vec![0; SIDE * SIDE], Rows::default());
        group.bench_function(BenchmarkId::from_parameter(isa.name()), |bench| {
            bench.iter(|| packed.multiply(&a, &mut c, &mut rows));
        });
        // What a layer pays: sums become codes while they are in the cache.
        let linear = linear(isa, &b, SIDE);
        let mut y = vec![0i8; SIDE * SIDE];
        group.bench_function(BenchmarkId::new("codes", isa.name()), |bench| {
            bench.iter(|| linear.rows(&a, &mut y, SIDE, &mut Scratch::default()));
        });
    }
}

fn linear(isa: Isa, b: &[i8], side: usize) -> Linear {
    let weights = Values::I8(b.to_vec());
    let matrix = Matrix { codes: &weights, start: 0, shape: [side, side], strides: [side, 1], zero_point: 0 };
    Linear::new(&matrix, false, -3, &vec![100; side], Epilogue::with(isa, requant(side), None))
}

fn float_products(criterion: &mut Criterion) {
    let floats = |codes: Vec<i8>| codes.into_iter().map(f32::from).collect::<Vec<_>>();
    let (a, b) = (floats(codes(M * K)), floats(codes(K * N)));
    let mut group = criterion.benchmark_group("gemm_f32f32f32/resnet50_conv4");
    group.throughput(Throughput::Elements((M * K * N) as u64)).sample_size(10);
    for isa in Isa::variants() {
        let packed = Packed::new(isa, &b, [K, N], [N, 1]);
        let mut c = vec![0.0; M * N];
        group.bench_function(BenchmarkId::from_parameter(isa.name()), |bench| {
            bench.iter(|| packed.multiply(&a, &mut c));
        });
    }
}

fn functions(criterion: &mut Criterion) {
    const COUNT: usize = 1 << 16;
    let x: Vec<f64> = codes(COUNT).iter().map(|&c| f64::from(c) / 16.0).collect();
    for (name, step) in [("exp", Step::Exp(0)), ("erf", Step::Erf(0)), ("log", Step::Log(0))] {
        let function = Function { steps: vec![step] };
        let mut group = criterion.benchmark_group(format!("function_f64/{name}"));
        group.throughput(Throughput::Elements(COUNT as u64)).sample_size(10);
        for isa in Isa::variants() {
            let mut evaluator = Evaluator::new(isa, &function);
            group.bench_function(BenchmarkId::from_parameter(isa.name()), |bench| {
                bench.iter(|| evaluator.apply(&mut x.clone()));
            });
        }
    }
}

fn requant(columns: usize) -> Requant {
    Requant { multiplier: vec![21_845; columns], shift: vec![26; columns], zero_point: -128, lo: -128, hi: 127 }
}

fn requantize(criterion: &mut Criterion) {
    const ROWS: usize = 3136;
    let products: Vec<i32> = codes(ROWS * N).iter().map(|&c| i32::from(c) * 99_991).collect();
    let offsets = vec![1234; N];
    let mut group = criterion.benchmark_group("requantize_i32i8/resnet50_conv2");
    group.throughput(Throughput::Elements((ROWS * N) as u64));
    for isa in Isa::variants() {
        let epilogue = Epilogue::with(isa, requant(N), None);
        let mut y = vec![0i8; ROWS * N];
        group.bench_function(BenchmarkId::from_parameter(isa.name()), |bench| {
            bench.iter(|| {
                for (products, y) in products.chunks_exact(N).zip(y.chunks_exact_mut(N)) {
                    epilogue.narrow(products, Offsets { row: 0, columns: &offsets }, y);
                }
            });
        });
    }
}

fn depthwise(criterion: &mut Criterion) {
    const CHANNELS: usize = 144;
    let window = Window { kernel: [3, 3], stride: [1, 1], dilation: [1, 1], pads: [1; 4] };
    let geometry = Geometry { input: [1, 56, 56, CHANNELS], output: [56, 56], window };
    let (x, weights) = (codes(56 * 56 * CHANNELS), codes(9 * CHANNELS));
    let mut group = criterion.benchmark_group("depthwise_i8i8i8/mobilenetv2_block3");
    group.throughput(Throughput::Elements((56 * 56 * CHANNELS * 9) as u64));
    for isa in Isa::variants() {
        let epilogue = Epilogue::with(isa, requant(CHANNELS), None);
        let filters = Depthwise::new(&weights, [3, 3], 0, false, -3, vec![100; CHANNELS], epilogue);
        let mut y = vec![0i8; 56 * 56 * CHANNELS];
        group.bench_function(BenchmarkId::from_parameter(isa.name()), |bench| {
            bench.iter(|| filters.run(&geometry, &x, &mut y));
        });
    }
}

criterion_group!(benches, products, cube, float_products, functions, requantize, depthwise);
criterion_main!(benches);
