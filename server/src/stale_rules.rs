//! What an ended `localdns node` left, as a server meets it that keeps no rules itself.

use std::net::IpAddr;

use node::{NftError, Rules};

/// Why queries to these addresses do not come here, where it is rules that nobody keeps any more; without the right to read them, or
/// without nftables, nothing is known.
pub(crate) fn leads_away(addresses: &[IpAddr]) -> Option<String> {
    let led = || -> Result<Option<IpAddr>, NftError> {
        let mut rules = Rules::open()?;
        if !rules.holders()?.is_empty() {
            return Ok(None);
        }
        Ok(rules.led()?.into_iter().map(|(ip, _)| ip).find(|ip| addresses.contains(ip)))
    };
    let ip = led().ok()??;
    Some(format!(
        "queries to {ip} fail over by rules that an ended `localdns node` left (table inet {}); run: localdns node down",
        node::TABLE
    ))
}
