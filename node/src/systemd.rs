//! What the service manager (systemd) is told.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::NodeError;

/// The line to the service manager. Without one (no `NOTIFY_SOCKET`) every message is silently nobody's.
///
/// # Errors
/// Every message fails with [`NodeError::Notify`] when the socket named does not take it. That is worth a line in
/// the log, and never a reason to stop serving.
#[derive(Debug)]
pub struct Notifier {
    watchdog_interval: Option<Duration>,
}

impl Notifier {
    /// Reads from the environment what the service manager expects of this process.
    pub fn from_environment() -> Self {
        let watchdog_interval = sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero());
        Self { watchdog_interval }
    }

    /// The time within which each [`Notifier::ping`] must follow the one before, else we are killed (`WatchdogSec`
    /// of the unit); ping at half of it. `None`: no watchdog.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog_interval
    }

    /// The server answers queries.
    ///
    /// # Errors
    /// As for all messages.
    pub fn ready(&self) -> Result<(), NodeError> {
        tell(NotifyState::Ready)
    }

    /// The server has begun to stop.
    ///
    /// # Errors
    /// As for all messages.
    pub fn stopping(&self) -> Result<(), NodeError> {
        tell(NotifyState::Stopping)
    }

    /// The server is alive. To be sent only when it has just proved it.
    ///
    /// # Errors
    /// As for all messages.
    pub fn ping(&self) -> Result<(), NodeError> {
        tell(NotifyState::Watchdog)
    }

    /// One line for `systemctl status`. Line breaks and control characters become spaces, for a further line would
    /// be a further message.
    ///
    /// # Errors
    /// As for all messages.
    pub fn status(&self, text: &str) -> Result<(), NodeError> {
        tell(NotifyState::Status(&text.replace(char::is_control, " ")))
    }
}

fn tell(state: NotifyState<'_>) -> Result<(), NodeError> {
    sd_notify::notify(&[state]).map_err(NodeError::Notify)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    use super::*;

    /// Run by the tests below in processes of their own, for the environment belongs to the whole process.
    #[test]
    fn tell_everything() {
        let notifier = Notifier::from_environment();
        let told = [
            notifier.ready(),
            notifier.status("serving 3 zones\nSTOPPING=1"),
            notifier.ping(),
            notifier.stopping(),
        ];
        println!("interval {:?}, ok {}", notifier.watchdog_interval(), told.iter().all(Result::is_ok));
    }

    #[test]
    fn the_service_manager_hears_one_message_each() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        manager.set_nonblocking(true).expect("set");
        let said = in_environment(&[
            ("NOTIFY_SOCKET", path.to_str().expect("plain")),
            ("WATCHDOG_USEC", "30000000"),
        ]);
        assert!(said.contains("interval Some(30s), ok true"), "{said}");
        let mut heard = Vec::new();
        let mut buffer = [0; 256];
        while let Ok(len) = manager.recv(&mut buffer) {
            heard.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
        }
        assert_eq!(
            heard,
            ["READY=1\n", "STATUS=serving 3 zones STOPPING=1\n", "WATCHDOG=1\n", "STOPPING=1\n"]
        );
    }

    #[test]
    fn the_environment_decides_what_is_told_to_whom() {
        let rows: [(&[(&str, &str)], &str); 6] = [
            (&[], "interval None, ok true"),
            (&[("NOTIFY_SOCKET", "/nonexistent/notify")], "interval None, ok false"),
            (&[("WATCHDOG_USEC", "1500000")], "interval Some(1.5s), ok true"),
            (&[("WATCHDOG_USEC", "0")], "interval None, ok true"),
            (&[("WATCHDOG_USEC", "soon")], "interval None, ok true"),
            (&[("WATCHDOG_USEC", "1500000"), ("WATCHDOG_PID", "1")], "interval None, ok true"),
        ];
        for (environment, expected) in rows {
            let said = in_environment(environment);
            assert!(said.contains(expected), "{environment:?}: {said}");
        }
    }

    fn in_environment(variables: &[(&str, &str)]) -> String {
        let mut command = Command::new(std::env::current_exe().expect("the test's own path"));
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(name);
        }
        command.args(["--exact", "systemd::tests::tell_everything", "--nocapture"]);
        let output = command.envs(variables.iter().copied()).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
