//! Each fault several times, while pod and host send queries at a steady rate: time without an
//! answer, lost queries, and time until the server is back.

mod figures;
mod line;
mod load;

use std::fmt::{self, Display, Formatter};
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::thread::scope;
use std::time::{Duration, Instant};

use tests::{
    Cgroup, Held, Manager, Server, Systemd, eventually, isolated_for, now, output, report, signal, skip, tool,
};

use super::availability::node;
use super::clients::{ADDRESSES, at};
use super::deaths::kill_for_memory;
use super::lab::{Lab, US};
use super::restart::{UNIT, boot};
use figures::{Figures, STRANGER, Window};
use load::{Client, Load, PLACES, WAYS_OUT, Way};

/// Each kind of client goes to the upstream and returns.
#[test]
fn each_client_through_each_fault() {
    isolated_for(Duration::from_secs(240), || {
        let test = "each_client_through_each_fault";
        if tool(test, "nft") {
            // The long form checks the times.
            let mut beyond = trials(Machine::new(Lab::new(), None), 1, 300.0);
            beyond.retain(|line| line.contains(STRANGER));
            assert!(beyond.is_empty(), "{beyond:#?}");
        }
    });
}

/// Ten trials of each fault meet the goals.
#[test]
#[ignore = "long: ten trials of each fault, or TRIALS"]
fn ten_trials_of_each_fault() {
    isolated_for(Duration::from_secs(300 * number("TRIALS", 10)), || {
        let Some((lab, systemd)) = boot("ten_trials_of_each_fault") else { return };
        let beyond = trials(
            Machine::new(lab, Some(systemd)),
            number("TRIALS", 10),
            number("TRIALS_RATE", 1000) as f64,
        );
        assert!(beyond.is_empty(), "{} are beyond the goals:\n{}", beyond.len(), beyond.join("\n"));
    });
}

/// Prints a table of the results, and returns those out of bounds.
fn trials(mut machine: Machine, times: u64, rate: f64) -> Vec<String> {
    let load = Load::new();
    let chosen = chosen(std::env::var("TRIALS_FAULT").ok().as_deref());
    let mut beyond = Vec::new();
    scope(|scope| {
        // Ends the clients in case of a panic too.
        let _over = Over(&load);
        load.start(scope, rate);
        report(&format!(
            "measured: {times} trials of each, {rate} queries a second over UDP and as many over TCP"
        ));
        Figures::HEAD.lines().for_each(|line| report(&format!("measured: {line}")));
        for fault in chosen {
            if !machine.knows(fault) {
                continue;
            }
            let mut figures = Figures::new(fault);
            machine.begin(fault);
            for _ in 0..times {
                machine.meets(fault, &load, &mut figures);
            }
            machine.end(fault);
            report(&format!("measured: {figures}"));
            beyond.extend(figures.beyond());
        }
    });
    beyond
}

/// A fault that a node may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    OutOfMemory,
    Hangs,
    WorkerHangs,
    /// The server restores it.
    AddressLost,
    /// The server cannot restore it.
    AddressLostInHang,
    /// A start with nothing of an earlier server left, while conntrack tracks flows to other
    /// servers.
    FirstStart,
    Stopped,
    Disabled,
    CrashLoop,
}

const FAULTS: &[Fault] = &[
    Fault::Killed,
    Fault::OutOfMemory,
    Fault::Hangs,
    Fault::WorkerHangs,
    Fault::AddressLost,
    Fault::AddressLostInHang,
    Fault::FirstStart,
    // The last of systemd's faults changes the unit.
    Fault::Stopped,
    Fault::Disabled,
    Fault::CrashLoop,
];

impl Fault {
    fn is_of_systemd(self) -> bool {
        matches!(self, Self::Stopped | Self::Disabled | Self::CrashLoop)
    }

