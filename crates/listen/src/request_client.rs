//! A client whose connection carries several requests at a time (DNS over HTTPS and over QUIC),
//! answered as TCP clients are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client_quota::{ClientId, ClientQuota, client_number};
use encrypted::{Answer, End, Outcome};
use tokio::sync::{SemaphorePermit, oneshot};
use wire::Proto;

use super::buffers::BUFFERS;
use super::connection_state::{Activity, ConnectionState};
use super::query_source::{Handled, QuerySource};
use super::request_reply::{Account, HeldReply, RequestReply};
use super::waiter::Client;
use crate::receive_counts::ReceiveCounter;
use crate::response_counts::EndpointResponses;
use crate::server_state::ServerState;
use plugin::failure::Failure;

/// A connection's place among all connections.
pub(crate) struct Registered {
    running: Arc<ServerState>,
    shared: Arc<ConnectionState>,
}

impl Registered {
    pub(crate) fn new(running: Arc<ServerState>, shared: Arc<ConnectionState>) -> Self {
        Self { running, shared }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.close();
        self.running.connections.leave(&self.shared);
    }
}

/// The client of one connection.
pub(crate) struct RequestClient {
    source: QuerySource,
    shared: Arc<ConnectionState>,
    account: Arc<Account>,
    /// The places of requests, of all connections that share them.
    places: Arc<ClientQuota>,
    counted: Option<Counted>,
}

/// The counters of a client's connection.
struct Counted {
    /// Messages of clients to this endpoint.
    taken: Arc<ReceiveCounter>,
    responses: Arc<EndpointResponses>,
}

impl RequestClient {
    pub(crate) fn new(source: QuerySource, shared: Arc<ConnectionState>, places: Arc<ClientQuota>) -> Self {
        let running = &source.running;
        // A probe of our own is checked by its answer, so it is not counted.
        let counted = (!shared.is_own()).then(|| Counted {
            taken: running.taken.socket(source.endpoint, running.workers()),
            responses: running.responses.of(source.endpoint),
        });
        let account = Account::new(running.connections.clone(), shared.clone());
        Self { source, shared, account, places, counted }
    }

    /// Serves a message: its result, or the receiver of a worker's reply.
    fn serve(
        &self,
        message: &[u8],
        whole: bool,
    ) -> Result<Answer<HeldReply>, Option<oneshot::Receiver<HeldReply>>> {
        let source = &self.source;
        let mut later = None;
        let cell = std::cell::RefCell::new(&mut later);
        BUFFERS
            .with_borrow_mut(|scratch| {
                let client = || {
                    let (reply, receiver) =
                        RequestReply::new(&self.account, source.peer, source.local, source.proto);
                    **cell.borrow_mut() = Some(receiver);
                    Client::Request(Box::new(reply))
                };
                let out = &mut scratch.reply;
                let handled = source.serve(message, whole, clock::now(), out, client, |streaming| {
                    // A zone has no place in one message.
                    Err((streaming, Failure::NotTaken))
                });
                match handled {
                    Handled::Reply => Ok(self.account.hold(out).map_or(Answer::Gone, Answer::Reply)),
                    Handled::Silence => Ok(Answer::Silence),
                    // Over QUIC an error is the matter of its stream alone.
                    Handled::Refused if source.proto == Proto::Quic => {
                        Ok(self.account.hold(out).map_or(Answer::Gone, Answer::Reply))
                    }
                    Handled::Refused | Handled::NoQuery => Ok(Answer::Malformed),
                    Handled::Gone => {
                        // Else each request would be refused until the client leaves.
                        self.shared.end();
                        Ok(Answer::Gone)
                    }
                    Handled::Transfer => Ok(Answer::Gone),
                    Handled::Posted => Err(()),
                }
            })
            .map_err(|()| later)
    }
}

impl encrypted::Client for RequestClient {
    type Reply = HeldReply;
    type Place = RequestPlace;

    fn place(&self) -> Option<RequestPlace> {
        RequestPlace::take(&self.places, self.source.peer)
    }

    async fn query(&self, message: &[u8], whole: bool) -> Answer<HeldReply> {
        if let Some(counted) = &self.counted {
            counted.taken.note_shared();
        }
        let later = match self.serve(message, whole) {
            Ok(answer) => return answer,
            Err(later) => later,
        };
        let Some(later) = later else { return Answer::Silence };
        // Without a reply, the evaluation was dropped.
        later.await.map_or(Answer::Silence, Answer::Reply)
    }

    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.next_turn().await
    }

    fn spend(&self, work: Duration) -> bool {
        self.shared.spend(work)
    }

    fn set_activity(&self, activity: encrypted::Activity, since: Instant) {
        let state = match activity {
            encrypted::Activity::Answer => Activity::Busy,
            encrypted::Activity::Request => Activity::Idle,
            encrypted::Activity::Handshake | encrypted::Activity::Message => Activity::HalfSent,
            encrypted::Activity::Reader => Activity::Unread,
        };
        self.shared.set_state(state, self.source.running.since_start_ms(since));
    }

    fn count(&self, outcome: Outcome) {
        if let Some(counted) = &self.counted {
            counted.responses.count(outcome);
        }
    }

    fn end(&self) -> Option<End> {
        match (self.shared.is_cut(), self.shared.ends()) {
            (true, _) => Some(End::Now),
            (false, true) => Some(End::WhenAnswered),
            (false, false) => None,
        }
    }

    async fn woken(&self) {
        self.shared.woken().await;
    }
}

/// A request's place among those of all connections, released on drop.
pub(crate) struct RequestPlace {
    of: Arc<ClientQuota>,
    client: ClientId,
}

impl RequestPlace {
    /// Takes a place; `None` if the client may have no more.
    fn take(of: &Arc<ClientQuota>, peer: SocketAddr) -> Option<Self> {
        let client = ClientId::of(client_number(peer.ip()));
        of.acquire(client).then(|| Self { of: of.clone(), client })
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.of.release(self.client);
    }
}

/// How long a query may take: as long as forwarding and the wait to be evaluated may.
pub(crate) const ANSWER: Duration = Duration::from_secs(7);
