//! `bind`: which addresses a server block listens on.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use corefile::{Directive, Located, Word};

use plugin::SetupError;
use plugin::args::{Args, Result, unknown_property};
use plugin::spec::{ParseContext, PluginSpec};

const PLUGIN: &str = "bind";

/// Addresses and interfaces as written; interfaces are looked up when the listeners are planned.
#[derive(Debug, Default, Clone)]
pub struct BindSpec(Vec<Bind>);

/// One directive.
#[derive(Debug, Clone)]
struct Bind {
    /// IP addresses, including `fe80::1%LINK`, or interface names, in file order.
    targets: Vec<Word>,
    /// Targets to exclude: addresses, or interfaces with all their addresses.
    except: Vec<Word>,
}

/// Reads every `bind` of one server block; repeats add up.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    let mut binds = Vec::new();
    for directive in directives {
        let targets = Args::new(PLUGIN, directive, "an address or interface").some()?.to_vec();
        let mut except = Vec::new();
        for property in directive.body.iter().flatten() {
            match property.name.text.as_str() {
                "except" => {
                    except.extend_from_slice(Args::new(PLUGIN, property, "an address or interface").some()?);
                }
                _ => return Err(unknown_property(PLUGIN, property, &["except"])),
            }
        }
        binds.push(Bind { targets, except });
    }
    Ok(Arc::new(BindSpec(binds)))
}

