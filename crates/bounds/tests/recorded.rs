//! The bounds of many graphs on many machines are those that were recorded. A change of a law of time or of a bound shows here as
//! the graphs it concerns; `TPUFLOW_RECORD=1 cargo test -p tpuflow-bounds --test main recorded` records what is found.

use std::fmt::Write;
use std::path::Path;

use crate::common::operators::{OPERATORS, TYPES, alone};
use crate::common::wild::{long_lines, wild, wild_floats};
use crate::common::{Net, machine, random, tiny, window};
use tpuflow_bounds::bounds;
use tpuflow_ir::{BinaryKind, DType, Graph, Machine, ReduceKind};

/// A line: what it is, all bounds of the whole, and of each layer the binding one.
fn line(name: &str, graph: &Graph, machine: &Machine) -> String {
    let found = bounds(graph, machine);
    let mut line = format!("{name}:");
    for (_, cycles) in found.whole.by_name() {
        write!(line, " {cycles}").unwrap();
    }
    line.push_str(" |");
    for layer in &found.layers {
        write!(line, " {}{}", &layer.binding[..1], layer.cycles).unwrap();
    }
    line
}

/// Layers of more channels than the array has columns and rows, in every kind of product.
fn large(seed: u64) -> Graph {
    let mut net = Net::new(seed);
    (net.wide, net.float) = (seed % 3 == 1, (seed % 3 == 2).then_some(DType::F16));
    let (height, channels) = (9 + 8 * net.random.below(3), [48, 130, 300][net.random.below(3)]);
    let x = net.input(&[1 + seed as usize % 2, height, height + 3, channels]);
    let (out, stride) = (200 + 20 * net.random.below(4), 1 + net.random.below(2) as u32);
    let a = net.conv(x, out, window(1, 1, 0), 1);
    let b = net.conv(x, 144, window(3, stride, 1), 2);
    let zeros = net.insert_zeros(b, [2, 2]);
    let c = net.conv(zeros, 70, window(4, 1, 1), 1);
    let d = net.conv(a, out, window(5, 1, 2), out);
    let e = net.binary(BinaryKind::Add, a, d);
    let f = net.max_pool(e, window(3, 2, 1));
    let g = net.reduce(f, ReduceKind::Sum, &[1, 2], false);
    let h = net.matmul(g, 700);
    let shape = net.shape(b);
    let lines = net.reshape(b, &[shape[0], shape[1] * shape[2], 144]);
    let turned = net.transpose(lines, &[0, 2, 1]);
    let scores = net.product(lines, turned);
    let weights = net.softmax(scores, false);
    let i = net.product(weights, lines);
    net.finish(&[c, h, i])
}

fn found() -> String {
    let mut lines = Vec::new();
    for seed in 0..120 {
        let graph = match seed % 3 {
            0 => random(seed, 9),
            1 => wild(seed, 7, 3000),
            _ => wild_floats(seed, 7, 3000),
        };
        lines.push(line(&format!("random {seed}"), &graph, &machine(seed)));
    }
    for (number, (name, make)) in OPERATORS.iter().enumerate() {
        for dtype in TYPES {
            let small = alone(*make, dtype, 3);
            lines.push(line(&format!("{name} {}", dtype.name()), &small, &machine(number as u64)));
        }
    }
    let presets = Machine::presets().into_iter().map(|name| Machine::preset(&name).unwrap());
    let machines: Vec<Machine> = presets.chain([tiny(8), tiny(64)]).collect();
    for seed in 0..12 {
        let graph = large(seed);
        for machine in &machines {
            lines.push(line(&format!("large {seed} {}", machine.name), &graph, machine));
        }
    }
    for seed in 0..4 {
        let float = (seed == 3).then_some(DType::BF16);
        lines.push(line(&format!("lines {seed}"), &long_lines(seed, float), &machine(seed + 7)));
    }
    lines.join("\n") + "\n"
}

#[test]
fn bounds_are_those_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded.txt");
    let found = found();
    if std::env::var_os("TPUFLOW_RECORD").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    let differing: Vec<String> = (recorded.lines().zip(found.lines()))
        .filter(|(recorded, found)| recorded != found)
        .map(|(recorded, found)| format!("recorded {recorded}\nfound    {found}"))
        .collect();
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing[..differing.len().min(5)].join("\n"));
    assert_eq!(recorded.lines().count(), found.lines().count());
}
