//! Congestion state of one path to an upstream: round-trip time, loss detection, and the bound on
//! outstanding queries.
//!
//! An upstream may serve its queries one after the other. A copy of a query that merely waits there
//! adds to the queue in front of every later one, so a copy is sent only for a datagram that is
//! probably lost: its retransmission time-out (RFC 6298) has passed since the upstream last
//! answered an earlier query, or a later query was answered and the datagram is overdue by
//! comparison (RFC 8985, section 6.2). The number of outstanding queries is bounded by the rate of
//! replies, once these show a standing queue.
//!
//! Shared by all workers, in relaxed atomics: of two concurrent writes one sample is lost.

use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use client_quota::{ClientId, ClientQuota};

/// Congestion state. Times are microseconds since the registry's epoch.
#[derive(Debug)]
pub(crate) struct Congestion {
    /// Smoothed round-trip time and its variation, 32 bits each; 0 while unknown.
    rtt: AtomicU64,
    /// The time of the last reply; 0: none yet.
    replied_at: AtomicU64,
    /// The send time of the newest query that was answered, and its round-trip time.
    newest_sent: AtomicU64,
    newest_rtt: AtomicU64,
    /// Token bucket of copies, in hundredths.
    copies: AtomicU32,
    /// Queries sent and not answered, by client.
    outstanding: LazyLock<ClientQuota>,
    /// Most queries that may be outstanding; [`UNBOUNDED`] while there is no standing queue.
    limit: AtomicU32,
    /// The delay that `limit` aims at, in milliseconds.
    target_ms: AtomicU32,
    /// Queries refused because of `limit`, replies and their lowest RTT, in the current window.
    refused: AtomicU32,
    replies: AtomicU32,
    least_rtt: AtomicU64,
    window_start: AtomicU64,
}

impl Congestion {
    pub(crate) fn new() -> Self {
        Self {
            rtt: AtomicU64::new(0),
            replied_at: AtomicU64::new(0),
            newest_sent: AtomicU64::new(0),
            newest_rtt: AtomicU64::new(0),
            copies: AtomicU32::new(COPIES_FIRST),
            outstanding: LazyLock::new(|| ClientQuota::new(u32::MAX / 2)),
            limit: AtomicU32::new(UNBOUNDED),
            target_ms: AtomicU32::new(TARGET_MAX_MS),
            refused: AtomicU32::new(0),
            replies: AtomicU32::new(0),
            least_rtt: AtomicU64::new(u64::MAX),
            window_start: AtomicU64::new(0),
        }
    }

