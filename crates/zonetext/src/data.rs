//! A record's data: the fields of each type, and their text form.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::slice;

use wire::RType;

use crate::{Error, Token, word};

/// A field of the data, one word unless stated otherwise.
#[derive(Debug, Clone, Copy)]
enum Field {
    U8,
    U16,
    U32,
    /// Seconds, with units or without.
    Seconds,
    /// The same; 0 if the text ends before, as in CoreDNS.
    MaybeSeconds,
    Ipv4,
    Ipv6,
    Name,
    /// A character string (RFC 1035, section 3.3).
    String,
    /// Character strings, at least one; a string longer than 255 bytes becomes several, as in
    /// CoreDNS.
    Strings,
    /// Two character strings: all words from the third on belong to the second, and a single word
    /// is split at its blanks, as in CoreDNS.
    TwoStrings,
    /// Bytes to the end of the data.
    Text,
    /// All remaining words.
    Hex,
    Base64,
    /// A length and that many bytes: `-` for none.
    Salt,
    /// A length and that many bytes in base32 with extended hex alphabet.
    Hash,
    /// All remaining words: types as a bit map (RFC 4034, section 4.1.2).
    Types,
    Type,
    /// `YYYYMMDDHHmmSS`, or seconds since 1970.
    Time,
    /// A number or a mnemonic.
    Algorithm,
    CertType,
    /// This number of bytes in hex, separated by hyphens.
    Eui(usize),
    /// Four groups of four hex digits, separated by colons.
    Locator,
}

/// Reads the data after the type of a record; names without a final dot are relative to `origin`.
/// `tokens` is behind the last word that was read, also after an error.
pub(crate) fn read(
    rtype: RType,
    tokens: &mut slice::Iter<'_, Token<'_>>,
    origin: &[u8],
) -> Result<Vec<u8>, Error> {
    if rtype == RType::OPT || (128..=255).contains(&rtype.0) {
        return Err(Error::NoRecord(rtype));
    }
    let mut data = Data { rtype, origin, tokens: tokens.clone(), written: Vec::new() };
    let is_generic =
        data.tokens.as_slice().first().is_some_and(|first| first.text == b"\\#" && !first.quoted);
    let read = if is_generic { data.generic() } else { data.of_type() };
    let left = data.tokens.as_slice();
    *tokens = tokens.as_slice()[tokens.len() - left.len()..].iter();
    read?;
    if let Some(rest) = tokens.next() {
        return Err(Error::Rest { rtype, found: rest.shown() });
    }
    if wire::is_valid_rdata(rtype, &data.written) { Ok(data.written) } else { Err(Error::Shape(rtype)) }
}

/// The data of one record read so far.
pub(crate) struct Data<'e, 't> {
    pub(crate) rtype: RType,
    pub(crate) origin: &'e [u8],
    pub(crate) tokens: slice::Iter<'e, Token<'t>>,
    pub(crate) written: Vec<u8>,
}

impl<'e, 't> Data<'e, 't> {
    fn of_type(&mut self) -> Result<(), Error> {
        use Field::{
            Algorithm, Base64, CertType, Eui, Hash, Hex, Ipv4, Ipv6, Locator, MaybeSeconds, Name, Salt,
            Seconds, String, Strings, Text, Time, TwoStrings, Type, Types, U8, U16, U32,
        };
        let fields: &[Field] = match self.rtype {
            RType::A => &[Ipv4],
            RType::AAAA => &[Ipv6],
            RType::NS
            | RType::MD
            | RType::MF
            | RType::CNAME
            | RType::MB
            | RType::MG
            | RType::MR
            | RType::PTR
            | RType::NSAP_PTR
            | RType::DNAME => &[Name],
            RType::SOA => &[Name, Name, U32, MaybeSeconds, MaybeSeconds, MaybeSeconds, MaybeSeconds],
            RType::MINFO | RType::RP | RType::TALINK => &[Name, Name],
            RType::MX | RType::AFSDB | RType::RT | RType::KX | RType::LP => &[U16, Name],
            RType::PX => &[U16, Name, Name],
            RType::SRV => &[U16, U16, U16, Name],
            RType::NAPTR => &[U16, U16, String, String, String, Name],
            RType::TXT | RType::SPF | RType::AVC | RType::NINFO | RType::RESINFO => &[Strings],
            RType::HINFO | RType::ISDN => &[TwoStrings],
            RType::X25 | RType::UINFO => &[String],
            RType::GPOS => &[String, String, String],
            RType::CAA => &[U8, String, Text],
            RType::URI => &[U16, U16, Text],
            RType::UID | RType::GID => &[U32],
            RType::EUI48 => &[Eui(6)],
            RType::EUI64 => &[Eui(8)],
            RType::NID | RType::L64 => &[U16, Locator],
            RType::L32 => &[U16, Ipv4],
            RType::EID | RType::NIMLOC => &[Hex],
            RType::DHCID | RType::OPENPGPKEY => &[Base64],
            RType::CERT => &[CertType, U16, Algorithm, Base64],
            RType::SSHFP => &[U8, U8, Hex],
            RType::TLSA | RType::SMIMEA => &[U8, U8, U8, Hex],
            RType::DS | RType::CDS | RType::DLV | RType::TA => &[U16, Algorithm, U8, Hex],
            RType::KEY | RType::DNSKEY | RType::CDNSKEY | RType::RKEY => &[U16, U8, Algorithm, Base64],
            RType::SIG | RType::RRSIG => &[Type, Algorithm, U8, Seconds, Time, Time, U16, Name, Base64],
            RType::NSEC | RType::NXT => &[Name, Types],
            RType::NSEC3 => &[U8, U8, U16, Salt, Hash, Types],
            RType::NSEC3PARAM => &[U8, U8, U16, Salt],
            RType::CSYNC => &[U32, U16, Types],
            RType::ZONEMD => &[U32, U8, U8, Hex],
            RType::LOC => return self.location(),
            RType::APL => return self.prefixes(),
            RType::HIP => return self.host_identity(),
            RType::IPSECKEY => return self.ipsec_key(),
            RType::AMTRELAY => return self.relay(),
            RType::SVCB | RType::HTTPS => return self.service(),
            rtype => return Err(Error::Generic(rtype)),
        };
        fields.iter().try_for_each(|field| self.field(*field))
    }

