//! Name compression (RFC 1035, section 4.1.4): writes the records of a message again with
//! compressed names.

use crate::name::walk;
use crate::rdata::DataShape;
use crate::records::{Malformed, Record, Records, Section};
use crate::{Class, HEADER, MAX_NAME, RType};

/// Names remembered as targets of pointers. Most replies repeat the question's name and one or two
/// more.
const CANDIDATES: usize = 64;
/// Labels read, compared and searched for in one message: enough for a thousand records of an
/// honest reply, about 0.2 ms. 5,000 records of 127 labels each, compared with 64 candidates each,
/// took 16 s.
const MAX_WORK: u32 = 1 << 16;

/// Writes the records of `message` to `body` as they follow `question`, without OPT and TSIG.
/// Returns the counts of the sections.
///
/// # Errors
/// [`Malformed`] if the message cannot be read; [`Malformed::Long`] if the result exceeds 65,535
/// bytes; [`Malformed::Work`] if it takes more than [`MAX_WORK`].
pub(crate) fn rewrite(
    message: &[u8],
    question: &[u8],
    counts: [u16; 3],
    body: &mut Vec<u8>,
) -> Result<[u16; 3], Malformed> {
    let start = HEADER + question.len();
    let mut writer = Writer::new(start, body);
    let mut written = [0; 3];
    let question_name = RawName::read(message, HEADER)?;
    writer.remember_question(&question_name);
    for record in Records::new(message, start, counts) {
        let record = record?;
        if matches!(record.rtype, RType::OPT | RType::TSIG) {
            continue;
        }
        writer.record(message, question, &record)?;
        written[record.section as usize] += 1;
    }
    Ok(written)
}

/// Writes records of one or more messages behind one question, with compressed names.
pub struct CompressingWriter<'b> {
    question: &'b [u8],
    writer: Writer<'b>,
    counts: [u16; 3],
}

impl<'b> CompressingWriter<'b> {
    /// A writer to `body`, which is emptied, of the records behind `question`.
    ///
    /// # Errors
    /// [`Malformed`] if the question has no name.
    pub fn new(question: &'b [u8], body: &'b mut Vec<u8>) -> Result<Self, Malformed> {
        body.clear();
        let mut writer = Writer { gives_up: true, ..Writer::new(HEADER + question.len(), body) };
        writer.remember_question(&RawName::read(question, 0)?);
        Ok(Self { question, writer, counts: [0; 3] })
    }

    /// Appends `record` of `message` to `section`; sections must be in message order.
    ///
    /// # Errors
    /// [`Malformed`] if the record cannot be read or the message would exceed 65,535 bytes; bytes
    /// written before stay.
    pub fn push(&mut self, section: Section, message: &[u8], record: &Record) -> Result<(), Malformed> {
        let before = self.writer.body.len();
        if let Err(error) = self.writer.record(message, self.question, record) {
            self.writer.body.truncate(before);
            return Err(error);
        }
        self.counts[section as usize] += 1;
        Ok(())
    }

    /// Records in each section.
    pub fn counts(&self) -> [u16; 3] {
        self.counts
    }
}

/// Writes records behind those of a reply, with compressed names; allocates nothing besides the
/// reply.
pub struct ReplyWriter<'r> {
    question: &'r [u8],
    writer: Writer<'r>,
    counts: &'r mut [u16; 3],
}

/// A place between two records of a reply.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    octets: usize,
    names: usize,
    counts: [u16; 3],
}

impl<'r> ReplyWriter<'r> {
    /// `out` is the message so far, with header and question.
    pub(crate) fn new(
        out: &'r mut Vec<u8>,
        question: &'r [u8],
        counts: &'r mut [u16; 3],
    ) -> Result<Self, Malformed> {
        let mut writer = Writer { gives_up: true, ..Writer::new(0, out) };
        writer.remember_question(&RawName::read(question, 0)?);
        Ok(Self { question, writer, counts })
    }

