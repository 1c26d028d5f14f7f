//! Lookups in packed tables: programs that read other entries, or in another form than the graph's.

use tpuflow_checker::{Rule, check};
use tpuflow_ir::isa::PackedLookup;
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Graph, Machine, Program, TableEntry, Work};
use tpuflow_scheduler::{Options, schedule};

use crate::common::Net;

/// Columns of the weights of a product, or groups of rows.
fn graph(entry: TableEntry, kind: CodeKind) -> Graph {
    let mut net = Net::new(6);
    let table = net.packed_constant([96, 300], 32, kind);
    let x = net.packed_embedding(table, &[1, 3], entry);
    let y = if entry == TableEntry::Column { net.product(x, table) } else { net.rescale(x) };
    net.finish(&[y])
}

fn programs() -> Vec<(Graph, Program)> {
    let mut found = Vec::new();
    for entry in [TableEntry::Column, TableEntry::Rows(32)] {
        for kind in [CodeKind::Symmetric, CodeKind::ZeroPoints, CodeKind::Floats] {
            let graph = graph(entry, kind);
            for (name, level) in [("32x32_fpga", 1), ("128x128_asic", 5), ("128x128_dual_ddr", 5)] {
                let machine = Machine::preset(name).unwrap();
                let program = schedule(&graph, &machine, &Options { level, ..Options::default() }).unwrap();
                assert_eq!(check(&graph, &program), Ok(()));
                found.push((graph.clone(), program));
            }
        }
    }
    found
}

fn lookup(program: &mut Program) -> &mut PackedLookup {
    let found = program.instructions.iter_mut().find_map(|i| match &mut i.work {
        Work::PackedLookup(l) => Some(l),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn every_field_of_a_lookup_in_a_packed_table_is_proven() {
    for (graph, sound) in programs() {
        let own = *lookup(&mut sound.clone());
        let refused = |what: &str, change: &dyn Fn(&mut PackedLookup)| {
            let mut wrong = sound.clone();
            change(lookup(&mut wrong));
            assert!(check(&graph, &wrong).is_err(), "{what} of {own:?} was accepted");
        };
        refused("fewer rows", &|l| l.rows -= 1);
        refused("no rows", &|l| l.rows = 0);
        refused("narrower rows", &|l| l.row_bytes /= 2);
        refused("wider rows", &|l| l.row_bytes *= 2);
        refused("longer blocks", &|l| l.block *= 2);
        refused("blocks of nothing", &|l| l.block = 0);
        for kind in [CodeKind::Symmetric, CodeKind::ZeroPoints, CodeKind::Floats] {
            if own.codes != kind {
                refused("codes of another kind", &|l| l.codes = kind);
            }
        }
        refused("later codes", &|l| l.ddr_address += 1);
        refused("the next entry", &|l| l.ddr_address += l.stride(128));
        refused("codes behind the constants", &|l| l.ddr_address += 1 << 20);
        refused("codes behind all memories", &|l| l.ddr_address = u64::MAX - 5);
        refused("fewer entries", &|l| l.size -= 1);
        refused("more entries", &|l| l.size += 1);
        refused("very many entries", &|l| l.size = u32::MAX);
        refused("no entries", &|l| l.size = 0);
        refused("no address spaces", &|l| l.spaces = 0);
        refused("other address spaces", &|l| l.spaces = if l.spaces == 1 { 2 } else { 1 });
        refused("another first address space", &|l| l.ddr_space = 1 - l.ddr_space);
        refused("address spaces there are not", &|l| l.spaces = 9);
        refused("an address space there is not", &|l| l.ddr_space = 255);
        refused("no columns", &|l| l.columns = Some(0));
        refused("other columns", &|l| l.columns = if l.columns.is_some() { None } else { Some(8) });
        refused("fewer columns", &|l| l.columns = Some(l.columns.unwrap_or(2) / 2));
        refused("a later index", &|l| l.first += 1);
        refused("no indices", &|l| l.count = 0);
        refused("indices behind the last", &|l| l.count += 3);
        refused("other indices", &|l| l.indices.address += 4);
        refused("another place", &|l| l.output.address += 128);
        refused("other pixels", &|l| l.output.origin[0] += 1);
    }
}

#[test]
fn every_bit_of_a_packed_table_counts() {
    for (graph, sound) in programs() {
        let l = *lookup(&mut sound.clone());
        // A scale of every entry, and a code of its second row.
        for entry in (0..l.entries()).map(|entry| l.entry(entry, sound.machine.word())) {
            let code = match l.columns {
                Some(_) => entry.record_header_bytes(),
                None => entry.header_bytes() + entry.code_bytes(),
            };
            for at in [entry.ddr_address, entry.ddr_address + code] {
                let mut wrong = sound.clone();
                let constants = &mut wrong.constants[usize::from(entry.ddr_space)];
                let mut bytes = constants.to_vec();
                bytes[at as usize] ^= 1;
                *constants = bytes.into();
                let violations = check(&graph, &wrong).expect_err("another code or scale");
                assert!(matches!(violations[0].rule, Rule::Lookup | Rule::Weights), "{violations:?}");
            }
        }
    }
}

#[test]
fn a_table_that_is_not_packed_is_not_looked_up_so() {
    for (graph, sound) in programs() {
        let mut plain = graph.clone();
        plain.tensors.iter_mut().for_each(|tensor| tensor.packed = None);
        assert!(check(&plain, &sound).is_err());
    }
}
