//! A client's query, borrowed from its packet, and an owned copy for the time at an upstream.

use crate::edns::{opt_length, write_opt};
use crate::upstream_overrides::{FLAGS, UpstreamOverrides};
use crate::{Class, Edns, Flags, HEADER, Name, OPTION_CLIENT_SUBNET, OptionBytes, RType, Rcode};

/// A query that [`accept`](crate::accept()) let pass: one question, opcode QUERY, at most one OPT.
#[derive(Clone, Copy)]
pub struct Query<'p> {
    /// The client's message id.
    pub id: u16,
    /// The client's header flags.
    pub flags: Flags,
    /// The question as sent: name in the client's case, type, class.
    pub question: &'p [u8],
    /// The queried name, lower-cased.
    pub name: Name,
    /// The queried type.
    pub rtype: RType,
    /// The queried class.
    pub class: Class,
    /// The client's OPT, if it sent one.
    pub edns: Option<Edns<'p>>,
    /// Bytes of the whole packet, for metrics and log.
    pub size: usize,
    /// What the server adds for upstreams; empty in a client's query.
    pub overrides: UpstreamOverrides<'p>,
}

impl Query<'_> {
    /// A value to read a packet into.
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

    /// Whether upstreams get the client's own subnet. Their answer then holds for that part of the
    /// network, unless its scope is 0.
    pub fn forwards_client_subnet(&self) -> bool {
        self.edns.is_some_and(|edns| edns.client_subnet.is_some()) && !self.overrides.has_subnet()
    }

    /// The largest UDP reply that the client accepts, in bytes: 512 without EDNS (RFC 1035, section
    /// 4.2.1; RFC 6891, section 6.2.3).
    #[inline]
    pub fn udp_limit(&self) -> usize {
        self.edns.map_or(512, |edns| usize::from(edns.udp_size.max(512)))
    }

    /// Copies the query out of its packet, without EDNS options but a client subnet.
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

    /// The fields in which queries of one flight may differ.
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

/// A query without its packet: 160 bytes, and an allocation for a question of more than 118 bytes
/// or one with overrides.
#[derive(Clone)]
pub struct OwnedQuery {
    params: ClientParams,
    subnet: Option<(u8, [u8; 20])>,
    question: Question,
}

#[derive(Clone)]
enum Question {
    Short(u8, [u8; SHORT]),
    /// Length of the question, and the question with the overrides behind it.
    Long(u16, Box<[u8]>),
}

/// The fields in which queries of one flight may differ; 14 bytes.
#[derive(Clone, Copy)]
pub struct ClientParams {
    id: u16,
    flags: Flags,
    size: u16,
    /// `None` without EDNS.
    udp_size: Option<u16>,
    dnssec_ok: bool,
    nsid: bool,
}

impl ClientParams {
    /// Returns this client's query: `same` with these parameters, and with the question `spelled`
    /// if this client's spelling differs.
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

    /// Whether both clients get the same reply, apart from id, spelling and size limit.
    pub fn gets_same_answer(&self, other: &Self) -> bool {
        const SEEN: u16 = Flags::RD | Flags::CD | Flags::AD;
        let like = |of: &Self| (of.flags.0 & SEEN, of.udp_size.is_some(), of.dnssec_ok, of.nsid);
        like(self) == like(other)
    }
}

impl OwnedQuery {
    /// The option CLIENT-SUBNET of the query, from the client or added by localdns.
    pub fn client_subnet(&self) -> Option<&[u8]> {
        self.params.udp_size?;
        self.subnet.as_ref().map(|(len, octets)| &octets[..usize::from(*len)])
    }

    /// As [`Query::forwards_client_subnet`].
    pub fn forwards_client_subnet(&self) -> bool {
        self.client_subnet().is_some() && !self.overrides().has_subnet()
    }

    /// Returns the query, parsing the question again; single fields have cheaper methods.
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
                client_subnet: self.client_subnet(),
                options: &[],
            }),
            size: usize::from(size),
            overrides: self.overrides(),
        };
        // In place: a name is large. `accept` has read this question, so it cannot fail.
        let end = query.name.fill_plain(question, 0).unwrap_or(1);
        let number = |at: usize| crate::read_u16(question, at).unwrap_or_default();
        (query.rtype, query.class) = (RType(number(end)), Class(number(end + 2)));
        query
    }

    /// The fields in which queries of one flight may differ.
    pub fn client_params(&self) -> ClientParams {
        self.params
    }

    /// Removes the client's own subnet, for an answer that all clients may get.
    pub fn without_client_subnet(mut self) -> Self {
        if !self.overrides().has_subnet() {
            self.subnet = None;
        }
        self
    }

    /// Removes every client subnet, the client's own and an override.
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

    /// The question as sent.
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

/// Appends the query for an upstream: a new id, the client's question, RD and CD; AD always, so
/// that the reply's AD means something (RFC 6840, section 5.7); a new OPT with the client's DO and
/// client subnet; the overrides.
///
/// All other options of the client are hop by hop and are not forwarded (RFC 6891, section 6.1.1;
/// RFC 7873, section 5).
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
        // A subnet among the overrides is in the query's EDNS as well, unless it must not be sent.
        let mut options = query.overrides.without_subnet().split_off(FLAGS);
        options.extend_from_slice(subnet.as_bytes());
        write_opt(out, Rcode::NOERROR, query.dnssec_ok(), &options);
    }
}

/// Bytes of a question that an owned query stores inline: names of up to 114 octets, nearly all.
const SHORT: usize = 118;
