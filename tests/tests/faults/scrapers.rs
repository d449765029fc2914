//! Scrapers that overload the admin server.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tests::{Ask, Server, eventually, fresh_ip, http_get, http_reply, http_request, now, port, steadily};

const SCRAPERS: usize = 120;
const BLOCKS: usize = 200;
/// Pages that a client requests before it reads any.
const AHEAD: usize = 4;

/// TCP clients do not wait for the metrics pages of others.
#[test]
fn slow_scrapers_delay_no_client() {
    steadily(|| {
        let (server, at, page) = with_large_page();
        let (stop, read) = (AtomicBool::new(false), AtomicUsize::new(0));
        let slowest = thread::scope(|scope| {
            for _ in 0..SCRAPERS {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        // A connection that is closed, or waits too long, is replaced.
                        drop(pipeline(page, &stop, &read));
                    }
                });
            }
            let _stop = AtTheEnd(&stop);
            eventually("a page for as many scrapers as there are", Duration::from_secs(60), || {
                (read.load(Relaxed) >= SCRAPERS).then_some(())
            });
            let ask = || {
                let began = now();
                assert_eq!(Ask::new("a.z1.example", "A").tcp().of(at).short(), ["192.0.2.1"]);
                began.elapsed()
            };
            (0..30).map(|_| ask()).max()
        });
        drop(server);
        let slowest = slowest.expect("there were queries");
        assert!(slowest < Duration::from_millis(500), "a query over TCP took {slowest:?}");
    });
}

/// A scraper gets its page each time, although idle connections are opened again and again.
#[test]
fn scraper_beside_idle_connections() {
    for (what, half) in [("nothing sent", ""), ("half a request sent", "GET /metrics HTTP/1.1\r\nHost:")] {
        let (server, at, page) = with_large_page();
        let (stop, again, turn) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(()));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut idle: Vec<Option<TcpStream>> = (0..IDLE).map(|_| None).collect();
                while !stop.load(Relaxed) {
                    for place in &mut idle {
                        if place.as_ref().is_none_or(is_closed) {
                            let _turn = turn.lock();
                            *place = sit(page, half).ok();
                            again.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
            let _stop = AtTheEnd(&stop);
            for _ in 0..SCRAPES {
                // From the same address as the others: only its complete request distinguishes it.
                let asked = {
                    let _turn = turn.lock();
                    http_request(page, "/metrics")
                };
                let before = again.load(Relaxed);
                let (head, _) =
                    asked.and_then(http_reply).unwrap_or_else(|error| panic!("{what}: {error:#}"));
                assert!(head.starts_with("HTTP/1.1 200"), "{what}: {head}");
                eventually("others come again", Duration::from_secs(10), || {
                    (again.load(Relaxed) > before + IDLE).then_some(())
                });
            }
        });
        assert_eq!(Ask::new("a.z1.example", "A").of(at).status(), "NOERROR");
        drop(server);
    }
}

/// More than there are slots, so they evict each other all the time.
const IDLE: usize = 140;
const SCRAPES: usize = 5;
/// The limit in docs/limits.md.
const SLOTS: usize = 128;

fn sit(page: SocketAddr, sent: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(page)?;
    stream.set_nonblocking(true)?;
    stream.write_all(sent.as_bytes())?;
    Ok(stream)
}

fn is_closed(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// A scraper is answered beside clients that send queries without end.
#[test]
fn scraper_beside_busy_clients() {
    let (server, _, page) = with_large_page();
    let (stop, read) = (AtomicBool::new(false), AtomicUsize::new(0));
    let many = format!("GET / HTTP/1.1\r\nHost: {page}\r\n\r\n").repeat(100);
    let flood = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(page)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        while !stop.load(Relaxed) {
            stream.write_all(many.as_bytes())?;
            read.fetch_add(stream.read(&mut [0; 64 * 1024])?, Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        for _ in 0..SLOTS {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    // A connection that is closed is replaced.
                    drop(flood());
                }
            });
        }
        let _stop = AtTheEnd(&stop);
        eventually("the flood", Duration::from_secs(10), || (read.load(Relaxed) > 0).then_some(()));
        for _ in 0..SCRAPES {
            let reply = http_get(page, "/metrics").unwrap_or_else(|error| panic!("{error:#}"));
            assert_eq!(reply.0, 200);
        }
    });
    drop(server);
}

#[test]
fn scraper_that_never_reads_is_reset() {
    steadily(|| {
        let (server, at, page) = with_large_page();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {page}\r\n\r\n");
        let began = now();
        let silent = sit(page, &request.repeat(AHEAD)).expect("the server accepts");
        let error = eventually("the end of a connection that is not read", Duration::from_secs(9), || {
            silent.take_error().expect("a socket can be asked")
        });
        // The server resets the connection, so the kernel drops its send buffer.
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
        assert_eq!(http_get(page, "/metrics").expect("others are served").0, 200);
        assert_eq!(Ask::new("a.z1.example", "A").of(at).status(), "NOERROR");
        drop(server);
    });
}

/// A server with a page above both ends' socket buffers: its DNS address, and its admin address.
fn with_large_page() -> (Server, SocketAddr, SocketAddr) {
    let (ip, port) = (fresh_ip(), port());
    let (at, page) = (SocketAddr::from((ip, port)), SocketAddr::from((ip, 9153)));
    let block = |n| {
        format!(
            "z{n}.example:{port} {{\nbind {ip}\nprometheus {page}\nhosts {{\n192.0.2.1 a.z{n}.example\n}}\n}}\n"
        )
    };
    let server = Server::start(&(0..BLOCKS).map(block).collect::<String>());
    for n in 0..BLOCKS {
        assert_eq!(Ask::new(&format!("a.z{n}.example"), "A").of(at).short(), ["192.0.2.1"]);
    }
    (server, at, page)
}

/// Requests pages, several ahead, and counts the received ones.
fn pipeline(page: SocketAddr, stop: &AtomicBool, read: &AtomicUsize) -> std::io::Result<()> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {page}\r\n\r\n");
    let mut stream = TcpStream::connect(page)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(request.repeat(AHEAD).as_bytes())?;
    let mut octets = vec![0; 64 * 1024];
    let mut tail = Vec::new();
    while !stop.load(Relaxed) {
        let length = stream.read(&mut octets)?;
        if length == 0 {
            return Ok(());
        }
        tail.extend_from_slice(&octets[..length]);
        let pages = tail.windows(STATUS.len()).filter(|part| *part == STATUS).count();
        read.fetch_add(pages, Relaxed);
        // A status line may be split between two reads.
        tail.drain(..tail.len() - (STATUS.len() - 1).min(tail.len()));
        stream.write_all(request.repeat(pages).as_bytes())?;
    }
    Ok(())
}

const STATUS: &[u8] = b"HTTP/1.1 200";

struct AtTheEnd<'f>(&'f AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
