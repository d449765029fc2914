//! What systemd is told: READY, STOPPING, and pings for as long as every worker answers.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::{Options, Server, ask, eventually, fresh_ip, port, skip, tempdir};

use super::text;

#[test]
fn systemd_is_told_when_it_serves_and_when_it_ends() {
    let notify = Notify::new();
    let (ip, port) = (fresh_ip(), port());
    let corefile = format!(".:{port} {{\nbind {ip}\nlog\nwhoami\n}}");
    let mut server = Server::start_with(&corefile, notify.options(1_000_000));
    notify.wait_for("READY=1");
    assert_eq!(ask((ip, port).into(), "a.example", "A").status(), "NOERROR");
    notify.wait_for("WATCHDOG=1");
    assert!(server.stop().success());
    notify.wait_for("STOPPING=1");
    assert_eq!(
        server.log_text().matches(" NOERROR ").count(),
        1,
        "its own probes are not logged:\n{}",
        server.log_text()
    );
}

#[test]
fn pings_cease_while_one_worker_of_two_stands_still() {
    let notify = Notify::new();
    let (ip, port) = (fresh_ip(), port());
    let corefile = format!(".:{port} {{\nbind {ip}\nmultisocket 2\nwhoami\n}}");
    let server = Server::start_with(&corefile, notify.options(900_000));
    let at = (ip, port).into();
    notify.wait_for("READY=1");
    notify.wait_for("WATCHDOG=1");
    let workers = server.threads("worker-");
    assert_eq!(workers.len(), 2, "{workers:?}");
    let held = match Held::stop(workers[1]) {
        Ok(held) => held,
        Err(why) => return skip("pings_cease_while_one_worker_of_two_stands_still", &why.to_string()),
    };
    let line = server.wait_for_log("watchdog: no ping", Duration::from_secs(5));
    assert!(line.ends_with("does not answer over UDP (worker 1)"), "{line}");
    notify.drain();
    // Without a pause three pings a second would come.
    assert_eq!(notify.next(Duration::from_secs(3)), None, "a ping although a worker stands still");
    eventually("an answer of the other worker", Duration::from_secs(5), || {
        tests::Ask::new("a.example", "A").timeout(Duration::from_millis(100)).try_of(at).ok()
    });
    drop(held);
    notify.wait_for("WATCHDOG=1");
}

/// systemd's end of the notify socket.
struct Notify {
    directory: TempDir,
    socket: UnixDatagram,
}

impl Notify {
    fn new() -> Self {
        let directory = tempdir();
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("the directory is ours");
        Self { directory, socket }
    }

    /// A server that is told of this socket, and to ping within so many microseconds.
    fn options(&self, watchdog: u32) -> Options {
        Options::default()
            .env("NOTIFY_SOCKET", &self.directory.path().join("notify").to_string_lossy())
            .env("WATCHDOG_USEC", &watchdog.to_string())
    }

    /// What is said next, if anything is in time.
    fn next(&self, patience: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(patience)).expect("a timeout can be set");
        let mut buffer = [0; 4096];
        self.socket.recv(&mut buffer).ok().map(|length| text(&buffer[..length]))
    }

    fn wait_for(&self, part: &str) {
        let mut said = String::new();
        while !said.contains(part) {
            let next = self.next(Duration::from_secs(5));
            said.push_str(&next.unwrap_or_else(|| panic!("no {part}: {said}")));
            said.push('\n');
        }
    }

    /// Forgets what was said.
    fn drain(&self) {
        while self.next(Duration::from_millis(1)).is_some() {}
    }
}

/// One thread that stands still, alone of its process; it goes on when this is dropped.
struct Held(Pid);

impl Held {
    fn stop(thread: u32) -> Result<Self, Errno> {
        let thread = Pid::from_raw(i32::try_from(thread).expect("the kernel's ids are such numbers"));
        ptrace::seize(thread, ptrace::Options::empty())?;
        let held = Self(thread);
        ptrace::interrupt(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A thread that is gone needs no leave to go on.
        let _ = ptrace::detach(self.0, None);
    }
}
