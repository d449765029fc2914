//! Counters of one load. No clock.

use serde_json::{Value, json};

use crate::histogram::Histogram;
use crate::judge::Judgement;
use crate::outstanding::Settled;

/// The time window in which queries are counted, in nanoseconds of the run's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The start; queries that are due before it are warm-up.
    pub from_ns: u64,
    /// The end.
    pub until_ns: u64,
}

impl Window {
    /// Whether a time lies in the window.
    #[inline]
    pub fn holds(&self, at_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&at_ns)
    }

    /// Returns the window's length in seconds.
    pub fn seconds(&self) -> f64 {
        self.until_ns.saturating_sub(self.from_ns) as f64 / 1e9
    }
}

/// Counters of one run, or of one of its threads. A query belongs to the window in which it was
/// due; `sent` is the sum of `answered` and `lost`. Faults (duplicates, strays, wrong replies,
/// errors) are counted over the whole run.
#[derive(Clone, Debug, Default)]
pub struct RunCounts {
    /// Queries due in the window and sent.
    pub sent: u64,
    /// The queries of `sent` that were answered in time.
    pub answered: u64,
    /// The queries of `sent` that were not answered in time.
    pub lost: u64,
    /// Replies received within the window, to any query: the numerator of the rate.
    pub replies: u64,
    /// Queries due in the window that could not be sent: all ids are in use, or the socket refused.
    pub unsent: u64,
    /// Further replies to queries already answered.
    pub duplicates: u64,
    /// Replies to queries already given up.
    pub late: u64,
    /// Messages that answer no query.
    pub strays: u64,
    /// First replies with another question than the query's.
    pub wrong_question: u64,
    /// First replies with a wrong rcode.
    pub wrong_rcode: u64,
    /// First replies without the right address.
    pub wrong_address: u64,
    /// Network errors, such as a closed port, and connections that ended.
    pub network_errors: u64,
    /// Maximum time by which a query of the window was sent late: latency of an open loop caused by
    /// the load itself, not by the server.
    pub lag_max_ns: u64,
    /// Times from due to answered, for the queries of the window.
    pub latency: Histogram,
}

impl RunCounts {
    /// Counts a query that is sent at `now_ns`.
    #[inline]
    pub fn sent(&mut self, window: Window, due_ns: u64, now_ns: u64) {
        if window.holds(due_ns) {
            self.sent += 1;
            self.lag_max_ns = self.lag_max_ns.max(now_ns.saturating_sub(due_ns));
        }
    }

    /// Counts a query that was not sent.
    pub fn unsent(&mut self, window: Window, due_ns: u64) {
        self.unsent += u64::from(window.holds(due_ns));
    }

    /// Moves a query from sent to not sent.
    pub fn take_back(&mut self, window: Window, due_ns: u64) {
        self.sent -= u64::from(window.holds(due_ns));
        self.unsent(window, due_ns);
    }

    /// Counts a query that was given up.
    pub fn lost(&mut self, window: Window, due_ns: u64) {
        self.lost += u64::from(window.holds(due_ns));
    }

    /// Counts a reply received at `now_ns`; `verdict` is called for a first reply only.
    #[inline]
    pub fn reply<Q>(
        &mut self,
        window: Window,
        now_ns: u64,
        settled: Settled<Q>,
        verdict: impl FnOnce(Q) -> Judgement,
    ) {
        let (query, due_ns) = match settled {
            Settled::First(query, due_ns) => (query, due_ns),
            Settled::Duplicate => return self.duplicates += 1,
            Settled::Late => return self.late += 1,
            Settled::Stray => return self.strays += 1,
        };
        self.replies += u64::from(window.holds(now_ns));
        if window.holds(due_ns) {
            self.answered += 1;
            self.latency.record(now_ns.saturating_sub(due_ns));
        }
        match verdict(query) {
            Judgement::Right => {}
            Judgement::WrongQuestion => self.wrong_question += 1,
            Judgement::WrongRcode => self.wrong_rcode += 1,
            Judgement::WrongAddress => self.wrong_address += 1,
        }
    }

    /// Returns the number of wrong first replies.
    pub fn wrong(&self) -> u64 {
        self.wrong_question + self.wrong_rcode + self.wrong_address
    }

