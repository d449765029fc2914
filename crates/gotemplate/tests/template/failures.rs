//! Templates that fail: when parsed, with the place and the problem; when rendered, as in Go.

use crate::data::{Failure, render};
use gotemplate::{Problem, RenderError};

#[test]
fn parse_error_offsets() {
    for (template, offset, message) in [
        ("ab{{", 2, "unclosed action; `}}` is missing"),
        ("{{ .Name", 0, "unclosed action; `}}` is missing"),
        ("{{ .Name }", 0, "unclosed action; `}}` is missing"),
        ("{{ .Name } }}", 9, "unexpected '}' in operand"),
        ("{{/* a", 0, "unclosed comment; `*/}}` is missing"),
        ("{{/* a */ x}}", 9, "comment ends before the closing delimiter"),
        ("{{ \"a }}", 3, "unterminated string"),
        ("{{ `a }}", 3, "unterminated raw string"),
        ("{{ 'a }}", 3, "unterminated character"),
        ("{{ \"a\nb\" }}", 3, "unterminated string"),
        (r#"{{ "\q" }}"#, 3, "invalid escape or character in string"),
        (r#"{{ "\'" }}"#, 3, "invalid escape or character in string"),
        (r#"{{ "\u{e9}" }}"#, 3, "invalid escape or character in string"),
        (r#"{{ "\ud800" }}"#, 3, "invalid escape or character in string"),
        (r#"{{ "\400" }}"#, 3, "invalid escape or character in string"),
        (r#"{{ "\xff" }}"#, 3, "string literal is not UTF-8"),
        ("{{ '' }}", 3, "invalid escape or character in character"),
        ("{{ 'ab' }}", 3, "invalid escape or character in character"),
        ("{{ 0x }}", 3, "bad number syntax \"0x\""),
        ("{{ 089 }}", 3, "bad number syntax \"089\""),
        ("{{ 1__0 }}", 3, "bad number syntax \"1__0\""),
        ("{{ 1_ }}", 3, "bad number syntax \"1_\""),
        ("{{ - }}", 3, "bad number syntax \"-\""),
        ("{{ 1a }}", 3, "bad number syntax \"1a\""),
        ("{{ 1.5 }}", 3, "number \"1.5\" is not supported: only integers are"),
        ("{{ 1e3 }}", 3, "number \"1e3\" is not supported: only integers are"),
        ("{{ 2i }}", 3, "number \"2i\" is not supported: only integers are"),
        ("{{ 9223372036854775808 }}", 3, "integer \"9223372036854775808\" is too large"),
        ("{{ 99999999999999999999 }}", 3, "integer \"99999999999999999999\" is too large"),
        ("{{ (1 }}", 3, "unclosed left parenthesis; `)` is missing in this action"),
        ("{{ 1) }}", 4, "unexpected character ')'"),
        ("{{ $x=1 }}", 5, "unexpected character '='"),
        ("{{}}", 2, "missing value for command"),
        ("{{ if }}a{{ end }}", 6, "missing value for if"),
        ("{{ print () }}", 10, "missing value for parentheses"),
        ("{{ | 1 }}", 3, "unexpected \"|\" in command"),
        ("{{ 1 | | 2 }}", 7, "unexpected \"|\" in command"),
        ("{{ print \"a\"\"b\" }}", 12, "unexpected \"b\" in operand"),
        ("{{ \"a\".Name }}", 6, "unexpected \".Name\" in operand"),
        ("{{ ..Name }}", 4, "unexpected \".Name\" in operand"),
        ("{{ .Match 1 := }}", 12, "unexpected \":=\" in operand"),
        ("{{ end }}", 0, "unexpected {{end}}"),
        ("a{{ else }}", 1, "unexpected {{else}}"),
        ("{{ if true }}{{ else }}{{ else }}{{ end }}", 23, "unexpected {{else}}"),
        ("{{ if true }}{{ else with 1 }}{{ end }}", 13, "unexpected \"with\" in else"),
        ("{{ range .Match }}{{ else if 1 }}{{ end }}", 18, "unexpected \"if\" in else"),
        ("{{ if true }}a", 0, "{{if}} has no {{end}}"),
        ("{{ if true }}{{ else }}a", 0, "{{if}} has no {{end}}"),
        ("{{ range .Match }}{{ with 1 }}{{ end }}", 0, "{{range}} has no {{end}}"),
        ("{{ break }}", 0, "{{break}} outside {{range}}"),
        ("{{ range 1 }}{{ else }}{{ continue }}{{ end }}", 23, "{{continue}} outside {{range}}"),
        ("{{ end 1 }}", 7, "unexpected 1 in end"),
        ("{{ frobnicate 1 }}", 3, "function \"frobnicate\" is not defined"),
        ("{{ pritnf \"a\" }}", 3, "function \"pritnf\" is not defined; did you mean `printf`?"),
        ("{{ html .Name }}", 3, "function \"html\" is not supported"),
        ("{{ .Name | urlquery }}", 11, "function \"urlquery\" is not supported"),
        ("{{ js 1 }}", 3, "function \"js\" is not supported"),
        ("{{ call .Name }}", 3, "function \"call\" is not supported"),
        ("{{ define \"x\" }}{{ end }}", 0, "{{define}} is not supported"),
        ("a{{ template \"x\" }}", 1, "{{template}} is not supported"),
        ("{{ block \"x\" . }}{{ end }}", 0, "{{block}} is not supported"),
        ("{{ .Nmae }}", 3, "unknown field \".Nmae\"; did you mean `Name`?"),
        ("{{ .Frobnicate }}", 3, "unknown field \".Frobnicate\""),
        ("{{ .Group.ab }}", 3, "unknown field \".Group.ab\""),
        ("{{ .Var.txet }}", 3, "unknown field \".Var.txet\"; did you mean `text`?"),
        ("{{ .Question.Qtpye }}", 3, "unknown field \".Question.Qtpye\"; did you mean `Qtype`?"),
        ("{{ $.Nmae }}", 3, "unknown field \".Nmae\"; did you mean `Name`?"),
        ("{{ with .Question }}{{ .Zone }}{{ end }}", 23, "unknown field \".Zone\""),
        ("{{ (index .Message.Question 0).Nam }}", 3, "unknown field \".Nam\"; did you mean `Name`?"),
        ("{{ range .Match }}{{ .Name }}{{ end }}", 21, "\".Name\": a text, number or boolean has no fields"),
        ("{{ .Name.x }}", 3, "\".Name.x\": a text, number or boolean has no fields"),
        ("{{ .Match.x }}", 3, "\".Match.x\": a list has no fields"),
        ("{{ .Meta }}", 3, "method \"Meta\" takes one string"),
        ("{{ .Meta \"a\" \"b\" }}", 3, "method \"Meta\" takes one string"),
        ("{{ .Meta.x }}", 3, "method \"Meta\" takes one string"),
        ("{{ print .Meta }}", 9, "method \"Meta\" takes one string"),
        ("{{ len }}", 3, "function \"len\" takes one argument, not 0"),
        ("{{ parseInt \"1\" 10 }}", 3, "function \"parseInt\" takes three arguments, not 2"),
        ("{{ eq 1 }}", 3, "function \"eq\" takes two or more arguments, not 1"),
        ("{{ print len }}", 9, "function \"len\" takes one argument, not 0"),
        ("{{ .Name 1 }}", 3, "arguments or a piped value for \".Name\", which is not a function"),
        ("{{ 1 | 2 }}", 7, "arguments or a piped value for 2, which is not a function"),
        ("{{ 1 | .Name }}", 7, "arguments or a piped value for \".Name\", which is not a function"),
        ("{{ nil }}", 3, "nil is not a command"),
        ("{{ $x }}", 3, "undefined variable \"$x\""),
        ("{{ $x = 1 }}", 3, "undefined variable \"$x\""),
        ("{{ $x := $x }}", 9, "undefined variable \"$x\""),
        ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", 38, "undefined variable \"$x\""),
        ("{{ $ := 1 }}", 3, "\"$\" is the data and cannot be set"),
        ("{{ print ($x := 1) }}", 10, "setting a variable inside parentheses is not supported"),
        ("{{ $x, $y := 1 }}", 3, "too many variables set in command"),
        ("{{ range $x, $y, $z := 1 }}{{ end }}", 13, "too many variables set in range"),
        ("{{ range $x, 1 }}{{ end }}", 13, "unexpected 1 in range"),
        ("{{ range $x, $y }}{{ end }}", 16, "unexpected \"}}\" in range"),
        ("{{ .Question }}", 0, "a structure cannot be printed"),
        ("{{ . }}", 0, "a structure cannot be printed"),
        ("{{ print .Question }}", 3, "print of a structure; name one of its fields"),
        ("{{ eq . . }}", 3, "eq of a structure; name one of its fields"),
        ("{{ len (index .Message.Question 0) }}", 3, "len of a structure; name one of its fields"),
        ("x{{ range .Message }}{{ end }}", 1, "range of a structure; name one of its fields"),
        ("{{ .Name } 60 IN A 1.2.3.4", 0, "unclosed action; `}}` is missing"),
        ("x {{ .Name} 60 IN A 1.2.3.4", 2, "unclosed action; `}}` is missing"),
        ("{{ .Name } 60 IN TXT 'a", 0, "unclosed action; `}}` is missing"),
        ("{{ 1.5 }", 3, "number \"1.5\" is not supported: only integers are"),
    ] {
        match render(template) {
            Err(Failure::Parse(error)) => {
                assert_eq!((error.offset, error.to_string().as_str()), (offset, message), "{template}");
            }
            other => panic!("{template}: {other:?}"),
        }
    }
}

#[test]
fn problems_are_data() {
    let Err(Failure::Parse(error)) = render("{{ .Nmae }}") else { panic!("it parsed") };
    let expected = Problem::UnknownField { path: ".Nmae".to_owned(), nearest: Some("Name".to_owned()) };
    assert_eq!(error.problem, expected);
}

#[test]
fn render_failures_of_go() {
    for template in [
        "{{ .Var.text.x }}",
        "{{ .Var.none.x }}",
        "{{ index .Match 4 }}",
        "{{ index .Match -1 }}",
        r#"{{ index .Match "a" }}"#,
        "{{ index .Match nil }}",
        "{{ index .Group 1 }}",
        "{{ index nil 1 }}",
        "{{ index 1 1 }}",
        "{{ index .Name 99 }}",
        "{{ slice .Name 5 3 }}",
        "{{ slice .Name 0 99 }}",
        "{{ slice .Name 0 1 1 }}",
        "{{ slice .Match 0 2 1 }}",
        "{{ slice 5 }}",
        "{{ len 3 }}",
        "{{ len nil }}",
        r#"{{ eq 1 "1" }}"#,
        "{{ eq .Match .Match }}",
        "{{ lt true false }}",
        "{{ lt nil 1 }}",
        r#"{{ lt 1 "a" }}"#,
        r#"{{ parseInt "" 10 8 }}"#,
        r#"{{ parseInt "256" 10 8 }}"#,
        r#"{{ parseInt "-1" 10 8 }}"#,
        r#"{{ parseInt "+1" 10 8 }}"#,
        r#"{{ parseInt "1_0" 10 8 }}"#,
        r#"{{ parseInt "12" 1 8 }}"#,
        r#"{{ parseInt "12" 37 8 }}"#,
        r#"{{ parseInt "12" 10 65 }}"#,
        r#"{{ parseInt "9" 8 8 }}"#,
        "{{ parseInt 9 10 8 }}",
        r#"{{ parseInt "18446744073709551616" 10 64 }}"#,
        "{{ printf 1 }}",
        "{{ printf nil }}",
        r#"{{ range "abc" }}{{ end }}"#,
        "{{ range true }}{{ end }}",
        "{{ range $i, $e := 3 }}{{ end }}",
        "{{ .Meta 1 }}",
        r#"{{ or "" (index .Match 99) }}"#,
    ] {
        let failure = render(template);
        assert!(matches!(failure, Err(Failure::Render(_))), "{template}: {failure:?}");
    }
}

#[test]
fn unsupported_actions() {
    for (template, expected) in [
        ("{{ slice .Var.uni 0 2 }}", RenderError::CutsCharacter),
        ("{{ .Question | print }}", RenderError::Unfit { function: "print", of: "structure" }),
        ("{{ printf \"%T\" .Match }}", RenderError::Unfit { function: "printf %T", of: "list" }),
        ("{{ printf \"%#v\" .Group }}", RenderError::Unfit { function: "printf %#v", of: "map" }),
        ("{{ printf \"\" .Match }}", RenderError::Unfit { function: "printf %!(EXTRA)", of: "list" }),
        ("{{ $x := . }}{{ eq $x $x }}", RenderError::Incomparable { left: "structure", right: "structure" }),
    ] {
        match render(template) {
            Err(Failure::Render(error)) => assert_eq!(error, expected, "{template}"),
            other => panic!("{template}: {other:?}"),
        }
    }
}
