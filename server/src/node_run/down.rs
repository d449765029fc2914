//! `localdns node down`: what `up`, `run` or the script before us put there is taken away, whoever of them still lives.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use super::servers::in_words;
use node::{HostResolver, Job, NftError, Rules, Running, Warrant};

/// What is gone, and what is left.
#[derive(Debug, Default)]
pub struct Down {
    gone: Vec<String>,
    left: Vec<String>,
}

/// Takes everything away; what cannot be is named, and keeps nothing else from going.
pub fn down() -> Down {
    let mut down = Down::default();
    // It shows servers that the order comes from whoever may change rules, and is kept until all have it. Without nftables
    // they take root's word.
    let warrant = Warrant::show();
    for server in Running::all() {
        match server.tell("down", PATIENCE) {
            Ok(said) if said.starts_with(HANDS_OVER) => {
                down.left.push(said.trim_end().to_owned());
                return down;
            }
            Ok(said) if said.starts_with(REFUSED) => down.left.push(said.trim_end().to_owned()),
            Ok(said) => down.gone.push(said.trim_end().to_owned()),
            Err(error) => {
                let why = in_words(&error, PATIENCE);
                let pid = server.pid;
                down.leaves(
                    format!("the server of process {pid} does not let go"),
                    &format!("{why}; if it hangs, `kill -9 {pid}`, and say it again"),
                );
            }
        }
    }
    drop(warrant);
    let (files, failed) = HostResolver::take_back();
    down.gone.extend(files.iter().map(|file| match file.ends_with("resolv.conf") {
        true => format!("{} is as it was", file.display()),
        false => format!("{} is gone", file.display()),
    }));
    for error in failed {
        down.leaves("this machine's own lookups".to_owned(), &error);
    }
    match rules() {
        Ok((there, holders)) => {
            let told = if there { "the rules are gone" } else { "there were no rules" };
            down.gone.push(told.to_owned());
            for pid in holders {
                let cause = "it serves on, and would put them back: stop it, as with systemctl stop";
                down.leaves(format!("the leases of process {pid}"), &cause);
            }
        }
        Err(error @ NftError::NotSupported { .. }) => down.gone.push(format!("there were no rules: {error}")),
        Err(error) => down.leaves("the rules".to_owned(), &error),
    }
    match node::remove_iptables_rules() {
        Ok(0) => {}
        Ok(rules) => down.gone.push(format!("{rules} rules in the tables of iptables are gone")),
        Err(error) => down.leaves("rules in the tables of iptables (iptables-save)".to_owned(), &error),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let link = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(node::remove_link()).map_err(|error| error.to_string()));
    match link {
        Ok(gone) if gone.is_empty() => down.gone.push("no link and no address of ours was there".to_owned()),
        Ok(gone) => down.gone.extend(gone.iter().map(|what| format!("{what} is gone"))),
        Err(error) => down.leaves("links and addresses".to_owned(), &error),
    }
    down
}

/// What the unit runs when its server has ended: gives this machine its own lookups back where the unit is stopped, and the
/// server, killed, did not. Before a start, an automatic one too, they stay.
pub fn stopped() -> String {
    if Job::now() != Job::Stop {
        return match Path::new(BOOTED).is_dir() {
            true => "a start follows: nothing is given back\n".to_owned(),
            false => {
                "no systemd is there, which says whether a start follows: nothing is given back; `localdns node down` does\n"
                    .to_owned()
            }
        };
    }
    let (files, failed) = HostResolver::take_back();
    let files =
        files.iter().map(|file| format!("{}: this machine's own lookups are given back\n", file.display()));
    let failed =
        failed.iter().map(|error| format!("this machine still asks us: {error}; run localdns node down\n"));
    files.chain(failed).collect()
}

/// Takes the tables that stay away; whether the rules were there, and who still has leases.
fn rules() -> Result<(bool, Vec<u32>), NftError> {
    let mut rules = Rules::open()?;
    let there = rules.are_there()?;
    // Where the rules are gone leases may be left.
    rules.remove()?;
    Ok((there, rules.holders()?))
}

/// What is there where systemd is the machine's, as `sd_booted` has it.
const BOOTED: &str = "/run/systemd/system";
/// How a server begins its answer that does not let go.
pub(super) const REFUSED: &str = "the server keeps all";
/// How a server begins its answer that another process is about to follow.
pub(super) const HANDS_OVER: &str = "the server hands over to another process";
/// How long a server may take to let go: networkd is told meanwhile.
const PATIENCE: Duration = Duration::from_secs(15);

impl Down {
    fn leaves(&mut self, what: String, why: &dyn Display) {
        self.left.push(format!("{what}: {why}"));
    }

    /// What is gone, a line each.
    pub fn text(&self) -> String {
        self.gone.iter().map(|line| format!("{line}\n")).collect()
    }

    /// What is left, and why; `None` where nothing is.
    pub fn left(&self) -> Option<String> {
        (!self.left.is_empty()).then(|| format!("left: {}", self.left.join("; left: ")))
    }
}
