//! Builds the statements of our rules. Each function's comment shows the statement in `nft`'s
//! syntax.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_netfilter::nftables::{
    Bitwise, ChecksumFlags, ChecksumType, Cmp, DataAttribute, ExpressionAttribute, Expressions, Immediate,
    ListAttribute, Lookup, Meta, MetaKey, Operator, Payload, Register, Verdict, VerdictAttribute,
};
use rtnetlink::packet_core::DefaultNla;

use super::batch::Statement;

/// The family of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the `nft` type number of the family's addresses in sets (`ipv4_addr`, `ipv6_addr`),
    /// and their size in bytes.
    pub(crate) fn key(self) -> (u32, u32) {
        match self {
            Self::V4 => (7, 4),
            Self::V6 => (8, 16),
        }
    }

    /// Returns NFPROTO_IPV4 or NFPROTO_IPV6.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }
}

/// Selects a packet's source or destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

/// Returns the bytes of an address, in network byte order.
pub(crate) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Builds `meta nfproto ipv4`.
pub(crate) fn family_is(family: Family) -> Vec<Statement> {
    vec![meta(MetaKey::Nfproto), equals(vec![family.number()])]
}

/// Builds `ip daddr 169.254.10.10`.
pub(crate) fn address_is(end: End, ip: IpAddr) -> Vec<Statement> {
    let mut statements = load_address(end, Family::of(ip));
    statements.push(equals(octets(ip)));
    statements
}

/// Builds `ip daddr @set`.
pub(crate) fn address_in(end: End, family: Family, set: &str) -> Vec<Statement> {
    let mut statements = load_address(end, family);
    statements.push(lookup(set));
    statements
}

/// Builds `ip daddr set 10.96.0.10`; the kernel updates the checksums.
pub(crate) fn set_address(end: End, ip: IpAddr) -> Vec<Statement> {
    let family = Family::of(ip);
    let mut payload = vec![
        Payload::SourceRegister(Register::Reg1),
        Payload::Base(NETWORK_HEADER),
        Payload::Offset(address_offset(end, family)),
        Payload::Len(family.key().1),
        Payload::CsumFlags(ChecksumFlags::L4PseudoHeader),
    ];
    if family == Family::V4 {
        payload.extend([Payload::CsumType(ChecksumType::Inet), Payload::CsumOffset(10)]);
    }
    vec![load(octets(ip)), Expressions::Payload(payload).into()]
}

/// Builds `meta l4proto @transports th dport 53`.
pub(crate) fn dns(end: End) -> Vec<Statement> {
    let offset = if end == End::Source { 0 } else { 2 };
    let payload = vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(TRANSPORT_HEADER),
        Payload::Offset(offset),
        Payload::Len(2),
    ];
    vec![
        meta(MetaKey::L4Proto),
        lookup(TRANSPORTS),
        Expressions::Payload(payload).into(),
        equals(vec![0, 53]),
    ]
}

/// Builds `fib daddr type local`.
pub(crate) fn destination_is_ours() -> Vec<Statement> {
    let attributes = [(1, u32::from(Register::Reg1)), (2, FIB_RESULT_ADDRTYPE), (3, FIB_F_DADDR)];
    vec![other("fib", &attributes), equals(RTN_LOCAL.to_ne_bytes().to_vec())]
}

/// Builds `socket transparent 0`: a socket of this host receives the packet.
pub(crate) fn has_socket() -> Vec<Statement> {
    vec![other("socket", &[(1, SOCKET_TRANSPARENT), (2, u32::from(Register::Reg1))]), equals(vec![0])]
}

/// Builds `iif lo`.
pub(crate) fn from_this_machine() -> Vec<Statement> {
    vec![meta(MetaKey::Iif), equals(LOOPBACK.to_ne_bytes().to_vec())]
}

/// Builds `iifname NAME`: by name, since a recreated link has another index.
pub(crate) fn from_link(name: &str) -> Vec<Statement> {
    vec![meta(MetaKey::Iifname), equals(link_octets(name))]
}

