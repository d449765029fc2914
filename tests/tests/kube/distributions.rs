//! The Corefiles of distributions: each is checked unmodified, and run against an API, a cluster
//! DNS and upstreams.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tests::kube::{NAMESPACES, Object, SERVICES, ScriptedCluster};
use tests::{
    Action, Ask, Asked, Authority, Options, Says, Server, Upstream, binary, eventually, isolated,
    isolated_for, output, run, tempdir, wire, within,
};

/// A distribution's Corefile, its listen address, and expected answers: name, type, rcode and data.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str, &'static str)]);

const EVERYWHERE: &str = "127.0.0.1:53";
/// Answers of a cluster's DNS.
const CLUSTER: &[(&str, &str, &str)] = &[
    ("kubernetes.default.svc.cluster.local", "A", "NOERROR 10.96.0.1"),
    ("absent.default.svc.cluster.local", "A", "NXDOMAIN"),
    ("1.0.96.10.in-addr.arpa", "PTR", "NOERROR kubernetes.default.svc.cluster.local."),
    ("www.example.com", "A", "NOERROR 192.0.2.80"),
];

const CASES: &[Case] = &[
    (
        "aks-coredns",
        EVERYWHERE,
        &[
            ("x.reddog.microsoft.com", "A", "NXDOMAIN"),
            ("a.b.c.d.internal.cloudapp.net", "A", "NXDOMAIN"),
            ("c.d.internal.cloudapp.net", "A", "NOERROR 192.0.2.80"),
        ],
    ),
    ("autopath-eks", EVERYWHERE, &[]),
    (
        "gardener",
        "127.0.0.1:8053",
        &[
            ("kubernetes.default.svc.cluster.local.svc.cluster.local", "A", "NOERROR 10.96.0.1"),
            ("api.gardener.cloud.svc.cluster.local", "A", "NOERROR 192.0.2.80"),
        ],
    ),
    ("k0s", EVERYWHERE, &[]),
    ("k3s", EVERYWHERE, &[("node-1.example.org", "A", "NOERROR 192.0.2.77")]),
    ("kops", EVERYWHERE, &[]),
    (
        "kops-ipv6",
        "[::1]:53",
        &[
            ("www.example.com", "AAAA", "NOERROR 64:ff9b::c000:250"),
            ("absent.example.com", "AAAA", "NXDOMAIN"),
        ],
    ),
    ("kops-nodelocaldns", "169.254.20.10:53", &[]),
    ("kubernetes-addon", EVERYWHERE, &[]),
    ("kubespray", EVERYWHERE, &[("www.example.io", "A", "NOERROR 192.0.2.80")]),
    ("kubespray-nodelocaldns", "169.254.25.10:53", &[]),
    ("microk8s", EVERYWHERE, &[]),
    ("minikube", EVERYWHERE, &[("host.minikube.internal", "A", "NOERROR 192.168.49.1")]),
    ("openshift-dns-operator", "127.0.0.1:5353", &[("www.corp.example", "A", "NOERROR 192.0.2.82")]),
    ("talos", EVERYWHERE, &[]),
];

