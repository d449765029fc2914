//! The command line: CoreDNS's flags, parsed as Go parses them, and the subcommands of localdns.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser as _};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use wire::{Name, RType};

use node_resolver::Request;
use refresh::{Environment, Once};

use ::node_cache::Template;
use admin::AdminAddress;
use configuration::Explain;
use node_run::{Annotation, NodeSettings, RuleSet};

mod node;
mod node_cache;

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Print the text and exit with 0: help, version, plugins.
    Print(String),
    /// Serve.
    Serve(Flags),
    /// Check the Corefile.
    Check(Flags),
    /// Explain which plugin would answer a query.
    Explain(Flags, Box<Explain>),
    /// Maintain services in the node's hosts file.
    NodeResolver(Box<Request>),
    /// Run a command of `localdns node`.
    Node(NodeCommand, Flags, NodeSettings),
    /// Remove the addresses and rules that `node run` and `node up` added.
    NodeDown,
    /// Annotate the node.
    NodeAnnotate(Annotation),
    /// Restore the host's resolver if the unit stops.
    NodeStopped,
    /// Refresh a hosts file once.
    Refresh(Flags, Once),
    /// Print a running server's status, from this socket or address, else from the default places.
    Status(Flags, Option<PathBuf>),
}

/// A command of `localdns node` that reads a Corefile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCommand {
    /// Serve with failover.
    Run,
    /// Add addresses and rules.
    Up,
    /// Show the status of addresses and rules; as JSON if true.
    Status(bool),
}

/// Flags of all commands that read a Corefile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// `-conf`: the Corefile; `stdin` reads standard input. Without it ./Corefile, else `whoami` and `log`.
    pub conf: Option<PathBuf>,
    /// `-dns.port`, `-p`: the port of server block keys without one; default 53.
    pub dns_port: u16,
    /// `-pidfile`: written once every socket is bound.
    pub pidfile: Option<PathBuf>,
    /// `-quiet`: do not print zones and version at start.
    pub quiet: bool,
    /// `-log-format`: text or json.
    pub json: bool,
    /// `-cache-bytes`, LOCALDNS_CACHE_BYTES: the limit of all blocks' caches together.
    pub cache_bytes: usize,
    /// `-status`: the unix socket of /status; empty for none, default /run/localdns.sock.
    pub status: Option<PathBuf>,
    /// `-handover`: the unix socket for handovers, to the next process or from the previous one.
    pub handover: Option<PathBuf>,
    /// Whether the process stays, idle, after a handover: `-after-handover wait`.
    pub stays: bool,
    /// The Corefile template of node-cache, in place of a Corefile.
    pub template: Option<Template>,
    /// `-metrics-listen-address`: an address of /metrics besides the Corefile's `prometheus`.
    pub more_metrics: Option<AdminAddress>,
    /// `-reloadwithsignal` of node-cache: reload on changes even without `reload`.
    pub reloads_by_itself: bool,
    /// `-exporter`: the address of AKS's exporter.
    pub exporter: Option<AdminAddress>,
    /// The settings of refreshed names in environment variables.
    pub environment: Environment,
}

/// Parses a command line without the program's name.
///
/// # Errors
/// One line with the problem and the expected value.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Invocation, String> {
    let typed: Vec<OsString> = args.into_iter().collect();
    let args: Vec<OsString> = typed.iter().cloned().map(as_long_flag).collect();
    let args = node::with_variables(args, env);
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Invocation::Print(error.to_string()));
        }
        Err(error) => return Err(one_line(&error, &typed)),
    };
    if matches.get_flag("version") {
        return Ok(Invocation::Print(version()));
    }
    if matches.get_flag("plugins") {
        return Ok(Invocation::Print(plugins()));
    }
    match matches.subcommand() {
        Some(("check", sub)) => Ok(Invocation::Check(flags(sub, env)?)),
        Some(("refresh", sub)) => {
            if !sub.get_flag("once") {
                return Err(
                    "`refresh` needs --once; a running server refreshes its names by itself".to_owned()
                );
            }
            let hosts = sub.get_one("hosts").cloned();
            Ok(Invocation::Refresh(flags(sub, env)?, Once { hosts, print: sub.get_flag("print") }))
        }
        Some(("status", sub)) => Ok(Invocation::Status(flags(sub, env)?, sub.get_one("status").cloned())),
        Some(("explain", sub)) => Ok(Invocation::Explain(flags(sub, env)?, Box::new(explain(sub)?))),
        Some(("node", sub)) => node::read(sub, env),
        Some(("node-cache", sub)) => node_cache::read(sub, env),
        Some(("node-resolver", sub)) => Ok(Invocation::NodeResolver(Box::new(Request::read(sub, env)))),
        _ => Ok(Invocation::Serve(flags(&matches, env)?)),
    }
}

