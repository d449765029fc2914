//! A client's query, borrowed from its packet, and what is kept of it while an upstream is asked.

use crate::edns::{opt_length, write_opt};
use crate::upstream_overrides::{FLAGS, UpstreamOverrides};
use crate::{Class, Edns, Flags, HEADER, Name, OPTION_CLIENT_SUBNET, OptionBytes, RType, Rcode};

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
    /// What was written for upstreams here; nothing in what a client sent.
    pub overrides: UpstreamOverrides<'p>,
}

impl Query<'_> {
    /// What a packet is read into: no query yet.
    pub(crate) const BLANK: Self = Self {
        id: 0,
        flags: Flags(0),
        question: &[],
        name: Name::ROOT,
        rtype: RType(0),
        class: Class(0),
        edns: None,
        size: 0,
        overrides: UpstreamOverrides::NONE,
    };

    /// Whether the client set DO.
    #[inline]
    pub fn dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }

    /// The flags of an answer as this client may see them: AD only for a client that sets DO or AD (RFC 6840, section 5.8).
    #[inline]
    pub fn visible_flags(&self, flags: Flags) -> u16 {
        if self.dnssec_ok() || self.flags.has(Flags::AD) { flags.0 } else { flags.0 & !Flags::AD }
    }

    /// Whether the client sent a subnet, and upstreams get no other: what they say is for that part of the network, unless they say
    /// that it is for all.
    pub fn forwards_client_subnet(&self) -> bool {
        self.edns.is_some_and(|edns| edns.client_subnet.is_some()) && !self.overrides.has_subnet()
    }

    /// The largest reply over UDP that the client takes: 512 without EDNS (RFC 1035, section 4.2.1; RFC 6891, section 6.2.3).
    #[inline]
    pub fn udp_limit(&self) -> usize {
        self.edns.map_or(512, |edns| usize::from(edns.udp_size.max(512)))
    }

    /// What must be kept of the query while somebody else is asked.
    pub fn owned(&self) -> OwnedQuery {
        OwnedQuery {
            params: self.client_params(),
            subnet: self.edns.and_then(|edns| edns.client_subnet).map(|sent| {
                let sent = sent.get(..20).unwrap_or(sent);
                let mut octets = [0; 20];
                octets[..sent.len()].copy_from_slice(sent);
                (sent.len() as u8, octets)
            }),
            question: match self.question.len() {
                len @ 0..=SHORT if self.overrides.is_empty() => {
                    let mut octets = [0; SHORT];
                    octets[..len].copy_from_slice(self.question);
                    Question::Short(len as u8, octets)
                }
                len => Question::Long(len as u16, [self.question, self.overrides.octets()].concat().into()),
            },
        }
    }

    /// What tells the query from others that ask the same.
    pub fn client_params(&self) -> ClientParams {
        ClientParams {
            id: self.id,
            flags: self.flags,
            size: self.size as u16,
            udp_size: self.edns.map(|edns| edns.udp_size),
            dnssec_ok: self.dnssec_ok(),
            nsid: self.edns.is_some_and(|edns| edns.nsid),
        }
    }
}

/// A query apart from its packet: 160 octets, and a box for a question of more than 118, or with something written.
#[derive(Clone)]
pub struct OwnedQuery {
    params: ClientParams,
    subnet: Option<(u8, [u8; 20])>,
    question: Question,
}

#[derive(Clone)]
enum Question {
    Short(u8, [u8; SHORT]),
    /// The question's length; behind it what was written.
    Long(u16, Box<[u8]>),
}

/// What one of several queries that ask the same has of its own; 14 octets.
#[derive(Clone, Copy)]
pub struct ClientParams {
    id: u16,
    flags: Flags,
    size: u16,
    /// With EDNS only.
    udp_size: Option<u16>,
    dnssec_ok: bool,
    nsid: bool,
}

impl ClientParams {
    /// This one's query: what `same` asks, with the question as this one spelled it, if that is another way.
    pub fn query<'q>(&self, same: &Query<'q>, spelled: Option<&'q [u8]>) -> Query<'q> {
        Query {
            id: self.id,
            flags: self.flags,
            question: spelled.unwrap_or(same.question),
            edns: self.udp_size.map(|udp_size| Edns {
                udp_size,
                version: 0,
                dnssec_ok: self.dnssec_ok,
                nsid: self.nsid,
                client_subnet: same.edns.and_then(|edns| edns.client_subnet),
                options: &[],
            }),
            size: usize::from(self.size),
            ..*same
        }
    }

