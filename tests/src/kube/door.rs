//! A TCP proxy in front of an API, which a test closes and opens while the API runs.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::lock::lock;

/// A TCP proxy; dropping it closes it and its connections.
pub struct Door {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    is_shut: bool,
    is_over: bool,
    /// Both ends of each connection.
    connections: Vec<TcpStream>,
}

impl Door {
    /// An open proxy on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When it cannot listen.
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
                // While the proxy is shut, a new connection is closed at once.
                if !shared.is_shut {
                    drop(shared.pass(client, api));
                }
            }
        });
        Self { address, shared }
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections and refuses new ones.
    pub fn shut(&self) {
        let mut shared = lock(&self.shared);
        shared.is_shut = true;
        shared.cut();
    }

    /// Accepts connections again.
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
        // Wakes the thread that waits for the next connection.
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
