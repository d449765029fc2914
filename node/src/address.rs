//! Adds the server's listen addresses to the host's interfaces.

mod owned_addresses;
mod removal;

use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressProtocol, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::{Handle, LinkBridge, LinkDummy, LinkUnspec, new_connection};

pub use owned_addresses::added_addresses;
pub use removal::{remove_addresses, remove_link};

use crate::NodeError;
use crate::interface::{holder_of_address, interfaces};

/// The interface of an address, and whether the address was added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnsuredAddress {
    /// The address was on an interface already; nothing was changed.
    AlreadyThere {
        /// The interface.
        link: String,
    },
    /// The address was added, and stays when the process ends.
    AddedTo {
        /// The interface: [`AddressPolicy::link`], or `lo` on a kernel with neither dummy nor
        /// bridge links.
        link: String,
        /// The kind of the interface, if the kernel has no dummy links.
        instead: Option<LinkFallback>,
    },
}

/// The link with our addresses on a kernel without dummy links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFallback {
    /// A bridge without ports.
    #[error("this kernel has no dummy links: the addresses are on a bridge without ports")]
    Bridge,
    /// The loopback interface.
    #[error("this kernel has neither dummy nor bridge links: the addresses are on lo")]
    Loopback,
}

impl EnsuredAddress {
    /// Returns the interface that has the address.
    pub fn link(&self) -> &str {
        match self {
            Self::AlreadyThere { link } | Self::AddedTo { link, .. } => link,
        }
    }

    /// Returns the kind of the link that the address was added to, if it is not a dummy.
    pub fn instead(&self) -> Option<LinkFallback> {
        match self {
            Self::AlreadyThere { .. } => None,
            Self::AddedTo { instead, .. } => *instead,
        }
    }
}

/// The absent listen addresses that localdns adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressPolicy {
    /// Link-local addresses: 169.254.0.0/16, fe80::/10.
    #[default]
    LinkLocal,
    /// All addresses of the configuration, service addresses included, except fe80::/10, which pods
    /// cannot reach. They are added to this link.
    Named(LinkName),
    /// No addresses, after `node down`. Existing addresses are still served.
    Nothing,
}

/// A valid name of a network interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkName {
    octets: [u8; LONGEST_NAME],
    length: usize,
}

impl LinkName {
    /// Accepts 1 to 15 bytes without whitespace, control characters, `/`, `:` and `%`; `None` for
    /// any other text, and for `.` and `..`.
    pub fn new(text: &str) -> Option<Self> {
        let is_none = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':' || c == '%';
        if text.is_empty() || text.contains(is_none) || text == "." || text == ".." {
            return None;
        }
        let mut octets = [0; LONGEST_NAME];
        octets.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { octets, length: text.len() })
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        match self.octets.get(..self.length).map(str::from_utf8) {
            Some(Ok(name)) if !name.is_empty() => name,
            _ => LINK,
        }
    }
}

impl Default for LinkName {
    /// Returns the name [`LINK`].
    fn default() -> Self {
        Self { octets: [0; LONGEST_NAME], length: 0 }
    }
}

impl std::fmt::Debug for LinkName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl AddressPolicy {
    /// Whether localdns adds this address if it is absent.
    pub fn includes(self, ip: IpAddr) -> bool {
        let is_other = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
        match (self, ip) {
            (Self::LinkLocal, IpAddr::V4(ip)) => ip.is_link_local(),
            (Self::LinkLocal, IpAddr::V6(ip)) => ip.is_unicast_link_local(),
            (Self::Named(_), IpAddr::V4(_)) => !is_other,
            (Self::Named(_), IpAddr::V6(ip)) => !is_other && !ip.is_unicast_link_local(),
            (Self::Nothing, _) => false,
        }
    }

    /// Returns the name of the link that addresses are added to, which is created if it does not
    /// exist. If the link is another program's, its other addresses stay.
    pub fn link(&self) -> &str {
        match self {
            Self::LinkLocal | Self::Nothing => LINK,
            Self::Named(link) => link.as_str(),
        }
    }
}

/// Ensures that `ip` is an address of this host: an absent address that `ours` includes is added to
/// the link of [`AddressPolicy::link`], with scope host and a host prefix. Any other address must
/// exist already.
///
/// Idempotent, also for two processes at once. The address stays when the process ends: while no
/// server runs, the kernel refuses queries at once, so that they do not time out.
///
/// # Errors
/// [`NodeError::AddressAbsent`] for an absent address that we do not add;
/// [`NodeError::NotPermitted`], with the commands to add it by hand, without CAP_NET_ADMIN;
/// [`NodeError::Add`] for other errors of the kernel.
pub async fn ensure_address(ip: IpAddr, ours: AddressPolicy) -> Result<EnsuredAddress, NodeError> {
    let link = ours.link();
    add_unless_there(ip, ours, &[LinkDummy::new(link).build(), LinkBridge::new(link).build()]).await
}

/// Returns index and name of the links that localdns created, found by their alias or, for earlier
/// versions, by their name.
async fn our_links(handle: &Handle) -> Result<Vec<(u32, String)>, io::Error> {
    let mut found = Vec::new();
    let mut listed = handle.link().get().execute();
    while let Some(message) = listed.try_next().await.map_err(reason)? {
        let (mut name, mut is_ours) = (String::new(), false);
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(text) => name = text,
                LinkAttribute::IfAlias(alias) => is_ours = alias == ALIAS,
                _ => {}
            }
        }
        if is_ours || name == LINK {
            found.push((message.header.index, name));
        }
    }
    Ok(found)
}

