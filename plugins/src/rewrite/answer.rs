//! Names in an answer, mapped back.

use regex::Regex;
use wire::{MAX_NAME, Message, Name, RType, Rr};

use super::pattern::{Pattern, Replacement};

/// What becomes of a name.
#[derive(Debug, Clone)]
pub(super) enum NameMap {
    /// A name and those below it become another and those below that.
    Zone(Box<Turned>),
    /// A suffix of the text, or a regular expression.
    Text(Pattern, Replacement),
}

/// What was sought, and what was asked.
#[derive(Debug, Clone)]
pub(super) struct Turned {
    pub(super) from: Name,
    pub(super) to: Name,
}

impl NameMap {
    /// `None` where the name stays, or would be none.
    fn map(&self, name: &Name) -> Option<Name> {
        match self {
            Self::Zone(turned) => {
                let Turned { from, to } = &**turned;
                let below = name
                    .as_wire()
                    .len()
                    .checked_sub(from.as_wire().len())
                    .filter(|_| name.is_within(from))?;
                let mut wire = name.as_wire()[..below].to_vec();
                wire.extend_from_slice(to.as_wire());
                Name::from_wire(&wire).ok()
            }
            Self::Text(pattern, to) => {
                let mapped = pattern.replace(&name.to_string(), to)?;
                Name::from_text(&mapped).ok().filter(|mapped| mapped != name)
            }
        }
    }
}

/// Maps the owners, the names in the data, or both.
pub(super) fn apply(told: &mut Message, map: &NameMap, owners: bool, values: bool) {
    for rr in &mut told.records {
        if owners && let Some(name) = map.map(&rr.name()) {
            rr.owner = name.as_wire().into();
        }
        if values && let Some(at) = value_at(rr) {
            map_value(rr, at, map);
        }
    }
}

/// Where in its data the name is that `answer value` is about.
fn value_at(rr: &Rr) -> Option<usize> {
    match rr.rtype {
        RType::CNAME | RType::NS | RType::PTR | RType::DNAME | RType::SOA => Some(0),
        RType::MX => Some(2),
        RType::SRV => Some(6),
        RType::NAPTR => {
            let mut at = 4;
            for _ in 0..3 {
                at += 1 + usize::from(*rr.data.get(at)?);
            }
            Some(at)
        }
        _ => None,
    }
}

fn map_value(rr: &mut Rr, at: usize, map: &NameMap) {
    let Ok((name, end)) = Name::read_plain(&rr.data, at) else { return };
    let Some(mapped) = map.map(&name) else { return };
    let mut data = Vec::with_capacity(rr.data.len() + MAX_NAME);
    data.extend_from_slice(&rr.data[..at]);
    data.extend_from_slice(mapped.as_wire());
    data.extend_from_slice(&rr.data[end..]);
    rr.data = data.into();
}

/// `FROM TO` of an answer rule.
pub(super) fn text_map(from: Regex, to: Replacement) -> NameMap {
    NameMap::Text(Pattern::Regex(from), to)
}