impl BindSpec {
    /// Returns the listen addresses in order, without duplicates and with port 0; `addresses_of`
    /// expands interfaces. A link-local IPv6 address has an interface if the directive names it.
    ///
    /// # Errors
    /// An interface does not exist or has no address (error at its word), or `except` leaves no
    /// address (error at the first word).
    pub fn addresses(
        &self,
        addresses_of: &dyn Fn(&str) -> std::result::Result<Vec<SocketAddr>, node::NodeError>,
    ) -> Result<Vec<SocketAddr>> {
        let expand = |words: &[Word]| -> Result<Vec<SocketAddr>> {
            let mut addresses = Vec::new();
            for word in words {
                match address(&word.text) {
                    Some(address) => addresses.push(address),
                    None => addresses.extend(
                        addresses_of(&word.text).map_err(|error| Located::new(&word.at, error.into()))?,
                    ),
                }
            }
            Ok(addresses)
        };
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for Bind { targets, except } in &self.0 {
            let except = expand(except)?;
            let left_out = |address: SocketAddr| {
                except.contains(&address) || except.contains(&SocketAddr::new(address.ip(), 0))
            };
            for address in expand(targets)? {
                if !left_out(address) && !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        if let (Some(first), true) = (self.targets().next(), addresses.is_empty()) {
            let rule = match self.0.iter().all(|bind| bind.except.is_empty()) {
                true => "the interface has no address to listen on; give it one, or name an IP address",
                false => "`except` leaves no address to listen on; leave one",
            };
            return Err(Located::new(&first.at, SetupError::Order { plugin: PLUGIN, rule }));
        }
        Ok(addresses)
    }
}

impl BindSpec {
    /// Returns all words that name addresses, in file order.
    pub fn targets(&self) -> impl Iterator<Item = &Word> {
        self.0.iter().flat_map(|bind| &bind.targets)
    }

    /// Returns the word that names this address.
    pub fn word_of(&self, ip: IpAddr) -> Option<&Word> {
        self.targets().find(|word| address(&word.text).is_some_and(|address| address.ip() == ip))
    }
}

/// Parses `IP`, or `fe80::1%LINK` with the name or index of an interface of this machine.
fn address(text: &str) -> Option<SocketAddr> {
    let link_local = |ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    node::address(text, 0).filter(|address| !text.contains('%') || link_local(address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties};

    fn addresses_of(name: &str) -> std::result::Result<Vec<SocketAddr>, node::NodeError> {
        match name {
            "eth0" => Ok(vec!["10.0.0.1:0".parse().unwrap(), "[fe80::1%7]:0".parse().unwrap()]),
            "bare0" => Ok(Vec::new()),
            "lo" => Ok(vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()]),
            _ => Err(node::NodeError::InterfaceAbsent { name: name.to_owned() }),
        }
    }

    fn addresses(lines: &str) -> std::result::Result<String, String> {
        match parsed::<BindSpec>(lines).unwrap_or_default().addresses(&addresses_of) {
            Ok(found) => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                Ok(found
                    .iter()
                    .map(|address| address.strip_suffix(":0").unwrap())
                    .collect::<Vec<_>>()
                    .join(" "))
            }
            Err(error) => Err(format!("{error:#}")),
        }
    }

    #[test]
    fn addresses_and_interfaces_add_up() {
        for (lines, expected) in [
            ("whoami", ""),
            ("bind 127.0.0.1", "127.0.0.1"),
            ("bind ::1 127.0.0.1", "[::1] 127.0.0.1"),
            ("bind ::ffff:127.0.0.1", "127.0.0.1"),
            ("bind ::ffff:127.0.0.1 127.0.0.1 lo {\nexcept ::1\n}", "127.0.0.1"),
            ("bind lo {\nexcept ::ffff:127.0.0.1\n}", "[::1]"),
            ("bind eth0", "10.0.0.1 [fe80::1%7]"),
            ("bind 10.0.0.1 eth0 10.0.0.1", "10.0.0.1 [fe80::1%7]"),
            ("bind 127.0.0.1\nbind eth0", "127.0.0.1 10.0.0.1 [fe80::1%7]"),
            ("bind fe80::2 FE80::2%9 fe80::2%lo", "[fe80::2] [fe80::2%9] [fe80::2%1]"),
            ("bind fe80::1%7 eth0", "[fe80::1%7] 10.0.0.1"),
            ("bind eth0 {\nexcept fe80::1%8\n}", "10.0.0.1 [fe80::1%7]"),
            ("bind eth0 {\nexcept fe80::1%7\n}", "10.0.0.1"),
            ("bind eth0 {\nexcept fe80::1\n}", "10.0.0.1"),
            ("bind eth0 lo {\nexcept lo\nexcept fe80::1 192.0.2.1\n}", "10.0.0.1"),
            ("bind eth0 {\nexcept 10.0.0.1\n}\nbind lo", "[fe80::1%7] 127.0.0.1 [::1]"),
            ("bind 10.0.0.1\nbind eth0 lo {\nexcept 10.0.0.1 lo\n}", "10.0.0.1 [fe80::1%7]"),
            ("bind 10.0.0.1\nbind lo {\nexcept lo\n}", "10.0.0.1"),
        ] {
            assert_eq!(addresses(lines), Ok(expected.to_owned()), "{lines}");
        }
    }

    #[test]
    fn bind_errors_have_their_place() {
        for (lines, error) in [
            ("bind eth9", "2:6: plugin/bind: no interface \"eth9\""),
            ("bind lo eth9", "2:9: plugin/bind: no interface \"eth9\""),
            ("bind lo {\nexcept eth9\n}", "3:8: plugin/bind: no interface \"eth9\""),
            ("bind 1.2.3", "2:6: plugin/bind: no interface \"1.2.3\""),
            ("bind fe80::1%eth9", "2:6: plugin/bind: no interface \"fe80::1%eth9\""),
            ("bind ::1%lo", "2:6: plugin/bind: no interface \"::1%lo\""),
        ] {
            let remedy = " on this machine; name one that `ip link` lists, or an IP address";
            assert_eq!(addresses(lines), Err(format!("Corefile:{error}{remedy}")), "{lines}");
        }
        for (lines, error) in [
            ("bind lo {\nexcept lo\n}", "`except` leaves no address to listen on; leave one"),
            ("bind bare0", "the interface has no address to listen on; give it one, or name an IP address"),
        ] {
            assert_eq!(addresses(lines), Err(format!("Corefile:2:6: plugin/bind: {error}")), "{lines}");
        }
        refused(&[("bind", "2:1: plugin/bind: `bind` needs an address or interface")]);
        refused_properties(
            "bind lo",
            &[
                ("except", "1: plugin/bind: `except` needs an address or interface"),
                ("exept lo", "1: plugin/bind: unknown property \"exept\"; did you mean `except`?"),
            ],
        );
    }
}
