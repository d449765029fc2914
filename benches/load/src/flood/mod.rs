//! Load: threads with sockets that send queries, match replies and judge them.
//!
//! Closed loop: each lane keeps a fixed number of queries outstanding. Open loop: queries are due
//! at a fixed rate, and latency counts from the due time, not from the send, so that the latency of
//! a stalled server includes every query that it delayed (no coordinated omission).

mod drive;
mod lane;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clock::Clock;
use crate::counts::{RunCounts, Window};
use crate::workload::Workload;

/// A load: transport, rate and duration.
#[derive(Clone, Debug)]
pub struct FloodPlan {
    /// Target addresses, assigned to lanes round robin.
    pub targets: Vec<SocketAddr>,
    /// Transport of the queries.
    pub transport: Transport,
    /// Sockets or connections of each thread. 1 to 1,024.
    pub lanes: usize,
    /// When the next query is sent.
    pub pace: Pace,
    /// The cores of the load, with one thread pinned to each. If empty, one thread that is not
    /// pinned.
    pub cores: Vec<usize>,
    /// Duration of the load before the window.
    pub warmup: Duration,
    /// Duration of the window that is counted. At most an hour together with the warm-up.
    pub window: Duration,
    /// A query without a reply for this time is lost. At most a minute.
    pub patience: Duration,
    /// Maximum number of queries of all threads, warm-up included; the load ends when they are
    /// answered or lost.
    pub queries_max: u64,
    /// Poll for replies without sleeping: exact times, for a core without other work.
    pub spin: bool,
}

/// Transport of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// Connections, each with many queries outstanding (RFC 7766, section 6.2.1.1).
    Tcp,
}

/// When the next query is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as fewer than this number are outstanding on its lane. 1 to 32,768.
    Closed(usize),
    /// At this rate a second, over all threads. 1 to 20,000,000.
    Open(u64),
}

/// The two times at which the caller may take readings of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The window begins.
    Begin,
    /// The window ends.
    End,
}

impl FloodPlan {
    /// Returns the plan of a closed loop: 4 sockets with 64 outstanding queries each, 1 s of
    /// warm-up, 5 s of window and 1 s of patience.
    pub fn closed(targets: Vec<SocketAddr>, cores: Vec<usize>) -> Self {
        Self {
            targets,
            transport: Transport::Udp,
            lanes: 4,
            pace: Pace::Closed(64),
            cores,
            warmup: Duration::from_secs(1),
            window: Duration::from_secs(5),
            patience: Duration::from_secs(1),
            queries_max: 1_000_000_000,
            spin: false,
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.targets.is_empty(), "no target");
        ensure!((1..=1024).contains(&self.lanes), "1 to 1024 lanes");
        ensure!(self.warmup + self.window <= Duration::from_secs(3600), "at most an hour");
        ensure!(self.patience <= Duration::from_secs(60), "at most a minute of patience");
        match self.pace {
            Pace::Closed(outstanding) => {
                ensure!((1..=1 << 15).contains(&outstanding), "1 to 32768 outstanding")
            }
            Pace::Open(rate) => ensure!((1..=20_000_000).contains(&rate), "1 to 20000000 a second"),
        }
        Ok(())
    }
}

/// Runs a load to its end. `at_edge` is called in the calling thread when the window begins and ends.
///
/// # Errors
/// A plan out of bounds, an address that cannot be reached, a core that does not exist.
pub fn run(
    plan: &FloodPlan,
    workload: &Workload,
    mut at_edge: impl FnMut(Edge),
) -> Result<(RunCounts, Window)> {
    plan.check()?;
    let threads = plan.cores.len().max(1);
    let clock = Clock::start();
    let begin = SETUP.as_nanos() as u64;
    let from_ns = begin + plan.warmup.as_nanos() as u64;
    let window = Window { from_ns, until_ns: from_ns + plan.window.as_nanos() as u64 };
    let mut sum = RunCounts::default();
    std::thread::scope(|scope| -> Result<()> {
        let drivers: Vec<_> = (0..threads)
            .map(|thread| {
                let share = workload.share(thread, threads);
                scope.spawn(move || {
                    if let Some(&core) = plan.cores.get(thread) {
                        sockets::pin_to_core(core).with_context(|| format!("core {core}"))?;
                    }
                    // With a short time slice this thread preempts others on its core when it
                    // wakes, so that it sends on time. Kernels before 6.12 ignore it.
                    let _ = sockets::set_time_slice(SLICE);
                    drive::drive(plan, share, thread, clock, begin, window)
                })
            })
            .collect();
        for (edge, at_ns) in [(Edge::Begin, window.from_ns), (Edge::End, window.until_ns)] {
            // A load that has sent its maximum number of queries, or has failed, ends early.
            while clock.now_ns() < at_ns && !drivers.iter().all(|driver| driver.is_finished()) {
                clock.sleep_until(at_ns.min(clock.now_ns() + LOOK_FOR_END.as_nanos() as u64));
            }
            at_edge(edge);
        }
        for driver in drivers {
            sum.merge(&driver.join().expect("the load does not panic")?);
        }
        Ok(())
    })?;
    Ok((sum, window))
}

/// Time for all threads to start and connect, after which all begin together.
pub const SETUP: Duration = Duration::from_millis(50);
const LOOK_FOR_END: Duration = Duration::from_millis(20);
const SLICE: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_out_of_bounds_is_refused() {
        let good = FloodPlan::closed(vec![SocketAddr::from(([127, 0, 0, 1], 53))], vec![]);
        assert!(good.check().is_ok());
        let changes: [fn(&mut FloodPlan); 7] = [
            |plan| plan.targets.clear(),
            |plan| plan.lanes = 0,
            |plan| plan.pace = Pace::Closed(0),
            |plan| plan.pace = Pace::Closed(40_000),
            |plan| plan.pace = Pace::Open(0),
            |plan| plan.window = Duration::from_secs(4000),
            |plan| plan.patience = Duration::from_secs(61),
        ];
        for change in changes {
            let mut plan = good.clone();
            change(&mut plan);
            assert!(plan.check().is_err(), "{plan:?}");
        }
    }
}
