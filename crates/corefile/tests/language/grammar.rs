//! The language rule by rule: the blocks of a text, or the error with its place.

use crate::common::{read, shape};

#[test]
fn texts_give_blocks() {
    for (text, expected) in [
        ("", ""),
        ("# nothing\n", ""),
        (".", ". { }"),
        (".:53\n", ".:53 { }"),
        (".\nlog", ". { log; }"),
        (".\nlog\nforward . 1.1.1.1 {\n  a b\n}\n", ". { log; forward . 1.1.1.1 { a b; } }"),
        (". {\nlog\n}", ". { log; }"),
        (".\n{\nlog\n}", ". { log; }"),
        (". {\n}\n", ". { }"),
        (". { }", ". { }"),
        (". { log\n}", ". { log; }"),
        (". {\ncache { success 9\n}\n}", ". { cache { success 9; } }"),
        (". {\ncache { }\nlog\n}", ". { cache { } log; }"),
        (". {\ncache {\n}\n}", ". { cache { } }"),
        (". {\nlog\n} a.b {\nerrors\n}", ". { log; } a.b { errors; }"),
        ("a.b c.d:53 {\n}", "a.b c.d:53 { }"),
        ("a.b, c.d:53 {\n}", "a.b c.d:53 { }"),
        ("a.b,\n\n# both\nc.d:53,\nx\n{\n}", "a.b c.d:53 x { }"),
        ("a.b\nlog\nlog\n", "a.b { log; log; }"),
        (". {\na {\nb {\nc\n}\n}\n}", ". { a { b { c; } } }"),
        (". {\na \"b\nc\" d\ne\n}", ". { a \"b; c\" d; e; }"),
        (". {\na \"{\"\nb \"}\"\n}", ". { a \"{\"; b \"}\"; }"),
        (". {\n\"log\" \"\"\n}", ". { \"log\" \"\"; }"),
        (". {\nforward . 1.1.1.1#note here\n}", ". { forward . 1.1.1.1; }"),
        (". {\r\n  log\r\n}\r\n", ". { log; }"),
        ("\u{feff}. {\nlog\n}", ". { log; }"),
        (". {\nlog import x\n}", ". { log import x; }"),
        (". {\nhosts {\n10.0.0.1 a.b\nimport2\n}\n}", ". { hosts { 10.0.0.1 a.b; import2; } }"),
    ] {
        let corefile = read(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(shape(&corefile), expected, "{text:?}");
    }
}

#[test]
fn variables_make_no_structure() {
    for (text, expected) in [
        ("{$A}:{%PORT%} {\n}", "1.1.1.1:1053 { }"),
        ("x.{$A}, y {\n}", "x.1.1.1.1 y { }"),
        (".\n{$UNSET:log} x{$UNSET}y", ". { log xy; }"),
        (".\nforward . {$BLANKS} \"a {$A}\"", ". { forward . \"a b\" \"a 1.1.1.1\"; }"),
        (".\nforward . {$UNSET} {$EMPTY:x}", ". { forward . \"\" \"\"; }"),
        (".\ntemplate {\nanswer \"{{ .Name }} {{$x}}\"\n}", ". { template { answer \"{{ .Name }} {}\"; } }"),
        (".\nlog {$BRACE}{$BRACE}x", ". { log {{x; }"),
    ] {
        let corefile = read(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(shape(&corefile), expected, "{text:?}");
    }
}

#[test]
fn grammar_errors() {
    let deep = ".\n".to_owned() + &"a {\n".repeat(65);
    for (text, expected) in [
        (". { whoami }", "1:12: found `}` after `whoami`, expected it on a line of its own"),
        (". {\ncache {\nsuccess 9 }\n}", "3:11: found `}` after `9`, expected it on a line of its own"),
        (". {\nlog\n", "1:3: this `{` is never closed, expected `}` before the end of the file"),
        (". {\ncache {\n}\n", "1:3: this `{` is never closed, expected `}` before the end of the file"),
        (".\ncache {\n", "2:7: this `{` is never closed, expected `}` before the end of the file"),
        (
            ". {\ncache {\n}\na.b:53 {\nlog\n}\n",
            "4:1: found the key `a.b:53`, expected a directive or `}`: the block begun at Corefile:1:3 is not closed",
        ),
        (
            "forward . 1.1.1.1\n.:53 {\nlog\n}",
            "2:1: found the key `.:53`, expected a directive: the line at Corefile:1:1 is in no server block",
        ),
        (". {\nlog\n}\n}", "4:1: found `}`, but no `{` is open"),
        (".\nlog\n}", "3:1: found `}`, but no `{` is open"),
        ("}", "1:1: found `}`, but no `{` is open"),
        ("}, a {\nlog\n}", "1:1: found `},`, expected the brace as a word of its own"),
        (". {\nlog\n}}", "3:1: found `}}`, expected the brace as a word of its own"),
        (". {\ncache {\n} }", "3:3: found `}` after `}`, expected it on a line of its own"),
        (". {\ncache {\n} log\n}", "3:3: found `log` after `}`, expected the end of the line"),
        (
            ". {\ncache\n{\n}\n}",
            "3:1: found `{` at the start of a line, expected it at the end of its directive's line",
        ),
        (".:53{\nlog\n}", "1:1: found `.:53{`, expected the brace as a word of its own"),
        (". {}", "1:3: found `{}`, expected the brace as a word of its own"),
        (". {\ncache{\n}\n}", "2:1: found `cache{`, expected the brace as a word of its own"),
        (". {\ncache {}\n}", "2:7: found `{}`, expected the brace as a word of its own"),
        (&deep, "66:3: expected at most 64 open braces"),
        (". {\n\"\" x\n}", "2:1: expected a directive or property, found an empty word"),
        (
            ".\n{$UNSET} x",
            "2:1: expected a directive or property, found an empty word; the environment variable UNSET is not set here: set it, or give it a value by {$UNSET:VALUE}",
        ),
        ("{\nlog\n}", "1:1: found `{`, expected a server block's key such as `.:53` before it"),
        ("\"\" {\n}", "1:1: expected a server block's key such as `.:53`, found an empty word"),
        ("a , b {\n}", "1:3: expected a server block's key such as `.:53`, found an empty word"),
        (
            "{$UNSET} {\n}",
            "1:1: expected a server block's key such as `.:53`, found an empty word; the environment variable UNSET is not set here: set it, or give it a value by {$UNSET:VALUE}",
        ),
        ("a, {\n}", "1:1: expected another key after the comma, found `{`"),
        ("a,\n", "1:1: expected another key after the comma, found the end of the file"),
        ("x http://a {\n}", "1:3: unknown scheme `http`, expected dns, tls, grpc, https, https3 or quic"),
        (".:53x {\n}", "1:1: bad port `53x`, expected a number from 0 to 65535"),
        ("(a)\nlog", "1:1: expected `{` after the snippet `(a)`"),
        ("(a) {\nlog {\n}", "1:5: this `{` is never closed, expected `}` before the end of the file"),
        ("(a) {\n}\n(a) {\n}", "3:1: the snippet `(a)` is already defined at Corefile:1:1"),
        (".\nlog {$NUL}", "2:5: found a NUL byte, expected text"),
    ] {
        let error = read(text).expect_err(text);
        assert_eq!(format!("{error:#}"), format!("Corefile:{expected}"), "{text:?}");
    }
}

#[test]
fn an_error_shows_its_line() {
    let error = read(". {\n\twhoami }\n").expect_err("a brace in the line");
    let expected = "Corefile:2:9: found `}` after `whoami`, expected it on a line of its own\n  \
                    2 | \twhoami }\n    | \t       ^";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn oddities_are_warnings() {
    for (text, expected) in [
        (".:53 a.b 10.0.0.0/24 {\n}", &[] as &[&str]),
        (
            "169.254.10.10 a_b {\n}",
            &[
                "Corefile:1:1: the zone `169.254.10.10.` does not follow RFC 1035's preferred syntax",
                "Corefile:1:15: the zone `a_b.` does not follow RFC 1035's preferred syntax",
            ],
        ),
        ("(a) {\n}\n.\nlog", &[]),
        (
            ". {\n}\nforward x 1.1.1.1",
            &[
                "Corefile:3:1: `forward` begins a server block without braces, expected them where a file has several \
                 blocks",
                "Corefile:3:11: the zone `1.1.1.1.` does not follow RFC 1035's preferred syntax",
            ],
        ),
    ] {
        let corefile = read(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        let warnings: Vec<_> = corefile.warnings.iter().map(|warning| format!("{warning:#}")).collect();
        assert_eq!(warnings, expected, "{text:?}");
    }
}

#[test]
fn every_word_knows_its_place() {
    let corefile = read("# zones\na.b,\n  c.d {\n\tforward . \"x\ny\" z {\n    p q\n  }\n}").unwrap();
    let block = &corefile.blocks[0];
    let forward = &block.directives[0];
    let property = &forward.body.as_ref().unwrap()[0];
    let words = [&block.keys[0].written, &block.keys[1].written, &forward.name]
        .into_iter()
        .chain(&forward.args)
        .chain([&property.name, &property.args[0]]);
    let places: Vec<_> = words.map(|word| format!("{word:?}")).collect();
    let expected = [
        r#""a.b" at Corefile:2:1"#,
        r#""c.d" at Corefile:3:3"#,
        r#""forward" at Corefile:4:2"#,
        r#""." at Corefile:4:10"#,
        r#""x\ny" at Corefile:4:12"#,
        r#""z" at Corefile:5:4"#,
        r#""p" at Corefile:6:5"#,
        r#""q" at Corefile:6:7"#,
    ];
    assert_eq!(places, expected);
    assert_eq!(block.at.to_string(), "Corefile:2:1");
}

#[test]
fn tokens_without_layout() {
    let tokens = |text: &str| read(text).expect(text).tokens().map(str::to_owned).collect::<Vec<_>>();
    let plain = tokens(". {\ncache 30 {\nsuccess 9\n}\nlog\n}");
    for same in [
        "# new\n.\n{\n  cache 30 { success 9 # all\n}\n\n log}".replace("log}", "log\n}"),
        ".\ncache \"30\" {\nsuccess 9\n}\nlog".to_owned(),
        "(c) {\ncache 30 {\nsuccess 9\n}\n}\n. {\nimport c\nlog\n}".to_owned(),
        ". {\ncache {$UNSET:30} {\nsuccess 9\n}\nlog\n}".to_owned(),
    ] {
        assert_eq!(tokens(&same), plain, "{same}");
    }
    for other in [
        ".:53 {\ncache 30 {\nsuccess 9\n}\nlog\n}",
        ". {\ncache 30 {\nsuccess\n9\n}\nlog\n}",
        ". {\ncache 30 {\nsuccess 9\nlog\n}\n}",
        ". {\ncache 30 \"{\" success 9 \"}\"\nlog\n}",
        ". {\nlog\ncache 30 {\nsuccess 9\n}\n}",
        ". {\ncache 30 {\nsuccess 9\n}\nlog\n}\n. {\n}",
    ] {
        assert_ne!(tokens(other), plain, "{other}");
    }
}
