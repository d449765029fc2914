//! What is known of each name and family, and what a round's outcomes make of it. The time is an argument.
//!
//! ```text
//! due -> begin -> questions          outcomes -> finish -> changes, text to serve and to publish
//! file text -> read -> text to serve
//! ```
//!
//! An answer replaces; NXDOMAIN, an empty answer, a failure and addresses that are refused keep what was there, until
//! `max_age` lets it go. An empty answer where nothing is known of the family says that there is nothing to know.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::Name;

use crate::hosts_section::{self, Written};
use crate::known_name::{KnownName, LookupFailure, Origin, good};
use crate::schedule::Schedule;
use stub_resolver::{Family, LookupError, LookupOutcome, Question};

/// What is to be kept, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The names, each once.
    pub names: Vec<Name>,
    /// Which of their addresses.
    pub families: Families,
    /// How often they are asked for.
    pub schedule: Schedule,
    /// How old an entry may become without a good answer before it is let go, and its name goes upstream; never by default.
    pub max_age: Option<Duration>,
    /// Addresses that stand for "blocked", and are never taken.
    pub sinkholes: Vec<IpAddr>,
}

/// Which families are asked for and told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Families {
    /// Both.
    #[default]
    Both,
    /// Both are asked for; IPv4 is told only where there is no IPv6.
    PreferIpv6,
    /// Both are asked for; IPv6 is told only where there is no IPv4.
    PreferIpv4,
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
}

/// One reading of both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// For what is due, and for ages.
    pub now: Instant,
    /// Seconds since 1970, for what is written into the file.
    pub wall: u64,
}

/// A name whose addresses are others now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The name.
    pub name: Name,
    /// What was served before.
    pub before: Vec<IpAddr>,
    /// What is served now; nothing once it is too old.
    pub after: Vec<IpAddr>,
}

/// How a round, or a part of it, went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Names and families with a good answer, be it that there is no such address.
    pub answered: usize,
    /// Those without.
    pub failed: usize,
    /// What became different.
    pub changes: Vec<Change>,
}

/// The names of one hosts file.
#[derive(Debug)]
pub struct NameStore {
    settings: Settings,
    entries: BTreeMap<Question, KnownName>,
    /// The file as it was read or written last.
    base: Arc<[u8]>,
    /// What is served: `base`, overlaid by what was refreshed.
    text: Arc<[u8]>,
    /// Whether a file was ever there.
    has_file: bool,
    /// Whether `text` has something that the file has not.
    unpublished: bool,
    /// When the ages in the file were true.
    stamped: Instant,
    /// Called at every line of a text.
    rest: fn(),
}

impl NameStore {
    /// Knows nothing yet; the first round is due at once.
    pub fn new(settings: Settings, clock: Clock) -> Self {
        let mut keeper = Self {
            settings: Settings::default(),
            entries: BTreeMap::new(),
            base: Arc::default(),
            text: Arc::default(),
            has_file: false,
            unpublished: false,
            stamped: clock.now,
            rest: || {},
        };
        keeper.set(settings, clock);
        keeper
    }

    /// Calls `rest` at every line that it reads or writes from now on: a file may be long, and others may be waiting for the
    /// processor.
    pub fn resting(self, rest: fn()) -> Self {
        Self { rest, ..self }
    }

