//! `dns64`: makes AAAA records of A records, for clients behind a NAT64 (RFC 6147).
//!
//! ```text
//! AAAA -> rest of the block -> AAAA record, or NXDOMAIN: the answer
//!                           -> else A -> rest of the block -> AAAA records made of A records
//! PTR of an address with the prefix -> CNAME to the PTR of its IPv4 address, if there is one
//! ```

mod prefix;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use corefile::Directive;
use metrics::counters::PerThread;
use metrics::{Families, Metric};
use wire::{Class, Flags, Message, Name, Opcode, RType, Rcode, Rr, Section, reverse};

use self::prefix::Prefix;
use crate::server_counters::ServerCounters;
use plugin::QueryContext;
use plugin::args::{Args, Result, flag, no_block, once, unknown_property};
use plugin::failure::Failure;
use plugin::middleware::{
    EffectiveQuery, HookResult, Middleware, NeedsSubquery, OnQuery, ResponseHook, Subqueries, SubqueryResult,
};
use plugin::reload_state::Persistent;
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};

/// The `dns64` of a server block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dns64Spec {
    /// The prefix of addresses that are made; default 64:ff9b::/96.
    prefix: Prefix,
    /// Whether AAAA records of a name are replaced; default no.
    translate_all: bool,
    /// Whether clients over IPv4 get such addresses; default no.
    allow_ipv4: bool,
}

/// Reads the one `dns64` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    Ok(Arc::new(Dns64Spec::read(directives)?))
}

impl Dns64Spec {
    /// As in CoreDNS, the last prefix applies.
    fn read(directives: &[&Directive]) -> Result<Self> {
        let directive = once(PLUGIN, directives)?;
        let mut spec = Self { prefix: Prefix::WELL_KNOWN, translate_all: false, allow_ipv4: false };
        let mut args = Args::new(PLUGIN, directive, "at most one prefix");
        if let Some(word) = args.optional() {
            spec.prefix = Prefix::read(word)?;
        }
        args.end()?;
        for property in directive.body.iter().flatten() {
            match property.name.text.as_str() {
                "prefix" => {
                    no_block(PLUGIN, property)?;
                    let mut args = Args::new(PLUGIN, property, prefix::EXPECTED);
                    spec.prefix = Prefix::read(args.required()?)?;
                    args.end()?;
                }
                "translate_all" => spec.translate_all = flag(PLUGIN, property)?,
                "allow_ipv4" => spec.allow_ipv4 = flag(PLUGIN, property)?,
                _ => return Err(unknown_property(PLUGIN, property, &PROPERTIES)),
            }
        }
        Ok(spec)
    }

    /// Returns the effect on a query, regardless of its client.
    fn effect(&self, effective: &EffectiveQuery<'_>) -> Option<Effect> {
        let query = effective.client_query();
        // RFC 6147, section 5.5: "If the CD bit is set and DO is set, then vDNS64 MAY perform
        // validation, but MUST NOT perform synthesis."
        let validates = query.dnssec_ok() && query.flags.has(Flags::CD);
        if validates || query.flags.opcode() != Opcode::QUERY || effective.class() != Class::IN {
            return None;
        }
        match effective.rtype() {
            RType::AAAA => Some(Effect::Translates),
            RType::PTR => {
                self.reverse_name(effective.name()).map(|name| Effect::Alias(Box::new(Alias(name))))
            }
            _ => None,
        }
    }

    /// Returns the reverse name of the IPv4 address that is embedded in the address of `name`. RFC
    /// 6147, section 5.3.1: the prefix is the own one or 64:ff9b::/96.
    fn reverse_name(&self, name: &Name) -> Option<Name> {
        let Some(IpAddr::V6(address)) = reverse::address(name) else { return None };
        let mut prefixes = [self.prefix, Prefix::WELL_KNOWN].into_iter();
        let [a, b, c, d] = prefixes.find_map(|prefix| prefix.extract(address))?.octets();
        Name::from_text(&format!("{d}.{c}.{b}.{a}.in-addr.arpa")).ok()
    }

    fn serves(&self, client: IpAddr) -> bool {
        self.allow_ipv4 || client.to_canonical().is_ipv6()
    }
}

/// The effect on a query.
#[derive(Debug)]
enum Effect {
    /// AAAA records are made of A records.
    Translates,
    /// The answer is a CNAME to a name that has a PTR record.
    Alias(Box<Alias>),
}

