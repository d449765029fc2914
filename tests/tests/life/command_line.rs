//! Flags, subcommands, the output at the start, and the listen addresses.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tests::{
    Action, Ask, Asked, Metrics, Options, Server, Upstream, add_address, ask, assert_contains, binary,
    eventually, fixtures, fresh_ip, isolated, port, run, tempdir,
};

use super::{Killed, localdns, text};

#[test]
fn flags_are_parsed_as_in_go() {
    let name = env!("CARGO_PKG_VERSION");
    for flag in ["-version", "--version", "-version=true"] {
        let output = localdns(&[flag]);
        assert!(output.status.success(), "{flag}: {output:?}");
        assert_contains!(text(&output.stdout), format!("localdns-{name}"));
    }
    assert!(text(&localdns(&["-plugins"]).stdout).lines().count() >= 19);
    for (args, what) in [
        (&["-nonsense"][..], "nonsense"),
        (&["--nonsense=1"], "nonsense"),
        (&["-conf"], "conf"),
        (&["-version", "extra"], "extra"),
        (&["-log-format", "xml", "-version=false"], "xml"),
        (&["-dns.port", "dns"], "dns"),
        (&["-p", "70000"], "70000"),
        (&["nonsense"], "nonsense"),
        (&["-quiet=perhaps"], "perhaps"),
    ] {
        let output = localdns(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert_contains!(text(&output.stderr), what);
    }
}

/// A closed output is no failure.
#[test]
fn closed_output_is_no_failure() {
    let directory = tempdir();
    let file = |name: &str, text: &str| {
        fs::write(directory.path().join(name), text).expect("the directory is ours");
        directory.path().join(name).to_string_lossy().into_owned()
    };
    let corefile = file("Corefile", "example.org {\nwhoami\n}\n");
    let hosts = file("hosts", "");
    for args in [
        &["check", "-conf", &corefile][..],
        &["explain", "-conf", &corefile, "example.org"],
        &["-version"],
        &["-plugins"],
        &["node-resolver", "-remove", "-hosts-file", &hosts],
    ] {
        let (reader, written) = std::io::pipe().expect("there are pipes");
        drop(reader);
        let mut command = Command::new("timeout");
        command.arg("10").arg(binary()).args(args).stdout(written).stderr(Stdio::piped());
        let output = command.spawn().and_then(Child::wait_with_output).expect("it starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

/// The flag for the port applies to keys without one.
#[test]
fn port_flag_fills_keys() {
    for flag in ["-p", "-dns.port", "--dns.port"] {
        let ip = fresh_ip();
        let server = Server::start_with(
            &format!(". {{\nbind {ip}\nwhoami\n}}"),
            Options::default().args([flag, "5399"]),
        );
        assert_eq!(ask((ip, 5399).into(), "a.example", "A").status(), "NOERROR", "{flag}");
        drop(server);
    }
}

#[test]
fn start_is_logged_unless_quiet() {
    let (ip, port) = (fresh_ip(), port());
    let corefile = format!("example:{port} other:{port} {{\nbind {ip}\nwhoami\n}}");
    let server = Server::start(&corefile);
    for zone in ["example.", "other."] {
        server.wait_for_log(&format!("{zone}:{port} on {ip}"), Duration::from_secs(2));
    }
    server.wait_for_log(&format!("localdns-{}", env!("CARGO_PKG_VERSION")), Duration::from_secs(2));
    drop(server);
    let mut server = Server::start_with(&corefile, Options::default().args(["-quiet"]));
    assert_eq!(ask((ip, port).into(), "a.example", "A").status(), "NOERROR");
    assert!(server.stop().success());
    assert!(!server.log_text().contains(&format!("example.:{port}")), "{}", server.log_text());
}

/// Without a Corefile the server serves whoami and log.
#[test]
fn default_is_whoami_and_log() {
    isolated(|| {
        let directory = tempdir();
        let log = directory.path().join("log");
        let mut command = Command::new(binary());
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(fs::File::create(&log).unwrap());
        let _child = Killed(command.spawn().unwrap());
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 53));
        let reply = eventually("an answer", Duration::from_secs(5), || {
            Ask::new("a.example", "A").timeout(Duration::from_millis(100)).try_of(at).ok()
        });
        assert_eq!((reply.status(), reply.additionals.len()), ("NOERROR", 2));
        eventually("a line of `log`", Duration::from_secs(5), || {
            fs::read_to_string(&log).unwrap().contains("\"A IN a.example. udp ").then_some(())
        });
    });
}

#[test]
fn corefile_from_stdin() {
    let (ip, port) = (fresh_ip(), port());
    let mut command = Command::new(binary());
    command.args(["-conf", "stdin"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = Killed(command.spawn().unwrap());
    let corefile = format!(".:{port} {{\nbind {ip}\nwhoami\n}}\n");
    child.0.stdin.take().unwrap().write_all(corefile.as_bytes()).unwrap();
    eventually("an answer", Duration::from_secs(5), || {
        Ask::new("a.example", "A").timeout(Duration::from_millis(100)).try_of((ip, port).into()).ok()
    });
}

/// A Corefile from a pipe is read whole or refused.
#[test]
fn corefile_from_a_pipe() {
    const MOST: usize = 16 << 20;
    let corefile = |octets: usize| {
        let start = ".:5353 {\nwhoami\n}\n";
        let mut text = start.to_owned() + &"# a line\n".repeat(octets / 9);
        text.truncate(octets - 2);
        text + "\n#"
    };
    for (octets, refused) in [(MOST, false), (MOST + 1, true), (MOST * 2, true)] {
        for conf in ["stdin", "/dev/stdin"] {
            let mut command = Command::new(binary());
            command.args(["check", "-conf", conf]).stdin(Stdio::piped()).stderr(Stdio::piped());
            let mut child = Killed(command.stdout(Stdio::null()).spawn().unwrap());
            let mut pipe = child.0.stdin.take().unwrap();
            // The server stops reading, and closes the pipe, at the limit.
            drop(pipe.write_all(corefile(octets).as_bytes()));
            drop(pipe);
            let status = eventually("the end", Duration::from_secs(20), || child.0.try_wait().unwrap());
            let mut printed = String::new();
            child.0.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
            assert_eq!(status.success(), !refused, "{octets} from {conf}: {printed}");
            assert_eq!(
                printed.contains("stdin is too large: expected at most 16777216 bytes"),
                refused,
                "{printed}"
            );
        }
    }
}

/// `check` accepts each real Corefile or names what is missing.
#[test]
fn check_on_real_corefiles() {
    let node_local = fixtures::node_local(["169.254.20.10", "10.0.0.10"], "10.0.0.11", "/etc/resolv.conf");
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    let check = |text: &str| {
        fs::write(&path, text).unwrap();
        localdns(&["check", "-conf", &path.to_string_lossy()])
    };
    for (what, corefile) in [("AKS", fixtures::AKS), ("the seed", fixtures::SEED), ("NodeLocal", &node_local)]
    {
        let output = check(corefile);
        assert!(output.status.success(), "{what}: {}", text(&output.stderr));
    }
    let output = check(fixtures::KUBEADM);
    if !output.status.success() {
        let printed = text(&output.stderr);
        assert_contains!(printed, "Corefile:8");
        assert_contains!(printed, "kubernetes");
    }
    let output = check(". {\nforwrad . 192.0.2.1\n}");
    assert!(!output.status.success());
    assert_contains!(text(&output.stderr), "Corefile:2");
}

/// Counts are words, and each warning is printed once.
#[test]
fn check_counts_and_lists_warnings() {
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    let hosts = directory.path().join("hosts");
    fs::write(&hosts, "192.0.2.1 good\nbad line\n").unwrap();
    let block = |zone: &str| format!("{zone} {{\nbind 127.0.0.1\nhosts {}\n}}\n", hosts.display());
    for (zones, expected) in [
        (&["a.example"][..], "the Corefile can be served: 1 server block, 1 zone on 1 address\n"),
        (&["a.example", "b.example"], "the Corefile can be served: 2 server blocks, 2 zones on 1 address\n"),
    ] {
        fs::write(&path, zones.iter().map(|zone| block(zone)).collect::<String>()).unwrap();
        let output = localdns(&["check", "-conf", &path.to_string_lossy()]);
        assert_eq!(text(&output.stdout), expected);
        assert_eq!(text(&output.stderr).matches("line 2").count(), 1, "{}", text(&output.stderr));
    }
}

/// `check` without a Corefile prints what is checked.
#[test]
fn check_without_a_corefile() {
    let output = localdns(&["check"]);
    assert_eq!(
        text(&output.stdout),
        "there is no ./Corefile; the default, `. { whoami log }`, can be served: 1 server block, 1 zone on every address\n"
    );
}

#[test]
fn check_warns_of_unusable_weights() {
    let directory = tempdir();
    let [path, weights] = ["Corefile", "weights"].map(|name| directory.path().join(name));
    let line = format!("loadbalance weighted {}", weights.display());
    fs::write(&path, format!(". {{\nbind 127.0.0.1\n{line}\nwhoami\n}}\n")).unwrap();
    for (content, expected) in [
        (None, "weights: No such file or directory (os error 2); every address weighs 1"),
        (
            Some("www.example.org\n10.1.0.0\n"),
            "line 2: an address has no weight; expected ADDRESS WEIGHT; every",
        ),
        (Some("www.example.org\n10.1.0.0 2\n"), ""),
    ] {
        if let Some(content) = content {
            fs::write(&weights, content).unwrap();
        }
        let output = localdns(&["check", "-conf", &path.to_string_lossy()]);
        assert!(output.status.success());
        let printed = text(&output.stderr) + &text(&output.stdout);
        assert_eq!(
            printed.matches("cannot use the weight file").count(),
            usize::from(!expected.is_empty()),
            "{printed}"
        );
        assert_contains!(printed, expected);
    }
}

#[test]
fn explain_names_block_and_plugin() {
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    fs::write(&path, fixtures::AKS).unwrap();
    let explain = |args: &[&str]| {
        let conf = path.to_string_lossy();
        let output = localdns(&[&["explain"], args, &["-conf", &conf]].concat());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let rows: [(&[&str], &str); 4] = [
        (&["bing.com", "A", "@169.254.10.10"], "forward"),
        (&["x.reddog.microsoft.com", "A", "@169.254.10.11"], "template"),
        (&["health-check.localdns.local", "A", "@169.254.10.10"], "whoami"),
        (&["kubernetes.default.svc.cluster.local", "A", "@169.254.10.11"], "cluster.local."),
    ];
    for (args, word) in rows {
        assert_contains!(explain(args), word);
    }
    let everywhere = explain(&["bing.com"]);
    assert!(
        everywhere.contains("@169.254.10.10:53: ") && everywhere.contains("@169.254.10.11:53: "),
        "{everywhere}"
    );
}

#[test]
fn explain_and_check_send_no_packet() {
    isolated(|| {
        let asked = |asked: &Asked| Action::answer(&format!("{} 60 IN A 127.0.0.2", asked.name));
        // The host's resolver, as /etc/resolv.conf names it, and two upstreams, one of them given
        // by name.
        let mocks = [1, 2, 3].map(|last| Upstream::start(Ipv4Addr::new(127, 0, 0, last), asked));
        let corefile = ".:53 {\nbind 127.0.0.10\nhealth 127.0.0.10:8080\nloop\ncache\n\
                        forward internal.example /etc/resolv.conf\nforward . upstream.example 127.0.0.3\n}\n";
        let directory = tempdir();
        let path = directory.path().join("Corefile");
        fs::write(&path, corefile).unwrap();
        let conf = path.to_string_lossy();
        for (args, word) in [
            (&["explain", "a.example", "A"][..], "`forward .` asks 127.0.0.3:53"),
            (&["explain", "a.internal.example", "AAAA"], "`forward internal.example.` asks 127.0.0.1:53"),
            (&["check"], "can be served"),
        ] {
            let output = localdns(&[args, &["-conf", &conf]].concat());
            assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
            assert_contains!(text(&output.stdout), word);
        }
        // Earlier queries would have arrived before this one.
        for mock in &mocks {
            ask(mock.address(), "ours.example", "A");
            assert_eq!(
                (mock.total(), mock.connections()),
                (1, 0),
                "another client queried {}",
                mock.address()
            );
        }
        // A server with the same Corefile queries them all.
        let _server = Server::start(corefile);
        eventually("all to be asked", Duration::from_secs(5), || {
            ask("127.0.0.10:53".parse().unwrap(), "a.example", "TXT");
            let [resolver, named, numbered] = mocks.each_ref().map(Upstream::total);
            (resolver > 1 && named > 1 && numbered > 1).then_some(())
        });
    });
}

#[test]
fn missing_link_local_address_is_added() {
    isolated(|| {
        let _server = Server::start(".:53 {\nbind 169.254.10.10\nwhoami\n}");
        assert_eq!(ask("169.254.10.10:53".parse().unwrap(), "a.example", "A").status(), "NOERROR");
    });
}

/// It is served if written with its link, without it, and by its link.
#[test]
fn ipv6_link_local_in_each_form() {
    isolated(|| {
        run("ip", &["link", "add", "uplink", "type", "bridge"]);
        // Without the kernel's own link-local addresses, which are not usable at once.
        run("ip", &["link", "set", "uplink", "addrgenmode", "none"]);
        run("ip", &["link", "set", "uplink", "up"]);
        run("ip", &["address", "add", "fe80::a:a/64", "dev", "uplink", "nodad"]);
        let at = scoped("fe80::a:a", "uplink");
        for (bind, host) in [
            ("uplink", "fe80::a:a%uplink"),
            ("fe80::a:a%uplink", "fe80::a:a%uplink"),
            ("fe80::a:a", "fe80::a:a"),
        ] {
            let corefile = format!(".:53 {{\nbind {bind}\nprometheus 127.0.0.1:9153\nwhoami\n}}");
            let server = Server::start(&corefile);
            server.wait_for_log(&format!(".:53 on {host}"), Duration::from_secs(2));
            assert_serves(at);
            // The address stays bound, and the reload finds it again.
            server.signal("USR1");
            server.wait_for_log("Reloading complete", Duration::from_secs(5));
            assert_serves(at);
            let metrics = Metrics::after_queries("127.0.0.1:9153".parse().unwrap(), 4);
            let label = format!("dns://[{host}]:53");
            assert_eq!(metrics.count("coredns_dns_requests_total", &[("server", &label)]), 4.0, "{bind}");
        }
    });
}

/// A missing link-local address of IPv6 is added and stays.
#[test]
fn missing_ipv6_link_local_is_added() {
    isolated(|| {
        let corefile = ".:53 {\nbind fe80::a:a\nwhoami\n}";
        for _ in ["added", "adopted"] {
            let mut server = Server::start(corefile);
            let at = scoped("fe80::a:a", "localdns");
            eventually("the address in the kernel's routes", Duration::from_secs(5), || {
                Ask::new("a.example", "A").timeout(Duration::from_millis(100)).try_of(at).ok()
            });
            assert_serves(at);
            assert!(server.stop().success());
            let there = run("ip", &["-6", "-oneline", "address", "show", "dev", "localdns"]);
            assert_eq!(there.matches("fe80::a:a/128").count(), 1, "{there}");
        }
    });
}

/// A link-local address on this link, port 53.
fn scoped(ip: &str, link: &str) -> SocketAddr {
    // /sys may show the links of another namespace.
    let shown = run("ip", &["-oneline", "link", "show", "dev", link]);
    let index = shown.split(':').next().and_then(|index| index.parse().ok()).expect("its index is first");
    SocketAddrV6::new(ip.parse().expect("a constant address"), 53, 0, index).into()
}

fn assert_serves(at: SocketAddr) {
    for query in [Ask::new("a.example", "A"), Ask::new("a.example", "A").tcp()] {
        let reply = query.of(at);
        let client = reply.additionals.iter().find(|record| record.rtype == 28).expect("whoami answers it");
        assert_eq!(client.data, at.ip().to_string());
    }
}

#[test]
fn an_interface_name_binds_its_addresses() {
    isolated(|| {
        add_address("192.0.2.77/32");
        let _server = Server::start(".:53 {\nbind lo {\nexcept 127.0.0.1\n}\nwhoami\n}");
        assert_eq!(ask("192.0.2.77:53".parse().unwrap(), "a.example", "A").status(), "NOERROR");
        let excepted = Ask::new("a.example", "A").timeout(Duration::from_millis(200));
        assert!(excepted.try_of("127.0.0.1:53".parse().unwrap()).is_err());
    });
}
