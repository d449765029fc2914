use super::*;
use crate::testing::read as read_lines;

fn rules(lines: &str) -> std::result::Result<Vec<Rule>, String> {
    read_lines(lines, |directives| directives.iter().map(|directive| rule(directive)).collect())
}

#[test]
fn every_rule_is_read_in_every_form() {
    for line in [
        "name a b",
        "name exact a.example b.example",
        "stop name prefix a b answer auto",
        "continue name suffix .a .b answer auto answer value (.*)[.]b {1}.a",
        "name substring a b answer name a b answer name c d",
        "name regex (.*)-(x) {2}-{1} answer auto",
        "NAME Regex a b",
        "type AAAA A",
        "type TYPE65400 A",
        "type AXFR ANY",
        "class CH IN",
        "ttl a 30",
        "ttl exact a 30-60",
        "ttl suffix a -60",
        "ttl a 4294967295",
        "ttl a 0-4294967295",
        "ttl regex .* 30-",
        "rcode a SERVFAIL NXDOMAIN",
        "rcode regex .* 2 3",
        "rcode a BADSIG DSOTYPENI",
        "cname a b",
        "cname regex (.*)a {1}b",
        "edns0 local set 0xffee 0x61626364",
        "continue edns0 LOCAL Append 65518 {client_ip} revert",
        "edns0 local replace 017 text",
        "edns0 local unset 0xffee",
        "edns0 local set 8 0x00011800c00002",
        "edns0 nsid unset",
        "edns0 local set 0xffee {kubernetes/client-namespace}",
        "name regex ^([^.]+)[.]example[.]$ {1}.{kubernetes/client-namespace}.svc metadata answer auto",
        "edns0 nsid set revert",
        "edns0 subnet set 24 56",
        "edns0 subnet unset",
        "{\nname exact a b\n}",
        "continue {\nttl regex .*\n30-60\n}",
    ] {
        assert_eq!(rules(&format!("rewrite {line}")).map(|rules| rules.len()), Ok(1), "{line}");
    }
}

