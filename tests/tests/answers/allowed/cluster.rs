//! Differences of `kubernetes` and `autopath`.

use std::collections::BTreeSet;

use tests::{Message, Record};

use super::{Allowed, is_about_block, ours, theirs};
use crate::run::Case;

pub(super) const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "types of a cluster's names",
        stands: "The type asked for never decides whether there is a name, but for SOA",
        counted_alike: false,
        matches: |case, difference| {
            let name = case.name().to_ascii_lowercase();
            let lacks = name.ends_with(".arpa.") || name.starts_with("dns-version.") || !is_address(case);
            // CoreDNS has no such name, or asks who is next.
            let is_nobodys = theirs(case).rcode() == 3 || theirs(case).flags & AA == 0;
            lacks && is_nobodys && is_nodata(case) && is_about_block(difference)
        },
    },
    Allowed {
        name: "namespaces below pod",
        stands: "A namespace is there below `pod`, too, whatever `pods` says",
        counted_alike: false,
        matches: |case, difference| {
            let is_namespace = case.name().split('.').nth(1) == Some("pod");
            is_namespace && is_nodata(case) && is_about_block(difference)
        },
    },
    Allowed {
        name: "SRV of pods",
        stands: "Names of pods have no SRV records",
        counted_alike: false,
        matches: |case, difference| {
            let is_pod = case.name().to_ascii_lowercase().contains(".pod.");
            is_pod && case.rtype() == 33 && is_nodata(case) && is_about_block(difference)
        },
    },
    Allowed {
        name: "aliases within the zone",
        stands: "is its CNAME alone, or goes on where `fallthrough` lets that name go; in CoreDNS NODATA",
        counted_alike: false,
        matches: |case, difference| {
            let answers = &ours(case).answers;
            let aliases = answers.iter().take_while(|record| record.rtype == 5);
            let leads_within =
                aliases.clone().last().is_some_and(|alias| alias.data.ends_with(".svc.cluster.local."));
            is_cluster(case)
                && leads_within
                && (aliases.count() == answers.len() || case.text().contains("fallthrough\n"))
                && theirs(case).answers.is_empty()
                && is_about_block(difference)
        },
    },
    Allowed {
        name: "targets that fail",
        stands: "An ExternalName whose target has no answer (SERVFAIL, a timeout) is SERVFAIL",
        counted_alike: false,
        matches: |case, difference| {
            is_cluster(case)
                && ours(case).rcode() == 2
                && theirs(case).rcode() == 0
                && theirs(case).answers.iter().all(|record| record.rtype == 5)
                && is_about_block(difference)
        },
    },
    Allowed {
        name: "types of reverse names from outside",
        stands: "reverse names of services are NODATA for other types than PTR",
        counted_alike: false,
        matches: |case, difference| {
            is_outside(case)
                && case.name().to_ascii_lowercase().ends_with(".arpa.")
                && case.rtype() != 12
                && (theirs(case).rcode() == 3 || theirs(case).flags & AA == 0)
                && (ours(case).rcode(), ours(case).answers.len()) == (0, 0)
                && ours(case).authorities.iter().any(|record| record.rtype == 6)
                && is_about_block(difference)
        },
    },
    Allowed {
        name: "an alias for each port",
        stands: "and stands there once, however many ports the service has",
        counted_alike: true,
        matches: |case, difference| {
            let set = |message: &Message| data(message).into_iter().collect::<BTreeSet<_>>();
            is_outside(case)
                && difference.what == "answer"
                && ours(case).answers.first().is_some_and(|record| record.rtype == 5)
                && set(theirs(case)) == set(ours(case))
                && ours(case).answers.len() < theirs(case).answers.len()
        },
    },
    Allowed {
        name: "addresses behind a port",
        stands: "with SRV its addresses are not sent along",
        counted_alike: true,
        matches: |case, difference| {
            let ours = ours(case);
            let leads_out = |record: &Record| !record.data.ends_with(".example.org.");
            is_outside(case)
                && (case.rtype(), difference.what) == (33, "additional")
                && ours.additionals.is_empty()
                && !ours.answers.is_empty()
                && ours.answers.iter().all(leads_out)
        },
    },
    Allowed {
        name: "an alias once more",
        stands: "where it has one of its own, CoreDNS puts that one before it once more",
        counted_alike: true,
        matches: |case, difference| {
            let (theirs, ours) = (data(theirs(case)), data(ours(case)));
            case.text().contains("autopath")
                && difference.what.starts_with("answer")
                && theirs.first().is_some_and(|(rtype, _)| *rtype == 5)
                && theirs.get(1..) == Some(&ours[..])
        },
    },
    Allowed {
        name: "aliases to names below a DNAME",
        stands: "The alias leads to the name that was found, in CoreDNS to the owner of the first record",
        counted_alike: true,
        matches: |case, difference| {
            let has_dname = ours(case).answers.iter().any(|record| record.rtype == 39);
            case.text().contains("autopath") && has_dname && difference.what == "answer"
        },
    },
    Allowed {
        name: "the first domain itself",
        stands: "The name that equals the first domain passes",
        counted_alike: false,
        matches: |case, difference| {
            case.text().contains("autopath")
                && case.name().eq_ignore_ascii_case("t1.svc.cluster.local.")
                && theirs(case).rcode() == 2
                && is_about_block(difference)
        },
    },
];

fn is_outside(case: &Case<'_>) -> bool {
    case.text().contains("k8s_external ")
}

fn is_cluster(case: &Case<'_>) -> bool {
    case.text().contains("kubernetes ")
}

/// Whether we say that the cluster has the name, and not this type of it.
fn is_nodata(case: &Case<'_>) -> bool {
    let ours = ours(case);
    is_cluster(case)
        && (ours.rcode(), ours.answers.len()) == (0, 0)
        && ours.authorities.iter().any(|record| record.rtype == 6 && record.data.starts_with("ns.dns."))
}

fn is_address(case: &Case<'_>) -> bool {
    matches!(case.rtype(), 1 | 28)
}

fn data(message: &Message) -> Vec<(u16, String)> {
    message.answers.iter().map(|record| (record.rtype, record.data.to_ascii_lowercase())).collect()
}

/// Authoritative answer.
const AA: u16 = 0x0400;
