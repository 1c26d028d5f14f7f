//! Proving programs: the part of compiling that shares no code with the rest.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use tpuflow_benches::networks::{mobilenet_v2, resnet50};
use tpuflow_ir::Machine;
use tpuflow_scheduler::{Options, schedule};

fn proofs(criterion: &mut Criterion) {
    let machine = Machine::preset("128x128_asic").expect("a preset");
    for graph in [resnet50(), mobilenet_v2()] {
        let options = Options { level: 5, ..Options::default() };
        let program = schedule(&graph, &machine, &options).expect("the network fits the preset");
        let mut group = criterion.benchmark_group(format!("check/{}", graph.name));
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Elements(program.instructions.len() as u64));
        group.bench_function(BenchmarkId::from_parameter("with graph"), |bench| {
            bench.iter(|| tpuflow_checker::check(&graph, &program).expect("a sound program"));
        });
        group.bench_function(BenchmarkId::from_parameter("rules alone"), |bench| {
            bench.iter(|| tpuflow_checker::check_rules(&program).expect("a sound program"));
        });
    }
}

criterion_group!(benches, proofs);
criterion_main!(benches);
