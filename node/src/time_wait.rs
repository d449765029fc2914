//! Destroys closed TCP connections that the kernel remembers for a minute or longer.

use std::io;
use std::net::IpAddr;

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::time::TimeVal;
use rtnetlink::sys::Socket;
use rtnetlink::sys::constants::NETLINK_SOCK_DIAG;

/// Destroys connections at this port of these addresses that no process has open: connections in
/// TIME-WAIT (RFC 9293, 3.3.2), and connections that retransmit their last segments because the
/// client's ACKs go elsewhere. If a client reuses the port of such a connection after a failover to
/// another server, its new connection is then reset when its packets arrive here again; otherwise
/// the packets would match the old connection, and the client would wait for its timeout. Call this
/// function only while all these addresses fail over: otherwise it could cut off the reply to a
/// slow client.
///
/// Requires CAP_NET_ADMIN, and Linux 6.0 with CONFIG_INET_DIAG_DESTROY; before 6.11 only
/// connections in TIME-WAIT and FIN-WAIT-2 are destroyed, since others would be left without a
/// timer forever. Destroys at most 2,000 of each address family.
///
/// # Errors
/// Errors of the kernel when listing or destroying.
pub fn destroy_closed_connections(addresses: &[IpAddr], port: u16) -> io::Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let with_octets_left = version_of(&release) >= Some((6, 11));
    // A host may lack one of the families, so an error of one does not prevent the other.
    let [v4, v6] = [AF_INET, AF_INET6].map(|family| forget(family, addresses, port, with_octets_left));
    v4.and(v6)
}

fn forget(family: u8, addresses: &[IpAddr], port: u16, with_octets_left: bool) -> io::Result<()> {
    if !addresses.iter().any(|ip| ip.is_ipv4() == (family == AF_INET)) {
        return Ok(());
    }
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    setsockopt(&socket, ReceiveTimeout, &PATIENCE)?;
    let mut any = [0; ID];
    any[..2].copy_from_slice(&port.to_be_bytes());
    socket.send(&request(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, family, &any), 0)?;
    let mut ids = Vec::new();
    while let Listed::More = listed(&socket.recv_from_full()?.0, addresses, with_octets_left, &mut ids)? {}
    for id in ids {
        socket.send(&request(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, family, &id), 0)?;
        let acknowledged = socket.recv_from_full()?.0;
        match number(&acknowledged, HEADER).unwrap_or_default() as i32 {
            0 => {}
            // The connection has already ended.
            code if code == -(Errno::ENOENT as i32) => {}
            code => return Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        }
    }
    Ok(())
}

/// Returns the first two numbers of a kernel release, such as `6.8.0-1015-azure`.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Identifies a connection: ports, addresses, interface and cookie (inet_diag_sockid).
type Id = [u8; ID];

#[derive(Debug, PartialEq, Eq)]
enum Listed {
    More,
    All,
}

/// Adds to `ids` the closed connections of these addresses in a datagram; returns whether more
/// follow.
fn listed(
    datagram: &[u8],
    addresses: &[IpAddr],
    with_octets_left: bool,
    ids: &mut Vec<Id>,
) -> io::Result<Listed> {
    let mut left = datagram;
    while let (Some(length), Some(kind)) = (number(left, 0), left.get(4..).and_then(<[u8]>::first_chunk)) {
        match u16::from_ne_bytes(*kind) {
            NLMSG_DONE => return Ok(Listed::All),
            NLMSG_ERROR => {
                let code = number(left, HEADER).unwrap_or_default() as i32;
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            SOCK_DIAG_BY_FAMILY => {
                let connection = left.get(HEADER..).unwrap_or_default();
                let id = connection.get(4..).and_then(<[u8]>::first_chunk::<ID>);
                if let (Some(id), &[family, _state, timer, ..]) = (id, connection)
                    && ids.len() < MOST
                    && addresses.iter().any(|ip| is_of(family, id, *ip))
                    && number(connection, INODE) == Some(0)
                    && (with_octets_left || timer == TIMER_OF_TIME_WAIT)
                {
                    ids.push(*id);
                }
            }
            _ => {}
        }
        let length = (length as usize).max(HEADER).next_multiple_of(4);
        left = left.get(length..).unwrap_or_default();
    }
    Ok(Listed::More)
}

/// Whether the connection's local end has this address.
fn is_of(family: u8, id: &Id, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => family == AF_INET && id[4..8] == ip.octets(),
        IpAddr::V6(ip) => family == AF_INET6 && id[4..20] == ip.octets(),
    }
}

fn number(octets: &[u8], at: usize) -> Option<u32> {
    octets.get(at..)?.first_chunk().map(|number| u32::from_ne_bytes(*number))
}

/// Returns a request: a netlink header and inet_diag_req_v2.
fn request(kind: u16, flags: u16, family: u8, id: &Id) -> Vec<u8> {
    let length = (HEADER + 8 + ID) as u32;
    let states = STATES.iter().fold(0, |states, state| states | 1u32 << state);
    let [header, rest] = [length.to_ne_bytes(), [0; 4]];
    [
        &header[..],
        &kind.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &rest,
        &rest,
        &[family, IPPROTO_TCP, 0, 0],
        &states.to_ne_bytes(),
        id,
    ]
    .concat()
}

