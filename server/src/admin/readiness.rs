//! Which plugins are ready, as `/ready` tells it.

use std::sync::{Mutex, PoisonError};

/// A plugin that is not ready at once.
pub trait ReadyCheck: Send + Sync {
    /// Its name, as `/ready` prints it.
    fn name(&self) -> &'static str;
    /// Whether it is ready now.
    fn is_ready(&self) -> bool;
}

/// The plugins to ask. A plugin that was ready once is not asked again, unless that is wanted.
pub struct Readiness {
    waiting: Mutex<Vec<Box<dyn ReadyCheck>>>,
    continuously: bool,
}

impl Readiness {
    /// Asks these plugins; `continuously` as `monitor continuously` says.
    pub fn new(checks: Vec<Box<dyn ReadyCheck>>, continuously: bool) -> Self {
        Self { waiting: Mutex::new(checks), continuously }
    }

    /// The plugins that are not ready, sorted, each once.
    pub fn not_ready(&self) -> Vec<&'static str> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.continuously {
            waiting.retain(|check| !check.is_ready());
        }
        let mut names: Vec<_> = waiting
            .iter()
            .filter(|check| !self.continuously || !check.is_ready())
            .map(|check| check.name())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readiness").field("continuously", &self.continuously).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    struct Switch(&'static str, Arc<AtomicBool>);

    impl ReadyCheck for Switch {
        fn name(&self) -> &'static str {
            self.0
        }

        fn is_ready(&self) -> bool {
            self.1.load(Relaxed)
        }
    }

    #[test]
    fn a_plugin_stays_ready_unless_monitored_continuously() {
        for (continuously, after_relapse) in [(false, vec![]), (true, vec!["hosts", "kubernetes"])] {
            let [hosts, kubernetes] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let checks: Vec<Box<dyn ReadyCheck>> = vec![
                Box::new(Switch("kubernetes", kubernetes.clone())),
                Box::new(Switch("hosts", hosts.clone())),
                Box::new(Switch("hosts", hosts.clone())),
            ];
            let readiness = Readiness::new(checks, continuously);
            assert_eq!(readiness.not_ready(), ["hosts", "kubernetes"]);
            hosts.store(true, Relaxed);
            assert_eq!(readiness.not_ready(), ["kubernetes"]);
            kubernetes.store(true, Relaxed);
            assert!(readiness.not_ready().is_empty());
            hosts.store(false, Relaxed);
            kubernetes.store(false, Relaxed);
            assert_eq!(readiness.not_ready(), after_relapse);
        }
    }
}
