//! `https`: bounds of the clients of DNS over HTTPS.

use std::sync::Arc;

use corefile::{Directive, Located, Location};
use thiserror::Error;

use plugin::SetupError;
use plugin::args::{Args, Result, no_block, number, once, unknown_property};
use plugin::spec::{ParseContext, PluginSpec};

const PLUGIN: &str = "https";

/// The directive `https`.
#[derive(Debug, Clone)]
pub struct HttpsSpec {
    /// The directive's location.
    pub at: Location,
    /// The bound of connections; `None` if it is not set, 0 for no bound of its own.
    pub max_connections: Option<u32>,
    /// The bound of requests at the same time on one HTTP/2 connection; `None` if it is not set, 0
    /// for no bound of its own.
    pub max_streams: Option<u32>,
}

/// The bounds of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpsLimits {
    /// Connections; default 200, 1 to 1,024.
    pub connections: usize,
    /// Requests at the same time on one HTTP/2 connection; default 250, 1 to 1,000.
    pub streams: u32,
}

/// Blocks of one listener with different `max_streams`, which all its connections share.
#[derive(Debug, Error)]
#[error(
    "`max_streams` is {found}, and {first} in the `https` at {at}, which shares the listener; write the same in both, or give each block its own `bind`"
)]
struct StreamsDiffer {
    found: u32,
    first: u32,
    at: String,
}

impl HttpsLimits {
    /// Returns the bounds of a listener from the directives of its blocks, in file order. The first
    /// `max_connections` counts.
    ///
    /// # Errors
    /// Two blocks have different `max_streams`.
    pub fn of_listener<'s>(blocks: impl Iterator<Item = &'s HttpsSpec>) -> Result<Self> {
        let (mut connections, mut streams) = (None, None);
        for block in blocks {
            connections = connections.or(block.max_connections);
            let Some(found) = block.max_streams else { continue };
            let &mut (first, at) = streams.get_or_insert((found, &block.at));
            if found != first {
                let error = Box::new(StreamsDiffer { found, first, at: at.to_string() });
                return Err(Located::new(&block.at, SetupError::Own { plugin: PLUGIN, error }));
            }
        }
        let connections = match connections {
            None => CONNECTIONS,
            Some(0) => MOST_CONNECTIONS,
            Some(count) => count.min(MOST_CONNECTIONS),
        };
        let streams = match streams {
            None | Some((0, _)) => STREAMS,
            Some((count, _)) => count.min(MOST_STREAMS),
        };
        Ok(Self { connections: connections as usize, streams })
    }
}

/// Reads the one `https` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    const EXPECTED: &str = "a number of 0 to 4294967295";
    let directive = once(PLUGIN, directives)?;
    Args::new(PLUGIN, directive, "properties in braces").end()?;
    let mut spec = HttpsSpec { at: directive.name.at.clone(), max_connections: None, max_streams: None };
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        let bound = match property.name.text.as_str() {
            "max_connections" => &mut spec.max_connections,
            "max_streams" => &mut spec.max_streams,
            _ => return Err(unknown_property(PLUGIN, property, &["max_connections", "max_streams"])),
        };
        let mut args = Args::new(PLUGIN, property, EXPECTED);
        let count = number(PLUGIN, args.required()?, 0..=u32::MAX, EXPECTED)?;
        args.end()?;
        if bound.replace(count).is_some() {
            let rule = "a property can only be set once; remove one";
            return Err(Located::new(&property.name.at, SetupError::Order { plugin: PLUGIN, rule }));
        }
    }
    Ok(Arc::new(spec))
}

/// Connections by default, as in CoreDNS.
const CONNECTIONS: u32 = 200;
/// Connections of all listeners over TCP together.
const MOST_CONNECTIONS: u32 = 1024;
/// Streams by default, as in CoreDNS.
const STREAMS: u32 = 250;
/// Streams at most.
const MOST_STREAMS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties, spec};

    /// The bounds of a listener with these blocks.
    fn limits(blocks: &[&str]) -> std::result::Result<HttpsLimits, String> {
        let text: String = blocks.iter().map(|lines| format!("https://. {{\n{lines}\n}}\n")).collect();
        let spec = spec(&text)?;
        HttpsLimits::of_listener(spec.specs()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn bounds_have_defaults_and_maxima() {
        for (lines, connections, streams) in [
            ("whoami", 200, 250),
            ("https", 200, 250),
            ("https {\nmax_connections 0\nmax_streams 0\n}", 1024, 250),
            ("https {\nmax_connections 1\nmax_streams 1\n}", 1, 1),
            ("https {\nmax_connections 5000\nmax_streams 4294967295\n}", 1024, 1000),
        ] {
            assert_eq!(limits(&[lines]), Ok(HttpsLimits { connections, streams }), "{lines}");
        }
    }

    #[test]
    fn blocks_of_a_listener_agree() {
        let (one, two) = ("https {\nmax_streams 5\nmax_connections 7\n}", "https {\nmax_streams 6\n}");
        assert_eq!(limits(&["whoami", one, one]), Ok(HttpsLimits { connections: 7, streams: 5 }));
        let error = "Corefile:6:1: plugin/https: `max_streams` is 6, and 5 in the `https` at Corefile:2:1, \
                     which shares the listener; write the same in both, or give each block its own `bind`";
        assert_eq!(limits(&[one, two]), Err(error.replace("6:1", "8:1")));
    }

    #[test]
    fn errors_have_their_place() {
        assert!(parsed::<HttpsSpec>("https").is_some());
        refused(&[(
            "https 5",
            "2:7: plugin/https: unexpected argument \"5\"; `https` needs properties in braces",
        )]);
        refused_properties(
            "https",
            &[
                ("max_streams", "1: plugin/https: `max_streams` needs a number of 0 to 4294967295"),
                ("max_connections -1", "17: plugin/https: \"-1\" is not a number of 0 to 4294967295"),
                (
                    "max_streams 4294967296",
                    "13: plugin/https: \"4294967296\" is not a number of 0 to 4294967295",
                ),
                (
                    "max_stream 1",
                    "1: plugin/https: unknown property \"max_stream\"; did you mean `max_streams`?",
                ),
            ],
        );
        refused(&[(
            "https {\nmax_streams 1\nmax_streams 1\n}",
            "4:1: plugin/https: a property can only be set once; remove one",
        )]);
    }
}
