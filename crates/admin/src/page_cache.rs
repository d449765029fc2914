//! Pages that are expensive to render: rendered on a blocking thread, and cached for 250 ms.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Renders a page.
pub type RenderFn = dyn Fn() -> Vec<u8> + Send + Sync;

/// A page, rendered at most once in [`FRESH`].
pub(super) struct CachedPage {
    render: Arc<RenderFn>,
    cached: Mutex<Option<(Instant, Bytes)>>,
}

impl CachedPage {
    pub(super) fn new(render: Box<RenderFn>) -> Self {
        Self { render: render.into(), cached: Mutex::default() }
    }

    /// The page, at most [`FRESH`] old; `None` if it cannot be rendered.
    pub(super) async fn bytes(&self) -> Option<Bytes> {
        // Requests that arrive while the page is rendered wait here, and get the same page.
        let mut cached = self.cached.lock().await;
        let now = clock::now();
        if let Some((_, page)) = cached.as_ref().filter(|(at, _)| now.saturating_duration_since(*at) < FRESH)
        {
            return Some(page.clone());
        }
        let render = self.render.clone();
        // A panic of the renderer is reported as `None`, and not cached.
        let page: Bytes = spawn_blocking(move || render()).await.ok()?.into();
        *cached = Some((now, page.clone()));
        Some(page)
    }
}

/// Maximum age of a cached page.
const FRESH: Duration = Duration::from_millis(250);
