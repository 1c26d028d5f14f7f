//! Constant bytes of an address space: owned, or a stretch of a mapped file.

use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// Immutable bytes that are cheap to clone.
#[derive(Clone)]
pub struct Image {
    source: Source,
    range: Range<usize>,
}

#[derive(Clone)]
enum Source {
    Owned(Arc<[u8]>),
    Mapped(Arc<Mmap>),
}

impl Image {
    /// Maps a whole file.
    ///
    /// # Errors
    /// The system's.
    #[allow(unsafe_code, reason = "mapping a file is unsafe by nature; this is the crate's only place")]
    pub fn map(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::File::open(path)?;
        // SAFETY: the mapping is only ever read. Its bytes must not change while it lives: files of this crate
        // are written beside their target and renamed (`crate::atomic::write`), never changed in place, so a later version is
        // another file and this one stays as it is.
        let map = unsafe { Mmap::map(&file)? };
        let range = 0..map.len();
        Ok(Self { source: Source::Mapped(Arc::new(map)), range })
    }

    /// Part of the bytes, sharing them.
    ///
    /// # Panics
    /// When the range leaves the image.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len(), "a part lies inside its image");
        let start = self.range.start;
        Self { source: self.source.clone(), range: start + range.start..start + range.end }
    }
}

impl Image {
    /// The part that some of its own bytes are, sharing them.
    ///
    /// # Panics
    /// When they are not the image's.
    #[must_use]
    pub fn part_at(&self, bytes: &[u8]) -> Self {
        let start = bytes.as_ptr().addr().wrapping_sub(self.as_ptr().addr());
        self.part(start..start.saturating_add(bytes.len()))
    }

    /// Whether two images are the same bytes of the same source, which is known without looking at them.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let source = match (&self.source, &other.source) {
            (Source::Owned(own), Source::Owned(theirs)) => Arc::ptr_eq(own, theirs),
            (Source::Mapped(own), Source::Mapped(theirs)) => Arc::ptr_eq(own, theirs),
            _ => false,
        };
        source && self.range == other.range
    }

    /// Gives the memory of a mapped file back to the system, which reads the bytes again when they are asked for.
    #[allow(unsafe_code, reason = "advice about a mapping is unsafe for mappings that can be written")]
    pub fn leave(&self) {
        #[cfg(unix)]
        if let Source::Mapped(map) = &self.source {
            // SAFETY: the mapping is shared and never written, so pages that are dropped come back from the file as they were.
            // An error means that the pages stay, which is as well.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.source {
            Source::Owned(bytes) => &bytes[self.range.clone()],
            Source::Mapped(map) => &map[self.range.clone()],
        }
    }
}

impl From<Arc<[u8]>> for Image {
    fn from(bytes: Arc<[u8]>) -> Self {
        let range = 0..bytes.len();
        Self { source: Source::Owned(bytes), range }
    }
}

impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Arc::<[u8]>::from(bytes))
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Image {}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes)", self.len())
    }
}
