//! Types with data that depend on an earlier field.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::data::Data;
use crate::{Error, Token, word};

impl Data<'_, '_> {
    /// LOC (RFC 1876, section 3): latitude, longitude, altitude, and up to three precisions.
    pub(crate) fn location(&mut self) -> Result<(), Error> {
        let latitude = self.angle(90, ["N", "S"])?;
        let longitude = self.angle(180, ["E", "W"])?;
        // In centimetres from 100 km below the sea.
        let altitude = |token: &Token<'_>| {
            let metres: f64 = metres(token)?.parse().ok()?;
            let above = (metres * 100.0 + 10_000_000.0 + 0.5).floor();
            (0.0..=f64::from(u32::MAX)).contains(&above).then_some(above as u32)
        };
        let altitude = self.word("an altitude in metres", altitude)?;
        // A metre, 10 km and 10 m (section 2).
        let mut precisions = [0x12, 0x16, 0x13];
        for precision in &mut precisions {
            if self.tokens.as_slice().is_empty() {
                break;
            }
            *precision = self.word("a size in metres", size)?;
        }
        self.put(&[&[0], &precisions[..]].concat())?;
        [latitude, longitude, altitude].iter().try_for_each(|number| self.put(&number.to_be_bytes()))
    }

    /// Degrees with optional minutes and seconds, in thousandths of a second from the equator or
    /// the prime meridian.
    fn angle(&mut self, most: u32, directions: [&str; 2]) -> Result<u32, Error> {
        let degrees = |token: &Token<'_>| token.number().filter(|degrees: &u32| *degrees <= most);
        let mut angle = self.word("degrees", degrees)? * 3_600_000;
        for unit in [60_000.0, 1_000.0] {
            let next = self.tokens.as_slice().first().and_then(|token| token.word());
            if next.is_none_or(|next| directions.iter().any(|known| known.eq_ignore_ascii_case(next))) {
                break;
            }
            let part = |token: &Token<'_>| {
                let number: f64 = token.word()?.parse().ok()?;
                let whole = unit == 1_000.0 || number.fract() == 0.0;
                ((0.0..60.0).contains(&number) && whole).then_some((number * unit) as u32)
            };
            angle += self.word("minutes or seconds below 60", part)?;
        }
        let [forward, backward] = directions;
        let from_zero = |token: &Token<'_>| match token.word()? {
            word if word.eq_ignore_ascii_case(forward) => Some(ZERO + angle),
            word if word.eq_ignore_ascii_case(backward) => Some(ZERO - angle),
            _ => None,
        };
        let place = self.word("a direction", from_zero)?;
        if angle <= most * 3_600_000 { Ok(place) } else { Err(Error::Shape(self.rtype)) }
    }

    /// APL (RFC 3123, section 5): `[!]FAMILY:ADDRESS/PREFIX`, any number of them.
    pub(crate) fn prefixes(&mut self) -> Result<(), Error> {
        while !self.tokens.as_slice().is_empty() {
            let item = self.word("a prefix as in 1:192.0.2.0/24", |token| prefix(token.word()?))?;
            self.put(&item)?;
        }
        Ok(())
    }

    /// HIP (RFC 8005, section 6): algorithm, identity tag, public key, and servers.
    pub(crate) fn host_identity(&mut self) -> Result<(), Error> {
        let algorithm: u8 = self.number("a number up to 255")?;
        let tag = self.word("an identity tag in hex", |token| word::hex(token.word()?))?;
        let key = self.word("a key in base64", |token| word::base64(token.word()?))?;
        let lengths = (u8::try_from(tag.len()), u16::try_from(key.len()));
        let (Ok(tag_length), Ok(key_length)) = lengths else { return Err(Error::Shape(self.rtype)) };
        self.put(&[tag_length, algorithm])?;
        self.put(&key_length.to_be_bytes())?;
        self.put(&[tag, key].concat())?;
        while !self.tokens.as_slice().is_empty() {
            self.name()?;
        }
        Ok(())
    }

    /// IPSECKEY (RFC 4025, section 3): precedence, type of gateway, algorithm, gateway, and a key.
    pub(crate) fn ipsec_key(&mut self) -> Result<(), Error> {
        self.u8()?;
        let kind: u8 = self.number("the type of a gateway")?;
        self.put(&[kind])?;
        self.u8()?;
        self.gateway(kind)?;
        if self.tokens.as_slice().is_empty() { Ok(()) } else { self.base64() }
    }

    /// AMTRELAY (RFC 8777, section 4): precedence, whether to discover, type of relay, and relay.
    pub(crate) fn relay(&mut self) -> Result<(), Error> {
        self.u8()?;
        let discovers = self.word("0 or 1", |token| token.number().filter(|bit: &u8| *bit <= 1))?;
        let kind =
            self.word("the type of a relay", |token| token.number().filter(|kind: &u8| *kind < 0x80))?;
        self.put(&[discovers << 7 | kind])?;
        self.gateway(kind)
    }

    fn gateway(&mut self, kind: u8) -> Result<(), Error> {
        match kind {
            0 => self.word(". for no gateway", |token| (token.text == b".").then_some(())),
            1 => {
                let address: Ipv4Addr = self.parsed("an IPv4 address")?;
                self.put(&address.octets())
            }
            2 => {
                let address: Ipv6Addr = self.parsed("an IPv6 address")?;
                self.put(&address.octets())
            }
            3 => self.name(),
            _ => Err(Error::Shape(self.rtype)),
        }
    }
}

fn metres<'t>(token: &Token<'t>) -> Option<&'t str> {
    let word = token.word()?;
    Some(word.strip_suffix(['m', 'M']).unwrap_or(word))
}

/// Metres with up to two decimals as a digit and a power of ten, in centimetres (RFC 1876, section 2).
fn size(token: &Token<'_>) -> Option<u8> {
    let text = metres(token)?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if text.is_empty() || part.len() > 2 || !digits(whole) || !digits(part) {
        return None;
    }
    let number = format!("0{whole}{part:0<2}").parse::<u64>().ok();
    let mut centimetres = number.filter(|centimetres| *centimetres <= 9_000_000_000)?;
    let mut power = 0;
    while centimetres > 9 {
        centimetres /= 10;
        power += 1;
    }
    Some((centimetres as u8) << 4 | power)
}

fn prefix(word: &str) -> Option<Vec<u8>> {
    let (negation, item) = match word.strip_prefix('!') {
        Some(item) => (0x80, item),
        None => (0, word),
    };
    let (family, network) = item.split_once(':')?;
    let (address, length) = network.split_once('/')?;
    let (number, octets) = match address.parse().ok()? {
        IpAddr::V4(address) => (1_u16, address.octets().to_vec()),
        IpAddr::V6(address) => (2, address.octets().to_vec()),
    };
    let length = length.parse().ok().filter(|length: &u8| usize::from(*length) <= 8 * octets.len())?;
    // As in CoreDNS, bits after the prefix must be 0.
    let (bytes, bits) = (usize::from(length / 8), length % 8);
    let rest = octets.get(bytes).is_none_or(|byte| byte << bits == 0);
    let behind = octets.iter().skip(bytes + 1).all(|byte| *byte == 0);
    if family.parse() != Ok(number) || !rest || !behind {
        return None;
    }
    // Trailing zeros are omitted.
    let used = octets.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let mut data = number.to_be_bytes().to_vec();
    data.extend_from_slice(&[length, negation | used as u8]);
    data.extend_from_slice(&octets[..used]);
    Some(data)
}

/// The equator and the prime meridian.
const ZERO: u32 = 1 << 31;
