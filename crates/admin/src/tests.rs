//! The admin server over real sockets on the loopback address.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;

use super::connection::Timeouts;
use super::connection_table::CONNECTIONS;
use super::*;
use crate::AdminAddress;
use logging::captured_log::CapturedLog;
use logging::{Format, Logger};
use metrics::{Families, Metric, MetricSource};

struct Scene {
    server: AdminServer,
    ready: Arc<AtomicBool>,
    logger: Logger,
    log: CapturedLog,
    /// Last, so that it ends after the server.
    _runtime: Runtime,
}

impl Scene {
    fn new() -> Self {
        Self::with_timeouts(Timeouts::default())
    }

    fn with_timeouts(timeouts: Timeouts) -> Self {
        Self::of_lines(0, timeouts)
    }

    /// With so many lines more on /metrics.
    fn of_lines(more: usize, timeouts: Timeouts) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (logger, log) = CapturedLog::logger(Format::Text);
        let ready = Arc::new(AtomicBool::new(true));
        let is_ready = ready.clone();
        let content = PageSources {
            metrics: Box::new(move |native| {
                let mut families = Families::new(native);
                families.gauge(Metric { name: "up", help: "U." }, &[], 1.0);
                for n in 0..more {
                    families.gauge(Metric { name: "more", help: "M." }, &[("n", &n.to_string())], 1.0);
                }
                families.into_messages()
            }),
            not_ready: Box::new(move || {
                if is_ready.load(Ordering::Relaxed) {
                    vec![]
                } else {
                    vec!["hosts".into(), "kubernetes".into()]
                }
            }),
            status: Some(Box::new(|| b"{}\n".to_vec())),
            exporter: Some(Box::new(|| b"exported 1\n".to_vec())),
        };
        let server = AdminServer::with_timeouts(runtime.handle().clone(), content, logger.clone(), timeouts);
        Self { server, ready, logger, log, _runtime: runtime }
    }

    fn serve(&self, plan: &ServedPages) {
        self.server.commit(self.server.prepare(plan.clone()).unwrap());
    }

    fn at(&self, address: AdminAddress) -> SocketAddr {
        let all = self.server.addresses();
        all.iter().find(|(planned, _)| *planned == address).expect("it is served").1
    }
}

/// Each call another address, so that port 0 can stand in several places of a plan.
fn place(last: u8) -> AdminAddress {
    AdminAddress { host: Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))), port: 0 }
}

