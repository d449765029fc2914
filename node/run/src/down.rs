//! `localdns node down`: removes what `node up`, `node run` or AKS's script added, even while a
//! server runs.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use super::peers::{HANDS_OVER_KEY, ask, in_words, notes};
use crate::host_resolver::HostResolver;
use node::{Doubt, Job, NetAdminProof, NftError, Peers, Rules, RunningServer, Unproven, escaped};

/// What `node down` removed, and what it could not remove.
#[derive(Debug, Default)]
pub struct DownReport {
    gone: Vec<String>,
    left: Vec<String>,
}

/// Removes everything; an error is reported, and does not prevent the other removals.
pub fn down() -> DownReport {
    let mut down = DownReport::default();
    // Proves to servers that this command may change rules; held until all servers have received
    // `down`. Without nftables, servers accept root without proof.
    let warrant = NetAdminProof::show();
    // Without permission to change rules, this command cannot check the servers' proofs either, so
    // a server's reply that it is handing over does not end the command.
    let believes = !matches!(warrant, Err(NftError::NotPermitted { .. }));
    let Peers { servers, unproven, unasked } = Peers::find();
    // All servers are queried for a handover before any of them receives `down`.
    if believes && ask(&servers).iter().flatten().any(|status| status[HANDS_OVER_KEY] == true) {
        down.left
            .push(format!("{HANDS_OVER}, which would restore everything: run `localdns node down` again"));
        return down;
    }
    let mut hands_over = false;
    for (server, answer) in servers.iter().zip(RunningServer::send_all(&servers, "down", PATIENCE)) {
        match answer {
            Ok(answer) if answer.starts_with(HANDS_OVER) || answer.starts_with(REFUSED) => {
                hands_over |= answer.starts_with(HANDS_OVER);
                down.left.push(answer.trim_end().to_owned());
            }
            Ok(answer) => down.gone.push(answer.trim_end().to_owned()),
            Err(error) => down.does_not_release(server.pid, &in_words(&error, PATIENCE)),
        }
    }
    if believes && hands_over {
        return down;
    }
    down.send_to_unproven(unproven, unasked);
    drop(warrant);
    let (files, failed) = HostResolver::take_back();
    down.gone.extend(files.iter().map(|file| match file.ends_with("resolv.conf") {
        true => format!("restored {}", file.display()),
        false => format!("removed {}", file.display()),
    }));
    for error in failed {
        down.leaves("the host's resolver".to_owned(), &error);
    }
    match rules() {
        Ok((there, holders)) => {
            let line = if there { "removed the rules" } else { "there are no rules" };
            down.gone.push(line.to_owned());
            for pid in holders {
                let cause = "it still serves, and would renew them: stop it, as with systemctl stop";
                down.leaves(format!("the leases of process {pid}"), &cause);
            }
        }
        Err(error @ NftError::NotSupported { .. }) => down.gone.push(format!("there are no rules: {error}")),
        Err(error) => down.leaves("the rules".to_owned(), &error),
    }
    match node::remove_iptables_rules() {
        Ok(0) => {}
        Ok(rules) => down.gone.push(format!("removed {rules} iptables rules")),
        Err(error) => down.leaves("iptables rules (see iptables-save)".to_owned(), &error),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let link = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(node::remove_link()).map_err(|error| error.to_string()));
    match link {
        Ok(gone) if gone.is_empty() => {
            down.gone.push("there is no link and no address of localdns".to_owned())
        }
        Ok(gone) => down.gone.extend(gone.iter().map(|what| format!("removed {what}"))),
        Err(error) => down.leaves("links and addresses".to_owned(), &error),
    }
    down
}

/// For systemd's ExecStopPost: restores the host's resolver when the unit stops, in case the server
/// was killed. Changes nothing if a start follows, as in an automatic restart.
pub fn stopped() -> String {
    if Job::now() != Job::Stop {
        return match Path::new(BOOTED).is_dir() {
            true => "a start follows: the host's resolver stays\n".to_owned(),
            false => {
                "systemd does not run, so it is not known whether a start follows: the host's resolver stays; `localdns node down` restores it\n"
                    .to_owned()
            }
        };
    }
    let (files, failed) = HostResolver::take_back();
    let files = files.iter().map(|file| format!("{}: the host's resolver is restored\n", file.display()));
    let failed = failed.iter().map(|error| {
        format!("host lookups are still sent to this server: {error}; run localdns node down\n")
    });
    files.chain(failed).collect()
}

/// Removes the failover and unowned lease tables; returns whether rules existed, and which
/// processes still have leases.
fn rules() -> Result<(bool, Vec<u32>), NftError> {
    let mut rules = Rules::open()?;
    let there = rules.are_there()?;
    // Lease tables may remain although there are no rules.
    rules.remove()?;
    node::remove_left_proofs()?;
    Ok((there, rules.holders()?))
}

/// This directory exists if systemd is the init system; `sd_booted` tests the same.
const BOOTED: &str = "/run/systemd/system";
/// Prefix of the answer of a server that refuses `down`.
pub(super) const REFUSED: &str = "the server refuses";
/// Prefix of the answer of a server that is handing over.
pub(super) const HANDS_OVER: &str = "the server is handing over to another process";
/// Time limit of a server's answer to `down`, for which the server waits for networkd.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time limit of the answers of all unproven processes together.
const OF_UNPROVEN: Duration = Duration::from_secs(1);
/// Maximum of shown answers of unproven processes.
const ANSWERS: usize = 8;

impl DownReport {
    /// Sends `down` to unproven processes, too: one may be a server without CAP_NET_ADMIN. The
    /// answers are only shown.
    fn send_to_unproven(&mut self, unproven: Vec<Unproven>, unasked: usize) {
        let (hang, others): (Vec<_>, Vec<_>) = unproven.into_iter().partition(Unproven::may_hang);
        for one in hang {
            self.does_not_release(one.pid(), "it has not answered within 1 s");
        }
        self.gone.extend(notes(&others, unasked).iter().map(ToString::to_string));
        let speak: Vec<_> = others.into_iter().filter(|one| one.doubt != Doubt::Silent).collect();
        let running: Vec<_> = speak.iter().map(|one| one.running.clone()).collect();
        let answers = speak.iter().zip(RunningServer::send_all(&running, "down", OF_UNPROVEN));
        let mut answers: Vec<_> = answers
            .filter_map(|(one, answer)| {
                Some(format!("process {} replies: {}", one.pid(), answer.ok()?.trim_end()))
            })
            .collect();
        answers.dedup();
        answers.truncate(ANSWERS);
        self.gone.extend(answers);
    }

    fn does_not_release(&mut self, pid: u32, why: &str) {
        self.leaves(
            format!("process {pid} does not release its leases"),
            &format!("{why}; if it hangs, `kill -9 {pid}`, and run `localdns node down` again"),
        );
    }

    fn leaves(&mut self, what: String, why: &dyn Display) {
        self.left.push(format!("{what}: {why}"));
    }

    /// Returns the removed things, one per line.
    pub fn text(&self) -> String {
        self.gone.iter().map(|line| format!("{}\n", escaped(line))).collect()
    }

    /// Returns the things that could not be removed, with reasons; `None` if there are none.
    pub fn left(&self) -> Option<String> {
        (!self.left.is_empty()).then(|| escaped(&format!("left: {}", self.left.join("; left: "))))
    }
}
