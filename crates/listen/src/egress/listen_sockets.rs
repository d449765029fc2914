//! A worker's listen sockets.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use sockets::{Epoll, ListenSocket};

use super::super::listen_socket::{Last, OpenSocket};
use super::super::token::LISTEN;
use super::Egress;
use configuration::Configuration;
use plugin::endpoint::Endpoint;

impl Egress {
    /// Returns the indices of the listen sockets; entries of closed sockets are empty.
    pub(crate) fn socket_indices(&self) -> Range<usize> {
        0..self.sockets.len()
    }

    #[inline]
    pub(crate) fn socket(&mut self, socket_index: usize) -> Option<&mut OpenSocket> {
        self.sockets.get_mut(socket_index)?.as_mut()
    }

    pub(crate) fn open_listener(
        &mut self,
        address: SocketAddr,
        nth: usize,
        socket: ListenSocket,
        epoll: &Epoll,
    ) -> io::Result<()> {
        let taken = self.running.taken.socket(Endpoint::dns(address), self.index);
        self.adopt(OpenSocket::new(address, nth, socket, taken), epoll)
    }

    /// Stops reading the listen sockets, for another process, or reads them again; sockets that are
    /// closing are still read until they are empty.
    pub(crate) fn park(&mut self, parked: bool, epoll: &Epoll) -> io::Result<()> {
        if std::mem::replace(&mut self.parked, parked) == parked {
            return Ok(());
        }
        for (socket_index, open) in self.sockets.iter().enumerate() {
            let Some(open) = open.as_ref().filter(|open| open.last.is_none()) else { continue };
            match parked {
                true => epoll.remove(&open.socket)?,
                false => epoll.add(&open.socket, LISTEN | socket_index as u64)?,
            }
        }
        Ok(())
    }

    /// Whether the listen sockets are not read.
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }

    pub(crate) fn adopt(&mut self, socket: OpenSocket, epoll: &Epoll) -> io::Result<()> {
        let socket_index = self.sockets.iter().position(Option::is_none).unwrap_or(self.sockets.len());
        epoll.add(&socket.socket, LISTEN | socket_index as u64)?;
        if socket_index == self.sockets.len() {
            self.sockets.push(None);
        }
        self.sockets[socket_index] = Some(socket);
        Ok(())
    }

    /// Marks the present sockets of an address to be closed, once they are empty.
    pub(crate) fn close_listener(&mut self, address: SocketAddr, configuration: &Arc<Configuration>) {
        self.sockets
            .iter_mut()
            .flatten()
            .filter(|open| open.address == address)
            .for_each(|open| open.end(configuration));
    }

    /// Returns the configuration for one more batch of a closing socket, if one may be read.
    #[inline]
    pub(crate) fn last(&mut self, socket_index: usize) -> Option<Option<Arc<Configuration>>> {
        self.socket(socket_index)?.last.as_mut().map(Last::configuration)
    }

    /// Whether a socket is closing.
    pub(crate) fn is_closing(&self) -> bool {
        self.sockets.iter().flatten().any(|open| open.last.is_some())
    }

    /// Returns the index of the nth socket of an address.
    pub(crate) fn socket_index_of(&self, address: SocketAddr, nth: usize) -> Option<usize> {
        let is_it = |open: &OpenSocket| open.address == address && open.nth == nth && open.last.is_none();
        self.sockets.iter().position(|open| open.as_ref().is_some_and(is_it))
    }

    /// Makes the kernel spread datagrams over the first `over` sockets of this socket's address.
    pub(crate) fn spread(&mut self, socket_index: usize, over: usize) {
        let (now, running) = (self.now, self.running.clone());
        if let Some(open) = self.socket(socket_index)
            && let Err(error) = open.socket.spread_over(over as u32)
        {
            // The kernel continues to spread datagrams over all sockets of the address.
            running.io_error("spread", open.address, &error, now);
        }
    }

    pub(crate) fn close(&mut self, socket_index: usize, epoll: &Epoll) {
        if let Some(mut open) = self.sockets.get_mut(socket_index).and_then(Option::take) {
            open.send(&self.running, self.now);
            let _ = epoll.remove(&open.socket);
        }
    }

    /// Returns the listen sockets, for the loop that follows a panic.
    pub(crate) fn into_sockets(self) -> Vec<OpenSocket> {
        self.sockets.into_iter().flatten().collect()
    }
}
