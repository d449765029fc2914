//! Link-local addresses that the server listens on and that nobody else puts on the machine.

use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressProtocol, AddressScope};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::{Handle, LinkBridge, LinkDummy, LinkUnspec, new_connection};

use crate::NodeError;
use crate::interface::{holder_of_address, interfaces};

/// Where an address is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Added {
    /// It was on an interface already; nothing was changed.
    AlreadyThere {
        /// The interface.
        link: String,
    },
    /// We put it there, and it stays when the process ends.
    AddedTo {
        /// The interface: [`LINK`], or `lo` on a kernel that can make no such link.
        link: String,
    },
}

impl Added {
    /// The interface that has the address.
    pub fn link(&self) -> &str {
        match self {
            Self::AlreadyThere { link } | Self::AddedTo { link } => link,
        }
    }
}

/// Which addresses are ours to add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ours {
    /// Link-local ones: 169.254.0.0/16, fe80::/10.
    #[default]
    LinkLocal,
    /// Whatever the configuration names: a service's address, too. Not those of fe80::/10, which pods cannot reach.
    Named,
}

impl Ours {
    /// Whether this address is.
    pub fn includes(self, ip: IpAddr) -> bool {
        let is_other = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
        match (self, ip) {
            (Self::LinkLocal, IpAddr::V4(ip)) => ip.is_link_local(),
            (Self::LinkLocal, IpAddr::V6(ip)) => ip.is_unicast_link_local(),
            (Self::Named, IpAddr::V4(_)) => !is_other,
            (Self::Named, IpAddr::V6(ip)) => !is_other && !ip.is_unicast_link_local(),
        }
    }
}

/// Sees to it that `ip` is an address of this machine: one that is `ours` to add is added when it is absent, on a link of
/// our own, with scope host and as its only network. Any other must be there already.
///
/// Asking again, or from two processes at once, changes nothing. The address is left in place at exit: as long as
/// it is there a restart costs its clients nothing, and the kernel refuses at once what would else wait.
///
/// # Errors
/// [`NodeError::AddressAbsent`] for an absent address that is not ours to add; [`NodeError::NotPermitted`], with
/// the commands that do it by hand, without CAP_NET_ADMIN; [`NodeError::Add`] for what else the kernel says.
pub async fn ensure_address(ip: IpAddr, ours: Ours) -> Result<Added, NodeError> {
    add_unless_there(ip, ours, &[LinkDummy::new(LINK).build(), LinkBridge::new(LINK).build()]).await
}

/// Takes our link away with all its addresses, and those that we added to the loopback interface where the kernel can make
/// no such link; false where there was neither.
///
/// # Errors
/// What the kernel says.
pub async fn remove_link() -> Result<bool, NodeError> {
    let failed = |source| NodeError::RemoveLink { source };
    let (connection, handle, _) = new_connection().map_err(failed)?;
    let connection = tokio::spawn(connection);
    let removed = async {
        let mut removed = false;
        if let Ok(index) = if_nametoindex(LINK) {
            handle.link().del(index).execute().await.map_err(reason)?;
            removed = true;
        }
        let loopback = if_nametoindex("lo").unwrap_or_default();
        let mut listed = handle.address().get().set_link_index_filter(loopback).execute();
        while let Some(message) = listed.try_next().await.map_err(reason)? {
            if message.header.index == loopback && message.attributes.iter().any(is_mark) {
                handle.address().del(message).execute().await.map_err(reason)?;
                removed = true;
            }
        }
        Ok(removed)
    }
    .await;
    connection.abort();
    removed.map_err(failed)
}

/// Says that we added an address: in IPv4's label, in IPv6's protocol (Linux 5.18; older ones pass it over).
fn mark(ip: IpAddr) -> AddressAttribute {
    match ip {
        IpAddr::V4(_) => AddressAttribute::Label(LABEL.to_owned()),
        IpAddr::V6(_) => AddressAttribute::Protocol(PROTOCOL),
    }
}

fn is_mark(attribute: &AddressAttribute) -> bool {
    match attribute {
        AddressAttribute::Label(label) => label == LABEL,
        AddressAttribute::Protocol(protocol) => *protocol == PROTOCOL,
        _ => false,
    }
}

