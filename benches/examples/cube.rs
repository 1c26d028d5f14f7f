//! A product of 1024 cubed in one thread, for `peers/gemm.py`: reads a number of runs per line, answers with the nanoseconds
//! each took.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example cube -- avx512vnni|amx|... sums|codes
//! ```

#![expect(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::io::stdin;
use std::time::Instant;

use tpuflow_ir::Requant;
use tpuflow_kernels::epilogue::Epilogue;
use tpuflow_kernels::gemm::{PackedI8, Rows};
use tpuflow_kernels::linear::{Linear, Matrix, Scratch};
use tpuflow_kernels::{Isa, Values};

const SIDE: usize = 1024;
/// Bytes of a cache line.
const LINE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [isa, result] = &names[..] else { return Err("cube ISA sums|codes".into()) };
    let isa =
        Isa::variants().into_iter().find(|known| known.name() == isa.as_str()).ok_or("no such instruction set here")?;
    let codes = |seed: u32| -> Vec<i8> {
        (0..(SIDE * SIDE) as u32).map(|i| ((i ^ seed).wrapping_mul(2_654_435_761) >> 24) as i8).collect()
    };
    let b = codes(2);
    // As the loops have them: operands and results begin where cache lines do.
    let mut a = vec![0; SIDE * SIDE + LINE];
    let first = a.as_ptr().align_offset(LINE);
    a[first..][..SIDE * SIDE].copy_from_slice(&codes(1));
    let mut run: Box<dyn FnMut()> = match result.as_str() {
        "sums" => {
            let packed = PackedI8::new(isa, &b, SIDE, SIDE, [SIDE, 1]);
            let (mut c, mut rows) = (vec![0; SIDE * SIDE + LINE], Rows::default());
            let begin = c.as_ptr().align_offset(LINE);
            Box::new(move || {
                packed.multiply(&a[first..][..SIDE * SIDE], &mut c[begin..][..SIDE * SIDE], &mut rows);
            })
        }
        _ => {
            let (multiplier, shift) = (vec![21_845; SIDE], vec![26; SIDE]);
            let requant = Requant { multiplier, shift, zero_point: -128, lo: -128, hi: 127 };
            let matrix =
                Matrix { codes: &Values::I8(b), start: 0, shape: [SIDE, SIDE], strides: [SIDE, 1], zero_point: 0 };
            let linear = Linear::new(&matrix, false, -3, &vec![100; SIDE], Epilogue::with(isa, requant, None));
            let (mut y, mut scratch) = (vec![0i8; SIDE * SIDE + LINE], Scratch::default());
            let begin = y.as_ptr().align_offset(LINE);
            Box::new(move || {
                linear.rows(&a[first..][..SIDE * SIDE], &mut y[begin..][..SIDE * SIDE], SIDE, &mut scratch);
            })
        }
    };
    run();
    println!("ready");
    for line in stdin().lines() {
        let times = (0..line?.trim().parse()?).map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos().to_string()
        });
        println!("[{}]", times.collect::<Vec<String>>().join(", "));
    }
    Ok(())
}
