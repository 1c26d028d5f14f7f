//! The header in the repository is the one cbindgen makes of the sources.

use std::path::Path;

#[test]
fn the_header_is_the_one_of_the_sources() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("a sound configuration");
    // Modules are followed from here.
    let bindings = cbindgen::Builder::new().with_config(config).with_src(here.join("src/lib.rs")).generate();
    let mut made = Vec::new();
    bindings.expect("sources that can be read").write(&mut made);
    let kept = here.join("include/tpuflow.h");
    if std::fs::read(&kept).ok().as_deref() != Some(&made) {
        let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tpuflow.h");
        std::fs::write(&fresh, made).expect("a folder for it");
        panic!("the header is stale: cp {} {}", fresh.display(), kept.display());
    }
}
