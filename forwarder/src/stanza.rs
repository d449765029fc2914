//! A `forward` stanza, and the stanzas of a block in file order. Knows no Corefile: setup fills the
//! specs.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use wire::{Name, Proto, Rcode};

use crate::{ForwardError, HealthCheck, MAX_UPSTREAMS, Policy, StanzaMetrics, Upstream, UpstreamPath};
use client_quota::{ClientId, ClientQuota};

/// A stanza's properties, with CoreDNS's defaults.
#[derive(Clone, Debug)]
pub struct StanzaSpec {
    /// `forward FROM ...`: names at or below it are forwarded. Default the root.
    pub from: Name,
    /// `FROM` as written, if it has the value of an environment variable.
    pub shown_from: Option<Arc<str>>,
    /// `except`: names at or below these are not forwarded, save `from` itself.
    pub except: Vec<Name>,
    /// `policy`. Default random.
    pub policy: Policy,
    /// `max_fails`: probes that may fail before the upstream is down; 0: never down, never probed.
    /// Default 2.
    pub max_fails: u32,
    /// `health_check`.
    pub health: HealthCheck,
    /// `force_tcp`: TCP whatever the client uses; stronger than `prefer_udp`.
    pub force_tcp: bool,
    /// `prefer_udp`: UDP whatever the client uses.
    pub prefer_udp: bool,
    /// `expire`, `max_age`, `max_idle_conns`.
    pub connections: ConnectionLimits,
    /// `max_concurrent`: concurrent queries of one client at upstreams, over all workers, and a
    /// quarter more for all clients together; 0: no limit. Default 0.
    pub max_concurrent: u32,
    /// `failfast_all_unhealthy_upstreams`.
    pub failfast: bool,
    /// `failover`: rcodes after which the next upstream is tried.
    pub failover: Vec<Rcode>,
    /// `next`: rcodes after which the next stanza is tried.
    pub next: Vec<Rcode>,
    /// `next_on_nodata`: NOERROR without answers counts as a rcode of `next`.
    pub next_on_nodata: bool,
    /// `read_timeout`: how long an upstream may be silent before that counts against it. Default 2
    /// s, 100 ms .. 4.8 s.
    pub read_timeout: Duration,
    /// `max_connect_attempts`: attempts that may fail in one query; 0: until its deadline. Default
    /// (`None`) twice the number of upstreams.
    pub max_connect_attempts: Option<u32>,
}

impl Default for StanzaSpec {
    fn default() -> Self {
        Self {
            from: Name::ROOT,
            shown_from: None,
            except: Vec::new(),
            policy: Policy::default(),
            max_fails: 2,
            health: HealthCheck::default(),
            force_tcp: false,
            prefer_udp: false,
            connections: ConnectionLimits::default(),
            max_concurrent: 0,
            failfast: false,
            failover: Vec::new(),
            next: Vec::new(),
            next_on_nodata: false,
            read_timeout: Duration::from_secs(2),
            max_connect_attempts: None,
        }
    }
}

impl StanzaSpec {
    /// Returns the text of `from` for messages.
    pub fn from_text(&self) -> String {
        self.shown_from.as_ref().map_or_else(|| self.from.to_string(), ToString::to_string)
    }
}

/// Bounds of a stanza's connections over TCP and TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `expire`: an idle connection is closed after this. Default 10 s.
    pub expire: Duration,
    /// `max_age`: a connection takes no new query after this; zero: no limit. Default zero.
    pub max_age: Duration,
    /// `max_idle_conns`: idle connections kept per upstream; 0: all. Default 0.
    pub max_idle: u32,
    /// `max_connections`: connections to one upstream at a time. Default 64, min 1, max 1,024.
    ///
    /// Ten unanswered names a second, each until the deadline of 4.8 s, hold 48 connections, less
    /// than one client's share of 64. If a server accepts fewer (Unbound 10, dnsmasq 20), the
    /// refused connections are no failure.
    pub max_connections: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { expire: Duration::from_secs(10), max_age: Duration::ZERO, max_idle: 0, max_connections: 64 }
    }
}

