//! A node with a pod and upstreams in the test's own network namespaces.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use tests::{Action, Ask, Options, Says, Server, Upstream, eventually, run, wire};
pub(crate) use tests::{within, within_scope};

use super::kube_proxy::KubeProxy;

/// Namespaces of the pod and of the upstreams.
pub(crate) const POD: &str = "pod";
pub(crate) const OUTSIDE: &str = "outside";
/// Addresses in the answers, one for each server.
pub(crate) const US: &str = "192.0.2.1";
pub(crate) const CLUSTER: &str = "192.0.2.2";
pub(crate) const PLAIN: &str = "192.0.2.3";
pub(crate) const NAME: &str = "who.test";

/// The node, in this namespace.
pub(crate) struct Lab {
    upstreams: Vec<Upstream>,
}

impl Lab {
    /// Sets up links, routes, upstreams and a kube-proxy that translates 10.96.0.10, 10.96.0.20 and
    /// fd96::10 to the cluster's DNS. Only within [`tests::isolated`].
    pub(crate) fn new() -> Self {
        Self::beside(KubeProxy::Nftables)
    }

    /// Like [`Self::new`], with kube-proxy in this mode.
    pub(crate) fn beside(kube_proxy: KubeProxy) -> Self {
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        // Hides an AKS node's own files, which the server under test would write.
        if std::path::Path::new("/opt/azure").is_dir() {
            run("mount", &["-t", "tmpfs", "tmpfs", "/opt/azure"]);
        }
        for (file, text) in [
            ("/proc/sys/net/ipv6/conf/all/accept_dad", "0"),
            ("/proc/sys/net/ipv6/conf/default/accept_dad", "0"),
        ] {
            std::fs::write(file, text).expect("the namespace is ours");
        }
        for (name, net) in [(POD, 1), (OUTSIDE, 2)] {
            wire(name, net);
        }
        run("ip", &["-n", OUTSIDE, "addr", "add", "10.3.0.2/32", "dev", "lo"]);
        // Usable at once, even while the kernel's work queue is late.
        run("ip", &["-n", OUTSIDE, "addr", "add", "fd03::2/128", "dev", "lo", "nodad"]);
        // The upstreams have no route to these.
        for net in ["10.96.0.0/16", "169.254.0.0/16", "fd10::/64", "fd96::/64"] {
            run("ip", &["-n", OUTSIDE, "route", "add", "blackhole", net]);
        }
        run("ip", &["route", "add", "default", "via", "10.2.0.2"]);
        run("ip", &["route", "add", "default", "via", "fd02::2"]);
        for file in ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"] {
            std::fs::write(file, "1").expect("the namespace is ours");
        }
        kube_proxy.put();
        let upstream = |ip: &str, responder: &'static str| {
            let address = SocketAddr::from((ip.parse::<IpAddr>().expect("an address"), 53));
            within(OUTSIDE, move || {
                let answer = format!("{NAME}. 5 IN A {responder}\n");
                Upstream::at(address, move |_| Action::Reply(Says::answer(&answer)))
            })
            .join()
            .expect("an upstream starts")
        };
        let upstreams = UPSTREAMS.map(|(ip, responder)| upstream(ip, responder)).into();
        // Resolves neighbours before any measurement.
        for (ip, _) in UPSTREAMS {
            let address = SocketAddr::from((ip.parse::<IpAddr>().expect("an address"), 53));
            for place in [None, Some(POD)] {
                let reached = move || {
                    let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(250));
                    eventually("an upstream is reached", Duration::from_secs(5), || ask.try_of(address).ok());
                };
                match place {
                    Some(place) => within(place, reached).join().expect("it is reached"),
                    None => reached(),
                }
            }
        }
        Self { upstreams }
    }

    /// The upstream at this address.
    pub(crate) fn upstream(&self, ip: &str) -> &Upstream {
        let is_there = |upstream: &&Upstream| upstream.address().ip().to_string() == ip;
        self.upstreams.iter().find(is_there).expect("it was started")
    }

    /// Number of queries that upstreams received.
    pub(crate) fn asked(&self) -> usize {
        self.upstreams.iter().map(Upstream::total).sum()
    }

    /// Starts the server with the node's addresses.
    pub(crate) fn serve(&self, more: &[&'static str]) -> Server {
        self.serve_with(|options| more.iter().fold(options, |options, word| options.args([*word])))
    }

    /// Like [`Self::serve`], with another Corefile.
    #[allow(clippy::unused_self, reason = "without the machine it serves nobody")]
    pub(crate) fn serve_of(&self, corefile: &str, more: &[&'static str]) -> Server {
        let options = Options::default().subcommand(&["node", "run"]);
        Server::start_with(corefile, more.iter().fold(options, |options, word| options.args([*word])))
    }

    /// Like [`Self::serve`], with these options.
    pub(crate) fn serve_with(&self, how: impl FnOnce(Options) -> Options) -> Server {
        self.serve_corefile(COREFILE, how)
    }

    /// Like [`Self::serve_with`], with another Corefile.
    #[allow(clippy::unused_self, reason = "without the machine it serves nobody")]
    pub(crate) fn serve_corefile(&self, corefile: &str, how: impl FnOnce(Options) -> Options) -> Server {
        Server::start_with(corefile, how(Options::default().subcommand(&["node", "run"])))
    }
}

/// Drops the server's probes to this address until the chain `hang output` is flushed.
pub(crate) fn lose_probes_to(ip: &str) {
    run("nft", &["add table inet hang"]);
    run("nft", &["add chain inet hang output { type filter hook output priority 0; }"]);
    run("nft", &[&format!("add rule inet hang output meta mark 0x6c646e73 ip daddr {ip} drop")]);
}

/// Waits for READY; messages with sockets for systemd's store may precede it.
pub(crate) fn until_ready(notifications: &UnixDatagram) {
    let mut message = [0; 512];
    loop {
        let length = notifications.recv(&mut message).expect("READY arrives");
        if String::from_utf8_lossy(&message[..length]).contains("READY=1") {
            return;
        }
    }
}

pub(crate) const COREFILE: &str = "
.:53 {
    bind 169.254.10.10 10.96.0.20
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.96.0.10
}
.:53 {
    bind 169.254.10.11 fd10::11
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.3.0.2 fd03::2
}
";
const UPSTREAMS: [(&str, &str); 4] =
    [("10.2.0.2", CLUSTER), ("fd02::2", CLUSTER), ("10.3.0.2", PLAIN), ("fd03::2", PLAIN)];
