//! No program of a small graph is shorter than its bound: all of them are tried.

#![allow(clippy::print_stdout, reason = "tests")]

use crate::common::{self, Net, tiny};
use crate::search;
use tpuflow_ir::{Graph, Machine};

/// Graphs whose programs have few instructions.
fn graphs() -> Vec<(&'static str, Graph)> {
    let of = |build: &dyn Fn(&mut Net) -> Vec<tpuflow_ir::TensorId>| {
        let mut net = Net::new(11);
        let outputs = build(&mut net);
        net.finish(&outputs)
    };
    vec![
        (
            "unary",
            of(&|net| {
                let x = net.input(&[16, 8]);
                vec![net.rescale(x)]
            }),
        ),
        (
            "pool",
            of(&|net| {
                let x = net.input(&[1, 8, 8, 8]);
                vec![net.max_pool(x, common::window(3, 1, 1))]
            }),
        ),
        (
            "product",
            of(&|net| {
                let x = net.input(&[12, 8]);
                vec![net.matmul(x, 8)]
            }),
        ),
        (
            "deep product",
            of(&|net| {
                let x = net.input(&[6, 24]);
                vec![net.matmul(x, 8)]
            }),
        ),
        (
            "sum of a product",
            of(&|net| {
                let x = net.input(&[12, 8]);
                let y = net.matmul(x, 8);
                vec![net.rescale(y)]
            }),
        ),
        (
            "slice of a product",
            of(&|net| {
                let x = net.input(&[16, 8]);
                let y = net.matmul(x, 8);
                vec![net.slice(y, 0, 0, 8)]
            }),
        ),
    ]
}

fn machines() -> Vec<Machine> {
    let mut quick = tiny(16);
    (quick.dma.start, quick.dma.latency, quick.control.start) = (2, 1, 5);
    (quick.ewp.start, quick.ewp.latency, quick.pdp.start, quick.pdp.latency) = (3, 4, 3, 4);
    quick.name = "quick".to_owned();
    vec![tiny(16), quick]
}

#[test]
fn no_program_of_a_small_graph_is_shorter_than_its_bound() {
    // `BOUNDS_INSTRUCTIONS=8` tries longer ones, for minutes.
    let most = std::env::var("BOUNDS_INSTRUCTIONS").ok().and_then(|most| most.parse().ok()).unwrap_or(6);
    let (mut tried, mut programs) = (0, 0);
    for machine in machines() {
        for (name, graph) in graphs() {
            let Some((best, bounds)) = search::optimum(&graph, &machine, most) else { continue };
            let (binding, bound) = bounds.binding();
            println!("{name} on {}: {} of {} programs, {bound} by {binding}", machine.name, best.cycles, best.programs);
            assert!(best.cycles >= bound, "{name} on {}: {} < {bound} by {binding}", machine.name, best.cycles);
            (tried, programs) = (tried + 1, programs + best.programs);
        }
    }
    assert!(tried >= 8 && programs > 1000, "{tried} graphs, {programs} programs");
}
