//! The compared servers: programs, rows that they support, and command lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::config::{self, Place};
use super::process::Launch;
use super::work::{QueriesOf, Work};
use load::flood::Transport;

/// A program to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bare echo of this package.
    Echo,
    /// The raw relay of this package.
    Relay,
    /// The server of this package on hickory-server.
    Hickory,
    /// The server of this repository.
    Localdns,
    /// CoreDNS.
    Coredns,
    /// Unbound.
    Unbound,
    /// Knot DNS.
    Knot,
    /// NSD.
    Nsd,
    /// dnsdist.
    Dnsdist,
    /// dnsmasq.
    Dnsmasq,
    /// BIND.
    Named,
}

impl Kind {
    /// All programs, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::Echo,
        Self::Relay,
        Self::Hickory,
        Self::Localdns,
        Self::Coredns,
        Self::Unbound,
        Self::Knot,
        Self::Nsd,
        Self::Dnsdist,
        Self::Dnsmasq,
        Self::Named,
    ];

    /// Returns the program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Relay => "relay",
            Self::Hickory => "hickory",
            Self::Localdns => "localdns",
            Self::Coredns => "coredns",
            Self::Unbound => "unbound",
            Self::Knot => "knotd",
            Self::Nsd => "nsd",
            Self::Dnsdist => "dnsdist",
            Self::Dnsmasq => "dnsmasq",
            Self::Named => "named",
        }
    }

    /// Whether the program's replies have answers.
    pub fn knows_names(self) -> bool {
        self != Self::Echo
    }

    /// Whether the program supports this row.
    pub fn takes(self, work: &Work) -> bool {
        let forwards = matches!(work.source, QueriesOf::Upstream(_));
        let own = matches!(work.source, QueriesOf::Whoami);
        match self {
            kind if work.source == QueriesOf::Services => matches!(kind, Self::Localdns | Self::Coredns),
            // The caches of these servers are bounded in other units; the row compares memory with
            // the same Corefile.
            Self::Echo | Self::Unbound | Self::Dnsdist | Self::Dnsmasq | Self::Named | Self::Hickory
                if work.memory =>
            {
                false
            }
            Self::Echo if work.held.is_some() => false,
            Self::Echo => work.transport == Transport::Udp,
            // The relay has no cache, and would relay the hits, too.
            Self::Relay => forwards && work.prefill.is_none(),
            // The hickory server has no log.
            Self::Hickory => (work.hosts() > 0 || forwards) && !work.log,
            Self::Localdns | Self::Coredns => true,
            Self::Unbound | Self::Named => !own,
            Self::Knot | Self::Nsd => !own && !forwards && !work.log,
            Self::Dnsdist => (forwards || work.source == QueriesOf::Absent) && !work.log,
            Self::Dnsmasq => !own && !work.all_cores,
        }
    }

    fn version_flag(self) -> Option<&'static str> {
        match self {
            Self::Echo | Self::Relay | Self::Hickory => None,
            Self::Localdns | Self::Coredns => Some("-version"),
            Self::Unbound => Some("-V"),
            Self::Nsd | Self::Named => Some("-v"),
            Self::Knot | Self::Dnsdist | Self::Dnsmasq => Some("--version"),
        }
    }
}

/// A server that was found.
#[derive(Clone, Debug)]
pub struct Server {
    /// The program.
    pub kind: Kind,
    /// The program's file.
    pub program: PathBuf,
    /// The first line of its version output.
    pub version: String,
}

/// Finds the servers: localdns and this program at the given paths, CoreDNS on PATH or where `go
/// install` puts it, the others on PATH or in an `sbin`.
pub fn find(kinds: &[Kind], localdns: &Path, myself: &Path) -> Vec<Server> {
    let found = |kind: &Kind| {
        let program = match kind {
            Kind::Echo | Kind::Relay | Kind::Hickory => Some(myself.to_owned()),
            Kind::Localdns => Some(localdns.to_owned()).filter(|path| path.is_file()),
            kind => on_path(kind.name()),
        };
        let program = program?;
        Some(Server { kind: *kind, version: version(*kind, &program), program })
    };
    kinds.iter().filter_map(found).collect()
}

