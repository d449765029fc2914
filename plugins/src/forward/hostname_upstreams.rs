//! Host names among upstreams: all names of a configuration are resolved concurrently, within one
//! time limit, and each is resolved again after its TTL.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forwarder::{Addresses, ResolveError};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use wire::Name;

use super::setup::{ForwardSpec, ForwardTarget};

/// A host name, and the servers that resolve it, as in the Corefile. An empty list means the
/// system's servers at the time of the lookup.
pub(crate) type Wanted = (Name, Vec<SocketAddr>);
type Resolution = Result<Addresses, Box<ResolveError>>;

/// Results for the names of the last configuration.
#[derive(Default)]
pub(crate) struct Names {
    known: Mutex<HashMap<Wanted, Resolution>>,
}

impl Names {
    /// Looks up every name of these stanzas, within 4 s in total, and replaces all results. Servers
    /// in `ours` are not queried.
    pub(crate) fn look_up<'s>(
        &self,
        specs: impl Iterator<Item = &'s ForwardSpec>,
        ours: &[SocketAddr],
        handle: &Handle,
    ) {
        let wanted: HashSet<Wanted> = specs.flat_map(wanted).collect();
        let found = match wanted.is_empty() {
            true => HashMap::new(),
            false => handle.block_on(look_up(wanted, ours.to_vec())),
        };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Returns the result of a lookup; `None` if the name was not looked up.
    pub(crate) fn find(&self, wanted: &Wanted) -> Option<Resolution> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(wanted).cloned()
    }

    fn keep(&self, wanted: &Wanted, found: &Addresses) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(wanted.clone(), Ok(found.clone()));
    }
}

/// The names of an active stanza, with their last results.
#[derive(Default)]
pub(crate) struct ResolvedNames {
    /// The addresses are `None` until the name is found for the first time.
    names: Vec<(Wanted, Option<Addresses>)>,
    due: Option<Instant>,
    asking: bool,
    /// Consecutive rounds in which a name was not found.
    failures: u32,
    /// The results of lookups that have ended in the background.
    found: Arc<Mutex<Option<HashMap<Wanted, Resolution>>>>,
}

/// Changes to the names of a stanza.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// Some names have other addresses.
    Changed,
    /// Some names were not found, for the first time in a row; the text is the error.
    Failed(String),
}

