//! The AD flag, which an upstream sets for verified records: cleared where the server changed them
//! (RFC 4035, section 3.2.3).

use std::fs;

use tests::{Action, Ask, Asked, Dns, Says, Upstream, fresh_ip, tempdir};

use super::SOA;

const AD: u16 = 0x0020;

/// Sets AD on all replies: addresses, `alias.example` as an alias of `to.example`, and NXDOMAIN for
/// names with `nx` and in `corp.lan`.
fn upstream(asked: &Asked) -> Action {
    let name = &asked.name;
    let answer = match name.as_str() {
        "alias.example." => {
            Says::answer(&format!("{name} 300 IN CNAME to.example.\nto.example. 300 IN A 192.0.2.6"))
        }
        _ if name.starts_with("nx") || name.ends_with("corp.lan.") => Says::nxdomain(SOA),
        _ if asked.rtype == 28 => Says::answer(&format!("{name} 300 IN AAAA 2001:db8::1")),
        _ => Says::answer(&format!("{name} 300 IN A 192.0.2.1")),
    };
    Action::Reply(answer.flags(AD))
}

/// AD is clear if a step has changed or added records.
#[test]
fn ad_is_clear_after_a_step() {
    let directory = tempdir();
    let resolv = directory.path().join("resolv.conf");
    fs::write(&resolv, "nameserver 10.96.0.10\nsearch corp.lan lan\noptions ndots:5\n").expect("it is ours");
    let autopath = format!("autopath {}", resolv.display());
    let rewrite = |rules: &str| rules.lines().map(|rule| format!("rewrite {rule}\n")).collect::<String>();
    for (directives, name, rtype, status, authentic) in [
        (String::new(), "www.example", "A", "NOERROR", true),
        // Directives that act on records without changing any.
        ("header {\nresponse set ra\n}".into(), "www.example", "A", "NOERROR", true),
        ("loadbalance".into(), "alias.example", "A", "NOERROR", true),
        ("minimal".into(), "nx.example", "A", "NXDOMAIN", true),
        (rewrite("ttl suffix . 30"), "www.example", "A", "NOERROR", true),
        (rewrite("edns0 local set 0xffee abcd"), "www.example", "A", "NOERROR", true),
        (rewrite("name old.example new.example"), "www.example", "A", "NOERROR", true),
        (rewrite("name old.example new.example"), "old.example", "A", "NOERROR", false),
        (rewrite("name old.example nx.example"), "old.example", "A", "NXDOMAIN", false),
        (rewrite("type A AAAA"), "www.example", "A", "NOERROR", false),
        (rewrite("rcode suffix . NXDOMAIN NOERROR"), "www.example", "A", "NOERROR", true),
        (rewrite("rcode suffix . NXDOMAIN NOERROR"), "nx.example", "A", "NOERROR", false),
        // The effective query equals the client's; only the alias's target is changed.
        (
            rewrite("name regex (.*)\\.example\\.$ {1}.example answer value to\\.example\\.$ new.example"),
            "alias.example",
            "A",
            "NOERROR",
            false,
        ),
        (rewrite("cname exact other.example. new.example."), "alias.example", "A", "NOERROR", true),
        (rewrite("cname exact to.example. new.example."), "alias.example", "A", "NOERROR", false),
        (rewrite("cname exact to.example. nx.example."), "alias.example", "A", "NXDOMAIN", false),
        (autopath.clone(), "www.example", "A", "NOERROR", true),
        (autopath.clone(), "www.corp.lan", "A", "NOERROR", false),
        // The search domain itself is never denied, though the upstream denies it.
        (autopath.clone(), "corp.lan", "A", "NOERROR", false),
        // No candidate exists, so the upstream's denial is unchanged.
        (autopath, "nx.corp.lan", "A", "NXDOMAIN", true),
    ] {
        let upstream = Upstream::start(fresh_ip(), upstream);
        let dns = Dns::start(&format!("{directives}\ncache 30\nforward . {}", upstream.word()));
        // From the upstream, then from the cache.
        for time in ["first", "second"] {
            let reply = Ask::new(name, rtype).ad().of(dns.at);
            let what = format!("{directives} {name}, the {time} time");
            assert_eq!(reply.status(), status, "{what}");
            assert_eq!(reply.flag_names().contains(" ad"), authentic, "{what}");
        }
    }
}
