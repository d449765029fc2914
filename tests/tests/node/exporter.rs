//! Metrics at the port of production's exporter: complete responses and orderly closes, even with
//! clients that hang up early.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use tests::{Ask, Metrics, Options, Server, eventually, http_exchange, isolated, output, tool};

use super::lab::{CLUSTER, Lab, NAME};

/// The exporter still sends its whole page.
#[test]
fn exporter_after_thirty_aborted_scrapes() {
    isolated(|| {
        if !tool("exporter", "nft") || !tool("exporter", "curl") {
            return;
        }
        let _lab = Lab::new();
        let options = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        let server = Server::start_with(COREFILE, options);
        server.wait_for_log("queries to 169.254.10.11 are answered here", PATIENCE);
        let ask = Ask::new(NAME, "A");
        for _ in 0..1000 {
            assert_eq!(ask.of("169.254.10.10:53".parse().expect("an address")).short(), [CLUSTER]);
        }
        for n in 0..30 {
            let mut early = TcpStream::connect(EXPORTER).expect("it listens");
            match n % 3 {
                // Closes at once, within its request, or before the response.
                0 => {}
                1 => early.write_all(b"GET /metr").expect("it reads"),
                _ => early.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("it reads"),
            }
        }
        for _ in 0..5 {
            let mut curl = Command::new("curl");
            curl.args([
                "--silent",
                "--show-error",
                "--fail",
                "--noproxy",
                "*",
                "http://127.0.0.1:9353/metrics",
            ]);
            let got = output(curl, PATIENCE);
            // Exit code 56 would be a reset.
            assert_eq!(got.status.code(), Some(0), "{got:?}");
            assert_families(&Metrics::parse(&String::from_utf8_lossy(&got.stdout)));
        }
        let (head, page) = http_exchange(EXPORTER, "/metrics").expect("it answers");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        for line in ["content-type: text/plain; version=0.0.4", "connection: close"] {
            assert!(head.to_ascii_lowercase().lines().any(|own| own == line), "{line}\n{head}");
        }
        let families = page.lines().filter(|line| line.starts_with("# TYPE ")).count();
        assert_eq!(families, 6, "{page}");
        let (head, page) = http_exchange(EXPORTER, "/").expect("it answers");
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        assert_eq!(page, "404 Not Found - Metrics available at /metrics\n");
        // Bytes after the request are read, so that the close is no reset.
        let mut long = TcpStream::connect(EXPORTER).expect("it listens");
        long.set_read_timeout(Some(PATIENCE)).expect("it can be set");
        long.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("it reads");
        long.write_all(&[b'x'; 8192]).expect("it reads");
        let mut reply = String::new();
        long.read_to_string(&mut reply).expect("an end, no reset");
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
        // The port of `prometheus` has all of these families too.
        let all = eventually("the families", PATIENCE, || {
            let all = server.metrics(SocketAddr::from(([127, 0, 0, 1], 9253)));
            all.value("localdns_service_status", &[]).map(|_| all)
        });
        assert_families(&all);
        assert_eq!(all.value("localdns_lease_held", &[("address", "169.254.10.10")]), Some(1.0));
        assert!(all.count("coredns_dns_requests_total", &[]) >= 1000.0);
    });
}

#[test]
fn missing_address_is_reported() {
    isolated(|| {
        if !tool("exporter", "nft") {
            return;
        }
        let _lab = Lab::new();
        let _server = serve(ALONE, &[]);
        let (_, page) = http_exchange(EXPORTER, "/metrics").expect("it answers");
        let of_cluster = page.lines().filter(|line| line.starts_with("localdns_kubedns_forward_info{"));
        let metrics = Metrics::parse(&page);
        let labels = [("ip", "unknown"), ("block", "none"), ("status", "missing")];
        assert_eq!(of_cluster.count(), 1, "{page}");
        assert_eq!(metrics.value("localdns_kubedns_forward_info", &labels), Some(0.0), "{page}");
        let labels = [("ip", "10.96.0.10"), ("block", ".:53"), ("status", "ok")];
        assert_eq!(metrics.value("localdns_vnetdns_forward_info", &labels), Some(1.0), "{page}");
    });
}

