//! An upstream's reply without header, question and OPT, for the cache and for clients.

use crate::edns::{full_rcode, options};
use crate::rdata::Checker;
use crate::records::{Malformed, Record, Records, Section};
use crate::{Flags, HEADER, OPTION_CLIENT_SUBNET, OPTION_EDE, RType, Rcode, Subnet, compress, read_u16};

/// The records of an upstream's reply, ready to be appended to any client's copy of the question.
///
/// Compression pointers in `body` count from the start of the message. They stay valid while the
/// question keeps its length, and equal names have the same length in every case. One `Answer` is
/// filled again and again; its buffers keep their capacity.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The full rcode, with the upper bits from the OPT.
    pub rcode: Rcode,
    /// AA, TC, RA and AD of the reply.
    pub flags: Flags,
    /// Records in the answer, authority and additional sections, without the OPT.
    pub counts: [u16; 3],
    /// The records.
    pub body: Vec<u8>,
    /// Offset in `body` of each record's TTL, in order.
    pub ttls: Vec<u16>,
    /// Extended DNS Errors of the upstream's OPT, encoded as options.
    pub ede: Vec<u8>,
    /// The upstream's client subnet option, whether or not it repeats the query's (RFC 7871,
    /// section 7.3).
    pub subnet: Option<Subnet>,
    /// Whether the reply had an OPT.
    pub opt: bool,
    /// Set by the forwarder: the answer holds for the client's subnet alone and must not be cached.
    pub subnet_specific: bool,
}

impl Default for Rcode {
    fn default() -> Self {
        Self::NOERROR
    }
}

impl Answer {
    /// Fills this answer from `reply`; its question must equal `question` without regard to case.
    ///
    /// Names that the upstream wrote in full are compressed here, once, unless that takes too long.
    /// A reply without a question is accepted only if it has no records and a failure as its rcode
    /// (old servers' FORMERR). Every record is validated: clients get no record that they could not
    /// read.
    ///
    /// # Errors
    /// [`Malformed`]. The answer's content is then unspecified and must not be used.
    pub fn read(&mut self, reply: &[u8], question: &[u8]) -> Result<(), Malformed> {
        self.clear();
        let header: &[u8; HEADER] = reply.first_chunk().ok_or(Malformed::Short)?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let flags = Flags(number(2));
        let counts = [number(6), number(8), number(10)];
        // Opcode QUERY, as in all that we send.
        if flags.0 & (Flags::QR | 0x7800) != Flags::QR {
            return Err(Malformed::Question);
        }
        let start = match number(4) {
            1 => {
                let end = HEADER + question.len();
                let theirs = reply.get(HEADER..end).ok_or(Malformed::Question)?;
                if !same_question(theirs, question) {
                    return Err(Malformed::Question);
                }
                end
            }
            0 if flags.rcode() != 0 && counts[..2] == [0, 0] => HEADER,
            _ => return Err(Malformed::Question),
        };
        let mut opt: Option<Record> = None;
        let mut spelled_out = false;
        let mut after_opt = false;
        let mut end = start;
        let mut check = Checker::new(reply, start > HEADER);
        for record in Records::new(reply, start, counts) {
            let record = record?;
            match record.rtype {
                RType::OPT => {
                    let root = reply.get(record.owner) == Some(&0);
                    if opt.is_some() || record.section != Section::Additional || !root {
                        return Err(Malformed::Opt);
                    }
                    opt = Some(record);
                }
                RType::TSIG => return Err(Malformed::Signed),
                _ => {
                    check.record(&record)?;
                    after_opt |= opt.is_some();
                    spelled_out |= matches!(reply.get(record.owner), Some(1..=63));
                    self.ttls.push(u16::try_from(record.ttl_at - start).map_err(|_| Malformed::Long)?);
                    end = record.end();
                }
            }
        }
        self.rcode = full_rcode(flags, opt.as_ref().map(|opt| opt.ttl));
        self.flags = Flags(flags.0 & (Flags::AA | Flags::TC | Flags::RA | Flags::AD));
        self.opt = opt.is_some();
        if let Some(opt) = &opt {
            self.read_options(opt.data(reply))?;
        }
        if start == HEADER {
            self.ttls.clear();
            return Ok(());
        }
        if after_opt || spelled_out {
            match compress::rewrite(reply, question, counts, &mut self.body) {
                Ok(written) => {
                    self.counts = written;
                    self.ttls.clear();
                    for record in Records::new(&self.body, 0, written) {
                        self.ttls.push(u16::try_from(record?.ttl_at).map_err(|_| Malformed::Long)?);
                    }
                    return Ok(());
                }
                // Too long or too much work: the records stay as the upstream wrote them.
                Err(Malformed::Long | Malformed::Work) if !after_opt => self.body.clear(),
                Err(error) => return Err(error),
            }
        }
        // The OPT, if there is one, is the last record; it is cut off.
        self.counts = counts;
        self.counts[2] -= u16::from(opt.is_some());
        self.body.extend_from_slice(reply.get(start..end).ok_or(Malformed::Short)?);
        Ok(())
    }