    /// Keeps other names from now on, or otherwise. What is known of names that stay is kept; new ones are due at once.
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
        let found = text::read(&self.base, is_unknown, self.rest);
        for (question, found) in found {
            self.take(question, found, clock, Duration::ZERO);
        }
        self.render(clock);
    }

    /// What is kept, and how.
    #[cfg(test)]
    fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The file was read, and is `age` old; returns the text to serve.
    ///
    /// What another program wrote counts until the next good answer: what it says about a kept name replaces what was known,
    /// and where it says nothing nothing is known. What we wrote ourselves changes nothing.
    pub fn read(&mut self, text: &[u8], age: Duration, clock: Clock) -> Arc<[u8]> {
        if self.knows(text) {
            self.has_file = true;
            return self.text.clone();
        }
        let found = text::read(text, |question| self.entries.contains_key(question), self.rest);
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

    /// Whether this is what the file was read as, or written.
    pub fn knows(&self, text: &[u8]) -> bool {
        self.has_file && *text == *self.base || *text == *self.text
    }

    /// There is no file: what was shipped answers until something better is known. Returns the text to serve.
    pub fn ship(&mut self, text: &[u8], clock: Clock) -> Arc<[u8]> {
        if !self.has_file {
            let is_unknown = |question: &Question| {
                self.entries.get(question).is_some_and(|entry| entry.addresses.is_empty())
            };
            let found = text::read(text, is_unknown, self.rest);
            for (question, mut found) in found {
                found.mark = Some((Origin::Shipped, clock.wall));
                self.take(question, found, clock, Duration::ZERO);
            }
            self.render(clock);
        }
        self.text.clone()
    }

    /// When there is something to do: a round, or an entry that is too old.
    pub fn due(&self) -> Option<Instant> {
        let due = self.entries.values().map(|entry| entry.due);
        due.chain(self.entries.values().filter_map(|entry| self.expiry(entry))).min()
    }

    /// What to ask for now, those first that have waited longest; they must be given back to [`NameStore::finish`].
    pub fn begin(&mut self, now: Instant) -> Vec<Question> {
        let mut due: Vec<_> = self.entries.iter_mut().filter(|(_, entry)| entry.due <= now).collect();
        due.sort_by_key(|(_, entry)| entry.asked);
        let ask = |(question, entry): (&Question, &mut KnownName)| {
            // Were an outcome lost, it would be asked for again.
            entry.due = now + LOST;
            *question
        };
        due.into_iter().map(ask).collect()
    }

    /// Takes what came of a round that began at `began`, or of a part of it. `draw` is from 0 to 1, by chance, one for the whole round.
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
                    // Only where nothing was said is it worth asking again soon.
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

    /// Lets go of what is too old.
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

    /// The text to write into the file, if it says something that the file does not.
    pub fn to_publish(&self) -> Option<Arc<[u8]>> {
        self.unpublished.then(|| self.text.clone())
    }

    /// What the file was read as, or written; nothing if it was neither.
    pub fn base(&self) -> Arc<[u8]> {
        self.base.clone()
    }

    /// What is known of the names, without whatever else the file says: what another process [inherits](Self::inherit).
    pub fn section(&self, clock: Clock) -> Vec<u8> {
        self.over(b"", clock)
    }

    /// Takes from another process's [section](Self::section) what was good later than what is known here; whether there is another
    /// text to serve. The file has none of it: it is to be written.
    pub fn inherit(&mut self, section: &[u8], clock: Clock) -> bool {
        let newer = |question: &Question, good: u64| {
            self.entries.get(question).is_some_and(|entry| {
                let age = match entry.addresses.is_empty() {
                    // Where the file says nothing of it, that is as old as the file.
                    true if self.has_file => clock.now.saturating_duration_since(self.stamped),
                    true => Duration::MAX,
                    false => entry.age(clock.now),
                };
                good > clock.wall.saturating_sub(age.as_secs())
            })
        };
        let found = text::read(section, |question| self.entries.contains_key(question), self.rest);
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

    /// Every name is due at `at`, if it is not due before.
    pub fn hurry(&mut self, at: Instant) {
        for entry in self.entries.values_mut() {
            entry.due = entry.due.min(at);
        }
    }

    /// The file now is `text`.
    pub fn published(&mut self, text: Arc<[u8]>, now: Instant) {
        self.unpublished &= *text != *self.text;
        (self.base, self.has_file, self.stamped) = (text, true, now);
    }

    /// Every name and family with what is known of it, in order.
    pub fn entries(&self) -> impl Iterator<Item = (&Question, &KnownName)> {
        self.entries.iter()
    }

    fn take(&mut self, question: Question, found: text::FileAddresses, clock: Clock, age: Duration) {
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

    /// How old the ages in the file may become.
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

    /// The addresses of a name that are told.
    fn served(&self, name: &Name) -> Vec<IpAddr> {
        let of = |&family: &Family| self.told(&Question { name: *name, family });
        self.settings.families.asked().iter().flat_map(of).copied().collect()
    }

    fn told(&self, question: &Question) -> &[IpAddr] {
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

    /// What is known, over this text.
    fn over(&self, base: &[u8], clock: Clock) -> Vec<u8> {
        let entries = self.entries.iter().filter_map(|(question, entry)| {
            let addresses = self.told(question);
            let good = clock.wall.saturating_sub(entry.age(clock.now).as_secs());
            let written = Written { question: *question, addresses, source: entry.source, good };
            (!addresses.is_empty()).then_some(written)
        });
        let is_kept = |question: &Question| self.entries.contains_key(question);
        text::render(base, is_kept, entries, self.rest)
    }
}

impl Families {
    /// What is asked for.
    fn asked(self) -> &'static [Family] {
        match self {
            Self::Ipv4 => &[Family::Ipv4],
            Self::Ipv6 => &[Family::Ipv6],
            Self::Both | Self::PreferIpv4 | Self::PreferIpv6 => &[Family::Ipv4, Family::Ipv6],
        }
    }

    /// The family whose addresses keep those of `family` from being told.
    fn hidden_behind(self, family: Family) -> Option<Family> {
        match (self, family) {
            (Self::PreferIpv4, Family::Ipv6) => Some(Family::Ipv4),
            (Self::PreferIpv6, Family::Ipv4) => Some(Family::Ipv6),
            _ => None,
        }
    }
}

/// Ages are written anew at least this often, even if no address changed; more often where `max_age` is short.
const STAMP_INTERVAL: Duration = Duration::from_secs(3600);

const LOST: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