    /// Adds the counters of another thread.
    pub fn merge(&mut self, other: &Self) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.lost += other.lost;
        self.replies += other.replies;
        self.unsent += other.unsent;
        self.duplicates += other.duplicates;
        self.late += other.late;
        self.strays += other.strays;
        self.wrong_question += other.wrong_question;
        self.wrong_rcode += other.wrong_rcode;
        self.wrong_address += other.wrong_address;
        self.network_errors += other.network_errors;
        self.lag_max_ns = self.lag_max_ns.max(other.lag_max_ns);
        self.latency.merge(&other.latency);
    }

    /// Returns the p50, p99, p99.9 and maximum latency, in microseconds.
    pub fn latency_us(&self) -> [f64; 4] {
        let latency = &self.latency;
        let ns = [
            latency.quantile_ns(0.5),
            latency.quantile_ns(0.99),
            latency.quantile_ns(0.999),
            latency.max_ns(),
        ];
        ns.map(|ns| ns as f64 / 1e3)
    }

    /// Returns all counters, for a report.
    pub fn to_json(&self, window: Window) -> Value {
        let [p50, p99, p999, max] = self.latency_us();
        json!({
            "seconds": window.seconds(),
            "rate": self.replies as f64 / window.seconds().max(1e-9),
            "sent": self.sent,
            "answered": self.answered,
            "lost": self.lost,
            "unsent": self.unsent,
            "duplicates": self.duplicates,
            "late": self.late,
            "strays": self.strays,
            "wrong_question": self.wrong_question,
            "wrong_rcode": self.wrong_rcode,
            "wrong_address": self.wrong_address,
            "network_errors": self.network_errors,
            "lag_max_us": self.lag_max_ns as f64 / 1e3,
            "latency_us": { "p50": p50, "p99": p99, "p999": p999, "max": max },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { from_ns: 1_000, until_ns: 2_000 };

    #[test]
    fn a_query_counts_in_the_window_in_which_it_was_due() {
        let mut counts = RunCounts::default();
        for due_ns in [999, 1_000, 1_999, 2_000] {
            counts.sent(WINDOW, due_ns, due_ns + 50);
            counts.unsent(WINDOW, due_ns);
            counts.lost(WINDOW, due_ns);
        }
        assert_eq!((counts.sent, counts.unsent, counts.lost, counts.lag_max_ns), (2, 2, 2, 50));
        counts.take_back(WINDOW, 1_000);
        counts.take_back(WINDOW, 999);
        assert_eq!((counts.sent, counts.unsent), (1, 3));
    }

    #[test]
    fn latency_is_of_the_windows_queries_and_the_rate_of_the_windows_replies() {
        let mut counts = RunCounts::default();
        for (due_ns, now_ns) in [(900, 950), (900, 1_500), (1_200, 1_260), (1_900, 2_100), (2_000, 2_050)] {
            counts.reply(WINDOW, now_ns, Settled::First((), due_ns), |()| Judgement::Right);
        }
        assert_eq!((counts.replies, counts.answered, counts.latency.len()), (2, 2, 2));
        assert_eq!(counts.latency.max_ns(), 200);
        assert_eq!(counts.to_json(WINDOW)["rate"], 2_000_000.0);
    }

    #[test]
    fn every_kind_of_reply_has_its_count() {
        let mut counts = RunCounts::default();
        let mut reply = |settled, verdict| counts.reply(WINDOW, 1_500, settled, |()| verdict);
        reply(Settled::First((), 1_400), Judgement::Right);
        reply(Settled::First((), 1_400), Judgement::WrongQuestion);
        reply(Settled::First((), 1_400), Judgement::WrongRcode);
        reply(Settled::First((), 1_400), Judgement::WrongAddress);
        reply(Settled::Duplicate, Judgement::WrongRcode);
        reply(Settled::Late, Judgement::WrongRcode);
        reply(Settled::Stray, Judgement::WrongRcode);
        let mut sum = counts.clone();
        sum.merge(&counts);
        for (counts, times) in [(counts, 1), (sum, 2)] {
            assert_eq!(counts.answered, 4 * times);
            assert_eq!(counts.wrong(), 3 * times);
            for count in [counts.wrong_question, counts.wrong_rcode, counts.wrong_address] {
                assert_eq!(count, times);
            }
            assert_eq!([counts.duplicates, counts.late, counts.strays], [times; 3]);
        }
    }
}