    /// Longest time without an answer for a client.
    fn goal(self, client: &Client) -> Duration {
        match self {
            Self::Hangs | Self::WorkerHangs => Duration::from_secs(1),
            _ if self.waits_for_address(client) => Duration::from_millis(1200),
            _ => Self::return_goal(client),
        }
    }

    /// Whether a client cannot send because its source address is gone, until that is back or it
    /// drops the connection.
    fn waits_for_address(self, client: &Client) -> bool {
        matches!(self, Self::AddressLost | Self::AddressLostInHang)
            && client.place.is_none()
            && client.way == Way::Connection
    }

    /// Whether a client gets no answer until READY, since no server has its address.
    fn has_no_responder(self, client: &Client) -> bool {
        self == Self::FirstStart && client.ip != SERVICE
    }

    /// Longest time without an answer at the return, which for an address is immediate. A SYN to a
    /// missing address is retransmitted after 1 s.
    fn goal_at_return(self, client: &Client) -> Duration {
        match self {
            Self::AddressLost => self.goal(client),
            _ if self.has_no_responder(client) && client.way == Way::Connection => {
                Duration::from_millis(1200)
            }
            _ => Self::return_goal(client),
        }
    }

    /// The common bound of both, by kind of client.
    fn return_goal(client: &Client) -> Duration {
        match client.way {
            Way::Udp | Way::Tcp => Duration::from_millis(100),
            Way::OnePort | Way::Connection => Duration::from_millis(200),
        }
    }

    /// Number of queries that all clients together may lose, at the median: those queued in each
    /// process that died.
    fn may_lose(self) -> Option<usize> {
        match self {
            // Queries to a hanging server are lost until its lease ends or its addresses are
            // deleted.
            Self::Hangs | Self::WorkerHangs | Self::AddressLostInHang => None,
            // Only the return is judged.
            Self::FirstStart => None,
            // The server is back between two crashes, which breaks the connections open to the
            // upstream.
            Self::CrashLoop => Some((5 + CONNECTIONS) * CRASHES as usize - CONNECTIONS),
            _ => Some(5),
        }
    }
}

impl Display for Fault {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Killed => "`kill -9`",
            Self::OutOfMemory => "killed for want of memory in its control group",
            Self::Hangs => "SIGSTOP",
            Self::WorkerHangs => "one worker of several hangs",
            Self::AddressLost => "the addresses are deleted",
            Self::AddressLostInHang => "the addresses are deleted, and the server cannot put them back",
            Self::FirstStart => "`node down`, then a start",
            Self::Stopped => "`systemctl stop`",
            Self::Disabled => "`systemctl disable --now`",
            Self::CrashLoop => "three crashes, until systemd gives it up",
        })
    }
}

/// The node with its server, started by the test or by systemd.
struct Machine {
    held: Option<Held>,
    server: Option<Server>,
    // Must outlive the server.
    group: Option<Cgroup>,
    manager: Manager,
    systemd: Option<Systemd>,
    lab: Lab,
}

impl Machine {
    fn new(lab: Lab, systemd: Option<Systemd>) -> Self {
        let group = Cgroup::memory(64 << 20);
        let group = group.map_err(|why| skip("trials of a server that runs out of memory", &why)).ok();
        Self { held: None, server: None, group, manager: Manager::new(), systemd, lab }
    }

    fn knows(&self, fault: Fault) -> bool {
        match fault {
            Fault::OutOfMemory => self.group.is_some(),
            _ => self.systemd.is_some() || !fault.is_of_systemd(),
        }
    }

    /// Starts the server of a fault's trials.
    fn begin(&mut self, fault: Fault) {
        if !fault.is_of_systemd() {
            self.serve(fault);
        }
        if fault == Fault::CrashLoop {
            // A running unit would not start again below, and would have one start more.
            self.systemd().ctl(&["stop", UNIT]);
            let limit = format!("[Unit]\nStartLimitIntervalSec=600\nStartLimitBurst={CRASHES}\n");
            self.systemd().more(UNIT, &limit);
        }
        if fault.is_of_systemd() {
            self.start_unit();
        }
    }

