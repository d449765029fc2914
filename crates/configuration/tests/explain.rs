//! The output of `explain`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use configuration::{Explain, explain};
use scene::Scene;
use wire::{Name, RType};

const COREFILE: &str = r#".:53 {
bind 127.0.0.1 127.0.0.2
template ANY ANY denied.example.org {
    match "^[a-z]+\.denied"
    rcode NXDOMAIN
    fallthrough
}
template IN A strict.example.org {
    match ^only
}
hosts /nowhere/h {
    192.0.2.1 web.example.org
    fallthrough example.org
}
cache example.org
forward example.org 192.0.2.53 192.0.2.54:5353
forward arpa 192.0.2.55
}
sub.example.org {
bind 127.0.0.1
whoami
}
"#;

fn explained(name: &str, rtype: RType, address: &str) -> String {
    let request = Explain {
        name: Name::from_text(name).unwrap(),
        rtype,
        address: Some(address.parse().unwrap()),
        port: None,
    };
    explain(&Scene::new(COREFILE).configuration, &request).unwrap_or_else(|error| error)
}

#[test]
fn explain_names_block_plugin_and_reason() {
    let root = "block . (stdin:1:1), ";
    for (name, rtype, expected) in [
        (
            "a.denied.example.org",
            RType::A,
            format!(
                "{root}template: `template ANY ANY denied.example.org. NXDOMAIN` matches by \"^[a-z]+\\\\.denied\""
            ),
        ),
        (
            "1.denied.example.org",
            RType::A,
            format!(
                "{root}cache, else forward: no template matches; not in /nowhere/h; `forward example.org.` asks 192.0.2.53:53, 192.0.2.54:5353"
            ),
        ),
        (
            "x.strict.example.org",
            RType::A,
            format!(
                "{root}template: SERVFAIL: no pattern of `template IN A strict.example.org.` matches and it does not fall through"
            ),
        ),
        (
            "web.example.org",
            RType::A,
            format!("{root}hosts: no template matches; /nowhere/h has A records of the name"),
        ),
        (
            "WEB.Example.org",
            RType::AAAA,
            format!(
                "{root}hosts: no template matches; NODATA: /nowhere/h has the name, but no AAAA records of it"
            ),
        ),
        (
            "nope.example.net",
            RType::A,
            format!(
                "{root}hosts: no template matches; SERVFAIL: /nowhere/h does not have the name, and `fallthrough` is not set"
            ),
        ),
        (
            "1.2.0.192.in-addr.arpa",
            RType::PTR,
            format!("{root}hosts: no template matches; /nowhere/h has PTR records of the name"),
        ),
        (
            "9.2.0.192.in-addr.arpa",
            RType::PTR,
            format!(
                "{root}forward: no template matches; not in /nowhere/h; `forward arpa.` asks 192.0.2.55:53"
            ),
        ),
        (
            "x.sub.example.org",
            RType::TXT,
            "block sub.example.org. (stdin:19:1), whoami: it answers every name".to_owned(),
        ),
    ] {
        let name_shown = Name::from_text(name).unwrap();
        assert_eq!(
            explained(name, rtype, "127.0.0.1"),
            format!("{name_shown} {rtype} @127.0.0.1:53: {expected}\n")
        );
    }
}

#[test]
fn explain_without_a_source() {
    let scene = Scene::new(
        "example.org {\nbind 127.0.0.1\nforward example.org 192.0.2.53 {\nexcept a.example.org\n}\n}\n",
    );
    for (name, expected) in [
        (
            "x.a.example.org",
            "block example.org. (stdin:1:1), no plugin: SERVFAIL: no plugin of the block answers names below example.org.",
        ),
        ("example.net", "REFUSED: no server block serves this name"),
    ] {
        let request =
            Explain { name: Name::from_text(name).unwrap(), rtype: RType::A, address: None, port: None };
        let explanation = explain(&scene.configuration, &request).unwrap();
        assert_eq!(explanation, format!("{name}. A @127.0.0.1:53: {expected}\n"));
    }
}

