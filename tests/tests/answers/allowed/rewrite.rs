//! Differences of `rewrite`.

use std::collections::HashSet;

use tests::Edns;

use super::{Allowed, is_content, ours, theirs, truncated, ttls};
use crate::run::Case;

pub(super) const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "rewritten options for clients without EDNS",
        stands: "A client without EDNS gets no OPT for it",
        counted_alike: false,
        matches: |case, difference| {
            let is_visible = difference.what == "opt" || is_content(difference) && truncated(ours(case));
            let rewritten = case.text().contains("edns0 ");
            is_visible && rewritten && case.edns().is_none() && ours(case).edns.is_none()
        },
    },
    Allowed {
        name: "rewritten options that are told",
        stands: "The local options that were written are sent back whichever source answered",
        counted_alike: true,
        matches: |case, difference| {
            let (Some(theirs), Some(ours)) = (&theirs(case).edns, &ours(case).edns) else { return false };
            // localdns adds the extended error.
            let is_why = |option: &(u16, Vec<u8>)| option.0 == 15 && !theirs.options.contains(option);
            let rest = ours.options.iter().filter(|option| option.0 < LOCAL && !is_why(option));
            difference.what == "opt options"
                && case.text().contains("edns0 local")
                && rest.eq(&theirs.options)
        },
    },
    Allowed {
        name: "a client's own option in the reply",
        stands: "a client's own option that no rule has processed is not sent back",
        counted_alike: true,
        matches: |case, difference| {
            let Some((mut theirs, ours)) = both_options(case) else { return false };
            let own = own_options(case);
            // In CoreDNS the list of returned codes is global: a rule of any block suffices.
            let is_named = |code: u16| code >= LOCAL && case.setup.text.contains(&format!("{code:#x}"));
            let before = theirs.len();
            theirs.retain(|option| !is_named(option.0) || !own.contains(option));
            difference.what == "opt options" && theirs.len() < before && theirs == ours
        },
    },
    Allowed {
        name: "appended options",
        stands: "its code adds a second",
        counted_alike: true,
        matches: |case, difference| {
            let Some((mut theirs, ours)) = both_options(case) else { return false };
            let before = theirs.len();
            let mut codes = HashSet::new();
            theirs.retain(|(code, _)| *code < LOCAL || codes.insert(*code));
            difference.what == "opt options"
                && case.text().contains("edns0 local append")
                && theirs.len() < before
                && theirs == ours
        },
    },
    Allowed {
        name: "the question that continued rules wrote",
        stands: "question as the rules left it where all of them were `continue`",
        counted_alike: true,
        matches: |case, difference| {
            let asked = match difference.what {
                "question" => format!("{:?}", (case.rtype(), case.class())),
                "question case" => format!("{:?}", case.name()),
                _ => return false,
            };
            case.text().contains("rewrite continue ") && difference.ours == asked
        },
    },
    Allowed {
        name: "options in one cache entry",
        stands: "queries with different written options never share a cached answer",
        counted_alike: false,
        matches: |case, difference| {
            let has_text = difference.theirs.contains("heard") && difference.ours.contains("heard");
            difference.what == "answer" && has_text && case.text().contains("cache")
        },
    },
    Allowed {
        name: "a client's own options on the way to upstreams",
        stands: "stay on their hop",
        counted_alike: false,
        matches: |case, difference| {
            let has_text = difference.theirs.contains("heard") && difference.ours.contains("heard");
            let sent = |code: u16| difference.theirs.contains(&format!("{code}=["));
            difference.what == "answer" && has_text && own_options(case).iter().any(|(code, _)| sent(*code))
        },
    },
    Allowed {
        name: "AD of what a step changed",
        stands: "AD is cleared where one of them changed records",
        counted_alike: true,
        matches: |case, difference| {
            let steps = ["rewrite", "autopath"].iter().any(|step| case.text().contains(step));
            difference.what == "flag ad" && steps && ours(case).flags & 0x0020 == 0
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

/// The options of both replies sorted by code, without extended errors.
fn both_options(case: &Case<'_>) -> Option<(Options, Options)> {
    let sorted = |opt: &Edns| {
        let mut options = opt.options.clone();
        options.retain(|(code, _)| *code != 15);
        options.sort_by_key(|(code, _)| *code);
        options
    };
    Some((sorted(theirs(case).edns.as_ref()?), sorted(ours(case).edns.as_ref()?)))
}

type Options = Vec<(u16, Vec<u8>)>;

/// The options that the client sent.
fn own_options(case: &Case<'_>) -> Options {
    case.edns().map(|opt| opt.options).unwrap_or_default()
}

/// The first code for local use (RFC 6891, section 9).
const LOCAL: u16 = 65_001;
