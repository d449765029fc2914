//! Results of the trials: time without an answer, lost queries, and time until the server answers
//! again.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use super::Fault;
use super::load::{Client, Load, Way};
use crate::lab::US;

/// A query, and the server that answered it in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query {
    pub(super) asked: Instant,
    pub(super) responder: Option<&'static str>,
}

/// An interval of time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) from: Instant,
    pub(super) to: Instant,
}

impl Window {
    /// A client's queries in the interval.
    fn of(self, client: &Client) -> Vec<Query> {
        let queries = client.queries();
        let within = |query: &&Query| self.from <= query.asked && query.asked < self.to;
        queries.iter().filter(within).copied().collect()
    }
}

/// Results of one fault's trials.
pub(super) struct Figures {
    fault: Fault,
    /// Longest time without an answer of one client in one trial, after the fault and after the
    /// return.
    dark: Vec<(Way, Duration)>,
    /// Queries lost by all clients in one trial, over UDP and TCP, except those that wait for an
    /// address.
    lost: Vec<[usize; 2]>,
    lost_at_return: Vec<[usize; 2]>,
    /// Per client, the time from READY to its first query from which on the server answers all.
    back: Vec<Duration>,
    /// Results out of bounds.
    beyond: Vec<String>,
}

impl Figures {
    pub(super) fn new(fault: Fault) -> Self {
        let (dark, back, beyond) = (Vec::new(), Vec::new(), Vec::new());
        Self { fault, dark, lost: Vec::new(), lost_at_return: Vec::new(), back, beyond }
    }

    /// Adds a trial: from the fault to the return, and from there until all is as before, with
    /// READY at `ready`.
    pub(super) fn add(&mut self, load: &Load, away: Window, back: Window, ready: Instant) {
        let trial = self.lost.len() + 1;
        let (mut lost, mut lost_at_return) = ([0; 2], [0; 2]);
        for client in &load.clients {
            let (gone, mut returned) = (away.of(client), back.of(client));
            if self.fault.has_no_responder(client) {
                returned.retain(|query| query.asked >= ready);
            }
            let (dark, dark_again) = (longest_dark(&gone, self.fault), longest_dark(&returned, self.fault));
            let after =
                ours_from(&returned).map_or(Duration::MAX, |ours| ours.saturating_duration_since(ready));
            // A client that waits for an address has its own bound; its losses are not due to a
            // queue.
            if !self.fault.waits_for_address(client) {
                lost[usize::from(client.way.over_tcp())] += count_lost(&gone);
            }
            lost_at_return[usize::from(client.way.over_tcp())] += count_lost(&returned);
            self.dark.push((client.way, dark));
            self.back.push(after);
            let others = gone.iter().chain(&returned).filter_map(|query| query.responder);
            let others = others.filter(|responder| *responder != US && *responder != client.upstream).count();
            let (goal, at_return) = (self.fault.goal(client), self.fault.goal_at_return(client));
            let (fault, name) = (self.fault, client.name());
            let mut say = |what: String| self.beyond.push(format!("{fault}, trial {trial}: {name}: {what}"));
            if others > 0 {
                say(format!("{others} {STRANGER}"));
            }
            if dark > goal {
                say(format!("no server answers for {dark:.0?}, at most {goal:?} is allowed"));
            }
            if dark_again > at_return {
                say(format!(
                    "no server answers for {dark_again:.0?} at the return, at most {at_return:?} is allowed"
                ));
            }
            let back = at_return.max(BACK);
            if after > back {
                say(format!("back {after:.0?} after READY, at most {back:?} is allowed"));
            }
        }
        self.lost.push(lost);
        self.lost_at_return.push(lost_at_return);
    }

    /// Results out of bounds, of all trials.
    pub(super) fn beyond(mut self) -> Vec<String> {
        let (lost, most) = (self.all_lost(), self.fault.may_lose());
        if let Some(most) = most.filter(|most| lost > *most) {
            self.beyond
                .push(format!("{}: {lost} queries lost (median), at most {most} are allowed", self.fault));
        }
        self.beyond
    }

    /// Median of the queries lost over both transports in one trial.
    fn all_lost(&self) -> usize {
        let mut both: Vec<_> = self.lost.iter().map(|[udp, tcp]| udp + tcp).collect();
        both.sort_unstable();
        both.get(both.len() / 2).copied().unwrap_or_default()
    }

    pub(super) const HEAD: &str = "| fault | UDP, a port for each query | UDP of one port | TCP, a connection for each query | \
         TCP, one connection | lost over UDP, TCP | answered by us after READY | lost then over UDP, TCP |\n\
         |---|---|---|---|---|---|---|---|";
}