/// Why a stanza cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StanzaError {
    /// The stanza has more than [`MAX_UPSTREAMS`] upstreams.
    #[error("more than {MAX_UPSTREAMS} TOs configured: {0}")]
    TooManyUpstreams(usize),
    /// NOERROR is no failure, so it cannot cause a failover.
    #[error("NOERROR cannot be used in failover")]
    FailoverNoError,
}

/// The known upstreams of a stanza, and which of them are left out.
#[derive(Debug, Default)]
struct Choice {
    /// The upstreams of all targets, files and host names, in written order.
    known: Arc<Vec<Arc<Upstream>>>,
    /// Upstreams in `known` that are this server itself.
    ourselves: Vec<Arc<Upstream>>,
    /// Upstreams in `known` that forward this server's queries back to it.
    looping: Vec<Arc<Upstream>>,
}

/// One stanza: its properties, and its current upstreams.
#[derive(Debug)]
pub struct Stanza {
    spec: StanzaSpec,
    /// The upstreams to query: the known ones without those left out.
    upstreams: ArcSwap<Vec<Arc<Upstream>>>,
    /// Locked while `upstreams` changes.
    choice: Mutex<Choice>,
    concurrent: ClientQuota,
    pub(crate) turns: AtomicU32,
    metrics: Arc<StanzaMetrics>,
}

impl Stanza {
    /// Builds a stanza. `upstreams` in written order; none is allowed (a resolv.conf that is empty
    /// now).
    ///
    /// # Errors
    /// [`StanzaError`].
    pub fn new(
        mut spec: StanzaSpec,
        upstreams: Vec<Arc<Upstream>>,
        metrics: Arc<StanzaMetrics>,
    ) -> Result<Self, StanzaError> {
        if upstreams.len() > MAX_UPSTREAMS {
            return Err(StanzaError::TooManyUpstreams(upstreams.len()));
        }
        if spec.failover.contains(&Rcode::NOERROR) {
            return Err(StanzaError::FailoverNoError);
        }
        spec.read_timeout = spec.read_timeout.clamp(READ_TIMEOUT_MIN, DEADLINE);
        spec.health.interval = spec.health.interval.max(PROBE_INTERVAL_MIN);
        let (concurrent, turns) = (ClientQuota::new(spec.max_concurrent), AtomicU32::new(0));
        let known = Arc::new(upstreams);
        let upstreams = ArcSwap::new(known.clone());
        let choice = Mutex::new(Choice { known, ..Choice::default() });
        Ok(Self { spec, upstreams, choice, concurrent, turns, metrics })
    }

    /// Returns the properties.
    pub fn spec(&self) -> &StanzaSpec {
        &self.spec
    }

    /// Returns the counters.
    pub fn metrics(&self) -> &Arc<StanzaMetrics> {
        &self.metrics
    }

    /// Returns the upstreams to query now.
    pub fn upstreams(&self) -> Arc<Vec<Arc<Upstream>>> {
        self.upstreams.load_full()
    }

    /// Returns the path of the first query to an upstream, for clients over UDP.
    pub fn path_to(&self, upstream: &Upstream) -> UpstreamPath {
        match self.spec.force_tcp || upstream.tls().is_some() {
            true => UpstreamPath::Stream,
            false => UpstreamPath::Udp,
        }
    }

    /// Returns the upstreams that are down now.
    pub fn down(&self) -> Vec<Arc<Upstream>> {
        let is_down =
            |upstream: &&Arc<Upstream>| upstream.is_down(self.path_to(upstream), self.spec.max_fails);
        self.upstreams().iter().filter(is_down).cloned().collect()
    }

    /// Returns every upstream known now, in written order, including those left out.
    pub fn known(&self) -> Arc<Vec<Arc<Upstream>>> {
        self.choice().known.clone()
    }