    /// Returns the smoothed round-trip time; `None` while unknown.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        let (srtt, _) = self.rtt()?;
        Some(Duration::from_micros(srtt))
    }

    fn rtt(&self) -> Option<(u64, u64)> {
        match self.rtt.load(Relaxed) {
            0 => None,
            packed => Some((packed >> 32, packed & 0xffff_ffff)),
        }
    }

    /// Returns how long to wait for a reply over this path before another upstream is queried, too:
    /// srtt + 4 rttvar, 100 ms to 300 ms; 300 ms while unknown.
    pub(crate) fn hedge_after(&self) -> Duration {
        let known = self.rtt().map(|(srtt, var)| Duration::from_micros(srtt + 4 * var));
        known.map_or(HEDGE_MAX, |time| time.clamp(HEDGE_MIN, HEDGE_MAX))
    }

    /// Returns the retransmission time-out of RFC 6298, section 2: srtt + max(4 rttvar, srtt / 2),
    /// at least 100 ms; 1 s while unknown. Half of srtt is the least variation of a busy server.
    fn timeout(&self) -> u64 {
        self.rtt().map_or(TIMEOUT_FIRST, |(srtt, var)| (srtt + (4 * var).max(srtt / 2)).max(TIMEOUT_MIN))
    }

    /// Records a reply to a query sent at `sent`. `is_copy`: the same query was sent to this
    /// upstream before. A server that deduplicates queries answers the copy early, so its
    /// round-trip time is no sample (Karn's algorithm).
    pub(crate) fn replied(&self, sent: u64, now: u64, is_copy: bool) {
        let rtt = now.saturating_sub(sent).clamp(1, RTT_MAX.as_micros() as u64);
        if !is_copy {
            self.sample(rtt);
        }
        self.replied_at.store(now, Relaxed);
        if sent >= self.newest_sent.load(Relaxed) {
            self.newest_sent.store(sent, Relaxed);
            self.newest_rtt.store(rtt, Relaxed);
        }
        let copies = self.copies.load(Relaxed);
        if copies < COPIES_MAX {
            self.copies.store(copies + COPIES_PER_REPLY, Relaxed);
        }
        self.count(rtt, now);
    }

    fn sample(&self, rtt: u64) {
        let (srtt, var) = match self.rtt() {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => ((7 * srtt + rtt) / 8, (3 * var + srtt.abs_diff(rtt)) / 4),
        };
        self.rtt.store(srtt.max(1) << 32 | var, Relaxed);
    }

    /// Whether any query was answered after `sent`.
    pub(crate) fn replied_since(&self, sent: u64) -> bool {
        self.replied_at.load(Relaxed) > sent
    }

    /// Returns the time at which a query's last transmission, sent at `sent` after `copies` earlier
    /// ones, counts as lost.
    pub(crate) fn lost_at(&self, sent: u64, copies: u32) -> u64 {
        if self.newest_sent.load(Relaxed) > sent {
            // A query sent later was answered already: this one is lost after that query's
            // round-trip time and a time-out. If replies overtake its copies as well the name is
            // probably slow, so each copy doubles the time-out (RFC 6298, section 5.5).
            return sent + self.newest_rtt.load(Relaxed) + (self.timeout() << copies.min(BACKOFF_MAX));
        }
        // Only earlier queries were answered: the upstream is busy with these, or silent.
        sent.max(self.replied_at.load(Relaxed)) + (self.timeout() << copies.min(BACKOFF_SILENT))
    }

    /// Takes the token of one copy; false if there is none. Five replies add three tokens.
    pub(crate) fn take_copy(&self) -> bool {
        let copies = self.copies.load(Relaxed);
        let enough = copies >= COPY;
        if enough {
            self.copies.store(copies - COPY, Relaxed);
        }
        enough
    }

    /// Whether the bound on outstanding queries admits one more of this client; counts a refusal.
    pub(crate) fn has_room(&self, client: ClientId) -> bool {
        let limit = self.limit.load(Relaxed);
        if limit == UNBOUNDED || self.outstanding.has_room(client, limit) {
            return true;
        }
        self.refused.fetch_add(1, Relaxed);
        false
    }

    /// Counts a query that is sent.
    pub(crate) fn sent(&self, client: ClientId) {
        self.outstanding.acquire(client);
    }

    /// Counts a query that is answered or given up.
    pub(crate) fn ended(&self, client: ClientId) {
        self.outstanding.release(client);
    }

    /// Returns the number of outstanding queries, and its bound, if there is one now.
    pub(crate) fn outstanding(&self) -> (u32, Option<u32>) {
        let limit = self.limit.load(Relaxed);
        (self.outstanding.in_use(), (limit != UNBOUNDED).then_some(limit))
    }

    /// Counts a reply; the first one after the end of a window sets the bound anew.
    fn count(&self, rtt: u64, now: u64) {
        let start = self.window_start.load(Relaxed);
        let window = now.saturating_sub(start);
        let is_over =
            window >= WINDOW && (window >= WINDOW_MAX || self.replies.load(Relaxed) >= WINDOW_REPLIES);
        if is_over && self.window_start.compare_exchange(start, now, Relaxed, Relaxed).is_ok() {
            let replies = self.replies.swap(0, Relaxed);
            let least = self.least_rtt.swap(u64::MAX, Relaxed);
            let refused = self.refused.swap(0, Relaxed);
            if start != 0 {
                self.bound(replies, window, least, refused > 0);
            }
        }
        self.replies.fetch_add(1, Relaxed);
        if rtt < self.least_rtt.load(Relaxed) {
            self.least_rtt.store(rtt, Relaxed);
        }
    }

    /// Sets the bound. There is a standing queue if even the fastest reply of a window was slow
    /// (RFC 8289, section 4.2). Then the bound is the number of queries answered within the target
    /// delay (Little's law), which shrinks while queries are refused: a longer queue that never
    /// drains helps no client.
    fn bound(&self, replies: u32, window: u64, least_rtt: u64, refused: bool) {
        let target = self.target_ms.load(Relaxed);
        let target = if refused { target / 5 * 4 } else { target / 4 * 5 };
        let target = target.clamp(TARGET_MIN_MS, TARGET_MAX_MS);
        self.target_ms.store(target, Relaxed);
        let limit = if least_rtt < STANDING || replies == 0 {
            UNBOUNDED
        } else {
            (u64::from(replies) * u64::from(target) * 1_000 / window).clamp(1, u64::from(UNBOUNDED) - 1)
                as u32
        };
        self.limit.store(limit, Relaxed);
    }
}