    fn end(&mut self, fault: Fault) {
        if let Some(mut server) = self.server.take().filter(|_| !fault.is_of_systemd()) {
            signal(server.pid(), "KILL");
            server.wait(PATIENCE);
            // Sockets in the manager's store stay open until it forgets them, and more may be
            // arriving.
            for ip in ADDRESSES {
                eventually("its sockets are closed", PATIENCE, || {
                    self.manager.forget();
                    UdpSocket::bind(at(ip)).ok()
                });
            }
        }
    }

    /// Injects a fault and reverts it.
    fn meets(&mut self, fault: Fault, load: &Load, figures: &mut Figures) {
        load.settle("before", |_, responder| responder == US);
        // Queries sent just before may still be queued.
        let mut from = now() - QUEUED;
        let mut ready = self.befall(fault);
        let is_back = fault == Fault::AddressLost;
        let answered = |client: &Client| !fault.has_no_responder(client);
        load.settle_where(answered, &fault.to_string(), |client, responder| match responder {
            US => is_back,
            _ => !is_back && responder == client.upstream,
        });
        if fault == Fault::FirstStart {
            from = now();
        }
        let away = Window { from, to: now() };
        // Clients must give up queued queries before the server returns and answers them.
        load.decide(away.to);
        let mut back = away;
        if !is_back {
            ready = self.repair(fault);
            load.settle(&format!("after {fault}"), |_, responder| responder == US);
            back = Window { from: away.to, to: now() };
        }
        load.decide(back.to);
        figures.add(load, away, back, ready);
    }

    /// Injects the fault; returns the time.
    fn befall(&mut self, fault: Fault) -> Instant {
        match fault {
            Fault::Killed => signal(self.server().pid(), "KILL"),
            Fault::OutOfMemory => {
                if let (Some(server), Some(group)) = (&mut self.server, &self.group) {
                    kill_for_memory(server, group);
                }
            }
            Fault::Hangs => signal(self.server().pid(), "STOP"),
            Fault::WorkerHangs => {
                let worker = self.server().threads("worker-")[0];
                self.held = Some(Held::stop(worker).expect("its parent may trace it"));
            }
            Fault::AddressLost => Deletion::prepare().go(),
            Fault::AddressLostInHang => {
                let deletion = Deletion::prepare();
                signal(self.server().pid(), "STOP");
                deletion.go();
            }
            Fault::FirstStart => {
                if let Some(server) = &mut self.server {
                    signal(server.pid(), "KILL");
                    server.wait(PATIENCE);
                    node(server, &["down"], 0);
                }
                // Nothing of an earlier process is left, sockets included.
                self.manager.forget();
            }
            Fault::Stopped => self.systemd().ctl(&["stop", UNIT]),
            Fault::Disabled => self.systemd().ctl(&["disable", "--now", UNIT]),
            Fault::CrashLoop => self.crash(),
        }
        now()
    }

    /// Crashes until systemd gives up.
    fn crash(&self) {
        for crash in 1..=CRASHES {
            self.systemd().ctl(&["kill", "--kill-who=main", "--signal=KILL", UNIT]);
            if crash < CRASHES {
                self.systemd().restarts(UNIT, crash);
            }
        }
        eventually("the end of its starts", PATIENCE, || {
            (self.systemd().show(UNIT, "ActiveState") == ["failed"]).then_some(())
        });
    }

    /// Reverts the fault; returns the time of READY.
    fn repair(&mut self, fault: Fault) -> Instant {
        match fault {
            Fault::Hangs | Fault::AddressLostInHang => signal(self.server().pid(), "CONT"),
            Fault::WorkerHangs => self.held = None,
            Fault::AddressLost => {}
            Fault::Killed | Fault::OutOfMemory | Fault::FirstStart => {
                if let Some(server) = &mut self.server {
                    server.wait(PATIENCE);
                }
                self.serve(fault);
            }
            Fault::Stopped | Fault::Disabled | Fault::CrashLoop => self.start_unit(),
        }
        now()
    }

