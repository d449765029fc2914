//! Reads systemd-networkd's state of a link.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use node::link_index;
use node::run_program as run;

/// A link's state in systemd-networkd.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkdLink {
    /// The link's .network file.
    pub(crate) network_file: Option<String>,
    /// The link's setup state: `configuring`, `configured`, `failed`.
    pub(crate) state: Option<String>,
}

impl NetworkdLink {
    /// Reads the state from the JSON of `networkctl`. Fields that the JSON lacks, as before systemd
    /// 250, are read from networkd's state file.
    ///
    /// # Errors
    /// The error of `networkctl`, if there is no state file, either.
    pub(crate) fn of(link: &str) -> std::io::Result<Self> {
        let printed = run("networkctl", &["--json=short", "status", link], "");
        let status = printed.as_deref().map(Self::of_json).unwrap_or_default();
        if status.network_file.is_some() && status.state.is_some() {
            return Ok(status);
        }
        let kept =
            link_index(link).map(|index| Self::kept(Path::new(NETWORKD_STATE), index)).unwrap_or_default();
        if kept.state.is_none() {
            printed?;
        }
        Ok(Self {
            network_file: status.network_file.or(kept.network_file),
            state: status.state.or(kept.state),
        })
    }

    fn of_json(json: &str) -> Self {
        let object: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
        let field = |name: &str| object.get(name)?.as_str().map(str::to_owned);
        Self { network_file: field("NetworkFile"), state: field("AdministrativeState") }
    }

    fn kept(state: &Path, index: u32) -> Self {
        let text = text_of(&state.join("links").join(index.to_string()));
        let field = |name: &str| value(&text, name).map(str::to_owned);
        Self { network_file: field("NETWORK_FILE"), state: field("ADMIN_STATE") }
    }
}

/// Returns the value of the first line `KEY=value`.
pub(crate) fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the text of a file of networkd; empty if there is none, as between two leases.
pub(crate) fn text_of(path: &Path) -> String {
    let mut text = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// The directory of networkd's link states and leases.
pub(crate) const NETWORKD_STATE: &str = "/run/systemd/netif";
/// Maximum size of a file of a link or lease in bytes; such a file has some hundred.
const MOST: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_from_networkctl_or_state_file() {
        let file = "/run/systemd/network/10-netplan-eth0.network";
        let configured =
            NetworkdLink { network_file: Some(file.to_owned()), state: Some("configured".to_owned()) };
        let json = format!(r#"{{"Name":"eth0","NetworkFile":"{file}","AdministrativeState":"configured"}}"#);
        assert_eq!(NetworkdLink::of_json(&json), configured);
        let deep = "[".repeat(1 << 20);
        for json in ["", "{", "[]", "3", r#"{"Name":"eth0","NetworkFile":7}"#, &deep] {
            assert_eq!(NetworkdLink::of_json(json), NetworkdLink::default(), "{:.64}", json);
        }
        let state = tempfile::tempdir().expect("a directory");
        assert_eq!(NetworkdLink::kept(state.path(), 2), NetworkdLink::default());
        std::fs::create_dir(state.path().join("links")).expect("made");
        let text =
            format!("# This is private data. Do not parse.\nADMIN_STATE=configured\nNETWORK_FILE={file}\n");
        std::fs::write(state.path().join("links/2"), text).expect("written");
        assert_eq!(NetworkdLink::kept(state.path(), 2), configured);
    }
}
