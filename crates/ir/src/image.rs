//! Constant bytes of an address space: owned, or a stretch of a private copy of a file.

use std::fs::File;
use std::io::Read as _;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::memory::{self, MemoryError};

/// Immutable bytes that are cheap to clone.
#[derive(Clone)]
pub struct Image {
    source: Source,
    range: Range<usize>,
}

#[derive(Clone)]
enum Source {
    Owned(Arc<[u8]>),
    /// Memory of its own that is sealed against every change.
    Sealed(Arc<Sealed>),
}

impl Image {
    /// Copies a whole file into memory of its own: what becomes of the file afterwards changes nothing. On Linux that memory
    /// is a sealed one (`memfd_create`), which no process can write to any more, and which processes of one user share.
    ///
    /// # Errors
    /// The system's, or that the file exceeds the memory limit.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }
        let limit = memory::limit();
        let refused = |bytes| std::io::Error::other(MemoryError { what: "the file's size".to_owned(), bytes, limit });
        if metadata.len() > limit {
            return Err(refused(metadata.len()));
        }
        if metadata.len() >= SEALED
            && let Some(copy) = sealed(&file, limit)
        {
            let range = 0..copy.map.len();
            return Ok(Self { source: Source::Sealed(Arc::new(copy)), range });
        }
        // A pipe has no length.
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
        let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if read as u64 > limit { Err(refused(read as u64)) } else { Ok(bytes.into()) }
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
            (Source::Sealed(own), Source::Sealed(theirs)) => Arc::ptr_eq(own, theirs),
            _ => false,
        };
        source && self.range == other.range
    }
}

/// Files of fewer bytes are read into ordinary memory, where a mapping would cost more than it saves.
const SEALED: u64 = 1 << 20;
/// Of files of fewer bytes every process makes a copy of its own; to look for another's would take longer.
#[cfg(target_os = "linux")]
const SHARED: u64 = 32 << 20;
/// A file that was changed so many seconds ago might be changed again without another time of change.
#[cfg(target_os = "linux")]
const SETTLED: u64 = 2;

/// A mapping of a sealed copy, and the copy, by which other processes find it.
struct Sealed {
    map: Mmap,
    #[cfg(target_os = "linux")]
    _copy: File,
}

/// A sealed copy of at most `limit` bytes of a file, shared with the processes of the same user that hold one already; `None`
/// where the system offers none.
#[cfg(target_os = "linux")]
fn sealed(file: &File, limit: u64) -> Option<Sealed> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    let before = file.metadata().ok()?;
    let shared = shared_name(&before);
    let is_sealed = |copy: &File| {
        let complete = copy.metadata().is_ok_and(|copy| copy.len() == before.len());
        complete && fcntl_get_seals(copy).is_ok_and(|found| found.contains(seals))
    };
    if let Some(copy) = shared.as_deref().and_then(|name| shared_copies(name).find(is_sealed)) {
        return map(copy, before.len());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut copy = File::from(memfd_create(shared.as_deref().unwrap_or("tpuflow"), flags).ok()?);
    // The standard library lets the kernel copy.
    let bytes = std::io::copy(&mut file.take(limit), &mut copy).ok()?;
    fcntl_add_seals(&copy, seals).ok()?;
    map(copy, bytes)
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "mapping is unsafe by nature; this is the crate's only place")]
fn map(copy: File, bytes: u64) -> Option<Sealed> {
    let length = usize::try_from(bytes).ok()?;
    // SAFETY: the file behind the mapping is sealed: nobody can write to it, make it shorter or longer, or lift the seals, so
    // the bytes stay as they are and every page of them exists as long as the mapping does. A private mapping because older
    // kernels refuse shared ones of sealed files; nobody writes to it, so its pages are those of the file.
    let map = unsafe { memmap2::MmapOptions::new().len(length).populate().map_copy_read_only(&copy).ok()? };
    Some(Sealed { map, _copy: copy })
}

