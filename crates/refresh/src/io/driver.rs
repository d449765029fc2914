//! The rounds of one hosts file: wait, look up, apply the outcomes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use stub_resolver::{LookupOutcome, Question, Resolver};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout_at};

use super::{RefreshedFile, Server, Via, upstreams};
use clock::throttle;

/// Refreshes the names of a file until the server ends or the file is no longer refreshed.
pub(super) async fn run<S: Server>(kept: Arc<RefreshedFile>, running: Weak<S>) {
    let mut warned: Option<String> = None;
    // With its connections, while rounds follow each other closely.
    let mut resolver: Option<Arc<Resolver>> = None;
    loop {
        let wait = kept.next(clock::now());
        if wait > IDLE {
            resolver = None;
        }
        tokio::select! {
            () = sleep(wait) => {}
            () = kept.woken.notified() => {}
        }
        let Some(server) = running.upgrade() else { return };
        let began = clock::now();
        let (questions, via, publish) = kept.begin(began);
        let mut is_unreadable = false;
        let asked = if questions.is_empty() {
            Vec::new()
        } else {
            let of_server = server.upstreams();
            let find = move || {
                let servers = upstreams::servers(&via.servers, &of_server);
                Via { servers, tls: via.tls }.load()
            };
            // The list of servers and certificates may be on a disk that hangs. The task fails only if the runtime ends.
            let found = tokio::task::spawn_blocking(find).await.unwrap_or_else(|_| Ok(Vec::new()));
            let file = kept.file.display();
            let without = match &found {
                Err(error) => {
                    let how = match resolver {
                        Some(_) => "refreshed with the certificates read before",
                        None => "not refreshed",
                    };
                    Some(format!("the names of {file} are {how}: {error}; {}", error.remedy()))
                }
                Ok(servers) if servers.is_empty() => Some(format!(
                    "there is no server to refresh the names of {file} with, other than this one: name one with refresh_via"
                )),
                Ok(_) => None,
            };
            if let Some(message) = without.as_ref().filter(|message| warned.as_ref() != Some(message)) {
                server.logger().warning(Some("hosts"), message);
            }
            warned = without;
            is_unreadable = found.is_err();
            found.unwrap_or_default()
        };
        drop(server);
        let resolver = match &mut resolver {
            // While a certificate file cannot be read, the last settings serve.
            Some(resolver) if is_unreadable || resolver.asks(&asked) || questions.is_empty() => {
                resolver.clone()
            }
            resolver => resolver.insert(Arc::new(Resolver::new(&asked))).clone(),
        };
        let (sender, outcomes) = mpsc::unbounded_channel();
        let asking = ask(&questions, &resolver, move |outcome| drop(sender.send(outcome)));
        let ((), (answered, failed)) = tokio::join!(asking, take(&kept, &running, began, outcomes));
        drop(resolver);
        let (kept_too, running_too) = (kept.clone(), running.clone());
        blocking(move || {
            let Some(server) = running_too.upgrade() else { return };
            kept_too.expire(&*server);
            if publish {
                kept_too.publish_again(&*server);
            }
            if !questions.is_empty() {
                kept_too.over(began, answered, failed, asked, server.logger());
            }
        })
        .await;
    }
}

/// Applies outcomes as they arrive, those within 300 ms together, so that answers are served and written while other servers are silent.
/// Returns the number of names and families with a good answer, and without.
async fn take(
    kept: &Arc<RefreshedFile>,
    running: &Weak<impl Server>,
    began: Instant,
    mut outcomes: mpsc::UnboundedReceiver<(Question, LookupOutcome)>,
) -> (usize, usize) {
    let (mut answered, mut failed) = (0, 0);
    let draw = rand::random();
    while let Some(first) = outcomes.recv().await {
        let mut part = vec![first];
        let end = tokio::time::Instant::now() + TOGETHER;
        while let Ok(Some(outcome)) = timeout_at(end, outcomes.recv()).await {
            part.push(outcome);
        }
        let (kept, running) = (kept.clone(), running.clone());
        let took = blocking(move || kept.finish(began, part, draw, &running)).await;
        let (more_answered, more_failed) = took.unwrap_or_default();
        answered += more_answered;
        failed += more_failed;
    }
    (answered, failed)
}

/// Runs work that may wait for a disk on a blocking thread. `None` only if the runtime ends.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(|| throttle::with_rests(work)).await.ok()
}

pub(super) async fn ask(
    questions: &[Question],
    resolver: &Arc<Resolver>,
    on_result: impl FnMut((Question, LookupOutcome)),
) {
    resolver.round_with(questions, ROUND, on_result).await;
}

impl RefreshedFile {
    /// The time until the next lookup is due.
    fn next(&self, now: Instant) -> Duration {
        let state = self.state();
        let next = state.names.due().into_iter().chain(state.publish_again).min();
        next.map_or(Duration::from_secs(3600), |next| next.saturating_duration_since(now)).max(LEAST_WAIT)
    }

    /// The questions that are due, the Corefile's servers, and whether to retry writing the file.
    pub fn begin(&self, now: Instant) -> (Vec<Question>, Via, bool) {
        let mut state = self.state();
        let publish = state.publish_again.is_some_and(|again| again <= now);
        (state.names.begin(now), state.plan.via.clone(), publish)
    }
}

/// Maximum duration of a round, all tries on all servers included; the rest of 15 s is for tables and the disk.
const ROUND: Duration = Duration::from_secs(14);
/// Outcomes within this time are written together: usually all.
const TOGETHER: Duration = Duration::from_millis(300);
/// Connections are kept until the next round if that is due within this time.
const IDLE: Duration = Duration::from_secs(30);
/// Minimum pause, so that the loop does not spin.
const LEAST_WAIT: Duration = Duration::from_millis(10);
