//! A reply as owned records, for plugins that change names, data or counts.
//!
//! Most replies never become one: they go from their source to the client as encoded bytes. Names
//! keep their case; a name that equals the question's is written as a pointer to it and so takes
//! the client's case.

use crate::compress::spell_out;
use crate::records::{Malformed, Record, Records, Section};
use crate::{Class, CompressingWriter, Flags, HEADER, Name, OptionBytes, Query, RType, Rcode, Reply};

/// A reply without id and question, which are the client's.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The rcode, with the upper bits.
    pub rcode: Rcode,
    /// AA, TC, RD, RA and AD.
    pub flags: u16,
    /// The records, in section order.
    pub records: Vec<Rr>,
    /// EDNS options for the client.
    pub options: OptionBytes,
}

/// One record with uncompressed names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rr {
    /// Its section.
    pub section: Section,
    /// Its owner, in uncompressed wire form.
    pub owner: Box<[u8]>,
    /// Its type.
    pub rtype: RType,
    /// Its class.
    pub class: Class,
    /// Its TTL in seconds.
    pub ttl: u32,
    /// Its data, with uncompressed names.
    pub data: Box<[u8]>,
}

impl Rr {
    /// A record of class IN; `owner` and the names in `data` are uncompressed.
    pub fn new(section: Section, owner: &Name, rtype: RType, ttl: u32, data: &[u8]) -> Self {
        Self { section, owner: owner.as_wire().into(), rtype, class: Class::IN, ttl, data: data.into() }
    }

    /// The owner, lower-cased.
    pub fn name(&self) -> Name {
        // The owner was read as a name, or written from one.
        Name::from_wire(&self.owner).unwrap_or(Name::ROOT)
    }

    /// The name at the start of its data, as in a CNAME.
    pub fn target(&self) -> Option<Name> {
        Name::from_wire(&self.data).ok()
    }

    fn read(message: &[u8], record: &Record) -> Result<Self, Malformed> {
        let mut plain = Vec::new();
        spell_out(message, record, &mut plain)?;
        let Record { section, rtype, class, ttl, .. } = *record;
        let spelled = first(&plain)?;
        // Type, class, TTL and length are between owner and data.
        let owner = plain.get(..spelled.ttl_at - 4).unwrap_or_default().into();
        Ok(Self { section, owner, rtype, class, ttl, data: spelled.data(&plain).into() })
    }

    /// Appends the record to its section of `message`; `buffer` is scratch space.
    ///
    /// # Errors
    /// As [`CompressingWriter::push`].
    pub fn push_to(
        &self,
        message: &mut CompressingWriter<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        buffer.clear();
        self.write(buffer)?;
        message.push(self.section, buffer, &first(buffer)?)
    }

    /// Appends the record with uncompressed names.
    fn write(&self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let length = u16::try_from(self.data.len()).map_err(|_| Malformed::Long)?;
        out.extend_from_slice(&self.owner);
        out.extend_from_slice(&self.rtype.0.to_be_bytes());
        out.extend_from_slice(&self.class.0.to_be_bytes());
        out.extend_from_slice(&self.ttl.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&self.data);
        Ok(())
    }
}

impl Message {
    /// An answer to `query` without records.
    pub fn empty(query: &Query<'_>, rcode: Rcode) -> Self {
        Self { rcode, flags: query.flags.0 & Flags::RD, ..Self::default() }
    }

    /// Replaces the content of `reply`, which was started for `query`. Records that exceed 65,535
    /// bytes are left out from the end, with TC set.
    ///
    /// # Errors
    /// [`Malformed`] if a record cannot be read; the reply is empty then.
    pub fn write(&self, query: &Query<'_>, reply: &mut Reply<'_>) -> Result<(), Malformed> {
        reply.clear();
        let (mut body, mut buffer) = (Vec::new(), Vec::new());
        let mut merge = CompressingWriter::new(query.question, &mut body)?;
        let mut cut = 0;
        'records: for section in [Section::Answer, Section::Authority, Section::Additional] {
            for rr in self.section(section) {
                match rr.push_to(&mut merge, &mut buffer) {
                    Err(Malformed::Long) => {
                        cut = if section == Section::Additional { 0 } else { Flags::TC };
                        break 'records;
                    }
                    pushed => pushed?,
                }
            }
        }
        let counts = merge.counts();
        (reply.rcode, reply.flags, reply.options) = (self.rcode, self.flags | cut, self.options);
        reply.dropped_flags = !self.flags & Flags::RD;
        reply.push_ready(&body, counts);
        Ok(())
    }

    /// Clears AD: no signature covers records that this server made or changed (RFC 4035, section
    /// 3.2.3).
    pub fn clear_ad(&mut self) {
        self.flags &= !Flags::AD;
    }

    /// The records of one section.
    pub fn section(&self, section: Section) -> impl Iterator<Item = &Rr> {
        self.records.iter().filter(move |rr| rr.section == section)
    }
}