const HEDGE_MIN: Duration = Duration::from_millis(100);
const HEDGE_MAX: Duration = Duration::from_millis(300);
/// The time-out before the first reply, in microseconds (RFC 6298, section 2.1).
const TIMEOUT_FIRST: u64 = 1_000_000;
/// The lowest time-out, in microseconds: below RFC 6298's 1 s, since a client waits for this one
/// datagram; above any round trip in a cluster.
const TIMEOUT_MIN: u64 = 100_000;
/// The highest round-trip time that is recorded; a longer one is recorded as this value.
pub(crate) const RTT_MAX: Duration = Duration::from_secs(60);
/// Most doublings of the time-out: 100 ms become 800 ms, and the client's deadline is near.
const BACKOFF_MAX: u32 = 3;
/// Most doublings while no later query is answered: the token bucket bounds copies.
const BACKOFF_SILENT: u32 = 1;

/// The tokens that one copy takes.
const COPY: u32 = 100;
/// Tokens per reply: enough for a path that loses 20 % of its datagrams each way: of 100
/// transmissions 64 are answered, and 36 repeated.
const COPIES_PER_REPLY: u32 = COPY / 5 * 3;
/// Tokens before the first reply, and the bucket's size: small, since a server that has stopped
/// answering may be busy.
const COPIES_FIRST: u32 = 2 * COPY;
const COPIES_MAX: u32 = 20 * COPY;

