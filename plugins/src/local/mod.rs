//! `local`: names of the local machine, which no upstream should see (RFC 6761, section 6.3; RFC 6303, section 4).

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use corefile::Directive;
use logging::Logger;
use metrics::counters::PerThread;
use metrics::{Families, Metric};
use wire::{Message, Name, RType, Rcode, Rr, Section};

use plugin::QueryContext;
use plugin::args::{Args, Result, bad, no_block, once, unknown_property};
use plugin::middleware::{EffectiveQuery, Middleware, OnQuery};
use plugin::reload_state::Persistent;
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};

/// The `local` of a server block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSpec {
    /// Whether names with the first label `localhost` are local, too.
    localhost_prefix: bool,
}

/// Reads the one `local` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    let directive = once(PLUGIN, directives)?;
    Args::new(PLUGIN, directive, "no argument").end()?;
    let mut spec = LocalSpec { localhost_prefix: true };
    for property in directive.body.iter().flatten() {
        if property.name.text != PREFIX {
            return Err(unknown_property(PLUGIN, property, &[PREFIX]));
        }
        no_block(PLUGIN, property)?;
        let mut args = Args::new(PLUGIN, property, ON_OR_OFF);
        let word = args.required()?;
        spec.localhost_prefix = match word.text.as_str() {
            "on" => true,
            "off" => false,
            _ => return Err(bad(PLUGIN, word, ON_OR_OFF)),
        };
        args.end()?;
    }
    Ok(Arc::new(spec))
}

impl MiddlewareSpec for LocalSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        let counter = context.reload_state.get::<LocalCounter>();
        let requests = counter.0.get_or_init(|| Arc::new(PerThread::new(context.threads))).clone();
        Ok(Arc::new(Local { zones: Zones::new(*self), requests, logger: context.logger.clone() }))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

/// The middleware of one server block.
#[derive(Debug)]
struct Local {
    zones: Zones,
    /// Counts queries for names that are local because of their label `localhost`.
    requests: Arc<PerThread>,
    logger: Logger,
}

impl Middleware for Local {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, context: &QueryContext<'_>) -> OnQuery<'s> {
        let name = effective.name();
        let Some(local) = self.zones.find(name) else { return OnQuery::Pass };
        if local == LocalName::Prefixed && effective.counts {
            self.requests.add(context.writer);
            let (rtype, client) = (effective.rtype(), context.client().ip().to_canonical());
            let line = || format!("Intercepting localhost query for \"{name}\" {rtype}, from {client}");
            self.logger.debug(Some(PLUGIN), line);
        }
        let (rcode, record) = self.zones.answer(local, name, effective.rtype());
        let mut response = Message::empty(&effective.query(), rcode);
        response.records.push(record);
        OnQuery::Answer(Box::new(response))
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        let Some(local) = self.zones.find(effective.name()) else { return Explanation::Passes(None) };
        let (rcode, record) = self.zones.answer(local, effective.name(), effective.rtype());
        Explanation::Ends(match (rcode, record.section) {
            (Rcode::NXDOMAIN, _) => "NXDOMAIN: the name is in a local zone".to_owned(),
            (_, Section::Authority) => "NODATA: the name is local".to_owned(),
            _ => format!("{}: the name is local", record.rtype),
        })
    }
}

/// A name that is answered here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocalName {
    /// A name below `localhost` or with the first label `localhost`: has the addresses of
    /// `localhost`, and no SOA or NS.
    Prefixed,
    /// `localhost` itself.
    Localhost,
    /// The apex of a reverse zone.
    Apex,
    /// The reverse name of 127.0.0.1.
    Loopback,
    /// Another name in a reverse zone; it does not exist.
    Absent,
}

/// The names that `local` answers.
#[derive(Debug)]
struct Zones {
    spec: LocalSpec,
    localhost: Name,
    loopback: Name,
    reverse: [Name; 3],
}

impl Zones {
    fn new(spec: LocalSpec) -> Self {
        let name = |text| Name::from_text(text).expect("it is a name");
        Self {
            spec,
            localhost: name("localhost"),
            loopback: name("1.0.0.127.in-addr.arpa"),
            reverse: ["0.in-addr.arpa", "127.in-addr.arpa", "255.in-addr.arpa"].map(name),
        }
    }

    /// Returns the role of `name`; `None` if `local` does not answer the name.
    fn find(&self, name: &Name) -> Option<LocalName> {
        let is_prefixed = self.spec.localhost_prefix && name.labels().next() == Some(LOCALHOST);
        if *name == self.localhost {
            Some(LocalName::Localhost)
        } else if name.is_within(&self.localhost) || is_prefixed {
            Some(LocalName::Prefixed)
        } else if *name == self.loopback {
            Some(LocalName::Loopback)
        } else if self.reverse.contains(name) {
            Some(LocalName::Apex)
        } else {
            self.zone(name).map(|_| LocalName::Absent)
        }
    }

    /// Returns the reverse zone that contains a name.
    fn zone(&self, name: &Name) -> Option<&Name> {
        self.reverse.iter().find(|zone| name.is_within(zone))
    }