/// Builds `ip saddr 10.1.0.0/16`.
pub(crate) fn source_in(network: IpNet) -> Vec<Statement> {
    let network = network.trunc();
    let mut statements = load_address(End::Source, Family::of(network.addr()));
    statements.extend([masked(octets(network.netmask())), equals(octets(network.addr()))]);
    statements
}

/// Builds `fib saddr . iif oif != 0`: the route back to the source is over the link of arrival.
pub(crate) fn source_is_behind_its_link() -> Vec<Statement> {
    let attributes = [(1, u32::from(Register::Reg1)), (2, FIB_RESULT_OIF), (3, FIB_F_SADDR | FIB_F_IIF)];
    vec![other("fib", &attributes), compare(Operator::NotEqual, vec![0; 4])]
}

/// Builds `fib saddr oifname NAME`: the route back to the source is over this link.
pub(crate) fn source_is_behind(link: &str) -> Vec<Statement> {
    let attributes = [(1, u32::from(Register::Reg1)), (2, FIB_RESULT_OIFNAME), (3, FIB_F_SADDR)];
    vec![other("fib", &attributes), equals(link_octets(link))]
}

/// Builds `meta mark N`.
pub(crate) fn mark_is(mark: u32) -> Vec<Statement> {
    vec![meta(MetaKey::Mark), equals(mark.to_ne_bytes().to_vec())]
}

/// Builds `ct state untracked`.
pub(crate) fn untracked() -> Vec<Statement> {
    ct_bits(CT_STATE, CT_STATE_UNTRACKED, Operator::NotEqual)
}

/// Builds `ct status ! dnat`.
pub(crate) fn not_translated() -> Vec<Statement> {
    ct_bits(CT_STATUS, IPS_DST_NAT, Operator::Equal)
}

/// Compares `bits` of a conntrack value with zero.
fn ct_bits(key: u32, bits: u32, operator: Operator) -> Vec<Statement> {
    vec![ct(key), masked(bits.to_ne_bytes().to_vec()), compare(operator, vec![0; 4])]
}

/// Masks the value in register 1.
fn masked(mask: Vec<u8>) -> Statement {
    let length = mask.len();
    Expressions::Bitwise(vec![
        Bitwise::SourceRegister(Register::Reg1),
        Bitwise::DestinationRegister(Register::Reg1),
        Bitwise::Length(length as u32),
        Bitwise::Mask(DataAttribute::Value(mask)),
        Bitwise::Xor(DataAttribute::Value(vec![0; length])),
    ])
    .into()
}

/// Builds `ct direction reply`.
pub(crate) fn is_reply() -> Vec<Statement> {
    vec![ct(CT_DIRECTION), equals(vec![1])]
}

/// Builds `ct original zone & MASK == N`.
pub(crate) fn zone_is(zone: u16, mask: u16) -> Vec<Statement> {
    vec![ct_original(CT_ZONE, 1), masked(mask.to_ne_bytes().to_vec()), equals(zone.to_ne_bytes().to_vec())]
}

/// Builds `ct original zone set N`.
pub(crate) fn set_zone(zone: u16) -> Vec<Statement> {
    vec![load(zone.to_ne_bytes().to_vec()), ct_original(CT_ZONE, 4)]
}

/// Builds `notrack`.
pub(crate) fn notrack() -> Vec<Statement> {
    vec![bare("notrack")]
}

/// Builds `masquerade`.
pub(crate) fn masquerade() -> Vec<Statement> {
    vec![bare("masq")]
}

/// Builds `accept`.
pub(crate) fn accept() -> Vec<Statement> {
    verdict(vec![VerdictAttribute::Code(Verdict::Other(NF_ACCEPT))])
}

/// Builds `jump CHAIN`.
pub(crate) fn jump(chain: &str) -> Vec<Statement> {
    verdict(vec![VerdictAttribute::Code(Verdict::Jump), VerdictAttribute::Chain(chain.to_owned())])
}

fn verdict(verdict: Vec<VerdictAttribute>) -> Vec<Statement> {
    let immediate = vec![
        Immediate::DestinationRegister(Register::Verdict),
        Immediate::Data(DataAttribute::Verdict(verdict)),
    ];
    vec![Expressions::Immediate(immediate).into()]
}