/// The exporter listens where configured or not at all, and an occupied port stops nothing else.
#[test]
fn exporter_address_and_occupied_port() {
    isolated(|| {
        if !tool("exporter", "nft") {
            return;
        }
        let _lab = Lab::new();
        let refused = |at: SocketAddr| {
            TcpStream::connect(at).expect_err("no socket listens").kind() == ErrorKind::ConnectionRefused
        };
        let server = serve(ALONE, &["-exporter", "off"]);
        assert!(refused(EXPORTER));
        drop(server);
        let server = serve(ALONE, &["-exporter", "127.0.0.1:9400"]);
        let (head, page) = http_exchange(ELSEWHERE, "/metrics").expect("it answers");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(page.lines().filter(|line| line.starts_with("# TYPE ")).count(), 6, "{page}");
        assert!(refused(EXPORTER));
        drop(server);
        let _stranger = TcpListener::bind("0.0.0.0:9353").expect("no other process uses it");
        let server = serve(ALONE, &[]);
        let line = server.wait_for_log("Failed to start metrics handler: ", PATIENCE);
        assert!(line.contains(":9353") && line.contains("in use"), "{line}");
        assert_eq!(asked(), [CLUSTER]);
        let all = server.metrics(SocketAddr::from(([127, 0, 0, 1], 9253)));
        assert_eq!(all.value("localdns_service_status", &[("status", "active")]), Some(1.0));
        server.write_corefile(&ALONE.replace("prometheus", "nsid\n    prometheus"));
        server.signal("HUP");
        server.wait_for_log("Reloading complete", PATIENCE);
        assert_eq!(asked(), [CLUSTER]);
    });
}

fn serve(corefile: &str, flags: &[&'static str]) -> Server {
    let options = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
    let server =
        Server::start_with(corefile, flags.iter().fold(options, |options, flag| options.args([*flag])));
    server.wait_for_log("queries to 169.254.10.10 are answered here", PATIENCE);
    server
}

fn asked() -> Vec<String> {
    let reply = Ask::new(NAME, "A").of("169.254.10.10:53".parse().expect("an address"));
    reply.short().into_iter().map(str::to_owned).collect()
}

fn assert_families(metrics: &Metrics) {
    assert_eq!(metrics.value("localdns_service_status", &[("status", "active")]), Some(1.0));
    assert!(metrics.count("localdns_memory_usage_bytes", &[]) > 0.0);
    assert!(metrics.count("localdns_cpu_usage_seconds_total", &[]) > 0.0);
    let looked = metrics.count("localdns_metrics_last_update_timestamp_seconds", &[]);
    let now: f64 = tests::run("date", &["+%s"]).trim().parse().expect("seconds");
    assert!((-1.0..120.0).contains(&(now - looked)), "{looked}");
    for (family, ip, block) in [
        ("localdns_vnetdns_forward_info", "10.96.0.10", ".:53"),
        ("localdns_kubedns_forward_info", "10.3.0.2", ".:53"),
        ("localdns_kubedns_forward_info", "10.96.0.10", "cluster.local:53"),
    ] {
        let labels = [("ip", ip), ("block", block), ("status", "ok")];
        assert_eq!(metrics.value(family, &labels), Some(1.0), "{family} {labels:?}");
    }
}

const EXPORTER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9353);
const ELSEWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9400);
const PATIENCE: Duration = Duration::from_secs(10);
const ALONE: &str = "
.:53 {
    bind 169.254.10.10
    forward . 10.96.0.10
    prometheus :9253
}
";
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    forward . 10.96.0.10
    prometheus :9253
}
.:53 {
    bind 169.254.10.11
    forward . 10.3.0.2
}
cluster.local:53 {
    bind 169.254.10.11
    forward . 10.96.0.10
}
";