impl MiddlewareSpec for Dns64Spec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        let registry: Arc<Dns64Counters> = context.reload_state.get();
        let counter = |server: &String| (server.clone(), registry.0.counter(server, context.threads));
        let translated = context.servers.iter().map(counter).collect();
        Ok(Arc::new(Dns64 { spec: *self, translated }))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

/// The middleware of one server block.
#[derive(Debug)]
struct Dns64 {
    spec: Dns64Spec,
    /// Counters of translated queries, by server.
    translated: Vec<(String, Arc<PerThread>)>,
}

impl Middleware for Dns64 {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, context: &QueryContext<'_>) -> OnQuery<'s> {
        if !self.spec.serves(context.client().ip()) {
            return OnQuery::Pass;
        }
        match self.spec.effect(effective) {
            Some(Effect::Translates) => OnQuery::Hook(Box::new(self)),
            Some(Effect::Alias(alias)) => OnQuery::NeedsSubquery(alias),
            None => OnQuery::Pass,
        }
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, client: Option<IpAddr>) -> Explanation {
        let Dns64Spec { prefix, translate_all, .. } = self.spec;
        if client.is_some_and(|client| !self.spec.serves(client)) {
            return Explanation::Passes(None);
        }
        let effect = self.spec.effect(effective).map(|effect| match effect {
            Effect::Translates if translate_all => {
                format!("AAAA records in {prefix} are made of A records; others are omitted")
            }
            Effect::Translates => {
                format!("without AAAA records, AAAA records in {prefix} are made of A records")
            }
            Effect::Alias(alias) => {
                format!("a CNAME to {} is the answer if that name has a PTR record", alias.0)
            }
        });
        let clients = if client.is_none() && !self.spec.allow_ipv4 { "for clients over IPv6: " } else { "" };
        Explanation::Passes(effect.map(|effect| format!("{clients}{effect}")))
    }
}

impl ResponseHook for &Dns64 {
    /// RFC 6147, section 5.1.3: no answer is treated as SERVFAIL, and that as an empty answer.
    fn sees_failures(&self) -> bool {
        true
    }

    fn on_response(
        &self,
        effective: &EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        response: &mut Message,
        subqueries: &mut dyn Subqueries,
    ) -> HookResult {
        // RFC 6147, section 5.1.2; any other rcode is treated as an empty NOERROR.
        if response.rcode == Rcode::NXDOMAIN {
            return HookResult::Done;
        }
        if !self.spec.translate_all {
            if response.section(Section::Answer).any(is_usable) {
                omit_excluded(response);
                return HookResult::Done;
            }
            // The records that are cut off may be AAAA. The client retries over TCP.
            if response.flags & Flags::TC != 0 {
                return HookResult::Done;
            }
        }
        // No step above this one changes a query: this is the client's query, or a subquery's.
        let query = effective.client_query();
        let mut for_a = EffectiveQuery::new(query, effective.server, false);
        for_a.set_rtype(RType::A);
        let answer = match subqueries.resolve_below(&for_a, &query.name) {
            None => return HookResult::Waiting,
            Some(SubqueryResult::Failed(failure)) => return HookResult::Failed(failure),
            Some(SubqueryResult::Answer(answer)) => answer,
        };
        if let Some((_, counter)) = self.translated.iter().find(|(server, _)| server == effective.server) {
            subqueries.count_when_answered(counter);
        }
        self.spec.translate(*answer, response);
        HookResult::Done
    }
}

