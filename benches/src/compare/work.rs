//! The rows of the comparison: queries, and the data and settings that a server needs to answer
//! them.

use std::path::PathBuf;

use load::flood::Transport;
use load::workload::{Ask, Kind};

/// One row.
#[derive(Clone, Debug)]
pub struct Work {
    /// The row's name on the command line and in JSON.
    pub name: &'static str,
    /// The row's title in the table.
    pub title: &'static str,
    /// Kinds of queries with their shares.
    pub asks: Vec<Ask>,
    /// Source of the answers.
    pub source: QueriesOf,
    /// Whether every query is logged.
    pub log: bool,
    /// The number of names in a hosts table that is looked up first and has none of the queried
    /// names.
    pub hosts_in_front: u32,
    /// Transport of the queries.
    pub transport: Transport,
    /// The names of which each is queried once before the load.
    pub prefill: Option<Kind>,
    /// Whether the server also has the cores of the load, with a worker on each core.
    pub all_cores: bool,
    /// Whether memory is measured. The row then has one round without offered rates, since filling
    /// the cache takes longer than the load.
    pub memory: bool,
    /// The percentage of a core to which the server is limited, and then overloaded.
    pub held: Option<u32>,
}

/// Source of the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueriesOf {
    /// A number of names in memory: hosts lines, local data or a zone.
    Hosts(u32),
    /// A zone without names: NXDOMAIN.
    Absent,
    /// A number of zones without names.
    Zones(u32),
    /// The client's own address.
    Whoami,
    /// An upstream behind a cache, with this number of entries or the server's default.
    Upstream(Option<u32>),
    /// A cluster, with its API in place of the upstream.
    Services,
}

impl Work {
    fn new(name: &'static str, title: &'static str, source: QueriesOf, asks: &[(Kind, u32)]) -> Self {
        let asks = asks.iter().map(|(kind, weight)| Ask { kind: kind.clone(), weight: *weight }).collect();
        Self {
            name,
            title,
            asks,
            source,
            log: false,
            hosts_in_front: 0,
            transport: Transport::Udp,
            prefill: None,
            all_cores: false,
            memory: false,
            held: None,
        }
    }

    /// Returns the number of names in the hosts table, whether they are queried or only looked up
    /// first.
    pub fn hosts(&self) -> u32 {
        match self.source {
            QueriesOf::Hosts(count) => count,
            _ => self.hosts_in_front,
        }
    }

    /// Whether an upstream, a reader of log lines or the server itself needs the load's core too:
    /// CPU time per query is then compared, not the rate.
    pub fn shares_core(&self) -> bool {
        self.log || self.all_cores || (self.asks.iter().any(|ask| ask.kind == Kind::Miss))
    }
}

/// Returns all rows, in the order of the table.
pub fn all() -> Vec<Work> {
    let hosts =
        |name, title, count| Work::new(name, title, QueriesOf::Hosts(count), &[(Kind::Hosts(count), 1)]);
    let cached = Kind::Cached(NAMES);
    vec![
        hosts("hosts", "hosts hit, 10,000 names", NAMES),
        hosts("hosts-100k", "hosts hit, 100,000 lines", 100_000),
        Work { hosts_in_front: IN_FRONT, ..cache("cache", "cache hit behind a hosts table, 10,000 names") },
        Work::new("nxdomain", "NXDOMAIN from template", QueriesOf::Absent, &[(Kind::Absent(NAMES), 1)]),
        Work::new("whoami", "whoami", QueriesOf::Whoami, &[(Kind::Whoami, 1)]),
        Work::new(
            "zones",
            "NXDOMAIN in 1,000 server blocks",
            QueriesOf::Zones(1000),
            &[(Kind::Zones(1000), 1)],
        ),
        Work { log: true, ..hosts("log", "hosts hit with log", NAMES) },
        Work::new("miss", "forward miss", QueriesOf::Upstream(None), &[(Kind::Miss, 1)]),
        Work {
            prefill: Some(cached.clone()),
            ..Work::new(
                "mix",
                "95 cache hits to 5 misses",
                QueriesOf::Upstream(Some(ENTRIES)),
                &[(cached, 95), (Kind::Miss, 5)],
            )
        },
        Work {
            prefill: Some(Kind::Cached(MILLION)),
            memory: true,
            ..Work::new(
                "cache-1m",
                "cache hit, 1,000,000 entries",
                QueriesOf::Upstream(Some(MILLION / 4 * 5)),
                &[(Kind::Cached(MILLION), 1)],
            )
        },
        Work { transport: Transport::Tcp, ..hosts("tcp", "hosts hit over pipelined TCP", NAMES) },
        Work { all_cores: true, ..hosts(WORKERS, "10,000 names, a worker on every core", NAMES) },
        Work { all_cores: true, ..hosts(WORKERS_HOT, "one name, a worker on every core", 1) },
        Work { held: Some(30), ..hosts("overload", "hosts hit, held to 30 % of a core", NAMES) },
    ]
}

/// Returns an extra row: the cache alone.
pub fn cache_alone() -> Work {
    cache("cache-alone", "cache hit without hosts, 10,000 names")
}

/// Returns an extra row, for localdns and CoreDNS: a cluster's services, with the names in a file.
pub fn services(names: PathBuf) -> Work {
    Work::new("services", "hit of 10,000 services", QueriesOf::Services, &[(Kind::File(names), 1)])
}

fn cache(name: &'static str, title: &'static str) -> Work {
    let cached = Kind::Cached(NAMES);
    let source = QueriesOf::Upstream(Some(ENTRIES));
    Work { prefill: Some(cached.clone()), ..Work::new(name, title, source, &[(cached, 1)]) }
}

/// Returns the rows in groups. Rows of a group are compared with each other, and so are measured in
/// turns, since the machine's speed changes by the minute.
pub fn in_turns(works: &[Work]) -> impl Iterator<Item = &[Work]> {
    works.chunk_by(|one, next| one.all_cores && next.all_cores)
}

/// The row with many names and a worker on every core.
pub const WORKERS: &str = "workers";
/// The row with one name and a worker on every core.
pub const WORKERS_HOT: &str = "workers-hot";

const NAMES: u32 = 10_000;
const MILLION: u32 = 1_000_000;
/// About the number of critical names of a node.
const IN_FRONT: u32 = 100;
/// Cache entries, three times the number of names: CoreDNS spreads entries over 256 shards, and a
/// full shard evicts.
const ENTRIES: u32 = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_many_names_are_taken_in_turns_and_every_other_row_by_itself() {
        let works = all();
        let several: Vec<Vec<_>> = in_turns(&works)
            .filter(|works| works.len() > 1)
            .map(|works| works.iter().map(|work| work.name).collect())
            .collect();
        assert_eq!(several, [[WORKERS, WORKERS_HOT]]);
        assert_eq!(in_turns(&works).map(<[_]>::len).sum::<usize>(), works.len());
    }
}
