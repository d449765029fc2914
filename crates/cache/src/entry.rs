//! One cached answer: key, data, times.

use std::time::Duration;

use wire::{Answer, Ede, Flags, Name, Query, Rcode, Reply};

use crate::inline_bytes::InlineBytes;
use crate::{AnswerKind, ServeStale};

/// The key of an answer.
#[derive(Clone, Copy)]
pub(crate) struct CacheKey<'q> {
    pub(crate) partition: u32,
    pub(crate) hash: u32,
    pub(crate) name: &'q Name,
    pub(crate) rtype: u16,
    pub(crate) class: u16,
    /// [`DO`], [`CD`] and [`OVERRIDES`].
    pub(crate) bits: u8,
    /// Encoded [`wire::UpstreamOverrides`] of the query.
    pub(crate) overrides: &'q [u8],
}

/// A cached answer. Times are in milliseconds; those of 32 bits count from `stored` and saturate at
/// 49 days.
pub(crate) struct Entry {
    /// Name, overrides, offsets of the TTLs, EDE options, records.
    data: InlineBytes,
    /// Time of storing, counted from the start of the cache.
    stored: u64,
    /// How long the entry is fresh.
    life: u32,
    /// Until then no caller refreshes this entry: a refresh is in flight or has just failed.
    retry: u32,
    /// Time of the last lookup, if the block prefetches.
    last_seen: u32,
    /// Lookups without a long pause between them, if the block prefetches.
    seen: u16,
    pub(crate) partition: u32,
    pub(crate) hash: u32,
    rtype: u16,
    class: u16,
    rcode: Rcode,
    flags: Flags,
    counts: [u16; 3],
    name_len: u8,
    ede_len: u8,
    bits: u8,
    /// Failed refreshes in a row.
    failures: u8,
}

/// An entry without its data, for another process. `age` is in milliseconds, the other times are as
/// in the entry.
pub(crate) struct ExportedEntry {
    pub(crate) age: u64,
    pub(crate) life: u32,
    pub(crate) last_seen: u32,
    pub(crate) seen: u16,
    pub(crate) rtype: u16,
    pub(crate) class: u16,
    pub(crate) rcode: u16,
    pub(crate) flags: u16,
    pub(crate) counts: [u16; 3],
    pub(crate) name_len: u8,
    pub(crate) ede_len: u8,
    pub(crate) bits: u8,
    pub(crate) failures: u8,
}

impl ExportedEntry {
    /// Returns the overrides in an entry's data.
    pub(crate) fn overrides<'d>(&self, data: &'d [u8]) -> Option<&'d [u8]> {
        if self.bits & OVERRIDES == 0 {
            return Some(&[]);
        }
        let (length, rest) = data.get(usize::from(self.name_len)..)?.split_first_chunk::<2>()?;
        rest.get(..usize::from(u16::from_ne_bytes(*length)))
    }

    /// Whether the data is consistent: name, overrides, offsets of TTLs that are within the
    /// records, EDE options.
    pub(crate) fn fits(&self, data: &[u8]) -> bool {
        let Some(overrides) = self.overrides(data) else { return false };
        let records = self.counts.iter().map(|&count| usize::from(count)).sum::<usize>();
        let overrides = if self.bits & OVERRIDES == 0 { 0 } else { 2 + overrides.len() };
        let rest = data.get(usize::from(self.name_len) + overrides..);
        let Some((positions, rest)) = rest.and_then(|rest| rest.split_at_checked(2 * records)) else {
            return false;
        };
        let Some(body) = rest.get(usize::from(self.ede_len)..) else { return false };
        let within = |position: &[u8; 2]| usize::from(u16::from_ne_bytes(*position)) + 4 <= body.len();
        self.bits & !(DO | CD | DENIAL | FAILURE | VISITED | OVERRIDES) == 0
            && positions.as_chunks::<2>().0.iter().all(within)
    }

    /// Returns the bits of the key.
    pub(crate) fn key_bits(&self) -> u8 {
        self.bits & (DO | CD | OVERRIDES)
    }
}

/// Age class of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// Expired, but within the window of serve_stale.
    Stale,
    Dead,
}

/// The TTLs of a reply.
#[derive(Clone, Copy)]
pub(crate) enum Ttls {
    AsKept,
    LessSeconds(u32),
    All(u32),
}

