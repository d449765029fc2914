//! Resolvers as pods have them, in a network of the pod's own with kubelet's resolv.conf: one query for each family, and the answers
//! that they find without.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tests::kube::{NAMESPACES, Object, PODS, SERVICES, ScriptedCluster};
use tests::{
    Action, Metrics, Says, Server, Upstream, eventually, isolated, lacking, output, run, tempdir, tool, wire,
    within,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The pod's network, and the server's addresses on the wire to it.
const POD: &str = "pod";
const SERVER: [&str; 2] = ["10.6.0.1", "fd06::1"];

/// A program that prints the addresses of the name that is its argument, one a line.
struct Resolver {
    name: &'static str,
    command: Vec<String>,
}

/// Those that can be had here.
fn resolvers(directory: &Path) -> Vec<Resolver> {
    const TEST: &str = "a_pods_resolver_needs_one_query_for_each_family";
    let file = |name: &str| directory.join(name).to_string_lossy().into_owned();
    fs::write(file("look.c"), C).expect("it is the test's own");
    fs::write(file("look.go"), GO).expect("it is the test's own");
    fs::write(file("ares.c"), C_ARES).expect("it is the test's own");
    let mut found = Vec::new();
    if tool(TEST, "getent") {
        found.push(Resolver { name: "glibc", command: ["getent", "ahosts"].map(str::to_owned).to_vec() });
    }
    for (name, compiler, arguments) in [
        ("musl", "musl-gcc", vec!["-static".to_owned(), "-o".to_owned(), file("musl"), file("look.c")]),
        ("go", "go", vec!["build".to_owned(), "-o".to_owned(), file("go"), file("look.go")]),
        ("c-ares", "cc", vec!["-o".to_owned(), file("c-ares"), file("ares.c"), "-lcares".to_owned()]),
    ] {
        if !tool(TEST, compiler) || name == "c-ares" && !has_c_ares(TEST) {
            continue;
        }
        let mut command = Command::new(compiler);
        command.args(arguments).current_dir(directory).env("CGO_ENABLED", "0").env("GO111MODULE", "off");
        let built = output(command, Duration::from_secs(120));
        assert!(built.status.success(), "{name}: {}", String::from_utf8_lossy(&built.stderr));
        found.push(Resolver { name, command: vec![file(name)] });
    }
    found
}

/// Whether c-ares can be built against.
fn has_c_ares(test: &str) -> bool {
    let mut command = Command::new("cc");
    command.args(["-E", "-include", "ares.h", "-x", "c", "/dev/null"]);
    let found = output(command, PATIENCE).status.success();
    if !found {
        lacking(test, "c-ares", "c-ares is not installed (libc-ares-dev)");
    }
    found
}

impl Resolver {
    /// In the pod's network, with `/etc/netns/NAMESPACE/resolv.conf` in its place.
    fn addresses(&self, name: &str) -> BTreeSet<IpAddr> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", POD]).args(&self.command).arg(name);
        let said = output(command, PATIENCE);
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }
}

fn objects() -> Vec<Object> {
    let pod = json!({
        "metadata": {"name": "client", "namespace": "t1", "resourceVersion": "3"},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.6.0.2"}, {"ip": "fd06::2"}]},
    });
    let metadata = json!({"name": "web", "namespace": "t1", "resourceVersion": "2"});
    let spec = json!({"clusterIP": "10.96.0.100", "clusterIPs": ["10.96.0.100", "fd00:96::64"]});
    vec![
        (NAMESPACES, json!({"metadata": {"name": "t1", "resourceVersion": "1"}})),
        (SERVICES, json!({"metadata": metadata, "spec": spec})),
        (PODS, pod),
    ]
}

fn upstream() -> Upstream {
    Upstream::start(tests::fresh_ip(), |asked| match (asked.name.as_str(), asked.rtype) {
        ("example.com.", 1) => Action::answer("example.com. 60 IN A 192.0.2.80"),
        ("example.com.", 28) => Action::answer("example.com. 60 IN AAAA 2001:db8::80"),
        _ => Action::Reply(Says::nxdomain("com. 300 IN SOA ns.com. host.com. 1 7200 900 86400 20")),
    })
}

