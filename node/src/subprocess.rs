//! Runs programs of the host where no system call suffices: networkctl, iptables.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::escaped;

/// Runs a program to its end, for at most `PATIENCE`, and returns at most `MOST` bytes of its
/// output.
///
/// # Errors
/// If the program does not exist, fails, or takes longer; it is then killed.
pub fn run(program: &str, args: &[&str], input: &str) -> io::Result<String> {
    run_within(OsStr::new(program), args, input, PATIENCE)
}

/// Does the same as [`run`] with this time limit, and at most the same time for reading the output
/// afterwards.
///
/// # Errors
/// The errors of [`run`].
pub(crate) fn run_within(
    program: &OsStr,
    args: &[&str],
    input: &str,
    patience: Duration,
) -> io::Result<String> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", program.display()));
    let mut command = Command::new(program);
    command.args(args).env("PATH", path()).env("LC_ALL", "C");
    // The program must not inherit these variables: the service manager would take its messages for
    // localdns's (networkctl reports failures to NOTIFY_SOCKET), and localdns's settings do not
    // apply to the program.
    command.env_remove("NOTIFY_SOCKET");
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LOCALDNS_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(named)?;
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.as_bytes().to_vec();
        // A program that does not read its input fails, or is killed at the end of its time.
        thread::spawn(move || stdin.write_all(&input));
    }
    let out = child.stdout.take().map(aside);
    let err = child.stderr.take().map(aside);
    let status = ended(&mut child, patience).map_err(named)?;
    // Children of the program may have inherited its pipes and keep them open, so reading has a
    // limit, too.
    let text = |reader: Option<mpsc::Receiver<String>>| reader?.recv_timeout(LAST_WORDS.min(patience)).ok();
    let (out, err) = (text(out), text(err).unwrap_or_default());
    match out {
        _ if !status.success() => {
            let lines: Vec<_> = err.trim().lines().map(escaped).collect();
            Err(named(io::Error::other(format!("{status}: {}", lines.join("; ")))))
        }
        Some(out) => Ok(out),
        None => {
            Err(named(io::Error::new(io::ErrorKind::TimedOut, "it has ended, but its output is still open")))
        }
    }
}

/// Returns this process's PATH without relative entries or, if no entry is left, the usual
/// directories.
fn path() -> OsString {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&own).filter(|path| path.is_absolute()).collect();
    match std::env::join_paths(directories) {
        Ok(path) if !path.is_empty() => path,
        _ => "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
    }
}

fn ended(child: &mut Child, patience: Duration) -> io::Result<std::process::ExitStatus> {
    for _ in 0..patience.as_millis() / LOOK.as_millis() {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(LOOK);
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("did not end within {patience:?}")))
}

fn aside(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, read) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // At most `MOST` bytes are read; a program that writes more gets SIGPIPE once the pipe is
        // closed.
        let _ = pipe.take(MOST).read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    read
}

/// Default time limit of a program.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit of reading a program's output after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);
const MOST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a program that is missing, fails or hangs begins with the program's name.
    #[test]
    fn errors_name_the_program() {
        let sh = OsStr::new("sh");
        let run = |script: &str| run_within(sh, &["-c", script], "heard", Duration::from_millis(300));
        assert_eq!(run("cat; echo said").unwrap(), "heardsaid\n");
        assert_eq!(
            run("echo one >&2; printf 'two\\033[2J' >&2; exit 3").unwrap_err().to_string(),
            "sh: exit status: 3: one; two\\u{1b}[2J"
        );
        assert_eq!(run("exec sleep 60").unwrap_err().to_string(), "sh: did not end within 300ms");
        // A background process keeps the program's standard output open.
        let left = run("echo said; sleep 5 & exit 0").unwrap_err().to_string();
        assert_eq!(left, "sh: it has ended, but its output is still open");
        let much = run_within(sh, &["-c", "exec sleep 60"], &"x".repeat(1 << 20), Duration::from_millis(300));
        assert_eq!(much.unwrap_err().to_string(), "sh: did not end within 300ms");
        let absent = run_within(OsStr::new("no-such-program"), &[], "", PATIENCE).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
