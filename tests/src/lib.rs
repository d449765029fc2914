//! The test kit: the environment of the black-box tests of `localdns`.
//!
//! ```text
//!   Ask, Connection, Stream  -->  the real binary (Server)  -->  Upstream (scripted)
//!        the clients               spawned, watched, ended         records its queries
//! ```
//! - [`binary()`] builds the program once per process; [`Server`] runs it on a Corefile and reads
//!   its log, metrics and descriptors.
//! - [`Ask`] sends one query and decodes the reply; [`Connection`] pipelines over TCP, a [`Crowd`]
//!   of connections is hostile; [`Stream`] sends at a constant rate and counts lost queries, a
//!   [`Persistent`] client keeps its connection.
//! - [`Transports`] sends the same query over UDP, TCP and TLS.
//! - [`Upstream`] answers over UDP, TCP or TLS as a closure decides, and records its queries.
//! - [`EncryptedPeer`] answers over TLS, HTTPS and QUIC: hickory-server, an independent server.
//! - [`Manager`] stands in for systemd: it receives READY, and stores descriptors for the next
//!   process; [`Systemd`] is a real one, with the shipped units.
//! - [`kube::Cluster`] is a real Kubernetes API without a cluster; [`kube::Api`] a scripted one.
//! - [`fresh_ip`] gives every test its own address; [`isolated()`] gives a test its own network and
//!   `/etc`; accesses below a [`Hang`] block, and so does a [`Held`] thread.
//!
//! This crate must not know how the program works inside: it imports none of its crates. It panics
//! where a test should fail.

mod admin;
mod ask;
mod binary;
mod cgroup;
mod clock;
mod command;
mod crowd;
mod dns;
mod doh;
mod doq;
mod encrypted;
pub mod fixtures;
mod flood;
mod hang;
mod held;
pub mod http2;
mod isolated;
pub mod kube;
mod lock;
mod manager;
mod message;
mod network;
mod older_kernel;
mod persistent;
mod place;
mod pod;
mod printed;
mod records;
mod refusal;
mod server;
mod stream;
mod stub;
mod systemd;
mod tcp;
mod transports;
mod upstream;

pub use admin::{Metrics, http_exchange, http_get, http_reply, http_request};
pub use ask::{Ask, Reply, ask, exchange_udp};
pub use binary::binary;
pub use cgroup::Cgroup;
pub use clock::{eventually, now, steadily};
pub use command::{output, signal};
pub use crowd::Crowd;
pub use dns::Dns;
pub use doh::{HttpResponse, curl};
pub use doq::{Doq, DoqEnd, DoqStream, framed};
pub use encrypted::{Encrypted, EncryptedPeer, PeerReply};
pub use flood::flood;
pub use hang::Hang;
pub use held::Held;
pub use isolated::{
    add_address, isolated, isolated_for, isolated_steadily, lacking, report, run, skip, tool,
};
pub use manager::Manager;
pub use message::{Edns, Message, Question, Record, header, question_end};
pub use network::{wire, within, within_scope};
pub use older_kernel::OlderKernel;
pub use persistent::{Persistent, PersistentCounts};
pub use place::{free_port, fresh_ip, may_open, port, privileged, publish, tempdir};
pub use pod::Pod;
pub use records::{record, rtype_name, rtype_number};
pub use refusal::without_nftables;
pub use server::{Options, Server};
pub use stream::{Stream, StreamCounts};
pub use stub::{LookedUp, Stub};
pub use systemd::Systemd;
pub use tcp::{Connection, TlsClient};
pub use transports::Transports;
pub use upstream::{Action, Asked, Authority, Says, Transport, Upstream};

/// Asserts that `$found` contains `$part`, and prints it when it does not.
#[macro_export]
macro_rules! assert_contains {
    ($found:expr, $part:expr) => {{
        let (found, part) = (&$found, &$part);
        assert!(found.contains(&part[..]), "no {part:?} in:\n{found}");
    }};
}
