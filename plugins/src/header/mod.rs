//! `header`: sets and clears flags in queries and responses.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use corefile::{Directive, Located};
use wire::{Flags, Message};

use plugin::args::{Args, Result, bad, once, unknown_property};
use plugin::middleware::{EffectiveQuery, HookResult, Middleware, OnQuery, ResponseHook, Subqueries};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};
use plugin::{QueryContext, SetupError};

/// All rules of a server block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    query: Changes,
    response: Changes,
}

/// Flags to set and flags to clear; no flag is in both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Changes {
    set: u16,
    clear: u16,
}

/// Reads the one `header` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    Ok(Arc::new(Header::read(directives)?))
}

impl MiddlewareSpec for Header {
    fn build(&self, _: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        Ok(Arc::new(self.clone()))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

impl Header {
    /// Reads the one `header` of a server block; the last rule for a flag applies.
    fn read(directives: &[&Directive]) -> Result<Self> {
        let directive = once(PLUGIN, directives)?;
        Args::new(PLUGIN, directive, "rules in braces").end()?;
        let mut header = Self::default();
        for property in directive.body.iter().flatten() {
            let changes = match property.name.text.to_ascii_lowercase().as_str() {
                "query" => &mut header.query,
                "response" => &mut header.response,
                _ => return Err(unknown_property(PLUGIN, property, &["query", "response"])),
            };
            let mut args = Args::new(PLUGIN, property, "set or clear, and flags: aa, ra, rd");
            let action = args.required()?;
            let set = match action.text.to_ascii_lowercase().as_str() {
                "set" => true,
                "clear" => false,
                _ => return Err(bad(PLUGIN, action, "`set` or `clear`")),
            };
            for word in args.some()? {
                let flag = FLAGS.iter().find(|(name, _)| word.text.eq_ignore_ascii_case(name));
                let (_, flag) = flag.ok_or_else(|| bad(PLUGIN, word, "a flag: aa, ra or rd"))?;
                changes.change(*flag, set);
            }
        }
        if header == Self::default() {
            let rule = "`header` needs at least one rule, such as `response set ra`; or remove it";
            return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
        }
        Ok(header)
    }
}

impl Changes {
    fn change(&mut self, flag: u16, set: bool) {
        (self.set, self.clear) =
            if set { (self.set | flag, self.clear & !flag) } else { (self.set & !flag, self.clear | flag) };
    }

    fn apply(self, flags: u16) -> u16 {
        (flags | self.set) & !self.clear
    }

    fn explain(self, of: &str, text: &mut String) {
        for (what, flags) in [("sets", self.set), ("clears", self.clear)] {
            let names: Vec<&str> =
                FLAGS.iter().filter(|(_, flag)| flags & flag != 0).map(|(name, _)| *name).collect();
            if !names.is_empty() {
                let _ = write!(
                    text,
                    "{}{what} {} in the {of}",
                    if text.is_empty() { "" } else { ", " },
                    names.join(" ")
                );
            }
        }
    }
}

impl Middleware for Header {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        effective.change_flags(self.query.set, self.query.clear);
        if self.response == Changes::default() {
            OnQuery::Pass
        } else {
            OnQuery::Hook(Box::new(self.response))
        }
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        effective.change_flags(self.query.set, self.query.clear);
        let mut text = String::new();
        self.query.explain("query", &mut text);
        self.response.explain("reply", &mut text);
        Explanation::Passes(Some(text))
    }
}

impl ResponseHook for Changes {
    fn on_response(
        &self,
        _: &EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        response: &mut Message,
        _: &mut dyn Subqueries,
    ) -> HookResult {
        response.flags = self.apply(response.flags);
        HookResult::Done
    }
}

const PLUGIN: &str = "header";
const FLAGS: [(&str, u16); 3] = [("aa", Flags::AA), ("ra", Flags::RA), ("rd", Flags::RD)];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Others, packet, read, through};
    use wire::RType;

    const AA: u16 = Flags::AA;
    const RA: u16 = Flags::RA;
    const RD: u16 = Flags::RD;

    #[test]
    fn query_and_response_flags() {
        for (lines, effective, response) in [
            ("response set aa ra", RD, RD | AA | RA),
            ("response clear aa ra", RD, RD),
            ("response clear rd", RD, AA),
            ("query clear rd", 0, AA | RD),
            ("query set AA RA\nresponse CLEAR aa", RD | AA | RA, RD),
            ("Response set aa\nresponse clear aa\nquery clear rd\nquery set rd", RD, RD),
        ] {
            let header = read(&format!("header {{\n{lines}\n}}"), Header::read).unwrap();
            let mut seen = 0;
            let below = |query: &EffectiveQuery<'_>| {
                seen = query.flags().0 & (RD | AA | RA);
                Message { flags: AA | RD, ..Message::default() }
            };
            let asked = packet("example.org", RType::A);
            let (_, reply) = through(&header, "192.0.2.9", &asked, below, &mut Others::default());
            assert_eq!((seen, reply.unwrap().flags), (effective, response), "{lines}");
        }
    }

    #[test]
    fn bad_words_have_their_place() {
        for (lines, error) in [
            (
                "header",
                "2:1: plugin/header: `header` needs at least one rule, such as `response set ra`; or remove it",
            ),
            ("header x", "2:8: plugin/header: unexpected argument \"x\"; `header` needs rules in braces"),
            (
                "header {\nreply set aa\n}",
                "3:1: plugin/header: unknown property \"reply\"; expected query, response",
            ),
            (
                "header {\nresponse\n}",
                "3:1: plugin/header: `response` needs set or clear, and flags: aa, ra, rd",
            ),
            (
                "header {\nresponse set\n}",
                "3:1: plugin/header: `response` needs set or clear, and flags: aa, ra, rd",
            ),
            ("header {\nresponse on aa\n}", "3:10: plugin/header: \"on\" is not `set` or `clear`"),
            ("header {\nresponse set ad\n}", "3:14: plugin/header: \"ad\" is not a flag: aa, ra or rd"),
        ] {
            assert_eq!(read(lines, Header::read).unwrap_err(), format!("Corefile:{error}"), "{lines}");
        }
    }
}
