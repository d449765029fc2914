//! Reads the list of services, and validates the names: from a variable, or from a file that is
//! read again when it changes.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use files::FileVersion;
use thiserror::Error;
use wire::Name;

/// A service as `name.namespace.svc`; name and namespace are RFC 1123 labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Service(Box<str>);

impl Service {
    pub(crate) fn read(word: &str) -> Option<Self> {
        let mut labels = word.split('.');
        let known = (labels.next(), labels.next(), labels.next(), labels.next());
        let (Some(name), Some(namespace), Some("svc"), None) = known else { return None };
        (is_label(name) && is_label(namespace)).then(|| Self(word.into()))
    }

    /// Returns the service as `name.namespace.svc`.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the service's domain name in the cluster's domain; `None` if the name exceeds 255
    /// bytes.
    pub(crate) fn full_name(&self, domain: &str) -> Option<Name> {
        Name::from_text(&format!("{self}.{domain}")).ok()
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether the text is a label of RFC 1123, section 2.1, as in Kubernetes: lower case, and at most
/// 63 bytes.
pub(crate) fn is_label(text: &str) -> bool {
    let inner = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    inner && (1..=63).contains(&text.len()) && !text.starts_with('-') && !text.ends_with('-')
}

/// The services, including the built-in ones.
#[derive(Debug)]
pub(crate) struct Services {
    names: BTreeSet<Service>,
    file: Option<ServicesFile>,
}

#[derive(Debug, Clone)]
pub(crate) struct ServicesFile {
    path: PathBuf,
    seen: Seen,
}

/// The version of the file that was last read, or the error.
type Seen = Result<FileVersion, io::ErrorKind>;

/// Why a list of services cannot be used.
#[derive(Debug, Error)]
pub enum ServicesError {
    /// A word that is not a service.
    #[error(
        "{place}: {word:?} is not a service: expected name.namespace.svc, name and namespace of a-z, 0-9 and - inside, 63 characters at most"
    )]
    Service {
        /// The place of the word: `file:line:column`.
        place: String,
        /// The word, shortened.
        word: String,
    },
    /// The list is too long.
    #[error("{place}: {word:?} exceeds the limit of {} services besides {}", MAX_SERVICES, always())]
    TooManyServices {
        /// The place of the word: `file:line:column`.
        place: String,
        /// The first word above the limit.
        word: String,
    },
    /// The file of services cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is larger than 64 KiB.
    #[error("{} is larger than {} bytes", .0.display(), MAX_BYTES)]
    LargeFile(PathBuf),
}

/// The result of a check of the list.
#[derive(Debug)]
pub(crate) enum Looked {
    /// Unchanged, or still invalid.
    Same,
    /// There is a new list.
    New,
    /// The new list is invalid.
    Bad(ServicesError),
}

impl Services {
    /// Reads the list from a variable's value.
    ///
    /// # Errors
    /// The first word that is not a service.
    pub(crate) fn from_text(source: &str, text: &str) -> Result<Self, ServicesError> {
        Ok(Self { names: read(source, text)?, file: None })
    }

    /// Reads the list from a file, in which `#` begins a comment.
    ///
    /// # Errors
    /// Errors of the file, or the first word that is not a service.
    pub(crate) fn from_file(path: &Path) -> Result<Self, ServicesError> {
        let (text, stamp) =
            files::read_version(path, MAX_BYTES, || {}).map_err(|error| unread(path, error))?;
        let file = ServicesFile { path: path.to_owned(), seen: Ok(stamp) };
        Ok(Self { names: read_text(path, &text)?, file: Some(file) })
    }

    /// Returns the services, sorted.
    pub(crate) fn names(&self) -> &BTreeSet<Service> {
        &self.names
    }

    /// Returns the name of the list's source: the variable or the file.
    pub(crate) fn source(&self) -> String {
        self.file.as_ref().map_or_else(|| VARIABLE.to_owned(), |file| file.path.display().to_string())
    }

    /// Returns the file, with the version last seen.
    pub(crate) fn file(&self) -> Option<ServicesFile> {
        self.file.clone()
    }

