//! A server with an API: its start, its readiness and its memory.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use wire::{Name, Rcode};

use crate::compare::process::{Launch, Running};
use load::clock::Clock;
use load::judge::{Expect, Judgement, judge};

/// A server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    Localdns,
    Coredns,
}

/// The program and configuration of a server.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) kind: ServerKind,
    pub(super) program: PathBuf,
    pub(super) corefile: PathBuf,
}

/// A running server.
pub(super) struct Started {
    pub(super) running: Running,
    pub(super) probe: Probe,
    address: IpAddr,
}

/// Memory of a process, in MB of 1,000,000 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    pub(super) resident: f64,
    /// The peak since the process's start, or since [`Started::forget_peak`].
    pub(super) peak: f64,
}

impl Memory {
    /// Returns the maximum of both.
    pub(super) fn or(self, other: Self) -> Self {
        Self { resident: self.resident.max(other.resident), peak: self.peak.max(other.peak) }
    }
}

impl ServerKind {
    pub(super) const ALL: [Self; 2] = [Self::Localdns, Self::Coredns];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Localdns => "localdns",
            Self::Coredns => "CoreDNS",
        }
    }

    /// Returns the server's listen address.
    pub(super) fn address(self) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, if self == Self::Localdns { 10 } else { 11 }).into()
    }
}

impl Subject {
    /// Writes the Corefile of a server with a block for the cluster's zone; `api` is the property
    /// with the API's address.
    ///
    /// # Errors
    /// When the Corefile cannot be written.
    pub(super) fn new(kind: ServerKind, program: &Path, dir: &Path, api: &str) -> Result<Self> {
        let address = kind.address();
        let corefile = dir.join(format!("{}.corefile", kind.name()));
        let text = format!(
            ".:53 {{\n    bind {address}\n    errors\n    ready {address}:{READY}\n    prometheus {address}:{METRICS}\n    \
             kubernetes cluster.local in-addr.arpa {{\n        {api}\n    }}\n}}\n"
        );
        fs::write(&corefile, text).with_context(|| corefile.display().to_string())?;
        Ok(Self { kind, program: program.to_owned(), corefile })
    }

    /// Adds a hosts file for all other names, and one for names of the cluster's zone at another
    /// port.
    ///
    /// # Errors
    /// When the Corefile cannot be written again.
    pub(super) fn with_hosts(self, others: &Path, (port, same): (u16, &Path)) -> Result<Self> {
        let text = fs::read_to_string(&self.corefile).with_context(|| self.corefile.display().to_string())?;
        let address = self.kind.address();
        let mut text = text.replacen(".:53 {", "cluster.local:53 {", 1);
        for (key, hosts) in [(".:53".to_owned(), others), (format!("cluster.local:{port}"), same)] {
            text += &format!(
                "{key} {{\n    bind {address}\n    errors\n    prometheus {address}:{METRICS}\n    hosts {}\n}}\n",
                hosts.display()
            );
        }
        fs::write(&self.corefile, text).with_context(|| self.corefile.display().to_string())?;
        Ok(self)
    }

    /// Starts the server on these cores, and waits until it is ready and answers for `name`;
    /// returns the time taken.
    ///
    /// # Errors
    /// When it does not start, or is not ready within a minute.
    pub(super) fn start(
        &self,
        cores: &[usize],
        (name, known): (&str, Ipv4Addr),
    ) -> Result<(Started, Duration)> {
        let mut launch = Launch::new(&self.program).args(["-conf", &self.corefile.display().to_string()]);
        if self.kind == ServerKind::Localdns {
            launch = launch.args(["-status", ""]);
        }
        let clock = Clock::start();
        let running = Running::start(&launch, cores)?;
        let address = self.kind.address();
        let mut started = Started { running, probe: Probe::new(address)?, address };
        while get(SocketAddr::new(address, READY), "/ready").is_none_or(|(status, _)| status != 200) {
            started.look()?;
            ensure!(clock.now_ns() < READY_MAX.as_nanos() as u64, "{} is not ready", self.kind.name());
            std::thread::sleep(LOOK);
        }
        started.probe.until(name, known)?;
        Ok((started, Duration::from_nanos(clock.now_ns())))
    }
}