impl Display for Figures {
    /// A row of the table: median and worst of each.
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let ms = |values: &mut dyn Iterator<Item = Duration>| {
            let (median, worst) = middle_and_worst(values.map(|value| value.as_millis()));
            format!("{median}, {worst} ms")
        };
        write!(out, "| {} |", self.fault)?;
        for way in Way::ALL {
            let of_these = self.dark.iter().filter(|(one, _)| *one == way);
            write!(out, " {} |", ms(&mut of_these.map(|(_, dark)| *dark)))?;
        }
        let counts = |lost: &[[usize; 2]]| {
            let [udp, tcp] = [0, 1].map(|over| middle_and_worst(lost.iter().map(|lost| lost[over] as u128)));
            format!("{}, {}; {}, {}", udp.0, udp.1, tcp.0, tcp.1)
        };
        let back = ms(&mut self.back.iter().copied());
        write!(out, " {} | {back} | {} |", counts(&self.lost), counts(&self.lost_at_return))
    }
}

fn middle_and_worst(values: impl Iterator<Item = u128>) -> (u128, u128) {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    let middle = values.get(values.len() / 2).copied().unwrap_or_default();
    (middle, values.last().copied().unwrap_or_default())
}

fn count_lost(queries: &[Query]) -> usize {
    queries.iter().filter(|query| query.responder.is_none()).count()
}

/// Longest time from a lost query to the first one answered after the last lost query of its group.
///
/// An answer ends a group, unless one worker of several is stuck: the others answer in between.
fn longest_dark(queries: &[Query], fault: Fault) -> Duration {
    let apart = if fault == Fault::WorkerHangs { APART } else { Duration::ZERO };
    let lost = queries.iter().enumerate().filter(|(_, query)| query.responder.is_none());
    let lost: Vec<(usize, Instant)> = lost.map(|(number, query)| (number, query.asked)).collect();
    let are_one = |(one, at): &(usize, Instant), (next, then): &(usize, Instant)| {
        next - one == 1 || *then - *at < apart
    };
    let dark = lost.chunk_by(are_one).map(|together| {
        let ((_, first), (last, _)) = (together[0], together[together.len() - 1]);
        let answered = queries[last..].iter().find(|query| query.responder.is_some());
        answered.or_else(|| queries.last()).map_or(Duration::ZERO, |next| next.asked - first)
    });
    dark.max().unwrap_or_default()
}

/// When the first query was sent from which on the server answers all.
fn ours_from(queries: &[Query]) -> Option<Instant> {
    let ours = queries.iter().rev().take_while(|query| query.responder == Some(US));
    ours.last().map(|query| query.asked)
}

/// Reported where neither the server nor the right upstream answered.
pub(super) const STRANGER: &str = "answers of a stranger";
/// Lost queries closer than this are due to one stuck worker.
const APART: Duration = Duration::from_millis(200);
/// Time within which the server must answer after READY.
const BACK: Duration = Duration::from_millis(300);

/// An outage lasts until the next answer, and losses far apart are two.
#[test]
fn outages_and_scattered_losses() {
    let began = tests::now();
    let queries = |rows: &[(u64, Option<&'static str>)]| -> Vec<Query> {
        let query = |(ms, responder): &(u64, Option<&'static str>)| Query {
            asked: began + Duration::from_millis(*ms),
            responder: *responder,
        };
        rows.iter().map(query).collect()
    };
    let (ours, none) = (Some(US), None);
    for (rows, ms, of_a_worker) in [
        (&[(0, ours), (16, ours)][..], 0, 0),
        (&[(0, ours), (16, none), (32, ours)], 16, 16),
        (&[(0, none), (16, ours), (32, none), (48, none), (64, ours)], 32, 64),
        (&[(0, none), (16, ours), (500, none), (540, ours)], 40, 40),
        (&[(0, ours), (16, none), (32, none)], 16, 16),
    ] {
        for (fault, ms) in [(Fault::Killed, ms), (Fault::WorkerHangs, of_a_worker)] {
            assert_eq!(longest_dark(&queries(rows), fault), Duration::from_millis(ms), "{fault}: {rows:?}");
        }
    }
    let back = queries(&[(0, ours), (16, Some("another")), (32, ours), (48, ours)]);
    assert_eq!(ours_from(&back), Some(back[2].asked));
    assert_eq!(ours_from(&queries(&[(0, ours), (16, none)])), None);
}
