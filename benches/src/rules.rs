//! Measures the cost of the rules of `node run` at full rate compared to NOTRACK alone, for clients
//! in a pod: servers in network namespaces behind a veth are loaded in turns. The cost of parts of
//! the rules is measured by leaving parts out.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::compare::config::hosts;
use crate::compare::process::{Launch, Running};
use crate::compare::spread::Spread;
use crate::compare::stage::Stage;
use load::flood::{self, FloodPlan};
use load::workload::{Ask, Kind, Workload};

/// Number of floods, their duration and their cores.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Turns, in each of which every server is flooded once
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Milliseconds that count of a flood
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    milliseconds: u64,
    /// Core of the servers
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the load, on which the rules for queries run as well; if it is the servers' core,
    /// the cost of both is measured
    #[arg(long, default_value_t = 1)]
    load_core: usize,
    /// Minimum rate, as a share of the rate with NOTRACK alone
    #[arg(long, default_value_t = 0.9)]
    least: f64,
    #[command(flatten)]
    stage: Stage,
}

/// Measures, and prints a Markdown table.
///
/// # Errors
/// Without root, `ip` or `nft`, when a server fails, and when the rules exceed the allowed cost.
pub fn run(options: &Options) -> Result<()> {
    if let Some(dir) = &options.stage.inside {
        return measure(options, dir);
    }
    options.stage.enter("rules", std::iter::empty())
}

fn measure(options: &Options, dir: &Path) -> Result<()> {
    let myself = std::env::current_exe().context("this program's file")?;
    let localdns = options.stage.server(&myself);
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    fs::write(dir.join("hosts"), hosts(NAMES)).with_context(|| dir.display().to_string())?;
    let mut nodes = Vec::new();
    for (number, variant) in VARIANTS.iter().enumerate() {
        let leased = nodes.first().map(Node::rules).transpose()?.unwrap_or_default();
        nodes.push(Node::start(number, variant, &leased, (&localdns, dir), options)?);
    }
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); nodes.len()];
    for turn in 0..options.turns as usize {
        // Each server is first, last and in between in turns.
        for place in 0..nodes.len() {
            let number = (turn + place) % nodes.len();
            rates[number].push(nodes[number].flood(options, turn as u64)?);
        }
    }
    println!(
        "| rules | k queries a second | of NOTRACK alone | expressions in the chains that queries enter, and answers |\n|---|---|---|---|"
    );
    let mut ratio_of_all = None;
    for ((node, variant), rate) in nodes.iter().zip(VARIANTS).zip(&rates) {
        let ratios = rate.iter().zip(&rates[ALONE]).map(|(rate, alone)| rate / alone);
        let (rate, ratio) = Spread::of(rate.iter().copied()).zip(Spread::of(ratios)).context("no turn")?;
        ratio_of_all.get_or_insert(ratio.median);
        let [query, answer] = node.expressions()?;
        println!(
            "| {} | {} | {} | {query}, {answer} |",
            variant.title,
            rate.show(1e3, 0),
            ratio.show(1.0, 2)
        );
        ensure!(
            !node.server.last_words().contains("the lease of"),
            "a lease ended: {}",
            node.server.last_words()
        );
    }
    let ratio = ratio_of_all.context("no turn")?;
    ensure!(
        ratio >= options.least,
        "{ratio:.3} of the rate of NOTRACK alone, at least {} is allowed",
        options.least
    );
    Ok(())
}

/// The rules for a server's packets.
struct Variant {
    title: &'static str,
    /// The value of the server's flag `-rules`.
    rules: &'static str,
    /// Extra rules, a part of those that exist with leases.
    beside: fn(&str, &str) -> String,
}