/// In a private network: the machine's may have an address that a Corefile names as upstream.
#[test]
fn corefiles_of_distributions_are_checked() {
    isolated(|| {
        let known: BTreeSet<&str> = CASES.iter().map(|(name, ..)| *name).collect();
        let files = fs::read_dir(path("").parent().expect("it has one")).expect("the fixtures are there");
        let names: BTreeSet<String> = files
            .map(|file| file.expect("it can be read").path())
            .map(|file| file.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        assert_eq!(names.iter().map(String::as_str).collect::<BTreeSet<_>>(), known, "each file has a row");
        // Every node has such a file.
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.53\n").expect("a file of its own");
        for name in known {
            let mut command = Command::new(binary());
            command.args(["check", "-conf"]).arg(path(name));
            let checked = output(command, PATIENCE);
            let why = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(checked.status.success(), "{name}: {why}");
        }
    });
}

#[test]
fn corefiles_of_distributions_answer() {
    isolated_for(Duration::from_secs(300), || {
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        wire(OUTSIDE, 2);
        let authority = Authority::new();
        let trusted = tempdir();
        let roots = authority.write(trusted.path());
        for address in UPSTREAMS {
            run("ip", &["-n", OUTSIDE, "addr", "add", &format!("{address}/32"), "dev", "lo"]);
            run("ip", &["route", "replace", &format!("{address}/32"), "via", "10.2.0.2"]);
        }
        run("ip", &["-n", OUTSIDE, "addr", "add", &format!("{UPSTREAM_V6}/128"), "dev", "lo", "nodad"]);
        run("ip", &["route", "replace", &format!("{UPSTREAM_V6}/128"), "via", "fd02::2"]);
        let outside = move || {
            let plain = UPSTREAMS.into_iter().chain([Ipv4Addr::new(10, 2, 0, 2)]).map(IpAddr::V4);
            let plain = plain.chain([IpAddr::V6(UPSTREAM_V6)]);
            let mut all: Vec<_> =
                plain.map(|ip| Upstream::at(SocketAddr::from((ip, 53)), upstream)).collect();
            let tls = SocketAddr::from(([192, 0, 2, 1], 853));
            all.push(Upstream::tls(tls, &authority, "dns.corp.example", upstream));
            all
        };
        let _upstreams = within(OUTSIDE, outside).join().expect("they start");
        fs::write("/etc/resolv.conf", "nameserver 10.2.0.2\n").expect("a file of its own");
        fs::create_dir_all("/etc/coredns").expect("a directory of its own");
        fs::write("/etc/coredns/NodeHosts", "192.0.2.77 node-1.example.org\n").expect("a file of its own");
        let cluster = ScriptedCluster::start(objects(), false);
        for (name, at, more) in CASES {
            let text = fs::read_to_string(path(name)).expect("the fixture is there");
            let text =
                text.replace("ip6.arpa {\n", &format!("ip6.arpa {{\nendpoint {}\n", cluster.api.url()));
            let options = Options::default().env("SSL_CERT_FILE", &roots.to_string_lossy());
            let _server = Server::start_with(&text, options);
            let at: SocketAddr = at.parse().expect("an address");
            eventually(&format!("the cluster in {name}"), PATIENCE, || {
                (answer(at, Ask::new(CLUSTER[0].0, "A")) == CLUSTER[0].2).then_some(())
            });
            for (asked, rtype, expected) in CLUSTER.iter().chain(*more) {
                assert_eq!(answer(at, Ask::new(asked, rtype)), *expected, "{name}: {asked} {rtype}");
                assert_eq!(
                    answer(at, Ask::new(asked, rtype).tcp()),
                    *expected,
                    "{name}: {asked} {rtype}, TCP"
                );
            }
            if text.contains("chaos") {
                let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host has a name");
                let expected = format!("NOERROR \"{}\"", host.trim());
                assert_eq!(answer(at, Ask::new("hostname.bind", "TXT").class(3)), expected, "{name}");
            }
        }
    });
}

fn path(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corefiles/distributions");
    directory.join(format!("{name}.corefile"))
}

fn answer(at: SocketAddr, ask: Ask) -> String {
    let reply = ask.of(at);
    let data = reply.answers.iter().map(|record| format!(" {}", record.data));
    reply.status().to_owned() + &data.collect::<String>()
}

fn objects() -> Vec<Object> {
    let metadata = json!({"name": "kubernetes", "namespace": "default", "resourceVersion": "2"});
    let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]});
    vec![
        (NAMESPACES, json!({"metadata": {"name": "default", "resourceVersion": "1"}})),
        (SERVICES, json!({"metadata": metadata, "spec": spec})),
    ]
}

/// All upstreams: the node's, a public one, a company's, and the cluster DNS behind a node's cache.
fn upstream(asked: &Asked) -> Action {
    let is_in = |zone: &str| asked.name.ends_with(zone);
    match (asked.name.as_str(), asked.rtype) {
        ("kubernetes.default.svc.cluster.local.", 1) => {
            Action::answer(&format!("{} 30 IN A 10.96.0.1", asked.name))
        }
        ("1.0.96.10.in-addr.arpa.", 12) => {
            Action::answer(&format!("{} 30 IN PTR kubernetes.default.svc.cluster.local.", asked.name))
        }
        ("www.example.com.", 1) => Action::answer("www.example.com. 60 IN A 192.0.2.80"),
        ("www.example.com.", 28) => Action::Reply(Says::nodata(SOA)),
        (name, 1) if is_in(".corp.example.") => Action::answer(&format!("{name} 60 IN A 192.0.2.82")),
        (name, 1) if is_in("d.internal.cloudapp.net.") || is_in(".gardener.cloud.") => {
            Action::answer(&format!("{name} 60 IN A 192.0.2.80"))
        }
        _ => Action::Reply(Says::nxdomain(SOA)),
    }
}

const OUTSIDE: &str = "outside";
const SOA: &str = ". 300 IN SOA a.test. host.test. 1 7200 900 86400 20";
const PATIENCE: Duration = Duration::from_secs(20);
/// External addresses in the Corefiles.
const UPSTREAMS: [Ipv4Addr; 6] = [
    Ipv4Addr::new(8, 8, 8, 8),
    Ipv4Addr::new(8, 8, 4, 4),
    Ipv4Addr::new(10, 233, 0, 3),
    Ipv4Addr::new(100, 64, 0, 10),
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(192, 0, 2, 2),
];
/// The one of kops-ipv6.
const UPSTREAM_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x253);
