//! Differences of `kubernetes` and `autopath`.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use serde_json::Value;
use tests::kube::{PODS, SERVICES, SLICES};
use tests::{Message, Record};

use super::{Allowed, is_about_block, ours, theirs};
use crate::run::Case;

pub(super) const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "types of a cluster's names",
        stands: "The type asked for never decides whether a name exists, except SOA",
        counted_alike: false,
        matches: |case, difference| {
            let name = case.name().to_ascii_lowercase();
            let lacks = name.ends_with(".arpa.") || name.starts_with("dns-version.") || !is_address(case);
            // CoreDNS denies the name, or passes it to the next plugin.
            let is_nobodys = theirs(case).rcode() == 3 || theirs(case).flags & AA == 0;
            lacks && is_nobodys && is_nodata(case) && is_about_block(difference)
        },
    },
    Allowed {
        name: "version of a set of clusters",
        stands: "`multicluster`: `dns-version` is 1.0.0",
        counted_alike: true,
        matches: |case, difference| {
            let is_version = ["clusterset.local", "cluster.local"].iter().any(|zone| {
                case.name().eq_ignore_ascii_case(&format!("dns-version.{zone}."))
                    && case.text().contains(&format!("multicluster {zone}"))
            });
            is_version
                && case.rtype() == 16
                && difference.what == "answer"
                && data(theirs(case)) == [(16, "\"1.1.0\"".to_owned())]
                && data(ours(case)) == [(16, "\"1.0.0\"".to_owned())]
        },
    },
    Allowed {
        name: "addresses of a set of clusters",
        stands: "clusterset addresses have PTR records to existing names, as KEP-1645 says",
        counted_alike: false,
        matches: |case, difference| {
            let leads_back = ours(case).answers.first().is_some_and(|record| {
                let name = record.data.to_ascii_lowercase();
                record.rtype == 12
                    && [".t1", ".t2"].iter().any(|of| name.ends_with(&format!("{of}.svc.clusterset.local.")))
            });
            // CoreDNS denies the name, or passes it to the next plugin.
            let is_nobodys = theirs(case).answers.is_empty() || theirs(case).flags & AA == 0;
            leads_back && is_nobodys && is_about_block(difference)
        },
    },
    Allowed {
        name: "an address in two zones",
        stands: "`zonal`: an address that endpoints of several zones have is in each of these",
        counted_alike: false,
        matches: |case, difference| {
            let name = case.name().to_ascii_lowercase();
            let is_zonal = [".pin._zone.", ".prefer._zone."].iter().any(|way| name.contains(way));
            case.text().contains("zonal")
                && is_zonal
                && has_two_zones(case, &name)
                && is_about_block(difference)
        },
    },
    Allowed {
        name: "imports without ports",
        stands: "An import without ports has its addresses",
        counted_alike: false,
        matches: |case, difference| {
            let is_portless = case.name().eq_ignore_ascii_case("far.t2.svc.clusterset.local.");
            let there = (theirs(case).rcode(), ours(case).rcode()) == (3, 0);
            is_portless && there && is_about_block(difference)
        },
    },
    Allowed {
        name: "addresses without a service",
        stands: "A slice without a service's name makes no PTR",
        counted_alike: false,
        // A name with an empty label cannot be encoded.
        matches: |case, difference| {
            let is_of_imports =
                [".18.172.in-addr.arpa.", ".19.172.in-addr.arpa.", ".8.1.0.0.0.0.d.f.ip6.arpa."];
            let is_of_imports = is_of_imports.iter().any(|end| case.name().ends_with(end));
            is_of_imports
                && case.rtype() == 12
                && (difference.what, &*difference.theirs) == ("reply", "silence")
        },
    },
    Allowed {
        name: "namespaces below pod",
        stands: "A namespace exists below `pod`, too, whatever `pods` says",
        counted_alike: false,
        matches: |case, difference| {
            let is_namespace = case.name().split('.').nth(1) == Some("pod");
            is_namespace && is_nodata(case) && is_about_block(difference)
        },
    },
    Allowed {
        name: "pods that go",
        stands: "CoreDNS has no name for a pod that was being deleted when it first saw it",
        counted_alike: false,
        matches: |case, difference| {
            // CoreDNS denies the name, or passes it to the next plugin.
            let is_nobodys = theirs(case).rcode() == 3 || theirs(case).flags & AA == 0;
            case.text().contains("pods verified")
                && ours(case).rcode() == 0
                && is_nobodys
                && is_of_pods_that_go(case, &case.name().to_ascii_lowercase())
                && is_about_block(difference)
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
        stands: "is its CNAME alone, or passes on where `fallthrough` lets that name pass; in CoreDNS NODATA",
        counted_alike: false,
        matches: |case, difference| {
            let (theirs, ours) = (theirs(case), ours(case));
            let aliases = ours.answers.iter().take_while(|record| record.rtype == 5).count();
            let (aliases, found) = ours.answers.split_at(aliases);
            let Some(last) = aliases.last() else { return false };
            // The target's records are from the next plugin.
            let falls_through = found.is_empty() || case.text().contains("fallthrough\n");
            is_cluster(case)
                && last.data.to_ascii_lowercase().ends_with(".svc.cluster.local.")
                && falls_through
                && found.iter().all(|record| record.name.eq_ignore_ascii_case(&last.data))
                && ours.rcode() == 0
                && is_denial(theirs)
                && matches!(difference.what, "answer" | "authority")
        },
    },
    Allowed {
        name: "aliases round in circles",
        stands: "Circular ones, or chains of more than 32 names, are SERVFAIL; in CoreDNS NODATA",
        counted_alike: false,
        matches: |case, difference| {
            let is_round = ["extself.t1.", "extping.t1."].iter().any(|round| case.name().starts_with(round));
            is_cluster(case)
                && is_round
                && (ours(case).rcode(), ours(case).answers.len()) == (2, 0)
                && is_denial(theirs(case))
                && is_about_block(difference)
        },
    },
    Allowed {
        name: "twelve aliases",
        stands: "so is a chain of more than eleven of them",
        counted_alike: false,
        matches: |case, difference| {
            let aliases = ours(case).answers.iter().filter(|record| record.rtype == 5).count();
            is_cluster(case)
                && (ours(case).rcode(), aliases) == (0, 12)
                && is_denial(theirs(case))
                && matches!(difference.what, "answer" | "authority")
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
        stands: "and occurs once, however many ports the service has",
        counted_alike: true,
        matches: |case, difference| {
            let set = |message: &Message| data(message).into_iter().collect::<BTreeSet<_>>();
            is_outside(case)
                && difference.what == "answer"
                && ours(case).answers.iter().any(|record| record.rtype == 5)
                && set(theirs(case)) == set(ours(case))
                && ours(case).answers.len() < theirs(case).answers.len()
        },
    },
    Allowed {
        name: "addresses from outside as they are written",
        stands: "An external address has its PTR however its text is written",
        counted_alike: false,
        matches: |case, difference| {
            let is_nobodys = theirs(case).rcode() == 3 || theirs(case).flags & AA == 0;
            is_outside(case)
                && is_nobodys
                && ours(case).rcode() == 0
                && is_written_otherwise(case, &case.name().to_ascii_lowercase())
                && is_about_block(difference)
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
            let (mut theirs, mut ours) = (data(theirs(case)), data(ours(case)));
            let first = (!theirs.is_empty()).then(|| theirs.remove(0));
            // The order of the endpoints is undefined.
            theirs.sort();
            ours.sort();
            case.text().contains("autopath")
                && difference.what.starts_with("answer")
                && first.is_some_and(|alias| alias.0 == 5 && ours.contains(&alias))
                && theirs == ours
        },
    },
    Allowed {
        name: "aliases to names below a DNAME",
        stands: "The alias points to the name that was found, in CoreDNS to the owner of the first record",
        counted_alike: true,
        matches: |case, difference| {
            let has_dname = ours(case).answers.iter().any(|record| record.rtype == 39);
            case.text().contains("autopath") && has_dname && difference.what == "answer"
        },
    },
    Allowed {
        name: "what an alias leads to",
        stands: "The target of an alias is looked up as it is",
        counted_alike: false,
        matches: |case, difference| {
            let (theirs, ours) = (&theirs(case).answers, &ours(case).answers);
            let Some((alias, completed)) = ours.last().zip(theirs.get(ours.len())) else { return false };
            let is_first = alias.rtype == 5 && alias.data.to_ascii_lowercase().ends_with(".first.test.");
            case.text().contains("first.conf")
                && is_first
                && matches!(difference.what, "answer" | "rcode")
                && data(self::theirs(case)).starts_with(&data(self::ours(case)))
                && completed.rtype == 5
                && completed.name.eq_ignore_ascii_case(&alias.data)
        },
    },
    Allowed {
        name: "the first domain itself",
        stands: "The name that equals the first domain is never denied",
        counted_alike: false,
        matches: |case, difference| {
            case.text().contains("autopath")
                && FIRST_DOMAINS.iter().any(|first| case.name().eq_ignore_ascii_case(first))
                && theirs(case).rcode() == 2
                && is_about_block(difference)
        },
    },
];

/// Whether some pods have this name, and all of them were being deleted from the start.
fn is_of_pods_that_go(case: &Case<'_>, name: &str) -> bool {
    let has_it = |pod: &Value| {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
        addresses.filter_map(|ip| ip["ip"].as_str()).any(|ip| {
            let own = format!("{}.{namespace}.pod.cluster.local.", ip.replace(['.', ':'], "-"));
            // The label of the address is matched with or without labels below it.
            name == own || name.ends_with(&format!(".{own}"))
        })
    };
    let has_ended = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let pods =
        case.setup.objects.iter().filter(|(path, pod)| *path == PODS && has_it(pod) && !has_ended(pod));
    let goes: Vec<bool> = pods.map(|(_, pod)| !pod["metadata"]["deletionTimestamp"].is_null()).collect();
    !goes.is_empty() && !goes.contains(&false)
}

/// Whether `name` is the reverse name of a load balancer's address that the object does not write
/// in canonical form.
fn is_written_otherwise(case: &Case<'_>, name: &str) -> bool {
    let services = case.setup.objects.iter().filter(|(path, _)| *path == SERVICES);
    let ingress = services.flat_map(|(_, service)| service["status"]["loadBalancer"]["ingress"].as_array());
    ingress.flatten().filter_map(|one| one["ip"].as_str()).any(|text| {
        let address: Option<Ipv6Addr> = text.parse().ok();
        address.is_some_and(|address| {
            let nibbles = address.octets().into_iter().flat_map(|octet| [octet >> 4, octet & 15]).rev();
            let own: String = nibbles.map(|nibble| format!("{nibble:x}.")).collect();
            address.to_string() != text && name == format!("{own}ip6.arpa.")
        })
    })
}

/// Whether a slice of the service in the name has one address in several zones.
fn has_two_zones(case: &Case<'_>, name: &str) -> bool {
    let slices = case.setup.objects.iter().filter(|(path, object)| {
        let metadata = &object["metadata"];
        let of = metadata["labels"]["kubernetes.io/service-name"].as_str().unwrap_or_default();
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        *path == SLICES && name.contains(&format!(".{of}.{namespace}.svc."))
    });
    slices.into_iter().any(|(_, slice)| {
        let endpoints: Vec<_> = slice["endpoints"].as_array().into_iter().flatten().collect();
        let differ = |(at, one): (usize, &&Value)| {
            let same = |other: &&&Value| other["addresses"] == one["addresses"];
            endpoints[at + 1..].iter().filter(same).any(|other| other["zone"] != one["zone"])
        };
        endpoints.iter().enumerate().any(differ)
    })
}

fn is_outside(case: &Case<'_>) -> bool {
    case.text().contains("k8s_external ")
}

fn is_cluster(case: &Case<'_>) -> bool {
    case.text().contains("kubernetes ")
}

/// Whether localdns answers NODATA from the cluster.
fn is_nodata(case: &Case<'_>) -> bool {
    is_cluster(case) && is_denial(ours(case))
}

/// Whether a message is NODATA of a cluster's zone.
fn is_denial(message: &Message) -> bool {
    (message.rcode(), message.answers.len()) == (0, 0)
        && message.authorities.iter().any(|record| record.rtype == 6 && record.data.starts_with("ns.dns."))
}

fn is_address(case: &Case<'_>) -> bool {
    matches!(case.rtype(), 1 | 28)
}

fn data(message: &Message) -> Vec<(u16, String)> {
    message.answers.iter().map(|record| (record.rtype, record.data.to_ascii_lowercase())).collect()
}

/// The first domains of the search lists.
const FIRST_DOMAINS: [&str; 2] = ["t1.svc.cluster.local.", "first.test."];
/// The AA flag.
const AA: u16 = 0x0400;
