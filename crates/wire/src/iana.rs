//! IANA registries: types, classes, rcodes, opcodes and header flags, with their mnemonics.

use std::fmt;
use std::str::FromStr;

macro_rules! registry {
    ($(#[$doc:meta])* $name:ident($repr:ty), unknown $prefix:literal { $($konst:ident = $value:literal $text:literal $(or $also:literal)?),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $repr);

        impl $name {
            $(#[doc = concat!("`", $text, "`.")] pub const $konst: Self = Self($value);)*

            /// The registered mnemonic, if there is one.
            pub fn mnemonic(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.mnemonic() {
                    Some(text) => f.pad(text),
                    None => write!(f, concat!($prefix, "{}"), self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = UnknownMnemonic;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let upper = text.to_ascii_uppercase();
                match upper.as_str() {
                    $($text $(| $also)? => Ok(Self($value)),)*
                    other => other
                        .strip_prefix($prefix)
                        .and_then(|digits| digits.parse().ok())
                        .map(Self)
                        .ok_or(UnknownMnemonic),
                }
            }
        }
    };
}

/// A mnemonic that is in no registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownMnemonic;

impl fmt::Display for UnknownMnemonic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown mnemonic")
    }
}

impl std::error::Error for UnknownMnemonic {}

registry! {
    /// A resource record type (RFC 1035, section 3.2.2, and the IANA registry); unknown ones read
    /// `TYPE123` (RFC 3597).
    RType(u16), unknown "TYPE" {
        A = 1 "A", NS = 2 "NS", MD = 3 "MD", MF = 4 "MF", CNAME = 5 "CNAME", SOA = 6 "SOA", MB = 7 "MB", MG = 8 "MG", MR = 9 "MR",
        NULL = 10 "NULL", WKS = 11 "WKS", PTR = 12 "PTR", HINFO = 13 "HINFO", MINFO = 14 "MINFO", MX = 15 "MX", TXT = 16 "TXT", RP = 17 "RP",
        AFSDB = 18 "AFSDB", X25 = 19 "X25", ISDN = 20 "ISDN", RT = 21 "RT", NSAP_PTR = 23 "NSAP-PTR", SIG = 24 "SIG", KEY = 25 "KEY", PX = 26 "PX",
        GPOS = 27 "GPOS", AAAA = 28 "AAAA", LOC = 29 "LOC", NXT = 30 "NXT", EID = 31 "EID", NIMLOC = 32 "NIMLOC", SRV = 33 "SRV",
        ATMA = 34 "ATMA", NAPTR = 35 "NAPTR", KX = 36 "KX", CERT = 37 "CERT", DNAME = 39 "DNAME", OPT = 41 "OPT", APL = 42 "APL",
        DS = 43 "DS", SSHFP = 44 "SSHFP", IPSECKEY = 45 "IPSECKEY", RRSIG = 46 "RRSIG", NSEC = 47 "NSEC", DNSKEY = 48 "DNSKEY",
        DHCID = 49 "DHCID", NSEC3 = 50 "NSEC3", NSEC3PARAM = 51 "NSEC3PARAM", TLSA = 52 "TLSA", SMIMEA = 53 "SMIMEA", HIP = 55 "HIP",
        NINFO = 56 "NINFO", RKEY = 57 "RKEY", TALINK = 58 "TALINK", CDS = 59 "CDS", CDNSKEY = 60 "CDNSKEY",
        OPENPGPKEY = 61 "OPENPGPKEY", CSYNC = 62 "CSYNC", ZONEMD = 63 "ZONEMD", SVCB = 64 "SVCB", HTTPS = 65 "HTTPS", SPF = 99 "SPF",
        UINFO = 100 "UINFO", UID = 101 "UID", GID = 102 "GID", UNSPEC = 103 "UNSPEC", NID = 104 "NID", L32 = 105 "L32",
        L64 = 106 "L64", LP = 107 "LP", EUI48 = 108 "EUI48", EUI64 = 109 "EUI64", NXNAME = 128 "NXNAME", TKEY = 249 "TKEY", TSIG = 250 "TSIG",
        IXFR = 251 "IXFR", AXFR = 252 "AXFR", MAILB = 253 "MAILB", MAILA = 254 "MAILA", ANY = 255 "ANY", URI = 256 "URI",
        CAA = 257 "CAA", AVC = 258 "AVC", AMTRELAY = 260 "AMTRELAY", RESINFO = 261 "RESINFO", TA = 32768 "TA", DLV = 32769 "DLV",
    }
}

registry! {
    /// A class (RFC 1035, section 3.2.4); unknown ones read `CLASS123` (RFC 3597).
    Class(u16), unknown "CLASS" {
        IN = 1 "IN", CS = 2 "CS", CH = 3 "CH", HS = 4 "HS", NONE = 254 "NONE", ANY = 255 "ANY",
    }
}

registry! {
    /// A response code, extended by EDNS (RFC 1035, section 4.1.1; RFC 6891, section 6.1.3).
    Rcode(u16), unknown "RCODE" {
        NOERROR = 0 "NOERROR", FORMERR = 1 "FORMERR", SERVFAIL = 2 "SERVFAIL", NXDOMAIN = 3 "NXDOMAIN", NOTIMP = 4 "NOTIMP",
        REFUSED = 5 "REFUSED", YXDOMAIN = 6 "YXDOMAIN", YXRRSET = 7 "YXRRSET", NXRRSET = 8 "NXRRSET", NOTAUTH = 9 "NOTAUTH",
        NOTZONE = 10 "NOTZONE", DSOTYPENI = 11 "DSOTYPENI", BADVERS = 16 "BADVERS" or "BADSIG", BADKEY = 17 "BADKEY",
        BADTIME = 18 "BADTIME", BADMODE = 19 "BADMODE", BADNAME = 20 "BADNAME", BADALG = 21 "BADALG", BADTRUNC = 22 "BADTRUNC",
        BADCOOKIE = 23 "BADCOOKIE",
    }
}

registry! {
    /// An operation code (RFC 1035, section 4.1.1).
    Opcode(u8), unknown "OPCODE" {
        QUERY = 0 "QUERY", IQUERY = 1 "IQUERY", STATUS = 2 "STATUS", NOTIFY = 4 "NOTIFY", UPDATE = 5 "UPDATE", DSO = 6 "DSO",
    }
}

/// The second 16 bits of a header: flags, opcode and the low four bits of the rcode (RFC 1035,
/// section 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u16);

impl Flags {
    /// Response.
    pub const QR: u16 = 0x8000;
    /// Authoritative answer.
    pub const AA: u16 = 0x0400;
    /// Truncated.
    pub const TC: u16 = 0x0200;
    /// Recursion desired.
    pub const RD: u16 = 0x0100;
    /// Recursion available.
    pub const RA: u16 = 0x0080;
    /// Authentic data (RFC 4035, section 3.2.3).
    pub const AD: u16 = 0x0020;
    /// Checking disabled (RFC 4035, section 3.2.2).
    pub const CD: u16 = 0x0010;

    /// Whether all of `bits` are set.
    #[inline]
    pub fn has(self, bits: u16) -> bool {
        self.0 & bits == bits
    }

    /// The opcode.
    #[inline]
    pub fn opcode(self) -> Opcode {
        Opcode(((self.0 >> 11) & 0xf) as u8)
    }

    /// The low four bits of the rcode.
    #[inline]
    pub fn rcode(self) -> u16 {
        self.0 & 0xf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mnemonics_roundtrip() {
        for number in 0..=u16::MAX {
            let rtype = RType(number);
            assert_eq!(rtype.to_string().parse(), Ok(rtype));
        }
        assert_eq!("aaaa".parse(), Ok(RType::AAAA));
        assert_eq!("TYPE65280".parse(), Ok(RType(65280)));
        assert_eq!("bogus".parse::<RType>(), Err(UnknownMnemonic));
        assert_eq!(Rcode::NXDOMAIN.to_string(), "NXDOMAIN");
        assert_eq!(Rcode(24).to_string(), "RCODE24");
        assert_eq!((Rcode(11).to_string(), "BADSIG".parse()), ("DSOTYPENI".to_owned(), Ok(Rcode::BADVERS)));
    }
}
