//! `localdns node-cache` with NodeLocal DNSCache's template.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::{Options, Server, ask, eventually, isolated, run, signal, tool};

use super::availability::{node, status};
use super::lab::{CLUSTER, Lab, NAME, PLAIN, US};

/// The template is filled in, follows the ConfigMap and has a fallback.
#[test]
fn template_configmap_and_fallback() {
    isolated(|| {
        if !tool("node-cache", "nft") {
            return;
        }
        let _lab = Lab::new();
        let mut server = serve(&["-localip", "169.254.20.10,10.96.0.20,fd10::11"]);
        for address in ["169.254.20.10", "fd10::11", "10.96.0.20"] {
            server.wait_for_log(&format!("queries to {address} are answered here"), Duration::from_secs(10));
            assert_eq!(answer(address), US, "{address}");
        }
        let filled = std::fs::read_to_string(server.path("Corefile")).expect("it is written");
        assert!(filled.contains("bind 169.254.20.10 10.96.0.20 fd10::11 \n"), "{filled}");
        assert!(filled.contains("forward . 10.96.0.10 {") && filled.contains("forward . /etc/resolv.conf\n"));
        let errors = |port, kind: &str| {
            let metrics = server.metrics(SocketAddr::from(([127, 0, 0, 1], port)));
            metrics.value("coredns_nodecache_setup_errors_total", &[("errortype", kind)])
        };
        for kind in ["iptables", "iptables_lock", "interface_add", "interface_check", "configmap"] {
            assert_eq!([errors(9353, kind), errors(9253, kind)], [Some(0.0), Some(0.0)], "{kind}");
        }

        // The stub domain takes effect at the next check of the template.
        configmap("stubDomains", r#"{"who.test": ["10.3.0.2"]}"#);
        let patience = Duration::from_secs(20);
        eventually("the stub domain's server", patience, || (answer("169.254.20.10") == PLAIN).then_some(()));
        configmap("stubDomains", "{");
        eventually("the error is counted", patience, || {
            (errors(9353, "configmap") == Some(1.0)).then_some(())
        });
        server.wait_for_log("; expected ", patience);
        assert_eq!(answer("169.254.20.10"), PLAIN, "the last good one stays");
        configmap("upstreamNameservers", r#"["10.3.0.2"]"#);
        configmap("stubDomains", "");
        eventually("the upstream that is named", patience, || {
            let filled = std::fs::read_to_string(server.path("Corefile")).ok()?;
            filled.contains("forward . 10.3.0.2\n").then_some(())
        });
        assert_eq!(errors(9353, "configmap"), Some(1.0));

        signal(server.pid(), "KILL");
        server.wait(Duration::from_secs(5));
        let ask_the_cluster = || {
            for address in ["169.254.20.10", "10.96.0.20"] {
                assert_eq!(answer(address), CLUSTER, "{address}");
            }
        };
        ask_the_cluster();
        // The upstream of `.` does not know the cluster's names.
        let printed = status(&server, 1);
        assert!(
            printed.starts_with("rules     in place\n") && printed.contains("fallback 10.96.0.10"),
            "{printed}"
        );
        node(&server, &["up", "-host-resolver", "none", "-link", "nodelocaldns"], 0);
        ask_the_cluster();
    });
}

#[test]
fn unusable_configmap_allows_a_start() {
    isolated(|| {
        if !tool("node-cache", "nft") {
            return;
        }
        let _lab = Lab::new();
        std::fs::create_dir_all("/run/kube-dns").expect("/run is ours");
        let sixteen: Vec<_> = (1..=16).map(|n| format!("\"192.0.2.{n}\"")).collect();
        let patience = Duration::from_secs(20);
        for (stubs, upstreams, message) in [
            (
                format!(r#"{{"who.test": [{}]}}"#, sixteen.join(",")),
                "",
                "who.test has 16 servers, and 15 at most",
            ),
            (
                r#"{"cluster.local": ["10.3.0.2"]}"#.to_owned(),
                "",
                "stubDomains: cluster.local is a zone of the template already, at /run/Corefile.base:2:1",
            ),
            (
                r#"{"who.test": ["169.254.20.10"]}"#.to_owned(),
                "",
                "stubDomains: 169.254.20.10 of who.test is this server itself",
            ),
            (
                String::new(),
                r#"["169.254.20.10"]"#,
                "upstreamNameservers: 169.254.20.10 is this server itself",
            ),
        ] {
            configmap("stubDomains", &stubs);
            configmap("upstreamNameservers", upstreams);
            let mut server = serve(&["-localip", "169.254.20.10"]);
            server.wait_for_log(message, patience);
            assert_eq!(answer("169.254.20.10"), US, "without it: {message}");
            let metrics = server.metrics(SocketAddr::from(([127, 0, 0, 1], 9353)));
            let errors = metrics.value("coredns_nodecache_setup_errors_total", &[("errortype", "configmap")]);
            assert_eq!(errors, Some(1.0), "{message}");
            // A valid ConfigMap takes effect at the next check; a server named twice gets twice the
            // queries.
            configmap("upstreamNameservers", "");
            configmap("stubDomains", r#"{"who.test": ["10.3.0.2", "10.3.0.2"]}"#);
            eventually("the stub domain's server", patience, || {
                (answer("169.254.20.10") == PLAIN).then_some(())
            });
            signal(server.pid(), "KILL");
            server.wait(Duration::from_secs(5));
        }
    });
}

/// Changes without a reload are followed if requested; the link has its configured name.
#[test]
fn changes_without_reload() {
    isolated(|| {
        if !tool("node-cache", "nft") {
            return;
        }
        let _lab = Lab::new();
        let words = ["-localip", "169.254.20.10", "-reloadwithsignal", "-interfacename", "dns0"];
        let server = serve_of(&TEMPLATE.replace("reload 2s 1s", ""), &words);
        server.wait_for_log("queries to 169.254.20.10 are answered here", Duration::from_secs(10));
        assert!(run("ip", &["addr", "show", "dev", "dns0"]).contains("169.254.20.10/32"));
        assert_eq!(answer("169.254.20.10"), US);
        configmap("stubDomains", r#"{"who.test": ["10.3.0.2"]}"#);
        let patience = Duration::from_secs(30);
        eventually("the stub domain's server", patience, || (answer("169.254.20.10") == PLAIN).then_some(()));
        // `down` removes a killed server's link, whatever its name.
        signal(server.pid(), "KILL");
        let mut down = Command::new(tests::binary());
        down.args(["node", "down"]);
        let stdout = tests::output(down, Duration::from_secs(20)).stdout;
        assert!(String::from_utf8_lossy(&stdout).contains("removed the link dns0 with its addresses"));
        assert!(!run("ip", &["link"]).contains("dns0"));
    });
}

/// What prevents the write is reported once.
#[test]
fn filled_corefile_is_written_whole() {
    isolated(|| {
        if !tool("node-cache", "nft") {
            return;
        }
        let _lab = Lab::new();
        let written = Path::new("/run/written/Corefile");
        let server = serve(&["-localip", "169.254.20.10", "-conf", "/run/written/Corefile"]);
        let patience = Duration::from_secs(20);
        let line = server.wait_for_log("-conf: cannot find", patience);
        assert!(line.contains("/run/written") && line.contains("name a file that can be written"), "{line}");
        let followed = |server: &str| {
            configmap("stubDomains", &format!(r#"{{"who.test": ["{server}"]}}"#));
            let responder = if server == "10.3.0.2" { PLAIN } else { CLUSTER };
            eventually("the stub domain's server", patience, || {
                (answer("169.254.20.10") == responder).then_some(())
            });
        };
        followed("10.3.0.2");
        assert_eq!(server.log_text().matches("-conf: ").count(), 1, "{}", server.log_text());
        std::fs::create_dir("/run/written").expect("/run is ours");
        followed("10.2.0.2");
        let inode = || std::fs::metadata(written).expect("it is written").ino();
        let first = inode();
        let opened = std::fs::File::open(written).expect("it may be read");
        followed("10.3.0.2");
        assert_ne!(inode(), first, "another file takes its place");
        let before = std::io::read_to_string(opened).expect("it is text");
        assert!(before.contains("forward . 10.2.0.2\n"), "a reader sees one or the other: {before}");
    });
}

/// iptables rules are removed at a stop unless configured to stay.
#[test]
fn iptables_rules_at_a_stop() {
    isolated(|| {
        if !tool("node-cache", "iptables") || !tool("node-cache", "nft") {
            return;
        }
        let _lab = Lab::new();
        let count = || run("iptables-save", &[]).matches("NodeLocal DNS Cache: ").count();
        for (more, left) in [(Some("-skipteardown"), 12), (None, 0)] {
            let words = ["-localip", "169.254.20.10", "-rules", "node-cache", "-syncinterval", "30ns"];
            let words: Vec<_> = words.into_iter().chain(more).collect();
            let mut server = serve(&words);
            eventually("its rules", Duration::from_secs(15), || (count() == 12).then_some(()));
            signal(server.pid(), "TERM");
            assert!(server.wait(Duration::from_secs(15)).success());
            assert_eq!(count(), left, "{more:?}");
            assert_eq!(run("ip", &["link"]).contains("localdns"), left > 0, "{more:?}");
        }
    });
}

/// It accepts node-cache's flags, and so does ours with `-localip`.
#[test]
fn binary_named_node_cache() {
    let directory = tests::tempdir();
    let binary = directory.path().join("node-cache");
    symlink(tests::binary(), &binary).expect("the directory is ours");
    let run_node = |words: &[&str], code| {
        // `-localip` selects node-cache, whatever the binary's name.
        let ours = tests::binary();
        let program = if words.contains(&"-localip") { &ours } else { &binary };
        let mut command = Command::new(program);
        command.args(words);
        let output = tests::output(command, Duration::from_secs(10));
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        text.into_owned()
    };
    assert!(run_node(&["-version"], 0).starts_with("localdns-"));
    assert!(run_node(&["-plugins"], 0).contains("\nforward\n"));
    for (words, part) in [
        (&[][..], "`node-cache` needs -localip"),
        (&["-localip", "10.0.0.1,x"], "-localip \"x\" is not a comma-separated list of IP addresses"),
        (
            &["-localip", "10.0.0.1,127.0.0.1"],
            "-localip \"127.0.0.1\" is not a comma-separated list of IP addresses",
        ),
        (&["-localip", "fe80::1"], "that pods can reach: not 0.0.0.0, 127.0.0.1 or fe80::1"),
        (&["-localip", "0.0.0.0"], "-localip \"0.0.0.0\" is not"),
        (
            &["-localip", "10.0.0.1", "-interfacename", "sixteencharacter"],
            "-interfacename \"sixteencharacter\" is not",
        ),
        (&["-localip", "10.0.0.1", "-link", "sixteencharacter"], "-link \"sixteencharacter\" is not"),
        (&["-localip", "10.0.0.1", "-syncinterval", "0"], "is not a number of seconds or a duration"),
    ] {
        let text = run_node(words, 1);
        assert!(text.contains(part), "{text}");
    }
    let base = directory.path().join("base");
    let base = base.to_str().expect("its name is text");
    let words = ["-localip", "169.254.20.10", "-basecorefile", base];
    assert!(run_node(&words, 217).contains("name the template with -basecorefile"));
    std::fs::write(base, ".:53 {\n forward . __PILLAR__CLUSTER__DNS__\n}\n").expect("the directory is ours");
    let text = run_node(&words, 217);
    assert!(text.contains("KUBE_DNS_SERVICE_HOST is not set"), "{text}");
    std::fs::write(base, "\n\n__PILLAR__DNS__DOMAIN__:53 {\n}\n").expect("the directory is ours");
    let text = run_node(&words, 217);
    assert!(text.contains("line 3: __PILLAR__DNS__DOMAIN__ was not replaced when"), "{text}");
}

/// An address of `-localip` is reported until a `bind` names it.
#[test]
fn unbound_address_is_reported() {
    isolated(|| {
        if !tool("node-cache", "nft") {
            return;
        }
        let _lab = Lab::new();
        let bound = TEMPLATE.replace("__PILLAR__LOCAL__DNS__", "169.254.20.10");
        let server = serve_of(&bound, &["-localip", "169.254.20.11,169.254.20.10,10.96.0.20"]);
        let patience = Duration::from_secs(20);
        let warning = "-localip: 169.254.20.11, 10.96.0.20 are in no `bind` of the template";
        let line = server.wait_for_log(warning, patience);
        assert!(line.contains("`bind` them there, or leave them out of -localip"), "{line}");
        assert_eq!(answer("169.254.20.10"), US);
        let note = |is: bool| {
            eventually(&format!("a note: {is}"), patience, || {
                let mut command = Command::new(tests::binary());
                command.args(["node", "status", "-conf"]).arg(server.path("Corefile"));
                let stdout = tests::output(command, patience).stdout;
                (String::from_utf8_lossy(&stdout).contains(warning) == is).then_some(())
            });
        };
        note(true);
        tests::publish(Path::new("/run/Corefile.base"), TEMPLATE);
        server.wait_for_log("queries to 169.254.20.11 are answered here", patience);
        note(false);
    });
}

fn serve(words: &[&'static str]) -> Server {
    serve_of(TEMPLATE, words)
}

fn serve_of(template: &str, words: &[&'static str]) -> Server {
    let options = options_of(template);
    Server::start_with("", words.iter().fold(options, |options, word| options.args([*word])))
}

/// Options for this template; further flags follow.
pub(super) fn options_of(template: &str) -> Options {
    std::fs::write("/run/Corefile.base", template).expect("/run is ours");
    std::fs::create_dir_all("/run/kube-dns").expect("/run is ours");
    Options::default()
        .subcommand(&["node-cache"])
        .args(["-basecorefile", "/run/Corefile.base", "-kubednscm", "/run/kube-dns"])
        .args(["-upstreamsvc", "kube-dns-upstream"])
        .env("KUBE_DNS_UPSTREAM_SERVICE_HOST", "10.96.0.10")
}

fn configmap(key: &str, text: &str) {
    tests::publish(Path::new("/run/kube-dns").join(key).as_path(), text);
}

pub(super) fn answer(address: &str) -> String {
    let address: IpAddr = address.parse().expect("an address");
    ask((address, 53).into(), NAME, "A").short().concat()
}

/// The add-on manifest's template, with `hosts` to identify the server and a shorter `reload`.
pub(super) const TEMPLATE: &str = "
cluster.local:53 {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload 2s 1s
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    prometheus :9253
    health 169.254.20.10:8080
}
in-addr.arpa:53 {
    errors
    cache 30
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    prometheus __PROMETHEUS__ENDPOINT__
}
.:53 {
    errors
    cache 30
    hosts {
        192.0.2.1 who.test
        fallthrough
    }
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
}
";
