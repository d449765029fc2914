//! The program `localdns`: parses its command line, then serves, checks or explains.
//!
//! Exit codes: 0 after SIGTERM, SIGINT or SIGQUIT and after a check that passed; 1 if the command
//! line, the Corefile or an address cannot be used, or the server cannot continue; 2 after a second
//! SIGINT. `node run` exits with 217 if its Corefile cannot be read or used, and with 216 if it
//! cannot start for another reason.

mod background;
mod dedup_stderr;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use background::{Background, BackgroundResult};
use configuration::{Configuration, Explain, PersistentState};
use dedup_stderr::DedupStderr;
use logging::logger::LAST_LINES;
use logging::{Format, Logger, json_line};
use node_run::NodeSettings;
use node_run::upstream_discovery::Listed;
use plugin::Spec;
use server::cli::{self, Flags, Invocation, NodeCommand};
use server::corefile_source::{Origin, ValidatedConfig};
use server::lifecycle::{NextPhase, PreparedReload, Senders, Server, StartError};
use server::next_process::HandoverEvent;
use server::refresh_adapter;
use server::signals::{ProcessControl, SignalAction, Signals, write_pidfile};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

fn main() -> ExitCode {
    let start = clock::now();
    // A value that is not UTF-8 is converted, so that it is refused where it is used, not ignored.
    let env = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let mut args: Vec<_> = std::env::args_os().collect();
    // A binary with the name node-cache, or node-cache's flags without a subcommand as in the
    // add-on's manifest, select the subcommand `node-cache`.
    let called = args.first().map(Path::new).and_then(Path::file_name) == Some("node-cache".as_ref());
    let is_meant = called || cli::means_node_cache(args.get(1..).unwrap_or_default());
    args.splice(..1.min(args.len()), is_meant.then(|| "node-cache".into()));
    let json = cli::wants_json(&args);
    let invocation = match cli::parse(args, &env) {
        Ok(invocation) => invocation,
        Err(error) => return fail(&error, json),
    };
    if json {
        // The message of a panic, even of one that is caught, is printed on standard error, and is
        // JSON, too.
        std::panic::set_hook(Box::new(|panic| {
            let _ = std::io::stderr().write_all(&json_line("ERROR", None, &panic.to_string()));
        }));
    }
    let outcome = match invocation {
        Invocation::Print(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Invocation::Serve(flags) => serve(&flags, None, start),
        Invocation::Node(NodeCommand::Run, flags, settings) => serve(&flags, Some(settings), start),
        Invocation::NodeStopped => printed(Ok(node_run::stopped())),
        Invocation::NodeAnnotate(annotation) => printed(annotation.apply()),
        Invocation::NodeDown => {
            let down = node_run::down();
            let _ = std::io::stdout().write_all(down.text().as_bytes());
            down.left().map_or(Ok(ExitCode::SUCCESS), |left| Err(left.into()))
        }
        Invocation::Node(command, flags, settings) => node(command, &flags, &settings),
        Invocation::Check(flags) => check(&flags),
        Invocation::Explain(flags, asked) => explain(&flags, &asked),
        Invocation::NodeResolver(args) => node_resolver::run(&args).map_err(|error| error.to_string().into()),
        Invocation::Refresh(flags, once) => refresh_once(&flags, &once),
        Invocation::Status(flags, place) => printed(server::status_client::print(&flags, place)),
    };
    outcome.unwrap_or_else(|failure| {
        fail(&failure.text, json);
        ExitCode::from(failure.code)
    })
}

/// The final error, and the exit code.
struct Failure {
    text: String,
    code: u8,
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { text, code: 1 }
    }
}

/// Prints a warning; errors of standard error are ignored.
fn warn(warning: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "localdns: warning: {warning}");
}

