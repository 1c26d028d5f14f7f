//! A short seeded run over damaged files: nothing panics, whatever they say. `./start fuzz` runs on for as long as one likes, with
//! limits to time and memory.

mod cases;
mod mutate;
mod tables;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use cases::Material;

const CASES: u64 = 1500;
const TABLES: u64 = 600;
/// Seed and number of cases that panicked once.
const FOUND: [(u64, u64); 2] = [(7, 8089), (7, 13_144)];

#[test]
fn damaged_files_are_refused_or_run() {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/a29a9a2");
    let scratch = std::env::temp_dir().join(format!("tpuflow-fuzz-{}", std::process::id()));
    let material = Material::read(&formats, scratch.clone());
    let (mut refused, mut refused_tables, mut broken) = (0, 0, vec![]);
    for (seed, case) in (0..CASES).map(|case| (1, case)).chain(FOUND) {
        match catch_unwind(AssertUnwindSafe(|| material.run(seed, case))) {
            Ok((_, no)) => refused += u64::from(no),
            Err(_) => broken.push((seed, case)),
        }
    }
    for case in 0..TABLES {
        match catch_unwind(AssertUnwindSafe(|| material.run_tables(1, case))) {
            Ok(no) => refused_tables += u64::from(no),
            Err(_) => broken.push((1, case)),
        }
    }
    std::fs::remove_dir_all(scratch).expect("removed");
    assert!(broken.is_empty(), "cases {broken:?}, by seed and number, panicked");
    // Damage that nobody minds, or that everybody refuses at once, would find nothing.
    assert!(refused > CASES / 2 && refused < CASES, "{refused} of {CASES} were refused");
    assert!(refused_tables > TABLES / 3 && refused_tables < TABLES, "{refused_tables} of {TABLES} were refused");
}
