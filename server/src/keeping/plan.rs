//! Which hosts files have names to keep, and how: the Corefile's properties and the environment in one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use refresh::{Schedule, Settings};

use super::Environment;
use crate::plugin::hosts::{HostsSpec, RefreshSpec};
use crate::setup::Spec;

/// What is to be kept in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The hosts file.
    pub file: PathBuf,
    /// The names, and how they are kept.
    pub settings: Settings,
    /// Whom to ask; where empty, whom the node asks.
    pub via: Vec<SocketAddr>,
    /// Who wants it: a directive, a variable, or both.
    pub because: &'static str,
}

/// One plan for each hosts file that has names.
///
/// Server blocks with the same file share one: their names are united, and other properties are those of the first block
/// that has any. The environment's names go into the first file that is not the system's own.
pub fn plan(spec: &Spec, environment: &Environment) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    let hosts = || spec.blocks.iter().filter_map(|block| block.get::<HostsSpec>());
    let own = hosts().map(|hosts| &hosts.file).find(|file| *file != Path::new(SYSTEM));
    for HostsSpec { file, .. } in hosts() {
        if plans.iter().any(|plan| plan.file == *file) {
            continue;
        }
        let of_file = || hosts().filter(|hosts| hosts.file == *file).map(|hosts| &hosts.refresh);
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
            plans.push(Plan { file: file.clone(), settings, via, because });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::{Draft, Origin};
    use std::time::Duration;

    fn planned(corefile: &str, names: &str, interval: Option<u64>) -> Vec<(String, String, u64)> {
        let environment = Environment {
            names: names.split_whitespace().map(|text| wire::Name::from_text(text).unwrap()).collect(),
            interval: interval.map(Duration::from_secs),
            ..Environment::default()
        };
        let draft = Draft::read(&Origin::Text(corefile.into()), 53).unwrap();
        let names =
            |plan: &Plan| plan.settings.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        plan(&draft.spec, &environment)
            .iter()
            .map(|plan| {
                (plan.file.display().to_string(), names(plan), plan.settings.schedule.interval().as_secs())
            })
            .collect()
    }

    #[test]
    fn each_file_has_one_plan_with_the_names_of_all_who_read_it() {
        let two = "a.:53 {\nhosts /run/h {\nrefresh x\n}\n}\nb.:53 {\nhosts /run/h {\nrefresh y x\nrefresh_interval 10s\n}\n}\n";
        let system = ". {\nhosts {\nfallthrough\n}\n}\na. {\nhosts /run/h\n}\nb. {\nhosts /run/i {\nrefresh_interval 1m\n}\n}\n";
        for (corefile, names, interval, expected) in [
            (". {\nhosts /run/h\n}\n", "", Some(30), &[][..]),
            (". {\nwhoami\n}\n", "x", None, &[]),
            (". {\nhosts\n}\n", "x", None, &[]),
            (". {\nhosts /run/h\n}\n", "x y", None, &[("/run/h", "x. y.", 900)]),
            (". {\nhosts /run/h\n}\n", "x", Some(30), &[("/run/h", "x.", 30)]),
            (". {\nhosts /run/h\n}\n", "x", Some(1), &[("/run/h", "x.", 5)]),
            (two, "", None, &[("/run/h", "x. y.", 900)]),
            (two, "z", Some(60), &[("/run/h", "x. y. z.", 60)]),
            (system, "x", None, &[("/run/h", "x.", 900)]),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|&(file, names, seconds)| (file.to_owned(), names.to_owned(), seconds))
                .collect();
            assert_eq!(planned(corefile, names, interval), expected, "{corefile} {names} {interval:?}");
        }
    }

    #[test]
    fn who_wants_it_is_known() {
        let (bare, refresh) = (". {\nhosts /run/h\n}\n", ". {\nhosts /run/h {\nrefresh y\n}\n}\n");
        for (corefile, names, because) in [
            (bare, "x", "LOCALDNS_CRITICAL_FQDNS"),
            (refresh, "", "`refresh`"),
            (refresh, "x", "`refresh` and LOCALDNS_CRITICAL_FQDNS"),
        ] {
            let names = names.split_whitespace().map(|text| wire::Name::from_text(text).unwrap()).collect();
            let environment = Environment { names, ..Environment::default() };
            let draft = Draft::read(&Origin::Text(corefile.into()), 53).unwrap();
            assert_eq!(plan(&draft.spec, &environment)[0].because, because);
        }
    }

    #[test]
    fn what_the_corefile_says_goes_before_the_environment() {
        let corefile = ". {\nhosts /run/h {\nrefresh_interval 10m\n}\n}\n";
        assert_eq!(planned(corefile, "x", Some(30)), [("/run/h".to_owned(), "x.".to_owned(), 600)]);
    }
}
