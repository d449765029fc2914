//! Finds the owner of a port, for the error "address in use".

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The transport of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketKind {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

/// A process that owns a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOwner {
    /// The process id.
    pub pid: u32,
    /// The process's command name; unprintable characters are escaped when printed.
    pub comm: String,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (pid {})", self.comm.escape_debug(), self.pid)
    }
}

/// Returns the process with the socket that prevents binding `addr`: a socket bound to the same
/// address and port, else one bound to the port on a wildcard address or, if `addr` is a wildcard,
/// on any address. For TCP only listeners count.
///
/// `None` if there is no such socket, or if its process is not visible: another user's, or outside
/// of this pid namespace. Reads all of `/proc`, which takes milliseconds: for error messages only.
pub fn port_owner(addr: SocketAddr, proto: SocketKind) -> Option<PortOwner> {
    let tables = match proto {
        SocketKind::Udp => ["/proc/net/udp", "/proc/net/udp6"],
        SocketKind::Tcp => ["/proc/net/tcp", "/proc/net/tcp6"],
    };
    let mut candidates = Vec::new();
    for table in tables {
        let Ok(file) = File::open(table) else { continue };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        let sockets = lines.filter_map(|line| parse_line(&line, proto));
        candidates.extend(sockets.filter_map(|socket| Some((rank(socket.addr, addr)?, socket.inode))));
    }
    let (_, inode) = candidates.into_iter().min()?;
    process_with_socket(inode)
}

/// Whether any UDP socket receives datagrams to this address and port, including one on a wildcard
/// address.
pub fn is_taken_over_udp(addr: SocketAddr) -> bool {
    let takes = |table: &str| {
        let Ok(file) = File::open(table) else { return false };
        let mut lines = BufReader::new(file).lines().map_while(Result::ok);
        lines.any(|line| {
            parse_line(&line, SocketKind::Udp).is_some_and(|held| rank(held.addr, addr).is_some())
        })
    };
    takes("/proc/net/udp") || takes("/proc/net/udp6")
}

#[derive(Debug, PartialEq, Eq)]
struct BoundSocket {
    addr: SocketAddr,
    inode: u64,
}

/// Returns how likely a socket at `held` prevents binding `wanted`, from 0, the most likely, to 2;
/// `None` if it does not.
fn rank(held: SocketAddr, wanted: SocketAddr) -> Option<u8> {
    let same_family = held.is_ipv4() == wanted.is_ipv4();
    let wildcard = held.ip().is_unspecified() || wanted.ip().is_unspecified();
    match held.port() == wanted.port() {
        true if held.ip() == wanted.ip() => Some(0),
        true if same_family && wildcard => Some(1),
        // `[::]` may hold the IPv4 port too.
        true if held.is_ipv6() && wildcard => Some(2),
        _ => None,
    }
}

/// Parses one line of a table: number, local and remote address in hex, state, queues, timers,
/// user, timeout, inode.
fn parse_line(line: &str, proto: SocketKind) -> Option<BoundSocket> {
    let mut words = line.split_ascii_whitespace();
    let (ip, port) = words.nth(1)?.split_once(':')?;
    let state = words.nth(1)?;
    let inode = words.nth(5)?.parse().ok()?;
    if proto == SocketKind::Tcp && state != LISTEN {
        return None;
    }
    let addr = SocketAddr::new(parse_ip(ip)?, u16::from_str_radix(port, 16).ok()?);
    Some(BoundSocket { addr, inode })
}

/// Parses an address, which the kernel prints as 32-bit words, each in host byte order.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hex.get(at..at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (i, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(i * 8)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

fn process_with_socket(inode: u64) -> Option<PortOwner> {
    let wanted = OsString::from(format!("socket:[{inode}]"));
    for process in fs::read_dir("/proc").ok()?.filter_map(Result::ok) {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if holds(&process.path(), &wanted) {
            // The process may end before its name is read.
            let comm = fs::read(process.path().join("comm")).unwrap_or_default();
            return Some(PortOwner {
                pid,
                comm: String::from_utf8_lossy(comm.trim_ascii_end()).into_owned(),
            });
        }
    }
    None
}

