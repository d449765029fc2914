//! Detects rules of an ended `localdns node`, for a server that has no rules itself.

use std::net::IpAddr;

use node::{NftError, Rules};

/// Returns a warning if rules without a server redirect queries to one of these addresses; `None`
/// also without the right to read rules, or without nftables.
pub(crate) fn redirected_by_stale_rules(addresses: &[IpAddr]) -> Option<String> {
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