/// Prints a command's output. A reader that has closed the pipe, such as `head`, is no failure.
fn printed(text: Result<String, String>) -> Result<ExitCode, Failure> {
    let _ = std::io::stdout().write_all(text?.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn fail(error: &dyn std::fmt::Display, json: bool) -> ExitCode {
    let text = match json {
        true => json_line("FATAL", None, &error.to_string()),
        false => format!("localdns: {error}\n").into_bytes(),
    };
    let _ = std::io::stderr().write_all(&text);
    ExitCode::FAILURE
}

fn serve(flags: &Flags, node: Option<NodeSettings>, start: std::time::Instant) -> Result<ExitCode, Failure> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let signals = Signals::new().map_err(|error| text(&error))?;
    let format = if flags.json { Format::Json } else { Format::Text };
    let logger = Logger::stdout(format).map_err(|error| text(&error))?;
    let life = ProcessControl::new(logger.clone(), flags.pidfile.clone());
    let (asked, heard) = mpsc::unbounded_channel();
    signals.hear(life.clone(), asked).map_err(|error| text(&error))?;
    let of_node = node.is_some();
    // Whether clients may have used the addresses before this start. If other programs add the
    // addresses, the link does not show it.
    let had_link = node.as_ref().is_none_or(|settings| {
        !settings.adds_addresses || node::link_index(settings.link.as_str()).is_some()
    });
    let origin = origin(flags, node.as_ref())?;
    let limits = sockets::raise_open_files_limit();
    let kept = sockets::keep_code_in_memory();
    let runtime = runtime().map_err(|error| text(&error))?;
    let ((fatal, fatal_messages), (handover, handover_events)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut events = EventSources { asked: heard, fatal: fatal_messages, handover: handover_events };
    let senders = Senders { fatal, handover };
    let mut server = Server::start(flags, node, origin, runtime.handle(), logger.clone(), senders, start)
        .map_err(|error| Failure { code: if of_node { error.exit_code() } else { 1 }, text: text(&error) })?;
    life.serves(server.running(), server.leave_taking());
    if let Err(error) = limits {
        logger.warning(None, &format!("cannot raise the number of open files: {error}"));
    }
    if let Err(error) = kept
        && of_node
    {
        let remedy = "LimitMEMLOCK=32M in its unit, or the capability IPC_LOCK, keeps it in memory";
        logger.info(
            None,
            &format!("the program's code may be paged out under memory pressure: {error}; {remedy}"),
        );
    }
    if !server.is_beside_another() {
        write_pid(&life, of_node).inspect_err(|_| {
            // No process had the addresses before this start: everything is removed again.
            if !had_link {
                server.take_back();
            }
        })?;
    }
    if !flags.quiet {
        let configuration = server.running().configuration.load_full();
        for line in configuration.banner() {
            logger.print(&line);
        }
    }
    server.log_hash();
    if !flags.quiet {
        logger.print(cli::version().trim_end());
    }
    let mut aside = Background::new(flags.reloads_by_itself);
    let code = loop {
        match runtime.block_on(next_event(&server, &mut events, &mut aside)) {
            Event::Reload(signal) if server.is_beside_another() => aside.defer(signal),
            Event::Reload(signal) => aside.reload(&mut server, signal),
            Event::Upgrade => server.upgrade(),
            Event::Handover(event) => match hand_over(&mut server, event, &life) {
                Ok(NextPhase::Goes) if server.is_beside_another() => {}
                Ok(NextPhase::Goes) => aside.reloaded(&mut server),
                Ok(NextPhase::TookOver(ready)) => {
                    // No other process serves any more, so a pidfile that cannot be written is no
                    // reason to exit.
                    if let Err(error) = write_pid(&life, of_node) {
                        logger.warning(None, &error.text);
                    }
                    let _ = ready.send(());
                    aside.reloaded(&mut server);
                }
                Ok(NextPhase::Ends) => break ExitCode::SUCCESS,
                Ok(NextPhase::Waits) => {
                    // Dropping the server ends everything that uses files or upstreams.
                    drop(server);
                    runtime.shutdown_background();
                    wait_for_the_end(&mut events.asked);
                    return Ok(ExitCode::SUCCESS);
                }
                Err(error) => {
                    logger.flush(LAST_LINES);
                    break fail(&error, flags.json);
                }
            },
            Event::Reloaded(next) => {
                server.finish_reload(*next, aside.signal);
                aside.reloaded(&mut server);
            }
            Event::AddressGone => server.restore_addresses(),
            Event::Stop => {
                server.stop();
                break ExitCode::SUCCESS;
            }
            Event::Quit => {
                server.end_successor();
                break ExitCode::SUCCESS;
            }
            Event::Fatal(message) => {
                server.end_successor();
                logger.flush(LAST_LINES);
                break fail(&message, flags.json);
            }
        }
    };
    life.remove_pidfile();
    logger.flush(LAST_LINES);
    // Dropping the runtime would wait for lookups and reloads in its blocking threads; they end
    // with the process.
    std::mem::forget(runtime);
    Ok(code)
}

/// Handles a handover event. Before the next process is notified that it serves, the pidfile is
/// removed, since that process may write its id to the same file.
fn hand_over(server: &mut Server, event: HandoverEvent, life: &ProcessControl) -> Result<NextPhase, String> {
    if matches!(event, HandoverEvent::Serving(_)) {
        life.remove_pidfile();
    }
    server.act_on(event)
}

/// Waits for a stop signal, and ignores other signals, since another process serves.
fn wait_for_the_end(asked: &mut mpsc::UnboundedReceiver<SignalAction>) {
    while let Some(SignalAction::Reload(_) | SignalAction::Upgrade) = asked.blocking_recv() {}
}

/// Writes the pidfile, if requested.
fn write_pid(life: &ProcessControl, of_node: bool) -> Result<(), Failure> {
    let result = life.write_pidfile(|path| {
        // The file is written on another thread, since a thread that waits for a disk handles no
        // signals.
        let of = path.to_owned();
        let written =
            files::with_timeout(path, PIDFILE, move || write_pidfile(&of)).map_err(Into::into).flatten();
        written.map_err(|error: std::io::Error| {
            let remedy = "name a file where this user may write, or -pidfile '' for none";
            format!("cannot write the pidfile {}: {error}; {remedy}", path.display())
        })
    });
    result.map_err(|text| Failure { code: if of_node { 216 } else { 1 }, text })
}

enum Event {
    /// A reload by this signal, or by a change of the Corefile if `None`.
    Reload(Option<&'static str>),
    Reloaded(Box<Result<PreparedReload, StartError>>),
    AddressGone,
    Upgrade,
    Handover(HandoverEvent),
    Stop,
    Quit,
    Fatal(String),
}

/// The channels that the main thread reads.
struct EventSources {
    asked: mpsc::UnboundedReceiver<SignalAction>,
    fatal: mpsc::UnboundedReceiver<String>,
    handover: mpsc::UnboundedReceiver<HandoverEvent>,
}

/// Waits for the next event: a signal, a removed address, a step of a handover, a change of the
/// Corefile, the end of a reload, or a fatal error.
async fn next_event(server: &Server, events: &mut EventSources, aside: &mut Background) -> Event {
    loop {
        let reload = server.running().configuration.load().reload;
        let at = aside.look_at(reload);
        let next_look = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(asked) = events.asked.recv() => return match asked {
                SignalAction::Upgrade => Event::Upgrade,
                SignalAction::Reload(signal) => Event::Reload(Some(signal)),
                SignalAction::Stop => Event::Stop,
                SignalAction::Quit => Event::Quit,
            },
            () = server.address_gone() => return Event::AddressGone,
            Some(event) = events.handover.recv() => return Event::Handover(event),
            message = events.fatal.recv() => return Event::Fatal(message.unwrap_or_default()),
            done = aside.next() => match done {
                BackgroundResult::Reload(next) => return Event::Reloaded(next),
                BackgroundResult::Look(found) => {
                    let changed = server.changed(found, &mut aside.last_seen);
                    if changed || aside.again.is_some() {
                        return Event::Reload(aside.again.take());
                    }
                }
            },
            () = next_look => {
                aside.next_look = None;
                aside.look(server);
            }
        }
    }
}

/// Whether there is no Corefile: no `-conf`, and no ./Corefile.
fn is_unnamed(flags: &Flags, node: Option<&NodeSettings>) -> bool {
    flags.conf.is_none() && matches!(origin(flags, node), Ok(Origin::Default))
}

fn node(command: NodeCommand, flags: &Flags, settings: &NodeSettings) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    let text = match command {
        NodeCommand::Up => {
            if is_unnamed(flags, Some(settings)) {
                return Err(NO_COREFILE.to_owned().into());
            }
            // Rule sets without leases have no fallback, so there is no need to wait for the name
            // servers.
            let list = if settings.rules.has_leases() { node_run::listed } else { node_run::listed_now };
            let built = build_of(flags, Some((settings, list)))?;
            let up = node_run::up(&built.configuration, settings, built.no_list.as_deref())?;
            if !up.is_whole {
                code = ExitCode::FAILURE;
            }
            up.output
        }
        NodeCommand::Status(json) => {
            let report = match is_unnamed(flags, Some(settings)) {
                true => node_run::NodeStatus::unnamed(settings).ok_or_else(|| NO_COREFILE.to_owned())?,
                false => match build_of(flags, Some((settings, node_run::listed_now))) {
                    Ok(built) => node_run::NodeStatus::of(&built.configuration, settings),
                    Err(error) => node_run::NodeStatus::without(error, settings)?,
                },
            };
            if !report.is_well() {
                code = ExitCode::FAILURE;
            }
            if json { format!("{}\n", report.json()) } else { report.text() }
        }
        NodeCommand::Run => String::new(),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(code)
}

fn check(flags: &Flags) -> Result<ExitCode, Failure> {
    let (draft, configuration, _runtime) = build(flags)?;
    plugins::kubernetes::unreachable(&draft.spec).for_each(|warning| warn(&warning));
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let blocks = count(configuration.blocks.len(), "server block");
    let zones: std::collections::BTreeSet<_> = configuration.zones.iter().map(|zone| zone.zone).collect();
    let zones = count(zones.len(), "zone");
    let place = if configuration.endpoints.keys().all(|endpoint| endpoint.address.ip().is_unspecified()) {
        "every address".to_owned()
    } else {
        let addresses = configuration.endpoints.len();
        format!("{addresses} address{}", if addresses == 1 { "" } else { "es" })
    };
    let what = match is_unnamed(flags, None) {
        true => "there is no ./Corefile; the default, `. { whoami log }`,",
        false => "the Corefile",
    };
    printed(Ok(format!("{what} can be served: {blocks}, {zones} on {place}\n")))
}

fn explain(flags: &Flags, asked: &Explain) -> Result<ExitCode, Failure> {
    let (_, configuration, _runtime) = build(flags)?;
    printed(configuration::explain(&configuration, asked))
}

fn refresh_once(flags: &Flags, once: &refresh::Once) -> Result<ExitCode, Failure> {
    for warning in &flags.environment.warnings {
        warn(warning);
    }
    let origin = Origin::find(flags).map_err(|error| error.to_string())?;
    let (text, report) = if matches!(origin, Origin::Default) {
        let runtime = runtime().map_err(|error| error.to_string())?;
        refresh_adapter::once(once, &flags.environment, None, runtime.handle())?
    } else {
        let (draft, configuration, runtime) = build(flags)?;
        refresh_adapter::once(
            once,
            &flags.environment,
            Some((&draft.spec, &configuration)),
            runtime.handle(),
        )?
    };
    let _ = std::io::stderr().write_all(report.as_bytes());
    let _ = std::io::stdout().write_all(&text);
    Ok(ExitCode::SUCCESS)
}

/// Builds a configuration for a check, without serving it.
fn build(flags: &Flags) -> Result<(ValidatedConfig, Configuration, Runtime), String> {
    build_of(flags, None).map(|built| (built.draft, built.configuration, built.runtime))
}

/// A built configuration and its dependencies.
struct Built {
    draft: ValidatedConfig,
    configuration: Configuration,
    runtime: Runtime,
    /// Why no name servers of the node's network are known, if the configuration needs them.
    no_list: Option<String>,
}

fn origin(flags: &Flags, node: Option<&NodeSettings>) -> Result<Origin, String> {
    match node.and_then(|settings| settings.environment.clone()) {
        Some(path) => Ok(Origin::Environment(path)),
        None => Origin::find(flags).map_err(|error| error.to_string()),
    }
}

/// A function that returns the name servers of the node's network, and may wait for them.
type ListServers = fn(&Path, &Spec) -> Listed;

fn build_of(flags: &Flags, node: Option<(&NodeSettings, ListServers)>) -> Result<Built, String> {
    let origin = origin(flags, node.map(|(settings, _)| settings))?;
    let draft =
        ValidatedConfig::first(&origin, flags.dns_port, node.is_some()).map_err(|error| error.to_string())?;
    if node.is_some() {
        node_run::check(&draft.spec).map_err(|error| error.to_string())?;
    }
    draft.warnings.iter().for_each(|warning| warn(warning));
    let runtime = runtime().map_err(|error| error.to_string())?;
    let logger = Logger::start(Format::Text, DedupStderr::default()).map_err(|error| error.to_string())?;
    let (mut shared, _probes) =
        PersistentState::new(flags.cache_bytes, 1, runtime.handle(), logger.clone(), clock::now());
    shared.resolve_names = false;
    let listed = node.map(|(settings, list)| list(&settings.upstreams, &draft.spec));
    shared.node_upstreams = listed.as_ref().map(|listed| listed.upstreams.clone());
    shared.environment = flags.environment.clone();
    let configuration = Configuration::build(&draft.spec, &shared, &server::lifecycle::addresses_of)
        .map_err(|error| error.to_string())?;
    configuration.look_at_files(&shared, clock::now(), &logger);
    shared.lasting.all().iter().for_each(|kept| kept.check(&logger));
    // Warnings about files are printed before the result, and before the process ends.
    logger.flush(Duration::from_secs(5));
    Ok(Built { draft, configuration, runtime, no_list: listed.and_then(|listed| listed.none) })
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).thread_name("streams").enable_all().build()
}

/// Time limit of writing the pidfile.
const PIDFILE: Duration = Duration::from_secs(10);
/// The error of a command that needs a Corefile.
const NO_COREFILE: &str = "there is no ./Corefile; name one with -conf FILE";
