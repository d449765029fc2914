//! The plugin `errors`: why a query failed, one line each, or counted per pattern and told once a period.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use regex::Regex;
use wire::{Name, RType};

use super::log_format::{push_name, push_number, push_type};
use super::logger::{Level, Logger};

/// One `consolidate`.
#[derive(Debug, Clone)]
pub struct Consolidate {
    /// How long errors are counted before they are printed.
    pub period: Duration,
    /// `period` as the summary prints it.
    pub period_text: String,
    /// Which errors.
    pub pattern: Regex,
    /// At which level they are printed.
    pub level: Level,
    /// Whether the first one is printed at once.
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

/// What was counted since the first error of a period.
#[derive(Debug, Default, Clone, Copy)]
struct Pending {
    count: u64,
    /// When it is told; `None` while nothing is counted.
    due: Option<Instant>,
}

impl ErrorLog {
    /// An error log as the Corefile describes it: errors that match are counted and printed once in a while; the first
    /// pattern that matches decides.
    pub fn new(consolidate: Vec<Consolidate>, logger: Logger) -> Self {
        let pattern = |consolidate| Pattern { consolidate, pending: Mutex::default() };
        Self { patterns: consolidate.into_iter().map(pattern).collect(), logger }
    }

    /// Reports that a query ended in an error: printed as `2 name. A: text`, `2` being the rcode, or counted by the first
    /// pattern that matches `text`.
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

    /// Prints the counts whose period is over. To be called every now and then, about once a second.
    pub fn flush(&self, now: Instant) {
        for pattern in &self.patterns {
            let mut pending = pattern.pending();
            if pending.due.is_some_and(|due| due <= now) {
                let told = std::mem::take(&mut *pending);
                drop(pending);
                self.tell(pattern, told.count);
            }
        }
    }

    fn tell(&self, pattern: &Pattern, count: u64) {
        let Consolidate { period_text, pattern, level, show_first, .. } = &pattern.consolidate;
        // With `show_first` the first error of a period was logged by itself, so it is not in the summary.
        if count > u64::from(*show_first) {
            let message =
                format!("{count} errors like '{}' occurred in last {period_text}", pattern.as_str());
            self.logger.log(*level, Some(PLUGIN), &message);
        }
    }
}

/// What is still counted is told, its period over or not: at the end of the process, or of the configuration.
impl Drop for ErrorLog {
    fn drop(&mut self) {
        for pattern in &self.patterns {
            self.tell(pattern, pattern.pending().count);
        }
    }
}

impl Pattern {
    /// Counts one error; returns whether it is printed nevertheless.
    fn count(&self, now: Instant) -> bool {
        let mut pending = self.pending();
        pending.count += 1;
        if pending.due.is_none() {
            // A period too long for the clock is never over.
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
    fn an_error_reads_as_coredns_prints_it() {
        let scene = Scene::new(&[]);
        assert_eq!(
            scene.report(0, "read udp 127.0.0.1:1->127.0.0.2:53: i/o timeout"),
            "[ERROR] plugin/errors: 2 example.org. A: read udp 127.0.0.1:1->127.0.0.2:53: i/o timeout\n"
        );
        assert_eq!(scene.flush(1_000_000), "");
    }

    #[test]
    fn consolidated_errors_are_told_once_a_period() {
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
    fn the_first_error_of_a_period_is_shown_where_that_is_asked_for() {
        let scene = Scene::new(&[(2, "x", Level::Info, true)]);
        let shown = "[INFO] plugin/errors: 2 example.org. A: x\n";
        assert_eq!(scene.report(0, "x"), shown);
        assert_eq!(scene.flush(2), "", "one error, shown in full, needs no count");
        assert_eq!(scene.report(10, "x"), shown);
        assert_eq!(scene.report(11, "x"), "");
        assert_eq!(scene.flush(12), "[INFO] plugin/errors: 2 errors like 'x' occurred in last 2s\n");
    }

    #[test]
    fn what_was_counted_is_told_at_the_end() {
        let scene = Scene::new(&[(u64::MAX, "x", Level::Error, false)]);
        assert_eq!(scene.report(0, "x"), "");
        assert_eq!(scene.flush(1_000_000), "");
        let Scene { errors, logger, log, .. } = scene;
        drop(errors);
        assert!(log.read(&logger).starts_with("[ERROR] plugin/errors: 1 errors like 'x' occurred in last "));
    }
}