#[test]
fn explain_by_address() {
    let scene = Scene::new(COREFILE);
    let mut request = Explain {
        name: Name::from_text("x.sub.example.org").unwrap(),
        rtype: RType::A,
        address: None,
        port: None,
    };
    let all = explain(&scene.configuration, &request).unwrap();
    let starts: Vec<&str> = all.lines().filter_map(|line| line.split(", ").next()).collect();
    assert_eq!(
        starts,
        [
            "x.sub.example.org. A @127.0.0.1:53: block sub.example.org. (stdin:19:1)",
            "x.sub.example.org. A @127.0.0.2:53: block . (stdin:1:1)",
        ]
    );
    request.address = Some("127.0.0.9".parse().unwrap());
    assert_eq!(
        explain(&scene.configuration, &request),
        Err("nothing listens on 127.0.0.9, but on 127.0.0.1, 127.0.0.2".to_owned())
    );
    request.address = Some("127.0.0.1".parse().unwrap());
    request.port = Some(54);
    assert_eq!(
        explain(&scene.configuration, &request),
        Err("nothing listens on 127.0.0.1:54, but on 127.0.0.1:53, 127.0.0.2:53".to_owned())
    );
    request.port = Some(53);
    assert_eq!(explain(&scene.configuration, &request).unwrap().lines().count(), 1);
}

#[test]
fn explain_at_wildcard_address() {
    let wildcard = Scene::new(
        ".:53 {\nwhoami\n}\nexample.org:54 {\nbind 127.0.0.1\nwhoami\n}\n.:54 {\nbind 0.0.0.0\nwhoami\n}\n",
    );
    for (address, listeners) in [
        ("127.0.0.1", &["0.0.0.0:53", "127.0.0.1:54"][..]),
        ("127.0.0.9", &["0.0.0.0:53", "0.0.0.0:54"]),
        ("2001:db8::1", &["[::]:53"]),
    ] {
        let name = Name::from_text("a.example.org").unwrap();
        let request = Explain { name, rtype: RType::A, address: Some(address.parse().unwrap()), port: None };
        let explanation = explain(&wildcard.configuration, &request).unwrap();
        let at: Vec<_> =
            explanation.lines().filter_map(|line| line.split_once('@')?.1.split_once(": ")).collect();
        assert_eq!(at.iter().map(|(at, _)| *at).collect::<Vec<_>>(), listeners, "{address}");
    }
}

/// Middleware may end a query: plugins behind it are not consulted.
#[test]
fn explain_step_that_answers() {
    let rules = "any\nrewrite stop name regex ^(.*)\\.z\\.b\\.test\\.$ {1}..\nrewrite stop name a.b.test c.b.test\nrewrite ttl c.b.test 5\n\
                 rewrite cname exact www.example.org. w.example.net.";
    let of_all = "`rewrite cname exact www.example.org. w.example.net.` is for the answer";
    let asks = "`forward .` asks 192.0.2.53:53";
    for (lines, name, rtype, expected) in [
        ("any", "a.test", RType::ANY, "any: ANY is answered with HINFO (RFC 8482)".to_owned()),
        ("any", "a.test", RType::A, format!("forward: {asks}")),
        (
            "chaos",
            "version.bind",
            RType::TXT,
            format!("forward: TXT of class CH is answered with the server's version; {asks}"),
        ),
        ("chaos", "a.test", RType::TXT, format!("forward: {asks}")),
        ("acl {\nblock\n}", "a.test", RType::A, "acl: REFUSED: `block` of `acl .` fits every client".to_owned()),
        (
            "acl {\ndrop type HINFO\n}",
            "a.test",
            RType::HINFO,
            "acl: no reply: `drop type HINFO` of `acl .` fits every client".to_owned(),
        ),
        ("acl {\ndrop type HINFO\n}", "a.test", RType::A, format!("forward: {asks}")),
        (
            "acl {\nblock net 192.0.2.1\nblock\n}",
            "a.test",
            RType::A,
            "acl: REFUSED: `block` of `acl .` fits every client".to_owned(),
        ),
        (
            "acl test {\nfilter\n}\nacl {\nblock net 192.0.2.1\n}",
            "a.test",
            RType::A,
            "acl: NODATA: `filter` of `acl test.` fits every client".to_owned(),
        ),
        (
            "acl {\nallow net 192.0.2.0/24\nblock\n}",
            "a.test",
            RType::A,
            format!("forward: what `acl` says depends on the client; {asks}"),
        ),
        (
            "acl {\nblock net 192.0.2.0/24\n}",
            "a.test",
            RType::A,
            format!("forward: what `acl` says depends on the client; {asks}"),
        ),
        ("acl {\nallow net 192.0.2.0/24\n}", "a.test", RType::A, format!("forward: {asks}")),
        (
            rules,
            "x.z.b.test",
            RType::A,
            "rewrite: SERVFAIL: plugin/rewrite: the rules make \"x..\" of it, which is not a name: a label is empty"
                .to_owned(),
        ),
        (
            rules,
            "a.b.test",
            RType::A,
            format!("forward: `rewrite stop name a.b.test c.b.test`: c.b.test. A is looked up; {asks}"),
        ),
        (rules, "other.test", RType::A, format!("forward: {of_all}; {asks}")),
        (
            "",
            "a.test",
            RType::AXFR,
            "no plugin: REFUSED: the block transfers no such zone, and no upstream is asked for one".to_owned(),
        ),
        (
            "acl {\nblock\n}",
            "a.test",
            RType::IXFR,
            "acl: REFUSED: `block` of `acl .` fits every client".to_owned(),
        ),
        (
            "transfer test {\nto 192.0.2.1 192.0.2.2\n}",
            "a.test",
            RType::AXFR,
            "transfer: the zone, if it is one of the block's, is sent to 192.0.2.1, 192.0.2.2".to_owned(),
        ),
    ] {
        let text = format!(". {{\nbind 127.0.0.1\n{lines}\nforward . 192.0.2.53\n}}\n");
        let request = Explain { name: Name::from_text(name).unwrap(), rtype, address: None, port: None };
        let explanation = explain(&Scene::new(&text).configuration, &request).unwrap();
        let expected = format!("{name}. {rtype} @127.0.0.1:53: block . (stdin:1:1), {expected}\n");
        assert_eq!(explanation, expected, "{lines}");
    }
}

