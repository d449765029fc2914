//! The one thread that looks at files: hosts tables, lists of upstreams; and sweeps the cache in between.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock;
use crate::pace;
use crate::running::Running;

/// Starts the thread; it ends with the server.
///
/// # Errors
/// What the kernel says to one more thread.
pub(crate) fn spawn(running: &Arc<Running>) -> io::Result<()> {
    let running = Arc::downgrade(running);
    thread::Builder::new()
        .name("files".to_owned())
        .spawn(move || pace::with_rests(|| watch(&running)))
        .map(drop)
}

fn watch(running: &Weak<Running>) {
    let mut next_follow: Option<Instant> = None;
    while let Some(running) = running.upgrade() {
        let now = clock::now();
        let logger = &running.logger;
        let mut next = now + SWEEP_INTERVAL;
        for table in running.shared.hosts.all() {
            if let Some(look) = table.look(now, logger) {
                next = next.min(look);
            }
        }
        if next_follow.is_none_or(|due| due <= now) {
            next_follow =
                running.shared.followed.look(&running.shared, &running.house.load_full(), now, logger);
        }
        running.shared.cache.sweep(now, SWEEP_BUDGET);
        for block in &running.house.load().blocks {
            if let Some(errors) = &block.errors {
                errors.flush(now);
            }
        }
        drop(running);
        thread::sleep(next.saturating_duration_since(clock::now()).max(Duration::from_millis(20)));
    }
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Entries looked at in one go; a million take a quarter of an hour.
const SWEEP_BUDGET: usize = 1000;
