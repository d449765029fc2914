//! Test harness: a configuration that is queried without a socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use configuration::{Configuration, EndpointPlan, PersistentState};
use hickory_proto::op::Message;
use logging::Format;
use logging::captured_log::CapturedLog;
use plugin::endpoint::Endpoint;
use plugin::spec::{MiddlewareSpec, Role};
use plugin::{HostsGuard, QueryContext, Spec};
use query::evaluate::UpstreamQuery;
use query::serve::{self, Served};
use sockets::Peer;
use tokio::runtime::{Builder, Runtime};
use wire::{Answer, Proto, RType, Rcode, Verdict, accept};

/// A configuration built from a Corefile, queried without a socket, with a clock that the test
/// moves.
pub struct Scene {
    /// The active configuration.
    pub configuration: Configuration,
    /// State that survives reloads.
    pub shared: PersistentState,
    /// The captured log.
    pub log: CapturedLog,
    /// The clock.
    pub now: Instant,
    /// The clients' transport.
    pub proto: Proto,
    _runtime: Runtime,
}

impl Scene {
    /// Builds a configuration from this Corefile.
    ///
    /// # Panics
    /// If it cannot be built.
    pub fn new(corefile: &str) -> Self {
        Self::build(corefile).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Builds a configuration with one more middleware in its first block, the outermost.
    pub fn with_step(corefile: &str, step: Arc<dyn MiddlewareSpec>) -> Self {
        Self::with_steps(corefile, vec![step])
    }

    /// Builds a configuration with these middlewares above those of its first block, outermost
    /// first.
    pub fn with_steps(corefile: &str, steps: Vec<Arc<dyn MiddlewareSpec>>) -> Self {
        let mut scene = Self::new(corefile);
        let more = |spec: &mut Spec| {
            spec.blocks[0]
                .plugins
                .splice(0..0, steps.into_iter().map(|step| ("step", Role::Middleware(step))));
        };
        scene.configuration =
            Self::read_with(corefile, &scene.shared, more).unwrap_or_else(|error| panic!("{error}"));
        scene.configuration.look_at_files(&scene.shared, scene.now, &scene.shared.logger);
        scene
    }

    /// Like [`Self::new`], but returns the first line of the error where the Corefile is invalid.
    ///
    /// # Errors
    /// The configuration cannot be built.
    pub fn build(corefile: &str) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (logger, log) = CapturedLog::logger(Format::Text);
        let now = clock::now();
        let (mut shared, _probes) = PersistentState::new(1 << 20, 1, runtime.handle(), logger, now);
        shared.resolve_names = false;
        let configuration = Self::read(corefile, &shared)?;
        configuration.look_at_files(&shared, now, &shared.logger);
        Ok(Self { configuration, shared, log, now, proto: Proto::Udp, _runtime: runtime })
    }

    fn read(corefile: &str, shared: &PersistentState) -> Result<Configuration, String> {
        Self::read_with(corefile, shared, |_| {})
    }

    fn read_with(
        corefile: &str,
        shared: &PersistentState,
        change: impl FnOnce(&mut Spec),
    ) -> Result<Configuration, String> {
        let mut spec = spec(corefile)?;
        change(&mut spec);
        let addresses = |name: &str| match name {
            "eth0" => Ok(vec!["192.0.2.10:0".parse().unwrap(), "[2001:db8::10]:0".parse().unwrap()]),
            name => Err(node::NodeError::InterfaceAbsent { name: name.to_owned() }),
        };
        Configuration::build(&spec, shared, &addresses).map_err(|error| format!("{error:#}"))
    }

    /// Replaces the configuration, as a reload does.
    pub fn reload(&mut self, corefile: &str) {
        self.configuration = Self::read(corefile, &self.shared).unwrap_or_else(|error| panic!("{error}"));
        self.configuration.look_at_files(&self.shared, self.now, &self.shared.logger);
    }

    fn plan(&self, at: &str) -> &EndpointPlan {
        &self.configuration.endpoints[&at.parse::<Endpoint>().unwrap()]
    }

