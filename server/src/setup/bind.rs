//! `bind`: which addresses a server block listens on.

use std::net::IpAddr;

use corefile::{Directive, Word};

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
    /// At the word whose interface does not exist or has no address.
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
                        addresses_of(&word.text)
                            .map_err(|error| corefile::Located::new(&word.at, error.into()))?,
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
        Ok(addresses)
    }
}
