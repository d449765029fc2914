//! The program `benches`: load, servers to put it on, and the comparison.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use benches::{compare, hickory, instructions, kubernetes, publish, relay, responder, rules};
use clap::{Args, Parser, Subcommand};
use load::flood::{self, FloodPlan, Pace, Transport};
use load::workload::{Ask, Workload};

#[derive(Parser)]
#[command(about = "Load generator and measurements", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send every query back with QR set: what the kernel allows
    Echo(Serve),
    /// Answer every A question with one record: an upstream
    Upstream(Serve),
    /// Pass queries to an upstream and replies back: what a miss must cost
    Relay {
        #[command(flatten)]
        serve: Serve,
        /// Address of the upstream
        #[arg(long, value_name = "ADDRESS:PORT")]
        upstream: SocketAddr,
    },
    /// Answer from a hosts file, else from an upstream and a cache, on hickory-server: to compare
    /// with localdns's own event loop
    Hickory {
        #[command(flatten)]
        serve: Serve,
        /// The hosts file
        #[arg(long)]
        hosts: PathBuf,
        /// Address of the upstream
        #[arg(long, value_name = "ADDRESS:PORT")]
        upstream: SocketAddr,
        /// Maximum number of cached answers
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        entries: u64,
        /// Threads
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
        threads: u16,
    },
    /// Put load on a server and count the replies
    Flood(Flood),
    /// Measure this server beside every other one found, in a network namespace of its own
    Compare(compare::Options),
    /// Count the instructions of a query, under callgrind, and compare with their budgets
    Instructions(instructions::Options),
    /// Time queries while a large hosts file is replaced again and again, and while it is not
    Publish(publish::Options),
    /// Compare the rate with the rules of `node run` and with NOTRACK alone, and with parts of those rules
    Rules(rules::Options),
    /// Start beside the API of a large cluster, with CoreDNS: time, memory, and when changes are seen
    Kubernetes(kubernetes::Options),
}

#[derive(Args)]
struct Serve {
    /// Address to listen on; may be repeated
    #[arg(long, required = true, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Core to stay on
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
    /// Seconds until it ends by itself
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

#[derive(Args)]
struct Flood {
    /// Address to query; may be repeated
    #[arg(long, required = true, value_name = "ADDRESS:PORT")]
    target: Vec<SocketAddr>,
    /// Queries to send: hosts:N, cached:N, zipf:N:S, miss, nxdomain:N, zones:N, whoami, file:PATH,
    /// each with =WEIGHT; may be repeated
    #[arg(long, required = true, value_name = "KIND[=WEIGHT]")]
    ask: Vec<Ask>,
    /// Accept any reply as right, such as that of an echo server
    #[arg(long)]
    any_reply: bool,
    /// Query over TCP, pipelined
    #[arg(long)]
    tcp: bool,
    /// Sockets or connections of each thread
    #[arg(long, default_value_t = 4)]
    sockets: usize,
    /// Closed loop: queries outstanding on each socket
    #[arg(long, default_value_t = 64, conflicts_with = "rate")]
    outstanding: usize,
    /// Open loop: queries a second in all
    #[arg(long)]
    rate: Option<u64>,
    /// Core for one thread of load; may be repeated. Without it: one thread, anywhere
    #[arg(long, value_name = "CORE")]
    core: Vec<usize>,
    /// Seconds that count
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Seconds of load before the seconds that count
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    warmup: f64,
    /// Seconds after which a query is lost
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    patience: f64,
    /// Maximum number of queries in total
    #[arg(long, default_value_t = 1_000_000_000)]
    queries: u64,
    /// Seed of the names and their order; `miss` queries other names with another seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Poll for replies without sleeping: exact times, for a core without other work
    #[arg(long)]
    spin: bool,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Echo(serve) => responder::serve(&serve.listen, serve.core, serve.lasting(), responder::echo),
        Command::Upstream(serve) => {
            responder::serve(&serve.listen, serve.core, serve.lasting(), responder::upstream)
        }
        Command::Relay { serve, upstream } => {
            relay::relay(&serve.listen, upstream, serve.core, serve.lasting())
        }
        Command::Hickory { serve, hosts, upstream, entries, threads } => {
            let sources = hickory::Sources { hosts: &hosts, upstream, entries };
            hickory::serve(&serve.listen, &sources, threads.into(), serve.core, serve.lasting())
        }
        Command::Flood(options) => options.run(),
        Command::Compare(options) => compare::run(&options),
        Command::Instructions(options) => instructions::run(&options),
        Command::Publish(options) => publish::run(&options),
        Command::Rules(options) => rules::run(&options),
        Command::Kubernetes(options) => kubernetes::run(&options),
    }
}

impl Serve {
    fn lasting(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl Flood {
    fn run(self) -> Result<()> {
        let mut workload = Workload::new(&self.ask, self.seed)?;
        if self.any_reply {
            workload = workload.unjudged();
        }
        let plan = FloodPlan {
            targets: self.target,
            transport: if self.tcp { Transport::Tcp } else { Transport::Udp },
            lanes: self.sockets,
            pace: self.rate.map_or(Pace::Closed(self.outstanding), Pace::Open),
            cores: self.core,
            warmup: Duration::from_secs_f64(self.warmup),
            window: Duration::from_secs_f64(self.seconds),
            patience: Duration::from_secs_f64(self.patience),
            queries_max: self.queries,
            spin: self.spin,
        };
        let (counts, window) = flood::run(&plan, &workload, |_| {})?;
        println!("{:#}", counts.to_json(window));
        ensure!(counts.replies > 0, "no reply at all");
        Ok(())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "a number from 0 to 3600 is needed".to_owned())
}
