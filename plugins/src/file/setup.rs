//! `file`: zones from zone files.

use std::sync::Arc;
use std::time::Duration;

use corefile::{Directive, Location};
use files::ShownPath;
use wire::Name;

use plugin::Fallthrough;
use plugin::args::{Args, Result, flag, no_block, path, unknown_property, zones_or};
use plugin::spec::{ParseContext, SourceSpec};

pub(super) const PLUGIN: &str = "file";
const PROPERTIES: &[&str] = &["fallthrough", "reload", "reload_by_mtime", "upstream"];

/// All `file` directives of a server block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpec {
    /// Zones, the one with the longest name first; each name once.
    pub zones: Vec<ZoneSpec>,
    /// Zones in which names that do not exist pass to the next plugin: those of the last directive that
    /// has the property, for all directives, as in CoreDNS.
    pub fallthrough: Fallthrough,
}

/// A zone and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneSpec {
    /// The zone.
    pub origin: Name,
    /// Its file.
    pub file: ShownPath,
    /// The place of the file's name.
    pub at: Location,
    /// Interval of checking the file; default 1 minute, 0 for never. That of the directive before, if
    /// this one has none, as in CoreDNS.
    pub reload: Duration,
    /// Whether a changed file is read whatever the serial of its SOA record.
    pub by_mtime: bool,
}

/// Reads every `file` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let mut spec = FileSpec { zones: Vec::new(), fallthrough: Fallthrough::default() };
    let (mut reload, mut by_mtime) = (Duration::from_secs(60), false);
    for directive in directives {
        let mut args = Args::new(PLUGIN, directive, "a zone file, and then [ZONES...]");
        let word = args.required()?;
        let file = path(written.root(), word);
        let origins = zones_or(args.rest(), written.zones)?;
        for property in directive.body.iter().flatten() {
            match property.name.text.as_str() {
                "fallthrough" => spec.fallthrough.add(PLUGIN, property)?,
                "reload" => {
                    no_block(PLUGIN, property)?;
                    let mut args = Args::new(PLUGIN, property, "a duration, 0 for never");
                    reload = args.duration("a duration such as 1m, 0 for never")?;
                    args.end()?;
                }
                "reload_by_mtime" => by_mtime = flag(PLUGIN, property)?,
                // It has had no effect since CoreDNS 1.3.
                "upstream" => no_block(PLUGIN, property)?,
                _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
            }
        }
        for origin in origins {
            spec.zones.retain(|zone| zone.origin != origin);
            let (file, at) = (file.clone(), word.at.clone());
            spec.zones.push(ZoneSpec { origin, file, at, reload, by_mtime });
        }
    }
    spec.zones.sort_by_key(|zone| std::cmp::Reverse(zone.origin.label_count()));
    Ok(Arc::new(spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties, with};

    /// Zone, file, seconds between checks, and whether by time, for each zone.
    fn zones(lines: &str) -> Vec<(String, String, u64, bool)> {
        let spec: FileSpec = parsed(lines).unwrap();
        let shown = |zone: &ZoneSpec| {
            let (origin, file) = (zone.origin.to_string(), zone.file.display().to_string());
            (origin, file, zone.reload.as_secs(), zone.by_mtime)
        };
        spec.zones.iter().map(shown).collect()
    }

    #[test]
    fn arguments_and_properties() {
        let row =
            |zone: &str, file: &str, reload, by_mtime| (zone.to_owned(), file.to_owned(), reload, by_mtime);
        for (lines, expected) in [
            ("file db", vec![row(".", "db", 60, false)]),
            ("root /zones\nfile db a.org", vec![row("a.org.", "/zones/db", 60, false)]),
            ("root /zones\nfile /db a.org", vec![row("a.org.", "/db", 60, false)]),
            (
                "file db a.org b.a.org 10.0.0.0/8",
                vec![
                    row("b.a.org.", "db", 60, false),
                    row("10.in-addr.arpa.", "db", 60, false),
                    row("a.org.", "db", 60, false),
                ],
            ),
            (&with("file db", "reload 0"), vec![row(".", "db", 0, false)]),
            (&with("file db", "upstream 192.0.2.53\nreload 1m30s"), vec![row(".", "db", 90, false)]),
            (&with("file db", "reload_by_mtime"), vec![row(".", "db", 60, true)]),
            ("file one a.org\nfile two a.org", vec![row("a.org.", "two", 60, false)]),
            (
                "file one a.org {\nreload 5s\n}\nfile two b.org",
                vec![row("a.org.", "one", 5, false), row("b.org.", "two", 5, false)],
            ),
        ] {
            assert_eq!(zones(lines), expected, "{lines}");
        }
        let spec: FileSpec =
            parsed("file one a.org {\nfallthrough\n}\nfile two b.org {\nfallthrough c.org\n}").unwrap();
        assert_eq!(spec.fallthrough.zones, [Name::from_text("c.org").unwrap()]);
    }

    #[test]
    fn errors_have_their_place() {
        refused(&[
            ("file", "2:1: plugin/file: `file` needs a zone file, and then [ZONES...]"),
            ("file db a..b", "2:9: the zone `a..b` has an empty label"),
        ]);
        refused_properties(
            "file db",
            &[
                ("reload", "1: plugin/file: `reload` needs a duration, 0 for never"),
                ("reload 5", "8: plugin/file: \"5\" is not a duration such as 1m, 0 for never"),
                ("reload -5s", "8: plugin/file: \"-5s\" is not a duration such as 1m, 0 for never"),
                (
                    "reload 5s 5s",
                    "11: plugin/file: unexpected argument \"5s\"; `reload` needs a duration, 0 for never",
                ),
                (
                    "reload_by_mtime on",
                    "17: plugin/file: unexpected argument \"on\"; `reload_by_mtime` needs no argument",
                ),
                ("fallthrough a..b", "13: the zone `a..b` has an empty label"),
                ("reloads", "1: plugin/file: unknown property \"reloads\"; did you mean `reload`?"),
            ],
        );
    }
}
