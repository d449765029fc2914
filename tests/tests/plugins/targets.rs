//! Targets of aliases: looked up, and added after them.

use std::time::Duration;

use super::steps::{asked, dns, upstream};
use tests::{Action, Ask, Dns, Says, Upstream, ask, fresh_ip, now, steadily};

/// The lookup of an answer's target has the time that is left.
#[test]
fn target_lookups_share_the_deadline() {
    steadily(|| {
        let slow = Upstream::start(fresh_ip(), |asked| upstream(asked).after(Duration::from_millis(1_900)));
        let silent = Upstream::start(fresh_ip(), |_| Action::Silent);
        let dns = Dns::start(&format!(
            "rewrite cname exact there.example. here.silent.\nforward silent {}\nforward . {}",
            silent.word(),
            slow.word()
        ));
        let reply = Ask::new("cname-there.example", "A").timeout(Duration::from_secs(8)).of(dns.at);
        assert_eq!(reply.status(), "SERVFAIL");
        assert!(!silent.asked().is_empty(), "it leads there");
        // The deadline of 4.8 s holds for the whole query, not for each lookup.
        assert!(reply.elapsed < Duration::from_millis(5_300), "{:?}", reply.elapsed);
    });
}

#[test]
fn target_without_room_fails_at_once() {
    steadily(|| {
        let (other, silent) =
            (Upstream::start(fresh_ip(), upstream), Upstream::start(fresh_ip(), |_| Action::Silent));
        let dns = Dns::start(&format!(
            "multisocket 1\nrewrite cname exact there.example. here.full.\nforward full {} {{\nmax_concurrent 1\n}}\nforward . {}",
            silent.word(),
            other.word()
        ));
        let first = Ask::new("x.full", "A").timeout(Duration::from_millis(10)).try_of(dns.at);
        assert!(first.is_err() && silent.asked().len() == 1);
        let began = now();
        assert_eq!(ask(dns.at, "cname-there.example", "A").status(), "REFUSED");
        let took = began.elapsed();
        assert!(took < Duration::from_millis(100), "{took:?}");
    });
}

/// An answer follows the alias with the changed target.
#[test]
fn answer_of_a_changed_target() {
    let (dns, upstream) = dns("rewrite cname exact there.example. here.example.");
    for _ in 0..2 {
        let reply = ask(dns.at, "cname-there.example", "A");
        assert_eq!(reply.short(), ["192.0.2.1", "here.example."]);
    }
    assert_eq!(asked(&upstream), ["cname-there.example. 1", "here.example. 1"], "each once, then the cache");
}

/// The reply has the SOA of the zone that denies the changed target.
#[test]
fn soa_behind_a_changed_target() {
    const SOA: &str = "300 IN SOA ns.example. root.example. 1 2 3 4 60";
    let (old, new) = (format!("old. {SOA}"), format!("new. {SOA}"));
    let upstream = Upstream::start(fresh_ip(), move |asked| {
        let alias = |target: &str| format!("{} 300 IN CNAME {target}", asked.name);
        Action::Reply(match asked.name.as_str() {
            "denied.example." => Says::nxdomain(&old).answers(&alias("gone.old.")),
            "known.example." => Says::answer(&alias("here.old.")),
            "here.new." => Says::answer("here.new. 300 IN A 192.0.2.1"),
            _ => Says::nxdomain(&new),
        })
    });
    for (target, name, status, authority) in [
        ("here.new.", "denied.example", "NOERROR", &[][..]),
        ("gone.new.", "denied.example", "NXDOMAIN", &["new."]),
        ("gone.new.", "known.example", "NXDOMAIN", &["new."]),
    ] {
        let dns = Dns::start(&format!(
            "rewrite cname regex .*[.]old[.]$ {target}\nminimal\nforward . {}",
            upstream.word()
        ));
        let reply = ask(dns.at, name, "A");
        assert_eq!(reply.status(), status, "{name} {target}");
        let soas: Vec<String> = reply.authorities.iter().map(|rr| rr.name.clone()).collect();
        assert_eq!(soas, authority, "{name} {target}");
    }
}

