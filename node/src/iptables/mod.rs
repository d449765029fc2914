//! Adds and removes rules in the tables of iptables, for setups that expect them there: the eight
//! rules of AKS's script, or node-cache's twelve for each address. These rules exempt queries from
//! conntrack, and have no failover.
//!
//! Existing rules are read first, and only missing rules are added, by one `iptables-restore`,
//! which would otherwise duplicate existing rules.

mod rule;

use std::io;
use std::net::IpAddr;

use netlink_packet_netfilter::NetfilterProtoFamily;

use crate::Diagnosis;
use crate::nft::{Family, Socket};
use crate::subprocess::run;
use rule::{Rule, Table};

/// A rule set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iptables {
    /// The rules of AKS's script.
    Localdns,
    /// node-cache's rules, with the port of its health check.
    NodeCache(u16),
}

impl Iptables {
    /// Adds the missing rules of these addresses, and returns how many were missing.
    ///
    /// # Errors
    /// If iptables does not exist or fails; the rules of a family are then unchanged.
    pub fn put(self, addresses: &[IpAddr]) -> io::Result<usize> {
        let mut put = 0;
        for family in Family::BOTH {
            let rules = self.rules(addresses, family);
            let there = listed(family, &tables(&rules))?;
            let missing: Vec<_> = rules.into_iter().filter(|rule| !there.contains(rule)).collect();
            let how = match self {
                Self::Localdns => "-A",
                Self::NodeCache(_) => "-I",
            };
            restore(family, how, &missing)?;
            put += missing.len();
        }
        Ok(put)
    }

    /// Whether all rules of these addresses exist.
    ///
    /// # Errors
    /// If iptables does not exist or fails.
    pub fn are_there(self, addresses: &[IpAddr]) -> io::Result<bool> {
        self.standing(addresses).map(|(there, all)| there == all)
    }

    /// Returns how many of the rules of these addresses exist, and how many there should be.
    ///
    /// # Errors
    /// If iptables does not exist or fails.
    pub fn standing(self, addresses: &[IpAddr]) -> io::Result<(usize, usize)> {
        let mut standing = (0, 0);
        for family in Family::BOTH {
            let rules = self.rules(addresses, family);
            let there = listed(family, &tables(&rules))?;
            standing.0 += rules.iter().filter(|rule| there.contains(rule)).count();
            standing.1 += rules.len();
        }
        Ok(standing)
    }

    /// Removes leftover rules, and returns their number. These are the rules of either set except
    /// this set's rules of these addresses and, for AKS's set, the reply rules of the script's next
    /// version.
    ///
    /// # Errors
    /// If iptables does not exist or fails.
    pub fn remove_others(self, addresses: &[IpAddr]) -> io::Result<usize> {
        let mut removed = 0;
        for family in Family::BOTH {
            let mut kept = self.rules(addresses, family);
            if self == Self::Localdns {
                kept.extend(of(addresses, family).flat_map(rule::answers));
            }
            let gone: Vec<_> = ours(family)?.into_iter().filter(|rule| !kept.contains(rule)).collect();
            restore(family, "-D", &gone)?;
            removed += gone.len();
        }
        Ok(removed)
    }

    fn rules(self, addresses: &[IpAddr], family: Family) -> Vec<Rule> {
        let of = of(addresses, family);
        match self {
            Self::Localdns => of.flat_map(rule::localdns).collect(),
            Self::NodeCache(health) => of.flat_map(|ip| rule::node_cache(ip, health)).collect(),
        }
    }
}

/// Removes all rules of either set, of any address, and returns their number. iptables is run only
/// if the kernel lists a rule with one of our comments, or has tables of iptables-legacy, which
/// only that program can list.
///
/// # Errors
/// If iptables does not exist or fails.
pub fn remove_iptables_rules() -> io::Result<usize> {
    let mut removed = 0;
    for family in Family::BOTH {
        let gone = ours(family)?;
        restore(family, "-D", &gone)?;
        removed += gone.len();
    }
    Ok(removed)
}

/// Returns the number of rules of either set, of any address, found as by
/// [`remove_iptables_rules`].
///
/// # Errors
/// If iptables does not exist or fails.
pub fn iptables_rules() -> io::Result<usize> {
    Family::BOTH.into_iter().map(|family| ours(family).map(|rules| rules.len())).sum()
}