/// The first has all rules; the others leave out parts.
const VARIANTS: [Variant; 6] = [
    Variant { title: "`-rules nft`: all", rules: "nft", beside: |_, _| String::new() },
    Variant { title: "NOTRACK alone", rules: "none", beside: |_, address| notrack(address) },
    Variant {
        title: "all, without the look for a socket",
        rules: "none",
        beside: |leased, address| standing(leased, address).replace(" socket transparent 0", ""),
    },
    Variant {
        title: "all, without the look whether the address is ours",
        rules: "none",
        beside: |leased, address| standing(leased, address).replace(" fib daddr type local", ""),
    },
    Variant {
        title: "the leases' table alone",
        rules: "none",
        beside: |leased, address| {
            let text = standing(leased, address);
            text[text.find(LEASES).unwrap_or_default()..].to_owned()
        },
    },
    Variant { title: "none: all is tracked", rules: "none", beside: |_, _| String::new() },
];
const ALONE: usize = 1;

fn notrack(address: &str) -> String {
    format!(
        "table inet alone {{
            chain prerouting {{
                type filter hook prerouting priority raw;
                ip daddr {address} meta l4proto {{ tcp, udp }} th dport 53 notrack
            }}
            chain output {{
                type filter hook output priority raw;
                ip saddr {address} meta l4proto {{ tcp, udp }} th sport 53 notrack
            }}
        }}"
    )
}

/// Returns both tables as `nft` lists them, with another server's address, without owner and
/// timeouts.
fn standing(leased: &str, address: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in leased.lines().filter(|line| line.trim() != "flags owner") {
        let line = match line.split_once(" timeout ") {
            Some((element, _)) => format!("{element} }}"),
            None => line.to_owned(),
        };
        lines.push(line.replace(&Node::address(0), address));
    }
    lines.join("\n")
}

/// A node in its own namespace behind a veth, with a server.
struct Node {
    number: usize,
    server: Running,
    // The namespace is dropped after the server.
    _namespace: Place,
}

/// A network namespace, deleted on drop.
struct Place(String);

impl Drop for Place {
    fn drop(&mut self) {
        drop(sh(&format!("ip netns delete {}", self.0), ""));
    }
}

impl Node {
    fn address(number: usize) -> String {
        format!("169.254.10.{}", 10 + number)
    }

    fn name(number: usize) -> String {
        format!("localdns-rules-{}-{number}", std::process::id())
    }

    fn target(&self) -> Result<SocketAddr> {
        format!("{}:53", Self::address(self.number)).parse().context("an address")
    }

    fn start(
        number: usize,
        variant: &Variant,
        leased: &str,
        (localdns, dir): (&Path, &Path),
        options: &Options,
    ) -> Result<Self> {
        let (name, address) = (Self::name(number), Self::address(number));
        sh(&format!("ip netns add {name}"), "")?;
        let place = Place(name.clone());
        sh(
            &format!(
                "ip link add v{number} type veth peer name e0 netns {name}
                 ip link set v{number} up
                 ip addr add 10.200.{number}.1/24 dev v{number}
                 ip route add {address}/32 via 10.200.{number}.2
                 ip -n {name} link set lo up
                 ip -n {name} link set e0 up
                 ip -n {name} addr add 10.200.{number}.2/24 dev e0
                 ip -n {name} addr add {address}/32 dev lo
                 ip -n {name} route add default via 10.200.{number}.1
                 ip netns exec {name} nft -f -"
            ),
            KUBE_PROXY,
        )?;
        let corefile = dir.join(format!("Corefile.{number}"));
        let hosts = dir.join("hosts");
        let text = format!(
            ".:53 {{\n    bind {address}\n    hosts {} {{\n        reload 0\n    }}\n    forward . 10.200.{number}.1\n}}\n",
            hosts.display()
        );
        fs::write(&corefile, text).with_context(|| corefile.display().to_string())?;
        let pidfile = dir.join(format!("pid.{number}"));
        let launch =
            Launch::new("ip").args(["netns", "exec", &name, &localdns.display().to_string()]).args([
                "node",
                "run",
                "-conf",
                &corefile.display().to_string(),
                "-pidfile",
                &pidfile.display().to_string(),
                "-status",
                "",
                "-exporter",
                "off",
                "-host-resolver",
                "none",
                "-rules",
                variant.rules,
            ]);
        let server = Running::start(&launch, &[options.server_core])?;
        let node = Self { number, server, _namespace: place };
        node.wait(variant)?;
        sh(&format!("ip netns exec {name} nft -f -"), &(variant.beside)(leased, &address))?;
        ensure!(node.try_flood(options, FIRST, 0)? > 0.0, "{} does not answer any more", variant.title);
        Ok(node)
    }

