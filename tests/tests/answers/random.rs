//! Random server blocks. A block and its queries are a function of the seed and the block's number,
//! so each can be run alone.

use std::sync::{Arc, LazyLock};

use tests::Ask;

use crate::battery::{tcp, udp, under};
use crate::exchange::Query;
use crate::grammar::{self, Item};
use crate::random_numbers::Dice;
use crate::rows::plugins;
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

struct Block {
    dice: Dice,
    zone: String,
    lines: Vec<String>,
    /// Names that match some directive of the block.
    names: Vec<String>,
}

impl Block {
    /// The text of a block and its queries.
    fn compose(seed: u64, number: u64) -> (String, Vec<Query>) {
        let mut dice = Dice::new(seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
        dice.next();
        let zone = format!("b{number}.{}", dice.of(&["test", "rand.test", "a.b.rand.test"]));
        let mut block = Self { dice, zone, lines: Vec::new(), names: Vec::new() };
        let is_tls = block.dice.one_in(6);
        if is_tls {
            block.lines.push("tls @DIR@/cert.pem @DIR@/key.pem".to_owned());
        }
        let keys = block.keys(is_tls);
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
                    tcp: query.tcp || is_tls,
                    ..query
                }
            })
            .collect();
        (text, queries)
    }

    /// The zone, possibly in upper case, possibly with another zone or a network.
    fn keys(&mut self, is_tls: bool) -> String {
        let zone = if self.dice.one_in(6) { self.zone.to_uppercase() } else { self.zone.clone() };
        let mut keys = vec![zone];
        if self.dice.one_in(5) {
            self.names.push(format!("a.other-{}", self.zone));
            keys.push(format!("other-{}", self.zone));
        }
        if self.dice.one_in(8) {
            // The network contains the zone's number, so that no two blocks have the same.
            let number: u64 =
                self.zone[1..].split('.').next().and_then(|n| n.parse().ok()).unwrap_or_default();
            let (high, low) = (number >> 8 & 0xff, number & 0xff);
            keys.push(format!("10.{high}.{low}.0/24"));
            self.names.push(format!("7.{low}.{high}.10.in-addr.arpa"));
        }
        let written = |key| match is_tls {
            true => format!("tls://{key}:@TLSPORT@"),
            false => format!("{key}:@PORT@"),
        };
        keys.iter().map(written).collect::<Vec<_>>().join(" ")
    }

    fn directives(&mut self) {
        for plugin in sections() {
            let (lines, names) = grammar::draw(plugin, &mut self.dice, &self.zone);
            self.lines.extend(lines);
            self.names.extend(names);
        }
        // The order has no effect, except among directives that may occur more than once.
        for at in (1..self.lines.len()).rev() {
            let other = self.dice.below(at as u64 + 1) as usize;
            let repeats =
                |line: &str| ["forward", "template", "rewrite"].iter().any(|name| line.starts_with(name));
            if !repeats(&self.lines[at]) && !repeats(&self.lines[other]) {
                self.lines.swap(at, other);
            }
        }
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

/// The section `[random]` of each plugin's file.
fn sections() -> &'static [Vec<Item>] {
    static ALL: LazyLock<Vec<Vec<Item>>> =
        LazyLock::new(|| plugins().iter().map(|plugin| grammar::parse(plugin.section("random"))).collect());
    &ALL
}

/// A rule of `acl` without reply: for one type alone, so that few queries wait for the timeout.
const DROP: &str = "drop type SRV";
