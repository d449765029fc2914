//! `localdns node down`: what `up`, `run` or the script before us put there is taken away, whoever of them still lives.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use super::peers::{HANDS_OVER_KEY, ask, in_words, notes};
use node::{
    Doubt, HostResolver, Job, NetAdminProof, NftError, Peers, Rules, RunningServer, Unproven, escaped,
};

/// What is gone, and what is left.
#[derive(Debug, Default)]
pub struct DownReport {
    gone: Vec<String>,
    left: Vec<String>,
}

/// Takes everything away; what cannot be is named, and keeps nothing else from going.
pub fn down() -> DownReport {
    let mut down = DownReport::default();
    // It shows servers that the order comes from whoever may change rules, and is kept until all have it. Without nftables
    // they take root's word.
    let warrant = NetAdminProof::show();
    // Where this command may change no rules it cannot look for proofs, either: what servers say then ends nothing.
    let believes = !matches!(warrant, Err(NftError::NotPermitted { .. }));
    let Peers { servers, unproven, unasked } = Peers::find();
    // All are asked before one of them is ordered to let go.
    if believes && ask(&servers).iter().flatten().any(|said| said[HANDS_OVER_KEY] == true) {
        down.left
            .push(format!("{HANDS_OVER}, which would restore everything: run `localdns node down` again"));
        return down;
    }
    let mut hands_over = false;
    for (server, said) in servers.iter().zip(RunningServer::tell_all(&servers, "down", PATIENCE)) {
        match said {
            Ok(said) if said.starts_with(HANDS_OVER) || said.starts_with(REFUSED) => {
                hands_over |= said.starts_with(HANDS_OVER);
                down.left.push(said.trim_end().to_owned());
            }
            Ok(said) => down.gone.push(said.trim_end().to_owned()),
            Err(error) => down.does_not_let_go(server.pid, &in_words(&error, PATIENCE)),
        }
    }
    if believes && hands_over {
        return down;
    }
    down.tell_unproven(unproven, unasked);
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
            let told = if there { "removed the rules" } else { "there are no rules" };
            down.gone.push(told.to_owned());
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

/// What the unit runs when its server has ended: gives this machine its own lookups back where the unit is stopped, and the
/// server, killed, did not. Before a start, an automatic one too, they stay.
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

/// Takes the tables that stay away; whether the rules were there, and who still has leases.
fn rules() -> Result<(bool, Vec<u32>), NftError> {
    let mut rules = Rules::open()?;
    let there = rules.are_there()?;
    // Where the rules are gone leases may be left.
    rules.remove()?;
    node::remove_left_proofs()?;
    Ok((there, rules.holders()?))
}

/// What is there where systemd is the machine's, as `sd_booted` has it.
const BOOTED: &str = "/run/systemd/system";
/// How a server begins its answer that does not let go.
pub(super) const REFUSED: &str = "the server refuses";
/// How a server begins its answer that another process is about to follow.
pub(super) const HANDS_OVER: &str = "the server is handing over to another process";
/// How long a server may take to let go: networkd is told meanwhile.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same of processes that have proven nothing, all together.
const OF_UNPROVEN: Duration = Duration::from_secs(1);
/// How many of their answers are shown.
const ANSWERS: usize = 8;

impl DownReport {
    /// Orders those that have proven nothing, too: one may be a server without CAP_NET_ADMIN. Their answers are shown and decide
    /// nothing.
    fn tell_unproven(&mut self, unproven: Vec<Unproven>, unasked: usize) {
        let (hang, others): (Vec<_>, Vec<_>) = unproven.into_iter().partition(Unproven::may_hang);
        for one in hang {
            self.does_not_let_go(one.pid(), "it has not answered within 1 s");
        }
        self.gone.extend(notes(&others, unasked));
        let speak: Vec<_> = others.into_iter().filter(|one| one.doubt != Doubt::Silent).collect();
        let told: Vec<_> = speak.iter().map(|one| one.running.clone()).collect();
        let said = speak.iter().zip(RunningServer::tell_all(&told, "down", OF_UNPROVEN));
        let mut said: Vec<_> = said
            .filter_map(|(one, said)| Some(format!("process {} says: {}", one.pid(), said.ok()?.trim_end())))
            .collect();
        said.dedup();
        said.truncate(ANSWERS);
        self.gone.extend(said);
    }

    fn does_not_let_go(&mut self, pid: u32, why: &str) {
        self.leaves(
            format!("process {pid} does not release its leases"),
            &format!("{why}; if it hangs, `kill -9 {pid}`, and run `localdns node down` again"),
        );
    }

    fn leaves(&mut self, what: String, why: &dyn Display) {
        self.left.push(format!("{what}: {why}"));
    }

    /// What is gone, a line each.
    pub fn text(&self) -> String {
        self.gone.iter().map(|line| format!("{}\n", escaped(line))).collect()
    }

    /// What is left, and why; `None` where nothing is.
    pub fn left(&self) -> Option<String> {
        (!self.left.is_empty()).then(|| escaped(&format!("left: {}", self.left.join("; left: "))))
    }
}
