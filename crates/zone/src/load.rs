//! Reads a zone's files.

use std::ops::ControlFlow;

use wire::{Class, Name, RType};
use zonetext::{Item, Reader};

use crate::build::{Builder, Loaded, RawOwner};
use crate::key::Key;
use crate::limits::{MOST_DEPTH, MOST_TEXT};
use crate::nsec3::{self, Parameters};
use crate::{LoadError, Problem};

/// The files of `$INCLUDE`.
pub trait Files {
    /// The name for messages and the content of the file with this path, as written in `file`.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn include(&mut self, file: &str, path: &[u8]) -> Result<(String, Vec<u8>), String>;

    /// Called before each record: long work may pause here.
    fn step(&mut self) {}
}

/// Reads the zone `origin` from `text`, the content of `file`.
///
/// Memory: the text of all open files, at most [`MOST_TEXT`] together; the records as read and as
/// stored, at most [`MOST_BYTES`](crate::MOST_BYTES) each.
///
/// # Errors
/// [`LoadError`] at the first text that is not a record of a zone, with the place of the word.
pub fn load(origin: &Name, file: &str, text: &[u8], files: &mut dyn Files) -> Result<Loaded, LoadError> {
    let builder = Builder::new(*origin);
    let mut loading = Loading { origin, builder, files, text_left: MOST_TEXT, soa: None };
    let reader = Reader::of_zone(text, origin.as_wire());
    loading.count_text(text).map_err(|problem| LoadError {
        file: file.to_owned(),
        line: 1,
        column: 1,
        problem,
    })?;
    loading.read(file, reader, 0)?;
    if loading.soa.is_none() {
        let problem = Problem::NoSoa(origin.to_string());
        return Err(LoadError { file: file.to_owned(), line: 1, column: 1, problem });
    }
    Ok(loading.builder.finish())
}

struct Loading<'l> {
    origin: &'l Name,
    builder: Builder,
    files: &'l mut dyn Files,
    /// Bytes of text that may still be read.
    text_left: usize,
    /// The data of the SOA record.
    soa: Option<Vec<u8>>,
}

impl Loading<'_> {
    fn count_text(&mut self, text: &[u8]) -> Result<(), Problem> {
        self.text_left = self.text_left.checked_sub(text.len()).ok_or(Problem::TooMuchText)?;
        Ok(())
    }

    fn read(&mut self, file: &str, mut reader: Reader<'_>, depth: usize) -> Result<(), LoadError> {
        let number = self.builder.file(file);
        while let Some(item) = reader.next_item() {
            let mut inner = None;
            let read = item.map_err(Problem::from).and_then(|item| match item {
                Item::Record(record) => self.record(record, number, reader.line()),
                Item::Include { .. } if depth == MOST_DEPTH => Err(Problem::Depth),
                Item::Include { file: path, origin } => {
                    let (name, text) = self.files.include(file, &path).map_err(|why| Problem::Include {
                        file: String::from_utf8_lossy(&path[..path.len().min(256)]).into_owned(),
                        why,
                    })?;
                    self.count_text(&text)?;
                    inner = Some((name, text, origin));
                    Ok(())
                }
            });
            if let Err(problem) = read {
                let (line, column) = reader.place();
                return Err(LoadError { file: file.to_owned(), line, column, problem });
            }
            if let Some((name, text, origin)) = inner {
                self.read(&name, reader.included(&text, &origin), depth + 1)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, record: zonetext::Record, file: u16, line: u32) -> Result<(), Problem> {
        self.files.step();
        let zonetext::Record { owner, rtype, class, ttl, data } = record;
        if class != Class::IN {
            return Err(Problem::Class(class));
        }
        let is_of_nsec3 = match rtype {
            RType::NSEC3 => true,
            RType::RRSIG => data.starts_with(&RType::NSEC3.0.to_be_bytes()),
            _ => false,
        };
        if matches!(rtype, RType::NSEC3 | RType::NSEC3PARAM) {
            Parameters::read(&data)?;
        }
        if is_of_nsec3 {
            let hash = nsec3::hash_of(&owner, self.origin.as_wire()).ok_or(Problem::NoHash)?;
            let pushed = self.builder.push(RawOwner::Hash(&hash), rtype, ttl, &data, (file, line));
            return pushed.continue_value().ok_or(Problem::TooLarge);
        }
        if rtype == RType::SOA {
            let found = Name::from_wire(&owner).unwrap_or(Name::ROOT);
            if found != *self.origin {
                return Err(Problem::OtherZone { found: found.to_string(), zone: self.origin.to_string() });
            }
            match &self.soa {
                // A transfer that was written to a file ends with the SOA record again.
                Some(first) if *first == data => return Ok(()),
                Some(_) => return Err(Problem::SecondSoa),
                None => self.soa = Some(data.clone()),
            }
        }
        match Key::new(&owner, self.origin.as_wire()) {
            Some(key) => self.builder.push(RawOwner::Name(&key), rtype, ttl, &data, (file, line)),
            None => {
                self.builder.warn(&owner, OUTSIDE, (file, line));
                ControlFlow::Continue(())
            }
        }
        .continue_value()
        .ok_or(Problem::TooLarge)
    }
}

const OUTSIDE: &str = "the record is not served: its owner is outside of the zone";