    /// Returns the context of a client's query to a listen address.
    pub fn context<'b>(&self, at: &str, client: &'b Peer) -> QueryContext<'b> {
        QueryContext::new(self.now, client, at.parse().unwrap(), self.proto, 0)
    }

    /// Sends a packet to a listen address.
    pub fn send(&self, at: &str, packet: &[u8]) -> Sent {
        let client = client();
        let context = self.context(at, &client);
        let mut tables = HostsGuard::default();
        let mut out = b"left over".to_vec();
        let gate = accept(packet);
        let mut outcome = serve::Outcome::OPEN;
        let plan = self.plan(at);
        match serve::serve(&plan.served, &gate, &context, &mut tables, &mut out, &mut outcome) {
            Served::Nothing | Served::Silence | Served::Stream(_) => Sent::Nothing,
            Served::Ask { replied: false, asked } => Sent::Ask(asked.patience, Vec::new()),
            Served::Follow { replied: false, lookups } => {
                Sent::Ask(lookups.asked[0].patience, names(&lookups.refreshes))
            }
            Served::Reply => reply(out, outcome, &[]),
            Served::Ask { replied: true, asked } => reply(out, outcome, &[asked]),
            Served::Follow { replied: true, lookups } => reply(out, outcome, &lookups.refreshes),
        }
    }

    /// Queries a name and returns the result as one line: the reply, after `asks` and the names of
    /// refreshes, if there are any; or `forward` and the client's patience.
    pub fn ask(&self, at: &str, name: &str, rtype: RType) -> String {
        self.send(at, &packet(name, rtype, None)).to_string()
    }

    /// Stores an upstream's answer with these records (`name ttl A address`); without records,
    /// NXDOMAIN with an SOA.
    ///
    /// # Panics
    /// If the block's cache does not store it.
    pub fn keep(&self, at: &str, name: &str, rtype: RType, records: &[&str]) {
        let packet = packet(name, rtype, None);
        let Verdict::Pass(query) = accept(&packet) else { panic!("refused") };
        let zone = self.plan(at).served.route.candidates(&query).unwrap()[0];
        let cache = zone.block.pipeline.forwarding().unwrap().cache.as_ref().unwrap();
        let (mut body, mut buffer) = (Vec::new(), Vec::new());
        let mut made = wire::CompressingWriter::new(query.question, &mut body).unwrap();
        let mut push = |section, text| {
            let rr = zonetext::record(text).unwrap().into_rr(section);
            rr.push_to(&mut made, &mut buffer).unwrap();
        };
        records.iter().for_each(|record| push(wire::Section::Answer, record));
        if records.is_empty() {
            push(wire::Section::Authority, "example.org. 60 IN SOA ns. admin. 1 2 3 4 60");
        }
        let counts = made.counts();
        let mut reply = packet[..4].to_vec();
        reply[2] |= 0x80;
        reply[3] |= if records.is_empty() { 3 } else { 0 };
        reply.extend_from_slice(&[0, 1]);
        reply.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
        reply.extend_from_slice(query.question);
        reply.extend_from_slice(&body);
        let mut answer = Answer::default();
        answer.read(&reply, query.question).unwrap();
        let stored = cache.store(&query, &mut answer, self.now);
        assert!(matches!(stored, cache::StoreResult::Kept(_)), "{name}: {stored:?}");
    }
}

/// Reads a Corefile; returns the first line of the error if it is invalid.
///
/// # Errors
/// The Corefile is invalid.
pub fn spec(corefile: &str) -> Result<Spec, String> {
    let read = corefile::read_text("stdin", corefile.as_bytes(), Path::new("."), &|_| None);
    let read = read.map_err(|error| format!("{error:#}"))?;
    plugins::read_corefile::read(&read, 53).map_err(|error| format!("{error:#}"))
}

/// The client's address.
pub fn client() -> Peer {
    SocketAddr::from(([192, 0, 2, 200], 40_000)).into()
}

fn reply(octets: Vec<u8>, outcome: serve::Outcome, asks: &[UpstreamQuery<'_>]) -> Sent {
    let message = Message::from_vec(&octets).expect("every reply can be read");
    Sent::Reply(Box::new((message, octets, outcome, names(asks))))
}

fn names(asks: &[UpstreamQuery<'_>]) -> Vec<String> {
    asks.iter().map(|asked| asked.query.query().name.to_string()).collect()
}

/// Result of a packet.
pub enum Sent {
    /// No reply.
    Nothing,
    /// The reply, its bytes, its outcome, and the names of refreshes.
    Reply(Box<(Message, Vec<u8>, serve::Outcome, Vec<String>)>),
    /// The query must be sent to an upstream: the client's patience, and the names of refreshes.
    Ask(Option<Duration>, Vec<String>),
}

impl Sent {
    /// The reply.
    ///
    /// # Panics
    /// If there is none.
    pub fn message(&self) -> &Message {
        match self {
            Self::Reply(reply) => &reply.0,
            _ => panic!("no reply"),
        }
    }
}

impl std::fmt::Display for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let asks = match self {
            Self::Nothing => &[][..],
            Self::Ask(_, asks) => asks,
            Self::Reply(reply) => &reply.3,
        };
        if !asks.is_empty() {
            write!(f, "asks {}: ", asks.join(" "))?;
        }
        let message = match self {
            Self::Nothing => return f.write_str("nothing"),
            Self::Ask(None, _) => return f.write_str("forward"),
            Self::Ask(Some(patience), _) => return write!(f, "forward, {patience:?}"),
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

/// A query with RD; `options` is the data of an OPT record.
pub fn packet(name: &str, rtype: RType, options: Option<&[u8]>) -> Vec<u8> {
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
