//! Programs through every register of the array, beside the same in closed form: seconds of both; another result is an error.
//!
//! ```text
//! cargo run --release -p tpuflow-benches --example array -- PROGRAM.tpu...
//! ```
//! Inputs are random. Every matrix instruction of the program is stepped through an array of the machine's size; its sums must
//! give the codes, and its cycles be those, of the closed form. As many threads as `RAYON_NUM_THREADS` says.

#![expect(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use tpuflow_benches::Random;
use tpuflow_ir::{Program, Work};
use tpuflow_simulator::{ArrayModel, Options, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:24} {:>10} {:>12} {:>10} {:>12}", "program", "products", "cycles", "closed s", "registers s");
    for path in std::env::args().skip(1) {
        let program = Program::load(Path::new(&path))?;
        let ports = program.inputs.iter();
        let inputs: Vec<Vec<u8>> =
            ports.map(|port| Random(2).bytes(port.shape.iter().product::<usize>() * port.dtype.bytes())).collect();
        let timed = |array| {
            let start = Instant::now();
            let run = simulate(&program, &inputs, &Options { array, ..Options::default() })?;
            Ok::<_, Box<dyn Error>>((run, start.elapsed().as_secs_f64()))
        };
        let (closed, seconds) = timed(ArrayModel::Closed)?;
        let (registers, slow_seconds) = timed(ArrayModel::Register)?;
        if closed != registers {
            return Err(format!("{path}: the registers give another run than the closed form").into());
        }
        let products = program.instructions.iter().filter(|i| matches!(i.work, Work::Matrix(_))).count();
        println!("{:24} {products:10} {:12} {seconds:10.3} {slow_seconds:12.2}", program.name, closed.cycles);
    }
    Ok(())
}
