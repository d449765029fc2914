//! The intended differences: each is described in docs/differences.md, and any other fails the
//! test.

mod case;
mod cluster;
mod hits;
mod rewrite;
mod synthesized;
mod zone_files;

use std::collections::BTreeMap;

use tests::{Edns, Message, question_end};

use crate::differ::Difference;
use crate::run::Case;

/// One intended difference.
pub(crate) struct Allowed {
    /// The difference's name in reports.
    pub(crate) name: &'static str,
    /// The words of docs/differences.md that describe the difference.
    pub(crate) stands: &'static str,
    /// Whether both servers count such a query in the same metrics.
    pub(crate) counted_alike: bool,
    /// Whether a difference between two replies is this intended one.
    matches: fn(&Case<'_>, &Difference) -> bool,
}

/// Totals of a test.
#[derive(Debug, Default)]
pub(crate) struct UseCounts {
    /// Queries sent, each to both servers.
    pub(crate) queries: usize,
    /// Counts of intended differences by name.
    pub(crate) seen: BTreeMap<&'static str, usize>,
}

impl UseCounts {
    /// Counts an intended difference.
    pub(crate) fn count(&mut self, name: &'static str) {
        *self.seen.entry(name).or_default() += 1;
    }

    /// Adds the totals of another value.
    pub(crate) fn add(&mut self, other: &Self) {
        self.queries += other.queries;
        for (name, count) in &other.seen {
            *self.seen.entry(name).or_default() += count;
        }
    }
}

/// Returns the intended difference that matches.
pub(crate) fn find(case: &Case<'_>, difference: &Difference) -> Option<&'static Allowed> {
    all().find(|allowed| (allowed.matches)(case, difference))
}

/// All intended differences; the first that matches names a difference.
pub(crate) fn all() -> impl Iterator<Item = &'static Allowed> {
    ALLOWED
        .iter()
        .chain(synthesized::ALLOWED)
        .chain(hits::ALLOWED)
        .chain(rewrite::ALLOWED)
        .chain(cluster::ALLOWED)
        .chain(zone_files::ALLOWED)
}

const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "our EDNS size",
        stands: "| EDNS size of a reply |",
        counted_alike: true,
        matches: |case, difference| {
            difference.what == "opt size" && ours(case).edns.as_ref().is_some_and(|opt| opt.size == 1232)
        },
    },
    Allowed {
        name: "case of names",
        stands: "| names |",
        counted_alike: true,
        matches: |case, difference| {
            // A name after one that may not be compressed (a DNAME's) keeps the upstream's case.
            let mut both = names(ours(case)).zip(names(theirs(case)));
            let is_other = difference.what == "question case"
                && !difference.theirs.eq_ignore_ascii_case(&difference.ours);
            difference.what.ends_with(" case")
                && !is_other
                && both.all(|(ours, theirs)| ours == theirs || has_case_of(ours, &case.name()))
        },
    },
    Allowed {
        name: "zone transfers",
        stands: "| AXFR, IXFR |",
        counted_alike: false,
        matches: |case, _| matches!(case.rtype(), 251 | 252) && ours(case).rcode() == 5,
    },
    Allowed {
        name: "NOTIFY",
        stands: "| NOTIFY |",
        counted_alike: false,
        matches: |case, _| case.opcode() == 4 && ours(case).rcode() == 5,
    },
    Allowed {
        name: "queries above 512 octets",
        stands: "| UDP queries above 512 octets |",
        counted_alike: false,
        matches: |case, _| !case.query.tcp && case.message.len() > 512 && theirs(case).rcode() == 1,
    },
    Allowed {
        name: "two OPT records",
        stands: "| two OPT records,",
        counted_alike: false,
        matches: |case, _| case.query.what.starts_with("two opt") && ours(case).rcode() == 1,
    },
    Allowed {
        name: "OPT of refusals",
        stands: "| FORMERR, NOTIMP and REFUSED before any plugin |",
        counted_alike: true,
        matches: |case, difference| {
            let refused = matches!(ours(case).rcode(), 1 | 4 | 5);
            difference.what == "opt" && refused && ours(case).edns.is_some()
        },
    },
    Allowed {
        name: "OPT of acl",
        stands: "`acl`: the OPT of what is blocked or filtered",
        counted_alike: true,
        matches: |case, difference| {
            let has_ede = theirs(case).option(15).is_some_and(|ede| matches!(ede, [0, 15 | 17]));
            case.text().contains("acl") && has_ede && matches!(difference.what, "opt" | "opt do")
        },
    },
    Allowed {
        name: "case of names turned back",
        stands: "`rewrite`: names are reverted whatever case",
        counted_alike: true,
        matches: |case, difference| {
            case.text().contains("rewrite name")
                && difference.what == "answer"
                && case.query.what.contains("mixed")
        },
    },
    Allowed {
        name: "RD of the client",
        stands: "Rules for `query` leave the client its own RD",
        counted_alike: true,
        matches: |case, difference| {
            let own = ours(case).flags & 0x0100 == case.flags() & 0x0100;
            difference.what == "flag rd" && has_rd_rule(case) && own
        },
    },
    Allowed {
        name: "client subnets that are not repeated",
        stands: "answers to a query with a client subnet that do not",
        counted_alike: false,
        matches: |case, difference| {
            difference.what.ends_with(" ttl") && case.text().contains("cache") && has_subnet(case)
        },
    },
    Allowed {
        name: "largest UDP reply",
        stands: "| largest UDP reply |",
        counted_alike: false,
        matches: |case, difference| {
            let cut = truncated(ours(case)) && !truncated(theirs(case));
            cut && is_content(difference) && !case.query.tcp && case.size() > 1232
        },
    },
    Allowed {
        name: "upstream's truncation",
        stands: "CoreDNS passes a truncated reply on unless `prefer_udp` is written",
        counted_alike: false,
        matches: |case, difference| {
            truncated(theirs(case)) && !truncated(ours(case)) && is_content(difference)
        },
    },
    Allowed {
        name: "truncation",
        stands: "| truncation |",
        counted_alike: false,
        matches: |case, difference| {
            truncated(theirs(case)) && truncated(ours(case)) && is_content(difference)
        },
    },
    Allowed {
        name: "AD unasked",
        stands: "clients that set neither DO nor AD get no AD",
        counted_alike: true,
        matches: |case, difference| {
            let asked = case.flags() & 0x0020 != 0 || asks_dnssec(case);
            difference.what == "flag ad" && !asked && ours(case).flags & 0x0020 == 0
        },
    },
    Allowed {
        name: "header of an upstream's reply",
        stands: "| header of an upstream's reply |",
        counted_alike: true,
        matches: |case, difference| {
            let asked = case.flags() & 0x0010;
            case.query.what.starts_with("odd header")
                && ((difference.what == "flag cd" && ours(case).flags & 0x0010 == asked)
                    || (difference.what == "flag z" && ours(case).flags & 0x0040 == 0))
        },
    },
    Allowed {
        name: "counted and not there",
        stands: "| records or a question that are counted and not there |",
        counted_alike: false,
        matches: |case, _| {
            let counts: Vec<u16> = case
                .message
                .chunks_exact(2)
                .skip(2)
                .take(4)
                .map(|at| u16::from_be_bytes([at[0], at[1]]))
                .collect();
            let records = counts[1] + counts[2] + counts[3] > 0;
            let nothing = question_end(case.message).is_none_or(|end| records && case.message.len() == end);
            nothing && case.message.len() >= 12 && ours(case).rcode() == 1
        },
    },
    Allowed {
        name: "pointer in a question",
        stands: "| a question whose name is a pointer,",
        counted_alike: false,
        matches: |case, _| case.query.what.starts_with("pointer to the header") && ours(case).rcode() == 1,
    },
    Allowed {
        name: "OPT as a type",
        stands: "OPT as the type asked for |",
        counted_alike: false,
        matches: |case, _| case.rtype() == 41 && ours(case).rcode() == 1,
    },
    Allowed {
        name: "DO of BADVERS",
        stands: "| BADVERS |",
        counted_alike: false,
        matches: |case, difference| difference.what == "opt do" && ours(case).rcode() == 16,
    },
    Allowed {
        name: "DO of nsid",
        stands: "The OPT that carries it has the query's DO; CoreDNS sets DO.",
        counted_alike: true,
        matches: |case, difference| {
            let asked = case.edns().is_some_and(|opt| opt.options.iter().any(|(code, _)| *code == 3));
            difference.what == "opt do" && asked && case.text().contains("nsid") && ours(case).rcode() != 16
        },
    },
    Allowed {
        name: "DO of ederror",
        stands: "CoreDNS adds an OPT with DO for every client",
        counted_alike: true,
        matches: |case, difference| {
            matches!(difference.what, "opt do" | "opt")
                && case.text().contains("ederror")
                && !asks_dnssec(case)
        },
    },
    Allowed {
        name: "hosts of other classes",
        stands: "It serves class IN alone",
        counted_alike: false,
        matches: |case, difference| {
            (case.class() != 1 || case.text().contains("rewrite class IN CH"))
                && case.text().contains("hosts ")
                && (is_about_block(difference)
                    || difference.what.ends_with(" ttl")
                    // A failure does not pass through the rules of `header`.
                    || (difference.what == "flag rd"
                        && matches!(ours(case).rcode(), 2 | 5)
                        && case.text().contains("response clear rd")))
        },
    },
    Allowed {
        name: "next without a stanza",
        stands: "CoreDNS looks at the next stanza alone",
        counted_alike: false,
        matches: |case, difference| {
            let next =
                ["next NXDOMAIN", "next_on_nodata"].iter().any(|property| case.text().contains(property));
            let whoami = theirs(case).additionals.iter().any(|record| record.rtype == 33);
            next && (theirs(case).rcode() == 2 || whoami) && is_about_block(difference)
        },
    },
    Allowed {
        name: "TTLs record by record",
        stands: "CoreDNS gives all records of an answer the least of them",
        counted_alike: true,
        matches: |case, difference| {
            let (theirs, ours) = (ttls(theirs(case)), ttls(ours(case)));
            let least = |ttls: &[u32]| ttls.iter().min().copied().unwrap_or_default();
            difference.what.ends_with(" ttl")
                && case.text().contains("cache")
                && theirs.iter().all(|ttl| *ttl == theirs[0])
                && least(&theirs).abs_diff(least(&ours)) <= 1
        },
    },
    Allowed {
        name: "SOA's MINIMUM",
        stands: "A denial lives for the lesser of its SOA's TTL and MINIMUM",
        counted_alike: false,
        matches: |case, difference| {
            let denial = |message: &Message| message.authorities.iter().any(|record| record.rtype == 6);
            difference.what.ends_with(" ttl")
                && case.text().contains("cache")
                && denial(ours(case))
                && ttls(ours(case)).iter().min() < ttls(theirs(case)).iter().min()
        },
    },
    Allowed {
        name: "TTLs of what is not kept",
        stands: "What is not kept passes with the upstream's TTLs",
        counted_alike: false,
        matches: |case, difference| {
            difference.what.ends_with(" ttl") && case.text().contains("cache") && is_not_kept(case)
        },
    },
    Allowed {
        name: "TTL of what is stale",
        stands: "`serve_stale`: expired answers have TTL 0 while the upstream answers",
        counted_alike: false,
        matches: |case, difference| {
            let stale = ttls(ours(case)).iter().all(|ttl| *ttl == 0 || *ttl == 30);
            difference.what.ends_with(" ttl") && case.text().contains("serve_stale") && stale
        },
    },
    Allowed {
        name: "NXDOMAIN behind an alias",
        stands: "NXDOMAIN behind an alias is kept",
        counted_alike: false,
        matches: |case, difference| {
            difference.what.ends_with(" ttl")
                && case.text().contains("cache")
                && (ours(case).rcode() == 3 || case.text().contains("rewrite rcode suffix . NXDOMAIN"))
                && !ours(case).answers.is_empty()
                && (ours(case).authorities.iter().any(|record| record.rtype == 6) || is_minimal(case))
        },
    },
    Allowed {
        name: "memory in the cache",
        stands: "answers of template, hosts, kubernetes, file, auto and whoami are never kept",
        counted_alike: false,
        matches: |case, difference| {
            let of_memory = ["hosts ", "template ", "whoami", "kubernetes ", "file ", "auto "]
                .iter()
                .any(|plugin| case.text().contains(plugin));
            let authority = ours(case).flags & 0x0400 != 0 || case.text().contains("response clear aa");
            // whoami's additional records contain the client's port; CoreDNS caches those of an
            // earlier client.
            let earlier_client = difference.what == "additional" && difference.theirs.contains(" srv ");
            case.text().contains("cache")
                && of_memory
                && authority
                && (earlier_client || difference.what.ends_with(" ttl"))
        },
    },
    Allowed {
        name: "nsid on failures",
        stands: "It is also in failures",
        counted_alike: true,
        matches: |case, difference| {
            let (Some(theirs), Some(ours)) = (&theirs(case).edns, &ours(case).edns) else { return false };
            let has = |opt: &Edns| opt.options.iter().any(|(code, _)| *code == 3);
            difference.what == "opt options"
                && case.text().contains("nsid")
                && has(ours)
                && !has(theirs)
                && matches!(self::ours(case).rcode(), 2 | 5)
        },
    },
    Allowed {
        name: "why a query failed",
        stands: "| Extended DNS Errors |",
        counted_alike: true,
        matches: |case, difference| {
            let (Some(theirs), Some(ours)) = (&theirs(case).edns, &ours(case).edns) else { return false };
            let rest =
                |opt: &Edns| opt.options.iter().filter(|(code, _)| *code != 15).cloned().collect::<Vec<_>>();
            let kept = theirs.options.iter().all(|option| option.0 != 15 || ours.options.contains(option));
            difference.what == "opt options" && rest(theirs) == rest(ours) && kept
        },
    },
    Allowed {
        name: "upstream's options",
        stands: "stay on their hop",
        counted_alike: true,
        matches: |case, difference| {
            let (Some(theirs), Some(ours)) = (&theirs(case).edns, &ours(case).edns) else { return false };
            let errors =
                |opt: &Edns| opt.options.iter().filter(|(code, _)| *code == 15).cloned().collect::<Vec<_>>();
            difference.what == "opt options"
                && errors(theirs) == errors(ours)
                && ours.options.len() < theirs.options.len()
        },
    },
    Allowed {
        name: "DS below a zone's apex",
        stands: "| DS |",
        counted_alike: false,
        matches: |case, difference| {
            case.rtype() == 43 && case.setup.has_several_zones() && is_about_block(difference)
        },
    },
];