#[test]
fn bad_words_have_their_place() {
    for (line, error) in [
        (
            "",
            "1: plugin/rewrite: `rewrite` needs [continue|stop] and a rule: name, type, class, edns0, ttl, rcode or cname",
        ),
        (
            "nam a b",
            "9: plugin/rewrite: \"nam\" is not a rule: name, type, class, edns0, ttl, rcode or cname",
        ),
        (
            "answer name a b",
            "9: plugin/rewrite: \"answer\" is not a rule: answers are rewritten by a `name` rule with `answer` behind it",
        ),
        (
            "continue name a b {\nanswer auto\n}",
            "9: plugin/rewrite: `rewrite` needs all words of a rule in the braces, or none; move these into them, or the others out",
        ),
        (
            "name exact a b {\nanswer auto\n}",
            "9: plugin/rewrite: `rewrite` needs all words of a rule in the braces, or none; move these into them, or the others out",
        ),
        (
            "name a",
            "1: plugin/rewrite: `rewrite` needs name [exact|prefix|suffix|substring|regex] FROM TO [metadata] [answer ...]",
        ),
        ("name glob a b", "14: plugin/rewrite: \"glob\" is not exact, prefix, suffix, substring or regex"),
        ("name regex ( b", "20: plugin/rewrite: the regular expression cannot be used: unclosed group"),
        (
            "name regex ([a-z]?){1000}(b?){10000} b",
            "20: plugin/rewrite: the regular expression cannot be used: its length with each repeat written out, times its groups, is 44000, and 10000 at most; repeat less, or write (?:...) for groups that nothing uses",
        ),
        (
            "ttl regex a{10001} 5",
            "19: plugin/rewrite: the regular expression cannot be used: its length with each repeat written out, times its groups, is 10001, and 10000 at most; repeat less",
        ),
        (
            "name suffix a b answer name (?:a{101}){100} b",
            "37: plugin/rewrite: the regular expression cannot be used: its length with each repeat written out, times its groups, is 10100, and 10000 at most; repeat less",
        ),
        (
            "name regex a {1}",
            "22: plugin/rewrite: \"{1}\" is not a replacement: its pattern has no such group",
        ),
        (
            "name exact a b metadata",
            "24: plugin/rewrite: \"metadata\" is not `answer`; `metadata` is for `regex` alone",
        ),
        (
            "name regex a {label} metadata",
            "22: plugin/rewrite: \"{label}\" is not a replacement of groups such as {1} and labels such as {plugin/label}",
        ),
        (
            "name regex a {1}.b metadata",
            "22: plugin/rewrite: \"{1}.b\" is not a replacement of groups such as {1} and labels such as {plugin/label}",
        ),
        (
            "edns0 local set 1 {client}",
            "27: plugin/rewrite: \"{client}\" is not a variable: {qname}, {qtype}, {client_ip}, {client_port}, {protocol}, {server_ip}, {server_port} or {plugin/label}",
        ),
        ("name exact a b c d", "24: plugin/rewrite: \"c\" is not `answer`"),
        ("name exact a b answer", "24: plugin/rewrite: `answer` needs auto, name FROM TO or value FROM TO"),
        (
            "name suffix a b answer auto answer value x",
            "37: plugin/rewrite: `answer` needs auto, name FROM TO or value FROM TO",
        ),
        (
            "name suffix a b answer auto answer name a b",
            "44: plugin/rewrite: `answer auto` and `answer name` exclude each other; keep one",
        ),
        ("type A QUAD", "16: plugin/rewrite: \"QUAD\" is not a type, such as AAAA"),
        ("type A", "1: plugin/rewrite: `rewrite` needs type FROM TO"),
        (
            "type MX AXFR",
            "17: plugin/rewrite: \"AXFR\" is not a type that can be looked up in place of another; write one that records have, such as AAAA, or ANY",
        ),
        (
            "type MX TYPE41",
            "17: plugin/rewrite: \"TYPE41\" is not a type that can be looked up in place of another; write one that records have, such as AAAA, or ANY",
        ),
        ("ttl a never", "15: plugin/rewrite: \"never\" is not seconds: N, MIN-MAX, MIN- or -MAX"),
        ("ttl a +5", "15: plugin/rewrite: \"+5\" is not seconds: N, MIN-MAX, MIN- or -MAX"),
        ("ttl a 4294967296", "15: plugin/rewrite: \"4294967296\" is not seconds: N, MIN-MAX, MIN- or -MAX"),
        ("ttl a 60-30", "15: plugin/rewrite: \"60-30\" is not seconds: N, MIN-MAX, MIN- or -MAX"),
        ("rcode a SERVFAIL NONE", "26: plugin/rewrite: \"NONE\" is not an rcode, such as NXDOMAIN or 3"),
        (
            "edns0 local",
            "1: plugin/rewrite: `rewrite` needs edns0 local|nsid|subnet set|append|replace|unset ... [revert]",
        ),
        ("edns0 cookie set", "15: plugin/rewrite: \"cookie\" is not local, nsid or subnet"),
        ("edns0 local add 1 a", "21: plugin/rewrite: \"add\" is not set, append, replace or unset"),
        ("edns0 local set 0xfffff a", "25: plugin/rewrite: \"0xfffff\" is not a code from 0 to 65535"),
        (
            "edns0 local set 0xffee",
            "1: plugin/rewrite: `rewrite` needs edns0 local set|append|replace CODE DATA [revert], or edns0 local unset CODE",
        ),
        (
            "edns0 local set 1 0x616",
            "27: plugin/rewrite: \"0x616\" is not octets in hexadecimal, such as 0x61626364",
        ),
        ("edns0 local set 8 0x0001", "27: plugin/rewrite: \"0x0001\" is not a client subnet; write `subnet`"),
        ("edns0 subnet set 33 56", "26: plugin/rewrite: \"33\" is not bits of an IPv4 address"),
        ("edns0 subnet set 24 129", "29: plugin/rewrite: \"129\" is not bits of an IPv6 address"),
        (
            "edns0 nsid set x",
            "24: plugin/rewrite: unexpected argument \"x\"; `rewrite` needs edns0 local|nsid|subnet set|append|replace|unset ... [revert]",
        ),
    ] {
        let line = format!("rewrite {line}");
        let found = rules(line.trim_end()).err().unwrap_or_else(|| panic!("{line:?} is taken"));
        assert_eq!(found, format!("Corefile:2:{error}"), "{line:?}");
    }
}
