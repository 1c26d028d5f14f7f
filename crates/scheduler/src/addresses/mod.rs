//! Addresses: of buffers in the caches, and of constants, ports and spilled tensors in external memory.

pub(crate) mod caches;
pub(crate) mod external;
