//! The real binary, run on a Corefile, watched and ended.

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

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::admin::Metrics;
use crate::binary::binary;
use crate::cgroup::Cgroup;
use crate::clock::{eventually, now};
use crate::lock::lock;
use crate::place::{publish, tempdir};
use crate::printed;

/// How a server is started, beside its Corefile.
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
    /// Numbers of descriptors, from 3 on in the program.
    inherits: Vec<Arc<OwnedFd>>,
    without_corefile: bool,
    through: &'static str,
}

impl Options {
    /// Further arguments, behind `-conf` and `-pidfile`.
    pub fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.args.extend(args.map(Into::into));
        self
    }

    /// What it does instead of serving alone, in front of all arguments.
    pub fn subcommand(self, subcommand: &'static [&'static str]) -> Self {
        Self { subcommand, ..self }
    }

    /// A variable of its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A variable of its environment in the shell's words, which becomes the program: `$$` is its process id, `$PPID` that
    /// of its parent.
    pub fn export(mut self, name: &str, word: &str) -> Self {
        self.exports.push(format!("export {name}={word} && "));
        self
    }

    /// A program with its words that becomes the server, such as one that takes rights away.
    pub fn through(self, through: &'static str) -> Self {
        Self { through, ..self }
    }

    /// The control group that it starts in; several groups of different kinds may be named.
    pub fn within(mut self, group: &Cgroup) -> Self {
        self.doors.push(group.door());
        self
    }

    /// It may open so many files and no more.
    pub fn files(self, most: u32) -> Self {
        Self { files: Some(format!("-n {most}")), ..self }
    }

    /// It may open so many files, and raise that to what this process may.
    pub fn files_at_first(self, soft: u32) -> Self {
        Self { files: Some(format!("-S -n {soft}")), ..self }
    }

    /// Its standard output is read by a process of its own, which [`Server::signal_reader`] can stop.
    pub fn reader(self) -> Self {
        Self { reader: true, ..self }
    }

    /// Descriptors that it is given, from number 3 on. They must be numbered 100 or more here, and open over an exec: to be
    /// used within [`crate::isolated()`] alone, where no other test starts programs.
    pub fn inherits(self, inherits: Vec<Arc<OwnedFd>>) -> Self {
        Self { inherits, ..self }
    }

    /// Its Corefile comes from elsewhere: there is no `-conf`.
    pub fn without_corefile(self) -> Self {
        Self { without_corefile: true, ..self }
    }

    /// Its working directory; the directory of the Corefile unless said.
    pub fn cwd(self, cwd: &Path) -> Self {
        Self { cwd: Some(cwd.to_owned()), ..self }
    }
}

/// A running `localdns`; it is killed with its value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    reader: Option<Child>,
    directory: TempDir,
    log: Arc<Log>,
    started_in: Duration,
}

impl Server {
    /// Starts the program on this Corefile and waits until its pidfile stands.
    ///
    /// # Panics
    /// When it ends before, or takes more than 10 s.
    pub fn start(corefile: &str) -> Self {
        Self::start_with(corefile, Options::default())
    }

    /// As [`Self::start`], with options.
    ///
    /// # Panics
    /// When it ends before its pidfile stands, or takes more than 10 s.
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
        // Ours would keep the reader's pipe open, and what the server inherits.
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

    /// Runs the program on a Corefile that it must refuse, and returns what it said.
    ///
    /// # Panics
    /// When it serves, or does not end within 10 s, or with another exit code than 1, or leaves anything behind in its directory.
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

    /// From exec to the pidfile.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// A file beside the Corefile, which is itself named `Corefile`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the Corefile in one step.
    pub fn write_corefile(&self, text: &str) {
        publish(&self.path("Corefile"), text);
    }

