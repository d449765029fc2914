//! Names of pods: addresses with dashes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{Owner, Reply, Section};

use super::apex::push_address;
use super::{Pods, Question, Responder, ZoneAnswer};
use kubernetes_api::objects::Kind;

impl Responder {
    #[inline(never)]
    pub(super) fn pod(
        &self,
        question: &Question<'_>,
        dashed: &[u8],
        namespace: &[u8],
        reply: &mut Reply<'_>,
    ) -> ZoneAnswer {
        if self.rules.pods == Pods::Disabled || !self.shows(namespace) {
            return ZoneAnswer::NoName;
        }
        let Some(address) = address(dashed) else { return ZoneAnswer::NoName };
        if !question.index.has_namespace(namespace) {
            return question.absent(&[Kind::Namespace]);
        }
        if self.rules.pods == Pods::Verified {
            let namespace = str::from_utf8(namespace).unwrap_or_default();
            if question.index.pod_of(address, namespace).is_none() {
                return question.absent(&[Kind::Pod]);
            }
        }
        let only = Some(question.query.rtype);
        match push_address(reply, Section::Answer, Owner::Question, only, self.rules.ttl, address) {
            true => ZoneAnswer::Written,
            false => ZoneAnswer::NoData,
        }
    }
}

/// Parses an address with dashes: three single dashes make an IPv4 address, else it must be an IPv6
/// address.
pub(super) fn address(dashed: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(dashed).ok()?;
    if text.matches('-').count() == 3 && !text.contains("--") {
        return text.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let address = text.replace('-', ":").parse::<Ipv6Addr>().ok()?;
    Some(IpAddr::V6(address).to_canonical())
}
