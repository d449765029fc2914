//! Pages that take a moment to make: on a thread that serves nobody, once for all who ask within a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// What makes a page's text.
pub type Make = dyn Fn() -> Vec<u8> + Send + Sync;

/// One such page.
pub(super) struct MadePage {
    make: Arc<Make>,
    made: Mutex<Option<(Instant, Bytes)>>,
}

impl MadePage {
    pub(super) fn new(make: Box<Make>) -> Self {
        Self { make: make.into(), made: Mutex::default() }
    }

    /// As it was made [`FRESH`] ago, at the most; `None` where it cannot be made.
    pub(super) async fn bytes(&self) -> Option<Bytes> {
        // Requests that come while the page is made wait here, and get that same page.
        let mut made = self.made.lock().await;
        let now = clock::now();
        if let Some((_, page)) = made.as_ref().filter(|(at, _)| now.saturating_duration_since(*at) < FRESH) {
            return Some(page.clone());
        }
        let make = self.make.clone();
        // A panic while the page is made is a `None` here, and is not kept.
        let page: Bytes = spawn_blocking(move || make()).await.ok()?.into();
        *made = Some((now, page.clone()));
        Some(page)
    }
}

const FRESH: Duration = Duration::from_millis(250);