/// A copy of a reply in wire form, for keeping it while its records are not needed.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Header, question, records.
    octets: Box<[u8]>,
    start: usize,
    counts: [u16; 3],
    rcode: Rcode,
    flags: u16,
    options: Box<[u8]>,
}

impl Packed {
    /// Copies `reply`, which was started for `query`.
    pub fn new(query: &Query<'_>, reply: &Reply<'_>) -> Self {
        let echoed = query.flags.0 & Flags::RD & !reply.dropped_flags;
        Self {
            octets: reply.octets().into(),
            start: HEADER + query.question.len(),
            counts: reply.counts(),
            rcode: reply.rcode,
            flags: reply.flags | echoed,
            options: reply.options.as_bytes().into(),
        }
    }

    /// Decodes the first `most` records of all sections together. TC is set if records of the
    /// answer or authority section are left out (RFC 2181, section 9).
    ///
    /// # Errors
    /// [`Malformed`] if a record cannot be read.
    pub fn message(&self, most: u16) -> Result<Message, Malformed> {
        let (counts, cut) = self.first(most);
        let records = Records::new(&self.octets, self.start, counts)
            .map(|record| Rr::read(&self.octets, &record?))
            .collect::<Result<_, _>>()?;
        let mut options = OptionBytes::none();
        options.extend_encoded(&self.options);
        Ok(Message { rcode: self.rcode, flags: self.flags | cut, records, options })
    }

    /// Returns the number of records that [`message`](Self::message) decodes.
    pub fn records(&self, most: u16) -> usize {
        self.first(most).0.into_iter().map(usize::from).sum()
    }

    /// Returns the number of records to decode in each section, and TC if answer or authority
    /// records are left out.
    fn first(&self, most: u16) -> ([u16; 3], u16) {
        let mut left = most;
        let counts = self.counts.map(|count| {
            let taken = count.min(left);
            left -= taken;
            taken
        });
        let cut = counts[..Section::Additional as usize] != self.counts[..Section::Additional as usize];
        (counts, if cut { Flags::TC } else { 0 })
    }

    /// Bytes of memory outside of the struct.
    pub fn octets(&self) -> usize {
        self.octets.len() + self.options.len()
    }
}

