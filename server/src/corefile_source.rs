//! The source of the configuration, and its text.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corefile::{Corefile, Located, Location};
use sha2::{Digest, Sha512};
use thiserror::Error;

use crate::cli::Flags;
use corefile::VariantError;
use node_cache::TemplateRenderer;
use plugin::{SetupError, Spec};

/// The source of the configuration.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A file, read again at each reload.
    File(PathBuf),
    /// Standard input or a pipe, read once.
    Text(Vec<u8>),
    /// The environment file of AKS LocalDNS, which holds Corefiles; read again at each reload.
    Environment(PathBuf),
    /// node-cache's template, filled at each reload.
    Template(Arc<TemplateRenderer>),
    /// No Corefile: `whoami` and `log` on the default port.
    Default,
}

/// Why there is no Corefile text.
#[derive(Debug, Error)]
pub enum OriginError {
    /// Standard input cannot be read.
    #[error("cannot read the Corefile from standard input: {0}")]
    Stdin(std::io::Error),
    /// A pipe cannot be read.
    #[error("cannot read the Corefile from the pipe {}: {error}", path.display())]
    Pipe {
        /// The pipe.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
}

impl Origin {
    /// Returns the source that the flags select: node-cache's template, `-conf FILE`,
    /// `-conf stdin`, ./Corefile, or none.
    ///
    /// # Errors
    /// Standard input or a pipe cannot be read.
    pub fn find(flags: &Flags) -> Result<Self, OriginError> {
        if let Some(template) = &flags.template {
            return Ok(Self::Template(Arc::new(TemplateRenderer::new(template.clone()))));
        }
        match &flags.conf {
            Some(path) if path == Path::new("stdin") => {
                let mut text = Vec::new();
                std::io::stdin().take(MAX_STDIN + 1).read_to_end(&mut text).map_err(OriginError::Stdin)?;
                Ok(Self::Text(text))
            }
            // A pipe, as with `-conf /dev/stdin` and `-conf <(...)`, can be read only once.
            Some(path) if files::is_pipe(path) => {
                let of = path.clone();
                let mut text = Vec::new();
                let read = move || File::open(of)?.take(MAX_STDIN + 1).read_to_end(&mut text).map(|_| text);
                let text = files::with_timeout(path, files::READ_TIMEOUT, read).map_err(std::io::Error::from);
                let text = text.and_then(|text| text);
                text.map(Self::Text).map_err(|error| OriginError::Pipe { path: path.clone(), error })
            }
            Some(path) => Ok(Self::File(path.clone())),
            None if Path::new("Corefile").exists() => Ok(Self::File("Corefile".into())),
            None => Ok(Self::Default),
        }
    }

    /// Returns the source's file, as an absolute path.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let path = match self {
            Self::File(path) | Self::Environment(path) => path,
            Self::Template(filler) => filler.base(),
            Self::Text(_) | Self::Default => return None,
        };
        std::path::absolute(path).ok()
    }

    /// Returns the renderer of the template, if there is one.
    pub(crate) fn filler(&self) -> Option<&Arc<TemplateRenderer>> {
        match self {
            Self::Template(filler) => Some(filler),
            _ => None,
        }
    }

    /// Returns the current text of the Corefile, without imports.
    ///
    /// # Errors
    /// Errors of the file.
    pub(crate) fn text(&self) -> std::io::Result<String> {
        let bytes = match self {
            Self::File(path) => files::read_with_timeout(path, MAX_STDIN)?,
            Self::Text(text) => text.clone(),
            Self::Environment(path) => {
                from_environment(path).map_err(std::io::Error::other).map(|(_, text)| text)?
            }
            Self::Template(filler) => filler.text().map_err(std::io::Error::other)?.into_bytes(),
            Self::Default => DEFAULT.to_vec(),
        };
        String::from_utf8(bytes).map_err(|_| std::io::ErrorKind::InvalidData.into())
    }

    /// Reads and parses the current Corefile.
    ///
    /// # Errors
    /// The first syntax error, or the error of reading the file.
    pub fn read(&self) -> Result<Corefile, Box<Located<SetupError>>> {
        let env = |name: &str| std::env::var(name).ok();
        match self {
            Self::File(path) => {
                let of = path.clone();
                let work = move || corefile::read_file(&of, &|name| std::env::var(name).ok());
                // The time limit covers all imports, since their directories may be on a disk that
                // hangs. A file that hangs reaches a shorter limit, and is reported by name.
                files::with_timeout(path, WITH_IMPORTS, work).unwrap_or_else(|error| {
                    let reason = std::io::Error::from(error).kind();
                    let error = corefile::SyntaxError::Unreadable { path: path.clone(), reason };
                    Err(Located::new(&Location::file_only(&path.display().to_string()), error))
                })
            }
            Self::Text(text) => corefile::read_text("stdin", text, Path::new("."), &env),
            Self::Environment(path) => {
                let of_file =
                    |error| Box::new(Located::new(&Location::file_only(&path.display().to_string()), error));
                let (key, text) = from_environment(path).map_err(of_file)?;
                let name = format!("{key} of {}", path.display());
                let corefile = corefile::read_text(&name, &text, Path::new("."), &env);
                if corefile.as_ref().is_ok_and(|corefile| corefile.blocks.is_empty()) {
                    return Err(of_file(VariantError::Empty { key }.into()));
                }
                corefile
            }
            Self::Template(filler) => {
                let name = filler.base().display().to_string();
                let text = filler.text().map_err(|error| {
                    Box::new(Located::new(
                        &Location::file_only(&name),
                        SetupError::Template(error.to_string()),
                    ))
                })?;
                corefile::read_text(&name, text.as_bytes(), Path::new("."), &env)
            }
            Self::Default => corefile::read_text("Corefile", DEFAULT, Path::new("."), &env),
        }
        .map_err(|error| Box::new(error.map(SetupError::from)))
    }
}

