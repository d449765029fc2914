//! A house asked without a socket, for all tests of this crate; and the tests of the house itself.

use super::*;
use crate::observe::Format;
use crate::observe::counters::Proto;
use crate::observe::paper::Paper;
use crate::origin::{Draft, Origin};
use crate::plugin::Moment;
use crate::plugin::Tables;
use crate::plugin::spec::{Role, StepSpec};
use crate::serve::{self, Room, Served};
use hickory_proto::op::Message;
use sockets::Peer;
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};
use wire::{Answer, Gate, RType, Rcode, accept};

/// A house built from a Corefile, asked without a socket, at a time that only the test moves.
pub(crate) struct Scene {
    pub(crate) house: House,
    pub(crate) shared: Shared,
    pub(crate) paper: Paper,
    pub(crate) now: Instant,
    pub(crate) room: Room,
    _runtime: Runtime,
}

impl Scene {
    pub(crate) fn new(corefile: &str) -> Self {
        Self::build(corefile).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A house whose first block has one more step, the outermost.
    pub(crate) fn with_step(corefile: &str, step: Arc<dyn StepSpec>) -> Self {
        let mut scene = Self::new(corefile);
        let more = |spec: &mut Spec| spec.blocks[0].plugins.insert(0, ("step", Role::Step(step)));
        scene.house =
            Self::read_with(corefile, &scene.shared, more).unwrap_or_else(|error| panic!("{error}"));
        scene.house.look_at_files(&scene.shared, scene.now, &scene.shared.logger);
        scene
    }

    /// The first line of the error where the house cannot be built.
    pub(crate) fn build(corefile: &str) -> std::result::Result<Self, String> {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (logger, paper) = Paper::logger(Format::Text);
        let now = clock::now();
        let (mut shared, _probes) = Shared::new(1 << 20, 1, runtime.handle(), logger, now);
        shared.resolve_names = false;
        let house = Self::read(corefile, &shared)?;
        house.look_at_files(&shared, now, &shared.logger);
        Ok(Self { house, shared, paper, now, room: Room::Datagram, _runtime: runtime })
    }

    fn read(corefile: &str, shared: &Shared) -> std::result::Result<House, String> {
        Self::read_with(corefile, shared, |_| {})
    }

    fn read_with(
        corefile: &str,
        shared: &Shared,
        change: impl FnOnce(&mut Spec),
    ) -> std::result::Result<House, String> {
        let origin = Origin::Text(corefile.into());
        let mut draft = Draft::read(&origin, 53).map_err(|error| format!("{error:#}"))?;
        change(&mut draft.spec);
        let addresses = |name: &str| match name {
            "eth0" => Ok(vec!["192.0.2.10:0".parse().unwrap(), "[2001:db8::10]:0".parse().unwrap()]),
            name => Err(node::NodeError::InterfaceAbsent { name: name.to_owned() }),
        };
        House::build(&draft.spec, shared, &addresses).map_err(|error| format!("{error:#}"))
    }

    /// Serves another Corefile, as a reload does.
    pub(crate) fn reload(&mut self, corefile: &str) {
        self.house = Self::read(corefile, &self.shared).unwrap_or_else(|error| panic!("{error}"));
        self.house.look_at_files(&self.shared, self.now, &self.shared.logger);
    }

    fn listener(&self, at: &str) -> &Listener {
        &self.house.listeners[&at.parse::<Endpoint>().unwrap()]
    }

    /// What a plugin knows of a client's query to a listen address.
    pub(crate) fn moment<'b>(&self, at: &str, client: &'b Peer) -> Moment<'b> {
        Moment::new(self.now, client, at.parse().unwrap(), Proto::Udp, 0)
    }

    /// Sends a packet to a listen address.
    pub(crate) fn send(&self, at: &str, packet: &[u8]) -> Sent {
        let client = client();
        let moment = self.moment(at, &client);
        let mut tables = Tables::default();
        let mut out = b"left over".to_vec();
        let gate = accept(packet);
        let mut outcome = serve::Outcome::OPEN;
        let listener = self.listener(at);
        match serve::serve(listener, &gate, &moment, &mut tables, self.room, &mut out, &mut outcome) {
            Served::Nothing | Served::Silence => Sent::Nothing,
            Served::Ask { replied: false, asked } => Sent::Ask(asked.patience),
            Served::Follow { replied: false, waits } => Sent::Ask(waits.asked[0].patience),
            Served::Reply | Served::Ask { replied: true, .. } | Served::Follow { replied: true, .. } => {
                let message = Message::from_vec(&out).expect("every reply can be read");
                Sent::Reply(Box::new((message, out, outcome)))
            }
        }
    }

    /// Asks for a name and tells the reply as one line; `forward` and the patience where an upstream is to be asked.
    pub(crate) fn ask(&self, at: &str, name: &str, rtype: RType) -> String {
        self.send(at, &packet(name, rtype, None)).to_string()
    }

    /// Has an upstream answer with these records, as `name ttl A address`; none of them is NXDOMAIN with an SOA.
    pub(crate) fn keep(&self, at: &str, name: &str, rtype: RType, records: &[&str]) {
        let packet = packet(name, rtype, None);
        let Gate::Pass(query) = accept(&packet) else { panic!("refused") };
        let zone = self.listener(at).route.find(&query).unwrap();
        let room = zone.block.pipeline.dial().unwrap().cache.as_ref().unwrap();
        let mut made = crate::zonetext::Records::new(query.question);
        for record in records {
            made.push(wire::Section::Answer, record).unwrap();
        }
        if records.is_empty() {
            made.push(wire::Section::Authority, "example.org. 60 IN SOA ns. admin. 1 2 3 4 60").unwrap();
        }
        let (body, counts) = made.finish();
        let mut reply = packet[..4].to_vec();
        reply[2] |= 0x80;
        reply[3] |= if records.is_empty() { 3 } else { 0 };
        reply.extend_from_slice(&[0, 1]);
        reply.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
        reply.extend_from_slice(query.question);
        reply.extend_from_slice(&body);
        let mut answer = Answer::default();
        answer.read(&reply, query.question).unwrap();
        let stored = room.partition.store(&room.policy, &query, &mut answer, self.now);
        assert!(matches!(stored, cache::Stored::Kept(_)), "{name}: {stored:?}");
    }
}

