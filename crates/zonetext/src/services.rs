//! SVCB and HTTPS (RFC 9460): a priority, a target, and parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::data::Data;
use crate::{Error, Token, word};

impl Data<'_, '_> {
    /// Priority, target, parameters.
    pub(crate) fn service(&mut self) -> Result<(), Error> {
        self.u16()?;
        self.name()?;
        let mut params = BTreeMap::new();
        while let Some(token) = self.tokens.next() {
            let wrong = |wanted| Error::Data { rtype: self.rtype, found: token.shown(), wanted };
            if token.quoted || token.joined {
                return Err(wrong("a parameter with a blank before it"));
            }
            let text = token.text;
            let at = text.iter().position(|&byte| byte == b'=');
            let mut value = Token { text: at.map_or(&[], |at| &text[at + 1..]), ..*token };
            if at.is_some()
                && value.text.is_empty()
                && let Some(quoted) = self.tokens.as_slice().first().filter(|next| next.quoted && next.joined)
            {
                value = *quoted;
                self.tokens.next();
            }
            let key = key(&text[..at.unwrap_or(text.len())])
                .ok_or_else(|| wrong("a known parameter, or key1 to key65534"))?;
            let value = value.bytes().and_then(|value| encode(key, &value));
            let value = value.ok_or_else(|| wrong("a parameter with a value that fits it"))?;
            if params.insert(key, value).is_some() {
                return Err(wrong("the first of its parameters of this name"));
            }
        }
        for (key, value) in params {
            self.put(&key.to_be_bytes())?;
            self.put(&u16::try_from(value.len()).map_err(|_| Error::Long)?.to_be_bytes())?;
            self.put(&value)?;
        }
        Ok(())
    }
}

/// A parameter's number by its name (RFC 9460, section 14.3.2; RFC 9461, section 5; RFC 9540, section 4).
fn key(name: &[u8]) -> Option<u16> {
    let known = KEYS.iter().position(|known| known.as_bytes() == name);
    let unknown = || std::str::from_utf8(name).ok()?.strip_prefix("key")?.parse().ok();
    known.map(|at| at as u16).or_else(unknown).filter(|key| *key < u16::MAX)
}

/// A value in wire form; `None` if it is invalid for the parameter.
fn encode(key: u16, value: &[u8]) -> Option<Vec<u8>> {
    let text = || std::str::from_utf8(value).ok();
    Some(match KEYS.get(usize::from(key)).copied() {
        Some("mandatory") => {
            let keys: Option<BTreeSet<u16>> = value.split(|&byte| byte == b',').map(self::key).collect();
            keys?.into_iter().flat_map(u16::to_be_bytes).collect()
        }
        Some("alpn") => protocols(value)?,
        Some("port") => text()?.parse::<u16>().ok()?.to_be_bytes().to_vec(),
        Some("ipv4hint") => addresses(text()?, |address: Ipv4Addr| address.octets())?,
        Some("ipv6hint") => addresses(text()?, |address: Ipv6Addr| address.octets())?,
        Some("ech") => word::base64(text()?)?,
        Some("no-default-alpn" | "ohttp") if !value.is_empty() => return None,
        _ => value.to_vec(),
    })
}

/// Names separated by commas, each after its length; a comma or backslash in a name is escaped with
/// a backslash (RFC 9460, appendix A.1).
fn protocols(value: &[u8]) -> Option<Vec<u8>> {
    let (mut list, mut name) = (Vec::new(), Vec::new());
    let mut bytes = value.iter().copied().chain([b',']);
    while let Some(byte) = bytes.next() {
        match byte {
            b',' => {
                list.push(u8::try_from(name.len()).ok().filter(|length| *length > 0)?);
                list.append(&mut name);
            }
            b'\\' => name.push(bytes.next().filter(|byte| matches!(byte, b',' | b'\\'))?),
            other => name.push(other),
        }
    }
    // A backslash before the last comma made it part of a name.
    name.is_empty().then_some(list)
}

fn addresses<A: std::str::FromStr, const OCTETS: usize>(
    text: &str,
    octets: impl Fn(A) -> [u8; OCTETS],
) -> Option<Vec<u8>> {
    let addresses: Option<Vec<[u8; OCTETS]>> =
        text.split(',').map(|word| word.parse().ok().map(&octets)).collect();
    Some(addresses?.concat())
}

/// Keys by number.
const KEYS: [&str; 9] =
    ["mandatory", "alpn", "no-default-alpn", "port", "ipv4hint", "ech", "ipv6hint", "dohpath", "ohttp"];
