//! `localdns node-resolver` from outside: its queries, its changes to a hosts file with other
//! owners, and the lines that it leaves alone.

mod crash;
mod encrypted;
mod file;
mod manifest;
mod rounds;
mod running;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use tests::{Action, Asked, Says, Upstream, binary, fresh_ip, output, tempdir};

/// A hosts file, and a name server for the cluster.
struct Node {
    home: TempDir,
    upstream: Upstream,
}

impl Node {
    fn new(hosts: &str, script: impl Fn(&Asked) -> Action + Send + Sync + 'static) -> Self {
        let node = Self { home: tempdir(), upstream: Upstream::start(fresh_ip(), script) };
        std::fs::write(node.hosts(), hosts).expect(WRITABLE);
        node
    }

    fn hosts(&self) -> PathBuf {
        self.home.path().join("hosts")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.hosts()).expect("the hosts file is there")
    }

    /// Names in the directory of the hosts file.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home.path()).expect("the directory is there");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The command with these flags, services and this name server.
    fn command(&self, services: &str, flags: &[&str]) -> Command {
        let mut command = command_on(&self.hosts());
        command.args(flags).env("SERVICES", services).env("NAMESERVER", self.upstream.word());
        command
    }

    /// Runs one round, which must succeed; returns its output.
    fn once(&self, services: &str) -> String {
        succeeded(&output(self.command(services, &["-once"]), PATIENCE))
    }

    fn remove(&self) -> String {
        let mut command = command_on(&self.hosts());
        command.arg("-remove");
        succeeded(&output(command, PATIENCE))
    }
}

/// The command for this hosts file, without this process's variables that it would read.
fn command_on(hosts: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["node-resolver", "-hosts-file"]).arg(hosts);
    for name in ["SERVICES", "NAMESERVER", "TLS_SERVERNAME", "TLS_CA", "CLUSTER_DOMAIN", "SERVICE_CIDRS"] {
        command.env_remove(name);
    }
    command
}

/// The output of a command that succeeded.
fn succeeded(output: &Output) -> String {
    let text = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}:\n{text}", output.status);
    text
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// A name server with these records and no other names.
fn zone(records: &'static str) -> impl Fn(&Asked) -> Action + Send + Sync + 'static {
    move |asked| {
        let own: Vec<&str> = records
            .lines()
            .map(str::trim)
            .filter(|line| line.split(' ').next() == Some(&asked.name))
            .collect();
        let rtype = if asked.rtype == 28 { " AAAA " } else { " A " };
        let answers: Vec<&str> =
            own.iter().copied().filter(|line| line.contains(rtype) || line.contains(" CNAME ")).collect();
        match (own.is_empty(), answers.is_empty()) {
            (true, _) => Action::nxdomain(SOA),
            (_, true) => Action::Reply(Says::nodata(SOA)),
            _ => Action::answer(&answers.join("\n")),
        }
    }
}

/// A line in the format of the script.
fn line(address: &str, service: &str) -> String {
    format!("{address} {service} {service}.cluster.local # openshift-generated-node-resolver\n")
}

const SOA: &str =
    "cluster.local. 5 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5";
const OTHERS: &str = "127.0.0.1 localhost\n";
/// Why a test can write its files.
const WRITABLE: &str = "the test's directory is writable";
const PATIENCE: Duration = Duration::from_secs(30);
