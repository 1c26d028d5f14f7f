//! Why inputs and outputs cannot lie at other addresses.

/// Errors of an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum RelocationError {
    /// A name that no port has.
    #[error("\"{port}\" is neither an input nor an output")]
    Unknown { port: String },
    /// An output that no run computes.
    #[error("\"{port}\" is a constant and stays where constants are")]
    Constant { port: String },
    /// No number of 64 bits.
    #[error("address {address:#x} leaves no space for what lies beside it")]
    Range { address: u64 },
    /// Not a whole number of pages away.
    #[error("{ports:?} cannot lie at {address:#x}: addresses are multiples of {page} bytes plus {offset}")]
    Page { ports: Vec<String>, address: u64, page: u64, offset: u64 },
    /// Behind the end of the memory.
    #[error("{ports:?} would end at {end:#x}, the memory ends at {capacity:#x}")]
    Capacity { ports: Vec<String>, end: u64, capacity: u64 },
    /// Where something else lies.
    #[error("{ports:?} would lie over bytes {start:#x} to {end:#x}, which the program uses")]
    Taken { ports: Vec<String>, start: u64, end: u64 },
    /// Ports that share bytes.
    #[error("{ports:?} lie together and move together, one address is enough")]
    Together { ports: Vec<String> },
    /// Memory that other tensors have as well.
    #[error(
        "{ports:?} share their memory with other tensors (instruction {instruction}): build with io_memory = \"separate\""
    )]
    Shared { ports: Vec<String>, instruction: usize },
}
