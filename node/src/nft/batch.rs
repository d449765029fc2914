//! Builds nftables transactions, and commits each atomically over netlink.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, DataAttribute, ExpressionAttribute, GenAttribute, GenMessage, Hook,
    InetHookNumber, ListAttribute, NfTablesMessage, RuleAttribute, RuleMessage, SetAttribute,
    SetElementAttribute, SetElementList, SetElementMessage, SetFlags, SetMessage, TableAttribute, TableFlags,
    TableMessage,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{ReceiveTimeout, SndBuf, SndBufForce};
use nix::sys::time::TimeVal;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::sys::constants::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket as NetlinkSocket, SocketAddr};

use super::NftError;

/// A statement of a rule.
pub(crate) type Statement = ListAttribute<ExpressionAttribute>;

/// A transaction: its operations, in order.
#[derive(Default)]
pub(crate) struct Batch {
    messages: Vec<NetlinkMessage<NetfilterMessage>>,
    /// The descriptions of the operations, for errors.
    actions: Vec<String>,
    sets: u32,
}

/// A chain and its hook.
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    /// Type, hook and priority; `None` for a chain that is only jumped to.
    pub(crate) hook: Option<(&'static str, InetHookNumber, i32)>,
}

/// A named set.
pub(crate) struct Set {
    pub(crate) name: &'static str,
    /// The `nft` type number of the set's elements, and their size in bytes.
    pub(crate) key: (u32, u32),
    pub(crate) flags: SetFlags,
    /// The initial elements.
    pub(crate) elements: Vec<Vec<u8>>,
}

impl Batch {
    fn push(&mut self, action: String, flags: u16, message: NfTablesMessage) {
        let header = NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0);
        let mut message = NetlinkMessage::from(NetfilterMessage::new(header, message));
        message.header.flags = NLM_F_REQUEST | flags;
        self.messages.push(message);
        self.actions.push(action);
    }

    /// Adds a table, unless it exists.
    pub(crate) fn add_table(&mut self, table: &str, flags: TableFlags) {
        let attributes = vec![TableAttribute::Name(table.to_owned()), TableAttribute::Flags(flags)];
        let message = NfTablesMessage::NewTable(TableMessage { attributes });
        self.push(format!("add table {table}"), NLM_F_CREATE, message);
    }

    /// Replaces a table by an empty one.
    pub(crate) fn renew_table(&mut self, table: &str) {
        self.remove_table(table);
        self.add_table(table, TableFlags::empty());
    }

    /// Deletes a table, if it exists.
    pub(crate) fn remove_table(&mut self, table: &str) {
        // The table is added first, since deleting an absent table fails. Without flags, an
        // existing table keeps its flags, and a dormant table is not activated before its deletion.
        let attributes = vec![TableAttribute::Name(table.to_owned())];
        let message = NfTablesMessage::NewTable(TableMessage { attributes });
        self.push(format!("add table {table}"), NLM_F_CREATE, message);
        self.delete_table(table);
    }

    /// Deletes a table, which must exist.
    pub(crate) fn delete_table(&mut self, table: &str) {
        let attributes = vec![TableAttribute::Name(table.to_owned())];
        let message = NfTablesMessage::DeleteTable(TableMessage { attributes });
        self.push(format!("delete table {table}"), 0, message);
    }

    /// Adds a chain with policy accept.
    pub(crate) fn add_chain(&mut self, table: &str, chain: &Chain) {
        let mut attributes =
            vec![ChainAttribute::Table(table.to_owned()), ChainAttribute::Name(chain.name.to_owned())];
        if let Some((kind, hook, priority)) = chain.hook {
            let hook = vec![Hook::Number(hook.into()), Hook::Priority(priority.cast_unsigned())];
            attributes.extend([ChainAttribute::Type(kind.to_owned()), ChainAttribute::Hook(hook)]);
        }
        let message = NfTablesMessage::NewChain(ChainMessage { attributes });
        self.push(format!("add chain {}", chain.name), NLM_F_CREATE, message);
    }

    /// Adds a set with its elements.
    pub(crate) fn add_set(&mut self, table: &str, set: &Set) {
        self.sets += 1;
        let attributes = vec![
            SetAttribute::Table(table.to_owned()),
            SetAttribute::Name(set.name.to_owned()),
            SetAttribute::Flags(set.flags),
            SetAttribute::KeyType(set.key.0),
            SetAttribute::KeyLen(set.key.1),
            SetAttribute::Id(self.sets),
        ];
        let message = NfTablesMessage::NewSet(SetMessage { attributes });
        self.push(format!("add set {}", set.name), NLM_F_CREATE, message);
        if !set.elements.is_empty() {
            self.add_elements(table, set.name, &set.elements, None);
        }
    }

    /// Adds elements with a timeout of `ttl_ms` milliseconds, or without a timeout.
    pub(crate) fn add_elements(&mut self, table: &str, set: &str, keys: &[Vec<u8>], ttl_ms: Option<u64>) {
        let message = NfTablesMessage::NewSetElement(elements(table, set, keys, ttl_ms));
        self.push(format!("add elements to {set}"), NLM_F_CREATE, message);
    }

    /// Deletes elements, which must exist.
    pub(crate) fn delete_elements(&mut self, table: &str, set: &str, keys: &[Vec<u8>]) {
        let message = NfTablesMessage::DeleteSetElement(elements(table, set, keys, None));
        self.push(format!("delete elements of {set}"), 0, message);
    }

    /// Appends a rule to a chain.
    pub(crate) fn add_rule(
        &mut self,
        table: &str,
        chain: &str,
        statements: impl IntoIterator<Item = Vec<Statement>>,
    ) {
        let attributes = vec![
            RuleAttribute::Table(table.to_owned()),
            RuleAttribute::Chain(chain.to_owned()),
            RuleAttribute::Expressions(statements.into_iter().flatten().collect()),
        ];
        let message = NfTablesMessage::NewRule(RuleMessage { attributes });
        self.push(format!("add rule {chain}"), NLM_F_CREATE | NLM_F_APPEND, message);
    }

    /// Returns the messages to the kernel.
    pub(super) fn asked(&self) -> impl Iterator<Item = &NfTablesMessage> {
        self.messages.iter().filter_map(|message| match &message.payload {
            NetlinkPayload::InnerMessage(NetfilterMessage {
                inner: NetfilterMessageInner::NfTables(message),
                ..
            }) => Some(message),
            _ => None,
        })
    }
}

