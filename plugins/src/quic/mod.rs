//! `quic`: bounds of the clients of DNS over QUIC.

use std::sync::Arc;

use corefile::{Directive, Located, Location};
use thiserror::Error;

use plugin::SetupError;
use plugin::args::{Args, Result, no_block, number, once, unknown_property};
use plugin::spec::{ParseContext, PluginSpec};

const PLUGIN: &str = "quic";

/// The directive `quic`.
#[derive(Debug, Clone)]
pub struct QuicSpec {
    /// The directive's location.
    pub at: Location,
    /// The bound of connections; `None` if it is not set, 0 for no bound of its own.
    pub max_connections: Option<u32>,
    /// The bound of streams at the same time on one connection; `None` if it is not set.
    pub max_streams: Option<u32>,
    /// The bound of queries at the same time on all connections; `None` if it is not set.
    pub worker_pool_size: Option<u32>,
}

/// The bounds of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicLimits {
    /// Connections; default 200, 1 to 1,024.
    pub connections: usize,
    /// Streams at the same time on one connection; default 256, 1 to 1,000.
    pub streams: u32,
    /// Queries at the same time on all connections; default 1,024.
    pub workers: u32,
}

/// Blocks of one listener with different `max_streams`, which all its connections share.
#[derive(Debug, Error)]
#[error(
    "`max_streams` is {found}, and {first} in the `quic` at {at}, which shares the listener; write the same in both, or give each block its own `bind`"
)]
struct StreamsDiffer {
    found: u32,
    first: u32,
    at: String,
}

impl QuicLimits {
    /// Returns the bounds of a listener from the directives of its blocks, in file order. The first
    /// `max_connections` and the first `worker_pool_size` count.
    ///
    /// # Errors
    /// Two blocks have different `max_streams`.
    pub fn of_listener<'s>(blocks: impl Iterator<Item = &'s QuicSpec>) -> Result<Self> {
        let (mut connections, mut streams, mut workers) = (None, None, None);
        for block in blocks {
            connections = connections.or(block.max_connections);
            workers = workers.or(block.worker_pool_size);
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
            None => STREAMS,
            Some((count, _)) => count.min(MOST_STREAMS),
        };
        let workers = workers.unwrap_or(WORKERS);
        Ok(Self { connections: connections as usize, streams, workers })
    }
}

/// Reads the one `quic` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    const FROM_0: &str = "a number of 0 to 4294967295";
    const FROM_1: &str = "a number of 1 to 4294967295";
    let directive = once(PLUGIN, directives)?;
    Args::new(PLUGIN, directive, "properties in braces").end()?;
    let at = directive.name.at.clone();
    let mut spec = QuicSpec { at, max_connections: None, max_streams: None, worker_pool_size: None };
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        let (bound, least, expected) = match property.name.text.as_str() {
            "max_connections" => (&mut spec.max_connections, 0, FROM_0),
            "max_streams" => (&mut spec.max_streams, 1, FROM_1),
            "worker_pool_size" => (&mut spec.worker_pool_size, 1, FROM_1),
            _ => {
                let known = ["max_connections", "max_streams", "worker_pool_size"];
                return Err(unknown_property(PLUGIN, property, &known));
            }
        };
        let mut args = Args::new(PLUGIN, property, expected);
        let count = number(PLUGIN, args.required()?, least..=u32::MAX, expected)?;
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
/// Connections of all listeners together.
const MOST_CONNECTIONS: u32 = 1024;
/// Streams by default, as in CoreDNS.
const STREAMS: u32 = 256;
/// Queries at the same time by default, as in CoreDNS.
const WORKERS: u32 = 1024;
/// Streams at most.
const MOST_STREAMS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties, spec};

    /// The bounds of a listener with these blocks.
    fn limits(blocks: &[&str]) -> std::result::Result<QuicLimits, String> {
        let text: String =
            blocks.iter().map(|lines| format!("quic://. {{\ntls a b\n{lines}\n}}\n")).collect();
        let spec = spec(&text)?;
        QuicLimits::of_listener(spec.specs()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn bounds_have_defaults_and_maxima() {
        for (lines, connections, streams, workers) in [
            ("whoami", 200, 256, 1024),
            ("quic", 200, 256, 1024),
            ("quic {\nmax_connections 0\nmax_streams 1\nworker_pool_size 1\n}", 1024, 1, 1),
            (
                "quic {\nmax_connections 5000\nmax_streams 4294967295\nworker_pool_size 65536\n}",
                1024,
                1000,
                65536,
            ),
        ] {
            assert_eq!(limits(&[lines]), Ok(QuicLimits { connections, streams, workers }), "{lines}");
        }
    }

    #[test]
    fn blocks_of_a_listener_agree() {
        let (one, two) = ("quic {\nmax_streams 5\nmax_connections 7\n}", "quic {\nmax_streams 6\n}");
        assert_eq!(
            limits(&["whoami", one, one]),
            Ok(QuicLimits { connections: 7, streams: 5, workers: 1024 })
        );
        let error = "Corefile:10:1: plugin/quic: `max_streams` is 6, and 5 in the `quic` at Corefile:3:1, \
                     which shares the listener; write the same in both, or give each block its own `bind`";
        assert_eq!(limits(&[one, two]), Err(error.to_owned()));
    }

    #[test]
    fn errors_have_their_place() {
        assert!(parsed::<QuicSpec>("quic").is_some());
        refused(&[(
            "quic 5",
            "2:6: plugin/quic: unexpected argument \"5\"; `quic` needs properties in braces",
        )]);
        refused_properties(
            "quic",
            &[
                ("max_streams", "1: plugin/quic: `max_streams` needs a number of 1 to 4294967295"),
                ("worker_pool_size 0", "18: plugin/quic: \"0\" is not a number of 1 to 4294967295"),
                ("max_connections -1", "17: plugin/quic: \"-1\" is not a number of 0 to 4294967295"),
                (
                    "max_streams 4294967296",
                    "13: plugin/quic: \"4294967296\" is not a number of 1 to 4294967295",
                ),
                (
                    "max_stream 1",
                    "1: plugin/quic: unknown property \"max_stream\"; did you mean `max_streams`?",
                ),
            ],
        );
        refused(&[(
            "quic {\nmax_streams 1\nmax_streams 1\n}",
            "4:1: plugin/quic: a property can only be set once; remove one",
        )]);
    }
}
