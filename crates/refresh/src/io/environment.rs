//! Environment variables about refreshed names, as AKS's provisioning passes them.

use std::path::PathBuf;
use std::time::Duration;

use wire::Name;

/// The variables, and paths of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// LOCALDNS_CRITICAL_FQDNS: names and `@LIST`s between commas.
    pub names: Vec<Name>,
    /// LOCALDNS_HOSTS_PLUGIN_REFRESH_INTERVAL_IN_SECONDS, at least 5 s.
    pub interval: Option<Duration>,
    /// LOCALDNS_SHIPPED_HOSTS: the hosts file shipped with the image; default /usr/share/localdns/hosts.
    pub shipped: PathBuf,
    /// Warnings about invalid values, a line each.
    pub warnings: Vec<String>,
}

impl Environment {
    /// Reads the variables. Invalid values are ignored with a warning, since a start must not fail because of a name.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut environment = Self::default();
        for word in variable(NAMES).unwrap_or_default().split([',', ' ', '\t', '\n']) {
            if let Some(error) = (!word.is_empty())
                .then(|| crate::name_lists::add(&mut environment.names, word).err())
                .flatten()
            {
                environment.warnings.push(format!("{NAMES}: {error}; it is passed over"));
            }
        }
        if let Some(text) = variable(INTERVAL).filter(|text| !text.is_empty()) {
            match text.trim().parse() {
                Ok(seconds) => environment.interval = Some(Duration::from_secs(seconds)),
                Err(_) => environment
                    .warnings
                    .push(format!("{INTERVAL}={text:?} is not a number of seconds; it is passed over")),
            }
        }
        if let Some(shipped) = variable(SHIPPED).filter(|text| !text.is_empty()) {
            environment.shipped = shipped.into();
        }
        environment.warnings.truncate(MAX_WARNINGS);
        environment
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            interval: None,
            shipped: "/usr/share/localdns/hosts".into(),
            warnings: Vec::new(),
        }
    }
}

const NAMES: &str = "LOCALDNS_CRITICAL_FQDNS";
const INTERVAL: &str = "LOCALDNS_HOSTS_PLUGIN_REFRESH_INTERVAL_IN_SECONDS";
const SHIPPED: &str = "LOCALDNS_SHIPPED_HOSTS";
const MAX_WARNINGS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_ignored() {
        for (names, interval, kept, seconds, warnings) in [
            ("", "", 0, None, 0),
            ("mcr.microsoft.com,a.example", "30", 2, Some(30), 0),
            (" a.example , b.example,,a.example\n", " 5 ", 2, Some(5), 0),
            ("@azure-public", "1", 7, Some(1), 0),
            ("a.example,b c/d,192.0.2.1", "15m", 2, None, 3),
            ("a..b", "-5", 0, None, 2),
        ] {
            let variable = |name: &str| match name {
                NAMES => Some(names.to_owned()),
                INTERVAL => Some(interval.to_owned()),
                _ => None,
            };
            let environment = Environment::read(&variable);
            let found = (
                environment.names.len(),
                environment.interval.map(|interval| interval.as_secs()),
                environment.warnings.len(),
            );
            assert_eq!(found, (kept, seconds, warnings), "{names:?} {interval:?}: {environment:?}");
        }
    }
}
