//! A program that looks entries of packed tables up: columns of the weights of a product, and groups of rows.

use tpuflow_ir::{
    Arithmetic, DType, Epilogue, Graph, GraphBuilder, Machine, Op, Packed, Program, Quant, Requant, TableEntry, Tensor,
};
use tpuflow_scheduler::{Options, schedule};

fn tensor(name: &str, shape: &[usize], dtype: DType) -> Tensor {
    Tensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype,
        quant: (dtype == DType::I8).then(|| Quant { scale: vec![0.1], zero_point: 0 }),
        source: None,
        constant: None,
        packed: None,
    }
}

fn packed(name: &str, shape: [usize; 2]) -> Tensor {
    let cells = shape[0].div_ceil(16) * shape[1];
    let bytes = |count: usize, step: usize| (0..count).map(|at| (at * step % 251) as u8).collect::<Vec<u8>>().into();
    let packed = Packed {
        block: 16,
        has_zero_points: false,
        is_float: false,
        codes: bytes((shape[0] * shape[1]).div_ceil(2), 37),
        scales: bytes(cells, 53),
        zero_points: Vec::new().into(),
    };
    Tensor { constant: Some(packed.expand(&shape).into()), packed: Some(packed), ..tensor(name, &shape, DType::I8) }
}

fn graph() -> Graph {
    let mut builder = GraphBuilder::new("tables");
    // Any bytes choose entries that there are.
    let mut choice = |name: &str, shape: &[usize], most: usize| {
        let scores = builder.input(tensor(&format!("{name}/scores"), &[shape, &[most]].concat(), DType::I8));
        let op = Op::ArgMax { input: scores.expect("fits"), largest: true, select_last: true };
        let output = tensor(name, &[shape, &[1]].concat(), DType::I32);
        builder.layer(name, op, output, vec![]).expect("fits")
    };
    let (words, chosen) = (choice("words", &[1, 3], 19), choice("chosen", &[1], 3));
    let table = builder.constant(packed("table", [40, 300])).expect("fits");
    let matrices = builder.constant(packed("matrices", [96, 8])).expect("fits");
    let look_up = |table, indices, entry| Op::Embedding { table, indices, entry };
    let shape = [1, 3, 1, 40];
    let op = look_up(table, words, TableEntry::Column);
    let x = builder.layer("columns", op, tensor("x", &shape, DType::I8), vec![]).expect("fits");
    let requant = Requant { multiplier: vec![1], shift: vec![4], zero_point: 0, lo: -128, hi: 127 };
    let epilogue = Arithmetic::Fixed(Epilogue { first_shift: None, requant, table: None });
    let op = Op::MatMul { a: x, b: table, bias: None, epilogue, partial: false };
    let y = builder.layer("product", op, tensor("y", &[1, 3, 1, 300], DType::I8), vec![]).expect("fits");
    let op = look_up(matrices, chosen, TableEntry::Rows(32));
    let z = builder.layer("rows", op, tensor("z", &[1, 1, 256], DType::I8), vec![]).expect("fits");
    builder.output(y);
    builder.output(z);
    builder.finish().expect("sound")
}

/// The program, for a machine of two address spaces.
pub fn program() -> Program {
    let machine = Machine::preset("128x128_asic").expect("known");
    schedule(&graph(), &machine, &Options { level: 5, ..Options::default() }).expect("a sound graph")
}
