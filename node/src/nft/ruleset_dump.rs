//! Lists the kernel's tables, chains, rules and sets.

use std::io;

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Hook, HookNumber, InetHookNumber, ListAttribute, NfTablesMessage,
    RuleAttribute, RuleMessage, SetElementList, SetElementMessage, TableAttribute, TableFlags, TableMessage,
};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};
use nix::errno::Errno;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};

use super::NftError;
use super::batch::{Socket, Statement, keys as keys_of, refused};
use super::verdict::Element;

/// A table of family inet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: String,
    /// Whether the kernel deletes the table when the socket that created it is closed.
    pub(crate) is_owned: bool,
}

/// A chain with a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseChain {
    /// The family's name in `nft`: ip, ip6 or inet.
    pub(crate) family: &'static str,
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) hook: InetHookNumber,
    /// Whether the chain's type is nat.
    pub(crate) is_nat: bool,
    /// Whether the chain's policy is drop.
    pub(crate) drops: bool,
}

/// A rule, as far as it can be decoded.
pub(super) struct Rule {
    pub(super) handle: u64,
    /// The rule's position in the chain, from 1.
    pub(super) number: usize,
    /// The rule's statements; `None` if they cannot be decoded.
    pub(super) statements: Option<Vec<Statement>>,
}

impl Rule {
    fn of(attributes: Option<Vec<RuleAttribute>>, number: usize) -> Self {
        let mut rule = Self { handle: 0, number, statements: None };
        let Some(attributes) = attributes else { return rule };
        let mut statements = Vec::new();
        for attribute in attributes {
            match attribute {
                RuleAttribute::Handle(handle) => rule.handle = handle,
                RuleAttribute::Expressions(all) => statements = all,
                _ => {}
            }
        }
        rule.statements = Some(statements);
        rule
    }
}

/// A table's contents as the kernel lists them, without handles and counters: two listings are
/// equal as long as no process has changed the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    /// A dormant table has its chains, but no packet enters them.
    pub(super) flags: TableFlags,
    /// Number of chains, sets and other objects, of any name.
    pub(super) parts: u32,
    pub(super) chains: Vec<Vec<ChainAttribute>>,
    pub(super) rules: Vec<Vec<RuleAttribute>>,
    /// The elements of each set.
    pub(super) sets: Vec<Vec<Vec<u8>>>,
}

impl Contents {
    /// Whether the table has no rule.
    pub(crate) fn is_bare(&self) -> bool {
        self.rules.is_empty()
    }
}

impl Socket {
    /// Returns the contents of a table: these chains and sets, and all rules. Missing chains and
    /// sets are empty.
    pub(crate) fn contents(
        &mut self,
        table: &str,
        chains: &[&str],
        sets: &[&str],
    ) -> Result<Contents, NftError> {
        let mut listed = || {
            // Each is listed by its own and its table's name: other tables may have as many sets as
            // the cluster has services.
            let chains = chains.iter().map(|name| self.chain(table, name)).collect::<io::Result<_>>()?;
            let sets = sets.iter().map(|name| self.elements(table, name)).collect::<io::Result<_>>()?;
            let (flags, parts) = self.head(table)?;
            Ok(Contents { flags, parts, chains, rules: self.rules(table)?, sets })
        };
        listed().map_err(|error| unlisted(&format!("list table {table}"), error))
    }

    /// Whether a rule of this chain contains one of these texts, as a comment of iptables does;
    /// searches the raw bytes, without a program.
    pub(crate) fn has_text(
        &mut self,
        family: NetfilterProtoFamily,
        (table, chain): (&str, &str),
        texts: &[&str],
    ) -> Result<bool, NftError> {
        let attributes = vec![RuleAttribute::Table(table.to_owned()), RuleAttribute::Chain(chain.to_owned())];
        let mut found = false;
        let wanted = NfTablesMessage::GetRule(RuleMessage { attributes });
        let listed = self.dump_raw(family, wanted, &mut |bytes| {
            let has = |text: &&str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            found |= texts.iter().any(has);
        });
        if_there(listed).map_err(|error| unlisted(&format!("list chain {table} {chain}"), error))?;
        Ok(found)
    }