/// Flags and additional records of a target are as documented.
#[test]
fn flags_and_additionals_of_targets() {
    // AA 0x0400, TC 0x0200, AD 0x0020: flags of the answer with the alias, and of the target's
    // answer.
    const OLD: u16 = 0x0420;
    let upstream = |old_tc: bool, new: u16| {
        Upstream::start(fresh_ip(), move |asked| {
            Action::Reply(match asked.name.strip_prefix("cname-") {
                Some(target) => {
                    let alias = format!("{} 300 IN CNAME {target}\n{target} 300 IN A 192.0.2.9", asked.name);
                    let tc = if old_tc { 0x0200 } else { 0 };
                    Says::answer(&alias).flags(OLD | tc).additional("old.example. 300 IN A 192.0.2.52")
                }
                None => Says::answer(&format!("{} 300 IN A 192.0.2.1", asked.name))
                    .flags(new)
                    .additional("new.example. 300 IN A 192.0.2.53"),
            })
        })
    };
    let template = "template IN A to {\nanswer \"{{ .Name }} 60 IN CNAME here.example.\"\n}";
    for (directives, name, old_tc, new, flags, additional) in [
        // The answer keeps its flags, except that the target's TC replaces its own.
        (REWRITE, "cname-there.example", false, 0, "qr aa rd ra", &["new.example."][..]),
        (REWRITE, "cname-there.example", false, 0x0200, "qr aa tc rd ra", &["new.example."]),
        (REWRITE, "cname-there.example", true, 0, "qr aa rd ra", &["new.example."]),
        (REWRITE, "cname-there.example", false, 0x0420, "qr aa rd ra", &["new.example."]),
        // A template's answer takes only the target's answer section, as in CoreDNS.
        (template, "x.to", false, 0x0020, "qr aa rd", &[]),
        (template, "x.to", false, 0x0200, "qr aa tc rd", &[]),
    ] {
        let upstream = upstream(old_tc, new);
        let dns = Dns::start(&format!("{directives}\nforward . {}", upstream.word()));
        let reply = Ask::new(name, "A").ad().of(dns.at);
        let what = format!("{name}, old TC {old_tc}, new {new:#x}");
        assert_eq!(reply.short()[0], "192.0.2.1", "{what}");
        assert_eq!(reply.flag_names(), flags, "{what}");
        let owners: Vec<_> = reply.additionals.iter().map(|rr| rr.name.as_str()).collect();
        assert_eq!(owners, additional, "{what}");
    }
}

const REWRITE: &str = "rewrite cname exact there.example. here.example.";

/// Two targets are both queried before either is answered.
#[test]
fn two_targets_in_parallel() {
    for workers in [1, 2] {
        let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
        let upstream = Upstream::start(fresh_ip(), move |asked| {
            let mut seen = seen.lock().unwrap();
            seen.insert(asked.name.clone());
            // Replies only after both queries have arrived.
            if seen.len() < 2 { Action::Silent } else { upstream(asked) }
        });
        let target = |name: &str| format!("answer \"{{{{ .Name }}}} 60 IN CNAME {name}.far.\"");
        let dns = Dns::start(&format!(
            "multisocket {workers}\ntemplate IN A two {{\n{}\n{}\n}}\nforward . {}",
            target("one"),
            target("other"),
            upstream.word()
        ));
        for name in ["a.two", "b.two"] {
            let reply = ask(dns.at, name, "A");
            let expected = ["192.0.2.1", "192.0.2.1", "one.far.", "other.far."];
            assert_eq!((reply.status(), reply.short()), ("NOERROR", expected.to_vec()));
        }
    }
}

#[test]
fn circular_aliases_end() {
    let (dns, upstream) = dns("rewrite cname regex (.*) cname-{1}");
    let reply = ask(dns.at, "cname-x.example", "A");
    assert_eq!(reply.status(), "SERVFAIL");
    assert!(asked(&upstream).len() <= 10, "{:?}", asked(&upstream));
}

#[test]
fn acl_applies_to_targets() {
    let (dns, upstream) =
        dns("acl secret.example {\nblock\n}\nrewrite cname exact there.example. secret.example.");
    let reply = Ask::new("cname-there.example", "A").edns(1232).of(dns.at);
    assert_eq!((reply.status(), reply.short()), ("REFUSED", vec!["secret.example."]));
    assert_eq!(reply.extended_error().map(|(code, _)| code), Some(15), "the reply has the reason, too");
    assert_eq!(asked(&upstream), ["cname-there.example. 1"]);
    // The alias of a template is answered without its target.
    for (action, code) in [("block", Some(15)), ("filter", Some(17)), ("allow", None)] {
        let dns = Dns::start(&format!(
            "acl secret.example {{\n{action}\n}}\ntemplate IN A to {{\nanswer \"{{{{ .Name }}}} 60 IN CNAME secret.example.\"\n}}\nforward . {}",
            upstream.word()
        ));
        let reply = Ask::new("x.to", "A").edns(1232).of(dns.at);
        let (status, answers) = (reply.status(), reply.answers.len());
        assert_eq!((status, answers), ("NOERROR", 1 + usize::from(action == "allow")), "{action}");
        assert_eq!(reply.extended_error().map(|(code, _)| code), code, "{action}");
    }
}

/// An upstream that returns the alias alone, like Consul's: a rule that does not change the target
/// still looks it up.
#[test]
fn unchanged_target_is_looked_up() {
    for rule in [
        "regex (.*) {1}",
        "regex (?i)(.*) {0}",
        "exact there.example. there.example.",
        "exact there.example. THERE.example.",
        "prefix there there",
        "suffix .example. .example.",
        "substring here here",
    ] {
        let upstream = Upstream::start(fresh_ip(), |asked| {
            Action::answer(&match asked.name.strip_prefix("cname-") {
                Some(target) => format!("{} 300 IN CNAME {target}", asked.name),
                None => format!("{} 300 IN A 192.0.2.1", asked.name),
            })
        });
        let dns = Dns::start(&format!("rewrite cname {rule}\nforward . {}", upstream.word()));
        let reply = ask(dns.at, "cname-There.example", "A");
        assert_eq!(reply.short(), ["192.0.2.1", "there.example."], "{rule}");
        assert_eq!(asked(&upstream), ["cname-there.example. 1", "there.example. 1"], "{rule}");
        assert_eq!(ask(dns.at, "there.example", "A").short(), ["192.0.2.1"], "{rule}: no alias");
    }
}
