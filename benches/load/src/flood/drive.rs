//! The loop of one load thread, which sends queries and receives replies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sockets::{BATCH, Epoll, Events, RecvBatch};

use super::lane::Lane;
use super::{FloodPlan, Pace};
use crate::burst::Burst;
use crate::clock::Clock;
use crate::counts::{RunCounts, Window};
use crate::judge::{judge, reply_id};
use crate::outstanding::Outstanding;
use crate::schedule::Schedule;
use crate::workload::{Asked, Workload};

/// Sends from `begin_ns` to the end of the window, then waits for outstanding replies.
pub(super) fn drive(
    plan: &FloodPlan,
    workload: Workload,
    thread: usize,
    clock: Clock,
    begin_ns: u64,
    window: Window,
) -> Result<RunCounts> {
    let mut driver = Driver::new(plan, workload, thread, begin_ns, window)?;
    clock.sleep_until(begin_ns);
    let patience_ns = plan.patience.as_nanos() as u64;
    let mut look_for_lost_ns = begin_ns + LOOK_FOR_LOST_NS;
    loop {
        let now_ns = clock.now_ns();
        // Queries due before the end are still sent if this thread is late, but only for a limited
        // time.
        let by_ns = now_ns.min(window.until_ns.saturating_sub(1));
        let over = now_ns > window.until_ns + patience_ns;
        let sending = driver.left > 0 && !over && (now_ns < window.until_ns || driver.is_behind(by_ns));
        if sending {
            driver.send(by_ns, now_ns);
        } else if over || driver.waiting() == 0 {
            break;
        }
        if now_ns >= look_for_lost_ns {
            look_for_lost_ns = now_ns + LOOK_FOR_LOST_NS;
            driver.expire(now_ns.saturating_sub(patience_ns));
        }
        if driver.receive(&clock)? == 0 && !plan.spin {
            let now_ns = clock.now_ns();
            let due_ns = if sending { driver.next_due_ns() } else { None };
            let until_ns = due_ns.unwrap_or(u64::MAX).min(look_for_lost_ns);
            if let Some(wait_ns) = until_ns.checked_sub(now_ns).filter(|wait_ns| *wait_ns > SHORTEST_WAIT_NS)
            {
                driver
                    .epoll
                    .wait(&mut driver.events, Some(Duration::from_nanos(wait_ns)))
                    .context("epoll")?;
            }
        }
    }
    driver.finish();
    Ok(driver.counts)
}

struct Driver {
    epoll: Epoll,
    events: Events,
    lanes: Vec<(Lane, Outstanding<Asked>)>,
    workload: Workload,
    pace: ThreadPace,
    window: Window,
    counts: RunCounts,
    received: RecvBatch,
    burst: Burst,
    /// The message ids in the burst, by position.
    ids: Vec<u16>,
    question: Vec<u8>,
    /// Queries that may still be sent.
    left: u64,
    /// Number of connections that may still be replaced.
    replacements_left: u32,
}

enum ThreadPace {
    Closed { outstanding: usize },
    Open { schedule: Schedule, issued: u64, lane: usize },
}

impl Driver {
    fn new(
        plan: &FloodPlan,
        workload: Workload,
        thread: usize,
        begin_ns: u64,
        window: Window,
    ) -> Result<Self> {
        let threads = plan.cores.len().max(1) as u64;
        let (pace, ids) = match plan.pace {
            Pace::Closed(outstanding) => {
                // Enough ids to recognise duplicates for long, few enough to stay in the
                // processor's cache.
                (ThreadPace::Closed { outstanding }, (outstanding * 64).next_power_of_two().max(1024))
            }
            Pace::Open(rate) => {
                let share = rate / threads + u64::from((thread as u64) < rate % threads);
                ensure!(share > 0, "{rate} queries a second are too few for {threads} threads");
                // Threads are offset, so that they do not send at the same times.
                let start_ns = begin_ns + 1_000_000_000 / rate * thread as u64;
                (ThreadPace::Open { schedule: Schedule::new(start_ns, share), issued: 0, lane: 0 }, 1 << 16)
            }
        };
        let epoll = Epoll::new().context("epoll")?;
        let lanes = (0..plan.lanes)
            .map(|lane| {
                // Threads with one lane each still reach every target.
                let target = plan.targets[(lane + thread) % plan.targets.len()];
                Ok((Lane::open(plan.transport, target, &epoll)?, Outstanding::new(ids)))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            epoll,
            events: Events::new(64),
            lanes,
            workload,
            pace,
            window,
            counts: RunCounts::default(),
            received: RecvBatch::new(BATCH, RECEIVE_BYTES),
            burst: Burst::default(),
            ids: Vec::with_capacity(BATCH),
            question: Vec::new(),
            left: plan.queries_max / threads + u64::from((thread as u64) < plan.queries_max % threads),
            replacements_left: MAX_REPLACEMENTS,
        })
    }

