//! What `rewrite edns0` and `rewrite cname` make otherwise than CoreDNS's.

use super::{Allowed, is_content, ours, theirs, truncated, ttls};

pub(super) const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "rewritten options for clients without EDNS",
        stands: "A client without EDNS gets no OPT for it",
        counted_alike: false,
        matches: |case, difference| {
            let told = difference.what == "opt" || is_content(difference) && truncated(ours(case));
            let rewritten = case.text().contains("edns0 ");
            told && rewritten && case.edns().is_none() && ours(case).edns.is_none()
        },
    },
    Allowed {
        name: "rewritten options that are told",
        stands: "The local options that were written are told whoever answered",
        counted_alike: true,
        matches: |case, difference| {
            let (Some(theirs), Some(ours)) = (&theirs(case).edns, &ours(case).edns) else { return false };
            let rest = ours.options.iter().filter(|(code, _)| *code < 0xfde9);
            difference.what == "opt options"
                && case.text().contains("edns0 local")
                && rest.eq(&theirs.options)
        },
    },
    Allowed {
        name: "options in one cache entry",
        stands: "whose options differ never share an answer",
        counted_alike: false,
        matches: |case, difference| {
            let told = difference.theirs.contains("heard") && difference.ours.contains("heard");
            difference.what == "answer" && told && case.text().contains("cache")
        },
    },
    Allowed {
        name: "a client's own options on the way to upstreams",
        stands: "stay on their hop",
        counted_alike: false,
        matches: |case, difference| {
            let told = difference.theirs.contains("heard") && difference.ours.contains("heard");
            difference.what == "answer" && told && case.query.what.contains(" option ")
        },
    },
    Allowed {
        name: "TTLs behind a rewritten alias",
        stands: "CoreDNS gives all records of an answer the least of them",
        counted_alike: true,
        matches: |case, difference| {
            let mut both = ttls(theirs(case)).into_iter().zip(ttls(ours(case)));
            let steps = ["cache", "rewrite cname"].iter().all(|step| case.text().contains(step));
            difference.what == "answer ttl" && steps && both.all(|(theirs, ours)| theirs <= ours + 1)
        },
    },
];
