//! Files that are complete or absent, whatever happens to the process that writes them.
//!
//! A file is written to a temporary one in the folder of its target, flushed and renamed. A link is followed: the file it
//! leads to is replaced where that lies. A device or pipe is written into.
//!
//! Temporary files are named `.tpuflow-PID-RANDOM.part`, created exclusively and locked as long as their writer lives; the
//! system releases the lock of a dead one, by which the next writer in the folder knows what was abandoned and removes it.
//! The Python package (`tpuflow.io.files`) follows the same convention and gives paths of its own temporary files to be
//! written in place, several of which it then publishes together.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{ErrorKind, Result, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crate::error::FileError;

/// How names of temporary files begin.
const PREFIX: &str = ".tpuflow-";
/// Digits of the random part of a name.
const DIGITS: usize = 16;

/// Writes `bytes` to the file `path` leads to, which is complete or as it was; into a device or pipe.
///
/// # Errors
/// [`Error::File`] with the system's reason.
pub fn write(path: &Path, bytes: &[u8]) -> std::result::Result<(), Error> {
    replace(path, bytes).map_err(|error| FileError::System(error).of(path))
}

fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let existing = match std::fs::metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let in_place = is_temporary(path) || existing.as_ref().is_some_and(|found| !found.is_file() && !found.is_dir());
    if in_place {
        // Truncated where it is a file that its maker publishes; devices and pipes take no notice of that.
        return OpenOptions::new().write(true).truncate(true).create(existing.is_none()).open(path)?.write_all(bytes);
    }
    let target = resolve_link(path)?;
    let folder = match target.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(ErrorKind::IsADirectory.into()),
    };
    if existing.as_ref().is_some_and(std::fs::Metadata::is_dir) {
        return Err(ErrorKind::IsADirectory.into());
    }
    remove_abandoned(folder);
    let (beside, mut file) = create_temporary(folder)?;
    let written = file.write_all(bytes).and_then(|()| {
        if let Some(existing) = existing {
            // Where permissions cannot be kept, those of a new file are right as well.
            let _ = file.set_permissions(existing.permissions());
        }
        file.sync_all()?;
        std::fs::rename(&beside, &target)
    });
    if written.is_err() {
        // The reason of the first failure is what the user needs; the file may not even exist any more.
        let _ = std::fs::remove_file(&beside);
    } else if let Ok(folder) = File::open(folder) {
        // Not every file system can flush its folders.
        let _ = folder.sync_all();
    }
    written
}

/// Where the file lies, or will lie, that a path leads to.
fn resolve_link(path: &Path) -> Result<PathBuf> {
    /// As many links as the system itself follows.
    const MOST: usize = 40;
    let mut target = path.to_path_buf();
    for _ in 0..MOST {
        match std::fs::read_link(&target) {
            Ok(next) => target = target.parent().map_or_else(|| next.clone(), |parent| parent.join(&next)),
            Err(_) => return Ok(target),
        }
    }
    Err(std::io::Error::other("too many levels of symbolic links"))
}

/// A new locked file in `folder`.
fn create_temporary(folder: &Path) -> Result<(PathBuf, File)> {
    loop {
        let path = folder.join(format!("{PREFIX}{}-{:0DIGITS$x}.part", std::process::id(), random()));
        let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        };
        // Where the file system knows no locks, nobody can find the file abandoned either.
        let _ = file.lock();
        if path.exists() {
            return Ok((path, file));
        }
        // Another writer took it for an abandoned one, before it was locked.
    }
}

/// A number that no other writer has: seeded by the system, counted on.
fn random() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

/// Whether a path has the name of a temporary file.
fn is_temporary(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| {
        let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        let Some((process, rest)) = parts else { return false };
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let tail = &rest[digits..];
        !process.is_empty()
            && process.bytes().all(|byte| byte.is_ascii_digit())
            && digits == DIGITS
            && (tail == ".part" || tail.starts_with(".part."))
    })
}

/// Removes temporary files that nobody holds locked: their writers are dead. What cannot be removed is left.
fn remove_abandoned(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !is_temporary(&path) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // A writer that renames its file holds the lock until it has; a name that is gone is not removed.
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
            && same(&file, &path)
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Whether `path` still names the file that was opened.
#[cfg(unix)]
fn same(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let place = |found: &std::fs::Metadata| (found.dev(), found.ino());
    matches!((file.metadata(), std::fs::symlink_metadata(path)), (Ok(one), Ok(two)) if place(&one) == place(&two))
}

/// Whether `path` still names the file that was opened.
#[cfg(not(unix))]
fn same(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tpuflow-atomic-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temporary folder");
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("listed").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_and_stays() {
        let folder = folder("link");
        std::fs::create_dir_all(folder.join("deep")).expect("made");
        std::os::unix::fs::symlink("deep/target", folder.join("one")).expect("linked");
        std::os::unix::fs::symlink("one", folder.join("two")).expect("linked");
        for text in ["first", "second"] {
            write(&folder.join("two"), text.as_bytes()).expect("written");
            assert_eq!(std::fs::read_to_string(folder.join("deep/target")).expect("read"), text);
        }
        assert_eq!(std::fs::read_link(folder.join("two")).expect("a link"), Path::new("one"));
        assert_eq!(names(&folder.join("deep")), ["target"]);
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_written_into() {
        use std::os::unix::fs::FileTypeExt as _;
        let message = write(Path::new("/dev/full"), b"text").expect_err("refused").to_string();
        assert!(message.starts_with("/dev/full: "), "{message}");
        assert!(std::fs::metadata("/dev/full").expect("there").file_type().is_char_device());
        write(Path::new("/dev/null"), b"text").expect("written");
    }

    #[test]
    fn a_folder_is_an_error() {
        let folder = folder("folder");
        assert!(write(&folder, b"text").is_err());
        assert!(write(Path::new("."), b"text").is_err());
        assert_eq!(names(&folder), Vec::<String>::new());
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn what_dead_writers_left_is_removed_and_nothing_of_live_ones() {
        let folder = folder("abandoned");
        let left = folder.join(".tpuflow-1-0123456789abcdef.part.json");
        std::fs::write(&left, "half").expect("written");
        std::fs::write(folder.join(".tpuflow-1-notes.txt"), "a user's").expect("written");
        let (live, _held) = create_temporary(&folder).expect("created");
        write(&folder.join("file"), b"text").expect("written");
        let live = live.file_name().expect("named").to_string_lossy().into_owned();
        let mut expected = vec![live, ".tpuflow-1-notes.txt".to_owned(), "file".to_owned()];
        expected.sort();
        assert_eq!(names(&folder), expected);
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_temporary_file_is_written_in_place() {
        let folder = folder("staged");
        let (path, mut held) = create_temporary(&folder).expect("created");
        held.write_all(b"longer than what follows").expect("written");
        write(&path, b"text").expect("written");
        assert_eq!(std::fs::read(&path).expect("read"), b"text");
        assert!(same(&held, &path), "the file is the one that was locked");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn writers_of_one_file_do_not_meet() {
        let folder = folder("race");
        let path = folder.join("file");
        std::thread::scope(|scope| {
            for letter in b'a'..b'e' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..50 {
                        write(path, &[letter; 1000]).expect("written");
                        let found = std::fs::read(path).expect("always there");
                        assert!(found.len() == 1000 && found.iter().all(|byte| *byte == found[0]), "one writer's");
                    }
                });
            }
        });
        assert_eq!(names(&folder), ["file"]);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
