//! Changes of cached answers by `header` and `minimal`: in CoreDNS these see misses alone.

use super::{Allowed, ours};
use crate::run::Case;

pub(super) const ALLOWED: &[Allowed] = &[
    Allowed {
        name: "header on hits",
        stands: "CoreDNS puts `header` and `minimal` below its cache",
        counted_alike: true,
        matches: |case, difference| {
            let Some(flag) = difference.what.strip_prefix("flag ") else { return false };
            case.text().contains("cache") && is_as_rules_say(case, flag)
        },
    },
    Allowed {
        name: "minimal on hits",
        stands: "CoreDNS puts `header` and `minimal` below its cache",
        counted_alike: true,
        matches: |case, difference| {
            let what = difference.what;
            let is_beyond_answer = what.starts_with("authority") || what.starts_with("additional");
            let both = ["cache", "minimal"].iter().all(|word| case.text().contains(word));
            // A referral and a denial keep their authority section.
            let is_positive = ours(case).rcode() == 0 && !ours(case).answers.is_empty();
            let is_bare = ours(case).authorities.is_empty() && ours(case).additionals.is_empty();
            is_beyond_answer && both && (is_bare || !is_positive)
        },
    },
];

/// Whether localdns's reply has this flag as set by the last rule of `header` for it.
fn is_as_rules_say(case: &Case<'_>, flag: &str) -> bool {
    let bit = match flag {
        "aa" => 0x0400,
        "ra" => 0x0080,
        "rd" => 0x0100,
        _ => return false,
    };
    let rule = |line: &str| {
        let mut words = line.split_whitespace();
        let (of, action) = (words.next()?, words.next()?);
        (of == "response" && words.any(|word| word.eq_ignore_ascii_case(flag))).then(|| action == "set")
    };
    let rules = case.text().lines().filter_map(rule).next_back();
    rules.is_some_and(|set| set == (ours(case).flags & bit != 0))
}