    /// Replaces the upstreams, in written order, after a resolv.conf changed. Queries in flight
    /// keep the upstreams that they began with.
    ///
    /// # Errors
    /// [`StanzaError::TooManyUpstreams`]; the old ones stay.
    pub fn set_upstreams(&self, upstreams: Vec<Arc<Upstream>>) -> Result<(), StanzaError> {
        self.set_upstreams_but(upstreams, Vec::new())
    }

    /// Like [`Stanza::set_upstreams`], but leaves out `ourselves`: this server itself.
    ///
    /// # Errors
    /// [`StanzaError::TooManyUpstreams`]; the old ones stay.
    pub fn set_upstreams_but(
        &self,
        upstreams: Vec<Arc<Upstream>>,
        ourselves: Vec<Arc<Upstream>>,
    ) -> Result<(), StanzaError> {
        if upstreams.len() > MAX_UPSTREAMS {
            return Err(StanzaError::TooManyUpstreams(upstreams.len()));
        }
        self.choose(&mut self.choice(), Arc::new(upstreams), ourselves);
        Ok(())
    }

    /// Leaves out the upstreams that are this server itself, which may change with the machine's
    /// addresses, and no others. Returns those left out before.
    pub fn leave_out_ourselves(&self, ourselves: Vec<Arc<Upstream>>) -> Vec<Arc<Upstream>> {
        let mut choice = self.choice();
        let before = choice.ourselves.clone();
        if !is_same(&before, &ourselves) {
            let known = choice.known.clone();
            self.choose(&mut choice, known, ourselves);
        }
        before
    }

    /// Stores the known upstreams without `ourselves`; loops are detected anew.
    fn choose(&self, choice: &mut Choice, known: Arc<Vec<Arc<Upstream>>>, ourselves: Vec<Arc<Upstream>>) {
        let is_asked = |upstream: &&Arc<Upstream>| !has(&ourselves, upstream);
        self.upstreams.store(Arc::new(known.iter().filter(is_asked).cloned().collect()));
        *choice = Choice { known, ourselves, looping: Vec::new() };
    }

    /// Returns the known upstreams that are left out, as queries to them would return to this
    /// server.
    pub fn left_out(&self) -> Vec<Arc<Upstream>> {
        let choice = self.choice();
        choice.ourselves.iter().chain(&choice.looping).cloned().collect()
    }

    /// Returns the error of a query for which there is no upstream to try.
    pub(crate) fn without_upstreams(&self) -> ForwardError {
        if self.choice().known.is_empty() { ForwardError::NoUpstream } else { ForwardError::AllLoop }
    }

    /// Leaves out `looping`, the upstreams that forward our queries back to us. Returns false, and
    /// changes nothing, if the upstreams are no longer `before`: a followed file, a name or an
    /// address of this machine has changed them meanwhile.
    pub fn leave_out(
        &self,
        before: &Arc<Vec<Arc<Upstream>>>,
        looping: Vec<Arc<Upstream>>,
        upstreams: Vec<Arc<Upstream>>,
    ) -> bool {
        let mut choice = self.choice();
        let is_asked = Arc::ptr_eq(before, &self.upstreams.load());
        if is_asked {
            self.upstreams.store(Arc::new(upstreams));
            choice.looping = looping;
        }
        is_asked
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of queries in flight, over all workers.
    #[cfg(feature = "testing")]
    pub fn concurrent(&self) -> u32 {
        self.concurrent.in_use()
    }

    /// Whether this stanza forwards a name.
    pub fn matches(&self, name: &Name) -> bool {
        name.is_within(&self.spec.from)
            && (*name == self.spec.from || !self.spec.except.iter().any(|except| name.is_within(except)))
    }

    /// Whether a plain upstream is queried over TCP for a query received over `proto`.
    pub(crate) fn asks_over_tcp(&self, proto: Proto) -> bool {
        self.spec.force_tcp || (!self.spec.prefer_udp && proto == Proto::Tcp)
    }

    /// Admits a query of a client under `max_concurrent`. If the client has no quota left, counts
    /// the refusal and returns `None`.
    pub(crate) fn admit(&self, client: ClientId) -> Option<Admitted<'_>> {
        if self.concurrent.acquire(client) {
            return Some(Admitted { stanza: self, client });
        }
        self.metrics.max_concurrent_rejects.add_shared(1);
        None
    }