    /// Returns the rcode and the only record of a reply: an answer, or the SOA of a denial.
    fn answer(&self, local: LocalName, name: &Name, rtype: RType) -> (Rcode, Rr) {
        let record = |section, owner: &Name, rtype, data: &[u8]| Rr::new(section, owner, rtype, TTL, data);
        let localhost = self.localhost.as_wire();
        let has_addresses = matches!(local, LocalName::Localhost | LocalName::Prefixed);
        let is_apex = matches!(local, LocalName::Localhost | LocalName::Apex);
        let answer = match rtype {
            RType::A if has_addresses => record(Section::Answer, name, rtype, &[127, 0, 0, 1]),
            RType::AAAA if has_addresses => record(Section::Answer, name, rtype, &ONE),
            RType::SOA if is_apex => record(Section::Answer, name, rtype, &soa(localhost)),
            RType::NS if is_apex => record(Section::Answer, name, rtype, localhost),
            RType::PTR if local == LocalName::Loopback => record(Section::Answer, name, rtype, localhost),
            _ => {
                let of_zone = matches!(local, LocalName::Loopback | LocalName::Absent);
                let owner = if of_zone { self.zone(name).unwrap_or(name) } else { name };
                let rcode = if local == LocalName::Absent { Rcode::NXDOMAIN } else { Rcode::NOERROR };
                return (rcode, record(Section::Authority, owner, RType::SOA, &soa(localhost)));
            }
        };
        (Rcode::NOERROR, answer)
    }
}

/// Returns the data of every SOA record: MNAME, RNAME, serial, refresh, retry, expire and minimum.
fn soa(localhost: &[u8]) -> Vec<u8> {
    let mut data = [localhost, b"\x04root", localhost].concat();
    for number in [1, 0, 0, 0, TTL] {
        data.extend_from_slice(&number.to_be_bytes());
    }
    data
}

/// The counter shared by all server blocks.
#[derive(Debug, Default)]
struct LocalCounter(OnceLock<Arc<PerThread>>);

impl Persistent for LocalCounter {
    fn collect(&self, into: &mut Families) {
        if let Some(counter) = self.0.get() {
            into.counter(REQUESTS, &[], counter.get() as f64);
        }
    }
}

const PLUGIN: &str = "local";
const PREFIX: &str = "localhost_prefix";
const ON_OR_OFF: &str = "on or off";
/// The label that makes a name local.
const LOCALHOST: &[u8] = b"localhost";
/// In seconds, as in CoreDNS.
const TTL: u32 = 604_800;
/// The address ::1.
const ONE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const REQUESTS: Metric = Metric {
    name: "coredns_local_localhost_requests_total",
    help: "Counter of special localhost subdomain requests.",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{refused, refused_properties};

    #[test]
    fn local_names_are_answered() {
        for (name, rtype, on, off) in [
            ("localhost", RType::A, "A", "A"),
            ("localhost", RType::AAAA, "AAAA", "AAAA"),
            ("localhost", RType::NS, "NS", "NS"),
            ("localhost", RType::SOA, "SOA", "SOA"),
            ("localhost", RType::MX, "NODATA localhost.", "NODATA localhost."),
            ("a.b.localhost", RType::A, "A", "A"),
            ("a.localhost", RType::SOA, "NODATA a.localhost.", "NODATA a.localhost."),
            ("localhost.example", RType::AAAA, "AAAA", "-"),
            ("localhost.127.in-addr.arpa", RType::A, "A", "NXDOMAIN 127.in-addr.arpa."),
            ("notlocalhost", RType::A, "-", "-"),
            ("a.localhost.example", RType::A, "-", "-"),
            ("127.in-addr.arpa", RType::NS, "NS", "NS"),
            ("255.in-addr.arpa", RType::A, "NODATA 255.in-addr.arpa.", "NODATA 255.in-addr.arpa."),
            ("1.0.0.127.in-addr.arpa", RType::PTR, "PTR", "PTR"),
            ("1.0.0.127.in-addr.arpa", RType::A, "NODATA 127.in-addr.arpa.", "NODATA 127.in-addr.arpa."),
            (
                "2.0.0.127.in-addr.arpa",
                RType::PTR,
                "NXDOMAIN 127.in-addr.arpa.",
                "NXDOMAIN 127.in-addr.arpa.",
            ),
            ("1.0.0.in-addr.arpa", RType::PTR, "NXDOMAIN 0.in-addr.arpa.", "NXDOMAIN 0.in-addr.arpa."),
            ("1.in-addr.arpa", RType::PTR, "-", "-"),
        ] {
            for (localhost_prefix, expected) in [(true, on), (false, off)] {
                let zones = Zones::new(LocalSpec { localhost_prefix });
                let parsed = Name::from_text(name).unwrap();
                let found = zones.find(&parsed).map(|local| zones.answer(local, &parsed, rtype));
                let text = match found {
                    None => "-".to_owned(),
                    Some((_, rr)) if rr.section == Section::Answer => rr.rtype.to_string(),
                    Some((Rcode::NXDOMAIN, rr)) => format!("NXDOMAIN {}", rr.name()),
                    Some((_, rr)) => format!("NODATA {}", rr.name()),
                };
                assert_eq!(text, expected, "{name} {rtype} {localhost_prefix}");
            }
        }
    }

    #[test]
    fn bad_words_are_refused() {
        refused(&[("local x", "2:7: plugin/local: unexpected argument \"x\"; `local` needs no argument")]);
        refused_properties(
            "local",
            &[
                ("localhost_prefix", "1: plugin/local: `localhost_prefix` needs on or off"),
                ("localhost_prefix ON", "18: plugin/local: \"ON\" is not on or off"),
                ("other", "1: plugin/local: unknown property \"other\"; expected localhost_prefix"),
            ],
        );
    }
}
