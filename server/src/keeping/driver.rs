//! The rounds of one hosts file: wait, ask, take what came of it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use refresh::{LookupError, Outcome, Question, Resolver};
use tokio::time::sleep;

use super::{Kept, servers};
use crate::clock;
use crate::pace;
use crate::running::Running;

/// Refreshes until the server ends, or nobody wants it any more.
pub(super) async fn run(kept: Arc<Kept>, running: Weak<Running>) {
    let mut warned = false;
    loop {
        let wait = kept.next(clock::now());
        tokio::select! {
            () = sleep(wait) => {}
            () = kept.woken.notified() => {}
        }
        let Some(server) = running.upgrade() else { return };
        let began = clock::now();
        let (questions, via, publish) = kept.begin(began);
        let asked = if questions.is_empty() {
            Vec::new()
        } else {
            servers::servers(&via, Some(&server.house.load()))
        };
        if !questions.is_empty() {
            if asked.is_empty() && !warned {
                let file = kept.file.display();
                let message = format!(
                    "there is no server to refresh the names of {file} with, other than this one: name one with refresh_via"
                );
                server.logger.warning(Some("hosts"), &message);
            }
            warned = asked.is_empty();
        }
        drop(server);
        let outcomes = ask(&questions, &asked).await;
        let (kept_too, running_too) = (kept.clone(), running.clone());
        let draw = rand::random();
        // The disk may take its time; the runtime's threads have clients to serve.
        let work = move || {
            if let Some(server) = running_too.upgrade() {
                kept_too.expire(&server);
                if publish {
                    kept_too.publish_again(&server);
                }
            }
            if !questions.is_empty() {
                kept_too.state().servers = asked;
                kept_too.finish(began, outcomes, draw, &running_too);
            }
        };
        // It fails only where the runtime ends.
        let _ = tokio::task::spawn_blocking(|| pace::with_rests(work)).await;
    }
}

pub(super) async fn ask(
    questions: &[Question],
    servers: &[std::net::SocketAddr],
) -> Vec<(Question, Outcome)> {
    if servers.is_empty() {
        return questions.iter().map(|&q| (q, Outcome::Failed(LookupError::NoServer))).collect();
    }
    Arc::new(Resolver::new(servers)).round(questions, ROUND).await
}

impl Kept {
    /// How long nothing is due.
    fn next(&self, now: Instant) -> Duration {
        let state = self.state();
        let next = state.keeper.due().into_iter().chain(state.publish_again).min();
        next.map_or(Duration::from_secs(3600), |next| next.saturating_duration_since(now)).max(LEAST_WAIT)
    }

    /// What to ask now, whom the Corefile names, and whether the file is to be tried again.
    fn begin(&self, now: Instant) -> (Vec<Question>, Vec<std::net::SocketAddr>, bool) {
        let mut state = self.state();
        let publish = state.publish_again.is_some_and(|again| again <= now);
        (state.keeper.begin(now), state.plan.via.clone(), publish)
    }
}

/// A round takes no longer, all tries on all servers included; what remains of 15 s is for tables and the disk.
const ROUND: Duration = Duration::from_secs(14);
/// Whatever is due, the loop does not spin.
const LEAST_WAIT: Duration = Duration::from_millis(10);