    /// Appends a record of class IN to `section`; sections must be in message order. `owner` and the
    /// names in `data` are uncompressed, `ttl` is in seconds.
    ///
    /// # Errors
    /// [`Malformed`] if owner or data cannot be read or the message would exceed 65,535 bytes; the
    /// reply is unchanged then.
    pub fn push(
        &mut self,
        section: Section,
        owner: &[u8],
        rtype: RType,
        ttl: u32,
        data: &[u8],
    ) -> Result<(), Malformed> {
        let mark = self.mark();
        let record =
            Record { section, owner: 0, rtype, class: Class::IN, ttl, ttl_at: 0, data: 0..data.len() };
        let owner = RawName::read(owner, 0)?;
        if let Err(error) = self.writer.fields(&owner, data, self.question, &record) {
            self.rewind(mark);
            return Err(error);
        }
        self.counts[section as usize] += 1;
        Ok(())
    }

    /// Bytes of the message so far.
    pub fn octets(&self) -> usize {
        self.writer.body.len()
    }

    /// Records in each section.
    pub fn counts(&self) -> [u16; 3] {
        *self.counts
    }

    /// The place behind the last record.
    pub fn mark(&self) -> Mark {
        Mark { octets: self.octets(), names: self.writer.known, counts: *self.counts }
    }

    /// Removes the records behind a place.
    pub fn rewind(&mut self, mark: Mark) {
        self.writer.body.truncate(mark.octets);
        self.writer.known = mark.names;
        *self.counts = mark.counts;
    }
}

/// Writes one record to `out`, which is emptied, with uncompressed names.
pub(crate) fn spell_out(message: &[u8], record: &Record, out: &mut Vec<u8>) -> Result<(), Malformed> {
    out.clear();
    let mut writer = Writer { spelled_out: true, ..Writer::new(0, out) };
    writer.record(message, &[], record)
}

struct Writer<'b> {
    /// Offset of `body` in the finished message.
    base: usize,
    body: &'b mut Vec<u8>,
    /// Offsets of remembered names in the finished message; below `base` is the question.
    candidates: [u16; CANDIDATES],
    /// [`mark`] of each candidate, so that few are compared.
    marks: [u16; CANDIDATES],
    known: usize,
    /// Number of labels that may still be read or compared.
    work: u32,
    /// Whether all names are written without compression.
    spelled_out: bool,
    /// Whether names other than the question's are written in full once `work` is spent.
    gives_up: bool,
}

impl<'b> Writer<'b> {
    fn new(base: usize, body: &'b mut Vec<u8>) -> Self {
        let none = [0; CANDIDATES];
        Self {
            base,
            body,
            candidates: none,
            marks: none,
            known: 0,
            work: MAX_WORK,
            spelled_out: false,
            gives_up: false,
        }
    }

    fn spend(&mut self, labels: u32) -> Result<(), Malformed> {
        match self.work.checked_sub(labels) {
            Some(left) => self.work = left,
            None if self.gives_up => self.work = 0,
            None => return Err(Malformed::Work),
        }
        Ok(())
    }

    fn record(&mut self, message: &[u8], question: &[u8], record: &Record) -> Result<(), Malformed> {
        let owner = RawName::read(message, record.owner)?;
        self.fields(&owner, message, question, record)
    }