impl Dns64Spec {
    /// Replaces `response` by `answer`, the answer to A, with AAAA records in place of A records.
    /// As in CoreDNS the rest is that of `answer`.
    fn translate(&self, mut answer: Message, response: &mut Message) {
        let has = |message: &Message, rtype| message.section(Section::Answer).any(|rr| rr.rtype == rtype);
        let is_translated = has(&answer, RType::A);
        let both_succeed = [answer.rcode, response.rcode] == [Rcode::NOERROR; 2];
        // The name has neither: the denial of AAAA stands, with its SOA and proofs.
        if !is_translated && both_succeed && !has(response, RType::AAAA) {
            return;
        }
        // RFC 6147, section 5.1.7: "the minimum of the TTL of the original A RR and the SOA RR for
        // the queried domain", or 600 seconds without that SOA.
        let soas = response.section(Section::Authority).filter(|rr| rr.rtype == RType::SOA);
        let most = soas.map(|rr| rr.ttl).min().unwrap_or(TTL_WITHOUT_SOA);
        answer.clear_ad();
        if is_translated {
            // The records are those of no zone.
            answer.flags &= !Flags::AA;
        }
        answer.records.retain(|rr| !is_signature(rr, RType::A));
        for rr in answer.records.iter_mut().filter(|rr| rr.section == Section::Answer) {
            let Ok(octets) = <[u8; 4]>::try_from(&*rr.data) else { continue };
            if rr.rtype == RType::A {
                rr.rtype = RType::AAAA;
                rr.ttl = rr.ttl.min(most);
                rr.data = self.prefix.embed(Ipv4Addr::from(octets)).octets().into();
            }
        }
        *response = answer;
    }
}

/// Removes AAAA records that a client must not use, with their signature, which does not verify the
/// rest (RFC 6147, section 5.1.4).
fn omit_excluded(response: &mut Message) {
    let is_excluded = |rr: &Rr| rr.section == Section::Answer && rr.rtype == RType::AAAA && !is_usable(rr);
    if response.records.iter().any(is_excluded) {
        response.records.retain(|rr| !is_excluded(rr) && !is_signature(rr, RType::AAAA));
        response.clear_ad();
    }
}

/// Whether a record is AAAA with an address outside of ::ffff:0:0/96.
fn is_usable(rr: &Rr) -> bool {
    let octets = <[u8; 16]>::try_from(&*rr.data);
    rr.rtype == RType::AAAA && octets.is_ok_and(|octets| Ipv6Addr::from(octets).to_ipv4_mapped().is_none())
}

/// Whether a record of the answer section is the signature of records of this type.
fn is_signature(rr: &Rr, of: RType) -> bool {
    rr.section == Section::Answer && rr.rtype == RType::RRSIG && rr.data.starts_with(&of.0.to_be_bytes())
}

/// The answer to PTR for an address with the prefix: a CNAME to this name (RFC 6147, section
/// 5.3.1).
#[derive(Debug)]
struct Alias(Name);

impl<'s> NeedsSubquery<'s> for Alias {
    fn resume(
        &self,
        effective: &mut EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        subqueries: &mut dyn Subqueries,
    ) -> Option<OnQuery<'s>> {
        let mut response = match subqueries.resolve(&self.0, RType::PTR, Class::IN)? {
            SubqueryResult::Answer(response) => response,
            SubqueryResult::Failed(Failure::NoZone) => return Some(OnQuery::Pass),
            SubqueryResult::Failed(Failure::Dropped) => return Some(OnQuery::Drop),
            SubqueryResult::Failed(failure) => return Some(OnQuery::Fail(failure)),
        };
        response.clear_ad();
        response.flags &= !Flags::AA;
        match response.rcode {
            Rcode::NOERROR | Rcode::NXDOMAIN => {
                let ptr = response.section(Section::Answer).find(|rr| rr.rtype == RType::PTR);
                // The PTR record may be cut off.
                if ptr.is_none() && response.flags & Flags::TC == 0 {
                    return Some(OnQuery::Pass);
                }
                let ttl = ptr.map_or(0, |rr| rr.ttl);
                let alias = Rr::new(Section::Answer, effective.name(), RType::CNAME, ttl, self.0.as_wire());
                response.records.insert(0, alias);
            }
            // The client gets the failure.
            _ => response.records.clear(),
        }
        Some(OnQuery::Answer(response))
    }
}

/// Counters of all `dns64` directives.
#[derive(Debug, Default)]
struct Dns64Counters(ServerCounters);

impl Persistent for Dns64Counters {
    fn collect(&self, into: &mut Families) {
        self.0.collect(TRANSLATED, into);
    }
}

const PLUGIN: &str = "dns64";
const PROPERTIES: [&str; 3] = ["prefix", "translate_all", "allow_ipv4"];
/// In seconds.
const TTL_WITHOUT_SOA: u32 = 600;
const TRANSLATED: Metric = Metric {
    name: "coredns_dns64_requests_translated_total",
    help: "Counter of DNS requests translated by dns64.",
};

#[cfg(test)]
mod tests;