/// Returns the Corefile that an environment file selects, and its key.
fn from_environment(path: &Path) -> Result<(&'static str, Vec<u8>), SetupError> {
    let text = files::read_with_timeout(path, MAX_STDIN)
        .map_err(|error| SetupError::EnvironmentFile(std::io::Error::from(error)))?;
    Ok(corefile::corefile_of(&String::from_utf8_lossy(&text), Path::new(HOSTS_FILE).is_file())?)
}

/// A configuration that is parsed and validated, but not built.
pub struct ValidatedConfig {
    /// The configuration as plain data.
    pub spec: Spec,
    /// The SHA-512 of the Corefile's words: without comments and layout, with imported files.
    pub hash: String,
    /// Warnings.
    pub warnings: Vec<String>,
}

impl ValidatedConfig {
    /// Reads and validates the Corefile.
    ///
    /// # Errors
    /// The Corefile's first problem, with its place; also if the Corefile is empty.
    pub fn read(origin: &Origin, dns_port: u16) -> Result<Self, Box<Located<SetupError>>> {
        Self::of(&origin.read()?, dns_port)
    }

    /// Reads and validates the Corefile as [`Self::read`] does, for a process that does not serve
    /// yet. As in CoreDNS, a Corefile without a server block then counts as no Corefile: the
    /// default is served. With `of_node` it is an error, as for a reload, since clients would get
    /// no answers.
    ///
    /// # Errors
    /// The Corefile's first problem, with its place.
    pub fn first(origin: &Origin, dns_port: u16, of_node: bool) -> Result<Self, Box<Located<SetupError>>> {
        let corefile = origin.read()?;
        if !corefile.blocks.is_empty() || of_node {
            return Self::of(&corefile, dns_port);
        }
        let mut draft = Self::of(&Origin::Default.read()?, dns_port)?;
        draft.hash = hash(&corefile);
        draft.warnings.push("the Corefile has no server block: only whoami is served".to_owned());
        Ok(draft)
    }

    fn of(corefile: &Corefile, dns_port: u16) -> Result<Self, Box<Located<SetupError>>> {
        let hash = hash(corefile);
        let spec = plugins::read_corefile::read(corefile, dns_port).map_err(Box::new)?;
        let warnings = corefile.warnings.iter().map(|warning| format!("{warning:#}"));
        let warnings = warnings
            .chain(plugins::acl::odd(&spec))
            .chain(plugins::forward::odd(&spec))
            .chain(plugins::kubernetes::odd(&spec))
            .chain(plugins::k8s_external::odd(&spec))
            .chain(plugins::template::odd(&spec))
            .collect();
        Ok(Self { spec, hash, warnings })
    }
}

pub(crate) fn hash(corefile: &Corefile) -> String {
    let mut sha = Sha512::new();
    for token in corefile.tokens() {
        sha.update(token.as_bytes());
        sha.update([0]);
    }
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The default Corefile.
const DEFAULT: &[u8] = b". {\n whoami\n log\n}\n";
/// The hosts file of AKS LocalDNS. If it does not exist, the Corefile with hosts is not selected.
const HOSTS_FILE: &str = "/etc/localdns/hosts";
/// Maximum size of standard input or a pipe; more is refused, as for a file.
const MAX_STDIN: u64 = 16 << 20;
/// Time limit of reading a Corefile with all its imports.
const WITH_IMPORTS: Duration = Duration::from_secs(8);
