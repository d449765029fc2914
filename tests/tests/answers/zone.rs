//! The mock upstream: its answer is a function of the question. The first label selects the kind of
//! answer, the rest may be any name.

use tests::{Action, Asked, Message, Says, Transport, question_end, rtype_name};

/// Every first label with its own kind of answer; all others mean `a`.
pub(crate) const KINDS: &[&str] = &[
    "a",
    "cname",
    "dangling",
    "nxcname",
    "nx",
    "nxlong",
    "nxbare",
    "nodata",
    "empty",
    "servfail",
    "servfailede",
    "refused",
    "notimp",
    "formerr",
    "yxdomain",
    "notauth",
    "ede",
    "options",
    "noopt",
    "big",
    "huge",
    "giant",
    "trunc",
    "many",
    "ttl0",
    "ttl1",
    "ttlbig",
    "signed",
    "ad",
    "aa",
    "mixed",
    "dname",
    "extra",
    "referral",
    "shout",
];

/// The upstream's action on a query.
pub(crate) fn answer(asked: &Asked) -> Action {
    let question = Message::decode(&asked.bytes).ok().and_then(|message| message.question);
    let Some(name) = question.map(|question| question.name) else { return Action::rcode(1) };
    // The kit does not encode escapes.
    if name.contains(['\\', '"']) {
        return Action::nxdomain(&soa("odd.test.", 60, 60));
    }
    // The kit encodes the class IN alone.
    if asked
        .bytes
        .get(question_end(&asked.bytes).unwrap_or(2) - 2..)
        .is_some_and(|class| !class.starts_with(&[0, 1]))
    {
        return Action::Reply(Says::nodata(&soa("class.test.", 60, 60)));
    }
    let lower = name.to_ascii_lowercase();
    let (kind, zone) = lower.split_once('.').unwrap_or_default();
    let zone = if zone.is_empty() { "." } else { zone };
    let parent = |label: &str| format!("{label}.{}", zone.trim_start_matches('.'));
    let dnssec_ok = asked.edns.as_ref().is_some_and(|edns| edns.dnssec_ok);
    let plain = || records(&name, asked.rtype, zone);
    let answer = match kind {
        "cname" => {
            let first = format!("{name} 300 IN CNAME {}", parent("second"));
            let second = format!("{} 60 IN CNAME {}", parent("second"), parent("target"));
            match asked.rtype {
                5 => Says::answer(&first),
                _ => match records(&parent("target"), asked.rtype, zone) {
                    Some(last) => Says::answer(&format!("{first}\n{second}\n{last}")),
                    None => Says::answer(&format!("{first}\n{second}")).authority(&soa(zone, 60, 30)),
                },
            }
        }
        "my-app" if zone == "com." => Says::answer(
            "my-app.com. 200 IN CNAME my-app.example.
my-app.example. 200 IN CNAME my-app.com.cdn.example.net.
my-app.com.cdn.example.net. 300 IN A 198.51.100.9
my-app.com.cdn.example.net. 300 IN A 198.51.100.10",
        ),
        "oddheader" => Says::answer(&format!("{name} 300 IN A 198.51.100.1")).flags(0x0050),
        "heard" if asked.rtype == 16 => {
            Says::answer(&format!("{name} 300 IN TXT \"heard {}\"", options_text(asked)))
        }
        "dangling" => Says::answer(&format!("{name} 300 IN CNAME elsewhere.test.")),
        "nxcname" => {
            Says::nxdomain(&soa(zone, 60, 30)).answers(&format!("{name} 300 IN CNAME {}", parent("nx")))
        }
        "nx" => Says::nxdomain(&soa(zone, 60, 30)),
        "nxlong" => Says::nxdomain(&soa(zone, 30, 600)),
        "nxbare" => Says::rcode(3),
        "nodata" => Says::nodata(&soa(zone, 60, 60)),
        "empty" => Says::rcode(0),
        "servfail" => Says::rcode(2),
        "servfailede" => Says::rcode(2).option(15, b"\0\x16no reach"),
        "refused" => Says::rcode(5),
        "notimp" => Says::rcode(4),
        "formerr" => Says::rcode(1),
        "yxdomain" => Says::rcode(6),
        "notauth" => Says::rcode(9),
        "big" if asked.rtype == 16 => text(&name, 4),
        "huge" if asked.rtype == 16 => text(&name, 14),
        "giant" if asked.rtype == 16 => text(&name, 80),
        "many" if asked.rtype == 1 => {
            let lines: Vec<String> = (1..=60).map(|n| format!("{name} 300 IN A 198.51.100.{n}")).collect();
            Says::answer(&lines.join("\n"))
        }
        "trunc" if asked.transport == Transport::Udp => {
            return Action::Truncate(Says::answer(&format!("{name} 300 IN A 198.51.100.7")));
        }
        "referral" => Says::rcode(0).authority(&format!("{zone} 300 IN NS {}", parent("ns"))),
        "dname" => Says::answer(&format!(
            "{zone} 300 IN DNAME other.test.\n{name} 300 IN CNAME dname.other.test.\ndname.other.test. 300 IN A 198.51.100.8"
        )),
        _ => {
            let Some(lines) = plain() else { return Action::Reply(Says::nodata(&soa(zone, 60, 60))) };
            let ttl = |ttl: &str| Says::answer(&lines.replace(" 300 ", ttl).replace(" 60 ", ttl));
            match kind {
                "ttl0" => ttl(" 0 "),
                "ttl1" => ttl(" 1 "),
                "ttlbig" => ttl(" 100000 "),
                "ede" => Says::answer(&lines).option(15, b"\0\x03stale"),
                "options" => Says::answer(&lines)
                    .option(3, b"upstream")
                    .option(10, b"0123456789abcdef")
                    .option(12, &[0; 20]),
                "noopt" => Says::answer(&lines).without_edns(),
                "signed" if dnssec_ok => Says::answer(&format!(
                    "{lines}\n{name} 300 IN RRSIG \\# 26 0001080200000e107c5b8f00686d87000001047465737400abcd"
                ))
                .flags(0x0020),
                "ad" => Says::answer(&lines).flags(0x0020),
                "aa" => Says::answer(&lines).flags(0x0400),
                "mixed" => Says::answer(&lines.replace("mixed.", "MiXeD.")),
                "extra" => Says::answer(&lines)
                    .authority(&format!("{zone} 300 IN NS {}", parent("ns")))
                    .additional(&format!("{} 200 IN A 198.51.100.53", parent("ns"))),
                "shout" => Says::answer(&lines).shouting(),
                _ => Says::answer(&lines),
            }
        }
    };
    Action::Reply(answer.fitting())
}

