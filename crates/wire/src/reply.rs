//! A reply under construction: the client's question, the records, our OPT.

use crate::compress::ReplyWriter;
use crate::edns::{opt_length, write_opt};
use crate::records::Records;
use crate::{Answer, Class, Flags, HEADER, Malformed, OptionBytes, Query, RType, Rcode, Section};

/// The owner of a written record.
#[derive(Clone, Copy)]
pub enum Owner<'n> {
    /// The queried name: a pointer to the question.
    Question,
    /// Another name, in wire form.
    Name(&'n [u8]),
}

/// A reply, written into the buffer that is sent: header and question first, then records.
///
/// Records must be pushed in section order. [`Reply::finish`] fills in the header, appends the OPT
/// and truncates.
pub struct Reply<'b> {
    out: &'b mut Vec<u8>,
    body_at: usize,
    /// The rcode; its upper bits need an OPT.
    pub rcode: Rcode,
    /// AA, TC, RA and AD; RD if it is sent though the client did not set it.
    pub flags: u16,
    /// RD if the client's is not echoed.
    pub dropped_flags: u16,
    counts: [u16; 3],
    /// EDNS options for the client, sent only if it sent an OPT.
    pub options: OptionBytes,
}

impl<'b> Reply<'b> {
    /// Starts a reply in `out`, replacing its content: NOERROR, no flags, no records.
    #[inline]
    pub fn start(out: &'b mut Vec<u8>, query: &Query<'_>) -> Self {
        out.clear();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(query.question);
        let body_at = out.len();
        Self {
            out,
            body_at,
            rcode: Rcode::NOERROR,
            flags: 0,
            dropped_flags: 0,
            counts: [0; 3],
            options: OptionBytes::none(),
        }
    }

    /// Removes records, flags, rcode and options.
    pub fn clear(&mut self) {
        self.out.truncate(self.body_at);
        self.rcode = Rcode::NOERROR;
        self.flags = 0;
        self.dropped_flags = 0;
        self.counts = [0; 3];
        self.options = OptionBytes::none();
    }

    /// Appends encoded records with pointers from the start of the message.
    #[inline]
    pub fn push_ready(&mut self, body: &[u8], counts: [u16; 3]) {
        self.out.extend_from_slice(body);
        for (count, more) in self.counts.iter_mut().zip(counts) {
            *count += more;
        }
    }

    /// Appends one record; `ttl` in seconds.
    pub fn push(
        &mut self,
        section: Section,
        owner: Owner<'_>,
        rtype: RType,
        class: Class,
        ttl: u32,
        data: &[u8],
    ) {
        match owner {
            Owner::Question => self.out.extend_from_slice(&[0xc0, HEADER as u8]),
            Owner::Name(name) => self.out.extend_from_slice(name),
        }
        let mut fields = [0; 10];
        fields[..2].copy_from_slice(&rtype.0.to_be_bytes());
        fields[2..4].copy_from_slice(&class.0.to_be_bytes());
        fields[4..8].copy_from_slice(&ttl.to_be_bytes());
        fields[8..].copy_from_slice(&(data.len() as u16).to_be_bytes());
        self.out.extend_from_slice(&fields);
        self.out.extend_from_slice(data);
        self.counts[section as usize] += 1;
    }

