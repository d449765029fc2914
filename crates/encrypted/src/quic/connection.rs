//! One connection: a query on each stream, answered as answers are ready.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use super::message::{self, NoMessage};
use crate::client::{Answer, Client, End};
use crate::fair::fairly;
use crate::https::Limits;
use crate::outcome::Outcome;
use crate::progress::Progress;

/// Serves a connection until it ends, is idle for too long, or the server ends it, as when its
/// listener has been dropped, and with it the sender of `accepts`.
pub(super) async fn serve<C: Client>(
    connection: Connection,
    limits: Limits,
    client: Arc<C>,
    accepts: watch::Receiver<()>,
) {
    if let Some(code) = run(&connection, limits, client, accepts).await {
        connection.close(code, b"");
        // quinn sends the close in a task of its own.
        tokio::time::sleep(LEAVING).await;
    }
}

/// Serves a connection, and returns the error code to close it with; `None` if it is closed.
async fn run<C: Client>(
    connection: &Connection,
    limits: Limits,
    client: Arc<C>,
    mut accepts: watch::Receiver<()>,
) -> Option<VarInt> {
    let progress = Progress::new(client.clone());
    let mut streams = JoinSet::new();
    let mut ends = false;
    loop {
        let now = clock::now();
        let idle = progress.idle();
        let (since, limit) = match idle {
            Some((since, false)) => (since, limits.read),
            Some((since, true)) => (since, limits.idle),
            None => (now, limits.idle),
        };
        match client.end() {
            Some(End::Now) => return Some(EXCESSIVE_LOAD),
            Some(End::WhenAnswered) => ends = true,
            None => {}
        }
        if idle.is_some() && (ends || now >= since + limit) {
            return Some(NO_ERROR);
        }
        let until: Instant = since + limit;
        tokio::select! {
            stream = connection.accept_bi(), if !ends => {
                let (send, receive) = stream.ok()?;
                let stream = Stream { send, receive, limits, client: client.clone() };
                let (connection, progress) = (connection.clone(), progress.clone());
                streams.spawn(async move {
                    let client = stream.client.clone();
                    let work = pin!(stream.serve(&connection, &progress));
                    fairly(&*client, work).await;
                });
            }
            _ = connection.closed(), if ends => return None,
            // Nothing is ever sent: an error is the end of the listener.
            Err(_) = accepts.changed(), if !ends => ends = true,
            Some(_) = streams.join_next() => {}
            () = client.woken() => {}
            () = sleep_until(until.into()) => {}
        }
    }
}

struct Stream<C> {
    send: SendStream,
    receive: RecvStream,
    limits: Limits,
    client: Arc<C>,
}

impl<C: Client> Stream<C> {
    /// Answers the query of the stream.
    async fn serve(mut self, connection: &Connection, progress: &Arc<Progress<C>>) {
        let Some(_place) = self.place().await else { return self.reset(EXCESSIVE_LOAD) };
        let mut open = progress.begin();
        let limits = self.limits;
        let (message, whole) = match timeout(limits.read, message::read(&mut self.receive)).await {
            Ok(Ok(message)) => message,
            Ok(Err(NoMessage::Gone)) => return,
            Ok(Err(NoMessage::Protocol)) => return self.break_off(connection),
            Err(_) => return self.fail(),
        };
        if message::is_forbidden(&message) {
            return self.break_off(connection);
        }
        open.received();
        let reply = match timeout(limits.answer, self.client.query(&message, whole)).await {
            Ok(Answer::Reply(reply)) => reply,
            Ok(Answer::Malformed) => return self.break_off(connection),
            Ok(Answer::Gone) => return connection.close(NO_ERROR, b""),
            Ok(Answer::Silence) | Err(_) => return self.fail(),
        };
        open.answered();
        let octets = reply.as_ref();
        let received = async {
            if self.write(octets).await {
                self.client.count(Outcome::NoError);
                // The reply counts as held until the client has acknowledged it.
                let _ = self.send.stopped().await;
            }
        };
        if timeout(limits.write, received).await.is_err() {
            return self.fail();
        }
        // A client must end its side of the stream with the query.
        match timeout(limits.read, message::end(&mut self.receive)).await {
            Ok(Ok(()) | Err(NoMessage::Gone)) => {}
            Ok(Err(NoMessage::Protocol)) | Err(_) => self.break_off(connection),
        }
    }

    /// Waits for a place among all queries, as long as for a query's first byte.
    async fn place(&self) -> Option<C::Place> {
        let until = clock::now() + self.limits.read;
        loop {
            if let Some(place) = self.client.place() {
                return Some(place);
            }
            if clock::now() >= until {
                return None;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Writes the reply; true once quinn has all of it.
    async fn write(&mut self, reply: &[u8]) -> bool {
        let Ok(length) = u16::try_from(reply.len()) else { return false };
        let written = async {
            self.send.write_all(&length.to_be_bytes()).await?;
            self.send.write_all(reply).await
        };
        written.await.is_ok() && self.send.finish().is_ok()
    }

    /// Resets the stream: the server cannot answer this query.
    fn fail(&mut self) {
        self.client.count(Outcome::InternalError);
        self.reset(INTERNAL_ERROR);
    }

    /// Closes the connection: the client broke the protocol.
    fn break_off(&self, connection: &Connection) {
        self.client.count(Outcome::ProtocolError);
        connection.close(PROTOCOL_ERROR, b"");
    }

    fn reset(&mut self, code: VarInt) {
        // The stream may have ended meanwhile.
        let _ = self.send.reset(code);
    }
}

/// Error codes (RFC 9250, section 8.4).
const NO_ERROR: VarInt = VarInt::from_u32(0);
const INTERNAL_ERROR: VarInt = VarInt::from_u32(1);
const PROTOCOL_ERROR: VarInt = VarInt::from_u32(2);
pub(super) const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(4);
/// How long a closed connection stays registered, so that its client learns of the close.
const LEAVING: Duration = Duration::from_millis(20);
/// How often a query looks for a place.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
