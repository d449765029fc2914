//! Names that the server refreshes in its hosts file, and `localdns refresh`.

mod encrypted;
mod faults;
mod files;
mod once;
mod rounds;
mod serving;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tests::{
    Action, Asked, Options, Reply, Says, Server, Upstream, ask, binary, fresh_ip, output, port, tempdir,
};

/// A server that refreshes names, its upstream, and a directory with its hosts file and its status
/// socket.
struct Node {
    at: SocketAddr,
    upstream: Upstream,
    directory: PathBuf,
    options: Options,
    corefile: String,
    server: Server,
    /// Removed with the node; the last field, so that the server ends before.
    _directory: Option<TempDir>,
}

impl Node {
    /// Starts it with these properties of `hosts` and these variables; if `hosts` is `None`, there
    /// is no hosts file yet.
    fn start(
        hosts: Option<&str>,
        properties: &str,
        variables: &[(&str, &str)],
        script: impl Fn(&Asked) -> Action + Send + Sync + 'static,
    ) -> Self {
        let directory = tempdir();
        let path = directory.path().to_owned();
        Self { _directory: Some(directory), ..Self::start_in(&path, hosts, properties, variables, script) }
    }

    /// Like [`Self::start`], in an existing directory.
    fn start_in(
        directory: &Path,
        hosts: Option<&str>,
        properties: &str,
        variables: &[(&str, &str)],
        script: impl Fn(&Asked) -> Action + Send + Sync + 'static,
    ) -> Self {
        if let Some(hosts) = hosts {
            fs::write(directory.join("hosts"), hosts).expect("the directory is writable");
        }
        let at = SocketAddr::from((fresh_ip(), port()));
        let upstream = Upstream::start(fresh_ip(), script);
        let file = directory.join("hosts");
        let corefile = format!(
            ".:{} {{\nbind {}\nprometheus {}:9153\nhealth {}:8080\nhosts {} {{\nttl 5\nreload 100ms\n{properties}\nfallthrough\n}}\nforward . {}\n}}\n",
            at.port(),
            at.ip(),
            at.ip(),
            at.ip(),
            file.display(),
            upstream.word()
        );
        let socket = directory.join("status.sock");
        let mut options = Options::default().args(["-status", &socket.to_string_lossy()]);
        for (name, value) in variables {
            options = options.env(name, value);
        }
        let server = Server::start_with(&corefile, options.clone());
        Self { at, upstream, directory: directory.to_owned(), options, corefile, server, _directory: None }
    }

    fn hosts(&self) -> PathBuf {
        self.directory.join("hosts")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.hosts()).unwrap_or_default()
    }

    fn ask(&self, name: &str, rtype: &str) -> Reply {
        ask(self.at, name, rtype)
    }

    /// Waits up to 20 s until `name` has these addresses.
    fn sees(&self, name: &str, rtype: &str, addresses: &[&str]) {
        tests::eventually(&format!("{name} at {addresses:?}"), Duration::from_secs(20), || {
            let reply = self.ask(name, rtype);
            let found = reply.short();
            if found != addresses {
                std::thread::sleep(Duration::from_millis(20));
            }
            (found == addresses).then_some(())
        });
    }

    /// Waits up to 20 s until the file contains this line.
    fn file_holds(&self, line: &str) {
        tests::eventually(line, Duration::from_secs(20), || {
            self.text().lines().any(|found| found == line).then_some(())
        });
    }

    /// The entry of the hosts file in /status.
    fn status(&self) -> Value {
        use std::io::{Read, Write};
        let mut reply = String::new();
        let asked = std::os::unix::net::UnixStream::connect(self.directory.join("status.sock")).and_then(
            |mut stream| {
                stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")?;
                stream.read_to_string(&mut reply)
            },
        );
        asked.expect("the status socket answers");
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head ends");
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("application/json"), "{head}");
        let report: Value = serde_json::from_str(body).expect("the status is JSON");
        assert_eq!(report["pid"], self.server.pid());
        report["refresh"][0].clone()
    }

    /// The entry of a name and family in /status.
    fn entry(&self, name: &str, family: &str) -> Value {
        let status = self.status();
        let entries = status["entries"].as_array().expect("entries are a list");
        let entry = entries.iter().find(|entry| entry["name"] == name && entry["family"] == family);
        entry.unwrap_or_else(|| panic!("{name} {family} in {status}")).clone()
    }

    /// Waits for `count` rounds with this result, and returns the metrics.
    fn rounds(&self, result: &str, count: f64) -> tests::Metrics {
        tests::eventually(&format!("{count} rounds {result}"), Duration::from_secs(40), || {
            let metrics = self.server.metrics((self.at.ip(), 9153).into());
            let seen = metrics.count("localdns_refresh_rounds_total", &[("result", result)]);
            if seen < count {
                std::thread::sleep(Duration::from_millis(50));
            }
            (seen >= count).then_some(metrics)
        })
    }
}

/// An interval of 5 s, in the variable that provisioning sets.
const EVERY_5_S: (&str, &str) = ("LOCALDNS_HOSTS_PLUGIN_REFRESH_INTERVAL_IN_SECONDS", "5");
const NAMES: &str = "LOCALDNS_CRITICAL_FQDNS";
const SOA: &str = "test. 60 IN SOA ns.test. host.test. 1 7200 900 86400 30";

/// Answers A with this address, and other types with NODATA.
fn address(last: u8) -> impl Fn(&Asked) -> Action + Send + Sync + Clone + 'static {
    move |asked| match asked.rtype {
        1 => Action::answer(&format!("{} 60 IN A 192.0.2.{last}", asked.name)),
        _ => Action::Reply(Says::nodata(SOA)),
    }
}

/// Runs `localdns` to its end.
fn localdns(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    command.args(args).env_remove(NAMES).env_remove(EVERY_5_S.0);
    command.envs(variables.iter().copied()).current_dir("/");
    output(command, Duration::from_secs(40))
}

fn files(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory)
        .expect("the directory is there")
        .map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
