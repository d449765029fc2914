//! The intended differences of metrics, and which queries both servers count alike.

use crate::allowed::{has_subnet, theirs};
use crate::metrics::Moved;
use crate::run::{Case, Setup};

/// One intended difference of metrics.
pub(crate) struct AllowedMove {
    /// The difference's name in reports.
    pub(crate) name: &'static str,
    /// The words of docs/differences.md that describe the difference.
    pub(crate) stands: &'static str,
    /// Whether a difference in metrics is this intended one.
    matches: fn(&Setup, &Moved) -> bool,
}

/// Returns the name of the intended difference that matches.
pub(crate) fn find(setup: &Setup, moved: &Moved) -> Option<&'static str> {
    MOVED.iter().find(|allowed| (allowed.matches)(setup, moved)).map(|allowed| allowed.name)
}

/// All intended differences of metrics.
pub(crate) const MOVED: &[AllowedMove] = &[
    AllowedMove {
        name: "size of requests",
        stands: "`coredns_dns_request_size_bytes` is the received length",
        matches: |_, moved| {
            moved.series.starts_with("coredns_dns_request_size_bytes_sum") && moved.ours > moved.theirs
        },
    },
    AllowedMove {
        name: "hedges",
        stands: "Such hedges are at most a tenth of the replies",
        matches: |_, moved| {
            let more = moved.ours - moved.theirs;
            moved.series.starts_with("coredns_proxy_") && more > 0.0 && more <= (moved.theirs / 10.0).max(1.0)
        },
    },
    AllowedMove {
        name: "asked again with less EDNS",
        stands: "a query that is answered with FORMERR, NOTIMP or BADVERS goes again to the same upstream",
        matches: |_, moved| {
            let refusal = ["FORMERR", "NOTIMP"].iter().any(|rcode| moved.series.contains(rcode));
            moved.series.starts_with("coredns_proxy_") && refusal && moved.ours > moved.theirs
        },
    },
    AllowedMove {
        name: "verify counts as a miss",
        stands: "A query that waits for `verify` counts as a miss",
        matches: |setup, moved| {
            let text = setup.block_of(&moved.series);
            let kind = ["coredns_cache_hits", "coredns_cache_misses"]
                .iter()
                .any(|name| moved.series.starts_with(name));
            kind && text.contains("serve_stale") && text.contains("verify")
        },
    },
    AllowedMove {
        name: "equal misses",
        stands: "| equal misses |",
        matches: |_, moved| {
            // Equal queries in a pipeline, and prefetches that coincide with a client's query.
            let less = moved.theirs - moved.ours;
            moved.series.starts_with("coredns_proxy_") && less > 0.0 && less <= (moved.theirs / 50.0).max(2.0)
        },
    },
    AllowedMove {
        name: "labels of templates",
        stands: "`coredns_template_*` have the first zone, the class and the type of the template",
        matches: |_, moved| moved.series.starts_with("coredns_template_"),
    },
    AllowedMove {
        name: "SERVFAIL of templates",
        stands: "A template's `rcode SERVFAIL` counts as its answer",
        matches: |setup, moved| {
            let text = setup.block_of(&moved.series);
            is_servfail(moved) && text.contains("template ") && text.contains("rcode SERVFAIL")
        },
    },
    AllowedMove {
        name: "types as asked",
        stands: "Log, metrics and `errors` name what the client asked",
        matches: |setup, moved| {
            let rewritten = setup.block_of(&moved.series).contains("rewrite ");
            let typed = moved.series.starts_with("coredns_dns_requests_total");
            rewritten && typed && setup.block_of(&moved.series).contains("type ")
        },
    },
    AllowedMove {
        name: "who told a failure",
        stands: "A failure counts as one in `coredns_dns_responses_total` whether or not",
        matches: |setup, moved| {
            let named = moved.series.starts_with("coredns_dns_responses_total");
            named && setup.block_of(&moved.series).contains("rewrite ")
        },
    },
    AllowedMove {
        name: "what is dropped",
        stands: "What is dropped is counted by `acl` alone",
        matches: |setup, moved| {
            let dns = moved.series.starts_with("coredns_dns_");
            dns && moved.ours < moved.theirs && setup.block_of(&moved.series).contains("drop ")
        },
    },
    AllowedMove {
        name: "lookups of rewritten aliases",
        stands: "The lookup is no query in log and metrics",
        matches: |setup, moved| {
            let dns = moved.series.starts_with("coredns_dns_");
            dns && moved.ours < moved.theirs && setup.block_of(&moved.series).contains("rewrite cname")
        },
    },
    AllowedMove {
        name: "lookups of a template's aliases",
        stands: "They are no queries in log and metrics",
        matches: |setup, moved| {
            let dns = moved.series.starts_with("coredns_dns_");
            dns && moved.ours < moved.theirs && setup.text.contains(" IN CNAME ")
        },
    },
    AllowedMove {
        name: "lookups of A by dns64",
        stands: "That lookup is not counted as a query in log and metrics",
        matches: |setup, moved| {
            let dns = moved.series.starts_with("coredns_dns_");
            dns && moved.ours < moved.theirs && setup.block_of(&moved.series).contains("dns64")
        },
    },
    AllowedMove {
        name: "answers that dns64 leaves alone",
        stands: "NXDOMAIN behind an alias and a truncated answer are not followed by a lookup of A",
        matches: |_, moved| moved.series.starts_with("coredns_dns64_") && moved.ours < moved.theirs,
    },
    AllowedMove {
        name: "lookups of external names",
        stands: "The lookup of an ExternalName's target is no query",
        matches: |setup, moved| {
            let less = moved.theirs - moved.ours;
            let dns = moved.series.starts_with("coredns_dns_");
            dns && less > 0.0
                && less <= moved.theirs / 10.0
                && setup.block_of(&moved.series).contains("kubernetes ")
        },
    },
    AllowedMove {
        name: "lookups of targets outside of a zone file",
        stands: "The lookup of an alias's target outside of the zone is no query",
        matches: |setup, moved| {
            let (text, less) = (setup.block_of(&moved.series), moved.theirs - moved.ours);
            let follows = text.contains("file ") || text.contains("auto ");
            moved.series.starts_with("coredns_dns_") && follows && less > 0.0 && less <= moved.theirs / 5.0
        },
    },
    AllowedMove {
        name: "zones of auto",
        stands: "Its zones are no labels of metrics",
        matches: |setup, moved| {
            moved.series.starts_with("coredns_dns_") && setup.block_of(&moved.series).contains("auto ")
        },
    },
    AllowedMove {
        name: "names that are tried, by acl",
        stands: "`acl` counts a client's query once, by the name asked for",
        matches: |setup, moved| {
            let acl = moved.series.starts_with("coredns_acl_");
            acl && moved.ours < moved.theirs && setup.text.contains("autopath ")
        },
    },
    AllowedMove {
        name: "search paths of aliases",
        stands: "The target of an alias is looked up as it is",
        matches: |_, moved| moved.series.starts_with("coredns_autopath_") && moved.ours < moved.theirs,
    },
    AllowedMove {
        name: "memory in the cache, counted",
        stands: "answers of template, hosts, kubernetes, file, auto and whoami are never kept",
        matches: |setup, moved| {
            let text = setup.block_of(&moved.series);
            let memory = ["hosts ", "template ", "whoami", "kubernetes ", "file ", "auto "];
            let memory = memory.iter().any(|plugin| text.contains(plugin));
            let about = moved.series.starts_with("coredns_cache_") || is_servfail(moved);
            about && text.contains("cache") && (memory || !text.contains("forward ."))
        },
    },
];

