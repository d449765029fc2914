//! The process log: `[INFO] plugin/x: message` lines on stdout, or CoreDNS's JSON, written by one thread.
//!
//! ```text
//! Logger::info .. -> one bounded buffer ------\
//! LineRing::write (one per worker) -> rings ---> writer thread -> stdout, in large writes
//! ```
//!
//! Only the writer waits for stdout: while it blocks, lines beyond the bounds are dropped and counted. If stdout is closed, all
//! lines are dropped. Lines of one thread keep their order; lines of different threads may be reordered.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use super::json;
use super::queue::LogQueue;
use super::ring::Producer;
use super::writer::LogWriter;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `[INFO] plugin/x: message`, the default.
    #[default]
    Text,
    /// One JSON object a line: `time`, `level`, `msg` and, from a plugin, `plugin`.
    Json,
}

/// A log level, as CoreDNS prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `[DEBUG]`.
    Debug,
    /// `[INFO]`.
    Info,
    /// `[WARNING]`.
    Warning,
    /// `[ERROR]`.
    Error,
}

/// A handle of the process log; clones write to the same log.
#[derive(Debug, Clone)]
pub struct Logger {
    format: Format,
    debug: Arc<AtomicBool>,
    queue: Arc<LogQueue>,
}

impl Logger {
    /// Starts the writer on stdout.
    ///
    /// # Errors
    /// stdout cannot be duplicated, or no thread can be started.
    pub fn stdout(format: Format) -> io::Result<Self> {
        // A descriptor of its own: no lock shared with `print!`, no second buffer.
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Self::start(format, stdout)
    }

    /// Starts a writer on `out`. The thread ends when every handle and every ring is gone.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(format: Format, out: impl Write + Send + 'static) -> io::Result<Self> {
        let queue = Arc::new(LogQueue::default());
        let writer = LogWriter::new(queue.clone(), out);
        let thread = thread::Builder::new().name("log".to_owned()).spawn(move || writer.run())?;
        queue.set_writer(thread.thread().clone());
        Ok(Self { format, debug: Arc::default(), queue })
    }

    /// The format of lines.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether `[DEBUG]` lines are printed; off at first.
    pub fn set_debug(&self, on: bool) {
        self.debug.store(on, Ordering::Relaxed);
    }

    /// Prints a line at [`Level::Debug`]; it is formatted only if that level is on.
    pub fn debug(&self, plugin: Option<&str>, message: impl FnOnce() -> String) {
        if self.debug.load(Ordering::Relaxed) {
            self.log(Level::Debug, plugin, &message());
        }
    }

    /// Prints a line at [`Level::Info`].
    pub fn info(&self, plugin: Option<&str>, message: &str) {
        self.log(Level::Info, plugin, message);
    }

    /// Prints a line at [`Level::Warning`].
    pub fn warning(&self, plugin: Option<&str>, message: &str) {
        self.log(Level::Warning, plugin, message);
    }

    /// Prints a line at [`Level::Error`].
    pub fn error(&self, plugin: Option<&str>, message: &str) {
        self.log(Level::Error, plugin, message);
    }

    /// Prints a line at any level. `plugin` is the bare name, such as `errors`.
    pub fn log(&self, level: Level, plugin: Option<&str>, message: &str) {
        if level == Level::Debug && !self.debug.load(Ordering::Relaxed) {
            return;
        }
        let (text, json) = match level {
            Level::Debug => ("[DEBUG] ", "DEBUG"),
            Level::Info => ("[INFO] ", "INFO"),
            Level::Warning => ("[WARNING] ", "WARN"),
            Level::Error => ("[ERROR] ", "ERROR"),
        };
        self.queue.push(&self.line(text, json, plugin, message));
    }

    /// Prints text without a level, such as the zones at start; in JSON each line is a record of level INFO.
    pub fn print(&self, text: &str) {
        for text in text.lines() {
            self.queue.push(&self.line("", "INFO", None, text));
        }
    }

    /// Prints the cause of the process's end on stderr, after a flush of at most one second.
    pub fn fatal(&self, plugin: Option<&str>, message: &str) {
        self.flush(Duration::from_secs(1));
        let line = self.line("[FATAL] ", "FATAL", plugin, message);
        // If standard error fails as well, the line is lost.
        let _ = io::stderr().write_all(&line);
    }

    /// A ring of `bytes` bytes for the lines of one thread; see [`DEFAULT_BYTES`](super::ring::DEFAULT_BYTES).
    pub fn ring(&self, bytes: usize) -> LineRing {
        let producer = self.queue.ring(bytes);
        LineRing { producer, line: Vec::with_capacity(512), queue: self.queue.clone() }
    }

    /// The number of lines dropped since the start: no space, or stdout failed.
    pub fn dropped_lines(&self) -> u64 {
        self.queue.dropped.load(Ordering::Relaxed)
    }

    /// Waits until the lines logged before this call are written, at most `patience`. Returns whether they are.
    pub fn flush(&self, patience: Duration) -> bool {
        self.queue.flush(patience)
    }

    fn line(&self, level: &str, json_level: &str, plugin: Option<&str>, message: &str) -> Vec<u8> {
        if self.format == Format::Json {
            return json_line(json_level, plugin, message);
        }
        let mut line = Vec::with_capacity(message.len() + 96);
        line.extend_from_slice(level.as_bytes());
        if let Some(plugin) = plugin {
            line.extend_from_slice(b"plugin/");
            line.extend_from_slice(plugin.as_bytes());
            line.extend_from_slice(b": ");
        }
        line.extend_from_slice(message.as_bytes());
        if !message.ends_with('\n') {
            line.push(b'\n');
        }
        line
    }
}

