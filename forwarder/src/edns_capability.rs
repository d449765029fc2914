//! The EDNS support of an upstream: it accepts an OPT, refuses it, or does not answer. No lock, no
//! I/O.
//!
//! ```text
//!           answered without OPT what it had not answered with one          one query with OPT, 2 s for its reply
//!   open -------------------------------------------------------> held ----------------------------------------> held
//!    ^                                                             |  30 s, doubled up to 4 min                    |
//!    +---------------------- a good reply to an OPT ---------------+-----------------------------------------------+
//! ```

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The EDNS state of one upstream, shared by all workers. Times are milliseconds since the epoch, 0
/// is never.
#[derive(Debug)]
pub(crate) struct EdnsState {
    epoch: Instant,
    /// When the upstream last gave a good reply to a query with an OPT.
    took_at: AtomicU64,
    /// Until when queries that need no EDNS are sent without OPT; 0: no hold.
    held_until: AtomicU64,
    /// The number of times in a row that the upstream answered a query without OPT that it had not
    /// answered with an OPT, and the last of these times.
    proofs: AtomicU32,
    proved_at: AtomicU64,
    /// Whether the upstream answered our own OPT with FORMERR and no OPT: it does not implement
    /// EDNS (RFC 6891, section 7).
    lacks_edns: AtomicBool,
    /// Until when the upstream is expected to reply without OPT to queries with an OPT.
    mute_until: AtomicU64,
}

impl EdnsState {
    pub(crate) fn new(epoch: Instant) -> Self {
        Self {
            epoch,
            took_at: AtomicU64::new(0),
            held_until: AtomicU64::new(0),
            proofs: AtomicU32::new(0),
            proved_at: AtomicU64::new(0),
            lacks_edns: AtomicBool::new(false),
            mute_until: AtomicU64::new(0),
        }
    }

    /// Whether to send a query without OPT. When a hold ends, one query at a time is sent with an
    /// OPT, as a trial.
    ///
    /// A query without DO loses nothing without OPT. A query with DO loses DNSSEC: a single lost
    /// packet or a single reply is not enough for that while other replies show that the upstream
    /// supports EDNS.
    pub(crate) fn asks_plain(&self, now: Instant, dnssec_ok: bool) -> bool {
        let until = self.held_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let now = self.millis(now);
        if dnssec_ok && !self.is_proved(now) {
            return false;
        }
        now < until
            || self
                .held_until
                .compare_exchange(until, now + TRIAL_MS, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
    }

    /// Whether there is a hold: queries that need no EDNS are sent without OPT.
    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.millis(now) < self.held_until.load(Ordering::Relaxed)
    }

    /// Whether a query with DO should rather be sent to another upstream.
    pub(crate) fn lacks_dnssec(&self, now: Instant) -> bool {
        let (held, mute) = (&self.held_until, &self.mute_until);
        let until = held.load(Ordering::Relaxed);
        let mute = mute.load(Ordering::Relaxed);
        if until == 0 && mute == 0 {
            return false;
        }
        let now = self.millis(now);
        now < mute || (now < until && self.is_proved(now))
    }

    /// Whether the upstream answered a query with OPT so recently that a missing reply has another
    /// cause.
    pub(crate) fn takes_lately(&self, now: Instant) -> bool {
        self.took_within(self.millis(now), LATELY_MS)
    }

    /// Notes a good reply to a query with an OPT; `has_opt`: the reply has one, too.
    pub(crate) fn took(&self, now: Instant, dnssec_ok: bool, has_opt: bool) {
        let now = self.millis(now);
        self.took_at.store(now, Ordering::Relaxed);
        if self.held_until.load(Ordering::Relaxed) != 0 {
            self.held_until.store(0, Ordering::Relaxed);
            self.proofs.store(0, Ordering::Relaxed);
            self.lacks_edns.store(false, Ordering::Relaxed);
        }
        if dnssec_ok {
            let until = if has_opt { 0 } else { now + HOLD_MS };
            self.mute_until.store(until, Ordering::Relaxed);
        }
    }

    /// Notes that the upstream did not answer a query with an OPT in time. This is no proof: it may
    /// be down or slow.
    pub(crate) fn doubt(&self, now: Instant) {
        let now = self.millis(now);
        if !self.took_within(now, LATELY_MS) && self.held_until.load(Ordering::Relaxed) <= now + TRIAL_MS {
            self.held_until.store(now + HOLD_MS, Ordering::Relaxed);
        }
    }

