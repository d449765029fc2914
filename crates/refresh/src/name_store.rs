//! The state of all names of a hosts file, and how a round's outcomes change it. The time is an argument.
//!
//! ```text
//! due -> begin -> questions          outcomes -> finish -> changes, text to serve and to publish
//! file text -> read -> text to serve
//! ```
//!
//! A good answer replaces the addresses. NXDOMAIN, an empty answer, a failure and refused addresses keep them, until they are older
//! than `max_age`. An empty answer counts as good if no address of the family is known.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::Name;

use crate::hosts_section::{self, Written};
use crate::known_name::{KnownName, LookupFailure, Origin, good};
use crate::schedule::Schedule;
use stub_resolver::{Family, LookupError, LookupOutcome, Question};

/// The names to refresh, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The names, each once.
    pub names: Vec<Name>,
    /// The families of addresses.
    pub families: Families,
    /// When they are looked up.
    pub schedule: Schedule,
    /// Maximum age of an entry without a good answer. Older ones are removed, and queries for them go upstream; default: no limit.
    pub max_age: Option<Duration>,
    /// Addresses that mean "blocked", and are refused.
    pub sinkholes: Vec<IpAddr>,
}

/// The families that are looked up and served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Families {
    /// Both.
    #[default]
    Both,
    /// Both are looked up; IPv4 is served only where there is no IPv6.
    PreferIpv6,
    /// Both are looked up; IPv6 is served only where there is no IPv4.
    PreferIpv4,
    /// IPv4 only.
    Ipv4,
    /// IPv6 only.
    Ipv6,
}

/// One reading of both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// For due times and ages.
    pub now: Instant,
    /// Seconds since 1970, for the file.
    pub wall: u64,
}

/// A name with changed addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The name.
    pub name: Name,
    /// The addresses served before.
    pub before: Vec<IpAddr>,
    /// The addresses served now; empty once they are too old.
    pub after: Vec<IpAddr>,
}

/// The result of a round, or of a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Names and families with a good answer, empty ones included.
    pub answered: usize,
    /// Names and families without a good answer.
    pub failed: usize,
    /// The changes.
    pub changes: Vec<Change>,
}

/// The refreshed names of one hosts file.
#[derive(Debug)]
pub struct NameStore {
    settings: Settings,
    entries: BTreeMap<Question, KnownName>,
    /// The file as it was read or written last.
    base: Arc<[u8]>,
    /// The text that is served: `base`, overlaid with refreshed addresses.
    text: Arc<[u8]>,
    /// Whether a file was ever there.
    has_file: bool,
    /// Whether `text` differs from the file.
    unpublished: bool,
    /// When the ages in the file were written.
    stamped: Instant,
    /// Called at every line of a text.
    rest: fn(),
}

impl NameStore {
    /// A store without addresses; the first round is due at once.
    pub fn new(settings: Settings, clock: Clock) -> Self {
        let mut names = Self {
            settings: Settings::default(),
            entries: BTreeMap::new(),
            base: Arc::default(),
            text: Arc::default(),
            has_file: false,
            unpublished: false,
            stamped: clock.now,
            rest: || {},
        };
        names.set(settings, clock);
        names
    }

    /// Calls `rest` at every line that it reads or writes from now on, to yield the processor: a file may be long.
    pub fn resting(self, rest: fn()) -> Self {
        Self { rest, ..self }
    }

