//! The mock upstream: a DNS server that answers over UDP, TCP and TLS as a test's closure decides,
//! and records its queries.

mod action;
mod serve;
mod tls;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::ServerConfig;

pub use action::{Action, Says};
pub use tls::Authority;

use crate::clock::{eventually, now};
use crate::lock::lock;
use crate::message::{Edns, Message};
use serve::Later;

/// One query that the upstream received.
#[derive(Debug, Clone)]
pub struct Asked {
    /// In lower case, with the final dot.
    pub name: String,
    /// The query type.
    pub rtype: u16,
    /// The transport of the query.
    pub transport: Transport,
    /// The client's address and source port.
    pub from: SocketAddr,
    /// The message ID.
    pub id: u16,
    /// The header's flags: its second 16-bit word.
    pub flags: u16,
    /// The query's OPT.
    pub edns: Option<Edns>,
    /// The query in wire format.
    pub bytes: Vec<u8>,
    /// When it was received.
    pub at: Instant,
}

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A plain connection.
    Tcp,
    /// A TLS connection.
    Tls,
}

/// A running mock upstream; it ends when dropped.
pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    tls: Option<Arc<ServerConfig>>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Upstream {
    /// Serves UDP and TCP on `ip`, port 53 or 5353 as given by [`crate::port`].
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn start(ip: Ipv4Addr, script: impl Fn(&Asked) -> Action + Send + Sync + 'static) -> Self {
        Self::at((ip, crate::port()).into(), script)
    }

    /// Serves UDP and TCP on `address`.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn at(address: SocketAddr, script: impl Fn(&Asked) -> Action + Send + Sync + 'static) -> Self {
        Self::new(address, None, script)
    }

    /// Serves only TLS on `address`, with a certificate of `authority` for `host`.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn tls(
        address: SocketAddr,
        authority: &Authority,
        host: &str,
        script: impl Fn(&Asked) -> Action + Send + Sync + 'static,
    ) -> Self {
        Self::new(address, Some(authority.server(host, false)), script)
    }

    /// Like [`Self::tls`], but with a certificate that expired in 2020.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn tls_expired(
        address: SocketAddr,
        authority: &Authority,
        host: &str,
        script: impl Fn(&Asked) -> Action + Send + Sync + 'static,
    ) -> Self {
        Self::new(address, Some(authority.server(host, true)), script)
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as an argument of `forward`: `ip:port`.
    pub fn word(&self) -> String {
        self.address.to_string()
    }

    /// Replaces the script for later queries.
    pub fn answer_by(&self, script: impl Fn(&Asked) -> Action + Send + Sync + 'static) {
        *lock(&self.shared.script) = Arc::new(script);
    }

    /// The first 100,000 queries, in order of arrival.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.asked).clone()
    }

    /// The queries for `name`, in order of arrival.
    pub fn asked_for(&self, name: &str) -> Vec<Asked> {
        lock(&self.shared.asked).iter().filter(|asked| asked.name == name).cloned().collect()
    }

    /// How many queries for `name` arrived.
    pub fn count(&self, name: &str) -> usize {
        lock(&self.shared.asked).iter().filter(|asked| asked.name == name).count()
    }

    /// How many queries arrived in all, unrecorded ones included.
    pub fn total(&self) -> usize {
        self.shared.total.load(Ordering::Relaxed)
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Clears the recorded queries.
    pub fn forget(&self) {
        lock(&self.shared.asked).clear();
    }

    /// Waits until at least `n` queries for `name` have arrived.
    ///
    /// # Panics
    /// When they do not arrive in time.
    pub fn wait_for(&self, name: &str, n: usize, patience: Duration) {
        eventually(&format!("{n} queries for {name}"), patience, || (self.count(name) >= n).then_some(()));
    }

    /// Closes all sockets: from now on the kernel refuses queries.
    pub fn stop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("the mock upstream does not panic");
        }
    }

    /// Serves again on the same address after [`Self::stop`].
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn restart(&mut self) {
        self.stop();
        self.stopped = Arc::default();
        self.threads = serve::spawn(self.address, &self.shared, self.tls.as_ref(), &self.stopped);
    }

    fn new(
        address: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
        script: impl Fn(&Asked) -> Action + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            script: Mutex::new(Arc::new(script)),
            asked: Mutex::default(),
            total: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            later: Later::start(),
        });
        let stopped = Arc::default();
        let threads = serve::spawn(address, &shared, tls.as_ref(), &stopped);
        Self { address, shared, tls, stopped, threads }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A script that panicked has already printed its message.
            drop(thread.join());
        }
    }
}

type Script = dyn Fn(&Asked) -> Action + Send + Sync;

struct Shared {
    script: Mutex<Arc<Script>>,
    asked: Mutex<Vec<Asked>>,
    total: AtomicUsize,
    connections: AtomicUsize,
    later: Later,
}

impl Shared {
    /// The action on a query; `None` for bytes that are not a query.
    fn decide(&self, bytes: &[u8], transport: Transport, from: SocketAddr) -> Option<(Asked, Action)> {
        let message = Message::decode(bytes).ok()?;
        let question = message.question?;
        let asked = Asked {
            name: question.name.to_ascii_lowercase(),
            rtype: question.rtype,
            transport,
            from,
            id: message.id,
            flags: message.flags,
            edns: message.edns,
            bytes: bytes.to_vec(),
            at: now(),
        };
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut kept = lock(&self.asked);
        if kept.len() < KEPT {
            kept.push(asked.clone());
        }
        drop(kept);
        let script = Arc::clone(&lock(&self.script));
        let action = script(&asked);
        Some((asked, action))
    }
}

const KEPT: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ask, ask, fresh_ip};

    #[test]
    fn both_transports_are_recorded() {
        let mut upstream = Upstream::start(fresh_ip(), |asked| match asked.name.as_str() {
            "late.example." => {
                Action::answer("late.example. 30 IN A 192.0.2.9").after(Duration::from_millis(50))
            }
            "long.example." => Action::Truncate(Says::answer("long.example. 30 IN A 192.0.2.2")),
            "forged.example." => Action::Forge(
                3,
                Says::answer("forged.example. 30 IN A 192.0.2.66"),
                Box::new(Action::answer("forged.example. 30 IN A 192.0.2.3")),
            ),
            _ => Action::nxdomain("example. 60 IN SOA ns.example. host.example. 1 2 3 4 5"),
        });
        let at = upstream.address();
        assert_eq!(ask(at, "none.example", "A").status(), "NXDOMAIN");
        assert!(Ask::new("late.example", "A").tcp().of(at).elapsed >= Duration::from_millis(50));
        assert_eq!(ask(at, "long.example", "A").flag_names(), "qr tc rd ra");
        assert_eq!(Ask::new("long.example", "A").tcp().of(at).short(), ["192.0.2.2"]);
        let refused = Ask::new("forged.example", "A").try_of(at).unwrap_err().to_string();
        assert!(refused.contains("another id"), "{refused}");
        assert_eq!(upstream.count("long.example."), 2);
        assert_eq!(upstream.asked_for("long.example.")[1].transport, Transport::Tcp);
        upstream.stop();
        assert!(Ask::new("none.example", "A").timeout(Duration::from_secs(1)).try_of(at).is_err());
        upstream.restart();
        assert_eq!(ask(at, "none.example", "A").status(), "NXDOMAIN");
    }
}
