//! Compiling whole networks: tiling, placement, order, allocation, emission, and the checker's proof.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use tpuflow_benches::networks::{mobilenet_v2, resnet50};
use tpuflow_ir::Machine;
use tpuflow_scheduler::{Options, schedule};

fn programs(criterion: &mut Criterion) {
    let machine = Machine::preset("128x128_asic").expect("a preset");
    for graph in [resnet50(), mobilenet_v2()] {
        let mut group = criterion.benchmark_group(format!("schedule/{}", graph.name));
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(1));
        for level in [1, 5] {
            let options = Options { level, ..Options::default() };
            group.bench_function(BenchmarkId::new("level", level), |bench| {
                bench.iter(|| schedule(&graph, &machine, &options).expect("the network fits the preset"));
            });
        }
    }
}

criterion_group!(benches, programs);
criterion_main!(benches);
