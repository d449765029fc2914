//! Converts a server's status to lines of `node status`.

use std::path::{Path, PathBuf};

use node::Diagnosis;
use serde_json::Value;

use super::{Finding, STATUS_FORMAT, first_line, keepers};
use crate::finding::from_json;
use crate::is_link_local;
use crate::peers::Reported;
use crate::self_probe;

/// Whether each address of the servers has a held lease of one of them or, without leases, answered
/// its last probe. Service addresses at which another process answers are exempt, as for READY.
pub(super) fn are_held(servers: &[Reported]) -> bool {
    let addresses = || keepers(servers).flat_map(|status| of_server(status).map(move |one| (status, one)));
    let is_held = |ip: &Value| {
        addresses().any(|(status, one)| {
            one["address"] == *ip
                && match status["has_leases"] == true {
                    true => one["held"] == true,
                    false => one["probe_error"].is_null(),
                }
        })
    };
    let is_taken = |one: &Value| {
        let is_others =
            one["probe_error"].as_str().is_some_and(|error| error.ends_with(self_probe::ANOTHER_ANSWERS));
        is_others
            && one["address"].as_str().and_then(|ip| ip.parse().ok()).is_some_and(|ip| !is_link_local(ip))
    };
    addresses().all(|(_, one)| is_held(&one["address"]) || is_taken(one))
}

/// Returns the status of each address of a server.
pub(super) fn of_server(status: &Value) -> impl Iterator<Item = &Value> {
    status["addresses"].as_array().into_iter().flatten()
}

/// Returns a line for each file that sent the host's lookups to a server and no longer does, since
/// another program changed it.
pub(super) fn removed_host_resolvers(servers: &[Reported], stand: &[PathBuf]) -> Vec<Finding> {
    let keeping = servers.iter().flatten().filter(|status| status["let_go"] != true);
    let put = keeping.filter_map(|status| status["host_resolver"].as_str());
    let gone = put.filter(|path| stand.iter().all(|stands| stands.as_path() != Path::new(path)));
    let line = |path: &str| {
        let how = if Path::new(path).exists() { "no longer names this server" } else { "is gone" };
        let what = format!("of this host are not sent to this server: {path} {how}");
        Finding::problem("lookups", what, "the server restores it within 30 s")
    };
    gone.map(line).collect()
}

