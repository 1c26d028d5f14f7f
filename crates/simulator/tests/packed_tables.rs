//! Entries of packed tables looked up by index: columns of a product's weights, which are stored once, and groups of rows, which are
//! matrices of products. Proven, simulated in every way, and compared with the interpreter.

use crate::common::{Net, tiny};
use crate::trial::{inputs, proven, trial};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{DType, Graph, Machine, Program, TableEntry, TensorId, Work};
use tpuflow_kernels::Values;
use tpuflow_scheduler::Options as ScheduleOptions;
use tpuflow_simulator::{Options, simulate};

const KINDS: [CodeKind; 3] = [CodeKind::Symmetric, CodeKind::ZeroPoints, CodeKind::Floats];
const BLOCKS: [u32; 4] = [16, 32, 64, 128];

fn machines() -> Vec<Machine> {
    let presets = ["32x32_fpga", "64x64_edge", "128x128_asic", "128x128_dual_ddr"];
    let mut machines: Vec<Machine> = presets.iter().map(|name| Machine::preset(name).unwrap()).collect();
    machines.extend([tiny(8), tiny(16)]);
    machines
}

/// Tokens by the columns of the weights of the last product, as in decoders with tied embeddings.
fn tied(mut net: Net, [depth, words]: [usize; 2], tokens: usize, block: u32, kind: CodeKind) -> Graph {
    let table = net.packed_constant([depth, words], block, kind);
    let x = net.packed_embedding(table, &[1, tokens], TableEntry::Column);
    let x = net.rescale(x);
    let logits = net.product(x, table);
    net.finish(&[logits])
}

/// Both levels: proven, without a fallback, and with the values of the interpreter.
fn proven_and_equal(graph: &Graph, machine: &Machine, seed: u64) {
    for level in [1, 5] {
        let program = proven(graph, machine, ScheduleOptions { level, ..ScheduleOptions::default() });
        assert_eq!(program.fallback, None, "seed {seed}");
        trial(graph, machine, level, seed, &Options::default()).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

fn constant_bytes(program: &Program) -> usize {
    program.constants.iter().map(|image| image.len()).sum()
}

#[test]
fn columns_of_the_weights_of_a_product_keep_every_bit() {
    for seed in 0..36u64 {
        let all = machines();
        let machine = &all[seed as usize % all.len()];
        let mut net = Net::new(seed);
        let depth = [8, 33, 64, 200][net.random.below(4)];
        let words = [1, 19, 65, 129, 300][net.random.below(5)];
        let (tokens, block) = (1 + net.random.below(9), BLOCKS[net.random.below(4)]);
        let graph = tied(net, [depth, words], tokens, block, KINDS[seed as usize % 3]);
        proven_and_equal(&graph, machine, seed);
    }
}

#[test]
fn what_is_looked_up_and_multiplied_is_stored_once() {
    for machine in machines() {
        let net = Net::new(5);
        let graph = tied(net, [64, 300], 3, 32, CodeKind::Symmetric);
        let mut net = Net::new(5);
        let table = net.packed_constant([64, 300], 32, CodeKind::Symmetric);
        let x = net.input(&[1, 3, 64]);
        let product = net.product(x, table);
        let alone = net.finish(&[product]);
        for level in [1, 5] {
            let options = || ScheduleOptions { level, ..ScheduleOptions::default() };
            let [both, one] = [&graph, &alone].map(|graph| constant_bytes(&proven(graph, &machine, options())));
            // The last entry of a table is as wide as the others.
            let width = machine.array.columns.min(300) as usize;
            let padding = (64 / 2 + 2) * width + 4 * machine.word();
            assert!(both < one + padding, "{} at level {level}: {both} bytes, {one} alone", machine.name);
        }
    }
}

/// Experts: an index picks the matrix that a product takes.
fn experts(mut net: Net, [experts, depth, columns]: [usize; 3], chosen: usize, block: u32, kind: CodeKind) -> Graph {
    let table = net.packed_constant([experts * depth, columns], block, kind);
    let picked = net.packed_embedding(table, &[1, chosen], TableEntry::Rows(depth as u32));
    let matrices = net.reshape(picked, &[1, chosen, depth, columns]);
    let x = net.input(&[1, chosen, 2, depth]);
    let sums: TensorId = net.product(x, matrices);
    net.finish(&[sums])
}

#[test]
fn matrices_that_are_picked_by_index_keep_every_bit() {
    for seed in 0..36u64 {
        let all = machines();
        let machine = &all[seed as usize % all.len()];
        let mut net = Net::new(seed);
        let block = BLOCKS[net.random.below(2)];
        let depth = block as usize * (1 + net.random.below(3));
        let columns = [8, 9, 16, 40, 64][net.random.below(5)];
        let form = [1 + net.random.below(7), depth, columns];
        let chosen = 1 + net.random.below(3);
        let graph = experts(net, form, chosen, block, KINDS[seed as usize % 3]);
        proven_and_equal(&graph, machine, seed);
    }
}

#[test]
fn a_lookup_reads_the_entries_it_names_and_no_others() {
    let machine = Machine::preset("128x128_asic").unwrap();
    let read = |count: usize| {
        let net = Net::new(7);
        let graph = experts(net, [count, 64, 64], 2, 32, CodeKind::Symmetric);
        let program = proven(&graph, &machine, ScheduleOptions { level: 5, ..ScheduleOptions::default() });
        let given: Vec<Vec<u8>> = inputs(&graph, 3).iter().map(Values::to_le_bytes).collect();
        let run = simulate(&program, &given, &Options::default()).unwrap();
        run.counters.ddr_read_bytes
    };
    assert_eq!(read(3), read(40));
}

#[test]
fn an_index_beyond_the_table_is_reported() {
    let machine = Machine::preset("128x128_asic").unwrap();
    let net = Net::new(9);
    let graph = tied(net, [64, 300], 1, 32, CodeKind::Symmetric);
    let program = proven(&graph, &machine, ScheduleOptions { level: 5, ..ScheduleOptions::default() });
    assert!(program.instructions.iter().any(|each| matches!(each.work, Work::PackedLookup(_))));
    assert_eq!(graph.tensor(graph.inputs[0]).dtype, DType::I32);
    for (index, sound) in [(0i32, true), (299, true), (300, false), (383, false), (-1, false)] {
        let run = simulate(&program, &[index.to_le_bytes().to_vec()], &Options::default());
        assert_eq!(run.is_ok(), sound, "{index}");
        if let Err(error) = run {
            assert!(error.to_string().contains(&format!("looks up row {index}")), "{error}");
        }
    }
}