    /// Returns the rules of another program's chain: at most the first `most` and one more, and the
    /// last.
    pub(super) fn rules_of_chain(
        &mut self,
        family: &str,
        (table, chain): (&str, &str),
        most: usize,
    ) -> Result<Vec<Rule>, NftError> {
        let attributes = vec![RuleAttribute::Table(table.to_owned()), RuleAttribute::Chain(chain.to_owned())];
        let (of_table, of_chain) = (attributes[0].clone(), attributes[1].clone());
        let wanted = NfTablesMessage::GetRule(RuleMessage { attributes });
        let (mut rules, mut number) = (Vec::new(), 0);
        let listed = self.dump_raw(proto_of(family), wanted, &mut |bytes| {
            let rule = NetlinkMessage::<NetfilterMessage>::deserialize(bytes).ok().and_then(rule);
            // Old kernels ignore the filter and list the rules of all tables.
            let is_of = |rule: &Vec<RuleAttribute>| rule.contains(&of_table) && rule.contains(&of_chain);
            if rule.as_ref().is_none_or(is_of) {
                number += 1;
                if number == most + 2 {
                    rules.push(Rule::of(None, most + 1));
                }
                rules.truncate(most + 1);
                rules.push(Rule::of(rule, number));
            }
        });
        if_there(listed).map_err(|error| unlisted(&format!("list chain {table} {chain}"), error))?;
        Ok(rules)
    }

    /// Returns the elements of another program's set or map.
    pub(super) fn map_elements(&mut self, family: &str, table: &str, set: &str) -> io::Result<Vec<Element>> {
        let attributes = vec![SetElementList::Table(table.to_owned()), SetElementList::Set(set.to_owned())];
        let wanted = NfTablesMessage::GetSetElement(SetElementMessage { attributes });
        let mut elements = Vec::new();
        for message in self.dump(proto_of(family), wanted)? {
            let NetfilterMessageInner::NfTables(NfTablesMessage::NewSetElement(set)) = message.inner else {
                continue;
            };
            for attribute in set.attributes {
                let SetElementList::Elements(listed) = attribute else { continue };
                elements.extend(listed.iter().filter_map(|element| match element {
                    ListAttribute::Element(attributes) => Some(Element::of(attributes)),
                    _ => None,
                }));
            }
        }
        Ok(elements)
    }

    /// Returns a table's flags, and its number of objects.
    fn head(&mut self, table: &str) -> io::Result<(TableFlags, u32)> {
        let attributes = vec![TableAttribute::Name(table.to_owned())];
        let listed = if_there(self.get(NfTablesMessage::GetTable(TableMessage { attributes })))?;
        let (mut flags, mut parts) = (TableFlags::default(), 0);
        for message in listed {
            let NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(table)) = message.inner else {
                continue;
            };
            for attribute in table.attributes {
                match attribute {
                    TableAttribute::Flags(of_table) => flags = of_table,
                    TableAttribute::Use(count) => parts = count,
                    _ => {}
                }
            }
        }
        Ok((flags, parts))
    }

    fn rules(&mut self, table: &str) -> io::Result<Vec<Vec<RuleAttribute>>> {
        let wanted = RuleMessage { attributes: vec![RuleAttribute::Table(table.to_owned())] };
        let listed = self.dump(NetfilterProtoFamily::Inet, NfTablesMessage::GetRule(wanted));
        let rule = |message: NetfilterMessage| match message.inner {
            NetfilterMessageInner::NfTables(NfTablesMessage::NewRule(rule)) => Some(rule.attributes),
            _ => None,
        };
        // Old kernels ignore the filter and list the rules of all tables.
        let of_table = |rule: &Vec<RuleAttribute>| {
            rule.iter().any(|attribute| matches!(attribute, RuleAttribute::Table(of) if of == table))
        };
        let numbered = |attribute: &RuleAttribute| {
            matches!(attribute, RuleAttribute::Handle(_) | RuleAttribute::Position(_))
        };
        let mut rules: Vec<_> = if_there(listed)?.into_iter().filter_map(rule).filter(of_table).collect();
        rules.iter_mut().for_each(|rule| rule.retain(|attribute| !numbered(attribute)));
        Ok(rules)
    }

    fn chain(&mut self, table: &str, name: &str) -> io::Result<Vec<ChainAttribute>> {
        let attributes = vec![ChainAttribute::Table(table.to_owned()), ChainAttribute::Name(name.to_owned())];
        let listed = self.get(NfTablesMessage::GetChain(ChainMessage { attributes }));
        let chain = if_there(listed)?.into_iter().find_map(|message| match message.inner {
            NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(chain)) => Some(chain.attributes),
            _ => None,
        });
        let mut chain = chain.unwrap_or_default();
        chain.retain(|attribute| {
            matches!(attribute, ChainAttribute::Name(_) | ChainAttribute::Hook(_) | ChainAttribute::Policy(_))
        });
        Ok(chain)
    }

    /// Returns the elements of a set that have not timed out.
    pub(crate) fn members(&mut self, table: &str, set: &str) -> Result<Vec<Vec<u8>>, NftError> {
        self.elements(table, set).map_err(|error| unlisted(&format!("list set {table} {set}"), error))
    }

    /// Returns the elements of a set, sorted, since the kernel lists them in hash order.
    fn elements(&mut self, table: &str, set: &str) -> io::Result<Vec<Vec<u8>>> {
        let attributes = vec![SetElementList::Table(table.to_owned()), SetElementList::Set(set.to_owned())];
        let wanted = NfTablesMessage::GetSetElement(SetElementMessage { attributes });
        let listed = if_there(self.dump(NetfilterProtoFamily::Inet, wanted))?;
        let mut keys: Vec<_> = listed
            .into_iter()
            .filter_map(|message| match message.inner {
                NetfilterMessageInner::NfTables(NfTablesMessage::NewSetElement(set)) => Some(set.attributes),
                _ => None,
            })
            .flatten()
            .flat_map(|attribute| keys_of(&attribute).collect::<Vec<_>>())
            .collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Returns all tables of family inet.
    pub(crate) fn tables(&mut self) -> Result<Vec<Table>, NftError> {
        let wanted = NfTablesMessage::GetTable(TableMessage { attributes: Vec::new() });
        let listed = self.dump(NetfilterProtoFamily::Inet, wanted);
        let listed = listed.map_err(|error| unlisted("list tables", error))?;
        Ok(listed.into_iter().filter_map(table).collect())
    }

    /// Returns the base chains that IPv4 or IPv6 packets pass, of all tables.
    pub(crate) fn base_chains(&mut self) -> Result<Vec<BaseChain>, NftError> {
        let wanted = NfTablesMessage::GetChain(ChainMessage { attributes: Vec::new() });
        let listed = self.dump(NetfilterProtoFamily::Unspec, wanted);
        let listed = listed.map_err(|error| unlisted("list chains", error))?;
        Ok(listed.into_iter().filter_map(base_chain).collect())
    }
}

