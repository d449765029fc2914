//! The one thread that looks at files: hosts tables, lists of upstreams; and sweeps the cache in between. It waits for none:
//! one that hangs keeps it from no other.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use clock::pace;
use listen::Running;
use plugins::forward::LeadsBack;

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
    while let Some(running) = running.upgrade() {
        let now = clock::now();
        let logger = &running.logger;
        let mut next = now + SWEEP_INTERVAL;
        let (shared, configuration) = (&running.shared, running.configuration.load_full());
        let leads_back: LeadsBack<'_> =
            &|group, upstreams| configuration::back_to(&configuration, group, upstreams);
        for kept in shared.lasting.all() {
            if let Some(look) = kept.look(now, logger) {
                next = next.min(look);
            }
        }
        if let Some(look) = shared.followed.look(shared.forward(), leads_back, now, Duration::ZERO, logger) {
            next = next.min(look);
        }
        shared.cache.sweep(now, SWEEP_BUDGET);
        for block in &configuration.blocks {
            block.envelope.catch_up(now);
        }
        drop((configuration, running));
        thread::sleep(next.saturating_duration_since(clock::now()).max(Duration::from_millis(20)));
    }
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Entries looked at in one go; a million take a quarter of an hour.
const SWEEP_BUDGET: usize = 1000;
