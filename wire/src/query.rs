//! A client's query, borrowed from its packet, and what is kept of it while an upstream is asked.

use crate::edns::{opt_length, write_opt};
use crate::{Class, Edns, Flags, HEADER, MAX_NAME, Name, OPTION_CLIENT_SUBNET, OptionBytes, RType, Rcode};

/// A query that passed the gate: one question, opcode QUERY, at most one OPT.
#[derive(Clone, Copy)]
pub struct Query<'p> {
    /// The client's message id.
    pub id: u16,
    /// The client's header flags.
    pub flags: Flags,
    /// The question as it was sent: name in the client's case, type, class.
    pub question: &'p [u8],
    /// The name asked for, lower-cased.
    pub name: Name,
    /// The type asked for.
    pub rtype: RType,
    /// The class asked for.
    pub class: Class,
    /// The client's OPT, if it sent one.
    pub edns: Option<Edns<'p>>,
    /// The length of the whole packet in octets, as metrics and log report it.
    pub size: usize,
}

impl Query<'_> {
    /// Whether the client set DO.
    #[inline]
    pub fn dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }

    /// The largest reply over UDP that the client takes: 512 without EDNS (RFC 1035, section 4.2.1; RFC 6891, section 6.2.3).
    #[inline]
    pub fn udp_limit(&self) -> usize {
        self.edns.map_or(512, |edns| usize::from(edns.udp_size.max(512)))
    }

    /// What must be kept of the query while somebody else is asked.
    pub fn hold(&self) -> HeldQuery {
        let mut held = HeldQuery {
            id: self.id,
            flags: self.flags,
            edns: None,
            size: self.size as u16,
            question_len: self.question.len() as u16,
            question: [0; MAX_NAME + 4],
        };
        held.question[..self.question.len()].copy_from_slice(self.question);
        held.edns = self.edns.map(|edns| {
            let mut subnet = [0; 20];
            let sent = edns.client_subnet.unwrap_or_default();
            let sent = sent.get(..20).unwrap_or(sent);
            subnet[..sent.len()].copy_from_slice(sent);
            HeldEdns {
                udp_size: edns.udp_size,
                dnssec_ok: edns.dnssec_ok,
                nsid: edns.nsid,
                subnet,
                subnet_len: edns.client_subnet.map(|_| sent.len() as u8),
            }
        });
        held
    }
}

/// A query apart from its packet: 320 octets, no pointer.
#[derive(Clone, Copy)]
pub struct HeldQuery {
    id: u16,
    flags: Flags,
    edns: Option<HeldEdns>,
    size: u16,
    question_len: u16,
    question: [u8; MAX_NAME + 4],
}

#[derive(Clone, Copy)]
struct HeldEdns {
    udp_size: u16,
    dnssec_ok: bool,
    nsid: bool,
    subnet: [u8; 20],
    subnet_len: Option<u8>,
}

impl HeldQuery {
    /// The query as it was.
    pub fn query(&self) -> Query<'_> {
        let question = &self.question[..usize::from(self.question_len)];
        // The gate read this question before: it cannot fail now.
        let (name, end) = Name::read_plain(question, 0).unwrap_or((Name::ROOT, 1));
        let number = |at: usize| crate::read_u16(question, at).unwrap_or_default();
        Query {
            id: self.id,
            flags: self.flags,
            question,
            name,
            rtype: RType(number(end)),
            class: Class(number(end + 2)),
            edns: self.edns.as_ref().map(|edns| Edns {
                udp_size: edns.udp_size,
                version: 0,
                dnssec_ok: edns.dnssec_ok,
                nsid: edns.nsid,
                client_subnet: edns.subnet_len.map(|len| &edns.subnet[..usize::from(len)]),
            }),
            size: usize::from(self.size),
        }
    }

    /// The question as it was sent.
    pub fn question(&self) -> &[u8] {
        &self.question[..usize::from(self.question_len)]
    }
}

/// Appends the query that an upstream gets: our id, the client's question, RD and CD, AD always set so that the
/// reply's AD means something (RFC 6840, section 5.7), and an OPT of our own with the client's DO and client subnet.
///
/// Every other option concerns one hop only and stays where it was (RFC 6891, section 6.1.1; RFC 7873, section 5).
pub fn write_upstream_query(out: &mut Vec<u8>, id: u16, query: &Query<'_>) {
    let flags = (query.flags.0 & (Flags::RD | Flags::CD)) | Flags::AD;
    out.reserve(HEADER + query.question.len() + opt_length(&[]) + 24);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 1]);
    out.extend_from_slice(query.question);
    let mut options = OptionBytes::EMPTY;
    if let Some(subnet) = query.edns.and_then(|edns| edns.client_subnet) {
        options.push(OPTION_CLIENT_SUBNET, subnet);
    }
    write_opt(out, Rcode::NOERROR, query.dnssec_ok(), options.as_bytes());
}
