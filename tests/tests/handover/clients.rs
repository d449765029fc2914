//! Clients that count.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tests::{Ask, Message, Stream, eventually, now};

/// What `hosts` answers, and the upstream.
pub(crate) const LOCAL: &str = "192.0.2.1";
pub(crate) const REMOTE: &str = "192.0.2.2";

/// Queries over UDP at a steady rate, every second one a miss, and connections over TCP, one for each query.
pub(crate) struct Clients {
    streams: Vec<Stream>,
    tcp: Vec<JoinHandle<(usize, Vec<String>)>>,
    over_tcp: Vec<Arc<AtomicUsize>>,
    stop: Arc<AtomicBool>,
}

impl Clients {
    pub(crate) fn start(at: SocketAddr) -> Self {
        // Ports of their own, so that every socket has clients.
        let streams = (0..8).map(|stream| udp(at, stream)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let over_tcp: Vec<_> = (0..2).map(|_| Arc::<AtomicUsize>::default()).collect();
        let tcp = over_tcp.iter().enumerate();
        let tcp = tcp.map(|(client, asked)| tcp_client(at, client, asked.clone(), stop.clone())).collect();
        Self { streams, tcp, over_tcp, stop }
    }

    /// How many queries went out over UDP.
    pub(crate) fn sent(&self) -> usize {
        self.streams.iter().map(Stream::sent).sum()
    }

    /// Ends them, and asserts that every query got one right reply.
    pub(crate) fn finish(self) {
        eventually("queries over TCP", Duration::from_secs(10), || {
            self.over_tcp.iter().all(|asked| asked.load(Ordering::Relaxed) > 10).then_some(())
        });
        self.stop.store(true, Ordering::Relaxed);
        for stream in self.streams {
            stream.finish(Duration::from_secs(5)).assert_clean();
        }
        for client in self.tcp {
            let (asked, failed) = client.join().expect("a client does not panic");
            assert!(failed.is_empty(), "{} of {asked} over TCP: {:?}", failed.len(), failed.first());
        }
    }
}

fn udp(at: SocketAddr, stream: usize) -> Stream {
    let query = move |n: usize| match n % 2 {
        0 => Ask::new("x.example", "A"),
        _ => Ask::new(&format!("n{n}.s{stream}.example"), "A"),
    };
    let right = |n: usize, message: &Message| {
        let wanted = [LOCAL, REMOTE][n % 2];
        message.answers.first().is_some_and(|record| record.data == wanted)
    };
    Stream::start(at, 125, query, right)
}

fn tcp_client(
    at: SocketAddr,
    client: usize,
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<(usize, Vec<String>)> {
    thread::spawn(move || {
        let (mut asked, mut failed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let next = now() + Duration::from_millis(10);
            let (name, wanted) = match asked % 2 {
                0 => ("x.example".to_owned(), LOCAL),
                _ => (format!("n{asked}.t{client}.example"), REMOTE),
            };
            asked += 1;
            count.store(asked, Ordering::Relaxed);
            match Ask::new(&name, "A").tcp().try_of(at) {
                Ok(reply) if reply.short() == [wanted] => {}
                Ok(reply) => failed.push(format!("query {asked}: {reply:?}")),
                Err(error) => failed.push(format!("query {asked}: {error:#}")),
            }
            thread::sleep(next.saturating_duration_since(now()));
        }
        (asked, failed)
    })
}