/// Returns the keys of set elements.
pub(super) fn keys(attribute: &SetElementList) -> impl Iterator<Item = Vec<u8>> {
    let elements = match attribute {
        SetElementList::Elements(elements) => elements.as_slice(),
        _ => &[],
    };
    let key = |attribute: &SetElementAttribute| match attribute {
        SetElementAttribute::Key(DataAttribute::Value(key)) => Some(key.clone()),
        _ => None,
    };
    elements.iter().filter_map(move |element| match element {
        ListAttribute::Element(attributes) => attributes.iter().find_map(key),
        _ => None,
    })
}

fn elements(table: &str, set: &str, keys: &[Vec<u8>], ttl_ms: Option<u64>) -> SetElementMessage {
    let element = |key: &Vec<u8>| {
        let key = SetElementAttribute::Key(DataAttribute::Value(key.clone()));
        ListAttribute::Element([key].into_iter().chain(ttl_ms.map(SetElementAttribute::Timeout)).collect())
    };
    SetElementMessage {
        attributes: vec![
            SetElementList::Table(table.to_owned()),
            SetElementList::Set(set.to_owned()),
            SetElementList::Elements(keys.iter().map(element).collect()),
        ],
    }
}

/// A netlink socket to nftables. It is closed on exec; the tables that it owns are deleted when it
/// is closed.
pub(crate) struct Socket {
    socket: NetlinkSocket,
    port: u32,
    sequence: u32,
}

impl Socket {
    pub(crate) fn open() -> Result<Self, NftError> {
        let open = || {
            let mut socket = NetlinkSocket::new(NETLINK_NETFILTER)?;
            let port = bind(&mut socket)?;
            // Acknowledgements without a copy of the request (NETLINK_CAP_ACK).
            socket.set_cap_ack(true)?;
            setsockopt(&socket, ReceiveTimeout, &PATIENCE)?;
            Ok((socket, port))
        };
        let (socket, port) = open().map_err(|error| refused("open netlink", error))?;
        Ok(Self { socket, port, sequence: 0 })
    }

    /// Returns the socket's netlink port id, which is unique in this network namespace.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    /// Commits a transaction that [`Self::generation`] does not count.
    pub(crate) fn commit_unseen(&mut self, batch: Batch) -> Result<(), NftError> {
        let makes_one = !batch.messages.is_empty();
        self.commit(batch)?;
        UNSEEN.fetch_add(u32::from(makes_one), Relaxed);
        Ok(())
    }