    /// Notes that the upstream answered a query without OPT but not the same query with localdns's
    /// OPT; `lacks_edns`: it had answered the latter with FORMERR and no OPT.
    pub(crate) fn refused(&self, now: Instant, lacks_edns: bool) {
        let now = self.millis(now);
        if self.took_within(now, LATELY_MS) {
            // The upstream answered other queries with an OPT lately, so the cause is the name, not
            // EDNS.
            return;
        }
        if lacks_edns && !self.took_within(now, PROOF_MS) {
            self.lacks_edns.store(true, Ordering::Relaxed);
        }
        // Queries that were in flight at the same time count as one proof.
        let proved_at = self.proved_at.swap(now, Ordering::Relaxed);
        let proofs = match self.proofs.load(Ordering::Relaxed) {
            proofs @ 1.. if now < proved_at + ONCE_MS => proofs,
            proofs => {
                self.proofs.store(proofs.saturating_add(1), Ordering::Relaxed);
                proofs + 1
            }
        };
        let hold = HOLD_MS << (proofs - 1).min(HOLD_DOUBLINGS);
        self.held_until.store(now + hold, Ordering::Relaxed);
    }

    fn is_proved(&self, now: u64) -> bool {
        (self.lacks_edns.load(Ordering::Relaxed) || self.proofs.load(Ordering::Relaxed) >= PROOFS)
            && !self.took_within(now, PROOF_MS)
    }

    fn took_within(&self, now: u64, time: u64) -> bool {
        match self.took_at.load(Ordering::Relaxed) {
            0 => false,
            at => now.saturating_sub(at) < time,
        }
    }

    fn millis(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.epoch) + Duration::from_millis(1)).as_millis() as u64
    }
}

/// The first hold, in milliseconds, after which an upstream that supports EDNS by now is noticed.
/// Each further proof doubles the hold, three times at most.
const HOLD_MS: u64 = 30_000;
const HOLD_DOUBLINGS: u32 = 3;
/// How long other queries are sent without OPT while a trial query with an OPT is in flight.
const TRIAL_MS: u64 = 2_000;
/// After an OPT was accepted, a missing reply within this time counts as a lost packet.
const LATELY_MS: u64 = 10_000;
/// After an OPT was accepted, DNSSEC counts as available for this time.
const PROOF_MS: u64 = 60_000;
/// Proofs that are needed: a single one may be a lost packet.
const PROOFS: u32 = 2;
/// Proofs within this time count as one.
const ONCE_MS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::disallowed_methods, reason = "a test's time begins at any moment")]
    fn state() -> (EdnsState, impl Fn(u64) -> Instant) {
        let epoch = Instant::now();
        (EdnsState::new(epoch), move |s| epoch + Duration::from_secs(s))
    }

    #[test]
    fn a_hold_is_tried_again_soon_and_then_less_often_up_to_four_minutes() {
        let (state, at) = state();
        let mut now = 0;
        for hold in [30, 60, 120, 240, 240, 240] {
            state.refused(at(now), true);
            assert!(state.asks_plain(at(now + hold - 1), false), "{hold}");
            now += hold + 1;
            assert!(!state.asks_plain(at(now), false), "one tries");
            assert!(state.asks_plain(at(now), false), "and one alone");
        }
        // A trial without result is followed by another one.
        assert!(!state.asks_plain(at(now + 3), false));
        state.took(at(now + 4), false, true);
        assert!(!state.asks_plain(at(now + 4), false) && !state.asks_plain(at(now + 4), true));
    }

    /// DNSSEC is given up after an explicit refusal of EDNS, or after two proofs.
    #[test]
    fn dnssec_off_after_refusal_or_proofs() {
        let (state, at) = state();
        state.refused(at(0), false);
        // A query that was in flight at the same time adds no proof.
        state.refused(at(0), false);
        assert!(
            state.asks_plain(at(1), false) && !state.asks_plain(at(1), true) && !state.lacks_dnssec(at(1))
        );
        state.refused(at(2), false);
        assert!(state.asks_plain(at(3), true) && state.lacks_dnssec(at(3)));
        state.took(at(4), true, true);
        assert!(!state.lacks_dnssec(at(5)));
        // An OPT was accepted within the last seconds: the refusal concerns that name only.
        state.refused(at(6), true);
        assert!(!state.asks_plain(at(7), false));
        // An OPT was accepted within the last minute: queries with DO keep their OPT.
        state.refused(at(20), true);
        assert!(state.asks_plain(at(21), false) && !state.asks_plain(at(21), true));
        state.took(at(22), false, true);
        state.refused(at(90), true);
        assert!(state.asks_plain(at(91), true));
    }

    #[test]
    fn silence_is_a_doubt_and_no_proof() {
        let (state, at) = state();
        state.doubt(at(0));
        assert!(state.asks_plain(at(1), false) && !state.asks_plain(at(1), true));
        state.took(at(2), true, false);
        assert!(!state.asks_plain(at(3), false), "without OPT is an answer");
        assert!(state.lacks_dnssec(at(3)) && !state.lacks_dnssec(at(33)));
        state.doubt(at(4));
        assert!(!state.asks_plain(at(5), false));
    }
}
