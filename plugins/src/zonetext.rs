//! Records in zone-file text (RFC 1035, section 5) to the octets behind a question.

use bytes::Bytes;
use domain::base::iana::Class as ZoneClass;
use domain::base::name::ToName;
use domain::base::rdata::ComposeRecordData;
use domain::zonefile::inplace::{Entry, ScannedRecord, Zonefile};
use plugin::failure::beginning;
use thiserror::Error;
use wire::{Answer, Flags, Section};

/// Why a text is no record that can be sent.
#[derive(Debug, Error)]
pub enum ZoneTextError {
    /// It is not a record.
    #[error("{text:?} is not a record: {reason}")]
    NoRecord {
        /// The beginning of the text.
        text: String,
        /// Why.
        reason: String,
    },
    /// It holds more than one record.
    #[error("{text:?} is more than one record")]
    SeveralRecords {
        /// The beginning of the text.
        text: String,
    },
}

impl ZoneTextError {
    fn no_record(text: &str, reason: &str) -> Self {
        Self::NoRecord { text: beginning(text.to_owned()), reason: beginning(reason.to_owned()) }
    }
}

/// Records behind one question, in section order.
pub struct TextRecords {
    question: Vec<u8>,
    message: Vec<u8>,
    counts: [u16; 3],
}

impl TextRecords {
    /// None yet.
    pub fn new(question: &[u8]) -> Self {
        let mut message = vec![0; wire::HEADER];
        message[2..4].copy_from_slice(&Flags::QR.to_be_bytes());
        message[5] = 1;
        message.extend_from_slice(question);
        Self { question: question.to_vec(), message, counts: [0; 3] }
    }

    /// Appends the record that `text` writes down; names without a final dot end at the root, a missing TTL is 3600 s,
    /// a missing class IN.
    ///
    /// # Errors
    /// [`ZoneTextError`].
    pub fn push(&mut self, section: Section, text: &str) -> Result<(), ZoneTextError> {
        let record = scan(text)?;
        let no_record = |reason: &str| ZoneTextError::no_record(text, reason);
        let mut data = Vec::new();
        record.data().compose_rdata(&mut data).map_err(|_| no_record("its data is too long"))?;
        let length = u16::try_from(data.len()).map_err(|_| no_record("its data is too long"))?;
        let owner = record.owner().to_name::<Vec<u8>>();
        self.message.extend_from_slice(owner.as_slice());
        self.message.extend_from_slice(&record.rtype().to_int().to_be_bytes());
        self.message.extend_from_slice(&record.class().to_int().to_be_bytes());
        self.message.extend_from_slice(&record.ttl().as_secs().to_be_bytes());
        self.message.extend_from_slice(&length.to_be_bytes());
        self.message.extend_from_slice(&data);
        self.counts[section as usize] += 1;
        Ok(())
    }

    /// The records with their names compressed, and how many each section has; none if they fit no message.
    pub fn finish(mut self) -> (Vec<u8>, [u16; 3]) {
        for (at, count) in (6..).step_by(2).zip(self.counts) {
            self.message[at..at + 2].copy_from_slice(&count.to_be_bytes());
        }
        let mut answer = Answer::default();
        match answer.read(&self.message, &self.question) {
            Ok(()) => (answer.body, answer.counts),
            Err(_) => (Vec::new(), [0; 3]),
        }
    }
}

/// A zone file has one class, so a text of another one is read as a zone of that class.
fn scan(text: &str) -> Result<ScannedRecord, ZoneTextError> {
    scan_in(text, ZoneClass::IN).or_else(|error| scan_in(text, ZoneClass::CH).map_err(|_| error))
}

fn scan_in(text: &str, class: ZoneClass) -> Result<ScannedRecord, ZoneTextError> {
    let no_record = |reason: &str| ZoneTextError::no_record(text, reason);
    let mut zone = Zonefile::new();
    zone.set_default_class(class);
    zone.set_origin(domain::base::Name::<Bytes>::root());
    zone.extend_from_slice(b"$TTL 3600\n");
    zone.extend_from_slice(text.trim().as_bytes());
    zone.extend_from_slice(b"\n");
    let mut record = None;
    loop {
        match zone.next_entry() {
            Ok(Some(Entry::Record(found))) if record.is_none() => record = Some(found),
            Ok(Some(Entry::Record(_))) => {
                return Err(ZoneTextError::SeveralRecords { text: beginning(text.to_owned()) });
            }
            Ok(Some(Entry::Include { .. })) => {
                return Err(no_record("$INCLUDE is not allowed here"));
            }
            Ok(None) => return record.ok_or_else(|| no_record("it is empty")),
            // The parser's message begins with a line and column of the text that was built here around the record, so both
            // are cut off.
            Err(error) => {
                let told = error.to_string();
                return Err(no_record(told.split_once(": ").map_or(&*told, |(_, reason)| reason)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_octets() {
        let question = b"\x03foo\x07example\x03org\0\0\x01\0\x01";
        let mut records = TextRecords::new(question);
        records.push(Section::Answer, "foo.example.org. 60 IN A 192.0.2.1").unwrap();
        records.push(Section::Answer, "foo.example.org IN TXT \"a b\" c").unwrap();
        records.push(Section::Authority, "example.org. 60 IN NS ns.example.org.").unwrap();
        let (body, counts) = records.finish();
        assert_eq!(counts, [2, 1, 0]);
        assert_eq!(
            body,
            b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01\
              \xc0\x0c\0\x10\0\x01\0\0\x0e\x10\0\x06\x03a b\x01c\
              \xc0\x10\0\x02\0\x01\0\0\0\x3c\0\x05\x02ns\xc0\x10"
        );
    }

    #[test]
    fn a_record_may_be_of_class_chaos() {
        let mut records = TextRecords::new(b"\0\0\x10\0\x03");
        records.push(Section::Answer, "version.bind. 0 CH TXT a").unwrap();
        assert_eq!(records.finish().0[14..], *b"\0\x10\0\x03\0\0\0\0\0\x02\x01a");
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        for text in
            ["", "foo", "foo.example.org. 60 IN A 1.2.3", "a. A 192.0.2.1\nb. A 192.0.2.2", "$INCLUDE x"]
        {
            assert!(TextRecords::new(b"\0\0\x01\0\x01").push(Section::Answer, text).is_err(), "{text}");
        }
    }
}