fn everything(at: AdminAddress) -> ServedPages {
    let mut plan = ServedPages::default();
    plan.metrics(at);
    plan.health(at);
    plan.ready(at);
    plan
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn head(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n")
}

/// Status, content type and body.
fn get(to: SocketAddr, path: &str) -> (u16, String, String) {
    let mut stream = connect(to);
    stream.write_all(head("GET", path, "Connection: close\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), kind.to_owned(), body.to_owned())
}

/// One exchange on a connection that stays, body `OK`.
fn ask_again(stream: &mut TcpStream) {
    stream.write_all(head("GET", "/health", "").as_bytes()).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n\r\nOK") {
        let mut part = [0; 512];
        let read = stream.read(&mut part).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&part[..read]);
    }
}

#[test]
fn pages() {
    let scene = Scene::new();
    scene.serve(&everything(place(1)));
    let address = scene.at(place(1));
    let plain = "text/plain; charset=utf-8";
    for (path, status, kind, body) in [
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", UP),
        ("/health", 200, plain, "OK"),
        ("/health?x=1", 200, plain, "OK"),
        ("/ready", 200, plain, "OK"),
        ("/health/", 404, plain, "404 page not found\n"),
        ("/", 404, plain, "404 page not found\n"),
    ] {
        assert_eq!(get(address, path), (status, kind.to_owned(), body.to_owned()), "{path}");
    }
    scene.ready.store(false, Ordering::Relaxed);
    assert_eq!(get(address, "/ready"), (503, plain.to_owned(), "hosts,kubernetes".to_owned()));
    assert_eq!(
        scene.log.read(&scene.logger),
        "[INFO] plugin/ready: Plugins not ready: \"hosts,kubernetes\"\n"
    );
    assert_eq!(get(address, "/health").2, "OK");
}

#[test]
fn readiness_changes_are_logged() {
    let scene = Scene::new();
    scene.serve(&everything(place(1)));
    let address = scene.at(place(1));
    const WAITS: &str = "[INFO] plugin/ready: Plugins not ready: \"hosts,kubernetes\"\n";
    for (ready, status, logged) in [
        (false, 503, WAITS),
        (false, 503, ""),
        (true, 200, ""),
        (true, 200, ""),
        (false, 503, WAITS),
        (false, 503, ""),
    ] {
        scene.ready.store(ready, Ordering::Relaxed);
        assert_eq!(get(address, "/ready").0, status);
        assert_eq!(scene.log.read(&scene.logger), logged);
    }
}

#[test]
fn exporter_address() {
    let scene = Scene::new();
    let mut plan = ServedPages::default();
    plan.exporter(place(1));
    plan.exporter(place(2));
    plan.metrics(place(2));
    scene.serve(&plan);
    let absent = "404 Not Found - Metrics available at /metrics\n";
    let plain = "text/plain; charset=utf-8";
    for (at, path, status, kind, body) in [
        (1, "/metrics", 200, "text/plain; version=0.0.4", "exported 1\n"),
        (1, "/", 404, plain, absent),
        (1, "/status", 404, plain, absent),
        (2, "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", UP),
        (2, "/status", 200, "application/json", "{}\n"),
        (2, "/", 404, plain, "404 page not found\n"),
    ] {
        let expected = (status, kind.to_owned(), body.to_owned());
        assert_eq!(get(scene.at(place(at)), path), expected, "{at} {path}");
    }
}

#[test]
fn pages_by_address() {
    let scene = Scene::new();
    let mut plan = ServedPages::default();
    plan.health(place(1));
    plan.ready(place(2));
    plan.ready(place(2));
    scene.serve(&plan);
    assert_eq!(scene.server.addresses().len(), 2);
    for (at, path, status) in [
        (1, "/health", 200),
        (1, "/ready", 404),
        (1, "/metrics", 404),
        (2, "/health", 404),
        (2, "/ready", 200),
    ] {
        assert_eq!(get(scene.at(place(at)), path).0, status, "{at} {path}");
    }
}

#[test]
fn reload_keeps_connections() {
    let scene = Scene::new();
    let mut plan = everything(place(1));
    plan.ready(place(2));
    scene.serve(&plan);
    let (stays, goes) = (scene.at(place(1)), scene.at(place(2)));
    let mut kept = connect(stays);
    ask_again(&mut kept);

    let mut plan = ServedPages::default();
    plan.health(place(1));
    plan.metrics(place(3));
    let prepared = scene.server.prepare(plan.clone()).unwrap();
    assert_eq!(get(goes, "/ready").0, 200, "nothing changes before the commit");
    drop(prepared);
    assert_eq!(get(stays, "/ready").0, 200, "nor without a commit");

    scene.serve(&plan);
    ask_again(&mut kept);
    assert_eq!(scene.at(place(1)), stays);
    assert_eq!(get(stays, "/ready").0, 404);
    assert_eq!(get(scene.at(place(3)), "/metrics").0, 200);
    // The listener is closed once its task has noticed.
    while TcpStream::connect(goes).is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn removed_address_closes_gracefully() {
    let scene = Scene::new();
    scene.serve(&everything(place(1)));
    let mut kept = connect(scene.at(place(1)));
    ask_again(&mut kept);
    scene.serve(&ServedPages::default());
    assert_eq!(kept.read(&mut [0; 16]).unwrap(), 0);
    assert!(scene.server.addresses().is_empty());
}

#[test]
fn address_in_use_fails_for_health() {
    let scene = Scene::new();
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = foreign.local_addr().unwrap().port();
    let taken = AdminAddress { host: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port };
    let mut plan = ServedPages::default();
    plan.metrics(taken);
    plan.ready(taken);
    plan.health(place(1));
    scene.serve(&plan);
    let holder = node::port_owner(foreign.local_addr().unwrap(), node::SocketKind::Tcp).unwrap();
    let reason = format!(
        "listen tcp 127.0.0.1:{port}: bind: address already in use by {holder}; stop that process or choose another address"
    );
    assert_eq!(
        scene.log.read(&scene.logger),
        format!(
            "[ERROR] Failed to start metrics handler: {reason}\n\
             [ERROR] plugin/ready: Failed to start ready handler: {reason}\n"
        )
    );
    assert_eq!(get(scene.at(place(1)), "/health").0, 200);
    plan.health(taken);
    assert_eq!(scene.server.prepare(plan.clone()).unwrap_err().to_string(), reason);
    // The next plan tries again.
    drop(foreign);
    scene.serve(&plan);
    assert_eq!(get(scene.at(taken), "/metrics").0, 200);
}

#[test]
fn stop_ready() {
    let scene = Scene::new();
    let mut plan = everything(place(1));
    plan.ready(place(2));
    scene.serve(&plan);
    let only_ready = scene.at(place(2));
    scene.server.stop_ready();
    assert_eq!(get(scene.at(place(1)), "/health").0, 200);
    assert_eq!(get(scene.at(place(1)), "/ready").0, 404);
    while TcpStream::connect(only_ready).is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn excess_input_does_not_lose_the_reply() {
    let scene = Scene::new();
    scene.serve(&everything(place(1)));
    let body = vec![b'x'; 48 * 1024];
    for request in [
        head("POST", "/health", &format!("Connection: close\r\nContent-Length: {}\r\n", body.len())),
        head("GET", "/health", "Connection: close\r\n"),
        "no http at all\r\n\r\n".to_owned(),
    ] {
        let mut stream = connect(scene.at(place(1)));
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap_or_else(|error| panic!("{request:.20}: {error}"));
        assert!(reply.starts_with("HTTP/1.1 200") || reply.starts_with("HTTP/1.1 400"), "{reply}");
    }
}

#[test]
fn half_closed_client_gets_its_reply() {
    let scene = Scene::new();
    scene.serve(&everything(place(1)));
    let mut stream = connect(scene.at(place(1)));
    stream.write_all(head("GET", "/health", "").as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.ends_with("\r\n\r\nOK"), "{reply}");
}

#[test]
fn silent_client_times_out() {
    let short = Duration::from_millis(50);
    let scene = Scene::with_timeouts(Timeouts { head: short, ..Timeouts::default() });
    scene.serve(&everything(place(1)));
    for start in ["", "GET /hea"] {
        let mut stream = connect(scene.at(place(1)));
        stream.write_all(start.as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        assert!(!reply.starts_with(b"HTTP/1.1 200"));
    }
    let mut stream = connect(scene.at(place(1)));
    ask_again(&mut stream);
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn connection_life_is_bounded() {
    let scene = Scene::with_timeouts(Timeouts { life: Duration::from_millis(50), ..Timeouts::default() });
    scene.serve(&everything(place(1)));
    let mut stream = connect(scene.at(place(1)));
    let mut rounds = 0;
    loop {
        if stream.write_all(head("GET", "/health", "").as_bytes()).is_err() {
            break;
        }
        if !matches!(stream.read(&mut [0; 1024]), Ok(1..)) {
            break;
        }
        rounds += 1;
    }
    assert!(rounds > 0);
}

#[test]
fn idle_connection_is_evicted() {
    let scene = Scene::new();
    scene.serve(&everything(place(1)));
    let address = scene.at(place(1));
    let mut sitting: Vec<TcpStream> = (0..CONNECTIONS + 1).map(|_| connect(address)).collect();
    // Either a reset or an end: no request was sent on it.
    assert!(!matches!(sitting[0].read(&mut [0; 16]), Ok(1..)));
    ask_again(sitting.last_mut().unwrap());
    assert_eq!(get(address, "/health").0, 200);
}

#[test]
fn stalled_reader_is_reset() {
    let timeouts = Timeouts { read: Duration::from_millis(50), ..Timeouts::default() };
    // More than the kernel takes at both ends.
    let scene = Scene::of_lines(100_000, timeouts);
    scene.serve(&everything(place(1)));
    let mut stream = connect(scene.at(place(1)));
    stream.write_all(head("GET", "/metrics", "").as_bytes()).unwrap();
    // Nothing is read until the server has given up; what it had written goes with the connection.
    let reset = loop {
        if let Some(error) = stream.take_error().unwrap() {
            break error;
        }
        std::thread::yield_now();
    };
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn early_close() {
    let scene = Scene::new();
    scene.serve(&everything(place(1)));
    let address = scene.at(place(1));
    for _ in 0..30 {
        connect(address).write_all(head("GET", "/metrics", "").as_bytes()).unwrap();
    }
    assert_eq!(get(address, "/metrics").2, UP);
}

#[test]
fn self_probe_metrics_from_the_start() {
    let scene = Scene::new();
    let mut families = Families::default();
    scene.server.health_probe().collect(&mut families);
    let printed = format!("{families:?}");
    assert!(printed.contains("coredns_health_request_duration_seconds"), "{printed}");
    assert!(printed.contains("coredns_health_request_failures_total"), "{printed}");
}

const UP: &str = "# HELP up U.\n# TYPE up gauge\nup 1\n";
