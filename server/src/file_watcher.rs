//! The thread that checks files: hosts tables and lists of upstreams, without waiting for a file
//! that hangs. It also sweeps the cache, and checks again which upstreams are this server itself
//! when addresses change.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use clock::throttle;
use listen::ServerState;
use plugins::forward::Ourselves;
use tokio::runtime::Handle;

/// Starts the thread; it ends with the server.
///
/// # Errors
/// If the kernel refuses a thread.
pub(crate) fn spawn(running: &Arc<ServerState>, handle: &Handle) -> io::Result<()> {
    let running = Arc::downgrade(running);
    let addresses_changed = Arc::new(AtomicBool::new(false));
    let changed = addresses_changed.clone();
    let thread = thread::Builder::new()
        .name("files".to_owned())
        .spawn(move || throttle::with_rests(|| watch(&running, &changed)))?;
    handle.spawn(node::watch_addresses(move || {
        addresses_changed.store(true, Ordering::Release);
        thread.thread().unpark();
    }));
    Ok(())
}

fn watch(running: &Weak<ServerState>, addresses_changed: &AtomicBool) {
    // The configuration of the last check of upstreams for loops.
    let mut judged = Weak::new();
    while let Some(running) = running.upgrade() {
        let now = clock::now();
        let logger = &running.logger;
        let mut next = now + SWEEP_INTERVAL;
        let (shared, configuration) = (&running.shared, running.configuration.load_full());
        let ourselves: Ourselves<'_> =
            &|stanza, upstreams| configuration::looping(&configuration, stanza, upstreams);
        for kept in shared.lasting.all() {
            if let Some(look) = kept.look(now, logger) {
                next = next.min(look);
            }
        }
        let looked = shared.followed.look(shared.forward(), ourselves, now, Duration::ZERO, logger);
        next = looked.next.map_or(next, |look| next.min(look));
        let is_other = !Weak::ptr_eq(&judged, &Arc::downgrade(&configuration));
        if addresses_changed.swap(false, Ordering::AcqRel) || is_other || looked.changed {
            configuration::recheck(&configuration, logger);
            judged = Arc::downgrade(&configuration);
        }
        shared.cache.sweep(now, SWEEP_BUDGET);
        for block in &configuration.blocks {
            block.envelope.catch_up(now);
        }
        drop((configuration, running));
        thread::sleep(SHORTEST_REST);
        thread::park_timeout(next.saturating_duration_since(clock::now()));
    }
}

/// Minimum pause between rounds, so that a series of address changes is handled together.
const SHORTEST_REST: Duration = Duration::from_millis(20);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Cache entries checked in each sweep; at one sweep a second a million take a quarter of an hour.
const SWEEP_BUDGET: usize = 1000;
