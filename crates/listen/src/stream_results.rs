//! Delivers replies of upstreams over TCP and TLS to workers.

use std::sync::{Arc, OnceLock, Weak};

use forwarder::{Deliver, ExchangeError, ExchangeId};

use crate::server_state::ServerState;

/// Delivers results of exchanges from tokio's threads to the workers' inboxes.
pub struct StreamResults(OnceLock<Weak<ServerState>>);

impl StreamResults {
    /// Creates a value that drops results until [`Self::serves`] is called.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(OnceLock::new()))
    }

    /// Delivers to the workers of this server from now on.
    pub fn serves(&self, running: &Arc<ServerState>) {
        let _ = self.0.set(Arc::downgrade(running));
    }
}

impl Deliver for StreamResults {
    fn deliver(&self, worker: usize, id: ExchangeId, result: Result<Vec<u8>, ExchangeError>) {
        let running = self.0.get().and_then(Weak::upgrade);
        if let Some(inbox) = running.as_ref().and_then(|running| running.inboxes.get(worker)) {
            inbox.exchanged(id, result);
        }
    }
}
