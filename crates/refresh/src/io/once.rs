//! `localdns refresh --once`: one round without a server, for a timer.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use files::WriteError;
use crate::{NameStore, Settings};
use stub_resolver::{LookupOutcome, Question};
use tokio::runtime::Handle;

use super::{Environment, RefreshPlan, RefreshSpec, Upstreams, driver, read_file, reading, spec, upstreams as upstream_choice};

/// What `refresh --once` is asked to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Once {
    /// `--hosts`: the file; default the Corefile's, else /etc/localdns/hosts.
    pub hosts: Option<PathBuf>,
    /// `--print`: print what would be written, and write nothing.
    pub print: bool,
}

/// Does one round and publishes what came of it; what to print on standard output and on standard error.
///
/// `plans` and `upstreams` are those of the Corefile; without one there are none. Names that fail keep what the file says; where all fail, or there is no name, the file is not touched.
///
/// # Errors
/// The file can be read or written no better than this says.
pub fn once(
    wish: &Once,
    environment: &Environment,
    plans: Vec<RefreshPlan>,
    upstreams: &Upstreams,
    runtime: &Handle,
) -> Result<(Vec<u8>, String), String> {
    let RefreshPlan { file, settings, via, .. } = chosen(wish, environment, plans);
    if settings.names.is_empty() {
        return Ok((Vec::new(), "there is no name to refresh\n".to_owned()));
    }
    let mut servers = upstream_choice::servers(&via, upstreams);
    if servers.is_empty() {
        servers = upstream_choice::system(upstreams);
    }
    let (mut outcomes, mut failed) = (None, WriteError::Changing(file.clone()));
    for _ in 0..TRIES {
        let mut keeper = NameStore::new(settings.clone(), reading(clock::now()));
        match read_file(&file) {
            Ok((text, age)) => drop(keeper.read(&text, age, reading(clock::now()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // It was written, or replaced, while it was read.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                failed = WriteError::Changing(file.clone());
                thread::sleep(SETTLES);
                continue;
            }
            Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
        }
        let base = keeper.base();
        let began = clock::now();
        let questions = keeper.begin(began);
        let outcomes = outcomes.get_or_insert_with(|| {
            let mut found = Vec::new();
            runtime.block_on(driver::ask(&questions, &servers, |outcome| found.push(outcome)));
            found
        });
        let mut told = failures(outcomes);
        let round = keeper.finish(began, outcomes.clone(), reading(clock::now()), 0.0);
        for change in &round.changes {
            let addresses: Vec<_> = change.after.iter().map(ToString::to_string).collect();
            told.push_str(&format!("{} is {}\n", change.name, addresses.join(" ")));
        }
        if wish.print {
            return Ok((keeper.text().to_vec(), told));
        }
        let Some(text) = keeper.to_publish() else { return Ok((Vec::new(), told)) };
        match files::atomic_write(&file, Some(&base), &text) {
            Ok(()) => return Ok((Vec::new(), told)),
            // The file changed since it was read: the answers are applied to the new text in the next round.
            Err(WriteError::Changed(_)) => failed = WriteError::Changing(file.clone()),
            // Who holds the lock may bring its own text to a slow disk.
            Err(error @ WriteError::Busy(_)) => failed = error,
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(failed.to_string())
}

/// The plan of the file that is meant, or one made of the environment alone.
fn chosen(wish: &Once, environment: &Environment, mut plans: Vec<RefreshPlan>) -> RefreshPlan {
    let at = plans.iter().position(|plan| wish.hosts.as_ref() == Some(&plan.file)).unwrap_or(0);
    let mut plan = if plans.is_empty() {
        let settings = spec::settings(&RefreshSpec::default(), environment);
        let settings = Settings { names: environment.names.clone(), ..settings };
        RefreshPlan { file: DEFAULT_HOSTS.into(), settings, via: Vec::new(), because: spec::BY_VARIABLE }
    } else {
        plans.swap_remove(at)
    };
    if let Some(file) = &wish.hosts {
        plan.file.clone_from(file);
    }
    plan
}

fn failures(outcomes: &[(Question, LookupOutcome)]) -> String {
    let line = |(question, outcome): &(Question, LookupOutcome)| match outcome {
        LookupOutcome::Failed(error) => {
            Some(format!("{} {}: {error}\n", question.name, question.family.rtype()))
        }
        LookupOutcome::NoSuchName => {
            Some(format!("{} {}: no such name\n", question.name, question.family.rtype()))
        }
        LookupOutcome::Addresses { .. } | LookupOutcome::NoData => None,
    };
    outcomes.iter().filter_map(line).collect()
}

/// How often a file that others change, or keep locked for 2 s, is read again.
const TRIES: usize = 5;
/// How long who writes it has then.
const SETTLES: Duration = Duration::from_millis(200);
const DEFAULT_HOSTS: &str = "/etc/localdns/hosts";
