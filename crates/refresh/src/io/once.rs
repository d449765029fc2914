//! `localdns refresh --once`: one round without a server, for a timer.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::{NameStore, Settings};
use files::WriteError;
use stub_resolver::{LookupOutcome, Question, Resolver};
use tokio::runtime::Handle;

use super::{
    Environment, RefreshPlan, RefreshSpec, Upstreams, Via, driver, read_file, reading, spec,
    upstreams as upstream_choice,
};

/// The flags of `refresh --once`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Once {
    /// `--hosts`: the file; default the Corefile's, else /etc/localdns/hosts.
    pub hosts: Option<PathBuf>,
    /// `--print`: print the new text, and write nothing.
    pub print: bool,
}

/// Does one round and writes the file. Returns the texts for standard output and standard error.
///
/// `plans` and `upstreams` are those of the Corefile, if there is one. Names that fail keep the file's addresses; if all fail, or there
/// are no names, the file is not touched.
///
/// # Errors
/// The file cannot be read or written.
pub fn once(
    request: &Once,
    environment: &Environment,
    plans: Vec<RefreshPlan>,
    upstreams: &Upstreams,
    runtime: &Handle,
) -> Result<(Vec<u8>, String), String> {
    let RefreshPlan { file, settings, via, .. } = chosen(request, environment, plans);
    if settings.names.is_empty() {
        return Ok((Vec::new(), "there is no name to refresh\n".to_owned()));
    }
    let mut servers = upstream_choice::servers(&via.servers, upstreams);
    if servers.is_empty() {
        servers = upstream_choice::system(upstreams);
    }
    let servers = Via { servers, tls: via.tls }
        .load()
        .map_err(|error| format!("refresh_via: {error}; {}", error.remedy()))?;
    let resolver = Arc::new(Resolver::new(&servers));
    let (mut outcomes, mut failed) = (None, WriteError::Changing(file.to_path_buf()));
    for _ in 0..TRIES {
        let mut names = NameStore::new(settings.clone(), reading(clock::now()));
        match read_file(&file) {
            Ok((text, age)) => drop(names.read(&text, age, reading(clock::now()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Another program wrote or replaced the file during the read.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                failed = WriteError::Changing(file.to_path_buf());
                thread::sleep(SETTLES);
                continue;
            }
            Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
        }
        let base = names.base();
        let began = clock::now();
        let questions = names.begin(began);
        let outcomes = outcomes.get_or_insert_with(|| {
            let mut found = Vec::new();
            runtime.block_on(driver::ask(&questions, &resolver, |outcome| found.push(outcome)));
            found
        });
        let mut report = failures(outcomes);
        let round = names.finish(began, outcomes.clone(), reading(clock::now()), 0.0);
        for change in &round.changes {
            let addresses: Vec<_> = change.after.iter().map(ToString::to_string).collect();
            report.push_str(&format!("{} is {}\n", change.name, addresses.join(" ")));
        }
        if request.print {
            return Ok((names.text().to_vec(), report));
        }
        let Some(text) = names.to_publish() else { return Ok((Vec::new(), report)) };
        match files::atomic_write(&file, Some(&base), &text) {
            Ok(()) => return Ok((Vec::new(), report)),
            // The file has changed since it was read: the next try applies the answers to the new text.
            Err(WriteError::Changed(_)) => failed = WriteError::Changing(file.to_path_buf()),
            // The lock's owner may be writing to a slow disk.
            Err(error @ WriteError::Busy(_)) => failed = error,
            Err(error) => return Err(error.shown_as(&file).to_string()),
        }
    }
    Err(failed.shown_as(&file).to_string())
}

/// The plan of the selected file, or one of the environment only.
fn chosen(request: &Once, environment: &Environment, mut plans: Vec<RefreshPlan>) -> RefreshPlan {
    let at = plans.iter().position(|plan| request.hosts.as_deref() == Some(plan.file.as_path())).unwrap_or(0);
    let mut plan = if plans.is_empty() {
        let settings = spec::settings(&RefreshSpec::default(), environment);
        let settings = Settings { names: environment.names.clone(), ..settings };
        RefreshPlan { file: DEFAULT_HOSTS.into(), settings, via: Via::default(), because: spec::BY_VARIABLE }
    } else {
        plans.swap_remove(at)
    };
    if let Some(file) = &request.hosts {
        plan.file = file.into();
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

/// Maximum number of tries with a file that other programs change, or keep locked for 2 s.
const TRIES: usize = 5;
/// Pause for a program that is writing the file.
const SETTLES: Duration = Duration::from_millis(200);
const DEFAULT_HOSTS: &str = "/etc/localdns/hosts";
