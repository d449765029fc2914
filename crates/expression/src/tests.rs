//! Expressions evaluated without a query.

use super::*;
use proptest::prelude::*;

/// A query whose labels have their names in upper case as values.
struct Known;

impl QueryData for Known {
    fn value(&self, function: &str) -> Value {
        match function {
            "type" => "A".into(),
            "name" => "ip-7.example.org.".into(),
            "class" => "IN".into(),
            "proto" => "udp".into(),
            "size" => 44_i64.into(),
            "client_ip" => "192.0.2.7".into(),
            "port" => "40000".into(),
            "id" => 7_i64.into(),
            "opcode" => 0_i64.into(),
            "do" => false.into(),
            "bufsize" => 512_i64.into(),
            "server_ip" => "127.0.0.1".into(),
            "server_port" => "53".into(),
            _ => Value::Nil,
        }
    }

    fn label(&self, label: &str) -> Option<String> {
        (label != "a/b").then(|| label.to_uppercase())
    }
}

fn facts() -> Facts<'static> {
    let mut facts = Facts::new(&Known);
    facts.add_group("0", "ip-7.example.org.");
    facts.add_group("1", "7");
    facts.add_group("n", "7");
    facts.add_var("v", Value::Integer(3));
    facts
}

fn run(text: &str) -> Result<String, String> {
    let expression = Expression::compile(text, Names::Template(&["v".to_owned()]))
        .map_err(|(at, error)| format!("{at}: {error}"))?;
    expression.run(&facts()).map(|value| value.to_string())
}

#[test]
fn expressions_know_the_query() {
    for (text, value) in [
        ("name() == 'ip-7.example.org.'", "true"),
        ("type() == 'A' && class() == 'IN'", "true"),
        ("proto() in ['udp', 'tcp'] and not do()", "true"),
        ("size() + id() * 2 - opcode()", "58"),
        ("bufsize() >= 512 ? 'big' : 'small'", "\"big\""),
        ("server_ip() + ':' + server_port()", "\"127.0.0.1:53\""),
        ("client_ip() startsWith '192.' && port() != ''", "true"),
        ("group('n') + group(1) + group(9) + group('none')", "\"77\""),
        ("int(group('n')) * v", "21"),
        ("metadata('a/b') == ''", "true"),
        ("metadata('a/' + 'c') + metadata('d/e') + metadata('a/b') + metadata('a/c')", "\"A/CD/EA/C\""),
        ("name() matches '^ip-[0-9]+[.]'", "true"),
        ("len(split(name(), '.'))", "4"),
        ("split('ab', '')", "[\"a\", \"b\"]"),
        ("any(split(name(), '.'), # == 'example')", "true"),
        ("name() | trimSuffix('.') | upper()", "\"IP-7.EXAMPLE.ORG\""),
        ("replace(group(0), '-', '_')", "\"ip_7.example.org.\""),
        ("true || group([])", "true"),
        ("incidr(client_ip(), '192.0.2.0/24')", "true"),
        ("incidr('192.0.3.1', '192.0.2.0/24')", "false"),
        ("incidr('192.0.3.1', '0.0.0.0/0')", "true"),
        ("incidr('2001:db8::1', '2001:db8::/32')", "true"),
        ("incidr('192.0.2.1', '2001:db8::/32')", "false"),
        ("incidr('192.0.2.1', '::ffff:192.0.2.0/120')", "true"),
    ] {
        assert_eq!(run(text).as_deref(), Ok(value), "{text}");
    }
}

#[test]
fn undefined_values_have_reasons() {
    for (text, error) in [
        ("incidr('x', '10.0.0.0/8')", "incidr(): the first argument is not an IP address"),
        (
            "incidr('10.0.0.1', '10.0.0.0/33')",
            "incidr(): \"10.0.0.0/33\" is not a network such as 10.0.0.0/8",
        ),
        ("group(true)", "group() takes a name or a number"),
        ("size(1)", "size() takes no argument"),
        ("repeat(name(), 100000)", "repeat() would make too large a value"),
        ("repeat(name(), 300)", "the value of an expression is larger than 4096 octets"),
        (
            "map(split(repeat('a.', 2000), '.'), len(#) + size() + id() + bufsize() + opcode() + v + v)",
            "an expression took more than 10000 steps",
        ),
    ] {
        assert_eq!(run(text).err().as_deref(), Some(error), "{text}");
    }
}

