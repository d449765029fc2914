//! `rewrite edns0`: options sent to upstreams, and their effect on responses.

use std::net::IpAddr;

use wire::{Message, OPTION_CLIENT_SUBNET, OPTION_NSID};

use plugin::QueryContext;
use plugin::middleware::EffectiveQuery;

/// One rule.
#[derive(Debug, Clone)]
pub(super) struct Edns0 {
    pub(super) code: u16,
    pub(super) action: Action,
    /// The option's data; unused by `unset`.
    pub(super) data: Data,
    /// Whether the change is undone in responses.
    pub(super) revert: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Changes an existing option, or adds one.
    Set,
    /// Adds an option if there is none.
    Append,
    /// Changes an existing option.
    Replace,
    /// Removes an option.
    Unset,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    Fixed(Vec<u8>),
    Qname,
    Qtype,
    ClientIp,
    ClientPort,
    Protocol,
    ServerIp,
    ServerPort,
    /// A label of `metadata`: without a value the rule does not match.
    Label(String),
    /// Prefix lengths of the client's address in bits, IPv4 and IPv6 (RFC 7871).
    Subnet(u8, u8),
}

/// Undoes a change in a response.
#[derive(Debug)]
pub(super) enum Undo {
    /// The option was added.
    Added(u16),
    /// The option had this data before.
    Was(u16, Vec<u8>),
}

impl Edns0 {
    /// Returns whether the rule matched; adds the steps that undo it to `undo`.
    pub(super) fn apply(
        &self,
        effective: &mut EffectiveQuery<'_>,
        context: &QueryContext<'_>,
        label: &dyn Fn(&str) -> Option<String>,
        undo: &mut Vec<Undo>,
    ) -> bool {
        if self.code == OPTION_CLIENT_SUBNET {
            return self.apply_subnet(effective, context);
        }
        if self.action == Action::Unset {
            effective.remove_options(self.code);
            return true;
        }
        let old = effective.option(self.code).map(<[u8]>::to_vec);
        let value = self.data.value(effective, context, label);
        if self.action == Action::Append && old.is_some() {
            // The rule counts as matched, as in CoreDNS, which adds a second option; `stop` or
            // `continue` applies.
            return value.is_some();
        }
        let fits = self.action != Action::Replace || old.is_some();
        let done = fits && value.is_some_and(|data| effective.set_option(self.code, &data));
        if done && self.revert {
            undo.push(old.map_or(Undo::Added(self.code), |old| Undo::Was(self.code, old)));
        }
        done
    }

    /// Changes the client subnet. A response has a subnet only if the client sent one, so that
    /// nothing needs to be undone.
    fn apply_subnet(&self, effective: &mut EffectiveQuery<'_>, context: &QueryContext<'_>) -> bool {
        let fits = match self.action {
            Action::Append => effective.subnet().is_none(),
            Action::Replace => effective.subnet().is_some(),
            Action::Set | Action::Unset => true,
        };
        if fits {
            // A subnet cannot be made from metadata labels.
            let value =
                (self.action != Action::Unset).then(|| self.data.value(effective, context, &|_| None));
            effective.set_subnet(value.flatten());
        }
        fits
    }
}

impl Data {
    fn value(
        &self,
        effective: &EffectiveQuery<'_>,
        context: &QueryContext<'_>,
        label: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Vec<u8>> {
        let (client, server) = (context.client(), context.server());
        Some(match self {
            Self::Fixed(data) => data.clone(),
            Self::Qname => effective.spelled().into_bytes(),
            Self::Qtype => effective.rtype().0.to_be_bytes().into(),
            Self::ClientIp => octets(client.ip()),
            Self::ClientPort => client.port().to_be_bytes().into(),
            Self::Protocol => context.proto.label().into(),
            Self::ServerIp => octets(server.ip()),
            Self::ServerPort => server.port().to_be_bytes().into(),
            Self::Subnet(v4, v6) => subnet(client.ip(), *v4, *v6),
            Self::Label(name) => label(name)?.into_bytes(),
        })
    }
}

/// Copies rewritten options to the response of a client with EDNS, after applying `undo`, as
/// CoreDNS does for the codes in rules.
pub(super) fn copy_options(
    codes: &[u16],
    undo: &[Undo],
    effective: &EffectiveQuery<'_>,
    response: &mut Message,
) {
    if effective.client_query().edns.is_none() {
        return;
    }
    let known = |code: &u16| codes.contains(code) && ![OPTION_NSID, OPTION_CLIENT_SUBNET].contains(code);
    let mut left: Vec<(u16, &[u8])> = effective.options().filter(|(code, _)| known(code)).collect();
    for undo in undo.iter().rev() {
        let (Undo::Added(code) | Undo::Was(code, _)) = undo;
        let Some(at) = left.iter().position(|(other, _)| other == code) else { continue };
        match undo {
            Undo::Added(_) => drop(left.remove(at)),
            Undo::Was(_, old) => left[at].1 = old,
        }
    }
    for (code, value) in left {
        response.options.push(code, value);
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

/// Returns the data of a client subnet option (RFC 7871, section 6): the address has only the bytes
/// that its prefix needs, and all bits after the prefix are zero.
fn subnet(client: IpAddr, v4: u8, v6: u8) -> Vec<u8> {
    let mut address = octets(client);
    let (family, bits) = if address.len() == 4 { (1, v4) } else { (2, v6) };
    address.truncate(usize::from(bits.div_ceil(8)));
    if let (Some(last), rest @ 1..) = (address.last_mut(), bits % 8) {
        *last &= 0xff << (8 - rest);
    }
    [&[0, family, bits, 0], &address[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::client_subnet_holds;

    #[test]
    fn subnet_octets_and_bits() {
        for (client, v4, v6, option) in [
            ("192.0.2.201", 24, 56, &[0, 1, 24, 0, 192, 0, 2][..]),
            ("192.0.2.201", 26, 56, &[0, 1, 26, 0, 192, 0, 2, 192]),
            ("192.0.2.201", 0, 0, &[0, 1, 0, 0]),
            ("192.0.2.201", 32, 0, &[0, 1, 32, 0, 192, 0, 2, 201]),
            ("::ffff:192.0.2.201", 8, 56, &[0, 1, 8, 0, 192]),
            ("2001:db8:12:34ff::1", 24, 52, &[0, 2, 52, 0, 0x20, 1, 0xd, 0xb8, 0, 0x12, 0x30]),
        ] {
            let made = subnet(client.parse().unwrap(), v4, v6);
            assert_eq!(made, option, "{client} {v4} {v6}");
            assert!(client_subnet_holds(&made));
        }
    }
}