    /// Replaces the list if the file has changed; an invalid file does not change the list.
    pub(crate) fn take(&mut self, read: Read) -> Looked {
        let Some(file) = &mut self.file else { return Looked::Same };
        let (seen, text) = match read {
            Ok(files::Change::Text(text, stamp)) => (Ok(stamp), Ok(text)),
            Ok(files::Change::Unchanged | files::Change::BeingWritten) => return Looked::Same,
            Err(error) => (Err(error.kind()), Err(error)),
        };
        if seen == file.seen {
            return Looked::Same;
        }
        file.seen = seen;
        let names =
            text.map_err(|error| unread(&file.path, error)).and_then(|text| read_text(&file.path, &text));
        match names {
            Ok(names) if names == self.names => Looked::Same,
            Ok(names) => {
                self.names = names;
                Looked::New
            }
            Err(error) => Looked::Bad(error),
        }
    }
}

/// The result of a read: a new text, or that the file is unchanged since the version last seen.
pub(crate) type Read = io::Result<files::Change>;

impl ServicesFile {
    /// Reads the file, unless it is unchanged. Blocks for at most [`files::READ_TIMEOUT`].
    pub(crate) fn read(self) -> Read {
        let (of, seen) = (self.path.clone(), self.seen.ok());
        files::with_timeout(&self.path, files::READ_TIMEOUT, move || {
            files::read_if_changed(&of, seen, MAX_BYTES, || {})
        })?
    }
}

fn unread(path: &Path, source: io::Error) -> ServicesError {
    match source.kind() {
        io::ErrorKind::FileTooLarge => ServicesError::LargeFile(path.to_owned()),
        _ => ServicesError::File { path: path.to_owned(), source },
    }
}

fn read_text(path: &Path, bytes: &[u8]) -> Result<BTreeSet<Service>, ServicesError> {
    let text = String::from_utf8_lossy(bytes);
    let without_comments: Vec<&str> =
        text.lines().map(|line| line.split('#').next().unwrap_or_default()).collect();
    read(&path.display().to_string(), &without_comments.join("\n"))
}

/// Parses names separated by commas, spaces and line feeds, and adds the built-in names.
fn read(source: &str, text: &str) -> Result<BTreeSet<Service>, ServicesError> {
    let mut names: BTreeSet<Service> = ALWAYS.lines().filter_map(Service::read).collect();
    let most = names.len() + MAX_SERVICES;
    for (number, line) in text.lines().enumerate() {
        let mut column = 1;
        for word in line.split(|c: char| c == ',' || c.is_ascii_whitespace()) {
            let place = format!("{source}:{}:{column}", number + 1);
            column += word.chars().count() + 1;
            if word.is_empty() {
                continue;
            }
            let shown = || word.chars().take(SHOWN).collect();
            let Some(service) = Service::read(word) else {
                return Err(ServicesError::Service { place, word: shown() });
            };
            names.insert(service);
            if names.len() > most {
                return Err(ServicesError::TooManyServices { place, word: shown() });
            }
        }
    }
    Ok(names)
}

/// Returns the built-in names, as text.
pub(crate) fn always() -> String {
    ALWAYS.lines().filter(|line| Service::read(line).is_some()).collect::<Vec<_>>().join(", ")
}