/// The name of the shared copy of a file: by the file, its size and when it was changed. `None`: it is
/// too small, or was changed just now. Whoever takes a copy checks its checksum as that of any file.
#[cfg(target_os = "linux")]
fn shared_name(file: &std::fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;

    let settled = file.modified().ok()?.elapsed().is_ok_and(|age| age.as_secs() >= SETTLED);
    let changed = format!("{}.{}.{}.{}", file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec());
    (settled && file.len() >= SHARED).then(|| format!("tpuflow-{}-{}-{}-{changed}", file.dev(), file.ino(), file.len()))
}

/// Copies of this name that processes of this user hold.
#[cfg(target_os = "linux")]
fn shared_copies(name: &str) -> impl Iterator<Item = File> {
    use std::os::unix::fs::MetadataExt as _;

    let link = format!("/memfd:{name} (deleted)");
    let user = rustix::process::geteuid().as_raw();
    let folders = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    folders(Path::new("/proc"))
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter(move |entry| entry.metadata().is_ok_and(|process| process.uid() == user))
        .flat_map(move |process| folders(&process.path().join("fd")))
        .filter(move |held| std::fs::read_link(held.path()).is_ok_and(|to| to.as_os_str() == link.as_str()))
        .filter_map(|held| File::open(held.path()).ok())
}

/// Sealed copies are known on Linux alone.
#[cfg(not(target_os = "linux"))]
fn sealed(_file: &File, _limit: u64) -> Option<Sealed> {
    None
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.source {
            Source::Owned(bytes) => &bytes[self.range.clone()],
            Source::Sealed(copy) => &copy.map[self.range.clone()],
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

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

    #[test]
    fn what_was_read_stays_whatever_becomes_of_the_file() {
        let path = std::env::temp_dir().join(format!("tpuflow-image-{}", std::process::id()));
        for length in [10, SEALED as usize + 12_345] {
            let bytes: Vec<u8> = (0..length).map(|n| (n * 7 % 251) as u8).collect();
            std::fs::write(&path, &bytes).expect("written");
            let image = Image::read(&path).expect("read");
            let part = image.part(3..length - 1);
            assert_eq!(*image, *bytes);
            // Other bytes in place, of the same size, then none at all.
            let mut file = File::options().write(true).open(&path).expect("opened");
            file.write_all(&vec![9; length]).expect("written");
            assert_eq!(*image, *bytes);
            file.set_len(0).expect("cut");
            file.rewind().expect("sought");
            assert_eq!((&*image, &*part), (&*bytes, &bytes[3..length - 1]));
        }
        std::fs::remove_file(path).expect("removed");
    }

    /// Two readings of a large file that nobody has changed lately are one copy.
    #[cfg(target_os = "linux")]
    #[test]
    fn large_files_are_copied_once_for_all() {
        let path = std::env::temp_dir().join(format!("tpuflow-shared-{}", std::process::id()));
        let mut file = File::create(&path).expect("made");
        file.write_all(&[7; 4096]).expect("written");
        file.set_len(SHARED).expect("grown");
        assert_eq!(shared_name(&file.metadata().expect("known")), None, "it was changed just now");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("aged");
        let name = shared_name(&file.metadata().expect("known")).expect("a large file");
        let (one, two) = (Image::read(&path).expect("read"), Image::read(&path).expect("read"));
        let copy = |image: &Image| match &image.source {
            Source::Sealed(copy) => std::os::unix::fs::MetadataExt::ino(&copy._copy.metadata().expect("known")),
            Source::Owned(_) => 0,
        };
        assert_ne!(copy(&one), 0);
        assert_eq!(copy(&one), copy(&two));
        // What was changed since is another file.
        file.rewind().expect("sought");
        file.write_all(&[8; 4096]).expect("written");
        let three = Image::read(&path).expect("read");
        assert_eq!((one[0], two[4095], three[0]), (7, 7, 8));
        drop((one, two));
        assert_eq!(shared_copies(&name).count(), 0, "nothing is left when nobody holds it");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn folders_and_absent_files_are_errors() {
        assert!(Image::read(&std::env::temp_dir()).is_err());
        assert!(Image::read(Path::new("/nowhere/at/all")).is_err());
    }
}