/// Whether the replies differ in their records or in TC.
fn is_content(difference: &Difference) -> bool {
    matches!(difference.what, "answer" | "authority" | "additional" | "flag tc")
}

/// Whether the difference may be due to an answer from another block or plugin.
fn is_about_block(difference: &Difference) -> bool {
    is_content(difference)
        || matches!(difference.what, "rcode" | "flag aa" | "flag ra" | "opt options" | "flag ad")
}

fn asks_dnssec(case: &Case<'_>) -> bool {
    case.edns().is_some_and(|opt| opt.dnssec_ok)
}

/// Whether the query has a client subnet.
pub(crate) fn has_subnet(case: &Case<'_>) -> bool {
    case.edns().is_some_and(|opt| opt.options.iter().any(|(code, _)| *code == 8))
}

/// Whether localdns never caches the reply: to queries without RD or for meta-types, referrals, and
/// aliases without a target.
fn is_not_kept(case: &Case<'_>) -> bool {
    let has = |records: &[tests::Record], rtype: u16| records.iter().any(|record| record.rtype == rtype);
    let ours = ours(case);
    let leads_nowhere = !has(&ours.answers, case.rtype()) && !has(&ours.authorities, 6);
    !fills(case)
        || matches!(case.rtype(), 0 | 128..=255)
        || matches!(case.class(), 0 | 254 | 255)
        || leads_nowhere
}