// Constants of the kernel's include/uapi/linux/netlink.h, sock_diag.h and inet_diag.h.
const HEADER: usize = 16;
const ID: usize = 48;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// The listed TCP states: FIN-WAIT-1, FIN-WAIT-2, TIME-WAIT, LAST-ACK and CLOSING.
const STATES: [u8; 5] = [4, 5, 6, 9, 11];
/// Offset of the inode in inet_diag_msg: 0 if no process has the socket open.
const INODE: usize = 68;
/// idiag_timer of TIME-WAIT and FIN-WAIT-2 minisockets.
const TIMER_OF_TIME_WAIT: u8 = 3;
/// Maximum number of connections to destroy for each family, which takes some milliseconds.
const MOST: usize = 2_000;
/// Time limit of a reply; the kernel usually replies at once.
const PATIENCE: TimeVal = TimeVal::new(2, 0);

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    /// Returns a message of the kernel's list.
    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (HEADER + body.len()) as u32;
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    /// Malformed messages do not panic.
    #[test]
    fn listing_selects_our_addresses() {
        let ours: [IpAddr; 2] = ["169.254.10.10".parse().unwrap(), "fd10::11".parse().unwrap()];
        let connection = |ip: IpAddr, number: u8| {
            let (family, octets) = match ip {
                IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
                IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
            };
            let mut body = vec![0; 72];
            body[0] = family;
            body[7] = number;
            body[8..8 + octets.len()].copy_from_slice(&octets);
            body
        };
        let other = "10.0.0.1".parse().unwrap();
        let mut open = connection(ours[0], 2);
        open[INODE] = 7;
        let mut ended = connection(ours[0], 4);
        ended[2] = TIMER_OF_TIME_WAIT;
        let rows = [connection(ours[0], 1), connection(other, 2), open, ended, connection(ours[1], 3)];
        let all = rows.map(|body| message(SOCK_DIAG_BY_FAMILY, &body)).concat();
        let done = [&all[..], &message(NLMSG_DONE, &[0; 4])].concat();
        for (datagram, end) in [(&all, Listed::More), (&done, Listed::All)] {
            for (with_octets_left, numbers) in [(true, &[1, 4, 3][..]), (false, &[4])] {
                let mut ids = Vec::new();
                assert_eq!(listed(datagram, &ours, with_octets_left, &mut ids).unwrap(), end);
                assert_eq!(ids.iter().map(|id| id[3]).collect::<Vec<_>>(), numbers);
            }
        }
        let refused = message(NLMSG_ERROR, &(-1i32).to_ne_bytes());
        let error = listed(&refused, &ours, true, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(1));
        // A list that is truncated at any position must not cause a panic.
        for end in 0..done.len() {
            let mut ids = Vec::new();
            listed(&done[..end], &ours, true, &mut ids).unwrap();
            assert!(ids.len() <= 3, "{end}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such socket")]
    fn destroys_only_connections_of_the_address() {
        let end = |ip: [u8; 4]| {
            let listener = TcpListener::bind(SocketAddr::from((ip, 0))).unwrap();
            let at = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(at).unwrap();
            drop(listener.accept().unwrap());
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
            at
        };
        let waits = |at: SocketAddr| {
            let IpAddr::V4(ip) = at.ip() else { return false };
            let local = format!(" {:08X}:{:04X} ", u32::from_ne_bytes(ip.octets()), at.port());
            let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
            sockets.lines().any(|line| line.contains(&local))
        };
        let [ours, others] = [[127, 77, 0, 1], [127, 77, 0, 2]].map(end);
        assert!(waits(ours) && waits(others));
        let forgot = destroy_closed_connections(&[ours.ip()], ours.port());
        let _ = destroy_closed_connections(&[ours.ip()], others.port());
        // Without the capability or the kernel's support, an error is returned, and the connections
        // stay.
        assert_eq!(forgot.is_ok(), !waits(ours), "{forgot:?}");
        let root = std::fs::read_to_string("/proc/self/status").unwrap();
        let may = root.lines().any(|line| line.starts_with("CapEff:") && line.ends_with("fffffffff"));
        let cannot = Some(Errno::EOPNOTSUPP as i32);
        assert!(!may || forgot.map_or_else(|error| error.raw_os_error() == cannot, |()| true));
        assert!(waits(others));
    }

    #[test]
    fn a_release_begins_with_two_numbers() {
        for (release, version) in [
            ("6.8.0-1015-azure\n", Some((6, 8))),
            ("5.15.0-1070-azure", Some((5, 15))),
            ("6.12-rc1", Some((6, 12))),
            ("6", None),
            ("", None),
            ("x.y", None),
        ] {
            assert_eq!(version_of(release), version, "{release}");
        }
    }
}
