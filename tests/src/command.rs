//! Other programs: runs one to its end, and sends signals to processes.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock::now;
use crate::printed;

/// Sends a signal by its name without `SIG`.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: u32, name: &str) {
    let signal: Signal = format!("SIG{name}").parse().expect("a signal has this name");
    let sent = kill(Pid::from_raw(pid.cast_signed()), signal);
    assert!(sent.is_ok(), "signal {name} to {pid}: {sent:?}");
}

/// Runs a command to its end and returns its output.
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
        // A broken pipe also ends the text.
        drop(pipe.read_to_end(&mut text));
        text
    })
}
