//! A netlink socket that is closed before the process's other descriptors when the process is
//! killed.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::time::Instant;

use super::NftError;
use super::batch::{Batch, Socket, refused};
use super::ruleset_dump::Contents;

/// A [`Socket`] on a thread that shares no file descriptors with other threads. The kernel frees
/// the memory of a killed process, which takes some milliseconds, before it closes the descriptors
/// that threads share. Until then, a lease table owned by a shared socket would keep queries at our
/// sockets, which no thread reads any more.
pub(crate) struct OwnerSocket {
    port: u32,
    /// `None` only during drop.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

type Job = Box<dyn FnOnce(&mut Socket) + Send>;

impl OwnerSocket {
    pub(crate) fn open() -> Result<Self, NftError> {
        let (jobs, wanted) = mpsc::channel::<Job>();
        let (opened, is_open) = mpsc::channel();
        let thread = sockets::spawn_with_own_files("lease-table", move || {
            let mut socket = match Socket::open() {
                Ok(socket) => socket,
                Err(error) => return drop(opened.send(Err(error))),
            };
            let _ = opened.send(Ok(socket.port()));
            while let Ok(job) = wanted.recv() {
                job(&mut socket);
            }
        });
        let thread = thread.map_err(|error| refused("start a thread", error))?;
        let port = is_open.recv().map_err(|_| gone())??;
        Ok(Self { port, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Returns the socket's netlink port id, which is unique in this network namespace.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    /// Commits a transaction.
    pub(crate) fn commit(&self, batch: Batch) -> Result<(), NftError> {
        self.do_there(move |socket| socket.commit(batch))
    }

    /// Commits a transaction as [`Socket::commit_unseen`] does; returns the time of the request to
    /// the kernel, which may be long after the call.
    pub(crate) fn commit_unseen(&self, batch: Batch) -> Result<Instant, NftError> {
        self.do_there(move |socket| {
            let asked = Instant::now();
            socket.commit_unseen(batch).map(|()| asked)
        })
    }

    /// Returns the contents of a table, as [`Socket::contents`] does.
    pub(crate) fn contents(
        &self,
        table: &str,
        chains: &'static [&'static str],
        sets: &'static [&'static str],
    ) -> Result<Contents, NftError> {
        let table = table.to_owned();
        self.do_there(move |socket| socket.contents(&table, chains, sets))
    }

    fn do_there<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Socket) -> Result<T, NftError> + Send + 'static,
    ) -> Result<T, NftError> {
        let (sender, receiver) = mpsc::channel();
        let job = Box::new(move |socket: &mut Socket| drop(sender.send(job(socket))));
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job).map_err(|_| gone())?;
        receiver.recv().map_err(|_| gone())?
    }
}

impl Drop for OwnerSocket {
    fn drop(&mut self) {
        self.jobs = None;
        // The thread closes the socket, so the tables that it owns are deleted when the join
        // returns.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the error for a thread that has ended, for example by a panic.
fn gone() -> NftError {
    refused("ask the thread of the leases", io::ErrorKind::BrokenPipe.into())
}