/// Returns the attributes that mark an address as added by localdns on a link that it did not
/// create: its protocol (Linux 5.18; older kernels ignore it) and, for IPv4 and a link name that
/// leaves room, its label.
fn marks(ip: IpAddr, link: &str) -> Vec<AddressAttribute> {
    let label = format!("{link}{LABEL}");
    let label = (ip.is_ipv4() && label.len() <= LONGEST_NAME).then_some(AddressAttribute::Label(label));
    label.into_iter().chain([AddressAttribute::Protocol(PROTOCOL)]).collect()
}

/// Default name of the link with localdns's addresses: a dummy or, if the kernel has none, a bridge
/// without ports.
pub const LINK: &str = "localdns";
/// Maximum length of a link's name.
const LONGEST_NAME: usize = 15;
/// Alias of a link created by localdns.
const ALIAS: &str = "localdns";
/// Suffix of the label of localdns's addresses on a link that it did not create.
const LABEL: &str = ":localdns";
const PROTOCOL: AddressProtocol = AddressProtocol::Other(0x6c);

/// Returns the shell commands that add the address by hand.
pub(crate) fn commands(ip: &IpAddr, link: &str) -> String {
    let (prefix_bits, more) = match ip {
        IpAddr::V4(_) => (32, "scope host"),
        IpAddr::V6(_) => (128, "nodad"),
    };
    format!(
        "ip link add {link} type dummy && ip addr add {ip}/{prefix_bits} dev {link} {more} && ip link set {link} up"
    )
}

async fn add_unless_there(
    ip: IpAddr,
    ours: AddressPolicy,
    kinds: &[LinkMessage],
) -> Result<EnsuredAddress, NodeError> {
    if let Some(interface) = holder_of_address(&interfaces()?, ip) {
        return Ok(EnsuredAddress::AlreadyThere { link: interface.name.clone() });
    }
    if !ours.includes(ip) {
        return Err(NodeError::AddressAbsent { address: ip });
    }
    let failed = |action| {
        move |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied if source.raw_os_error() == Some(Errno::EPERM as i32) => {
                NodeError::NotPermitted { address: ip, link: ours.link().to_owned() }
            }
            _ => NodeError::Add { address: ip, action, source },
        }
    };
    let (connection, handle, _) = new_connection().map_err(failed("open netlink"))?;
    let connection = tokio::spawn(connection);
    let added = async {
        let (link, made, instead) =
            our_link(&handle, ours.link(), kinds).await.map_err(failed("add link"))?;
        let index = if_nametoindex(link).map_err(|errno| failed("find link")(errno.into()))?;
        let links = || async { our_links(&handle).await.map_err(failed("list links")) };
        let is_ours = made || links().await?.iter().any(|(ours, _)| *ours == index);
        if is_ours {
            // The link is set up before the address is added: on a link that is down an IPv6
            // address stays tentative, and cannot be bound.
            let mut up = LinkUnspec::new_with_index(index).up().build();
            up.attributes.push(LinkAttribute::IfAlias(ALIAS.to_owned()));
            let up = handle.link().set(up).execute().await;
            up.map_err(reason).map_err(failed("set link up"))?;
        }
        let marks = if is_ours { Vec::new() } else { marks(ip, link) };
        add_to(&handle, index, ip, marks).await.map_err(failed("add address"))?;
        Ok(EnsuredAddress::AddedTo { link: link.to_owned(), instead })
    }
    .await;
    connection.abort();
    added
}

/// Returns the name of the link to use, whether we created it, and its kind if it is not a dummy:
/// the existing link, else a new one of the first of `kinds` that the kernel has, else the loopback
/// interface.
async fn our_link<'n>(
    handle: &Handle,
    name: &'n str,
    kinds: &[LinkMessage],
) -> Result<(&'n str, bool, Option<LinkFallback>), io::Error> {
    if if_nametoindex(name).is_ok() {
        return Ok((name, false, None));
    }
    for (nth, kind) in kinds.iter().enumerate() {
        let instead = (nth > 0).then_some(LinkFallback::Bridge);
        match handle.link().add(kind.clone()).execute().await.map_err(reason) {
            Ok(()) => return Ok((name, true, instead)),
            // A process that started at the same time has created the link.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok((name, true, None)),
            Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(("lo", false, Some(LinkFallback::Loopback)))
}

async fn add_to(
    handle: &Handle,
    index: u32,
    ip: IpAddr,
    marks: Vec<AddressAttribute>,
) -> Result<(), io::Error> {
    let prefix_bits = if ip.is_ipv4() { 32 } else { 128 };
    let mut request = handle.address().add(index, ip, prefix_bits);
    let message = request.message_mut();
    message.header.scope = AddressScope::Host;
    if ip.is_ipv6() {
        // No other host is on this link: without duplicate address detection (RFC 4862) the address
        // can be bound at once.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message.attributes.extend(marks);
    match request.execute().await.map_err(reason) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        added => added,
    }
}

/// Returns the kernel's error without rtnetlink's wrapper.
fn reason(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        _ => io::Error::other("an unexpected netlink reply"),
    }
}

#[cfg(test)]
mod tests;
