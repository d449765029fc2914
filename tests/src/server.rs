//! Runs the real binary on a Corefile.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::admin::Metrics;
use crate::binary::binary;
use crate::cgroup::Cgroup;
use crate::clock::{eventually, now};
use crate::command::{output, signal};
use crate::lock::lock;
use crate::place::{publish, tempdir};
use crate::printed;

/// How to start a server, besides its Corefile.
#[derive(Debug, Default, Clone)]
pub struct Options {
    subcommand: &'static [&'static str],
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    exports: Vec<String>,
    cwd: Option<PathBuf>,
    doors: Vec<PathBuf>,
    files: Option<String>,
    reader: bool,
    /// Descriptors that the program inherits, numbered from 3.
    inherits: Vec<Arc<OwnedFd>>,
    without_corefile: bool,
    through: &'static str,
}

impl Options {
    /// Additional arguments, after `-conf` and `-pidfile`.
    pub fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.args.extend(args.map(Into::into));
        self
    }

    /// A subcommand, before all other arguments.
    pub fn subcommand(self, subcommand: &'static [&'static str]) -> Self {
        Self { subcommand, ..self }
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable to a shell word: `$$` is the program's process ID, `$PPID` its parent's.
    pub fn export(mut self, name: &str, word: &str) -> Self {
        self.exports.push(format!("export {name}={word} && "));
        self
    }

    /// A command that execs the server, such as one that drops privileges.
    pub fn through(self, through: &'static str) -> Self {
        Self { through, ..self }
    }

    /// The control group that the server starts in; groups of different kinds can be combined.
    pub fn within(mut self, group: &Cgroup) -> Self {
        self.doors.push(group.door());
        self
    }

    /// Limits the number of the server's open files.
    pub fn files(self, most: u32) -> Self {
        Self { files: Some(format!("-n {most}")), ..self }
    }

    /// Lowers the soft limit of open files; the hard limit stays that of this process.
    pub fn files_at_first(self, soft: u32) -> Self {
        Self { files: Some(format!("-S -n {soft}")), ..self }
    }

    /// Pipes standard output to another process, which [`Server::signal_reader`] can stop.
    pub fn reader(self) -> Self {
        Self { reader: true, ..self }
    }

    /// Descriptors to inherit, from number 3 on; here numbered 100 or more and without CLOEXEC:
    /// only within [`crate::isolated()`], where no other test starts programs.
    pub fn inherits(self, inherits: Vec<Arc<OwnedFd>>) -> Self {
        Self { inherits, ..self }
    }

    /// Omits `-conf`; the program looks for a Corefile by itself.
    pub fn without_corefile(self) -> Self {
        Self { without_corefile: true, ..self }
    }

    /// The working directory; default is the directory of the Corefile.
    pub fn cwd(self, cwd: &Path) -> Self {
        Self { cwd: Some(cwd.to_owned()), ..self }
    }
}

/// A running `localdns`; it is killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    reader: Option<Child>,
    directory: TempDir,
    log: Arc<Log>,
    started_in: Duration,
}

impl Server {
    /// Starts the program on this Corefile and waits for its pidfile.
    ///
    /// # Panics
    /// When it ends before, or takes more than 10 s.
    pub fn start(corefile: &str) -> Self {
        Self::start_with(corefile, Options::default())
    }

