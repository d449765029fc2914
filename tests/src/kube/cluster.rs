//! A real API: released builds of etcd and kube-apiserver, started by the scripts in `tests/kube`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::clock::eventually;
use crate::command::output;
use crate::isolated::{lacking, tool};
use crate::place::tempdir;

/// An API at 127.0.0.1:6443, with no objects but its own. For use within
/// [`isolated`](crate::isolated()) alone.
pub struct Cluster {
    state: TempDir,
    address: &'static str,
    flags: &'static str,
}

impl Cluster {
    /// Starts the API; returns `None` where its programs are not built (`tests/kube/build`) or a
    /// tool is missing.
    ///
    /// # Panics
    /// When it does not start, or where `LOCALDNS_TESTS_REQUIRE` names the missing program.
    pub fn up(test: &str) -> Option<Self> {
        Self::up_at("127.0.0.1", test)
    }

    /// Like [`Self::up`], with additional flags for kube-apiserver.
    ///
    /// # Panics
    /// As [`Self::up`].
    pub fn up_with(flags: &'static str, test: &str) -> Option<Self> {
        Self::up_as("127.0.0.1", flags, test)
    }

    /// Like [`Self::up`], listening at `address`: 127.0.0.1 or `0.0.0.0`.
    ///
    /// # Panics
    /// As [`Self::up`].
    pub fn up_at(address: &'static str, test: &str) -> Option<Self> {
        Self::up_as(address, "", test)
    }

    fn up_as(address: &'static str, flags: &'static str, test: &str) -> Option<Self> {
        if !built() {
            lacking(test, "kube-apiserver", "kube-apiserver is not built (tests/kube/build)");
            return None;
        }
        if !["openssl", "curl"].into_iter().all(|program| tool(test, program)) {
            return None;
        }
        let cluster = Self { state: tempdir(), address, flags };
        cluster.start();
        Some(cluster)
    }

