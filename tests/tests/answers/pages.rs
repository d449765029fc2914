//! The server blocks in CoreDNS's documentation of plugins, with queries for each: the rows
//! `[pages]` of the plugins' files, and the blocks of `acl`, which depend on the client's network.
//! Those of `tls` are in `corefiles.rs`.

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use tests::skip;

use crate::battery::{about, chaos, under};
use crate::corefiles::{block, counted};
use crate::exchange::Query;
use crate::rows::plugins;
use crate::run::Setup;

/// One setup for each block; those of `acl` for each network that the client may be in.
pub(crate) fn pages() -> Vec<Setup> {
    let mut setups = Vec::new();
    for (zone, acl, silent) in ACL {
        for [first, second] in NETWORKS {
            let acl = acl.replace("192.168.0.0/", first).replace("192.168.1.0/", second);
            let acl = acl.replace("192.0.2.0/", first);
            for source in ["", "forward . @UP@", "cache\nforward . @UP@"] {
                let directives = format!("{acl}\n{source}");
                let text = block(&directives).replace(".:@PORT@", &format!("{zone}:@PORT@"));
                let names = ["a", "nx", "a.example.org"].map(|label| under(zone, label));
                let mut queries: Vec<Query> = names.iter().flat_map(|name| about(name)).collect();
                queries.iter_mut().for_each(|query| query.quiet = *silent && first.starts_with("127.0.0"));
                setups.push(counted(&directives, text, queries));
            }
        }
    }
    for plugin in plugins() {
        for row in plugin.section("pages") {
            setups.extend(page(row));
        }
    }
    setups
}

/// The setups for one row of a plugin's file.
fn page(row: &str) -> Vec<Setup> {
    if let Some((zone, directives)) = row.strip_prefix("whole ").and_then(|whole| whole.split_once(' ')) {
        let text = block(directives).replace(".:@PORT@", &format!("{zone}:@PORT@"));
        let names = ["a.x", "cname.x", "nx.x", "extra.x", "heard.x"].map(|label| under(zone, label));
        let mut queries: Vec<Query> = names.iter().flat_map(|name| about(name)).collect();
        if directives.starts_with("chaos") {
            queries.extend(chaos());
        }
        return vec![counted(directives, text, queries)];
    }
    let (directives, names) = match row.split_once(" ? ") {
        Some((directives, names)) => (directives, names.split(' ').collect()),
        None => (row, PLAIN.to_vec()),
    };
    let sources = ["forward . @UP@", "cache\nforward . @UP@", "hosts @DIR@/hosts {\nfallthrough\n}\nwhoami"];
    let setup = |source| {
        let directives = format!("{directives}\n{source}");
        let queries = names.iter().flat_map(|name| about(name)).collect();
        counted(&directives, block(&directives), queries)
    };
    sources.map(setup).into()
}

/// Replacements for 192.168.0.0 or 192.0.2.0, and for 192.168.1.0: the client, 127.0.0.1, is in
/// none, the first, or the second.
const NETWORKS: [[&str; 2]; 3] =
    [["192.168.0.0/", "192.168.1.0/"], ["127.0.0.0/", "127.0.1.0/"], ["126.0.0.0/", "127.0.0.0/"]];

/// Zone, directive, and whether clients in the first network get no reply.
const ACL: &[(&str, &str, bool)] = &[
    (".", "acl {\nblock type A net 192.168.0.0/16\n}", false),
    (".", "acl {\nfilter type A net 192.168.0.0/16\n}", false),
    (".", "acl {\nallow net 192.168.1.0/24\nblock net 192.168.0.0/16\n}", false),
    (".", "acl {\nallow net 192.168.0.0/24 192.168.1.0/24\nblock\n}", false),
    ("example.org", "acl a.example.org {\nblock net 192.168.1.0/24\n}", false),
    (".", "acl {\ndrop net 192.0.2.0/24\n}", true),
];

/// The names to query where a block's row has none.
const PLAIN: &[&str] =
    &["a.x", "cname.x", "nx.x", "nodata.x", "servfail.x", "extra.x", "referral.x", "aa.x", "host.example"];

/// Each directive and property in the blocks of CoreDNS's documentation is covered here.
#[test]
fn coredns_documentation_is_covered() {
    let test = "coredns_documentation_is_covered";
    let mut go = Command::new("go");
    let modules = match go.args(["env", "GOMODCACHE"]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => return skip(test, &format!("go: {error}")),
    };
    let source = format!("{modules}/github.com/coredns/coredns@v1.15.0/plugin");
    let rows = plugins().iter().flat_map(|plugin| plugin.section("pages"));
    let texts = rows.map(|row| row.split(" ? ").next().unwrap_or_default());
    let texts = texts.chain(ACL.iter().map(|(_, text, _)| *text));
    let asked: HashSet<String> = texts.flat_map(str::lines).map(|line| words(without_zone(line))).collect();
    let mut count = 0;
    for plugin in ["acl", "any", "chaos", "header", "loadbalance", "local", "minimal", "rewrite"] {
        let Ok(page) = fs::read_to_string(format!("{source}/{plugin}/README.md")) else {
            return skip(test, "CoreDNS's source is not in the module cache of go");
        };
        let page = page.replace("~~~", "```");
        for line in page.split("```").skip(1).step_by(2).flat_map(str::lines) {
            let line = words(line.split('#').next().unwrap_or_default());
            let first = line.split(' ').next().unwrap_or_default();
            let is_theirs = first == plugin || THEIRS.contains(&first);
            if is_theirs && !line.contains(['[', '|']) && !NOT_ASKED.contains(&&*line) {
                assert!(asked.contains(&line), "the page of {plugin} has {line:?}, and nothing here");
                count += 1;
            }
        }
    }
    assert!(count >= 69, "{count} lines");
}

/// A row's block without `whole` and its zone.
fn without_zone(line: &str) -> &str {
    line.strip_prefix("whole ")
        .and_then(|line| line.split_once(' '))
        .map_or(line, |(_, directives)| directives)
}

/// The words of a line, without indentation.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first words of lines that belong to these plugins.
const THEIRS: &[&str] = &[
    "acl",
    "allow",
    "block",
    "filter",
    "drop",
    "any",
    "chaos",
    "header",
    "response",
    "query",
    "loadbalance",
    "prefer",
    "minimal",
    "rewrite",
    "name",
    "answer",
    "ttl",
    "rcode",
    "edns0",
    "cname",
];
/// Lines with placeholders, and one that needs a file for `file`.
const NOT_ASKED: &[&str] = &[
    "name regex STRING STRING",
    "answer name STRING STRING",
    "loadbalance weighted ./db.example.com.weights {",
];