fn load_address(end: End, family: Family) -> Vec<Statement> {
    let payload = vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(NETWORK_HEADER),
        Payload::Offset(address_offset(end, family)),
        Payload::Len(family.key().1),
    ];
    let mut statements = family_is(family);
    statements.push(Expressions::Payload(payload).into());
    statements
}

fn address_offset(end: End, family: Family) -> u32 {
    match (end, family) {
        (End::Source, Family::V4) => 12,
        (End::Destination, Family::V4) => 16,
        (End::Source, Family::V6) => 8,
        (End::Destination, Family::V6) => 24,
    }
}

/// Returns a link's name as it is in a register: padded with zeros to IFNAMSIZ.
fn link_octets(name: &str) -> Vec<u8> {
    let mut octets = name.as_bytes().to_vec();
    octets.resize(IFNAMSIZ, 0);
    octets
}

fn load(value: Vec<u8>) -> Statement {
    let immediate =
        vec![Immediate::DestinationRegister(Register::Reg1), Immediate::Data(DataAttribute::Value(value))];
    Expressions::Immediate(immediate).into()
}

fn equals(value: Vec<u8>) -> Statement {
    compare(Operator::Equal, value)
}

fn compare(operator: Operator, value: Vec<u8>) -> Statement {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value)),
    ])
    .into()
}

fn lookup(set: &str) -> Statement {
    Expressions::Lookup(vec![Lookup::SourceRegister(Register::Reg1), Lookup::Set(set.to_owned())]).into()
}

fn meta(key: MetaKey) -> Statement {
    Expressions::Meta(vec![Meta::Key(key), Meta::DestinationRegister(Register::Reg1)]).into()
}

fn ct(key: u32) -> Statement {
    other("ct", &[(1, u32::from(Register::Reg1)), (2, key)])
}

/// Builds `ct original KEY`. `register` is the attribute that names register 1: NFTA_CT_DREG (1) to
/// read the value into it, NFTA_CT_SREG (4) to write the value.
fn ct_original(key: u32, register: u16) -> Statement {
    let number = |kind, value: u32| DefaultNla::new(kind, value.to_be_bytes().to_vec());
    let direction = DefaultNla::new(3, vec![0]);
    let attributes = vec![number(2, key), direction, number(register, Register::Reg1.into())];
    Expressions::Other { expression_type: "ct".to_owned(), attributes }.into()
}

/// Makes an expression for which the netlink library has no type.
fn other(name: &str, attributes: &[(u16, u32)]) -> Statement {
    let attributes =
        attributes.iter().map(|&(kind, value)| DefaultNla::new(kind, value.to_be_bytes().to_vec())).collect();
    Expressions::Other { expression_type: name.to_owned(), attributes }.into()
}

fn bare(name: &str) -> Statement {
    ListAttribute::Element(vec![ExpressionAttribute::Name(name.to_owned())])
}

/// Name of the set of transports with a DNS port 53.
pub(crate) const TRANSPORTS: &str = "transports";
/// The `nft` type number of `inet_proto`, and its size in bytes.
pub(crate) const TRANSPORT_KEY: (u32, u32) = (12, 1);

// Constants of the kernel's include/uapi/linux/netfilter/nf_tables.h, rtnetlink.h and netfilter.h.
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const FIB_RESULT_OIF: u32 = 1;
const FIB_RESULT_OIFNAME: u32 = 2;
const FIB_RESULT_ADDRTYPE: u32 = 3;
const FIB_F_SADDR: u32 = 1;
const FIB_F_DADDR: u32 = 2;
const FIB_F_IIF: u32 = 8;
const RTN_LOCAL: u32 = 2;
const SOCKET_TRANSPARENT: u32 = 0;
pub(crate) const IFNAMSIZ: usize = 16;
const LOOPBACK: u32 = 1;
const CT_STATE: u32 = 0;
const CT_STATE_UNTRACKED: u32 = 1 << 6;
const CT_DIRECTION: u32 = 1;
const CT_STATUS: u32 = 2;
const IPS_DST_NAT: u32 = 1 << 5;
const CT_ZONE: u32 = 17;
const NF_ACCEPT: u32 = 1;
