//! `chaos`: version, authors and host name of the server, as TXT records of class CH.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use corefile::{Directive, Word};
use wire::{Class, Message, Name, RType, Rcode, Rr, Section};

use crate::host_name::host_name;
use plugin::QueryContext;
use plugin::args::{Result, no_block, once};
use plugin::middleware::{EffectiveQuery, Middleware, OnQuery};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};

/// The directive `chaos [VERSION] [AUTHORS...]`: the data of TXT records, one string each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chaos {
    version: Box<[u8]>,
    authors: BTreeSet<Box<[u8]>>,
}

/// Reads the one `chaos` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    let directive = once("chaos", directives)?;
    no_block("chaos", directive)?;
    let mut words = directive.args.iter().map(|Word { text, .. }| text.as_str());
    let version = string(words.next().unwrap_or(VERSION));
    Ok(Arc::new(Chaos { version, authors: words.map(string).collect() }))
}

impl MiddlewareSpec for Chaos {
    fn build(&self, _: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        Ok(Arc::new(self.clone()))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

impl Middleware for Chaos {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        if (effective.class(), effective.rtype()) != (Class::CH, RType::TXT) {
            return OnQuery::Pass;
        }
        let Some(asked) = asked(effective.name()) else { return OnQuery::Pass };
        let mut message = Message::empty(&effective.query(), Rcode::NOERROR);
        let mut push = |data: &[u8]| {
            let rr = Rr::new(Section::Answer, effective.name(), RType::TXT, 0, data);
            message.records.push(Rr { class: Class::CH, ..rr });
        };
        match asked {
            Asked::Version => push(&self.version),
            Asked::Authors => self.authors.iter().for_each(|author| push(author)),
            Asked::Host => push(&string(&host_name())),
        }
        OnQuery::Answer(Box::new(message))
    }

    fn takes_other_classes(&self) -> bool {
        true
    }

    /// Returns the effect on queries of class IN, which all pass.
    fn explain(&self, effective: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        let what = match asked(effective.name()) {
            None => return Explanation::Passes(None),
            Some(Asked::Version) => "the server's version",
            Some(Asked::Authors) => "the server's authors",
            Some(Asked::Host) => "the host's name",
        };
        Explanation::Passes(Some(format!("TXT of class CH is answered with {what}")))
    }
}

/// The data that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Version,
    Authors,
    Host,
}

fn asked(name: &Name) -> Option<Asked> {
    match name.as_wire() {
        b"\x07version\x04bind\0" | b"\x07version\x06server\0" => Some(Asked::Version),
        b"\x07authors\x04bind\0" => Some(Asked::Authors),
        b"\x08hostname\x04bind\0" | b"\x02id\x06server\0" => Some(Asked::Host),
        _ => None,
    }
}

/// Encodes the first 255 bytes of a text as a character string with its length (RFC 1035, section
/// 3.3); `\DDD` and `\X` stand for one byte each, as in zone files (section 5.1).
fn string(text: &str) -> Box<[u8]> {
    let text = text.as_bytes();
    let mut rest = &text[..text.len().min(MOST)];
    let mut data = vec![0];
    while let [byte, behind @ ..] = rest {
        let (byte, behind) = match (byte, behind) {
            (b'\\', []) => break,
            (b'\\', [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', behind @ ..]) => {
                let digits = [a, b, c].map(|digit| u32::from(digit - b'0'));
                // A number above 255 wraps around, as in CoreDNS.
                (digits.iter().fold(0, |number, digit| number * 10 + digit) as u8, behind)
            }
            (b'\\', [byte, behind @ ..]) => (*byte, behind),
            _ => (*byte, behind),
        };
        data.push(byte);
        rest = behind;
    }
    data[0] = (data.len() - 1) as u8;
    data.into()
}

/// Maximum size of a character string, in bytes.
const MOST: usize = 255;
/// The version if the directive has no arguments.
const VERSION: &str = concat!("localdns-", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};
    use crate::testing::{Others, packet, through};

    fn texts(chaos: &Chaos, name: &str, rtype: RType, class: Class) -> Option<Vec<String>> {
        let mut asked = packet(name, rtype);
        let end = asked.len();
        asked[end - 2..].copy_from_slice(&class.0.to_be_bytes());
        let below = Message { rcode: Rcode::REFUSED, ..Message::default() };
        let (_, message) = through(chaos, "192.0.2.9", &asked, |_| below, &mut Others::default());
        let message = message.unwrap();
        let text = |rr: &Rr| {
            assert_eq!((rr.class, rr.ttl, rr.data[0] as usize), (Class::CH, 0, rr.data.len() - 1), "{name}");
            String::from_utf8_lossy(&rr.data[1..]).into_owned()
        };
        (message.rcode != Rcode::REFUSED).then(|| message.records.iter().map(text).collect())
    }

    fn chaos(line: &str) -> Chaos {
        parsed(line).unwrap()
    }

    #[test]
    fn each_name_has_its_texts() {
        let own = concat!("localdns-", env!("CARGO_PKG_VERSION"));
        let host = host_name();
        let long = "v".repeat(300);
        for (line, name, expected) in [
            ("chaos", "version.bind", &[own][..]),
            ("chaos", "Version.Server", &[own]),
            ("chaos", "authors.bind", &[]),
            ("chaos", "hostname.bind", &[&host]),
            ("chaos", "id.server", &[&host]),
            ("chaos v1", "version.bind", &["v1"]),
            ("chaos v1", "authors.bind", &[]),
            ("chaos v1 b a b", "authors.bind", &["a", "b"]),
            ("chaos \"\" \"a b\"", "version.bind", &[""]),
            ("chaos \"\" \"a b\"", "authors.bind", &["a b"]),
            (r"chaos a\046\.b\", "version.bind", &["a..b"]),
            (&format!("chaos {long} b"), "version.bind", &[&long[..MOST]]),
        ] {
            let found = texts(&chaos(line), name, RType::TXT, Class::CH);
            assert_eq!(found.unwrap(), expected, "{line}: {name}");
        }
    }

    #[test]
    fn all_else_passes() {
        for (name, rtype, class) in [
            ("version.bind", RType::TXT, Class::IN),
            ("version.bind", RType::A, Class::CH),
            ("version.bind", RType::ANY, Class::CH),
            ("x.version.bind", RType::TXT, Class::CH),
            ("bind", RType::TXT, Class::CH),
        ] {
            assert_eq!(texts(&chaos("chaos"), name, rtype, class), None, "{name} {rtype} {class}");
        }
    }

    #[test]
    fn it_has_no_properties() {
        refused(&[(
            "chaos v1 {\nauthors a\n}",
            "2:1: plugin/chaos: `chaos` has no sub-block; remove the braces",
        )]);
    }
}
