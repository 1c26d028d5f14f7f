//! Times the loading of programs and graphs: reads, checksum and all.
//!
//! ```text
//! cargo run --release -p tpuflow-ir --example load -- FILE.tpu|FILE.tpuq ...
//! cargo run --release -p tpuflow-ir --example load -- --grow 350 FILE.tpu     # with so many megabytes of constants more
//! ```

#![expect(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tpuflow_ir::{Graph, Image, Program};

/// Each file is loaded so often; the least time counts.
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1).peekable();
    let mut grow = 0;
    if words.next_if(|word| word == "--grow").is_some() {
        grow = words.next().ok_or("--grow MEGABYTES")?.parse()?;
    }
    for path in words.map(PathBuf::from) {
        let own = if grow > 0 { grown(&path, grow)? } else { path.clone() };
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            let start = Instant::now();
            if own.extension().is_some_and(|kind| kind == "tpuq") {
                drop(Graph::load(&own)?);
            } else {
                drop(Program::load(&own)?);
            }
            least = least.min(start.elapsed().as_secs_f64());
        }
        let bytes = std::fs::metadata(&own)?.len();
        println!("{}: {bytes} bytes in {:.1} ms", path.display(), least * 1e3);
        if own != path {
            std::fs::remove_file(own)?;
        }
    }
    Ok(())
}

/// The program with more constants, which nothing reads, in a file of its own.
fn grown(path: &Path, megabytes: usize) -> Result<PathBuf, Box<dyn Error>> {
    let mut program = Program::load(path)?;
    let bytes: Vec<u8> = (0..megabytes << 20).map(|n| ((n * 31) >> 3) as u8).collect();
    program.constants[0] = Image::from([&program.constants[0], &bytes[..]].concat());
    program.ddr_bytes[0] += bytes.len() as u64;
    let grown = std::env::temp_dir().join(format!("tpuflow-load-{}.tpu", std::process::id()));
    program.save(&grown)?;
    Ok(grown)
}