    /// Commits a transaction.
    pub(crate) fn commit(&mut self, batch: Batch) -> Result<(), NftError> {
        let Batch { mut messages, actions, .. } = batch;
        let Some(last) = messages.last_mut() else { return Ok(()) };
        // Only the last message requests an acknowledgement; the kernel reports errors of the other
        // messages without a request.
        last.header.flags |= NLM_F_ACK;
        let begin = self.sequence.wrapping_add(1);
        let control = |message| {
            let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, SUBSYSTEM);
            let mut message = NetlinkMessage::from(NetfilterMessage::new(header, message));
            message.header.flags = NLM_F_REQUEST;
            message
        };
        let whole = [control(ControlMessage::BatchBegin)]
            .into_iter()
            .chain(messages)
            .chain([control(ControlMessage::BatchEnd)]);
        let mut bytes = Vec::new();
        for mut message in whole {
            self.sequence = self.sequence.wrapping_add(1);
            message.header.sequence_number = self.sequence;
            message.finalize();
            let at = bytes.len();
            bytes.resize(at + message.buffer_len(), 0);
            message.serialize(&mut bytes[at..]);
        }
        let last = self.sequence.wrapping_sub(1);
        self.drain();
        self.send_whole(&bytes).map_err(|error| refused("send a transaction", error))?;
        // The kernel handles a transaction inside `send`, so all its replies are already in the
        // socket's queue.
        loop {
            let bytes = self.receive().map_err(|error| refused("read the result of a transaction", error))?;
            for message in parts(&bytes) {
                let NetlinkPayload::Error(error) = message.payload else { continue };
                let number = message.header.sequence_number;
                if error.code.is_some() {
                    let action = number.wrapping_sub(begin).wrapping_sub(1);
                    let action = actions.get(action as usize).map_or("commit", String::as_str);
                    return Err(refused(action, error.to_io()));
                }
                if number == last {
                    return Ok(());
                }
            }
        }
    }

    /// Sends a transaction as one datagram. If the socket's send buffer is too small, it is
    /// enlarged, with CAP_NET_ADMIN also beyond net.core.wmem_max.
    fn send_whole(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.socket.send(bytes, 0) {
            Err(error) if error.raw_os_error() == Some(Errno::EMSGSIZE as i32) => {
                // The kernel doubles this size for its own bookkeeping.
                let forced = setsockopt(&self.socket, SndBufForce, &bytes.len());
                forced.or_else(|_| setsockopt(&self.socket, SndBuf, &bytes.len()))?;
                self.socket.send(bytes, 0)
            }
            sent => sent,
        }
    }

    /// Returns the ruleset generation of this network namespace minus the number of this process's
    /// lease renewals (several a second). The value is constant as long as nothing else changes.
    pub(crate) fn generation(&mut self) -> io::Result<Option<u32>> {
        // Read before the request: a renewal in between makes the result larger, which costs one
        // more listing, and misses no change.
        let own = UNSEEN.load(Relaxed);
        let listed = self.get(NfTablesMessage::GetGen(GenMessage { attributes: Vec::new() }))?;
        let id = |message: NetfilterMessage| match message.inner {
            NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(generation)) => {
                generation.attributes.into_iter().find_map(|attribute| match attribute {
                    GenAttribute::Id(id) => Some(id),
                    _ => None,
                })
            }
            _ => None,
        };
        Ok(listed.into_iter().find_map(id).map(|id| id.wrapping_sub(own)))
    }

    /// Returns a listing of the kernel.
    pub(super) fn dump(
        &mut self,
        family: NetfilterProtoFamily,
        wanted: NfTablesMessage,
    ) -> io::Result<Vec<NetfilterMessage>> {
        self.listed(family, NLM_F_DUMP, wanted)
    }

    /// Returns one object of the kernel.
    pub(super) fn get(&mut self, wanted: NfTablesMessage) -> io::Result<Vec<NetfilterMessage>> {
        self.listed(NetfilterProtoFamily::Inet, NLM_F_ACK, wanted)
    }

    /// Reads messages up to the end of the listing.
    fn listed(
        &mut self,
        family: NetfilterProtoFamily,
        flags: u16,
        wanted: NfTablesMessage,
    ) -> io::Result<Vec<NetfilterMessage>> {
        self.ask(family, flags, wanted)?;
        let mut listed = Vec::new();
        loop {
            let bytes = self.receive()?;
            for message in parts(&bytes) {
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(listed),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_) => return Ok(listed),
                    NetlinkPayload::InnerMessage(message) => listed.push(message),
                    _ => {}
                }
            }
        }
    }

    /// Does the same as [`Self::dump`], but passes each message as bytes, undecodable messages
    /// included.
    pub(super) fn dump_raw(
        &mut self,
        family: NetfilterProtoFamily,
        wanted: NfTablesMessage,
        seen: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        self.ask(family, NLM_F_DUMP, wanted)?;
        loop {
            let bytes = self.receive()?;
            let mut left = bytes.as_slice();
            while let Some((length, kind, code)) = head(left) {
                match (kind, code) {
                    (NLMSG_DONE, _) | (NLMSG_ERROR, 0) => return Ok(()),
                    (NLMSG_ERROR, code) => return Err(io::Error::from_raw_os_error(-code)),
                    _ => seen(left.get(..length).unwrap_or(left)),
                }
                left = left.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }

    fn ask(&mut self, family: NetfilterProtoFamily, flags: u16, wanted: NfTablesMessage) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let header = NetfilterHeader::new(family, 0, 0);
        let mut message = NetlinkMessage::from(NetfilterMessage::new(header, wanted));
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.drain();
        self.socket.send(&bytes, 0).map(drop)
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let received = self.socket.recv_from_full().map(|(bytes, _)| bytes);
        received.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, Mute),
            _ => error,
        })
    }

    /// Discards the rest of a reply.
    fn drain(&self) {
        let mut scrap = vec![0; 64 << 10];
        while self.socket.recv(&mut scrap.as_mut_slice(), MSG_DONTWAIT).is_ok() {}
    }
}

