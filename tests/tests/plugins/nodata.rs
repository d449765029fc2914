//! NODATA that the server synthesizes, and its effect on stub resolvers.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tests::{
    Action, Ask, Asked, Dns, Says, Server, Stub, Upstream, ask, eventually, fresh_ip, isolated, run, skip,
    tempdir, wire,
};

/// glibc and Go take a reply without AA, RA and records for a lame server's referral.
#[test]
fn our_own_nodata_is_no_referral() {
    let upstream = Upstream::start(fresh_ip(), |_: &Asked| Action::Reply(Says::rcode(2).without_flags(RA)));
    let forward = format!("forward . {}", upstream.word());
    let failing = "rewrite rcode regex .* SERVFAIL NOERROR";
    let template = "template ANY ANY {\nrcode SERVFAIL\n}";
    for (directives, expected) in [
        (format!("acl {{\nfilter\n}}\n{forward}"), "qr rd ra"),
        ("acl {\nfilter\n}\nwhoami".to_owned(), "qr aa rd"),
        ("acl {\nfilter\n}".to_owned(), "qr aa rd"),
        (format!("acl {{\nfilter\n}}\nheader {{\nresponse set aa\n}}\n{forward}"), "qr rd ra"),
        ("rewrite rcode regex .* REFUSED NOERROR\nacl {\nblock\n}\nwhoami".to_owned(), "qr aa rd"),
        (format!("{failing}\n{forward}"), "qr rd ra"),
        (format!("{failing}\nforward . 127.0.0.1:1"), "qr rd ra"),
        (format!("{failing}\n{template}\nwhoami"), "qr aa rd"),
        (format!("{failing}\n{template}\n{forward}"), "qr rd ra"),
        ("chaos\nwhoami".to_owned(), "qr aa rd"),
    ] {
        let dns = Dns::start(&directives);
        let (name, rtype, class) =
            if directives.starts_with("chaos") { ("authors.bind", "TXT", 3) } else { ("x.example", "A", 1) };
        let reply = Ask::new(name, rtype).class(class).of(dns.at);
        assert_eq!((reply.status(), reply.edns.is_none()), ("NOERROR", true), "{directives}");
        let records = [&reply.answers, &reply.authorities, &reply.additionals];
        assert!(records.into_iter().all(Vec::is_empty), "{directives}");
        assert_eq!(reply.flag_names(), expected, "{directives}");
    }
}

/// Flags set by an upstream or by a rule of `header` are unchanged.
#[test]
fn nodata_of_others_keeps_its_flags() {
    let upstream = Upstream::start(fresh_ip(), |_: &Asked| Action::Reply(Says::default()));
    let forward = format!("forward . {}", upstream.word());
    for directives in [
        format!("minimal\n{forward}"),
        format!("minimal\nheader {{\nresponse clear ra aa\n}}\n{forward}"),
        "template ANY ANY\nheader {\nresponse clear aa\n}".to_owned(),
    ] {
        let dns = Dns::start(&directives);
        let reply = ask(dns.at, "x.example", "A");
        let flags = if directives.starts_with("minimal\nforward") { "qr rd ra" } else { "qr rd" };
        assert_eq!((reply.status(), &*reply.flag_names()), ("NOERROR", flags), "{directives}");
    }
}

/// A stub that takes the reply for a referral queries the next name server, and gets the filtered
/// answer.
#[test]
fn no_stub_passes_over_our_nodata() {
    isolated(|| {
        let directory = tempdir();
        let stubs = Stub::all("no_stub_passes_over_our_nodata", directory.path());
        let answer = |asked: &Asked| match (asked.name.as_str(), asked.rtype) {
            ("fails.example.", _) => Action::Reply(Says::rcode(2).without_flags(RA)),
            (name, 1) => Action::answer(&format!("{name} 60 IN A 192.0.2.1")),
            _ => Action::Reply(Says::nodata(super::SOA)),
        };
        let upstream = Upstream::start(fresh_ip(), answer);
        let second = Upstream::at(SocketAddr::from((SECOND, 53)), |asked| match asked.rtype {
            1 => Action::answer(&format!("{} 60 IN A 192.0.2.66", asked.name)),
            _ => Action::Reply(Says::nodata(super::SOA)),
        });
        let _first = Server::start(&format!(
            ".:53 {{\nbind {FIRST}\nacl filtered.example {{\nfilter\n}}\nrewrite rcode exact fails.example SERVFAIL NOERROR\nforward . {0}\n}}\n\
             here.test:53 {{\nbind {FIRST}\nacl filtered.here.test {{\nfilter\n}}\ntemplate IN A {{\nanswer \"{{{{ .Name }}}} 60 IN A 192.0.2.1\"\n}}\ntemplate ANY ANY\n}}\n",
            upstream.word()
        ));
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        fs::create_dir("/run/systemd").unwrap();
        // systemd-resolved sends no queries while lo is the only link.
        wire("beside", 9);
        for servers in [&[FIRST][..], &[FIRST, SECOND]] {
            let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
            fs::write("/etc/resolv.conf", lines).unwrap();
            for (name, addresses) in NAMES {
                // musl queries all servers at once, and takes the first answer.
                for stub in stubs.iter().filter(|stub| servers.len() == 1 || stub.name != "musl") {
                    let found = stub.look_up(Command::new("env"), name);
                    let what = format!("{}, {} servers, {name}: {found:?}", stub.name, servers.len());
                    assert_eq!((found.addresses.len(), found.failed), (*addresses, false), "{what}");
                    assert_eq!(second.count(&format!("{name}.")), 0, "{what}");
                }
            }
            let Some(_resolved) = resolved(servers) else { continue };
            let at = SocketAddr::from(([127, 0, 0, 53], 53));
            eventually("systemd-resolved", Duration::from_secs(20), || {
                Ask::new("localhost", "A").try_of(at).ok()
            });
            for (name, addresses) in NAMES {
                let reply = ask(at, name, "A");
                let what = format!("systemd-resolved, {} servers, {name}", servers.len());
                assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", *addresses), "{what}");
                assert_eq!(second.count(&format!("{name}.")), 0, "{what}");
            }
        }
    });
}

/// systemd-resolved with these servers; its stub listener is 127.0.0.53.
fn resolved(servers: &[Ipv4Addr]) -> Option<Killed> {
    let program = Path::new("/lib/systemd/systemd-resolved");
    if !program.exists() {
        skip("no_stub_passes_over_our_nodata", "of systemd-resolved, which is not installed");
        return None;
    }
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    fs::create_dir_all("/etc/systemd").expect("an /etc of its own");
    let settings = "LLMNR=no\nMulticastDNS=no\nDNSSEC=no\nCache=no\nFallbackDNS=\n";
    let settings = format!("[Resolve]\nDNS={}\n{settings}", servers.join(" "));
    fs::write("/etc/systemd/resolved.conf", settings).expect("an /etc of its own");
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !users.contains("systemd-resolve:") {
        let user = "systemd-resolve:x:0:0::/:/bin/false\n";
        fs::write("/etc/passwd", users + user).expect("an /etc of its own");
    }
    let resolved = Command::new(program).stderr(Stdio::null()).spawn();
    Some(Killed(resolved.expect("it can be started")))
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Names, and the number of addresses that the first server has for them.
const NAMES: &[(&str, usize)] = &[
    ("allowed.example", 1),
    ("filtered.example", 0),
    ("fails.example", 0),
    ("allowed.here.test", 1),
    ("filtered.here.test", 0),
];
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const RA: u16 = 0x0080;
