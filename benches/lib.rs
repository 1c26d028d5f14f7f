//! Fixed, named inputs shared by the benches.