/// Reads the single record in `plain`.
fn first(plain: &[u8]) -> Result<Record, Malformed> {
    Records::new(plain, 0, [1, 0, 0]).next().ok_or(Malformed::Short)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Owner, Verdict, accept};
    use proptest::prelude::*;

    const ASKED: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03WWW\x07example\x03org\0\0\x01\0\x01";
    const EFFECTIVE: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\x02lo\x07Example\x03net\0\0\x01\0\x01";

    fn with_reply<T>(packet: &[u8], f: impl FnOnce(&Query<'_>, &mut Reply<'_>) -> T) -> T {
        let Verdict::Pass(query) = accept(packet) else { panic!("refused") };
        let mut out = Vec::new();
        let mut reply = Reply::start(&mut out, &query);
        f(&query, &mut reply)
    }

    fn fill(reply: &mut Reply<'_>) {
        reply.flags = Flags::AA;
        reply.push(Section::Answer, Owner::Question, RType::CNAME, Class::IN, 5, b"\x03web\xc0\x0e");
        let target = b"\x03web\x02lo\x07Example\x03net\0";
        reply.push(Section::Answer, Owner::Name(target), RType::A, Class::IN, 6, &[192, 0, 2, 1]);
        reply.push(Section::Authority, Owner::Name(b"\xc0\x0e"), RType::NS, Class::IN, 7, b"\x02ns\xc0\x0e");
        reply.push(
            Section::Additional,
            Owner::Name(b"\x02ns\xc0\x0e"),
            RType(999),
            Class::IN,
            8,
            b"\xc0\x0c",
        );
    }

    /// Data of unknown types stays as it is.
    #[test]
    fn decoded_names_keep_their_case() {
        let message = with_reply(EFFECTIVE, |query, reply| {
            fill(reply);
            Packed::new(query, reply).message(u16::MAX).unwrap()
        });
        let rows: Vec<(&[u8], &[u8])> = message.records.iter().map(|rr| (&*rr.owner, &*rr.data)).collect();
        assert_eq!(
            rows,
            [
                (&b"\x01a\x02lo\x07Example\x03net\0"[..], &b"\x03web\x02lo\x07Example\x03net\0"[..]),
                (b"\x03web\x02lo\x07Example\x03net\0", &[192, 0, 2, 1]),
                (b"\x02lo\x07Example\x03net\0", b"\x02ns\x02lo\x07Example\x03net\0"),
                (b"\x02ns\x02lo\x07Example\x03net\0", b"\xc0\x0c"),
            ]
        );
    }

    #[test]
    fn decoding_stops_at_the_limit() {
        let packed = with_reply(EFFECTIVE, |query, reply| {
            fill(reply);
            Packed::new(query, reply)
        });
        // Two records of the answer section, one of each other section.
        for (most, records, cut) in
            [(0, 0, true), (1, 1, true), (2, 2, true), (3, 3, false), (4, 4, false), (u16::MAX, 4, false)]
        {
            let message = packed.message(most).unwrap();
            assert_eq!((message.records.len(), message.flags & Flags::TC != 0), (records, cut), "{most}");
            assert_eq!(packed.records(most), records, "{most}");
        }
    }

    #[test]
    fn message_moves_to_another_question() {
        let mut message = with_reply(EFFECTIVE, |query, reply| {
            fill(reply);
            Packed::new(query, reply).message(u16::MAX).unwrap()
        });
        let asked = Name::from_text("www.example.org").unwrap();
        message.records[0].owner = asked.as_wire().into();
        message.records.retain(|rr| rr.section != Section::Additional);
        let again = with_reply(ASKED, |query, reply| {
            message.write(query, reply).unwrap();
            assert_eq!(reply.counts(), [2, 1, 0]);
            // The owner is a pointer to the question, which has the client's case.
            assert!(reply.body_mut().starts_with(b"\xc0\x0c\0\x05"));
            Packed::new(query, reply).message(u16::MAX).unwrap()
        });
        assert_eq!(again.records[0].owner.as_ref(), b"\x03WWW\x07example\x03org\0");
        assert_eq!(again.records[1..], message.records[1..]);
        assert_eq!(again.flags, Flags::AA | Flags::RD);
    }

    #[test]
    fn oversized_message_is_truncated() {
        let owner = Name::from_text("txt.example.org").unwrap();
        let of = |section, length| Rr::new(section, &owner, RType::TXT, 1, &vec![0; length]);
        for (records, counts, flags) in [
            (vec![of(Section::Answer, 40_000), of(Section::Answer, 40_000)], [1, 0, 0], Flags::TC),
            (vec![of(Section::Answer, 40_000), of(Section::Additional, 40_000)], [1, 0, 0], 0),
            (vec![of(Section::Answer, 40_000), of(Section::Additional, 20_000)], [1, 0, 1], 0),
        ] {
            let message = Message { records, ..Message::default() };
            with_reply(ASKED, |query, reply| {
                message.write(query, reply).unwrap();
                assert_eq!((reply.counts(), reply.flags), (counts, flags));
                assert_eq!(reply.records().count(), counts.iter().map(|&count| usize::from(count)).sum());
            });
        }
    }

    #[test]
    fn thousand_records_survive_the_roundtrip() {
        let question = [&[1, b'a'].repeat(32)[..], b"\x03org\0\0\x0c\0\x01"].concat();
        let packet = [&ASKED[..HEADER], &question].concat();
        let owner = Name::from_wire(&question[..question.len() - 4]).unwrap();
        let records: Vec<_> = (0..1_000_u16)
            .map(|n| {
                let target = Name::from_text(&format!("host-{n}.some.where.example.org")).unwrap();
                Rr::new(Section::Answer, &owner, RType::PTR, 1, target.as_wire())
            })
            .collect();
        let message = Message { records, ..Message::default() };
        with_reply(&packet, |query, reply| {
            message.write(query, reply).unwrap();
            assert_eq!((reply.counts(), reply.flags), ([1_000, 0, 0], 0));
            assert_eq!(Packed::new(query, reply).message(u16::MAX).unwrap().records, message.records);
        });
    }

    proptest! {
        /// Decoding and encoding a reply of any content changes nothing.
        #[test]
        fn decode_encode_roundtrip(octets in prop::collection::vec(any::<u8>(), 0..120), counts in any::<[u8; 3]>()) {
            let mut packet = EFFECTIVE.to_vec();
            packet[2] |= 0x80;
            for (at, count) in [(7, counts[0] % 4), (9, counts[1] % 3), (11, counts[2] % 3)] {
                packet[at] = count;
            }
            packet.extend_from_slice(&octets);
            let mut answer = Answer::default();
            if answer.read(&packet, &EFFECTIVE[HEADER..]).is_ok() {
                with_reply(EFFECTIVE, |query, reply| {
                    reply.push_answer(query, &answer);
                    if let Ok(message) = Packed::new(query, reply).message(u16::MAX) {
                        message.write(query, reply).unwrap();
                        let again = Packed::new(query, reply).message(u16::MAX).unwrap();
                        prop_assert_eq!(again.records, message.records);
                    }
                    Ok(())
                })?;
            }
        }
    }
}
