//! Requests this process's own health page every second, as CoreDNS does, to detect overload.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use corefile::go_values::format_duration;
use metrics::histogram::{Counter, Durations};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use logging::Logger;
use metrics::{Families, MetricSource, names};

/// Durations and failures of requests for our own `/health`, over all addresses that have it.
#[derive(Debug)]
pub struct HealthProbe {
    logger: Logger,
    durations: Durations<5>,
    failures: Counter,
}

impl HealthProbe {
    pub(super) fn new(logger: Logger) -> Self {
        Self { logger, durations: Durations::new(&BOUNDS), failures: Counter::default() }
    }

    /// Requests `/health` at `local` every second, forever.
    pub(super) async fn run(self: Arc<Self>, local: SocketAddr) {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.tick().await;
        let target = reachable(local);
        let url = format!("http://{target}/health");
        let mut kept = None;
        loop {
            tick.tick().await;
            let start = clock::now();
            let asked = timeout(TIMEOUT, request(&mut kept, target)).await;
            let outcome = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            if outcome.is_err() {
                kept = None;
            }
            self.record(&url, outcome, clock::now().saturating_duration_since(start));
        }
    }

    fn record(&self, url: &str, outcome: io::Result<()>, took: Duration) {
        self.durations.observe(took);
        if let Err(error) = outcome {
            self.failures.add_shared(1);
            self.logger.warning(Some("health"), &format!("Local health request to {url:?} failed: {error}"));
        } else if took > SLOW {
            let took = format_duration(took);
            let message = format!("Local health request to {url:?} took more than 1s: {took}");
            self.logger.warning(Some("health"), &message);
        }
    }
}

impl MetricSource for HealthProbe {
    fn collect(&self, into: &mut Families) {
        into.durations(names::HEALTH_REQUEST_DURATION, &[], &self.durations);
        into.counter(names::HEALTH_REQUEST_FAILURES, &[], self.failures.get() as f64);
    }
}

/// Sends a request over the kept connection, or over a new one if there is none or the server has closed it.
async fn request(kept: &mut Option<TcpStream>, target: SocketAddr) -> io::Result<()> {
    if let Some(mut stream) = kept.take()
        && get(&mut stream, target).await.is_ok()
    {
        *kept = Some(stream);
        return Ok(());
    }
    let mut stream = TcpStream::connect(target).await?;
    get(&mut stream, target).await?;
    *kept = Some(stream);
    Ok(())
}

/// One exchange; the reply is `OK` with a short head, so that one buffer holds it.
async fn get(stream: &mut TcpStream, target: SocketAddr) -> io::Result<()> {
    stream.write_all(format!("GET /health HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await?;
    let mut reply = [0; 1024];
    let mut length = 0;
    loop {
        let read = stream.read(&mut reply[length..]).await?;
        length += read;
        if read == 0 || !reply[..length].starts_with(&STATUS[..length.min(STATUS.len())]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if reply[..length].ends_with(b"\r\n\r\nOK") {
            return Ok(());
        }
    }
}

/// The address to connect to: loopback for a wildcard.
fn reachable(local: SocketAddr) -> SocketAddr {
    let ip = match local.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, local.port())
}

const STATUS: &[u8] = b"HTTP/1.1 200";
/// Upper bounds in nanoseconds, as CoreDNS has them.
const BOUNDS: [u64; 5] = [250_000, 2_500_000, 25_000_000, 250_000_000, 2_500_000_000];
const INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(3);
const SLOW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use logging::captured_log::CapturedLog;
    use logging::logger::Format;
    use tokio::net::TcpListener;
    use tokio::runtime;

    /// A valid start of a header that never ends.
    const LONG: [u8; 2000] = {
        let mut reply = [b'x'; 2000];
        let (start, _) = reply.split_at_mut(15);
        start.copy_from_slice(b"HTTP/1.1 200 OK");
        reply
    };
    const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK";

    /// Answers each connection with these replies, one for each read, then closes it.
    async fn scripted(listener: TcpListener, connections: &[&[&[u8]]]) {
        for replies in connections {
            let (mut stream, _) = listener.accept().await.unwrap();
            for reply in *replies {
                assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                stream.write_all(reply).await.unwrap();
            }
        }
    }

    fn asked(connections: &'static [&'static [&'static [u8]]], times: usize) -> Vec<bool> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = listener.local_addr().unwrap();
            let server = tokio::spawn(scripted(listener, connections));
            let mut kept = None;
            let mut outcomes = Vec::new();
            for _ in 0..times {
                outcomes.push(request(&mut kept, target).await.is_ok());
            }
            server.await.unwrap();
            outcomes
        })
    }

    #[test]
    fn connection_is_reused_or_replaced() {
        assert_eq!(asked(&[&[REPLY, REPLY], &[REPLY]], 3), [true; 3]);
    }

    #[test]
    fn failures() {
        assert_eq!(asked(&[&[b"HTTP/1.1 503 no\r\n\r\nOK"]], 1), [false]);
        assert_eq!(asked(&[&[b"HTTP/1.1 200 OK\r\n\r\n"]], 1), [false]);
        assert_eq!(asked(&[&[&[b'x'; 5000]]], 1), [false]);
        assert_eq!(asked(&[&[&LONG]], 1), [false]);
    }

    #[test]
    fn outcomes_are_counted_and_logged() {
        let (logger, log) = CapturedLog::logger(Format::Text);
        let probe = HealthProbe::new(logger.clone());
        let url = "http://127.0.0.1:8080/health";
        for (outcome, took, line) in [
            (Ok(()), 0, ""),
            (Ok(()), 25, ""),
            (Ok(()), 26, ""),
            (
                Ok(()),
                1500,
                "[WARNING] plugin/health: Local health request to \"http://127.0.0.1:8080/health\" took more than 1s: 1.5s\n",
            ),
            (
                Err(io::ErrorKind::ConnectionRefused.into()),
                3000,
                "[WARNING] plugin/health: Local health request to \"http://127.0.0.1:8080/health\" failed: connection refused\n",
            ),
        ] {
            probe.record(url, outcome, Duration::from_millis(took));
            assert_eq!(log.read(&logger), line);
        }
        assert_eq!(probe.durations.counts(), [1, 0, 1, 1, 1, 1]);
        assert_eq!(probe.failures.get(), 1);
        assert_eq!(probe.durations.sum(), 4.551);
    }
}
