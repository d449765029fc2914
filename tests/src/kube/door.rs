//! The way to an API, which a test shuts and opens while the API goes on.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::lock::lock;

/// Passes connections on. It shuts for good, with its connections, when it is dropped.
pub struct Door {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    is_shut: bool,
    is_over: bool,
    /// Both ends of each.
    connections: Vec<TcpStream>,
}

impl Door {
    /// An open one, at an address of its own.
    ///
    /// # Panics
    /// When it cannot be had.
    pub fn to(api: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<Mutex<Shared>>::default();
        let of = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut shared = lock(&of);
                if shared.is_over {
                    break;
                }
                // Whoever finds it shut sees the end of the connection.
                if !shared.is_shut {
                    drop(shared.pass(client, api));
                }
            }
        });
        Self { address, shared }
    }

    /// Where it is entered.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the connections that stand, and lets nobody in.
    pub fn shut(&self) {
        let mut shared = lock(&self.shared);
        shared.is_shut = true;
        shared.cut();
    }

    /// Lets connections in again.
    pub fn open(&self) {
        lock(&self.shared).is_shut = false;
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.is_over = true;
        shared.cut();
        drop(shared);
        // Wakes whoever waits for the next connection.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn pass(&mut self, client: TcpStream, api: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(api)?;
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
            thread::spawn(move || {
                drop(io::copy(&mut from, &mut to));
                drop(to.shutdown(Shutdown::Write));
            });
        }
        self.connections.extend([client, server]);
        Ok(())
    }

    fn cut(&mut self) {
        for connection in self.connections.drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}