/// `explain` names the plugin that answers in the pipeline.
#[test]
fn explain_agrees_with_answers() {
    let scene = Scene::new(COREFILE);
    for name in [
        "a.denied.example.org",
        "1.denied.example.org",
        "x.strict.example.org",
        "only.strict.example.org",
        "web.example.org",
        "nope.example.net",
        "nope.example.org",
        "1.2.0.192.in-addr.arpa",
        "9.2.0.192.in-addr.arpa",
        "x.sub.example.org",
    ] {
        for rtype in [RType::A, RType::AAAA, RType::TXT, RType::PTR] {
            let answer = scene.ask("127.0.0.1:53", name, rtype);
            let explanation = explained(name, rtype, "127.0.0.1");
            let expected = match answer.as_str() {
                "forward" => "forward: ",
                "SERVFAIL" => "SERVFAIL: ",
                "NXDOMAIN aa" => " NXDOMAIN` matches",
                "NOERROR aa" if explanation.contains("template: ") => "` matches by",
                "NOERROR aa" => ": NODATA: ",
                reply if reply.contains("additional") => "whoami: ",
                _ => " has ",
            };
            let explanation = explanation.replace("hosts: no template matches; ", "hosts: ");
            assert!(explanation.contains(expected), "{name} {rtype}: {answer}, but {explanation}");
        }
    }
}

/// Every view that may admit the query is listed, with the block that serves it else.
#[test]
fn explain_lists_views() {
    let scene = Scene::new(
        "org {\nbind 127.0.0.1\nview mx {\nexpr type() == 'MX'\nexpr do()\n}\nwhoami\n}\norg {\nbind 127.0.0.1\nview all\nwhoami\n}\n. {\nbind 127.0.0.1\nwhoami\n}\n. {\nbind 127.0.0.1\nview shadowed\nwhoami\n}\nnet {\nbind 127.0.0.2\nview a\nwhoami\n}\n",
    );
    let explained = |name: &str, address: &str| {
        let (name, address) = (Name::from_text(name).unwrap(), Some(address.parse().unwrap()));
        explain(&scene.configuration, &Explain { name, rtype: RType::A, address, port: None }).unwrap()
    };
    let whoami = "whoami: it answers every name";
    for (name, address, expected) in [
        (
            "a.org",
            "127.0.0.1",
            format!(
                "block org. (stdin:1:1) in view \"mx\" `type() == 'MX'` and `do()`, {whoami}; else block org. (stdin:9:1) in view \"all\", {whoami}; else block . (stdin:14:1), {whoami}"
            ),
        ),
        ("com", "127.0.0.1", format!("block . (stdin:14:1), {whoami}")),
        (
            "net",
            "127.0.0.2",
            format!(
                "block net. (stdin:23:1) in view \"a\", {whoami}; else REFUSED: no server block serves this name"
            ),
        ),
        ("com", "127.0.0.2", "REFUSED: no server block serves this name".to_owned()),
    ] {
        assert_eq!(explained(name, address), format!("{name}. A @{address}:53: {expected}\n"));
    }
}
