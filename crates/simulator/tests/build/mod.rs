//! Programs by hand: enough of a builder to write an instruction in a line.
#![allow(dead_code, reason = "every test file uses its part")]

use smallvec::SmallVec;
use tpuflow_ir::isa::{
    Codes, Direction, Matrix, MatrixDescriptor, Pool, PoolDescriptor, PoolKind, Transfer, Vector, VectorOp, Weights,
};
use tpuflow_ir::program::{Bounds, LayerSummary};
use tpuflow_ir::{
    DType, Descriptor, DescriptorId, Image, Instruction, LayerId, Machine, Port, Program, Space, Unit, View, Wait,
    Window, Work,
};

/// A machine small enough to count on fingers: 8 x 8 PEs, words of 8 bytes, 4 banks of 32 words.
pub fn tiny() -> Machine {
    let text = r#"
        name = "tiny"
        clock_hz = 1_000_000_000
        control = { start = 10, issue = 4, issue_cold = 6 }
        array = { rows = 8, columns = 8, setup = 5, accumulators = 32 }
        feeder = { words = 2 }
        ewp = { lanes = 4, start = 7, latency = 3, move = 1, bilinear = 4, softmax = 3, layer_norm = 3, rms_norm = 2, reduce = 1 }
        pdp = { lanes = 8, taps = 3, start = 5, latency = 4 }
        cache = { banks = 4, words = 32, word_bytes = 8 }
        ewp_cache = { banks = 2, words = 32 }
        dma = { lines = 2, start = 6, latency = 2 }
        ddr = { channels = 2, word_bytes = 4, clock_hz = 1_000_000_000, capacity_bytes = 65536, page_bytes = 64, page_miss_ns = 3, interleave_bytes = 0 }
    "#;
    Machine::parse("tiny", text).expect("sound")
}

pub fn asic() -> Machine {
    Machine::preset("128x128_asic").expect("known")
}

/// A program without instructions, with one layer per unit.
pub fn program(machine: &Machine, ddr_bytes: u64) -> Program {
    let layer = |unit: Unit| LayerSummary {
        name: format!("layer {}", unit.name()),
        op: "test".to_owned(),
        dtype: DType::I8,
        unit,
        macs: 0,
        bound: 0,
        binding: "array".to_owned(),
        nodes: vec![],
    };
    Program {
        name: "test".to_owned(),
        machine: machine.clone(),
        batch: 1,
        level: 1,
        fallback: None,
        descriptors: vec![],
        instructions: vec![],
        constants: vec![],
        ddr_bytes: vec![ddr_bytes; machine.ddr_spaces()],
        spill_bytes: 0,
        cache_peak_bytes: 0,
        inputs: vec![],
        outputs: vec![],
        states: vec![],
        exchanges: vec![],
        position: None,
        tilings: vec![],
        layers: Unit::ALL.map(layer).to_vec(),
        bounds: Bounds::default(),
        predicted_cycles: 0,
        allocations: vec![],
        stream: None,
    }
}

pub fn descriptor(program: &mut Program, descriptor: Descriptor) -> DescriptorId {
    program.descriptors.push(descriptor);
    DescriptorId::new(program.descriptors.len() - 1)
}

/// Appends an instruction of `unit` that waits as told.
pub fn push(program: &mut Program, unit: Unit, waits: &[(Unit, u32)], work: Work) {
    program.instructions.push(Instruction {
        unit,
        layer: LayerId::new(unit.index()),
        waits: waits.iter().map(|&(unit, count)| Wait { unit, count }).collect(),
        work,
    });
}

/// One contiguous run.
pub fn transfer(direction: Direction, space: u8, ddr: u64, local: u64, bytes: u32) -> Work {
    Work::Transfer(Transfer {
        direction,
        ddr_space: space,
        ddr_address: ddr,
        local_space: Space::Cache,
        local_address: local,
        bytes,
        counts: [1, 1],
        ddr_strides: [0, 0],
        local_strides: [0, 0],
    })
}

pub fn load(space: u8, ddr: u64, local: u64, bytes: u32) -> Work {
    transfer(Direction::Load, space, ddr, local, bytes)
}

pub fn store(space: u8, ddr: u64, local: u64, bytes: u32) -> Work {
    transfer(Direction::Store, space, ddr, local, bytes)
}

pub const CODES: Codes = Codes { zero_point: 0, lo: -128, hi: 127 };
pub const POINT: Window = Window { kernel: [1, 1], stride: [1, 1], dilation: [1, 1], pads: [0; 4] };

pub fn cache_view(machine: &Machine, shape: &[usize], dtype: DType, address: u64) -> View {
    View::whole(shape, dtype, machine.word(), Space::Cache, address)
}

/// A product `[pixels, k] x [k, columns]` of one column tile; input, weights and output at cache addresses.
pub fn product(program: &mut Program, pixels: usize, k: usize, columns: usize, at: [u64; 3]) -> Work {
    let machine = program.machine.clone();
    let d = MatrixDescriptor {
        window: POINT,
        group_in: k as u32,
        group_out: columns as u32,
        input_zero: 0,
        weight_zero: 0,
        weight_dtype: DType::I8,
        first_shift: None,
        codes: CODES,
        table: None,
        float: None,
    };
    let id = descriptor(program, Descriptor::Matrix(d));
    let row = View::whole(&[1, columns], DType::I8, machine.word(), Space::Cache, 0).row_bytes(machine.word());
    Work::Matrix(Matrix {
        descriptor: id,
        input: cache_view(&machine, &[pixels, k], DType::I8, at[0]),
        output: cache_view(&machine, &[pixels, columns], DType::I8, at[2]),
        first_pixel: 0,
        pixels: pixels as u32,
        first_column: 0,
        columns: columns as u32,
        output_channel: 0,
        weights: Weights { address: at[1], row_bytes: row as u32, plane_bytes: 0 },
        parameters: 0,
        table: 0,
    })
}

/// An elementwise operator over all rows of `[rows, width, channels]`.
pub fn vector(program: &mut Program, op: VectorOp, inputs: &[View], output: View) -> Work {
    let id = descriptor(program, Descriptor::Vector(op));
    let (first_row, rows) = (0, output.rows);
    Work::Vector(Vector {
        descriptor: id,
        inputs: SmallVec::from_slice(inputs),
        output,
        first_row,
        rows,
        parameters: 0,
    })
}

pub fn pool(program: &mut Program, kind: PoolKind, window: Window, input: View, output: View) -> Work {
    let id = descriptor(program, Descriptor::Pool(PoolDescriptor { kind, window }));
    let (first_row, rows) = (0, output.rows);
    Work::Pool(Pool { descriptor: id, input, output, first_row, rows, weights: 0, parameters: 0, table: 0 })
}

pub fn port(machine: &Machine, name: &str, shape: &[usize], dtype: DType, address: u64) -> Port {
    Port {
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype,
        quant: None,
        source: None,
        view: View::whole(shape, dtype, machine.word(), Space::Ddr(0), address),
        parts: vec![],
    }
}

pub fn constants(program: &mut Program, bytes: Vec<u8>) {
    program.constants = vec![Image::from(bytes)];
}
