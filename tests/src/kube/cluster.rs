//! A real API: etcd and kube-apiserver as released, started by the scripts in `tests/kube`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::clock::eventually;
use crate::isolated::{lacking, tool};
use crate::place::tempdir;
use crate::server::output;

/// An API at 127.0.0.1:6443, with no object but its own. Only within [`isolated`](crate::isolated()).
pub struct Cluster {
    state: TempDir,
    address: &'static str,
}

impl Cluster {
    /// Starts it; `None` where its programs are not built (`tests/kube/build`), or a tool is missing.
    ///
    /// # Panics
    /// When it does not start, or where `LOCALDNS_TESTS_REQUIRE` names what is missing.
    pub fn up(test: &str) -> Option<Self> {
        Self::up_at("127.0.0.1", test)
    }

    /// As [`Self::up`], listening at `address`: 127.0.0.1 or all, `0.0.0.0`.
    ///
    /// # Panics
    /// As [`Self::up`].
    pub fn up_at(address: &'static str, test: &str) -> Option<Self> {
        if !built() {
            lacking(test, "kube-apiserver", "kube-apiserver is not built (tests/kube/build)");
            return None;
        }
        if !["openssl", "curl"].into_iter().all(|program| tool(test, program)) {
            return None;
        }
        let cluster = Self { state: tempdir(), address };
        cluster.start();
        Some(cluster)
    }

    /// Starts what is not running, with the objects that were there.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(&self) {
        self.script("up");
    }

    /// Ends the API's process as a crash would; etcd stays.
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

    /// Takes an object out of etcd, as another API server would, such as `services/specs/default/web`; also while this API is
    /// lost.
    ///
    /// # Panics
    /// When it was not there.
    pub fn forget(&self, key: &str) {
        let mut command = Command::new("sh");
        let script = r#"curl --silent --show-error http://127.0.0.1:2379/v3/kv/deleterange \
            --data "$(printf '{"key": "%s"}' "$(printf %s "$1" | base64 --wrap=0)")""#;
        command.args(["-c", script, "sh", &format!("/registry/{key}")]);
        let output = output(command, Duration::from_secs(20));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(r#""deleted":"1""#), "{key}: {text}{errors}");
    }

    /// Below the directory of its state, such as `dns.kubeconfig`, `serviceaccount`, `client.crt`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.state.path().join(name)
    }

    /// A request by its administrator; status and body.
    ///
    /// # Panics
    /// When no reply comes.
    pub fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let form = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        self.send_in(form, method, path, body)
    }

    /// As [`Self::send`], with a body in another form, such as `application/yaml`.
    ///
    /// # Panics
    /// When no reply comes.
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
        let (body, status) = text.rsplit_once('\n').expect("curl tells the status");
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

    fn script(&self, name: &str) {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("kube").join(name));
        command.env("KUBE_STATE_DIR", self.state.path()).env("KUBE_ADDRESS", self.address);
        let output = output(command, Duration::from_secs(100));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {errors}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Inside of its namespaces all ends with the test; what is removed here is the directory's content.
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("kube/down"));
        drop(command.arg("--keep").env("KUBE_STATE_DIR", self.state.path()).status());
    }
}

fn built() -> bool {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/localdns-kube"));
    let directory = std::env::var_os("KUBE_BIN_DIR").map(PathBuf::from).or(home).unwrap_or_default();
    ["etcd", "kube-apiserver"].iter().all(|program| directory.join(program).is_file())
}
