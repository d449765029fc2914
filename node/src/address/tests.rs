use std::net::UdpSocket;
use std::process::Command;

use rtnetlink::packet_route::link::{InfoKind, LinkInfo};

use super::*;
use crate::{addresses_of, has_address};

#[tokio::test]
async fn an_address_of_the_machine_is_left_alone() -> Result<(), NodeError> {
    for ip in ["127.0.0.1", "127.0.0.53"] {
        let added = ensure_address(ip.parse().expect("an address"), AddressPolicy::LinkLocal).await?;
        assert_eq!(added, EnsuredAddress::AlreadyThere { link: "lo".to_owned() });
        assert_eq!(added.link(), "lo");
    }
    Ok(())
}

#[tokio::test]
async fn an_absent_address_that_is_not_link_local_is_an_error_that_names_it() {
    for ip in ["192.0.2.7", "2001:db8::7", "0.0.0.0", "::", "224.0.0.251", "ff02::fb", "::ffff:169.254.1.1"] {
        let error = ensure_address(ip.parse().expect("an address"), AddressPolicy::LinkLocal)
            .await
            .expect_err("absent");
        assert_eq!(error.to_string(), format!("address {ip} is on no interface of this machine"));
    }
}

#[tokio::test]
async fn link_local_addresses_are_added_once_and_can_be_bound_at_once() -> Result<(), NodeError> {
    if !inside_namespace("link_local_addresses_are_added_once_and_can_be_bound_at_once", &[]) {
        return Ok(());
    }
    // Local traffic passes lo, which is down in a new namespace.
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip runs");
    assert!(up.success());
    for ip in ["169.254.10.10", "169.254.10.11", "fe80::a:a"] {
        let ip: IpAddr = ip.parse().expect("an address");
        assert!(!has_address(ip));
        let added = ensure_address(ip, AddressPolicy::LinkLocal).await?;
        // A kernel without dummy links has another kind instead.
        assert!(matches!(&added, EnsuredAddress::AddedTo { link, .. } if link == LINK), "{added:?}");
        assert_eq!(
            ensure_address(ip, AddressPolicy::LinkLocal).await?,
            EnsuredAddress::AlreadyThere { link: LINK.to_owned() }
        );
        assert!(has_address(ip));

        let address = addresses_of(LINK)?.into_iter().find(|own| own.ip == ip).expect("it was added");
        assert_eq!(address.prefix_bits, if ip.is_ipv4() { 32 } else { 128 });
        assert_eq!(address.scope_id != 0, ip.is_ipv6());
        let server = UdpSocket::bind(address.socket_addr(53)).expect("can be bound");
        let client = UdpSocket::bind(address.socket_addr(0)).expect("can be bound");
        server.set_read_timeout(Some(std::time::Duration::from_millis(50))).expect("set");
        // The kernel adds an IPv6 address to its local routes shortly after it can be bound.
        let arrived = (0..200).any(|_| {
            client.send_to(b"query", address.socket_addr(53)).expect("can be sent");
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
    let (one, other) = tokio::join!(
        ensure_address(ip, AddressPolicy::LinkLocal),
        ensure_address(ip, AddressPolicy::LinkLocal)
    );
    assert_eq!((one?.link(), other?.link()), (LINK, LINK));
    assert_eq!(addresses_of(LINK)?.iter().filter(|own| own.ip == ip).count(), 1);
    Ok(())
}

#[tokio::test]
async fn a_kernel_without_dummies_gets_a_bridge_without_ports() -> Result<(), NodeError> {
    if !inside_namespace("a_kernel_without_dummies_gets_a_bridge_without_ports", &[]) {
        return Ok(());
    }
    // The link's kind is reported once, when the link is created.
    for (ip, instead) in [("169.254.10.10", Some(LinkFallback::Bridge)), ("fe80::a:a", None)] {
        let ip: IpAddr = ip.parse().expect("an address");
        let kinds = [unknown(), LinkBridge::new(LINK).build()];
        assert_eq!(
            add_unless_there(ip, AddressPolicy::LinkLocal, &kinds).await?,
            EnsuredAddress::AddedTo { link: LINK.to_owned(), instead }
        );
        assert_eq!(
            ensure_address(ip, AddressPolicy::LinkLocal).await?,
            EnsuredAddress::AlreadyThere { link: LINK.to_owned() }
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
        let added = add_unless_there(ip, AddressPolicy::LinkLocal, &[unknown()]).await?;
        assert_eq!(
            added,
            EnsuredAddress::AddedTo { link: "lo".to_owned(), instead: Some(LinkFallback::Loopback) }
        );
        let address = addresses_of("lo")?.into_iter().find(|own| own.ip == ip).expect("it was added");
        UdpSocket::bind(address.socket_addr(53)).expect("can be bound");
    }
    let ip = |words: &[&str]| Command::new("ip").args(words).status().expect("ip runs");
    assert!(ip(&["address", "add", "169.254.99.99/32", "dev", "lo"]).success());
    let gone = remove_link().await?;
    assert_eq!(gone, ["the address 169.254.10.10 on lo", "the address fe80::a:a on lo"]);
    let left = addresses_of("lo")?.into_iter().filter(|own| !own.ip.is_loopback());
    assert_eq!(left.map(|own| own.ip.to_string()).collect::<Vec<_>>(), ["169.254.99.99"]);
    assert_eq!(remove_link().await?, [""; 0]);
    Ok(())
}

/// A link with another name is created, and another program's link is not changed.
#[tokio::test]
async fn foreign_link_stays() -> Result<(), NodeError> {
    if !inside_namespace("foreign_link_stays", &[]) {
        return Ok(());
    }
    let run = |words: &[&str]| Command::new("ip").args(words).status().expect("ip runs").success();
    assert!(run(&["link", "add", "theirs", "type", "bridge"]));
    for (link, ip) in [
        ("nodelocaldns", "169.254.20.10"),
        ("nodelocaldns", "fd10::10"),
        ("theirs", "10.96.0.10"),
        ("theirs", "fd10::11"),
    ] {
        let ours = AddressPolicy::Named(LinkName::new(link).expect("a name"));
        let added = ensure_address(ip.parse().expect("an address"), ours).await?;
        assert!(matches!(&added, EnsuredAddress::AddedTo { link: to, .. } if to == link), "{added:?}");
    }
    assert!(run(&["address", "add", "10.9.9.9/32", "dev", "theirs"]));
    let up = |name: &str| interfaces().is_ok_and(|all| all.iter().any(|one| one.name == name && one.up));
    assert!(up("nodelocaldns") && !up("theirs"), "the state of another program's link is not changed");
    let gone = remove_link().await?;
    assert_eq!(
        gone,
        [
            "the link nodelocaldns with its addresses",
            "the address 10.96.0.10 on theirs",
            "the address fd10::11 on theirs"
        ]
    );
    let left: Vec<_> = addresses_of("theirs")?.iter().map(|own| own.ip.to_string()).collect();
    assert_eq!(left, ["10.9.9.9"]);
    Ok(())
}

#[test]
fn only_what_an_interface_can_be_called_is_a_name() {
    for name in ["lo", "eth0.100", "fifteen-octets-"] {
        assert_eq!(LinkName::new(name).map(|found| found.as_str().to_owned()).as_deref(), Some(name));
    }
    for name in ["", ".", "..", "a b", "a/b", "a:b", "a%d", "sixteen-octets--", "a\n"] {
        assert_eq!(LinkName::new(name), None, "{name:?}");
    }
}

/// Without permission the error contains the command to run.
#[tokio::test]
async fn missing_permission_error_has_command() {
    // A further user namespace has no rights over the network namespace around it.
    let name = "missing_permission_error_has_command";
    if !inside_namespace(name, &["unshare", "--user", "--map-root-user"]) {
        return;
    }
    let rows = [
        (
            "169.254.10.10",
            "not permitted to add 169.254.10.10 (CAP_NET_ADMIN); run: ip link add localdns type dummy && ip addr add 169.254.10.10/32 dev localdns scope host && ip link set localdns up",
        ),
        (
            "fe80::a:a",
            "not permitted to add fe80::a:a (CAP_NET_ADMIN); run: ip link add localdns type dummy && ip addr add fe80::a:a/128 dev localdns nodad && ip link set localdns up",
        ),
    ];
    for (ip, message) in rows {
        let error = ensure_address(ip.parse().expect("an address"), AddressPolicy::LinkLocal)
            .await
            .expect_err("not permitted");
        assert_eq!(error.to_string(), message);
    }
}

/// A kind of link that no kernel has.
fn unknown() -> LinkMessage {
    let mut unknown = LinkUnspec::new_with_name(LINK).build();
    let kind = LinkInfo::Kind(InfoKind::Other("nosuchkind".to_owned()));
    unknown.attributes.push(LinkAttribute::LinkInfo(vec![kind]));
    unknown
}

/// Returns true inside the test's own network namespace. Otherwise runs this one test in such a
/// namespace, through `wrapper`, and returns false. On a host that allows no namespaces, reports
/// that the test is skipped.
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
        testkit::skip(test, &format!("a network namespace cannot be made: {possible:?}"));
        return false;
    }
    let program = std::env::current_exe().expect("the test's own path");
    let output = unshare(wrapper)
        .arg(program)
        .args(["--exact", &format!("address::tests::{test}"), "--nocapture"])
        .env(MARK, "1")
        .output()
        .expect("it ran a moment ago");
    let printed = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}\n{complained}");
    false
}