/// Whether the log format is JSON, read from a command line that may have other errors.
pub fn wants_json(args: &[OsString]) -> bool {
    let text = |arg: &OsString| arg.to_string_lossy().trim_start_matches('-').to_owned();
    let mut pairs = args.iter().zip(args.iter().skip(1));
    args.iter().any(|arg| text(arg) == "log-format=json")
        || pairs.any(|(flag, value)| text(flag) == "log-format" && value == "json")
}

/// Whether a command line without a subcommand is node-cache's: only node-cache has the flag
/// `-localip`.
pub fn means_node_cache(args: &[OsString]) -> bool {
    let flag = |arg: &OsString| Some(arg.to_str()?.strip_prefix('-')?.trim_start_matches('-').to_owned());
    args.first().is_some_and(|first| flag(first).is_some())
        && args.iter().filter_map(flag).any(|flag| flag == "localip" || flag.starts_with("localip="))
}

/// Returns the output of `-version`.
pub fn version() -> String {
    format!("localdns-{}\nlinux/{}, rust\n", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// Returns the output of `-plugins`.
fn plugins() -> String {
    let mut text = String::new();
    for name in plugins::plugin_cfg::here() {
        text.push_str(name);
        text.push('\n');
    }
    text
}

/// Adds the flags of commands that read a Corefile.
fn shared(command: Command) -> Command {
    command
            .arg(Arg::new("conf").long("conf").value_name("FILE").value_parser(value_parser!(PathBuf)).help(
                "Corefile to load; `stdin` reads standard input [default: ./Corefile, else `.:53 { whoami log }`]",
            ))
            .arg(
                Arg::new("dns.port").long("dns.port").alias("p").value_name("PORT").default_value("53")
                    .value_parser(value_parser!(u16)).help("Port of server blocks that name none; also -p"),
            )
            .arg(log_format())
            .arg(Arg::new("cache-bytes").long("cache-bytes").value_name("BYTES").value_parser(value_parser!(u64).range(CACHE_BYTES)).help(
                "Bytes that all server blocks' caches share, 1 MiB to 4 GiB; also LOCALDNS_CACHE_BYTES [default: 67108864]",
            ))
}

/// Adds the flags of commands that serve.
fn served(command: Command) -> Command {
    shared(command)
        .arg(
            Arg::new("pidfile")
                .long("pidfile")
                .value_name("FILE")
                .value_parser(OsStringValueParser::new().map(PathBuf::from))
                .help("File for the process id, written once every socket is bound; '' for none"),
        )
        .arg(
            Arg::new("status")
                .long("status")
                .value_name("PATH")
                .value_parser(OsStringValueParser::new().map(PathBuf::from))
                .help("Unix socket of /status, '' for none [default: /run/localdns.sock]"),
        )
        .arg(
            Arg::new("handover")
                .long("handover")
                .value_name("PATH")
                .value_parser(value_parser!(PathBuf))
                .help("Unix socket for handing listen sockets over to the next process"),
        )
        .arg(
            Arg::new("after-handover")
                .long("after-handover")
                .value_name("WHAT")
                .default_value("exit")
                .value_parser(PossibleValuesParser::new(["exit", "wait"]))
                .help("After the handover: exit, or wait for a signal, as a container must"),
        )
        .arg(flag("quiet", "Do not print zones and version at start"))
}

/// Returns the whole command line for clap.
pub fn command() -> Command {
    let serve = served(Command::new("localdns"))
        .bin_name("localdns")
        .no_binary_name(true)
        // Go's `flag` package takes the last of repeated flags.
        .args_override_self(true)
        .disable_version_flag(true)
        .about("A DNS server for Kubernetes nodes that reads CoreDNS's Corefile")
        .args_conflicts_with_subcommands(true)
        .arg(flag("version", "Print the version, and exit"))
        .arg(flag("plugins", "Print the supported directives, and exit"));
    serve
        .subcommand(shared(
            Command::new("check")
                .about("Check the Corefile, and exit: code 0 if it can be served, else 1"),
        ))
        .subcommand(
            shared(
                Command::new("explain")
                    .about("Show which server block and plugin would answer a query, and why"),
            )
            .arg(
                Arg::new("name")
                    .required(true)
                    .value_name("NAME")
                    .help("Name asked for, such as example.org"),
            )
            .arg(Arg::new("rest").num_args(0..=2).value_name("TYPE|@ADDRESS").help(
                "Type asked for [default: A]; listen address asked, such as @127.0.0.1 [default: every one]",
            )),
        )
        .subcommand(
            shared(
                Command::new("refresh")
                    .about("Look up critical names once, write their addresses to a hosts file, and exit"),
            )
            .arg(switch("once", "One round, and exit: code 0 whether names were refreshed or kept"))
            .arg(switch("print", "Print the hosts file instead of writing it"))
            .arg(
                Arg::new("hosts")
                    .long("hosts")
                    .value_name("FILE")
                    .value_parser(value_parser!(PathBuf))
                    .help("Hosts file [default: the Corefile's, else /etc/localdns/hosts]"),
            ),
        )
        .subcommand(
            shared(Command::new("status"))
                .about(
                    "Print the status of a running server: refreshed names, clusters, upstreams",
                )
                .mut_arg("conf", |arg| {
                    arg.help("Corefile of the server; its `prometheus` has the address of the status besides the socket")
                })
                .arg(Arg::new("status").long("status").value_name("PATH|ADDRESS:PORT").value_parser(value_parser!(PathBuf)).help(
                    "Unix socket of the server, or the address of its metrics [default: /run/localdns.sock, else localhost:9153]",
                )),
        )
        .subcommand(node::command())
        .subcommand(node_cache::command())
        .subcommand(node_resolver::command(flag, log_format()))
}

fn log_format() -> Arg {
    Arg::new("log-format")
        .long("log-format")
        .value_name("FORMAT")
        .default_value("text")
        .value_parser(PossibleValuesParser::new(["text", "json"]))
        .help("Format of every log line")
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .value_name("BOOL")
        .default_value("false")
        .default_missing_value("true")
        .hide_default_value(true)
        .value_parser(corefile::go_values::parse_bool)
        .help(help)
}

fn flags(matches: &ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> Result<Flags, String> {
    let from_env = env("LOCALDNS_CACHE_BYTES").filter(|text| !text.is_empty());
    let from_env = from_env
        .map(|text| {
            let bytes = text.parse().ok().filter(|bytes| CACHE_BYTES.contains(bytes));
            let (least, most) = (CACHE_BYTES.start(), CACHE_BYTES.end());
            bytes.ok_or_else(|| {
                format!("LOCALDNS_CACHE_BYTES={text:?} is not a number of bytes, {least} to {most}")
            })
        })
        .transpose()?;
    let cache_bytes = matches
        .get_one::<u64>("cache-bytes")
        .copied()
        .or(from_env)
        .and_then(|bytes| usize::try_from(bytes).ok());
    let pidfile: Option<&PathBuf> = matches.try_get_one("pidfile").ok().flatten();
    Ok(Flags {
        conf: matches.get_one("conf").cloned(),
        dns_port: matches.get_one("dns.port").copied().unwrap_or(53),
        pidfile: pidfile.filter(|path| !path.as_os_str().is_empty()).cloned(),
        quiet: matches.try_get_one("quiet").ok().flatten().copied().unwrap_or(false),
        json: matches.get_one::<String>("log-format").is_some_and(|format| format == "json"),
        cache_bytes: cache_bytes.unwrap_or(cache::Cache::DEFAULT_BYTES),
        status: matches.try_get_one("status").ok().flatten().cloned(),
        handover: matches.try_get_one("handover").ok().flatten().cloned(),
        stays: matches
            .try_get_one::<String>("after-handover")
            .ok()
            .flatten()
            .is_some_and(|what| what == "wait"),
        template: None,
        more_metrics: None,
        reloads_by_itself: false,
        exporter: None,
        environment: Environment::read(env),
    })
}

fn explain(matches: &ArgMatches) -> Result<Explain, String> {
    let text = matches.get_one::<String>("name").map_or("", String::as_str);
    let name = Name::from_text(text).map_err(|error| format!("{text:?} is not a domain name: {error}"))?;
    let mut explain = Explain { name, rtype: RType::A, address: None, port: None };
    for word in matches.get_many::<String>("rest").into_iter().flatten() {
        match word.strip_prefix('@') {
            Some(address) => {
                // The address may be copied from the output of `explain`: with `tls://` in front,
                // and the interface index after a link-local address.
                let bare = address.strip_prefix("tls://").unwrap_or(address);
                let ip = |host: &str| host.split('%').next()?.parse().ok();
                let read = ::node::host_and_port(bare, 0).and_then(|(host, port)| Some((ip(host)?, port)));
                let (ip, port) =
                    read.ok_or_else(|| format!("{address:?} after @ is neither an IP address nor IP:PORT"))?;
                (explain.address, explain.port) = (Some(ip), (port > 0).then_some(port));
            }
            None => {
                explain.rtype =
                    word.parse().map_err(|_| format!("{word:?} is not a record type such as AAAA"))?
            }
        }
    }
    Ok(explain)
}

/// Turns Go's `-flag` into clap's `--flag`; `-h`, values and everything else stay.
fn as_long_flag(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.starts_with('-') && !text.starts_with("--") && text.len() > 1 && text != "-h" => {
            format!("-{text}").into()
        }
        _ => arg,
    }
}

/// Returns clap's error in one line: the text as typed, and the expected value.
fn one_line(error: &clap::Error, typed: &[OsString]) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.first().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    let (arg, value) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
    let flag = arg.trim_start_matches('-').split([' ', '[', '=']).next().unwrap_or_default();
    let command = COMMANDS.into_iter().find(|command| typed.iter().any(|word| word == command));
    let is_typed = node::is_typed(typed, flag) || (flag == "dns.port" && node::is_typed(typed, "p"));
    // `-interfacename`, the only long alias of a flag, is shown as typed.
    let flag = match flag {
        "link" if !is_typed && node::is_typed(typed, "interfacename") => "interfacename",
        flag => flag,
    };
    let name = match is_typed || command != Some("node") {
        true => format!("-{flag}"),
        false => node::variable(flag),
    };
    let what = match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if !flag.is_empty() => {
            let wanted = wanted(flag);
            match value.as_str() {
                "" => format!("{name} needs {wanted}"),
                value => format!("{name} {value:?} is not {wanted}"),
            }
        }
        ErrorKind::UnknownArgument if arg.starts_with('-') => {
            let typed = typed.iter().map(|word| word.to_string_lossy());
            let mut typed = typed.map(|word| word.split('=').next().unwrap_or_default().to_owned());
            let typed =
                typed.find(|word| word.trim_start_matches('-') == flag).unwrap_or_else(|| arg.clone());
            let known = context(ContextKind::SuggestedArg);
            match known.trim_start_matches('-') {
                "" | "p" => format!("unknown flag {typed}"),
                known => format!("unknown flag {typed}; did you mean -{known}?"),
            }
        }
        ErrorKind::UnknownArgument => format!("unexpected argument {arg:?}"),
        ErrorKind::TooManyValues => format!("unexpected argument {value:?}"),
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand);
            format!("unknown command {word:?}; there are {}", COMMANDS.join(", "))
        }
        ErrorKind::MissingRequiredArgument => {
            "`explain` needs a NAME, such as in `localdns explain example.org AAAA @127.0.0.1`".to_owned()
        }
        _ => {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    };
    let space = if command.is_some() { " " } else { "" };
    format!("{what}; see localdns {}{space}-help", command.unwrap_or_default())
}