    /// Releases the admission of a query after [`Admitted::keep`].
    pub(crate) fn release(&self, client: ClientId) {
        self.concurrent.release(client);
    }

    /// Whether an attempt that could not be sent from this machine counts as failed: only if the
    /// stanza limits the number of attempts.
    pub(crate) fn counts_unsent(&self) -> bool {
        self.spec.max_connect_attempts.is_some_and(|attempts| attempts > 0)
    }

    /// Returns how many attempts may fail in one query with `upstreams` upstreams.
    pub(crate) fn attempts_allowed(&self, upstreams: usize) -> u32 {
        match self.spec.max_connect_attempts {
            None => 2 * upstreams as u32,
            Some(0) => u32::MAX,
            Some(attempts) => attempts,
        }
    }
}

fn has(upstreams: &[Arc<Upstream>], upstream: &Arc<Upstream>) -> bool {
    upstreams.iter().any(|one| Arc::ptr_eq(one, upstream))
}

fn is_same(one: &[Arc<Upstream>], other: &[Arc<Upstream>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other))
}

/// An admission under `max_concurrent`, released on drop unless it is kept.
pub(crate) struct Admitted<'g> {
    stanza: &'g Stanza,
    client: ClientId,
}

impl Admitted<'_> {
    /// Keeps the admission: the flight releases it.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.stanza.release(self.client);
    }
}

/// How many stanzas a block may have: a flight stores its stanza's index in a byte.
pub const MOST_STANZAS: usize = u8::MAX as usize;

/// A block's stanzas, in file order.
#[derive(Debug, Default)]
pub struct Stanzas {
    stanzas: Vec<Arc<Stanza>>,
}

impl Stanzas {
    /// A block's stanzas, in file order; those beyond [`MOST_STANZAS`] are ignored.
    pub fn new(mut stanzas: Vec<Arc<Stanza>>) -> Self {
        stanzas.truncate(MOST_STANZAS);
        Self { stanzas }
    }

    /// Returns the stanzas.
    pub fn stanzas(&self) -> &[Arc<Stanza>] {
        &self.stanzas
    }

    /// Whether any stanza forwards this name.
    pub fn matches(&self, name: &Name) -> bool {
        self.matching(0, name).is_some()
    }

    /// Returns the index of the first stanza from `start` on that forwards this name.
    pub(crate) fn matching(&self, start: usize, name: &Name) -> Option<usize> {
        (start..self.stanzas.len()).find(|&at| self.stanzas[at].matches(name))
    }
}