impl ResolvedNames {
    /// Starts following the names of a stanza, which have just been looked up.
    pub(crate) fn new(spec: &ForwardSpec, names: &Names) -> Self {
        let found = wanted(spec).map(|wanted| {
            let found = names.find(&wanted).and_then(Result::ok);
            (wanted, found)
        });
        let names: Vec<_> = found.collect();
        let failures = u32::from(names.iter().any(|(_, found)| found.is_none()));
        Self { names, failures, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Copies the last results to `names`, for [`Names::find`].
    pub(crate) fn publish(&self, names: &Names) {
        for (wanted, addresses) in &self.names {
            addresses.iter().for_each(|addresses| names.keep(wanted, addresses));
        }
    }

    /// Starts lookups that are due in the background, and logs the results of lookups that have
    /// ended.
    pub(crate) fn look(&mut self, now: Instant, ours: &[SocketAddr], handle: &Handle) -> News {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(found) = found {
            self.asking = false;
            return self.take(now, found);
        }
        let lasts = self.lasts();
        let due = *self.due.get_or_insert_with(|| now + lasts);
        if due <= now && !self.asking && !self.names.is_empty() {
            self.asking = true;
            let wanted = self.names.iter().map(|(wanted, _)| wanted.clone()).collect();
            let (ours, place) = (ours.to_vec(), self.found.clone());
            handle.spawn(async move {
                let found = look_up(wanted, ours).await;
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            });
        }
        News::Nothing
    }

    fn take(&mut self, now: Instant, mut found: HashMap<Wanted, Resolution>) -> News {
        let (mut changed, mut failed) = (false, None);
        for (wanted, known) in &mut self.names {
            match found.remove(wanted) {
                Some(Ok(addresses)) => {
                    // Servers rotate the order of addresses, which is not a change.
                    changed |= known.as_ref().map(sorted) != Some(sorted(&addresses));
                    *known = Some(addresses);
                }
                Some(Err(error)) => failed = Some(error.to_string()),
                None => {}
            }
        }
        self.failures = if failed.is_some() { self.failures.saturating_add(1) } else { 0 };
        self.due = Some(now + self.lasts());
        match failed {
            _ if changed => News::Changed,
            Some(failed) if self.failures == 1 => News::Failed(failed),
            _ => News::Nothing,
        }
    }

    /// Returns the time until the names are looked up again: the shortest TTL, or a delay that
    /// doubles with each failure.
    fn lasts(&self) -> Duration {
        match self.failures {
            0 => {
                let shortest = self.names.iter().flat_map(|(_, found)| found).map(|found| found.ttl).min();
                shortest.unwrap_or(LONGEST).clamp(SHORTEST, LONGEST)
            }
            failures => (AFTER_FAILURE * (1 << (failures - 1).min(5))).min(MOST_AFTER_FAILURE),
        }
    }
}

/// Returns the host names among a stanza's targets.
fn wanted(spec: &ForwardSpec) -> impl Iterator<Item = Wanted> {
    spec.targets.iter().filter_map(|(target, _)| match target {
        ForwardTarget::Host { name, .. } => Some((*name, spec.resolvers.clone())),
        _ => None,
    })
}

async fn look_up(wanted: HashSet<Wanted>, ours: Vec<SocketAddr>) -> HashMap<Wanted, Resolution> {
    let system = match wanted.iter().any(|(_, resolvers)| resolvers.is_empty()) {
        // The task fails only when the runtime shuts down.
        true => spawn_blocking(systems_servers).await.unwrap_or_default(),
        false => Vec::new(),
    };
    let mut lookups = JoinSet::new();
    for wanted in wanted {
        let servers = if wanted.1.is_empty() { system.clone() } else { wanted.1.clone() };
        let ours = ours.clone();
        lookups.spawn(async move {
            let outcome = forwarder::resolve(&wanted.0, &servers, &ours).await;
            (wanted, outcome.map_err(Box::new))
        });
    }
    let mut found = HashMap::new();
    while let Some(ended) = lookups.join_next().await {
        found.extend(ended);
    }
    found
}

/// Reads resolv.conf; may block on the disk.
fn systems_servers() -> Vec<SocketAddr> {
    super::read_resolv_conf(Path::new("/etc/resolv.conf")).unwrap_or_default()
}

fn sorted(addresses: &Addresses) -> Vec<std::net::IpAddr> {
    let mut sorted = addresses.addresses.clone();
    sorted.sort_unstable();
    sorted
}

/// Minimum and maximum time until a found name is looked up again.
const SHORTEST: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(3600);
/// Delay before a failed lookup is repeated, and its maximum after doubling.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
const MOST_AFTER_FAILURE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str], ttl: u64) -> Addresses {
        let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
        Addresses { addresses, ttl: Duration::from_secs(ttl) }
    }

    #[test]
    fn next_lookup_after_ttl_or_failure() {
        let now = clock::now();
        let wanted = (Name::from_text("dns.example").unwrap(), vec!["192.0.2.53:53".parse().unwrap()]);
        let known = addresses(&["192.0.2.1", "192.0.2.2"], 60);
        let mut kept =
            ResolvedNames { names: vec![(wanted.clone(), Some(known))], ..ResolvedNames::default() };
        let mut take = |outcome: Resolution| {
            let news = kept.take(now, HashMap::from([(wanted.clone(), outcome)]));
            (news, kept.due.unwrap() - now, kept.names[0].1.as_ref().unwrap().addresses.len())
        };
        let lost = || Err(Box::new(ResolveError::NoAddress(wanted.0)));
        let failed = News::Failed(lost().unwrap_err().to_string());
        let secs = Duration::from_secs;
        for (outcome, expected) in [
            (Ok(addresses(&["192.0.2.2", "192.0.2.1"], 60)), (News::Nothing, secs(60), 2)),
            (Ok(addresses(&["192.0.2.3"], 7200)), (News::Changed, secs(3600), 1)),
            (lost(), (failed, secs(1), 1)),
            (lost(), (News::Nothing, secs(2), 1)),
            (lost(), (News::Nothing, secs(4), 1)),
            (lost(), (News::Nothing, secs(8), 1)),
            (lost(), (News::Nothing, secs(16), 1)),
            (lost(), (News::Nothing, secs(30), 1)),
            (lost(), (News::Nothing, secs(30), 1)),
            (Ok(addresses(&["192.0.2.3"], 1)), (News::Nothing, secs(30), 1)),
        ] {
            assert_eq!(take(outcome), expected);
        }
    }

    #[test]
    fn unresolved_name_is_retried() {
        let now = clock::now();
        let wanted = (Name::from_text("dns.example").unwrap(), Vec::new());
        let mut kept =
            ResolvedNames { names: vec![(wanted.clone(), None)], failures: 1, ..ResolvedNames::default() };
        assert_eq!(kept.lasts(), Duration::from_secs(1));
        let mut take = |outcome: Resolution| kept.take(now, HashMap::from([(wanted.clone(), outcome)]));
        assert_eq!(
            take(Err(Box::new(ResolveError::NoAddress(wanted.0)))),
            News::Nothing,
            "it was reported at the start"
        );
        assert_eq!(take(Ok(addresses(&["192.0.2.3"], 60))), News::Changed);
        assert_eq!(kept.lasts(), Duration::from_secs(60));
    }
}
