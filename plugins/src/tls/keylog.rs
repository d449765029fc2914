//! `keylog FILE`: TLS secrets of connections, for programs that decrypt recorded traffic.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use rustix::fs::{Access, OFlags};

/// The file, written by a separate thread: a hanging disk loses lines, but delays no client.
#[derive(Debug)]
pub(super) struct KeyLogFile {
    lines: SyncSender<String>,
}

impl KeyLogFile {
    /// Opens the file for appending; creates it, readable by its owner alone, if it is missing.
    ///
    /// # Errors
    /// The system's error, or an error for a file that is not regular.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Opening a pipe must not wait for its reader.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).custom_flags(flags as i32).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a file"));
        }
        let (lines, receiver) = sync_channel::<String>(LINES);
        thread::Builder::new().name("keylog".to_owned()).spawn(move || write(file, &receiver))?;
        Ok(Self { lines })
    }
}

/// Checks that the file could be written, without creating it.
pub(super) fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            Ok(rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        found => found.and_then(|_| Ok(rustix::fs::access(path, Access::WRITE_OK)?)),
    }
}

fn write(mut file: File, lines: &std::sync::mpsc::Receiver<String>) {
    for line in lines {
        // A lost line only prevents the decryption of that connection.
        let _ = file.write_all(line.as_bytes());
    }
}

impl rustls::KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut line = format!("{label} ");
        let hex = |line: &mut String, octets: &[u8]| {
            for octet in octets {
                let _ = write!(line, "{octet:02x}");
            }
        };
        hex(&mut line, client_random);
        line.push(' ');
        hex(&mut line, secret);
        line.push('\n');
        // If the disk is too slow, the newest lines are lost.
        let _ = self.lines.try_send(line);
    }
}

/// Maximum number of queued lines, some 200 bytes each.
const LINES: usize = 4096;
