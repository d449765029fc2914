//! Checks that a reply has the expected content. Trusts no byte of it.

use std::net::Ipv4Addr;

use wire::{HEADER, RType, Rcode, Records, Section};

/// The expected content of a reply, beside the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Any reply, such as that of the echo server.
    Reply,
    /// This rcode.
    Rcode(Rcode),
    /// NOERROR, and an A record with this address in the answer section.
    Address(Ipv4Addr),
}

/// The result of checking a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The expected reply.
    Right,
    /// A reply to another question, or one that cannot be parsed.
    WrongQuestion,
    /// A reply with another rcode.
    WrongRcode,
    /// A reply with the expected rcode, but without the address.
    WrongAddress,
}

/// Returns the id of a reply; `None` for a message that is no reply.
#[inline]
pub fn reply_id(message: &[u8]) -> Option<u16> {
    let header = message.first_chunk::<HEADER>()?;
    (header[2] & 0x80 != 0).then(|| u16::from_be_bytes([header[0], header[1]]))
}

/// Judges a reply to `question`, which is the name, type and class as they were sent.
#[inline]
pub fn judge(reply: &[u8], question: &[u8], expect: Expect) -> Judgement {
    let Some(header) = reply.first_chunk::<HEADER>() else { return Judgement::WrongQuestion };
    let end = HEADER + question.len();
    if header[4..6] != [0, 1] || reply.get(HEADER..end) != Some(question) {
        return Judgement::WrongQuestion;
    }
    let rcode = Rcode(u16::from(header[3] & 0xf));
    let address = match expect {
        Expect::Reply => return Judgement::Right,
        Expect::Rcode(wanted) if wanted == rcode => return Judgement::Right,
        Expect::Address(address) if rcode == Rcode::NOERROR => address,
        Expect::Rcode(_) | Expect::Address(_) => return Judgement::WrongRcode,
    };
    let answers = u16::from_be_bytes([header[6], header[7]]);
    let found = Records::new(reply, end, [answers, 0, 0]).map_while(Result::ok).any(|record| {
        record.section == Section::Answer
            && record.rtype == RType::A
            && record.data(reply) == address.octets()
    });
    if found { Judgement::Right } else { Judgement::WrongAddress }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUESTION: &[u8] = b"\x03www\0\0\x01\0\x01";

    fn reply(rcode: u8, answers: u8, body: &[&[u8]]) -> Vec<u8> {
        let mut reply = vec![0, 7, 0x80, rcode, 0, 1, 0, answers, 0, 0, 0, 0];
        reply.extend(body.concat());
        reply
    }

    #[test]
    fn a_reply_is_right_only_when_question_rcode_and_address_are() {
        let record: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x01\x02\x03";
        let alias: &[u8] = b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x02\xc0\x0c";
        let (right, other) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(10, 1, 2, 4));
        let rows = [
            (reply(0, 1, &[QUESTION, record]), Expect::Address(right), Judgement::Right),
            (reply(0, 2, &[QUESTION, alias, record]), Expect::Address(right), Judgement::Right),
            (reply(0, 1, &[QUESTION, record]), Expect::Address(other), Judgement::WrongAddress),
            (reply(0, 0, &[QUESTION]), Expect::Address(right), Judgement::WrongAddress),
            (reply(0, 1, &[QUESTION, &record[..15]]), Expect::Address(right), Judgement::WrongAddress),
            (reply(2, 1, &[QUESTION, record]), Expect::Address(right), Judgement::WrongRcode),
            (reply(3, 0, &[QUESTION]), Expect::Rcode(Rcode::NXDOMAIN), Judgement::Right),
            (reply(0, 0, &[QUESTION]), Expect::Rcode(Rcode::NXDOMAIN), Judgement::WrongRcode),
            (reply(5, 0, &[QUESTION]), Expect::Reply, Judgement::Right),
            (reply(0, 0, &[b"\x03wwx\0\0\x01\0\x01"]), Expect::Reply, Judgement::WrongQuestion),
            (reply(0, 0, &[&QUESTION[..4]]), Expect::Reply, Judgement::WrongQuestion),
            (vec![0, 7, 0x80], Expect::Reply, Judgement::WrongQuestion),
        ];
        for (reply, expect, verdict) in rows {
            assert_eq!(judge(&reply, QUESTION, expect), verdict, "{reply:?} {expect:?}");
        }
    }

    #[test]
    fn a_query_or_a_stump_is_no_reply() {
        assert_eq!(reply_id(&reply(0, 0, &[])), Some(7));
        assert_eq!(reply_id(&[0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(reply_id(&[0, 7, 0x80, 0]), None);
    }

    proptest! {
        #[test]
        fn no_reply_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = reply_id(&bytes);
            let head = [reply(0, 9, &[QUESTION]), bytes].concat();
            let _ = judge(&head, QUESTION, Expect::Address(Ipv4Addr::LOCALHOST));
        }
    }
}
