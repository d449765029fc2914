//! Server blocks composed at random. A block and what it is asked are a function of the seed and the block's number, so that any one can be run again alone.

use std::sync::Arc;

use tests::Ask;

use crate::battery::{tcp, udp, under};
use crate::exchange::Query;
use crate::run::Setup;
use crate::zone::KINDS;

/// One Corefile of the blocks with these numbers.
pub(crate) fn corefile(seed: u64, numbers: &[u64]) -> Setup {
    let (mut text, mut queries) = (String::new(), Vec::new());
    for number in numbers {
        let (block, asked) = Block::compose(seed, *number);
        text.push_str(&block);
        queries.extend(asked);
    }
    let last = numbers.last().copied().unwrap_or_default();
    let name = format!("seed {seed} blocks {}..={last}", numbers[0]);
    Setup { name, text, queries, metrics: Some(9153), objects: Vec::new(), later: Vec::new() }
}

/// SplitMix64: small, and the same everywhere and for ever.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len() as u64) as usize]
    }
}

struct Block {
    dice: Dice,
    zone: String,
    lines: Vec<String>,
    /// Names that some directive of the block is about.
    names: Vec<String>,
}

impl Block {
    /// The text of a block and what it is asked.
    fn compose(seed: u64, number: u64) -> (String, Vec<Query>) {
        let mut dice = Dice(seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
        dice.next();
        let zone = format!("b{number}.{}", dice.of(&["test", "rand.test", "a.b.rand.test"]));
        let mut block = Self { dice, zone, lines: Vec::new(), names: Vec::new() };
        let keys = block.keys();
        block.directives();
        let lines: String = block.lines.iter().map(|line| format!("    {line}\n")).collect();
        let text = format!("{keys} {{\n    bind @IP@\n    prometheus @IP@:9153\n{lines}}}\n");
        let shared: Arc<str> = text.as_str().into();
        let count = 8 + block.dice.below(8);
        let queries = (0..count)
            .map(|_| {
                let query = block.query();
                Query {
                    what: format!("block {number}: {}", query.what),
                    block: Some(Arc::clone(&shared)),
                    ..query
                }
            })
            .collect();
        (text, queries)
    }

    /// The zone, perhaps shouted, perhaps with another one or a network beside it.
    fn keys(&mut self) -> String {
        let zone = if self.dice.one_in(6) { self.zone.to_uppercase() } else { self.zone.clone() };
        let mut keys = vec![zone];
        if self.dice.one_in(5) {
            self.names.push(format!("a.other-{}", self.zone));
            keys.push(format!("other-{}", self.zone));
        }
        if self.dice.one_in(8) {
            // The number is the network's, so that no two blocks have the same.
            let number: u64 =
                self.zone[1..].split('.').next().and_then(|n| n.parse().ok()).unwrap_or_default();
            let (high, low) = (number >> 8 & 0xff, number & 0xff);
            keys.push(format!("10.{high}.{low}.0/24"));
            self.names.push(format!("7.{low}.{high}.10.in-addr.arpa"));
        }
        keys.iter().map(|key| format!("{key}:@PORT@")).collect::<Vec<_>>().join(" ")
    }

    fn directives(&mut self) {
        for (chance, line) in
            [(2, "errors"), (6, "log"), (9, "root @DIR@"), (6, "bufsize"), (8, "bufsize 512")]
        {
            if self.dice.one_in(chance)
                && !self.lines.iter().any(|other| other.starts_with("bufsize") && line.starts_with("bufsize"))
            {
                self.lines.push(line.to_owned());
            }
        }
        if self.dice.one_in(5) {
            let id = format!("nsid node{}", self.dice.below(100));
            self.lines.push(id);
        }
        if self.dice.one_in(3) {
            self.steps();
        }
        if self.dice.one_in(2) {
            self.cache();
        }
        if self.dice.one_in(4) {
            self.hosts();
        }
        for _ in 0..self.dice.below(8).saturating_sub(4) {
            self.template();
        }
        for _ in 0..[0, 1, 1, 1, 1, 1, 2][self.dice.below(7) as usize] {
            self.forward();
        }
        if self.dice.one_in(5) {
            self.lines.push("whoami".to_owned());
        }
        // In what order they stand makes no difference.
        for at in (1..self.lines.len()).rev() {
            let other = self.dice.below(at as u64 + 1) as usize;
            let repeats =
                |line: &str| ["forward", "template", "rewrite"].iter().any(|name| line.starts_with(name));
            if !repeats(&self.lines[at]) && !repeats(&self.lines[other]) {
                self.lines.swap(at, other);
            }
        }
    }

    /// What acts around the sources.
    fn steps(&mut self) {
        let zone = self.zone.clone();
        if self.dice.one_in(3) {
            self.lines.push("minimal".to_owned());
        }
        if self.dice.one_in(6) {
            self.lines.push("any".to_owned());
        }
        if self.dice.one_in(4) {
            let rules = ["set aa", "clear aa", "set ra", "clear ra", "set aa ra", "clear rd", "set rd"];
            let rules = (0..1 + self.dice.below(2)).map(|_| {
                let way = *self.dice.of(&["response", "response", "query"]);
                format!("{way} {}", self.dice.of(&rules))
            });
            let rules: Vec<String> = rules.collect();
            self.push("header", &rules);
        }
        if self.dice.one_in(4) {
            let policies = [
                "loadbalance",
                "loadbalance round_robin",
                "loadbalance round_robin {\n        prefer 198.51.100.2/32 2001:db8::/64\n    }",
                "loadbalance weighted @DIR@/weights",
            ];
            self.lines.push((*self.dice.of(&policies)).to_owned());
        }
        if self.dice.one_in(4) {
            let zones = self.dice.of(&[String::new(), format!(" {zone}"), format!(" k.{zone}")]).clone();
            self.lines.push(format!("metadata{zones}"));
        }
        if self.dice.one_in(3) {
            let of = *self.dice.of(&["", "k.", "x.k."]);
            let rules = [
                "block type MX",
                "filter type AAAA TXT",
                "allow type A net 127.0.0.0/8",
                "block net 192.0.2.0/24",
                DROP,
                "drop net 192.0.2.0/24",
            ];
            let rules: Vec<String> =
                (0..1 + self.dice.below(3)).map(|_| (*self.dice.of(&rules)).to_owned()).collect();
            self.push(&format!("acl {of}{zone}"), &rules);
        }
        for _ in 0..self.dice.below(4) {
            let rules = [
                format!("rewrite name suffix .k.{zone} .t.{zone} answer auto"),
                format!("rewrite continue name suffix .x.k.{zone} .k.{zone} answer auto"),
                format!("rewrite name exact a.k.{zone} cname.t.{zone}"),
                format!("rewrite name regex (.*)[.]t[.]{zone}[.]$ {{1}}.k.{zone} answer auto"),
                format!("rewrite cname suffix .k.{zone} .t.{zone}"),
                "rewrite continue ttl suffix . 7-70".to_owned(),
                "rewrite rcode suffix . NXDOMAIN NOERROR".to_owned(),
                "rewrite type MX TXT".to_owned(),
                "rewrite continue edns0 local set 0xffee {qtype} revert".to_owned(),
                "rewrite continue edns0 nsid set".to_owned(),
                "rewrite edns0 local set 0xffef {qname}".to_owned(),
                "rewrite continue class CH IN".to_owned(),
                "rewrite class IN CH".to_owned(),
                format!(
                    "rewrite name regex (.*)[.]k[.]{zone}[.]$ {{1}}.t.{zone} answer name (.*)[.]t[.]{zone}[.]$ {{1}}.k.{zone}"
                ),
                format!(
                    "rewrite name regex (.*)[.]k[.]{zone}[.]$ {{1}}.t.{zone} answer name (.*)[.]t[.]{zone}[.]$ {{1}}.k.{zone} answer value (.*)[.]t[.]{zone}[.]$ {{1}}.far"
                ),
                format!(
                    "rewrite stop {{\n        name suffix .k.{zone} .t.{zone}\n        answer auto\n        answer value (.*)[.]far[.]$ {{1}}.near\n    }}"
                ),
                format!("rewrite name regex (.*)[.]k[.]{zone}[.]$ {{1}}.{{forward/upstream}} metadata"),
                "rewrite continue edns0 local append 0xffee more".to_owned(),
                "rewrite continue edns0 local replace 0xffee other".to_owned(),
                "rewrite edns0 local replace 0xffee other revert".to_owned(),
                "rewrite edns0 local unset 0xffee".to_owned(),
                "rewrite edns0 local set 0xffee {forward/upstream}".to_owned(),
                "rewrite edns0 subnet set 24 56".to_owned(),
                "rewrite edns0 subnet append 24 56".to_owned(),
                "rewrite edns0 subnet replace 16 48".to_owned(),
                "rewrite edns0 subnet unset".to_owned(),
            ];
            let rule = self.dice.of(&rules).clone();
            self.lines.push(rule);
        }
    }

    fn cache(&mut self) {
        let ttl = *self.dice.of(&["", " 1", " 30", " 300", " 7200"]);
        let zones = if self.dice.one_in(6) { format!(" k.{}", self.zone) } else { String::new() };
        let mut inside = Vec::new();
        let number = |dice: &mut Dice| *dice.of(&[0, 1, 5, 20, 100, 600, 5000]);
        for kind in ["success", "denial"] {
            match self.dice.below(6) {
                0 => inside.push(format!("{kind} 5000")),
                1 => {
                    let max = number(&mut self.dice).max(1);
                    inside.push(format!("{kind} 5000 {max}"));
                }
                2 => {
                    let (max, min) = (number(&mut self.dice).max(1), number(&mut self.dice));
                    inside.push(format!("{kind} 5000 {} {}", max.max(min), max.min(min)));
                }
                3 if self.dice.one_in(3) => inside.push(format!("disable {kind}")),
                3 => inside.push(format!("disable {kind} t.{}", self.zone)),
                _ => {}
            }
        }
        for (chance, line) in [
            (5, "servfail 0"),
            (8, "servfail 20s"),
            (6, "prefetch 2 1m 20%"),
            (6, "serve_stale"),
            (6, "serve_stale 10m verify"),
            (10, "keepttl"),
        ] {
            if self.dice.one_in(chance)
                && !inside.iter().any(|other| other.split(' ').next() == line.split(' ').next())
            {
                inside.push(line.to_owned());
            }
        }
        let head = format!("cache{ttl}{}", if ttl.is_empty() && zones.is_empty() { "" } else { &zones });
        self.push(&head, &inside);
    }

    fn hosts(&mut self) {
        let zone = self.zone.clone();
        let mut head =
            self.dice.of(&["hosts @DIR@/hosts", "hosts @DIR@/missing", "hosts @DIR@/hosts"]).to_string();
        if self.dice.one_in(4) {
            head.push_str(&format!(
                " {}",
                self.dice.of(&[zone.clone(), format!("k.{zone}"), "invalid".to_owned()])
            ));
        }
        let mut inside = Vec::new();
        for (chance, line) in [
            (2, format!("203.0.113.{} host.{zone} Alias.{zone}", self.dice.below(9))),
            (2, format!("2001:db8::{} host.{zone}", self.dice.below(9))),
            (3, format!("203.0.113.77 *.stars.{zone}")),
            (3, format!("10.{}.0.9 ten.{zone} nx.k.{zone}", self.dice.below(9))),
            (3, format!("ttl {}", self.dice.of(&[1, 5, 60, 65_535]))),
            (5, "no_reverse".to_owned()),
            (5, "reload 0".to_owned()),
            (2, (*self.dice.of(&["fallthrough", "fallthrough test", "fallthrough invalid"])).to_owned()),
        ] {
            if self.dice.one_in(chance) {
                inside.push(line);
            }
        }
        self.names
            .extend(["host", "alias", "x.stars", "x.y.stars", "ten"].map(|label| format!("{label}.{zone}")));
        self.names.push("10.113.0.203.in-addr.arpa".to_owned());
        self.push(&head, &inside);
    }

    fn template(&mut self) {
        let zone = self.zone.clone();
        let class = *self.dice.of(&["IN", "IN", "IN", "ANY", "CH"]);
        let rtype = *self.dice.of(&["A", "AAAA", "TXT", "MX", "ANY", "ANY", "HTTPS"]);
        let zones = match self.dice.below(4) {
            0 => String::new(),
            1 => format!(" tpl.{zone}"),
            2 => format!(" {zone}"),
            _ => format!(" tpl.{zone} t.{zone}"),
        };
        let mut inside = Vec::new();
        match self.dice.below(5) {
            0 => inside.push("match \"^ip-(?P<n>[0-9]+)[.]\"".to_owned()),
            1 => inside.push(format!("match \"^[a-m].*[.]{}[.]$\"", zone.replace('.', "[.]"))),
            2 => inside.push("match ^never ^ip-([0-9])(?P<n>[0-9]*)".to_owned()),
            _ => {}
        }
        let named = inside.first().is_some_and(|line| line.contains("?P<n>"));
        let ttl = self.dice.below(400);
        let record = match rtype {
            "A" | "ANY" if named => format!("{{{{ .Name }}}} {ttl} IN A 192.0.2.{{{{ .Group.n }}}}"),
            "AAAA" => format!("{{{{ .Name }}}} {ttl} IN AAAA 2001:db8::7"),
            "TXT" => format!(
                "{{{{ .Name }}}} {ttl} IN TXT \\\"{{{{ .Zone }}}} {{{{ .Type }}}} {{{{ .Class }}}}\\\""
            ),
            "MX" => format!("{{{{ .Name }}}} {ttl} IN MX 10 mx.{{{{ .Zone }}}}"),
            "HTTPS" => format!("{{{{ .Name }}}} {ttl} IN HTTPS 1 . alpn=\\\"h2\\\""),
            _ => format!("{{{{ .Name }}}} {ttl} IN A 192.0.2.8"),
        };
        if self.dice.below(3) > 0 {
            inside.push(format!("answer \"{record}\""));
        }
        for (chance, line) in [
            (4, format!("authority \"{{{{ .Zone }}}} {ttl} IN SOA ns.{zone}. host.{zone}. 1 2 3 4 5\"")),
            (6, format!("additional \"mx.{zone}. {ttl} IN A 192.0.2.25\"")),
            (
                3,
                format!("rcode {}", self.dice.of(&["NXDOMAIN", "REFUSED", "NOERROR", "SERVFAIL", "NOTAUTH"])),
            ),
            (6, "ederror 15 \"blocked here\"".to_owned()),
            (3, "fallthrough".to_owned()),
            (8, format!("fallthrough k.{zone}")),
        ] {
            if self.dice.one_in(chance)
                && !inside
                    .iter()
                    .any(|other| other.starts_with("fallthrough") && line.starts_with("fallthrough"))
            {
                inside.push(line);
            }
        }
        self.names
            .extend(["ip-7.tpl", "IP-12", "ip-9.t", "zzz.tpl", "tpl"].map(|label| format!("{label}.{zone}")));
        self.push(&format!("template {class} {rtype}{zones}"), &inside);
    }

    fn forward(&mut self) {
        let zone = self.zone.clone();
        let from = match self.dice.below(8) {
            0 => zone.clone(),
            1 => format!("k.{zone}"),
            _ => ".".to_owned(),
        };
        let to = *self.dice.of(&["@UP@", "@UP@", "@UP2@", "@UP@ @UP2@"]);
        let mut inside = Vec::new();
        for (chance, line) in [
            (5, "force_tcp".to_owned()),
            (5, "prefer_udp".to_owned()),
            (3, format!("policy {}", self.dice.of(&["random", "round_robin", "sequential"]))),
            (6, format!("except {}.{zone}", self.dice.of(&["k", "t", "a.k"]))),
            (8, format!("max_concurrent {}", 100 + self.dice.below(900))),
            (8, format!("max_fails {}", self.dice.below(4))),
            (8, "expire 20s".to_owned()),
            (8, "health_check 1s no_rec domain health.test".to_owned()),
            (8, "failfast_all_unhealthy_upstreams".to_owned()),
            (8, format!("failover {}", self.dice.of(&["SERVFAIL", "REFUSED NXDOMAIN"]))),
            (10, "next NXDOMAIN SERVFAIL".to_owned()),
            (12, "next_on_nodata".to_owned()),
        ] {
            if self.dice.one_in(chance) {
                inside.push(line);
            }
        }
        self.push(&format!("forward {from} {to}"), &inside);
    }

    fn push(&mut self, head: &str, inside: &[String]) {
        self.lines.push(match inside {
            [] => head.to_owned(),
            lines => format!("{head} {{\n        {}\n    }}", lines.join("\n        ")),
        });
    }

    fn query(&mut self) -> Query {
        let zone = self.zone.clone();
        let kind = if self.dice.one_in(12) { "heard" } else { self.dice.of(KINDS) };
        let label = *self.dice.of(&["k", "k", "t", "x.k"]);
        let own = under(&zone, &format!("{kind}.{label}"));
        let mut name = match self.dice.below(5) {
            0 if !self.names.is_empty() => {
                let names = std::mem::take(&mut self.names);
                let name = self.dice.of(&names).clone();
                self.names = names;
                name
            }
            1 if self.dice.one_in(2) => zone,
            _ => own,
        };
        if self.dice.one_in(4) {
            name =
                name.chars().map(|c| if self.dice.one_in(2) { c.to_ascii_uppercase() } else { c }).collect();
        }
        let types = [
            "A",
            "A",
            "A",
            "AAAA",
            "AAAA",
            "TXT",
            "MX",
            "HTTPS",
            "SOA",
            "NS",
            "PTR",
            "SRV",
            "CNAME",
            "ANY",
            "DS",
            "TYPE65400",
        ];
        let mut rtype = *self.dice.of(&types);
        if matches!(kind, "big" | "huge" | "giant") {
            rtype = "TXT";
        }
        let mut ask = Ask::new(&name, rtype);
        let mut what = format!("{name} {rtype}");
        let size = *self.dice.of(&[0, 512, 1232, 1400, 4096, 65_535]);
        type Turn<'t> = (u64, &'t str, fn(Ask, u16) -> Ask);
        let turns: [Turn<'_>; 10] = [
            (3, "edns", |ask, size| ask.edns(size)),
            (5, "do", |ask, _| ask.dnssec_ok()),
            (10, "nsid", |ask, _| ask.nsid()),
            (12, "cookie", |ask, _| ask.option(10, b"01234567")),
            (12, "subnet", |ask, _| ask.option(8, &[0, 1, 24, 0, 192, 0, 2])),
            (12, "cd", |ask, _| ask.cd()),
            (12, "ad", |ask, _| ask.ad()),
            (12, "no rd", |ask, _| ask.rd(false)),
            (14, "class 3", |ask, _| ask.class(3)),
            (12, "option", |ask, _| ask.option(0xffee, b"own")),
        ];
        for (chance, word, turn) in turns {
            if self.dice.one_in(chance) {
                ask = turn(ask, size);
                what.push_str(&format!(" {word}"));
            }
        }
        let query = if self.dice.one_in(5) { tcp(&format!("{what} tcp"), &[ask]) } else { udp(&what, &ask) };
        let quiet = rtype == "SRV" && self.lines.iter().any(|line| line.contains(DROP));
        Query { quiet, ..query }
    }
}

/// Nobody is answered: of one type alone, so that few queries are waited for.
const DROP: &str = "drop type SRV";
