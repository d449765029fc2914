//! The program `localdns`: reads its command line, then serves, checks or explains.
//!
//! Exit codes: 0 after SIGTERM, SIGINT or SIGQUIT and after a check that passed; 1 where the command line, the Corefile
//! or an address cannot be used, or the server cannot go on; 2 after a second SIGINT.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rand::Rng as _;
use server::cli::{self, Flags, Wish};
use server::clock;
use server::control::{Draft, Origin, Server};
use server::house::{House, Shared};
use server::keeping;
use server::observe::{Format, Logger, json_line};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

fn main() -> ExitCode {
    let start = clock::now();
    // What is not UTF-8 is refused by its name where it stands, not passed over.
    let env = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let json = cli::wants_json(&args);
    let wish = match cli::parse(args, &env) {
        Ok(wish) => wish,
        Err(error) => return fail(&error, json),
    };
    if json {
        // A caught panic is told on standard error, too.
        std::panic::set_hook(Box::new(|panic| {
            let _ = std::io::stderr().write_all(&json_line("ERROR", None, &panic.to_string()));
        }));
    }
    let outcome = match wish {
        Wish::Print(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Wish::Serve(flags) => serve(&flags, start),
        Wish::Check(flags) => check(&flags),
        Wish::Explain(flags, wish) => explain(&flags, &wish),
        Wish::NodeResolver(request) => {
            server::node_resolver::run(&request).map_err(|error| error.to_string())
        }
        Wish::Refresh(flags, wish) => refresh(&flags, &wish),
        Wish::Status(path) => keeping::print(&path).map(|table| {
            let _ = std::io::stdout().write_all(table.as_bytes());
            ExitCode::SUCCESS
        }),
    };
    outcome.unwrap_or_else(|error| fail(&error, json))
}

fn fail(error: &dyn std::fmt::Display, json: bool) -> ExitCode {
    let text = match json {
        true => json_line("FATAL", None, &error.to_string()),
        false => format!("localdns: {error}\n").into_bytes(),
    };
    let _ = std::io::stderr().write_all(&text);
    ExitCode::FAILURE
}

fn serve(flags: &Flags, start: std::time::Instant) -> Result<ExitCode, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut signals = Signals::new().map_err(|error| text(&error))?;
    let origin = Origin::find(flags).map_err(|error| text(&error))?;
    let format = if flags.json { Format::Json } else { Format::Text };
    let logger = Logger::stdout(format).map_err(|error| text(&error))?;
    logger.install();
    let limits = sockets::raise_open_files_limit();
    let runtime = runtime().map_err(|error| text(&error))?;
    let (fatal, mut fatal_messages) = mpsc::unbounded_channel();
    let mut server = Server::start(flags, origin, runtime.handle(), logger.clone(), fatal, start)
        .map_err(|error| text(&error))?;
    if let Err(error) = limits {
        logger.warning(None, &format!("cannot raise the number of open files: {error}"));
    }
    if let Some(path) = &flags.pidfile {
        write_pidfile(path).map_err(|error| {
            let mend = "name a file where this user may write, or leave -pidfile out";
            format!("cannot write the pidfile {}: {error}; {mend}", path.display())
        })?;
    }
    if !flags.quiet {
        let house = server.running().house.load_full();
        for line in house.banner() {
            logger.print(&line);
        }
    }
    server.tell_hash();
    if !flags.quiet {
        logger.print(cli::version().trim_end());
    }
    // A Corefile that could not be served is not tried again before it changes.
    let mut last_seen = String::new();
    let code = loop {
        match runtime.block_on(next_event(&server, &mut signals, &mut fatal_messages, &mut last_seen)) {
            Event::Reload(signal) => server.reload(signal),
            Event::Stop(name) => {
                logger.info(None, name);
                let (mut interrupt, pidfile) = (signals.interrupt, flags.pidfile.clone());
                let impatient = logger.clone();
                runtime.spawn(async move {
                    interrupt.recv().await;
                    impatient.info(None, "SIGINT: Force quit");
                    pidfile.as_deref().map(remove_own_pidfile);
                    impatient.flush(LAST_LINES);
                    std::process::exit(2);
                });
                server.stop();
                break ExitCode::SUCCESS;
            }
            Event::Quit => {
                logger.info(None, "SIGQUIT: Quitting process immediately");
                break ExitCode::SUCCESS;
            }
            Event::Fatal(message) => {
                logger.flush(LAST_LINES);
                break fail(&message, flags.json);
            }
        }
    };
    if let Some(path) = &flags.pidfile {
        remove_own_pidfile(path);
    }
    logger.flush(LAST_LINES);
    // Connections and lookups that still wait for somebody are nobody's any more.
    runtime.shutdown_background();
    Ok(code)
}

enum Event {
    /// By which signal, if not by a changed file.
    Reload(Option<&'static str>),
    /// What is told of it.
    Stop(&'static str),
    Quit,
    Fatal(String),
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user1: Signal,
    /// CoreDNS replaces its binary on it; here it means nothing, and must not end the process.
    user2: Signal,
}

impl Signals {
    /// Heard from now on, if a runtime runs or not: a signal that comes while the server starts is obeyed once it serves.
    ///
    /// A runtime with threads may read a signal after its handler stands and before its listener does, and it is lost.
    /// The one made here reads none.
    fn new() -> std::io::Result<Self> {
        Builder::new_current_thread().enable_io().build()?.block_on(async {
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                quit: signal(SignalKind::quit())?,
                hangup: signal(SignalKind::hangup())?,
                user1: signal(SignalKind::user_defined1())?,
                user2: signal(SignalKind::user_defined2())?,
            })
        })
    }
}

