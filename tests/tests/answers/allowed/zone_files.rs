//! Answers from zone files that differ from CoreDNS's; see the README of `file`.

use super::{Allowed, is_about_block, ours, theirs};
use crate::run::Case;

pub(super) const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "ANY of a zone file",
        stands: "Denials, empty non-terminals and ANY follow RFC 2308, 4592 and 8482",
        counted_alike: false,
        matches: |case, difference| {
            has_zone_file(case)
                && case.rtype() == 255
                && is_about_block(difference)
                && !ours(case).answers.is_empty()
        },
    },
    Allowed {
        name: "denial behind an alias in a zone file",
        stands: "Denials, empty non-terminals and ANY follow RFC 2308, 4592 and 8482",
        counted_alike: false,
        matches: |case, difference| {
            let is_alias = ours(case).answers.last().is_some_and(|record| record.rtype == 5);
            let has_soa = ours(case).authorities.iter().any(|record| record.rtype == 6);
            has_zone_file(case) && difference.what == "authority" && is_alias && has_soa
        },
    },
    Allowed {
        name: "empty non-terminal below a wildcard of a zone file",
        stands: "Denials, empty non-terminals and ANY follow RFC 2308, 4592 and 8482",
        counted_alike: false,
        matches: |case, difference| {
            let is_synthesized = ours(case).answers.is_empty() && !theirs(case).answers.is_empty();
            has_zone_file(case)
                && is_about_block(difference)
                && case.name().starts_with("ent.wild.")
                && is_synthesized
        },
    },
    Allowed {
        name: "zone files of other classes",
        stands: "It serves class IN alone",
        counted_alike: false,
        matches: |case, difference| has_zone_file(case) && case.class() != 1 && is_about_block(difference),
    },
];

fn has_zone_file(case: &Case<'_>) -> bool {
    ["file @DIR@/db.", "directory @DIR@"].iter().any(|directive| case.text().contains(directive))
}