impl Entry {
    /// Encodes an answer; `None` if its parts are inconsistent.
    pub(crate) fn new(
        key: CacheKey<'_>,
        answer: &Answer,
        now: u64,
        life: Duration,
        kind: AnswerKind,
        failure: bool,
    ) -> Option<Self> {
        let records = answer.counts.iter().map(|&count| usize::from(count)).sum::<usize>();
        let ede_len = u8::try_from(answer.ede.len()).ok()?;
        if answer.ttls.len() != records {
            return None;
        }
        let name = key.name.as_wire();
        let overrides_len = u16::try_from(key.overrides.len()).ok()?.to_ne_bytes();
        let overrides = [&overrides_len[..], key.overrides];
        let overrides = if key.bits & OVERRIDES == 0 { [&[][..]; 2] } else { overrides };
        let overrides_size = overrides[0].len() + overrides[1].len();
        let size = name.len() + overrides_size + 2 * records + answer.ede.len() + answer.body.len();
        let data = InlineBytes::new(size, |to| {
            let (name_to, to) = to.split_at_mut(name.len());
            let (overrides_to, to) = to.split_at_mut(overrides_size);
            let (positions_to, to) = to.split_at_mut(2 * records);
            let (ede_to, body_to) = to.split_at_mut(answer.ede.len());
            name_to.copy_from_slice(name);
            let (length_to, overrides_to) = overrides_to.split_at_mut(overrides[0].len());
            length_to.copy_from_slice(overrides[0]);
            overrides_to.copy_from_slice(overrides[1]);
            for (to, position) in positions_to.as_chunks_mut().0.iter_mut().zip(&answer.ttls) {
                *to = position.to_ne_bytes();
            }
            ede_to.copy_from_slice(&answer.ede);
            body_to.copy_from_slice(&answer.body);
        });
        let kind = if kind == AnswerKind::Denial { DENIAL } else { 0 };
        let failure = if failure { FAILURE } else { 0 };
        Some(Self {
            data,
            stored: now,
            life: milliseconds(life).min(MAX_LIFE),
            retry: 0,
            last_seen: 0,
            seen: 0,
            partition: key.partition,
            hash: key.hash,
            rtype: key.rtype,
            class: key.class,
            rcode: answer.rcode,
            flags: answer.flags,
            counts: answer.counts,
            name_len: name.len() as u8,
            ede_len,
            bits: key.bits | kind | failure,
            failures: 0,
        })
    }

    /// Returns the exported form.
    pub(crate) fn to_export(&self, now: u64) -> (ExportedEntry, &[u8]) {
        let exported = ExportedEntry {
            age: now.saturating_sub(self.stored),
            life: self.life,
            last_seen: self.last_seen,
            seen: self.seen,
            rtype: self.rtype,
            class: self.class,
            rcode: self.rcode.0,
            flags: self.flags.0,
            counts: self.counts,
            name_len: self.name_len,
            ede_len: self.ede_len,
            bits: self.bits & !CLAIMED,
            failures: self.failures,
        };
        (exported, self.data.as_slice())
    }

    /// Restores an exported entry, without a refresh in flight.
    pub(crate) fn from_export(
        exported: &ExportedEntry,
        partition: u32,
        hash: u32,
        data: InlineBytes,
        now: u64,
    ) -> Self {
        Self {
            data,
            stored: now.saturating_sub(exported.age),
            life: exported.life.min(MAX_LIFE),
            retry: 0,
            last_seen: exported.last_seen,
            seen: exported.seen,
            partition,
            hash,
            rtype: exported.rtype,
            class: exported.class,
            rcode: Rcode(exported.rcode),
            flags: Flags(exported.flags),
            counts: exported.counts,
            name_len: exported.name_len,
            ede_len: exported.ede_len,
            bits: exported.bits & !CLAIMED,
            failures: exported.failures,
        }
    }

    #[inline]
    pub(crate) fn is(&self, key: &CacheKey<'_>) -> bool {
        self.hash == key.hash
            && self.partition == key.partition
            && (self.rtype, self.class, self.bits & (DO | CD | OVERRIDES)) == (key.rtype, key.class, key.bits)
            && self.data.as_slice().get(..usize::from(self.name_len)) == Some(key.name.as_wire())
            && (key.bits & OVERRIDES == 0 || self.overrides() == key.overrides)
    }

