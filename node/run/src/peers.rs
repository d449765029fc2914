//! Queries the status of the servers in this network namespace, for commands such as `node status`.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;

use node::{Diagnosis, Doubt, Peers, Rules, RunningServer, Unproven, escaped};
use serde_json::Value;
use wire::Name;

/// The status of the servers in this network namespace.
pub(super) struct PeerStatus {
    /// The status of each server, or an error.
    pub(super) reports: Vec<Reported>,
    /// Notes about processes that listen on a control socket, and have not proven to be servers.
    pub(super) notes: Vec<Diagnosis>,
}

/// The JSON that a server reports, or why it reports none.
pub(super) type Reported = Result<Value, Diagnosis>;

/// Queries all servers.
pub(super) fn all() -> PeerStatus {
    let Peers { servers, mut unproven, unasked } = Peers::find();
    let mut reports = ask(&servers);
    let mut silent = Rules::open().and_then(|mut rules| rules.holders()).unwrap_or_default();
    // Two containers' processes may have the same id, so each server removes one entry only.
    for server in &servers {
        if let Some(at) = silent.iter().position(|pid| *pid == server.pid) {
            silent.swap_remove(at);
        }
    }
    for pid in silent {
        let hangs = unproven.iter().position(|one| one.running.pid == pid && one.doubt == Doubt::Silent);
        let (problem, remedy) = match hangs.map(|at| unproven.swap_remove(at)) {
            Some(_) => ("does not report its status: it has not answered within 1 s", IF_IT_HANGS),
            None => ("has leases but accepts no commands", "try again, and if it hangs, restart it"),
        };
        reports.push(Err(Diagnosis::new(format!("process {pid} {problem}"), remedy)));
    }
    let notes = notes(&unproven, unasked);
    if reports.is_empty() {
        // A server without CAP_NET_ADMIN cannot prove to be one. Unproven replies are used only if
        // no proven server exists.
        let speak = unproven.into_iter().filter(|one| one.doubt != Doubt::Silent);
        let speak: Vec<_> = speak.map(|one| one.running).collect();
        reports = ask(&speak).into_iter().filter(Result::is_ok).collect();
    }
    PeerStatus { reports, notes }
}

/// Returns notes about unproven processes, deduplicated and limited.
pub(super) fn notes(unproven: &[Unproven], unasked: usize) -> Vec<Diagnosis> {
    let mut notes: Vec<_> = unproven.iter().map(note).collect();
    notes.sort_unstable();
    notes.dedup();
    let more = notes.len().saturating_sub(NOTES);
    notes.truncate(NOTES);
    if more > 0 {
        notes.push(format!(
            "{more} more processes listen on a server's control socket, and have not proven to be servers"
        ));
    }
    if unasked > 0 {
        notes.push(format!(
            "{unasked} more sockets are named like a server's control socket: more than are queried of one process or user"
        ));
    }
    notes.into_iter().map(Diagnosis::without_remedy).collect()
}

fn note(unproven: &Unproven) -> String {
    let none =
        "has not proven that it has CAP_NET_ADMIN: it is a server without that capability, or no server";
    let why = match &unproven.doubt {
        Doubt::Silent => "has not answered within 1 s: it hangs, or is no server".to_owned(),
        Doubt::NotShown(None) => none.to_owned(),
        Doubt::NotShown(Some(reason)) => format!("{none} ({reason})"),
        Doubt::NotSeen(error) => format!("whether it is a server cannot be checked: {error}"),
    };
    format!("process {} listens on a server's control socket, and {why}", unproven.pid())
}

/// Queries the status of servers concurrently; the JSON's keys depend on each server's version.
pub(super) fn ask(servers: &[RunningServer]) -> Vec<Reported> {
    let answers = RunningServer::send_all(servers, "status", PATIENCE);
    servers.iter().zip(answers).map(|(server, answer)| read(server, answer)).collect()
}

fn read(server: &RunningServer, answer: io::Result<String>) -> Reported {
    let unheard = |error: &dyn std::fmt::Display| {
        Diagnosis::new(format!("process {} does not report its status: {error}", server.pid), IF_IT_HANGS)
    };
    let text = answer.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => unheard(&in_words(&error, PATIENCE)),
        // A server closes connections of users other than root and its own.
        _ if !rustix::process::geteuid().is_root() => {
            let problem =
                format!("process {} reports its status only to root and to its own user", server.pid);
            Diagnosis::new(problem, "run this as one of them")
        }
        _ => unheard(&error),
    })?;
    serde_json::from_str(&text).map(fit).map_err(|error| unheard(&error))
}

/// Returns the value with all its text escaped for a terminal.
fn fit(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(escaped(&text)),
        Value::Array(values) => values.into_iter().map(fit).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (escaped(&key), fit(value))).collect(),
        other => other,
    }
}

/// Returns an error as text; the system has no text for an expired time limit.
pub(super) fn in_words(error: &io::Error, patience: Duration) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("it has not answered within {} s", patience.as_secs())
        }
        _ => error.to_string(),
    }
}

