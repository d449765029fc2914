//! Clients with expensive queries must not delay others.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use metrics::counters::ThreadCounters;
use plugin::spec::{BuildContext, Explanation, Role, Source, SourceSpec};
use plugin::{HostsGuard, Lookup, QueryContext};
use wire::{Query, Reply};

use super::*;
use crate::cpu_budget::MOMENT;

#[test]
fn a_connection_full_of_dear_queries_lets_others_have_their_turn_between_them() {
    let (scene, dear) = Dear::scene();
    // All queries are read at once.
    let _full = dear.connect(&scene, ONE, "dear.example", 250);
    scene.wait("the first", || dear.served() == ["dear.example."]);
    let mut other = dear.connect(&scene, OTHER, "other.example", 1);
    dear.let_in(3);
    scene.wait("the fourth", || dear.served().len() == 4);
    let held = scene.running.connections.octets();
    assert!(held > 6_000, "what waits for its turn is counted: {held} octets");
    dear.let_in(usize::MAX);
    read(&mut other);
    scene.wait("all", || dear.served().len() == 251);
    assert!(dear.place_of_other() < 125, "{}", dear.place_of_other());
}

#[test]
fn an_address_with_many_connections_gets_no_more_turns_than_one_with_one() {
    // Each query takes a full turn, or a part.
    for name in ["dear.example", "cheap.example"] {
        let (scene, dear) = Dear::scene();
        let _first = dear.connect(&scene, ONE, name, 1);
        scene.wait("the first", || dear.served().len() == 1);
        // Of connections that are ready at once the runtime serves the last one first.
        let before: Vec<_> = (0..80).map(|_| dear.connect(&scene, ONE, name, 1)).collect();
        let mut other = dear.connect(&scene, OTHER, "other.example", 1);
        let behind: Vec<_> = (0..20).map(|_| dear.connect(&scene, ONE, name, 1)).collect();
        dear.let_in(usize::MAX);
        read(&mut other);
        scene.wait("all", || dear.served().len() == 102);
        assert!(dear.place_of_other() < 40, "{name}: {}", dear.place_of_other());
        drop((before, behind));
    }
}

fn read(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 2]).unwrap();
}

/// A source that answers all queries, most of them in as much time as a turn, once they are
/// admitted.
#[derive(Debug, Clone, Default)]
struct Dear {
    served: Arc<Mutex<Vec<String>>>,
    /// Number of admitted queries.
    last: Arc<AtomicUsize>,
}

impl Dear {
    /// Starts a server with this source that serves all TCP clients on one thread.
    fn scene() -> (Scene, Self) {
        let streams = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let scene = Scene::on(Box::leak(Box::new(streams.unwrap())), 1, "", "");
        let mut spec = scene::spec(&scene.corefile("")).unwrap();
        let dear = Self::default();
        spec.blocks[0].plugins.insert(0, ("dear", Role::Source(Arc::new(dear.clone()))));
        let configuration = Configuration::build(&spec, &scene.running.shared, &|_| Ok(Vec::new())).unwrap();
        scene.running.configuration.store(Arc::new(configuration));
        (scene, dear)
    }

    /// Returns a client that has sent `count` queries for a name.
    fn connect(&self, scene: &Scene, from: IpAddr, name: &str, count: usize) -> TcpStream {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        socket.connect(&scene.at.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let packet = packet(name);
        stream
            .write_all(&[&(packet.len() as u16).to_be_bytes()[..], &packet].concat().repeat(count))
            .unwrap();
        stream
    }

    fn let_in(&self, last: usize) {
        self.last.store(last, Relaxed);
    }

    /// The names queried, in the order of their answers.
    fn served(&self) -> Vec<String> {
        self.served.lock().unwrap().clone()
    }

    fn place_of_other(&self) -> usize {
        self.served().iter().position(|name| name == "other.example.").unwrap()
    }
}

impl SourceSpec for Dear {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Box<dyn Source>> {
        Ok(Box::new(self.clone()))
    }
}

impl Source for Dear {
    fn lookup<'h>(
        &'h self,
        _: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        _: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        let name = query.name.to_string();
        let is_cheap = name.starts_with("cheap");
        let mut served = self.served.lock().unwrap();
        served.push(name);
        let place = served.len();
        drop(served);
        let until = clock::now() + if is_cheap { MOMENT / 3 } else { MOMENT };
        while place > self.last.load(Relaxed) {
            thread::yield_now();
        }
        while clock::now() < until {
            std::hint::spin_loop();
        }
        Lookup::Answer
    }

    fn explain(&self, _: &Query<'_>) -> Explanation {
        Explanation::Passes(None)
    }
}

const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