    fn field(&mut self, field: Field) -> Result<(), Error> {
        match field {
            Field::U8 => self.u8(),
            Field::U16 => self.u16(),
            Field::U32 => {
                let number: u32 = self.number("a number up to 4294967295")?;
                self.put(&number.to_be_bytes())
            }
            Field::MaybeSeconds if self.tokens.as_slice().is_empty() => self.put(&[0; 4]),
            Field::Seconds | Field::MaybeSeconds => {
                let seconds =
                    self.word("a number of seconds, or one with units as in 1h30m", Token::seconds)?;
                self.put(&seconds.to_be_bytes())
            }
            Field::Ipv4 => {
                let address: Ipv4Addr = self.parsed("an IPv4 address")?;
                self.put(&address.octets())
            }
            Field::Ipv6 => {
                let address: Ipv6Addr = self.parsed("an IPv6 address")?;
                self.put(&address.octets())
            }
            Field::Name => self.name(),
            Field::String => {
                let string = self.word("a string", Token::bytes)?;
                self.put_string(&string)
            }
            Field::Strings => {
                let mut left = self.next("a string").map(Some)?;
                while let Some(token) = left {
                    let string = self.value(token, "a string", Token::bytes)?;
                    // An empty string has no chunk.
                    self.written.extend(string.is_empty().then_some(0));
                    string.chunks(255).try_for_each(|chunk| self.put_string(chunk))?;
                    left = self.tokens.next();
                }
                Ok(())
            }
            Field::TwoStrings => self.two_strings(),
            Field::Text => {
                let text = self.word("a text", Token::bytes)?;
                self.put(&text)
            }
            Field::Hex => self.hex("digits in hex").and_then(|bytes| self.put(&bytes)),
            Field::Base64 => self.base64(),
            Field::Salt => {
                let salt = self.word("a salt in hex, or -", |token| match token.word()? {
                    "-" => Some(Vec::new()),
                    digits => word::hex(digits),
                })?;
                self.put_string(&salt)
            }
            Field::Hash => {
                let hash = self.word("a hash in base32hex", |token| word::base32hex(token.word()?))?;
                self.put_string(&hash)
            }
            Field::Types => self.types(),
            Field::Type => {
                let rtype: RType = self.parsed("a record type")?;
                self.put(&rtype.0.to_be_bytes())
            }
            Field::Time => {
                let time = self.word("a time as YYYYMMDDHHmmSS or in seconds since 1970", word::time)?;
                self.put(&time.to_be_bytes())
            }
            Field::Algorithm => {
                let meaning = |token: &Token<'_>| word::number_or_name::<u8>(token, &word::ALGORITHMS);
                let number = self.word("the number or name of an algorithm", meaning)?;
                self.put(&[number])
            }
            Field::CertType => {
                let meaning = |token: &Token<'_>| word::number_or_name::<u16>(token, &word::CERT_TYPES);
                let number = self.word("the number or name of a type of certificate", meaning)?;
                self.put(&number.to_be_bytes())
            }
            Field::Eui(length) => {
                let bytes = |token: &Token<'_>| {
                    word::groups(token.word()?, '-', 2).filter(|bytes| bytes.len() == length)
                };
                let bytes = self.word("its bytes in hex with hyphens between them", bytes)?;
                self.put(&bytes)
            }
            Field::Locator => {
                let decode =
                    |token: &Token<'_>| word::groups(token.word()?, ':', 4).filter(|bytes| bytes.len() == 8);
                let bytes =
                    self.word("four groups of four digits in hex with colons between them", decode)?;
                self.put(&bytes)
            }
        }
    }

    /// All remaining words.
    pub(crate) fn base64(&mut self) -> Result<(), Error> {
        let digits = self.rest("base64")?;
        self.put(&self.found(word::base64(&digits), &digits, "base64")?)
    }

    /// `\# LENGTH HEX` (RFC 3597, section 5).
    fn generic(&mut self) -> Result<(), Error> {
        self.tokens.next();
        let length: usize = self.number("the length of the data")?;
        let bytes = match self.tokens.as_slice() {
            [] => Vec::new(),
            _ => self.hex("digits in hex")?,
        };
        if bytes.len() == length { self.put(&bytes) } else { Err(Error::Shape(self.rtype)) }
    }

    fn two_strings(&mut self) -> Result<(), Error> {
        let mut strings = vec![self.word("a string", Token::bytes)?];
        while let Some(token) = self.tokens.next() {
            strings.push(self.value(token, "a string", Token::bytes)?);
        }
        if let [only] = &strings[..] {
            let words = only.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let words: Vec<_> = words.map(<[u8]>::to_vec).collect();
            if words.len() > 1 {
                strings = words;
            }
        }
        self.put_string(&strings[0])?;
        self.put_string(&strings[1..].join(&b' '))
    }

    fn types(&mut self) -> Result<(), Error> {
        let mut types = Vec::new();
        while let Some(token) = self.tokens.next() {
            let rtype = |token: &Token<'_>| token.word()?.parse::<RType>().ok();
            types.push(self.value(token, "a record type", rtype)?.0);
        }
        types.sort_unstable();
        for window in types.chunk_by(|one, next| one >> 8 == next >> 8) {
            let (mut bits, mut length) = ([0_u8; 32], 0);
            for [_, low] in window.iter().map(|rtype| rtype.to_be_bytes()) {
                bits[usize::from(low / 8)] |= 0x80 >> (low % 8);
                length = low / 8 + 1;
            }
            let number = window[0].to_be_bytes()[0];
            self.written.extend_from_slice(&[number, length]);
            self.written.extend_from_slice(&bits[..usize::from(length)]);
        }
        Ok(())
    }

    pub(crate) fn u8(&mut self) -> Result<(), Error> {
        let number: u8 = self.number("a number up to 255")?;
        self.put(&[number])
    }

    pub(crate) fn u16(&mut self) -> Result<(), Error> {
        let number: u16 = self.number("a number up to 65535")?;
        self.put(&number.to_be_bytes())
    }

    pub(crate) fn number<T: TryFrom<u64>>(&mut self, wanted: &'static str) -> Result<T, Error> {
        self.word(wanted, Token::number)
    }

    pub(crate) fn parsed<T: std::str::FromStr>(&mut self, wanted: &'static str) -> Result<T, Error> {
        self.word(wanted, |token| token.word()?.parse().ok())
    }

    pub(crate) fn name(&mut self) -> Result<(), Error> {
        self.next("a name")?.write_name(self.origin, &mut self.written)?;
        self.put(&[])
    }

    /// The value of the next word.
    pub(crate) fn word<T>(
        &mut self,
        wanted: &'static str,
        meaning: impl Fn(&Token<'t>) -> Option<T>,
    ) -> Result<T, Error> {
        let token = self.next(wanted)?;
        self.value(token, wanted, meaning)
    }

    fn next(&mut self, wanted: &'static str) -> Result<&'e Token<'t>, Error> {
        self.tokens.next().ok_or(Error::Missing { rtype: self.rtype, wanted })
    }

    fn value<T>(
        &self,
        token: &Token<'t>,
        wanted: &'static str,
        meaning: impl Fn(&Token<'t>) -> Option<T>,
    ) -> Result<T, Error> {
        meaning(token).ok_or_else(|| Error::Data { rtype: self.rtype, found: token.shown(), wanted })
    }

    /// Joins all remaining words.
    fn rest(&mut self, wanted: &'static str) -> Result<String, Error> {
        let mut all = self.word(wanted, |token| token.word().map(str::to_owned))?;
        while !self.tokens.as_slice().is_empty() {
            all.push_str(self.word(wanted, Token::word)?);
        }
        Ok(all)
    }

    fn hex(&mut self, wanted: &'static str) -> Result<Vec<u8>, Error> {
        let digits = self.rest(wanted)?;
        self.found(word::hex(&digits), &digits, wanted)
    }

    fn found<T>(&self, value: Option<T>, text: &str, wanted: &'static str) -> Result<T, Error> {
        let shown = || Token { text: text.as_bytes(), quoted: false, joined: false }.shown();
        value.ok_or_else(|| Error::Data { rtype: self.rtype, found: shown(), wanted })
    }

    /// Appends bytes, up to the size of a record.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.written.extend_from_slice(bytes);
        if self.written.len() > usize::from(u16::MAX) { Err(Error::Long) } else { Ok(()) }
    }

    /// A length and the bytes.
    fn put_string(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let text = || String::from_utf8_lossy(bytes).into_owned();
        let length = u8::try_from(bytes.len()).ok();
        let length = self.found(length, &text(), "a string of 255 bytes at most")?;
        self.written.push(length);
        self.put(bytes)
    }
}
