//! Maps names in an answer back to names that the client expects.

use std::collections::HashMap;

use regex::Regex;
use wire::{Flags, Message, Name, RType, Rr, Section};

use super::name_match::{Pattern, Replacement};
use plugin::middleware::Subqueries;

/// A mapping of names.
#[derive(Debug, Clone)]
pub(super) enum NameMap {
    /// Maps a name and those below it to another name.
    Zone(Box<Turned>),
    /// Maps text by a suffix or a regular expression.
    Text(Pattern, Replacement),
}

/// The effective name, and the name in the client's question.
#[derive(Debug, Clone)]
pub(super) struct Turned {
    pub(super) from: Name,
    pub(super) to: Name,
}

/// Mappings of names in an answer, applied in order.
#[derive(Debug, Default)]
pub(super) struct NameMaps<'m> {
    owners: Vec<&'m NameMap>,
    values: Vec<&'m NameMap>,
    /// Whether results are cached: for patterns, not for [`NameMap::Zone`].
    compares: bool,
}

/// The results for names so far, in wire form; `None` for an unchanged name.
type Known = HashMap<Box<[u8]>, Option<Box<[u8]>>>;

/// The limit of compared names is reached.
struct NoMore;

impl<'m> NameMaps<'m> {
    /// Adds a map for owners, for names in the data, or for both.
    pub(super) fn push(&mut self, map: &'m NameMap, owners: bool, values: bool) {
        self.owners.extend(owners.then_some(map));
        self.values.extend(values.then_some(map));
        self.compares |= matches!(map, NameMap::Text(..));
    }

    /// Maps every name. At the limit of compared names the response is truncated before the current
    /// record; TC is set if that record is in the answer or authority section (RFC 2181, section
    /// 9).
    pub(super) fn apply(&self, response: &mut Message, subqueries: &mut dyn Subqueries) {
        if self.owners.is_empty() && self.values.is_empty() {
            return;
        }
        let (mut owners, mut values) = (Known::new(), Known::new());
        let mut changed = false;
        for at in 0..response.records.len() {
            let mapped = self.map_record(&mut response.records[at], &mut owners, &mut values, subqueries);
            changed |= mapped.as_ref().is_ok_and(|changed| *changed);
            if mapped.is_err() {
                if response.records[at].section != Section::Additional {
                    response.flags |= Flags::TC;
                }
                response.records.truncate(at);
                break;
            }
        }
        if changed {
            response.clear_ad();
        }
    }

    /// Maps the names of one record. Returns whether the record has changed.
    fn map_record(
        &self,
        rr: &mut Rr,
        owners: &mut Known,
        values: &mut Known,
        subqueries: &mut dyn Subqueries,
    ) -> Result<bool, NoMore> {
        let mut changed = false;
        if !self.owners.is_empty()
            && let Some(name) = self.map(&self.owners, &rr.name(), owners, subqueries)?
        {
            (rr.owner, changed) = (name, true);
        }
        if !self.values.is_empty()
            && let Some(at) = value_at(rr)
            && let Ok((name, end)) = Name::read_plain(&rr.data, at)
            && let Some(name) = self.map(&self.values, &name, values, subqueries)?
        {
            rr.data = [&rr.data[..at], &name, &rr.data[end..]].concat().into();
            changed = true;
        }
        Ok(changed)
    }

    /// Applies the mappings to a name; `None` if it is unchanged.
    fn map(
        &self,
        maps: &[&NameMap],
        name: &Name,
        known: &mut Known,
        subqueries: &mut dyn Subqueries,
    ) -> Result<Option<Box<[u8]>>, NoMore> {
        if self.compares
            && let Some(known) = known.get(name.as_wire())
        {
            return Ok(known.clone());
        }
        let (mut now, mut text) = (*name, None);
        for map in maps {
            let mapped = match map {
                NameMap::Zone(turned) => turned.map(&now),
                NameMap::Text(pattern, to) => {
                    let text = text.get_or_insert_with(|| now.to_string());
                    if !subqueries.may_compare(text.len() + EACH) {
                        return Err(NoMore);
                    }
                    // An invalid result leaves the name unchanged.
                    pattern.replace(text, to).and_then(|mapped| Name::from_text(&mapped).ok())
                }
            };
            if let Some(mapped) = mapped.filter(|mapped| *mapped != now) {
                (now, text) = (mapped, None);
            }
        }
        let mapped: Option<Box<[u8]>> = (now != *name).then(|| now.as_wire().into());
        if self.compares {
            known.insert(name.as_wire().into(), mapped.clone());
        }
        Ok(mapped)
    }
}