#[test]
fn a_pods_resolver_needs_one_query_for_each_family() {
    isolated(|| {
        let directory = tempdir();
        let resolvers = resolvers(directory.path());
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        wire(POD, 6);
        let of_pod = Path::new("/etc/netns").join(POD);
        fs::create_dir_all(&of_pod).expect("a directory of its own");
        // The machine's own list is empty.
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.53\n").expect("a file of its own");
        let cluster = ScriptedCluster::start(objects(), false);
        let mut found = BTreeMap::new();
        for searched in [true, false] {
            let upstream = upstream();
            let corefile = format!(
                ".:53 {{\nbind {}\nprometheus 127.0.0.1:9153\n{}\ncache 30\nkubernetes cluster.local {{\nendpoint {}\nnode node-1\n}}\nforward . {}\n}}\n",
                SERVER.join(" "),
                if searched { "autopath @kubernetes" } else { "" },
                cluster.api.url(),
                upstream.word()
            );
            let server = Server::start(&corefile);
            if searched {
                eventually("pods are followed", PATIENCE, || {
                    let ask = || {
                        let at = SocketAddr::from(([10, 6, 0, 1], 53));
                        tests::ask(at, "example.com.t1.svc.cluster.local", "A").status()
                    };
                    (within(POD, ask).join().expect("it is answered") == "NOERROR").then_some(())
                });
            }
            let asked = || {
                let metrics = Metrics::of(SocketAddr::from(([127, 0, 0, 1], 9153)));
                ["A", "AAAA"]
                    .map(|rtype| metrics.count("coredns_dns_requests_total", &[("type", rtype)]) as usize)
            };
            for nameserver in SERVER {
                fs::write(of_pod.join("resolv.conf"), kubelets(nameserver)).expect("a file of its own");
                for (resolver, name) in
                    resolvers.iter().flat_map(|resolver| [(resolver, "example.com"), (resolver, "web")])
                {
                    let before = asked();
                    let addresses = resolver.addresses(name);
                    let after = asked();
                    let what = format!("{} {name} at {nameserver}", resolver.name);
                    let queries = [after[0] - before[0], after[1] - before[1]];
                    // Three domains and the name itself; what is there is found in the first.
                    let without = if name == "web" { 1 } else { 4 };
                    assert_eq!(addresses.len(), 2, "{what}: {addresses:?}");
                    assert_eq!(queries, if searched { [1, 1] } else { [without, without] }, "{what}");
                    assert_eq!(
                        *found.entry(what.clone()).or_insert_with(|| addresses.clone()),
                        addresses,
                        "{what}"
                    );
                }
            }
            drop(server);
        }
    });
}

/// What kubelet writes for a pod of `t1`.
fn kubelets(nameserver: &str) -> String {
    format!(
        "search t1.svc.cluster.local svc.cluster.local cluster.local\nnameserver {nameserver}\noptions ndots:5\n"
    )
}

const C: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int argc, char **argv) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *all, *one;
    if (argc < 2 || getaddrinfo(argv[1], "80", &hints, &all)) return 1;
    for (one = all; one; one = one->ai_next) {
        char host[128];
        if (!getnameinfo(one->ai_addr, one->ai_addrlen, host, sizeof host, 0, 0, NI_NUMERICHOST)) puts(host);
    }
    return 0;
}
"#;

/// As getaddrinfo, by c-ares alone: its own sockets, its own reading of resolv.conf.
const C_ARES: &str = r#"
#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/select.h>

static int failed;

static void found(void *unused, int status, int timeouts, struct ares_addrinfo *all) {
    failed = status != ARES_SUCCESS;
    if (failed) fprintf(stderr, "%s, %d timeouts\n", ares_strerror(status), timeouts);
    for (struct ares_addrinfo_node *one = all ? all->nodes : NULL; one; one = one->ai_next) {
        char host[INET6_ADDRSTRLEN];
        const void *address = one->ai_family == AF_INET6
            ? (const void *)&((struct sockaddr_in6 *)one->ai_addr)->sin6_addr
            : (const void *)&((struct sockaddr_in *)one->ai_addr)->sin_addr;
        if (inet_ntop(one->ai_family, address, host, sizeof host)) puts(host);
    }
    ares_freeaddrinfo(all);
}

int main(int argc, char **argv) {
    struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    ares_channel channel;
    if (argc < 2 || ares_library_init(ARES_LIB_INIT_ALL) || ares_init(&channel)) return 1;
    ares_getaddrinfo(channel, argv[1], "80", &hints, found, NULL);
    for (;;) {
        fd_set readers, writers;
        struct timeval wait;
        FD_ZERO(&readers);
        FD_ZERO(&writers);
        int count = ares_fds(channel, &readers, &writers);
        if (!count) break;
        select(count, &readers, &writers, NULL, ares_timeout(channel, NULL, &wait));
        ares_process(channel, &readers, &writers);
    }
    ares_destroy(channel);
    return failed;
}
"#;

const GO: &str = r#"
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	addresses, err := net.LookupHost(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, address := range addresses {
		fmt.Println(address)
	}
}
"#;