/// Who asks.
pub(crate) fn client() -> Peer {
    SocketAddr::from(([192, 0, 2, 200], 40_000)).into()
}

/// What came back for a packet.
pub(crate) enum Sent {
    Nothing,
    Reply(Box<(Message, Vec<u8>, serve::Outcome)>),
    Ask(Option<Duration>),
}

impl Sent {
    pub(crate) fn message(&self) -> &Message {
        match self {
            Self::Reply(reply) => &reply.0,
            _ => panic!("no reply"),
        }
    }
}

impl std::fmt::Display for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let message = match self {
            Self::Nothing => return f.write_str("nothing"),
            Self::Ask(None) => return f.write_str("forward"),
            Self::Ask(Some(patience)) => return write!(f, "forward, {patience:?}"),
            Self::Reply(reply) => &reply.0,
        };
        write!(f, "{}", Rcode(message.response_code.into()))?;
        f.write_str(if message.authoritative { " aa" } else { "" })?;
        f.write_str(if message.truncation { " tc" } else { "" })?;
        for (section, records) in [
            ("", &message.answers),
            (" authority", &message.authorities),
            (" additional", &message.additionals),
        ] {
            for record in records {
                write!(f, ";{section} {record}")?;
            }
        }
        Ok(())
    }
}

/// A query with RD; with the data of an OPT record, if there is one.
pub(crate) fn packet(name: &str, rtype: RType, options: Option<&[u8]>) -> Vec<u8> {
    let mut packet = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        packet.push(label.len() as u8);
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&rtype.0.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    if let Some(options) = options {
        packet[11] = 1;
        packet.extend_from_slice(b"\0\0\x29\x10\0\0\0\0\0");
        packet.extend_from_slice(&(options.len() as u16).to_be_bytes());
        packet.extend_from_slice(options);
    }
    packet
}