/// The deadline of a query, whatever it waits for: stub resolvers give up after 5 s, and the
/// answer, or the SERVFAIL that makes them try another server, must arrive before.
pub const DEADLINE: Duration = Duration::from_millis(4_800);
/// The lowest `read_timeout`: a healthy upstream on the other side of the world must not time out.
const READ_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The lowest probe interval: `health_check 0s` is legal, and must not cause a flood of probes.
const PROBE_INTERVAL_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    fn stanza(from: &str, except: &[&str]) -> Stanza {
        let spec = StanzaSpec {
            from: name(from),
            except: except.iter().map(|text| name(text)).collect(),
            ..StanzaSpec::default()
        };
        Stanza::new(spec, Vec::new(), Arc::default()).unwrap()
    }

    #[test]
    fn a_stanza_takes_its_zone_without_the_exceptions() {
        let stanza = stanza("example.org", &["b.example.org", "example.org"]);
        for (asked, taken) in [
            ("example.org", true),
            ("a.example.org", false),
            ("b.example.org", false),
            ("example.com", false),
        ] {
            assert_eq!(stanza.matches(&name(asked)), taken, "{asked}");
        }
    }

    /// The error of a stanza without upstreams reports whether loops are the cause.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test's time begins at any moment")]
    fn no_upstreams_error_names_loops() {
        let stanza = stanza("example.org", &[]);
        let unknown = stanza.without_upstreams().to_string();
        assert!(unknown.starts_with("no address of an upstream is known: "), "{unknown}");
        let (registry, _requests) = crate::Registry::new(std::time::Instant::now());
        let looping = registry.upstream("192.0.2.1:53".parse().unwrap(), None, None);
        stanza.set_upstreams(vec![looping.clone()]).unwrap();
        let before = stanza.upstreams();
        assert!(stanza.leave_out(&before, vec![looping], Vec::new()));
        let all_loop = stanza.without_upstreams().to_string();
        assert!(all_loop.starts_with("no upstream is left to ask, as each one sends"), "{all_loop}");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test's time begins at any moment")]
    fn what_is_left_out_returns_in_written_order() {
        let stanza = stanza(".", &[]);
        let (registry, _requests) = crate::Registry::new(std::time::Instant::now());
        let all: Vec<_> =
            (1..=3).map(|last| registry.upstream(([192, 0, 2, last], 53).into(), None, None)).collect();
        let last = |of: &[Arc<Upstream>]| of.iter().map(|one| one.address().to_string()).collect::<Vec<_>>();
        let one = |at: usize| last(&all[at..=at]);
        stanza.set_upstreams_but(all.clone(), vec![all[0].clone()]).unwrap();
        assert_eq!((last(&stanza.upstreams()), last(&stanza.left_out())), (last(&all[1..]), one(0)));
        let asked = stanza.upstreams();
        assert!(stanza.leave_out(&asked, vec![all[1].clone()], vec![all[2].clone()]));
        assert_eq!((last(&stanza.upstreams()), last(&stanza.left_out())), (one(2), last(&all[..2])));
        assert_eq!(last(&stanza.leave_out_ourselves(vec![all[0].clone()])), one(0));
        assert_eq!(last(&stanza.upstreams()), one(2), "nothing is new: what loops is not asked");
        assert_eq!(last(&stanza.leave_out_ourselves(Vec::new())), one(0));
        assert_eq!((last(&stanza.upstreams()), last(&stanza.left_out())), (last(&all), Vec::new()));
    }

    #[test]
    fn the_first_stanza_in_file_order_that_matches_is_asked() {
        let chain = Stanzas::new(
            [("lab.example.org", &[][..]), ("example.org", &["x.example.org"]), (".", &[])]
                .map(|(from, except)| Arc::new(stanza(from, except)))
                .into(),
        );
        for (start, asked, at) in [
            (0, "a.lab.example.org", Some(0)),
            (1, "a.lab.example.org", Some(1)),
            (0, "x.example.org", Some(2)),
            (3, "x.example.org", None),
        ] {
            assert_eq!(chain.matching(start, &name(asked)), at, "{asked} from {start}");
        }
    }

    #[test]
    fn the_client_decides_the_transport_unless_the_stanza_does() {
        for (force_tcp, prefer_udp, client, tcp) in [
            (false, false, Proto::Udp, false),
            (false, false, Proto::Tcp, true),
            (true, false, Proto::Udp, true),
            (false, true, Proto::Tcp, false),
            (true, true, Proto::Udp, true),
        ] {
            let spec = StanzaSpec { force_tcp, prefer_udp, ..StanzaSpec::default() };
            let stanza = Stanza::new(spec, Vec::new(), Arc::default()).unwrap();
            assert_eq!(stanza.asks_over_tcp(client), tcp, "{force_tcp} {prefer_udp} {client:?}");
        }
    }

    #[test]
    fn noerror_in_failover_is_refused() {
        let spec = StanzaSpec { failover: vec![Rcode::NOERROR], ..StanzaSpec::default() };
        assert_eq!(Stanza::new(spec, Vec::new(), Arc::default()).unwrap_err(), StanzaError::FailoverNoError);
    }
}
