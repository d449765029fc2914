//! Decides which answers are cached and for how long (RFC 2181, 2308, 7871, 8767).

use std::time::Duration;

use wire::{Answer, Class, Flags, Opcode, Query, RType, Rcode, Section};

use crate::{AnswerKind, CacheSpec, StoreLimits};

/// What the cache does with an upstream's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cacheability {
    /// Store for `life`. `failure`: SERVFAIL or NOTIMP, which never replaces a better answer.
    Keep { kind: AnswerKind, failure: bool, life: Duration },
    /// A valid answer that must not be stored, for example with TTL 0. It removes a stored one.
    Uncacheable(AnswerKind),
    /// A failure that is not stored.
    Failure,
    /// An answer for one client: neither stored, nor does it replace an entry.
    Private,
    /// Treated like `Private`, because the answer does not answer the whole question: a referral, a
    /// CNAME without its target, a truncated answer.
    Incomplete,
}

/// Decides about `answer` to `query`. Clamps the TTLs of cacheable answers in place, even if
/// storing is disabled; leaves all others alone.
pub(crate) fn judge(spec: &CacheSpec, query: &Query<'_>, answer: &mut Answer) -> Cacheability {
    if !may_be_kept(query) || !spec.covers(&query.name) {
        return Cacheability::Private;
    }
    let wanted = |kind| spec.store(kind).capacity > 0 && spec.keeps(kind, &query.name);
    match answer.rcode {
        Rcode::NOERROR | Rcode::NXDOMAIN => {}
        Rcode::SERVFAIL | Rcode::NOTIMP => {
            let life = spec.servfail.min(CacheSpec::MAX_SERVFAIL);
            return if life.is_zero() || answer.subnet_specific || !wanted(AnswerKind::Denial) {
                Cacheability::Failure
            } else {
                Cacheability::Keep { kind: AnswerKind::Denial, failure: true, life }
            };
        }
        _ => return Cacheability::Failure,
    }
    if answer.flags.has(Flags::TC) {
        return Cacheability::Incomplete;
    }
    let kind = match shape(query, answer) {
        Shape::Records if answer.subnet_specific => return Cacheability::Private,
        _ if answer.subnet_specific => return Cacheability::Incomplete,
        Shape::Records => AnswerKind::Success,
        Shape::Denial => AnswerKind::Denial,
        Shape::DenialWithoutSoa => return Cacheability::Uncacheable(AnswerKind::Denial),
        Shape::Elsewhere => return Cacheability::Incomplete,
    };
    if kind == AnswerKind::Denial {
        lower_soa(answer);
    }
    let StoreLimits { max_ttl, min_ttl, .. } = *spec.store(kind);
    answer.clamp_ttls(min_ttl.min(max_ttl), max_ttl);
    if !wanted(kind) {
        return Cacheability::Uncacheable(kind);
    }
    match answer.records().map(|record| record.ttl).min() {
        None | Some(0) => Cacheability::Uncacheable(kind),
        Some(life) => Cacheability::Keep { kind, failure: false, life: Duration::from_secs(life.into()) },
    }
}

/// Whether any answer to this query may be stored.
fn may_be_kept(query: &Query<'_>) -> bool {
    // RFC 6895, section 3.1: 128 to 255 are meta-types and types of queries only.
    let meta_type = matches!(query.rtype, RType(0) | RType::OPT | RType(128..=255));
    let meta_class = matches!(query.class, Class(0) | Class::NONE | Class::ANY);
    is_shareable(query) && query.flags.opcode() == Opcode::QUERY && !meta_type && !meta_class
}

/// Whether the answer to this query holds for other clients: the query has RD, or a rule of the
/// server cleared RD. A client that sends no RD requests the server's present state.
pub(crate) fn is_shareable(query: &Query<'_>) -> bool {
    query.flags.has(Flags::RD) || query.overrides.clears_rd()
}

enum Shape {
    /// The answer has the queried records.
    Records,
    /// NXDOMAIN, or NODATA at the name or at the end of its CNAMEs.
    Denial,
    /// A denial without the SOA that limits its TTL (RFC 2308, section 5: should not be cached).
    DenialWithoutSoa,
    /// A referral, or a CNAME without its target.
    Elsewhere,
}

