//! Between the server and the kernel: batched UDP, epoll, wake-ups, and the few process and thread
//! calls that the standard library lacks. Linux only.
//!
//! It knows addresses, bytes and file descriptors. It must not know DNS, configuration, metrics or tokio, and
//! imports no other crate of ours. It is the only one with unsafe code: every block says why it holds.

mod connected_socket;
mod epoll;
mod listen;
mod listen_fds;
#[cfg(all(target_arch = "x86_64", any(test, target_env = "musl")))]
mod memops;
#[cfg(miri)]
mod miri_shim;
mod process;
mod recv_batch;
mod send_batch;
mod sockaddr;
mod sync;
mod wake_flag;

pub use connected_socket::{UpstreamSent, UpstreamSocket};
pub use epoll::{Epoll, Event, Events, Waker};
pub use listen::{ListenOptions, ListenSocket, tcp_listener};
pub use listen_fds::inherited;
pub use process::{
    keep_code_in_memory, pin_to_core, raise_open_files_limit, set_time_slice, spawn_with_own_files,
};
pub use recv_batch::{Datagram, Received};
pub use send_batch::{Outgoing, Sent};
pub use sockaddr::{Local, Peer};

/// Datagrams taken from or given to the kernel in one call. At 64 a plain echo reaches what the kernel can do
/// (500-580 k a second and core over loopback); one datagram a call reaches 0.90 of that.
pub const BATCH: usize = 64;