    /// Resets all fields, keeping the buffers' capacity.
    pub fn clear(&mut self) {
        self.rcode = Rcode::NOERROR;
        self.flags = Flags(0);
        self.counts = [0; 3];
        self.body.clear();
        self.ttls.clear();
        self.ede.clear();
        self.subnet = None;
        self.opt = false;
        self.subnet_specific = false;
    }

    /// The records, as offsets in `body`.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        Records::new(&self.body, 0, self.counts).map_while(Result::ok)
    }

    /// Clamps each record's TTL to `min..=max` seconds.
    pub fn clamp_ttls(&mut self, min: u32, max: u32) {
        for &at in &self.ttls {
            let Some(field) =
                self.body.get_mut(usize::from(at)..).and_then(|rest| rest.first_chunk_mut::<4>())
            else {
                continue;
            };
            // RFC 2181, section 8: a TTL with its highest bit set counts as 0.
            let ttl = match u32::from_be_bytes(*field) {
                ttl @ 0..=0x7fff_ffff => ttl,
                _ => 0,
            };
            *field = ttl.clamp(min, max).to_be_bytes();
        }
    }

    /// The TTL of the SOA in the authority section and its MINIMUM, in seconds (RFC 2308, section 5).
    pub fn denial_soa(&self) -> Option<(u32, u32)> {
        let soa = self.records().find(|r| r.section == Section::Authority && r.rtype == RType::SOA)?;
        let minimum = crate::read_u32(&self.body, soa.data.end.checked_sub(4)?)?;
        Some((soa.ttl, minimum))
    }

    fn read_options(&mut self, data: &[u8]) -> Result<(), Malformed> {
        for option in options(data) {
            let (code, value) = option.ok_or(Malformed::Opt)?;
            match code {
                OPTION_EDE if self.ede.len() + 4 + value.len() <= 200 => {
                    self.ede.extend_from_slice(&code.to_be_bytes());
                    self.ede.extend_from_slice(&(value.len() as u16).to_be_bytes());
                    self.ede.extend_from_slice(value);
                }
                OPTION_CLIENT_SUBNET => self.subnet = Some(Subnet::read(value)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether two questions are equal: names without regard to case, type and class exactly.
fn same_question(theirs: &[u8], ours: &[u8]) -> bool {
    let split = ours.len().saturating_sub(4);
    theirs.len() == ours.len()
        && theirs[..split].eq_ignore_ascii_case(&ours[..split])
        && read_u16(theirs, split) == read_u16(ours, split)
        && read_u16(theirs, split + 2) == read_u16(ours, split + 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Verdict, accept};
    use hickory_proto::op::{Message, MessageType, OpCode, Query as HickoryQuery};
    use hickory_proto::rr::rdata::{A, CNAME, MX, SOA, SRV};
    use hickory_proto::rr::{Name as HickoryName, RData, Record as HickoryRecord, RecordType};
    use proptest::prelude::*;

    fn name(text: &str) -> HickoryName {
        text.parse().unwrap()
    }

    fn reply() -> Message {
        let mut message = Message::new(7, MessageType::Response, OpCode::Query);
        message.add_query(HickoryQuery::query(name("WWW.example.org."), RecordType::A));
        message.add_answer(HickoryRecord::from_rdata(
            name("www.example.org."),
            300,
            RData::CNAME(CNAME(name("web.Example.org."))),
        ));
        message.add_answer(HickoryRecord::from_rdata(
            name("web.example.org."),
            3,
            RData::A(A::new(192, 0, 2, 1)),
        ));
        message.add_authority(HickoryRecord::from_rdata(
            name("example.org."),
            600,
            RData::SOA(SOA::new(name("ns.example.org."), name("admin.example.org."), 1, 2, 3, 4, 77)),
        ));
        message.add_additional(HickoryRecord::from_rdata(
            name("mx.example.org."),
            60,
            RData::MX(MX::new(5, name("web.example.org."))),
        ));
        message.add_additional(HickoryRecord::from_rdata(
            name("_s._tcp.example.org."),
            60,
            RData::SRV(SRV::new(1, 2, 53, name("web.example.org."))),
        ));
        message
    }

    fn question() -> Vec<u8> {
        b"\x03wWw\x07example\x03org\0\0\x01\0\x01".to_vec()
    }

    /// Prepends header and question to an answer's body and decodes it with hickory.
    fn decode(answer: &Answer) -> Message {
        let mut bytes = vec![0, 7, 0x80, 0, 0, 1];
        for count in answer.counts {
            bytes.extend_from_slice(&count.to_be_bytes());
        }
        bytes.extend_from_slice(&question());
        bytes.extend_from_slice(&answer.body);
        Message::from_vec(&bytes).unwrap()
    }

    /// The same message with uncompressed names, as some servers send it.
    fn spelled_out(message: &Message) -> Vec<u8> {
        let full = |name: &HickoryName| name.to_lowercase().to_string();
        let mut bytes =
            vec![0, 7, 0x84, 0, 0, 1, 0, message.answers.len() as u8, 0, message.authorities.len() as u8];
        bytes.extend_from_slice(&[0, message.additionals.len() as u8]);
        bytes.extend_from_slice(&question());
        for record in message.answers.iter().chain(&message.authorities).chain(&message.additionals) {
            bytes.extend_from_slice(crate::Name::from_text(&full(&record.name)).unwrap().as_wire());
            bytes.extend_from_slice(&u16::from(record.record_type()).to_be_bytes());
            bytes.extend_from_slice(&[0, 1]);
            bytes.extend_from_slice(&record.ttl.to_be_bytes());
            let mut data = Vec::new();
            let mut push = |text: &HickoryName| {
                data.extend_from_slice(crate::Name::from_text(&full(text)).unwrap().as_wire())
            };
            match &record.data {
                RData::CNAME(target) => push(&target.0),
                RData::A(address) => data.extend_from_slice(&address.0.octets()),
                RData::SOA(soa) => {
                    push(&soa.mname);
                    push(&soa.rname);
                    for value in [1u32, 2, 3, 4, 77] {
                        data.extend_from_slice(&value.to_be_bytes());
                    }
                }
                RData::MX(mx) => {
                    data.extend_from_slice(&[0, 5]);
                    data.extend_from_slice(crate::Name::from_text(&full(&mx.exchange)).unwrap().as_wire());
                }
                RData::SRV(srv) => {
                    data.extend_from_slice(&[0, 1, 0, 2, 0, 53]);
                    data.extend_from_slice(crate::Name::from_text(&full(&srv.target)).unwrap().as_wire());
                }
                other => panic!("{other:?}"),
            }
            bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
            bytes.extend_from_slice(&data);
        }
        bytes
    }

    #[test]
    fn opt_is_stripped() {
        let mut message = reply();
        let mut edns = hickory_proto::op::Edns::new();
        edns.set_max_payload(4096);
        message.set_edns(edns);
        let mut answer = Answer::default();
        answer.read(&message.to_vec().unwrap(), &question()).unwrap();
        assert_eq!(answer.counts, [2, 1, 2]);
        assert_eq!(answer.ttls.len(), 5);
        let decoded = decode(&answer);
        assert_eq!(decoded.answers, message.answers);
        assert_eq!(decoded.additionals, message.additionals);
        assert!(decoded.edns.is_none());
        assert_eq!(answer.denial_soa(), Some((600, 77)));
    }

    #[test]
    fn full_names_are_compressed() {
        let message = reply();
        let full = spelled_out(&message);
        let mut answer = Answer::default();
        answer.read(&full, &question()).unwrap();
        let decoded = decode(&answer);
        assert_eq!(decoded.answers.len(), 2);
        assert_eq!(decoded.answers[1].data, message.answers[1].data);
        assert_eq!(decoded.additionals, message.additionals);
        assert!(answer.body.len() + 60 < full.len() - 33, "{} of {}", answer.body.len(), full.len());
    }

    #[test]
    fn ttls_are_clamped() {
        let mut answer = Answer::default();
        answer.read(&reply().to_vec().unwrap(), &question()).unwrap();
        answer.clamp_ttls(5, 120);
        let ttls: Vec<u32> = answer.records().map(|record| record.ttl).collect();
        assert_eq!(ttls, [120, 5, 120, 60, 60]);
    }

    #[test]
    fn question_mismatch_is_refused() {
        let bytes = reply().to_vec().unwrap();
        let mut answer = Answer::default();
        for other in [
            &b"\x03wwx\x07example\x03org\0\0\x01\0\x01"[..],
            b"\x03www\x07example\x03org\0\0\x1c\0\x01",
            b"\x03www\x07example\x03org\0\0\x01\0\x03",
        ] {
            assert_eq!(answer.read(&bytes, other), Err(Malformed::Question));
        }
        let mut query = bytes.clone();
        query[2] &= 0x7f;
        assert_eq!(answer.read(&query, &question()), Err(Malformed::Question));
        for opcode in 1..16 {
            let mut other = bytes.clone();
            other[2] |= opcode << 3;
            assert_eq!(answer.read(&other, &question()), Err(Malformed::Question), "opcode {opcode}");
        }
        let bare = [0, 7, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(answer.read(&bare, &question()), Ok(()));
        assert_eq!(answer.rcode, Rcode::FORMERR);
    }

    /// A record with owner, type and data that may be valid or not.
    fn stranger() -> impl Strategy<Value = Vec<u8>> {
        let name = prop_oneof![
            Just(b"\xc0\x0c".to_vec()),
            Just(b"\x03wWw\x07example\x03org\0".to_vec()),
            Just(b"\x01a\xc0\x10".to_vec()),
            (0u8..4, any::<u8>()).prop_map(|(high, low)| vec![0xc0 | high, low]),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        let rtype = prop_oneof![
            proptest::sample::select(vec![
                1u16, 2, 5, 6, 12, 15, 16, 26, 28, 33, 35, 39, 41, 46, 47, 65, 250
            ]),
            any::<u16>(),
        ];
        let data = prop_oneof![
            Just(vec![192, 0, 2, 1]),
            (proptest::collection::vec(any::<u8>(), 0..20), name.clone(), name.clone())
                .prop_map(|(octets, one, other)| [octets, one, other].concat()),
            (name.clone(), name.clone()).prop_map(|(one, other)| [one, other, vec![0; 20]].concat()),
            name.clone().prop_map(|name| [vec![0, 1], name].concat()),
        ];
        (name, rtype, data).prop_map(|(owner, rtype, data)| {
            let mut record = owner;
            record.extend_from_slice(&rtype.to_be_bytes());
            record.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
            record.extend_from_slice(&(data.len() as u16).to_be_bytes());
            record.extend_from_slice(&data);
            record
        })
    }

    proptest! {
        #[test]
        fn relayed_records_are_readable(records in proptest::collection::vec(stranger(), 1..8)) {
            let mut bytes = vec![0, 7, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, records.len() as u8];
            bytes.extend_from_slice(&question());
            bytes.extend(records.concat());
            let mut answer = Answer::default();
            if answer.read(&bytes, &question()).is_ok() {
                let mut relayed = bytes[..HEADER + question().len()].to_vec();
                relayed.extend_from_slice(&answer.body);
                let mut check = Checker::new(&relayed, true);
                let mut left = 0;
                for record in Records::new(&relayed, HEADER + question().len(), answer.counts) {
                    let record = record.unwrap();
                    prop_assert_eq!(check.record(&record), Ok(()));
                    prop_assert!(crate::Name::read(&relayed, record.owner).is_ok());
                    prop_assert!(record.rtype != RType::OPT && record.rtype != RType::TSIG);
                    left += 1;
                }
                prop_assert_eq!(answer.ttls.len(), left);
            }
        }

        #[test]
        fn read_never_panics(
            at in 0usize..200, value in any::<u8>(), cut in 0usize..200, full in any::<bool>(),
        ) {
            let mut bytes = if full { spelled_out(&reply()) } else { reply().to_vec().unwrap() };
            let length = bytes.len();
            bytes[at % length] = value;
            bytes.truncate(length - cut % length);
            let mut answer = Answer::default();
            if answer.read(&bytes, &question()).is_ok() {
                prop_assert_eq!(answer.ttls.len(), answer.counts.iter().map(|&n| usize::from(n)).sum::<usize>());
                answer.clamp_ttls(0, 60);
            }
            let _ = matches!(accept(&bytes), Verdict::Drop);
        }
    }
}
