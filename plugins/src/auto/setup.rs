//! The directive `auto`.

use std::sync::Arc;
use std::time::Duration;

use corefile::{Directive, Located, Location};
use files::ShownPath;
use regex::Regex;
use wire::Name;

use plugin::SetupError;
use plugin::args::{Args, Result, bad, no_block, path, regex, unknown_property, zones_or};
use plugin::spec::{ParseContext, SourceSpec};

pub(super) const PLUGIN: &str = "auto";
const PROPERTIES: &[&str] = &["directory", "reload", "upstream"];

/// All `auto` directives of a server block.
#[derive(Debug, Clone)]
pub struct AutoSpec {
    /// In the order of the Corefile.
    pub directories: Vec<DirectorySpec>,
}

/// A directory with zone files.
#[derive(Debug, Clone)]
pub struct DirectorySpec {
    /// Only queries for names within these are answered.
    pub origins: Vec<Name>,
    /// The directory.
    pub directory: ShownPath,
    /// The place of the directory's name.
    pub at: Location,
    /// Matches names of zone files.
    pub pattern: Regex,
    /// The zone's name, with `${1}` for a group of the pattern.
    pub template: String,
    /// Interval of scans; default 1 minute, 0 for never.
    pub reload: Duration,
}

impl PartialEq for DirectorySpec {
    fn eq(&self, other: &Self) -> bool {
        let of = |spec: &Self| (spec.directory.clone(), spec.template.clone(), spec.reload);
        of(self) == of(other) && self.pattern.as_str() == other.pattern.as_str()
    }
}

/// Reads every `auto` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let directories = directives.iter().map(|directive| directory(directive, written));
    Ok(Arc::new(AutoSpec { directories: directories.collect::<Result<_>>()? }))
}

fn directory(directive: &Directive, written: ParseContext<'_>) -> Result<DirectorySpec> {
    let origins = zones_or(&directive.args, written.zones)?;
    let (mut found, mut reload) = (None, Duration::from_secs(60));
    for property in directive.body.iter().flatten() {
        match property.name.text.as_str() {
            "directory" => found = Some(files_of(property, written)?),
            "reload" => {
                no_block(PLUGIN, property)?;
                let mut args = Args::new(PLUGIN, property, "a duration, 0 for never");
                reload = args.duration("a duration such as 1m, 0 for never")?;
                args.end()?;
            }
            // It has had no effect since CoreDNS 1.3.
            "upstream" => no_block(PLUGIN, property)?,
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
    }
    let Some((directory, at, pattern, template)) = found else {
        let missing = SetupError::MissingArgument {
            plugin: PLUGIN,
            word: PLUGIN.to_owned(),
            expected: "the property `directory DIR`",
        };
        return Err(Located::new(&directive.name.at, missing));
    };
    Ok(DirectorySpec { origins, directory, at, pattern, template, reload })
}

/// Reads `directory DIR [REGEXP ORIGIN_TEMPLATE]`.
fn files_of(property: &Directive, written: ParseContext<'_>) -> Result<(ShownPath, Location, Regex, String)> {
    no_block(PLUGIN, property)?;
    let mut args = Args::new(PLUGIN, property, "a directory, and then [REGEXP ORIGIN_TEMPLATE]");
    let word = args.required()?;
    let (mut pattern, mut template) = (Regex::new(r"db\.(.*)").ok(), "${1}".to_owned());
    if let Some(word) = args.optional() {
        let own = regex(PLUGIN, word)?;
        if own.captures_len() < 2 {
            return Err(bad(PLUGIN, word, "an expression with a group, such as db\\.(.*)"));
        }
        pattern = Some(own);
        template = args.required()?.text.replace('{', "${");
    }
    args.end()?;
    match pattern {
        Some(pattern) => Ok((path(written.root(), word), word.at.clone(), pattern, template)),
        None => Err(bad(PLUGIN, word, "a directory")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties, with};

    /// Directory, pattern, template, seconds between scans and origins, for each directive.
    fn shown(lines: &str) -> Vec<String> {
        let spec: AutoSpec = parsed(lines).unwrap();
        let shown = |spec: &DirectorySpec| {
            let origins: Vec<_> = spec.origins.iter().map(Name::to_string).collect();
            let directory = spec.directory.display();
            let (pattern, seconds) = (&spec.pattern, spec.reload.as_secs());
            format!("{directory} {pattern} {} {seconds} {}", spec.template, origins.join(" "))
        };
        spec.directories.iter().map(shown).collect()
    }

    #[test]
    fn arguments_and_properties() {
        for (lines, expected) in [
            (with("auto", "directory /z"), &[r"/z db\.(.*) ${1} 60 ."][..]),
            (with("root /r\nauto a.org", "directory z"), &[r"/r/z db\.(.*) ${1} 60 a.org."]),
            (with("auto", r"directory /z ^(.*)\.zone$ {1}"), &[r"/z ^(.*)\.zone$ ${1} 60 ."]),
            (with("auto", r"directory /z (.*)-(.*) {2}.{1}.org"), &["/z (.*)-(.*) ${2}.${1}.org 60 ."]),
            (with("auto", "directory /z\nreload 0\nupstream 192.0.2.1"), &[r"/z db\.(.*) ${1} 0 ."]),
            (
                with("auto a.org", "directory /a\nreload 5s") + "\n" + &with("auto b.org", "directory /b"),
                &[r"/a db\.(.*) ${1} 5 a.org.", r"/b db\.(.*) ${1} 60 b.org."],
            ),
        ] {
            assert_eq!(shown(&lines), expected, "{lines}");
        }
    }

    #[test]
    fn errors_have_their_place() {
        refused(&[
            ("auto", "2:1: plugin/auto: `auto` needs the property `directory DIR`"),
            ("auto a..b", "2:6: the zone `a..b` has an empty label"),
        ]);
        refused_properties(
            "auto",
            &[
                (
                    "directory",
                    "1: plugin/auto: `directory` needs a directory, and then [REGEXP ORIGIN_TEMPLATE]",
                ),
                (
                    "directory /z db",
                    "14: plugin/auto: \"db\" is not an expression with a group, such as db\\.(.*)",
                ),
                (
                    "directory /z (a)",
                    "1: plugin/auto: `directory` needs a directory, and then [REGEXP ORIGIN_TEMPLATE]",
                ),
                (
                    "directory /z (a {1}",
                    "14: plugin/auto: the regular expression cannot be used: unclosed group",
                ),
                (
                    "directory /z (a) {1} x",
                    "22: plugin/auto: unexpected argument \"x\"; `directory` needs a directory, and then [REGEXP ORIGIN_TEMPLATE]",
                ),
                ("reload", "1: plugin/auto: `reload` needs a duration, 0 for never"),
                ("reload -1s", "8: plugin/auto: \"-1s\" is not a duration such as 1m, 0 for never"),
                (
                    "directories",
                    "1: plugin/auto: unknown property \"directories\"; did you mean `directory`?",
                ),
            ],
        );
    }
}