/// Describes the values of a flag.
fn wanted(flag: &str) -> String {
    match flag {
        "dns.port" | "health-port" => "a port, 0 to 65535".to_owned(),
        "log-format" => "text or json".to_owned(),
        "cache-bytes" => format!("a number of bytes, {} to {}", CACHE_BYTES.start(), CACHE_BYTES.end()),
        "interval" => "a number of seconds, 1 to 3600".to_owned(),
        "metrics" => "an ADDRESS:PORT".to_owned(),
        "marker" => "a TEXT".to_owned(),
        "conf" | "pidfile" | "hosts" | "hosts-file" | "services-file" | "upstreams" | "environment" => {
            "a FILE".to_owned()
        }
        "status" => "a PATH".to_owned(),
        "rules" => one_of(&RuleSet::NAMES),
        "host-resolver" => one_of(&node::HOST_RESOLVERS),
        "lease" => "a duration such as 600ms, 200ms to 10s, or off".to_owned(),
        "link" | "interfacename" => "the name of an interface, 1 to 15 characters".to_owned(),
        "probe-mark" => "a number, 1 to 4294967295, such as 0x6c646e73".to_owned(),
        "localip" => {
            "a comma-separated list of IP addresses that pods can reach: not 0.0.0.0, 127.0.0.1 or fe80::1"
                .to_owned()
        }
        "syncinterval" => "a number of seconds or a duration, such as 60 or 60s".to_owned(),
        "exporter" => "an ADDRESS:PORT, or off".to_owned(),
        "metrics-listen-address" | "prometheus-listen-address" => "an ADDRESS:PORT".to_owned(),
        "at-stop" => one_of(&node::AT_STOP),
        "failover-clients" => {
            "a comma-separated list of networks, such as 10.1.0.0/16,fd01::/64, or all".to_owned()
        }
        "failover-acl" => one_of(&node::FAILOVER_ACL),
        _ => "true or false".to_owned(),
    }
}

/// Joins the words as `a, b or c`.
fn one_of(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The subcommands.
const COMMANDS: [&str; 7] = ["check", "explain", "node", "node-cache", "node-resolver", "refresh", "status"];

/// Range of the caches' total size in bytes.
const CACHE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=4 << 30;

#[cfg(test)]
mod tests;