fn shape(query: &Query<'_>, answer: &Answer) -> Shape {
    let denies = answer.rcode == Rcode::NXDOMAIN;
    let mut soa = false;
    let mut referral = false;
    for record in answer.records() {
        match record.section {
            Section::Answer if record.rtype == query.rtype && !denies => return Shape::Records,
            Section::Authority if record.rtype == RType::SOA => soa = true,
            Section::Authority if record.rtype == RType::NS => referral = true,
            _ => {}
        }
    }
    match (soa, denies, answer.counts[0] > 0 || referral) {
        (true, ..) => Shape::Denial,
        (false, true, _) | (false, false, false) => Shape::DenialWithoutSoa,
        (false, false, true) => Shape::Elsewhere,
    }
}

/// Lowers a denial's SOA TTL to its MINIMUM, if that is less: the denial lives for that time, and
/// is sent with that TTL (RFC 2308, section 5).
fn lower_soa(answer: &mut Answer) {
    let Some((ttl, minimum)) = answer.denial_soa() else { return };
    let at = answer.records().find(|r| r.section == Section::Authority && r.rtype == RType::SOA);
    let Some(field) = at.and_then(|soa| answer.body.get_mut(soa.ttl_at..)?.first_chunk_mut::<4>()) else {
        return;
    };
    *field = seconds(ttl).min(seconds(minimum)).to_be_bytes();
}

