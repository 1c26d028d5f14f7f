//! A short seeded run over damaged files: nothing panics, whatever they say. `./start fuzz` runs on for as long as one likes, with
//! limits to time and memory.

mod cases;
mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use cases::Material;

const CASES: u64 = 1500;

#[test]
fn damaged_files_are_refused_or_run() {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/a29a9a2");
    let scratch = std::env::temp_dir().join(format!("tpuflow-fuzz-{}", std::process::id()));
    let material = Material::read(&formats, scratch.clone());
    let (mut refused, mut broken) = (0, vec![]);
    for case in 0..CASES {
        match catch_unwind(AssertUnwindSafe(|| material.run(1, case))) {
            Ok((_, no)) => refused += u64::from(no),
            Err(_) => broken.push(case),
        }
    }
    std::fs::remove_dir_all(scratch).expect("removed");
    assert!(broken.is_empty(), "cases {broken:?} of seed 1 panicked");
    // Damage that nobody minds, or that everybody refuses at once, would find nothing.
    assert!(refused > CASES / 2 && refused < CASES, "{refused} of {CASES} were refused");
}