fn is_servfail(moved: &Moved) -> bool {
    moved.series.starts_with("coredns_dns_responses_total") && moved.series.contains("rcode=\"SERVFAIL\"")
}

impl Setup {
    /// Whether several blocks may answer DS.
    pub(crate) fn has_several_zones(&self) -> bool {
        self.text.matches(":@PORT@").count() > 1
    }

    /// The server block with the zone of a series; the whole Corefile where no block matches.
    fn block_of(&self, series: &str) -> &str {
        let zone = ["zone=\"", "zones=\""]
            .iter()
            .find_map(|label| series.split_once(label)?.1.split(['"', ',']).next());
        let Some(zone) = zone.map(|zone| format!("{}:@PORT@", zone.trim_end_matches('.'))) else {
            return &self.text;
        };
        let serves = |block: &&str| {
            let keys = block.split_once('{').map_or(*block, |(keys, _)| keys);
            keys.split(' ').any(|key| key.eq_ignore_ascii_case(&zone))
        };
        self.queries.iter().filter_map(|query| query.block.as_deref()).find(serves).unwrap_or(&self.text)
    }
}

/// Whether within 30 s both servers answer the query from their cache, or neither does.
pub(crate) fn is_steady(case: &Case<'_>) -> bool {
    let several_blocks = case.setup.has_several_zones();
    if case.rtype() == 43 && several_blocks {
        return false;
    }
    let name = case.name();
    let kind = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let recursive = case.flags() & 0x0100 != 0;
    let kept = !matches!(case.rtype(), 0 | 128..=255) && case.class() == 1 && recursive;
    let failed = theirs(case).rcode() == 2;
    // Counted only by localdns, and answered alike: the row UPDATE of docs/differences.md.
    if case.opcode() == 5 {
        return false;
    }
    // localdns does not cache the replies.
    if has_subnet(case) {
        return false;
    }
    !case.text().contains("cache") || kept && !failed && STEADY.contains(&&kind[..])
}

/// Kinds of answers that both servers cache for long enough.
const STEADY: &[&str] = &[
    "a", "cname", "nodata", "ede", "options", "noopt", "many", "signed", "ad", "aa", "mixed", "extra",
    "shout",
];