    /// Sends the queries due by `by_ns`, at most a batch for each lane.
    fn send(&mut self, by_ns: u64, now_ns: u64) {
        match self.pace {
            ThreadPace::Closed { outstanding } => {
                for lane in 0..self.lanes.len() {
                    let room = outstanding.saturating_sub(self.lanes[lane].1.waiting());
                    let count = room.min(BATCH).min(self.left as usize);
                    self.send_on(lane, count, now_ns, |_| now_ns);
                }
            }
            ThreadPace::Open { schedule, mut issued, mut lane } => {
                let due = schedule.due(by_ns).min(issued.saturating_add(self.left));
                for _ in 0..self.lanes.len() {
                    let count = due.saturating_sub(issued).min(BATCH as u64);
                    if count == 0 {
                        break;
                    }
                    self.send_on(lane, count as usize, now_ns, |index| schedule.at_ns(issued + index as u64));
                    issued += count;
                    lane = (lane + 1) % self.lanes.len();
                }
                self.pace = ThreadPace::Open { schedule, issued, lane };
            }
        }
    }

    fn send_on(&mut self, lane: usize, count: usize, now_ns: u64, due_ns: impl Fn(usize) -> u64) {
        let Self { lanes, workload, burst, ids, counts, window, .. } = self;
        let (lane, outstanding) = &mut lanes[lane];
        burst.clear();
        ids.clear();
        for index in 0..count {
            let asked = workload.draw();
            let due_ns = due_ns(index);
            let Some(id) = outstanding.begin(asked, due_ns) else {
                counts.unsent(*window, due_ns);
                continue;
            };
            burst.push(|out| workload.write_query(asked, id, out));
            ids.push(id);
            counts.sent(*window, due_ns, now_ns);
        }
        self.left -= count as u64;
        if burst.is_empty() {
            return;
        }
        let errors = lane.send(burst, |position| {
            if let Some(due_ns) = outstanding.cancel(ids[position]) {
                counts.take_back(*window, due_ns);
            }
        });
        counts.network_errors += errors;
    }

    /// Reads all available messages of every lane; returns their number.
    fn receive(&mut self, clock: &Clock) -> Result<usize> {
        let Self { lanes, received, workload, counts, window, question, .. } = self;
        let mut count = 0;
        let mut broken = false;
        for (lane, outstanding) in lanes {
            // The clock is read once for each batch, when the first message of the batch has just
            // been received.
            let mut now_ns = None;
            let outcome = lane.receive(received, |message| {
                let now_ns = *now_ns.get_or_insert_with(|| clock.now_ns());
                let Some(id) = reply_id(message) else {
                    counts.strays += 1;
                    return;
                };
                counts.reply(*window, now_ns, outstanding.settle(id), |asked| {
                    question.clear();
                    workload.write_question(asked, question);
                    judge(message, question, workload.expect(asked, question))
                });
            });
            match outcome {
                Ok(messages) => count += messages,
                Err(_) => {
                    counts.network_errors += 1;
                    broken = true;
                }
            }
        }
        if broken {
            self.replace_ended()?;
        }
        Ok(count)
    }

    fn replace_ended(&mut self) -> Result<()> {
        for (lane, outstanding) in &mut self.lanes {
            if lane.replace_ended(&self.epoll)? {
                let (counts, window) = (&mut self.counts, self.window);
                outstanding.expire(u64::MAX, |due_ns| counts.lost(window, due_ns));
                self.replacements_left = self.replacements_left.saturating_sub(1);
                ensure!(
                    self.replacements_left > 0,
                    "the server ends its connections: {MAX_REPLACEMENTS} were replaced"
                );
            }
        }
        Ok(())
    }

    fn expire(&mut self, before_ns: u64) {
        let (counts, window) = (&mut self.counts, self.window);
        for (_, outstanding) in &mut self.lanes {
            outstanding.expire(before_ns, |due_ns| counts.lost(window, due_ns));
        }
    }

    /// Counts outstanding queries as lost, and queries that were due but never sent as unsent.
    fn finish(&mut self) {
        self.expire(u64::MAX);
        if let ThreadPace::Open { schedule, issued, .. } = &self.pace {
            let due =
                schedule.due(self.window.until_ns.saturating_sub(1)).min(issued.saturating_add(self.left));
            self.counts.unsent += due.saturating_sub(*issued);
        }
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(|(_, outstanding)| outstanding.waiting()).sum()
    }

    /// Returns the time at which the next query may be sent, 0 for at once; `None` in a closed loop
    /// at its limit, until a reply arrives.
    fn next_due_ns(&self) -> Option<u64> {
        match &self.pace {
            ThreadPace::Closed { outstanding } => {
                self.lanes.iter().any(|(_, waiting)| waiting.waiting() < *outstanding).then_some(0)
            }
            ThreadPace::Open { schedule, issued, .. } => Some(schedule.at_ns(*issued)),
        }
    }

    /// Whether a query of an open loop that was due by then has not been sent.
    fn is_behind(&self, by_ns: u64) -> bool {
        match &self.pace {
            ThreadPace::Closed { .. } => false,
            ThreadPace::Open { schedule, issued, .. } => schedule.due(by_ns) > *issued,
        }
    }
}

/// Interval of scanning all ids of all lanes.
const LOOK_FOR_LOST_NS: u64 = 100_000_000;
/// Minimum wait: a shorter one would end late, since the kernel adds up to 50 us to every timer.
const SHORTEST_WAIT_NS: u64 = 60_000;
/// Size of a receive buffer; larger replies are truncated, and judged by their first bytes.
const RECEIVE_BYTES: usize = 4096;
const MAX_REPLACEMENTS: u32 = 10_000;