    /// Waits until the server answers and its rules exist.
    fn wait(&self, variant: &Variant) -> Result<()> {
        let line = format!("queries to {} are answered here", Self::address(self.number));
        for _ in 0..LOOKS {
            let is_there = variant.rules != "nft" || self.server.last_words().contains(&line);
            let query = [&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x01x\x00\x00\x01\x00\x01"].concat();
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").context("bind")?;
            socket.set_read_timeout(Some(LOOK)).context("a timeout")?;
            socket.send_to(&query, self.target()?).context("send")?;
            if is_there && socket.recv_from(&mut [0; 512]).is_ok() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        bail!("{} does not answer; it printed: {}", variant.title, self.server.last_words())
    }

    /// Returns the node's two tables, the permanent one first.
    fn rules(&self) -> Result<String> {
        let name = Self::name(self.number);
        sh(
            &format!(
                "for t in $(ip netns exec {name} nft list tables inet | cut -d' ' -f3 | sort); do ip netns exec {name} nft list table inet $t; done"
            ),
            "",
        )
    }

    /// Returns the number of expressions in the chains of a query before its socket, and of an
    /// answer before it leaves. A rule that does not match ends at its first expression.
    fn expressions(&self) -> Result<[usize; 2]> {
        let name = Self::name(self.number);
        let listed = sh(&format!("ip netns exec {name} nft --debug=netlink list ruleset inet 2>&1"), "")?;
        let of = |chains: [&str; 2]| {
            let mut within = false;
            let mut count = 0;
            for line in listed.lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                match words[..] {
                    ["inet", _, chain, ..] => within = chains.contains(&chain),
                    ["[", ..] if within => count += 1,
                    _ => {}
                }
            }
            count
        };
        Ok([of(["prerouting", "input"]), of(["output", "postrouting"])])
    }

    fn flood(&self, options: &Options, seed: u64) -> Result<f64> {
        self.try_flood(options, Duration::from_millis(options.milliseconds), seed)
    }

    /// Runs a load; returns replies a second.
    fn try_flood(&self, options: &Options, window: Duration, seed: u64) -> Result<f64> {
        let workload = Workload::new(&[Ask { kind: Kind::Hosts(NAMES), weight: 1 }], seed)?;
        let plan = FloodPlan {
            window,
            warmup: WARMUP,
            ..FloodPlan::closed(vec![self.target()?], vec![options.load_core])
        };
        let (counts, window) = flood::run(&plan, &workload, |_| {})?;
        ensure!(counts.wrong() == 0, "{} wrong replies", counts.wrong());
        Ok(counts.replies as f64 / window.seconds())
    }
}

/// Runs shell commands with `input` on their standard input, and returns their output.
fn sh(commands: &str, input: &str) -> Result<String> {
    let mut command = Command::new("sh");
    command.args(["-ec", commands]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("sh")?;
    // A command that reads no input may have ended.
    drop(child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().context("sh")?;
    ensure!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Rules as on every node: kube-proxy translates addresses, so that flows without exemption are
/// tracked.
const KUBE_PROXY: &str = "table ip kube-proxy {
    chain prerouting { type nat hook prerouting priority -100; ip daddr 10.96.0.10 dnat to 10.0.0.1; }
    chain postrouting { type nat hook postrouting priority 100; ct status dnat masquerade; }
}";
/// The start of the lease table's name in a list.
const LEASES: &str = "table inet localdns-lease";
const NAMES: u32 = 10_000;
const WARMUP: Duration = Duration::from_millis(100);
const FIRST: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 200;
