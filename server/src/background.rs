//! Slow work of the main thread on other threads, one at a time: the slow part of a reload, a check
//! of the Corefile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use plugins::reload::ReloadSpec;
use rand::Rng as _;
use server::lifecycle::{PreparedReload, Server, StartError};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Runs work that may wait for disks and servers, one reload or one check of the Corefile at a
/// time, while the main thread handles signals.
pub(crate) struct Background {
    sender: mpsc::UnboundedSender<BackgroundResult>,
    done: mpsc::UnboundedReceiver<BackgroundResult>,
    busy: bool,
    /// The signal of the reload in progress, if any.
    pub(crate) signal: Option<&'static str>,
    /// The signal of a reload that was requested during another reload.
    pub(crate) again: Option<&'static str>,
    /// The result of the last check.
    pub(crate) last_seen: String,
    /// The time of the next check, and the `reload` settings that it follows from. Other events do
    /// not delay the check.
    pub(crate) next_look: Option<(ReloadSpec, Instant)>,
    /// Whether the Corefile is checked at least as often as `ALWAYS`, even without `reload`.
    always: bool,
}

/// The result of background work.
pub(crate) enum BackgroundResult {
    /// A configuration that can be served, or an error.
    Reload(Box<Result<PreparedReload, StartError>>),
    /// The hash of the Corefile, or its error.
    Look(String),
}

impl Background {
    pub(crate) fn new(always: bool) -> Self {
        let (sender, done) = mpsc::unbounded_channel();
        Self {
            sender,
            done,
            busy: false,
            signal: None,
            again: None,
            last_seen: String::new(),
            next_look: None,
            always,
        }
    }

    pub(crate) fn reload(&mut self, server: &mut Server, signal: Option<&'static str>) {
        if self.busy {
            self.again = signal.or(self.again);
            return;
        }
        self.signal = signal;
        let work = server.begin_reload(signal);
        if let Err(error) = self.spawn(move || BackgroundResult::Reload(Box::new(work()))) {
            server.finish_reload(Err(StartError::Machine(error)), signal);
        }
    }

    /// Starts the reload that was requested during the last one, if any.
    pub(crate) fn reloaded(&mut self, server: &mut Server) {
        if let Some(signal) = self.again.take() {
            self.reload(server, Some(signal));
        }
    }

    /// Postpones a reload until the end of a handover.
    pub(crate) fn defer(&mut self, signal: Option<&'static str>) {
        self.again = signal.or(self.again);
        self.last_seen.clear();
    }

    pub(crate) fn look(&mut self, server: &Server) {
        if !self.busy {
            let work = server.look();
            // If no thread can be started now, the next check may succeed.
            let _ = self.spawn(move || BackgroundResult::Look(work()));
        }
    }

    /// Returns the time of the next check of the Corefile, if any.
    pub(crate) fn look_at(&mut self, reload: Option<ReloadSpec>) -> Option<Instant> {
        let always = self.always.then_some(ALWAYS);
        let reload = reload.into_iter().chain(always).min_by_key(|one| one.interval)?;
        if let Some((of, at)) = self.next_look
            && of == reload
        {
            return Some(at);
        }
        let jitter = reload.jitter.mul_f64(rand::rng().random_range(-1.0..=1.0_f64).abs());
        let at = Instant::now() + reload.interval + jitter;
        self.next_look = Some((reload, at));
        Some(at)
    }

    fn spawn(&mut self, work: impl FnOnce() -> BackgroundResult + Send + 'static) -> std::io::Result<()> {
        let sender = self.sender.clone();
        let thread = std::thread::Builder::new().name("reload".to_owned());
        thread.spawn(move || {
            let panicked = |_| {
                BackgroundResult::Reload(Box::new(Err(StartError::Machine(std::io::Error::other("a panic")))))
            };
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked);
            // Sending fails only when the process ends.
            let _ = sender.send(done);
        })?;
        self.busy = true;
        Ok(())
    }

    /// Waits for the next result; forever if no work runs.
    pub(crate) async fn next(&mut self) -> BackgroundResult {
        match self.done.recv().await {
            Some(done) => {
                self.busy = false;
                done
            }
            None => std::future::pending().await,
        }
    }
}

/// Interval at which node-cache checks its ConfigMap.
const ALWAYS: ReloadSpec = ReloadSpec { interval: Duration::from_secs(10), jitter: Duration::from_secs(5) };

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the intervals of `reload` and `-reloadwithsignal`, the shorter one applies.
    #[test]
    fn more_frequent_check_wins() {
        let of = |seconds| {
            let (interval, jitter) = (Duration::from_secs(seconds), Duration::ZERO);
            ReloadSpec { interval, jitter }
        };
        for (always, reload, expected) in [
            (false, None, None),
            (true, None, Some(10..=15)),
            (false, Some(of(30)), Some(30..=30)),
            (true, Some(of(30)), Some(10..=15)),
            (true, Some(of(2)), Some(2..=2)),
        ] {
            let began = Instant::now();
            let at = Background::new(always).look_at(reload);
            assert_eq!(at.is_some(), expected.is_some(), "{always} {reload:?}");
            if let (Some(at), Some(expected)) = (at, expected) {
                let waits = at.duration_since(began).as_secs();
                assert!(expected.contains(&waits), "{always} {reload:?}: {waits}");
            }
        }
    }
}
