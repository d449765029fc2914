//! Output equals Go's: that of Go 1.26's text/template with CoreDNS's `parseInt`, for the same
//! data.

use crate::data::render;

fn renders(rows: &[(&str, &str)]) {
    for (template, expected) in rows {
        match render(template) {
            Ok(out) => assert_eq!(out, *expected, "{template}"),
            Err(failure) => panic!("{template}: {failure:?}"),
        }
    }
}

#[test]
fn text_comments_trim_markers() {
    renders(&[
        ("plain", "plain"),
        ("", ""),
        ("}} }", "}} }"),
        ("{{/* a comment */}}x", "x"),
        ("a {{- /* gone */ -}} b", "ab"),
        ("a  {{ .Class }}  b", "a  IN  b"),
        ("a \n\t{{- .Class -}}\r\n b", "aINb"),
        ("{{- 3}}", "3"),
        ("{{-3}}", "-3"),
        ("{{ 3 -}} x", "3x"),
        (r#"{{- "a" -}}{{- "b" -}}"#, "ab"),
        (r#"é {{- "日" -}} é"#, "é日é"),
        ("{{ .Class\n}}", "IN"),
        ("{ {{ .Class }} }", "{ IN }"),
    ]);
}

#[test]
fn fields_and_root() {
    renders(&[
        (
            "{{ .Name }} 60 IN A {{ .Group.a }}.0.0.{{ .Remote }}",
            "ip-10-0-0-7.example. 60 IN A 10.0.0.192.0.2.1",
        ),
        ("{{.Zone}}|{{.Class}}|{{.Type}}", "example.|IN|A"),
        ("{{ $.Name }}", "ip-10-0-0-7.example."),
        ("{{ .Question.Name }} {{ .Question.Qtype }} {{ .Question.Qclass }}", "ip-10-0-0-7.example. 1 1"),
        ("{{ .Message.Id }} {{ .Message.Response }}", "4660 false"),
        ("{{ (index .Message.Question 0).Name }}", "ip-10-0-0-7.example."),
        ("{{ .Match }}", "[ip-10-0-0-7 10 0 7]"),
        ("{{ .Group }}", "map[a:10 b:ff empty:]"),
        ("{{ .Var }}", "map[count:3 list:[x 2 <nil>] none:<nil> text:hi uni:né日 yes:true]"),
        ("{{ .Var.list }}", "[x 2 <nil>]"),
        ("{{ .Group.missing }}|{{ print .Group.missing }}", "<no value>|<nil>"),
        ("{{ .Var.none }}|{{ .Var.missing.deep }}", "<no value>|<no value>"),
        ("{{ with .Question }}{{ .Name }} {{ $.Class }}{{ end }}", "ip-10-0-0-7.example. IN"),
        ("{{ (.Question).Qtype }}", "1"),
    ]);
}

#[test]
fn methods_are_as_in_go() {
    renders(&[
        (r#"{{ .Meta "test/label" }}"#, "value"),
        (r#"[{{ .Meta "unknown" }}]"#, "[]"),
        (r#"{{ "test/label" | .Meta }}"#, "value"),
        (r#"{{ $.Meta "test/label" | printf "%q" }}"#, r#""value""#),
        ("{{ with .Question }}{{ $.Meta `test/label` }}{{ end }}", "value"),
        (r#"{{ $data := . }}{{ $data.Meta "test/label" }}"#, "value"),
        (r#"{{ eq (.Meta "unknown") "" }}"#, "true"),
    ]);
}

#[test]
fn literals_are_as_in_go() {
    renders(&[
        (r#"{{ "a\tb\"\\\x41\101\u00e9\U0001F600" }}"#, r#"a	b"\AAé😀"#),
        (r#"{{ `a\n"b` }}"#, r#"a\n"b"#),
        ("{{ `a\r\nb` }}", "a\nb"),
        ("{{ 'a' }} {{ '\\n' }} {{ '\\'' }} {{ 'é' }} {{ '\\x7f' }}", "97 10 39 233 127"),
        (
            "{{ 0 }} {{ 42 }} {{ -7 }} {{ +7 }} {{ 0x1F }} {{ 0XfF }} {{ 017 }} {{ 0o17 }} {{ 0b101 }} {{ 1_000 }} {{ 0x_ff }}",
            "0 42 -7 7 31 255 15 15 5 1000 255",
        ),
        ("{{ 9223372036854775807 }} {{ -9223372036854775808 }}", "9223372036854775807 -9223372036854775808"),
        ("{{ true }} {{ false }}", "true false"),
    ]);
}

#[test]
fn pipelines() {
    renders(&[
        (r#"{{ "a" | print "b" }}"#, "ba"),
        (r#"{{ 1 | print 2 | printf "%s!" }}"#, "2 1!"),
        ("{{ (((1))) }}", "1"),
        (r#"{{ printf "%d" (len .Match) }}"#, "4"),
        (r#"{{ .Match | len | printf "%03d" }}"#, "004"),
        ("{{ 1 | }}", "1"),
        ("{{ .Name|len }}", "20"),
        (r#"{{ print (print) "x" }}"#, "x"),
        (r#"{{ (print "a" "b") | len }}"#, "2"),
    ]);
}

#[test]
fn variables_are_as_in_go() {
    renders(&[
        ("{{ $x := 1 }}{{ $x }}", "1"),
        ("{{$x:=.Name}}{{$x}}", "ip-10-0-0-7.example."),
        ("{{ $x := 1 }}{{ $x = 2 }}{{ $x }}", "2"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        (r#"{{ $x := 1 }}{{ $x := $x | print "n" }}{{ $x }}"#, "n1"),
        ("{{ if $x := .Group.a }}{{ $x }}{{ end }}", "10"),
        ("{{ if $x := .Group.empty }}1{{ else if $y := .Group.b }}{{ $x }}{{ $y }}{{ end }}", "ff"),
        ("{{ with $x := .Question }}{{ $x.Name }}{{ end }}", "ip-10-0-0-7.example."),
        ("{{ $q := .Question }}{{ $q.Qtype }}", "1"),
        (r#"{{ $a := "x" }}{{ $b := print $a $a }}{{ $b }}{{ $a }}"#, "xxx"),
    ]);
}

#[test]
fn if_and_with() {
    renders(&[
        ("{{ if true }}a{{ end }}", "a"),
        ("{{ if false }}a{{ else }}b{{ end }}", "b"),
        (r#"{{ if 0 }}a{{ else if "" }}b{{ else if .Match }}c{{ else }}d{{ end }}"#, "c"),
        ("{{ if not nil }}a{{ end }}", "a"),
        ("{{ if .Group }}a{{ end }}{{ if .Question }}b{{ end }}{{ if .Var.none }}c{{ end }}", "ab"),
        ("{{ with .Name }}{{ . }}{{ end }}", "ip-10-0-0-7.example."),
        ("{{ with .Group.empty }}a{{ else }}{{ .Class }}{{ end }}", "IN"),
        ("{{ with .Group.empty }}a{{ else with .Group.b }}{{ . }}{{ else }}c{{ end }}", "ff"),
        (r#"{{ with 5 }}{{ with "in" }}{{ . }}{{ end }}{{ . }}{{ end }}"#, "in5"),
        (r#"{{ if eq .Type "A" }}A{{ else if eq .Type "AAAA" }}AAAA{{ end }}"#, "A"),
    ]);
}

#[test]
fn ranges_are_as_in_go() {
    renders(&[
        ("{{ range .Match }}<{{ . }}>{{ end }}", "<ip-10-0-0-7><10><0><7>"),
        ("{{ range $e := .Match }}{{ $e }},{{ end }}", "ip-10-0-0-7,10,0,7,"),
        ("{{ range $i, $e := .Match }}{{ $i }}={{ $e }} {{ end }}", "0=ip-10-0-0-7 1=10 2=0 3=7 "),
        ("{{ range .Group }}{{ . }};{{ end }}", "10;ff;;"),
        ("{{ range $k, $v := .Group }}{{ $k }}:{{ $v }};{{ end }}", "a:10;b:ff;empty:;"),
        ("{{ range 3 }}{{ . }}{{ end }}", "012"),
        ("{{ range $i := 3 }}{{ $i }}{{ end }}", "012"),
        ("{{ range 0 }}a{{ else }}none{{ end }}", "none"),
        ("{{ range -1 }}a{{ else }}none{{ end }}", "none"),
        (r#"{{ range .Question.Qtype }}{{ printf "%T" . }}{{ end }}"#, "uint16"),
        (r#"{{ range parseInt "2" 10 8 }}{{ printf "%T%d" . . }}{{ end }}"#, "uint640uint641"),
        ("{{ range .Var.missing }}a{{ else }}none{{ end }}", "none"),
        ("{{ range slice .Match 0 0 }}a{{ else }}{{ .Class }}{{ end }}", "IN"),
        (r#"{{ range .Match }}{{ if eq . "0" }}{{ break }}{{ end }}{{ . }} {{ end }}"#, "ip-10-0-0-7 10 "),
        (
            r#"{{ range .Match }}{{ if eq . "10" }}{{ continue }}{{ end }}{{ . }} {{ end }}"#,
            "ip-10-0-0-7 0 7 ",
        ),
        ("{{ range 2 }}{{ range 3 }}{{ if eq . 1 }}{{ break }}{{ end }}{{ . }}{{ end }};{{ end }}", "0;0;"),
        (
            r#"{{ $s := "" }}{{ range .Match }}{{ $s = print . "." $s }}{{ end }}{{ $s }}"#,
            "7.0.10.ip-10-0-0-7.",
        ),
        ("{{ $i := 9 }}{{ $e := 9 }}{{ range $i, $e = .Match }}{{ end }}{{ $i }}{{ $e }}", "37"),
        ("{{ $e := 9 }}{{ range $e = 3 }}{{ end }}{{ $e }}", "2"),
        ("{{ range $i, $e := slice .Match 0 0 }}a{{ else }}{{ $e }}{{ end }}", "[]"),
        ("{{ range .Message.Question }}{{ .Name }}{{ end }}", "ip-10-0-0-7.example."),
        ("{{ range $i, $e := .Var.list }}{{ $i }}{{ $e }} {{ end }}", "0x 12 2<no value> "),
    ]);
}

#[test]
fn index_slice_len() {
    renders(&[
        ("{{ index .Match 1 }}", "10"),
        (r#"{{ index .Group "b" }}"#, "ff"),
        (r#"[{{ index .Group "nope" }}]"#, "[]"),
        (r#"{{ index .Var "nope" }}"#, "<no value>"),
        ("{{ index .Name 0 }}", "105"),
        ("{{ index .Var.list 1 }}", "2"),
        (r#"{{ index .Var "list" 0 }}"#, "x"),
        ("{{ index .Match }}", "[ip-10-0-0-7 10 0 7]"),
        ("{{ index .Match (len .Group) }}", "7"),
        ("{{ slice .Name 3 5 }}", "10"),
        ("{{ slice .Name 11 }}", ".example."),
        ("{{ slice .Name }}", "ip-10-0-0-7.example."),
        ("{{ slice .Match 1 3 }}", "[10 0]"),
        ("{{ slice (slice .Match 0 1) 0 3 }}", "[ip-10-0-0-7 10 0]"),
        ("{{ len (slice .Match 0 1 2) }}", "1"),
        (r#"{{ len .Name }} {{ len .Match }} {{ len .Group }} {{ len "é" }}"#, "20 4 3 2"),
        (r#"{{ slice "héh" 1 3 }}"#, "é"),
    ]);
}

#[test]
fn comparisons_are_as_in_go() {
    renders(&[
        (r#"{{ eq 1 1 }} {{ eq 1 2 }} {{ eq "a" "a" }} {{ eq true true }}"#, "true false true true"),
        (r#"{{ eq .Type "AAAA" "A" }}"#, "true"),
        ("{{ eq 1 2 3 1 }}", "true"),
        ("{{ eq .Question.Qtype 1 }} {{ eq 1 .Question.Qtype }}", "true true"),
        ("{{ eq -1 .Question.Qtype }} {{ lt -1 .Question.Qtype }}", "false true"),
        ("{{ eq nil nil }} {{ eq nil 1 }} {{ eq .Match nil }}", "true false false"),
        ("{{ eq .Var.none nil }}", "true"),
        (r#"{{ ne 1 2 }} {{ ne "a" "a" }}"#, "true false"),
        ("{{ lt 1 2 }} {{ le 2 2 }} {{ gt 1 2 }} {{ ge 2 2 }}", "true true false true"),
        (r#"{{ lt "a" "b" }} {{ gt "b" "a" }} {{ le "B" "a" }}"#, "true true true"),
        (r#"{{ lt (parseInt "18446744073709551615" 10 64) -1 }}"#, "false"),
    ]);
}

#[test]
fn and_or_not() {
    renders(&[
        (r#"{{ and true 0 "x" }}"#, "0"),
        (r#"{{ and 1 "x" }}"#, "x"),
        (r#"{{ or "" 0 }}"#, "0"),
        (r#"{{ or "" .Name }}"#, "ip-10-0-0-7.example."),
        (r#"{{ not 0 }} {{ not "a" }}"#, "true false"),
        ("{{ or true (index .Match 99) }}", "true"),
        ("{{ and false (index .Match 99) }}", "false"),
        (r#"{{ "x" | and 1 }}"#, "x"),
        (r#"{{ "x" | or 1 }}"#, "1"),
    ]);
}

#[test]
fn print_println() {
    renders(&[
        ("{{ print 1 2 3 }}", "1 2 3"),
        (r#"{{ print "a" 1 2 "b" "c" 3 true false }}"#, "a1 2bc3 true false"),
        ("{{ print nil 1 nil }}", "<nil> 1 <nil>"),
        ("{{ print }}|{{ println }}", "|\n"),
        (r#"{{ println "a" 1 nil .Match }}"#, "a 1 <nil> [ip-10-0-0-7 10 0 7]\n"),
        ("{{ print .Group .Match }}", "map[a:10 b:ff empty:] [ip-10-0-0-7 10 0 7]"),
    ]);
}

#[test]
fn parse_int() {
    renders(&[
        (r#"{{ parseInt "ff" 16 8 }}"#, "255"),
        ("{{ parseInt .Group.b 16 64 }}", "255"),
        (
            r#"{{ parseInt "0x1f" 0 64 }} {{ parseInt "0b11" 0 0 }} {{ parseInt "0o17" 0 8 }} {{ parseInt "017" 0 8 }} {{ parseInt "1_0" 0 8 }} {{ parseInt "0" 0 8 }}"#,
            "31 3 15 15 10 0",
        ),
        (r#"{{ parseInt "zZ" 36 16 }}"#, "1295"),
        (r#"{{ parseInt "18446744073709551615" 10 64 }}"#, "18446744073709551615"),
        (r#"{{ printf "%T" (parseInt "1" 10 8) }}"#, "uint64"),
        (r#"{{ 8 | parseInt "7" 10 }}"#, "7"),
        (r#"10.{{ parseInt "0a" 16 8 }}.{{ parseInt "7b" 16 8 }}.1"#, "10.10.123.1"),
    ]);
}

#[test]
fn printf() {
    renders(&[
        (r#"{{ printf "%s|%v|%q" "a" "b" "c\n" }}"#, r#"a|b|"c\n""#),
        (
            r#"{{ printf "%d|%v|%x|%X|%o|%b|%c|%q|%U" 255 255 255 255 255 255 97 97 97 }}"#,
            "255|255|ff|FF|377|11111111|a|'a'|U+0061",
        ),
        (
            r#"{{ printf "%5d|%-5d|%05d|%+d|% d|%+05d" 42 42 42 42 42 42 }}"#,
            "   42|42   |00042|+42| 42|+0042",
        ),
        (r#"{{ printf "%5d|%-5d|%05d|%x" -42 -42 -42 -42 }}"#, "  -42|-42  |-0042|-2a"),
        (r#"{{ printf "%02x%02X" 10 171 }}"#, "0aAB"),
        (r#"{{ printf "%#x|%#X|%#o|%O|%#b" 10 10 8 8 5 }}"#, "0xa|0XA|010|0o10|0b101"),
        (r#"{{ printf "%#o|%#05o|%#.3o" 0 8 8 }}"#, "0|00010|010"),
        (r#"{{ printf "%.3d|%8.3d|%-8.3d|%08.3d|%.0d|" 7 7 7 7 0 }}"#, "007|     007|007     |     007||"),
        (
            r#"{{ printf "%5s|%-5s|%05s|%.2s|%5.1s|" "abc" "abc" "abc" "abc" "abc" }}"#,
            "  abc|abc  |00abc|ab|    a|",
        ),
        (
            r#"{{ printf "%x|%X|% x|%#x|% #x|%.2x|%8x|%-8x|" "hi!" "hi!" "hi!" "hi!" "hi!" "hi!" "hi" "hi" }}"#,
            "686921|686921|68 69 21|0x686921|0x68 0x69 0x21|6869|    6869|6869    |",
        ),
        (r#"{{ printf "%8q|%+q|%#q|%.1q" "é" "é" "é" "éa" }}"#, r#"     "é"|"\u00e9"|`é`|"é""#),
        (r#"{{ printf "%t|%v|%5t|%-6t|" true false true false }}"#, "true|false| true|false |"),
        (r#"{{ printf "%T %T %T %T" 1 "s" true .Question.Qtype }}"#, "int string bool uint16"),
        (
            r#"{{ printf "%d %s %v" .Match .Match .Match }}"#,
            "[%!d(string=ip-10-0-0-7) %!d(string=10) %!d(string=0) %!d(string=7)] [ip-10-0-0-7 10 0 7] [ip-10-0-0-7 10 0 7]",
        ),
        (
            r#"{{ printf "%q %x" .Match .Match }}"#,
            r#"["ip-10-0-0-7" "10" "0" "7"] [69702d31302d302d302d37 3130 30 37]"#,
        ),
        (r#"{{ printf "%v %s" .Group .Group }}"#, "map[a:10 b:ff empty:] map[a:10 b:ff empty:]"),
        (
            r#"{{ printf "%v %s %d" .Var.list .Var.list .Var.list }}"#,
            "[x 2 <nil>] [x %!s(int=2) <nil>] [%!d(string=x) 2 <nil>]",
        ),
        (r#"{{ printf "%%|%5%|%c" 0x1F600 }}"#, "%|%|😀"),
        (r#"{{ printf "%c|%c|%q" -1 0xD800 0x10FFFF }}"#, "�|�|'\\U0010ffff'"),
        (
            r#"{{ printf "%U|%#U|%08U|%-8U|%.6U" 97 97 97 97 97 }}"#,
            "U+0061|U+0061 'a'|  U+0061|U+0061  |U+000061",
        ),
        (r#"{{ printf "%*d|%-*d|%.*d|%*d" 5 42 5 42 4 42 -5 42 }}"#, "   42|42   |0042|42   "),
        (r#"{{ printf "%[2]d %[1]d" 1 2 }}"#, "2 1"),
        (r#"{{ printf "%[2]*[1]d" 7 4 }}"#, "   7"),
        (r#"{{ printf "%[1]d %d %[1]x" 10 11 }}"#, "10 11 a"),
        (r#"{{ printf "%d" "hi" }}"#, "%!d(string=hi)"),
        (r#"{{ printf "%s" 3 }}"#, "%!s(int=3)"),
        (r#"{{ printf "%s|%t" true "x" }}"#, "%!s(bool=true)|%!t(string=x)"),
        (r#"{{ printf "%d %d" 1 }}"#, "1 %!d(MISSING)"),
        (r#"{{ printf "%d" 1 2 "x" nil }}"#, "1%!(EXTRA int=2, string=x, <nil>)"),
        (r#"{{ printf "%!|%z" 1 2 }}"#, "%!!(int=1)|%!z(int=2)"),
        (r#"{{ printf "%" }}"#, "%!(NOVERB)"),
        (r#"{{ printf "x%5" }}"#, "x%!(NOVERB)"),
        (
            r#"{{ printf "%[9]d|%[x]d|%[]d|%[1d" 1 }}"#,
            "%!d(BADINDEX)|%!d(BADINDEX)|%!d(BADINDEX)|%!d(BADINDEX)",
        ),
        (r#"{{ printf "%*d" "a" 1 }}"#, "%!(BADWIDTH)1"),
        (r#"{{ printf "%.*d" -1 2 }}"#, "%!(BADPREC)2"),
        (r#"{{ printf "%20000000d" 1 }}"#, "%!(NOVERB)%!(EXTRA int=1)"),
        (r#"{{ printf "%v|%s|%d|%5v|%T" nil nil nil nil nil }}"#, "<nil>|%!s(<nil>)|%!d(<nil>)|<nil>|<nil>"),
        (r#"{{ printf "%#v|%#v|%#v|%+v" 1 "a" .Question.Qtype 3 }}"#, r#"1|"a"|0x1|3"#),
        (r#"{{ printf "%5.|%.d" 1 2 }}"#, "%!|(int=    1)2"),
        (r#"{{ printf "é%s日" "ü" }}"#, "éü日"),
        (r#"{{ printf "%x %X" "é" .Question.Qtype }}"#, "c3a9 1"),
        (r#"{{ printf "%6.2f|%e" 1 "a" }}"#, "%!f(int=    01)|%!e(string=a)"),
        (r#"{{ printf "%p %w" 1 "a" }}"#, "%!p(int=1) %!w(string=a)"),
        (r#"{{ printf "%s" .Var.none }}"#, "%!s(<nil>)"),
        (r#"{{ printf "%03d.%03d" (parseInt "7" 10 8) (index .Name 0) }}"#, "007.105"),
    ]);
}
