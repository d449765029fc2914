//! Builds queries, and matches replies to them.

use wire::{Class, Flags, HEADER, Name, RType};

/// A query with one question and no record (RFC 1035, section 4.1); `flags` may have RD only.
pub fn query(id: u16, flags: u16, name: &Name, rtype: RType, class: Class) -> Vec<u8> {
    let mut query = Vec::with_capacity(HEADER + name.as_wire().len() + 4);
    for number in [id, flags, 1, 0, 0, 0] {
        query.extend_from_slice(&number.to_be_bytes());
    }
    query.extend_from_slice(name.as_wire());
    query.extend_from_slice(&rtype.0.to_be_bytes());
    query.extend_from_slice(&class.0.to_be_bytes());
    query
}

/// Whether this is a reply to `query`: same id and question. Servers that cannot parse a query may leave the question out.
pub fn is_reply(reply: &[u8], query: &[u8]) -> bool {
    let Some(header) = reply.first_chunk::<HEADER>() else { return false };
    let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let asked = question(query);
    let same = || {
        let theirs = reply.get(HEADER..HEADER + asked.len());
        theirs.is_some_and(|theirs| theirs.eq_ignore_ascii_case(asked))
    };
    query.starts_with(&header[..2])
        && Flags(number(2)).has(Flags::QR)
        && match number(4) {
            0 => true,
            1 => same(),
            _ => false,
        }
}

/// The question of a query made here.
fn question(query: &[u8]) -> &[u8] {
    let end = Name::read_plain(query, HEADER).map_or(HEADER, |(_, end)| end + 4);
    query.get(HEADER..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_has_one_question() {
        let name = Name::from_text("a.b").unwrap();
        assert_eq!(
            query(0x0102, Flags::RD, &name, RType::NS, Class::IN),
            b"\x01\x02\x01\0\0\x01\0\0\0\0\0\0\x01a\x01b\0\0\x02\0\x01"
        );
        assert_eq!(query(0, 0, &Name::ROOT, RType::TXT, Class::CH)[HEADER..], *b"\0\0\x10\0\x03");
    }

    #[test]
    fn reply_matching() {
        let asked = query(0x0707, Flags::RD, &Name::from_text("a.b").unwrap(), RType::NS, Class::IN);
        let reply = |head: &[u8], question: &[u8]| [head, &[0; 6], question].concat();
        for (head, question, counts) in [
            (b"\x07\x07\x80\x05\0\0", &b""[..], true),
            (b"\x07\x07\x80\0\0\x01", b"\x01A\x01b\0\0\x02\0\x01", true),
            (b"\x07\x07\x80\0\0\x01", b"\x01a\x01b\0\0\x02\0\x01rest", true),
            (b"\x07\x08\x80\x05\0\0", b"", false),
            (b"\x07\x07\0\x05\0\0", b"", false),
            (b"\x07\x07\x80\0\0\x01", b"\x01a\x01c\0\0\x02\0\x01", false),
            (b"\x07\x07\x80\0\0\x01", b"\x01a\x01b\0\0\x01\0\x01", false),
            (b"\x07\x07\x80\0\0\x01", b"\x01a\x01b\0\0\x02\0", false),
            (b"\x07\x07\x80\0\0\x02", b"\x01a\x01b\0\0\x02\0\x01", false),
        ] {
            assert_eq!(is_reply(&reply(head, question), &asked), counts, "{head:?} {question:?}");
        }
        assert!(!is_reply(&[7, 7, 0x80, 5, 0, 0, 0, 0, 0, 0, 0], &asked), "no header");
    }
}