impl Started {
    /// Checks that the server still runs.
    ///
    /// # Errors
    /// When the server has ended.
    pub(super) fn look(&mut self) -> Result<()> {
        match self.running.ended() {
            Some(status) => bail!("it ended with {status} and printed: {}", self.running.last_words()),
            None => Ok(()),
        }
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        let path = format!("/proc/{}/status", self.running.pid());
        let text = fs::read_to_string(&path).context(path)?;
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number =
                line.and_then(|line| line.split_whitespace().next()).and_then(|word| word.parse().ok());
            number.map(|kib: f64| kib * 1_024.0 / 1e6).with_context(|| format!("no {name}"))
        };
        Ok(Memory { resident: of("VmRSS:")?, peak: of("VmHWM:")? })
    }

    /// Resets the peak of resident memory.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn forget_peak(&self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.running.pid());
        fs::write(&path, "5").context(path)
    }

    /// Returns the sum of a metric's series.
    ///
    /// # Errors
    /// When there is no metrics page.
    pub(super) fn metric(&self, name: &str) -> Result<f64> {
        let (_, page) = get(SocketAddr::new(self.address, METRICS), "/metrics").context("/metrics")?;
        let values = page.lines().filter(|line| line.split([' ', '{']).next() == Some(name));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}

/// A client that sends one query at a time.
pub(super) struct Probe {
    socket: UdpSocket,
}

impl Probe {
    fn new(address: IpAddr) -> Result<Self> {
        let socket = UdpSocket::bind((address, 0)).context("bind")?;
        socket.connect((address, 53)).context("connect")?;
        socket.set_read_timeout(Some(PATIENCE)).context("SO_RCVTIMEO")?;
        Ok(Self { socket })
    }

    /// Sends a query.
    ///
    /// # Errors
    /// When the server does not listen.
    pub(super) fn send(&self, question: &[u8]) -> Result<()> {
        const HEADER: [u8; wire::HEADER] = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        self.socket.send(&[&HEADER[..], question].concat()).context("send")?;
        Ok(())
    }

    /// Receives a reply; returns whether it is the expected one.
    ///
    /// # Errors
    /// When there is no reply.
    pub(super) fn receive(&self, question: &[u8], expect: Expect) -> Result<bool> {
        let mut reply = [0; 4096];
        let length = self.socket.recv(&mut reply).context("no reply")?;
        Ok(judge(&reply[..length], question, expect) == Judgement::Right)
    }

    /// Queries until the answer is this address.
    ///
    /// # Errors
    /// When it differs for a minute.
    pub(super) fn until(&self, name: &str, address: Ipv4Addr) -> Result<()> {
        self.until_is(name, Expect::Address(address))
    }

    /// Queries until the reply is the expected one.
    ///
    /// # Errors
    /// When it differs for a minute.
    pub(super) fn until_is(&self, name: &str, expect: Expect) -> Result<()> {
        let (question, clock) = (question(name)?, Clock::start());
        loop {
            // An error here is about the previous query: the server does not listen yet.
            let asked = self.send(&question).and_then(|()| self.receive(&question, expect));
            if asked.unwrap_or(false) {
                return Ok(());
            }
            ensure!(clock.now_ns() < READY_MAX.as_nanos() as u64, "{name} is not {expect:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Sends a query; returns whether the reply is NXDOMAIN.
    ///
    /// # Errors
    /// When there is no reply.
    pub(super) fn denies(&self, name: &str) -> Result<bool> {
        let question = question(name)?;
        self.send(&question)?;
        self.receive(&question, Expect::Rcode(Rcode::NXDOMAIN))
    }
}

/// Returns a question of type A.
///
/// # Errors
/// When the text is no name.
pub(super) fn question(name: &str) -> Result<Vec<u8>> {
    let name = Name::from_text(name).ok().with_context(|| format!("{name:?} is no name"))?;
    Ok([name.as_wire(), &[0, 1, 0, 1]].concat())
}

/// Requests a page; returns its status and the whole reply, or `None` if there is none.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text))
}

const READY: u16 = 8181;
const METRICS: u16 = 9153;
const LOOK: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(2);
const READY_MAX: Duration = Duration::from_secs(60);
