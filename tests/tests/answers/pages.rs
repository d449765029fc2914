//! The server blocks on CoreDNS's own pages of `acl`, `any`, `chaos`, `header`, `loadbalance`, `minimal` and `rewrite`, asked what they are about. Those of `tls` are beside the others in `corefiles.rs`.

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use tests::{Ask, skip};

use crate::battery::{chaos, tcp, udp, under};
use crate::corefiles::{block, counted};
use crate::exchange::Query;
use crate::run::Setup;

/// One for each block; those of `acl` for each of the networks that the client may be in.
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
    for (zone, directives) in WHOLE {
        let text = block(directives).replace(".:@PORT@", &format!("{zone}:@PORT@"));
        let names = ["a.x", "cname.x", "nx.x", "extra.x", "heard.x"].map(|label| under(zone, label));
        let mut queries: Vec<Query> = names.iter().flat_map(|name| about(name)).collect();
        if directives.starts_with("chaos") {
            queries.extend(chaos());
        }
        setups.push(counted(directives, text, queries));
    }
    for (directives, names) in BLOCKS {
        for source in
            ["forward . @UP@", "cache\nforward . @UP@", "hosts @DIR@/hosts {\nfallthrough\n}\nwhoami"]
        {
            let directives = format!("{directives}\n{source}");
            let queries = names.iter().flat_map(|name| about(name)).collect();
            setups.push(counted(&directives, block(&directives), queries));
        }
    }
    setups
}

/// A name, asked for in the ways that steps tell apart.
fn about(name: &str) -> Vec<Query> {
    let mut queries = Vec::new();
    for rtype in ["A", "AAAA", "TXT", "MX", "SRV", "PTR", "CNAME", "SOA", "ANY"] {
        queries.push(udp(&format!("{name} {rtype}"), &Ask::new(name, rtype)));
        queries.push(udp(&format!("{name} {rtype} do"), &Ask::new(name, rtype).dnssec_ok()));
    }
    queries.push(udp(&format!("{name} no rd"), &Ask::new(name, "A").rd(false)));
    queries.push(udp(&format!("{name} class"), &Ask::new(name, "A").class(3)));
    queries.push(tcp(&format!("{name} tcp"), &[Ask::new(name, "A").edns(1232), Ask::new(name, "TXT")]));
    for option in [0xffee, 0xffef] {
        let ask = Ask::new(name, "TXT").option(option, b"own");
        queries.push(udp(&format!("{name} option {option:#x}"), &ask));
    }
    queries
}

/// Networks in the place of 192.168.0.0, or 192.0.2.0, and of 192.168.1.0: the client, 127.0.0.1, is in none, one or the other.
const NETWORKS: [[&str; 2]; 3] =
    [["192.168.0.0/", "192.168.1.0/"], ["127.0.0.0/", "127.0.1.0/"], ["126.0.0.0/", "127.0.0.0/"]];

/// Zone, directive, and whether those of the first network get no answer.
const ACL: &[(&str, &str, bool)] = &[
    (".", "acl {\nblock type A net 192.168.0.0/16\n}", false),
    (".", "acl {\nfilter type A net 192.168.0.0/16\n}", false),
    (".", "acl {\nallow net 192.168.1.0/24\nblock net 192.168.0.0/16\n}", false),
    (".", "acl {\nallow net 192.168.0.0/24 192.168.1.0/24\nblock\n}", false),
    ("example.org", "acl a.example.org {\nblock net 192.168.1.0/24\n}", false),
    (".", "acl {\ndrop net 192.0.2.0/24\n}", true),
];

/// Zone and directives of the blocks that the pages have whole, where they are served whole. `loadbalance`'s with weights waits for
/// `file`; those of `tls` for gRPC, HTTPS, `file` and ACME.
const WHOLE: &[(&str, &str)] = &[
    ("example.org", "whoami\nany"),
    (".", "chaos CoreDNS-001 info@coredns.io"),
    ("example.org", "whoami\nforward . @UP@\nminimal"),
    (".", "header {\nresponse set ra\n}"),
    (".", "header {\nresponse set ra aa\nresponse clear rd\n}"),
    (".", "header {\nquery set rd\n}"),
    (".", "loadbalance round_robin\nforward . @UP@ @UP2@"),
    (".", "loadbalance round_robin {\nprefer 10.9.20.0/24 192.168.1.0/24\n}\nforward . @UP@"),
    (".", "rewrite edns0 local set 0xffee 0x61626364\nwhoami"),
    (".", "rewrite edns0 local set 0xffee abcd"),
    (".", "rewrite edns0 local set 0xffee abcd revert"),
    (
        ".",
        "rewrite continue {\nedns0 local set 0xffee abcd\n}\n\nrewrite edns0 local replace 0xffee bcde revert",
    ),
];

