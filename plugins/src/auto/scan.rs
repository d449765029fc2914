//! Finds the zone files of a directory and reads those that changed.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use clock::throttle;
use files::ShownPath;
use wire::Name;

use super::setup::DirectorySpec;
use crate::zone_file::{Read, Seen, read_zone};

/// The file of a zone and the versions that were read.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) path: PathBuf,
    pub(super) seen: Seen,
}

/// A zone file of the directory.
pub(super) struct Found {
    pub(super) origin: Name,
    /// The file, with its text for messages.
    pub(super) file: ShownPath,
    pub(super) read: Read,
}

/// The result of a scan.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) zones: Vec<Found>,
    /// Files that are not served, and why.
    pub(super) ignored: Problems,
}

/// The first messages of a scan, and the number of the others.
#[derive(Default)]
pub(super) struct Problems {
    pub(super) first: Vec<String>,
    pub(super) more: usize,
}

impl Problems {
    pub(super) fn add(&mut self, problem: String) {
        if self.first.len() < MOST_MESSAGES {
            self.first.push(problem);
        } else {
            self.more += 1;
        }
    }
}

/// Scans the directory and reads each zone file unless it has the version in `known`. Blocks.
///
/// Directories below are scanned too, at most [`MOST_DEPTH`] deep; symbolic links to files are
/// followed, links to directories and names with `..` in front, such as those of a mounted ConfigMap,
/// are not. Of files with the same origin the first by path counts.
///
/// # Errors
/// The directory cannot be read, or has more than [`MOST_ENTRIES`] entries or [`MOST_ZONES`] zones.
pub(super) fn scan(spec: &DirectorySpec, known: &HashMap<Name, Known>) -> io::Result<Scan> {
    let mut walk = Walk { files: Vec::new(), entries: 0, ignored: Problems::default() };
    walk.directory(&spec.directory, 0)?;
    let mut scan = Scan { zones: Vec::new(), ignored: walk.ignored };
    let mut origins = HashMap::<Name, PathBuf>::new();
    for path in walk.files {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some(groups) = spec.pattern.captures(name) else { continue };
        let file = shown(spec, &path);
        let mut origin = String::new();
        groups.expand(&spec.template, &mut origin);
        let origin = match Name::from_text(&origin) {
            Ok(origin) => origin,
            Err(error) => {
                let why = format!("{} is not served: its zone would be {origin:?}: {error}", file.display());
                scan.ignored.add(why);
                continue;
            }
        };
        if let Some(first) = origins.get(&origin) {
            let (file, first) = (file.display(), shown(spec, first));
            scan.ignored.add(format!(
                "{file} is not served: {} has the same zone {origin}; remove one",
                first.display()
            ));
            continue;
        }
        if origins.len() == MOST_ZONES {
            return Err(io::Error::other(format!(
                "it has more than {MOST_ZONES} zone files; use several directories"
            )));
        }
        let seen = known.get(&origin).filter(|known| known.path == path);
        let read = read_zone(&origin, &file, false, seen.map_or(&[], |known| &known.seen));
        origins.insert(origin, path);
        scan.zones.push(Found { origin, file, read });
    }
    Ok(scan)
}

/// The path with its text for messages: the directory's as written, and the rest.
fn shown(spec: &DirectorySpec, path: &Path) -> ShownPath {
    let rest = path.strip_prefix(spec.directory.as_path()).unwrap_or(path);
    spec.directory.join(&ShownPath::from(rest))
}

struct Walk {
    files: Vec<PathBuf>,
    entries: usize,
    ignored: Problems,
}

impl Walk {
    fn directory(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
            throttle::rest();
            let entry = entry?;
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return Err(io::Error::other(format!("it has more than {MOST_ENTRIES} entries")));
            }
            if !entry.file_name().as_encoded_bytes().starts_with(b"..") {
                names.push((entry.file_name(), entry.file_type()?));
            }
        }
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (name, kind) in names {
            let inner = path.join(name);
            if kind.is_dir() && depth < MOST_DEPTH {
                // The directory may have gone since.
                if let Err(error) = self.directory(&inner, depth + 1) {
                    self.ignored.add(format!("Cannot read {}: {error}", inner.display()));
                }
            } else if kind.is_file() || kind.is_symlink() && inner.is_file() {
                self.files.push(inner);
            }
        }
        Ok(())
    }
}

/// Levels of directories below the one of the directive.
const MOST_DEPTH: usize = 16;
/// Entries of all directories of a directive.
const MOST_ENTRIES: usize = 100_000;
/// Zones of a directive.
const MOST_ZONES: usize = 10_000;
/// Messages of one scan.
const MOST_MESSAGES: usize = 16;