    /// Starts the processes that are not running; the objects stored earlier are kept.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(&self) {
        self.script("up");
    }

    /// Kills the API server as a crash would; etcd continues.
    ///
    /// # Panics
    /// When it does not run.
    pub fn lose(&self) {
        let pid = fs::read_to_string(self.path("kube-apiserver.pid")).expect("it was started");
        let pid = Pid::from_raw(pid.trim().parse().expect("a process has a number"));
        kill(pid, Signal::SIGKILL).expect("it runs");
        let gone = || (!Path::new(&format!("/proc/{pid}/exe")).exists()).then_some(());
        eventually("the end of the API", Duration::from_secs(10), gone);
    }

    /// Deletes an object from etcd, as another API server would, such as
    /// `services/specs/default/web`; works also after [`Self::lose`].
    ///
    /// # Panics
    /// When the object does not exist.
    pub fn forget(&self, key: &str) {
        let text = etcd("deleterange", &format!("/registry/{key}"), r#"{"key": "%s"}"#);
        assert!(text.contains(r#""deleted":"1""#), "{key}: {text}");
    }

    /// Compacts etcd to its current revision: a watch from an earlier version is refused with 410,
    /// unless the API server keeps a cache of events (`--watch-cache=false` turns it off).
    ///
    /// # Panics
    /// When etcd fails.
    pub fn compact(&self) {
        let text = etcd("range", "/", r#"{"key": "%s"}"#);
        let reply: Value = serde_json::from_str(&text).expect("etcd speaks JSON");
        let revision = reply["header"]["revision"].as_str().expect("each reply has the revision");
        let text = etcd("compaction", "", &format!(r#"{{"revision": "{revision}", "physical": true}}"#));
        assert!(text.contains(r#""header""#), "{revision}: {text}");
    }

    /// A path in its state directory, such as `dns.kubeconfig`, `serviceaccount`, `client.crt`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.state.path().join(name)
    }

    /// Sends a request as administrator; returns status and body.
    ///
    /// # Panics
    /// When no reply arrives.
    pub fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let form = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        self.send_in(form, method, path, body)
    }

    /// Like [`Self::send`], with a body in another content type, such as `application/yaml`.
    ///
    /// # Panics
    /// When no reply arrives.
    pub fn send_in(&self, form: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let tokens = fs::read_to_string(self.path("tokens.csv")).expect("it was started");
        let token = tokens.split(',').next().unwrap_or_default();
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--request", method, "--write-out", "\n%{http_code}"]);
        command.arg("--cacert").arg(self.path("ca.crt"));
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
        command.args(["--header", &format!("Content-Type: {form}")]);
        if !body.is_empty() {
            command.args(["--data-binary", body]);
        }
        command.arg(format!("https://127.0.0.1:6443{path}"));
        let output = output(command, Duration::from_secs(20));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').expect("curl prints the status");
        let status = status.parse().ok().filter(|_| output.status.success());
        let status = status.unwrap_or_else(|| panic!("{path}: {}", String::from_utf8_lossy(&output.stderr)));
        (status, body.to_owned())
    }

    /// Creates an object.
    ///
    /// # Panics
    /// When the API refuses it.
    pub fn create(&self, path: &str, object: &str) {
        let (status, body) = self.send("POST", path, object);
        assert_eq!(status, 201, "{path}: {body}");
    }

    /// Sends requests of one method as administrator, in sequence, each with its path and body.
    ///
    /// # Panics
    /// When the API refuses one.
    pub fn send_all(&self, method: &str, requests: &[(String, String)]) {
        let form = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let tokens = fs::read_to_string(self.path("tokens.csv")).expect("it was started");
        let token = tokens.split(',').next().unwrap_or_default();
        // One process, and one connection, for all requests.
        let mut config = String::new();
        for (path, body) in requests {
            let quoted = body.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
            config += &format!(
                "next\nsilent\nshow-error\nrequest = {method}\ncacert = {}\nheader = \"Authorization: Bearer {token}\"\n\
                 header = \"Content-Type: {form}\"\ndata-binary = \"{quoted}\"\noutput = /dev/null\nwrite-out = \"%{{http_code}}\\n\"\n\
                 url = https://127.0.0.1:6443{path}\n",
                self.path("ca.crt").display()
            );
        }
        let file = self.path("requests");
        fs::write(&file, config.strip_prefix("next\n").unwrap_or_default()).expect("it is the test's own");
        let mut command = Command::new("curl");
        command.arg("--config").arg(file);
        let output = output(command, Duration::from_secs(100));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let done = text.lines().filter(|status| status.starts_with('2')).count();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(done, requests.len(), "{method}: {text}{errors}");
    }

    fn script(&self, name: &str) {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("kube").join(name));
        command.env("KUBE_STATE_DIR", self.state.path()).env("KUBE_ADDRESS", self.address);
        command.env("KUBE_APISERVER_FLAGS", self.flags);
        let output = output(command, Duration::from_secs(100));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {errors}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All processes end with the namespaces; only the content of the directory is removed here.
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("kube/down"));
        drop(command.arg("--keep").env("KUBE_STATE_DIR", self.state.path()).status());
    }
}

/// Calls etcd's JSON gateway, with `key` in place of `%s` in the body; returns the reply.
fn etcd(call: &str, key: &str, body: &str) -> String {
    let mut command = Command::new("sh");
    let script = r#"curl --silent --show-error "http://127.0.0.1:2379/v3/kv/$1" \
        --data "$(printf "$3" "$(printf %s "$2" | base64 --wrap=0)")""#;
    command.args(["-c", script, "sh", call, key, body]);
    let output = output(command, Duration::from_secs(20));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text + &String::from_utf8_lossy(&output.stderr)
}

fn built() -> bool {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/localdns-kube"));
    let directory = std::env::var_os("KUBE_BIN_DIR").map(PathBuf::from).or(home).unwrap_or_default();
    ["etcd", "kube-apiserver"].iter().all(|program| directory.join(program).is_file())
}
