//! Reads a zone's files, for the plugins that follow zone files.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clock::throttle;
use files::{Change, FileVersion, ShownPath, read_if_changed};
use logging::Logger;
use wire::Name;
use zone::{LoadError, Loaded, Zone};

/// The files that were read, and the zone if one of them has changed.
pub(crate) type Read = (Seen, Result<Option<Loaded>, Failed>);

/// Files and their versions, the zone's own file first.
pub(crate) type Seen = Vec<(PathBuf, FileVersion)>;

/// Why a file is no zone.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The file cannot be read.
    File(io::Error),
    /// Its text.
    Text(Box<LoadError>),
    /// Another program writes it.
    BeingWritten,
}

impl Failed {
    /// The message for the log, with what this means for the zone; `None` while another program writes
    /// the file.
    pub(crate) fn message(&self, file: &impl Display, effect: &str) -> Option<String> {
        match self {
            Self::File(error) => Some(format!("Cannot read {file}: {error}; {effect}")),
            Self::Text(error) => Some(format!("{error}; {effect}")),
            Self::BeingWritten => None,
        }
    }
}

/// Logs that a zone was read, and its warnings, and returns the zone.
pub(crate) fn log_loaded(
    plugin: &'static str,
    file: &impl Display,
    loaded: Loaded,
    is_known: bool,
    logger: &Logger,
) -> Arc<Zone> {
    let Loaded { zone, warnings, warning_count } = loaded;
    for warning in &warnings {
        logger.warning(Some(plugin), &warning.to_string());
    }
    if warning_count > warnings.len() {
        let more = warning_count - warnings.len();
        logger.warning(Some(plugin), &format!("{file}: {more} more warnings"));
    }
    let what = if is_known { "is read again" } else { "is read" };
    let (origin, serial, count) = (zone.origin(), zone.serial(), zone.count());
    logger.info(Some(plugin), &format!("{file} {what}: zone {origin}, serial {serial}, {count} records"));
    Arc::new(zone)
}

/// Reads a zone's files unless all have the versions that were seen; by time, only the first counts.
pub(crate) fn read_zone(
    origin: &Name,
    path: &ShownPath,
    by_mtime: bool,
    seen: &[(PathBuf, FileVersion)],
) -> Read {
    let counted = if by_mtime { seen.len().min(1) } else { seen.len() };
    let is_same = |(path, version): &(PathBuf, FileVersion)| {
        files::open(path).is_ok_and(|(_, metadata)| FileVersion::from(&metadata) == *version)
    };
    if !seen.is_empty() && seen[..counted].iter().all(is_same) {
        return (seen.to_vec(), Ok(None));
    }
    let file = path.display().to_string();
    let hides_path = file != path.as_path().display().to_string();
    let mut texts = Texts { read: Vec::new(), names: Vec::new(), hides_path };
    let text = match texts.text(path, &file) {
        Ok(text) => text,
        Err(failed) => return (texts.read, Err(failed)),
    };
    match zone::load(origin, &file, &text, &mut texts) {
        Ok(loaded) => (texts.read, Ok(Some(loaded))),
        Err(error) => (texts.read, Err(Failed::Text(Box::new(error)))),
    }
}

/// The files of a zone.
struct Texts {
    read: Vec<(PathBuf, FileVersion)>,
    /// Names for messages, with the paths.
    names: Vec<(String, PathBuf)>,
    /// Whether messages name included files as written, without the directory.
    hides_path: bool,
}

impl Texts {
    fn text(&mut self, path: &Path, name: &str) -> Result<Vec<u8>, Failed> {
        match read_if_changed(path, None, zone::MOST_TEXT as u64, throttle::rest).map_err(Failed::File)? {
            Change::Text(text, version) => {
                self.read.push((path.to_owned(), version));
                self.names.push((name.to_owned(), path.to_owned()));
                Ok(text)
            }
            Change::Unchanged | Change::BeingWritten => Err(Failed::BeingWritten),
        }
    }
}

impl zone::Files for Texts {
    /// A relative path starts at the directory of the file that includes.
    fn include(&mut self, file: &str, path: &[u8]) -> Result<(String, Vec<u8>), String> {
        let written = std::str::from_utf8(path).map_err(|_| "the path is not UTF-8".to_owned())?;
        let of = self.names.iter().rfind(|(name, _)| name == file).map(|(_, path)| path.as_path());
        let path = of.and_then(Path::parent).unwrap_or_else(|| Path::new("")).join(written);
        let name = if self.hides_path { written.to_owned() } else { path.display().to_string() };
        match self.text(&path, &name) {
            Ok(text) => Ok((name, text)),
            Err(Failed::File(error)) => Err(error.to_string()),
            Err(_) => Err("another program is writing it".to_owned()),
        }
    }

    fn step(&mut self) {
        throttle::step();
    }
}