/// Directives, and names that they are about.
const BLOCKS: &[(&str, &[&str])] = &[
    ("header {\nresponse set ra\n}", PLAIN),
    ("header {\nresponse set ra aa\nresponse clear rd\n}", PLAIN),
    ("header {\nquery set rd\n}", PLAIN),
    ("any", PLAIN),
    ("minimal", PLAIN),
    ("loadbalance round_robin", &["a.x", "cname.x", "many.x", "extra.x", "nx.x", "host.example"]),
    // In the place of two networks that no answer is in: one of two addresses, and the network of an AAAA.
    (
        "loadbalance round_robin {\nprefer 198.51.100.2/32 2001:db8::/64\n}",
        &["a.x", "cname.x", "extra.x", "nx.x", "host.example"],
    ),
    ("loadbalance weighted @DIR@/weights {\nreload 10s\n}", &["a.x", "cname.x", "nx.x", "www.example.com"]),
    (
        "rewrite name substring service.us-west-1.example.org service.us-west-1.consul",
        &["ftp.service.us-west-1.example.org", "cname.service.us-west-1.example.org", "a.example.org"],
    ),
    (
        "rewrite name regex (.*)-(us-west-1)\\.example\\.org {1}.service.{2}.consul",
        &["ftp-us-west-1.example.org", "a-us-west-1.example.org", "ftp-us-west-2.example.org"],
    ),
    (
        "rewrite name suffix .schmoogle.com. .google.com.",
        &["www.schmoogle.com", "cname.schmoogle.com", "schmoogle.com", "nx.schmoogle.com"],
    ),
    (
        "rewrite name regex (.*)-(us-west-1)\\.coredns\\.rocks {1}.service.{2}.consul",
        &["ftp-us-west-1.coredns.rocks", "cname-us-west-1.coredns.rocks", "a.coredns.rocks"],
    ),
    ("rewrite name example.net example.org", &["example.net", "a.example.net", "Example.NET"]),
    ("rewrite type ANY HINFO", PLAIN),
    ("rewrite class CH IN", PLAIN),
    (
        "metadata\nrewrite name regex ^([^.]+)\\.example\\.$ {1}.{kubernetes/client-namespace}.svc.cluster.local. metadata answer auto",
        &["web.example", "a.b.example"],
    ),
    (
        "rewrite stop {\nname suffix .coredns.rocks .service.consul answer auto\n}",
        &["ftp.coredns.rocks", "cname.coredns.rocks", "nx.coredns.rocks", "extra.coredns.rocks"],
    ),
    (
        "rewrite stop {\nname regex (.*)-(us-west-1)\\.coredns\\.rocks {1}.service.{2}.consul\nanswer name (.*)\\.service\\.(us-west-1)\\.consul {1}-{2}.coredns.rocks\n}",
        &["ftp-us-west-1.coredns.rocks", "cname-us-west-1.coredns.rocks", "nx-us-west-1.coredns.rocks"],
    ),
    (
        "rewrite stop {\nname suffix .arpa .arpa\nanswer name auto\nanswer value (.*)\\.service\\.consul\\. {1}.coredns.rocks.\n}",
        &["30.30.30.10.in-addr.arpa", "31.30.30.10.in-addr.arpa"],
    ),
    ("rewrite continue name exact RED BLUE", &["red", "RED", "blue", "a.red"]),
    ("rewrite stop name exact RED BLUE", &["red", "blue"]),
    ("rewrite continue {\nttl regex (.*)\\.coredns\\.rocks 15\n}", &["a.coredns.rocks", "nx.coredns.rocks"]),
    ("rewrite ttl example.com. 30-300", TTLS),
    ("rewrite ttl example.com. -30", TTLS),
    ("rewrite ttl example.com. 30-", TTLS),
    ("rewrite ttl example.com. 30", TTLS),
    ("rewrite continue {\nrcode regex (.*)\\.coredns\\.rocks SERVFAIL NOERROR\n}", RCODES),
    ("rewrite continue {\nrcode regex (.*)\\.coredns\\.rocks 2 0\n}", RCODES),
    ("rewrite edns0 local set 0xffee 0x61626364", OPTIONS),
    ("rewrite edns0 local set 0xffee abcd", OPTIONS),
    ("rewrite edns0 local set 0xffee {client_ip}", OPTIONS),
    ("rewrite edns0 local set 0xffee {qname}", OPTIONS),
    ("rewrite edns0 local set 0xffee {qtype}", OPTIONS),
    ("rewrite edns0 local set 0xffee {protocol}", OPTIONS),
    ("rewrite edns0 local set 0xffee {server_port}", OPTIONS),
    ("metadata\nrewrite edns0 local set 0xffee {some-plugin/some-label}", OPTIONS),
    ("rewrite edns0 local unset 0xffee", OPTIONS),
    ("rewrite edns0 nsid set", OPTIONS),
    ("rewrite edns0 subnet set 24 56", OPTIONS),
    ("rewrite edns0 subnet unset", OPTIONS),
    ("rewrite edns0 local set 0xffee abcd revert", OPTIONS),
    (
        "rewrite continue {\nedns0 local set 0xffee abcd\n}\nrewrite edns0 local replace 0xffee bcde revert",
        OPTIONS,
    ),
    ("rewrite cname regex (.*).cdn.example.net. {1}.other.cdn.com.", &["my-app.com", "cname.x", "a.x"]),
];