/// Returns the TTL in seconds; 0 if its highest bit is set (RFC 2181, section 8).
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, Record, Section, a, cname, ns, soa, soa_data};
    use wire::Name;

    const LIFE: fn(u64) -> Duration = Duration::from_secs;

    fn keep(kind: AnswerKind, seconds: u64) -> Cacheability {
        Cacheability::Keep { kind, failure: false, life: LIFE(seconds) }
    }

    fn store(min_ttl: u32, max_ttl: u32) -> StoreLimits {
        StoreLimits { min_ttl, max_ttl, ..CacheSpec::default().success }
    }

    fn ttls(answer: &Answer) -> Vec<u32> {
        answer.records().map(|record| record.ttl).collect()
    }

    /// Each record's TTL is clamped by itself; the smallest is the life of the answer.
    #[test]
    fn positive_ttls_are_clamped() {
        let ask = Ask::new("www.example.org.", RType::A);
        for (min, max, sent, handed_out, verdict) in [
            (5, 3600, &[300, 60][..], &[300, 60][..], keep(AnswerKind::Success, 60)),
            (5, 3600, &[1, 86400], &[5, 3600], keep(AnswerKind::Success, 5)),
            (5, 3600, &[0], &[5], keep(AnswerKind::Success, 5)),
            (0, 3600, &[0, 9], &[0, 9], Cacheability::Uncacheable(AnswerKind::Success)),
            // RFC 2181, section 8.
            (5, 3600, &[0x8000_0000], &[5], keep(AnswerKind::Success, 5)),
            // The maximum wins.
            (5, 3, &[1, 100], &[3, 3], keep(AnswerKind::Success, 3)),
            (10, 10, &[1, 100], &[10, 10], keep(AnswerKind::Success, 10)),
        ] {
            let spec = CacheSpec { success: store(min, max), ..CacheSpec::default() };
            let mut answer = ask.addresses(sent);
            assert_eq!(judge(&spec, &ask.query(), &mut answer), verdict, "{min} {max} {sent:?}");
            assert_eq!(ttls(&answer), handed_out, "{min} {max} {sent:?}");
        }
    }

    #[test]
    fn denial_ttl_from_soa() {
        let ask = Ask::new("www.example.org.", RType::A);
        for (min, max, ttl, minimum, life) in [
            // RFC 2308, section 5: the lesser of the two.
            (5, 1800, 3600, 60, 60),
            (5, 1800, 60, 3600, 60),
            (5, 1800, 86400, 86400, 1800),
            (5, 1800, 3600, 0, 5),
            (5, 1800, 3600, 0xffff_ffff, 5),
        ] {
            let spec = CacheSpec { denial: store(min, max), ..CacheSpec::default() };
            for rcode in [Rcode::NXDOMAIN, Rcode::NOERROR] {
                let mut answer = ask.answer(rcode, 0, &[soa(ttl, &soa_data(minimum))]);
                let verdict = judge(&spec, &ask.query(), &mut answer);
                assert_eq!(verdict, keep(AnswerKind::Denial, life), "{rcode} {ttl} {minimum}");
                assert_eq!(ttls(&answer), [life as u32], "{rcode} {ttl} {minimum}");
            }
        }
        let spec = CacheSpec { denial: store(0, 1800), ..CacheSpec::default() };
        let mut answer = ask.nxdomain(0, 60);
        assert_eq!(judge(&spec, &ask.query(), &mut answer), Cacheability::Uncacheable(AnswerKind::Denial));
    }

    #[test]
    fn cacheability_by_content() {
        let ask = Ask::new("www.example.org.", RType::A);
        let data = soa_data(30);
        let glue = Record(Section::Additional, "ns.example.org.", RType::A, 20, &[192, 0, 2, 2]);
        let denial = |life| keep(AnswerKind::Denial, life);
        let failure = Cacheability::Keep { kind: AnswerKind::Denial, failure: true, life: LIFE(5) };
        for (what, rcode, flags, records, verdict) in [
            ("address", Rcode::NOERROR, 0, &[a("www.example.org.", 60)][..], keep(AnswerKind::Success, 60)),
            (
                "alias and address",
                Rcode::NOERROR,
                0,
                &[cname("www.example.org.", 40), a("web.example.org.", 60)],
                keep(AnswerKind::Success, 40),
            ),
            (
                "with glue",
                Rcode::NOERROR,
                0,
                &[a("www.example.org.", 60), ns(50), glue],
                keep(AnswerKind::Success, 20),
            ),
            // RFC 2308, section 2.2: NODATA.
            ("nodata", Rcode::NOERROR, 0, &[soa(60, &data)], denial(30)),
            ("nodata with NS", Rcode::NOERROR, 0, &[soa(60, &data), ns(60)], denial(30)),
            (
                "alias to nodata",
                Rcode::NOERROR,
                0,
                &[cname("www.example.org.", 10), soa(60, &data)],
                denial(10),
            ),
            // RFC 2308, section 2.1: NXDOMAIN, at the end of an alias too.
            ("nxdomain", Rcode::NXDOMAIN, 0, &[soa(60, &data)], denial(30)),
            (
                "alias to nxdomain",
                Rcode::NXDOMAIN,
                0,
                &[cname("www.example.org.", 10), soa(60, &data)],
                denial(10),
            ),
            // RFC 2308, section 5: not without an SOA.
            ("nxdomain, no SOA", Rcode::NXDOMAIN, 0, &[], Cacheability::Uncacheable(AnswerKind::Denial)),
            ("nothing", Rcode::NOERROR, 0, &[], Cacheability::Uncacheable(AnswerKind::Denial)),
            ("referral", Rcode::NOERROR, 0, &[ns(60)], Cacheability::Incomplete),
            (
                "alias to nowhere",
                Rcode::NOERROR,
                0,
                &[cname("www.example.org.", 60)],
                Cacheability::Incomplete,
            ),
            ("truncated", Rcode::NOERROR, Flags::TC, &[a("www.example.org.", 60)], Cacheability::Incomplete),
            ("truncated denial", Rcode::NXDOMAIN, Flags::TC, &[soa(60, &data)], Cacheability::Incomplete),
            ("servfail", Rcode::SERVFAIL, 0, &[], failure),
            ("notimp", Rcode::NOTIMP, 0, &[], failure),
            ("refused", Rcode::REFUSED, 0, &[], Cacheability::Failure),
            ("formerr", Rcode::FORMERR, 0, &[], Cacheability::Failure),
            ("yxdomain", Rcode::YXDOMAIN, 0, &[], Cacheability::Failure),
        ] {
            let mut answer = ask.answer(rcode, flags, records);
            assert_eq!(judge(&CacheSpec::default(), &ask.query(), &mut answer), verdict, "{what}");
        }
    }

    #[test]
    fn uncacheable_queries() {
        let name = "www.example.org.";
        let kept = keep(AnswerKind::Success, 60);
        for (what, ask, verdict) in [
            ("plain", Ask::new(name, RType::A), kept),
            ("DO and CD", Ask::with(name, RType::A, Flags::RD | Flags::CD, true), kept),
            ("chaos", Ask::of_class(name, RType::A, Class::CH, Flags::RD, false), kept),
            ("no RD", Ask::with(name, RType::A, 0, false), Cacheability::Private),
            ("class any", Ask::of_class(name, RType::A, Class::ANY, Flags::RD, false), Cacheability::Private),
            (
                "class none",
                Ask::of_class(name, RType::A, Class::NONE, Flags::RD, false),
                Cacheability::Private,
            ),
            ("any", Ask::new(name, RType::ANY), Cacheability::Private),
            ("mailb", Ask::new(name, RType::MAILB), Cacheability::Private),
        ] {
            let mut answer = ask.addresses(&[60]);
            assert_eq!(judge(&CacheSpec::default(), &ask.query(), &mut answer), verdict, "{what}");
        }
    }

    #[test]
    fn cleared_rd_is_cacheable() {
        let octets = wire::UpstreamOverrides::encode(wire::UpstreamOverrides::NO_RD, &[]);
        let ask = Ask::with("www.example.org.", RType::A, 0, false);
        let query = Query { overrides: wire::UpstreamOverrides::new(&octets), ..ask.query() };
        let mut answer = ask.addresses(&[60]);
        assert_eq!(judge(&CacheSpec::default(), &query, &mut answer), keep(AnswerKind::Success, 60));
    }

    #[test]
    fn subnet_specific_answer_is_not_stored() {
        let ask = Ask::new("www.example.org.", RType::A);
        for (mut answer, verdict) in [
            (ask.addresses(&[60]), Cacheability::Private),
            (ask.nxdomain(60, 60), Cacheability::Incomplete),
            (ask.servfail(), Cacheability::Failure),
        ] {
            answer.subnet_specific = true;
            assert_eq!(judge(&CacheSpec::default(), &ask.query(), &mut answer), verdict);
        }
    }

    #[test]
    fn disabled_zones_still_clamp_ttls() {
        let ask = Ask::new("www.example.org.", RType::A);
        let zone = |text| vec![Name::from_text(text).unwrap()];
        let clamped = [5, 60];
        for (spec, verdict, handed_out) in [
            (
                CacheSpec { zones: zone("example.com."), ..CacheSpec::default() },
                Cacheability::Private,
                [1, 86400],
            ),
            (
                CacheSpec { disabled_success: zone("org."), success: store(5, 60), ..CacheSpec::default() },
                Cacheability::Uncacheable(AnswerKind::Success),
                clamped,
            ),
            (
                CacheSpec { success: StoreLimits { capacity: 0, ..store(5, 60) }, ..CacheSpec::default() },
                Cacheability::Uncacheable(AnswerKind::Success),
                clamped,
            ),
        ] {
            let mut answer = ask.addresses(&[1, 86400]);
            assert_eq!(judge(&spec, &ask.query(), &mut answer), verdict);
            assert_eq!(ttls(&answer), handed_out);
        }
    }

    #[test]
    fn servfail_duration() {
        let ask = Ask::new("www.example.org.", RType::A);
        let root = vec![Name::ROOT];
        for (servfail, disabled, verdict) in [
            (LIFE(0), vec![], Cacheability::Failure),
            (LIFE(5), root, Cacheability::Failure),
            (LIFE(7), vec![], Cacheability::Keep { kind: AnswerKind::Denial, failure: true, life: LIFE(7) }),
            // RFC 2308, section 7.1.
            (
                LIFE(3600),
                vec![],
                Cacheability::Keep { kind: AnswerKind::Denial, failure: true, life: LIFE(300) },
            ),
        ] {
            let spec = CacheSpec { servfail, disabled_denial: disabled, ..CacheSpec::default() };
            assert_eq!(judge(&spec, &ask.query(), &mut ask.servfail()), verdict, "{servfail:?}");
        }
    }
}