    /// As [`Self::record`], with the owner from elsewhere.
    fn fields(
        &mut self,
        owner: &RawName,
        message: &[u8],
        question: &[u8],
        record: &Record,
    ) -> Result<(), Malformed> {
        self.name(owner, question, true)?;
        self.body.extend_from_slice(&record.rtype.0.to_be_bytes());
        self.body.extend_from_slice(&record.class.0.to_be_bytes());
        self.body.extend_from_slice(&record.ttl.to_be_bytes());
        let length_at = self.body.len();
        self.body.extend_from_slice(&[0, 0]);
        let shape = DataShape::of(record.rtype);
        let mut at = record.data.start;
        let prefix = shape.prefix(record.data(message)).ok_or(Malformed::Short)?;
        let fixed = message.get(at..at + prefix).ok_or(Malformed::Short)?;
        self.body.extend_from_slice(fixed);
        at += prefix;
        for _ in 0..shape.names {
            if at >= record.data.end {
                return Err(Malformed::Short);
            }
            let name = RawName::read(message, at)?;
            at = name.end;
            self.name(&name, question, shape.compress)?;
        }
        self.body.extend_from_slice(message.get(at..record.data.end).ok_or(Malformed::Short)?);
        let length = u16::try_from(self.body.len() - length_at - 2).map_err(|_| Malformed::Long)?;
        self.body[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
        if self.base + self.body.len() > usize::from(u16::MAX) {
            return Err(Malformed::Long);
        }
        Ok(())
    }

    fn remember_question(&mut self, name: &RawName) {
        for (offset, suffix) in name.suffixes() {
            self.remember(HEADER + offset, mark(suffix));
        }
    }

    fn remember(&mut self, position: usize, mark: u16) {
        if self.known < CANDIDATES && position < 0x4000 {
            (self.candidates[self.known], self.marks[self.known]) = (position as u16, mark);
            self.known += 1;
        }
    }

    fn name(&mut self, name: &RawName, question: &[u8], compress: bool) -> Result<(), Malformed> {
        self.spend(name.steps)?;
        let start = self.base + self.body.len();
        let compress = compress && !self.spelled_out;
        if compress && name.is(question) {
            self.body.extend_from_slice(&[0xc0, HEADER as u8]);
            return Ok(());
        }
        for (offset, suffix) in name.suffixes() {
            let mark = mark(suffix);
            if compress && let Some(candidate) = self.find(suffix, mark, question)? {
                self.body.extend_from_slice(&(0xc000 | candidate).to_be_bytes());
                return Ok(());
            }
            self.remember(start + offset, mark);
            let label = &suffix[..1 + usize::from(suffix[0])];
            self.body.extend_from_slice(label);
        }
        self.body.push(0);
        Ok(())
    }

    /// Offset of a remembered name equal to `suffix`.
    fn find(&mut self, suffix: &[u8], mark: u16, question: &[u8]) -> Result<Option<u16>, Malformed> {
        if self.work == 0 && self.gives_up {
            return Ok(None);
        }
        // Eight marks are compared at once.
        self.spend(self.known as u32 / 8)?;
        for at in 0..self.known {
            if self.marks[at] == mark && self.stands_at(usize::from(self.candidates[at]), suffix, question)? {
                return Ok(Some(self.candidates[at]));
            }
        }
        Ok(None)
    }

    /// Whether the name at `position` of the finished message equals `suffix`.
    fn stands_at(&mut self, position: usize, suffix: &[u8], question: &[u8]) -> Result<bool, Malformed> {
        let mut position = position;
        let mut rest = suffix;
        loop {
            self.spend(1)?;
            let bytes = match position.checked_sub(self.base) {
                Some(at) => self.body.get(at..),
                None => question.get(position - HEADER..),
            };
            let Some(bytes @ [length, ..]) = bytes else { return Ok(false) };
            if *length >= 0xc0 {
                let Some(&[high, low]) = bytes.first_chunk::<2>() else { return Ok(false) };
                position = usize::from(u16::from_be_bytes([high & 0x3f, low]));
                continue;
            }
            let size = 1 + usize::from(*length);
            match (bytes.get(..size), rest.get(..size)) {
                (Some(theirs), Some(ours)) if theirs.eq_ignore_ascii_case(ours) => {}
                _ => return Ok(false),
            }
            if *length == 0 {
                return Ok(true);
            }
            position += size;
            rest = &rest[size..];
        }
    }
}

/// A name in wire form, with its letter case kept.
struct RawName {
    octets: [u8; MAX_NAME],
    len: usize,
    /// End of the name in its message.
    end: usize,
    /// Labels and pointers that were read.
    steps: u32,
}

impl RawName {
    fn read(message: &[u8], at: usize) -> Result<Self, Malformed> {
        let mut name = Self { octets: [0; MAX_NAME], len: 0, end: 0, steps: 0 };
        (name.end, name.steps) = walk(message, at, |label| {
            let next = name.len + 1 + label.len();
            let room = name.octets.get_mut(name.len..next).ok_or(crate::NameError::LongName)?;
            room[0] = label.len() as u8;
            room[1..].copy_from_slice(label);
            name.len = next;
            Ok(())
        })?;
        Ok(name)
    }

    /// Whether the name equals the question's, and is not the root, which needs no pointer.
    fn is(&self, question: &[u8]) -> bool {
        let own = &self.octets[..self.len];
        self.len > 1 && question.len() == self.len + 4 && question[..self.len].eq_ignore_ascii_case(own)
    }

    /// Each suffix but the root, with its offset in the name.
    fn suffixes(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let suffix = self.octets.get(at..self.len)?;
            let length = usize::from(*suffix.first()?);
            if length == 0 {
                return None;
            }
            let offset = at;
            at += 1 + length;
            Some((offset, suffix))
        })
    }
}