    /// Like [`Self::start`], with options.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn start_with(corefile: &str, options: Options) -> Self {
        let directory = tempdir();
        std::fs::write(directory.path().join("Corefile"), corefile)
            .expect("the test's directory is writable");
        let started = now();
        let mut command = command(directory.path(), &options);
        let log = Arc::new(Log::default());
        let reader = options.reader.then(|| {
            let mut cat = Command::new("cat");
            let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat is there");
            command.stdout(cat.stdin.take().expect("its stdin is piped"));
            log.follow(cat.stdout.take().expect("its stdout is piped"));
            cat
        });
        let mut child = command.spawn().expect("the binary starts");
        // Closes the copies in this process of the reader's pipe and of the inherited descriptors.
        drop((command, options));
        if let Some(stdout) = child.stdout.take() {
            log.follow(stdout);
        }
        log.follow(child.stderr.take().expect("stderr is piped"));
        let mut server = Self { child, reader, directory, log, started_in: Duration::ZERO };
        let pidfile = server.path("pid");
        eventually("the pidfile", Duration::from_secs(10), || {
            let ended = server.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "ended before it served: {ended:?}\n{}", server.log_text());
            let text = std::fs::read_to_string(&pidfile).ok()?;
            (text.trim().parse() == Ok(server.child.id())).then_some(())
        });
        server.started_in = started.elapsed();
        server
    }

    /// Runs the program on a Corefile that it must refuse, and returns its output.
    ///
    /// # Panics
    /// When it serves, takes more than 10 s, exits with another code than 1, or leaves files
    /// behind.
    pub fn expect_failure(corefile: &str, options: Options) -> Output {
        let directory = tempdir();
        std::fs::write(directory.path().join("Corefile"), corefile)
            .expect("the test's directory is writable");
        let output = output(command(directory.path(), &options), Duration::from_secs(10));
        assert_eq!(output.status.code(), Some(1), "a bad Corefile is exit code 1: {output:?}");
        let files = std::fs::read_dir(directory.path()).expect("the test's directory is readable");
        let files: Vec<_> = files.map(|file| file.expect("it is listed").file_name()).collect();
        assert_eq!(files, ["Corefile"], "what is there after a failed start");
        let left = std::fs::read_to_string(directory.path().join("Corefile")).expect("it is readable");
        assert_eq!(left, corefile, "a failed start changed the Corefile");
        output
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The time from exec to the pidfile.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// The path of a file beside the Corefile, which is itself named `Corefile`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the Corefile atomically.
    pub fn write_corefile(&self, text: &str) {
        publish(&self.path("Corefile"), text);
    }

    /// Sends a signal by its name without `SIG`. For STOP, waits until all threads are stopped.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
        if name == "STOP" {
            eventually("all its threads stand still", Duration::from_secs(10), || {
                const STANDS: [char; 5] = ['T', 't', 'D', 'Z', 'X'];
                let stands = |id: &u32| {
                    let stat = std::fs::read_to_string(format!("/proc/{}/task/{id}/stat", self.pid()));
                    // An ended thread has no file; one in the kernel (D) stops on its way back.
                    stat.map_or(true, |stat| {
                        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(STANDS))
                    })
                };
                self.threads("").iter().all(stands).then_some(())
            });
        }
    }

    /// Sends a signal to the process that reads standard output: see [`Options::reader`].
    ///
    /// # Panics
    /// When there is no such process.
    pub fn signal_reader(&self, name: &str) {
        signal(self.reader.as_ref().expect("the server was started with a reader").id(), name);
    }

    /// The IDs of its threads with a name that begins with `name`.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn threads(&self, name: &str) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the process runs");
        let named =
            |path: &Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        let mut ids: Vec<u32> = tasks
            .filter_map(|task| Some(task.ok()?.path()))
            .filter(|path| named(path))
            .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Panics
    /// When it takes more than 30 s.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait(Duration::from_secs(30))
    }

    /// Waits for the process to end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        eventually("the end of the process", patience, || {
            self.child.try_wait().expect("a child can be asked")
        })
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_none()
    }

    /// The last 20,000 lines of stdout and stderr.
    pub fn log_lines(&self) -> Vec<String> {
        lock(&self.log.lines).iter().cloned().collect()
    }

    /// The lines as one text.
    pub fn log_text(&self) -> String {
        self.log_lines().join("\n")
    }

    /// Waits for a line that contains `part`, earlier ones included, and returns it.
    ///
    /// # Panics
    /// When none appears in time.
    pub fn wait_for_log(&self, part: &str, patience: Duration) -> String {
        self.wait_for_lines(part, 1, patience).remove(0)
    }

    /// Waits until `n` lines contain `part`, and returns them.
    ///
    /// # Panics
    /// When they do not appear in time.
    pub fn wait_for_lines(&self, part: &str, n: usize, patience: Duration) -> Vec<String> {
        let deadline = now() + patience;
        let mut lines = lock(&self.log.lines);
        loop {
            let found: Vec<String> = lines.iter().filter(|line| line.contains(part)).cloned().collect();
            if found.len() >= n {
                return found;
            }
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                let all: Vec<&str> = lines.iter().map(String::as_str).collect();
                panic!("{} of {n} lines with {part:?} within {patience:?}:\n{}", found.len(), all.join("\n"));
            }
            lines = self.log.arrived.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Scrapes its metrics.
    ///
    /// # Panics
    /// When the request fails.
    pub fn metrics(&self, address: SocketAddr) -> Metrics {
        Metrics::of(address)
    }

    /// The CPU time used, in steps of 10 ms.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the process runs");
        // utime and stime, behind the name, which may contain blanks.
        let fields = stat.rsplit_once(')').expect("the name stands in parentheses").1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// The number of its open file descriptors.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn fds(&self) -> usize {
        self.fd_targets().len()
    }

    /// The targets of its descriptors, as in `/proc/PID/fd`, `closed` for one that is just closed.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn fd_targets(&self) -> Vec<PathBuf> {
        let links = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the process runs");
        links
            .flatten()
            .map(|link| std::fs::read_link(link.path()).unwrap_or_else(|_| "closed".into()))
            .collect()
    }

    /// Its resident memory in KiB.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn rss_kb(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the process runs");
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a living process has memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            let lines = self.log_lines();
            let last = &lines[lines.len().saturating_sub(100)..];
            eprintln!("--- the end of the server's log ---\n{}", last.join("\n"));
        }
        printed::collect("localdns (log)", &self.log_lines());
        // Fails for a process that has ended.
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(reader) = &mut self.reader {
            drop(reader.kill());
            drop(reader.wait());
        }
    }
}

