//! No text, and no template from the language's own parts, makes parsing or rendering panic, hang
//! or grow.

use crate::data::{Data, Failure, render, schema};
use gotemplate::{MAX_DEPTH, MAX_OUTPUT_BYTES, ParseError, Problem, RenderError, Template};
use proptest::prelude::*;

/// Pieces of templates; random sequences of them are often valid or nearly valid.
fn piece() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "{{",
        "}}",
        "{{- ",
        " -}}",
        " ",
        "(",
        ")",
        "|",
        ":=",
        "=",
        ",",
        ".",
        "$",
        "$x",
        "$x := ",
        ".Name",
        ".Match",
        ".Group.a",
        ".Question",
        ".Var.list",
        ".Meta",
        "index ",
        "slice ",
        "len ",
        "print ",
        "printf ",
        "println ",
        "eq ",
        "lt ",
        "and ",
        "or ",
        "not ",
        "parseInt ",
        "if ",
        "else ",
        "else if ",
        "end",
        "range ",
        "with ",
        "break",
        "continue",
        "define ",
        "nil ",
        "true ",
        "1 ",
        "-3 ",
        "0x1f ",
        "1.5 ",
        "'a' ",
        "\"%d %s\" ",
        "\"%[1]*.*q\" ",
        "`raw` ",
        "\"\\u00e9\" ",
        "\"\\xff\"",
        "\"",
        "`",
        "'",
        "\\",
        "%",
        "/*",
        "*/",
        "{{end}}",
        "{{else}}",
        "{{$x}}",
        "{{if .Name}}",
        "{{range $i, $e := .Match}}",
        "{{with .Question}}",
        "{{printf \"%v\" .}}",
        "{{.}}",
        "é",
        "\n",
    ]);
    prop_oneof![9 => known.prop_map(str::to_owned), 1 => "\\PC{0,3}"]
}

proptest! {
    #[test]
    fn random_text_never_panics(text in "\\PC{0,80}") {
        let _ = render(&text);
    }

    #[test]
    fn random_pieces_never_panic(pieces in prop::collection::vec(piece(), 0..24)) {
        let text = pieces.concat();
        match render(&text) {
            Ok(out) => prop_assert!(out.len() <= MAX_OUTPUT_BYTES),
            Err(Failure::Parse(error)) => prop_assert!(text.is_char_boundary(error.offset), "{error:?}"),
            Err(Failure::Render(_)) => {}
        }
    }

    #[test]
    fn any_directive_prints_or_fails(format in "[%#+ 0\\-*.\\[\\]0-9a-zA-Zé]{0,12}", number in any::<i64>()) {
        let template = format!("{{{{ printf `%{format}` {number} .Name true .Match nil }}}}");
        match render(&template) {
            Ok(out) => prop_assert!(out.len() <= MAX_OUTPUT_BYTES),
            Err(Failure::Render(_)) => {}
            Err(Failure::Parse(error)) => prop_assert!(false, "{template}: {error}"),
        }
    }

    #[test]
    fn plain_text_is_unchanged(text in "[^{]{0,60}") {
        prop_assert_eq!(render(&text).unwrap(), text);
    }

    #[test]
    fn quoted_literal_round_trip(text in "[ -~\\n\\téü日😀\\x00-\\x1f]{0,30}") {
        // Go's quoted form parses as Go's string literal.
        let raw = text.replace(['`', '\r'], "");
        let quoted = render(&format!("{{{{ printf \"%+q\" `{raw}` }}}}")).unwrap();
        prop_assert_eq!(render(&format!("{{{{ {quoted} }}}}")).unwrap(), raw);
    }
}

#[test]
fn endless_loop_is_stopped() {
    for template in [
        "{{ range 9223372036854775807 }}{{ end }}",
        "{{ range 1000000 }}{{ range 1000000 }}{{ end }}{{ end }}",
        "{{ range 1000000 }}{{ $x := 1 }}{{ end }}",
    ] {
        let failure = render(template).unwrap_err();
        assert!(matches!(failure, Failure::Render(RenderError::TooManySteps)), "{template}: {failure:?}");
    }
}

#[test]
fn output_is_bounded() {
    let full = "x".repeat(MAX_OUTPUT_BYTES);
    assert_eq!(render(&full).unwrap().len(), MAX_OUTPUT_BYTES);
    for template in [
        format!("{full}y"),
        "{{ range 100000 }}0123456789{{ end }}".to_owned(),
        "{{ printf \"%70000d\" 1 }}".to_owned(),
        "{{ printf \"%.70000d\" 1 }}".to_owned(),
        "{{ printf \"%070000s\" .Name }}".to_owned(),
        "{{ $x := .Name }}{{ range 100 }}{{ $x = print $x $x }}{{ end }}".to_owned(),
    ] {
        let template = Template::parse(&template, &schema()).unwrap();
        let mut out = "before".to_owned();
        assert_eq!(template.render(&Data::new(), &mut out), Err(RenderError::OutputTooLong));
        assert_eq!(out, "before");
    }
}

#[test]
fn nesting_has_a_bound() {
    let nested = |open: &str, inside: &str, close: &str, levels: usize| {
        render(&format!("{}{inside}{}", open.repeat(levels), close.repeat(levels)))
    };
    let levels = MAX_DEPTH - 1;
    assert_eq!(nested("{{if true}}", "x", "{{end}}", levels).unwrap(), "x");
    for failure in [
        nested("{{if true}}", "x", "{{end}}", 100_000).unwrap_err(),
        nested("{{with .}}", "x", "{{end}}", MAX_DEPTH + 1).unwrap_err(),
        render(&format!("{{{{{}1{}}}}}", "(".repeat(100_000), ")".repeat(100_000))).unwrap_err(),
        render(&format!("{{{{1{}}}}}", "|print".repeat(100_000))).unwrap_err(),
    ] {
        let too_deep = matches!(failure, Failure::Parse(ParseError { problem: Problem::TooDeep, .. }));
        assert!(too_deep, "{failure:?}");
    }
}

#[test]
fn else_if_arms_do_not_nest() {
    let arms = "{{else if false}}".repeat(1000);
    assert_eq!(render(&format!("{{{{if false}}}}{arms}{{{{else}}}}x{{{{end}}}}")).unwrap(), "x");
}
