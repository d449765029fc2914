//! Addresses, ports and directories that no other test uses.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::lock::lock;

/// A loopback address that no other test uses, in this process or another. It is reserved until the
/// process ends.
pub fn fresh_ip() -> Ipv4Addr {
    let base = std::process::id().wrapping_mul(SPREAD);
    loop {
        let n = base.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % (192 << 16);
        let [_, a, b, c] = n.to_be_bytes();
        // From 127.64.0.0: people and distributions use lower addresses by hand.
        let ip = Ipv4Addr::new(127, 64 + a, b, c);
        if c == 0 || c == 255 {
            continue;
        }
        if let Ok(reserved) = UdpSocket::bind((ip, LOCK_PORT)) {
            lock(&LOCKS).push(reserved);
            return ip;
        }
    }
}

/// The port of a test's servers: 53 for root, 5353 otherwise.
pub fn port() -> u16 {
    if privileged() { 53 } else { 5353 }
}

/// A port free on `ip` for both UDP and TCP, for shared addresses such as `::1`.
///
/// # Panics
/// When the address does not exist.
pub fn free_port(ip: IpAddr) -> u16 {
    loop {
        let listener = TcpListener::bind((ip, 0)).unwrap_or_else(|error| panic!("{ip}: {error}"));
        let port = listener.local_addr().expect("a bound socket has an address").port();
        if UdpSocket::bind((ip, port)).is_ok() {
            return port;
        }
    }
}

/// Whether this process is root, if only within its own user namespace.
pub fn privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("linux has /proc");
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("status names the ids");
    uids.split_whitespace().nth(1) == Some("0")
}

/// Raises the limit of open files to `files`; false where that is not permitted.
pub fn may_open(files: u64) -> bool {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return false };
    soft >= files || setrlimit(Resource::RLIMIT_NOFILE, files.min(hard), hard).is_ok() && hard >= files
}

/// A directory that is removed when dropped.
pub fn tempdir() -> TempDir {
    tempfile::Builder::new().prefix("localdns-test-").tempdir().expect("the temporary directory is writable")
}

/// Publishes a file atomically: writes it beside `path` and renames it.
///
/// # Panics
/// When writing fails.
pub fn publish(path: &Path, text: impl AsRef<[u8]>) {
    let aside = path.with_extension("aside");
    let written = std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, path));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

static NEXT: AtomicU32 = AtomicU32::new(0);
static LOCKS: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
/// A test binds this port to reserve an address.
const LOCK_PORT: u16 = 32_053;
/// Spreads the start positions of neighbouring process IDs.
const SPREAD: u32 = 7919;
