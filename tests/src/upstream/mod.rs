//! The mock upstream: a DNS server that answers as a test's closure says, over UDP, TCP and TLS, and remembers what it was asked.

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

/// One query as the upstream saw it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Lower case, with the final dot.
    pub name: String,
    /// The type asked for.
    pub rtype: u16,
    /// What the query came over.
    pub transport: Transport,
    /// Who asked, with the source port.
    pub from: SocketAddr,
    /// The message id.
    pub id: u16,
    /// The second word of the header.
    pub flags: u16,
    /// The query's OPT.
    pub edns: Option<Edns>,
    /// The query's octets.
    pub bytes: Vec<u8>,
    /// When it was read.
    pub at: Instant,
}

/// What a query came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A plain connection.
    Tcp,
    /// A TLS connection.
    Tls,
}

/// A running mock upstream; it ends with its value.
pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    tls: Option<Arc<ServerConfig>>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Upstream {
    /// Serves UDP and TCP on `ip`, port 53 or 5353 as [`crate::port`] says.
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

    /// Serves TLS alone on `address`, with a certificate of `authority` for `host`.
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

    /// As [`Self::tls`], but the certificate ended in 2020.
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

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As a word of `forward`: `ip:port`.
    pub fn word(&self) -> String {
        self.address.to_string()
    }

    /// Answers by another script from the next query on.
    pub fn answer_by(&self, script: impl Fn(&Asked) -> Action + Send + Sync + 'static) {
        *lock(&self.shared.script) = Arc::new(script);
    }

    /// Everything asked so far (the first 100,000), in order of arrival.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.asked).clone()
    }

    /// The queries for `name`, in order of arrival.
    pub fn asked_for(&self, name: &str) -> Vec<Asked> {
        lock(&self.shared.asked).iter().filter(|asked| asked.name == name).cloned().collect()
    }

    /// How many queries for `name` came.
    pub fn count(&self, name: &str) -> usize {
        lock(&self.shared.asked).iter().filter(|asked| asked.name == name).count()
    }

    /// How many queries came in all, those that are not kept included.
    pub fn total(&self) -> usize {
        self.shared.total.load(Ordering::Relaxed)
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Forgets what it was asked.
    pub fn forget(&self) {
        lock(&self.shared.asked).clear();
    }

    /// Waits until `name` was asked for at least `n` times.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub fn wait_for(&self, name: &str, n: usize, patience: Duration) {
        eventually(&format!("{n} queries for {name}"), patience, || (self.count(name) >= n).then_some(()));
    }

    /// Closes every socket: from now on the kernel refuses.
    pub fn stop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("the mock upstream does not panic");
        }
    }

    /// Serves again on the same address after [`Self::stop`].
    ///
    /// # Panics
    /// When the address cannot be bound any more.
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
            // A script that panicked has said so already.
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
    /// What to do about a query; `None` for octets that are not one.
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
    fn it_answers_over_both_transports_and_remembers() {
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
