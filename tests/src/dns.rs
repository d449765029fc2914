//! A server on its own address, with one root zone.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use crate::ask::{Reply, ask};
use crate::clock::eventually;
use crate::place::{fresh_ip, port};
use crate::server::Server;

/// A running server and where it listens.
#[derive(Debug)]
pub struct Dns {
    /// The listen address.
    pub at: SocketAddr,
    /// The process.
    pub server: Server,
}

impl Dns {
    /// Starts a server on a fresh address that serves the root zone with these directives.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start(directives: &str) -> Self {
        Self::start_on(fresh_ip(), directives)
    }

    /// Like [`Self::start`], on this address.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_on(ip: Ipv4Addr, directives: &str) -> Self {
        let at = SocketAddr::from((ip, port()));
        Self { at, server: Server::start(&Self::corefile(at, directives)) }
    }

    /// The Corefile with these directives.
    pub fn corefile(at: SocketAddr, directives: &str) -> String {
        format!(".:{} {{\nbind {}\n{directives}\n}}\n", at.port(), at.ip())
    }

    /// Queries a name's A records over UDP.
    ///
    /// # Panics
    /// As [`ask`].
    pub fn ask(&self, name: &str) -> Reply {
        ask(self.at, name, "A")
    }

    /// Waits up to 10 s until `address` is the only A record of `name`.
    ///
    /// # Panics
    /// When it is not.
    pub fn sees(&self, name: &str, address: &str) {
        eventually(&format!("{name} at {address}"), Duration::from_secs(10), || {
            let seen = self.ask(name).short() == [address];
            if !seen {
                sleep(Duration::from_millis(10));
            }
            seen.then_some(())
        });
    }
}