    /// Sends a signal by its name without `SIG`. One thread takes STOP and has the others stop, which is waited for.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
        if name == "STOP" {
            eventually("all its threads stand still", Duration::from_secs(10), || {
                const STANDS: [char; 5] = ['T', 't', 'D', 'Z', 'X'];
                let stands = |id: &u32| {
                    let stat = std::fs::read_to_string(format!("/proc/{}/task/{id}/stat", self.pid()));
                    // Behind the name; one that has just ended is gone, and one in the kernel stops before it leaves it.
                    stat.map_or(true, |stat| {
                        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(STANDS))
                    })
                };
                self.threads("").iter().all(stands).then_some(())
            });
        }
    }

    /// Sends a signal to the process that reads its standard output: see [`Options::reader`].
    ///
    /// # Panics
    /// When there is none.
    pub fn signal_reader(&self, name: &str) {
        signal(self.reader.as_ref().expect("the server was started with a reader").id(), name);
    }

    /// The ids of its threads whose name begins so.
    ///
    /// # Panics
    /// When the process is gone.
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

    /// Waits for the end.
    ///
    /// # Panics
    /// When it does not come in time.
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        eventually("the end of the process", patience, || {
            self.child.try_wait().expect("a child can be asked")
        })
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_none()
    }

    /// What it said on stdout and stderr: the last 20,000 lines.
    pub fn log_lines(&self) -> Vec<String> {
        lock(&self.log.lines).iter().cloned().collect()
    }

    /// What it said, as one text.
    pub fn log_text(&self) -> String {
        self.log_lines().join("\n")
    }

    /// Waits for a line that contains `part`, old ones included, and returns it.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn wait_for_log(&self, part: &str, patience: Duration) -> String {
        self.wait_for_lines(part, 1, patience).remove(0)
    }

    /// Waits until `n` lines contain `part`, and returns those.
    ///
    /// # Panics
    /// When they do not come in time.
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
            lines = self.log.came.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Scrapes its metrics.
    ///
    /// # Panics
    /// When they are not there.
    pub fn metrics(&self, address: SocketAddr) -> Metrics {
        Metrics::of(address)
    }

    /// The processor time that it has used, in steps of 10 ms.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the process runs");
        // utime and stime, behind the name, which may hold blanks.
        let fields = stat.rsplit_once(')').expect("the name stands in parentheses").1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// How many file descriptors it holds.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the process runs").count()
    }

    /// Its resident memory in KiB.
    ///
    /// # Panics
    /// When the process is gone.
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
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(reader) = &mut self.reader {
            drop(reader.kill());
            drop(reader.wait());
        }
    }
}

/// Sends a signal by its name without `SIG`.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: u32, name: &str) {
    let signal: Signal = format!("SIG{name}").parse().expect("a signal has this name");
    let sent = kill(Pid::from_raw(pid.cast_signed()), signal);
    assert!(sent.is_ok(), "signal {name} to {pid}: {sent:?}");
}

/// Runs a command to its end and returns what it said.
///
/// # Panics
/// When that takes longer than `patience`; the command is killed first.
pub fn output(mut command: Command, patience: Duration) -> Output {
    let what = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let stdout = read_aside(child.stdout.take().expect("stdout is piped"));
    let stderr = read_aside(child.stderr.take().expect("stderr is piped"));
    let deadline = now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be asked") {
            break Some(status);
        }
        if now() > deadline {
            child.kill().expect("a child can be killed");
            child.wait().expect("a killed child ends");
            break None;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    let Some(status) = status else {
        panic!(
            "{what} did not end within {patience:?}:\n{}{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        );
    };
    printed::collect_output(&command, [&stdout, &stderr]);
    Output { status, stdout, stderr }
}

fn read_aside(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut text = Vec::new();
        // A broken pipe ends the text like its end.
        drop(pipe.read_to_end(&mut text));
        text
    })
}

fn command(directory: &Path, options: &Options) -> Command {
    // The shell prepares, and becomes the program: whatever that takes is counted in its group.
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
        // Of the two only bash knows descriptors beyond 9.
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

/// What the process says, line by line.
#[derive(Debug, Default)]
struct Log {
    lines: Mutex<VecDeque<String>>,
    came: Condvar,
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
                log.came.notify_all();
            }
        });
    }
}

const LOG_LINES: usize = 20_000;