/// Returns the probe names of servers that claim to answer at this address. The names are secrets.
pub(super) fn probes(servers: &[Reported], ip: IpAddr) -> Vec<Name> {
    let ip = ip.to_string();
    let is_answered = |status: &&Value| {
        let of_ip =
            status["addresses"].as_array().and_then(|all| all.iter().find(|one| one["address"] == ip));
        of_ip.is_some_and(|one| match status["has_leases"] == false {
            true => is_answer(one),
            // While the lease is not held, queries may fail over.
            false => one["held"] == true,
        })
    };
    let names = servers.iter().flatten().filter(is_answered);
    names.filter_map(|status| Name::from_text(status[PROBE].as_str()?).ok()).collect()
}

/// Checks that a localdns has answered its own probe at each of these addresses. Answers of other
/// servers, as of kube-proxy's endpoints at a service address, do not count.
pub(super) fn answer(addresses: &[IpAddr]) -> Result<(), String> {
    is_answered(&all().reports, addresses)
}

fn is_answered(servers: &[Reported], addresses: &[IpAddr]) -> Result<(), String> {
    if servers.is_empty() {
        return Err("no server is running".to_owned());
    }
    for address in addresses {
        let ip = address.to_string();
        let of_ip =
            |status: &Value| status["addresses"].as_array()?.iter().find(|one| one["address"] == ip).cloned();
        let statuses: Vec<Value> = servers.iter().flatten().filter_map(of_ip).collect();
        if statuses.iter().any(is_answer) {
            continue;
        }
        let silent = statuses.iter().find_map(|one| one["probe_error"].as_str()).map(str::to_owned);
        let unheard = || servers.iter().find_map(|report| report.as_ref().err().map(ToString::to_string));
        let why =
            silent.or_else(unheard).unwrap_or_else(|| "no localdns has answered a probe there".to_owned());
        return Err(format!("{ip} does not answer: {why}"));
    }
    Ok(())
}

/// Whether an address has answered its last probe, by its status.
fn is_answer(status: &Value) -> bool {
    status["probe_error"].is_null() && status["probed_ms_ago"].is_u64()
}

/// JSON key: whether a handover is in progress.
pub(super) const HANDS_OVER_KEY: &str = "hands_over";
/// JSON key: the server's probe name, which `node status` does not print.
pub(super) const PROBE: &str = "probe";
const PATIENCE: Duration = Duration::from_secs(2);
/// The remedy for a server that does not answer.
const IF_IT_HANGS: &str = "if it hangs, restart it";
/// Maximum of notes about unproven processes.
const NOTES: usize = 8;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn probes_claimed_addresses_only() {
        let held = json!({ "address": "192.0.2.1", "held": true, "probed_ms_ago": 9, "probe_error": null });
        let lost = json!({ "address": "192.0.2.1", "held": false, "probed_ms_ago": 9, "probe_error": null });
        let silent =
            json!({ "address": "192.0.2.1", "held": false, "probed_ms_ago": 9, "probe_error": "no" });
        let of = |has_leases: bool, address: &Value| {
            Ok(json!({ "has_leases": has_leases, "probe": "a.probe.localdns.", "addresses": [address] }))
        };
        for (report, asked) in [
            (of(true, &held), 1),
            (of(true, &lost), 0),
            (of(false, &lost), 1),
            (of(false, &silent), 0),
            (Ok(json!({ "has_leases": true, "addresses": [held] })), 0),
            (Err(Diagnosis::without_remedy("it hangs")), 0),
        ] {
            let found = probes(std::slice::from_ref(&report), [192, 0, 2, 1].into());
            assert_eq!(found.len(), asked, "{report:?}");
            assert!(probes(&[report], [192, 0, 2, 2].into()).is_empty());
        }
    }

    #[test]
    fn answered_by_a_localdns() {
        let answered = json!({ "address": "192.0.2.1", "probed_ms_ago": 9, "probe_error": null });
        let silent = json!({ "address": "192.0.2.1", "probed_ms_ago": 9, "probe_error": "silence" });
        let new = json!({ "address": "192.0.2.1", "probed_ms_ago": null, "probe_error": null });
        let of = |addresses: &[&Value]| Ok(json!({ "addresses": addresses }));
        let elsewhere = "192.0.2.1 does not answer: no localdns has answered a probe there";
        for (servers, expected) in [
            (vec![], Err("no server is running")),
            (vec![of(&[&answered])], Ok(())),
            (vec![of(&[&silent]), of(&[&answered])], Ok(())),
            (vec![of(&[&silent])], Err("192.0.2.1 does not answer: silence")),
            (vec![of(&[&new])], Err(elsewhere)),
            (vec![of(&[])], Err(elsewhere)),
            (vec![Ok(json!({}))], Err(elsewhere)),
            (vec![Err(Diagnosis::without_remedy("it hangs"))], Err("192.0.2.1 does not answer: it hangs")),
        ] {
            let found = is_answered(&servers, &[[192, 0, 2, 1].into()]);
            assert_eq!(found, expected.map_err(str::to_owned), "{servers:?}");
        }
        assert!(is_answered(&[of(&[&answered])], &[[192, 0, 2, 1].into(), [192, 0, 2, 2].into()]).is_err());
    }
}