fn ours(family: Family) -> io::Result<Vec<Rule>> {
    let found = |place: Place| {
        Table::BOTH.into_iter().filter(|table| place.may_have(family, *table)).collect::<Vec<_>>()
    };
    let (tables, legacy) = (found(Place::Nft), found(Place::Legacy));
    let mut all = tables.clone();
    all.extend(legacy.iter().copied().filter(|table| !tables.contains(table)));
    let rules = read(family, &all).map_err(|error| unread(&error, family, tables.is_empty()))?;
    Ok(rules.into_iter().filter(Rule::has_comment_of_ours).collect())
}

/// Returns the error to report if rules may remain, with the remedy.
fn unread(error: &io::Error, family: Family, is_legacy: bool) -> io::Error {
    let diagnosis = match (error.kind(), is_legacy) {
        (io::ErrorKind::NotFound, true) => Diagnosis::new(
            format!("{error}: iptables-legacy has tables, which only that program can read"),
            "install it, or check that they have no rules of localdns",
        ),
        (io::ErrorKind::NotFound, false) => {
            Diagnosis::new(error.to_string(), format!("install {} to remove them", program(family)))
        }
        _ => return with_remedy(io::Error::new(error.kind(), error.to_string())),
    };
    io::Error::new(error.kind(), diagnosis)
}

fn of(addresses: &[IpAddr], family: Family) -> impl Iterator<Item = IpAddr> {
    addresses.iter().copied().filter(move |ip| Family::of(*ip) == family)
}

fn tables(rules: &[Rule]) -> Vec<Table> {
    Table::BOTH.into_iter().filter(|table| rules.iter().any(|rule| rule.table == *table)).collect()
}

/// The backend of iptables.
#[derive(Clone, Copy)]
enum Place {
    Nft,
    Legacy,
}

impl Place {
    /// Whether this table may have our rules.
    fn may_have(self, family: Family, table: Table) -> bool {
        let (names, of) = match family {
            Family::V4 => ("/proc/net/ip_tables_names", NetfilterProtoFamily::IPv4),
            Family::V6 => ("/proc/net/ip6_tables_names", NetfilterProtoFamily::IPv6),
        };
        match self {
            // Listing a table by iptables-legacy creates it, so only existing tables are listed.
            Self::Legacy => {
                let names = std::fs::read_to_string(names).unwrap_or_default();
                names.lines().any(|name| name == table.name())
            }
            Self::Nft => Socket::open().is_ok_and(|mut socket| {
                let mut has =
                    |chain| socket.has_text(of, (table.name(), chain), &rule::COMMENTS).unwrap_or_default();
                table.chains().into_iter().any(&mut has)
            }),
        }
    }
}

/// Returns the rules of these tables as iptables lists them.
fn listed(family: Family, tables: &[Table]) -> io::Result<Vec<Rule>> {
    read(family, tables).map_err(with_remedy)
}

fn read(family: Family, tables: &[Table]) -> io::Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for table in tables {
        // Only the chains with our rules are listed: others may have as many rules as the cluster
        // has services and policies.
        for chain in table.chains() {
            let text = run(program(family), &["-w", LOCK, "-t", table.name(), "-S", chain], "")?;
            rules.extend(text.lines().filter_map(|line| Rule::read(*table, line)));
        }
    }
    Ok(rules)
}

/// Applies the command `how` (-A, -I, -D) to each rule with iptables: one transaction for each
/// table.
fn restore(family: Family, how: &str, rules: &[Rule]) -> io::Result<()> {
    if rules.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    for table in tables(rules) {
        text += &format!("*{}\n", table.name());
        for rule in rules.iter().filter(|rule| rule.table == table) {
            text += &format!("{how} {}\n", rule.text);
        }
        text += "COMMIT\n";
    }
    let restore = format!("{}-restore", program(family));
    run(&restore, &["-w", LOCK, "--noflush"], &text).map_err(with_remedy).map(drop)
}

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Returns the error with a [`Diagnosis`] inside if a remedy is known, else unchanged.
fn with_remedy(error: io::Error) -> io::Error {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "install iptables, or use `-rules nft`",
        _ if error.to_string().contains("you must be root") => {
            "iptables-legacy needs CAP_NET_RAW besides CAP_NET_ADMIN, which localdns-node.service lacks: add it to CapabilityBoundingSet and AmbientCapabilities, or use `-rules nft`"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), Diagnosis::new(error.to_string(), remedy))
}

/// Seconds to wait for the lock of iptables.
const LOCK: &str = "4";