const PLAIN: &[&str] =
    &["a.x", "cname.x", "nx.x", "nodata.x", "servfail.x", "extra.x", "referral.x", "aa.x", "host.example"];
const TTLS: &[&str] = &["example.com", "a.example.com"];
const RCODES: &[&str] = &["servfail.coredns.rocks", "nx.coredns.rocks", "a.coredns.rocks", "servfail.x"];
const OPTIONS: &[&str] = &["heard.x", "noopt.x", "nx.x", "host.example"];

/// Each line of those pages' blocks that is a directive or property of theirs is asked about here.
#[test]
fn every_line_of_coredns_own_pages_is_asked_about() {
    let test = "every_line_of_coredns_own_pages_is_asked_about";
    let mut go = Command::new("go");
    let modules = match go.args(["env", "GOMODCACHE"]).output() {
        Ok(told) => String::from_utf8_lossy(&told.stdout).trim().to_owned(),
        Err(error) => return skip(test, &format!("go: {error}")),
    };
    let plugins = format!("{modules}/github.com/coredns/coredns@v1.15.0/plugin");
    let texts = ACL.iter().map(|(_, text, _)| text).chain(WHOLE.iter().map(|(_, text)| text));
    let texts = texts.chain(BLOCKS.iter().map(|(text, _)| text));
    let asked: HashSet<String> = texts.flat_map(|text| text.lines()).map(words).collect();
    let mut count = 0;
    for plugin in ["acl", "any", "chaos", "header", "loadbalance", "minimal", "rewrite"] {
        let Ok(page) = fs::read_to_string(format!("{plugins}/{plugin}/README.md")) else {
            return skip(test, "CoreDNS's source is not in the module cache of go");
        };
        let page = page.replace("~~~", "```");
        for line in page.split("```").skip(1).step_by(2).flat_map(str::lines) {
            let line = words(line.split('#').next().unwrap_or_default());
            let is_theirs = line.split(' ').next().is_some_and(|word| THEIRS.contains(&word));
            if is_theirs && !line.contains(['[', '|']) && !NOT_ASKED.contains(&&*line) {
                assert!(asked.contains(&line), "the page of {plugin} has {line:?}, and nothing here");
                count += 1;
            }
        }
    }
    assert!(count > 60, "{count} lines");
}

/// Without indentation.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Words that begin a line about a step.
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
/// Words that stand for others, and a file that waits for `file`.
const NOT_ASKED: &[&str] = &[
    "name regex STRING STRING",
    "answer name STRING STRING",
    "loadbalance weighted ./db.example.com.weights {",
];
