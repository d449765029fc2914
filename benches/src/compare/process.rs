//! Processes of the comparison: starts them on cores, reads their output, ends them.

use std::collections::VecDeque;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};

use super::proc::Snapshot;
use load::clock::Clock;

/// A command line.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The program's file.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<String>,
    /// Variables added to its environment.
    pub env: Vec<(&'static str, String)>,
}

impl Launch {
    /// Creates the command line of a program without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), ..Self::default() }
    }

    /// Adds arguments.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a variable.
    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }
}

/// A process with its descendants, ended on drop. Its output is read and counted.
pub struct Running {
    child: Child,
    printed: Arc<Printed>,
}

#[derive(Default)]
struct Printed {
    lines: AtomicU64,
    tail: Mutex<VecDeque<u8>>,
}

impl Running {
    /// Starts a program on the given cores.
    ///
    /// With one core, the calling thread is pinned to it first, so that the program starts there
    /// without an intermediate program. With several, `taskset` starts the program.
    ///
    /// # Errors
    /// When the program cannot be started or there is no such core.
    pub fn start(launch: &Launch, cores: &[usize]) -> Result<Self> {
        let mut command = match cores {
            [_] => Command::new(&launch.program),
            _ => {
                let list: Vec<String> = cores.iter().map(usize::to_string).collect();
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", &list.join(",")]).arg(&launch.program);
                command
            }
        };
        command.args(&launch.args).envs(launch.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let born = std::thread::scope(|scope| {
            let birth = scope.spawn(|| -> Result<Child> {
                if let [core] = cores {
                    sockets::pin_to_core(*core).with_context(|| format!("core {core}"))?;
                }
                command.spawn().with_context(|| format!("start {}", launch.program.display()))
            });
            birth.join().expect("starting a program does not panic")
        });
        let mut child = born?;
        let printed = Arc::new(Printed::default());
        if let Some(stdout) = child.stdout.take() {
            read_in_background(stdout, Arc::clone(&printed));
        }
        if let Some(stderr) = child.stderr.take() {
            read_in_background(stderr, Arc::clone(&printed));
        }
        Ok(Self { child, printed })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of lines that were printed and read.
    pub fn lines(&self) -> u64 {
        self.printed.lines.load(Ordering::Acquire)
    }

    /// Returns the end of the output, at most 2 kB.
    pub fn last_words(&self) -> String {
        let Ok(tail) = self.printed.tail.lock() else { return String::new() };
        let bytes: Vec<u8> = tail.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Requests the program's end, waits up to the deadline, then kills it and its remaining
    /// children.
    fn stop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        let mut family = Snapshot::take().map(|now| now.tree(self.pid())).unwrap_or_default();
        family.remove(&self.pid());
        signal("TERM", [self.pid()]);
        let clock = Clock::start();
        while clock.now_ns() < END_WAIT.as_nanos() as u64 {
            if self.ended().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(self.child.kill());
        drop(self.child.wait());
        let Ok(now) = Snapshot::take() else { return };
        signal("KILL", family.into_iter().filter(|pid| now.knows(*pid)));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends a signal; a process that has already ended is no error.
pub(crate) fn signal(name: &str, pids: impl IntoIterator<Item = u32>) {
    let pids: Vec<String> = pids.into_iter().map(|pid| pid.to_string()).collect();
    if !pids.is_empty() {
        drop(Command::new("kill").arg(format!("-{name}")).args(pids).stderr(Stdio::null()).status());
    }
}

fn read_in_background(mut stream: impl Read + Send + 'static, printed: Arc<Printed>) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            let read = &bytes[..length];
            let lines = read.iter().filter(|&&byte| byte == b'\n').count();
            let Ok(mut tail) = printed.tail.lock() else { return };
            tail.extend(&read[length.saturating_sub(TAIL_BYTES)..]);
            let excess = tail.len().saturating_sub(TAIL_BYTES);
            tail.drain(..excess);
            drop(tail);
            // The tail is updated before the count.
            printed.lines.fetch_add(lines as u64, Ordering::Release);
        }
    });
}

/// Time limit of a requested end. It is long, since programs are about fifty times slower under
/// callgrind.
const END_WAIT: Duration = Duration::from_secs(30);
const TAIL_BYTES: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_and_ends_with_its_children() {
        let launch = Launch::new("sh").args(["-c", "echo one; echo two >&2; sleep 100 & wait"]);
        let running = Running::start(&launch, &[0]).expect("started");
        let clock = Clock::start();
        while running.lines() < 2 {
            assert!(clock.now_ns() < 20_000_000_000, "{}", running.last_words());
            std::thread::yield_now();
        }
        assert!(running.last_words().contains("one") && running.last_words().contains("two"));
        let pid = running.pid();
        let mut family = Snapshot::take().expect("/proc").tree(pid);
        while family.len() < 2 {
            assert!(clock.now_ns() < 20_000_000_000, "no child");
            family = Snapshot::take().expect("/proc").tree(pid);
        }
        drop(running);
        // A killed child that was not reaped yet may still be listed, but without a parent.
        let now = Snapshot::take().expect("/proc");
        assert!(!now.knows(pid) && now.tree(pid).len() == 1);
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        let error = Running::start(&Launch::new("/no/such/program"), &[0]).err().expect("not started");
        assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
        assert!(Running::start(&Launch::new("true"), &[100_000]).is_err());
    }
}
