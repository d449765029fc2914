//! Sends messages to the service manager (systemd), if this process may send them.

use std::os::unix::process::parent_id;
use std::process;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::NodeError;

/// The connection to the service manager. Messages are discarded without a manager (no
/// `NOTIFY_SOCKET`), and if the manager started another process, such as a script that runs this
/// process: only the started process reports the service's state, whatever `NotifyAccess` permits.
///
/// # Errors
/// Every message fails with [`NodeError::Notify`] if the socket does not accept it. Log the error;
/// it is never a reason to stop serving.
#[derive(Debug)]
pub struct Notifier {
    ours: bool,
    watchdog_interval: Option<Duration>,
}

impl Notifier {
    /// Reads the service manager's settings from the environment.
    pub fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let ours = is_ours(&variable, process::id(), parent_id());
        let interval = || Some(Duration::from_micros(variable("WATCHDOG_USEC")?.parse().ok()?));
        let watchdog_interval = interval().filter(|interval| ours && !interval.is_zero());
        Self { ours, watchdog_interval }
    }

    /// Whether this process is the service's main process, if there is a manager.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Whether there is a manager to which no messages are sent, since it started another process.
    pub fn leaves_it_to_another(&self) -> bool {
        !self.ours && std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// Whether there is a manager to which messages are sent.
    pub fn has_manager(&self) -> bool {
        self.ours && std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// The time within which each [`Notifier::ping`] must follow the previous one, else the process
    /// is killed (`WatchdogSec` of the unit); ping at half of it. `None`: no watchdog.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog_interval
    }

    /// Reports that the server answers queries.
    ///
    /// # Errors
    /// [`NodeError::Notify`], as for all messages.
    pub fn ready(&self) -> Result<(), NodeError> {
        self.send(NotifyState::Ready)
    }

    /// Reports that the server has begun to stop.
    ///
    /// # Errors
    /// [`NodeError::Notify`], as for all messages.
    pub fn stopping(&self) -> Result<(), NodeError> {
        self.send(NotifyState::Stopping)
    }

    /// Reports that the server is alive. Call this only right after a successful check.
    ///
    /// # Errors
    /// [`NodeError::Notify`], as for all messages.
    pub fn ping(&self) -> Result<(), NodeError> {
        self.send(NotifyState::Watchdog)
    }

    fn send(&self, state: NotifyState<'_>) -> Result<(), NodeError> {
        if !self.ours {
            return Ok(());
        }
        sd_notify::notify(&[state]).map_err(NodeError::Notify)
    }
}

/// Whether the service manager started this process, or started its parent, which named this
/// process its successor by [`PREDECESSOR`].
///
/// systemd passes the id of the process that it starts since version 248 (`SYSTEMD_EXEC_PID`);
/// earlier versions only with a watchdog (`WATCHDOG_PID`). Without either, this process must be a
/// child of systemd.
fn is_ours(variable: &dyn Fn(&str) -> Option<String>, pid: u32, parent: u32) -> bool {
    let is = |name: &str, id: u32| variable(name).map(|value| value.parse() == Ok(id));
    // The first process of a container was not started by systemd: ids in inherited variables are
    // of another pid namespace.
    pid == 1
        || is(PREDECESSOR, parent) == Some(true)
        || is("SYSTEMD_EXEC_PID", pid)
            .or_else(|| is("WATCHDOG_PID", pid))
            .unwrap_or_else(|| parent == 1 || is("MANAGERPID", parent) == Some(true))
}

