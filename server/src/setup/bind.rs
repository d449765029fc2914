//! `bind`: which addresses a server block listens on.

use std::net::IpAddr;

use corefile::{Directive, Located, Word};

use super::SetupError;
use super::args::{Args, Result, unknown_property};

const PLUGIN: &str = "bind";

/// Addresses and interfaces as written; interfaces are looked up when the listeners are planned.
#[derive(Debug, Default, Clone)]
pub struct BindSpec {
    /// IP addresses or interface names, in file order.
    pub targets: Vec<Word>,
    /// Addresses, or interfaces with all of theirs, that are left out.
    pub except: Vec<Word>,
}

/// Reads every `bind` of one server block; repeats add up.
pub(crate) fn parse(directives: &[&Directive]) -> Result<BindSpec> {
    let mut spec = BindSpec::default();
    for directive in directives {
        spec.targets.extend_from_slice(Args::new(PLUGIN, directive, "an address or interface").some()?);
        for property in directive.body.iter().flatten() {
            match property.name.text.as_str() {
                "except" => {
                    spec.except
                        .extend_from_slice(Args::new(PLUGIN, property, "an address or interface").some()?);
                }
                _ => return Err(unknown_property(PLUGIN, property, &["except"])),
            }
        }
    }
    Ok(spec)
}

impl BindSpec {
    /// The addresses meant, interfaces expanded by `addresses_of`, each once and in order.
    ///
    /// # Errors
    /// At the word whose interface does not exist or has no address; at the first where `except` leaves none.
    pub(crate) fn addresses(
        &self,
        addresses_of: &dyn Fn(&str) -> std::result::Result<Vec<IpAddr>, node::NodeError>,
    ) -> Result<Vec<IpAddr>> {
        let expand = |words: &[Word]| -> Result<Vec<IpAddr>> {
            let mut addresses = Vec::new();
            for word in words {
                match word.text.parse::<IpAddr>() {
                    Ok(address) => addresses.push(address),
                    Err(_) => addresses.extend(
                        addresses_of(&word.text).map_err(|error| Located::new(&word.at, error.into()))?,
                    ),
                }
            }
            Ok(addresses)
        };
        let except = expand(&self.except)?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in expand(&self.targets)? {
            if !except.contains(&address) && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if let (Some(first), true) = (self.targets.first(), addresses.is_empty()) {
            let rule = "`except` leaves no address to listen on";
            return Err(Located::new(&first.at, SetupError::Order { plugin: PLUGIN, rule }));
        }
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{good, refused, refused_properties};
    use super::*;

    fn addresses_of(name: &str) -> std::result::Result<Vec<IpAddr>, node::NodeError> {
        match name {
            "eth0" => Ok(vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()]),
            "lo" => Ok(vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]),
            _ => Err(node::NodeError::InterfaceAbsent { name: name.to_owned() }),
        }
    }

    fn addresses(lines: &str) -> std::result::Result<String, String> {
        match good(lines).bind.addresses(&addresses_of) {
            Ok(found) => Ok(found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    #[test]
    fn addresses_and_interfaces_add_up_each_once() {
        for (lines, expected) in [
            ("whoami", ""),
            ("bind 127.0.0.1", "127.0.0.1"),
            ("bind ::1 127.0.0.1", "::1 127.0.0.1"),
            ("bind eth0", "10.0.0.1 fe80::1"),
            ("bind 10.0.0.1 eth0 10.0.0.1", "10.0.0.1 fe80::1"),
            ("bind 127.0.0.1\nbind eth0", "127.0.0.1 10.0.0.1 fe80::1"),
            ("bind eth0 {\nexcept fe80::1\n}", "10.0.0.1"),
            ("bind eth0 lo {\nexcept lo\nexcept fe80::1 192.0.2.1\n}", "10.0.0.1"),
            ("bind eth0 {\nexcept 10.0.0.1\n}\nbind lo", "fe80::1 127.0.0.1 ::1"),
        ] {
            assert_eq!(addresses(lines), Ok(expected.to_owned()), "{lines}");
        }
    }

    #[test]
    fn what_cannot_be_bound_is_told_at_its_word() {
        for (lines, error) in [
            ("bind eth9", "Corefile:2:6: plugin/bind: no interface \"eth9\" on this machine"),
            ("bind lo eth9", "Corefile:2:9: plugin/bind: no interface \"eth9\" on this machine"),
            ("bind lo {\nexcept eth9\n}", "Corefile:3:8: plugin/bind: no interface \"eth9\" on this machine"),
            ("bind 1.2.3", "Corefile:2:6: plugin/bind: no interface \"1.2.3\" on this machine"),
            ("bind lo {\nexcept lo\n}", "Corefile:2:6: plugin/bind: `except` leaves no address to listen on"),
        ] {
            assert_eq!(addresses(lines), Err(error.to_owned()), "{lines}");
        }
        refused(&[("bind", "2:1: plugin/bind: `bind` wants an address or interface")]);
        refused_properties(
            "bind lo",
            &[
                ("except", "1: plugin/bind: `except` wants an address or interface"),
                ("exept lo", "1: plugin/bind: unknown property \"exept\"; did you mean `except`?"),
            ],
        );
    }
}
