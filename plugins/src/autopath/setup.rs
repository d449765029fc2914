//! Parsing of `autopath`, and the search list of its file.

use std::sync::Arc;

use corefile::{Directive, Located, Location, Word};
use files::ShownPath;
use wire::Name;

use plugin::SetupError;
use plugin::args::{Args, Result, bad, no_block, once, path, unknown_property, zones_or};
use plugin::search_path::{MOST_DOMAINS, MOST_SEARCH_OCTETS};
use plugin::spec::{MiddlewareSpec, ParseContext};

pub(super) const PLUGIN: &str = "autopath";

/// One `autopath` directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutopathSpec {
    /// Names of these zones are completed.
    pub(super) zones: Vec<Name>,
    /// The source of search paths.
    pub(super) source: PathSource,
    /// The location of that source's word.
    pub(super) at: Location,
    /// Minimum number of dots in a name to complete; default 0.
    pub(super) ndots: usize,
    /// Whether a name without any existing candidate gets NODATA: `response noerror`; default no.
    pub(super) noerror: bool,
}

/// The source of search paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathSource {
    /// The `search` line of a file, for all clients.
    File(ShownPath),
    /// `@PLUGIN`: each client's search path, from that directive of the block.
    Plugin(&'static str),
}

/// The reason why a file has no search list.
#[derive(Debug, thiserror::Error)]
enum SearchListError {
    #[error("no search list in {}; expected a line such as `search example.org`", .0.display())]
    Nothing(ShownPath),
    #[error("{found:?} in the search list of {} is no domain: {error}", .file.display())]
    Domain { file: ShownPath, found: String, error: wire::NameError },
    #[error(
        "the search list of {} is too long; expected at most {MOST_DOMAINS} domains and {MOST_SEARCH_OCTETS} octets",
        .0.display()
    )]
    Long(ShownPath),
}

/// Reads the one `autopath` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    let directive = once(PLUGIN, directives)?;
    let words = Args::new(PLUGIN, directive, "[ZONES...] RESOLV-CONF, or @kubernetes").some()?;
    let Some((source, zones)) = words.split_last() else { return Err(bad(PLUGIN, &directive.name, SOURCE)) };
    let mut spec = AutopathSpec {
        zones: zones_or(zones, written.zones)?,
        source: PathSource::read(source, written.root())?,
        at: source.at.clone(),
        ndots: 0,
        noerror: false,
    };
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        match property.name.text.as_str() {
            "ndots" => {
                let mut args = Args::new(PLUGIN, property, NDOTS);
                spec.ndots = args.number(0..=MOST_NDOTS, NDOTS)?;
                args.end()?;
            }
            "response" => {
                let mut args = Args::new(PLUGIN, property, RESPONSE);
                let word = args.required()?;
                spec.noerror = match word.text.as_str() {
                    "noerror" => true,
                    "nxdomain" => false,
                    _ => return Err(bad(PLUGIN, word, RESPONSE)),
                };
                args.end()?;
            }
            _ => return Err(unknown_property(PLUGIN, property, &["ndots", "response"])),
        }
    }
    Ok(Arc::new(spec))
}

impl PathSource {
    fn read(word: &Word, root: Option<&ShownPath>) -> Result<Self> {
        match word.text.strip_prefix('@') {
            None => Ok(Self::File(path(root, word))),
            Some("kubernetes") => Ok(Self::Plugin("kubernetes")),
            Some(_) => Err(bad(PLUGIN, word, SOURCE)),
        }
    }
}

impl AutopathSpec {
    /// Returns the search list of `file`: at least one domain.
    pub(super) fn search_list(&self, file: &ShownPath) -> Result<Vec<Name>> {
        let text = files::read_with_timeout(file, LARGEST).map_err(|error| {
            let error = SetupError::File { plugin: PLUGIN, path: file.clone(), error: error.into() };
            Located::new(&self.at, error)
        })?;
        search_list(&String::from_utf8_lossy(&text), file).map_err(|error| {
            Located::new(&self.at, SetupError::Own { plugin: PLUGIN, error: Box::new(error) })
        })
    }
}

fn search_list(text: &str, file: &ShownPath) -> std::result::Result<Vec<Name>, SearchListError> {
    let words = node::search_list(text);
    if words.len() > MOST_DOMAINS
        || words.iter().map(|word| word.len() + 1).sum::<usize>() > MOST_SEARCH_OCTETS
    {
        return Err(SearchListError::Long(file.clone()));
    }
    let domain = |word: &&str| {
        Name::from_text(word).map_err(|error| SearchListError::Domain {
            file: file.clone(),
            found: (*word).to_owned(),
            error,
        })
    };
    let mut domains = words.iter().map(domain).collect::<std::result::Result<Vec<_>, _>>()?;
    // The root completes no name, and the name alone is tried last in any case.
    domains.retain(|domain| *domain != Name::ROOT);
    if domains.is_empty() { Err(SearchListError::Nothing(file.clone())) } else { Ok(domains) }
}

const SOURCE: &str = "a file or @kubernetes, the only directive that provides search paths";
const NDOTS: &str = "a number of dots, 0 to 15";
const RESPONSE: &str = "noerror or nxdomain";
/// Maximum `ndots` of resolvers (resolv.conf(5)).
const MOST_NDOTS: usize = 15;
/// Maximum bytes read from a resolv.conf, which usually has some hundred.
const LARGEST: u64 = 1 << 20;