/// Environment variable with the process id of the predecessor, the service's main process, which
/// sets it for the child that it starts as successor, and reports the child's id to the manager
/// (`MAINPID=`).
const PREDECESSOR: &str = "LOCALDNS_PREDECESSOR";

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    use super::*;

    /// Run by the tests below in processes of their own, since the environment belongs to the whole
    /// process.
    #[test]
    fn sends_all_states() {
        let notifier = Notifier::from_environment();
        let results = [notifier.ready(), notifier.ping(), notifier.stopping()];
        println!("interval {:?}, ok {}", notifier.watchdog_interval(), results.iter().all(Result::is_ok));
    }

    #[test]
    fn one_message_for_each_notification() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        manager.set_nonblocking(true).expect("set");
        let output = in_environment(&[
            ("NOTIFY_SOCKET", path.to_str().expect("plain")),
            ("WATCHDOG_USEC", "30000000"),
        ]);
        assert!(output.contains("interval Some(30s), ok true"), "{output}");
        let mut heard = Vec::new();
        let mut buffer = [0; 256];
        while let Ok(len) = manager.recv(&mut buffer) {
            heard.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
        }
        assert_eq!(heard, ["READY=1\n", "WATCHDOG=1\n", "STOPPING=1\n"]);
    }

    #[test]
    fn environment_selects_messages() {
        let rows: [(&[(&str, &str)], &str); 7] = [
            (&[], "interval None, ok true"),
            (&[("NOTIFY_SOCKET", "/nonexistent/notify")], "interval None, ok false"),
            (
                &[("NOTIFY_SOCKET", "/nonexistent/notify"), ("SYSTEMD_EXEC_PID", "1")],
                "interval None, ok true",
            ),
            (&[("WATCHDOG_USEC", "1500000")], "interval Some(1.5s), ok true"),
            (&[("WATCHDOG_USEC", "0")], "interval None, ok true"),
            (&[("WATCHDOG_USEC", "soon")], "interval None, ok true"),
            (&[("WATCHDOG_USEC", "1500000"), ("SYSTEMD_EXEC_PID", "1")], "interval None, ok true"),
        ];
        for (environment, expected) in rows {
            let output = in_environment(environment);
            assert!(output.contains(expected), "{environment:?}: {output}");
        }
    }

    /// Only the process that the manager started, or its successor, sends messages.
    #[test]
    fn only_main_process_notifies() {
        const PID: u32 = 700;
        const PARENT: u32 = 600;
        type Variables<'r> = &'r [(&'r str, &'r str)];
        let rows: [(Variables<'_>, u32, u32, bool); 17] = [
            // systemd since 248 passes the id of the process that it starts.
            (&[("SYSTEMD_EXEC_PID", "700")], PID, PARENT, true),
            (&[("SYSTEMD_EXEC_PID", "600")], PID, PARENT, false),
            (&[("SYSTEMD_EXEC_PID", "600")], PID, 1, false),
            (&[("SYSTEMD_EXEC_PID", "600"), ("WATCHDOG_PID", "600")], PID, PARENT, false),
            (&[("SYSTEMD_EXEC_PID", "")], PID, 1, false),
            // Before 248, with a watchdog.
            (&[("WATCHDOG_PID", "700")], PID, PARENT, true),
            (&[("WATCHDOG_PID", "600")], PID, PARENT, false),
            (&[("WATCHDOG_PID", "600")], PID, 1, false),
            // Before 248, without a watchdog.
            (&[], PID, 1, true),
            (&[], PID, PARENT, false),
            (&[("MANAGERPID", "600")], PID, PARENT, true),
            (&[("MANAGERPID", "500")], PID, PARENT, false),
            // A container's first process.
            (&[], 1, 0, true),
            (&[("SYSTEMD_EXEC_PID", "600")], 1, 0, true),
            // A process that its parent named successor; and a child of the successor.
            (&[("SYSTEMD_EXEC_PID", "500"), (PREDECESSOR, "600")], PID, PARENT, true),
            (&[("SYSTEMD_EXEC_PID", "500"), (PREDECESSOR, "600")], 800, PID, false),
            (&[("SYSTEMD_EXEC_PID", "500"), (PREDECESSOR, "so")], PID, PARENT, false),
        ];
        for (variables, pid, parent, expected) in rows {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(is_ours(&variable, pid, parent), expected, "{variables:?} {pid} {parent}");
        }
    }

    /// Runs [`sends_all_states`] as a process started by a manager, unless `variables` state
    /// another one.
    fn in_environment(variables: &[(&str, &str)]) -> String {
        // The shell execs the test, which keeps the process id.
        let mut command = Command::new("sh");
        command.args(["-c", "SYSTEMD_EXEC_PID=${SYSTEMD_EXEC_PID:-$$} exec \"$@\"", "sh"]);
        command.arg(std::env::current_exe().expect("the test's own path"));
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "SYSTEMD_EXEC_PID", PREDECESSOR] {
            command.env_remove(name);
        }
        command.args(["--exact", "systemd::tests::sends_all_states", "--nocapture"]);
        let output = command.envs(variables.iter().copied()).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