#[test]
fn expression_bounds() {
    let long = |part: &str, times: usize| part.repeat(times);
    for (text, error) in [
        (long("1", 4097), "0: the expression is too large: at most 4096 octets"),
        (long("1+", 101) + "1", "201: the expression is too large: at most 100 operators"),
        (long("(", 33), "32: the expression is too large: at most 32 open brackets"),
        (long("true?1:", 33) + "1", "228: the expression is too large: at most 32 conditions and powers"),
        (
            "map([1], map([1], map([1], #)))".to_owned(),
            "21: the expression is too large: at most 2 functions over lists inside each other",
        ),
        ("1..1000000000".to_owned(), "1: \"..\" in an expression is not supported yet"),
        ("let x = 1; x".to_owned(), "0: \"let\" in an expression is not supported yet"),
        ("len($env)".to_owned(), "4: \"$env\" in an expression is not supported yet"),
        ("'a'.Foo()".to_owned(), "4: \".Foo()\" in an expression is not supported yet"),
        ("name() matches '('".to_owned(), "15: the regular expression \"(\" cannot be used: unclosed group"),
        (
            r"name() matches '\\p{No}('".to_owned(),
            r#"15: the regular expression "\\p{No}(" cannot be used: unclosed group"#,
        ),
        (
            "name() matches '(.{1000}){1000}'".to_owned(),
            "15: the regular expression \"(.{1000}){1000}\" cannot be used: its length with each repeat written out, times its groups, is 1001000, and 10000 at most; repeat less",
        ),
        // A client's text is no pattern.
        ("name() matches name()".to_owned(), "15: the pattern of `matches` is to be written here, in quotes"),
        (
            "true && name() matches '^' + name()".to_owned(),
            "23: the pattern of `matches` is to be written here, in quotes",
        ),
        ("name() matches ('a')".to_owned(), "15: the pattern of `matches` is to be written here, in quotes"),
    ] {
        assert_eq!(run(&text), Err(error.to_owned()), "{text}");
    }
}

#[test]
fn deepest_expressions_fit_the_stack() {
    for text in [
        "1+".repeat(100) + "1",
        "(".repeat(32) + "1" + &")".repeat(32),
        "true?1:".repeat(32) + "1",
        "2**".repeat(32) + "1",
        "1".to_owned() + &" | max(1)".repeat(90),
        "[".repeat(32) + &"]".repeat(32),
        "!(".repeat(32) + "true" + &")".repeat(32),
    ] {
        let thread = std::thread::Builder::new().stack_size(1 << 20);
        let run = thread.spawn(move || run(&text).map_err(|error| format!("{text}: {error}"))).unwrap();
        run.join().expect("no overflow").unwrap();
    }
}

#[test]
fn reserved_names() {
    for name in ["v", "num", "_x1", "information", "orange"] {
        assert!(is_free(name), "{name}");
    }
    for name in ["", "1a", "a-b", "len", "true", "let", "name", "nothing", "now", "ä"] {
        assert!(!is_free(name), "{name}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_a_panic(text in "[a-c(){}\\[\\].,:?!#|&=+*'\"` 0-9-]{0,40}") {
        let _ = run(&text);
    }

    #[test]
    fn random_expressions_never_panic(
        words in proptest::collection::vec(prop_oneof![
            Just("name()"), Just("v"), Just("len("), Just("map("), Just("#"), Just(")"), Just("["), Just("]"),
            Just("{"), Just("}"), Just("a:"), Just(","), Just("?"), Just(":"), Just("??"), Just("and"), Just("not"),
            Just("in"), Just("'x'"), Just("1"), Just("-1"), Just("+"), Just("/"), Just("%"), Just("take("), Just("|"),
            Just("int("), Just("split("), Just("true"), Just("nil"), Just("."), Just("reduce("), Just("median("),
        ], 0..12)
    ) {
        let _ = run(&words.join(" "));
    }
}