    /// Whether both get the same answer to the same question, but for id, spelling and size.
    pub fn gets_same_answer(&self, other: &Self) -> bool {
        const SEEN: u16 = Flags::RD | Flags::CD | Flags::AD;
        let like = |of: &Self| (of.flags.0 & SEEN, of.udp_size.is_some(), of.dnssec_ok, of.nsid);
        like(self) == like(other)
    }
}

impl OwnedQuery {
    /// The query as it was.
    pub fn query(&self) -> Query<'_> {
        let question = self.question();
        let ClientParams { id, flags, size, udp_size, dnssec_ok, nsid } = self.params;
        let mut query = Query {
            id,
            flags,
            question,
            name: Name::ROOT,
            rtype: RType(0),
            class: Class(0),
            edns: udp_size.map(|udp_size| Edns {
                udp_size,
                version: 0,
                dnssec_ok,
                nsid,
                client_subnet: self.subnet.as_ref().map(|(len, octets)| &octets[..usize::from(*len)]),
                options: &[],
            }),
            size: usize::from(size),
            overrides: self.overrides(),
        };
        // Read in its place: a name is large. The gate read this question before, so it cannot fail now.
        let end = query.name.fill_plain(question, 0).unwrap_or(1);
        let number = |at: usize| crate::read_u16(question, at).unwrap_or_default();
        (query.rtype, query.class) = (RType(number(end)), Class(number(end + 2)));
        query
    }

    /// What tells the query from others that ask the same.
    pub fn client_params(&self) -> ClientParams {
        self.params
    }

    /// The same, whoever asks: without the client's own subnet.
    pub fn without_client_subnet(mut self) -> Self {
        if !self.overrides().has_subnet() {
            self.subnet = None;
        }
        self
    }

    /// The same without client subnet, wherever it came from.
    pub fn without_subnet(mut self) -> Self {
        self.subnet = None;
        let overrides = self.overrides();
        if overrides.has_subnet() {
            let octets = overrides.without_subnet();
            let query = Query { overrides: UpstreamOverrides(&octets), ..self.query() };
            self = query.owned();
        }
        self
    }

    /// Whether there is a client subnet.
    pub fn has_subnet(&self) -> bool {
        self.subnet.is_some()
    }

    /// The question as it was sent.
    pub fn question(&self) -> &[u8] {
        match &self.question {
            Question::Short(len, octets) => &octets[..usize::from(*len)],
            Question::Long(len, octets) => &octets[..usize::from(*len)],
        }
    }

    fn overrides(&self) -> UpstreamOverrides<'_> {
        match &self.question {
            Question::Short(..) => UpstreamOverrides::NONE,
            Question::Long(len, octets) => UpstreamOverrides(&octets[usize::from(*len)..]),
        }
    }
}

/// Appends the query that an upstream gets: our id, the client's question, RD and CD, AD always set so that the
/// reply's AD means something (RFC 6840, section 5.7), and an OPT of our own with the client's DO and client subnet; what
/// was written here goes with it.
///
/// Every other option concerns one hop only and stays where it was (RFC 6891, section 6.1.1; RFC 7873, section 5).
pub fn write_upstream_query(out: &mut Vec<u8>, id: u16, query: &Query<'_>) {
    let flags = (query.flags.0 & (Flags::RD | Flags::CD)) | Flags::AD | query.overrides.flags();
    out.reserve(HEADER + query.question.len() + opt_length(query.overrides.octets()) + 24);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 1]);
    out.extend_from_slice(query.question);
    let mut subnet = OptionBytes::none();
    if let Some(sent) = query.edns.and_then(|edns| edns.client_subnet) {
        subnet.push(OPTION_CLIENT_SUBNET, sent);
    }
    if query.overrides.is_empty() {
        write_opt(out, Rcode::NOERROR, query.dnssec_ok(), subnet.as_bytes());
    } else {
        // A subnet among them is the query's; where that is not to be sent, this is not.
        let mut options = query.overrides.without_subnet().split_off(FLAGS);
        options.extend_from_slice(subnet.as_bytes());
        write_opt(out, Rcode::NOERROR, query.dnssec_ok(), &options);
    }
}

/// Octets of a question that a held query has in place: names of up to 114 octets, which is nearly all of them.
const SHORT: usize = 118;
