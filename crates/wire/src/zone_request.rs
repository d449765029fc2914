//! Requests about a whole zone: AXFR, IXFR (RFC 5936, RFC 1995), NOTIFY (RFC 1996), UPDATE (RFC
//! 2136).

use crate::records::Records;
use crate::{HEADER, Name, Query, RType, Section, read_u16, read_u32};

/// A request that [`accept`](crate::accept()) let pass: one question with the zone's name, at most
/// one OPT, readable records.
#[derive(Clone, Copy)]
pub struct ZoneRequest<'p> {
    /// Header, question and OPT; the opcode is in its flags.
    pub query: Query<'p>,
    /// The whole message, for its records.
    pub message: &'p [u8],
}

impl ZoneRequest<'_> {
    /// Whether it is AXFR or IXFR.
    pub fn is_transfer(&self) -> bool {
        self.query.flags.0 & 0x7800 == 0
    }

    /// The serial that an IXFR client has: that of the one SOA record in its authority section (RFC
    /// 1995, section 3). `None` without one, and for anything but IXFR.
    pub fn serial(&self) -> Option<u32> {
        if !self.is_transfer() || self.query.rtype != RType::IXFR {
            return None;
        }
        let counts = [6, 8, 10].map(|at| read_u16(self.message, at).unwrap_or_default());
        let records = Records::new(self.message, HEADER + self.query.question.len(), counts);
        let mut authorities =
            records.map_while(Result::ok).filter(|record| record.section == Section::Authority);
        let soa = authorities.next().filter(|record| record.rtype == RType::SOA)?;
        let (owner, _) = Name::read(self.message, soa.owner).ok()?;
        // Two names of any length, compressed or not, before five numbers.
        let numbers = soa.data.end.checked_sub(20).filter(|&at| at >= soa.data.start + 2)?;
        (owner == self.query.name).then(|| read_u32(self.message, numbers)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Verdict, accept};

    #[test]
    fn ixfr_serial() {
        // Both names point to the zone; the numbers are serial, refresh, retry, expire and minimum.
        let soa: &[u8] = b"\xc0\x0c\0\x06\0\x01\0\0\0\0\0\x18\xc0\x0c\xc0\x0c";
        let plain = [soa, &[1, 2, 3, 4], &[0; 16]].concat();
        let mut other = plain.clone();
        other.splice(..2, *b"\x05other\0");
        let mut short = plain[..12].to_vec();
        short[11] = 1;
        short.push(0);
        let mut address = plain[..12].to_vec();
        address[3] = 1;
        address[11] = 4;
        address.extend([192, 0, 2, 1]);
        for (what, rtype, opcode, records, serial) in [
            ("IXFR", 251, 0, Some(&plain), Some(0x0102_0304)),
            ("IXFR without SOA", 251, 0, None, None),
            ("IXFR with the SOA of another zone", 251, 0, Some(&other), None),
            ("IXFR with an SOA that is none", 251, 0, Some(&short), None),
            ("IXFR with another record", 251, 0, Some(&address), None),
            ("AXFR", 252, 0, Some(&plain), None),
            ("NOTIFY", 251, 4, Some(&plain), None),
        ] {
            let count = u8::from(records.is_some());
            let mut message = vec![0x12, 0x34, opcode << 3, 0, 0, 1, 0, 0, 0, count, 0, 0];
            message.extend_from_slice(b"\x07exAmple\x03org\0\0");
            message.extend_from_slice(&[rtype, 0, 1]);
            message.extend_from_slice(records.map_or(&[][..], |record| record));
            let Verdict::Zone(request) = accept(&message) else { panic!("{what}") };
            assert_eq!(request.serial(), serial, "{what}");
            assert_eq!(request.is_transfer(), opcode == 0, "{what}");
        }
    }
}