/// Length of a name and the last byte of its first label, lower-cased: equal for equal names.
fn mark(name: &[u8]) -> u16 {
    let last = name.first().and_then(|length| name.get(usize::from(*length)));
    u16::from_be_bytes([name.len() as u8, last.map_or(0, u8::to_ascii_lowercase)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;

    const QUESTION: &[u8] = b"\x03www\x07example\x03org\0\0\x01\0\x01";
    const OPT: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\0";

    /// A reply of `count` records under one name of 127 labels: written in full once, else a
    /// pointer.
    fn deep(count: u16, opt: &[u8]) -> Vec<u8> {
        let mut reply = b"\0\x07\x81\x80\0\x01\0\0\0\0\0\0".to_vec();
        reply[10..12].copy_from_slice(&(count + u16::from(!opt.is_empty())).to_be_bytes());
        reply.extend_from_slice(QUESTION);
        reply.extend_from_slice(opt);
        let first = reply.len() as u8;
        for at in 0..count {
            match at {
                0 => reply.extend_from_slice(&[&[1, b'a'].repeat(127)[..], &[0]].concat()),
                _ => reply.extend_from_slice(&[0xc0, first]),
            }
            reply.extend_from_slice(b"\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
        }
        reply
    }

    #[test]
    fn costly_names_stay_uncompressed() {
        let mut answer = Answer::default();
        for (count, opt, expected) in [
            (200, &b""[..], Ok(200)),
            (600, b"", Ok(600)),
            (200, OPT, Ok(200)),
            // Behind an OPT the records must move, so they cannot stay as they are.
            (600, OPT, Err(Malformed::Work)),
            (4000, b"", Err(Malformed::Work)),
        ] {
            let reply = deep(count, opt);
            let read = answer.read(&reply, QUESTION);
            assert_eq!(read.map(|()| answer.counts[2]), expected, "{count}");
            if count == 600 && opt.is_empty() {
                assert_eq!(answer.body, reply[HEADER + QUESTION.len()..]);
            }
            assert!(read.is_err() || answer.ttls.len() == usize::from(count), "{count}");
        }
    }

    /// Even after all work is spent.
    #[test]
    fn question_is_always_a_pointer() {
        let name = [&b"\x01a".repeat(18)[..], &[0]].concat();
        let question = [&name[..], b"\0\x01\0\x01"].concat();
        let mut body = Vec::new();
        let mut merge = CompressingWriter::new(&question, &mut body).unwrap();
        let plain = [&name[..], b"\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01"].concat();
        let record = Records::new(&plain, 0, [1, 0, 0]).next().unwrap().unwrap();
        // 19 labels each, the root included: more than may be looked at.
        for at in 0..4_000 {
            assert_eq!(merge.push(Section::Answer, &plain, &record), Ok(()), "{at}");
        }
        assert_eq!(body.len(), 4_000 * 16);
    }

    #[test]
    fn growing_records_stop_at_64_kib() {
        // Names of PX may not be compressed when written: each record grows from 18 bytes to 400.
        let mut reply = b"\0\x07\x81\x80\0\x01\0\0\0\0\0\0".to_vec();
        reply.extend_from_slice(QUESTION);
        let first = reply.len() as u8;
        let long = [&[63; 1][..], &[b'a'; 63]].concat().repeat(3);
        reply.extend_from_slice(&[&long[..], b"\0\0\x0a\0\x01\0\0\0\x3c\0\0"].concat());
        for _ in 0..300 {
            reply.extend_from_slice(&[0xc0, first, 0, 26, 0, 1, 0, 0, 0, 60, 0, 6]);
            reply.extend_from_slice(&[0, 1, 0xc0, first, 0xc0, first]);
        }
        reply[10..12].copy_from_slice(&301_u16.to_be_bytes());
        let mut body = Vec::new();
        assert_eq!(rewrite(&reply, QUESTION, [0, 0, 301], &mut body), Err(Malformed::Long));
        assert!(body.len() < usize::from(u16::MAX) + 600, "{} octets were written", body.len());
        let mut answer = Answer::default();
        assert_eq!(answer.read(&reply, QUESTION), Ok(()), "it is forwarded as received");
        assert_eq!(answer.body, reply[HEADER + QUESTION.len()..]);
    }
}
