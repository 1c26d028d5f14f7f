//! Every operator on every element type, at both levels, on machines of several sizes: the program gives the interpreter's bits.

use crate::common::operators::{OPERATORS, TYPES, alone, cast};
use crate::common::tiny;
use crate::trial::trial;
use tpuflow_ir::{DType, Machine};
use tpuflow_simulator::{ArrayModel, Options};

fn machines() -> [Machine; 3] {
    [tiny(64), Machine::preset("32x32_fpga").unwrap(), Machine::preset("128x128_asic").unwrap()]
}

fn everywhere(dtype: DType) {
    for (seed, (name, make)) in OPERATORS.iter().enumerate() {
        let graph = alone(*make, dtype, seed as u64);
        for machine in machines() {
            for level in [1, 5] {
                trial(&graph, &machine, level, 3, &Options::default())
                    .unwrap_or_else(|e| panic!("{name} {} on {} O{level}: {e}", dtype.name(), machine.name));
            }
        }
    }
}

macro_rules! of_type {
    ($($test:ident $dtype:ident)*) => { $(
        #[test]
        fn $test() {
            everywhere(DType::$dtype);
        }
    )* };
}

of_type! {
    every_operator_in_int8 I8
    every_operator_in_int16 I16
    every_operator_in_float16 F16
    every_operator_in_bfloat16 BF16
    every_operator_in_float32 F32
}

#[test]
fn casts_between_all_types() {
    for from in TYPES.into_iter().filter(|t| t.is_float()) {
        for to in [DType::I8, DType::I16, DType::I32] {
            for machine in machines() {
                trial(&cast(from, to), &machine, 5, 1, &Options::default()).unwrap();
            }
        }
    }
}

#[test]
fn floats_through_every_register_of_the_array() {
    let options = Options { array: ArrayModel::Register, ..Options::default() };
    for dtype in TYPES.into_iter().filter(|t| t.is_float()) {
        for (seed, (name, make)) in OPERATORS.iter().enumerate() {
            if ["conv", "matmul", "product"].iter().any(|of| name.starts_with(of)) {
                let graph = alone(*make, dtype, seed as u64);
                trial(&graph, &tiny(64), 5, 3, &options).unwrap_or_else(|e| panic!("{name} {}: {e}", dtype.name()));
            }
        }
    }
}