/// The name of the link that carries our addresses: a dummy or, where the kernel has none, a bridge without ports.
pub const LINK: &str = "localdns";
/// Of an address of ours on the loopback interface.
const LABEL: &str = "lo:localdns";
const PROTOCOL: AddressProtocol = AddressProtocol::Other(0x6c);

/// What an administrator types to do the same.
pub(crate) fn commands(ip: &IpAddr) -> String {
    let (prefix_bits, more) = match ip {
        IpAddr::V4(_) => (32, "scope host"),
        IpAddr::V6(_) => (128, "nodad"),
    };
    format!(
        "ip link add {LINK} type dummy && ip addr add {ip}/{prefix_bits} dev {LINK} {more} && ip link set {LINK} up"
    )
}

async fn add_unless_there(ip: IpAddr, ours: Ours, kinds: &[LinkMessage]) -> Result<Added, NodeError> {
    if let Some(interface) = holder_of_address(&interfaces()?, ip) {
        return Ok(Added::AlreadyThere { link: interface.name.clone() });
    }
    if !ours.includes(ip) {
        return Err(NodeError::AddressAbsent { address: ip });
    }
    let failed = |action| {
        move |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied if source.raw_os_error() == Some(Errno::EPERM as i32) => {
                NodeError::NotPermitted { address: ip }
            }
            _ => NodeError::Add { address: ip, action, source },
        }
    };
    let (connection, handle, _) = new_connection().map_err(failed("open netlink"))?;
    let connection = tokio::spawn(connection);
    let added = async {
        let link = our_link(&handle, kinds).await.map_err(failed("add link"))?;
        let index = if_nametoindex(link).map_err(|errno| failed("find link")(errno.into()))?;
        // Up first: on a link that is down an IPv6 address stays tentative, and cannot be bound.
        let up = handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await;
        up.map_err(reason).map_err(failed("set link up"))?;
        add_to(&handle, index, ip, link != LINK).await.map_err(failed("add address"))?;
        Ok(Added::AddedTo { link: link.to_owned() })
    }
    .await;
    connection.abort();
    added
}

/// The name of the link to use: ours, made of the first kind that the kernel knows; else the loopback interface.
async fn our_link(handle: &Handle, kinds: &[LinkMessage]) -> Result<&'static str, io::Error> {
    if if_nametoindex(LINK).is_ok() {
        return Ok(LINK);
    }
    for kind in kinds {
        match handle.link().add(kind.clone()).execute().await.map_err(reason) {
            Ok(()) => return Ok(LINK),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(LINK),
            Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {}
            Err(error) => return Err(error),
        }
    }
    Ok("lo")
}

async fn add_to(handle: &Handle, index: u32, ip: IpAddr, marked: bool) -> Result<(), io::Error> {
    let prefix_bits = if ip.is_ipv4() { 32 } else { 128 };
    let mut request = handle.address().add(index, ip, prefix_bits);
    let message = request.message_mut();
    message.header.scope = AddressScope::Host;
    if ip.is_ipv6() {
        // Nobody else is on this link: without the search for duplicates the address can be bound at once.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    if marked {
        message.attributes.push(mark(ip));
    }
    match request.execute().await.map_err(reason) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        added => added,
    }
}