/// Whether RD allows localdns to cache: the client sets it, or a rule of `header` sets or clears it
/// for all queries.
fn fills(case: &Case<'_>) -> bool {
    case.flags() & 0x0100 != 0 || has_rd_rule(case)
}

/// Whether `header` sets or clears RD in queries.
fn has_rd_rule(case: &Case<'_>) -> bool {
    ["query set rd", "query clear rd"].iter().any(|rule| case.text().contains(rule))
}

fn is_minimal(case: &Case<'_>) -> bool {
    case.text().contains("minimal")
}

fn ttls(message: &Message) -> Vec<u32> {
    let records = [&message.answers, &message.authorities, &message.additionals].into_iter().flatten();
    records.map(|record| record.ttl).collect()
}

fn truncated(message: &Message) -> bool {
    message.flags & 0x0200 != 0
}

fn names(message: &Message) -> impl Iterator<Item = &str> {
    let records = [&message.answers, &message.authorities, &message.additionals].into_iter().flatten();
    records.map(|record| &record.name[..]).chain(message.question.iter().map(|question| &question.name[..]))
}

/// Whether `name` has the case of `asked` in their common trailing labels.
fn has_case_of(name: &str, asked: &str) -> bool {
    let labels = name.rsplit('.').zip(asked.rsplit('.'));
    labels.take_while(|(one, other)| one.eq_ignore_ascii_case(other)).all(|(one, other)| one == other)
}

/// localdns's reply, or an empty message without one.
pub(crate) fn ours<'c>(case: &'c Case<'_>) -> &'c Message {
    case.both.ours.as_ref().unwrap_or(&SILENCE)
}

/// CoreDNS's reply, or an empty message without one.
pub(crate) fn theirs<'c>(case: &'c Case<'_>) -> &'c Message {
    case.both.theirs.as_ref().unwrap_or(&SILENCE)
}

static SILENCE: Message = Message {
    id: 0,
    flags: 0,
    question: None,
    answers: Vec::new(),
    authorities: Vec::new(),
    additionals: Vec::new(),
    edns: None,
};
