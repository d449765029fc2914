//! The hosts files with refreshed names: merges the Corefile's properties and the environment.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::{Families, Schedule, Settings};
use files::ShownPath;
use wire::Name;

use super::{Environment, Via};

/// The properties of `hosts` about refreshed names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefreshSpec {
    /// `refresh NAME...`: the names, each once; `@LIST` is a cloud's list.
    pub names: Vec<Name>,
    /// `refresh_interval D [jitter D]`: at least 5 s.
    pub interval: Option<(Duration, Option<Duration>)>,
    /// `refresh_via SERVER...`, `tls` and `tls_servername`: the servers, in order.
    pub via: Via,
    /// `refresh_family`.
    pub families: Families,
    /// `max_age`: maximum age of an entry without a good answer; 0 and absent mean no limit.
    pub max_age: Option<Duration>,
    /// `refresh_sinkhole ADDRESS...`: addresses that mean "blocked".
    pub sinkholes: Vec<IpAddr>,
}

/// The refreshed names of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefreshPlan {
    /// The hosts file.
    pub file: ShownPath,
    /// The names, and how they are refreshed.
    pub settings: Settings,
    /// The servers; if empty, those of the node.
    pub via: Via,
    /// The origin of the names: a directive, a variable, or both.
    pub because: &'static str,
}

/// Returns one plan for each hosts file with refreshed names, from all `hosts` of a Corefile, in its order.
///
/// Server blocks with the same file share one: their names are united, and other properties are those of the first block
/// that has any. The environment's names go into the first file that is not the system's own.
pub fn plan(hosts: &[(&ShownPath, &RefreshSpec)], environment: &Environment) -> Vec<RefreshPlan> {
    let mut plans: Vec<RefreshPlan> = Vec::new();
    let own = hosts.iter().map(|(file, _)| *file).find(|file| file.as_path() != Path::new(SYSTEM));
    for &(file, _) in hosts {
        if plans.iter().any(|plan| plan.file.as_path() == file.as_path()) {
            continue;
        }
        let of_file =
            || hosts.iter().filter(|(of, _)| of.as_path() == file.as_path()).map(|(_, refresh)| *refresh);
        let written = of_file().find(|refresh| **refresh != RefreshSpec::default());
        let nothing = RefreshSpec::default();
        let mut settings = settings(written.unwrap_or(&nothing), environment);
        let of_environment =
            own.filter(|own| own.as_path() == file.as_path()).map(|_| environment.names.as_slice());
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
            plans.push(RefreshPlan { file: file.clone(), settings, via, because });
        }
    }
    plans
}

/// The settings of the properties and the environment, without names.
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
/// The origin of names that only the environment has.
pub(super) const BY_VARIABLE: &str = "LOCALDNS_CRITICAL_FQDNS";