/// The records of a name for each type that it has.
fn records(name: &str, rtype: u16, zone: &str) -> Option<String> {
    let name_of = |label: &str| format!("{label}.{}", zone.trim_start_matches('.'));
    Some(match &rtype_name(rtype)[..] {
        "A" => format!("{name} 300 IN A 198.51.100.1\n{name} 60 IN A 198.51.100.2"),
        "AAAA" => format!("{name} 300 IN AAAA 2001:db8::1"),
        "TXT" => format!("{name} 300 IN TXT \"one two\" \"three\""),
        "MX" => format!("{name} 300 IN MX 10 {}", name_of("mx")),
        "SRV" => format!("{name} 300 IN SRV 1 2 53 {}", name_of("srv")),
        "NS" => format!("{name} 300 IN NS {}", name_of("ns")),
        "SOA" => soa(name, 300, 60),
        "PTR" if name.starts_with("30.") => format!("{name} 60 IN PTR ftp-us-west-1.service.consul."),
        "PTR" => format!("{name} 300 IN PTR host.example."),
        "HTTPS" => format!("{name} 300 IN HTTPS \\# 3 000100"),
        "DS" => format!("{name} 300 IN DS \\# 8 0102080201020304"),
        "DNSKEY" => format!("{name} 300 IN DNSKEY \\# 8 0100030801020304"),
        "TYPE65400" => format!("{name} 300 IN TYPE65400 \\# 3 0102ff"),
        "ANY" => format!("{name} 300 IN A 198.51.100.1\n{name} 60 IN TXT \"any\""),
        _ => return None,
    })
}

/// The options that a rewrite rule may have set.
fn options_text(asked: &Asked) -> String {
    let options = asked.edns.iter().flat_map(|edns| &edns.options);
    let written = options.filter(|(code, _)| matches!(code, 3 | 8 | 0xfde9..=0xfffe));
    written.map(|(code, data)| format!("{code}={data:02x?}")).collect::<Vec<_>>().join(" ")
}

fn text(name: &str, strings: usize) -> Says {
    let lines: Vec<String> = (0..strings).map(|n| format!("{name} 300 IN TXT \"{n:0>200}\"")).collect();
    Says::answer(&lines.join("\n"))
}

fn soa(zone: &str, ttl: u32, minimum: u32) -> String {
    format!("{zone} {ttl} IN SOA ns.test. host.test. 7 7200 900 86400 {minimum}")
}
