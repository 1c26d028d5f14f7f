//! Simulated cycles per second on ResNet-50: counting alone and with values; and the integer graph interpreter beside them.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use tpuflow_benches::Random;
use tpuflow_benches::networks::resnet50;
use tpuflow_ir::{DType, Machine};
use tpuflow_kernels::Values;
use tpuflow_scheduler::{Options as ScheduleOptions, schedule};
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

fn cycles(criterion: &mut Criterion) {
    let graph = resnet50();
    let machine = Machine::preset("128x128_asic").expect("a preset");
    let options = ScheduleOptions { level: 5, ..ScheduleOptions::default() };
    let program = schedule(&graph, &machine, &options).expect("the network fits the preset");
    let image = Random(2).bytes(224 * 224 * 3);
    let counting = Options { values: false, ..Options::default() };
    let run = simulate(&program, &[], &counting).expect("a sound program");

    let mut group = criterion.benchmark_group("simulate/resnet50");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(1));
    group.throughput(Throughput::Elements(run.cycles));
    group.bench_function("cycles alone", |bench| {
        bench.iter(|| simulate(&program, &[], &counting).expect("a sound program"));
    });
    group.bench_function("with values", |bench| {
        bench.iter(|| simulate(&program, std::slice::from_ref(&image), &Options::default()).expect("a sound program"));
    });
    group.finish();

    let mut group = criterion.benchmark_group("interpret/resnet50");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(1));
    let interpreter = Interpreter::new(Arc::new(graph)).expect("a graph of known operators");
    let codes = Values::from_le_bytes(DType::I8, &image);
    group.bench_function("integer graph", |bench| {
        bench.iter(|| interpreter.run(vec![codes.clone()], Keep::Outputs).expect("one input"));
    });
}

criterion_group!(benches, cycles);
criterion_main!(benches);