#[test]
fn a_zone_is_served_once_on_each_address() {
    const DEFINED: &str = "it is already defined at";
    const ONCE: &str = "; make one block of them, or give each a `bind` of its own";
    const MIXED: &str = "one is bound to addresses, the other listens everywhere; give both a `bind`";
    for (corefile, error) in [
        (
            ". {\nwhoami\n}\n. {\nwhoami\n}\n",
            format!("stdin:4:1: cannot serve dns://.:53 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            ". {\nbind 127.0.0.1\n}\n.:53 {\nbind 127.0.0.1\n}\n",
            format!("stdin:4:1: cannot serve dns://.:53 on 127.0.0.1 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            ". {\nbind eth0\n}\n. {\nbind 192.0.2.10\n}\n",
            format!("stdin:4:1: cannot serve dns://.:53 on 192.0.2.10 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            "a.org b.org A.org {\nwhoami\n}\n",
            format!("stdin:1:13: cannot serve dns://a.org.:53 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            "10.0.0.0/24 0.0.10.in-addr.arpa {\nwhoami\n}\n",
            format!("stdin:1:13: cannot serve dns://0.0.10.in-addr.arpa.:53 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            ". {\nbind 127.0.0.1\n}\n. {\nwhoami\n}\n",
            format!(
                "stdin:4:1: cannot serve dns://.:53 - zone overlap listener capacity with stdin:1:1: {MIXED}"
            ),
        ),
        (
            ". {\nwhoami\n}\n. {\nbind 127.0.0.1\n}\n",
            format!(
                "stdin:4:1: cannot serve dns://.:53 - zone overlap listener capacity with stdin:1:1: {MIXED}"
            ),
        ),
        (
            ". {\nbind eth9\n}\n",
            "stdin:2:6: plugin/bind: no interface \"eth9\" on this machine; name one that `ip link` lists, or an \
             IP address"
                .to_owned(),
        ),
        (
            ". {\nbind eth0 {\nexcept 192.0.2.10 2001:db8::10\n}\n}\n",
            "stdin:2:6: plugin/bind: `except` leaves no address to listen on; leave one".to_owned(),
        ),
    ] {
        assert_eq!(Scene::build(corefile).err(), Some(error), "{corefile}");
    }
}

#[test]
fn equal_zones_on_different_addresses_or_ports_are_served() {
    let scene = Scene::new(
        ". {\nbind 127.0.0.1\nwhoami\n}\n. {\nbind 127.0.0.2\nwhoami\n}\n.:54 example.org {\nwhoami\n}\n",
    );
    let listeners: Vec<String> = scene.house.listeners.keys().map(ToString::to_string).collect();
    assert_eq!(listeners, ["0.0.0.0:53", "0.0.0.0:54", "127.0.0.1:53", "127.0.0.2:53", "[::]:53", "[::]:54"]);
    assert_eq!(scene.house.banner(), [".:53 on 127.0.0.1", ".:53 on 127.0.0.2", "example.org.:53", ".:54"]);
}

#[test]
fn servers_are_labelled_as_coredns_labels_them() {
    let scene = Scene::new(
        ". {\nbind 127.0.0.1 ::1\nprometheus\nerrors\ncache\nforward . 192.0.2.53\n}\nexample.org:5300 {\nprometheus\nwhoami\n}\n",
    );
    let mut labels: Vec<_> = scene
        .shared
        .zones
        .all()
        .into_iter()
        .map(|(labels, _)| (labels.server, labels.zone, labels.plugin))
        .collect();
    labels.sort();
    let expected = [
        ("dns://127.0.0.1:53", ".", "errors"),
        ("dns://127.0.0.1:53", "dropped", ""),
        ("dns://:5300", "dropped", ""),
        ("dns://:5300", "example.org.", "whoami"),
        ("dns://[::1]:53", ".", "errors"),
        ("dns://[::1]:53", "dropped", ""),
    ];
    assert_eq!(labels, expected.map(|(server, zone, plugin)| (server.into(), zone.into(), plugin)));
}

#[test]
fn what_stands_in_several_blocks_is_gathered() {
    let scene = Scene::new(
        "a. {\nhealth :8080 {\nlameduck 5s\n}\nready\nprometheus :9253\nreload 10s 2s\nwhoami\n}\n\
         b. {\nhealth :8080 {\nlameduck 7s\n}\nready 127.0.0.1:8181\nprometheus :9253\nmultisocket 3\ndebug\nwhoami\n}\n",
    );
    let house = &scene.house;
    let ports = |addresses: &[AdminAddress]| -> Vec<String> {
        addresses
            .iter()
            .map(|a| format!("{}:{}", a.host.map_or(String::new(), |h| h.to_string()), a.port))
            .collect()
    };
    assert_eq!(ports(&house.admin.health), [":8080"]);
    assert_eq!(ports(&house.admin.ready), [":8181", "127.0.0.1:8181"]);
    assert_eq!(ports(&house.admin.metrics), [":9253"]);
    assert_eq!((house.lameduck, house.sockets, house.debug), (Duration::from_secs(7), 3, true));
    assert_eq!(house.reload.map(|reload| reload.interval), Some(Duration::from_secs(10)));
}