fn rule(message: NetlinkMessage<NetfilterMessage>) -> Option<Vec<RuleAttribute>> {
    match message.payload {
        NetlinkPayload::InnerMessage(NetfilterMessage {
            inner: NetfilterMessageInner::NfTables(NfTablesMessage::NewRule(rule)),
            ..
        }) => Some(rule.attributes),
        _ => None,
    }
}

/// Returns the listing; an empty one if the object does not exist.
fn if_there<T: Default>(listed: io::Result<T>) -> io::Result<T> {
    match listed {
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(T::default()),
        listed => listed,
    }
}

fn table(message: NetfilterMessage) -> Option<Table> {
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(table)) = message.inner else {
        return None;
    };
    let (mut name, mut is_owned) = (None, false);
    for attribute in table.attributes {
        match attribute {
            TableAttribute::Name(text) => name = Some(text),
            TableAttribute::Flags(flags) => is_owned = flags.contains(TableFlags::Owner),
            _ => {}
        }
    }
    Some(Table { name: name?, is_owned })
}

/// Returns the family of this name in `nft`.
fn proto_of(family: &str) -> NetfilterProtoFamily {
    match family {
        "ip" => NetfilterProtoFamily::IPv4,
        "ip6" => NetfilterProtoFamily::IPv6,
        _ => NetfilterProtoFamily::Inet,
    }
}

fn base_chain(message: NetfilterMessage) -> Option<BaseChain> {
    let family = match message.header.family {
        NetfilterProtoFamily::IPv4 => "ip",
        NetfilterProtoFamily::IPv6 => "ip6",
        NetfilterProtoFamily::Inet => "inet",
        _ => return None,
    };
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(chain)) = message.inner else {
        return None;
    };
    let (mut table, mut name, mut hook, mut is_nat, mut drops) = (None, None, None, false, false);
    for attribute in chain.attributes {
        match attribute {
            ChainAttribute::Table(text) => table = Some(text),
            ChainAttribute::Name(text) => name = Some(text),
            ChainAttribute::Type(text) => is_nat = text == "nat",
            ChainAttribute::Policy(policy) => drops = policy == NF_DROP,
            ChainAttribute::Hook(parts) => {
                hook = parts.into_iter().find_map(|part| match part {
                    Hook::Number(HookNumber::Inet(number)) => Some(number),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(BaseChain { family, table: table?, name: name?, hook: hook?, is_nat, drops })
}

/// Converts the error of a listing. A listing is never an invalid request: a kernel that returns
/// EINVAL has netlink for conntrack, but no nftables.
fn unlisted(action: &str, source: io::Error) -> NftError {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EINVAL) => NftError::NotSupported { action: action.to_owned(), source },
        _ => refused(action, source),
    }
}

/// The policy `drop`, from the kernel's include/uapi/linux/netfilter.h.
const NF_DROP: u32 = 0;