    /// Starts a server of the test's own and waits for READY.
    fn serve(&mut self, fault: Fault) {
        let ready = self.manager.received("READY=1");
        let options = self.manager.options().subcommand(&["node", "run"]);
        let group = self.group.as_ref().filter(|_| fault == Fault::OutOfMemory);
        let options = match group {
            Some(group) => options.within(group),
            None => options,
        };
        self.server = Some(self.lab.serve_with(|_| options));
        self.manager.wait_for("READY=1", ready + 1, PATIENCE);
    }

    fn start_unit(&self) {
        self.systemd().ctl(&["enable", UNIT]);
        // Resets the start limit; a unit that is not loaded has none.
        let mut reset = self.systemd().inside("systemctl");
        reset.args(["reset-failed", UNIT]);
        output(reset, PATIENCE);
        self.systemd().ctl(&["start", UNIT]);
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("its trials began with one")
    }

    fn systemd(&self) -> &Systemd {
        self.systemd.as_ref().expect("no fault of systemd is tried without")
    }
}

/// Only the host's connections wait for an address that is missing.
#[test]
fn only_host_connections_wait() {
    let load = Load::new();
    for fault in FAULTS {
        let lost = matches!(fault, Fault::AddressLost | Fault::AddressLostInHang);
        for client in &load.clients {
            let waits = lost && client.place.is_none() && client.way == Way::Connection;
            let name = client.name();
            assert_eq!(fault.goal(client) == Duration::from_millis(1200), waits, "{fault}: {name}");
            let returns_at_once = *fault == Fault::AddressLost;
            let at_return = fault.goal_at_return(client);
            let is_unanswered = fault.has_no_responder(client) && client.way == Way::Connection;
            let waits = waits && returns_at_once || is_unanswered;
            assert_eq!(at_return > Duration::from_millis(200), waits, "{fault}: {name}");
        }
    }
}

struct Over<'l>(&'l Load);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Deletes all addresses at once; starting the program beforehand keeps its time out of the fault.
struct Deletion(Child);

impl Deletion {
    fn prepare() -> Self {
        let mut ip = Command::new("ip");
        Self(ip.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("ip starts"))
    }

    fn go(mut self) {
        let bits = |ip: &str| if ip.contains(':') { 128 } else { 32 };
        let lines = ADDRESSES.map(|ip| format!("addr del {ip}/{} dev localdns\n", bits(ip))).concat();
        // End of input.
        let mut words = self.0.stdin.take().expect("it is a pipe");
        words.write_all(lines.as_bytes()).expect("it reads");
        drop(words);
        assert!(self.0.wait().expect("it ends").success(), "{lines}");
    }
}

/// The fault that `TRIALS_FAULT` names; all if it is unset.
fn chosen(named: Option<&str>) -> Vec<Fault> {
    let is_named = |fault: &Fault| named.is_none_or(|named| named == format!("{fault:?}"));
    let chosen: Vec<_> = FAULTS.iter().copied().filter(is_named).collect();
    assert!(!chosen.is_empty(), "TRIALS_FAULT is {named:?}, and none of {FAULTS:?}");
    chosen
}

/// A fault is chosen by its name, and with an unknown name no trial runs.
#[test]
fn faults_are_chosen_by_name() {
    assert_eq!(chosen(None), FAULTS);
    assert_eq!(chosen(Some("WorkerHangs")), [Fault::WorkerHangs]);
    std::panic::catch_unwind(|| chosen(Some("workerhangs"))).expect_err("there is none");
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// The address that kube-proxy translates when no rule of ours takes it.
const SERVICE: &str = "10.96.0.20";
/// Number of clients with a persistent connection.
const CONNECTIONS: usize = PLACES.len() * WAYS_OUT.len();
/// Crashes until systemd gives up.
const CRASHES: u32 = 3;
/// How long a query may be queued.
const QUEUED: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(20);
