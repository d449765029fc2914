//! What the kernel has of tables and chains, ours and others'.

use std::io;

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Hook, HookNumber, InetHookNumber, NfTablesMessage, TableAttribute,
    TableMessage,
};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};
use nix::errno::Errno;

use super::NftError;
use super::batch::{Socket, refused};

/// A chain that packets come to by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseChain {
    /// As `nft` calls it: ip, ip6 or inet.
    pub(crate) family: &'static str,
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) hook: InetHookNumber,
    /// Whether it drops what none of its rules accepts.
    pub(crate) drops: bool,
}

impl Socket {
    /// The names of all tables of both families.
    pub(crate) fn tables(&mut self) -> Result<Vec<String>, NftError> {
        let wanted = NfTablesMessage::GetTable(TableMessage { attributes: Vec::new() });
        let listed = self.dump(NetfilterProtoFamily::Inet, wanted);
        let listed = listed.map_err(|error| unlisted("list tables", error))?;
        Ok(listed.into_iter().filter_map(name_of_table).collect())
    }

    /// The base chains of all tables through which IPv4 or IPv6 goes.
    pub(crate) fn base_chains(&mut self) -> Result<Vec<BaseChain>, NftError> {
        let wanted = NfTablesMessage::GetChain(ChainMessage { attributes: Vec::new() });
        let listed = self.dump(NetfilterProtoFamily::Unspec, wanted);
        let listed = listed.map_err(|error| unlisted("list chains", error))?;
        Ok(listed.into_iter().filter_map(base_chain).collect())
    }
}

fn name_of_table(message: NetfilterMessage) -> Option<String> {
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(table)) = message.inner else {
        return None;
    };
    table.attributes.into_iter().find_map(|attribute| match attribute {
        TableAttribute::Name(name) => Some(name),
        _ => None,
    })
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
    let (mut table, mut name, mut hook, mut drops) = (None, None, None, false);
    for attribute in chain.attributes {
        match attribute {
            ChainAttribute::Table(text) => table = Some(text),
            ChainAttribute::Name(text) => name = Some(text),
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
    Some(BaseChain { family, table: table?, name: name?, hook: hook?, drops })
}

/// A list of everything cannot be asked for wrongly: a kernel that calls it so has netlink for conntrack, and no nftables.
fn unlisted(action: &str, source: io::Error) -> NftError {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EINVAL) => NftError::NotSupported { action: action.to_owned(), source },
        _ => refused(action, source),
    }
}

/// The kernel's include/uapi/linux/netfilter.h.
const NF_DROP: u32 = 0;