/// Waits for a signal, for the Corefile to change, or for bad news.
async fn next_event(
    server: &Server,
    signals: &mut Signals,
    fatal: &mut mpsc::UnboundedReceiver<String>,
    last_seen: &mut String,
) -> Event {
    loop {
        let reload = server.running().house.load().reload;
        let next_look = async {
            match reload {
                Some(reload) => {
                    let jitter = reload.jitter.mul_f64(rand::rng().random_range(-1.0..=1.0_f64).abs());
                    sleep_until(Instant::now() + reload.interval + jitter).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = signals.terminate.recv() => return Event::Stop("SIGTERM: Shutting down servers then terminating"),
            _ = signals.interrupt.recv() => return Event::Stop("SIGINT: Shutting down"),
            _ = signals.quit.recv() => return Event::Quit,
            _ = signals.hangup.recv() => return Event::Reload(Some("SIGHUP")),
            _ = signals.user1.recv() => return Event::Reload(Some("SIGUSR1")),
            _ = signals.user2.recv() => {}
            message = fatal.recv() => return Event::Fatal(message.unwrap_or_default()),
            () = next_look => {
                if server.changed(last_seen) {
                    return Event::Reload(None);
                }
            }
        }
    }
}

fn check(flags: &Flags) -> Result<ExitCode, String> {
    let (_, house, _runtime) = build(flags)?;
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let blocks = count(house.blocks.len(), "server block");
    let zones: std::collections::BTreeSet<_> = house.zones.iter().map(|zone| zone.zone).collect();
    let zones = count(zones.len(), "zone");
    let place = if house.listeners.keys().all(|address| address.ip().is_unspecified()) {
        "every address".to_owned()
    } else {
        let addresses = house.listeners.len();
        format!("{addresses} address{}", if addresses == 1 { "" } else { "es" })
    };
    let what = match flags.conf.is_none() && matches!(Origin::find(flags), Ok(Origin::Default)) {
        true => "there is no ./Corefile; what is served without one, `. { whoami log }`,",
        false => "the Corefile",
    };
    println!("{what} can be served: {blocks}, {zones} on {place}");
    Ok(ExitCode::SUCCESS)
}

fn explain(flags: &Flags, wish: &cli::Explain) -> Result<ExitCode, String> {
    let (_, house, _runtime) = build(flags)?;
    print!("{}", server::explain(&house, wish)?);
    Ok(ExitCode::SUCCESS)
}

fn refresh(flags: &Flags, wish: &keeping::Once) -> Result<ExitCode, String> {
    for warning in &flags.environment.warnings {
        eprintln!("localdns: warning: {warning}");
    }
    let origin = Origin::find(flags).map_err(|error| error.to_string())?;
    let (text, told) = if matches!(origin, Origin::Default) {
        let runtime = runtime().map_err(|error| error.to_string())?;
        keeping::once(wish, &flags.environment, None, runtime.handle())?
    } else {
        let (draft, house, runtime) = build(flags)?;
        keeping::once(wish, &flags.environment, Some((&draft.spec, &house)), runtime.handle())?
    };
    eprint!("{told}");
    let _ = std::io::stdout().write_all(&text);
    Ok(ExitCode::SUCCESS)
}

/// Standard error, each line once: several server blocks may find the same fault in the same file.
#[derive(Default)]
struct Once {
    line: Vec<u8>,
    told: std::collections::HashSet<Vec<u8>>,
}

impl Write for Once {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        for piece in text.split_inclusive(|octet| *octet == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if !self.told.contains(&line) {
                    std::io::stderr().write_all(&line)?;
                    self.told.insert(line);
                }
            }
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Builds a house that nobody will serve.
fn build(flags: &Flags) -> Result<(Draft, House, Runtime), String> {
    let origin = Origin::find(flags).map_err(|error| error.to_string())?;
    let draft = Draft::read(&origin, flags.dns_port).map_err(|error| error.to_string())?;
    for warning in &draft.warnings {
        eprintln!("localdns: warning: {warning}");
    }
    let runtime = runtime().map_err(|error| error.to_string())?;
    let logger = Logger::start(Format::Text, Once::default()).map_err(|error| error.to_string())?;
    let (mut shared, _probes) =
        Shared::new(flags.cache_bytes, 1, runtime.handle(), logger.clone(), clock::now());
    shared.resolve_names = false;
    shared.environment = flags.environment.clone();
    let house = House::build(&draft.spec, &shared, &server::control::addresses_of)
        .map_err(|error| error.to_string())?;
    house.look_at_files(&shared, clock::now(), &logger);
    // What is wrong with the files is told before the answer, and before the end of the process.
    logger.flush(Duration::from_secs(5));
    Ok((draft, house, runtime))
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).thread_name("streams").enable_all().build()
}

/// On a full disk no empty file stays behind.
fn write_pidfile(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let written = writeln!(file, "{}", std::process::id());
    if written.is_err() && file.metadata().is_ok_and(|file| file.is_file()) {
        let _ = std::fs::remove_file(path);
    }
    written
}

/// A successor may have written its own id meanwhile.
fn remove_own_pidfile(path: &Path) {
    let own = std::process::id().to_string();
    if std::fs::read_to_string(path).is_ok_and(|text| text.trim() == own) {
        let _ = std::fs::remove_file(path);
    }
}

/// How long the log's reader has for the last lines.
const LAST_LINES: Duration = Duration::from_millis(500);
