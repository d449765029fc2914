//! A path, and the text that stands for it in messages.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A path of the configuration, and its text for messages, the log and status pages.
///
/// Path and text differ where the configuration has a variable (`{$FILE}`), since its value may be
/// a secret. [`display`](Self::display) takes precedence over [`Path::display`] of the dereferenced
/// path, so that no output contains the value. Two values are equal if their paths and their texts
/// are equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShownPath {
    path: Arc<Path>,
    /// The text for messages; `None`: the path itself.
    shown: Option<Arc<str>>,
}

impl ShownPath {
    /// Makes a `path` that messages show as `shown`.
    pub fn new(path: impl Into<PathBuf>, shown: &str) -> Self {
        Self { path: path.into().into(), shown: Some(shown.into()) }
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// Returns the path's text for messages.
    pub fn display(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| match &self.shown {
            Some(shown) => f.write_str(shown),
            None => write!(f, "{}", self.path.display()),
        })
    }

    /// Returns the text for messages, if it is not the path itself.
    pub(crate) fn hidden_by(&self) -> Option<&str> {
        self.shown.as_deref()
    }

    /// Returns `inner`, relative to this directory unless `inner` is absolute.
    #[must_use]
    pub fn join(&self, inner: &Self) -> Self {
        let path = self.path.join(inner.as_path());
        let is_hidden = self.shown.is_some() || inner.shown.is_some();
        let shown = match inner.path.is_absolute() {
            true => inner.shown.clone(),
            false => is_hidden.then(|| format!("{}/{}", self.display(), inner.display()).into()),
        };
        Self { path: path.into(), shown }
    }

    /// Returns `path`, such as a file beside this one, with this path's text for messages.
    #[must_use]
    pub fn derive(&self, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into().into(), shown: self.shown.clone() }
    }
}

impl Deref for ShownPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for ShownPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<OsStr> for ShownPath {
    fn as_ref(&self) -> &OsStr {
        self.path.as_os_str()
    }
}

impl<P: Into<PathBuf>> From<P> for ShownPath {
    fn from(path: P) -> Self {
        Self { path: path.into().into(), shown: None }
    }
}

/// Writes the text for messages in quotes.
impl fmt::Debug for ShownPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.display().to_string(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_paths_show_no_value() {
        let (plain, hidden) = (ShownPath::from("/etc"), ShownPath::new("/run/s3cr3t", "{$ROOT}"));
        let inner = |path: &str, shown: Option<&str>| match shown {
            Some(shown) => ShownPath::new(path, shown),
            None => ShownPath::from(path),
        };
        for (outer, inner, path, shown) in [
            (&plain, inner("hosts", None), "/etc/hosts", "/etc/hosts"),
            (&plain, inner("s3cr3t", Some("{$F}")), "/etc/s3cr3t", "/etc/{$F}"),
            (&plain, inner("/s3cr3t", Some("{$F}")), "/s3cr3t", "{$F}"),
            (&hidden, inner("hosts", None), "/run/s3cr3t/hosts", "{$ROOT}/hosts"),
            (&hidden, inner("s3cr3t", Some("{$F}")), "/run/s3cr3t/s3cr3t", "{$ROOT}/{$F}"),
            (&hidden, inner("/etc/hosts", None), "/etc/hosts", "/etc/hosts"),
        ] {
            let joined = outer.join(&inner);
            assert_eq!((joined.as_path(), joined.display().to_string()), (Path::new(path), shown.to_owned()));
            assert_eq!(format!("{joined:?}"), format!("{shown:?}"));
        }
        assert_eq!(hidden.derive("/run/s3cr3t.new").display().to_string(), "{$ROOT}");
        assert_ne!(hidden, ShownPath::from("/run/s3cr3t"), "a reload without the variable shows the path");
    }
}
