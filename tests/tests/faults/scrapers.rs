//! Scrapers that ask for more than anybody should.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tests::{Ask, Server, eventually, fresh_ip, now, port, steadily};

const SCRAPERS: usize = 120;
const BLOCKS: usize = 200;

#[test]
fn tcp_clients_do_not_wait_for_the_pages_of_others() {
    steadily(|| {
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
        let (stop, read) = (AtomicBool::new(false), AtomicUsize::new(0));
        let slowest = thread::scope(|scope| {
            for _ in 0..SCRAPERS {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        // One that is cut off, or waits for long, begins anew.
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

/// Asks for page after page, several ahead, and counts those that came.
fn pipeline(page: SocketAddr, stop: &AtomicBool, read: &AtomicUsize) -> std::io::Result<()> {
    const AHEAD: usize = 4;
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
        // A status may be cut in two.
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
