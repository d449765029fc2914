//! The listen sockets on a worker's outputs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sockets::{Epoll, ListenSocket};

use super::super::socket::{Last, OpenSocket};
use super::super::token::LISTEN;
use super::Outputs;
use configuration::Configuration;
use plugin::endpoint::Endpoint;

impl Outputs {
    /// How many places for listen sockets there are, some perhaps empty.
    pub(crate) fn places(&self) -> usize {
        self.sockets.len()
    }

    #[inline]
    pub(crate) fn socket(&mut self, place: usize) -> Option<&mut OpenSocket> {
        self.sockets.get_mut(place)?.as_mut()
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

    /// Leaves the listen sockets to another process, or reads them again; those that are to be closed are read to their ends.
    pub(crate) fn park(&mut self, parked: bool, epoll: &Epoll) -> io::Result<()> {
        if std::mem::replace(&mut self.parked, parked) == parked {
            return Ok(());
        }
        for (place, open) in self.sockets.iter().enumerate() {
            let Some(open) = open.as_ref().filter(|open| open.last.is_none()) else { continue };
            match parked {
                true => epoll.remove(&open.socket)?,
                false => epoll.add(&open.socket, LISTEN | place as u64)?,
            }
        }
        Ok(())
    }

    /// Whether the listen sockets are another process's to read.
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }

    pub(crate) fn adopt(&mut self, socket: OpenSocket, epoll: &Epoll) -> io::Result<()> {
        let place = self.sockets.iter().position(Option::is_none).unwrap_or(self.sockets.len());
        epoll.add(&socket.socket, LISTEN | place as u64)?;
        if place == self.sockets.len() {
            self.sockets.push(None);
        }
        self.sockets[place] = Some(socket);
        Ok(())
    }

    /// Has the sockets of an address closed that there are now, once they are read to their ends.
    pub(crate) fn close_listener(&mut self, address: SocketAddr, configuration: &Arc<Configuration>) {
        self.sockets
            .iter_mut()
            .flatten()
            .filter(|open| open.address == address)
            .for_each(|open| open.end(configuration));
    }

    /// Of a socket that is to be closed: what serves one more batch of it, if there may be one.
    #[inline]
    pub(crate) fn last(&mut self, place: usize) -> Option<Option<Arc<Configuration>>> {
        self.socket(place)?.last.as_mut().map(Last::configuration)
    }

    /// Whether a socket is read to its end.
    pub(crate) fn is_closing(&self) -> bool {
        self.sockets.iter().flatten().any(|open| open.last.is_some())
    }

    /// Where the nth socket of an address is.
    pub(crate) fn place_of(&self, address: SocketAddr, nth: usize) -> Option<usize> {
        let is_it = |open: &OpenSocket| open.address == address && open.nth == nth && open.last.is_none();
        self.sockets.iter().position(|open| open.as_ref().is_some_and(is_it))
    }

    /// Has the kernel give clients to so many sockets of this one's address, the first.
    pub(crate) fn spread(&mut self, place: usize, over: usize) {
        let (now, running) = (self.now, self.running.clone());
        if let Some(open) = self.socket(place)
            && let Err(error) = open.socket.spread_over(over as u32)
        {
            // The kernel goes on spreading datagrams over all sockets of the address.
            running.io_error("spread", open.address, &error, now);
        }
    }

    pub(crate) fn close(&mut self, place: usize, epoll: &Epoll) {
        if let Some(mut open) = self.sockets.get_mut(place).and_then(Option::take) {
            open.send(&self.running, self.now);
            let _ = epoll.remove(&open.socket);
        }
    }

    /// The listen sockets, for the loop that comes after this one.
    pub(crate) fn into_sockets(self) -> Vec<OpenSocket> {
        self.sockets.into_iter().flatten().collect()
    }
}