/// The variable that lists services.
pub(crate) const VARIABLE: &str = "SERVICES";
/// The built-in services, one name per line.
const ALWAYS: &str = include_str!("../data/services");
/// Maximum number of services besides the built-in ones.
pub(crate) const MAX_SERVICES: usize = 20;
/// Maximum size of the list in bytes.
pub(crate) const MAX_BYTES: u64 = 64 << 10;
/// Maximum number of characters of an invalid word in an error.
const SHOWN: usize = 100;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let services = Services::from_text("SERVICES", text).map_err(|error| error.to_string())?;
        Ok(services.names().iter().map(Service::to_string).filter(|name| *name != always()).collect())
    }

    #[test]
    fn names_by_commas_spaces_and_lines() {
        for (text, want) in [
            ("", &[][..]),
            (" ,, \n\t", &[]),
            ("a.n.svc,,b.n.svc\n c.n.svc", &["a.n.svc", "b.n.svc", "c.n.svc"]),
            ("b.n.svc\r\na.n.svc,a.n.svc", &["a.n.svc", "b.n.svc"]),
            ("1a-b.0.svc", &["1a-b.0.svc"]),
            (&always(), &[]),
        ] {
            assert_eq!(names(text).unwrap(), want, "{text:?}");
        }
    }

    /// The error names the invalid word.
    #[test]
    fn invalid_word_refuses_the_list() {
        let label = "a".repeat(64);
        for bad in [
            "A_b",
            "x;rm",
            "web",
            "web.t1",
            "web.t1.svc.",
            "web.t1.svc.cluster.local",
            ".t1.svc",
            "web..svc",
            "Web.t1.svc",
            "-a.t1.svc",
            "a-.t1.svc",
            "web.t1.pod",
            "w\u{e4}b.t1.svc",
            "web.t1.svc#",
            "*.t1.svc",
            &format!("{label}.t1.svc"),
            &format!("t1.{label}.svc"),
        ] {
            let error = names(&format!("ok.n.svc\n , {bad} later.n.svc")).unwrap_err();
            assert!(error.starts_with(&format!("SERVICES:2:4: {bad:?} is not a service: ")), "{error}");
        }
    }

    #[test]
    fn twenty_services_are_enough() {
        let list = |count: usize| (0..count).map(|n| format!("s{n}.n.svc ")).collect::<String>();
        assert_eq!(names(&list(20)).unwrap().len(), 20);
        assert_eq!(names(&format!("{}{}{}", list(20), list(20), always())).unwrap().len(), 20);
        let error = names(&list(21)).unwrap_err();
        assert!(
            error.contains("\"s20.n.svc\" exceeds the limit") && error.contains("20 services"),
            "{error}"
        );
    }

    /// An invalid file keeps the list.
    #[test]
    fn changed_file_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("services");
        fs::write(&path, "# for the build\na.n.svc, b.n.svc # both\n").unwrap();
        let mut services = Services::from_file(&path).unwrap();
        let look = |services: &mut Services| services.take(services.file().expect("a file").read());
        assert_eq!(services.names().len(), 3);
        assert!(matches!(look(&mut services), Looked::Same));
        fs::write(&path, "c.n.svc\n\n").unwrap();
        assert!(matches!(look(&mut services), Looked::New));
        let error_of = |looked: Looked| match looked {
            Looked::Bad(error) => error.to_string(),
            looked => panic!("{looked:?}"),
        };
        fs::write(&path, "c.n.svc\nnonsense\n").unwrap();
        assert!(error_of(look(&mut services)).starts_with(&format!("{}:2:1: \"nonsense\"", path.display())));
        assert!(matches!(look(&mut services), Looked::Same), "reported once");
        fs::remove_file(&path).unwrap();
        assert!(error_of(look(&mut services)).contains("No such file"));
        assert!(matches!(look(&mut services), Looked::Same), "reported once");
        assert!(services.names().contains(&Service::read("c.n.svc").unwrap()));
        fs::write(&path, "x".repeat(MAX_BYTES as usize + 1)).unwrap();
        assert!(error_of(look(&mut services)).contains("larger than"));
    }

    #[test]
    fn older_mtime_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("services");
        fs::write(&path, "a.n.svc").unwrap();
        let before = fs::metadata(&path).unwrap();
        let mut services = Services::from_file(&path).unwrap();
        fs::write(&path, "b.n.svc").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        // The clock of file times has a granularity of milliseconds, so the loop waits for a new
        // ctime.
        let changed = |found: fs::Metadata| (found.ctime(), found.ctime_nsec());
        while changed(file.metadata().unwrap()) == changed(before.clone()) {
            file.set_modified(before.modified().unwrap()).unwrap();
        }
        file.set_modified(before.modified().unwrap()).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), before.modified().unwrap());
        let read = services.file().unwrap().read();
        assert!(matches!(services.take(read), Looked::New));
    }
}
