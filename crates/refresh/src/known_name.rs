//! What is known of one name and family, and what an outcome is worth. The time is an argument.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::address::{self, Refused};
use stub_resolver::{LookupError, LookupOutcome};

/// Where an entry's addresses are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The file that came with the image.
    Shipped,
    /// The hosts file, as it was found or as another program wrote it.
    File,
    /// A good answer since the start.
    Refreshed,
}

/// Why an entry was not refreshed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LookupFailure {
    /// NXDOMAIN.
    #[error("no such name")]
    NoSuchName,
    /// No address of this family.
    #[error("no address of this family")]
    NoData,
    /// Every address was refused; this is why the first was.
    #[error("every address was refused: {0}")]
    Refused(Refused),
    /// The lookup failed.
    #[error(transparent)]
    Lookup(#[from] LookupError),
}

/// What is known of one name and family.
#[derive(Debug, Clone)]
pub struct KnownName {
    /// Sorted; none if nothing is known.
    pub addresses: Vec<IpAddr>,
    /// Where they are from.
    pub source: Origin,
    /// The TTL of the last good answer in seconds.
    pub ttl: Option<u32>,
    /// Rounds without a good answer since the last one.
    pub failures: u32,
    /// Rounds without a good answer since the start.
    pub all_failures: u64,
    /// Why the last round had none, if it had none.
    pub failure: Option<LookupFailure>,
    /// When it is asked for next.
    pub due: Instant,
    /// When the addresses were good the last time, and how much longer ago than that.
    good: (Instant, Duration),
    /// When the last round that asked for it began.
    pub(crate) asked: Option<Instant>,
    /// Whether a server ever said anything about it, and how many rounds in a row none did.
    pub(crate) heard: bool,
    pub(crate) silences: u32,
}

impl KnownName {
    /// Nothing; it is asked for at once.
    pub(crate) fn unknown(now: Instant) -> Self {
        Self {
            addresses: Vec::new(),
            source: Origin::File,
            ttl: None,
            failures: 0,
            all_failures: 0,
            failure: None,
            due: now,
            good: (now, Duration::ZERO),
            asked: None,
            heard: false,
            silences: 0,
        }
    }

    /// Takes addresses that were known to be good at that time, and so much earlier.
    pub(crate) fn replace(&mut self, addresses: Vec<IpAddr>, source: Origin, good: (Instant, Duration)) {
        (self.addresses, self.source, self.good) = (addresses, source, good);
    }

    /// How long ago the addresses were known to be good: since the last good answer, or since the file was written.
    pub fn age(&self, now: Instant) -> Duration {
        let (at, older) = self.good;
        now.saturating_duration_since(at).saturating_add(older)
    }

    /// When the addresses will be so old.
    pub(crate) fn aged(&self, age: Duration) -> Option<Instant> {
        let (at, older) = self.good;
        at.checked_add(age.saturating_sub(older))
    }

    /// A round brought a good answer.
    pub(crate) fn answered(&mut self, addresses: Vec<IpAddr>, ttl: u32, now: Instant) {
        self.replace(addresses, Origin::Refreshed, (now, Duration::ZERO));
        (self.ttl, self.failures, self.failure) = (Some(ttl), 0, None);
        (self.heard, self.silences) = (true, 0);
    }

    /// A round brought the answer that there is no such address, and none is known: nothing is missing.
    pub(crate) fn absent(&mut self) {
        (self.ttl, self.failures, self.failure) = (None, 0, None);
        (self.heard, self.silences) = (true, 0);
    }

    /// A round brought none: the addresses stay.
    pub(crate) fn failed(&mut self, failure: LookupFailure) {
        self.failures = self.failures.saturating_add(1);
        self.all_failures += 1;
        self.failure = Some(failure);
        match failure {
            LookupFailure::Lookup(_) => self.silences = self.silences.saturating_add(1),
            _ => (self.heard, self.silences) = (true, 0),
        }
    }
}

impl Origin {
    /// As metrics, status and the file call it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Shipped => "shipped",
            Self::File => "file",
            Self::Refreshed => "refreshed",
        }
    }

    pub(crate) fn from_label(label: &str) -> Option<Self> {
        [Self::Shipped, Self::File, Self::Refreshed].into_iter().find(|source| source.label() == label)
    }
}

/// The usable addresses of an outcome.
pub(crate) fn good(
    outcome: LookupOutcome,
    sinkholes: &[IpAddr],
) -> Result<(Vec<IpAddr>, u32), LookupFailure> {
    match outcome {
        LookupOutcome::Addresses { mut addresses, ttl } => {
            let mut refused = None;
            addresses.retain(|address| {
                let verdict = address::usable(*address, sinkholes);
                refused = refused.or_else(|| verdict.err());
                verdict.is_ok()
            });
            match refused {
                Some(refused) if addresses.is_empty() => Err(LookupFailure::Refused(refused)),
                _ => Ok((addresses, ttl)),
            }
        }
        LookupOutcome::NoSuchName => Err(LookupFailure::NoSuchName),
        LookupOutcome::NoData => Err(LookupFailure::NoData),
        LookupOutcome::Failed(error) => Err(LookupFailure::Lookup(error)),
    }
}