    /// Replaces the settings. Names in both keep their state; new ones are due at once.
    pub fn set(&mut self, settings: Settings, clock: Clock) {
        if settings == self.settings {
            return;
        }
        let mut known = std::mem::take(&mut self.entries);
        let rescheduled = settings.schedule != self.settings.schedule;
        for name in &settings.names {
            for &family in settings.families.asked() {
                let question = Question { name: *name, family };
                let mut entry = known.remove(&question).unwrap_or_else(|| KnownName::unknown(clock.now));
                if rescheduled {
                    entry.due = clock.now;
                }
                self.entries.insert(question, entry);
            }
        }
        self.unpublished |= known.values().any(|entry| entry.source == Origin::Refreshed);
        self.settings = settings;
        let is_unknown =
            |question: &Question| self.entries.get(question).is_some_and(|entry| entry.addresses.is_empty());
        let found = hosts_section::read(&self.base, is_unknown, self.rest);
        for (question, found) in found {
            self.take(question, found, clock, Duration::ZERO);
        }
        self.render(clock);
    }

    /// The settings.
    #[cfg(test)]
    fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Applies the text of the file, which was written `age` ago; returns the text to serve.
    ///
    /// Lines of another program hold until the next good answer: they replace the addresses of a refreshed name, and a name without
    /// lines has no addresses. Text that we wrote changes nothing.
    pub fn read(&mut self, text: &[u8], age: Duration, clock: Clock) -> Arc<[u8]> {
        if self.knows(text) {
            self.has_file = true;
            return self.text.clone();
        }
        let found = hosts_section::read(text, |question| self.entries.contains_key(question), self.rest);
        for entry in self.entries.values_mut() {
            entry.addresses = Vec::new();
            entry.ttl = None;
        }
        for (question, found) in found {
            self.take(question, found, clock, age);
        }
        self.has_file = true;
        self.unpublished = false;
        self.stamped = clock.now.checked_sub(age).unwrap_or(clock.now);
        self.base = text.into();
        self.text = self.base.clone();
        self.text.clone()
    }

    /// Whether this is the text that was last read or written.
    pub fn knows(&self, text: &[u8]) -> bool {
        self.has_file && *text == *self.base || *text == *self.text
    }

    /// Applies `text` of the shipped file, since there is no hosts file: it is served until the
    /// first good answers. Returns the text to serve.
    pub fn ship(&mut self, text: &[u8], clock: Clock) -> Arc<[u8]> {
        if !self.has_file {
            let is_unknown = |question: &Question| {
                self.entries.get(question).is_some_and(|entry| entry.addresses.is_empty())
            };
            let found = hosts_section::read(text, is_unknown, self.rest);
            for (question, mut found) in found {
                found.mark = Some((Origin::Shipped, clock.wall));
                self.take(question, found, clock, Duration::ZERO);
            }
            self.render(clock);
        }
        self.text.clone()
    }

    /// When the next round is due, or the next entry is too old.
    pub fn due(&self) -> Option<Instant> {
        let due = self.entries.values().map(|entry| entry.due);
        due.chain(self.entries.values().filter_map(|entry| self.expiry(entry))).min()
    }

    /// The questions that are due, the longest overdue first; their outcomes must be passed to [`NameStore::finish`].
    pub fn begin(&mut self, now: Instant) -> Vec<Question> {
        let mut due: Vec<_> = self.entries.iter_mut().filter(|(_, entry)| entry.due <= now).collect();
        due.sort_by_key(|(_, entry)| entry.asked);
        let ask = |(question, entry): (&Question, &mut KnownName)| {
            // If an outcome is lost, the question is due again.
            entry.due = now + LOST;
            *question
        };
        due.into_iter().map(ask).collect()
    }