    /// Returns the overrides.
    #[cold]
    fn overrides(&self) -> &[u8] {
        let rest = self.data.as_slice().get(usize::from(self.name_len)..).unwrap_or_default();
        let Some((length, rest)) = rest.split_first_chunk::<2>() else { return &[] };
        rest.get(..usize::from(u16::from_ne_bytes(*length))).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn kind(&self) -> AnswerKind {
        if self.bits & DENIAL == 0 { AnswerKind::Success } else { AnswerKind::Denial }
    }

    /// Whether the entry is a SERVFAIL or NOTIMP.
    #[inline]
    pub(crate) fn is_failure(&self) -> bool {
        self.bits & FAILURE != 0
    }

    /// Returns the bytes allocated outside of the entry.
    pub(crate) fn outside(&self) -> usize {
        self.data.outside()
    }

    #[inline]
    pub(crate) fn age(&self, now: u64) -> u32 {
        u32::try_from(now.saturating_sub(self.stored)).unwrap_or(u32::MAX)
    }

    /// Returns the age class; `window`: milliseconds after expiry in which the entry may be served.
    #[inline]
    pub(crate) fn state(&self, now: u64, window: u64) -> Freshness {
        let age = now.saturating_sub(self.stored);
        let life = u64::from(self.life);
        if age < life {
            Freshness::Fresh
        } else if !self.is_failure() && age < life.saturating_add(window) {
            Freshness::Stale
        } else {
            Freshness::Dead
        }
    }

    /// Sets the visited bit, for eviction.
    #[inline]
    pub(crate) fn visit(&mut self) {
        self.bits |= VISITED;
    }

    /// Whether the visited bit is set.
    pub(crate) fn is_used(&self) -> bool {
        self.bits & VISITED != 0
    }

    /// Clears and returns the visited bit.
    #[inline]
    pub(crate) fn take_visit(&mut self) -> bool {
        let visited = self.bits & VISITED != 0;
        self.bits &= !VISITED;
        visited
    }

    /// Counts a lookup; true if there were `amount` or more without a pause of `pause` or longer.
    #[inline]
    pub(crate) fn count(&mut self, now: u64, amount: u32, pause: Duration) -> bool {
        let age = self.age(now);
        let paused = age.saturating_sub(self.last_seen) >= milliseconds(pause);
        self.seen = if paused { 1 } else { self.seen.saturating_add(1) };
        self.last_seen = age;
        u32::from(self.seen) >= amount.min(u16::MAX.into())
    }

    /// Takes the lookup count of the answer that this one replaces.
    pub(crate) fn inherit(&mut self, earlier: &Self) {
        self.seen = earlier.seen;
    }

    /// Whether at most `percentage` of the entry's life, or one second, remains.
    #[inline]
    pub(crate) fn ends_soon(&self, now: u64, percentage: u8) -> bool {
        let left = self.life.saturating_sub(self.age(now));
        let share = u64::from(self.life) * u64::from(percentage.min(100)) / 100;
        u64::from(left) <= share.max(1000)
    }

    /// Whether a refresh has failed since the entry was stored.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Claims the refresh for the caller, unless one is in flight or has just failed.
    #[inline]
    pub(crate) fn claim(&mut self, now: u64) -> bool {
        let age = self.age(now);
        if age < self.retry {
            return false;
        }
        self.retry = age.saturating_add(CLAIM);
        self.bits |= CLAIMED;
        true
    }

    /// Records a failed refresh; several callers that waited for the same one count once.
    pub(crate) fn note_failure(&mut self, now: u64, stale: Option<&ServeStale>) {
        let age = self.age(now);
        if self.bits & CLAIMED == 0 && age < self.retry {
            return;
        }
        self.bits &= !CLAIMED;
        self.failures = self.failures.saturating_add(1);
        let pause = match stale.and_then(|stale| stale.recheck) {
            Some(pause) => milliseconds(pause.min(MAX_RECHECK)),
            None => 1000u32.saturating_mul(1 << (self.failures - 1).min(8)).min(MAX_PAUSE),
        };
        self.retry = age.saturating_add(pause);
    }

    /// Appends the answer to `reply`.
    #[inline]
    pub(crate) fn write(&self, query: &Query<'_>, ttls: Ttls, reply: &mut Reply<'_>) {
        reply.rcode = self.rcode;
        reply.flags = query.visible_flags(self.flags);
        let records = self.counts.iter().map(|&count| usize::from(count)).sum::<usize>();
        let mut start = usize::from(self.name_len);
        if self.bits & OVERRIDES != 0 {
            start += 2 + self.overrides().len();
        }
        let rest = self.data.as_slice().get(start..).unwrap_or_default();
        let Some((positions, rest)) = rest.split_at_checked(2 * records) else { return };
        let Some((ede, body)) = rest.split_at_checked(usize::from(self.ede_len)) else { return };
        let before = reply.body_mut().len();
        reply.push_ready(body, self.counts);
        if !ede.is_empty() {
            reply.options.extend_encoded(ede);
        }
        let change = match ttls {
            Ttls::AsKept | Ttls::LessSeconds(0) => return,
            other => other,
        };
        let body = &mut reply.body_mut()[before..];
        for position in positions.as_chunks::<2>().0 {
            let at = usize::from(u16::from_ne_bytes(*position));
            let Some(field) = body.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) else {
                continue;
            };
            *field = match change {
                Ttls::AsKept => continue,
                Ttls::LessSeconds(elapsed) => {
                    u32::from_be_bytes(*field).saturating_sub(elapsed).to_be_bytes()
                }
                Ttls::All(ttl) => ttl.to_be_bytes(),
            };
        }
    }

