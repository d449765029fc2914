//! The kit's one clock, what the machine kept for itself, and waiting for a condition instead of for a time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Reads the clock: black-box tests measure real time.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    Instant::now()
}

/// For how long this machine's processors kept somebody waiting, all together, since this was asked first: others had
/// them, or the machine itself stood still.
///
/// A bound on the server's time holds on a machine that runs. Each processor has a thread that sleeps for 5 ms at a time and
/// sees how late it wakes; what is less than 2 ms is no news.
fn stalled() -> Duration {
    static WATCHES: OnceLock<(Instant, Vec<Watch>)> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let (start, watches) = WATCHES.get_or_init(|| {
        let ours = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        let processors = (0..CpuSet::count()).filter(|&processor| ours.is_set(processor).unwrap_or(false));
        (now(), processors.map(|processor| Watch { processor, ..Watch::default() }).collect())
    });
    STARTED.get_or_init(|| {
        for watch in watches {
            thread::spawn(move || watch.run(*start));
        }
    });
    let at = nanos(*start);
    Duration::from_nanos(watches.iter().map(|watch| watch.lost_ns.load(Relaxed) + watch.overdue(at)).sum())
}

/// Measures the server's time: what passes, less what the machine stood still.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    began: Instant,
    before: Duration,
}

impl Stopwatch {
    /// Begins.
    pub fn start() -> Self {
        Self { before: stalled(), began: now() }
    }

    /// All that passed.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// What passed, the machine's stalls left out.
    pub fn took(&self) -> Duration {
        let elapsed = self.elapsed();
        elapsed.saturating_sub(self.stalled())
    }

    /// For how long the machine stood still.
    pub fn stalled(&self) -> Duration {
        // Between two stores of a watch its last stall may count twice.
        stalled().saturating_sub(self.before)
    }
}

/// One processor's.
#[derive(Default)]
struct Watch {
    processor: usize,
    lost_ns: AtomicU64,
    /// When it woke last.
    woke_ns: AtomicU64,
}

impl Watch {
    fn run(&self, start: Instant) {
        let mut here = CpuSet::new();
        if here.set(self.processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &here)).is_err() {
            return;
        }
        self.woke_ns.store(nanos(start), Relaxed);
        loop {
            sleep(NAP);
            let at = nanos(start);
            self.lost_ns.fetch_add(self.overdue(at), Relaxed);
            self.woke_ns.store(at, Relaxed);
        }
    }

    /// How late it is, if it has not woken yet.
    fn overdue(&self, at: u64) -> u64 {
        let woke = self.woke_ns.load(Relaxed);
        let late = at.saturating_sub(woke).saturating_sub(NAP.as_nanos() as u64);
        if woke > 0 && late > NO_NEWS.as_nanos() as u64 { late } else { 0 }
    }
}

fn nanos(start: Instant) -> u64 {
    now().duration_since(start).as_nanos() as u64
}

const NAP: Duration = Duration::from_millis(5);
const NO_NEWS: Duration = Duration::from_millis(2);

/// Looks every 2 ms until `look` finds something, at most for `patience` and as long as the machine stood still meanwhile.
///
/// # Panics
/// When the time is over, naming `what` was awaited.
pub fn eventually<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let watch = Stopwatch::start();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            watch.elapsed() < patience + watch.stalled().min(patience),
            "not seen within {patience:?}: {what}"
        );
        sleep(Duration::from_millis(2));
    }
}