    /// A writer of further records with compressed names; `query` is that of [`Reply::start`].
    ///
    /// # Errors
    /// [`Malformed`] if the question has no name.
    pub fn compressing<'r>(&'r mut self, query: &'r Query<'_>) -> Result<ReplyWriter<'r>, Malformed> {
        ReplyWriter::new(self.out, query.question, &mut self.counts)
    }

    /// Appends an answer: rcode, records, Extended DNS Errors and the flags that this client may
    /// see.
    pub fn push_answer(&mut self, query: &Query<'_>, answer: &Answer) {
        self.rcode = answer.rcode;
        self.flags = query.visible_flags(answer.flags);
        self.push_ready(&answer.body, answer.counts);
        self.options.extend_encoded(&answer.ede);
    }

    /// The records written so far, for patching TTLs.
    #[inline]
    pub fn body_mut(&mut self) -> &mut [u8] {
        &mut self.out[self.body_at..]
    }

    /// The records written so far, as offsets in [`Reply::body_mut`].
    pub fn records(&self) -> impl Iterator<Item = crate::Record> {
        Records::new(&self.out[self.body_at..], 0, self.counts).map_while(Result::ok)
    }

    /// The message so far; [`Reply::finish`] fills in its header.
    pub fn octets(&self) -> &[u8] {
        self.out
    }

    /// Records in the answer, authority and additional sections.
    pub fn counts(&self) -> [u16; 3] {
        self.counts
    }

    /// Completes the reply within `limit` bytes. Returns the header flags as sent, with the low
    /// bits of the rcode, and the length.
    ///
    /// RD and CD are the client's, the question is in its case. Records that do not fit are left
    /// out from the end; TC is set if one of them was in the answer or authority section (RFC 2181,
    /// section 9). The OPT always stays (RFC 6891, section 7).
    #[inline]
    pub fn finish(&mut self, query: &Query<'_>, limit: usize) -> (Flags, usize) {
        let opts = match &query.edns {
            Some(edns) => {
                let options = self.options.as_bytes();
                if self.out.len() + opt_length(options) > limit {
                    let limit = limit.saturating_sub(opt_length(options));
                    Self::cut(self.out, self.body_at, &mut self.counts, &mut self.flags, limit);
                }
                write_opt(self.out, self.rcode, edns.dnssec_ok, options);
                1
            }
            None => {
                if self.out.len() > limit {
                    Self::cut(self.out, self.body_at, &mut self.counts, &mut self.flags, limit);
                }
                0
            }
        };
        let kept = query.flags.0 & (0x7800 | Flags::RD | Flags::CD) & !self.dropped_flags;
        let flags = Flags::QR | kept | self.flags | (self.rcode.0 & 0xf);
        let [answers, authorities, additionals] = self.counts;
        let words = [query.id, flags, 1, answers, authorities, additionals + opts].map(u16::to_be_bytes);
        self.out[..HEADER].copy_from_slice(words.as_flattened());
        (Flags(flags), self.out.len())
    }

    #[cold]
    fn cut(out: &mut Vec<u8>, body_at: usize, counts: &mut [u16; 3], flags: &mut u16, limit: usize) {
        let mut kept = [0; 3];
        let mut end = body_at;
        for record in Records::new(&out[body_at..], 0, *counts).map_while(Result::ok) {
            if body_at + record.end() > limit {
                break;
            }
            end = body_at + record.end();
            kept[record.section as usize] += 1;
        }
        if kept[..2] != counts[..2] {
            *flags |= Flags::TC;
        }
        out.truncate(end);
        *counts = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ede, Verdict, accept};
    use hickory_proto::op::Message;

    fn query(edns: Option<u16>) -> Vec<u8> {
        let mut packet = b"\x12\x34\x01\x10\0\x01\0\0\0\0\0\0\x07eXample\x03org\0\0\x01\0\x01".to_vec();
        if let Some(size) = edns {
            packet[11] = 1;
            packet.extend_from_slice(b"\0\0\x29");
            packet.extend_from_slice(&size.to_be_bytes());
            packet.extend_from_slice(b"\0\0\x80\0\0\0");
        }
        packet
    }

    fn reply(packet: &[u8], records: u8, limit: usize) -> (Vec<u8>, Message) {
        let Verdict::Pass(query) = accept(packet) else { panic!("refused") };
        let mut out = b"left over from the last reply".to_vec();
        let mut reply = Reply::start(&mut out, &query);
        reply.flags = Flags::AA;
        for last in 0..records {
            reply.push(Section::Answer, Owner::Question, RType::A, Class::IN, 60, &[192, 0, 2, last]);
        }
        reply.push(Section::Additional, Owner::Name(b"\x02ns\0"), RType::A, Class::IN, 60, &[192, 0, 2, 254]);
        reply.options.push_ede(Ede::STALE_ANSWER);
        reply.finish(&query, limit);
        let message = Message::from_vec(&out).unwrap();
        (out, message)
    }

    #[test]
    fn question_is_echoed() {
        let (bytes, message) = reply(&query(None), 1, 512);
        assert_eq!(&bytes[12..29], &query(None)[12..29]);
        assert_eq!(message.id, 0x1234);
        assert!(message.recursion_desired && message.checking_disabled && message.authoritative);
        assert_eq!((message.answers.len(), message.additionals.len()), (1, 1));
        assert!(message.edns.is_none());
    }

    #[test]
    fn opt_is_answered() {
        let (_, message) = reply(&query(Some(4096)), 1, 1232);
        let edns = message.edns.unwrap();
        assert_eq!(edns.max_payload(), 1232);
        assert!(edns.flags().dnssec_ok);
    }

    #[test]
    fn truncation_keeps_the_opt() {
        for limit in 512..560 {
            let (bytes, message) = reply(&query(Some(512)), 40, limit);
            assert!(bytes.len() <= limit, "{} of {limit}", bytes.len());
            assert!(bytes.len() + 16 > limit);
            assert!(message.truncation && message.edns.is_some());
        }
    }

    #[test]
    fn cut_additional_sets_no_tc() {
        let room = 29 + 16 * 3;
        let (_, message) = reply(&query(None), 3, room);
        assert!(!message.truncation);
        assert_eq!((message.answers.len(), message.additionals.len()), (3, 0));
    }
}
