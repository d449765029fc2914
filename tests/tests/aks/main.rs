//! Acceptance tests of the real binary with the unmodified Corefile of AKS LocalDNS. Each test has
//! a private network with the production addresses, where the mock upstreams are 168.63.129.16 (the
//! platform's resolver) and 10.0.0.10 (the cluster's).

mod answers;
mod crowd;
mod load;
mod start;
mod upstreams;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tests::{Action, Asked, Options, Says, Server, Upstream, add_address, fixtures, publish};

const VNET: &str = "168.63.129.16";
const CLUSTER: &str = "10.0.0.10";
const HOSTS: &str = "/etc/localdns/hosts";
const SOA: &str = "example. 60 IN SOA ns.example. host.example. 1 7200 900 86400 30";
const NODE: &str = "169.254.10.10";
const PODS: &str = "169.254.10.11";
const LISTENERS: [&str; 2] = [NODE, PODS];

/// A node with its two mock upstreams and the server.
struct Node {
    vnet: Upstream,
    cluster: Upstream,
    server: Server,
}

impl Node {
    /// Starts the production Corefile with this hosts file.
    fn start(hosts: &str) -> Self {
        Self::start_on(hosts, fixtures::AKS)
    }

    fn start_on(hosts: &str, corefile: &str) -> Self {
        Self::start_with(hosts, corefile, Options::default().cwd(Path::new("/")))
    }

    fn start_with(hosts: &str, corefile: &str, options: Options) -> Self {
        for ip in [NODE, PODS, VNET, CLUSTER] {
            add_address(&format!("{ip}/32"));
        }
        Self::start_as_it_is(hosts, corefile, options)
    }

    /// Starts without adding addresses.
    fn start_here(hosts: &str, corefile: &str) -> Self {
        Self::start_as_it_is(hosts, corefile, Options::default().cwd(Path::new("/")))
    }

    fn start_as_it_is(hosts: &str, corefile: &str, options: Options) -> Self {
        fs::create_dir_all("/etc/localdns").expect("/etc is this test's own");
        publish(Path::new(HOSTS), hosts);
        Self {
            vnet: Upstream::at(at(VNET), |asked| answer_all(asked, 1)),
            cluster: Upstream::at(at(CLUSTER), |asked| answer_all(asked, 2)),
            server: Server::start_with(corefile, options),
        }
    }
}

/// Answers every A query outside of `test.` with an address that ends with `last`.
fn answer_all(asked: &Asked, last: u8) -> Action {
    match asked.rtype {
        _ if asked.name.ends_with(".test.") => Action::nxdomain(SOA),
        1 => Action::answer(&format!("{} 300 IN A 198.51.100.{last}", asked.name)),
        _ => Action::Reply(Says::nodata(SOA)),
    }
}

fn at(ip: &str) -> SocketAddr {
    (ip.parse::<Ipv4Addr>().expect("a constant address"), 53).into()
}

fn at9253() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 9253).into()
}

fn dotted(name: &str) -> String {
    format!("{name}.")
}