impl Turned {
    /// Maps a name; `None` if it is unchanged or the result would be invalid.
    fn map(&self, name: &Name) -> Option<Name> {
        let Self { from, to } = self;
        let below =
            name.as_wire().len().checked_sub(from.as_wire().len()).filter(|_| name.is_within(from))?;
        let mut wire = name.as_wire()[..below].to_vec();
        wire.extend_from_slice(to.as_wire());
        Name::from_wire(&wire).ok()
    }
}

/// Returns the offset of the name that `answer value` maps in a record's data.
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

/// Creates the map for `FROM TO` of an answer rule.
pub(super) fn text_map(from: Regex, to: Replacement) -> NameMap {
    NameMap::Text(Pattern::Regex(from), to)
}

/// Fixed cost of comparing a name besides its bytes, in bytes.
const EACH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MOST_COMPARED, Others, a};

    /// Mappings of owners, or of names in the data, in order.
    fn maps(rules: &[(&str, &str)]) -> Vec<NameMap> {
        let to = |to: &str| Replacement::with_groups(to, 1).unwrap();
        rules.iter().map(|(from, by)| text_map(Regex::new(from).unwrap(), to(by))).collect()
    }

    /// The mapped records, and the number of bytes compared.
    fn response(maps: &[NameMap], records: Vec<Rr>) -> (Message, usize) {
        let (mut names, mut others) = (NameMaps::default(), Others::default());
        maps.iter().for_each(|map| names.push(map, true, true));
        let mut response = Message { records, ..Message::default() };
        names.apply(&mut response, &mut others);
        (response, others.2)
    }

    fn srv(section: Section, owner: &str, target: &str) -> Rr {
        let target = Name::from_text(target).unwrap();
        let data = [&[0, 1, 0, 1, 0, 80], target.as_wire()].concat();
        Rr::new(section, &Name::from_text(owner).unwrap(), RType::SRV, 60, &data)
    }

    #[test]
    fn revert_owners_and_data() {
        let zone = |from, to| {
            let [from, to] = [from, to].map(|name| Name::from_text(name).unwrap());
            NameMap::Zone(Box::new(Turned { from, to }))
        };
        let mut all = maps(&[("(.*)[.]a[.]$", "{1}.b."), ("(.*)[.]b[.]$", "{1}.c."), ("^x", "..")]);
        all.insert(0, zone("z", "y.a"));
        let records = vec![srv(Section::Answer, "WWW.a", "x.b"), srv(Section::Answer, "other", "q.z")];
        let rows = [srv(Section::Answer, "www.c", "x.c"), srv(Section::Answer, "other", "q.y.c")];
        assert_eq!(response(&all, records).0.records, rows);
    }

    #[test]
    fn equal_names_are_compared_once() {
        let maps = maps(&[("(.*)[.]a[.]$", "{1}.b."); 12]);
        let one = a("www.example.a", 60, [192, 0, 2, 1]);
        let (message, once) = response(&maps, vec![one.clone()]);
        let (all, compared) = response(&maps, vec![one; 4_000]);
        assert_eq!((all.records, compared), (vec![message.records[0].clone(); 4_000], once));
    }

    #[test]
    fn revert_work_is_bounded() {
        let long = ["a".repeat(60), "b".repeat(60), "c".repeat(60), "d".repeat(50)].join(".");
        let maps = maps(&[("(.*)[.]d+[.]$", "{1}.e."), ("(.*)[.]e[.]$", "{1}.f.")]);
        let short = long.replace(&"d".repeat(50), "f");
        for (section, flags) in [(Section::Answer, Flags::TC), (Section::Additional, 0)] {
            let names = |end: &str| -> Vec<Rr> {
                (0..3_000).map(|n| srv(section, &format!("o{n}.{end}"), &format!("t{n}.{end}"))).collect()
            };
            let (response, compared) = response(&maps, names(&long));
            assert!((MOST_COMPARED..MOST_COMPARED + 300).contains(&compared), "{compared}");
            let count = response.records.len();
            assert!((1_000..1_200).contains(&count), "{count}");
            assert_eq!((response.flags, &response.records[..]), (flags, &names(&short)[..count]));
        }
    }
}
