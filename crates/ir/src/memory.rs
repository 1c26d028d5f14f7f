//! How much memory this process may take for what files, machines and options ask for.
//!
//! A size from outside is compared with the limit before memory of that size is taken: a file that asks for more is refused
//! with a line that names the field, where the allocator could only end the process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable of the environment that holds the limit, a number of bytes.
pub const VARIABLE: &str = "TPUFLOW_MEMORY_LIMIT";

/// 0: nobody has set it.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// Most bytes one file, program or network may take: what was [set](set_limit), else what the variable [`VARIABLE`] says, else
/// what the computer had free when this was first asked.
#[must_use]
pub fn limit() -> u64 {
    static FREE: OnceLock<u64> = OnceLock::new();
    match LIMIT.load(Ordering::Relaxed) {
        0 => *FREE.get_or_init(|| limit_from_environment().unwrap_or_else(available)),
        limit => limit,
    }
}

/// Sets the limit of this process; 0: back to what the computer has free.
pub fn set_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// `Err` with the reason if `what` asks for more bytes than the limit.
///
/// # Errors
/// One line with the field, what it asks for, the limit and the remedy.
pub fn check(what: &str, bytes: u64) -> Result<(), MemoryError> {
    let limit = limit();
    if bytes > limit { Err(MemoryError { what: what.to_owned(), bytes, limit }) } else { Ok(()) }
}

/// Something asks for more memory than the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} asks for {bytes} bytes of memory, the limit is {limit}: raise it with --memory-limit or {VARIABLE}")]
pub struct MemoryError {
    /// The field or file.
    pub what: String,
    /// Bytes it asks for.
    pub bytes: u64,
    /// Bytes there may be.
    pub limit: u64,
}

/// The limit stated in the environment; a word that is no number states none.
fn limit_from_environment() -> Option<u64> {
    std::env::var(VARIABLE).ok()?.trim().parse().ok().filter(|&limit| limit > 0)
}

/// The memory assumed of systems that state no figure.
const UNKNOWN: u64 = 8 << 30;

/// Free memory of the computer, or of the container if that is less.
#[must_use]
fn available() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let figure = |text: String| text.trim().parse::<u64>().ok();
    let computer = read("/proc/meminfo").and_then(|text| meminfo(&text));
    let container = read("/sys/fs/cgroup/memory.max").and_then(figure).map(|most| {
        let used = read("/sys/fs/cgroup/memory.current").and_then(figure).unwrap_or(0);
        most.saturating_sub(used)
    });
    match (computer, container) {
        (Some(computer), Some(container)) => computer.min(container),
        (Some(free), None) | (None, Some(free)) => free,
        (None, None) => UNKNOWN,
    }
}

/// The line `MemAvailable` in bytes.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_figures_are_read() {
        assert_eq!(meminfo("MemTotal:  100 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert_eq!(meminfo("MemTotal:  100 kB\n"), None);
        assert!(limit() > 0);
    }

    #[test]
    fn the_line_names_field_value_limit_and_remedy() {
        let line = check("cache.banks", u64::MAX).expect_err("more than any computer has").to_string();
        assert!(line.contains("cache.banks") && line.contains(&u64::MAX.to_string()), "{line}");
        assert!(line.contains("--memory-limit") && line.ends_with(VARIABLE), "{line}");
    }
}