const UNBOUNDED: u32 = u32::MAX;
/// A window lasts 1 s, or up to 4 s until it has enough replies.
const WINDOW: u64 = 1_000_000;
const WINDOW_MAX: u64 = 4 * WINDOW;
const WINDOW_REPLIES: u32 = 8;
/// There is a standing queue if a window's lowest round-trip time, in microseconds, is above this:
/// no path is that slow. A recursor may need longer for a name that it has not cached, but not for
/// every name of a second.
const STANDING: u64 = 1_000_000;
/// The highest target delay: below a query's deadline by more than the error of a window's rate.
const TARGET_MAX_MS: u32 = 4_300;
/// The lowest target delay: above [`STANDING`], so that the bound does not make replies so fast
/// that the queue seems gone and the bound is removed.
const TARGET_MIN_MS: u32 = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    /// The replies are seconds apart, so that there is no standing queue.
    #[test]
    fn timeout_follows_samples_within_bounds() {
        for (rtt_ms, times, expected) in
            [(1, 1, 100), (40, 60, 100), (100, 60, 150), (400, 60, 600), (2_000, 60, 3_000)]
        {
            let path = Congestion::new();
            assert_eq!((path.timeout(), path.hedge_after()), (TIMEOUT_FIRST, HEDGE_MAX));
            for at in 1..=times {
                path.replied(at * 5_000 * MS - rtt_ms * MS, at * 5_000 * MS, false);
            }
            assert!((path.timeout() / MS).abs_diff(expected) <= 2, "{rtt_ms} ms: {}", path.timeout());
        }
    }

    #[test]
    fn hedges_wait_srtt_and_variation() {
        for (rtt_ms, times, hedge_ms) in [(1, 1, 100), (40, 60, 100), (120, 60, 120), (2_000, 60, 300)] {
            let path = Congestion::new();
            (1..=times).for_each(|at| path.replied(at * 5_000 * MS - rtt_ms * MS, at * 5_000 * MS, false));
            assert!((path.hedge_after().as_millis() as u64).abs_diff(hedge_ms) <= 8, "{rtt_ms}");
        }
    }

    /// The early reply to a copy is no sample of the round-trip time.
    #[test]
    fn copies_are_no_samples() {
        let path = Congestion::new();
        path.replied(1_000 * MS, 1_400 * MS, false);
        let before = path.srtt();
        path.replied(2_399 * MS, 2_400 * MS, true);
        assert_eq!(path.srtt(), before);
        assert!(path.replied_since(2_399 * MS) && !path.replied_since(2_400 * MS));
    }

    /// At an upstream that answers in order, a query counts as lost a time-out after the last
    /// reply, however long it waits.
    #[test]
    fn progress_in_order_postpones_loss() {
        let path = Congestion::new();
        (1..=20).for_each(|at| path.replied(at * 1_000 * MS, at * 1_000 * MS + 30 * MS, false));
        let burst = 100_000 * MS;
        for nth in 1..=60 {
            assert!(path.lost_at(burst, 0) > burst + nth * 30 * MS, "{nth}");
            path.replied(burst, burst + nth * 30 * MS, false);
        }
    }

    /// A query overtaken by a later one counts as lost a round trip and a time-out after it was
    /// sent.
    #[test]
    fn overtaken_query_is_lost() {
        let path = Congestion::new();
        (1..=20).for_each(|at| path.replied(at * 1_000 * MS, at * 1_000 * MS + 2 * MS, false));
        let (sent, timeout) = (100_000 * MS, TIMEOUT_MIN);
        assert_eq!(path.lost_at(sent, 0), sent + timeout);
        path.replied(sent + 50 * MS, sent + 52 * MS, false);
        path.replied(sent + 80 * MS, sent + 82 * MS, false);
        // Each time-out is twice as long as the one before, up to the eightfold.
        for (copies, times) in [(0, 1), (1, 2), (2, 4), (3, 8), (9, 8)] {
            assert_eq!(path.lost_at(sent, copies), sent + 2 * MS + times * timeout, "{copies}");
        }
        assert_eq!(path.lost_at(sent + 90 * MS, 2), sent + 90 * MS + 2 * timeout);
    }

    #[test]
    fn copies_are_a_share_of_replies() {
        let path = Congestion::new();
        let mut copies = 0;
        for at in 0..10_000 {
            while path.take_copy() {
                copies += 1;
            }
            path.replied(at * MS, at * MS + 1, false);
        }
        assert!((5_900..=6_002).contains(&copies), "{copies}");
    }

    /// An upstream that answers 33 a second: with a standing queue 142 may be outstanding, and
    /// fewer while more are refused.
    #[test]
    fn bound_follows_rate_of_replies() {
        let client = ClientId::of(1);
        let path = Congestion::new();
        let serve = |from_ms: u64, to_ms: u64, rtt_ms: u64| {
            for at in (from_ms..to_ms).step_by(30) {
                path.replied((at - rtt_ms) * MS, at * MS, false);
            }
        };
        serve(10_000, 15_000, 30);
        (0..1_000).for_each(|_| path.sent(client));
        assert!(path.has_room(client), "nothing is slow");
        serve(15_000, 18_000, 2_000);
        let (outstanding, limit) = path.outstanding();
        assert_eq!(outstanding, 1_000);
        assert!((136..=146).contains(&limit.unwrap()), "{limit:?}");
        for at in 18..30 {
            assert!(!path.has_room(client));
            serve(at * 1_000, at * 1_000 + 1_000, 2_000);
        }
        assert!((46..=54).contains(&path.outstanding().1.unwrap()), "{:?}", path.outstanding());
        (0..1_000).for_each(|_| path.ended(client));
        assert!(path.has_room(client));
        serve(30_000, 33_000, 30);
        assert_eq!(path.outstanding(), (0, None));
    }

    /// A single slow answer among fast ones sets no bound.
    #[test]
    fn slow_names_are_no_queue() {
        let path = Congestion::new();
        for at in 4_000..20_000 {
            let rtt = if at % 100 == 0 { 3_000 } else { 2 };
            path.replied((at - rtt) * MS, at * MS, false);
            assert_eq!(path.outstanding().1, None);
        }
    }
}
