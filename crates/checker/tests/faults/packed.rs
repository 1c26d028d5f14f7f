//! Packed weights: programs that expand other codes, other scales, or in another form than the graph's.

use tpuflow_checker::{Rule, check};
use tpuflow_ir::isa::{Expand, PackedForm};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Graph, Machine, Packed, Program, Work};
use tpuflow_scheduler::{Options, schedule};
use tpuflow_simulator::simulate;

use crate::common::{Net, Random};

/// A product of 70 rows and 64 columns, every code and scale of its own.
fn graph(block: u32, kind: CodeKind) -> Graph {
    let mut net = Net::new(5);
    let x = net.input(&[3, 70]);
    let mut random = Random(7);
    let has_zero_points = kind == CodeKind::ZeroPoints;
    let blocks = 70usize.div_ceil(block as usize);
    let mut bytes = |count: usize, most: i64| -> Vec<u8> { (0..count).map(|_| random.range(1, most) as u8).collect() };
    let packed = Packed {
        block,
        has_zero_points,
        is_float: kind == CodeKind::Floats,
        codes: bytes(70 * 64 / 2, 255).into(),
        scales: bytes(blocks * 64, 255).into(),
        zero_points: bytes(if has_zero_points { blocks * 64 } else { 0 }, 15).into(),
    };
    let w = net.packed(&[70, 64], packed);
    let y = net.product(x, w);
    net.finish(&[y])
}

fn programs() -> Vec<(Graph, Program)> {
    let mut found = Vec::new();
    use CodeKind::{Floats, Symmetric, ZeroPoints};
    for (block, kind) in
        [(32, Symmetric), (32, ZeroPoints), (64, ZeroPoints), (128, Symmetric), (16, Floats), (32, Floats)]
    {
        let graph = graph(block, kind);
        for (name, level) in [("32x32_fpga", 1), ("128x128_asic", 5)] {
            let machine = Machine::preset(name).unwrap();
            let program = schedule(&graph, &machine, &Options { level, ..Options::default() }).unwrap();
            assert_eq!(check(&graph, &program), Ok(()));
            found.push((graph.clone(), program));
        }
    }
    found
}

fn expand(program: &mut Program) -> &mut Expand {
    let found = program.instructions.iter_mut().find_map(|i| match &mut i.work {
        Work::Expand(e) => Some(e),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn every_field_of_an_expansion_is_proven() {
    for (graph, sound) in programs() {
        let refused = |what: &str, change: &dyn Fn(&mut Expand)| {
            let mut wrong = sound.clone();
            change(expand(&mut wrong));
            assert!(check(&graph, &wrong).is_err(), "{what} of {:?} was accepted", expand(&mut sound.clone()));
        };
        refused("fewer rows", &|e| e.rows -= 1);
        refused("no rows", &|e| e.rows = 0);
        refused("narrower rows", &|e| e.row_bytes /= 2);
        refused("wider rows", &|e| e.row_bytes *= 2);
        refused("longer blocks", &|e| e.block *= 2);
        refused("blocks of nothing", &|e| e.block = 0);
        for kind in [CodeKind::Symmetric, CodeKind::ZeroPoints, CodeKind::Floats] {
            for form in [PackedForm::by_row(kind), PackedForm::ByColumn(kind)] {
                if expand(&mut sound.clone()).codes != form {
                    refused("codes in another form", &|e| e.codes = form);
                }
            }
        }
        refused("later codes", &|e| e.ddr_address += 1);
        refused("codes behind the constants", &|e| e.ddr_address += 1 << 20);
        refused("codes behind all memories", &|e| e.ddr_address = u64::MAX - 5);
        refused("the next word", &|e| e.local_address += 128);
        refused("the middle of a word", &|e| e.local_address += 1);
        refused("rows behind all memories", &|e| (e.rows, e.row_bytes) = (u32::MAX, u32::MAX));
    }
}

#[test]
fn every_bit_of_packed_constants_counts() {
    let (graph, sound) = programs().remove(1);
    let e = *expand(&mut sound.clone());
    let mut accepted = 0;
    for at in (e.ddr_address..e.ddr_address + e.packed_bytes()).step_by(7) {
        for bit in [0, 5] {
            let mut wrong = sound.clone();
            let mut bytes = wrong.constants[usize::from(e.ddr_space)].to_vec();
            bytes[at as usize] ^= 1 << bit;
            wrong.constants[usize::from(e.ddr_space)] = bytes.into();
            accepted += u32::from(check(&graph, &wrong).is_ok());
        }
    }
    // A scale may change by one without a change of any element; codes may not, where scales are not tiny.
    let tried = e.packed_bytes() / 7 * 2;
    assert!(u64::from(accepted) < tried / 4, "{accepted} of {tried} changes were accepted");
}

#[test]
fn weights_that_are_not_packed_are_loaded_as_they_are() {
    for (graph, sound) in programs() {
        let mut plain = graph.clone();
        plain.tensors.iter_mut().for_each(|tensor| tensor.packed = None);
        let violations = check(&plain, &sound).expect_err("codes of 4 bits for weights of 8");
        assert_eq!(violations[0].rule, Rule::Weights);
        let input = vec![3u8; 210];
        let run =
            |program: &Program| simulate(program, std::slice::from_ref(&input), &Default::default()).unwrap().outputs;
        let program = schedule(&plain, &sound.machine, &Options { level: 1, ..Options::default() }).unwrap();
        assert_eq!(run(&program), run(&sound));
        assert!(program.constants[0].len() + program.constants.get(1).map_or(0, |c| c.len()) > 70 * 64);
    }
}
