//! Answers that plugins synthesize differently from CoreDNS's.

use tests::Message;

use super::{Allowed, ours, theirs};
use crate::run::Case;

pub(super) const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "whoami of a long name",
        stands: "CoreDNS sends a broken SRV record",
        counted_alike: true,
        matches: |case, difference| {
            difference.what == "form" && case.text().contains("whoami") && case.message.len() > 250
        },
    },
    Allowed {
        name: "version and authors of chaos",
        stands: "Without arguments the version is that of localdns, and without AUTHORS there are none",
        counted_alike: true,
        matches: |case, difference| {
            let line = case.text().lines().find(|line| line.trim_start().starts_with("chaos"));
            let words = line.map_or(0, |line| line.split_whitespace().count());
            let name = case.name().to_ascii_lowercase();
            let is_ours = name == "authors.bind." && words < 3 || name.starts_with("version.") && words < 2;
            case.class() == 3
                && case.rtype() == 16
                && is_ours
                && matches!(difference.what, "answer" | "flag aa" | "flag ra")
        },
    },
    Allowed {
        name: "NODATA that is no referral",
        stands: "has RA where the block forwards, and AA where it does not",
        counted_alike: true,
        matches: |case, difference| {
            let is_nodata = |message: &Message| {
                message.rcode() == 0 && message.answers.is_empty() && message.additionals.is_empty()
            };
            let mut lines = case.text().lines();
            let made =
                ["filter", "rewrite rcode", "rcode regex"].iter().any(|rule| case.text().contains(rule))
                    || (is_local(&case.name())
                        && lines.any(|line| line.trim() == "local" || line.trim() == "local {"));
            // One of the two, unless rules of `header` change them.
            let marked =
                matches!(ours(case).flags & 0x0480, 0x0400 | 0x0080) || case.text().contains("header");
            matches!(difference.what, "flag aa" | "flag ra")
                && made
                && marked
                && is_nodata(ours(case))
                && is_nodata(theirs(case))
                && theirs(case).flags & 0x0480 == 0
        },
    },
    Allowed {
        name: "flags of dns64",
        stands: "a denial keeps its flags; CoreDNS clears AA and RA",
        counted_alike: true,
        matches: |case, difference| {
            matches!(difference.what, "flag aa" | "flag ra")
                && is_of_dns64(case)
                && theirs(case).flags & 0x0480 == 0
        },
    },
    Allowed {
        name: "signatures of A records",
        stands: "RRSIG records of A are removed",
        counted_alike: true,
        matches: |case, difference| {
            let signed = |message: &Message| message.answers.iter().any(|record| record.rtype == 46);
            let translated = ours(case).answers.iter().any(|record| record.rtype == 28);
            difference.what == "answer"
                && is_of_dns64(case)
                && translated
                && signed(theirs(case))
                && !signed(ours(case))
        },
    },
];

/// Whether `dns64` may translate the answer.
fn is_of_dns64(case: &Case<'_>) -> bool {
    case.text().contains("allow_ipv4") && case.rtype() == 28
}

/// Whether `local` may answer the name.
fn is_local(name: &str) -> bool {
    let name = format!(".{}", name.to_ascii_lowercase());
    let zones = ["localhost", "0.in-addr.arpa", "127.in-addr.arpa", "255.in-addr.arpa"];
    name.starts_with(".localhost.") || zones.iter().any(|zone| name.ends_with(&format!(".{zone}.")))
}
