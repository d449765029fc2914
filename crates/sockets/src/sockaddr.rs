//! Socket addresses and control messages in the kernel's layout. Touches no socket.

use std::fmt;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, c_void, cmsghdr, in_pktinfo, in6_pktinfo, msghdr, sockaddr_in, sockaddr_in6, socklen_t};

/// The local address that a datagram was sent to, with all that is needed to answer from it. Pass
/// this value back unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Local {
    /// The address that the client sent to.
    pub address: IpAddr,
    /// Index of the interface that it arrived on; used only to answer from a link-local IPv6
    /// address.
    pub interface: u32,
}

/// A socket address in the kernel's layout: 28 bytes hold both families.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union SockAddr {
    family: libc::sa_family_t,
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl SockAddr {
    /// Returns an address with all bytes zero: no family.
    pub(crate) fn empty() -> Self {
        // SAFETY: every field of the union is plain integers, for which zero is a value.
        unsafe { zeroed() }
    }

    fn new(addr: &SocketAddr) -> Self {
        let mut name = Self::empty();
        match addr {
            SocketAddr::V4(addr) => {
                name.v4 = sockaddr_in {
                    sin_family: libc::AF_INET as _,
                    sin_port: addr.port().to_be(),
                    sin_addr: v4_to_kernel(*addr.ip()),
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(addr) => {
                name.v6 = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as _,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: v6_to_kernel(*addr.ip()),
                    sin6_scope_id: addr.scope_id(),
                };
            }
        }
        name
    }
}

/// The sender of a datagram as the kernel wrote it; converted to an address only on demand.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Peer(pub(crate) SockAddr);

impl Peer {
    /// Returns the sender's port; 0, which cannot be answered, also if the kernel wrote no address.
    #[inline]
    pub fn port(&self) -> u16 {
        // SAFETY: all bytes were zeroed initially, and every field is plain integers: any field may
        // be read.
        let (family, v4) = unsafe { (self.0.family, self.0.v4) };
        match c_int::from(family) {
            // The port has the same offset in both.
            libc::AF_INET | libc::AF_INET6 => u16::from_be(v4.sin_port),
            _ => 0,
        }
    }

    /// Returns the length of the address in bytes.
    #[inline]
    pub(crate) fn length(&self) -> socklen_t {
        // SAFETY: as above.
        let bytes = match c_int::from(unsafe { self.0.family }) {
            libc::AF_INET6 => size_of::<sockaddr_in6>(),
            _ => size_of::<sockaddr_in>(),
        };
        bytes as socklen_t
    }

    /// Returns the address; `0.0.0.0:0` if the kernel wrote none.
    pub fn address(&self) -> SocketAddr {
        let name = &self.0;
        // SAFETY: all bytes were zeroed initially, and every field is plain integers: any field may
        // be read.
        let (family, v4, v6) = unsafe { (name.family, name.v4, name.v6) };
        match c_int::from(family) {
            libc::AF_INET => SocketAddrV4::new(v4_from_kernel(v4.sin_addr), u16::from_be(v4.sin_port)).into(),
            libc::AF_INET6 => SocketAddrV6::new(
                Ipv6Addr::from(v6.sin6_addr.s6_addr),
                u16::from_be(v6.sin6_port),
                v6.sin6_flowinfo,
                v6.sin6_scope_id,
            )
            .into(),
            _ => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self(SockAddr::new(&address))
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

/// Buffer for the control messages of one datagram.
///
/// PKTINFO and the drop counter need 64 bytes; the rest is for options of an inherited socket.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct ControlBuffer([u8; CONTROL_BYTES]);

impl ControlBuffer {
    /// Creates a buffer with all bytes zero: no message.
    pub(crate) fn empty() -> Self {
        Self([0; CONTROL_BYTES])
    }

    /// Returns the pointer for the kernel.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// Sets the source address to `local`; returns the length of the control data.
    pub(crate) fn write_source(&mut self, local: &Local) -> usize {
        match local.address {
            IpAddr::V4(address) => {
                // Interface 0: the route decides, as for a socket bound to that address.
                let info = in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: v4_to_kernel(address),
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                self.write(libc::IPPROTO_IP, libc::IP_PKTINFO, info)
            }
            IpAddr::V6(address) => {
                let interface = if address.is_unicast_link_local() { local.interface } else { 0 };
                let info = in6_pktinfo { ipi6_addr: v6_to_kernel(address), ipi6_ifindex: interface };
                self.write(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
            }
        }
    }

    fn write<T: Copy>(&mut self, level: c_int, kind: c_int, data: T) -> usize {
        const { assert!(size_of::<cmsghdr>() + size_of::<T>() + 16 <= CONTROL_BYTES) };
        let header = self.0.as_mut_ptr().cast::<cmsghdr>();
        // SAFETY: the buffer is aligned for a cmsghdr and, as asserted, large enough for one with
        // `data` and padding.
        unsafe {
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<T>() as _) as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(data);
            libc::CMSG_SPACE(size_of::<T>() as _) as usize
        }
    }
}

/// Returns the destination address in the control messages of a received datagram, if its socket
/// reports it.
///
/// # Safety
/// As for [`control_message`].
#[inline]
pub(crate) unsafe fn local_of(header: &msghdr) -> Option<Local> {
    if header.msg_controllen == 0 {
        return None;
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { local_in(header) }
}

/// # Safety
/// As for [`control_message`].
unsafe fn local_in(header: &msghdr) -> Option<Local> {
    // SAFETY: the caller's promise is passed on.
    if let Some(info) = unsafe { control_message::<in_pktinfo>(header, libc::IPPROTO_IP, libc::IP_PKTINFO) } {
        // `ipi_spec_dst`, not `ipi_addr`: for a broadcast it is the address to answer from.
        let address = v4_from_kernel(info.ipi_spec_dst);
        return (!address.is_unspecified())
            .then_some(Local { address: address.into(), interface: info.ipi_ifindex as u32 });
    }
    // SAFETY: the caller's promise is passed on.
    let info = unsafe { control_message::<in6_pktinfo>(header, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) }?;
    let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
    // A multicast address cannot be a source: the route chooses then.
    (!address.is_multicast()).then_some(Local { address: address.into(), interface: info.ipi6_ifindex })
}

/// Returns the data of the first control message of this level and type.
///
/// # Safety
/// `header` is as the kernel left it, its control buffer is live and not written meanwhile, and `T`
/// is plain integers.
pub(crate) unsafe fn control_message<T: Copy>(header: &msghdr, level: c_int, kind: c_int) -> Option<T> {
    // SAFETY: the macros stay within the control length of `header`, which the kernel set.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let long_enough = (*message).cmsg_len as usize >= libc::CMSG_LEN(size_of::<T>() as _) as usize;
            if (*message).cmsg_level == level && (*message).cmsg_type == kind && long_enough {
                return Some(libc::CMSG_DATA(message).cast::<T>().read_unaligned());
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// Creates a message header without name, control or data.
pub(crate) fn empty_message() -> libc::mmsghdr {
    // SAFETY: null pointers and zero lengths mean "none" to the kernel.
    unsafe { zeroed() }
}

fn v4_to_kernel(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

fn v4_from_kernel(address: libc::in_addr) -> Ipv4Addr {
    Ipv4Addr::from(address.s_addr.to_ne_bytes())
}

fn v6_to_kernel(address: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr { s6_addr: address.octets() }
}

pub(crate) const CONTROL_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_roundtrip() {
        for text in ["127.0.0.5:53", "0.0.0.0:0", "[::1]:53", "[fe80::1%7]:5353", "[2001:db8::1]:65535"] {
            let addr: SocketAddr = text.parse().expect("a socket address");
            let peer = Peer::from(addr);
            assert_eq!((peer.address(), peer.port()), (addr, addr.port()));
            assert_eq!(peer.length(), if addr.is_ipv4() { 16 } else { 28 }, "{text}");
        }
        let unspecified = Peer(SockAddr::empty());
        assert_eq!(
            (unspecified.address(), unspecified.port()),
            ("0.0.0.0:0".parse().expect("a socket address"), 0)
        );
    }

    #[test]
    fn source_address_roundtrip() {
        let rows = [
            (Ipv4Addr::new(127, 0, 0, 5).into(), Some(0)),
            (Ipv6Addr::LOCALHOST.into(), Some(0)),
            ("fe80::1".parse().expect("an address"), Some(3)),
            (Ipv4Addr::UNSPECIFIED.into(), None),
            ("ff02::fb".parse().expect("an address"), None),
        ];
        for (address, interface) in rows {
            let mut control = ControlBuffer::empty();
            let mut header = empty_message().msg_hdr;
            header.msg_controllen = control.write_source(&Local { address, interface: 3 }) as _;
            header.msg_control = control.as_mut_ptr();
            // SAFETY: `control` outlives the call and was written in the kernel's layout.
            let found = unsafe { local_of(&header) };
            assert_eq!(found, interface.map(|interface| Local { address, interface }), "{address}");
        }
    }
}
