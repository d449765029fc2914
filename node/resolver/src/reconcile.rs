//! Computes the managed lines from a round's lookups: a pure function, without file, clock and
//! network.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use hostsfile::managed::ManagedLine;
use ipnet::IpNet;
use stub_resolver::{Family, LookupError, LookupOutcome};

use super::services::Service;

/// The result of each lookup; a missing entry counts as a failed lookup.
pub(crate) type Outcomes = HashMap<(Service, Family), LookupOutcome>;

/// Settings for every service.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// The cluster's domain, without final dot.
    pub(crate) domain: Box<str>,
    /// Networks of service addresses; empty if unknown.
    pub(crate) networks: Vec<IpNet>,
}

/// The managed lines that the file must have, and the verdict on each service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedLines {
    pub(crate) entries: Vec<ManagedLine>,
    pub(crate) verdicts: BTreeMap<Service, Verdict>,
}

/// The result for a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The service has the lines of the last answer.
    Known,
    /// The answer has no addresses, so the service has no lines.
    Absent,
    /// At least one family has no answer: its existing lines are kept.
    Kept(LookupError),
    /// The service gets no line, whatever the answer.
    LeftOut(Reason),
}

/// Why a service gets no line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// An unmanaged line, of this number, defines this name.
    Defined { name: String, line: usize },
    /// The service is an alias, that is, of type ExternalName.
    Alias,
    /// The service has this many addresses in one family, as a headless service has, and no
    /// configured networks show that they are service addresses.
    Headless(usize),
    /// None of the service's addresses is allowed; this is the first.
    Refused(IpAddr),
}

impl Verdict {
    /// Returns the verdict as one word, for metrics; a change that keeps the word is not logged.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Absent => "absent",
            Self::Kept(_) => "kept",
            Self::LeftOut(Reason::Defined { .. }) => "defined_by_others",
            Self::LeftOut(Reason::Alias) => "alias",
            Self::LeftOut(Reason::Headless(_)) => "headless",
            Self::LeftOut(Reason::Refused(_)) => "refused",
        }
    }
}

/// Computes the lines and the verdict of every service.
///
/// In each family, an answer with addresses replaces the managed lines, an answer without addresses
/// removes them, and a failure keeps them. NXDOMAIN holds for both families, unless the other
/// family has addresses.
pub(crate) fn plan(
    services: &BTreeSet<Service>,
    rules: &Rules,
    outcomes: &Outcomes,
    standing: &[ManagedLine],
    defined_by_others: &HashMap<String, usize>,
) -> WantedLines {
    let mut plan = WantedLines::default();
    for service in services {
        let standing: Vec<IpAddr> = standing
            .iter()
            .filter(|entry| &*entry.name == service.as_str())
            .map(|entry| entry.address)
            .filter(|address| rules.admit(*address))
            .collect();
        let (addresses, verdict) = match rules.reason_against(service, outcomes, defined_by_others) {
            Some(reason) => (Vec::new(), Verdict::LeftOut(reason)),
            None => rules.decide(service, outcomes, &standing),
        };
        plan.entries.extend(addresses.into_iter().map(|address| ManagedLine {
            name: service.as_str().into(),
            domain: rules.domain.clone(),
            address,
        }));
        plan.verdicts.insert(service.clone(), verdict);
    }
    plan.entries.sort_unstable();
    plan.entries.dedup();
    plan
}

impl Rules {
    /// Returns all names that managed lines may define.
    pub(crate) fn names_of(&self, services: &BTreeSet<Service>) -> HashSet<String> {
        services.iter().flat_map(|service| self.names(service)).collect()
    }

    /// Returns the names of a service without and with the cluster's domain.
    fn names(&self, service: &Service) -> [String; 2] {
        [service.to_string(), format!("{service}.{}", self.domain)]
    }

    /// Returns why the service gets no line whatever the answer, if there is a reason.
    fn reason_against(
        &self,
        service: &Service,
        outcomes: &Outcomes,
        defined_by_others: &HashMap<String, usize>,
    ) -> Option<Reason> {
        for name in self.names(service) {
            if let Some(&line) = defined_by_others.get(&name) {
                return Some(Reason::Defined { name, line });
            }
        }
        let outcomes = || FAMILIES.iter().filter_map(|family| outcomes.get(&(service.clone(), *family)));
        if outcomes().any(|outcome| *outcome == LookupOutcome::Failed(LookupError::Alias)) {
            return Some(Reason::Alias);
        }
        outcomes().find_map(|outcome| match outcome {
            LookupOutcome::Addresses { addresses, .. } if self.networks.is_empty() && addresses.len() > 1 => {
                Some(Reason::Headless(addresses.len()))
            }
            _ => None,
        })
    }

    fn decide(&self, service: &Service, outcomes: &Outcomes, standing: &[IpAddr]) -> (Vec<IpAddr>, Verdict) {
        let of = |family: Family| outcomes.get(&(service.clone(), family));
        let is_denied = FAMILIES.iter().any(|family| of(*family) == Some(&LookupOutcome::NoSuchName));
        let (mut entries, mut failure, mut refused) = (Vec::new(), None, None);
        for family in FAMILIES {
            match of(family) {
                Some(LookupOutcome::Addresses { addresses, .. }) => {
                    let (good, bad): (Vec<IpAddr>, Vec<IpAddr>) = addresses
                        .iter()
                        .partition(|address| is_of(**address, family) && self.admit(**address));
                    entries.extend(good);
                    refused = refused.or_else(|| bad.first().copied());
                }
                Some(LookupOutcome::NoSuchName | LookupOutcome::NoData) => {}
                Some(LookupOutcome::Failed(_)) | None if is_denied => {}
                Some(LookupOutcome::Failed(error)) => {
                    failure = failure.or(Some(*error));
                    entries.extend(standing.iter().filter(|address| is_of(**address, family)));
                }
                None => {
                    failure = failure.or(Some(LookupError::OutOfTime));
                    entries.extend(standing.iter().filter(|address| is_of(**address, family)));
                }
            }
        }
        let verdict = match (failure, refused) {
            (Some(error), _) => Verdict::Kept(error),
            (None, Some(address)) if entries.is_empty() => Verdict::LeftOut(Reason::Refused(address)),
            _ if entries.is_empty() => Verdict::Absent,
            _ => Verdict::Known,
        };
        (entries, verdict)
    }

    /// Whether a service may have this address.
    fn admit(&self, address: IpAddr) -> bool {
        refresh::usable(address, &[]).is_ok()
            && (self.networks.is_empty() || self.networks.iter().any(|network| network.contains(&address)))
    }
}

fn is_of(address: IpAddr, family: Family) -> bool {
    match family {
        Family::Ipv4 => address.is_ipv4(),
        Family::Ipv6 => address.is_ipv6(),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known => f.write_str("resolves again"),
            Self::Absent => f.write_str("has no address, so it has no lines"),
            Self::Kept(error) => write!(f, "its lines are unchanged: {error}"),
            Self::LeftOut(reason) => write!(f, "is ignored: {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defined { name, line } => {
                write!(f, "line {line} of the hosts file, which is not managed, has {name} already")
            }
            Self::Alias => f.write_str("it is an alias of another name (ExternalName)"),
            Self::Headless(count) => {
                write!(f, "it has {count} addresses, as headless services do; set SERVICE_CIDRS")
            }
            Self::Refused(address) => write!(f, "{address} is not a service address"),
        }
    }
}

/// Both address families.
pub(crate) const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
