//! CoreDNS 1.15.0 as a process; it is killed when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tests::{eventually, lacking, output, publish, signal, tempdir};

/// A running CoreDNS.
pub(crate) struct CoreDns {
    child: Child,
    directory: TempDir,
}

impl CoreDns {
    /// The path of CoreDNS 1.15.0, from the PATH or the directory of `go install`. Reports that
    /// `test` is skipped when it is missing.
    ///
    /// # Panics
    /// When it is missing and required.
    pub(crate) fn find(test: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let go = std::env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin"));
        let files = std::env::split_paths(&path).chain(go).map(|directory| directory.join("coredns"));
        let mut others = Vec::new();
        for program in files.filter(|path| path.is_file()) {
            let mut command = Command::new(&program);
            command.arg("-version");
            let printed = output(command, Duration::from_secs(20)).stdout;
            let version = String::from_utf8_lossy(&printed).lines().next().unwrap_or_default().to_owned();
            if version == "CoreDNS-1.15.0" {
                return Some(program);
            }
            others.push(format!("{} is {version:?}", program.display()));
        }
        let why = if others.is_empty() { "coredns is not installed" } else { &others.join(", ") };
        let install = "go install github.com/coredns/coredns@v1.15.0";
        lacking(test, "coredns", &format!("{why}, and CoreDNS 1.15.0 is needed ({install})"));
        None
    }

    /// The plugins in the order of CoreDNS's `plugin.cfg`, from Go's module cache. Reports that
    /// `test` is skipped where that is missing.
    pub(crate) fn plugins(test: &str) -> Option<Vec<String>> {
        let directory = |variable: &str, below: &str| {
            std::env::var_os(variable).map(|directory| PathBuf::from(directory).join(below))
        };
        let caches =
            [directory("GOMODCACHE", ""), directory("GOPATH", "pkg/mod"), directory("HOME", "go/pkg/mod")];
        let file = "github.com/coredns/coredns@v1.15.0/plugin.cfg";
        let text =
            caches.into_iter().flatten().find_map(|cache| std::fs::read_to_string(cache.join(file)).ok());
        let Some(text) = text else {
            lacking(test, "coredns", "the source of CoreDNS 1.15.0 is not in Go's module cache");
            return None;
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Some(lines.filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned()).collect())
    }

    /// Starts CoreDNS and waits until it serves.
    ///
    /// # Panics
    /// When it ends before, or takes more than 30 s.
    pub(crate) fn start(program: &Path, corefile: &str) -> Self {
        let mut server = Self::spawn(program, corefile);
        assert!(server.serves(), "CoreDNS ended:\n{}\n{corefile}", server.log());
        server
    }

    /// Returns `None` if CoreDNS refuses this Corefile; otherwise its log while it served.
    ///
    /// # Panics
    /// When CoreDNS neither serves nor ends within 30 s.
    pub(crate) fn serves_this(program: &Path, corefile: &str) -> Option<String> {
        let mut server = Self::spawn(program, corefile);
        server.serves().then(|| server.log())
    }

    fn spawn(program: &Path, corefile: &str) -> Self {
        let directory = tempdir();
        let file = |name: &str| directory.path().join(name);
        std::fs::write(file("Corefile"), corefile).expect("the test's directory is writable");
        let log = File::create(file("log")).expect("the test's directory is writable");
        let child = Command::new(program)
            .arg("-conf")
            .arg(file("Corefile"))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("coredns starts");
        Self { child, directory }
    }

    /// Waits until CoreDNS serves or ends; true if it serves.
    fn serves(&mut self) -> bool {
        eventually("CoreDNS to serve or to end", Duration::from_secs(30), || {
            let ended = self.child.try_wait().expect("a child can be asked").is_some();
            if self.log().contains("\nCoreDNS-") { Some(true) } else { ended.then_some(false) }
        })
    }

    /// Replaces the Corefile and sends the signal to reload it.
    pub(crate) fn reload(&self, corefile: &str) {
        publish(&self.directory.path().join("Corefile"), corefile);
        signal(self.child.id(), "USR1");
    }

    /// Returns CoreDNS's log.
    pub(crate) fn log(&self) -> String {
        let octets = std::fs::read(self.directory.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&octets).into_owned()
    }
}

impl Drop for CoreDns {
    fn drop(&mut self) {
        // Fails for a process that has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
