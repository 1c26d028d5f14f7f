//! Compiling networks: every phase of a plan on its own, then whole searches.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use tpuflow_benches::networks::{autoencoder, mobilenet_v1_quarter, resnet8, resnet20, resnet50};
use tpuflow_checker::check;
use tpuflow_ir::{Graph, Machine};
use tpuflow_scheduler::parameters::Parameters;
use tpuflow_scheduler::phases::Phases;
use tpuflow_scheduler::{Options, schedule};

const MACHINES: [&str; 3] = ["128x128_asic", "64x64_edge", "256x256_dc"];

/// Networks that are planned at level 5 in less than two seconds of one processor.
fn networks() -> [Graph; 4] {
    [resnet8(), resnet20(), mobilenet_v1_quarter(), autoencoder()]
}

/// The phases of one plan: layers interleaved in fine tiles.
fn phases(criterion: &mut Criterion) {
    for graph in networks() {
        for name in MACHINES {
            let (machine, parameters) = (Machine::preset(name).expect("a preset"), Parameters::o5());
            let fits = "the network fits the preset";
            let phases = Phases::new(&graph, &machine, &parameters, Options::default().budget_steps).expect(fits);
            let placed = phases.place().expect(fits);
            let ordered = phases.order(&placed);
            let addressed = phases.address(&ordered).expect(fits);
            let program = phases.emit(&addressed).expect(fits);
            let mut group = criterion.benchmark_group(format!("phases/{}/{name}", graph.name));
            group.sample_size(10).sampling_mode(SamplingMode::Flat);
            group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(500));
            group.bench_function("tiling", |bench| bench.iter(|| phases.tile()));
            group.bench_function("placement", |bench| bench.iter(|| phases.place()));
            group.bench_function("order", |bench| bench.iter(|| phases.order(&placed)));
            group.bench_function("addresses", |bench| bench.iter(|| phases.address(&ordered)));
            group.bench_function("emission", |bench| bench.iter(|| phases.emit(&addressed)));
            group.bench_function("check", |bench| bench.iter(|| check(&graph, &program)));
        }
    }
}

/// Whole searches.
fn programs(criterion: &mut Criterion) {
    let machine = Machine::preset(MACHINES[0]).expect("a preset");
    for graph in networks() {
        let mut group = criterion.benchmark_group(format!("schedule/{}", graph.name));
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(500));
        for level in [1, 5] {
            let options = Options { level, ..Options::default() };
            group.bench_function(BenchmarkId::new("level", level), |bench| {
                bench.iter(|| schedule(&graph, &machine, &options).expect("the network fits the preset"));
            });
        }
    }
}

/// One large network, once: ten times would take most of the time of all benches.
#[expect(clippy::print_stdout, reason = "criterion repeats what it reports")]
fn large(_: &mut Criterion) {
    let (graph, machine) = (resnet50(), Machine::preset(MACHINES[0]).expect("a preset"));
    for level in [1, 5] {
        let start = Instant::now();
        let program = schedule(&graph, &machine, &Options { level, ..Options::default() });
        let cycles = program.expect("the network fits the preset").predicted_cycles;
        println!("schedule/{}/level/{level}: {:.2?}, {cycles} cycles predicted", graph.name, start.elapsed());
    }
}

criterion_group!(benches, phases, programs, large);
criterion_main!(benches);
