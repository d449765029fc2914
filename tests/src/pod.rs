//! A container: the first process of its own PID namespace, in the network of its caller.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use crate::binary::binary;
use crate::clock::eventually;
use crate::command::signal;
use crate::lock::lock;
use crate::place::tempdir;

/// One container; it ends when dropped.
pub struct Pod {
    unshare: Child,
    /// The program's process ID outside of the container.
    pub pid: u32,
    log: Arc<Mutex<String>>,
    _root: TempDir,
}

impl Pod {
    /// Runs the program with `words` after the shell commands `prepare`, which find the directories
    /// in their environment.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start<S: AsRef<OsStr>>(prepare: &str, places: &[(&str, &Path)], words: &[S]) -> Self {
        let root = tempdir();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec"]);
        command.arg(format!("{ROOT}\n{prepare}\nexec \"$@\"")).arg("sh").arg(binary()).args(words);
        command.env("ROOT", root.path()).envs(places.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut unshare = command.spawn().expect("there are namespaces");
        let log = Arc::<Mutex<String>>::default();
        follow(unshare.stdout.take().expect("it is piped"), log.clone());
        follow(unshare.stderr.take().expect("it is piped"), log.clone());
        let id = unshare.id();
        let pid = eventually("the first process", PATIENCE, || {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
            children.trim().parse().ok()
        });
        Self { unshare, pid, log, _root: root }
    }

    /// The output of the program so far.
    pub fn log(&self) -> String {
        lock(&self.log).clone()
    }

    /// Waits until the output contains `part`.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn wait_for_log(&self, part: &str) {
        eventually(&format!("{part}; said was {}", self.log()), PATIENCE, || {
            self.log().contains(part).then_some(())
        });
    }

    /// Returns the process's network sockets: UDP and TCP, netlink, and named unix sockets.
    ///
    /// # Panics
    /// When it does not run.
    pub fn network(&self) -> Vec<String> {
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("it runs");
        let targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        let inodes = targets.filter_map(|target| {
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        });
        let inodes: Vec<_> = inodes.collect();
        let mut held = Vec::new();
        for table in ["tcp", "tcp6", "udp", "udp6", "netlink", "unix"] {
            let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            let named = |line: &&str| table != "unix" || line.contains('@');
            let ours =
                |line: &&str| line.split_whitespace().any(|word| inodes.iter().any(|inode| inode == word));
            held.extend(
                text.lines().skip(1).filter(named).filter(ours).map(|line| format!("{table}: {line}")),
            );
        }
        held
    }

    /// Sends SIGTERM and returns the exit code.
    ///
    /// # Panics
    /// When it does not end.
    pub fn end(&mut self) -> Option<i32> {
        signal(self.pid, "TERM");
        self.ended()
    }

    /// Kills the process with SIGKILL.
    ///
    /// # Panics
    /// When it does not end.
    pub fn kill(&mut self) {
        signal(self.pid, "KILL");
        self.ended();
    }

    /// Waits for the process to end and returns the exit code.
    ///
    /// # Panics
    /// When it does not end.
    pub fn ended(&mut self) -> Option<i32> {
        eventually("its end", PATIENCE, || self.unshare.try_wait().expect("a child can be asked")).code()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- a pod's log ---\n{}", self.log());
        }
        drop(self.unshare.kill());
        drop(self.unshare.wait());
    }
}

fn follow(pipe: impl Read + Send + 'static, log: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut log = lock(&log);
            log.push_str(&line);
            log.push('\n');
        }
    });
}

/// A private `/run`.
const ROOT: &str = "mount -t tmpfs tmpfs /run";
const PATIENCE: Duration = Duration::from_secs(20);
