//! Between the server and the kernel: batched UDP, epoll, wake-ups, and the few process and thread
//! calls that the standard library lacks. Linux only.
//!
//! It knows addresses, bytes and file descriptors. It must not know DNS, configuration, metrics or tokio, and
//! imports no other crate of ours. It is the only one with unsafe code: every block says why it holds.

mod address;
mod epoll;
mod inherited;
#[cfg(miri)]
mod kernel;
mod listen;
mod next;
#[cfg(all(target_arch = "x86_64", any(test, target_env = "musl")))]
mod octets;
mod outgoing;
mod pending;
mod received;
mod sync;
mod system;
mod upstream;

pub use address::{Local, Peer};
pub use epoll::{Epoll, Event, Events, Waker};
pub use inherited::inherited;
pub use listen::{ListenOptions, ListenSocket, tcp_listener};
pub use outgoing::{Outgoing, Sent};
pub use received::{Datagram, Received};
pub use system::{
    keep_code_in_memory, pin_to_core, raise_open_files_limit, set_time_slice, spawn_with_own_files,
};
pub use upstream::{UpstreamSent, UpstreamSocket};

/// Datagrams taken from or given to the kernel in one call. At 64 a plain echo reaches what the kernel can do
/// (500-580 k a second and core over loopback); one datagram a call reaches 0.90 of that.
pub const BATCH: usize = 64;