fn command(directory: &Path, options: &Options) -> Command {
    // The shell joins the group and execs the program, so the group accounts for all of it.
    let enter = options.doors.iter().map(|door| format!("echo 0 > '{}' && ", door.display()));
    let limit = options.files.iter().map(|most| format!("ulimit {most} && "));
    let given = options.inherits.iter().enumerate().map(|(nth, descriptor)| {
        let (number, here) = (3 + nth, descriptor.as_raw_fd());
        format!("exec {number}<&{here} {here}<&- && ")
    });
    let prepare: String = enter.chain(limit).chain(options.exports.iter().cloned()).chain(given).collect();
    let mut command = if prepare.is_empty() && options.through.is_empty() {
        Command::new(binary())
    } else {
        // Only bash supports descriptors above 9.
        let mut command = Command::new(if options.inherits.is_empty() { "sh" } else { "bash" });
        command.args(["-c", &format!("{prepare}exec {} \"$@\"", options.through), "sh"]).arg(binary());
        command
    };
    command.args(options.subcommand);
    if !options.without_corefile {
        command.arg("-conf").arg(directory.join("Corefile"));
    }
    command.arg("-pidfile").arg(directory.join("pid"));
    command.args(&options.args);
    command.current_dir(options.cwd.as_deref().unwrap_or(directory));
    for name in [
        "LOCALDNS_ADDRESS",
        "LOCALDNS_PORT",
        "LOCALDNS_CACHE_BYTES",
        "LOCALDNS_CRITICAL_FQDNS",
        "LOCALDNS_HOSTS_PLUGIN_REFRESH_INTERVAL_IN_SECONDS",
        "LOCALDNS_SHIPPED_HOSTS",
        "LOCALDNS_PREDECESSOR",
        "MANAGERPID",
        "NOTIFY_SOCKET",
        "SYSTEMD_EXEC_PID",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
    ] {
        command.env_remove(name);
    }
    command.envs(options.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The output of the process by lines.
#[derive(Debug, Default)]
struct Log {
    lines: Mutex<VecDeque<String>>,
    arrived: Condvar,
}

impl Log {
    fn follow(self: &Arc<Self>, pipe: impl Read + Send + 'static) {
        let log = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::with_capacity(4096, pipe).split(b'\n') {
                let Ok(line) = line else { return };
                let mut lines = lock(&log.lines);
                if lines.len() == LOG_LINES {
                    lines.pop_front();
                }
                lines.push_back(String::from_utf8_lossy(&line).into_owned());
                drop(lines);
                log.arrived.notify_all();
            }
        });
    }
}

const LOG_LINES: usize = 20_000;
