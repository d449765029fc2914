//! Lists the kernel's nexthop objects (`ip nexthop`), which a route may name in place of its link.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NlasIterator};
use rtnetlink::sys::constants::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};
use socket2::SockRef;

/// Returns the links of each nexthop object, by the object's id; a group has the links of its
/// members. Blocks.
///
/// # Errors
/// If the kernel does not list the objects.
pub(super) fn all() -> io::Result<BTreeMap<u32, Vec<u32>>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    SockRef::from(&socket).set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.send(&request(), 0)?;
    let mut nexthops = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut left = bytes.as_slice();
        while let Some((kind, body, rest)) = message(left) {
            match kind {
                NLMSG_DONE => return Ok(links(&nexthops)),
                NLMSG_ERROR => {
                    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return Err(io::Error::from_raw_os_error(-code));
                }
                RTM_NEWNEXTHOP => nexthops.push(Nexthop::of(body)),
                _ => {}
            }
            left = rest;
        }
    }
}

/// One nexthop object.
#[derive(Debug, Default, PartialEq, Eq)]
struct Nexthop {
    id: u32,
    link: Option<u32>,
    /// The members of a group, which are not groups themselves.
    members: Vec<u32>,
}

impl Nexthop {
    /// Decodes `struct nhmsg` and its attributes.
    fn of(body: &[u8]) -> Self {
        let mut nexthop = Self::default();
        let number = |value: &[u8]| value.first_chunk().map(|octets| u32::from_ne_bytes(*octets));
        for attribute in NlasIterator::new(body.get(NHMSG..).unwrap_or_default()).flatten() {
            match attribute.kind() {
                NHA_ID => nexthop.id = number(attribute.value()).unwrap_or_default(),
                NHA_OIF => nexthop.link = number(attribute.value()),
                NHA_GROUP => {
                    nexthop.members =
                        attribute.value().chunks_exact(GROUP_MEMBER).filter_map(number).collect();
                }
                _ => {}
            }
        }
        nexthop
    }
}

fn links(nexthops: &[Nexthop]) -> BTreeMap<u32, Vec<u32>> {
    let own: BTreeMap<_, _> = nexthops.iter().filter_map(|one| Some((one.id, one.link?))).collect();
    let of_group = |one: &Nexthop| {
        let ids = one.members.iter().chain([&one.id]);
        (one.id, ids.filter_map(|id| own.get(id)).copied().collect())
    };
    nexthops.iter().map(of_group).collect()
}

fn request() -> Vec<u8> {
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut request = ((NLMSG_HEADER + NHMSG) as u32).to_ne_bytes().to_vec();
    request.extend(RTM_GETNEXTHOP.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // Sequence number, port and `struct nhmsg` are 0: any address family.
    request.resize(NLMSG_HEADER + NHMSG, 0);
    request
}

/// Returns the type and the body of the first message, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(NLMSG_HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

// Constants of the kernel's include/uapi/linux/netlink.h, rtnetlink.h and nexthop.h.
const NLMSG_HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_GETNEXTHOP: u16 = 106;
const NHMSG: usize = 8;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
const GROUP_MEMBER: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_its_members_links() {
        let single = |id, link| Nexthop { id, link: Some(link), members: Vec::new() };
        let group = |id, members: &[u32]| Nexthop { id, link: None, members: members.to_vec() };
        // A blackhole (3) has no link; 9 does not exist.
        let blackhole = group(3, &[]);
        let found = links(&[group(7, &[1, 2, 3, 9]), single(1, 11), single(2, 12), blackhole]);
        let expected = [(1, vec![11]), (2, vec![12]), (3, vec![]), (7, vec![11, 12])];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn cut_messages_are_no_messages() {
        let whole = request();
        assert_eq!(
            message(&whole).map(|(kind, body, rest)| (kind, body.len(), rest.len())),
            Some((106, 8, 0))
        );
        for length in 0..whole.len() {
            assert_eq!(message(&whole[..length]), None, "{length}");
        }
        for cut in [&[][..], &[0; 7], &[0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0]] {
            assert_eq!(Nexthop::of(cut), Nexthop::default(), "{cut:?}");
        }
    }
}