fn holds(process: &Path, wanted: &OsString) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors
        .filter_map(Result::ok)
        .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|target| target.as_os_str() == wanted))
}

/// The kernel's TCP_LISTEN, as the tables print it.
const LISTEN: &str = "0A";

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn finds_own_port() -> io::Result<()> {
        for ip in ["127.0.0.1", "::1"] {
            let udp = UdpSocket::bind((ip, 0))?;
            let tcp = TcpListener::bind((ip, 0))?;
            for (addr, proto) in [(udp.local_addr()?, SocketKind::Udp), (tcp.local_addr()?, SocketKind::Tcp)]
            {
                let holder = port_owner(addr, proto).expect("we hold it");
                assert_eq!(holder.pid, std::process::id());
                assert_eq!(holder.comm, fs::read_to_string("/proc/self/comm")?.trim_end());
                let wildcard = IpAddr::from([0; 4]);
                let wanted = if addr.is_ipv4() { wildcard } else { IpAddr::from([0u16; 8]) };
                assert_eq!(port_owner(SocketAddr::new(wanted, addr.port()), proto), Some(holder), "{addr}");
            }
        }
        Ok(())
    }

    #[test]
    fn connection_does_not_own_port() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        assert_eq!(port_owner(stream.local_addr()?, SocketKind::Tcp), None);
        Ok(())
    }

    #[test]
    fn a_free_port_has_no_holder() -> io::Result<()> {
        let addr = UdpSocket::bind("127.0.0.61:0")?.local_addr()?;
        assert_eq!(port_owner(addr, SocketKind::Udp), None);
        Ok(())
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn parses_kernel_table_lines() {
        use SocketKind::{Tcp, Udp};
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        let v4 = "  461: 0500007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000   101        0 20211 2 0";
        let v6 = "  9: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 \
                  00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0";
        let connected = v6.replace(" 0A ", " 01 ");
        let rows = [
            (head, Udp, None),
            ("", Tcp, None),
            ("0: 0500007F 0 07", Udp, None),
            ("0: 0500007:0035 0:0 07 0 0 0 0 0 1", Udp, None),
            ("0: 0500007F:10035 0:0 07 0 0 0 0 0 1", Udp, None),
            ("0: ГГГГ:0035 0:0 07 0 0 0 0 0 1", Udp, None),
            (v4, Udp, Some(("127.0.0.5:53", 20211))),
            (v4, Tcp, None),
            (v6, Tcp, Some(("[::1]:53", 4711))),
            (&connected, Tcp, None),
        ];
        for (line, proto, expected) in rows {
            let expected = expected
                .map(|(addr, inode)| BoundSocket { addr: addr.parse().expect("a socket address"), inode });
            assert_eq!(parse_line(line, proto), expected, "{line}");
        }
    }

    #[test]
    fn the_nearest_obstacle_ranks_first() {
        let rows = [
            ("10.0.0.1:53", "10.0.0.1:53", Some(0)),
            ("0.0.0.0:53", "0.0.0.0:53", Some(0)),
            ("0.0.0.0:53", "10.0.0.1:53", Some(1)),
            ("10.0.0.1:53", "0.0.0.0:53", Some(1)),
            ("[::]:53", "[::1]:53", Some(1)),
            ("[::]:53", "10.0.0.1:53", Some(2)),
            ("10.0.0.1:53", "[::]:53", None),
            ("[::1]:53", "10.0.0.1:53", None),
            ("10.0.0.2:53", "10.0.0.1:53", None),
            ("10.0.0.1:54", "10.0.0.1:53", None),
        ];
        for (held, wanted, expected) in rows {
            let parse = |text: &str| text.parse().expect("a socket address");
            assert_eq!(rank(parse(held), parse(wanted)), expected, "{held} against {wanted}");
        }
    }

    #[test]
    fn process_name_is_escaped() {
        let holder = PortOwner { pid: 7, comm: "evil\n\u{1b}[2J".to_owned() };
        assert_eq!(holder.to_string(), "evil\\n\\u{1b}[2J (pid 7)");
    }
}
