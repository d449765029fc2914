//! The interface between a connection and the server that answers its messages.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::SemaphorePermit;

use crate::outcome::Outcome;

/// The client of one connection, as the server sees it. The connection's tasks share it.
pub trait Client: Send + Sync + 'static {
    /// The bytes of a reply. They count against the server's limit until the value is dropped.
    type Reply: AsRef<[u8]> + Send + 'static;
    /// A place among the requests of all connections, held until the reply is sent.
    type Place: Send + 'static;

    /// Returns a place for one more request; `None` if the client may have no more.
    fn place(&self) -> Option<Self::Place>;

    /// Answers one message. If `whole` is false, the message is longer than `message`, its first
    /// [`MESSAGE_BYTES`].
    fn query(&self, message: &[u8], whole: bool) -> impl Future<Output = Answer<Self::Reply>> + Send;

    /// Waits for a turn of the client's address to use the CPU.
    fn turn(&self) -> impl Future<Output = Option<SemaphorePermit<'_>>> + Send;

    /// Counts the time of a turn; true if everything else that is ready must have a turn first.
    fn spend(&self, work: Duration) -> bool;

    /// Sets what the connection waits for, and since when.
    fn set_activity(&self, activity: Activity, since: Instant);

    /// Counts the end of a request.
    fn count(&self, outcome: Outcome);

    /// Returns how the connection must end; `None` while it may go on.
    fn end(&self) -> Option<End>;

    /// Waits until [`Self::end`] may return something else.
    fn woken(&self) -> impl Future<Output = ()> + Send;
}

/// The result of a message.
#[derive(Debug)]
pub enum Answer<R> {
    /// The reply.
    Reply(R),
    /// The server sends no reply, as for a query that `acl` drops.
    Silence,
    /// The bytes are no query that any server block could answer.
    Malformed,
    /// This connection's listener is not served any more.
    Gone,
}

/// The event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// The answer to a query.
    Answer,
    /// The client's next request.
    Request,
    /// The rest of a handshake.
    Handshake,
    /// The rest of a request's message.
    Message,
    /// The client's reading of replies.
    Reader,
}

/// How a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// At once, without the replies that are not sent yet.
    Now,
    /// Once the requests received so far are answered.
    WhenAnswered,
}

/// Bytes of a message that are read; the rest is discarded.
pub const MESSAGE_BYTES: usize = 4096;
