//! Host names among upstreams: all of a configuration are looked up at once, inside one bound, and each again when its
//! TTL is over.

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

/// A name, and the servers that are asked for it, as the Corefile names them: without any, those of the system, whoever they
/// are then.
pub(crate) type Wanted = (Name, Vec<SocketAddr>);
type Resolution = Result<Addresses, Box<ResolveError>>;

/// What the names of the last configuration were found to be.
#[derive(Default)]
pub(crate) struct Names {
    known: Mutex<HashMap<Wanted, Resolution>>,
}

impl Names {
    /// Looks up every name of these stanzas, at most 4 s for all, in place of what was known before. `ours` are not asked.
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

    /// What was found, if it was looked up; an error is told once.
    pub(crate) fn find(&self, wanted: &Wanted) -> Option<Resolution> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(wanted)? {
            Ok(addresses) => Some(Ok(addresses.clone())),
            Err(_) => known.remove(wanted),
        }
    }

    fn keep(&self, wanted: &Wanted, found: &Addresses) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(wanted.clone(), Ok(found.clone()));
    }
}

/// The names of a stanza that serves, as they were found last.
#[derive(Default)]
pub(crate) struct ResolvedNames {
    names: Vec<(Wanted, Addresses)>,
    due: Option<Instant>,
    asking: bool,
    failing: bool,
    /// Where the lookups in the background leave what they found.
    found: Arc<Mutex<Option<HashMap<Wanted, Resolution>>>>,
}

/// What is new about the names of a stanza.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// Some have other addresses.
    Changed,
    /// Some were not found, and had been before.
    Failed(String),
}

impl ResolvedNames {
    /// The names of this stanza, which have just been looked up.
    pub(crate) fn new(spec: &ForwardSpec, names: &Names) -> Self {
        let found = wanted(spec).filter_map(|wanted| match names.find(&wanted) {
            Some(Ok(addresses)) => Some((wanted, addresses)),
            _ => None,
        });
        Self { names: found.collect(), ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Makes what is known here what [`Names::find`] finds.
    pub(crate) fn publish(&self, names: &Names) {
        for (wanted, addresses) in &self.names {
            names.keep(wanted, addresses);
        }
    }

    /// Begins lookups that are due, in the background, and tells what ended ones found.
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
                    // Servers turn the order round; that is no change.
                    changed |= sorted(&addresses) != sorted(known);
                    *known = addresses;
                }
                Some(Err(error)) => failed = Some(error.to_string()),
                None => {}
            }
        }
        let was_failing = std::mem::replace(&mut self.failing, failed.is_some());
        self.due = Some(now + if self.failing { AGAIN } else { self.lasts() });
        match failed {
            _ if changed => News::Changed,
            Some(failed) if !was_failing => News::Failed(failed),
            _ => News::Nothing,
        }
    }

    /// How long what is known lasts.
    fn lasts(&self) -> Duration {
        let shortest = self.names.iter().map(|(_, addresses)| addresses.ttl).min();
        shortest.unwrap_or(LONGEST).clamp(AGAIN, LONGEST)
    }
}

/// The names among a stanza's targets.
fn wanted(spec: &ForwardSpec) -> impl Iterator<Item = Wanted> {
    spec.targets.iter().filter_map(|(target, _)| match target {
        ForwardTarget::Host { name, .. } => Some((*name, spec.resolvers.clone())),
        _ => None,
    })
}

async fn look_up(wanted: HashSet<Wanted>, ours: Vec<SocketAddr>) -> HashMap<Wanted, Resolution> {
    let system = match wanted.iter().any(|(_, resolvers)| resolvers.is_empty()) {
        // It fails only where the runtime ends.
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

/// Blocks, where a disk does.
fn systems_servers() -> Vec<SocketAddr> {
    super::read_resolv_conf(Path::new("/etc/resolv.conf")).unwrap_or_default()
}

fn sorted(addresses: &Addresses) -> Vec<std::net::IpAddr> {
    let mut sorted = addresses.addresses.clone();
    sorted.sort_unstable();
    sorted
}

/// The shortest and the longest time until a name is looked up again, and the time after a failure.
const AGAIN: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str], ttl: u64) -> Addresses {
        let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
        Addresses { addresses, ttl: Duration::from_secs(ttl) }
    }

    #[test]
    fn a_name_is_due_when_its_ttl_is_over_and_soon_after_a_failure() {
        let now = clock::now();
        let wanted = (Name::from_text("dns.example").unwrap(), vec!["192.0.2.53:53".parse().unwrap()]);
        let mut kept = ResolvedNames {
            names: vec![(wanted.clone(), addresses(&["192.0.2.1", "192.0.2.2"], 60))],
            ..ResolvedNames::default()
        };
        let mut take = |outcome: Resolution| {
            let news = kept.take(now, HashMap::from([(wanted.clone(), outcome)]));
            (news, kept.due.unwrap() - now, kept.names[0].1.addresses.len())
        };
        let lost = || Err(Box::new(ResolveError::NoAddress(wanted.0)));
        let told = News::Failed(lost().unwrap_err().to_string());
        let secs = Duration::from_secs;
        for (outcome, expected) in [
            (Ok(addresses(&["192.0.2.2", "192.0.2.1"], 60)), (News::Nothing, secs(60), 2)),
            (Ok(addresses(&["192.0.2.3"], 7200)), (News::Changed, secs(3600), 1)),
            (lost(), (told, secs(30), 1)),
            (lost(), (News::Nothing, secs(30), 1)),
            (Ok(addresses(&["192.0.2.3"], 1)), (News::Nothing, secs(30), 1)),
        ] {
            assert_eq!(take(outcome), expected);
        }
    }
}
