//! Instructions that kernels take, counted under valgrind: the same on a busy machine as on an idle one.
//!
//! Valgrind offers neither AVX-512 nor AMX, so variants for them are not among those counted. Sizes are a fraction of those of
//! the other benches, since everything takes some fifty times as long.

#![expect(missing_docs, reason = "modules and functions that the macros make have no text")]
#![expect(clippy::exit, reason = "how the macro's main ends")]

use std::hint::black_box;

use gungraun::prelude::*;
use tpuflow_ir::{Requant, Window};
use tpuflow_kernels::conv::Geometry;
use tpuflow_kernels::depthwise::Depthwise;
use tpuflow_kernels::epilogue::{Epilogue, Offsets};
use tpuflow_kernels::gemm::{PackedI8, PackedI16, Rows};
use tpuflow_kernels::{Element, Isa};

const M: usize = 49;
const K: usize = 576;
const N: usize = 64;

fn isa(name: &str) -> Isa {
    Isa::variants().into_iter().find(|isa| isa.name() == name).expect("valgrind offers it")
}

fn codes<E: Element>(count: usize) -> Vec<E> {
    (0..count as u32).map(|i| E::narrow(i.wrapping_mul(2_654_435_761).cast_signed() >> (32 - E::BITS))).collect()
}

fn requant(columns: usize) -> Requant {
    Requant { multiplier: vec![21_845; columns], shift: vec![26; columns], zero_point: -128, lo: -128, hi: 127 }
}

fn narrow(name: &str) -> (PackedI8, Vec<i8>, Vec<i32>) {
    (PackedI8::new(isa(name), &codes::<i8>(K * N), K, N, [N, 1]), codes(M * K), vec![0; M * N])
}

#[library_benchmark]
#[bench::reference(args = ("reference"), setup = narrow)]
#[bench::avx2(args = ("avx2"), setup = narrow)]
fn gemm_i8i8i32((packed, a, mut c): (PackedI8, Vec<i8>, Vec<i32>)) -> Vec<i32> {
    packed.multiply(black_box(&a), &mut c, &mut Rows::default());
    c
}

fn wide(name: &str) -> (PackedI16, Vec<i16>, Vec<i64>) {
    (PackedI16::new(isa(name), &codes::<i16>(K * N), K, N, [N, 1]), codes(M * K), vec![0; M * N])
}

#[library_benchmark]
#[bench::reference(args = ("reference"), setup = wide)]
#[bench::avx2(args = ("avx2"), setup = wide)]
fn gemm_i16i16i64((packed, a, mut c): (PackedI16, Vec<i16>, Vec<i64>)) -> Vec<i64> {
    packed.multiply(black_box(&a), &mut c, &mut Rows::default());
    c
}

fn sums(name: &str) -> (Epilogue, Vec<i32>, Vec<i32>, Vec<i8>) {
    let products = codes::<i8>(M * N).iter().map(|&c| i32::from(c) * 99_991).collect();
    (Epilogue::with(isa(name), requant(N), None), products, vec![1234; N], vec![0; M * N])
}

#[library_benchmark]
#[bench::reference(args = ("reference"), setup = sums)]
#[bench::avx2(args = ("avx2"), setup = sums)]
fn requantize_i32i8((epilogue, products, columns, mut y): (Epilogue, Vec<i32>, Vec<i32>, Vec<i8>)) -> Vec<i8> {
    for (products, y) in black_box(&products).chunks_exact(N).zip(y.chunks_exact_mut(N)) {
        epilogue.narrow(products, Offsets { row: 0, columns: &columns }, y);
    }
    y
}

const GEOMETRY: Geometry = Geometry {
    input: [1, 14, 14, N],
    output: [14, 14],
    window: Window { kernel: [3, 3], stride: [1, 1], dilation: [1, 1], pads: [1; 4] },
};

fn filters(name: &str) -> (Depthwise, Vec<i8>, Vec<i8>) {
    let epilogue = Epilogue::with(isa(name), requant(N), None);
    let filters = Depthwise::new(&codes::<i8>(9 * N), [3, 3], 0, false, -3, vec![100; N], epilogue);
    (filters, codes(14 * 14 * N), vec![0; 14 * 14 * N])
}

#[library_benchmark]
#[bench::reference(args = ("reference"), setup = filters)]
#[bench::avx2(args = ("avx2"), setup = filters)]
fn depthwise_i8i8i8((filters, x, mut y): (Depthwise, Vec<i8>, Vec<i8>)) -> Vec<i8> {
    filters.run(&GEOMETRY, black_box(&x), &mut y);
    y
}

library_benchmark_group!(
    name = kernels,
    benchmarks = [gemm_i8i8i32, gemm_i16i16i64, requantize_i32i8, depthwise_i8i8i8]
);
// What other threads do is not counted.
main!(config = LibraryBenchmarkConfig::default().env("RAYON_NUM_THREADS", "1"), library_benchmark_groups = kernels);