    /// Applies outcomes of a round that began at `began`, all or some. `draw` is a random number from 0 to 1, the same for the whole round.
    pub fn finish(
        &mut self,
        began: Instant,
        outcomes: Vec<(Question, LookupOutcome)>,
        clock: Clock,
        draw: f64,
    ) -> Round {
        let mut round = Round::default();
        let mut before = BTreeMap::new();
        for (question, outcome) in outcomes {
            if !self.entries.contains_key(&question) {
                continue;
            }
            before.entry(question.name).or_insert_with(|| self.served(&question.name));
            let Some(entry) = self.entries.get_mut(&question) else { continue };
            let schedule = self.settings.schedule;
            if outcome != LookupOutcome::Failed(LookupError::OutOfTime) {
                entry.asked = Some(began);
            }
            match good(outcome, &self.settings.sinkholes) {
                Err(LookupFailure::NoData) if entry.addresses.is_empty() => {
                    round.answered += 1;
                    entry.absent();
                    entry.due = began + schedule.after_answer(None, draw);
                }
                Ok((addresses, ttl)) => {
                    round.answered += 1;
                    entry.answered(addresses, ttl, clock.now);
                    entry.due = began + schedule.after_answer(Some(ttl), draw);
                }
                Err(failure) => {
                    round.failed += 1;
                    entry.failed(failure);
                    // Only a question without any reply is repeated soon.
                    let wait = match failure {
                        LookupFailure::Lookup(_) => schedule.after_failure(entry.silences, entry.heard, draw),
                        _ => schedule.after_answer(None, draw),
                    };
                    entry.due = began + wait;
                }
            }
        }
        round.changes = self.changes(before);
        let stale = clock.now.saturating_duration_since(self.stamped) >= self.stamp_interval();
        self.unpublished |= round.answered > 0 && stale;
        self.after(&round.changes, clock);
        round
    }

