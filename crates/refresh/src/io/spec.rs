//! Which hosts files have names to keep, and how: the Corefile's properties and the environment in one.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Families, Schedule, Settings};
use wire::Name;

use super::Environment;

/// The properties of `hosts` that keep names true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefreshSpec {
    /// `refresh NAME...`: the names, each once; `@LIST` stands for a cloud's.
    pub names: Vec<Name>,
    /// `refresh_interval D [jitter D]`: at least 5 s.
    pub interval: Option<(Duration, Option<Duration>)>,
    /// `refresh_via ADDRESS...`: whom to ask, in order; at most 15.
    pub via: Vec<SocketAddr>,
    /// `refresh_family`.
    pub families: Families,
    /// `max_age`: how old an entry may become without a good answer; 0 and absent mean for ever.
    pub max_age: Option<Duration>,
    /// `refresh_sinkhole ADDRESS...`: addresses that stand for "blocked".
    pub sinkholes: Vec<IpAddr>,
}

/// What is to be kept in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefreshPlan {
    /// The hosts file.
    pub file: PathBuf,
    /// The names, and how they are kept.
    pub settings: Settings,
    /// Whom to ask; where empty, whom the node asks.
    pub via: Vec<SocketAddr>,
    /// Who wants it: a directive, a variable, or both.
    pub because: &'static str,
}

/// One plan for each hosts file that has names, of what every `hosts` of a Corefile says, in its order.
///
/// Server blocks with the same file share one: their names are united, and other properties are those of the first block
/// that has any. The environment's names go into the first file that is not the system's own.
pub fn plan(hosts: &[(&Path, &RefreshSpec)], environment: &Environment) -> Vec<RefreshPlan> {
    let mut plans: Vec<RefreshPlan> = Vec::new();
    let own = hosts.iter().map(|(file, _)| *file).find(|file| *file != Path::new(SYSTEM));
    for &(file, _) in hosts {
        if plans.iter().any(|plan| plan.file == file) {
            continue;
        }
        let of_file = || hosts.iter().filter(|(of, _)| *of == file).map(|(_, refresh)| *refresh);
        let written = of_file().find(|refresh| **refresh != RefreshSpec::default());
        let nothing = RefreshSpec::default();
        let mut settings = settings(written.unwrap_or(&nothing), environment);
        let of_environment = own.filter(|own| *own == file).map(|_| environment.names.as_slice());
        let because = match (of_file().any(|refresh| !refresh.names.is_empty()), of_environment) {
            (true, Some([_, ..])) => "`refresh` and LOCALDNS_CRITICAL_FQDNS",
            (true, _) => "`refresh`",
            (false, _) => BY_VARIABLE,
        };
        for name in of_file().flat_map(|refresh| &refresh.names).chain(of_environment.into_iter().flatten()) {
            if !settings.names.contains(name) {
                settings.names.push(*name);
            }
        }
        if !settings.names.is_empty() {
            let via = written.map(|written| written.via.clone()).unwrap_or_default();
            plans.push(RefreshPlan { file: file.to_owned(), settings, via, because });
        }
    }
    plans
}

/// What the properties and the environment say, without names.
pub(super) fn settings(refresh: &RefreshSpec, environment: &Environment) -> Settings {
    let schedule = match (refresh.interval, environment.interval) {
        (Some((interval, jitter)), _) => Schedule::every(interval, jitter),
        (None, Some(interval)) => Schedule::exactly(interval),
        (None, None) => Schedule::default(),
    };
    Settings {
        names: Vec::new(),
        families: refresh.families,
        schedule,
        max_age: refresh.max_age,
        sinkholes: refresh.sinkholes.clone(),
    }
}

const SYSTEM: &str = "/etc/hosts";
/// Why names are refreshed that no Corefile names.
pub(super) const BY_VARIABLE: &str = "LOCALDNS_CRITICAL_FQDNS";