/// Returns the messages of one datagram, up to the first undecodable one.
fn parts(bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<NetfilterMessage>> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let message = NetlinkMessage::<NetfilterMessage>::deserialize(left).ok()?;
        let length = (message.header.length as usize).max(NLMSG_HEADER).next_multiple_of(4);
        left = left.get(length..).unwrap_or_default();
        Some(message)
    })
}

/// Reads a message's length and type and, for an error, its code; `None` if the bytes are too few.
fn head(bytes: &[u8]) -> Option<(usize, u16, i32)> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let code =
        bytes.get(NLMSG_HEADER..).and_then(<[u8]>::first_chunk).map_or(0, |code| i32::from_ne_bytes(*code));
    (length >= NLMSG_HEADER).then_some((length, kind, code))
}

pub(super) fn refused(action: &str, source: io::Error) -> NftError {
    let action = action.to_owned();
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => NftError::NotPermitted { action },
        Some(
            Errno::EOPNOTSUPP
            | Errno::EPROTONOSUPPORT
            | Errno::EAFNOSUPPORT
            | Errno::ENOENT
            | Errno::ENOPROTOOPT,
        ) => NftError::NotSupported { action, source },
        _ => NftError::Refused { action, source },
    }
}

/// Binds a random port id. The kernel's default for a process's first socket is the process id,
/// which the next socket gets once the first is closed. But the kernel deletes the tables of a
/// closed socket's port id a little later, and would then delete tables of the next socket.
fn bind(socket: &mut NetlinkSocket) -> io::Result<u32> {
    loop {
        // The port id is above every process id.
        let port = rand::random::<u32>() | 1 << 31;
        match socket.bind(&SocketAddr::new(port, 0)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            done => return done.map(|()| port),
        }
    }
}

/// Number of commits by [`Socket::commit_unseen`].
static UNSEEN: AtomicU32 = AtomicU32::new(0);

/// The error if no message arrives within [`PATIENCE`].
#[derive(Debug, thiserror::Error)]
#[error("no reply from the kernel within 2 s")]
struct Mute;

const PATIENCE: TimeVal = TimeVal::new(2, 0);
const SUBSYSTEM: u16 = 10;
const NLMSG_HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const MSG_DONTWAIT: i32 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_acknowledgement_is_an_error() {
        let socket = Socket::open().expect("a netlink socket takes no privilege");
        setsockopt(&socket.socket, ReceiveTimeout, &TimeVal::new(0, 1000)).expect("it can be set");
        let error = socket.receive().expect_err("nothing was asked");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "no reply from the kernel within 2 s");
    }
}
