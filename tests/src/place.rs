//! Where a test may live: addresses, ports and directories that no other test uses.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::lock::lock;

/// A loopback address that no other test, in this process or another one, holds. It stays reserved until the process ends.
pub fn fresh_ip() -> Ipv4Addr {
    let base = std::process::id().wrapping_mul(SPREAD);
    loop {
        let n = base.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % (192 << 16);
        let [_, a, b, c] = n.to_be_bytes();
        // 127.64.0.0 and above: below live the addresses that people and distributions use by hand.
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

/// The port that servers of a test listen on: 53 for root, 5353 otherwise.
pub fn port() -> u16 {
    if privileged() { 53 } else { 5353 }
}

/// A port that nobody uses on `ip` for UDP or TCP at this moment, for addresses that are shared, such as `::1`.
///
/// # Panics
/// When the address is not there.
pub fn free_port(ip: IpAddr) -> u16 {
    loop {
        let listener = TcpListener::bind((ip, 0)).unwrap_or_else(|error| panic!("{ip}: {error}"));
        let port = listener.local_addr().expect("a bound socket has an address").port();
        if UdpSocket::bind((ip, port)).is_ok() {
            return port;
        }
    }
}

/// Whether this process is root, be it only within its own user namespace.
pub fn privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("linux has /proc");
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("status names the ids");
    uids.split_whitespace().nth(1) == Some("0")
}

/// Lets this process open so many files; false where it may not.
pub fn may_open(files: u64) -> bool {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return false };
    soft >= files || setrlimit(Resource::RLIMIT_NOFILE, files.min(hard), hard).is_ok() && hard >= files
}

/// A directory that vanishes with its value.
pub fn tempdir() -> TempDir {
    tempfile::Builder::new().prefix("localdns-test-").tempdir().expect("the temporary directory is writable")
}

/// Writes a file beside `path` and renames it there, as careful programs publish a file.
///
/// # Panics
/// When the disk does not take it.
pub fn publish(path: &Path, text: impl AsRef<[u8]>) {
    let aside = path.with_extension("aside");
    let written = std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, path));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

static TAKEN: AtomicU32 = AtomicU32::new(0);
static LOCKS: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
/// Bound on an address for as long as a test holds it.
const LOCK_PORT: u16 = 32_053;
/// Neighbouring process ids start far from each other.
const SPREAD: u32 = 7919;
