//! The plugin `errors`: one line for each failed query, or one count per pattern and period.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use regex::Regex;
use wire::{Name, RType};

use super::log_format::{push_name, push_number, push_type};
use super::logger::{Level, Logger};

/// One `consolidate`.
#[derive(Debug, Clone)]
pub struct Consolidate {
    /// The period over which errors are counted.
    pub period: Duration,
    /// `period` as the summary prints it.
    pub period_text: String,
    /// The errors that are counted.
    pub pattern: Regex,
    /// `pattern` as the summary prints it: without values of environment variables.
    pub pattern_text: String,
    /// The level of the summary.
    pub level: Level,
    /// Whether the first error of a period is printed at once.
    pub show_first: bool,
}

/// The errors of a server block; any thread may report.
#[derive(Debug)]
pub struct ErrorLog {
    patterns: Box<[Pattern]>,
    logger: Logger,
}

#[derive(Debug)]
struct Pattern {
    consolidate: Consolidate,
    pending: Mutex<Pending>,
}

/// The count since the first error of a period.
#[derive(Debug, Default, Clone, Copy)]
struct Pending {
    count: u64,
    /// When the summary is printed; `None` while the count is 0.
    due: Option<Instant>,
}

impl ErrorLog {
    /// An error log with these patterns; the first that matches an error counts it.
    pub fn new(consolidate: Vec<Consolidate>, logger: Logger) -> Self {
        let pattern = |consolidate| Pattern { consolidate, pending: Mutex::default() };
        Self { patterns: consolidate.into_iter().map(pattern).collect(), logger }
    }

    /// Logs a failed query as `2 name. A: text`, where `2` is the rcode, or counts it by the first pattern that matches `text`.
    pub fn report(&self, now: Instant, rcode: u16, name: &Name, rtype: RType, text: &str) {
        let mut level = Level::Error;
        if let Some(pattern) = self.patterns.iter().find(|pattern| pattern.consolidate.pattern.is_match(text))
        {
            if !pattern.count(now) {
                return;
            }
            level = pattern.consolidate.level;
        }
        let mut line = Vec::with_capacity(text.len() + 64);
        push_number(&mut line, u64::from(rcode));
        line.push(b' ');
        push_name(&mut line, name);
        line.push(b' ');
        push_type(&mut line, rtype);
        line.extend_from_slice(b": ");
        line.extend_from_slice(text.as_bytes());
        self.logger.log(level, Some(PLUGIN), &String::from_utf8_lossy(&line));
    }

    /// Prints the counts of ended periods. Called about once a second.
    pub fn flush(&self, now: Instant) {
        for pattern in &self.patterns {
            let mut pending = pattern.pending();
            if pending.due.is_some_and(|due| due <= now) {
                let over = std::mem::take(&mut *pending);
                drop(pending);
                self.summarize(pattern, over.count);
            }
        }
    }

    fn summarize(&self, pattern: &Pattern, count: u64) {
        let Consolidate { period_text, pattern_text, level, show_first, .. } = &pattern.consolidate;
        // With `show_first` the first error of a period was logged already.
        if count > u64::from(*show_first) {
            let message = format!("{count} errors like '{pattern_text}' occurred in last {period_text}");
            self.logger.log(*level, Some(PLUGIN), &message);
        }
    }
}

/// Prints the remaining counts, whether or not their period is over: at the end of the process or of the configuration.
impl Drop for ErrorLog {
    fn drop(&mut self) {
        for pattern in &self.patterns {
            self.summarize(pattern, pattern.pending().count);
        }
    }
}

impl Pattern {
    /// Counts one error; returns whether it is printed as well.
    fn count(&self, now: Instant) -> bool {
        let mut pending = self.pending();
        pending.count += 1;
        if pending.due.is_none() {
            // A period too long for the clock ends in a century.
            pending.due = now.checked_add(self.consolidate.period).or_else(|| now.checked_add(CENTURY));
        }
        self.consolidate.show_first && pending.count == 1
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const PLUGIN: &str = "errors";
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{captured_log::CapturedLog, logger::Format};

    struct Scene {
        errors: ErrorLog,
        logger: Logger,
        log: CapturedLog,
        start: Instant,
    }

    impl Scene {
        fn new(consolidate: &[(u64, &str, Level, bool)]) -> Self {
            let (logger, log) = CapturedLog::logger(Format::Text);
            let consolidate = consolidate
                .iter()
                .map(|&(period, pattern, level, show_first)| Consolidate {
                    period: Duration::from_secs(period),
                    period_text: format!("{period}s"),
                    pattern: Regex::new(pattern).unwrap(),
                    pattern_text: pattern.to_owned(),
                    level,
                    show_first,
                })
                .collect();
            let errors = ErrorLog::new(consolidate, logger.clone());
            Self { errors, logger, log, start: clock::now() }
        }

        fn report(&self, second: u64, text: &str) -> String {
            let name = Name::from_text("Example.org").unwrap();
            self.errors.report(self.start + Duration::from_secs(second), 2, &name, RType::A, text);
            self.log.read(&self.logger)
        }

        fn flush(&self, second: u64) -> String {
            self.errors.flush(self.start + Duration::from_secs(second));
            self.log.read(&self.logger)
        }
    }

    #[test]
    fn error_line() {
        let scene = Scene::new(&[]);
        assert_eq!(
            scene.report(0, "read udp 127.0.0.1:1->127.0.0.2:53: i/o timeout"),
            "[ERROR] plugin/errors: 2 example.org. A: read udp 127.0.0.1:1->127.0.0.2:53: i/o timeout\n"
        );
        assert_eq!(scene.flush(1_000_000), "");
    }

    #[test]
    fn consolidate_summary() {
        let scene = Scene::new(&[(300, "timeout$", Level::Warning, false), (30, ".*", Level::Error, false)]);
        assert_eq!(scene.report(0, "i/o timeout"), "");
        assert_eq!(scene.report(299, "i/o timeout"), "");
        assert_eq!(scene.report(299, "refused"), "");
        assert_eq!(scene.flush(299), "");
        assert_eq!(
            scene.flush(300),
            "[WARNING] plugin/errors: 2 errors like 'timeout$' occurred in last 300s\n"
        );
        assert_eq!(scene.flush(329), "[ERROR] plugin/errors: 1 errors like '.*' occurred in last 30s\n");
        assert_eq!(scene.flush(1_000), "");
        // The next period begins with the next error.
        assert_eq!(scene.report(1_000, "i/o timeout"), "");
        assert_eq!(scene.flush(1_299), "");
        assert_ne!(scene.flush(1_300), "");
    }

    #[test]
    fn show_first() {
        let scene = Scene::new(&[(2, "x", Level::Info, true)]);
        let shown = "[INFO] plugin/errors: 2 example.org. A: x\n";
        assert_eq!(scene.report(0, "x"), shown);
        assert_eq!(scene.flush(2), "", "one error, shown in full, needs no count");
        assert_eq!(scene.report(10, "x"), shown);
        assert_eq!(scene.report(11, "x"), "");
        assert_eq!(scene.flush(12), "[INFO] plugin/errors: 2 errors like 'x' occurred in last 2s\n");
    }

    #[test]
    fn summary_on_drop() {
        let scene = Scene::new(&[(u64::MAX, "x", Level::Error, false)]);
        assert_eq!(scene.report(0, "x"), "");
        assert_eq!(scene.flush(1_000_000), "");
        let Scene { errors, logger, log, .. } = scene;
        drop(errors);
        assert!(log.read(&logger).starts_with("[ERROR] plugin/errors: 1 errors like 'x' occurred in last "));
    }
}
