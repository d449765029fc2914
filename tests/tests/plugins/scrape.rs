//! Prometheus itself scrapes `/metrics` in the formats that it requests.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tests::{Dns, Metrics, eventually, http_get, isolated, tempdir, tool};

#[test]
fn prometheus_reads_openmetrics_and_protobuf() {
    let test = "prometheus_reads_openmetrics_and_protobuf";
    isolated(|| {
        if !tool(test, "prometheus") {
            return;
        }
        // Not the address in resolv.conf: Prometheus looks up its host's name, which would be
        // counted.
        let dns = Dns::start_on("127.0.0.2".parse().unwrap(), "prometheus 127.0.0.1:9153\nwhoami");
        for _ in 0..3 {
            dns.ask("a.example");
        }
        Metrics::after_queries(([127, 0, 0, 1], 9153).into(), 3);
        let count = "coredns_dns_request_duration_seconds_count";
        let native = "histogram_count(coredns_dns_request_duration_seconds)";
        for (more, count) in [(&[][..], count), (&["--enable-feature=native-histograms"][..], native)] {
            let prometheus = Prometheus::start(more);
            let rows =
                [("up", "1"), ("coredns_build_info", "1"), ("coredns_dns_requests_total", "3"), (count, "3")];
            for (query, value) in rows {
                prometheus.evaluates_to(query, value);
            }
            if count == native {
                // Queries counted before the first scrape with native buckets are in their classic
                // bucket, up to 100 bytes.
                prometheus.evaluates_to("histogram_fraction(0,64,coredns_dns_request_size_bytes)", "0");
                for _ in 0..3 {
                    dns.ask("a.example");
                }
                prometheus.evaluates_to(native, "6");
                prometheus.evaluates_to("histogram_fraction(0,64,coredns_dns_request_size_bytes)", "0.5");
                prometheus.evaluates_to("histogram_fraction(0,64,coredns_dns_response_size_bytes)", "0");
                prometheus.evaluates_to("histogram_fraction(0,65,coredns_dns_request_duration_seconds)", "1");
            }
            prometheus.knows("coredns_build_info", "gauge");
            prometheus.knows("coredns_dns_request_duration_seconds", "histogram");
        }
    });
}

/// Prometheus; by default it prefers OpenMetrics, with native histograms delimited protobuf.
struct Prometheus {
    child: Child,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(more: &[&str]) -> Self {
        let directory = tempdir();
        let config = directory.path().join("prometheus.yml");
        fs::write(&config, CONFIG).expect("the directory is ours");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
        command.arg(format!("--web.listen-address={}", Self::at())).args(more);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { child: child.expect("it is installed"), _directory: directory }
    }

    fn at() -> SocketAddr {
        ([127, 0, 0, 1], 9090).into()
    }

    /// Waits until a query returns one series with this value.
    fn evaluates_to(&self, query: &str, value: &str) {
        let want = format!(",\"{value}\"]}}]}}}}");
        let reply = RefCell::new(String::new());
        let seen = catch_unwind(AssertUnwindSafe(|| {
            eventually(query, PATIENCE, || {
                let path = format!("/api/v1/query?query={query}");
                *reply.borrow_mut() = http_get(Self::at(), &path).ok()?.1;
                reply.borrow().contains(&want).then_some(())
            });
        }));
        assert!(seen.is_ok(), "{query} is not {value}: {}", reply.borrow());
    }

    fn knows(&self, family: &str, kind: &str) {
        let (_, metadata) =
            http_get(Self::at(), &format!("/api/v1/metadata?metric={family}")).expect("it answers");
        assert!(metadata.contains(&format!("\"type\":\"{kind}\"")), "{metadata}");
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const CONFIG: &str = "
global:
  scrape_interval: 1s
scrape_configs:
- job_name: localdns
  static_configs:
  - targets: ['127.0.0.1:9153']
";
const PATIENCE: Duration = Duration::from_secs(20);