/// What the kernel said, without the netlink around it.
fn reason(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;

    use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo};

    use super::*;
    use crate::{addresses_of, has_address};

    #[tokio::test]
    async fn an_address_of_the_machine_is_left_alone() -> Result<(), NodeError> {
        for ip in ["127.0.0.1", "127.0.0.53"] {
            let added = ensure_address(ip.parse().expect("an address"), Ours::LinkLocal).await?;
            assert_eq!(added, Added::AlreadyThere { link: "lo".to_owned() });
            assert_eq!(added.link(), "lo");
        }
        Ok(())
    }

    #[tokio::test]
    async fn an_absent_address_that_is_not_link_local_is_an_error_that_names_it() {
        for ip in
            ["192.0.2.7", "2001:db8::7", "0.0.0.0", "::", "224.0.0.251", "ff02::fb", "::ffff:169.254.1.1"]
        {
            let error =
                ensure_address(ip.parse().expect("an address"), Ours::LinkLocal).await.expect_err("absent");
            assert_eq!(error.to_string(), format!("address {ip} is on no interface of this machine"));
        }
    }

    #[tokio::test]
    async fn link_local_addresses_are_added_once_and_can_be_bound_at_once() -> Result<(), NodeError> {
        if !inside_namespace("link_local_addresses_are_added_once_and_can_be_bound_at_once", &[]) {
            return Ok(());
        }
        // What a machine sends to itself travels over lo, which a fresh namespace has set down.
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip runs");
        assert!(up.success());
        for ip in ["169.254.10.10", "169.254.10.11", "fe80::a:a"] {
            let ip: IpAddr = ip.parse().expect("an address");
            assert!(!has_address(ip));
            assert_eq!(ensure_address(ip, Ours::LinkLocal).await?, Added::AddedTo { link: LINK.to_owned() });
            assert_eq!(
                ensure_address(ip, Ours::LinkLocal).await?,
                Added::AlreadyThere { link: LINK.to_owned() }
            );
            assert!(has_address(ip));

            let address = addresses_of(LINK)?.into_iter().find(|own| own.ip == ip).expect("it was added");
            assert_eq!(address.prefix_bits, if ip.is_ipv4() { 32 } else { 128 });
            assert_eq!(address.scope_id != 0, ip.is_ipv6());
            let server = UdpSocket::bind(address.socket_addr(53)).expect("can be bound");
            let client = UdpSocket::bind(address.socket_addr(0)).expect("can be bound");
            server.set_read_timeout(Some(std::time::Duration::from_millis(50))).expect("set");
            // The kernel puts an IPv6 address into its local routes a moment after it lets it be bound.
            let arrived = (0..200).any(|_| {
                client.send_to(b"heard", address.socket_addr(53)).expect("can be sent");
                server.recv(&mut [0; 16]).is_ok_and(|bytes| bytes == 5)
            });
            assert!(arrived, "{ip} cannot be reached");
        }
        let shown = Command::new("ip").args(["-4", "addr", "show", "dev", LINK]).output().expect("ip runs");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("inet 169.254.10.10/32 scope host"), "{shown}");
        assert!(shown.contains("UP"), "{shown}");
        Ok(())
    }

    #[tokio::test]
    async fn two_at_once_do_not_fail() -> Result<(), NodeError> {
        if !inside_namespace("two_at_once_do_not_fail", &[]) {
            return Ok(());
        }
        let ip: IpAddr = "169.254.10.10".parse().expect("an address");
        let (one, other) =
            tokio::join!(ensure_address(ip, Ours::LinkLocal), ensure_address(ip, Ours::LinkLocal));
        assert_eq!((one?.link(), other?.link()), (LINK, LINK));
        assert_eq!(addresses_of(LINK)?.iter().filter(|own| own.ip == ip).count(), 1);
        Ok(())
    }

    #[tokio::test]
    async fn a_kernel_without_dummies_gets_a_bridge_without_ports() -> Result<(), NodeError> {
        if !inside_namespace("a_kernel_without_dummies_gets_a_bridge_without_ports", &[]) {
            return Ok(());
        }
        for ip in ["169.254.10.10", "fe80::a:a"] {
            let ip: IpAddr = ip.parse().expect("an address");
            let kinds = [unknown(), LinkBridge::new(LINK).build()];
            assert_eq!(
                add_unless_there(ip, Ours::LinkLocal, &kinds).await?,
                Added::AddedTo { link: LINK.to_owned() }
            );
            assert_eq!(
                ensure_address(ip, Ours::LinkLocal).await?,
                Added::AlreadyThere { link: LINK.to_owned() }
            );
            let address = addresses_of(LINK)?.into_iter().find(|own| own.ip == ip).expect("it was added");
            UdpSocket::bind(address.socket_addr(53)).expect("can be bound");
        }
        let shown = |args: &[&str]| {
            let shown = Command::new("ip").args(args).output().expect("ip runs");
            String::from_utf8_lossy(&shown.stdout).into_owned()
        };
        let bridge = shown(&["-details", "link", "show", "dev", LINK]);
        assert!(bridge.contains("    bridge ") && bridge.contains("UP"), "{bridge}");
        assert_eq!(shown(&["link", "show", "master", LINK]), "", "a port");
        let v4 = shown(&["-4", "address", "show", "dev", LINK]);
        assert!(v4.contains("inet 169.254.10.10/32 scope host"), "{v4}");
        Ok(())
    }

    #[tokio::test]
    async fn a_kernel_without_such_links_gets_the_address_on_lo() -> Result<(), NodeError> {
        if !inside_namespace("a_kernel_without_such_links_gets_the_address_on_lo", &[]) {
            return Ok(());
        }
        for ip in ["169.254.10.10", "fe80::a:a"] {
            let ip: IpAddr = ip.parse().expect("an address");
            let added = add_unless_there(ip, Ours::LinkLocal, &[unknown()]).await?;
            assert_eq!(added, Added::AddedTo { link: "lo".to_owned() });
            let address = addresses_of("lo")?.into_iter().find(|own| own.ip == ip).expect("it was added");
            UdpSocket::bind(address.socket_addr(53)).expect("can be bound");
        }
        let ip = |words: &[&str]| Command::new("ip").args(words).status().expect("ip runs");
        assert!(ip(&["address", "add", "169.254.99.99/32", "dev", "lo"]).success());
        assert!(remove_link().await?);
        let left = addresses_of("lo")?.into_iter().filter(|own| !own.ip.is_loopback());
        assert_eq!(left.map(|own| own.ip.to_string()).collect::<Vec<_>>(), ["169.254.99.99"]);
        assert!(!remove_link().await?);
        Ok(())
    }

    #[tokio::test]
    async fn without_permission_the_error_says_what_to_type() {
        // A further user namespace has no say over the network namespace around it.
        let name = "without_permission_the_error_says_what_to_type";
        if !inside_namespace(name, &["unshare", "--user", "--map-root-user"]) {
            return;
        }
        let rows = [
            (
                "169.254.10.10",
                "no permission to add 169.254.10.10 (CAP_NET_ADMIN); run: ip link add localdns type dummy && \
                 ip addr add 169.254.10.10/32 dev localdns scope host && ip link set localdns up",
            ),
            (
                "fe80::a:a",
                "no permission to add fe80::a:a (CAP_NET_ADMIN); run: ip link add localdns type dummy && \
                 ip addr add fe80::a:a/128 dev localdns nodad && ip link set localdns up",
            ),
        ];
        for (ip, message) in rows {
            let error = ensure_address(ip.parse().expect("an address"), Ours::LinkLocal)
                .await
                .expect_err("not permitted");
            assert_eq!(error.to_string(), message);
        }
    }

    /// A kind of link that no kernel knows.
    fn unknown() -> LinkMessage {
        let mut unknown = LinkUnspec::new_with_name(LINK).build();
        let kind = LinkInfo::Kind(InfoKind::Other("nosuchkind".to_owned()));
        unknown.attributes.push(LinkAttribute::LinkInfo(vec![kind]));
        unknown
    }

    /// True inside a network namespace of the test's own. Outside it runs this one test there, through `wrapper`,
    /// and returns false; where the machine allows no namespaces it says so, and the test is skipped.
    fn inside_namespace(test: &str, wrapper: &[&str]) -> bool {
        const MARK: &str = "NODE_TEST_NAMESPACE";
        if std::env::var_os(MARK).is_some() {
            return true;
        }
        let unshare = |words: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--net"]).args(words);
            command
        };
        let possible = unshare(&[wrapper, &["true"]].concat()).output();
        if !possible.as_ref().is_ok_and(|output| output.status.success()) {
            println!("skipped: no network namespace: {possible:?}");
            return false;
        }
        let program = std::env::current_exe().expect("the test's own path");
        let output = unshare(wrapper)
            .arg(program)
            .args(["--exact", &format!("address::tests::{test}"), "--nocapture"])
            .env(MARK, "1")
            .output()
            .expect("it ran a moment ago");
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}\n{complained}");
        false
    }
}
