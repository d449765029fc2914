//! The command line of `localdns node-resolver`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::{DEFAULT_MARKER, Request};

/// Returns the subcommand. `flag` makes a boolean flag, and `log_format` is the `-log-format` of
/// all commands.
pub fn command(flag: impl Fn(&'static str, &'static str) -> Arg, log_format: Arg) -> Command {
    let file = |name: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf))
    };
    Command::new("node-resolver")
        .about("Keep the addresses of Kubernetes services in this node's /etc/hosts")
        .args_override_self(true)
        .after_help(
            "Environment:\n  SERVICES        name.namespace.svc, separated by commas, spaces or newlines, at most 20\n  NAMESERVER      The cluster's DNS service: one or more addresses, each with an optional port,\n                  or tls://, https:// or quic:// before it; required\n  TLS_SERVERNAME  The name in the certificates of such servers [default: their address]\n  TLS_CA          File of the authorities of their certificates [default: the system's]\n  CLUSTER_DOMAIN  The cluster's domain [default: cluster.local]\n  SERVICE_CIDRS   Networks of service addresses; other addresses are ignored",
        )
        .arg(flag("once", "Do one round, and exit: code 0, or 1 if the file cannot be changed"))
        .arg(flag("remove", "Remove the managed lines from the file, and exit"))
        .arg(file("hosts-file").default_value("/etc/hosts").help("File whose lines with the marker are managed"))
        .arg(file("services-file").help("File with the list of services, in place of SERVICES; read again when it changes"))
        .arg(Arg::new("marker").long("marker").value_name("TEXT").default_value(DEFAULT_MARKER).help(
            "Comment that marks a line as managed",
        ))
        .arg(Arg::new("interval").long("interval").value_name("SECONDS").default_value("60")
            .value_parser(value_parser!(u16).range(1..=3600)).help("Longest time between rounds, 1 to 3600"))
        .arg(Arg::new("metrics").long("metrics").value_name("ADDRESS:PORT").help("Serve /metrics here [default: nowhere]"))
        .arg(log_format)
}

impl Request {
    /// Reads the command line and the environment.
    pub fn read(matches: &ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let is_set = |name: &str| matches.get_one(name).copied().unwrap_or(false);
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        Self {
            once: is_set("once"),
            remove: is_set("remove"),
            hosts_file: matches.get_one("hosts-file").cloned().unwrap_or_default(),
            services_file: matches.get_one("services-file").cloned(),
            marker: text("marker").unwrap_or_default(),
            interval_seconds: matches.get_one("interval").copied().unwrap_or(60),
            metrics: text("metrics"),
            json: text("log-format").is_some_and(|format| format == "json"),
            services: env("SERVICES"),
            nameserver: env("NAMESERVER"),
            tls_servername: env("TLS_SERVERNAME"),
            tls_ca: env("TLS_CA"),
            cluster_domain: env("CLUSTER_DOMAIN"),
            service_cidrs: env("SERVICE_CIDRS"),
        }
    }
}