/// The log of one thread: takes no lock, makes no system call, and allocates nothing once warm.
///
/// Threads that share a ring must lock it themselves.
#[derive(Debug)]
pub struct LineRing {
    producer: Producer,
    line: Vec<u8>,
    queue: Arc<LogQueue>,
}

impl LineRing {
    /// Appends the line that `render` writes, newline included. `false`: it was dropped and counted.
    #[inline]
    pub fn write(&mut self, render: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.line.clear();
        render(&mut self.line);
        let pushed = self.producer.push(&self.line);
        self.queue.wake();
        pushed
    }
}

/// One JSON object and its newline; the lines of a message are joined with `; `.
pub fn json_line(level: &str, plugin: Option<&str>, message: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(message.len() + 96);
    begin_json(&mut line, clock::wall(), level);
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join("; ");
    json::push_string(&mut line, message.as_bytes());
    if let Some(plugin) = plugin {
        line.extend_from_slice(b",\"plugin\":");
        json::push_string(&mut line, plugin.as_bytes());
    }
    line.extend_from_slice(b"}\n");
    line
}

/// Appends `{"time":..,"level":..,"msg":`, with which every JSON line begins; the message follows.
pub(crate) fn begin_json(line: &mut Vec<u8>, at: SystemTime, level: &str) {
    line.extend_from_slice(b"{\"time\":\"");
    json::push_time(line, at);
    line.extend_from_slice(b"\",\"level\":\"");
    line.extend_from_slice(level.as_bytes());
    line.extend_from_slice(b"\",\"msg\":");
}

/// Timeout of the last flush of a process.
pub const LAST_LINES: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::captured_log::CapturedLog;

    #[test]
    fn text_lines() {
        let (logger, log) = CapturedLog::logger(Format::Text);
        logger.log(Level::Debug, None, "unseen");
        logger.info(None, "Reloading");
        logger.warning(Some("hosts"), "no such file");
        logger.error(Some("errors"), "2 a. A: i/o timeout");
        logger.print(".:53 on 127.0.0.1\n.:53 on ::1\n");
        logger.set_debug(true);
        logger.log(Level::Debug, Some("cache"), "seen");
        assert_eq!(
            log.read(&logger),
            "[INFO] Reloading\n[WARNING] plugin/hosts: no such file\n[ERROR] plugin/errors: 2 a. A: i/o timeout\n\
             .:53 on 127.0.0.1\n.:53 on ::1\n[DEBUG] plugin/cache: seen\n"
        );
    }

    #[test]
    fn json_lines() {
        let (logger, log) = CapturedLog::logger(Format::Json);
        logger.warning(Some("hosts"), "no \"such\" file");
        logger.print("one\ntwo\n");
        logger.error(None, "Corefile:3:1: no\n  3 | such\n    | ^");
        let text = log.read(&logger);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!((&lines[0]["level"], &lines[0]["msg"]), (&"WARN".into(), &"no \"such\" file".into()));
        assert_eq!(lines[0]["plugin"], "hosts");
        assert_eq!((&lines[1]["level"], &lines[1]["msg"]), (&"INFO".into(), &"one".into()));
        assert_eq!(lines[2]["msg"], "two");
        assert_eq!(lines[3]["msg"], "Corefile:3:1: no; 3 | such; | ^", "no newline inside");
        assert_eq!(lines[1].get("plugin"), None);
        assert!(text.starts_with("{\"time\":\"20"));
    }
}
