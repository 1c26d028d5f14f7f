//! Static memory allocation on instances of known optimum: rectangles cut into pieces, greedy and exact.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use tpuflow_benches::instances::cut_rectangle;
use tpuflow_scheduler::alloc::ladder::{Effort, solve_by_effort};
use tpuflow_scheduler::alloc::solve;

fn rectangles(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate/cut_rectangle");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(2));
    for pieces in [100, 1000, 4000] {
        let problem = cut_rectangle(1, 1024, 1 << 20, pieces);
        let solution = solve(&problem, false);
        // A fast allocator that wastes memory is none.
        assert!(solution.height <= problem.capacity * 13 / 10, "{} of {}", solution.height, problem.capacity);
        group.throughput(Throughput::Elements(pieces as u64));
        group.bench_function(BenchmarkId::from_parameter(pieces), |bench| bench.iter(|| solve(&problem, false)));
    }
}

/// Rectangles on the whole ladder: what no greedy order puts together again is searched for.
fn search(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate/exact");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(2));
    for pieces in [100, 200, 400] {
        let problem = cut_rectangle(1, 1024, 1 << 20, pieces);
        let effort = Effort { enough: problem.capacity, steps: 1_000_000, seed: 0 };
        let outcome = solve_by_effort(&problem, &[], &effort, &mut |_| true);
        group.throughput(Throughput::Elements(outcome.steps.max(1)));
        group.bench_function(BenchmarkId::from_parameter(pieces), |bench| {
            bench.iter(|| solve_by_effort(&problem, &[], &effort, &mut |_| true));
        });
    }
}

criterion_group!(benches, rectangles, search);
criterion_main!(benches);
