//! Large pages for memory that is read again and again.
//!
//! A network's weights and activations lie in thousands of pages of 4 KiB, more than the processor keeps the addresses of, and
//! each is met once a run. In pages of 2 MiB that costs nothing.

use std::ops::Range;

/// Addresses.
pub type Addresses = Range<usize>;

/// The addresses of a slice.
pub(crate) fn of<T>(memory: &[T]) -> Addresses {
    let range = memory.as_ptr_range();
    range.start.addr()..range.end.addr()
}

/// Asks the system to put this memory, which stays for long, into large pages, with what lies beside it there. It may refuse.
/// To ask takes milliseconds.
pub fn enlarge(memory: impl Iterator<Item = Addresses>) {
    for range in covering_pages(memory.collect()) {
        collapse(&range);
    }
}

/// The large pages that hold any of `memory`, neighbours together.
fn covering_pages(mut memory: Vec<Addresses>) -> Vec<Addresses> {
    const LARGE: usize = 2 << 20;
    memory.retain(|range| !range.is_empty());
    memory.sort_unstable_by_key(|range| range.start);
    let mut pages: Vec<Addresses> = Vec::new();
    for range in memory {
        let (start, end) = (range.start / LARGE * LARGE, range.end.next_multiple_of(LARGE));
        match pages.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => pages.push(start..end),
        }
    }
    pages
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "advice about memory")]
fn collapse(pages: &Addresses) {
    let first = std::ptr::without_provenance_mut(pages.start);
    // SAFETY: this changes how memory is mapped, not what it holds; where nothing is mapped, or something that cannot be in
    // large pages, the system does nothing.
    let _ = unsafe { libc::madvise(first, pages.len(), libc::MADV_COLLAPSE) };
}

/// Elsewhere the system decides by itself.
#[cfg(not(target_os = "linux"))]
fn collapse(_: &Addresses) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_memory_once() {
        const M: usize = 1 << 20;
        let memory = vec![9 * M..9 * M, 5 * M..5 * M + 1, 3 * M..4 * M, 10 * M - 1..10 * M + 1, 3 * M..3 * M + 1];
        assert_eq!(covering_pages(memory), [2 * M..6 * M, 8 * M..12 * M]);
        assert_eq!(covering_pages(vec![]), []);
    }

    /// Contents of the memory stay, whatever the system makes of the advice.
    #[test]
    fn values_stay() {
        let values: Vec<usize> = (0..1 << 20).collect();
        enlarge([of(&values), of(&values[7..9])].into_iter());
        assert!(values.iter().enumerate().all(|(i, &value)| i == value));
    }
}
