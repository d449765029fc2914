//! The state of one name and family, and its transitions. The time is an argument.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::address::{self, Refused};
use stub_resolver::{LookupError, LookupOutcome};

/// Where an entry's addresses are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The file shipped with the image.
    Shipped,
    /// The hosts file, as found at the start or as written by another program.
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
    /// All addresses were refused; the reason for the first.
    #[error("every address was refused: {0}")]
    Refused(Refused),
    /// The lookup failed.
    #[error(transparent)]
    Lookup(#[from] LookupError),
}

/// The state of one name and family.
#[derive(Debug, Clone)]
pub struct KnownName {
    /// Sorted; empty if none are known.
    pub addresses: Vec<IpAddr>,
    /// The source of the addresses.
    pub source: Origin,
    /// The TTL of the last good answer in seconds.
    pub ttl: Option<u32>,
    /// Rounds without a good answer since the last one.
    pub failures: u32,
    /// Rounds without a good answer since the start.
    pub all_failures: u64,
    /// Why the last round had no good answer, if so.
    pub failure: Option<LookupFailure>,
    /// When the next lookup is due.
    pub due: Instant,
    /// When the addresses were last confirmed: a point in time, and an age at that point.
    good: (Instant, Duration),
    /// When the last round with a lookup of it began.
    pub(crate) asked: Option<Instant>,
    /// Whether any server ever answered a query for the name.
    pub(crate) heard: bool,
    /// Number of consecutive rounds without any reply.
    pub(crate) silences: u32,
}

impl KnownName {
    /// No addresses; due at once.
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

    /// Sets the addresses; `good` is a point in time and their age at that point.
    pub(crate) fn replace(&mut self, addresses: Vec<IpAddr>, source: Origin, good: (Instant, Duration)) {
        (self.addresses, self.source, self.good) = (addresses, source, good);
    }

    /// The age of the addresses: since the last good answer, or since the file was written.
    pub fn age(&self, now: Instant) -> Duration {
        let (at, older) = self.good;
        now.saturating_duration_since(at).saturating_add(older)
    }

    /// When the addresses reach an age.
    pub(crate) fn aged(&self, age: Duration) -> Option<Instant> {
        let (at, older) = self.good;
        at.checked_add(age.saturating_sub(older))
    }

    /// Applies a good answer.
    pub(crate) fn answered(&mut self, addresses: Vec<IpAddr>, ttl: u32, now: Instant) {
        self.replace(addresses, Origin::Refreshed, (now, Duration::ZERO));
        (self.ttl, self.failures, self.failure) = (Some(ttl), 0, None);
        (self.heard, self.silences) = (true, 0);
    }

    /// Applies an answer without addresses where none are known: counts as good.
    pub(crate) fn absent(&mut self) {
        (self.ttl, self.failures, self.failure) = (None, 0, None);
        (self.heard, self.silences) = (true, 0);
    }

    /// Applies a failure: the addresses stay.
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
    /// Its name in metrics, status and the file.
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

/// Returns the usable addresses and the TTL of an outcome.
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