    /// Returns the Extended DNS Error of an expired answer (RFC 8914, section 4).
    #[inline]
    pub(crate) fn stale_reason(&self) -> Ede {
        if self.rcode == Rcode::NXDOMAIN { Ede::STALE_NXDOMAIN } else { Ede::STALE_ANSWER }
    }
}

/// Converts to whole milliseconds, saturating.
#[inline]
pub(crate) fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// The query's DO bit.
pub(crate) const DO: u8 = 1;
/// The query's CD bit.
pub(crate) const CD: u8 = 2;
const DENIAL: u8 = 4;
const FAILURE: u8 = 8;
const VISITED: u8 = 16;
const CLAIMED: u8 = 32;
/// The query has overrides for upstreams.
pub(crate) const OVERRIDES: u8 = 64;

/// Longest life, whatever the TTLs: 30 days.
const MAX_LIFE: u32 = 30 * 86_400_000;
/// How long one caller may take for a refresh before another may try: no exchange with an upstream
/// takes 5 s.
const CLAIM: u32 = 5000;
/// Longest pause between refreshes after failures, in milliseconds. RFC 8767, section 5, recommends
/// 30 s as the shortest; here that is 1 s, so that the end of a short outage is noticed soon.
const MAX_PAUSE: u32 = 30_000;
/// Longest recheck pause: a dead server must not be remembered for longer (RFC 2308, section 7.2).
const MAX_RECHECK: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ask;
    use wire::RType;

    #[test]
    fn entry_matches_its_whole_key() {
        let name = Name::from_text("www.example.org.").unwrap();
        let other = Name::from_text("ftp.example.org.").unwrap();
        let key =
            CacheKey { partition: 1, hash: 7, name: &name, rtype: 1, class: 1, bits: 0, overrides: &[] };
        let answer = Ask::new("www.example.org", RType::A).addresses(&[60]);
        let entry = Entry::new(key, &answer, 0, Duration::from_secs(60), AnswerKind::Denial, false).unwrap();
        for (same, key) in [
            (true, key),
            (false, CacheKey { partition: 2, ..key }),
            (false, CacheKey { hash: 8, ..key }),
            (false, CacheKey { name: &other, ..key }),
            (false, CacheKey { name: &Name::ROOT, ..key }),
            (false, CacheKey { rtype: 28, ..key }),
            (false, CacheKey { class: 3, ..key }),
            (false, CacheKey { bits: DO, ..key }),
            (false, CacheKey { bits: CD, ..key }),
            (false, CacheKey { bits: OVERRIDES, overrides: b"\0\0", ..key }),
        ] {
            assert_eq!(entry.is(&key), same, "{} {}", key.name, key.rtype);
        }
        let key = CacheKey { bits: OVERRIDES, overrides: b"\0\0\xff\xee\0\x01a", ..key };
        let entry = Entry::new(key, &answer, 0, Duration::from_secs(60), AnswerKind::Denial, false).unwrap();
        for (same, key) in [
            (true, key),
            (false, CacheKey { bits: 0, overrides: &[], ..key }),
            (false, CacheKey { overrides: b"\0\0\xff\xee\0\x01b", ..key }),
            (false, CacheKey { overrides: b"\0\0\xff\xee\0\x02ab", ..key }),
            (false, CacheKey { overrides: b"\0\0", ..key }),
        ] {
            assert_eq!(entry.is(&key), same, "{:?}", key.overrides);
        }
    }

    #[test]
    fn inconsistent_answer_is_refused() {
        let ask = Ask::new("www.example.org", RType::A);
        let query = ask.query();
        let key = CacheKey {
            partition: 1,
            hash: 7,
            name: &query.name,
            rtype: 1,
            class: 1,
            bits: 0,
            overrides: &[],
        };
        let pack = |answer: &Answer| {
            Entry::new(key, answer, 0, Duration::from_secs(60), AnswerKind::Success, false).is_some()
        };
        let whole = ask.addresses(&[60, 60]);
        assert!(pack(&whole));
        assert!(!pack(&Answer { ttls: vec![6], ..whole.clone() }));
        assert!(!pack(&Answer { ede: vec![0; 256], ..whole.clone() }));
        // Offsets outside of the records are ignored.
        let answer = Answer { ttls: vec![6, 60_000], ..whole };
        let entry = Entry::new(key, &answer, 0, Duration::from_secs(60), AnswerKind::Success, false).unwrap();
        let seen = ask.see(|query, reply| {
            entry.write(query, Ttls::All(9), reply);
            crate::CacheResult::Miss
        });
        assert_eq!(seen.ttls, [9, 60]);
    }
}