    /// Removes entries that are too old.
    pub fn expire(&mut self, clock: Clock) -> Vec<Change> {
        let old: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| self.expiry(entry).is_some_and(|expiry| expiry <= clock.now))
            .map(|(question, _)| *question)
            .collect();
        let mut before = BTreeMap::new();
        for question in old {
            before.entry(question.name).or_insert_with(|| self.served(&question.name));
            if let Some(entry) = self.entries.get_mut(&question) {
                entry.addresses = Vec::new();
            }
        }
        let changes = self.changes(before);
        self.after(&changes, clock);
        changes
    }

    /// The text to serve.
    pub fn text(&self) -> Arc<[u8]> {
        self.text.clone()
    }

    /// The text to write to the file, if it differs from it.
    pub fn to_publish(&self) -> Option<Arc<[u8]>> {
        self.unpublished.then(|| self.text.clone())
    }

    /// The text that was last read or written, if any.
    pub fn base(&self) -> Arc<[u8]> {
        self.base.clone()
    }

    /// The section of the refreshed names only, for another process to [inherit](Self::inherit).
    pub fn section(&self, clock: Clock) -> Vec<u8> {
        self.over(b"", clock)
    }

    /// Takes addresses from another process's [section](Self::section) that were confirmed later than those here. Returns whether the
    /// text to serve has changed; it must be written, since the file has none of it.
    pub fn inherit(&mut self, section: &[u8], clock: Clock) -> bool {
        let newer = |question: &Question, good: u64| {
            self.entries.get(question).is_some_and(|entry| {
                let age = match entry.addresses.is_empty() {
                    // Without an entry in the file, its age is that of the file.
                    true if self.has_file => clock.now.saturating_duration_since(self.stamped),
                    true => Duration::MAX,
                    false => entry.age(clock.now),
                };
                good > clock.wall.saturating_sub(age.as_secs())
            })
        };
        let found = hosts_section::read(section, |question| self.entries.contains_key(question), self.rest);
        let found: Vec<_> = found
            .into_iter()
            .filter(|(question, found)| found.mark.is_some_and(|(_, good)| newer(question, good)))
            .collect();
        let learned = !found.is_empty();
        for (question, found) in found {
            self.take(question, found, clock, Duration::ZERO);
        }
        self.unpublished |= learned;
        self.after(&[], clock);
        learned
    }

    /// Makes every name due at `at` at the latest.
    pub fn hurry(&mut self, at: Instant) {
        for entry in self.entries.values_mut() {
            entry.due = entry.due.min(at);
        }
    }

    /// Records that `text` was written to the file.
    pub fn published(&mut self, text: Arc<[u8]>, now: Instant) {
        self.unpublished &= *text != *self.text;
        (self.base, self.has_file, self.stamped) = (text, true, now);
    }

    /// Every name and family with its state, in order.
    pub fn entries(&self) -> impl Iterator<Item = (&Question, &KnownName)> {
        self.entries.iter()
    }

    fn take(&mut self, question: Question, found: hosts_section::FileAddresses, clock: Clock, age: Duration) {
        let (source, age) = match found.mark {
            Some((Origin::Shipped, _)) => (Origin::Shipped, Duration::ZERO),
            Some((_, good)) => (Origin::File, Duration::from_secs(clock.wall.saturating_sub(good))),
            None => (Origin::File, age),
        };
        if let Some(entry) = self.entries.get_mut(&question) {
            entry.replace(found.addresses, source, (clock.now, age));
        }
    }

    fn expiry(&self, entry: &KnownName) -> Option<Instant> {
        let max_age = self.settings.max_age.filter(|_| !entry.addresses.is_empty())?;
        entry.aged(max_age)
    }

    /// When the ages in the file must be rewritten.
    fn stamp_interval(&self) -> Duration {
        self.settings.max_age.map_or(STAMP_INTERVAL, |max_age| STAMP_INTERVAL.min(max_age / 4))
    }

    fn changes(&self, before: BTreeMap<Name, Vec<IpAddr>>) -> Vec<Change> {
        let changes =
            before.into_iter().map(|(name, before)| Change { after: self.served(&name), name, before });
        changes.filter(|change| change.before != change.after).collect()
    }

    fn after(&mut self, changes: &[Change], clock: Clock) {
        self.unpublished |= !changes.is_empty();
        if self.unpublished {
            self.render(clock);
        }
    }

    /// The addresses of a name that are served.
    fn served(&self, name: &Name) -> Vec<IpAddr> {
        let of = |&family: &Family| self.visible(&Question { name: *name, family });
        self.settings.families.asked().iter().flat_map(of).copied().collect()
    }

    fn visible(&self, question: &Question) -> &[IpAddr] {
        let addresses = |question| self.entries.get(&question).map_or(&[][..], |entry| &entry.addresses);
        let hidden = self
            .settings
            .families
            .hidden_behind(question.family)
            .is_some_and(|family| !addresses(Question { family, ..*question }).is_empty());
        if hidden { &[] } else { addresses(*question) }
    }

    fn render(&mut self, clock: Clock) {
        self.text = self.over(&self.base, clock).into();
    }

    /// The text overlaid with the known addresses.
    fn over(&self, base: &[u8], clock: Clock) -> Vec<u8> {
        let entries = self.entries.iter().filter_map(|(question, entry)| {
            let addresses = self.visible(question);
            let good = clock.wall.saturating_sub(entry.age(clock.now).as_secs());
            let written = Written { question: *question, addresses, source: entry.source, good };
            (!addresses.is_empty()).then_some(written)
        });
        let is_kept = |question: &Question| self.entries.contains_key(question);
        hosts_section::render(base, is_kept, entries, self.rest)
    }
}

impl Families {
    /// All questions.
    fn asked(self) -> &'static [Family] {
        match self {
            Self::Ipv4 => &[Family::Ipv4],
            Self::Ipv6 => &[Family::Ipv6],
            Self::Both | Self::PreferIpv4 | Self::PreferIpv6 => &[Family::Ipv4, Family::Ipv6],
        }
    }

    /// The family with addresses that hide those of `family`.
    fn hidden_behind(self, family: Family) -> Option<Family> {
        match (self, family) {
            (Self::PreferIpv4, Family::Ipv6) => Some(Family::Ipv4),
            (Self::PreferIpv6, Family::Ipv4) => Some(Family::Ipv6),
            _ => None,
        }
    }
}

/// Ages are rewritten at least this often even if no address changed, and more often if `max_age` is short.
const STAMP_INTERVAL: Duration = Duration::from_secs(3600);

const LOST: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