pub(super) fn server_lines(status: &Value) -> Vec<Finding> {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pid = word(&status["pid"]);
    let mut lines = Vec::new();
    if let Some(format) = status["format"].as_u64().filter(|format| *format > STATUS_FORMAT.into()) {
        let problem =
            format!("process {pid} reports in format {format}, and this command reads {STATUS_FORMAT}");
        lines.push(Finding::note(&Diagnosis::new(problem, "use the `localdns` of its version")));
    }
    if status["let_go"] == true {
        let what = format!("process {pid} released its leases, addresses and rules, by `node down`");
        lines.push(Finding::problem("server", what, "restart it"));
        return lines;
    }
    let has_leases = status["has_leases"] != false;
    let leases = match status["lease_ms"].as_u64() {
        _ if !has_leases => "without leases".to_owned(),
        Some(ms) => format!("leases of {ms} ms"),
        None => "leases that end with the process".to_owned(),
    };
    lines.push(Finding::fact("server", format!("process {pid}, {leases}")));
    for address in status["addresses"].as_array().into_iter().flatten() {
        let (ip, lost) = (word(&address["address"]), word(&address["lost"]));
        let held = if address["held"] == true { "held" } else { "not held" };
        let (subject, before) = match has_leases {
            true => ("lease", format!("{ip}  {held}, lost {lost} times, ")),
            false => ("probe", format!("{ip}  ")),
        };
        lines.push(match (address["probe_error"].as_str(), address["probed_ms_ago"].as_u64()) {
            (Some(error), _) => {
                let remedy = match error.ends_with(self_probe::ANOTHER_ANSWERS) {
                    true => "find the rule that redirects its queries: nft list ruleset",
                    false => "if it persists, restart the server",
                };
                Finding::problem(subject, format!("{before}the last probe failed: {error}"), remedy)
            }
            (None, Some(ms)) if has_leases && address["held"] != true => {
                let what =
                    format!("{before}answered a probe {ms} ms ago, but its queries do not arrive here");
                Finding::problem(subject, what, "the server's log says why it has no lease")
            }
            (None, Some(ms)) => Finding::fact(subject, format!("{before}answered a probe {ms} ms ago")),
            (None, None) => Finding::fact(subject, format!("{before}not probed yet")),
        });
    }
    if let Some(error) = status["reload_failed"]["error"].as_str().map(first_line) {
        let ago = word(&status["reload_failed"]["seconds_ago"]);
        let what = format!("failed {ago} s ago, the previous configuration serves: {error}");
        lines.push(Finding::problem("reload", what, "fix the Corefile, and run `localdns check -conf FILE`"));
    }
    let upstreams: Vec<_> = status["upstreams"].as_array().into_iter().flatten().map(word).collect();
    if let Some(from) = status["upstreams_from"].as_str() {
        let asked = if status["upstreams_asked"] == false { UNASKED } else { "" };
        lines.push(Finding::fact("upstreams", format!("{} from {from}{asked}", upstreams.join(" "))));
    }
    if let Some(error) = status["upstreams_error"].as_str() {
        let remedy =
            "have the network manager write its name servers to it, or name another file with -upstreams";
        lines.push(Finding::problem("upstreams", error, remedy));
    }
    let down: Vec<_> = status["upstreams_down"].as_array().into_iter().flatten().map(word).collect();
    if !down.is_empty() {
        let what = format!("{} down: queries without another upstream get SERVFAIL", down.join(" "));
        lines.push(Finding::note(&Diagnosis::without_remedy(what)));
    }
    let not_turned = from_json(&status["host_resolver_error"]);
    if let Some(error) = &not_turned {
        let error = error.clone().context("of this host are not sent to this server");
        lines.push(Finding::diagnosis("lookups", &error));
    }
    let notes = status["notes"].as_array().into_iter().flatten().filter_map(from_json);
    // A note with the problem of `host_resolver_error` is not shown again.
    let is_shown =
        |note: &Diagnosis| not_turned.as_ref().is_some_and(|error| note.problem.ends_with(&error.problem));
    lines.extend(notes.filter(|note| !is_shown(note)).map(|note| Finding::note(&note)));
    lines
}

const UNASKED: &str = "; not used: no `forward` of this Corefile names 168.63.129.16";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Without leases, each address must have answered its last probe.
    #[test]
    fn addresses_are_held_or_answered() {
        let server = |has_leases: bool, address: Value| {
            Ok(json!({ "has_leases": has_leases, "let_go": false, "addresses": [address] }))
        };
        let of = |has_leases, held: bool| server(has_leases, json!({ "address": "192.0.2.1", "held": held }));
        let taken = |ip: &str| {
            let error = format!("{ip}:53 does not answer over UDP{}", self_probe::ANOTHER_ANSWERS);
            server(true, json!({ "address": ip, "held": false, "probe_error": error }))
        };
        let unled = |ip: &str| {
            let error = format!("{ip}:53 does not answer over UDP{}", self_probe::ANOTHER_ANSWERS);
            server(false, json!({ "address": ip, "held": false, "probe_error": error }))
        };
        let (silent, silent_of_service) = (unled("169.254.10.10"), unled("10.96.0.20"));
        for (servers, expected) in [
            (vec![], true),
            (vec![of(true, true)], true),
            (vec![of(true, false)], false),
            // A starting server beside one that serves.
            (vec![of(true, false), of(true, true)], true),
            (vec![of(false, false)], true),
            (vec![taken("10.96.0.20")], true),
            (vec![taken("169.254.10.10")], false),
            (vec![silent], false),
            (vec![silent_of_service], true),
            (vec![Err(Diagnosis::without_remedy("it hangs"))], true),
        ] {
            assert_eq!(are_held(&servers), expected, "{servers:?}");
        }
    }
}
