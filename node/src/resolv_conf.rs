//! Parses the `nameserver` and `search` lines of a resolv.conf. Reads text, not files.

use std::net::SocketAddr;

use super::link_index;
use super::socket_addr::address_by;

/// Returns the name servers of `text`, with port 53, in order, without duplicates, at most
/// [`MAX_NAME_SERVERS`].
///
/// Other lines and invalid addresses are skipped, as resolvers do. An IPv6 scope name is resolved
/// to its interface; the line is skipped if there is no such interface.
pub fn name_servers(text: &str) -> Vec<SocketAddr> {
    parse(text, link_index)
}

fn parse(text: &str, scope: impl Fn(&str) -> Option<u32>) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        let server = words.next().and_then(|word| address_by(word, 53, &scope));
        if let Some(server) = server.filter(|server| !servers.contains(server)) {
            servers.push(server);
        }
        if servers.len() == MAX_NAME_SERVERS {
            break;
        }
    }
    servers
}

/// Returns the domains of the last `search` or `domain` line of `text` (resolv.conf(5)), as
/// written.
pub fn search_list(text: &str) -> Vec<&str> {
    let mut domains = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("search") => domains = words.collect(),
            Some("domain") => domains = words.take(1).collect(),
            _ => {}
        }
    }
    domains
}

/// Maximum number of name servers, the same as for the upstreams of a `forward`.
pub const MAX_NAME_SERVERS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<String> {
        let scope = |name: &str| (name == "eth0").then_some(2);
        parse(text, scope).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_valid_nameserver_lines_count() {
        for (text, servers) in [
            ("", &[][..]),
            ("nameserver 168.63.129.16\nsearch a.b\noptions ndots:5", &["168.63.129.16:53"]),
            ("# nameserver 1.1.1.1\n;nameserver 1.1.1.1\nnameserver", &[]),
            (
                "nameserver\t1.1.1.1 # first\r\n  nameserver 2001:db8::1\r\n",
                &["1.1.1.1:53", "[2001:db8::1]:53"],
            ),
            ("nameserver 1.1.1.1\nnameserver 1.1.1.1", &["1.1.1.1:53"]),
            ("nameserver fe80::1%eth0\nnameserver fe80::2%7", &["[fe80::1%2]:53", "[fe80::2%7]:53"]),
            ("nameserver fe80::1%gone\nnameserver 1.1.1.1%eth0\nnameserver one.one", &[]),
            ("nameservers 1.1.1.1", &[]),
        ] {
            assert_eq!(parsed(text), servers, "{text:?}");
        }
    }

    #[test]
    fn the_last_line_with_domains_counts() {
        for (text, domains) in [
            ("", &[][..]),
            (
                "nameserver 10.96.0.10\nsearch a.svc.cluster.local svc.cluster.local\toptions\noptions ndots:5",
                &["a.svc.cluster.local", "svc.cluster.local", "options"],
            ),
            ("search a b\ndomain c d\n", &["c"]),
            ("domain c\r\nsearch a b\r\n", &["a", "b"]),
            ("search a\nsearch", &[]),
            ("#search a\n;domain b\nsearches c", &[]),
        ] {
            assert_eq!(search_list(text), domains, "{text:?}");
        }
    }

    #[test]
    fn a_long_list_ends_at_fifteen() {
        let text: String = (0..100).map(|at| format!("nameserver 192.0.2.{at}\n")).collect();
        assert_eq!(parsed(&text).len(), MAX_NAME_SERVERS);
    }
}
