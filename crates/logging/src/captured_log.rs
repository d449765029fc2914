//! A log that tests read back, of this crate and others.

use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::logger::{Format, Logger};
use super::queue::lock;

/// The text that a log wrote.
#[derive(Debug, Clone, Default)]
pub struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    /// A logger and the log that it writes to.
    ///
    /// # Panics
    /// No thread can be started.
    pub fn logger(format: Format) -> (Logger, Self) {
        let log = Self::default();
        (Logger::start(format, log.clone()).expect("a thread for the log"), log)
    }

    /// The text so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.0)).into_owned()
    }

    /// Flushes the log, and returns and clears the text.
    ///
    /// # Panics
    /// The log is not flushed within [`PATIENCE`].
    pub fn read(&self, logger: &Logger) -> String {
        assert!(logger.flush(PATIENCE), "the log is written");
        String::from_utf8_lossy(&mem::take(&mut *lock(&self.0))).into_owned()
    }
}

/// How long tests wait for the log.
pub const PATIENCE: Duration = Duration::from_secs(10);
