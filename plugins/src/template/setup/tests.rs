//! Parsing of `template`, and its error messages.

use super::*;
use crate::read_corefile::tests::{parsed, refused, refused_properties, with};

/// Class, type, zones, patterns and all other settings of a template.
fn shown(lines: &str) -> String {
    let spec = parsed::<TemplateSpecs>(lines).unwrap().templates.remove(0);
    let records = |records: &[Record]| records.iter().map(|r| r.text.clone()).collect::<Vec<_>>();
    format!(
        "{} {} {:?} {:?} {:?} {:?} {:?} {} {:?} {}",
        spec.class,
        spec.rtype,
        spec.zones,
        spec.patterns.iter().map(Regex::as_str).collect::<Vec<_>>(),
        records(&spec.answer),
        records(&spec.authority),
        records(&spec.additional),
        spec.rcode,
        spec.ede,
        spec.fallthrough.is_written(),
    )
}

#[test]
fn arguments_and_properties_are_read() {
    for (lines, expected) in [
        ("template ANY ANY".to_owned(), r#"ANY ANY [.] [".*"] [] [] [] NOERROR None false"#),
        ("template in aaaa a.org".to_owned(), r#"IN AAAA [a.org.] [".*"] [] [] [] NOERROR None false"#),
        (
            "template CH TYPE65400 10.0.0.0/24".to_owned(),
            r#"CH TYPE65400 [0.0.10.in-addr.arpa.] [".*"] [] [] [] NOERROR None false"#,
        ),
        (
            with("template IN A", "match ^a ^b\nmatch c$\nrcode nxdomain\nfallthrough"),
            r#"IN A [.] ["^a", "^b", "c$"] [] [] [] NXDOMAIN None true"#,
        ),
        (
            with(
                "template IN A",
                "answer \"{{ .Name }} 60 IN A 192.0.2.1\" \"{{ .Name }} 60 IN A 192.0.2.2\"\nauthority \"a. NS b.\"\nadditional \"b. A 192.0.2.3\"",
            ),
            r#"IN A [.] [".*"] ["{{ .Name }} 60 IN A 192.0.2.1", "{{ .Name }} 60 IN A 192.0.2.2"] ["a. NS b."] ["b. A 192.0.2.3"] NOERROR None false"#,
        ),
        (
            with("template IN A", "answer \"{{ .Group.host }} A 192.0.2.1\"\nmatch \"^(?P<host>.*)$\""),
            r#"IN A [.] ["^(?P<host>.*)$"] ["{{ .Group.host }} A 192.0.2.1"] [] [] NOERROR None false"#,
        ),
        (
            with("template IN A", "ederror 15 \"not here\""),
            r#"IN A [.] [".*"] [] [] [] NOERROR Some((15, "not here")) false"#,
        ),
        (with("template IN A", "ederror 0"), r#"IN A [.] [".*"] [] [] [] NOERROR Some((0, "")) false"#),
    ] {
        assert_eq!(shown(&lines), expected, "{lines}");
    }
}

#[test]
fn errors_have_their_place() {
    refused(&[
        ("template", "2:1: plugin/template: `template` needs CLASS TYPE [ZONE...]"),
        ("template IN", "2:1: plugin/template: `template` needs CLASS TYPE [ZONE...]"),
        ("template INN A", "2:10: plugin/template: \"INN\" is not a class such as IN or ANY"),
        ("template IN AAA", "2:13: plugin/template: \"AAA\" is not a record type such as A or ANY"),
        ("template IN A a..b", "2:15: the zone `a..b` has an empty label"),
    ]);
    refused_properties(
        "template IN A",
        &[
            ("match", "1: plugin/template: `match` needs a regular expression"),
            ("match ^a (b", "10: plugin/template: the regular expression cannot be used: unclosed group"),
            (
                "match ^a a{99999}",
                "10: plugin/template: the regular expression cannot be used: its length with each repeat written out, times its groups, is 99999, and 10000 at most; repeat less",
            ),
            (
                "match (?=a)",
                "7: plugin/template: the regular expression cannot be used: look-around, including look-ahead and look-behind, is not supported",
            ),
            ("answer", "1: plugin/template: `answer` needs a record as a template"),
            ("answer \"{{ .Nam }}\"", "8: plugin/template: unknown field \".Nam\"; did you mean `Name`?"),
            ("answer a \"{{ .Name \"", "10: plugin/template: unclosed action; `}}` is missing"),
            (
                "answer a \"{{ .Name } 60 IN A 1.2.3.4\"",
                "10: plugin/template: unclosed action; `}}` is missing",
            ),
            (
                "answer \"{{ print .Question }}\"",
                "8: plugin/template: print of a structure; name one of its fields",
            ),
            ("answer \"{{ .Message.Answer }}\"", "8: plugin/template: unknown field \".Message.Answer\""),
            ("authority {\nx\n}", "1: plugin/template: `authority` has no sub-block; remove the braces"),
            ("additional \"{{ define }}\"", "12: plugin/template: {{define}} is not supported"),
            ("rcode", "1: plugin/template: `rcode` needs an rcode such as NXDOMAIN"),
            ("rcode NOPE", "7: plugin/template: \"NOPE\" is not an rcode such as NXDOMAIN"),
            (
                "rcode NXDOMAIN x",
                "16: plugin/template: unexpected argument \"x\"; `rcode` needs an rcode such as NXDOMAIN",
            ),
            (
                "ederror",
                "1: plugin/template: `ederror` needs an Extended DNS Error code and, if wanted, a text",
            ),
            ("ederror 65536", "9: plugin/template: \"65536\" is not an Extended DNS Error code, 0 to 65535"),
            ("fallthrough {\nx\n}", "1: plugin/template: `fallthrough` has no sub-block; remove the braces"),
            ("var", "1: plugin/template: `var` needs a name and an expression"),
            ("var x", "1: plugin/template: `var` needs a name and an expression"),
            (
                "var len 1",
                "5: plugin/template: \"len\" is not a name for a variable: letters, digits and _, and no word of the language",
            ),
            (
                "var a-b 1",
                "5: plugin/template: \"a-b\" is not a name for a variable: letters, digits and _, and no word of the language",
            ),
            ("expr", "1: plugin/template: `expr` needs an expression"),
            ("expr size() >", "13: plugin/template: the expression ends too early"),
            ("expr size() == == 1", "16: plugin/template: the expression cannot be read from \"== 1\" on"),
            (
                "expr nmae() == 'a.'",
                "6: plugin/template: \"nmae\" in the expression is neither a `var` above it nor a function; did you mean `name`?",
            ),
            ("expr 1 == name", "11: plugin/template: `name` is a function; write `name(...)`"),
            (
                "expr later > 1\nvar later 2",
                "6: plugin/template: \"later\" in the expression is neither a `var` above it nor a function",
            ),
            ("expr now() > 1", "6: plugin/template: \"now()\" in an expression is not supported yet"),
            ("expr 1 in 1..5", "11: plugin/template: \"..\" in an expression is not supported yet"),
            ("answer \"{{ .Var.m }}\"\nvar n 1", "8: plugin/template: unknown field \".Var.m\""),
            ("anwser x", "1: plugin/template: unknown property \"anwser\"; did you mean `answer`?"),
        ],
    );
}