impl Server {
    /// Writes the server's files into its directory and returns its command line.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn launch(&self, work: &Work, place: &Place<'_>) -> Result<Launch> {
        let write = |name: &str, text: String| -> Result<String> {
            let path = place.dir.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
            Ok(path.display().to_string())
        };
        let count = work.hosts();
        let listens = || place.listen.iter().flat_map(|addr| ["--listen".to_owned(), addr.to_string()]);
        let launch = Launch::new(&self.program);
        Ok(match self.kind {
            Kind::Echo => launch.args(["echo"]).args(listens()),
            Kind::Relay => launch.args(["relay", "--upstream", &place.upstream.to_string()]).args(listens()),
            Kind::Hickory => {
                let hosts = write("hosts", config::hosts(count))?;
                let entries = match work.source {
                    QueriesOf::Upstream(Some(entries)) => entries,
                    _ => 10_000,
                };
                let numbers = [u64::from(entries), place.workers as u64].map(|number| number.to_string());
                let [entries, threads] = &numbers;
                let upstream = place.upstream.to_string();
                launch
                    .args(["hickory", "--hosts", &hosts, "--upstream", &upstream])
                    .args(["--entries", entries, "--threads", threads])
                    .args(listens())
            }
            Kind::Localdns | Kind::Coredns => {
                write("hosts", config::hosts(count))?;
                let corefile = write("Corefile", config::corefile(work, place))?;
                let launch = launch.args(["-conf", &corefile]);
                match self.kind {
                    Kind::Coredns => launch.env("GOMAXPROCS", place.workers.to_string()),
                    // The Corefile limits entries here; localdns's own limit in bytes must not
                    // apply.
                    _ if work.memory => launch.args(NO_STATUS).env("LOCALDNS_CACHE_BYTES", "1073741824"),
                    _ => launch.args(NO_STATUS),
                }
            }
            Kind::Unbound => launch.args(["-d", "-c", &write("unbound.conf", config::unbound(work, place))?]),
            Kind::Knot | Kind::Nsd | Kind::Named => {
                write("zone", config::zone(count))?;
                write("empty", config::zone(0))?;
                match self.kind {
                    Kind::Knot => launch.args(["-c", &write("knot.conf", config::knot(work, place))?]),
                    Kind::Nsd => launch.args(["-d", "-c", &write("nsd.conf", config::nsd(work, place))?]),
                    _ => {
                        let workers = place.workers.to_string();
                        launch.args([
                            "-g",
                            "-n",
                            &workers,
                            "-c",
                            &write("named.conf", config::named(work, place))?,
                        ])
                    }
                }
            }
            Kind::Dnsdist => {
                let file = write("dnsdist.conf", config::dnsdist(work, place))?;
                launch.args(["--supervised", "--disable-syslog", "-C", &file])
            }
            Kind::Dnsmasq => {
                write("hosts", config::hosts(count))?;
                launch.args(config::dnsmasq(work, place))
            }
        })
    }
}

/// Without a status socket: several servers may run at once, and status is not used.
const NO_STATUS: [&str; 2] = ["-status", ""];

fn version(kind: Kind, program: &Path) -> String {
    let Some(flag) = kind.version_flag() else { return env!("CARGO_PKG_VERSION").to_owned() };
    let Ok(output) = Command::new(program).arg(flag).stdin(Stdio::null()).output() else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let go = std::env::var_os("GOPATH").map(PathBuf::from);
    let go = go.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join("go")));
    let further =
        go.map(|go| go.join("bin")).into_iter().chain(["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from));
    std::env::split_paths(&path)
        .chain(further)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}
